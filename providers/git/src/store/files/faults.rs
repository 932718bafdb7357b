//! Failing on demand, and a ledger of what is not on disk: for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// How the disk behaves from a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// That one step fails for want of space; the program goes on.
    NoSpace,
    /// Nothing reaches the disk any more: what a killed process leaves.
    Killed,
    /// Every write writes one byte less than asked for, if more than one was.
    Short,
}

thread_local! {
    static FAULT: Cell<Option<(Fault, u64)>> = const { Cell::new(None) };
}

/// Lets the `nth` step from now (0 is the next one) and, but for `NoSpace`, all after it behave like `fault`.
pub(crate) fn arm(fault: Fault, nth: u64) {
    FAULT.set(Some((fault, nth)));
}

/// Back to a good disk; whether the fault's step was not reached.
pub(crate) fn disarm() -> bool {
    FAULT.take().is_some_and(|(_, left)| left > 0)
}

pub(crate) fn step() -> rustix::io::Result<()> {
    match FAULT.get() {
        Some((fault, left)) if left > 0 => FAULT.set(Some((fault, left - 1))),
        Some((Fault::NoSpace, _)) => {
            // Shows to `disarm` that it was reached, and lets all later steps pass.
            FAULT.set(None);
            return Err(Errno::NOSPC);
        }
        Some((Fault::Killed, _)) => return Err(Errno::IO),
        Some((Fault::Short, _)) | None => {}
    }
    Ok(())
}

pub(crate) fn short(buf: &[u8]) -> &[u8] {
    match FAULT.get() {
        Some((Fault::Short, 0)) if buf.len() > 1 => &buf[..buf.len() - 1],
        _ => buf,
    }
}

thread_local! {
    static LEDGER: RefCell<Option<BTreeSet<(u64, u64)>>> = const { RefCell::new(None) };
}

/// From here on, notes which files and directories this thread changes and does not sync.
pub(crate) fn watch() {
    LEDGER.set(Some(BTreeSet::new()));
}

/// Device and inode of what was changed since [`watch`] and not synced afterwards. Ends the watching.
pub(crate) fn unsynced() -> BTreeSet<(u64, u64)> {
    LEDGER.take().unwrap_or_default()
}

fn ledger<T>(note: impl FnOnce(&mut BTreeSet<(u64, u64)>) -> T) {
    LEDGER.with_borrow_mut(|ledger| ledger.as_mut().map(note));
}

pub(crate) fn changed(fd: impl AsFd) {
    if let Ok(stat) = rustix::fs::fstat(fd) {
        changed_inode(&stat);
    }
}

pub(crate) fn changed_inode(stat: &rustix::fs::Stat) {
    ledger(|ledger| ledger.insert((stat.st_dev, stat.st_ino)));
}

pub(crate) fn synced(fd: impl AsFd) {
    if let Ok(stat) = rustix::fs::fstat(fd) {
        ledger(|ledger| ledger.remove(&(stat.st_dev, stat.st_ino)));
    }
}

pub(crate) fn synced_all() {
    ledger(BTreeSet::clear);
}

thread_local! {
    static LISTED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Lets this happen when this thread has next read the names of the packs, and not yet opened them.
pub(crate) fn when_listed(what: impl FnOnce() + 'static) {
    LISTED.set(Some(Box::new(what)));
}

pub(crate) fn listed() {
    if let Some(what) = LISTED.take() {
        what();
    }
}
