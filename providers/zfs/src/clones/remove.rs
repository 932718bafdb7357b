//! Removing a clone: unmounted, its own snapshots destroyed, then itself.
//!
//! Nothing of it is destroyed while anybody has it mounted, and a removal that fails leaves it as it was: mounted, and written down as
//! whole. What is in use is not unmounted in the first place, as far as can be seen; what cannot, is mounted again. Snapshots of it that are not ours are left alone: then the dataset stays, unmounted, until they are gone and `reclaim` comes
//! by. What was grown from a snapshot of it goes on: it is promoted, and takes that snapshot over. Snapshots that were not made in it, since it
//! was promoted by somebody, are given back and never destroyed.

use std::ffi::{CStr, CString};
use std::time::Duration;

use ah_plugin_api::text::shell;
use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Reference, Result};
use rustix::io::Errno;

use crate::busy;
use crate::failure::{of_kernel, of_library, of_promotion};
use crate::find;
use crate::lineage;
use crate::names;
use crate::store::Store;
use crate::sys::{Core, Kind, Zfs};

use super::mounting;
use super::record::{self, Gone, Record, State, Written};

/// Answers `destroy` of a clone.
pub(crate) fn remove(store: &Store<'_>, reference: &Reference, cx: &Context<'_>) -> Result<()> {
    for _ in 0..1000 {
        let found = record::all(store)?.into_iter().find(|(gone, _)| gone.reference == *reference);
        // Gone already, or none of ours.
        let Some((mut gone, written)) = found else { return Ok(()) };
        let record = match written {
            Written::Whole(record) => record,
            Written::CutOff => return forget_cut_off(store, &gone),
            Written::Damaged(error) => return Err(error),
        };
        if let Some(_claim) = record::claim(store, &gone)? {
            let removed = finish(store, &mut gone, &record, cx).map(drop);
            if removed.is_err() {
                put_back(store, &gone, &record, cx);
            }
            return removed;
        }
        cx.check_cancelled()?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Error::new(ErrorKind::Busy, "another process is at work on this clone").with_hint("repeat later"))
}

/// Takes away a record whose maker was killed before it was written; nothing was made then.
pub(crate) fn forget_cut_off(store: &Store<'_>, gone: &Gone) -> Result<()> {
    match record::claim(store, gone)? {
        Some(_claim) => record::forget(store, gone),
        // Somebody is writing it.
        None => Ok(()),
    }
}

/// What came of a clone in `reclaim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is none of `reclaim`'s, or goes another time.
    Stays,
    /// It is gone.
    Removed,
    /// Its removal was given up: somebody has it mounted again.
    Kept,
}

/// Goes on with what its maker or its remover could not finish, because it died; and removes one that its caller has `forgotten`.
pub(crate) fn resume(
    store: &Store<'_>,
    gone: &Gone,
    record: &Record,
    forgotten: bool,
    cx: &Context<'_>,
) -> Result<Outcome> {
    if gone.state == State::Whole && !forgotten {
        return Ok(Outcome::Stays);
    }
    let Some(_claim) = record::claim(store, gone)? else { return Ok(Outcome::Stays) };
    let mut gone = gone.clone();
    match gone.state {
        // Who removed it was killed before it was unmounted; or somebody, the machine's start perhaps, has brought it back since.
        State::Gone if !forgotten && is_mounted(record)? => {
            record::turn(store, &mut gone, State::Whole)?;
            return Ok(Outcome::Kept);
        }
        // Its caller has never heard of it: it is as one that was never finished.
        State::Whole => record::turn(store, &mut gone, State::Part)?,
        State::Gone | State::Part => {}
    }
    Ok(if finish(store, &mut gone, record, cx)? { Outcome::Removed } else { Outcome::Stays })
}

/// Removes what there is of a clone; false if snapshots by others still keep its dataset.
fn finish(store: &Store<'_>, gone: &mut Gone, record: &Record, cx: &Context<'_>) -> Result<bool> {
    let core = Core::get()?;
    // What is in the record is not taken on trust: only what this provider has named is ever destroyed.
    if !names::is_any_clone(&record.dataset) {
        return Err(Error::new(ErrorKind::DataLoss, format!("the record of the clone {} is damaged", gone.reference)));
    }
    let mut stays = false;
    if let Some(name) = present(record)? {
        let dataset = name.to_string_lossy();
        mounting::refuse_if_in_use(&dataset)?;
        cx.check_cancelled()?;
        // Before anything is taken away: a store that cannot be written to is a reason to leave all as it is.
        if gone.state == State::Whole {
            record::turn(store, gone, State::Gone)?;
        }
        mounting::unmount(&dataset)?;
        if !destroy(core, &name)? {
            hide(&name)?;
            stays = true;
        }
    }
    mounting::remove_point(&record.point())?;
    if !stays {
        record::forget(store, gone)?;
    }
    Ok(!stays)
}

/// The dataset of a clone, by its present name; none if it was destroyed. `FailedPrecondition` if that cannot be known.
///
/// Never a copy of it that was sent elsewhere, which has the same last component: the guid is another one. Nor what has the same guid in
/// a pool of another name.
fn present(record: &Record) -> Result<Option<CString>> {
    let bad = |_| Error::new(ErrorKind::DataLoss, "the record of a clone is damaged");
    let name = CString::new(record.dataset.as_str()).map_err(bad)?;
    let zfs = Zfs::get()?;
    let there = find::guid(&zfs, &record.dataset)?;
    if there.is_some_and(|there| record.guid.is_none_or(|guid| guid == there)) {
        return Ok(Some(name));
    }
    // The dataset that it lies in may have been renamed. Of one that is not known by more than its name, nothing else can be it.
    let (mut copies, mut its_pool) = (Vec::new(), Vec::new());
    if let Some(guid) = record.guid {
        let wanted: Vec<u64> = std::iter::once(guid).chain(record.pool).collect();
        let looked = find::by_guids(&zfs, &wanted);
        let (found, pools): (Vec<_>, Vec<_>) = looked.found.into_iter().partition(|(its, _)| *its == guid);
        // One that was given a name by others is theirs by now.
        let found = found.into_iter().map(|(_, name)| name).filter(|name| names::is_any_clone(name));
        let is_own = |name: &String| find::pool_of(name) == find::pool_of(&record.dataset);
        let (own, others): (Vec<_>, Vec<_>) = found.partition(is_own);
        if let Some(name) = own.into_iter().next() {
            return Ok(Some(CString::new(name).map_err(bad)?));
        }
        (copies, its_pool) = (others, pools);
        // What was not looked at may be it.
        looked.error.map_or(Ok(()), Err)?;
    }
    // The very pool is there, and not another one of its name. Of an old record no more is known than the name.
    let of_its_name = find::guid(&zfs, find::pool_of(&record.dataset))?;
    if of_its_name.is_some_and(|there| record.pool.is_none_or(|pool| pool == there)) {
        return Ok(None);
    }
    match copies.first() {
        Some(copy) => Err(in_another_pool(&record.dataset, copy)),
        // It has another name now.
        None if !its_pool.is_empty() => Ok(None),
        None => Err(find::lost(&record.dataset)),
    }
}

/// The error for a clone whose pool is not there, but another one with the very same dataset in it: half of a pool that was split, the
/// copy of a disk; or the pool itself, with another name. Nothing tells these apart.
fn in_another_pool(dataset: &str, copy: &str) -> Error {
    let (pool, other) = (find::pool_of(dataset), find::pool_of(copy));
    let message = format!("the pool of the clone {dataset} is not imported; {copy} may be it, or a copy");
    let (it, its_name) = (shell(other.as_ref()), shell(pool.as_ref()));
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
        "zpool import {its_name}; or if {other} is that pool: zpool export {it} && zpool import {it} {its_name}"
    ))
}

fn is_mounted(record: &Record) -> Result<bool> {
    present(record)?.map_or(Ok(false), |name| mounting::is_mounted(&name.to_string_lossy()))
}

/// After a removal that failed: the clone is what it was, as long as it is there.
fn put_back(store: &Store<'_>, gone: &Gone, record: &Record, cx: &Context<'_>) {
    // The error at hand is the one to tell; what else goes wrong here, is.
    let back = || -> Result<()> {
        let Some(name) = present(record)? else { return Ok(()) };
        if gone.state == State::Part {
            return Ok(());
        }
        if !mounting::is_mounted(&name.to_string_lossy())? {
            mounting::mount_again(&name, &record.point())?;
        }
        record::turn(store, &mut gone.clone(), State::Whole)
    };
    if let Err(error) = back() {
        cx.log(LogLevel::Warn, &format!("the clone {} is not as it was: {error}", record.dataset));
    }
}

/// Destroys a dataset with what is ours in it; false if something by others keeps it. Nobody has it mounted.
fn destroy(core: &'static Core, name: &CStr) -> Result<bool> {
    let shown = name.to_string_lossy();
    let dataset = shown.as_ref();
    let is_ours = |full: &CString| names::is_any_stores(full.to_bytes());
    give_back(core, dataset)?;
    let sorted = lineage::snapshots(&Zfs::get()?, dataset)?;
    let (mut ours, foreign): (Vec<_>, Vec<_>) = sorted.own.into_iter().partition(is_ours);
    promote_dependents(core, &ours)?;
    ours.extend(sorted.elsewhere.into_iter().filter(is_ours));
    if !ours.is_empty() {
        // Those that were promoted away are gone from here, which is success; one that is held goes when it is released, and what a clone has
        // been given, when this one goes.
        core.destroy_snapshots(&ours, true)
            .map_err(|failure| of_kernel(format!("cannot destroy the snapshots of {dataset}"), &failure))?;
    }
    if !foreign.is_empty() || !sorted.given.is_empty() {
        return Ok(false);
    }
    match core.destroy(name) {
        Ok(()) => Ok(true),
        Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => Ok(true),
        // It has something in it after all: a dataset that somebody made there.
        Err(failure) if failure.errno == Errno::EXIST.raw_os_error() => Ok(false),
        Err(failure) if failure.errno == Errno::BUSY.raw_os_error() => {
            // A snapshot that is held is the other reason for this answer.
            if !find::snapshot_names(&Zfs::get()?, dataset, |_| true)?.is_empty() {
                return Ok(false);
            }
            Err(busy::error(&format!("the clone {dataset} is in use"), dataset))
        }
        Err(failure) => Err(of_kernel(format!("cannot destroy {dataset}"), &failure)),
    }
}

/// Undoes a clone that its maker could not finish.
pub(super) fn undo(core: &'static Core, name: &CStr) -> Result<()> {
    mounting::unmount(&name.to_string_lossy())?;
    if crate::remove::exists(core, name)? {
        core.destroy(name).map_err(|failure| of_kernel("cannot undo the clone", &failure))?;
    }
    Ok(())
}

/// Gives snapshots that were made in another dataset to what was grown from them: the workspace, mostly, if somebody has promoted the clone.
fn give_back(core: &'static Core, dataset: &str) -> Result<()> {
    // Not held while others ask for it.
    let given = lineage::snapshots(&Zfs::get()?, dataset)?.given;
    // The newest first: who has that one has the others with it.
    for full in given {
        promote_first(core, &full)?;
    }
    Ok(())
}

/// Promotes a clone of a snapshot, if it has one; its name then. One that this provider has not named is preferred, as a workspace's is.
fn promote_first(core: &'static Core, snapshot: &CStr) -> Result<Option<CString>> {
    let mut clones = {
        let zfs = Zfs::get()?;
        let fail = |error| of_library("cannot look for clones", &error);
        let opened = zfs.open(snapshot, Kind::Snapshot).map_err(fail)?;
        opened.map(|snapshot| snapshot.clones()).unwrap_or_default()
    };
    clones.sort_by_key(|name| std::str::from_utf8(name).is_ok_and(names::is_any_clone));
    let Some(clone) = clones.into_iter().next().and_then(|name| CString::new(name).ok()) else { return Ok(None) };
    core.promote(&clone).map_err(|failure| of_promotion(&clone, snapshot, &failure))?;
    Ok(Some(clone))
}

/// Promotes what was grown from these snapshots, then frees the clone of what came over with it.
fn promote_dependents(core: &'static Core, snapshots: &[CString]) -> Result<()> {
    for full in snapshots {
        let Some(clone) = promote_first(core, full)? else { continue };
        // They belong to a store that goes with this clone; those still needed go with what needs them.
        let taken_over: Vec<CString> = snapshots
            .iter()
            .filter_map(|old| {
                let at = crate::locate::short(old);
                CString::new([clone.to_bytes(), b"@", at.to_bytes()].concat()).ok()
            })
            .filter(|name| core.exists(name) != Ok(false))
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
