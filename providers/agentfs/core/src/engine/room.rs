//! Room: who may still change something when the disk is full.
//!
//! Contents stop first, names and attributes as soon as the log cannot take their rows. Removals go on, since they make room: for them a file is kept, the reserve,
//! which is given up when the log has no room for what removes something. What it leaves on the disk is for removals alone, until there is a reserve again or as much room.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::engine::{Engine, WAITING};
use crate::error::{Error, Result};
use crate::read_lock;
use crate::rows::chunk::BLOCK;

/// What is left free on the disk for rows, in bytes: contents stop before.
const FOR_ROWS: u64 = 4 << 20;
/// Space that is kept for removals, in bytes: more than rows that wait for the log can take.
const KEEP: u64 = 2 << 20;

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
            self.checkpoint()?;
        }
        Ok(())
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
        let path = self.directory.join("reserve");
        if path.exists() || self.disk_free().is_ok_and(|free| free < KEEP * 8) {
            return;
        }
        // First: who spends it meanwhile says so.
        self.reserve_is_spent.store(false, Ordering::Relaxed);
        if std::fs::write(path, vec![0xa5; KEEP as usize]).is_err() {
            // Without one removing may fail on a full disk, which is no reason not to go on.
            self.reserve_is_spent.store(true, Ordering::Relaxed);
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

/// Before a store is opened: gives the reserve up if the disk is full. Gives whether there is none.
pub(super) fn spend_reserve(directory: &Path) -> bool {
    let path = directory.join("reserve");
    if disk_free(directory).is_ok_and(|free| free < KEEP) {
        let _ = std::fs::remove_file(&path);
    }
    !path.exists()
}

/// Bytes that the disk has left for this user.
fn disk_free(directory: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(directory).map_err(Error::io("looking at the disk"))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
