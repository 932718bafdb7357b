//! From a store to its snapshots, and from a reference to one of them.

use std::ffi::{CStr, CString};

use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Reference, Result, Snapshot, SnapshotId};

use crate::failure::of_library;
use crate::names::{self, Named};
use crate::record::Record;
use crate::store::{Identity, Store};
use crate::sys::{Dataset, Kind, LibError, Number, Zfs};

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
    let datasets = datasets(&zfs, &identity)?;
    for name in datasets.there.iter().filter(|name| identity.datasets.iter().all(|known| known.name != **name)) {
        if let Some(opened) = open(name)? {
            return then(name, &opened, &id);
        }
    }
    Err(datasets.lost.map_or_else(|| no_such(reference), |name| lost(&name)))
}

/// The datasets of a store.
pub(crate) struct Datasets {
    /// Those that are there, by their present names.
    pub(crate) there: Vec<String>,
    /// One that cannot be looked for, because its pool is not imported.
    pub(crate) lost: Option<String>,
}

/// Where all datasets of a store are. Those that were destroyed are left out.
pub(crate) fn datasets(zfs: &Zfs, identity: &Identity) -> Result<Datasets> {
    let mut found = Datasets { there: Vec::new(), lost: None };
    let mut elsewhere = Vec::new();
    for known in &identity.datasets {
        match guid(zfs, &known.name)? {
            Some(guid) if guid == known.guid => found.there.push(known.name.clone()),
            _ => elsewhere.push(known),
        }
    }
    if elsewhere.is_empty() {
        return Ok(found);
    }
    let renamed = anywhere(zfs, |dataset| {
        let guid = dataset.number(Number::Guid);
        let name = elsewhere.iter().any(|known| known.guid == guid).then(|| dataset.name().into_string().ok());
        name.flatten().map(|name| (guid, name))
    })?;
    for known in elsewhere {
        match renamed.iter().find(|(guid, _)| *guid == known.guid) {
            Some((_, name)) => found.there.push(name.clone()),
            None if pool_is_there(zfs, &known.name)? => {}
            None => found.lost = Some(known.name.clone()),
        }
    }
    Ok(found)
}

/// What `wanted` gives for all filesystems of all pools that are imported, mounted or not.
pub(crate) fn anywhere<T>(zfs: &Zfs, mut wanted: impl FnMut(&Dataset<'_>) -> Option<T>) -> Result<Vec<T>> {
    fn down(dataset: &Dataset<'_>, each: &mut dyn FnMut(&Dataset<'_>), errors: &mut Vec<LibError>) {
        each(dataset);
        let below = dataset.children(|child| down(child, each, errors));
        errors.extend(below.err());
    }
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut each = |dataset: &Dataset<'_>| found.extend(wanted(dataset));
    let walked = zfs.roots(|root| down(root, &mut each, &mut errors));
    errors.extend(walked.err());
    // What was not looked at may be what is looked for.
    match errors.first() {
        Some(error) if found.is_empty() => Err(of_library("cannot look through the pools", error)),
        Some(_) | None => Ok(found),
    }
}

/// The present names of what has that guid: one, unless a pool was split.
pub(crate) fn by_guid(zfs: &Zfs, guid: u64) -> Result<Vec<CString>> {
    anywhere(zfs, |dataset| (dataset.number(Number::Guid) == guid).then(|| dataset.name()))
}

/// Whether the pool is imported in which a dataset of that name was.
pub(crate) fn pool_is_there(zfs: &Zfs, dataset: &str) -> Result<bool> {
    guid(zfs, pool_of(dataset)).map(|guid| guid.is_some())
}

fn pool_of(dataset: &str) -> &str {
    dataset.split_once('/').map_or(dataset, |(pool, _)| pool)
}

/// The error for a dataset that may be there or not: its pool is not imported.
pub(crate) fn lost(dataset: &str) -> Error {
    let pool = pool_of(dataset);
    let message = format!("the dataset {dataset} cannot be found: its pool {pool} is not imported");
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!("zpool import {pool}"))
}

/// What identifies a dataset whatever its name is; none if there is none of that name.
pub(crate) fn guid(zfs: &Zfs, dataset: &str) -> Result<Option<u64>> {
    let fail = |error| of_library(format!("cannot open the dataset {dataset}"), &error);
    Ok(open_dataset(zfs, dataset).map_err(fail)?.map(|opened| opened.number(Number::Guid)))
}

/// Opens a dataset by name; none if there is none.
pub(crate) fn open_dataset<'a>(zfs: &'a Zfs, name: &str) -> Result<Option<Dataset<'a>>, LibError> {
    match CString::new(name) {
        Ok(name) => zfs.open(&name, Kind::Filesystem),
        Err(_) => Ok(None),
    }
}

/// All snapshots of a store, oldest first, without what was omitted. `FailedPrecondition` if some cannot be looked for.
pub(crate) fn list(store: &Store<'_>, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
    let Some(identity) = store.identity()? else { return Ok(Vec::new()) };
    let zfs = Zfs::get()?;
    let mut found: Vec<(Snapshot, u64)> = Vec::new();
    let datasets = datasets(&zfs, &identity)?;
    if let Some(name) = datasets.lost {
        // A list without them would say that they were removed.
        return Err(lost(&name));
    }
    for dataset in datasets.there {
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
    // A dataset that was sent and received with its snapshots has them too.
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|(snapshot, _)| seen.insert(snapshot.id.clone()));
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
