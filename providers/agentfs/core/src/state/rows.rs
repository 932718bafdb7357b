//! Layers of rows: those that the log holds, in memory; those that a checkpoint is writing just now; the base on disk.
//!
//! A row in a newer layer stands for that in an older one; one that was removed is there as `None`.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::rows::key::{self, Epoch, LineId};
use crate::store::base::Rows;
use crate::store::log::Change;

/// Rows in memory.
pub(crate) type Table = BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>;

/// A row and its value.
pub(crate) type Row = (Vec<u8>, Arc<[u8]>);
/// A row that the log does not hold yet; `None`: it was removed.
pub(crate) type Waiting = (Arc<[u8]>, Option<Arc<[u8]>>);

/// A row that a change is about to replace: its value in `active`, if it is there, and whether the log does not hold that yet.
struct Replaced {
    row: Arc<[u8]>,
    was: Option<Option<Arc<[u8]>>>,
    waited: bool,
}

/// What a change that is under way has replaced, and how many bytes waited when it began.
struct Undo {
    replaced: Vec<Replaced>,
    unlogged_bytes: usize,
}

/// See the module.
pub(crate) struct Layers {
    active: Table,
    /// Those of `active` that the log does not hold yet.
    unlogged: BTreeSet<Arc<[u8]>>,
    unlogged_bytes: usize,
    /// Of the change that is under way, if it can be undone.
    undo: Option<Undo>,
    pub(crate) frozen: Option<Arc<Table>>,
    pub(crate) base: Arc<Rows>,
}

impl Layers {
    pub(crate) fn new(base: Arc<Rows>) -> Self {
        Self { active: Table::new(), unlogged: BTreeSet::new(), unlogged_bytes: 0, undo: None, frozen: None, base }
    }

    /// Takes over what the log held.
    pub(crate) fn replay(&mut self, changes: Vec<Change>) {
        for (row, value) in changes {
            self.active.insert(row.into(), value.map(Into::into));
        }
    }

    pub(crate) fn get(&self, row: &[u8]) -> Result<Option<Arc<[u8]>>> {
        if let Some(value) = self.active.get(row) {
            return Ok(value.clone());
        }
        if let Some(value) = self.frozen.as_ref().and_then(|table| table.get(row)) {
            return Ok(value.clone());
        }
        Ok(self.base.get(row)?.map(Into::into))
    }

    pub(crate) fn put(&mut self, row: &[u8], value: Vec<u8>) {
        self.change(row, Some(value.into()));
    }

    pub(crate) fn remove(&mut self, row: &[u8]) {
        self.change(row, None);
    }

    fn change(&mut self, row: &[u8], value: Option<Arc<[u8]>>) {
        let length = row.len() + value.as_ref().map_or(0, |value| value.len());
        let row: Arc<[u8]> = row.into();
        let was = self.active.insert(row.clone(), value);
        let waited = !self.unlogged.insert(row.clone());
        if !waited {
            self.unlogged_bytes += length;
        }
        if let Some(undo) = &mut self.undo {
            undo.replaced.push(Replaced { row, was, waited });
        }
    }

    /// What is changed from now on can be undone, until it is kept.
    pub(super) fn begin(&mut self) {
        self.undo = Some(Undo { replaced: Vec::new(), unlogged_bytes: self.unlogged_bytes });
    }

    /// What was changed since it began stays.
    pub(super) fn keep(&mut self) {
        self.undo = None;
    }

    /// All rows are again what they were when it began. Reads nothing, and so cannot fail.
    pub(super) fn undo(&mut self) {
        let Some(Undo { replaced, unlogged_bytes }) = self.undo.take() else { return };
        for Replaced { row, was, waited } in replaced.into_iter().rev() {
            if !waited {
                self.unlogged.remove(&row);
            }
            match was {
                Some(value) => drop(self.active.insert(row, value)),
                None => drop(self.active.remove(&row)),
            }
        }
        self.unlogged_bytes = unlogged_bytes;
    }

    /// About how much the next batch will hold; 0: nothing.
    pub(crate) fn unlogged(&self) -> usize {
        self.unlogged_bytes
    }

    /// How many rows are in memory.
    pub(crate) fn in_memory(&self) -> usize {
        self.active.len() + self.frozen.as_ref().map_or(0, |table| table.len())
    }

    /// What the next batch holds, which counts as logged from now on.
    pub(crate) fn take_unlogged(&mut self) -> Vec<Waiting> {
        self.unlogged_bytes = 0;
        let rows = std::mem::take(&mut self.unlogged);
        rows.into_iter().map(|row| (row.clone(), self.active.get(&row).cloned().flatten())).collect()
    }

    /// The batch could not be logged: its rows are for the next one again.
    pub(crate) fn give_back(&mut self, rows: Vec<Waiting>) {
        for (row, value) in rows {
            self.unlogged_bytes += row.len() + value.map_or(0, |value| value.len());
            self.unlogged.insert(row);
        }
    }

    /// Sets the rows aside for a checkpoint. All of them must be logged. What an earlier one left there goes with them.
    pub(crate) fn freeze(&mut self) -> Arc<Table> {
        self.unfreeze();
        let table = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(table.clone());
        table
    }

    /// The checkpoint failed: its rows are active again, below those that were written since.
    pub(crate) fn unfreeze(&mut self) {
        if let Some(table) = self.frozen.take() {
            for (row, value) in table.iter() {
                self.active.entry(row.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// The stems in memory that epochs of a line wrote.
    pub(crate) fn written(&self, line: LineId, epochs: (Epoch, Epoch)) -> Result<Vec<(Vec<u8>, Epoch)>> {
        let mut found = Vec::new();
        for (row, value) in self.frozen.iter().flat_map(|table| table.iter()).chain(&self.active) {
            if key::is_versioned(row) && value.is_some() {
                let (stem, of, epoch) = key::split(row)?;
                if of == line && (epochs.0..=epochs.1).contains(&epoch) {
                    found.push((stem.to_vec(), epoch));
                }
            }
        }
        Ok(found)
    }

    /// The checkpoint is on disk.
    pub(crate) fn thaw(&mut self, base: Arc<Rows>) {
        self.frozen = None;
        self.base = base;
    }

    /// The last row from `from` to `to`.
    pub(crate) fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Row>> {
        let mut end = Bound::Included(to.to_vec());
        loop {
            let range = (Bound::Included(from), end.as_ref().map(Vec::as_slice));
            let active = self.active.range::<[u8], _>(range).next_back();
            let frozen = self.frozen.as_ref().and_then(|table| table.range::<[u8], _>(range).next_back());
            let base = self.base.last(from, range.1)?;
            let memory = match (active, frozen) {
                (Some(one), Some(other)) if other.0 > one.0 => Some(other),
                (None, other) => other,
                (one, _) => one,
            };
            let (row, value) = match (memory, base) {
                (None, None) => return Ok(None),
                (None, Some((row, value))) => (row, Some(value.into())),
                (Some((row, _)), Some((below, value))) if below.as_slice() > row => (below, Some(value.into())),
                (Some((row, value)), _) => (row.to_vec(), value.clone()),
            };
            if let Some(value) = value {
                return Ok(Some((row, value)));
            }
            end = Bound::Excluded(row);
        }
    }

    /// All rows that begin like this, in order.
    pub(crate) fn prefix(&self, prefix: &[u8]) -> Result<Vec<Row>> {
        self.walk(prefix, prefix)?.collect()
    }

    /// The first row behind `after` that begins like this: for walking over much in small steps.
    pub(crate) fn next(&self, prefix: &[u8], after: &[u8]) -> Result<Option<Row>> {
        self.walk(prefix, &[after, &[0]].concat())?.next().transpose()
    }

    /// The rows from `from` on that begin like this, in order.
    pub(crate) fn walk(&self, prefix: &[u8], from: &[u8]) -> Result<Walk<'_>> {
        let newest_first = [Some(&self.active), self.frozen.as_deref()].into_iter().flatten();
        let behind = (Bound::Included(from), Bound::Unbounded);
        Ok(Walk {
            layers: self,
            prefix: prefix.to_vec(),
            memory: newest_first.map(|table| table.range::<[u8], _>(behind).peekable()).collect(),
            base: (Box::new(self.base.from(from)?) as OfBase).peekable(),
        })
    }
}

type OfTable<'a> = btree_map::Range<'a, Arc<[u8]>, Option<Arc<[u8]>>>;
type OfBase = Box<dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>>;

/// Rows in order, some of which can be passed over.
pub(crate) struct Walk<'a> {
    layers: &'a Layers,
    prefix: Vec<u8>,
    memory: Vec<Peekable<OfTable<'a>>>,
    base: Peekable<OfBase>,
}

impl Walk<'_> {
    /// Goes on at `from`.
    pub(crate) fn pass_to(&mut self, from: &[u8]) -> Result<()> {
        *self = self.layers.walk(&self.prefix, from)?;
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(Err(error)) = self.base.next_if(Result::is_err) {
                return Some(Err(error));
            }
            let below = self.base.peek().and_then(|item| item.as_ref().ok()).map(|(row, _)| row.as_slice());
            let above = self.memory.iter_mut().filter_map(|rows| rows.peek().map(|(row, _)| &***row));
            let row = above.chain(below).min().filter(|row| row.starts_with(&self.prefix))?.to_vec();
            // That of the newest layer counts; those below it are passed over with it.
            let mut newest = None;
            for rows in &mut self.memory {
                if let Some((_, value)) = rows.next_if(|(of, _)| ***of == *row) {
                    newest.get_or_insert_with(|| value.clone());
                }
            }
            if let Some(Ok((_, value))) = self.base.next_if(|item| item.as_ref().is_ok_and(|(of, _)| *of == row)) {
                newest.get_or_insert_with(|| Some(value.into()));
            }
            if let Some(Some(value)) = newest {
                return Some(Ok((row, value)));
            }
        }
    }
}
