//! A pack in the making: a file in `tmp` that gets its name when it is whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Error, ErrorKind, Result};
use flate2::{Compress, Compression, FlushCompress, Status};
use gix::ObjectId;
use gix::objs::Kind;
use sha1::{Digest, Sha1};

use super::bad::Bad;
use super::index::{self, Index, IndexEntry};
use super::{Body, Entry, HEADER};
use crate::store::files::{self, Doing};

/// Bytes that are gathered before they are written.
const BUFFER: usize = 256 << 10;

/// Appends entries to a new pack.
#[derive(Debug)]
pub(in crate::store) struct PackWriter<'a> {
    tmp: BorrowedFd<'a>,
    name: String,
    file: OwnedFd,
    buffer: Vec<u8>,
    /// Where the next entry begins.
    offset: u64,
    entries: Vec<IndexEntry>,
    /// The entry that is being streamed: where it began, its CRC so far.
    open: Option<(u64, crc32fast::Hasher)>,
}

/// A pack that is whole, but still under its temporary name.
#[derive(Debug)]
pub(in crate::store) struct Finished {
    /// The name it will have, without an ending: `pack-<checksum>`.
    pub(in crate::store) name: String,
    /// Bytes of the pack.
    pub(in crate::store) size: u64,
    pack: (String, OwnedFd),
    index: (String, OwnedFd),
    index_size: u64,
}

impl<'a> PackWriter<'a> {
    /// Begins a pack in the folder `tmp`.
    pub(in crate::store) fn new(tmp: BorrowedFd<'a>) -> Result<Self> {
        let name = files::temp_name("pack")?;
        let file = files::create_new(tmp, &name, 0o444)?;
        let mut buffer = Vec::with_capacity(BUFFER + 4096);
        buffer.extend_from_slice(b"PACK\0\0\0\x02\0\0\0\0");
        Ok(Self { tmp, name, file, buffer, offset: HEADER, entries: Vec::new(), open: None })
    }

    /// How many entries it has.
    pub(in crate::store) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Where the next entry will begin.
    pub(in crate::store) fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends an entry that is in memory, header and zlib stream in pieces; where it begins.
    pub(in crate::store) fn append(&mut self, id: ObjectId, pieces: &[&[u8]]) -> Result<u64> {
        let offset = self.offset;
        let mut crc = crc32fast::Hasher::new();
        for piece in pieces {
            crc.update(piece);
            self.put(piece)?;
        }
        self.entries.push(IndexEntry { id, crc: crc.finalize(), offset });
        Ok(offset)
    }

    /// Begins an entry that comes in many pieces; [`Self::piece`] and [`Self::close`] or [`Self::abandon`] follow.
    pub(in crate::store) fn open_entry(&mut self) {
        self.open = Some((self.offset, crc32fast::Hasher::new()));
    }

    /// Appends a piece to the open entry.
    pub(in crate::store) fn piece(&mut self, piece: &[u8]) -> Result<()> {
        if let Some((_, crc)) = &mut self.open {
            crc.update(piece);
        }
        self.put(piece)
    }

    /// The open entry is whole.
    pub(in crate::store) fn close(&mut self, id: ObjectId) {
        if let Some((offset, crc)) = self.open.take() {
            self.entries.push(IndexEntry { id, crc: crc.finalize(), offset });
        }
    }

    /// Takes the open entry back.
    pub(in crate::store) fn abandon(&mut self) -> Result<()> {
        let Some((offset, _)) = self.open.take() else { return Ok(()) };
        self.flush()?;
        files::step()
            .and_then(|()| rustix::fs::ftruncate(&self.file, offset))
            .and_then(|()| rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(offset)))
            .doing(|| "cut a pack of the store".to_owned())?;
        self.offset = offset;
        Ok(())
    }

    fn put(&mut self, data: &[u8]) -> Result<()> {
        self.offset += data.len() as u64;
        let direct = data.len() > BUFFER / 2;
        // What is in the buffer comes before what passes it by.
        if direct || self.buffer.len() + data.len() > BUFFER {
            self.flush()?;
        }
        if direct {
            return files::write_all(&self.file, data).doing(|| "write a pack of the store".to_owned());
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let written = files::write_all(&self.file, &self.buffer).doing(|| "write a pack of the store".to_owned());
        self.buffer.clear();
        written
    }

    /// Completes pack and index. With `durable`, both are on disk afterwards (their names are not yet).
    pub(in crate::store) fn finish(mut self, durable: bool) -> Result<Finished> {
        let count = u32::try_from(self.entries.len())
            .map_err(|_| Error::new(ErrorKind::ResourceExhausted, "more objects than a pack can hold"))?;
        let sum = self.checksum(count)?;
        let pack: [u8; 20] = sum.into();
        self.put(&pack)?;
        self.flush()?;
        let name = format!("pack-{}", ObjectId::Sha1(pack));
        let index = index::encode(&mut self.entries, &pack);
        // Whoever finds this name in `tmp` knows which pack was about to appear (see `sync`).
        let index_name = format!("{name}.idx");
        let index_file = files::create_new(self.tmp, &index_name, 0o444)?;
        let finished = Finished {
            name,
            size: self.offset,
            pack: (
                std::mem::take(&mut self.name),
                self.file.try_clone().map_err(|e| Error::from_io("cannot duplicate a descriptor", &e))?,
            ),
            index: (index_name, index_file),
            index_size: index.len() as u64,
        };
        files::write_all(&finished.index.1, &index).doing(|| "write a pack's index in the store".to_owned())?;
        if durable {
            files::sync(&finished.pack.1, "a pack")?;
            files::sync(&finished.index.1, "a pack's index")?;
        }
        Ok(finished)
    }

    /// Writes the number of entries into the header, then hashes everything. The number is known last and hashed first,
    /// hence the second look at what was written.
    fn checksum(&mut self, count: u32) -> Result<sha1::digest::Output<Sha1>> {
        let mut hash = Sha1::new();
        let flushed = self.offset - self.buffer.len() as u64;
        if flushed == 0 {
            self.buffer[8..12].copy_from_slice(&count.to_be_bytes());
        } else {
            files::pwrite_all(&self.file, &count.to_be_bytes(), 8).doing(|| "write a pack of the store".to_owned())?;
            let mut chunk = vec![0; BUFFER];
            let mut at = 0;
            while at < flushed {
                let want = usize::try_from(flushed - at).unwrap_or(BUFFER).min(BUFFER);
                let read = files::pread_full(&self.file, &mut chunk[..want], at)
                    .doing(|| "read back a pack of the store".to_owned())?;
                if read < want {
                    return Err(files::damaged("a new pack became shorter while it was written"));
                }
                hash.update(&chunk[..read]);
                at += read as u64;
            }
        }
        hash.update(&self.buffer);
        Ok(hash.finalize())
    }
}

impl Drop for PackWriter<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // Best effort; the next writer empties `tmp`.
            let _ = files::remove(self.tmp, &self.name);
        }
    }
}

impl Finished {
    /// Its index, read back.
    pub(in crate::store) fn index(&self) -> Result<Index, Bad> {
        let file = self.index.1.try_clone().map_err(|error| Error::from_io("cannot duplicate a descriptor", &error))?;
        Index::open(file, self.index_size)
    }

    /// Gives pack and index their names in `packs`; from then on the objects are there. The index comes last: it is what
    /// readers look for.
    pub(in crate::store) fn install(&self, tmp: BorrowedFd<'_>, packs: impl AsFd) -> Result<()> {
        files::rename(tmp, &self.pack.0, &packs, &format!("{}.pack", self.name))?;
        files::rename(tmp, &self.index.0, &packs, &format!("{}.idx", self.name))
    }
}

/// Makes zlib streams; keeps its tables between them.
pub(in crate::store) struct Deflater {
    state: Compress,
    /// Whether a stream was begun and not brought to its end.
    unfinished: bool,
    level: u32,
    out: Vec<u8>,
}

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deflater").field("level", &self.level).finish_non_exhaustive()
    }
}

fn zlib(error: &dyn std::error::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("zlib: {error}"))
}

impl Deflater {
    /// Compresses at `level`, 1 to 9.
    pub(in crate::store) fn new(level: u32) -> Self {
        Self { state: Compress::new(Compression::new(level), true), unfinished: false, level, out: Vec::new() }
    }

    fn reset(&mut self) {
        // A reset in the middle of a stream leaves something of it behind with this backend: the next one would be damaged.
        if std::mem::replace(&mut self.unfinished, true) {
            self.state = Compress::new(Compression::new(self.level), true);
        } else {
            self.state.reset();
        }
    }

    /// Compresses `data` whole.
    pub(in crate::store) fn whole(&mut self, data: &[u8]) -> Result<&[u8]> {
        self.reset();
        self.out.clear();
        // deflateBound: with this much room, one call does it.
        self.out.reserve(data.len() + (data.len() >> 9) + 64);
        loop {
            let done = usize::try_from(self.state.total_in()).unwrap_or(usize::MAX);
            match self.state.compress_vec(&data[done..], &mut self.out, FlushCompress::Finish).map_err(|e| zlib(&e))? {
                Status::StreamEnd => {
                    self.unfinished = false;
                    return Ok(&self.out);
                }
                Status::Ok | Status::BufError => self.out.reserve(4096 + data.len() / 8),
            }
        }
    }

    /// Begins a stream of pieces.
    pub(in crate::store) fn begin(&mut self) {
        self.reset();
        self.out.clear();
        self.out.reserve(128 << 10);
    }

    /// Compresses one more piece (the last if `last`), and hands over what comes out.
    pub(in crate::store) fn piece(
        &mut self,
        mut data: &[u8],
        last: bool,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let flush = if last { FlushCompress::Finish } else { FlushCompress::None };
        loop {
            let before = self.state.total_in();
            let status = self.state.compress_vec(data, &mut self.out, flush).map_err(|e| zlib(&e))?;
            data = &data[(self.state.total_in() - before) as usize..];
            if self.out.len() == self.out.capacity() || status == Status::StreamEnd {
                sink(&self.out)?;
                self.out.clear();
            }
            self.unfinished = status != Status::StreamEnd;
            if !self.unfinished || (!last && data.is_empty()) {
                return Ok(());
            }
        }
    }
}

/// The header of a whole object's entry.
pub(in crate::store) fn header(kind: Kind, size: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(12);
    Entry::write(Body::Whole(kind), size, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use gix::ObjectId;

    use super::{BUFFER, PackWriter};

    /// An entry a little larger than half the buffer once went in front of the header that was still in it.
    #[test]
    fn everything_stands_where_it_was_put() {
        let dir = tempfile::tempdir().unwrap();
        let tmp = std::fs::File::open(dir.path()).unwrap();
        let mut pack = PackWriter::new(tmp.as_fd()).unwrap();
        let mut expected = b"PACK\0\0\0\x02\0\0\0\x07".to_vec();
        for (n, size) in [BUFFER / 2 + 1, 5, BUFFER / 2, BUFFER - 1, 3 * BUFFER, BUFFER, 1].into_iter().enumerate() {
            let data = vec![n as u8; size];
            let id = ObjectId::from_bytes_or_panic(&[n as u8; 20]);
            assert_eq!(pack.append(id, &[&data]).unwrap(), expected.len() as u64);
            expected.extend_from_slice(&data);
        }
        let finished = pack.finish(false).unwrap();
        finished.install(tmp.as_fd(), &tmp).unwrap();
        let written = std::fs::read(dir.path().join(format!("{}.pack", finished.name))).unwrap();
        assert!(written[..written.len() - 20] == expected);
    }
}
