//! From a store to its snapshots, and from a reference to one of them.

use std::ffi::{CStr, CString};

use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Reference, Result, Snapshot, SnapshotId};

use crate::failure::of_library;
use crate::locate;
use crate::names::{self, Named};
use crate::record::Record;
use crate::store::{Identity, Known, Store};
use crate::sys::{Dataset, Kind, Number, Zfs};

/// A snapshot of a store.
pub(crate) struct Found {
    /// Its dataset's name.
    pub(crate) dataset: String,
    /// Its full name.
    pub(crate) full: CString,
    /// What is known of it.
    pub(crate) record: Record,
}

/// The error for a reference that names nothing.
pub(crate) fn no_such(reference: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}"))
}

/// The id that a reference names. References are ids: within a store they are unique, and stay with the snapshot.
pub(crate) fn id_of(reference: &Reference) -> Option<SnapshotId> {
    SnapshotId::new(reference.as_str()).ok()
}

/// The snapshot that a reference names.
pub(crate) fn snapshot(store: &Store<'_>, reference: &Reference) -> Result<Found> {
    with_snapshot(store, reference, |dataset, opened, id| {
        let full = opened.name();
        let record = Record::from_properties(&opened.user_properties(), dataset, id)?;
        Ok(Found { dataset: dataset.to_owned(), full, record })
    })
}

/// Calls `then` with the snapshot that a reference names, opened, and its dataset's name.
pub(crate) fn with_snapshot<T>(
    store: &Store<'_>,
    reference: &Reference,
    then: impl FnOnce(&str, &Dataset<'_>, &SnapshotId) -> Result<T>,
) -> Result<T> {
    let (Some(id), Some(identity)) = (id_of(reference), store.identity()?) else { return Err(no_such(reference)) };
    let zfs = Zfs::get()?;
    let fail = |error| of_library(format!("cannot look for the snapshot {reference}"), &error);
    let open = |dataset: &str| -> Result<Option<Dataset<'_>>> {
        let full = names::snapshot(dataset, &identity.key, &id)?;
        // One that goes with its last clone is gone for the caller.
        let opened = zfs.open(&full, Kind::Snapshot).map_err(fail)?;
        Ok(opened.filter(|opened| opened.number(Number::DeferDestroy) == 0))
    };
    for known in &identity.datasets {
        if let Some(opened) = open(&known.name)? {
            return then(&known.name, &opened, &id);
        }
    }
    // It may have been renamed since.
    for known in &identity.datasets {
        if let Some(name) = renamed(&zfs, known)?
            && let Some(opened) = open(&name)?
        {
            return then(&name, &opened, &id);
        }
    }
    Err(no_such(reference))
}

/// All datasets of a store that are there, by their present names.
pub(crate) fn datasets(zfs: &Zfs, identity: &Identity) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for known in &identity.datasets {
        let name = match guid(zfs, &known.name)? {
            Some(guid) if guid == known.guid => Some(known.name.clone()),
            _ => renamed(zfs, known)?,
        };
        names.extend(name);
    }
    Ok(names)
}

/// What identifies a dataset whatever its name is; none if there is none of that name.
pub(crate) fn guid(zfs: &Zfs, dataset: &str) -> Result<Option<u64>> {
    let fail = |error| of_library(format!("cannot open the dataset {dataset}"), &error);
    Ok(open_dataset(zfs, dataset).map_err(fail)?.map(|opened| opened.number(Number::Guid)))
}

/// Opens a dataset by name; none if there is none.
pub(crate) fn open_dataset<'a>(zfs: &'a Zfs, name: &str) -> Result<Option<Dataset<'a>>, crate::sys::LibError> {
    match CString::new(name) {
        Ok(name) => zfs.open(&name, Kind::Filesystem),
        Err(_) => Ok(None),
    }
}

/// The present name of a dataset that is not there by its old one; none if it is nowhere among those that are mounted.
fn renamed(zfs: &Zfs, known: &Known) -> Result<Option<String>> {
    for name in locate::mounted_datasets() {
        if name != known.name && guid(zfs, &name)? == Some(known.guid) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// All snapshots of a store, oldest first, without what was omitted.
pub(crate) fn list(store: &Store<'_>, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
    let Some(identity) = store.identity()? else { return Ok(Vec::new()) };
    let zfs = Zfs::get()?;
    let mut found: Vec<(Snapshot, u64)> = Vec::new();
    for dataset in datasets(&zfs, &identity)? {
        let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
        let Some(opened) = open_dataset(&zfs, &dataset).map_err(fail)? else { continue };
        opened
            .snapshots(false, |snapshot| {
                let Named::Snapshot(id) = names::read_snapshot(snapshot.name().to_bytes(), &identity.key) else {
                    return;
                };
                if snapshot.number(Number::DeferDestroy) != 0 {
                    return;
                }
                match Record::from_properties(&snapshot.user_properties(), &dataset, &id) {
                    Ok(mut record) => {
                        record.snapshot.omitted.clear();
                        found.push((record.snapshot, snapshot.number(Number::CreateTxg)));
                    }
                    Err(error) => cx.log(LogLevel::Warn, &format!("left out of the list: {error}")),
                }
            })
            .map_err(fail)?;
    }
    found.sort_by(|(a, at), (b, bt)| (a.created, at).cmp(&(b.created, bt)));
    Ok(found.into_iter().map(|(snapshot, _)| snapshot).collect())
}

/// The full names of a dataset's snapshots for which `wanted` says so.
pub(crate) fn snapshot_names(zfs: &Zfs, dataset: &str, mut wanted: impl FnMut(&CStr) -> bool) -> Result<Vec<CString>> {
    let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
    let mut names = Vec::new();
    if let Some(opened) = open_dataset(zfs, dataset).map_err(fail)? {
        let each = |snapshot: &Dataset<'_>| names.extend(Some(snapshot.name()).filter(|name| wanted(name)));
        opened.snapshots(true, each).map_err(fail)?;
    }
    Ok(names)
}
