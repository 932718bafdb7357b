//! Room on the disk: how much our stores may take, and what happens when the disk runs full.
//!
//! Below a tenth of a filesystem free (`prune.min-free`), an automatic capture prunes first; if that does not help, it is refused, with an
//! event on the timeline when that begins and when it ends. What a person takes is never refused for that.

use std::os::fd::AsFd;

use ah_plugin_api::{Dir, Durability, Error, ErrorKind, Result, Timestamp};
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
const AGAIN: i64 = 3_600;

/// A filesystem's room, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    free: u64,
    total: u64,
}

impl Room {
    fn of(dir: impl AsFd) -> Option<Self> {
        let found = rustix::fs::fstatvfs(dir).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        // Some filesystems say nothing of it.
        (found.f_blocks > 0).then(|| Self { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }

    fn is_low(self, min_free: Share) -> bool {
        self.free < min_free.of(self.total)
    }
}

/// `workspaces/<id>/paused.json`: automatic captures are paused.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Paused {
    version: u32,
    /// When pruning was last tried.
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

    /// The fullest filesystem that a capture writes to, if it has less room than shall stay free.
    fn low(&self, config: &Config) -> Result<Option<Room>> {
        let min_free = config.min_free().unwrap_or(MIN_FREE);
        let rooms = [Room::of(&self.open_dir()?), Room::of(&Dir::open(self.engine.home().path())?)];
        Ok(rooms.into_iter().flatten().filter(|room| room.is_low(min_free)).min_by_key(|room| room.free))
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
        let Some(mut room) = self.low(config)? else { return resume() };
        let paused: Option<Paused> = fsio::read(&path)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let now = self.engine.settings().clock.now();
        let lately = |paused: &Paused| (0..AGAIN).contains(&(now.secs - paused.tried.secs));
        if !paused.as_ref().is_some_and(lately) {
            // What could not be pruned is in the way no more than before.
            let tried = self.prune_for_room(config, || !matches!(self.low(config), Ok(None))).unwrap_or(true);
            match self.low(config)? {
                None => return resume(),
                Some(left) => room = left,
            }
            // What nobody could try just now is tried again at the next capture.
            let tried = if tried { now } else { Timestamp::default() };
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
        assert!(room.is_low(MIN_FREE) && !room.is_low(Share::Percent(9)));
        assert!(!Room { free: 100, total: 1000 }.is_low(MIN_FREE));
        assert!(room.is_low(Share::Bytes(100)) && !room.is_low(Share::Bytes(0)));
    }
}
