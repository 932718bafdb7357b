//! Which dataset a snapshot was made in. Mostly the one that it is in; but `zfs promote` of a clone gives it all snapshots up to the one that
//! it grew from, and what it grew from depends on the clone from then on.
//!
//! Datasets and snapshots keep the transaction group that made them, whatever they are called and wherever they are (`dsl_dataset_promote_sync`
//! moves snapshots and changes nothing else of them). So a snapshot that is older than the dataset which it is in was not made there.

use std::ffi::CString;

use ah_plugin_api::{Error, Result};

use crate::failure::{is_damage, of_library};
use crate::find;
use crate::sys::{Kind, LibError, Number, Text, Zfs};

/// A dataset that has snapshots which were made in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its name.
    pub(crate) dataset: String,
    /// The last of these is of this transaction group.
    until: u64,
}

fn fail(dataset: &str) -> impl Fn(LibError) -> Error + '_ {
    move |error| of_library(format!("cannot find out what {dataset} grew from"), &error)
}

/// Where the snapshots of a dataset are that promoted clones of it have been given: the nearest first, mostly none.
pub(crate) fn holders(zfs: &Zfs, dataset: &str) -> Result<Vec<Holder>> {
    let fail = fail(dataset);
    let Some(opened) = find::open_dataset(zfs, dataset).map_err(&fail)? else { return Ok(Vec::new()) };
    let made = opened.number(Number::CreateTxg);
    let (mut holders, mut origin): (Vec<Holder>, _) = (Vec::new(), opened.text(Text::Origin));
    // Each origin is older than the one before, so this ends.
    while let Some(name) = origin.and_then(|name| CString::new(name).ok()) {
        let Some(snapshot) = zfs.open(&name, Kind::Snapshot).map_err(&fail)? else { break };
        let until = snapshot.number(Number::CreateTxg);
        // What is older than the dataset is what it was made from, and none of its own.
        if until <= made || holders.last().is_some_and(|last| last.until <= until) {
            break;
        }
        let Some((of, _)) = name.to_str().ok().and_then(|name| name.split_once('@')) else { break };
        holders.push(Holder { dataset: of.to_owned(), until });
        origin = find::open_dataset(zfs, of).map_err(&fail)?.and_then(|above| above.text(Text::Origin));
    }
    Ok(holders)
}

/// The snapshots of a dataset, by where they were made. Full names, the newest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Those that were made in it, and are.
    pub(crate) own: Vec<CString>,
    /// Those that it was given: what they were made in goes on, and has nobody else to keep them.
    pub(crate) given: Vec<CString>,
    /// Those that were made in it, and that a clone of it was given.
    pub(crate) elsewhere: Vec<CString>,
}

/// All snapshots that are in a dataset, or were made there.
pub(crate) fn snapshots(zfs: &Zfs, dataset: &str) -> Result<Sorted> {
    let fail = fail(dataset);
    let mut sorted = Sorted::default();
    let Some(opened) = find::open_dataset(zfs, dataset).map_err(&fail)? else { return Ok(sorted) };
    let made = opened.number(Number::CreateTxg);
    (sorted.own, sorted.given) = in_order(zfs, dataset, |at| Some(at > made))?;
    for holder in holders(zfs, dataset)? {
        let its = in_order(zfs, &holder.dataset, |at| (made < at && at <= holder.until).then_some(true))?;
        sorted.elsewhere.extend(its.0);
    }
    Ok(sorted)
}

/// The snapshots for which `which` says so, and those for which it says the contrary, by when they were made; the newest first.
fn in_order(zfs: &Zfs, dataset: &str, which: impl Fn(u64) -> Option<bool>) -> Result<(Vec<CString>, Vec<CString>)> {
    let mut found = Vec::new();
    for full in find::snapshot_names(zfs, dataset, |_| true)? {
        let opened = zfs.open(&full, Kind::Snapshot).map_err(|error| {
            let made = of_library(format!("cannot find out when {} was made", full.to_string_lossy()), &error);
            if is_damage(&error) { made.with_hint("it is damaged: remove that snapshot first") } else { made }
        })?;
        let Some(snapshot) = opened else { continue };
        let at = snapshot.number(Number::CreateTxg);
        found.extend(which(at).map(|which| (at, which, full)));
    }
    found.sort_unstable_by_key(|(at, ..)| std::cmp::Reverse(*at));
    let (these, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, which, _)| *which);
    let names = |found: Vec<(u64, bool, CString)>| found.into_iter().map(|(.., name)| name).collect();
    Ok((names(these), names(others)))
}
