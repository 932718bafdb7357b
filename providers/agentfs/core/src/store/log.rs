//! The log: what was changed since the base was last brought up to date, in batches.
//!
//! A file is a header and then records: `length, checksum, payload`. A payload is a *batch* of rows, which is applied whole or
//! not at all, or a *mark*, which says that everything up to a batch, data included, has reached the disk. A batch that was
//! written survives the death of the process at once, since the system holds it; a power cut, from the mark that covers it.
//!
//! Read back after the process died, all whole batches count. After the machine went down (the header names another boot) only
//! those up to the last mark do, because data of the later ones may never have been written.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::rows::value::{Reader, Writer};

const MAGIC: &[u8] = b"agentfs log 1\n";
const BATCH: u8 = 1;
const MARK: u8 = 2;

/// A row and its value; `None` removes it.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);

/// The end of the log, where it grows.
pub(crate) struct Log {
    directory: PathBuf,
    number: u64,
    file: File,
    length: u64,
    /// The number of the last batch.
    pub(crate) batch: u64,
}

/// What was read of all files.
#[derive(Default)]
pub(crate) struct Found {
    /// The batches in order, each with its number.
    pub(crate) batches: Vec<(u64, Vec<Change>)>,
    /// The last batch that a mark covers.
    pub(crate) marked: u64,
    /// The boots in which the files were begun.
    pub(crate) boots: Vec<String>,
    /// The newest file and how much of it is whole.
    pub(crate) last: Option<(u64, u64)>,
    /// Whole records follow on a damaged one: this is no torn end.
    pub(crate) damaged: bool,
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
        Ok(Self { directory: directory.to_owned(), number, file, length: framed.len() as u64, batch })
    }

    /// Goes on in a file after its first `length` bytes.
    pub(crate) fn resume(directory: &Path, number: u64, length: u64, batch: u64) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path(directory, number))
            .map_err(Error::io("opening the log"))?;
        file.set_len(length).map_err(Error::io("cutting the log's torn end"))?;
        Ok(Self { directory: directory.to_owned(), number, file, length, batch })
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

    /// Says that everything up to the batch has reached the disk, and takes the saying there.
    pub(crate) fn mark(&mut self, batch: u64) -> Result<()> {
        let mut payload = Writer::new(MARK);
        payload.number(batch);
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
            return Err(Error::io("writing the log")(error));
        }
        self.length += framed.len() as u64;
        Ok(())
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

/// Reads what the files hold, oldest first. Costs what is in them, which is bounded by `state`'s limit.
pub(crate) fn read(directory: &Path) -> Result<Found> {
    let mut found = Found::default();
    let all = numbers(directory)?;
    for (nth, &number) in all.iter().enumerate() {
        let mut bytes = Vec::new();
        File::open(path(directory, number))
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(Error::io("reading the log"))?;
        let mut at = 0;
        while let Some((payload, length)) = bytes.get(at..).and_then(record) {
            take(payload, at == 0, &mut found)?;
            at += length;
        }
        if at == 0 {
            // The machine stopped before the header was there: nothing can be behind it.
            continue;
        }
        // A torn end is the end. A damaged record in the middle has whole ones behind it, or a whole file.
        let behind = (at + 1..bytes.len().min(at + (1 << 20))).any(|from| record(&bytes[from..]).is_some());
        found.damaged |= behind || (at < bytes.len() && nth + 1 < all.len() && bytes.len() - at > 8);
        found.last = Some((number, at as u64));
        if found.damaged {
            break;
        }
    }
    Ok(found)
}

fn take(payload: &[u8], header: bool, found: &mut Found) -> Result<()> {
    if header {
        let rest = payload.strip_prefix(MAGIC).ok_or_else(|| Error::corrupt("a log does not begin as one"))?;
        found.boots.push(String::from_utf8_lossy(Reader(rest).bytes()?).into_owned());
        return Ok(());
    }
    let (tag, rest) = payload.split_first().ok_or_else(|| Error::corrupt("a record of the log is empty"))?;
    let mut reader = Reader(rest);
    let number = reader.number()?;
    match *tag {
        MARK => found.marked = found.marked.max(number),
        BATCH => {
            let mut rows = Vec::new();
            while !reader.0.is_empty() {
                let key = reader.bytes()?.to_vec();
                let value = if reader.number()? == 1 { Some(reader.bytes()?.to_vec()) } else { None };
                rows.push((key, value));
            }
            found.batches.push((number, rows));
        }
        _ => return Err(Error::corrupt("a record of the log is of no known kind")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(directory: &Path) -> u64 {
        let mut log = Log::begin(directory, 1, 0, "boot").unwrap();
        for number in 0..10_u8 {
            log.append([(&[number][..], Some(&[7_u8; 40][..])), (b"gone", None)].into_iter()).unwrap();
        }
        log.mark(4).unwrap();
        log.length()
    }

    #[test]
    fn any_torn_end_leaves_the_batches_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let length = fill(directory.path());
        let mut before = 10;
        for cut in (30..length).rev() {
            Log::resume(directory.path(), 1, cut, 0).unwrap();
            let found = read(directory.path()).unwrap();
            assert!(!found.damaged, "cut at {cut}");
            assert!(found.batches.len() <= before && before - found.batches.len() <= 1, "cut at {cut}");
            before = found.batches.len();
        }
        assert_eq!(before, 0);
    }

    #[test]
    fn damage_in_the_middle_is_not_taken_for_a_torn_end() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        let found = read(directory.path()).unwrap();
        assert_eq!((found.batches.len(), found.marked, found.damaged), (10, 4, false));
        assert_eq!(found.boots, ["boot"]);
        let file = OpenOptions::new().write(true).open(path(directory.path(), 1)).unwrap();
        file.write_all_at(b"?", 200).unwrap();
        let found = read(directory.path()).unwrap();
        assert!(found.damaged && found.batches.len() < 10);
    }
}
