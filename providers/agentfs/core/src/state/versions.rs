//! Versions: which one is seen from where, and what becomes of those that nobody sees.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::rows::chunk::Chunk;
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::GONE;
use crate::state::State;

/// The lines above a line, nearest first, each with the last epoch that is seen of it. It never changes.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// The line of the lower directory as it was when all this began.
    pub(crate) base: LineId,
    lines: Arc<[(LineId, Epoch)]>,
    /// Of a long chain: each line's place.
    places: Arc<HashMap<LineId, usize>>,
}

/// From where rows are seen: a line until an epoch, and what is above it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) line: LineId,
    pub(crate) until: Epoch,
    pub(crate) chain: &'a Chain,
}

/// Chains longer than this are not asked line by line.
const SHORT: usize = 8;
/// Where rows are walked over, the versions of one from which on they are passed over, and the one that is seen is looked up.
const MANY: usize = 8;

impl Chain {
    pub(crate) fn lines(&self) -> &[(LineId, Epoch)] {
        &self.lines
    }
}

impl State {
    pub(crate) fn chain(&self, line: LineId) -> Result<Chain> {
        let (mut lines, mut base) = (Vec::new(), line);
        let mut at = self.lines.get(&line).ok_or(Error::NotFound)?;
        while let Some((parent, epoch)) = at.parent {
            at = self.lines.get(&parent).ok_or_else(|| Error::corrupt(format!("line {parent} is missing")))?;
            base = parent;
            // A base never had a pen, and so has no rows.
            if at.parent.is_some() {
                lines.push((parent, epoch));
            }
        }
        let places = lines.iter().enumerate().map(|(at, &(line, _))| (line, at)).collect();
        Ok(Chain { base, lines: lines.into(), places: Arc::new(places) })
    }

    /// The newest version within one line, and its epoch.
    fn in_line(&self, stem: &[u8], line: LineId, until: Epoch) -> Result<Option<(Epoch, Arc<[u8]>)>> {
        let found = self.layers.last(&key::versioned(stem, line, 0), &key::versioned(stem, line, until))?;
        Ok(found.map(|(row, value)| (key::be64(&row[row.len() - 8..]), value)))
    }

    /// The epoch of the version before this one in the same line.
    pub(crate) fn version_before(&self, stem: &[u8], line: LineId, epoch: Epoch) -> Result<Option<Epoch>> {
        Ok(self.in_line(stem, line, epoch.saturating_sub(1))?.map(|(epoch, _)| epoch))
    }

    /// What is seen of a row; `None`: no version of it.
    pub(crate) fn seen(&self, stem: &[u8], view: View<'_>) -> Result<Option<Arc<[u8]>>> {
        if let Some((_, value)) = self.in_line(stem, view.line, view.until)? {
            return Ok(Some(value));
        }
        if view.chain.lines.len() > SHORT {
            let mut best: Option<(usize, Arc<[u8]>)> = None;
            for (row, value) in self.layers.prefix(stem)? {
                let (of, line, epoch) = key::split(&row)?;
                let Some(&place) = view.chain.places.get(&line).filter(|_| of == stem) else { continue };
                let nearer = best.as_ref().is_none_or(|(at, _)| place <= *at);
                if nearer && epoch <= view.chain.lines[place].1 {
                    best = Some((place, value));
                }
            }
            return Ok(best.map(|(_, value)| value));
        }
        for &(line, until) in view.chain.lines.iter() {
            if let Some((_, value)) = self.in_line(stem, line, until)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// All rows that begin like this, as they are seen: stem and value. Rows that say that there is nothing are among them.
    pub(crate) fn all_seen(&self, prefix: &[u8], view: View<'_>) -> Result<BTreeMap<Vec<u8>, Arc<[u8]>>> {
        self.seen_from(prefix, prefix, view)
    }

    /// The same, from a stem on.
    pub(crate) fn seen_from(&self, prefix: &[u8], from: &[u8], view: View<'_>) -> Result<BTreeMap<Vec<u8>, Arc<[u8]>>> {
        let mut all = BTreeMap::new();
        let mut rows = self.layers.walk(prefix, from)?;
        let mut last = Vec::new();
        // Of the last stem: how many versions there were, and the nearest of them that is seen.
        let (mut count, mut best) = (0, None);
        while let Some((row, value)) = rows.next().transpose()? {
            let (stem, line, epoch) = key::split(&row)?;
            if *stem != *last {
                (last, count, best) = (stem.to_vec(), 0, None);
            }
            count += 1;
            if count == MANY {
                if let Some(value) = self.seen(stem, view)? {
                    all.insert(stem.to_vec(), value);
                }
                rows.pass_to(&key::versioned(stem, LineId::MAX, Epoch::MAX))?;
                continue;
            }
            let place = if line == view.line && epoch <= view.until {
                0
            } else {
                match view.chain.places.get(&line) {
                    Some(&place) if epoch <= view.chain.lines[place].1 => place + 1,
                    _ => continue,
                }
            };
            // Epochs of one line come in rising order, so that the last of the nearest line stays.
            if best.is_none_or(|best| place <= best) {
                best = Some(place);
                all.insert(stem.to_vec(), value);
            }
        }
        Ok(all)
    }

    /// Writes a version. Blocks that nothing names any more after that are freed.
    pub(crate) fn write(&mut self, stem: &[u8], value: Vec<u8>, view: View<'_>) -> Result<()> {
        let row = key::versioned(stem, view.line, view.until);
        let line = self.lines.get(&view.line).ok_or(Error::NotFound)?;
        // A change that a snapshot overtook may have been overtaken by a deletion, too.
        let merged = line.is_merged() || line.epoch != view.until;
        let is_chunk = stem.first() == Some(&b'c');
        let old = if is_chunk || merged { self.layers.get(&row)? } else { None };
        if is_chunk {
            self.exchange(stem, old.as_deref(), &value, view)?;
        }
        let before = View { until: view.until.wrapping_sub(1), ..view };
        if value.first() == Some(&GONE) && view.until > 0 && self.seen(stem, before)?.is_none() {
            // Nothing older to hide.
            self.layers.remove(&row);
            return Ok(());
        }
        self.layers.put(&row, value);
        if merged && old.is_none() {
            // The version before this one may have been kept only because it was the newest.
            if let Some((epoch, _)) = self.in_line(stem, view.line, view.until - 1)?
                && self.lines.get(&view.line).is_some_and(|line| !line.needs(epoch, Some(view.until)))
            {
                self.erase(stem, epoch, View { until: epoch, ..view })?;
            }
        }
        Ok(())
    }

    /// A chunk's row is replaced: counts its new blocks, frees those that it alone named.
    fn exchange(&mut self, stem: &[u8], old: Option<&[u8]>, new: &[u8], view: View<'_>) -> Result<()> {
        let new: BTreeSet<_> = Chunk::decode(new)?.stored().map(|(block, _)| block).collect();
        let old = match old {
            Some(old) => Chunk::decode(old)?,
            None => Chunk::default(),
        };
        let dropped: Vec<_> = old.stored().filter(|(block, _)| !new.contains(block)).collect();
        if dropped.is_empty() {
            return Ok(());
        }
        let before = if dropped.iter().all(|&(_, born)| born == view.until) {
            Chunk::default()
        } else {
            self.chunk_before(stem, view)?
        };
        let kept: BTreeSet<_> = before.stored().map(|(block, _)| block).collect();
        self.free(dropped.into_iter().map(|(block, _)| block).filter(|block| !kept.contains(block)));
        Ok(())
    }

    fn chunk_before(&self, stem: &[u8], view: View<'_>) -> Result<Chunk> {
        let seen = self.seen(stem, View { until: view.until - 1, ..view })?;
        seen.map_or_else(|| Ok(Chunk::default()), |row| Chunk::decode(&row))
    }

    /// The blocks that only this version of a chunk names: neither the one before it nor the one after it does. (A block that
    /// a version took over from another is in all versions between them, so that looking at the neighbours is enough.)
    pub(crate) fn only_here(&self, stem: &[u8], row: &[u8], view: View<'_>) -> Result<Vec<u64>> {
        if stem.first() != Some(&b'c') {
            return Ok(Vec::new());
        }
        let mut elsewhere: BTreeSet<u64> = self.chunk_before(stem, view)?.stored().map(|(block, _)| block).collect();
        if let Some((_, next)) = self.next_version(stem, view.line, view.until)? {
            elsewhere.extend(Chunk::decode(&next)?.stored().map(|(block, _)| block));
        }
        Ok(Chunk::decode(row)?.stored().map(|(block, _)| block).filter(|block| !elsewhere.contains(block)).collect())
    }

    /// How many blocks of a version of a chunk the version before it does not name, nor what is seen `after` all that goes with this one: each block that goes
    /// is counted once so, with the first version that names it.
    pub(crate) fn last_seen_here(
        &self,
        stem: &[u8],
        row: &[u8],
        view: View<'_>,
        after: Option<View<'_>>,
    ) -> Result<u64> {
        let mut elsewhere: BTreeSet<u64> = self.chunk_before(stem, view)?.stored().map(|(block, _)| block).collect();
        if let Some(seen) = after.map(|after| self.seen(stem, after)).transpose()?.flatten() {
            elsewhere.extend(Chunk::decode(&seen)?.stored().map(|(block, _)| block));
        }
        Ok(Chunk::decode(row)?.stored().filter(|(block, _)| !elsewhere.contains(block)).count() as u64)
    }

    /// The next newer version in the same line.
    pub(crate) fn next_version(&self, stem: &[u8], line: LineId, epoch: Epoch) -> Result<Option<(Epoch, Arc<[u8]>)>> {
        let prefix = &key::versioned(stem, line, 0)[..stem.len() + 4];
        let found = self.layers.next(prefix, &key::versioned(stem, line, epoch))?;
        Ok(found.map(|(row, value)| (key::be64(&row[row.len() - 8..]), value)))
    }

    /// Removes a version that nobody sees (`view.until` is its epoch), and frees the blocks that only it named.
    pub(crate) fn erase(&mut self, stem: &[u8], epoch: Epoch, view: View<'_>) -> Result<()> {
        let row = key::versioned(stem, view.line, epoch);
        let Some(value) = self.layers.get(&row)? else { return Ok(()) };
        let blocks = self.only_here(stem, &value, view)?;
        self.free(blocks.into_iter());
        self.layers.remove(&row);
        // A later version that only hid this one has nothing to do any more.
        if let Some((later, value)) = self.next_version(stem, view.line, epoch)?
            && value.first() == Some(&GONE)
            && self.seen(stem, view)?.is_none()
        {
            self.layers.remove(&key::versioned(stem, view.line, later));
        }
        Ok(())
    }

    /// Nothing names these blocks any more. They go back to the disk once that is on it.
    fn free(&mut self, blocks: impl Iterator<Item = u64>) {
        let mut run: Option<(u64, u64)> = None;
        for block in blocks.map(Some).chain([None]) {
            match (&mut run, block) {
                (Some((first, count)), Some(block))
                    if *first + *count == block && block % crate::store::segments::SEGMENT != 0 =>
                {
                    *count += 1;
                }
                _ => {
                    if let Some((first, count)) = run.take() {
                        self.layers.put(&key::stem(b'f', first), count.to_be_bytes().to_vec());
                        self.free.push((first, count));
                    }
                    run = block.map(|block| (block, 1));
                }
            }
        }
    }
}
