//! Space that snapshots hold.
//!
//! A block is held from the snapshot that first had it to the last one, without a gap. So what goes with several snapshots is, exactly, what goes with each run
//! of them that has no other snapshot in between, whoever made that; ZFS says it of a run as of one (`zfs destroy -n first%last`).

use std::collections::BTreeSet;
use std::ffi::CString;

use ah_plugin_api::{Reference, Result, SnapshotId, Usage};

use crate::failure::{of_kernel, of_library};
use crate::find;
use crate::names::{Key, Named, read_snapshot};
use crate::store::Store;
use crate::sys::{Core, Dataset, Number, Zfs};

/// What removing `snapshots` would free; without any, what removing all of the store would.
pub(crate) fn usage(store: &Store<'_>, snapshots: &[Reference]) -> Result<Usage> {
    let nothing = Usage { bytes: Some(0) };
    let Some(identity) = store.identity()? else { return Ok(nothing) };
    let wanted: BTreeSet<SnapshotId> = snapshots.iter().filter_map(find::id_of).collect();
    if wanted.is_empty() && !snapshots.is_empty() {
        return Ok(nothing);
    }
    let (zfs, core) = (Zfs::get()?, Core::get()?);
    let datasets = find::datasets(&zfs, &identity)?;
    if let Some(name) = datasets.lost {
        return Err(find::lost(&name));
    }
    let mut freed = 0;
    for dataset in datasets.there {
        let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
        let Some(opened) = find::open_dataset(&zfs, &dataset).map_err(fail)? else { continue };
        let mut found = Vec::new();
        let look = |snapshot: &Dataset<'_>| found.push(Found::look(snapshot, &identity.key, &wanted));
        opened.snapshots(false, look).map_err(fail)?;
        found.sort_unstable_by_key(|one| one.at);
        for run in found.chunk_by(|one, next| one.goes && next.goes).filter(|run| run[0].goes) {
            let bytes = core.space_of_range(&run[0].full, &run[run.len() - 1].full);
            freed +=
                bytes.map_err(|e| of_kernel(format!("cannot find out what the snapshots of {dataset} hold"), &e))?;
        }
    }
    Ok(Usage { bytes: Some(freed) })
}

/// One snapshot of a dataset.
struct Found {
    /// Its place in the order of time.
    at: u64,
    full: CString,
    /// Whether it is one of those that are asked for, and nothing keeps it from being destroyed: with a clone or a hold it stays, under another name,
    /// with all that it has.
    goes: bool,
}

impl Found {
    fn look(snapshot: &Dataset<'_>, key: &Key, wanted: &BTreeSet<SnapshotId>) -> Self {
        let (full, at) = (snapshot.name(), snapshot.number(Number::CreateTxg));
        let asked = match read_snapshot(full.to_bytes(), key) {
            Named::Snapshot(id) => wanted.is_empty() || wanted.contains(&id),
            Named::Removed | Named::Foreign => false,
        };
        let kept = [Number::DeferDestroy, Number::Holds, Number::Clones];
        let goes = asked && kept.into_iter().all(|number| snapshot.number(number) == 0);
        Self { at, full, goes }
    }
}
