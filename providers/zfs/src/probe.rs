//! Whether this provider can serve a workspace, for this user, and why not.

use std::collections::BTreeSet;

use ah_plugin_api::text::shell;
use ah_plugin_api::{Dir, Error, ErrorKind, Mode, Probe, ProbeRequest, Result};

use crate::clones;
use crate::delegation::{self, Party};
use crate::failure::of_library;
use crate::find;
use crate::locate::{self, Located};
use crate::sys::{Core, OfPool, Zfs};

/// What taking a snapshot takes: what is known of it is set in the same call. Seen with 2.1.11: without `userprop`, EPERM.
const TO_TAKE: [&str; 2] = ["snapshot", "userprop"];

/// What removing a snapshot takes. Source: `zfs_secpolicy_destroy_perms`.
const TO_DELETE: [&str; 2] = ["destroy", "mount"];

/// Answers [`ah_plugin_api::Provider::probe`].
pub(crate) fn probe(workspace: &Dir, request: &ProbeRequest) -> Result<Probe> {
    // Before anything is loaded: most workspaces are elsewhere, and nobody there wants to hear of libraries.
    if !locate::is_zfs(workspace)? {
        return Ok(no(match locate::workspace(workspace) {
            Err(error) => error,
            // It was remounted meanwhile; the next answer will know.
            Ok(_) => Error::new(ErrorKind::Conflict, "the workspace is being moved"),
        }));
    }
    if let Err(missing) = Core::get() {
        return Ok(no(missing.into()));
    }
    let located = match locate::workspace(workspace).and_then(|at| at.mounted.must_show_snapshots().map(|()| at)) {
        Ok(located) => located,
        Err(error) => return Ok(no(error)),
    };
    let dataset = &located.mounted.dataset;
    if let Err(error) = writable(dataset) {
        return Ok(no(error));
    }
    let mut can_delete = true;
    if !clones::allowed() {
        let allowed = match delegates(dataset).and_then(|()| permissions(dataset)) {
            Ok(allowed) => allowed,
            Err(error) => return Ok(no(error)),
        };
        can_delete = TO_DELETE.iter().all(|wanted| allowed.contains(*wanted));
        let wanted = TO_TAKE.iter().chain(&TO_DELETE);
        let lacking: Vec<&str> = wanted.filter(|wanted| !allowed.contains(**wanted)).copied().collect();
        if !lacking.is_empty() {
            let user = rustix::process::geteuid().as_raw();
            let remedy = format!(
                "as root: zfs allow -u {user} {} {}; or use the helper, ahd",
                lacking.join(","),
                shell(dataset.as_ref())
            );
            let usable = !TO_TAKE.iter().any(|wanted| lacking.contains(wanted));
            let what = if usable { "remove" } else { "take" };
            let reason = format!("this user may not {what} snapshots of the dataset {dataset}");
            return Ok(if usable {
                Probe { remedy: Some(remedy), ..yes(&located, reason, can_delete, request) }
            } else {
                Probe { can_delete, ..no(Error::new(ErrorKind::PermissionDenied, reason).with_hint(remedy)) }
            });
        }
    }
    let reason = if located.rel.is_root() {
        format!("it is the dataset {dataset}")
    } else {
        format!("it lies in the dataset {dataset}, all of which is captured")
    };
    Ok(yes(&located, reason, can_delete, request))
}

fn yes(located: &Located, reason: String, can_delete: bool, request: &ProbeRequest) -> Probe {
    let mut modes = BTreeSet::from([Mode::InPlace]);
    if clones::allowed() {
        modes.insert(Mode::Worktree);
    }
    let usable = request.mode.is_none_or(|mode| modes.contains(&mode));
    let (reason, remedy) = if usable {
        (reason, None)
    } else if request.mode == Some(Mode::Worktree) {
        let reason = format!("only root can mount a clone of {}", located.mounted.dataset);
        (reason, Some("use the helper, ahd, or run this as root".to_owned()))
    } else {
        ("a clone is mounted at a path of its own, not over the workspace's".to_owned(), None)
    };
    Probe { usable, reason, remedy, modes, can_delete, convertible: None }
}

fn no(error: Error) -> Probe {
    Probe {
        usable: false,
        reason: error.message,
        remedy: error.hint,
        modes: BTreeSet::new(),
        can_delete: false,
        convertible: None,
    }
}

/// An error for a dataset in a pool that was imported read-only.
fn writable(dataset: &str) -> Result<()> {
    let pool = find::pool_of(dataset);
    if of_pool(pool, OfPool::ReadOnly)? != Some(true) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::FailedPrecondition, format!("the pool {pool} was imported read-only")).with_hint(
        format!("import it for writing: zpool export {word} && zpool import {word}", word = shell(pool.as_ref())),
    ))
}

/// An error for a dataset in a pool where what is allowed to users does not count.
fn delegates(dataset: &str) -> Result<()> {
    let pool = find::pool_of(dataset);
    if of_pool(pool, OfPool::Delegation)? != Some(false) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::PermissionDenied, format!("the pool {pool} lets none but root take snapshots"))
        .with_hint(format!("as root: zpool set delegation=on {}; or use the helper, ahd", shell(pool.as_ref()))))
}

fn of_pool(pool: &str, property: OfPool) -> Result<Option<bool>> {
    let Ok(name) = std::ffi::CString::new(pool) else { return Ok(None) };
    Ok(Zfs::get()?.of_pool(&name, property))
}

/// What this user may do to a dataset.
fn permissions(dataset: &str) -> Result<BTreeSet<String>> {
    let fail = |error| of_library(format!("cannot ask what this user may do to {dataset}"), &error);
    let zfs = Zfs::get()?;
    let Some(opened) = find::open_dataset(&zfs, dataset).map_err(fail)? else { return Ok(BTreeSet::new()) };
    let lists = opened.permissions().map_err(fail)?;
    Ok(delegation::permissions(&lists, dataset, &Party::present()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Missing;

    #[test]
    fn elsewhere_it_says_where_the_workspace_is() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        if locate::is_zfs(&dir).unwrap() {
            return;
        }
        let probe = probe(&dir, &ProbeRequest::default()).unwrap();
        assert!(!probe.usable && probe.reason.contains("not on ZFS"), "{probe:?}");
        assert_eq!(probe.remedy, None);
    }

    #[test]
    fn what_is_missing_is_said_with_what_would_help() {
        let missing = [
            (Missing::Library { name: "libzfs.so.4".into(), cause: "no such file".into() }, "libzfs.so.4", "install"),
            (Missing::Version { found: "libzfs.so.2".into() }, "libzfs.so.2", "install"),
            (Missing::Module, "module", "modprobe zfs"),
            (Missing::Device { errno: 13 }, "denied", "chmod"),
        ];
        for (missing, reason, remedy) in missing {
            let probe = no(missing.into());
            assert!(!probe.usable && !probe.can_delete && probe.modes.is_empty(), "{probe:?}");
            assert!(probe.reason.contains(reason), "{probe:?}");
            assert!(probe.remedy.as_ref().is_some_and(|told| told.contains(remedy)), "{probe:?}");
        }
    }
}
