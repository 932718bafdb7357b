//! A pack on disk.
//!
//! Read with `pread` through a small window, so that objects read in the order of their offsets cost one system call for
//! many. Nothing in a pack is believed: sizes do not reserve memory, bases lie before what builds on them, streams must end where
//! they say.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{Context, Error, Result};
use flate2::{Decompress, FlushDecompress, Status};
use gix::objs::Kind;
use gix::oid;
use rustix::io::Errno;

use super::bad::Bad;
use super::entry::LONGEST;
use super::{Body, Entry, HEADER, Index, TRAILER};
use crate::store::{delta, files};

/// An open pack with its index.
#[derive(Debug)]
pub(in crate::store) struct Pack {
    /// Its name without an ending: `pack-<checksum>`.
    pub(in crate::store) name: String,
    /// Unlike that of any other pack that this store opened.
    pub(in crate::store) number: u32,
    /// Where its objects are.
    pub(in crate::store) index: Index,
    /// Bytes of the pack file.
    pub(in crate::store) size: u64,
    /// How many objects it says it has.
    pub(super) count: u32,
    file: OwnedFd,
}

/// More deltas on top of each other than any tool makes: a loop would pass it.
const DEEPEST: usize = 5000;
/// Bytes of a window, and of a piece when an object is streamed.
const WINDOW: usize = 8 << 10;
pub(super) const PIECE: usize = 64 << 10;

/// What reading needs: tables of zlib, buffers. One for each thread that reads.
pub(in crate::store) struct Scratch {
    zlib: Decompress,
    window: Box<[u8; WINDOW]>,
    /// Pack number and offset of the window's first byte, and how much of it is filled.
    held: (u32, u64, usize),
    delta: Vec<u8>,
    other: Vec<u8>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            zlib: Decompress::new(true),
            window: Box::new([0; WINDOW]),
            held: (u32::MAX, 0, 0),
            delta: Vec::new(),
            other: Vec::new(),
        }
    }
}

impl Scratch {
    /// Bytes of the stream that was inflated last.
    pub(super) fn eaten(&self) -> u64 {
        self.zlib.total_in()
    }
}

/// Objects that others are deltas of, in two generations: what was not asked for while the younger one filled is dropped.
#[derive(Debug, Default)]
pub(in crate::store) struct Bases {
    inner: Mutex<Generations>,
}

/// Objects by pack number and offset.
type Generation = HashMap<(u32, u64), Arc<(Kind, Vec<u8>)>>;

#[derive(Debug, Default)]
struct Generations {
    young: Generation,
    old: Generation,
    bytes: usize,
}

impl Bases {
    /// Bytes in one generation.
    const ROOM: usize = 6 << 20;

    fn get(&self, key: (u32, u64)) -> Option<Arc<(Kind, Vec<u8>)>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = inner.young.get(&key) {
            return Some(Arc::clone(found));
        }
        let found = inner.old.remove(&key)?;
        inner.add(key, Arc::clone(&found));
        Some(found)
    }

    fn put(&self, key: (u32, u64), kind: Kind, data: &[u8]) {
        if data.len() <= Self::ROOM / 8 {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.add(key, Arc::new((kind, data.to_vec())));
        }
    }
}

impl Generations {
    fn add(&mut self, key: (u32, u64), base: Arc<(Kind, Vec<u8>)>) {
        self.bytes += base.1.len() + 100;
        if self.bytes > Bases::ROOM {
            self.old = std::mem::take(&mut self.young);
            self.bytes = base.1.len() + 100;
        }
        self.young.insert(key, base);
    }
}

fn open(packs: BorrowedFd<'_>, name: &str) -> Result<(OwnedFd, u64), Bad> {
    files::open_file(packs, name)?.ok_or_else(|| format!("there is no {name}").into())
}

fn within(size: u64, limit: u64, at: u64) -> Result<(), Bad> {
    if size > limit { Err(format!("what is at offset {at} has {size} bytes").into()) } else { Ok(()) }
}

impl Pack {
    /// Opens a pack; the message says what is wrong with it. Costs a few system calls; the content is not looked at.
    pub(in crate::store) fn open(packs: BorrowedFd<'_>, name: &str, number: u32) -> Result<Self, Bad> {
        Self::open_as(packs, name, "", number)
    }

    /// Like [`Pack::open`], where the names of both files have one more ending. The pack's name has it too.
    pub(in crate::store) fn open_as(packs: BorrowedFd<'_>, name: &str, more: &str, number: u32) -> Result<Self, Bad> {
        let (index, index_size) = open(packs, &format!("{name}.idx{more}"))?;
        let (file, size) = open(packs, &format!("{name}.pack{more}"))?;
        let this = Self::of(file, size, format!("{name}{more}"), number, Index::open(index, index_size)?)?;
        if u64::from(this.count) != this.index.count() {
            return Err(format!("it has {} objects, its index {}", this.count, this.index.count()).into());
        }
        Ok(this)
    }

    /// Like [`Pack::open`], with an index that was made of it and is not beside it yet.
    pub(in crate::store) fn open_with(
        packs: BorrowedFd<'_>,
        name: &str,
        index: Vec<u8>,
        number: u32,
    ) -> Result<Self, Bad> {
        let (file, size) = open(packs, &format!("{name}.pack"))?;
        Self::of(file, size, name.to_owned(), number, Index::in_memory(index)?)
    }

    /// Like [`Pack::open`], without its index: nothing is found in it.
    pub(super) fn open_alone(packs: BorrowedFd<'_>, name: &str, number: u32) -> Result<Self, Bad> {
        let (file, size) = open(packs, &format!("{name}.pack"))?;
        Self::of(file, size, name.to_owned(), number, Index::nothing())
    }

    fn of(file: OwnedFd, size: u64, name: String, number: u32, index: Index) -> Result<Self, Bad> {
        let mut head = [0; HEADER as usize];
        let read = files::pread_full(&file, &mut head, 0)?;
        if read < head.len() || &head[..8] != b"PACK\0\0\0\x02" || size < HEADER + TRAILER {
            return Err("it is not a pack of version 2".into());
        }
        let count = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        Ok(Self { name, number, index, size, count, file })
    }

    /// What lies in the pack from `at` on: at least a header's length, or up to the pack's end.
    fn window<'s>(&self, at: u64, scratch: &'s mut Scratch) -> Result<&'s [u8], Bad> {
        let end = self.size - TRAILER;
        let (number, start, filled) = scratch.held;
        if number == self.number && at >= start {
            let skip = usize::try_from(at - start).unwrap_or(usize::MAX);
            if skip < filled && (filled - skip >= LONGEST || start + filled as u64 == end) {
                return Ok(&scratch.window[skip..filled]);
            }
        }
        if at < HEADER || at >= end {
            return Err(format!("offset {at} lies outside of it").into());
        }
        let want = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
        scratch.held.2 = 0;
        let read = files::pread_full(&self.file, &mut scratch.window[..want], at)?;
        if read < want {
            return Err("it is shorter than it was".into());
        }
        scratch.held = (self.number, at, want);
        Ok(&scratch.window[..want])
    }

    pub(super) fn entry(&self, at: u64, scratch: &mut Scratch) -> Result<Entry, Bad> {
        Entry::parse(self.window(at, scratch)?).ok_or_else(|| format!("there is no object at offset {at}").into())
    }

    /// Inflates what begins at `at`, `size` bytes, in pieces to `sink`: whenever `out` is full, which needs room for that.
    pub(super) fn inflate(
        &self,
        at: u64,
        size: u64,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
        mut sink: impl FnMut(&mut Vec<u8>) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        scratch.zlib.reset(true);
        let (mut at, mut made) = (at, 0_u64);
        loop {
            self.window(at, scratch)?;
            let skip = (at - scratch.held.1) as usize;
            let input = &scratch.window[skip..scratch.held.2];
            let (before_in, before_out) = (scratch.zlib.total_in(), out.len());
            let status = scratch
                .zlib
                .decompress_vec(input, out, FlushDecompress::None)
                .map_err(|e| format!("a damaged zlib stream at offset {at}: {e}"))?;
            let eaten = scratch.zlib.total_in() - before_in;
            at += eaten;
            made += (out.len() - before_out) as u64;
            if made > size {
                return Err(format!("the object before offset {at} is longer than it says").into());
            }
            if status == Status::StreamEnd {
                break;
            }
            if out.len() == out.capacity() {
                sink(out)?;
            } else if eaten == 0 && out.len() == before_out {
                return Err(format!("a zlib stream that does not go on at offset {at}").into());
            }
        }
        if made == size { Ok(()) } else { Err(format!("the object before offset {at} is shorter than it says").into()) }
    }

    /// Inflates what begins at `at` into `out`.
    fn inflate_whole(&self, at: u64, size: u64, scratch: &mut Scratch, out: &mut Vec<u8>) -> Result<(), Bad> {
        out.clear();
        out.reserve(usize::try_from(size).unwrap_or(usize::MAX).min(1 << 20) + 1);
        self.inflate(at, size, scratch, out, |out| {
            out.reserve(out.len());
            Ok(())
        })
    }

    /// Where the base of the entry at `at` lies; none if the entry is whole.
    fn base(&self, at: u64, entry: &Entry) -> Result<Option<u64>, Bad> {
        match entry.body {
            Body::Whole(_) => Ok(None),
            Body::Before(back) => match at.checked_sub(back).filter(|base| back > 0 && *base >= HEADER) {
                Some(base) => Ok(Some(base)),
                None => Err(format!("the delta at offset {at} has no base").into()),
            },
            Body::Against(id) => match self.index.find(oid::from_bytes_unchecked(&id)) {
                Some(base) => Ok(Some(base)),
                None => Err(self
                    .index
                    .trouble()
                    .map_or_else(|| format!("the base of the delta at offset {at} is missing").into(), Bad::from)),
            },
        }
    }

    /// Reads the object at `at` whole into `out`. Neither it nor anything that it is made of may have more than `limit` bytes.
    pub(in crate::store) fn read(
        &self,
        (at, limit): (u64, u64),
        scratch: &mut Scratch,
        bases: &Bases,
        out: &mut Vec<u8>,
    ) -> Result<Kind, Bad> {
        let mut deltas: Vec<(u64, Entry)> = Vec::new();
        let mut place = at;
        let kind = loop {
            if !deltas.is_empty()
                && let Some(base) = bases.get((self.number, place))
            {
                out.clear();
                out.extend_from_slice(&base.1);
                break base.0;
            }
            let entry = self.entry(place, scratch)?;
            within(entry.size, limit, place)?;
            if let Body::Whole(kind) = entry.body {
                self.inflate_whole(place + entry.len as u64, entry.size, scratch, out)?;
                if !deltas.is_empty() {
                    bases.put((self.number, place), kind, out);
                }
                break kind;
            }
            deltas.push((place, entry));
            if deltas.len() > DEEPEST {
                return Err(format!("the deltas at offset {at} have no end").into());
            }
            if let Some(base) = self.base(place, &entry)? {
                place = base;
            }
        };
        let is_delta = !deltas.is_empty();
        while let Some((place, entry)) = deltas.pop() {
            let mut delta = std::mem::take(&mut scratch.delta);
            let inflated = self.inflate_whole(place + entry.len as u64, entry.size, scratch, &mut delta);
            scratch.delta = delta;
            inflated?;
            let (_, size) = delta::sizes(&scratch.delta).map_err(|e| format!("{e} at offset {place}"))?;
            within(size, limit, place)?;
            delta::apply(out, &scratch.delta, &mut scratch.other).map_err(|e| format!("{e} at offset {place}"))?;
            std::mem::swap(out, &mut scratch.other);
            // Who is asked for next is mostly a neighbour of the last one. Keeping all of a long chain would drive out the
            // last ones of others.
            if deltas.len() == 1 {
                bases.put((self.number, place), kind, out);
            }
        }
        if is_delta || kind == Kind::Tree {
            bases.put((self.number, at), kind, out);
        }
        if scratch.other.capacity() > 1 << 20 {
            scratch.other = Vec::new();
        }
        if scratch.delta.capacity() > 1 << 20 {
            scratch.delta = Vec::new();
        }
        Ok(kind)
    }

    /// Kind and size of the object at `at`, without reading it whole.
    pub(in crate::store) fn header(&self, at: u64, scratch: &mut Scratch) -> Result<(Kind, u64), Bad> {
        let (mut place, mut size, mut steps) = (at, None, 0);
        loop {
            let entry = self.entry(place, scratch)?;
            if let Body::Whole(kind) = entry.body {
                return Ok((kind, size.unwrap_or(entry.size)));
            }
            if size.is_none() {
                let mut head = Vec::with_capacity(32);
                scratch.zlib.reset(true);
                self.window(place + entry.len as u64, scratch)?;
                let skip = (place + entry.len as u64 - scratch.held.1) as usize;
                let input = &scratch.window[skip..scratch.held.2];
                scratch
                    .zlib
                    .decompress_vec(input, &mut head, FlushDecompress::None)
                    .map_err(|e| format!("a damaged zlib stream at offset {place}: {e}"))?;
                size = Some(delta::sizes(&head).map_err(|e| format!("{e} at offset {place}"))?.1);
            }
            steps += 1;
            if steps > DEEPEST {
                return Err(format!("the deltas at offset {at} have no end").into());
            }
            if let Some(base) = self.base(place, &entry)? {
                place = base;
            }
        }
    }

    /// If the object at `at` is not a delta, gives its kind and size, and streams its data to the sink that `begin` makes.
    pub(in crate::store) fn stream<S: FnMut(&[u8]) -> Result<(), Bad>>(
        &self,
        at: u64,
        scratch: &mut Scratch,
        begin: impl FnOnce(Kind, u64) -> S,
    ) -> Result<Option<(Kind, u64)>, Bad> {
        let entry = self.entry(at, scratch)?;
        let Body::Whole(kind) = entry.body else { return Ok(None) };
        let mut sink = begin(kind, entry.size);
        let mut out = Vec::with_capacity(PIECE);
        self.inflate(at + entry.len as u64, entry.size, scratch, &mut out, |out| {
            sink(out)?;
            out.clear();
            Ok(())
        })?;
        sink(&out)?;
        Ok(Some((kind, entry.size)))
    }

    /// The entry at `at` as it is on disk, up to the next one at `end`, checked against its CRC; and its header.
    pub(in crate::store) fn raw(&self, at: u64, end: u64, crc: u32, out: &mut Vec<u8>) -> Result<Entry, Bad> {
        if at < HEADER || end > self.size - TRAILER || at >= end {
            return Err(format!("offset {at} lies outside of it").into());
        }
        out.resize(usize::try_from(end - at).map_err(|_| "an entry is too large".to_owned())?, 0);
        let read = files::pread_full(&self.file, out, at)?;
        if read < out.len() || crc32fast::hash(out) != crc {
            return Err(format!("the object at offset {at} is damaged").into());
        }
        Entry::parse(out).ok_or_else(|| format!("there is no object at offset {at}").into())
    }

    /// Hands the entry at `at` over as it is on disk, piece by piece, and checks its CRC at the end.
    pub(in crate::store) fn copy(
        &self,
        at: u64,
        end: u64,
        crc: u32,
        mut sink: impl FnMut(&[u8]) -> Result<(), Bad>,
    ) -> Result<(), Bad> {
        let mut hash = crc32fast::Hasher::new();
        self.pieces(at, end, |piece| {
            hash.update(piece);
            sink(piece)
        })?;
        if hash.finalize() == crc { Ok(()) } else { Err(format!("the object at offset {at} is damaged").into()) }
    }

    /// Hands over what lies from `at` to `end`, piece by piece.
    pub(super) fn pieces(&self, at: u64, end: u64, mut sink: impl FnMut(&[u8]) -> Result<(), Bad>) -> Result<(), Bad> {
        let mut piece = vec![0; usize::try_from(end.saturating_sub(at)).unwrap_or(PIECE).min(PIECE)];
        let mut place = at;
        while place < end {
            let want = usize::try_from(end - place).unwrap_or(PIECE).min(PIECE);
            let read = files::pread_full(&self.file, &mut piece[..want], place)?;
            if read < want {
                return Err("it is shorter than it was".into());
            }
            sink(&piece[..want])?;
            place += want as u64;
        }
        Ok(())
    }

    /// Where the last entry ends.
    pub(in crate::store) fn end(&self) -> u64 {
        self.size - TRAILER
    }

    /// When its file was written; of two packs, which is the older.
    pub(in crate::store) fn made(&self) -> (i64, i64) {
        rustix::fs::fstat(&self.file).map_or((0, 0), |stat| (stat.st_mtime, stat.st_mtime_nsec as i64))
    }

    /// Where the entry at `at` has its base, if it is a delta.
    pub(in crate::store) fn base_of(&self, at: u64, scratch: &mut Scratch) -> Result<Option<u64>, Bad> {
        let entry = self.entry(at, scratch)?;
        self.base(at, &entry)
    }

    /// Whether pack and index are, to the last bit, what was once written. Reads everything.
    ///
    /// # Errors
    /// If it cannot be read at this moment, which says nothing about it; `Cancelled`.
    pub(in crate::store) fn is_sound(&self, cx: &Context<'_>) -> Result<bool> {
        Ok(self.sum(cx)?.is_some() && self.index.is_sound().map_err(|errno| self.failed(errno))?)
    }

    fn failed(&self, errno: Errno) -> Error {
        Error::from_io(format!("cannot read {}.pack of the store", self.name), &errno.into())
    }

    /// The checksum that the pack ends with, if it is the right one. Reads everything but the index.
    ///
    /// # Errors
    /// Those of [`Pack::is_sound`].
    pub(super) fn sum(&self, cx: &Context<'_>) -> Result<Option<[u8; TRAILER as usize]>> {
        use sha1::{Digest, Sha1};
        let failed = |errno: Errno| self.failed(errno);
        let mut hash = Sha1::new();
        let mut chunk = vec![0; PIECE];
        let mut at = 0;
        while at < self.size - TRAILER {
            cx.check_cancelled()?;
            let want = usize::try_from(self.size - TRAILER - at).unwrap_or(PIECE).min(PIECE);
            if files::pread_full(&self.file, &mut chunk[..want], at).map_err(failed)? < want {
                return Ok(None);
            }
            hash.update(&chunk[..want]);
            at += want as u64;
        }
        let mut sum = [0; TRAILER as usize];
        let read = files::pread_full(&self.file, &mut sum, at).map_err(failed)?;
        Ok((read == sum.len() && hash.finalize()[..] == sum[..]).then_some(sum))
    }
}
