//! Room: who may still change something when the disk is full.
//!
//! Contents stop first, names and attributes as soon as the log cannot take their rows. Removals go on, since they make room: for them a file is kept, the reserve,
//! which is given up when the log has no room for what removes something. What it leaves on the disk is for removals alone, until there is a reserve again or as much room.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::{Engine, WAITING};
use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::store::log;
use crate::{lock, read_lock};

/// What is left free on the disk for rows, in bytes: contents stop before.
const FOR_ROWS: u64 = 4 << 20;
/// Space that is kept for removals, in bytes: more than rows that wait for the log can take.
const KEEP: u64 = 2 << 20;
/// Bytes that few rows have.
const ROW: u64 = 1024;
/// So long it is not tried again, with no more free, what took all that was.
const IN_VAIN: Duration = Duration::from_secs(60);

impl Engine {
    /// Before rows are changed: those that wait for the log must not become too many, and if the log cannot take them, nothing more is changed.
    pub(super) fn room_for_rows(&self) -> Result<()> {
        let is_spent = self.reserve_is_spent.load(Ordering::Relaxed);
        if is_spent && self.disk_free().is_ok_and(|free| free < KEEP) {
            return Err(Error::NoSpace);
        }
        self.room_in_log(false)
    }

    /// The same before something is removed.
    pub(super) fn room_for_removal(&self) -> Result<()> {
        self.room_in_log(true)
    }

    /// Before anything is changed in a tree. Who is told that it is done would find it undone, should this process be killed before the log takes it.
    pub(crate) fn room_for_change(&self) -> Result<()> {
        if self.log_is_full.load(Ordering::Relaxed) {
            self.flush()?;
        }
        self.room_for_rows()
    }

    fn room_in_log(&self, removing: bool) -> Result<()> {
        self.lost_nothing()?;
        if read_lock(&self.state).layers.unlogged() > WAITING {
            self.write_rows(removing)?;
        }
        let most = self.options.log_limit.saturating_mul(8);
        if self.log_length.load(Ordering::Relaxed) > most {
            match self.checkpoint() {
                // What makes room bounds what it writes.
                Err(Error::NoSpace) if removing => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Before the rows in memory go to the base: whether there is space for all the pages that they may be in, each of which gets a new place, and for the rows themselves,
    /// which are fewer than the log has where they changed often. They may be in far fewer pages: once the log is twice as long as it should be it is tried with less. Gives
    /// what is free.
    pub(super) fn room_for_base(&self) -> Result<u64> {
        let free = self.disk_free()?;
        let rows = read_lock(&self.state).layers.in_memory() as u64;
        let mut needed = log::size(&self.directory.join("log"))?.min(rows * ROW);
        if self.log_length.load(Ordering::Relaxed) / 2 <= self.options.log_limit {
            // Two tables.
            needed = needed * 4 + (rows * 2 * 4096).min(self.base.size()?);
        }
        let is_in_vain = |(when, free_then): (Instant, u64)| when.elapsed() < IN_VAIN && free <= free_then;
        if free < needed + (1 << 20) || lock(&self.base_had_no_room).is_some_and(is_in_vain) {
            return Err(Error::NoSpace);
        }
        Ok(free)
    }

    /// Before blocks are written: whether there is space for so many more.
    pub(crate) fn room_for_blocks(&self, blocks: u64) -> Result<()> {
        if let Some(limit) = self.options.limit {
            let used = read_lock(&self.state).used_blocks() + self.segments.pending_blocks();
            if (used + blocks) * BLOCK > limit {
                return Err(Error::NoSpace);
            }
        }
        if self.disk_free()? < blocks * BLOCK + FOR_ROWS {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Bytes that the disk has left for this user.
    pub(crate) fn disk_free(&self) -> Result<u64> {
        disk_free(&self.directory)
    }

    /// Keeps space for removals on a disk that others have filled, while there is enough of it.
    pub(super) fn keep_reserve(&self) {
        if is_kept(&self.directory) || self.disk_free().is_ok_and(|free| free < KEEP * 8) {
            return;
        }
        // First: who spends it meanwhile says so.
        self.reserve_is_spent.store(false, Ordering::Relaxed);
        let unfinished = self.directory.join("reserve.new");
        let make = || -> std::io::Result<()> {
            let mut file = File::create(&unfinished)?;
            file.write_all(&vec![0xa5; KEEP as usize])?;
            file.sync_data()?;
            std::fs::rename(&unfinished, self.directory.join("reserve"))
        };
        if make().is_err() {
            let _ = std::fs::remove_file(&unfinished);
            // Without one removing may fail on a full disk, which is no reason not to go on. Another thread may have made it.
            self.reserve_is_spent.store(!is_kept(&self.directory), Ordering::Relaxed);
        }
    }

    /// Writes into the log. What makes room is written once more if that had none, and there was a reserve.
    pub(super) fn on_reserve<T>(&self, makes_room: bool, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        match write() {
            Err(Error::NoSpace) if makes_room && self.spend_reserve() => write(),
            written => written,
        }
    }

    /// Gives the reserve up; false: there was none.
    fn spend_reserve(&self) -> bool {
        let is_spent = std::fs::remove_file(self.directory.join("reserve")).is_ok();
        if is_spent {
            self.reserve_is_spent.store(true, Ordering::Relaxed);
        }
        is_spent
    }
}

/// Whether there is a whole reserve.
fn is_kept(directory: &Path) -> bool {
    std::fs::metadata(directory.join("reserve")).is_ok_and(|found| found.len() >= KEEP)
}

/// Before a store is opened: gives the reserve up if the disk is full. Gives whether there is none.
pub(super) fn spend_reserve(directory: &Path) -> bool {
    // Of a process that was killed while it made one.
    let _ = std::fs::remove_file(directory.join("reserve.new"));
    if disk_free(directory).is_ok_and(|free| free < KEEP) {
        let _ = std::fs::remove_file(directory.join("reserve"));
    }
    !is_kept(directory)
}

/// Bytes that the disk has left for this user.
pub(super) fn disk_free(directory: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(directory).map_err(Error::io("looking at the disk"))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
