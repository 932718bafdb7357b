//! Removing a clone: unmounted, its own snapshots destroyed, then itself.
//!
//! Snapshots of it that are not ours are left alone: then the dataset stays, unmounted, until they are gone and `reclaim` comes by.
//! What was grown from a snapshot of it goes on: it is promoted, and takes that snapshot over.

use std::ffi::{CStr, CString};
use std::path::Path;

use ah_plugin_api::{Context, Error, ErrorKind, Reference, Result};
use ah_provider_directory::{Mounts, failed};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::busy;
use crate::failure::{of_kernel, of_library};
use crate::find;
use crate::names;
use crate::store::Store;
use crate::sys::{Core, Kind, Number, Zfs};

use super::record::{self, Gone, Record};

/// Answers `destroy` of a clone.
pub(crate) fn remove(store: &Store<'_>, reference: &Reference, cx: &Context<'_>) -> Result<()> {
    let found = record::all(store)?.into_iter().find(|(gone, _)| gone.reference == *reference);
    match found {
        Some((gone, record)) if !record::is_in_the_making(store, &gone) => finish(store, &gone, &record, cx).map(drop),
        // Gone already, or none of ours.
        _ => Ok(()),
    }
}

/// Removes what there is of a clone; false if snapshots by others still keep its dataset.
pub(crate) fn finish(store: &Store<'_>, gone: &Gone, record: &Record, cx: &Context<'_>) -> Result<bool> {
    if record::is_in_the_making(store, gone) {
        return Ok(false);
    }
    let core = Core::get()?;
    let name = CString::new(record.dataset.as_str())
        .map_err(|_| Error::new(ErrorKind::DataLoss, "the record of a clone is damaged"))?;
    // What is in the record is not taken on trust: only what this provider has named is ever destroyed.
    if !names::is_any_clone(&record.dataset) {
        return Err(Error::new(ErrorKind::DataLoss, format!("the record of the clone {} is damaged", gone.reference)));
    }
    if core.exists(&name) {
        unmount(&record.dataset)?;
        record::going(store, gone)?;
        cx.check_cancelled()?;
        if !destroy(core, &name)? {
            hide(&name)?;
            remove_point(&record.point())?;
            return Ok(false);
        }
    } else {
        record::going(store, gone)?;
    }
    remove_point(&record.point())?;
    record::forget(store, &gone.reference)?;
    Ok(true)
}

/// Takes away all mounts of a dataset and of its snapshots that this process sees, the innermost first.
pub(super) fn unmount(dataset: &str) -> Result<()> {
    let snapshots = format!("{dataset}@");
    let mounts = Mounts::read();
    let mut points: Vec<_> = mounts
        .iter()
        .filter(|mount| mount.kind == "zfs")
        .filter(|mount| mount.source == dataset.as_bytes() || mount.source.starts_with(snapshots.as_bytes()))
        .map(|mount| mount.point.as_path())
        .collect();
    // The longest first: what is mounted inside goes before what it is mounted in.
    points.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    for point in points {
        match rustix::mount::unmount(point, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::BUSY) => return Err(busy::error(&format!("{} is in use", point.display()), dataset)),
            Err(errno) => return Err(failed(format!("cannot unmount {}", point.display()), errno)),
        }
    }
    Ok(())
}

/// Destroys a dataset with what is ours in it; false if something by others keeps it.
fn destroy(core: &'static Core, name: &CStr) -> Result<bool> {
    let shown = name.to_string_lossy();
    let dataset = shown.as_ref();
    let (ours, foreign) = {
        let zfs = Zfs::get()?;
        let all = find::snapshot_names(&zfs, dataset, |_| true)?;
        all.into_iter().partition::<Vec<_>, _>(|full| names::is_any_stores(full.to_bytes()))
    };
    promote_dependents(core, &ours)?;
    if !ours.is_empty() {
        // Those that were promoted away are gone from here, which is success; one that is held goes when it is released.
        core.destroy_snapshots(&ours, true)
            .map_err(|failure| of_kernel(format!("cannot destroy the snapshots of {dataset}"), &failure))?;
    }
    if !foreign.is_empty() {
        return Ok(false);
    }
    match core.destroy(name) {
        Ok(()) => Ok(true),
        Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => Ok(true),
        // It has something in it after all: a snapshot that is held, a dataset that somebody made there.
        Err(failure) if failure.errno == Errno::EXIST.raw_os_error() => Ok(false),
        Err(failure) if failure.errno == Errno::BUSY.raw_os_error() => {
            remount(name);
            Err(busy::error(&format!("the clone {dataset} is in use"), dataset))
        }
        Err(failure) => Err(of_kernel(format!("cannot destroy {dataset}"), &failure)),
    }
}

/// Promotes what was grown from these snapshots, then frees the clone of what came over with it.
fn promote_dependents(core: &'static Core, snapshots: &[CString]) -> Result<()> {
    for full in snapshots {
        let clones = {
            let zfs = Zfs::get()?;
            let fail = |error| of_library("cannot look for clones", &error);
            let opened = zfs.open(full, Kind::Snapshot).map_err(fail)?;
            opened.map(|snapshot| snapshot.clones()).unwrap_or_default()
        };
        let Some(clone) = clones.into_iter().next().and_then(|name| CString::new(name).ok()) else { continue };
        core.promote(&clone)
            .map_err(|failure| of_kernel(format!("cannot promote {}", clone.to_string_lossy()), &failure))?;
        // They belong to a store that goes with this clone; those still needed go with what needs them.
        let taken_over: Vec<CString> = snapshots
            .iter()
            .filter_map(|old| {
                let at = crate::locate::short(old);
                CString::new([clone.to_bytes(), b"@", at.to_bytes()].concat()).ok()
            })
            .filter(|name| core.exists(name))
            .collect();
        if !taken_over.is_empty() {
            core.destroy_snapshots(&taken_over, true)
                .map_err(|failure| of_kernel("cannot destroy what was promoted", &failure))?;
        }
    }
    Ok(())
}

/// Sees to it that what stays is not mounted again at the next boot.
fn hide(name: &CStr) -> Result<()> {
    let zfs = Zfs::get()?;
    let fail = |error| of_library(format!("cannot hide {}", name.to_string_lossy()), &error);
    match zfs.open(name, Kind::Filesystem).map_err(fail)? {
        Some(opened) => opened.set(c"mountpoint", c"none").map_err(fail),
        None => Ok(()),
    }
}

/// Puts back what was unmounted, when it turns out that another mount namespace has it too.
fn remount(name: &CStr) {
    // The error at hand, that it is busy, is the one to tell.
    if let Ok(zfs) = Zfs::get()
        && let Ok(Some(opened)) = zfs.open(name, Kind::Filesystem)
        && opened.number(Number::Guid) != 0
    {
        let _ = opened.mount();
    }
}

/// Removes the directory that a clone was mounted on; one that is not empty, or not there, is none of ours any more.
fn remove_point(point: &Path) -> Result<()> {
    match rustix::fs::rmdir(point) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => Ok(()),
        Err(errno) => Err(failed(format!("cannot remove {}", point.display()), errno)),
    }
}
