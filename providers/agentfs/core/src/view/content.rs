//! Reading and seeking. What is below is checked after it was read: bytes of a file that somebody changed meanwhile are never
//! handed out under the name of what it was.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lower::Found;
use crate::platform;
use crate::rows::chunk::{BLOCK, BLOCKS, CHUNK, Chunk, Place};
use crate::rows::key;
use crate::rows::value::Origin;
use crate::types::{Ino, Kind, Seek};
use crate::view::pinned::is_lost;
use crate::view::{Node, View};
use crate::{lock, read_lock};

/// Files below that are kept open.
const OPEN: usize = 32;

/// A file below, open, what it was, and what it is if it must hold what it held.
type Below<'a> = (&'a Origin, Arc<File>, Option<Found>);

impl View {
    /// Reads up to `length` bytes; fewer only at the end.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>> {
        let forgotten = self.engine.pins.forgotten();
        let mut node = self.file(ino)?;
        loop {
            let bytes = self.read_node(&node, offset, length);
            let is_then = node.inode.origin.as_ref().is_some_and(|origin| self.is_then(origin));
            if !node.has_row && is_then && matches!(&bytes, Err(error) if is_lost(error)) {
                // It was changed just now, and is not pinned: shown as it is. But the host knows it by what its pin was to hold, if that did not match.
                if self.engine.pins.forgotten() != forgotten {
                    return Err(Error::Stale);
                }
                node = self.file(ino)?;
                if node.has_row || node.inode.origin.as_ref().is_some_and(|origin| !self.is_then(origin)) {
                    continue;
                }
            }
            if !node.has_row || node.inode.lower_limit == 0 {
                return bytes;
            }
            // Who cuts the file meanwhile, or makes it the branch's own, takes away rows that say what is not read below.
            match self.file(ino) {
                Ok(now) if now.inode.lower_limit != node.inode.lower_limit => node = now,
                _ => return bytes,
            }
        }
    }

    fn read_node(&self, node: &Node, offset: u64, length: usize) -> Result<Vec<u8>> {
        let available = node.inode.size.saturating_sub(offset);
        let mut bytes = vec![0; available.min(length as u64) as usize];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        if !node.has_row {
            let count = self.read_below(node, offset, &mut bytes)?;
            bytes.truncate(count);
            return Ok(bytes);
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let part = ((CHUNK - at % CHUNK) as usize).min(bytes.len() - done);
            self.read_chunk(node, || self.chunk(node.ino, at / CHUNK), at, &mut bytes[done..done + part])?;
            done += part;
        }
        Ok(bytes)
    }

    /// Waits until what was written is on the disk. So is everything else that was changed before the call.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        self.node(ino)?;
        self.engine.persist()
    }

    /// Where the next data, or the next hole, begins at or behind an offset.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let node = self.file(ino)?;
        let size = node.inode.size;
        if offset >= size {
            return Err(Error::NoData);
        }
        let mut at = offset;
        let chunks = if node.has_row { self.chunks_from(ino, offset)? } else { BTreeSet::new() };
        while at < size {
            let index = at / CHUNK;
            let chunk = if chunks.contains(&index) { self.chunk(ino, index)? } else { Chunk::default() };
            let block = (at % CHUNK / BLOCK) as usize;
            let run = chunk.run(block);
            let end = if chunks.contains(&index) {
                index * CHUNK + (block + run) as u64 * BLOCK
            } else {
                // Alike until the next chunk of which anything is known, and on both sides of the limit.
                let next = chunks.range(index..).next().map_or(size, |next| next * CHUNK);
                if at < node.inode.lower_limit { next.min(node.inode.lower_limit) } else { next }
            };
            let end = end.min(size);
            let data = match chunk.0[block] {
                Place::Store { .. } => true,
                Place::Hole => false,
                Place::Below if at >= node.inode.lower_limit => false,
                Place::Below => {
                    // In a file below there may be both within the run.
                    let mut end = end.min(node.inode.lower_limit);
                    let kept = if node.has_row { self.kept(ino, index)? } else { None };
                    if let Some(kept) = kept {
                        end = end.min(index * CHUNK + (block + kept.run(block)) as u64 * BLOCK);
                        if kept.0[block] != Place::Below {
                            if (kept.0[block] != Place::Hole) == (what == Seek::Data) {
                                return Ok(at);
                            }
                            at = end;
                            continue;
                        }
                    }
                    let seek = |file: &File| platform::seek(file, at, what == Seek::Hole);
                    let found =
                        self.in_below(&node, |file| seek(file).map_err(Error::io("seeking in a file below")))?;
                    let found = found.unwrap_or(end);
                    if found < end {
                        return Ok(found);
                    }
                    at = end;
                    continue;
                }
            };
            if data == (what == Seek::Data) {
                return Ok(at);
            }
            at = end;
        }
        if what == Seek::Hole { Ok(size) } else { Err(Error::NoData) }
    }

    /// A regular file.
    pub(super) fn file(&self, ino: Ino) -> Result<Node> {
        let node = self.node(ino)?;
        match node.inode.kind {
            Kind::File => Ok(node),
            Kind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    pub(super) fn chunk(&self, ino: Ino, index: u64) -> Result<Chunk> {
        self.seen(&key::chunk(ino, index))?.map_or_else(|| Ok(Chunk::default()), |row| Chunk::decode(&row))
    }

    /// The chunks that have a row, from the one at an offset on. Costs these.
    pub(super) fn chunks_from(&self, ino: Ino, offset: u64) -> Result<BTreeSet<u64>> {
        let (all, first) = (key::stem(b'c', ino), key::chunk(ino, offset / CHUNK));
        let rows = read_lock(&self.engine.state).seen_from(&all, &first, self.view())?;
        Ok(rows.keys().map(|stem| key::chunk_index(stem)).filter(|index| index & key::KEPT == 0).collect())
    }

    /// Reads within one chunk, whatever that is by now.
    pub(super) fn read_chunk(
        &self,
        node: &Node,
        chunk: impl FnOnce() -> Result<Chunk>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let chunk = self.read_stored(chunk, offset, bytes)?;
        each_below(&chunk, offset, bytes, |at, here| {
            let there = node.inode.lower_limit.saturating_sub(at).min(here.len() as u64) as usize;
            self.read_origin(node, at, &mut here[..there])?;
            here[there..].fill(0);
            Ok(())
        })
    }

    /// Reads within one chunk what does not lie below, and gives the chunk. From when it is looked up until that is read no block is given back; who gives some back, and
    /// all who read after him, do not wait for the lower directory, which may be slow.
    pub(super) fn read_stored(
        &self,
        chunk: impl FnOnce() -> Result<Chunk>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<Chunk> {
        let _kept = self.engine.segments.reading();
        let chunk = chunk()?;
        each_run(&chunk, offset, bytes, |place, at, here| {
            match place {
                Place::Hole => here.fill(0),
                Place::Store { block, .. } => self.engine.segments.read(block, at % BLOCK, here)?,
                Place::Below => {}
            }
            Ok(())
        })?;
        Ok(chunk)
    }

    /// Reads from the file below, then makes sure that it is what it was.
    pub(super) fn read_below(&self, node: &Node, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        self.in_below(node, |file| {
            let mut done = 0;
            while done < bytes.len() {
                match file.read_at(&mut bytes[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::io("reading a file below")(error)),
                }
            }
            Ok(done)
        })
    }

    /// Asks a file below something, and whether it still held by then what it must hold; else its pin is asked.
    fn in_below<T>(&self, node: &Node, mut ask: impl FnMut(&File) -> Result<T>) -> Result<T> {
        let answer = self.in_opened(self.below_file(node)?, &mut ask);
        match (answer, &node.inode.origin) {
            // It was changed just now.
            (Err(error), Some(origin)) if is_lost(&error) => {
                let (pin, is) = self.contents_then(origin)?.ok_or(error)?;
                self.in_opened((origin, Arc::new(pin), Some(is)), &mut ask)
            }
            (answer, _) => answer,
        }
    }

    fn in_opened<T>(&self, (origin, file, proven): Below<'_>, ask: &mut impl FnMut(&File) -> Result<T>) -> Result<T> {
        #[cfg(test)]
        self.engine.segments.note_if_read();
        let answer = ask(&file)?;
        let found = self.engine.lower.find_open(&file)?;
        match proven {
            None => drop(self.judge(&found, &origin.path)?),
            Some(proven) if found.is_as(&proven) => {}
            Some(_) => return Err(self.changed(&origin.path, "changed below")),
        }
        Ok(answer)
    }

    /// The file below, open, and what it is, if it must hold what it held: a pen shows what nobody wrote there as it is.
    fn below_file<'a>(&self, node: &'a Node) -> Result<Below<'a>> {
        let Some(origin) = &node.inode.origin else {
            return Err(Error::corrupt("a file without an origin lies below"));
        };
        let must_hold = node.has_row || self.at.is_some() || self.is_then(origin);
        let known = lock(&self.open).iter().find(|(ino, _)| *ino == node.ino).map(|(_, file)| file.clone());
        if let Some(file) = known {
            let proven = if must_hold { self.proven(&file, origin)? } else { None };
            if proven.is_some() || !must_hold {
                return Ok((origin, file, proven));
            }
            // There may be another by now that does.
            lock(&self.open).retain(|(ino, _)| *ino != node.ino);
        }
        let (file, proven) = match self.open_origin(origin, must_hold) {
            // Hashed once, and opened each time: what is below comes first.
            Err(error) if is_lost(&error) => {
                let (pin, is) = self.contents_then(origin)?.ok_or(error)?;
                return Ok((origin, Arc::new(pin), Some(is)));
            }
            opened => opened?,
        };
        let file = Arc::new(file);
        let mut open = lock(&self.open);
        open.push_back((node.ino, file.clone()));
        if open.len() > OPEN {
            open.pop_front();
        }
        Ok((origin, file, proven))
    }

    pub(super) fn open_origin(&self, origin: &Origin, must_hold: bool) -> Result<(File, Option<Found>)> {
        let Some(file) = self.engine.lower.open_file(&origin.path)? else {
            return Err(self.changed(&origin.path, "removed below"));
        };
        if must_hold {
            let proven = self.proven(&file, origin)?;
            let proven = proven.ok_or_else(|| self.changed(&origin.path, "changed or replaced below"))?;
            return Ok((file, Some(proven)));
        }
        let found = self.engine.lower.find_open(&file)?;
        if (found.device, found.ino) != (origin.device, origin.ino) {
            return Err(self.changed(&origin.path, "replaced below"));
        }
        Ok((file, None))
    }
}

/// Shows bytes within one chunk by runs of blocks that lie alike: where the first one is, from which byte of the file on, the bytes.
fn each_run(
    chunk: &Chunk,
    offset: u64,
    bytes: &mut [u8],
    mut show: impl FnMut(Place, u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let start = offset / CHUNK * CHUNK;
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let block = ((at - start) / BLOCK) as usize;
        let end = start + (block + chunk.run(block)).min(BLOCKS) as u64 * BLOCK;
        let part = ((end - at) as usize).min(bytes.len() - done);
        show(chunk.0[block], at, &mut bytes[done..done + part])?;
        done += part;
    }
    Ok(())
}

/// The same of those that lie below.
pub(super) fn each_below(
    chunk: &Chunk,
    offset: u64,
    bytes: &mut [u8],
    mut show: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    each_run(chunk, offset, bytes, |place, at, here| if place == Place::Below { show(at, here) } else { Ok(()) })
}
