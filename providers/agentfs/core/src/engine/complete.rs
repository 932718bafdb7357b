//! What branches took over of files below, and still read there, is copied behind them: from then on neither they nor their snapshots need those files.
//!
//! The copy belongs to the epoch in which the file was taken over, so that every snapshot since then has it, and lies beside the chunks that were written: what they
//! say counts first, and nobody waits for anybody. It is made chunk by chunk as long as the file below is what it was, else of its pin; ended early, what is there stays.
//! Where the disk can share contents the file is shared, if it is not huge; else it is copied, up to a size, and only where there is much more room.

use std::fs::File;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::Found;
use crate::rows::chunk::{BLOCK, BLOCKS, CHUNK, Chunk, Place};
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::{HERE, Inode, Origin};
use crate::state::{Chain, State, View};
use crate::types::{Ino, Kind};
use crate::{lock, lower, platform, read_lock, write_lock};

/// Larger files are not copied, in bytes: that would take a while, and nobody asked for it.
const LARGEST: u64 = 64 << 20;
/// Nor are larger ones where the disk shares contents, in bytes: each MiB takes a row, of holes too.
const LARGEST_SHARED: u64 = 256 << 30;
/// A copy is made where there is so many times the room that it takes: what is left is for who writes.
const ROOM: u64 = 8;

/// A file that was taken over.
struct Taken {
    line: LineId,
    chain: Chain,
    /// In which that was.
    epoch: Epoch,
    ino: Ino,
    origin: Origin,
    /// How far it is read below.
    limit: u64,
}

/// What is copied from: the file below, or its pin.
struct Source {
    file: File,
    /// What that is as long as it is copied.
    is: Found,
    is_pin: bool,
    /// The same, shared: it never changes.
    shared: Option<File>,
}

impl Taken {
    fn view(&self, until: Epoch) -> View<'_> {
        View { line: self.line, until, chain: &self.chain }
    }

    /// Whether anybody sees what is written in its epoch.
    fn is_seen(&self, state: &State) -> bool {
        state.lines.get(&self.line).is_some_and(|line| line.needs(self.epoch, None))
    }

    /// Whether there is a pen, and it reads nothing below any more.
    fn is_done(&self, state: &State) -> Result<bool> {
        if !state.lines.get(&self.line).is_some_and(|line| line.pen) {
            return Ok(false);
        }
        let row = state.seen(&key::inode(self.ino), self.view(Epoch::MAX))?;
        Ok(row.as_deref().map(Inode::decode).transpose()?.flatten().is_none_or(|inode| inode.lower_limit == 0))
    }
}

impl Engine {
    /// Copies what was taken over and is not copied yet.
    pub(crate) fn copy_taken_over(&self) -> Result<()> {
        if self.options.without_lower {
            return Ok(());
        }
        let _one = lock(&self.copying);
        let mut failed = Ok(());
        let mut after = vec![b'q'];
        while !self.is_stopped() {
            let next = read_lock(&self.state).layers.next(b"q", &after)?;
            let Some((row, epoch)) = next else { break };
            let (line, ino) = key::line_and_number(&row)?;
            match self.copy_one(line, ino, key::be64(&epoch)) {
                Ok(true) | Err(Error::DataLoss { .. }) => {
                    write_lock(&self.state).layers.remove(&row);
                    self.wake();
                }
                // Another time.
                Ok(false) | Err(Error::NoSpace | Error::Busy(_)) => {}
                // So is this, and those behind it do not wait for that.
                Err(error) => failed = failed.and(Err(error)),
            }
            after = row;
        }
        failed
    }

    /// Gives whether there is nothing more to copy.
    fn copy_one(&self, line: LineId, ino: Ino, epoch: Epoch) -> Result<bool> {
        let taken = {
            let state = read_lock(&self.state);
            if !state.lines.contains_key(&line) {
                return Ok(true);
            }
            let chain = state.chain(line)?;
            let stem = key::inode(ino);
            let (row, epoch) = match state.layers.get(&key::versioned(&stem, line, epoch))? {
                Some(row) => (Some(row), epoch),
                // Its version of then went with a snapshot that was deleted, and nobody sees anything before the next.
                None => state
                    .next_version(&stem, line, epoch)?
                    .map(|(next, row)| (Some(row), next))
                    .unwrap_or((None, epoch)),
            };
            let Some(inode) = row.as_deref().map(Inode::decode).transpose()?.flatten() else { return Ok(true) };
            let Some(origin) = inode.origin.filter(|_| inode.kind == Kind::File && inode.lower_limit > 0) else {
                return Ok(true);
            };
            Taken { line, chain, epoch, ino, limit: inode.lower_limit.min(origin.size), origin }
        };
        if taken.limit > LARGEST_SHARED {
            return Ok(true);
        }
        let Some(source) = self.source(&taken)? else { return Ok(true) };
        if source.shared.is_none() && taken.limit > LARGEST {
            return Ok(true);
        }
        for index in 0..taken.limit.div_ceil(CHUNK) {
            if self.is_stopped() {
                return Ok(false);
            }
            self.copy_chunk(&taken, &source, index)?;
        }
        self.copy_xattrs(&taken, &source)?;
        Ok(true)
    }

    /// The file below, if it is what it was when it was taken over; else what is pinned of it.
    fn source(&self, taken: &Taken) -> Result<Option<Source>> {
        let path = &taken.origin.path;
        let below = match self.lower.open_file(path) {
            // What this user may not read is not read for him. Anything else may pass: too many open files, say.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => None,
            below => below?,
        };
        let below = below.map(|file| Ok((self.lower.find_open(&file)?, file))).transpose()?;
        let (file, is, is_pin) = match below {
            Some((is, file)) if is.is(&taken.origin) => (file, is, false),
            _ => {
                let then = self.fingerprint(taken.chain.base, path)?.filter(|(then, _)| then.is_of(&taken.origin));
                let pin = then.map_or(Ok(None), |(then, _)| self.pinned(&then.hash, then.size))?;
                let Some((file, is)) = pin else { return Ok(None) };
                (file, is, true)
            }
        };
        let shared = platform::share(&self.directory, &file);
        let source = Source { file, is, is_pin, shared };
        self.is_as_it_was(taken, &source)?;
        Ok(Some(source))
    }

    fn is_as_it_was(&self, taken: &Taken, source: &Source) -> Result<()> {
        if self.lower.find_open(&source.file)?.is_as(&source.is) {
            return Ok(());
        }
        let path = String::from_utf8_lossy(&taken.origin.path).into_owned();
        Err(Error::DataLoss { path, what: "changed below since it was taken over" })
    }

    fn copy_chunk(&self, taken: &Taken, source: &Source, index: u64) -> Result<()> {
        let written = {
            let state = read_lock(&self.state);
            if state.seen(&key::kept(taken.ino, index), taken.view(taken.epoch))?.is_some() {
                return Ok(());
            }
            state.seen(&key::chunk(taken.ino, index), taken.view(taken.epoch))?
        };
        let written = written.map_or_else(|| Ok(Chunk::default()), |row| Chunk::decode(&row))?;
        let mut kept = Chunk::default();
        let mut blocks = Vec::new();
        let result = self
            .copy_blocks(taken, source, index, &written, &mut kept, &mut blocks)
            .and_then(|()| if source.shared.is_some() { Ok(()) } else { self.is_as_it_was(taken, source) })
            .and_then(|()| self.put_kept(taken, index, &kept, &blocks));
        for &(first, count) in &blocks {
            if !matches!(result, Ok(true)) {
                // Nothing names them. What fails here is found by fsck.
                let _ = self.segments.give_back(first, count);
            }
            self.segments.settle(first, count);
        }
        result.map(drop)
    }

    /// Copies the blocks of a chunk that are read below: what is nowhere there stays nowhere.
    fn copy_blocks(
        &self,
        taken: &Taken,
        source: &Source,
        index: u64,
        written: &Chunk,
        kept: &mut Chunk,
        blocks: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let file = source.shared.as_ref().unwrap_or(&source.file);
        let seek = |at, hole| platform::seek(file, at, hole).map_err(Error::io("seeking in a file below"));
        let start = index * CHUNK;
        let last = ((taken.limit - start).div_ceil(BLOCK) as usize).min(BLOCKS);
        let mut block = 0;
        while block < last {
            let run = written.run(block).min(last - block);
            if written.0[block] != Place::Below {
                block += run;
                continue;
            }
            let (at, end) = (start + block as u64 * BLOCK, start + (block + run) as u64 * BLOCK);
            let data = seek(at, false)?.unwrap_or(end).min(end) / BLOCK * BLOCK;
            let count = if data > at {
                let count = (data - at) / BLOCK;
                kept.0[block..block + count as usize].fill(Place::Hole);
                count
            } else {
                let hole = seek(at, true)?.unwrap_or(end).min(end).max(at + 1);
                let count = (hole - at).div_ceil(BLOCK);
                // What is shared takes none of the disk's. Else the file counts as a whole: piece by piece it would fill the disk.
                let whole = taken.limit.div_ceil(BLOCK);
                self.room_for_blocks(if source.shared.is_some() { 0 } else { whole * ROOM })?;
                let first = self.segments.allocate(count);
                blocks.push((first, count));
                let length = (count * BLOCK).min(taken.origin.size - at);
                if self.segments.copy(first, file, at, length)? < length {
                    self.is_as_it_was(taken, source)?;
                    return Err(Error::Busy("a file below cannot be read as a whole"));
                }
                for (place, number) in kept.0[block..block + count as usize].iter_mut().zip(first..) {
                    *place = Place::Store { block: number, born: taken.epoch };
                }
                count
            };
            block += count as usize;
        }
        Ok(())
    }

    /// Has the copy seen, if anybody needs it; gives whether.
    fn put_kept(&self, taken: &Taken, index: u64, kept: &Chunk, blocks: &[(u64, u64)]) -> Result<bool> {
        self.room_for_rows()?;
        let mut state = write_lock(&self.state);
        let (done, present) = (taken.is_done(&state)?, state.lines.get(&taken.line).map_or(0, |line| line.epoch));
        if kept.is_default() || !taken.is_seen(&state) || done && present == taken.epoch {
            return Ok(false);
        }
        state.whole(|state| {
            state.write(&key::kept(taken.ino, index), kept.encode(), taken.view(taken.epoch))?;
            for &(first, count) in blocks {
                state.count(first, count as i64);
            }
            // Only snapshots need it.
            if done { state.drop_kept(taken.ino, taken.view(present)) } else { Ok(()) }
        })?;
        drop(state);
        self.wake();
        Ok(true)
    }

    /// With them everything is copied.
    fn copy_xattrs(&self, taken: &Taken, source: &Source) -> Result<()> {
        // What has any is not pinned.
        let xattrs = if source.is_pin { Vec::new() } else { lower::xattrs(&source.file)? };
        self.is_as_it_was(taken, source)?;
        self.room_for_rows()?;
        let mut state = write_lock(&self.state);
        let present = state.lines.get(&taken.line).map_or(0, |line| line.epoch);
        if !taken.is_seen(&state) || present == taken.epoch && taken.is_done(&state)? {
            return Ok(());
        }
        let all_copied = (Vec::new(), Vec::new());
        state.whole(|state| {
            for (name, value) in xattrs.into_iter().chain([all_copied]) {
                let stem = key::xattr(taken.ino, &name);
                if state.seen(&stem, taken.view(taken.epoch))?.is_none() {
                    state.write(&stem, [&[HERE], value.as_slice()].concat(), taken.view(taken.epoch))?;
                }
            }
            Ok(())
        })?;
        drop(state);
        self.wake();
        Ok(())
    }

    /// What the thread does that copies, and removes pins.
    pub(crate) fn keep_copying(&self) {
        platform::stand_back();
        let (waiting, bell) = &self.to_copy;
        loop {
            // What cannot be copied now is tried again when there is more.
            let _ = self.copy_taken_over();
            let _ = self.sweep_pins(false);
            let mut woken = lock(waiting);
            while !*woken && !self.is_stopped() {
                woken = bell.wait(woken).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            *woken = false;
            drop(woken);
            if self.is_stopped() {
                return;
            }
        }
    }
}
