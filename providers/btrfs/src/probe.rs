//! Whether this provider can serve a workspace, for this user.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use ah_plugin_api::{Dir, Error, Mode, Probe, ProbeRequest};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

use crate::depot::Depot;
use crate::subvolume::{Removal, Subvolume};
use crate::{above, depot, omitted};

const OWN_HOME: &str = "set AH_HOME to a folder of your own";

const HELPER: &str = "let the administrator set up `ahd`, which does it for you";

/// Answers [`ah_plugin_api::Provider::probe`]. Changes nothing.
pub(crate) fn probe(workspace: &Dir, store: &Dir, request: &ProbeRequest) -> Probe {
    let modes = BTreeSet::from([Mode::InPlace, Mode::Worktree]);
    let no = |reason: String, remedy: Option<String>| Probe {
        usable: false,
        reason,
        remedy,
        modes: BTreeSet::new(),
        can_delete: false,
        convertible: None,
    };
    let source = match Subvolume::around(workspace) {
        Ok(source) => source,
        Err(error) => return no(told(&error), error.hint),
    };
    let removal = Removal::on(workspace);
    let can_delete = removal != Removal::Emptied;
    let convertible = convertible(workspace, &source).map(|why| match can_delete {
        true => why,
        false => format!("{why}; mount it with user_subvol_rm_allowed first, or only root could remove what it makes"),
    });
    if let Some((reason, remedy)) = obstacle(workspace, store, &source) {
        return Probe { convertible, can_delete, ..no(reason, Some(remedy)) };
    }
    if let Some(mode) = request.mode
        && !modes.contains(&mode)
    {
        let reason = "its branches are at a path of their own".to_owned();
        let remedy = Some("use --mode=in-place or --mode=worktree".to_owned());
        return Probe { modes, can_delete, convertible, ..no(reason, remedy) };
    }
    let what = if source.rel.is_root() { "is" } else { "is in" };
    let mut reason = format!("it {what} the subvolume {}", source.path.display());
    let mut remedy = None;
    if !can_delete {
        reason.push_str(", on a filesystem that lets only root remove subvolumes at once");
        remedy = Some(format!("mount it with user_subvol_rm_allowed, or {HELPER}"));
    }
    Probe { usable: true, reason, remedy, modes, can_delete, convertible }
}

fn told(error: &Error) -> String {
    std::iter::once(&error.message).chain(&error.causes).map(String::as_str).collect::<Vec<_>>().join(": ")
}

fn errno_text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// Why not, and what would help.
fn obstacle(workspace: &Dir, store: &Dir, source: &Subvolume) -> Option<(String, String)> {
    let subvolume = source.path.display();
    if !source.is_own() {
        return Some((format!("the subvolume {subvolume} belongs to somebody else"), HELPER.to_owned()));
    }
    if let Some(file) = omitted::swap_files(source).first() {
        return Some((
            format!("the subvolume {subvolume} holds the swap file {}, which is in use", file.display()),
            "swap to a file in a subvolume of its own".to_owned(),
        ));
    }
    let read_only = |path: &std::path::Path| {
        let reason = format!("{} is on a filesystem that is mounted read-only", path.display());
        Some((reason, "remount it for writing".to_owned()))
    };
    let writable = |fd: &dyn AsFd| {
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(fd.as_fd(), c".", wanted, AtFlags::EACCESS)
    };
    // Where there are snapshots already, the new ones have to be.
    match Depot::find(store) {
        Err(error) => return Some((told(&error), error.hint.unwrap_or_default())),
        Ok(Some(depot)) if depot.is_on_filesystem_of(workspace) => {
            return match depot.is_writable() {
                Ok(()) => None,
                Err(Errno::ROFS) => read_only(depot.path()),
                Err(errno) => Some((
                    format!("{} cannot be written to: {}", depot.path().display(), errno_text(errno)),
                    OWN_HOME.to_owned(),
                )),
            };
        }
        Ok(Some(depot)) if !depot.is_empty() => {
            let error = depot.on_another(workspace.path());
            return Some((told(&error), error.hint.unwrap_or_default()));
        }
        Ok(_) => {}
    }
    if depot::is_here(store, workspace.as_fd()) {
        return match writable(store) {
            Ok(()) => None,
            Err(Errno::ROFS) => read_only(store.path()),
            Err(errno) => Some((
                format!("{} cannot be written to: {}", store.path().display(), errno_text(errno)),
                OWN_HOME.to_owned(),
            )),
        };
    }
    match above::place_above(workspace) {
        Ok(_) => None,
        Err(_) if matches!(writable(&source.root), Err(Errno::ROFS)) => read_only(&source.path),
        Err(error) => Some((told(&error), error.hint.unwrap_or_default())),
    }
}

/// What making the workspace a subvolume of its own would make better, if this user can.
fn convertible(workspace: &Dir, source: &Subvolume) -> Option<String> {
    if source.rel.is_root() {
        return None;
    }
    // What is renamed is the workspace's name in the directory above.
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let above = rustix::fs::openat(workspace, c"..", flags, rustix::fs::Mode::empty()).ok()?;
    rustix::fs::accessat(&above, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).ok()?;
    Some(if source.is_own() {
        format!(
            "snapshots hold the space of all of {} as long as they are kept, unless the workspace is a subvolume of its own",
            source.path.display()
        )
    } else {
        format!(
            "the subvolume {} belongs to somebody else, who alone can take snapshots of it; a subvolume of its own would be yours",
            source.path.display()
        )
    })
}
