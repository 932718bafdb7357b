//! Numbers of epochs, lines and snapshots: none is given twice, whatever becomes of the log. Who was given one may have written it down elsewhere, and would take another for it.
//!
//! The base has counters, which are on the disk. Numbers are given out up to a certain distance from those, and no further before they are counted there anew. So who
//! opens a store whose log may have lost something goes on behind all that may have been given out: at twice that distance, since a damaged base may be repaired by what it was a
//! commit before.

use crate::error::{Error, Result};
use crate::rows::key::{self, Epoch, LineId};
use crate::state::{Layers, State};

/// So many epochs and snapshots are given out at most behind what the base counts.
const AHEAD: u64 = 1 << 20;
/// The same of lines, of which there are fewer: 2^32.
const LINES_AHEAD: LineId = 1 << 14;

/// Those that are given out next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) epoch: Epoch,
    pub(crate) line: LineId,
    pub(crate) snapshot: u64,
}

impl Numbers {
    pub(super) const FIRST: Self = Self { epoch: 1, line: 1, snapshot: 1 };

    /// What rows count; `None`: nothing yet.
    pub(super) fn counted(rows: &Layers) -> Result<Option<Self>> {
        let counter = |name| Ok(rows.get(&key::counter(name))?.map(|value| key::be64(&value)));
        let (epoch, line, snapshot) = (counter("epoch")?, counter("line")?, counter("snapshot")?);
        let all = epoch.zip(line).zip(snapshot);
        Ok(all.map(|((epoch, line), snapshot)| Self { epoch, line: line as LineId, snapshot }))
    }

    /// The rows that say so.
    pub(crate) fn rows(self) -> [(Vec<u8>, Vec<u8>); 3] {
        let counters = [("epoch", self.epoch), ("line", self.line.into()), ("snapshot", self.snapshot)];
        counters.map(|(name, value)| (key::counter(name), value.to_be_bytes().to_vec()))
    }

    fn ahead(self) -> Self {
        Self {
            epoch: self.epoch.saturating_add(AHEAD),
            line: self.line.saturating_add(LINES_AHEAD),
            snapshot: self.snapshot.saturating_add(AHEAD),
        }
    }

    /// Of each the higher one.
    fn max(self, other: Self) -> Self {
        Self {
            epoch: self.epoch.max(other.epoch),
            line: self.line.max(other.line),
            snapshot: self.snapshot.max(other.snapshot),
        }
    }

    /// Whether there are so many of each before those.
    fn has(self, least: u64, until: Self) -> bool {
        let lines = u64::from(until.line.saturating_sub(self.line));
        let left = [until.epoch.saturating_sub(self.epoch), lines, until.snapshot.saturating_sub(self.snapshot)];
        left.into_iter().all(|left| left >= least)
    }
}

/// What the base counts, as it was found.
pub(crate) struct InBase(Option<Numbers>);

impl InBase {
    /// `rows`: the base's alone.
    pub(crate) fn of(rows: &Layers) -> Result<Self> {
        Numbers::counted(rows).map(Self)
    }
}

impl State {
    /// Before anything is changed: which numbers are next. `is_whole`: the log has lost nothing. `is_new`: there never was one.
    pub(crate) fn count_from(&mut self, InBase(counted): InBase, is_whole: bool, is_new: bool) -> Result<()> {
        let in_base = counted.unwrap_or(Numbers::FIRST);
        // The log's may be older: the base's were counted anew without it.
        self.next = Numbers::counted(&self.layers)?.unwrap_or(Numbers::FIRST).max(in_base);
        let has_lost_none = is_whole || is_new && counted.is_none();
        if !has_lost_none {
            self.next = self.next.max(in_base.ahead().ahead());
        }
        self.until = counted.map_or(Numbers::FIRST, Numbers::ahead);
        Ok(())
    }

    /// The base counts these now.
    pub(crate) fn counted(&mut self, in_base: Numbers) {
        self.until = in_base.ahead();
    }

    /// Whether so few numbers are left that they are to be counted anew.
    pub(crate) fn has_few_numbers(&self) -> bool {
        !self.next.has(u64::from(LINES_AHEAD) / 2, self.until)
    }

    /// Before numbers are given out, so many of a kind at most. None are left only where they could not be counted anew.
    pub(crate) fn need_numbers(&self, most: u64) -> Result<()> {
        self.next.has(most, self.until).then_some(()).ok_or(Error::NoSpace)
    }
}
