//! Removing a snapshot. One that a clone or a hold still needs is marked to go with the last of them, and is not listed any more.

use std::ffi::{CStr, CString};

use ah_plugin_api::{Context, Error, ErrorKind, Reference, Result, SnapshotId, text};
use rustix::io::Errno;

use crate::busy;
use crate::failure::of_kernel;
use crate::find;
use crate::names::{self, Key};
use crate::store::Store;
use crate::sys::{Core, Zfs};

/// Answers `destroy` of a snapshot.
pub(crate) fn snapshot(store: &Store<'_>, reference: &Reference, cx: &Context<'_>) -> Result<()> {
    let (Some(id), Some(identity)) = (find::id_of(reference), store.identity()?) else { return Ok(()) };
    let core = Core::get()?;
    // More than one has it, if a dataset was sent and received: all of them are looked at, so that none comes up later.
    let datasets = find::datasets(&Zfs::get()?, &identity)?;
    let mut found = Vec::new();
    for dataset in datasets.there {
        let full = names::snapshot(&dataset, &identity.key, &id)?;
        if exists(core, &full)? {
            found.push((dataset, full));
        }
    }
    if found.is_empty() {
        return datasets.lost.map_or(Ok(()), |name| Err(find::lost(&name)));
    }
    // From here to the end nobody shows it.
    let _lock = store.lock_views(true, cx)?;
    must_not_be_viewed(store, &id)?;
    for (dataset, full) in found {
        destroy(core, &dataset, &identity.key, &full)?;
    }
    Ok(())
}

fn must_not_be_viewed(store: &Store<'_>, id: &SnapshotId) -> Result<()> {
    match store.views()?.of(id)? {
        0 => Ok(()),
        count => Err(Error::new(
            ErrorKind::Busy,
            format!("the snapshot {id} is shown in {}", text::count(count, "view", "views")),
        )
        .with_hint("unmount them first")),
    }
}

/// Destroys one snapshot, or marks it to go as soon as it can.
pub(crate) fn destroy(core: &'static Core, dataset: &str, key: &Key, full: &CString) -> Result<()> {
    if let Err(failure) = core.destroy_snapshots(std::slice::from_ref(full), true) {
        let busy = Errno::BUSY.raw_os_error();
        let shown = full.to_string_lossy();
        if failure.errno == busy || failure.each.iter().any(|(_, errno)| *errno == busy) {
            return Err(busy::error(&format!("the snapshot {shown} is in use"), &shown));
        }
        return Err(of_kernel(format!("cannot destroy the snapshot {shown}"), &failure));
    }
    // A clone or a hold keeps it, perhaps.
    if core.exists(full) != Ok(false) {
        set_aside(core, dataset, key, full);
    }
    Ok(())
}

/// Whether there is a snapshot or dataset of that name. One that is damaged is.
pub(crate) fn exists(core: &Core, full: &CStr) -> Result<bool> {
    let fail = |failure| of_kernel(format!("cannot look for {}", full.to_string_lossy()), &failure);
    match core.exists(full).map_err(fail) {
        Err(error) if error.kind == ErrorKind::DataLoss => Ok(true),
        found => found,
    }
}

/// Frees the name of a snapshot that was marked. Where that may not be, it is marked all the same, and not listed; only its id stays
/// taken.
pub(crate) fn set_aside(core: &Core, dataset: &str, key: &Key, full: &CStr) {
    if let Ok(aside) = names::removed(dataset, key) {
        let _ = core.rename(full, &aside);
    }
}
