//! Room on the disk: how much our stores may take, and what happens when the disk runs full.
//!
//! Below a tenth of a filesystem free (`prune.min-free`), an automatic capture prunes first; if that does not help, it is refused, with an
//! event on the timeline when that begins and when it ends. What a person takes is never refused for that.

use std::os::fd::AsFd;

use ah_plugin_api::{Dir, Durability, Error, ErrorKind, Result, Timestamp};
use rustix::fs::StatVfs;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Share};
use crate::fsio;
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// What our stores take at most, whichever is less.
const MAX_BYTES: u64 = 10 << 30;
const MAX_SHARE: Share = Share::Percent(5);

/// What stays free.
const MIN_FREE: Share = Share::Percent(10);

/// While paused, pruning is tried again so often, in seconds.
pub(super) const AGAIN: i64 = 3_600;

/// A filesystem's room, bytes: what a user can have of it, as `df` reckons. What is kept for root alone is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    free: u64,
    total: u64,
}

impl Room {
    fn of(dir: impl AsFd) -> Option<Self> {
        let found = rustix::fs::fstatvfs(dir).ok()?;
        // Some filesystems say nothing of it.
        (found.f_blocks > 0).then(|| Self::told(&found))
    }

    fn told(found: &StatVfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let used = found.f_blocks.saturating_sub(found.f_bfree);
        Self { free: bytes(found.f_bavail), total: bytes(used.saturating_add(found.f_bavail)) }
    }

    /// Bytes that there are too few of.
    fn lacks(self, min_free: Share) -> u64 {
        min_free.of(self.total).saturating_sub(self.free)
    }
}

/// Bytes that are lacking where a capture writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lacking {
    /// Where the workspace lies.
    pub(super) workspace: u64,
    /// Where `AH_HOME` does.
    pub(super) home: u64,
    /// Whether both lie on one filesystem.
    pub(super) same: bool,
    /// The fuller one of those where some are.
    fullest: Room,
}

/// `workspaces/<id>/paused.json`: automatic captures are paused.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Paused {
    version: u32,
    /// When pruning was last tried; earlier, if it is to be tried again sooner.
    #[serde(with = "text::time")]
    tried: Timestamp,
}

impl Workspace {
    /// What the stores in `$AH_HOME` may take together.
    pub(super) fn max_stored(&self, config: &Config) -> Result<u64> {
        let total = Room::of(&Dir::open(self.engine.home().path())?).map_or(u64::MAX, |room| room.total);
        Ok(match config.max_size() {
            Some(share) => share.of(total),
            None => MAX_BYTES.min(MAX_SHARE.of(total)),
        })
    }

    /// What is lacking, if there is less room than shall stay free.
    fn low(&self, config: &Config) -> Result<Option<Lacking>> {
        let min_free = config.min_free().unwrap_or(MIN_FREE);
        let dirs = [self.open_dir()?, Dir::open(self.engine.home().path())?];
        let device = |dir: &Dir| rustix::fs::fstat(dir).map(|stat| stat.st_dev).ok();
        let (rooms, same) = (dirs.each_ref().map(Room::of), device(&dirs[0]) == device(&dirs[1]));
        let [workspace, home] = rooms.map(|room| room.map_or(0, |room| room.lacks(min_free)));
        let full = rooms.into_iter().flatten().filter(|room| room.lacks(min_free) > 0);
        Ok(full.min_by_key(|room| room.free).map(|fullest| Lacking { workspace, home, same, fullest }))
    }

    /// Before an automatic capture: makes room where there is too little. Two looks at filesystems where there is enough.
    ///
    /// # Errors
    /// `ResourceExhausted` while captures are paused.
    pub(crate) fn make_room(&self, config: &Config) -> Result<()> {
        let path = self.folder().join("paused.json");
        let resume = || {
            if path.exists() {
                fsio::remove_file(&path)?;
                self.append(&self.writing_session(), EventBody::CaptureResumed {}, Durability::Instant)?;
            }
            Ok(())
        };
        let Some(Lacking { fullest: mut room, .. }) = self.low(config)? else { return resume() };
        let paused: Option<Paused> = fsio::read(&path)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let now = self.engine.settings().clock.now();
        let lately = |paused: &Paused| (0..AGAIN).contains(&now.secs.saturating_sub(paused.tried.secs));
        if !paused.as_ref().is_some_and(lately) {
            // What could not be pruned is in the way no more than before.
            let wait = self.prune_for_room(config, || self.low(config).ok().flatten()).unwrap_or(AGAIN);
            match self.low(config)? {
                None => return resume(),
                Some(left) => room = left.fullest,
            }
            let tried = Timestamp { secs: now.secs - (AGAIN - wait), ..now };
            let bytes = serde_json::to_vec(&Paused { version: 1, tried })
                .map_err(|e| Error::new(ErrorKind::Internal, "a note cannot be written").with_cause(&e))?;
            // On a disk without a byte left there is no note, and the event comes again.
            let _ = fsio::replace(&path, &bytes, Durability::Instant);
            if paused.is_none() {
                let event = EventBody::CapturePaused { free: room.free, total: room.total };
                let _ = self.append(&self.writing_session(), event, Durability::Instant);
            }
        }
        let percent = u128::from(room.free) * 100 / u128::from(room.total.max(1));
        let message = format!("automatic snapshots are paused: only {percent} % of the disk is free");
        Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint(
            "free some space (`ah agent fs prune --dry-run` shows what is kept, and why), or say what shall stay free: `ah config set prune.min-free 5%`",
        ))
    }

    /// Whether automatic captures are paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.folder().join("paused.json").exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_is_less_than_shall_stay_free() {
        let room = Room { free: 99, total: 1000 };
        assert_eq!((room.lacks(MIN_FREE), room.lacks(Share::Percent(9))), (1, 0));
        assert_eq!(Room { free: 100, total: 1000 }.lacks(MIN_FREE), 0);
        assert_eq!((room.lacks(Share::Bytes(100)), room.lacks(Share::Bytes(0))), (1, 0));
    }

    #[test]
    fn what_root_alone_may_use_is_no_part_of_the_disk() {
        let root = Dir::open(std::path::Path::new("/")).unwrap();
        let mut found = rustix::fs::fstatvfs(&root).unwrap();
        (found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail) = (10, 1000, 700, 100);
        assert_eq!(Room::told(&found), Room { free: 1000, total: 4000 });
        assert_eq!(Room::told(&found).lacks(MIN_FREE), 0);
    }
}
