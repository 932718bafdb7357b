//! The file of a recording: whole lines or nothing, on the disk before long, and never so much that it fills the disk.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Stopped;

/// After a sync the next one waits so long. With the writer's own delay, and the time that a sync takes, what was shown is on
/// the disk within 250 ms.
const BETWEEN_SYNCS: Duration = Duration::from_millis(120);
/// So much of a disk is left free, or this share of a small one.
const KEEP_FREE: u64 = 64 << 20;
const KEEP_FREE_SHARE: u64 = 50;

/// The file, and the thread that syncs it.
pub(super) struct Disk {
    file: File,
    /// Bytes that hold whole lines.
    good: u64,
    /// The most that it may hold.
    most: u64,
    sync: Arc<Sync>,
    syncer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Sync {
    state: Mutex<SyncState>,
    changed: Condvar,
}

#[derive(Default)]
struct SyncState {
    dirty: bool,
    over: bool,
}

impl Disk {
    /// Writes the first line.
    pub(super) fn begin(mut file: File, head: &[u8], most: u64) -> io::Result<Self> {
        file.write_all(head)?;
        let sync = Arc::new(Sync::default());
        let (its, copy) = (Arc::clone(&sync), file.try_clone()?);
        let syncer = std::thread::Builder::new().name("ah-tape-sync".into()).spawn(move || its.run(&copy))?;
        let this = Self { file, good: head.len() as u64, most, sync, syncer: Some(syncer) };
        this.sync.set(|state| state.dirty = true);
        Ok(this)
    }

    /// Bytes of whole lines in the file.
    pub(super) fn good(&self) -> u64 {
        self.good
    }

    /// Appends whole lines, all or none.
    ///
    /// # Errors
    /// Why there is no room for them. Nothing but [`Disk::put_last`] may follow.
    pub(super) fn put(&mut self, lines: &[u8]) -> Result<(), Stopped> {
        has_room(&self.file, self.good, lines.len() as u64, self.most)?;
        self.put_last(lines).map_err(|error| Stopped::Disk(error.to_string()))
    }

    /// Appends whole lines, all or none, whatever room there is.
    pub(super) fn put_last(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            // What is torn goes, which on a full disk succeeds.
            let _ = self.file.set_len(self.good);
            return Err(error);
        }
        self.good += lines.len() as u64;
        self.sync.set(|state| state.dirty = true);
        Ok(())
    }
}

/// Whether a recording in `file` that has `good` bytes may have `more`.
///
/// # Errors
/// Why not: it would have more than `most`, or fill its disk.
pub fn has_room(file: &File, good: u64, more: u64, most: u64) -> Result<(), Stopped> {
    if good + more > most {
        return Err(Stopped::TooLarge(good));
    }
    if let Ok(disk) = rustix::fs::fstatvfs(file) {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let (free, total) = (bytes(disk.f_bavail), bytes(disk.f_blocks));
        // Some filesystems say nothing of it.
        if total > 0 && free < more + KEEP_FREE.min(total / KEEP_FREE_SHARE) {
            return Err(Stopped::Disk(format!("only {} MiB of its disk are free", free >> 20)));
        }
    }
    Ok(())
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.sync.set(|state| state.over = true);
        if let Some(syncer) = self.syncer.take() {
            let _ = syncer.join();
        }
    }
}

impl Sync {
    fn set(&self, change: impl FnOnce(&mut SyncState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    fn run(&self, file: &File) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while !state.dirty && !state.over {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let (dirty, over) = (std::mem::take(&mut state.dirty), state.over);
            drop(state);
            if dirty {
                // What cannot be synced now may be the next time; that it cannot be written is told elsewhere.
                let _ = file.sync_data();
            }
            if over {
                return;
            }
            let pause = Instant::now() + BETWEEN_SYNCS;
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while !state.over && Instant::now() < pause {
                let left = pause.saturating_duration_since(Instant::now());
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
