//! Merging packs into one, with deltas.
//!
//! Objects that were merged before are carried over as they are, delta or not. Those that come from a snapshot's own pack are
//! compressed better, and made a delta of the object that they replaced (the pack's hints say which), where that is smaller:
//! successive versions of a file, a tree or its metadata differ little. What has no predecessor is tried against its
//! neighbours in writing order, which are mostly its neighbours in the directory.
//!
//! Every delta is applied again before it is used, every object hashed again before it is changed. Not here: which packs are
//! merged and when (`reclaim`).

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use ah_plugin_api::{Context, Result};
use gix::ObjectId;
use gix::hashtable::{HashMap, HashSet};
use gix::objs::Kind;

use super::delta::{self, Base};
use super::files;
use super::pack::{Body, Deflater, Entry, Finished, Pack, PackWriter, Scratch, header};
use super::{Store, hash};

/// At most so many deltas on top of each other. Each costs a reader about 2 µs, each new start of a chain costs space: with
/// 1,000 versions of a directory of 100 files, 50 (Git's own limit) takes about 6 % more space than this.
const DEPTH: u16 = 96;
/// Where a chain is full, the next one may start from an ancestor of this depth.
const RESTART: u16 = 16;
/// Neighbours that an object without predecessor is tried against, and how deep that may get.
const WINDOW: usize = 8;
const WINDOW_DEPTH: u16 = 4;
/// A neighbour is worth keeping at hand up to this size.
const WINDOW_SIZE: usize = 256 << 10;
/// The best level that is still quick.
const LEVEL: u32 = 7;

/// An object in one of the packs.
#[derive(Debug, Clone, Copy)]
struct Item {
    id: ObjectId,
    pack: u32,
    crc: u32,
    at: u64,
    end: u64,
}

/// Where an object was written, and on what it builds.
#[derive(Debug, Clone, Copy)]
struct Written {
    /// 0: not yet.
    offset: u64,
    base: u32,
    depth: u16,
}

const NONE: u32 = u32::MAX;

/// Several packs on their way into one.
pub(super) struct Merge<'s> {
    store: &'s Store,
    packs: Vec<Arc<Pack>>,
    fresh: Vec<bool>,
    hints: HashMap<ObjectId, ObjectId>,
    live: Option<&'s HashSet<ObjectId>>,
    items: Vec<Item>,
    /// Where the items of each pack begin, and the last ones end.
    starts: Vec<usize>,
    by_id: HashMap<ObjectId, u32>,
    written: Vec<Written>,
    scratch: Scratch,
    deflater: Deflater,
    window: VecDeque<Neighbour>,
    luck: Luck,
}

struct Neighbour {
    item: u32,
    kind: Kind,
    data: Vec<u8>,
}

/// Whether trying neighbours pays. Where it does not, it is given up for a while.
#[derive(Default)]
struct Luck {
    tried: u32,
    hit: u32,
    skip: u32,
}

impl Luck {
    fn worth_trying(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.tried >= 256 {
            if self.hit * 16 < self.tried {
                self.skip = 1024;
            }
            (self.tried, self.hit) = (0, 0);
        }
        true
    }
}

impl<'s> Merge<'s> {
    /// Takes stock of `packs`; those marked `fresh` were never merged. With `live`, only these objects are carried over.
    ///
    /// # Errors
    /// `DataLoss` if an index cannot be read, or is not what was written.
    pub(super) fn new(
        store: &'s Store,
        packs: &[Arc<Pack>],
        fresh: &[bool],
        live: Option<&'s HashSet<ObjectId>>,
    ) -> Result<Self> {
        let mut order: Vec<usize> = (0..packs.len()).collect();
        // Merged ones first, then the others as they were made: what an object builds on comes before it.
        order.sort_by_key(|&at| (fresh[at], if fresh[at] { packs[at].made() } else { Default::default() }));
        let packs: Vec<_> = order.iter().map(|&at| Arc::clone(&packs[at])).collect();
        let fresh: Vec<_> = order.iter().map(|&at| fresh[at]).collect();
        let mut hints = HashMap::default();
        let mut items = Vec::new();
        let mut by_id = HashMap::default();
        let mut starts = Vec::with_capacity(packs.len() + 1);
        for (number, pack) in packs.iter().enumerate() {
            let mut entries = pack.index.entries().map_err(|why| {
                let mut error = files::damaged(format!("the index of {} in the store cannot be read", pack.name));
                error.causes.push(why.to_string());
                error
            })?;
            entries.sort_unstable_by_key(|entry| entry.offset);
            starts.push(items.len());
            let ends = entries.iter().skip(1).map(|entry| entry.offset).chain([pack.end()]);
            for (entry, end) in entries.iter().zip(ends) {
                let at = items.len() as u32;
                by_id.entry(entry.id).or_insert(at);
                items.push(Item { id: entry.id, pack: number as u32, crc: entry.crc, at: entry.offset, end });
            }
            if fresh[number] {
                let pairs = files::read_file(&store.folders.hints, &pack.name, 1 << 30).ok().flatten();
                for pair in pairs.unwrap_or_default().chunks_exact(40) {
                    hints
                        .insert(ObjectId::from_bytes_or_panic(&pair[..20]), ObjectId::from_bytes_or_panic(&pair[20..]));
                }
            }
        }
        starts.push(items.len());
        let written = vec![Written { offset: 0, base: NONE, depth: 0 }; items.len()];
        Ok(Self {
            store,
            packs,
            fresh,
            hints,
            live,
            items,
            starts,
            by_id,
            written,
            scratch: Scratch::default(),
            deflater: Deflater::new(LEVEL),
            window: VecDeque::new(),
            luck: Luck::default(),
        })
    }

    /// All that will be in the new pack.
    pub(super) fn ids(&self) -> Vec<ObjectId> {
        (0..self.items.len() as u32).filter(|at| self.is_live(*at)).map(|at| self.items[at as usize].id).collect()
    }

    fn is_live(&self, at: u32) -> bool {
        self.live.is_none_or(|live| live.contains(&self.items[at as usize].id))
    }

    /// Writes the new pack, to disk; none if there is nothing to write. Then no file is made either, for which a full disk may have no room.
    pub(super) fn write(mut self, cx: &Context<'_>) -> Result<Option<Finished>> {
        if !(0..self.items.len() as u32).any(|at| self.is_live(at)) {
            return Ok(None);
        }
        let mut out = PackWriter::new(self.store.folders.merge.as_fd())?;
        for at in 0..self.items.len() as u32 {
            if at % 64 == 0 {
                cx.check_cancelled()?;
                cx.progress("merging", u64::from(at), Some(self.items.len() as u64));
            }
            let first = self.by_id.get(&self.items[at as usize].id) == Some(&at);
            if first && self.is_live(at) {
                self.emit(at, &mut out, cx)?;
            }
        }
        out.finish(true).map(Some)
    }

    fn damaged(&self, at: u32, why: impl std::fmt::Display) -> ah_plugin_api::Error {
        let item = &self.items[at as usize];
        let mut error = files::damaged(format!("object {} of the store is damaged", item.id));
        error.causes.push(format!("{}.pack: {why}", self.packs[item.pack as usize].name));
        error
    }

    /// What the object at `at` is a delta of in its present pack.
    fn base_of(&mut self, at: u32) -> Result<Option<u32>> {
        let item = self.items[at as usize];
        let found = self.packs[item.pack as usize].base_of(item.at, &mut self.scratch);
        let Some(place) = found.map_err(|why| self.damaged(at, why))? else { return Ok(None) };
        let of_pack = &self.items[self.starts[item.pack as usize]..self.starts[item.pack as usize + 1]];
        let found = of_pack.binary_search_by_key(&place, |other| other.at).ok();
        let base = found.and_then(|found| self.by_id.get(&of_pack[found].id).copied());
        base.map(Some).ok_or_else(|| self.damaged(at, "a delta has no base"))
    }

    /// Writes the object at `at`, and before it what it builds on.
    fn emit(&mut self, at: u32, out: &mut PackWriter<'_>, cx: &Context<'_>) -> Result<()> {
        let mut chain = vec![(at, None)];
        while let Some((next, base)) = chain.last_mut() {
            let next = *next;
            if self.written[next as usize].offset > 0 {
                chain.pop();
                continue;
            }
            if let Some(base) = *base {
                self.copy_delta(next, base, out)?;
                chain.pop();
                continue;
            }
            match self.base_of(next)? {
                Some(base) if self.is_live(base) => {
                    if let Some(link) = chain.last_mut() {
                        link.1 = Some(base);
                    }
                    if chain.len() > 5000 {
                        return Err(self.damaged(at, "the deltas have no end"));
                    }
                    chain.push((base, None));
                }
                Some(base) => {
                    self.rebase(next, base, out)?;
                    chain.pop();
                }
                None => {
                    self.copy_whole(next, out, cx)?;
                    chain.pop();
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, at: u32, offset: u64, base: u32) {
        let depth = if base == NONE { 0 } else { self.written[base as usize].depth + 1 };
        self.written[at as usize] = Written { offset, base, depth };
    }

    /// Carries a delta over; its base is written already.
    fn copy_delta(&mut self, at: u32, base: u32, out: &mut PackWriter<'_>) -> Result<()> {
        let item = self.items[at as usize];
        let mut raw = Vec::new();
        let entry = self.packs[item.pack as usize].raw(item.at, item.end, item.crc, &mut raw);
        let entry = entry.map_err(|why| self.damaged(at, why))?;
        let mut head = Vec::new();
        Entry::write(Body::Before(out.offset() - self.written[base as usize].offset), entry.size, &mut head);
        let offset = out.append(item.id, &[&head, &raw[entry.len..]])?;
        self.note(at, offset, base);
        Ok(())
    }

    fn copy_whole(&mut self, at: u32, out: &mut PackWriter<'_>, cx: &Context<'_>) -> Result<()> {
        let item = self.items[at as usize];
        if self.fresh[item.pack as usize] {
            let header = self.packs[item.pack as usize].header(item.at, &mut self.scratch);
            let (_, size) = header.map_err(|why| self.damaged(at, why))?;
            if size <= delta::MAX_SIZE as u64 {
                return self.improve(at, out);
            }
        }
        let offset = out.offset();
        out.open_entry();
        let pack = Arc::clone(&self.packs[item.pack as usize]);
        let mut failed = None;
        let copied = pack.copy(item.at, item.end, item.crc, |piece| {
            cx.check_cancelled().and_then(|()| out.piece(piece)).map_err(|error| {
                failed = Some(error);
                "".into()
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        copied.map_err(|why| self.damaged(at, why))?;
        out.close(item.id);
        self.note(at, offset, NONE);
        Ok(())
    }

    fn read(&mut self, at: u32) -> Result<(Kind, Vec<u8>)> {
        let item = self.items[at as usize];
        let mut data = Vec::new();
        let pack = &self.packs[item.pack as usize];
        let kind = pack.read((item.at, u64::MAX), &mut self.scratch, &self.store.bases, &mut data);
        let kind = kind.map_err(|why| self.damaged(at, why))?;
        if hash(kind, &data) != item.id {
            return Err(self.damaged(at, "its content is not what its id says"));
        }
        Ok((kind, data))
    }

    /// A written object on which one more delta may build: `at` or an ancestor of it.
    fn room_above(&self, mut at: u32) -> Option<u32> {
        if self.written[at as usize].offset == 0 {
            return None;
        }
        if self.written[at as usize].depth >= DEPTH {
            while self.written[at as usize].depth > RESTART && self.written[at as usize].base != NONE {
                at = self.written[at as usize].base;
            }
        }
        Some(at)
    }

    /// Writes an object that lost its base: as a delta of the nearest ancestor that stays, if that is smaller.
    fn rebase(&mut self, at: u32, mut base: u32, out: &mut PackWriter<'_>) -> Result<()> {
        let (kind, data) = self.read(at)?;
        let mut ancestor = None;
        loop {
            if self.is_live(base) {
                ancestor = self.room_above(base);
                break;
            }
            // The first heir of a base that is gone stands in for it with the others.
            if self.written[base as usize].base != NONE {
                ancestor = self.room_above(self.written[base as usize].base);
                break;
            }
            match self.base_of(base)? {
                Some(next) => base = next,
                None => break,
            }
        }
        if ancestor.is_none() {
            self.written[base as usize].base = at;
        }
        self.choose(at, kind, &data, ancestor.as_slice(), false, out).map(drop)
    }

    /// Writes an object of a snapshot's own pack, as small as it gets.
    fn improve(&mut self, at: u32, out: &mut PackWriter<'_>) -> Result<()> {
        let (kind, data) = self.read(at)?;
        let before = self.hints.get(&self.items[at as usize].id).and_then(|id| self.by_id.get(id).copied());
        if let Some(base) = before.and_then(|before| self.room_above(before)) {
            self.choose(at, kind, &data, &[base], before != Some(base), out)?;
            return Ok(());
        }
        // Trees of unlike directories have nothing in common: their ids are random.
        let try_neighbours = kind == Kind::Blob && data.len() >= 32 && self.luck.worth_trying();
        let mut candidates = Vec::new();
        if try_neighbours {
            let near = |other: usize| other / 4 <= data.len() && data.len() / 4 <= other;
            let fits = |n: &&Neighbour| n.kind == kind && near(n.data.len());
            candidates.extend(self.window.iter().filter(fits).map(|n| n.item));
        }
        let base = self.choose(at, kind, &data, &candidates, false, out)?;
        if try_neighbours {
            self.luck.tried += 1;
            self.luck.hit += u32::from(base != NONE);
        }
        if kind == Kind::Blob && data.len() <= WINDOW_SIZE && self.written[at as usize].depth < WINDOW_DEPTH {
            if self.window.len() == WINDOW {
                self.window.pop_front();
            }
            self.window.push_back(Neighbour { item: at, kind, data });
        }
        Ok(())
    }

    /// Writes an object as the smallest of itself and its deltas against `candidates`; gives the base chosen. With `restarts`,
    /// the candidate is one from which a chain starts anew.
    fn choose(
        &mut self,
        at: u32,
        kind: Kind,
        data: &[u8],
        candidates: &[u32],
        restarts: bool,
        out: &mut PackWriter<'_>,
    ) -> Result<u32> {
        let id = self.items[at as usize].id;
        let mut best: Option<(u32, Vec<u8>)> = None;
        for &base in candidates {
            // No delta may take as much as the object, nor as the best so far.
            let limit = best.as_ref().map_or(data.len(), |(_, delta)| delta.len());
            let held = self.window.iter().find(|n| n.item == base);
            let (base_kind, base_data) = match held {
                Some(held) => (held.kind, held.data.clone()),
                None => self.read(base)?,
            };
            if base_kind != kind || base_data.len() > delta::MAX_SIZE {
                continue;
            }
            let Some(delta) = Base::new(&base_data).encode(data, limit) else { continue };
            let mut again = Vec::with_capacity(data.len());
            if delta::apply(&base_data, &delta, &mut again).is_ok() && again == data {
                best = Some((base, delta));
            }
        }
        let mut small = None;
        if let Some((base, delta)) = best {
            let mut head = Vec::new();
            let back = out.offset() - self.written[base as usize].offset;
            Entry::write(Body::Before(back), delta.len() as u64, &mut head);
            small = Some((base, head, self.deflater.whole(&delta)?.to_vec()));
        }
        let head = header(kind, data.len() as u64);
        // A delta of a few bytes needs no comparison.
        let sure = small.as_ref().is_some_and(|(_, head, body)| head.len() + body.len() < data.len() / 16);
        // A new start of a chain is paid for by the versions that will build on it: fewer, if it does not start at the bottom.
        let room = if restarts { (usize::from(DEPTH), usize::from(DEPTH - RESTART)) } else { (1, 1) };
        let whole = if sure { &[] } else { self.deflater.whole(data)? };
        let (offset, base) = match small {
            Some((base, delta_head, body))
                if sure || (delta_head.len() + body.len()) * room.0 < (head.len() + whole.len()) * room.1 =>
            {
                (out.append(id, &[&delta_head, &body])?, base)
            }
            _ => (out.append(id, &[&head, whole])?, NONE),
        };
        self.note(at, offset, base);
        Ok(base)
    }
}
