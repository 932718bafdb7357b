//! The log: what was changed since the base was last brought up to date, in batches.
//!
//! A file is a header and then records: `length, checksum, payload`. A payload is a *batch* of rows, which is applied whole or
//! not at all, or a *mark*, which says that everything up to a batch, data included, has reached the disk. A mark may bring data
//! along, which then need not have reached its place. A batch that was written survives the death of the process at once, since
//! the system holds it; a power cut, from the mark that covers it.
//!
//! Behind its end a file holds zeros, written ahead: what is written over them takes the disk less to keep than what makes a file longer. No batch
//! is all zeros.
//!
//! Read back after the process died, all whole batches count. After the machine went down (the header names another boot) only
//! those up to the last mark do, because data of the later ones may never have been written.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::rows::key;
use crate::rows::value::{Reader, Writer};
use crate::store::segments::Written;

const MAGIC: &[u8] = b"agentfs log 1\n";
const BATCH: u8 = 1;
const MARK: u8 = 2;
const MARK_WITH_CONTENTS: u8 = 3;

/// Zeros that are written ahead at a time, in bytes.
const AHEAD: usize = 256 << 10;
/// The disk must have so many times that left: what is left is for who writes.
const SPARE: u64 = 256;

/// What the disk must have left beside a copy of a damaged log, in bytes: the repair needs some.
const ROOM: u64 = 1 << 20;

/// How the name of a file ends that is to replace one of the log.
const CUT: &str = "cut";

/// A row and its value; `None` removes it.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);

/// The end of the log, where it grows.
pub(crate) struct Log {
    directory: PathBuf,
    number: u64,
    file: File,
    length: u64,
    /// Up to where there are zeros behind it.
    ahead: u64,
    /// The number of the last batch.
    pub(crate) batch: u64,
}

/// What was read of all files.
#[derive(Default)]
pub(crate) struct Found {
    /// The batches that count and that the base does not hold yet, in order.
    pub(crate) batches: Vec<Vec<Change>>,
    /// The number of the last batch that counts.
    pub(crate) last: u64,
    /// What may not have reached its place in the segments, in the order in which it was written. Nothing if batches of the present boot came
    /// behind it: what they write is in its place, and may be newer.
    pub(crate) contents: Vec<Written>,
    /// The files, oldest first.
    pub(crate) files: Vec<Piece>,
    /// Something that was kept is behind what cannot be read: this is no torn end.
    pub(crate) damaged: bool,
    /// The disk could not read all of it, so that nobody knows what else is behind what counts.
    pub(crate) unread: bool,
    /// How many batches do not count then, those included that cannot be read.
    pub(crate) gone: u64,
    /// The snapshots that were taken in those, as far as they can be read.
    pub(crate) snapshots: BTreeSet<u64>,
}

impl Found {
    /// Whether that file is there, with its header.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.files.iter().any(|file| file.number == number && file.counts > 0)
    }

    /// Bytes that do not count.
    pub(crate) fn rest(&self) -> u64 {
        self.files.iter().map(|file| file.length - file.counts).sum()
    }
}

/// How much of a file counts.
pub(crate) struct Piece {
    pub(crate) number: u64,
    /// Bytes; 0: not even the header.
    pub(crate) counts: u64,
    /// Without the zeros at its end.
    pub(crate) length: u64,
    /// The disk could not read some of it.
    pub(crate) unread: bool,
    /// Whether it was begun in the present boot.
    pub(crate) present: bool,
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:010}.log"))
}

/// The numbers of the files there are, oldest first.
pub(crate) fn numbers(directory: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(Error::io("listing the log"))? {
        let name = entry.map_err(Error::io("listing the log"))?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok()) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Bytes in all files.
pub(crate) fn size(directory: &Path) -> Result<u64> {
    let sizes = numbers(directory)?.into_iter().map(|number| std::fs::metadata(path(directory, number)));
    sizes.map(|file| Ok(file.map_err(Error::io("looking at the log"))?.len())).sum()
}

/// The files before this one, open.
pub(crate) fn older(directory: &Path, than: u64) -> Result<Vec<File>> {
    let older = numbers(directory)?.into_iter().filter(|&number| number < than);
    older.map(|number| File::open(path(directory, number)).map_err(Error::io("opening an old log"))).collect()
}

impl Log {
    /// Begins a new file. `batch`: the number of the last batch before it.
    pub(crate) fn begin(directory: &Path, number: u64, batch: u64, boot: &str) -> Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path(directory, number))
            .map_err(Error::io("beginning a log"))?;
        let mut header = Writer(MAGIC.to_vec());
        header.bytes(boot.as_bytes());
        let framed = frame(&header.0);
        file.write_all(&framed).map_err(Error::io("beginning a log"))?;
        let length = framed.len() as u64;
        Ok(Self { directory: directory.to_owned(), number, file, length, ahead: length, batch })
    }

    /// Goes on in a file after its first `length` bytes.
    pub(crate) fn resume(directory: &Path, number: u64, length: u64, batch: u64) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path(directory, number))
            .map_err(Error::io("opening the log"))?;
        file.set_len(length).map_err(Error::io("cutting the log's torn end"))?;
        Ok(Self { directory: directory.to_owned(), number, file, length, ahead: length, batch })
    }

    /// One that is not written to, of a store that is only looked at.
    pub(crate) fn at_rest(directory: &Path, number: u64, batch: u64) -> Result<Self> {
        let file = File::open(directory).map_err(Error::io("opening the log"))?;
        Ok(Self { directory: directory.to_owned(), number, file, length: 0, ahead: 0, batch })
    }

    /// Bytes written so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// This file's number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Appends a batch and gives its number. After an error nothing of it is there.
    pub(crate) fn append<'a>(&mut self, rows: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<u64> {
        let mut payload = Writer::new(BATCH);
        payload.number(self.batch + 1);
        for (key, value) in rows {
            payload.bytes(key);
            match value {
                Some(value) => payload.number(1).bytes(value),
                None => payload.number(0),
            };
        }
        self.write(&payload.0)?;
        self.batch += 1;
        Ok(self.batch)
    }

    /// Says that everything up to the batch has reached the disk, once this has. `before`: the last batch that was covered by a mark when that had reached
    /// the disk.
    pub(crate) fn mark(&mut self, batch: u64, before: u64) -> Result<()> {
        let mut payload = Writer::new(MARK);
        payload.number(batch).number(before);
        self.write(&payload.0)
    }

    /// As [`Log::mark`], with the contents that were written since the last mark, which need not have reached the disk otherwise.
    pub(crate) fn mark_with(&mut self, batch: u64, before: u64, contents: &[Written]) -> Result<()> {
        let mut payload = Writer::new(MARK_WITH_CONTENTS);
        payload.number(batch).number(before);
        for (from, bytes) in contents {
            payload.number(*from).bytes(bytes);
        }
        self.write(&payload.0)
    }

    /// For syncing outside of the lock that guards the log.
    pub(crate) fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(Error::io("opening the log"))
    }

    fn write(&mut self, payload: &[u8]) -> Result<()> {
        let framed = frame(payload);
        if let Err(error) = self.file.write_all_at(&framed, self.length) {
            // Half a record would hide what is written behind it later.
            self.file.set_len(self.length).map_err(Error::io("cutting the log"))?;
            self.ahead = self.length;
            return Err(Error::io("writing the log")(error));
        }
        self.length += framed.len() as u64;
        self.ahead = self.ahead.max(self.length);
        Ok(())
    }

    /// Writes zeros ahead where there are few left, for who waits for the disk next. Best effort: without them that takes longer.
    pub(crate) fn write_ahead(&mut self, disk_free: u64) {
        if self.ahead - self.length < AHEAD as u64 / 8 && disk_free > SPARE * AHEAD as u64 {
            match self.file.write_all_at(&[0; AHEAD], self.ahead) {
                Ok(()) => self.ahead += AHEAD as u64,
                // What there is of them is harmless.
                Err(_) => self.ahead = self.length,
            }
        }
    }

    /// Removes all files before this one.
    pub(crate) fn forget_older(&self) -> Result<()> {
        for number in numbers(&self.directory)?.into_iter().filter(|&number| number < self.number) {
            std::fs::remove_file(path(&self.directory, number)).map_err(Error::io("removing an old log"))?;
        }
        Ok(())
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(payload.len() + 8);
    framed.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    framed.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    framed.extend_from_slice(payload);
    framed
}

/// The record at the beginning of `bytes`, and how long it is with its frame; `None` if it is not whole.
fn record(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let payload = rest.get(..u32::from_le_bytes(*length) as usize)?;
    (crc32fast::hash(payload) == u32::from_le_bytes(*checksum) && !payload.is_empty())
        .then_some((payload, payload.len() + 8))
}

/// A record, with where its file is and where it ends in it.
struct Record {
    file: usize,
    end: u64,
    tag: u8,
    number: u64,
    rows: Vec<Change>,
    contents: Vec<Written>,
}

/// What a file holds, and up to where the disk could not read some of it: zeros stand for those blocks.
fn bytes_of(path: &Path) -> io::Result<(Vec<u8>, usize)> {
    let is_of_disk = |error: &io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    match file.read_to_end(&mut bytes) {
        Err(error) if is_of_disk(&error) => {}
        read => return read.map(|_| (bytes, 0)),
    }
    bytes.clear();
    bytes.resize(file.metadata()?.len() as usize, 0);
    let (mut at, mut unread) = (0, 0);
    for block in bytes.chunks_mut(BLOCK as usize) {
        let read = file.read_exact_at(block, at as u64);
        at += block.len();
        match read {
            Err(error) if is_of_disk(&error) => {
                block.fill(0);
                unread = at;
            }
            read => read?,
        }
    }
    Ok((bytes, unread))
}

/// Reads what the files hold, oldest first, as far as it counts: batches in unbroken order, and of another boot only those that a mark
/// covers. `in_base`: the last batch that the base holds. Costs what is in the files, whose size the engine bounds.
pub(crate) fn read(directory: &Path, boot: &str, in_base: u64) -> Result<Found> {
    let mut found = Found { last: in_base, ..Found::default() };
    let mut records = Vec::new();
    // The highest batch and the highest mark that lie behind a place that cannot be read.
    let mut behind = Behind::default();
    // The same behind a header that cannot be read, though it was written: nobody knows of which boot that was.
    let mut headless = 0;
    for (file, number) in numbers(directory)?.into_iter().enumerate() {
        let (bytes, unread) = bytes_of(&path(directory, number)).map_err(Error::io("reading the log"))?;
        let mut piece = Piece { number, counts: 0, length: bytes.len() as u64, unread: unread > 0, present: false };
        let mut at = 0;
        while let Some((payload, length)) = bytes.get(at..).and_then(record) {
            at += length;
            if at == length {
                piece.present = header(payload)? == boot.as_bytes();
                piece.counts = at as u64;
            } else {
                records.push(take(payload, file, at as u64)?);
            }
        }
        let beyond = records.iter().map(|read: &Record| read.number).max().unwrap_or(0).max(in_base);
        let rest = bytes.get(at..).unwrap_or_default();
        // Zeros at the end were written ahead, and need not be cut off.
        let written = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        // In a record that is whole it was zeros.
        let unread = unread.saturating_sub(at);
        found.unread |= unread > 0;
        let written = written.max(unread);
        piece.length = (at + written) as u64;
        if written > 0 {
            let of = search(rest, beyond);
            if at == 0 && rest.iter().take(8).any(|&byte| byte != 0) {
                headless = of.batch.max(headless);
            }
            behind.add(of);
        }
        found.files.push(piece);
    }
    let known = records.iter().map(|read| read.number).max().unwrap_or(0).max(behind.batch).max(behind.mark);
    let marked = records.iter().filter(|read| read.tag != BATCH).map(|read| read.number).max().unwrap_or(0);
    let mut broken = false;
    let mut brought = 0;
    for Record { file, end, tag, number, rows, contents } in records {
        let Some(piece) = found.files.get_mut(file) else { continue };
        if tag == BATCH && number > in_base {
            if number != found.last + 1 || broken || !(piece.present || number <= marked) {
                // A process that is killed leaves nothing behind what it did not write; a power cut may, as far as no mark says otherwise.
                found.damaged |= piece.present && !broken && number > found.last + 1;
                broken = true;
                behind.note(&rows);
                continue;
            }
            found.last = number;
            found.batches.push(rows);
        }
        match tag {
            // All that was written before it has reached its place, as it has before rows are in the base.
            MARK => found.contents.clear(),
            MARK_WITH_CONTENTS if number > in_base => {
                found.contents.extend(contents);
                brought = number;
            }
            _ => {}
        }
        if !broken {
            piece.counts = end;
        }
    }
    if found.last > brought && found.files.iter().any(|piece| piece.present) {
        found.contents.clear();
    }
    let present = found.files.iter().all(|piece| piece.present);
    found.damaged |= found.unread;
    found.damaged |= marked.max(behind.mark).max(headless) > found.last || (present && behind.batch > found.last);
    found.gone = known.saturating_sub(found.last);
    found.snapshots = behind.snapshots;
    Ok(found)
}

/// What lies behind a place that cannot be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Behind {
    /// The highest batch.
    batch: u64,
    /// The highest batch that a mark covers.
    mark: u64,
    /// The snapshots that were taken in those batches.
    snapshots: BTreeSet<u64>,
}

impl Behind {
    fn add(&mut self, other: Self) {
        self.batch = other.batch.max(self.batch);
        self.mark = other.mark.max(self.mark);
        self.snapshots.extend(other.snapshots);
    }

    fn note(&mut self, rows: &[Change]) {
        let taken = rows.iter().filter(|(row, value)| row.first() == Some(&b's') && value.is_some());
        self.snapshots.extend(taken.map(|(row, _)| key::number(row)));
    }
}

/// Looks for whole records behind one that is not: the highest batch and the highest mark, both of more than `beyond`. What files hold
/// may look like a record; that its number fits, too, is unlikely.
fn search(bytes: &[u8], beyond: u64) -> Behind {
    let mut found = Behind::default();
    // A record has ten bytes at least.
    let most = beyond + bytes.len() as u64 / 10 + 1;
    // Enough to look at each byte a few times.
    let mut budget = bytes.len() * 4;
    for from in 1..bytes.len() {
        let Some((&[a, b, c, d, _, _, _, _, tag], rest)) = bytes.get(from..).and_then(<[u8]>::split_first_chunk::<9>)
        else {
            break;
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let mut reader = Reader(rest);
        let Ok(number) = reader.number() else { continue };
        let short = tag == MARK && length <= 21;
        if !(short || tag == BATCH || tag == MARK_WITH_CONTENTS)
            || number <= beyond
            || number > most
            || length > rest.len() + 1
            || length > budget
        {
            continue;
        }
        budget -= length;
        if let Some((payload, _)) = bytes.get(from..).and_then(record) {
            let Behind { batch, mark, .. } = &mut found;
            match tag {
                BATCH => {
                    *batch = number.max(*batch);
                    if let Ok(read) = take(payload, 0, 0) {
                        found.note(&read.rows);
                    }
                }
                // The disk may have been about to take it, before what it covers; what is certain is what it had taken before. Older marks do not tell.
                MARK => {
                    let mut told = Reader(rest.get(..length - 1).unwrap_or_default());
                    match told.number().and_then(|_| told.number()) {
                        Ok(before) => (*batch, *mark) = (number.max(*batch), before.max(*mark)),
                        Err(_) => *mark = number.max(*mark),
                    }
                }
                _ => (*batch, *mark) = (number.max(*batch), reader.number().unwrap_or(0).max(*mark)),
            }
        }
    }
    found
}

/// The boot of which a file's first record says that it was begun in it.
fn header(payload: &[u8]) -> Result<&[u8]> {
    let rest = payload.strip_prefix(MAGIC).ok_or_else(|| Error::corrupt("a log does not begin as one"))?;
    Reader(rest).bytes()
}

fn take(payload: &[u8], file: usize, end: u64) -> Result<Record> {
    let (&tag, rest) = payload.split_first().ok_or_else(|| Error::corrupt("a record of the log is empty"))?;
    let mut reader = Reader(rest);
    let number = reader.number()?;
    let (mut rows, mut contents) = (Vec::new(), Vec::new());
    match tag {
        MARK => {}
        MARK_WITH_CONTENTS => {
            reader.number()?;
            while !reader.0.is_empty() {
                contents.push((reader.number()?, reader.bytes()?.to_vec()));
            }
        }
        BATCH => {
            while !reader.0.is_empty() {
                let key = reader.bytes()?.to_vec();
                let value = if reader.number()? == 1 { Some(reader.bytes()?.to_vec()) } else { None };
                rows.push((key, value));
            }
        }
        _ => return Err(Error::corrupt("a record of the log is of no known kind")),
    }
    Ok(Record { file, end, tag, number, rows, contents })
}

/// Where a damaged log was kept as it was.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) names: Vec<String>,
    /// Some of it was not.
    pub(crate) had_no_room: bool,
}

/// Keeps what is about to be cut off of a damaged log, and all before it: each file as `<number>.damaged`, which nothing reads, with a number behind that where there is one. One that the
/// disk cannot read everywhere is kept itself, as it may be read another time; of others that is a copy, and on a disk that would be full then they are cut all the same. `free`: bytes that
/// the disk has left.
pub(crate) fn set_aside(directory: &Path, files: &[Piece], free: impl Fn() -> Result<u64>) -> Result<Kept> {
    let mut kept = Kept::default();
    for piece in files.iter().filter(|piece| piece.counts < piece.length) {
        let from = path(directory, piece.number);
        if piece.unread {
            let linked = under_free_name(piece.number, |name| std::fs::hard_link(&from, directory.join(name)));
            kept.names.push(linked.map_err(Error::io("keeping the damaged log"))?.0);
            continue;
        }
        if free()? < piece.length + ROOM {
            kept.had_no_room = true;
            continue;
        }
        let made = under_free_name(piece.number, |name| File::create_new(directory.join(name)));
        let (name, mut to) = made.map_err(Error::io("keeping the damaged log"))?;
        let copied = File::open(&from)
            .and_then(|from| io::copy(&mut from.take(piece.length), &mut to))
            .and_then(|_| to.sync_all());
        match copied.map_err(Error::io("keeping the damaged log")) {
            Ok(()) => kept.names.push(name),
            Err(error) => {
                // Half of it is of no use.
                let _ = std::fs::remove_file(directory.join(&name));
                if !matches!(error, Error::NoSpace) {
                    return Err(error);
                }
                kept.had_no_room = true;
            }
        }
    }
    sync_names(directory).map_err(Error::io("keeping the damaged log"))?;
    Ok(kept)
}

/// Makes something under the first name of a damaged log that is not taken.
fn under_free_name<T>(number: u64, make: impl Fn(&str) -> io::Result<T>) -> io::Result<(String, T)> {
    let mut name = format!("{number:010}.damaged");
    let mut nth = 0;
    loop {
        match make(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => nth += 1,
            made => return Ok((name, made?)),
        }
        name = format!("{number:010}.damaged.{nth}");
    }
}

/// Cuts off what does not count, and takes that to the disk before anything is written behind it.
pub(crate) fn cut(directory: &Path, files: &[Piece]) -> Result<()> {
    for piece in files.iter().filter(|piece| piece.counts < piece.length) {
        let path = path(directory, piece.number);
        let cut = match piece.unread {
            true => replace(directory, &path, piece.counts),
            false => OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(piece.counts).and_then(|()| file.sync_all())),
        };
        cut.map_err(Error::io("cutting the log's torn end"))?;
    }
    sweep(directory).map_err(Error::io("cutting the log's torn end"))
}

/// Has a new file with the first bytes of this one in its place: the file itself is kept under another name.
fn replace(directory: &Path, path: &Path, counts: u64) -> io::Result<()> {
    let (bytes, _) = bytes_of(path)?;
    let new = path.with_extension(CUT);
    let mut file = File::create(&new)?;
    file.write_all(bytes.get(..counts as usize).unwrap_or(&bytes))?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    sync_names(directory)
}

/// Removes what was to replace a file when that was broken off.
fn sweep(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == CUT) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests;
