//! Segments: the files that hold the blocks of files' contents.
//!
//! A block has a number for ever: it is written behind all others and never reused, only given back to the disk by a hole where it was.
//! So nothing that still names an old block can ever read a new one's bytes, not even after a crash, and there is no map of
//! free space to damage. Where the disk cannot make holes, space comes back when a whole segment is free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

use crate::error::{Error, Result};
use crate::platform;
use crate::rows::chunk::BLOCK;
use crate::{lock, read_lock, write_lock};

/// Blocks of a segment: 1 GiB, sparse.
pub(crate) const SEGMENT: u64 = 1 << 18;
/// Blocks are numbered below this, so that their places in bytes are numbers, too.
pub(crate) const LARGEST: u64 = 1 << 50;
/// Files that are kept open.
const OPEN: usize = 64;
/// Contents of which there are at most so many bytes are few, each write counted with what it takes in memory.
const FEW: usize = 256 << 10;
const WRITE: usize = 64;

/// Bytes that were written, and from which byte of all segments on.
pub(crate) type Written = (u64, Vec<u8>);

/// The segments of a store.
pub(crate) struct Segments {
    directory: PathBuf,
    next: AtomicU64,
    /// The first block that was not given out when the store was opened.
    given: u64,
    /// How many blocks of each segment there were then: none of those below `given` lies behind that, and what was there once is lost.
    reach: Mutex<BTreeMap<u64, u64>>,
    /// Blocks that are lost though their segment reaches so far, by the first of each run: the end of the run.
    lost: Mutex<BTreeMap<u64, u64>>,
    open: Mutex<Open>,
    dirty: Mutex<BTreeSet<u64>>,
    few: Mutex<Few>,
    /// Held by who takes them to the disk: the next one finds nothing to do only when it is there.
    syncing: Mutex<()>,
    /// Whether one may have been made whose name is not on the disk.
    names: AtomicBool,
    /// Those that were removed since the store was opened. Their numbers do not come again.
    removed: Mutex<BTreeSet<u64>>,
    /// Segments into which somebody writes blocks that no row names yet, and how many blocks.
    pending: Mutex<BTreeMap<u64, u64>>,
    /// Held by readers from when they look up where a block is until they have read it; by who gives blocks back.
    reading: RwLock<()>,
    #[cfg(test)]
    pub(crate) refuse: Mutex<Option<Refuse>>,
    #[cfg(test)]
    pub(crate) read_below: Mutex<Vec<bool>>,
}

/// What fails from now on, for tests.
#[cfg(test)]
pub(crate) enum Refuse {
    Open,
    Sync(std::io::ErrorKind),
    /// A sync comes to the barrier twice, and is under way between.
    Wait(Arc<std::sync::Barrier>),
}

/// What was written since contents were taken to the disk, in its order.
#[derive(Default)]
struct Few {
    /// `None`: that is more, or not known.
    writes: Option<Vec<Written>>,
    size: usize,
}

#[derive(Default)]
struct Open {
    files: BTreeMap<u64, Arc<File>>,
    order: VecDeque<u64>,
}

impl Few {
    fn note(&mut self, from: u64, bytes: &[u8]) {
        self.size = self.size.saturating_add(bytes.len() + WRITE);
        if self.size > FEW {
            self.writes = None;
        }
        if let Some(writes) = &mut self.writes {
            writes.push((from, bytes.to_vec()));
        }
    }

    /// What is noted of these bytes is not to be written again.
    fn forget(&mut self, from: u64, length: u64) {
        let among = |(at, bytes): &Written| *at < from + length && from < at + bytes.len() as u64;
        if self.writes.as_ref().is_some_and(|writes| writes.iter().any(among)) {
            self.writes = None;
        }
    }
}

impl Segments {
    /// `next`: the first block that was never given out. What lies behind it was written by a process that died before anything
    /// referred to it, and is cut off if `cut`. `None`: nobody knows; nothing is cut off then, and new
    /// blocks go behind everything that is there.
    pub(crate) fn open(directory: &Path, next: Option<u64>, cut: bool) -> Result<Self> {
        let mut behind = 0;
        let mut dirty = BTreeSet::new();
        let mut reach = BTreeMap::new();
        for entry in std::fs::read_dir(directory).map_err(Error::io("listing the segments"))? {
            let entry = entry.map_err(Error::io("listing the segments"))?;
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else { continue };
            // What a process wrote that died may not be on the disk.
            if number >= LARGEST / SEGMENT {
                continue;
            }
            dirty.insert(number);
            behind = behind.max(number.saturating_add(1).saturating_mul(SEGMENT));
            let length = entry.metadata().map_err(Error::io("looking at a segment"))?.len();
            reach.insert(number, length.div_ceil(BLOCK));
            let Some(next) = next.filter(|_| cut) else { continue };
            let keep = next.saturating_sub(number.saturating_mul(SEGMENT)).saturating_mul(BLOCK);
            if keep == 0 {
                dirty.remove(&number);
                std::fs::remove_file(entry.path()).map_err(Error::io("removing a segment"))?;
            } else if length > keep {
                let file = OpenOptions::new().write(true).open(entry.path()).map_err(Error::io("opening a segment"))?;
                file.set_len(keep).map_err(Error::io("cutting a segment"))?;
            }
        }
        if next.is_some_and(|next| next > LARGEST) {
            return Err(Error::corrupt("more blocks were given out than there are"));
        }
        Ok(Self {
            directory: directory.to_owned(),
            next: AtomicU64::new(next.unwrap_or(behind)),
            given: next.unwrap_or(behind),
            reach: Mutex::new(reach),
            lost: Mutex::default(),
            open: Mutex::default(),
            dirty: Mutex::new(dirty),
            few: Mutex::default(),
            syncing: Mutex::default(),
            names: AtomicBool::new(true),
            removed: Mutex::default(),
            pending: Mutex::default(),
            reading: RwLock::default(),
            #[cfg(test)]
            refuse: Mutex::default(),
            #[cfg(test)]
            read_below: Mutex::default(),
        })
    }

    /// Where the last segment ends before the blocks that were given out, new ones go into the next: it was cut, or a process died before it wrote them. Where it
    /// becomes no longer, nothing that is lost ever reads as zeros. To be called before any are given out.
    pub(crate) fn leave_short(&self) {
        let (segment, within) = (self.given / SEGMENT, self.given % SEGMENT);
        if within > lock(&self.reach).get(&segment).copied().unwrap_or_default() {
            self.next.store((segment + 1) * SEGMENT, Ordering::SeqCst);
        }
    }

    /// Fails if one of the blocks, which lie in one segment, is lost: it was given out before the store was opened, and its segment did not reach so far, or it is known to be.
    fn are_there(&self, first: u64, last: u64) -> Result<()> {
        let (segment, within) = (last / SEGMENT, last % SEGMENT);
        if first < self.given && lock(&self.lost).range(..=last).next_back().is_some_and(|(_, &end)| end > first) {
            return Err(Error::corrupt(format!("block {first} or one behind it is lost")));
        }
        if last >= self.given {
            return Ok(());
        }
        match lock(&self.reach).get(&segment) {
            None => Err(Error::corrupt(format!("segment {segment} is missing"))),
            Some(&reach) if within >= reach => Err(Error::corrupt(format!("segment {segment} ends early"))),
            Some(_) => Ok(()),
        }
    }

    /// As that, of what is read or written.
    fn is_there(&self, block: u64, within: u64, length: usize) -> Result<()> {
        match (within + length as u64).checked_sub(1) {
            Some(last) => self.are_there(block, block + last / BLOCK),
            None => Ok(()),
        }
    }

    /// These blocks are lost: who needs them gets an error from now on.
    pub(crate) fn lose(&self, first: u64, count: u64) {
        let (mut from, mut to) = (first, first + count);
        let mut lost = lock(&self.lost);
        // Those lie apart, in order.
        while let Some((start, end)) = lost.range(..=to).next_back().map(|(&start, &end)| (start, end))
            && end >= from
        {
            lost.remove(&start);
            (from, to) = (start.min(from), end.max(to));
        }
        lost.insert(from, to);
    }

    /// What is to be written again makes segments longer: the blocks before it that theirs did not reach, as runs of a first block and how many. Before it is written these have
    /// to be known as lost, else they would be zeros to whose they are. Of a sound store no row names one of them: what was given out to somebody who was still writing. To be called before any are given out.
    pub(crate) fn left_out(&self, contents: &[Written]) -> Vec<(u64, u64)> {
        let mut written = Vec::new();
        for (from, bytes) in contents {
            let end = from.saturating_add(bytes.len() as u64).div_ceil(BLOCK);
            if end <= self.given && !bytes.is_empty() {
                written.push((from / BLOCK, end));
            }
        }
        written.sort_unstable();
        let reach = lock(&self.reach);
        let mut ends = BTreeMap::new();
        let mut left_out = Vec::new();
        for (mut first, end) in written {
            while first < end {
                let (segment, base) = (first / SEGMENT, first / SEGMENT * SEGMENT);
                let to = end.min(base + SEGMENT);
                let reached = || base + reach.get(&segment).copied().unwrap_or_default().min(SEGMENT);
                let at = ends.entry(segment).or_insert_with(reached);
                if first > *at {
                    left_out.push((*at, first - *at));
                }
                *at = to.max(*at);
                first = to;
            }
        }
        left_out
    }

    /// Which of these blocks, which lie in one segment, the disk holds nothing of, as runs of a first block and an end.
    pub(crate) fn holes(&self, first: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let file = self.file(first / SEGMENT, false)?;
        let base = first / SEGMENT * SEGMENT;
        let seek = |at: u64, hole| platform::seek(&file, at, hole).map_err(Error::io("seeking in a segment"));
        let (mut at, until) = ((first - base) * BLOCK, (end - base) * BLOCK);
        let mut holes = Vec::new();
        while at < until {
            let data = seek(at, false)?.unwrap_or(until).min(until);
            let (from, to) = (at.div_ceil(BLOCK), data / BLOCK);
            if from < to {
                holes.push((base + from, base + to));
            }
            at = if data < until { seek(data, true)?.unwrap_or(until).max(data + 1) } else { until };
        }
        Ok(holes)
    }

    /// The first block that was never given out.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// New blocks, one behind the other, within one segment; at most a chunk of them. To be followed by `settle`.
    pub(crate) fn allocate(&self, blocks: u64) -> u64 {
        let mut pending = lock(&self.pending);
        let mut first = 0;
        let place = |next: u64| {
            let end = (next / SEGMENT + 1) * SEGMENT;
            first = if next + blocks > end { end } else { next };
            Some(first + blocks)
        };
        // The closure always gives a value, so this cannot fail.
        let _ = self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, place);
        *pending.entry(first / SEGMENT).or_default() += blocks;
        first
    }

    /// These blocks are named by a row now, or never will be.
    pub(crate) fn settle(&self, block: u64, blocks: u64) {
        let mut pending = lock(&self.pending);
        if let Some(count) = pending.get_mut(&(block / SEGMENT)) {
            *count = count.saturating_sub(blocks);
            if *count == 0 {
                pending.remove(&(block / SEGMENT));
            }
        }
    }

    /// Blocks that no row names yet.
    pub(crate) fn pending_blocks(&self) -> u64 {
        lock(&self.pending).values().sum()
    }

    /// Whether somebody writes blocks there that no row names yet.
    pub(crate) fn is_pending(&self, segment: u64) -> bool {
        lock(&self.pending).contains_key(&segment)
    }

    fn file(&self, segment: u64, make: bool) -> Result<Arc<File>> {
        #[cfg(test)]
        if matches!(*lock(&self.refuse), Some(Refuse::Open)) {
            return Err(Error::io("opening a segment")(std::io::Error::from(std::io::ErrorKind::Other)));
        }
        let mut open = lock(&self.open);
        if let Some(file) = open.files.get(&segment) {
            return Ok(file.clone());
        }
        let path = self.directory.join(format!("{segment:010}"));
        let file = match OpenOptions::new().create(make).truncate(false).read(true).write(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corrupt(format!("segment {segment} is missing")));
            }
            file => Arc::new(file.map_err(Error::io("opening a segment"))?),
        };
        if make {
            self.names.store(true, Ordering::SeqCst);
        }
        open.files.insert(segment, file.clone());
        open.order.push_back(segment);
        if open.order.len() > OPEN
            && let Some(old) = open.order.pop_front()
        {
            open.files.remove(&old);
        }
        Ok(file)
    }

    /// Writes into a block and those behind it, `within` bytes from its beginning.
    pub(crate) fn write(&self, block: u64, within: u64, bytes: &[u8]) -> Result<()> {
        self.is_there(block, within, bytes.len())?;
        self.put(block, within, bytes)
    }

    fn put(&self, block: u64, within: u64, bytes: &[u8]) -> Result<()> {
        let segment = block / SEGMENT;
        let at = block % SEGMENT * BLOCK + within;
        let written = self.file(segment, true)?.write_all_at(bytes, at);
        // Only now, since a sync that runs meanwhile takes the note away. After an error some of it may be there.
        lock(&self.dirty).insert(segment);
        lock(&self.few).note(block * BLOCK + within, bytes);
        written.map_err(Error::io("writing a segment"))
    }

    /// Writes again what a power cut may have kept from its place; without `put` it only counts as there. Blocks from `next` on belong to nobody and stay empty.
    pub(crate) fn write_again(&self, (from, bytes): &Written, put: bool) -> Result<()> {
        let end = from.checked_add(bytes.len() as u64).filter(|end| end.div_ceil(BLOCK) <= LARGEST);
        let end = end.ok_or_else(|| Error::corrupt("the log holds contents that lie in no segment"))?;
        if end.div_ceil(BLOCK) > self.next() {
            return Ok(());
        }
        let (mut at, mut rest) = (*from, &bytes[..]);
        // Older programs wrote some over the end of a segment at once.
        while !rest.is_empty() {
            let left = SEGMENT * BLOCK - at % (SEGMENT * BLOCK);
            let (here, behind) = rest.split_at(left.min(rest.len() as u64) as usize);
            if put {
                self.put(at / BLOCK, at % BLOCK, here)?;
            }
            let (segment, end) = (at / BLOCK / SEGMENT, (at + here.len() as u64).div_ceil(BLOCK));
            let mut reach = lock(&self.reach);
            let reach = reach.entry(segment).or_default();
            *reach = end.saturating_sub(segment * SEGMENT).max(*reach);
            (at, rest) = (at + here.len() as u64, behind);
        }
        Ok(())
    }

    /// What was written since `begin_anew` or the last call of this, if it is little. The caller takes it to the disk, or calls `many`.
    pub(crate) fn take_few(&self) -> Option<Vec<Written>> {
        let mut few = lock(&self.few);
        few.size = 0;
        few.writes.as_mut().map(std::mem::take)
    }

    /// All that was written so far is about to be taken to the disk by `sync`; `many` if it is not.
    pub(crate) fn begin_anew(&self) {
        *lock(&self.few) = Few { writes: Some(Vec::new()), size: 0 };
    }

    /// It is not known any more what was written.
    pub(crate) fn many(&self) {
        *lock(&self.few) = Few::default();
    }

    /// Copies from another file into a block and those behind it, sharing what that has on the disk where the disk can. Gives how many bytes: fewer only where the file ends.
    pub(crate) fn copy(&self, block: u64, from: &File, offset: u64, length: u64) -> Result<u64> {
        let segment = block / SEGMENT;
        let copied = platform::copy(from, offset, &*self.file(segment, true)?, block % SEGMENT * BLOCK, length);
        // As after writing.
        lock(&self.dirty).insert(segment);
        self.many();
        copied.map_err(Error::io("copying a file below"))
    }

    /// Reads; what was never written of a block reads as zeros.
    pub(crate) fn read(&self, block: u64, within: u64, bytes: &mut [u8]) -> Result<()> {
        let at = block % SEGMENT * BLOCK + within;
        self.is_there(block, within, bytes.len())?;
        let file = self.file(block / SEGMENT, false)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) => {
                    // The last block of a segment may end early, but something of it must be there.
                    let end = at + done as u64;
                    let zeros = (end.next_multiple_of(BLOCK) - end) as usize;
                    if zeros < bytes.len() - done {
                        return Err(Error::corrupt(format!("segment {} ends early", block / SEGMENT)));
                    }
                    bytes[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading a segment")(error)),
            }
        }
        Ok(())
    }

    /// As long as this is held, no block is given back.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        read_lock(&self.reading)
    }

    /// Something is read below: notes whether blocks cannot be given back meanwhile.
    #[cfg(test)]
    pub(crate) fn note_if_read(&self) {
        lock(&self.read_below).push(self.reading.try_write().is_err());
    }

    #[cfg(test)]
    pub(crate) fn note(&self, segment: u64) {
        lock(&self.dirty).insert(segment);
    }

    /// Takes everything that was written to the disk. If that did not take something, `failed` is set: what it has is not known then.
    pub(crate) fn sync(&self, failed: &AtomicBool) -> Result<()> {
        let _one = lock(&self.syncing);
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        let names = self.names.swap(false, Ordering::SeqCst);
        self.sync_files(&dirty, names, failed).inspect_err(|_| {
            lock(&self.dirty).extend(&dirty);
            self.names.fetch_or(names, Ordering::SeqCst);
        })
    }

    fn sync_files(&self, dirty: &BTreeSet<u64>, names: bool, failed: &AtomicBool) -> Result<()> {
        let lost = |_: &std::io::Error| failed.store(true, Ordering::SeqCst);
        for &segment in dirty {
            match self.file(segment, false) {
                Ok(file) => self.sync_file(&file).inspect_err(lost).map_err(Error::io("syncing a segment"))?,
                // Nothing in it was in use.
                Err(Error::Corrupt(_)) if lock(&self.removed).contains(&segment) => {}
                Err(error) => return Err(error),
            }
        }
        if names {
            let directory = File::open(&self.directory).map_err(Error::io("syncing the segments"))?;
            directory.sync_all().inspect_err(lost).map_err(Error::io("syncing the segments"))?;
        }
        Ok(())
    }

    fn sync_file(&self, file: &File) -> std::io::Result<()> {
        #[cfg(test)]
        {
            let refuse = lock(&self.refuse);
            match &*refuse {
                Some(Refuse::Sync(kind)) => return Err((*kind).into()),
                Some(Refuse::Wait(barrier)) => {
                    let barrier = barrier.clone();
                    drop(refuse);
                    barrier.wait();
                    barrier.wait();
                }
                _ => {}
            }
        }
        file.sync_data()
    }

    /// Gives blocks back to the disk. Doing it again is harmless.
    pub(crate) fn give_back(&self, block: u64, blocks: u64) -> Result<()> {
        lock(&self.few).forget(block * BLOCK, blocks * BLOCK);
        // Else it would make a segment anew that is missing.
        if self.are_there(block, block).is_err() {
            return Ok(());
        }
        let _nobody = write_lock(&self.reading);
        let file = self.file(block / SEGMENT, true)?;
        platform::punch(&file, block % SEGMENT * BLOCK, blocks * BLOCK).map_err(Error::io("giving space back"))?;
        Ok(())
    }

    /// Removes a segment of which nothing is in use and into which nothing will be written.
    pub(crate) fn remove(&self, segment: u64) -> Result<()> {
        let _nobody = write_lock(&self.reading);
        lock(&self.open).files.remove(&segment);
        lock(&self.open).order.retain(|&other| other != segment);
        lock(&self.removed).insert(segment);
        lock(&self.dirty).remove(&segment);
        lock(&self.reach).remove(&segment);
        match std::fs::remove_file(self.directory.join(format!("{segment:010}"))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("removing a segment")(error)),
            _ => Ok(()),
        }
    }

    /// How long each segment's file is, in blocks, with what is to be written again.
    pub(crate) fn lengths(&self) -> Result<BTreeMap<u64, u64>> {
        let mut lengths = lock(&self.reach).clone();
        for entry in std::fs::read_dir(&self.directory).map_err(Error::io("listing the segments"))? {
            let entry = entry.map_err(Error::io("listing the segments"))?;
            if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok())
                && number < LARGEST / SEGMENT
            {
                let length = entry.metadata().map_err(Error::io("looking at a segment"))?.len();
                let reach = lengths.entry(number).or_default();
                *reach = length.div_ceil(BLOCK).max(*reach);
            }
        }
        Ok(lengths)
    }
}
