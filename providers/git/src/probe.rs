//! Whether this provider can serve a workspace. It can serve nearly every one, so this is about what stands in the way.

use std::collections::BTreeSet;

use ah_plugin_api::{Dir, Mode, Probe, ProbeRequest};
use rustix::fs::{Access, AtFlags, StatVfsMountFlags};

use crate::store::Store;

/// Answers [`ah_plugin_api::Provider::probe`]. Changes nothing.
pub(crate) fn probe(workspace: &Dir, store: &Dir, request: &ProbeRequest) -> Probe {
    let modes = BTreeSet::from([Mode::InPlace, Mode::Worktree]);
    let (can_delete, problem) = match obstacle(workspace, store) {
        Some(Obstacle { in_store, reason, remedy }) => (!in_store, Some((reason, remedy))),
        None => (true, None),
    };
    if let Some((reason, remedy)) = problem {
        return Probe {
            usable: false,
            reason,
            remedy: Some(remedy),
            modes: BTreeSet::new(),
            can_delete,
            convertible: None,
        };
    }
    if let Some(mode) = request.mode
        && !modes.contains(&mode)
    {
        return Probe {
            usable: false,
            reason: "copies files, so it cannot show a branch at the workspace's own path".to_owned(),
            remedy: Some("use --mode=in-place or --mode=worktree".to_owned()),
            modes,
            can_delete,
            convertible: None,
        };
    }
    let reason = "keeps files in a Git object store of its own; works in any directory".to_owned();
    Probe { usable: true, reason, remedy: None, modes, can_delete, convertible: None }
}

struct Obstacle {
    in_store: bool,
    reason: String,
    remedy: String,
}

fn obstacle(workspace: &Dir, store: &Dir) -> Option<Obstacle> {
    let readable = rustix::fs::accessat(workspace, c".", Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS);
    if let Err(e) = readable {
        return Some(Obstacle {
            in_store: false,
            reason: format!("{} cannot be read: {}", workspace.path().display(), std::io::Error::from(e)),
            remedy: "work as the user who owns it".to_owned(),
        });
    }
    if rustix::fs::fstatvfs(store).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Some(Obstacle {
            in_store: true,
            reason: format!("{} is on a filesystem that is mounted read-only", store.path().display()),
            remedy: "set AH_HOME to a folder that can be written to".to_owned(),
        });
    }
    if let Err(e) = rustix::fs::accessat(store, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        return Some(Obstacle {
            in_store: true,
            reason: format!("{} cannot be written to: {}", store.path().display(), std::io::Error::from(e)),
            remedy: "set AH_HOME to a folder of your own".to_owned(),
        });
    }
    Store::refusal(store).map(|error| Obstacle {
        in_store: true,
        reason: error.message,
        remedy: error.hint.unwrap_or_else(|| "use the version of the program that made it".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use ah_plugin_api::{Dir, Mode, ProbeRequest};

    use super::probe;

    #[test]
    fn says_yes_to_any_directory_and_no_to_what_it_cannot_show() {
        let (workspace, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (workspace, store) = (Dir::open(workspace.path()).unwrap(), Dir::open(store.path()).unwrap());
        let yes = probe(&workspace, &store, &ProbeRequest { mode: Some(Mode::InPlace), ..ProbeRequest::default() });
        assert!(yes.usable && yes.can_delete && yes.modes.contains(&Mode::Worktree), "{yes:?}");
        let no = probe(&workspace, &store, &ProbeRequest { mode: Some(Mode::CowOverlay), ..ProbeRequest::default() });
        assert!(!no.usable && no.remedy.is_some(), "{no:?}");
    }

    #[test]
    fn says_no_to_a_store_of_another_version() {
        let (workspace, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (workspace, store) = (Dir::open(workspace.path()).unwrap(), Dir::open(temp.path()).unwrap());
        for (format, usable) in [("{\"version\":1}", true), ("{\"version\":2}", false), ("damaged", true)] {
            std::fs::write(temp.path().join("format"), format).unwrap();
            let probe = probe(&workspace, &store, &ProbeRequest::default());
            assert_eq!((probe.usable, probe.can_delete, probe.remedy.is_none()), (usable, usable, usable), "{probe:?}");
        }
    }
}
