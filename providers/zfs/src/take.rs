//! Taking a snapshot: one ioctl, which makes it and everything that is known of it at once, and waits until it is on disk.

use ah_plugin_api::{Context, Dir, Error, ErrorKind, Result, Snapshot, SnapshotRequest};
use ah_repository::Repository;
use rustix::io::Errno;

use crate::failure::of_kernel;
use crate::find;
use crate::locate;
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
        if core.exists(&names::snapshot(&other.name, &identity.key, &request.id)?) {
            return Err(exists());
        }
    }
    let name = names::snapshot(&mounted.dataset, &identity.key, &request.id)?;
    let mut record = Record::new(request, &mounted.dataset, located.rel.clone(), located.omitted)?;
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
    if !mounted.shows(&full[0])? {
        // The mount table has names from when they were mounted; another dataset has got this one since.
        // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
        let _ = core.destroy_snapshots(&full, true);
        return Err(moved(&mounted.dataset));
    }
    Ok(record.snapshot)
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
    let opened = zfs.open(name, Kind::Snapshot);
    let opened = opened.map_err(|error| crate::failure::of_library("cannot look at the snapshot", &error))?;
    Ok(opened.is_some_and(|snapshot| snapshot.number(Number::DeferDestroy) != 0))
}

fn moved(dataset: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the dataset {dataset} was renamed while it was mounted"))
        .with_hint("mount it again under its new name: zfs unmount, then zfs mount")
}
