//! Taking a snapshot: one ioctl, which makes it and everything that is known of it at once, and waits until it is on disk.

use std::ffi::CStr;

use ah_plugin_api::{Context, Dir, Error, ErrorKind, Result, Snapshot, SnapshotRequest};
use ah_repository::Repository;
use rustix::io::Errno;

use crate::failure::{is_damage, of_kernel, of_library};
use crate::find;
use crate::locate::{self, Located};
use crate::names;
use crate::record::Record;
use crate::remove;
use crate::store::{Lock, Store};
use crate::sys::{Core, Kind, Number, Zfs};

/// Answers [`ah_plugin_api::Provider::snapshot`].
pub(crate) fn snapshot(
    workspace: &Dir,
    store: &Store<'_>,
    request: &SnapshotRequest,
    cx: &Context<'_>,
) -> Result<Snapshot> {
    let core = Core::get()?;
    let _lock = store.lock(Lock::Shared, cx)?;
    let located = locate::workspace(workspace)?;
    let mounted = &located.mounted;
    mounted.must_show_snapshots()?;
    let identity = store.identity_with(&mounted.dataset, mounted.filesystem(), || {
        find::guids(&Zfs::get()?, &mounted.dataset)?.ok_or_else(|| moved(&mounted.dataset))
    })?;
    let exists = || Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {} already", request.id));
    for other in identity.datasets.iter().filter(|known| known.name != mounted.dataset) {
        match remove::exists(core, &names::snapshot(&other.name, &identity.key, &request.id)?) {
            Ok(false) => {}
            Ok(true) => return Err(exists()),
            // Another pool is suspended, which is nothing to this one.
            Err(error) if error.kind == ErrorKind::Unavailable => {}
            Err(error) => return Err(error),
        }
    }
    let name = names::snapshot(&mounted.dataset, &identity.key, &request.id)?;
    // A suspended pool says so here, at once: with pages to be written back it would hold whoever asks for that, unkillable, until somebody clears it.
    remove::exists(core, &name)?;
    cx.check_cancelled()?;
    locate::written_out(workspace)?;
    // Behind that, which may take seconds: what is recorded is of the snapshot's time.
    let mut record = Record::new(request, &mounted.dataset, located.rel.clone(), located.omitted.clone())?;
    record.snapshot.repository = Repository::standing(workspace);
    let properties = record.to_properties(&identity.key)?;
    cx.check_cancelled()?;
    let full = [name];
    let mut taken = core.snapshot(&full, &properties);
    if is_taken(&taken) && is_removed(&full[0])? {
        // It was removed, and goes with its last clone: only its name is in the way.
        remove::set_aside(core, &mounted.dataset, &identity.key, &full[0]);
        taken = core.snapshot(&full, &properties);
    }
    if is_taken(&taken) {
        return Err(exists());
    }
    taken.map_err(|failure| of_kernel(format!("cannot take a snapshot of {}", mounted.dataset), &failure))?;
    if let Err(error) = check_shows(workspace, &located, &full[0]) {
        // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
        let _ = core.destroy_snapshots(&full, true);
        return Err(error);
    }
    Ok(record.snapshot)
}

/// That a new snapshot is one of the workspace.
fn check_shows(workspace: &Dir, located: &Located, snapshot: &CStr) -> Result<()> {
    if !located.mounted.shows(snapshot)? {
        // The mount table has names from when they were mounted; another dataset has got this one since.
        return Err(moved(&located.mounted.dataset));
    }
    // Before it was taken, which can be seconds, something else may have come to the workspace's place. To look into the snapshot would have the
    // kernel start a program to mount each one; where the workspace is now tells the same, unless it was moved away and back meanwhile.
    let now = locate::workspace(workspace)?;
    if (&now.mounted.dataset, &now.rel) == (&located.mounted.dataset, &located.rel) {
        return Ok(());
    }
    let message = format!("{} was moved while a snapshot of it was taken", workspace.path().display());
    Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat"))
}

fn is_taken(result: &Result<(), crate::sys::Failure>) -> bool {
    let exists = Errno::EXIST.raw_os_error();
    let is_it = |failure: &crate::sys::Failure| {
        failure.errno == exists || failure.each.iter().any(|(_, errno)| *errno == exists)
    };
    result.as_ref().is_err_and(is_it)
}

fn is_removed(name: &std::ffi::CStr) -> Result<bool> {
    let zfs = Zfs::get()?;
    let opened = match zfs.open(name, Kind::Snapshot) {
        // One that was removed has another name by now.
        Err(error) if is_damage(&error) => None,
        opened => opened.map_err(|error| of_library("cannot look at the snapshot", &error))?,
    };
    Ok(opened.is_some_and(|snapshot| snapshot.number(Number::DeferDestroy) != 0))
}

fn moved(dataset: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the dataset {dataset} was renamed while it was mounted"))
        .with_hint("mount it again under its new name: zfs unmount, then zfs mount")
}
