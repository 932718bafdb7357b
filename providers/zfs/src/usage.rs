//! Space that snapshots hold.
//!
//! A block is held from the snapshot that first had it to the last one, without a gap. So what goes with several snapshots is, exactly, what goes with each run
//! of them that has no other snapshot in between, whoever made that; ZFS says it of a run as of one (`zfs destroy -n first%last`).

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};

use ah_plugin_api::{Reference, Result, SnapshotId, Usage};

use crate::failure::{is_damage, of_kernel, of_library};
use crate::find;
use crate::names::{Named, read_snapshot};
use crate::store::Store;
use crate::sys::{Core, Kind, Number, Zfs};

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
        let found = in_order(&zfs, core, &dataset, |full| match read_snapshot(full.to_bytes(), &identity.key) {
            Named::Snapshot(id) => wanted.is_empty() || wanted.contains(&id),
            Named::Removed | Named::Foreign => false,
        })?;
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
    full: CString,
    /// Whether it is one of those that are asked for, and nothing keeps it from being destroyed: with a clone or a hold it stays, under another name,
    /// with all that it has.
    goes: bool,
}

/// All snapshots of a dataset, in the order of time.
fn in_order(zfs: &Zfs, core: &Core, dataset: &str, asked: impl Fn(&CStr) -> bool) -> Result<Vec<Found>> {
    let fail = |error| of_library(format!("cannot list the snapshots of {dataset}"), &error);
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    for full in find::snapshot_names(zfs, dataset, |_| true)? {
        match zfs.open(&full, Kind::Snapshot) {
            Err(error) if is_damage(&error) => damaged.push(full),
            opened => {
                let Some(opened) = opened.map_err(fail)? else { continue };
                let kept = [Number::DeferDestroy, Number::Holds, Number::Clones];
                let goes = asked(&full) && kept.into_iter().all(|number| opened.number(number) == 0);
                found.push((opened.number(Number::CreateTxg), Found { full, goes }));
            }
        }
    }
    found.sort_unstable_by_key(|(at, _)| *at);
    let mut found: Vec<Found> = found.into_iter().map(|(_, found)| found).collect();
    for full in damaged {
        // When it was made cannot be read from it; but a range is refused whose first is the later one (`dsl_dataset_space_wouldfree`).
        let at = found.partition_point(|one| core.space_of_range(&one.full, &full).is_ok());
        let goes = asked(&full);
        found.insert(at, Found { full, goes });
    }
    Ok(found)
}
