//! Changes of contents: writing, cutting, holes.
//!
//! A block that was written since the last snapshot is written again in place; any other goes to a new place, and the row of its
//! chunk says so. Data is written before the rows that name it, outside of all locks but the file's own.
//!
//! **Against snapshots.** Who changes a file is within the gate of the epoch in which he began, until his rows are there. A
//! snapshot puts up the next gate and waits for those within the old one. So a change belongs to the snapshot as a whole or not at
//! all, and who begins later waits for nobody: should he be overtaken by a snapshot, his rows still go under his own epoch.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::platform;
use crate::rows::chunk::{BLOCK, BLOCKS, CHUNK, Chunk, Place};
use crate::rows::key::{self, Epoch};
use crate::rows::value::{Entry, GONE, HERE, Inode, Takes};
use crate::state::{self, State};
use crate::types::{Allocate, Ino};
use crate::view::attrs::Xattr;
use crate::view::pinned::is_lost;
use crate::view::{Node, View};
use crate::{lock, read_lock};

/// The largest file, in bytes.
const LARGEST: u64 = 1 << 62;
/// Files below up to this size are copied as a whole when they are first written: that costs no more than a few blocks
/// do, and frees them from what happens below.
const SMALL: u64 = 64 << 10;

/// A change of one file under way.
struct Edit<'a> {
    of: &'a View,
    node: Node,
    /// Directory and name, if the node had no row when this began.
    place: Option<(Ino, Vec<u8>)>,
    epoch: Epoch,
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks, of which there may be very many, that are below or a hole as a whole by now. None is among those above.
    alike: BTreeMap<u64, Place>,
    /// New blocks: first and count.
    taken: Vec<(u64, u64)>,
    /// Some of them may not be named by a chunk any more.
    dropped: bool,
    size: u64,
    lower_limit: u64,
    /// Extended attributes below, copied because nothing else is read there any more.
    xattrs: Option<Vec<Xattr>>,
}

impl View {
    /// Writes bytes, making the file longer if they reach beyond its end. Gives how many were written: all of them.
    pub fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= LARGEST).ok_or(Error::FileTooLarge)?;
        if bytes.is_empty() {
            self.writable()?;
            return self.file(ino).map(|_| 0);
        }
        self.edit(ino, |edit| {
            edit.keep_small()?;
            edit.leave_end(offset)?;
            edit.write(offset, bytes)?;
            edit.size = edit.size.max(end);
            Ok(())
        })?;
        Ok(bytes.len())
    }

    /// Writes, with something else happening in the middle of it.
    #[cfg(test)]
    pub(crate) fn write_and(&self, ino: Ino, bytes: &[u8], meanwhile: impl FnOnce()) -> Result<()> {
        self.edit(ino, |edit| {
            edit.keep_small()?;
            meanwhile();
            edit.write(0, bytes)?;
            edit.size = edit.size.max(bytes.len() as u64);
            Ok(())
        })
    }

    /// Sets space aside, or makes holes; see [`Allocate`].
    pub fn fallocate(&self, ino: Ino, offset: u64, length: u64, how: Allocate) -> Result<()> {
        let end = offset.checked_add(length).filter(|&end| end <= LARGEST).ok_or(Error::FileTooLarge)?;
        if length == 0 {
            return Err(Error::Invalid("nothing to allocate"));
        }
        if how == Allocate::Keep {
            self.writable()?;
            return self.file(ino).map(drop);
        }
        self.edit(ino, |edit| {
            if how != Allocate::Extend {
                edit.keep_small()?;
                edit.zero(offset, end.min(edit.size))?;
            }
            if how != Allocate::Punch {
                edit.leave_end(end)?;
                edit.size = edit.size.max(end);
            }
            Ok(())
        })
    }

    pub(super) fn resize(&self, ino: Ino, size: u64) -> Result<()> {
        if size > LARGEST {
            return Err(Error::FileTooLarge);
        }
        self.edit(ino, |edit| edit.resize(size))
    }

    fn edit(&self, ino: Ino, change: impl FnOnce(&mut Edit<'_>) -> Result<()>) -> Result<()> {
        let pen = self.writable()?;
        // Before contents are touched: what is written in place cannot be taken back.
        self.engine.room_for_change()?;
        // Before the span begins: what is above must not be of a later one.
        self.take_over_above(ino)?;
        let _alone = lock(&pen.stripes[(ino % 64) as usize]);
        let mut gate = lock(&pen.gate).clone();
        let mut within = read_lock(&gate.inside);
        // A snapshot may have come in between: then this is the gate that it closed.
        loop {
            let present = lock(&pen.gate).clone();
            if present.epoch == gate.epoch {
                break;
            }
            drop(within);
            gate = present;
            within = read_lock(&gate.inside);
        }
        self.file(ino)?;
        let (node, place) = {
            let _ops = lock(&pen.ops);
            let node = self.node_to_change(ino, None)?;
            let place = if node.has_row { None } else { self.place_of(ino) };
            (node, place)
        };
        let (size, lower_limit) = (node.inode.size, node.inode.lower_limit);
        let (chunks, taken) = (BTreeMap::new(), Vec::new());
        let mut edit = Edit {
            of: self,
            node,
            place,
            epoch: gate.epoch,
            chunks,
            alike: BTreeMap::new(),
            taken,
            dropped: false,
            size,
            lower_limit,
            xattrs: None,
        };
        let mut result = change(&mut edit);
        if result.is_ok() && edit.lower_limit == 0 {
            // Where they cannot be had, they stay a loss.
            edit.xattrs = self.xattrs_below(&edit.node).unwrap_or_default();
        }
        edit.drop_unnamed();
        if result.is_ok() {
            let _ops = lock(&pen.ops);
            result = edit.commit();
        }
        for &(block, count) in &edit.taken {
            if result.is_err() {
                // Nothing names them. What fails here is found by fsck.
                let _ = self.engine.segments.give_back(block, count);
            }
            self.engine.segments.settle(block, count);
        }
        drop(within);
        result
    }
}

impl Edit<'_> {
    fn load(&mut self, index: u64) -> Result<&mut Chunk> {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.chunks.entry(index) {
            vacant.insert(match self.alike.remove(&index) {
                Some(place) => Chunk([place; BLOCKS]),
                None => self.of.chunk(self.node.ino, index)?,
            });
        }
        self.chunks.get_mut(&index).ok_or(Error::Stale)
    }

    /// Has all blocks of a chunk lie in the same way, whatever it was.
    fn make_alike(&mut self, index: u64, place: Place) {
        self.chunks.remove(&index);
        self.alike.insert(index, place);
    }

    /// Copies a small file below, if nothing of it was copied yet.
    fn keep_small(&mut self) -> Result<()> {
        for _ in 0..3 {
            if self.lower_limit == 0 || self.lower_limit > SMALL || !self.load(0)?.is_default() {
                return Ok(());
            }
            let mut bytes = vec![0; self.lower_limit.min(self.size) as usize];
            let read = self.of.read_chunk(&self.node, || Ok(Chunk::default()), 0, &mut bytes);
            if self.node.has_row || self.is_as_noted()? {
                match read {
                    // It was changed just now, and is not pinned.
                    Err(error) if !self.node.has_row && is_lost(&error) => {}
                    read => {
                        read?;
                        self.write(0, &bytes)?;
                        self.lower_limit = 0;
                        return Ok(());
                    }
                }
            }
            // Half of it may be from before and half from after.
            self.node = self.of.node_to_change(self.node.ino, None)?;
            (self.size, self.lower_limit) = (self.node.inode.size, self.node.inode.lower_limit);
        }
        Err(Error::Busy("the file below keeps changing"))
    }

    /// Whether the file below is what will be noted of it.
    fn is_as_noted(&self) -> Result<bool> {
        let Some(origin) = &self.node.inode.origin else { return Ok(true) };
        if self.of.is_then(origin) {
            // What was read of it was proven to be that.
            return Ok(true);
        }
        Ok(self.of.engine.lower.find(&origin.path)?.is_some_and(|found| found.is(origin)))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let index = at / CHUNK;
            let start = index * CHUNK;
            let stop = end.min(start + CHUNK);
            let epoch = self.epoch;
            let chunk = self.load(index)?;
            let block = ((at - start) / BLOCK) as usize;
            let last = (stop - start).div_ceil(BLOCK) as usize;
            // As far as blocks can be treated alike: those of this epoch that lie together, or those that need a new place.
            let (run, place) = match chunk.0[block] {
                Place::Store { block: first, born } if born == epoch => (chunk.run(block), Some(first)),
                _ => {
                    let mine = |place: &Place| matches!(place, Place::Store { born, .. } if *born == epoch);
                    (chunk.0[block..].iter().take_while(|place| !mine(place)).count(), None)
                }
            };
            let run = run.min(last - block).min(BLOCKS - block);
            let until = stop.min(start + (block + run) as u64 * BLOCK);
            let part = &bytes[(at - offset) as usize..(until - offset) as usize];
            match place {
                Some(first) => self.of.engine.segments.write(first, at % BLOCK, part)?,
                None => self.write_new(index, block, run, at, part)?,
            }
            at = until;
        }
        Ok(())
    }

    /// Writes into blocks that get a new place, keeping what is in them before and behind the bytes.
    fn write_new(&mut self, index: u64, block: usize, run: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let engine = &self.of.engine;
        engine.room_for_blocks(run as u64)?;
        let first = engine.segments.allocate(run as u64);
        self.taken.push((first, run as u64));
        let start = index * CHUNK;
        let end = at + bytes.len() as u64;
        let mut edges = Vec::new();
        if !at.is_multiple_of(BLOCK) {
            edges.push(block);
        }
        if !end.is_multiple_of(BLOCK) && end < self.size && edges.first() != Some(&(block + run - 1)) {
            edges.push(block + run - 1);
        }
        let below = !self.node.has_row && !edges.is_empty();
        for edge in edges {
            let old = self.load(index)?.clone();
            let nowhere = match old.0[edge] {
                Place::Hole => true,
                Place::Below => start + edge as u64 * BLOCK >= self.lower_limit,
                Place::Store { .. } => false,
            };
            if !nowhere {
                let mut content = vec![0; BLOCK as usize];
                self.node.inode.lower_limit = self.lower_limit;
                self.of.read_chunk(&self.node, || Ok(old), start + edge as u64 * BLOCK, &mut content)?;
                engine.segments.write(first + (edge - block) as u64, 0, &content)?;
            }
        }
        if below && !self.is_as_noted()? {
            return Err(Error::Busy("the file below keeps changing"));
        }
        engine.segments.write(first, at % BLOCK, bytes)?;
        let born = self.epoch;
        for (place, block) in self.load(index)?.0[block..block + run].iter_mut().zip(first..) {
            *place = Place::Store { block, born };
        }
        Ok(())
    }

    /// Makes bytes zero: whole blocks by a hole, parts by writing.
    fn zero(&mut self, from: u64, to: u64) -> Result<()> {
        self.dropped = true;
        let mut chunks = self.of.chunks_from(self.node.ino, from)?;
        chunks.extend(self.chunks.keys());
        let mut at = from;
        while at < to {
            let (index, block) = (at / CHUNK, (at % CHUNK / BLOCK) as usize);
            let end = (at / BLOCK + 1) * BLOCK;
            let below = at / BLOCK * BLOCK < self.lower_limit;
            let is_chunk = at.is_multiple_of(CHUNK) && to >= at + CHUNK;
            if is_chunk && at + CHUNK - BLOCK < self.lower_limit {
                self.make_alike(index, Place::Hole);
                at += CHUNK;
                continue;
            }
            if is_chunk && !below {
                // A whole chunk with nothing below it: as if it had never been written.
                if chunks.contains(&index) {
                    self.make_alike(index, Place::Below);
                    at += CHUNK;
                } else {
                    // Nothing is known of those up to the next, either.
                    let last = to / CHUNK;
                    at = chunks.range(index..).next().map_or(last, |&next| next.min(last)) * CHUNK;
                }
                continue;
            }
            let whole = at.is_multiple_of(BLOCK) && (end <= to || to >= self.size);
            let place = &mut self.load(index)?.0[block];
            let nowhere = *place == Place::Hole || (*place == Place::Below && !below);
            if whole {
                *place = if below { Place::Hole } else { Place::Below };
            } else if !nowhere {
                let zeros = vec![0; (end.min(to) - at) as usize];
                self.write(at, &zeros)?;
            }
            at = end;
        }
        Ok(())
    }

    fn resize(&mut self, size: u64) -> Result<()> {
        if size < self.size {
            let edge = size.next_multiple_of(BLOCK).min(self.size);
            self.lower_limit = self.lower_limit.min(size);
            if !size.is_multiple_of(BLOCK) {
                // Of what lies below, the limit cuts off the rest.
                let (index, block) = (size / CHUNK, (size % CHUNK / BLOCK) as usize);
                if matches!(self.load(index)?.0[block], Place::Store { .. }) {
                    self.write(size, &vec![0; (edge - size) as usize])?;
                }
            }
            self.drop_behind(size.next_multiple_of(BLOCK))?;
        } else {
            self.leave_end(size)?;
        }
        self.size = size;
        Ok(())
    }

    /// Before the file becomes longer and what is between its end and `until` is not written: in its last block that may not be
    /// zeros, if somebody wrote there in place and died before the new size was written down.
    fn leave_end(&mut self, until: u64) -> Result<()> {
        let (index, block) = (self.size / CHUNK, (self.size % CHUNK / BLOCK) as usize);
        if until > self.size
            && !self.size.is_multiple_of(BLOCK)
            && matches!(self.load(index)?.0[block], Place::Store { .. })
        {
            let end = self.size.next_multiple_of(BLOCK).min(until);
            self.write(self.size, &vec![0; (end - self.size) as usize])?;
        }
        Ok(())
    }

    /// Nothing lies behind this block's beginning any more. Costs the chunks that say something.
    fn drop_behind(&mut self, from: u64) -> Result<()> {
        self.dropped = true;
        for index in self.of.chunks_from(self.node.ino, from)? {
            match (from.saturating_sub(index * CHUNK) / BLOCK) as usize {
                0 => self.make_alike(index, Place::Below),
                kept => self.load(index)?.0[kept.min(BLOCKS)..].fill(Place::Below),
            }
        }
        Ok(())
    }

    /// Gives new blocks back that the same change made superfluous.
    fn drop_unnamed(&mut self) {
        if !self.dropped {
            return;
        }
        let named: BTreeSet<u64> = self.chunks.values().flat_map(Chunk::stored).map(|(block, _)| block).collect();
        for (first, count) in std::mem::take(&mut self.taken) {
            for block in first..first + count {
                if named.contains(&block) {
                    self.taken.push((block, 1));
                } else {
                    // What fails here is found by fsck.
                    let _ = self.of.engine.segments.give_back(block, 1);
                    self.of.engine.segments.settle(block, 1);
                }
            }
        }
    }

    /// Makes the change seen.
    fn commit(&mut self) -> Result<()> {
        let now = platform::now();
        let ino = self.node.ino;
        let chunks = std::mem::take(&mut self.chunks);
        self.of.change(|state, present| {
            let mine = state::View { until: self.epoch, ..present };
            let current = match state.seen(&key::inode(ino), present)? {
                Some(row) => Inode::decode(&row)?.ok_or(Error::Stale)?,
                None => self.node.inode.clone(),
            };
            let mut more = Some(0);
            for (&index, chunk) in &chunks {
                more = more.zip(self.put_chunk(state, mine, index, chunk)?).map(|(all, more)| all + more);
            }
            for (&index, &place) in &self.alike {
                let chunk = Chunk([place; BLOCKS]);
                more = more.zip(self.put_chunk(state, mine, index, &chunk)?).map(|(all, more)| all + more);
            }
            for (name, value) in self.xattrs.iter().flatten() {
                let stem = key::xattr(ino, name);
                if state.seen(&stem, mine)?.is_none() {
                    state.write(&stem, [&[HERE], value.as_slice()].concat(), mine)?;
                }
            }
            for &(block, count) in &self.taken {
                state.count(block, count as i64);
            }
            if self.lower_limit == 0 && current.lower_limit > 0 {
                state.drop_kept(ino, mine)?;
            }
            let changed = |inode: Inode| Inode {
                size: self.size,
                lower_limit: self.lower_limit,
                mtime: now,
                ctime: now,
                takes: match inode.takes.zip(more) {
                    // What is empty has no blocks, also if they were not counted.
                    _ if self.size == 0 => Some(Takes::default()),
                    known => known.map(|(it, more)| Takes { stored: it.stored.saturating_add_signed(more), ..it }),
                },
                ..inode
            };
            // Since this began, others may have given it a row, and another name.
            let has_row = state.seen(&key::inode(ino), present)?.is_some();
            let node = |inode| Node { ino, inode: changed(inode), has_row };
            if self.epoch == present.until {
                return self.of.put(state, present, &node(current));
            }
            // A snapshot overtook this change and holds it; what was changed after the snapshot keeps that.
            let then = match state.seen(&key::inode(ino), mine)? {
                Some(row) => Inode::decode(&row)?.ok_or(Error::Stale)?,
                None => self.node.inode.clone(),
            };
            // That has the name that it had when this began.
            let then = match &self.place {
                Some((parent, _)) if then.parent == 0 => Inode { parent: *parent, ..then },
                _ => then,
            };
            let then = Node { ino, inode: changed(then), has_row: self.node.has_row || self.place.is_some() };
            self.of.put(state, mine, &then)?;
            if !self.node.has_row {
                // From this epoch on: whoever took it over in the present one did so later.
                self.of.want_copy(state, mine, &then);
            }
            if let Some((parent, name)) = &self.place {
                let stem = key::entry(*parent, name);
                if state.seen(&stem, mine)?.is_none() {
                    state.write(&stem, Entry { ino, kind: self.node.inode.kind, hides: true }.encode(), mine)?;
                }
            }
            if state.layers.get(&key::versioned(&key::inode(ino), present.line, present.until))?.is_some() {
                self.of.put(state, present, &node(current))?;
            }
            Ok(())
        })
    }

    /// Gives how many more blocks the chunk has in the store than before; `None` if that cannot be told of what is replaced.
    fn put_chunk(&self, state: &mut State, view: state::View<'_>, index: u64, chunk: &Chunk) -> Result<Option<i64>> {
        let stem = key::chunk(self.node.ino, index);
        let old = state.seen(&stem, view)?;
        let value = if chunk.is_default() { vec![GONE] } else { chunk.encode() };
        let stored = |chunk: &Chunk| chunk.stored().count() as i64;
        let before = match old {
            None if value == [GONE] => return Ok(Some(0)),
            Some(old) if *old == *value => return Ok(Some(0)),
            None => Some(0),
            Some(old) => Chunk::decode(&old).ok().map(|old| stored(&old)),
        };
        state.write(&stem, value, view)?;
        Ok(before.map(|before| stored(chunk) - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Owner, ROOT, Workspace};

    #[test]
    fn what_is_cut_off_or_zeroed_is_not_held_in_memory_chunk_by_chunk() {
        let place = tempfile::tempdir().unwrap();
        let (store, lower) = (place.path().join("store"), place.path().join("lower"));
        std::fs::create_dir(&lower).unwrap();
        let below: Vec<u8> = (0..9 * CHUNK + 5 * BLOCK).map(|at| (at % 251) as u8 + 1).collect();
        std::fs::write(lower.join("below"), &below).unwrap();
        Workspace::create(&store, &lower).unwrap();
        let options = || Options { background: false, ..Options::default() };
        let workspace = Workspace::open(&store, &lower, options()).unwrap();
        let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
        let view = workspace.view(branch).unwrap();
        let ours = view.create(ROOT, b"ours", Owner { mode: 0o644, uid: 0, gid: 0 }).unwrap().ino;
        (0..10).for_each(|index| assert_eq!(view.write(ours, index * CHUNK, b"x").unwrap(), 1));
        let theirs = view.lookup(ROOT, b"below").unwrap().ino;
        let few = |ino, change: &dyn Fn(&mut Edit<'_>) -> Result<()>| {
            let change = |edit: &mut Edit<'_>| {
                change(edit)?;
                assert!(edit.chunks.len() <= 2, "{:?}", edit.chunks.keys());
                Ok(())
            };
            view.edit(ino, change).unwrap();
        };
        // To the end, beyond what is below, from within a chunk and up to within another.
        let (from, to) = (CHUNK + 100, 9 * CHUNK + 3 * BLOCK + 7);
        few(theirs, &|edit| edit.zero(from, to));
        let mut expected = below;
        expected[from as usize..to as usize].fill(0);
        assert!(view.read(theirs, 0, expected.len()).unwrap() == expected);
        few(ours, &|edit| edit.zero(2 * CHUNK, 4 * CHUNK));
        let begins = |index: u64| view.read(ours, index * CHUNK, 1).unwrap();
        assert_eq!([1, 2, 3, 4].map(begins), [b"x", b"\0", b"\0", b"x"]);
        few(ours, &|edit| edit.resize(5 * CHUNK + 1));
        few(ours, &|edit| edit.resize(10 * CHUNK));
        assert_eq!([5, 6, 9].map(begins), [b"x", b"\0", b"\0"]);
        few(ours, &|edit| edit.resize(0));
        workspace.sync().unwrap();
        drop((view, workspace));
        assert_eq!(Workspace::fsck(&store, &lower, false).unwrap().problems, Vec::<String>::new());
    }
}
