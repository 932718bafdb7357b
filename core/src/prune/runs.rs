//! When the retention policy was last applied unasked, and whether the clock was set since.
//!
//! `pruned` has three lines: when that was, by the clock; which start of the machine it was in, and how long after it; and, if the clock
//! was ever seen to have gone ahead of that, the last event before, and when. What was taken until then counts as no older.

use std::path::PathBuf;

use ah_plugin_api::{Durability, Result, Timestamp};

use crate::fsio;
use crate::lock::boot_id;
use crate::workspace::Workspace;

/// The shortest time between two runs, in seconds. The clock may go ahead of the machine by as much.
const EVERY: i64 = 3_600;

/// The clock was set: what was taken until then may be younger than its time says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockSet {
    /// The number of the last event before.
    pub(crate) seq: u64,
    /// When that was found, in seconds.
    pub(crate) at: i64,
}

/// What is written down of the last run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    at: i64,
    /// Which start of the machine, and how long after it, in seconds.
    up: Option<(String, i64)>,
    set: Option<ClockSet>,
}

impl Run {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let at = lines.next()?.trim().parse().ok()?;
        let mut pair = || lines.next()?.split_once(' ');
        let up = pair().and_then(|(boot, up)| Some((boot.to_owned(), up.parse().ok()?)));
        let set = pair().and_then(|(seq, at)| Some(ClockSet { seq: seq.parse().ok()?, at: at.parse().ok()? }));
        Some(Self { at, up, set })
    }

    fn text(&self) -> String {
        let up = self.up.as_ref().map_or_else(String::new, |(boot, up)| format!("{boot} {up}"));
        let set = self.set.map_or_else(String::new, |set| format!("{} {}", set.seq, set.at));
        format!("{}\n{up}\n{set}\n", self.at)
    }

    /// Whether the clock has gone ahead further than the machine has run since.
    fn clock_went_ahead(&self, now: i64, up: Option<&(String, i64)>) -> bool {
        let ran = || match (self.up.as_ref()?, up?) {
            ((then, before), (boot, up)) if then == boot => up.checked_sub(*before),
            _ => None,
        };
        ran().is_some_and(|ran| now.saturating_sub(self.at).saturating_sub(ran) > EVERY)
    }
}

/// Whether the background has a run to do. A look at one small file.
pub(crate) fn is_due(workspace: &Workspace) -> bool {
    let now = workspace.engine.settings().clock.now().secs;
    match last(workspace) {
        // After the clock was set back, the next run sets it right.
        Some(last) => !(0..EVERY).contains(&now.saturating_sub(last.at)),
        // There is nothing to prune yet: the first hour begins here.
        None => {
            let _ = write(workspace, &Run { at: now, up: up(workspace), set: None });
            false
        }
    }
}

/// Notes that a run begins, and whether the clock was set since the one before.
pub(super) fn begin(workspace: &Workspace) -> Result<()> {
    let (now, up) = (workspace.engine.settings().clock.now().secs, up(workspace));
    let last = last(workspace).unwrap_or_default();
    let set = match last.clock_went_ahead(now, up.as_ref()) {
        true => workspace.state()?.events.last().map(|event| ClockSet { seq: event.seq, at: now }),
        // It was set back again.
        false => last.set.map(|set| ClockSet { at: set.at.min(now), ..set }),
    };
    write(workspace, &Run { at: now, up, set })
}

/// Whether the clock was ever seen to have been set.
pub(super) fn clock_set(workspace: &Workspace) -> Option<ClockSet> {
    last(workspace)?.set
}

fn up(workspace: &Workspace) -> Option<(String, i64)> {
    Some((boot_id(), workspace.engine.settings().clock.uptime()?))
}

fn file(workspace: &Workspace) -> PathBuf {
    workspace.folder().join("pruned")
}

fn last(workspace: &Workspace) -> Option<Run> {
    let bytes = fsio::read(&file(workspace)).ok().flatten()?;
    Run::parse(std::str::from_utf8(&bytes).ok()?)
}

fn write(workspace: &Workspace, run: &Run) -> Result<()> {
    fsio::replace(&file(workspace), run.text().as_bytes(), Durability::Instant)
}

impl ClockSet {
    /// When something counts as taken, in nanoseconds.
    pub(super) fn taken(self, seq: u64, time: Timestamp) -> i128 {
        let found = Timestamp { secs: self.at, nanos: 0 };
        if seq <= self.seq { time.as_nanos().max(found.as_nanos()) } else { time.as_nanos() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let whole = Run { at: -5, up: Some(("boot".to_owned(), 7)), set: Some(ClockSet { seq: 9, at: 11 }) };
        for run in [Run::default(), Run { up: None, ..Run::parse(&whole.text()).unwrap() }, whole] {
            assert_eq!(Run::parse(&run.text()), Some(run));
        }
        // As it was before there was more than the first line.
        assert_eq!(Run::parse("12\n"), Some(Run { at: 12, ..Run::default() }));
        for torn in ["", "x", "x\nboot 7\n"] {
            assert_eq!(Run::parse(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn the_clock_went_ahead_where_the_machine_did_not() {
        let run = Run { at: 100, up: Some(("one".to_owned(), 50)), set: None };
        let went = |now, boot: &str, up| run.clock_went_ahead(now, Some(&(boot.to_owned(), up)));
        assert!(went(100 + 2 * EVERY, "one", 60));
        assert!(!went(100 + 2 * EVERY, "one", 50 + 2 * EVERY) && !went(-100, "one", 60));
        // Nobody knows how long the machine was off.
        assert!(!went(i64::MAX, "two", 60));
        assert!(!run.clock_went_ahead(i64::MAX, None) && went(i64::MAX, "one", 60));
    }
}
