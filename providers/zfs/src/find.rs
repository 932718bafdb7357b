//! From a store to its snapshots, and from a reference to one of them.

use std::ffi::{CStr, CString};
use std::path::Path;

use ah_plugin_api::text::shell;
use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Reference, Result, Snapshot, SnapshotId};

use crate::failure::{is_damage, of_library};
use crate::lineage;
use crate::names::{self, Named};
use crate::record::Record;
use crate::store::{Identity, Known, Store};
use crate::sys::{Dataset, Kind, LibError, Number, Zfs};

/// A snapshot of a store.
pub(crate) struct Found {
    /// Its dataset's name.
    pub(crate) dataset: String,
    /// Its full name.
    pub(crate) full: CString,
    /// What is known of it.
    pub(crate) record: Record,
    /// The transaction group that made it: the order of snapshots.
    pub(crate) made_in: u64,
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
    let (Some(id), Some(identity)) = (id_of(reference), store.identity()?) else { return Err(no_such(reference)) };
    let zfs = Zfs::get()?;
    let fail = |error| of_library(format!("cannot look for the snapshot {reference}"), &error);
    let open = |dataset: &str| -> Result<Option<Dataset<'_>>> {
        let full = names::snapshot(dataset, &identity.key, &id)?;
        // One that goes with its last clone is gone for the caller.
        let opened = zfs.open(&full, Kind::Snapshot).map_err(fail)?;
        Ok(opened.filter(|opened| opened.number(Number::DeferDestroy) == 0))
    };
    let found = |dataset: &str, opened: &Dataset<'_>| {
        let record = Record::from_properties(&opened.user_properties(), dataset, &id)?;
        let made_in = opened.number(Number::CreateTxg);
        Ok(Found { dataset: dataset.to_owned(), full: opened.name(), record, made_in })
    };
    for known in &identity.datasets {
        if let Some(opened) = open(&known.name)? {
            return found(&known.name, &opened);
        }
    }
    // It may have been renamed since, or a clone may have been given its snapshots.
    let datasets = datasets(&zfs, &identity)?;
    for name in datasets.there.iter().filter(|name| identity.datasets.iter().all(|known| known.name != **name)) {
        if let Some(opened) = open(name)? {
            return found(name, &opened);
        }
    }
    Err(datasets.lost.map_or_else(|| no_such(reference), |name| lost(&name)))
}

/// The datasets of a store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Datasets {
    /// Those that are there, by their present names; and those that have been given snapshots of theirs (`lineage`).
    pub(crate) there: Vec<String>,
    /// One that cannot be looked for, because its pool is not imported.
    pub(crate) lost: Option<String>,
    /// All that the store need know from now on: by their present names, without those that are known to have been destroyed.
    pub(crate) known: Vec<Known>,
}

/// Where all datasets of a store are. Those that were destroyed are left out.
pub(crate) fn datasets(zfs: &Zfs, identity: &Identity) -> Result<Datasets> {
    let mut sorted = sort_out(&identity.datasets, |name| guid(zfs, name), |wanted| by_guids(zfs, wanted))?;
    for at in 0..sorted.there.len() {
        for holder in lineage::holders(zfs, &sorted.there[at])? {
            if !sorted.there.contains(&holder.dataset) {
                sorted.there.push(holder.dataset);
            }
        }
    }
    Ok(sorted)
}

/// [`datasets`], with what is asked of ZFS: the guid of a name, and the names of those that have one of these guids.
fn sort_out(
    known: &[Known],
    guid: impl Fn(&str) -> Result<Option<u64>>,
    everywhere: impl FnOnce(&[u64]) -> Looked<(u64, String)>,
) -> Result<Datasets> {
    let mut sorted = Datasets { there: Vec::new(), lost: None, known: Vec::new() };
    let mut elsewhere = Vec::new();
    let keep = |sorted: &mut Datasets, known: &Known, name: &str| -> Result<()> {
        let pool = if known.pool == 0 { guid(pool_of(name))?.unwrap_or(0) } else { known.pool };
        sorted.there.push(name.to_owned());
        sorted.known.push(Known { name: name.to_owned(), pool, ..known.clone() });
        Ok(())
    };
    for known in known {
        match guid(&known.name)? {
            Some(there) if there == known.guid => keep(&mut sorted, known, &known.name)?,
            _ => elsewhere.push(known),
        }
    }
    if elsewhere.is_empty() {
        return Ok(sorted);
    }
    let wanted: Vec<u64> =
        elsewhere.iter().flat_map(|known| [known.guid, known.pool]).filter(|guid| *guid != 0).collect();
    let looked = everywhere(&wanted);
    let find = |wanted: u64| looked.found.iter().find(|(guid, _)| wanted != 0 && *guid == wanted);
    for known in elsewhere {
        if let Some((_, name)) = find(known.guid) {
            keep(&mut sorted, known, name)?;
            continue;
        }
        if let Some(error) = looked.error {
            // What was not looked at may be it.
            return Err(error);
        }
        // That the very pool is there, and not another one of its name, tells that it was destroyed for good.
        if find(known.pool).is_none() {
            sorted.known.push(known.clone());
            // One that is known, and not there, is hidden by another of its name.
            if known.pool != 0 || guid(pool_of(&known.name))?.is_none() {
                sorted.lost = Some(known.name.clone());
            }
        }
    }
    Ok(sorted)
}

/// What was found in all pools.
pub(crate) struct Looked<T> {
    pub(crate) found: Vec<T>,
    /// The first reason why something was not looked at: then what was not found may be there all the same.
    pub(crate) error: Option<Error>,
}

/// What `wanted` gives for all filesystems of all pools that are imported, mounted or not.
fn anywhere<T>(zfs: &Zfs, mut wanted: impl FnMut(&Dataset<'_>) -> Option<T>) -> Looked<T> {
    fn down(dataset: &Dataset<'_>, each: &mut dyn FnMut(&Dataset<'_>), errors: &mut Vec<LibError>) {
        each(dataset);
        let below = dataset.children(|child| down(child, each, errors));
        errors.extend(below.err());
    }
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut each = |dataset: &Dataset<'_>| found.extend(wanted(dataset));
    let walked = zfs.roots(|root| down(root, &mut each, &mut errors));
    errors.extend(walked.err());
    Looked { found, error: errors.first().map(|error| of_library("cannot look through the pools", error)) }
}

/// What has one of these guids, with its present name: one each, unless a pool was split.
pub(crate) fn by_guids(zfs: &Zfs, wanted: &[u64]) -> Looked<(u64, String)> {
    anywhere(zfs, |dataset| {
        let guid = dataset.number(Number::Guid);
        let name = wanted.contains(&guid).then(|| dataset.name().into_string().ok());
        name.flatten().map(|name| (guid, name))
    })
}

/// The name of the pool that a dataset is in.
pub(crate) fn pool_of(dataset: &str) -> &str {
    dataset.split_once('/').map_or(dataset, |(pool, _)| pool)
}

/// The error for a dataset that may be there or not: its pool is not imported.
pub(crate) fn lost(dataset: &str) -> Error {
    // Asked of the kernel: who calls this may hold the library.
    lost_while(dataset, Path::new("/proc/spl/kstat/zfs").join(pool_of(dataset)).is_dir())
}

/// [`lost`], where a pool of the name of its pool is imported or not.
fn lost_while(dataset: &str, another_has_its_name: bool) -> Error {
    let pool = pool_of(dataset);
    let (why, hint) = match another_has_its_name {
        true => (
            format!("the pool {pool} that is imported is another one than it was in"),
            "`zpool import` lists by their ids the pools that are not imported; `zpool import ID NEWNAME` imports one whose name is taken"
                .to_owned(),
        ),
        false => (format!("its pool {pool} is not imported"), format!("zpool import {}", shell(pool.as_ref()))),
    };
    Error::new(ErrorKind::FailedPrecondition, format!("the dataset {dataset} cannot be found: {why}")).with_hint(hint)
}

/// What identifies a dataset whatever its name is; none if there is none of that name.
pub(crate) fn guid(zfs: &Zfs, dataset: &str) -> Result<Option<u64>> {
    let fail = |error| of_library(format!("cannot open the dataset {dataset}"), &error);
    Ok(open_dataset(zfs, dataset).map_err(fail)?.map(|opened| opened.number(Number::Guid)))
}

/// What identifies a dataset, and the pool that it is in: the guid of that one's topmost dataset. None if there is none of that name.
pub(crate) fn guids(zfs: &Zfs, dataset: &str) -> Result<Option<(u64, u64)>> {
    Ok(guid(zfs, dataset)?.zip(guid(zfs, pool_of(dataset))?))
}

/// Opens a dataset by name; none if there is none.
pub(crate) fn open_dataset<'a>(zfs: &'a Zfs, name: &str) -> Result<Option<Dataset<'a>>, LibError> {
    match CString::new(name) {
        Ok(name) => zfs.open(&name, Kind::Filesystem),
        Err(_) => Ok(None),
    }
}

/// So many snapshots are looked at before others get their turn, and it is asked whether this shall stop.
pub(crate) const AT_ONCE: usize = 256;

/// All snapshots of a store, oldest first, without what was omitted. `FailedPrecondition` if some cannot be looked for, unless a list in `partial` is asked for.
pub(crate) fn list(store: &Store<'_>, partial: bool, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
    let Some(identity) = store.identity()? else { return Ok(Vec::new()) };
    let (mut found, mut unreadable): (Vec<(Snapshot, u64)>, Vec<Error>) = Default::default();
    let datasets = datasets(&Zfs::get()?, &identity)?;
    if let Some(name) = datasets.lost.filter(|_| !partial) {
        // A list without them would say that they were removed.
        return Err(lost(&name));
    }
    for dataset in datasets.there {
        let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
        let id_of = |name: &CStr| match names::read_snapshot(name.to_bytes(), &identity.key) {
            Named::Snapshot(id) => Some(id),
            Named::Removed | Named::Foreign => None,
        };
        cx.check_cancelled()?;
        let ours = snapshot_names(&Zfs::get()?, &dataset, |name| id_of(name).is_some())?;
        for some in ours.chunks(AT_ONCE) {
            cx.check_cancelled()?;
            // All others wait for it; nobody is told anything meanwhile.
            let zfs = Zfs::get()?;
            for name in some {
                let opened = match zfs.open(name, Kind::Snapshot) {
                    Err(error) if is_damage(&error) => {
                        unreadable.push(of_library(format!("{} is damaged", name.to_string_lossy()), &error));
                        continue;
                    }
                    opened => opened.map_err(fail)?,
                };
                // One that is gone by now was removed, or set aside under another name.
                let (Some(id), Some(snapshot)) = (id_of(name), opened) else { continue };
                if snapshot.number(Number::DeferDestroy) != 0 {
                    continue;
                }
                match Record::from_properties(&snapshot.user_properties(), &dataset, &id) {
                    Ok(mut record) => {
                        record.snapshot.omitted.clear();
                        found.push((record.snapshot, snapshot.number(Number::CreateTxg)));
                    }
                    Err(error) => unreadable.push(error),
                }
            }
        }
    }
    for error in unreadable {
        cx.log(LogLevel::Warn, &format!("left out of the list: {error}"));
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
        opened.snapshots(each).map_err(fail)?;
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, guid: u64, pool: u64) -> Known {
        Known { name: name.to_owned(), guid, filesystem: guid * 10, pool }
    }

    /// On a machine that has these, with an error for what could not be looked at.
    fn sorted(known: &[Known], machine: &[(u64, &str)], error: Option<Error>) -> Result<Datasets> {
        let guid = |name: &str| Ok(machine.iter().find(|(_, there)| *there == name).map(|(guid, _)| *guid));
        let everywhere = |wanted: &[u64]| {
            let found = machine.iter().filter(|(guid, _)| wanted.contains(guid));
            Looked { found: found.map(|(guid, name)| (*guid, (*name).to_owned())).collect(), error }
        };
        sort_out(known, guid, everywhere)
    }

    #[test]
    fn an_error_in_one_pool_is_none_of_what_was_found_in_another() {
        let (two, one) = ([known("tank/a", 1, 100), known("tank/b", 2, 100)], [known("tank/a", 1, 100)]);
        let machine = [(100, "tank"), (1, "tank/renamed")];
        let error = || Some(Error::new(ErrorKind::Unavailable, "cannot look"));
        assert_eq!(sorted(&two, &machine, error()).unwrap_err().kind, ErrorKind::Unavailable, "b may be there");
        assert_eq!(sorted(&one, &machine, error()).unwrap().there, ["tank/renamed"], "nothing is missing");
        assert_eq!(sorted(&two, &machine, None).unwrap().there, ["tank/renamed"]);
    }

    #[test]
    fn a_pool_that_took_the_name_of_the_one_that_is_missing_is_told_as_another_one() {
        let (missing, hidden) = (lost_while("tank/a", false), lost_while("tank/a", true));
        assert_eq!([missing.kind, hidden.kind], [ErrorKind::FailedPrecondition, ErrorKind::FailedPrecondition]);
        assert_eq!(missing.hint.unwrap(), "zpool import tank");
        assert_eq!(lost_while("my pool/a", false).hint.unwrap(), "zpool import 'my pool'");
        assert!(hidden.message.contains("another one") && !hidden.hint.unwrap().contains("import tank"));
    }

    #[test]
    fn only_what_was_destroyed_for_good_need_not_be_known_any_more() {
        let all = [known("tank/a", 1, 100), known("tank/b", 2, 100), known("tank/c", 3, 0), known("usb/d", 4, 200)];
        // One renamed with its pool, one destroyed; of one it is not known which pool it was in; one pool is not there.
        let machine = [(100, "new"), (1, "new/a")];
        let found = sorted(&all, &machine, None).unwrap();
        assert_eq!((found.there, found.lost.as_deref()), (vec!["new/a".to_owned()], Some("usb/d")));
        assert_eq!(found.known, [known("new/a", 1, 100), all[2].clone(), all[3].clone()]);
        // Another pool has its name: it is hidden, not forgotten.
        let found = sorted(&all[3..], &[(201, "usb")], None).unwrap();
        assert_eq!((found.there.len(), found.lost.as_deref(), found.known), (0, Some("usb/d"), all[3..].to_vec()));
        // What was written down by an older version learns what its pool is.
        let found = sorted(&all[2..3], &[(100, "tank"), (3, "tank/c")], None).unwrap();
        assert_eq!(found.known, [known("tank/c", 3, 100)]);
    }
}
