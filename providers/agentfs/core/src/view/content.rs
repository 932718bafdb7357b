//! Reading and seeking. What is below is checked after it was read: bytes of a file that somebody changed meanwhile are never
//! handed out under the name of what it was.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::platform;
use crate::rows::chunk::{BLOCK, BLOCKS, CHUNK, Chunk, Place};
use crate::rows::key;
use crate::types::{Ino, Kind, Seek};
use crate::view::{Node, View};
use crate::{lock, read_lock};

/// Files below that are kept open.
const OPEN: usize = 32;

impl View {
    /// Reads up to `length` bytes; fewer only at the end.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>> {
        let node = self.file(ino)?;
        let available = node.inode.size.saturating_sub(offset);
        let mut bytes = vec![0; available.min(length as u64) as usize];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        if !node.has_row {
            let count = self.read_below(&node, offset, &mut bytes)?;
            bytes.truncate(count);
            return Ok(bytes);
        }
        let _kept = self.engine.segments.reading();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let part = ((CHUNK - at % CHUNK) as usize).min(bytes.len() - done);
            let chunk = self.chunk(ino, at / CHUNK)?;
            self.read_chunk(&node, &chunk, at, &mut bytes[done..done + part])?;
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
                    let end = end.min(node.inode.lower_limit);
                    let file = self.below_file(&node)?;
                    let found = platform::seek(&file, at, what == Seek::Hole);
                    let found = found.map_err(Error::io("seeking in a file below"))?.unwrap_or(end);
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
        Ok(rows.keys().map(|stem| key::chunk_index(stem)).collect())
    }

    /// Reads within one chunk. Bytes that are nowhere are left as they are: zeros.
    pub(super) fn read_chunk(&self, node: &Node, chunk: &Chunk, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let start = offset / CHUNK * CHUNK;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let block = ((at - start) / BLOCK) as usize;
            let end = start + (block + chunk.run(block)).min(BLOCKS) as u64 * BLOCK;
            let part = ((end - at) as usize).min(bytes.len() - done);
            let here = &mut bytes[done..done + part];
            match chunk.0[block] {
                Place::Hole => here.fill(0),
                Place::Store { block, .. } => self.engine.segments.read(block, at % BLOCK, here)?,
                Place::Below => {
                    let there = node.inode.lower_limit.saturating_sub(at).min(part as u64) as usize;
                    if there > 0 && self.read_below(node, at, &mut here[..there])? < there {
                        let path = node.inode.origin.as_ref().map_or(&b""[..], |origin| &origin.path);
                        return Err(self.changed(path, "cut below since it was taken over"));
                    }
                    here[there..].fill(0);
                }
            }
            done += part;
        }
        Ok(())
    }

    /// Reads from the file below, then makes sure that it is what it was.
    fn read_below(&self, node: &Node, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let Some(origin) = &node.inode.origin else {
            return Err(Error::corrupt("a file without an origin lies below"));
        };
        let file = self.below_file(node)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("reading a file below")(error)),
            }
        }
        let found = self.engine.lower.find_open(&file)?;
        if !node.has_row {
            self.judge(&found, &origin.path)?;
        } else if !found.is(origin) {
            return Err(self.changed(&origin.path, "changed below since it was taken over"));
        }
        Ok(done)
    }

    /// The file below, open.
    fn below_file(&self, node: &Node) -> Result<Arc<File>> {
        if let Some((_, file)) = lock(&self.open).iter().find(|(ino, _)| *ino == node.ino) {
            return Ok(file.clone());
        }
        let Some(origin) = &node.inode.origin else {
            return Err(Error::corrupt("a file without an origin lies below"));
        };
        let Some(file) = self.engine.lower.open_file(&origin.path)? else {
            return Err(self.changed(&origin.path, "removed below"));
        };
        let found = self.engine.lower.find_open(&file)?;
        if (found.device, found.ino) != (origin.device, origin.ino) {
            return Err(self.changed(&origin.path, "replaced below"));
        }
        let file = Arc::new(file);
        let mut open = lock(&self.open);
        open.push_back((node.ino, file.clone()));
        if open.len() > OPEN {
            open.pop_front();
        }
        Ok(file)
    }
}
