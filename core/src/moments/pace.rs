//! How often automatic snapshots are taken: the configuration's `moments.*`, and what a session has had so far.
//!
//! What it has had is kept in the session's folder, in `pace`: a cache, without which the count begins anew. Times are those of the
//! machine's run, so that a clock that jumps does not matter.

use crate::text;
use std::time::Duration;

use ah_plugin_api::Durability;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::boot_id;
use crate::session;
use crate::workspace::Workspace;

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// After a snapshot, moments of so long share the next one, unless the agent goes on before.
    pub(crate) window: Duration,
    /// After a snapshot, moments of so long have none.
    pub(crate) interval: Duration,
    /// A session has no more than so many.
    pub(crate) limit: u64,
}

/// What a session has had so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pace {
    /// The run of the machine that `began` counts in.
    boot: String,
    /// When the last snapshot was begun, in nanoseconds of that run.
    began: u64,
    /// How many there were.
    taken: u64,
}

impl Rules {
    /// `moments.window` where nothing is configured.
    pub(crate) const WINDOW: Duration = Duration::from_millis(300);
    /// `moments.limit` where nothing is configured.
    pub(crate) const LIMIT: u64 = 20_000;

    /// How long the next snapshot is still put off.
    pub(super) fn window_left(self, pace: &Pace) -> Duration {
        pace.since().map_or(Duration::ZERO, |since| self.window.saturating_sub(since))
    }

    /// Why a session has no snapshot now.
    pub(super) fn refuses(self, pace: &Pace) -> Option<String> {
        if pace.taken >= self.limit {
            let taken = text::count(pace.taken, "automatic snapshot", "automatic snapshots");
            return Some(format!("the session has had {taken} (moments.limit)"));
        }
        let since = pace.since().filter(|since| *since < self.interval)?;
        Some(format!("the last snapshot was taken {} ms before (moments.interval)", since.as_millis()))
    }
}

impl Pace {
    pub(super) fn read(workspace: &Workspace, session: &SessionName) -> Self {
        let bytes = fsio::read(&file(workspace, session)).ok().flatten();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub(super) fn write(&self, workspace: &Workspace, session: &SessionName) {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let _ = fsio::replace(&file(workspace, session), &bytes, Durability::Instant);
    }

    /// A snapshot is begun.
    pub(super) fn begins(&mut self) {
        self.boot = boot_id();
        self.began = now();
    }

    /// It was taken; whether it is a new one.
    pub(super) fn took(&mut self, new: bool) {
        self.taken += u64::from(new);
    }

    fn since(&self) -> Option<Duration> {
        let since = now().checked_sub(self.began).filter(|_| self.began > 0 && self.boot == boot_id())?;
        Some(Duration::from_nanos(since))
    }
}

fn file(workspace: &Workspace, session: &SessionName) -> std::path::PathBuf {
    session::folder(&workspace.folder(), session).join("pace")
}

/// Nanoseconds of this run of the machine, sleep included.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl Workspace {
    /// The rules in force here. Where the configuration cannot be read, the snapshot says so.
    pub(super) fn pace(&self) -> Rules {
        let usual = Rules { window: Rules::WINDOW, interval: Duration::ZERO, limit: Rules::LIMIT };
        self.config().map_or(usual, |config| config.moment_rules())
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Pace, Rules};

    #[test]
    fn rules_are_kept() {
        let rules = Rules { window: Duration::from_secs(60), interval: Duration::ZERO, limit: 2 };
        let mut pace = Pace::default();
        assert_eq!((rules.window_left(&pace), rules.refuses(&pace)), (Duration::ZERO, None), "the first at once");
        pace.begins();
        pace.took(true);
        assert!(rules.window_left(&pace) > Duration::from_secs(50) && rules.refuses(&pace).is_none());
        assert!(Rules { interval: Duration::from_secs(60), ..rules }.refuses(&pace).is_some());
        pace.took(false);
        assert!(rules.refuses(&pace).is_none(), "one that was there already costs nothing");
        pace.took(true);
        assert!(rules.refuses(&pace).unwrap().contains("moments.limit"));
        pace.boot = "another run".into();
        assert_eq!(rules.window_left(&pace), Duration::ZERO);
    }
}
