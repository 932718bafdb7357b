//! What is known at a moment: the rows in memory over those in the base, the lines and snapshots, the counters.
//!
//! All of it changes under one lock, held for as long as it takes to change a few rows in memory, never while anything is written
//! or synced. That is what makes a snapshot a point in time and keeps it from holding writers up.
//!
//! - `rows`: the layers, plain reading and writing.
//! - `versions`: which version of a row is seen from where, and what a change does to older ones.
//! - `lines`: branches and snapshots; `numbers`: which of them are given out.

pub(crate) mod lines;
mod numbers;
mod rows;
mod versions;

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub(crate) use lines::{Line, Snapshot};
pub(crate) use numbers::{InBase, Numbers};
pub(crate) use rows::{Layers, Row, Table};
pub(crate) use versions::{Chain, View};

use crate::error::{Error, Result};
use crate::rows::key::{self, Epoch, LineId};
use crate::store::segments::{LARGEST, SEGMENT};
use crate::types::Time;

/// See the module.
pub(crate) struct State {
    pub(crate) layers: Layers,
    pub(crate) lines: BTreeMap<LineId, Line>,
    pub(crate) snapshots: BTreeMap<u64, Snapshot>,
    /// Points that were deleted, whose rows may still be there: line and epoch; of a pen `Epoch::MAX`.
    pub(crate) dead: Vec<(LineId, Epoch)>,
    /// Runs of blocks that nothing refers to any more.
    pub(crate) free: Vec<(u64, u64)>,
    /// Runs of blocks that are lost, though rows may name them.
    pub(crate) lost: Vec<(u64, u64)>,
    /// Blocks in use, by segment.
    pub(crate) used: HashMap<u64, u64>,
    /// Of the change that is under way, if it can be undone: segments, and what `used` said of them.
    counted: Option<Vec<(u64, Option<u64>)>>,
    pub(crate) next: Numbers,
    /// Those that are not given out, nor any behind them, before the base counts anew.
    pub(crate) until: Numbers,
    /// Inodes that are ours have numbers below 2^48.
    pub(crate) next_ino: u64,
}

impl State {
    /// Reads lines, snapshots and counters. Costs their number, not that of the files. Which numbers are next, [`State::count_from`] says.
    pub(crate) fn load(layers: Layers) -> Result<Self> {
        let next = Numbers::FIRST;
        let mut state = Self {
            layers,
            lines: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            dead: Vec::new(),
            free: Vec::new(),
            lost: Vec::new(),
            used: HashMap::new(),
            counted: None,
            next,
            until: next,
            next_ino: 2,
        };
        for (row, value) in state.layers.prefix(b"l")? {
            let (id, line) = (key::be32(row.get(1..).unwrap_or_default()), Line::decode(&value)?);
            // So that no line is above itself.
            if line.parent.is_some_and(|(parent, _)| parent >= id) {
                return Err(Error::corrupt(format!("line {id} grows from a later one")));
            }
            state.lines.insert(id, line);
        }
        for (row, value) in state.layers.prefix(b"s")? {
            state.snapshots.insert(key::number(&row), Snapshot::decode(&value)?);
        }
        for (row, _) in state.layers.prefix(b"k")? {
            state.dead.push(key::line_and_number(&row)?);
        }
        (state.free, state.lost) = (state.runs(b"f")?, state.runs(b"y")?);
        for (row, value) in state.layers.prefix(b"g")? {
            let (segment, count) = (key::number(&row), key::be64(&value));
            if segment >= LARGEST / SEGMENT {
                return Err(Error::corrupt("a segment lies behind all others"));
            }
            state.used.insert(segment, count.min(LARGEST));
        }
        if let Some(value) = state.layers.get(&key::counter("inode"))? {
            state.next_ino = key::be64(&value);
        }
        state.pin();
        Ok(state)
    }

    fn runs(&self, kind: &[u8]) -> Result<Vec<(u64, u64)>> {
        let run = |(row, value): Row| {
            let (first, count) = (key::number(&row), key::be64(&value));
            let is_one = first < LARGEST && (1..=SEGMENT).contains(&count);
            is_one.then_some((first, count)).ok_or_else(|| Error::corrupt("a run of blocks is none"))
        };
        self.layers.prefix(kind)?.into_iter().map(run).collect()
    }

    /// These runs of blocks are lost, though rows may name them. Gives the rows that say so.
    pub(crate) fn lose(&mut self, runs: impl IntoIterator<Item = (u64, u64)>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut lost: BTreeMap<_, _> = std::mem::take(&mut self.lost).into_iter().collect();
        let mut rows = Vec::new();
        for (first, count) in runs {
            let known = lost.entry(first).or_default();
            *known = count.max(*known);
            let row = (key::stem(b'y', first), known.to_be_bytes().to_vec());
            self.layers.put(&row.0, row.1.clone());
            rows.push(row);
        }
        self.lost = lost.into_iter().collect();
        rows
    }

    /// Blocks from there on are given out anew: what is known of others that had their numbers is none of theirs.
    pub(crate) fn lose_none_from(&mut self, next: u64) {
        let (behind, mut lost): (Vec<_>, Vec<_>) = self.lost.iter().partition(|&&(first, count)| first + count > next);
        for (first, _) in behind {
            if first < next {
                lost.push((first, next - first));
                self.layers.put(&key::stem(b'y', first), (next - first).to_be_bytes().to_vec());
            } else {
                self.layers.remove(&key::stem(b'y', first));
            }
        }
        self.lost = lost;
    }

    /// Writes the counters down, before a batch is taken.
    pub(crate) fn note_counters(&mut self, next_block: u64) {
        for (row, value) in self.next.rows() {
            self.layers.put(&row, value);
        }
        for (name, value) in [("inode", self.next_ino), ("block", next_block)] {
            self.layers.put(&key::counter(name), value.to_be_bytes().to_vec());
        }
    }

    /// Changes rows, all or none: an error in the middle, of the disk as it reads what is changed, leaves everything as it was, and so does a panic. Else a row could name blocks that whoever
    /// failed gives back. Numbers of inodes that were given are not given again. Not to be called within itself.
    pub(crate) fn whole<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.layers.begin();
        self.counted = Some(Vec::new());
        let free = self.free.len();
        let result = catch_unwind(AssertUnwindSafe(|| change(self)));
        let counted = self.counted.take().unwrap_or_default();
        if let Ok(done @ Ok(_)) = result {
            self.layers.keep();
            return done;
        }
        self.layers.undo();
        self.free.truncate(free);
        for (segment, was) in counted.into_iter().rev() {
            match was {
                Some(count) => self.used.insert(segment, count),
                None => self.used.remove(&segment),
            };
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Blocks in use, all told.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.used.values().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Counts blocks as used (or not any more).
    pub(crate) fn count(&mut self, block: u64, blocks: i64) {
        let segment = block / crate::store::segments::SEGMENT;
        if let Some(counted) = &mut self.counted {
            counted.push((segment, self.used.get(&segment).copied()));
        }
        let used = self.used.entry(segment).or_default();
        *used = used.saturating_add_signed(blocks);
        let value = *used;
        if value == 0 {
            self.used.remove(&segment);
            self.layers.remove(&key::stem(b'g', segment));
        } else {
            self.layers.put(&key::stem(b'g', segment), value.to_be_bytes().to_vec());
        }
    }

    /// A number for a new inode.
    pub(crate) fn new_ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino - 1
    }
}

/// When the base of a line was taken: what changed below after that is not what its snapshots stand for.
pub(crate) type Base = Time;
