//! Lines: a branch is a line with a pen, a snapshot a point on a line, and nothing is copied for either.
//!
//! A line counts epochs. What its pen writes bears the present one; a snapshot is a name for it, and the pen goes on with the next. A
//! branch is a new line that begins at a point of its parent. A point stays for as long as a snapshot or a child needs it.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::{Reader, Writer};
use crate::state::{Base, State};

/// A line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Where it grew from; `None`: from the lower directory.
    pub(crate) parent: Option<(LineId, Epoch)>,
    pub(crate) base: Base,
    /// What its pen writes under.
    pub(crate) epoch: Epoch,
    /// The epoch before that, 0 if there is none.
    pub(crate) before: Epoch,
    /// Whether there is a branch that writes.
    pub(crate) pen: bool,
    pub(crate) label: Vec<u8>,
    /// Epochs that must stay as they were, and how many snapshots and children need each.
    pub(crate) points: BTreeMap<Epoch, u32>,
}

/// A snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) line: LineId,
    pub(crate) epoch: Epoch,
    pub(crate) label: Vec<u8>,
    /// When it was taken: seconds and nanoseconds.
    pub(crate) time: crate::types::Time,
}

impl Line {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let (line, epoch) = self.parent.unwrap_or_default();
        writer.number(u64::from(line)).number(epoch).time(self.base).number(self.epoch).number(self.before);
        writer.number(u64::from(self.pen)).bytes(&self.label);
        writer.0
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut reader = Reader(row);
        let parent = (reader.small()?, reader.number()?);
        Ok(Self {
            parent: (parent.0 != 0).then_some(parent),
            base: reader.time()?,
            epoch: reader.number()?,
            before: reader.number()?,
            pen: reader.number()? != 0,
            label: reader.bytes()?.to_vec(),
            points: BTreeMap::new(),
        })
    }

    /// Whether an epoch that a deleted snapshot stood for is now part of the one before the next point, so that a row can have
    /// an older version that nobody sees.
    pub(crate) fn is_merged(&self) -> bool {
        self.before != 0 && !self.points.contains_key(&self.before)
    }

    /// Whether a version that is seen from `epoch` until before `next` (`None`: ever since) is needed by anyone.
    pub(crate) fn needs(&self, epoch: Epoch, next: Option<Epoch>) -> bool {
        match next {
            Some(next) => epoch < next && self.points.range(epoch..next).next().is_some(),
            None => self.pen || self.points.range(epoch..).next().is_some(),
        }
    }
}

impl Snapshot {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(u64::from(self.line)).number(self.epoch).bytes(&self.label).time(self.time);
        writer.0
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut reader = Reader(row);
        Ok(Self {
            line: reader.small()?,
            epoch: reader.number()?,
            label: reader.bytes()?.to_vec(),
            time: reader.time()?,
        })
    }
}

impl State {
    /// Counts who needs which point, after loading.
    pub(crate) fn pin(&mut self) {
        let of_snapshots = self.snapshots.values().map(|snapshot| (snapshot.line, snapshot.epoch));
        let of_children = self.lines.values().filter_map(|line| line.parent);
        let needed: Vec<_> = of_snapshots.chain(of_children).collect();
        for (line, epoch) in needed {
            if let Some(line) = self.lines.get_mut(&line) {
                *line.points.entry(epoch).or_default() += 1;
            }
        }
    }

    fn note_line(&mut self, id: LineId) {
        if let Some(line) = self.lines.get(&id) {
            self.layers.put(&key::of_line(b'l', id, None), line.encode());
        }
    }

    fn new_epoch(&mut self) -> Epoch {
        self.next.epoch += 1;
        self.next.epoch - 1
    }

    /// A new line, with a pen or (for a base, which is given a name next) without.
    pub(crate) fn grow(
        &mut self,
        parent: Option<(LineId, Epoch)>,
        base: Base,
        pen: bool,
        label: &[u8],
    ) -> Result<LineId> {
        self.need_numbers(2)?;
        let id = self.next.line;
        self.next.line += 1;
        let epoch = self.new_epoch();
        let label = label.to_vec();
        self.lines.insert(id, Line { parent, base, epoch, before: 0, pen, label, points: BTreeMap::new() });
        if let Some((line, epoch)) = parent
            && let Some(line) = self.lines.get_mut(&line)
        {
            *line.points.entry(epoch).or_default() += 1;
        }
        self.note_line(id);
        Ok(id)
    }

    /// Gives the present state of a line a name. What the pen writes from now on is not in it.
    pub(crate) fn name_state(&mut self, id: LineId, label: &[u8]) -> Result<u64> {
        self.need_numbers(1)?;
        let next = self.new_epoch();
        let line = self.lines.get_mut(&id).ok_or(Error::NotFound)?;
        let epoch = line.epoch;
        *line.points.entry(epoch).or_default() += 1;
        (line.before, line.epoch) = (epoch, next);
        let snapshot = self.next.snapshot;
        self.next.snapshot += 1;
        let row = Snapshot { line: id, epoch, label: label.to_vec(), time: crate::platform::now() };
        self.layers.put(&key::stem(b's', snapshot), row.encode());
        self.snapshots.insert(snapshot, row);
        self.note_line(id);
        Ok(snapshot)
    }

    /// Forgets a snapshot's name; what only it needed is cleared up later.
    pub(crate) fn forget_snapshot(&mut self, id: u64) -> Result<()> {
        let snapshot = self.snapshots.remove(&id).ok_or(Error::NotFound)?;
        self.layers.remove(&key::stem(b's', id));
        self.release(snapshot.line, snapshot.epoch);
        Ok(())
    }

    /// Takes the pen from a line; what only it needed is cleared up later.
    pub(crate) fn drop_pen(&mut self, id: LineId) -> Result<()> {
        let line = self.lines.get_mut(&id).filter(|line| line.pen).ok_or(Error::NotFound)?;
        line.pen = false;
        self.note_line(id);
        self.bury(id, Epoch::MAX);
        Ok(())
    }

    /// One less needs the point.
    fn release(&mut self, id: LineId, epoch: Epoch) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let Some(count) = line.points.get_mut(&epoch) else { return };
        *count -= 1;
        if *count == 0 {
            line.points.remove(&epoch);
            self.bury(id, epoch);
        }
    }

    fn bury(&mut self, line: LineId, epoch: Epoch) {
        self.dead.push((line, epoch));
        self.layers.put(&key::of_line(b'k', line, Some(epoch)), Vec::new());
    }

    /// The rows of a dead point are cleared up. A line that nobody needs goes with it, and lets go of its parent's point.
    pub(crate) fn rest(&mut self, id: LineId, epoch: Epoch) -> Result<()> {
        let others = self.dead.iter().any(|&dead| dead.0 == id && dead != (id, epoch));
        let empty = self.lines.get(&id).is_some_and(|line| !line.pen && line.points.is_empty());
        let goes = empty && !others;
        // First what may fail: then nothing is changed.
        let uncopied = if goes { self.layers.prefix(&key::of_line(b'q', id, None))? } else { Vec::new() };
        self.dead.retain(|&dead| dead != (id, epoch));
        self.layers.remove(&key::of_line(b'k', id, Some(epoch)));
        if goes {
            let parent = self.lines.remove(&id).and_then(|line| line.parent);
            self.layers.remove(&key::of_line(b'l', id, None));
            uncopied.iter().for_each(|(row, _)| self.layers.remove(row));
            if let Some((line, epoch)) = parent {
                self.release(line, epoch);
            }
        }
        Ok(())
    }

    /// The epochs since the point before this one, which is deleted or might be.
    pub(crate) fn epochs_of(&self, id: LineId, epoch: Epoch) -> (Epoch, Epoch) {
        let before = self.lines.get(&id).and_then(|line| line.points.range(..epoch).next_back());
        (before.map_or(0, |(&before, _)| before + 1), epoch)
    }

    /// A line that is not among those and points of it that were deleted, with no other point between them. Bases come last: on a full disk
    /// there may be no room for what their many rows take to go before the others' blocks are back.
    pub(crate) fn dead_together(&self, not: &BTreeSet<LineId>) -> Option<(LineId, Vec<Epoch>)> {
        let is_base = |id: &LineId| self.lines.get(id).is_some_and(|line| line.parent.is_none());
        let mut dead = self.dead.iter().filter(|(id, _)| !not.contains(id));
        let &(id, first) = dead.clone().find(|(id, _)| !is_base(id)).or_else(|| dead.next())?;
        let (from, _) = self.epochs_of(id, first);
        let until = self.epochs_behind(id, first).map_or(Epoch::MAX, |(_, until)| until);
        let together = |&&(line, epoch): &&(LineId, Epoch)| line == id && (from..=until).contains(&epoch);
        Some((id, self.dead.iter().filter(together).map(|&(_, epoch)| epoch).collect()))
    }

    /// Points that nothing but these snapshots needs, by line, those together between which no other is.
    pub(crate) fn held_together(&self, ids: &BTreeSet<u64>) -> Vec<(LineId, Vec<Epoch>)> {
        let mut named: BTreeMap<(LineId, Epoch), u32> = BTreeMap::new();
        for snapshot in ids.iter().filter_map(|id| self.snapshots.get(id)) {
            *named.entry((snapshot.line, snapshot.epoch)).or_default() += 1;
        }
        let lines: BTreeSet<LineId> = named.keys().map(|&(line, _)| line).collect();
        let mut runs = Vec::new();
        for line in lines {
            let points = self.lines.get(&line).map(|of| &of.points).into_iter().flatten();
            let points: Vec<_> = points.map(|(&at, count)| (at, named.get(&(line, at)) == Some(count))).collect();
            let together = points.chunk_by(|one, next| one.1 && next.1).filter(|run| run[0].1);
            runs.extend(together.map(|run| (line, run.iter().map(|&(at, _)| at).collect())));
        }
        runs
    }

    /// The epochs after a point, until the next one or the pen; `None`: nobody sees anything after it.
    pub(crate) fn epochs_behind(&self, id: LineId, epoch: Epoch) -> Option<(Epoch, Epoch)> {
        let line = self.lines.get(&id).filter(|_| epoch < Epoch::MAX)?;
        let next = line.points.range(epoch + 1..).next().map(|(&next, _)| next);
        next.or(line.pen.then_some(line.epoch)).map(|next| (epoch + 1, next))
    }
}
