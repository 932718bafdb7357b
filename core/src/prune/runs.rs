//! When the retention policy was last applied unasked, and how far the clock was set since.
//!
//! `pruned` has in its first line when that was, by the clock; in the second which start of the machine it was in, how long after it, and
//! the number of the last event; in each one that follows how far the clock was found to have been set, and between which events. What was
//! taken before that is as old as the machine has run since, whatever the clock says. Across a start of the machine nobody knows.

use std::path::PathBuf;

use ah_plugin_api::{Durability, Result, Timestamp};

use crate::fsio;
use crate::lock::boot_id;
use crate::workspace::Workspace;

/// The shortest time between two runs, in seconds. The clock and the machine may go apart by as much.
const EVERY: i64 = 3_600;

/// So many times are remembered that the clock was set.
const MOST: usize = 64;

const SECOND: i128 = 1_000_000_000;

/// The clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Jump {
    /// By so many seconds, forwards or back.
    by: i64,
    /// Events up to that number came before.
    after: u64,
    /// Events beyond that number came after.
    until: u64,
    /// In between, those of the clock before it are told by their times from those of the clock after it: half way, in seconds.
    half: i64,
}

impl Jump {
    fn is_after(&self, seq: u64, time: Timestamp) -> bool {
        let by_time = || if self.by > 0 { time.secs < self.half } else { time.secs > self.half };
        seq <= self.after || seq <= self.until && by_time()
    }
}

/// The times that the clock was set, as far as is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClockSet(Vec<Jump>);

impl ClockSet {
    /// Nanoseconds that have passed since something was taken; less than none if the clock was set back since, and nobody saw it.
    pub(super) fn age(&self, now: Timestamp, seq: u64, time: Timestamp) -> i128 {
        let jumps = self.0.iter().filter(|jump| jump.is_after(seq, time));
        now.as_nanos() - time.as_nanos() - jumps.map(|jump| i128::from(jump.by) * SECOND).sum::<i128>()
    }

    /// The same of a file, which bears no event's number. That the clock was set back only takes away of how far it was ahead: by its time
    /// alone nobody could tell that a file is older than it seems.
    pub(crate) fn age_of_file(&self, now: Timestamp, time: Timestamp) -> i128 {
        let ahead = self.0.iter().fold(0, |ahead, jump| match i128::from(jump.by) * SECOND {
            back if back < 0 => (ahead + back).max(0),
            by if time.secs < jump.half => ahead + by,
            _ => ahead,
        });
        now.as_nanos() - time.as_nanos() - ahead
    }
}

/// What is written down of the last run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Run {
    at: i64,
    /// Which start of the machine, and how long after it, in seconds.
    up: Option<(String, i64)>,
    /// The last event.
    seq: u64,
    set: ClockSet,
}

impl Run {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let at = lines.next()?.trim().parse().ok()?;
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (up, seq) = match lines.next().map(words).as_deref() {
            Some([boot, up, seq]) => (up.parse().ok().map(|up| (boot.clone(), up)), seq.parse().unwrap_or(0)),
            _ => (None, 0),
        };
        let jump = |line: &str| match words(line).as_slice() {
            [by, after, until, half] => Some(Jump {
                by: by.parse().ok()?,
                after: after.parse().ok()?,
                until: until.parse().ok()?,
                half: half.parse().ok()?,
            }),
            _ => None,
        };
        Some(Self { at, up, seq, set: ClockSet(lines.filter_map(jump).take(MOST).collect()) })
    }

    fn text(&self) -> String {
        let up = self.up.as_ref().map_or_else(String::new, |(boot, up)| format!("{boot} {up} {}", self.seq));
        let jump = |jump: &Jump| format!("{} {} {} {}\n", jump.by, jump.after, jump.until, jump.half);
        format!("{}\n{up}\n{}", self.at, self.set.0.iter().map(jump).collect::<String>())
    }

    /// How far the clock was set since; `until`: the last event by now.
    fn jump(&self, now: i64, up: Option<&(String, i64)>, until: u64) -> Option<Jump> {
        let ran = match (self.up.as_ref()?, up?) {
            ((then, before), (boot, up)) if then == boot => up.checked_sub(*before).filter(|ran| *ran >= 0)?,
            _ => return None,
        };
        let by = now.checked_sub(self.at)?.checked_sub(ran)?;
        let half = now.saturating_sub(by / 2);
        (by.unsigned_abs() > EVERY.unsigned_abs()).then_some(Jump { by, after: self.seq, until, half })
    }

    /// Whether the machine was started anew since, as far as can be told. One that has run for longer finds a run of another machine, which has the
    /// same `AH_HOME`.
    fn is_of_another_start(&self, up: Option<&(String, i64)>) -> bool {
        self.up.as_ref().zip(up).is_some_and(|((then, _), (boot, up))| then != boot && *up < EVERY)
    }

    /// That one, beside those that are known.
    fn with(&self, jump: Option<Jump>) -> ClockSet {
        let mut jumps = self.set.0.clone();
        jumps.extend(jump);
        // What the first ones are about is the oldest.
        jumps.drain(..jumps.len().saturating_sub(MOST));
        ClockSet(jumps)
    }
}

/// Whether the background has a run to do. A look at one small file.
pub(crate) fn is_due(workspace: &Workspace) -> bool {
    let (now, up) = clock(workspace);
    match last(workspace) {
        // After the clock was set back, the next run sets it right. Nor is an hour waited for after a start of the machine: how far the clock
        // is set from now on can only be told from a run since.
        Some(last) => !(0..EVERY).contains(&now.saturating_sub(last.at)) || last.is_of_another_start(up.as_ref()),
        // There is nothing to prune yet: the first hour begins here.
        None => {
            let _ = write(workspace, &Run { at: now, up, ..Run::default() });
            false
        }
    }
}

/// Notes that a run begins, and how far the clock was set since the one before.
pub(super) fn begin(workspace: &Workspace) -> Result<()> {
    let ((now, up), last) = (clock(workspace), last(workspace).unwrap_or_default());
    // A timeline that cannot be read is no reason to begin again and again.
    let seq = workspace.state().ok().and_then(|state| state.events.last().map(|event| event.seq));
    let set = last.with(last.jump(now, up.as_ref(), seq.unwrap_or(u64::MAX)));
    write(workspace, &Run { at: now, up, seq: seq.unwrap_or(last.seq), set })
}

/// How far the clock was set, also since the last run.
pub(crate) fn clock_set(workspace: &Workspace) -> ClockSet {
    let ((now, up), Some(last)) = (clock(workspace), last(workspace)) else { return ClockSet::default() };
    last.with(last.jump(now, up.as_ref(), u64::MAX))
}

/// What the clock says, and which start of the machine this is, and how long after it.
fn clock(workspace: &Workspace) -> (i64, Option<(String, i64)>) {
    let clock = &workspace.engine.settings().clock;
    let boot = Some(boot_id()).filter(|boot| !boot.is_empty());
    (clock.now().secs, boot.zip(clock.uptime()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn what_is_written_is_read() {
        let jump = Jump { by: -7_200, after: 3, until: 9, half: 11 };
        let whole =
            Run { at: -5, up: Some(("boot".to_owned(), 7)), seq: 8, set: ClockSet(vec![jump, Jump { by: 1, ..jump }]) };
        for run in [Run::default(), Run { up: None, seq: 0, ..whole.clone() }, whole] {
            assert_eq!(Run::parse(&run.text()), Some(run));
        }
        // As it was before there was more than the first line.
        assert_eq!(Run::parse("12\n"), Some(Run { at: 12, ..Run::default() }));
        for torn in ["", "x", "x\nboot 7\n"] {
            assert_eq!(Run::parse(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn the_clock_was_set_where_the_machine_did_not_run_as_long() {
        let run = Run { at: 100, up: Some(("one".to_owned(), 50)), seq: 4, set: ClockSet::default() };
        let by = |now, boot: &str, up| run.jump(now, Some(&(boot.to_owned(), up)), 9).map(|jump| jump.by);
        assert_eq!(by(110 + 2 * EVERY, "one", 60), Some(2 * EVERY));
        assert_eq!(by(110 - 2 * EVERY, "one", 60), Some(-2 * EVERY));
        assert_eq!(by(100 + 2 * EVERY, "one", 50 + 2 * EVERY), None);
        // Nobody knows how long the machine was off.
        assert_eq!(by(100 + 2 * EVERY, "two", 60), None);
        assert_eq!((run.jump(i64::MAX, None, 9), by(i64::MIN, "one", 60)), (None, None));
        let anew = |boot: &str, up| run.is_of_another_start(Some(&(boot.to_owned(), up)));
        assert_eq!([anew("two", 60), anew("one", 60), anew("two", 2 * EVERY)], [true, false, false]);
        assert!(!run.is_of_another_start(None));
    }

    #[test]
    fn what_was_taken_before_is_as_old_as_the_machine_has_run_since() {
        // Two days ahead after event 4 at 100, and back again after event 8; the machine has run for 100 seconds since.
        let day = 86_400;
        let set = ClockSet(vec![
            Jump { by: 2 * day, after: 4, until: 6, half: 150 + day },
            Jump { by: -2 * day, after: 8, until: 10, half: 180 + day },
        ]);
        let age = |seq, secs| set.age(at(200), seq, at(secs)) / SECOND;
        let taken =
            [(4, 100), (5, 110), (6, 120 + 2 * day), (8, 150 + 2 * day), (9, 160 + 2 * day), (10, 190), (11, 195)];
        assert_eq!(taken.map(|(seq, secs)| age(seq, secs)), [100, 90, 80, 50, 40, 10, 5]);
        assert_eq!(ClockSet::default().age(at(200), 4, at(100)) / SECOND, 100);
        // A file of the time when it was ahead has one to come.
        let of_file = |secs| set.age_of_file(at(200), at(secs)) / SECOND;
        assert_eq!([100, 120 + 2 * day, 190].map(of_file), [100, 80 - i128::from(2 * day), 10]);
        let ahead = ClockSet(set.0[..1].to_vec());
        let of_file = |secs| ahead.age_of_file(at(200 + 2 * day), at(secs)) / SECOND;
        assert_eq!([100, 120 + 2 * day, 190 + 2 * day].map(of_file), [100, 80, 10]);
    }
}
