//! The base: all rows but the newest, in one B-tree on disk (redb).
//!
//! Written only by checkpoints, each one commit that has reached the disk, with the allocator's state in it, so that opening
//! after a crash does not walk the tree. Beside the rows it keeps which rows each epoch wrote, so that deleting a snapshot
//! looks at what changed rather than at what is there.
//!
//! Why redb rather than SQLite or LMDB: see docs/agentfs.md, with the measurements.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use crate::error::{Error, Result};
use crate::rows::key::{self, Epoch, LineId};
use crate::{lock, platform, read_lock, write_lock};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const WRITTEN: TableDefinition<'_, &[u8], ()> = TableDefinition::new("written");
/// Bytes of the B-tree that are kept in memory at most. In tests so few that the disk is asked for most.
const CACHE: usize = if cfg!(test) { 256 << 10 } else { 32 << 20 };
/// Bytes in which redb keeps which state of the database counts (its format 3): in one byte, which of two slots that state is in, and whether it is the only one that may
/// be looked at, which it is after each commit here.
const HEADER: usize = 4096;
const GOD_BYTE: usize = 9;
const PRIMARY: u8 = 1;
const ONLY: u8 = 4;
const SLOTS: usize = 64;
const SLOT: usize = 128;

/// The database.
///
/// After an error of the disk redb refuses everything, what can be read, too. Then it is opened anew, by whoever notices, and others wait for that: what was committed
/// before is there. After a commit that failed but for want of room nothing is written any more: what the disk has of it is not known.
pub(crate) struct Base {
    path: PathBuf,
    /// Locked while somebody commits.
    open: Mutex<Open>,
}

struct Open {
    /// None: it could not be opened anew.
    database: Option<Database>,
    /// How often it was opened anew.
    times: u64,
    /// How many commits it has had.
    commits: u64,
    /// Whether the disk did not keep one.
    failed: bool,
}

/// The rows as of one checkpoint.
pub(crate) struct Rows {
    base: Arc<Base>,
    commits: u64,
    tables: RwLock<Tables>,
}

struct Tables {
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    written: ReadOnlyTable<&'static [u8], ()>,
    /// How often the database had been opened anew.
    times: u64,
}

/// A row that an epoch wrote: where the index says so, the row's stem, the epoch.
pub(crate) type Written = (Vec<u8>, Vec<u8>, Epoch);

fn failed<E: Into<redb::Error>>(error: E) -> Error {
    match error.into() {
        redb::Error::Io(source) => Error::io("reading or writing the rows")(source),
        error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
            Error::io("reading or writing the rows")(io::Error::other(error))
        }
        redb::Error::DatabaseAlreadyOpen => Error::Busy("another process has the store open"),
        other => Error::corrupt(other.to_string()),
    }
}

fn closed() -> Error {
    failed(redb::Error::DatabaseClosed)
}

/// Whether redb refuses everything since then.
fn is_of_disk(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::NoSpace)
}

/// A page that holds nonsense makes redb panic as often as fail. Both are damage, and end no thread: without some nothing is kept. redb itself gives up the
/// transaction that a panic breaks off.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::corrupt("the rows cannot be read"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

fn open(path: &Path) -> Result<Database> {
    guarded(|| Database::builder().set_cache_size(CACHE).open(path).map_err(failed))
}

impl Base {
    /// Makes an empty one.
    pub(crate) fn create(path: &Path) -> Result<()> {
        write(&Database::builder().create(path).map_err(failed)?, std::iter::empty())
    }

    /// Opens it. One that is missing is a loss: an empty one in its place would make all contents look superfluous.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::corrupt("the rows are missing"));
        }
        let open = Open { database: Some(open(path)?), times: 0, commits: 0, failed: false };
        Ok(Self { path: path.to_owned(), open: Mutex::new(open) })
    }

    /// Walks everything and compares checksums. False: there was damage, and what could be repaired was.
    pub(crate) fn check(&self) -> Result<bool> {
        let mut open = lock(&self.open);
        guarded(|| open.database.as_mut().ok_or_else(closed)?.check_integrity().map_err(failed))
    }

    /// The rows as they are now; what is written later does not show.
    pub(crate) fn rows(self: &Arc<Self>) -> Result<Rows> {
        let open = lock(&self.open);
        Ok(Rows { base: self.clone(), commits: open.commits, tables: RwLock::new(open.tables()?) })
    }

    /// Writes and removes rows. On return they are on the disk. After an error of the disk none is, or all are.
    pub(crate) fn commit<'a>(&self, changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<()> {
        let mut open = lock(&self.open);
        if open.failed {
            return Err(closed());
        }
        if open.database.is_none() {
            self.open_anew(&mut open)?;
        }
        let before = Before::of(&self.path);
        let written = guarded(|| write(open.database()?, changes));
        match &written {
            Ok(()) => open.commits += 1,
            Err(Error::NoSpace) => {
                open.database = None;
                // On a full disk others wait for it. What could not be given back is used again by redb.
                let _ = before.and_then(|before| before.bring_back(&self.path));
                // If that fails, the next who needs it tries again.
                let _ = self.open_anew(&mut open);
            }
            Err(error) => open.failed = is_of_disk(error),
        }
        written
    }

    fn open_anew(&self, of: &mut Open) -> Result<()> {
        // First: its file is locked.
        of.database = None;
        of.database = Some(open(&self.path)?);
        of.times += 1;
        Ok(())
    }

    /// Bytes that the disk has given its file.
    pub(crate) fn size(&self) -> Result<u64> {
        let file = std::fs::metadata(&self.path).map_err(Error::io("looking at the rows"))?;
        Ok(std::os::unix::fs::MetadataExt::blocks(&file) * 512)
    }
}

/// Of the database's file before a commit: its header, and where it held nothing.
struct Before {
    header: [u8; HEADER],
    holes: Vec<Range<u64>>,
}

impl Before {
    fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let (mut holes, mut at) = (Vec::new(), 0);
        while let Some(data) = platform::seek(&file, at, false)? {
            holes.push(at..data);
            at = platform::seek(&file, data, true)?.unwrap_or(u64::MAX);
        }
        holes.push(at..u64::MAX);
        Ok(Self { header, holes })
    }

    /// Gives back what was written since in vain. Where another state counts now it may not have been.
    fn bring_back(self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let (mut header, length) = ([0; HEADER], file.metadata()?.len());
        file.read_exact_at(&mut header, 0)?;
        if counts(&header).is_none() || counts(&header) != counts(&self.header) {
            return Ok(());
        }
        let holes = self.holes.into_iter().map(|hole| hole.start..hole.end.min(length));
        holes
            .filter(|hole| !hole.is_empty())
            .try_for_each(|hole| platform::punch(&file, hole.start, hole.end - hole.start).map(drop))
    }
}

/// The state that counts, as a header has it, if no other does.
fn counts(header: &[u8; HEADER]) -> Option<&[u8]> {
    let slot = SLOTS + usize::from(header[GOD_BYTE] & PRIMARY) * SLOT;
    (header[GOD_BYTE] & ONLY != 0).then(|| &header[slot..slot + SLOT])
}

impl Open {
    fn database(&self) -> Result<&Database> {
        self.database.as_ref().ok_or_else(closed)
    }

    fn tables(&self) -> Result<Tables> {
        guarded(|| {
            let read = self.database()?.begin_read().map_err(failed)?;
            let (rows, written) = (read.open_table(ROWS), read.open_table(WRITTEN));
            Ok(Tables { rows: rows.map_err(failed)?, written: written.map_err(failed)?, times: self.times })
        })
    }
}

fn write<'a>(database: &Database, changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<()> {
    let mut write = database.begin_write().map_err(failed)?;
    write.set_durability(Durability::Immediate).map_err(|error| Error::corrupt(error.to_string()))?;
    write.set_quick_repair(true);
    {
        let mut rows = write.open_table(ROWS).map_err(failed)?;
        let mut written = write.open_table(WRITTEN).map_err(failed)?;
        for (row, value) in changes {
            let index = if key::is_versioned(row) { Some(index(row)?) } else { None };
            match value {
                Some(value) => {
                    rows.insert(row, value).map_err(failed)?;
                    if let Some(index) = index {
                        written.insert(index.as_slice(), ()).map_err(failed)?;
                    }
                }
                None => {
                    rows.remove(row).map_err(failed)?;
                    if let Some(index) = index {
                        written.remove(index.as_slice()).map_err(failed)?;
                    }
                }
            }
        }
    }
    write.commit().map_err(failed)
}

/// The key under which it is kept that an epoch wrote a row.
fn index(row: &[u8]) -> Result<Vec<u8>> {
    let (stem, line, epoch) = key::split(row)?;
    let mut index = key::of_line(b'w', line, Some(epoch));
    index.extend_from_slice(stem);
    Ok(index)
}

impl Rows {
    /// Reads them; once more where the database had to be opened anew.
    fn read<T>(&self, read: impl Fn(&Tables) -> Result<T>) -> Result<T> {
        #[cfg(test)]
        failing::read()?;
        let (answer, times) = {
            let tables = read_lock(&self.tables);
            (guarded(|| read(&tables)), tables.times)
        };
        match answer {
            Err(error) if self.renew(&error, times) => guarded(|| read(&read_lock(&self.tables))),
            answer => answer,
        }
    }

    /// After an error takes them from the database that was opened anew, if it has had no commit since they were taken. `times`: how often it had been when they
    /// could not be read.
    fn renew(&self, error: &Error, times: u64) -> bool {
        if !is_of_disk(error) {
            return false;
        }
        let mut open = lock(&self.base.open);
        let is_anew = open.database.is_some() && open.times > times;
        if open.commits != self.commits || !is_anew && self.base.open_anew(&mut open).is_err() {
            return false;
        }
        open.tables().map(|fresh| *write_lock(&self.tables) = fresh).is_ok()
    }

    pub(crate) fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read(|tables| Ok(tables.rows.get(row).map_err(failed)?.map(|value| value.value().to_vec())))
    }

    /// The last row within the bounds.
    pub(crate) fn last(&self, from: &[u8], to: Bound<&[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.read(|tables| {
            let mut range = tables.rows.range::<&[u8]>((Bound::Included(from), to)).map_err(failed)?;
            let last = range.next_back().transpose().map_err(failed)?;
            Ok(last.map(|(row, value)| (row.value().to_vec(), value.value().to_vec())))
        })
    }

    /// The rows from `from` on, in order.
    pub(crate) fn from(
        self: &Arc<Self>,
        from: &[u8],
    ) -> Result<impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + use<>> {
        let rows = self.clone();
        let range = move |from: &Bound<Vec<u8>>| {
            let from = from.as_ref().map(Vec::as_slice);
            rows.read(|tables| {
                Ok((tables.rows.range::<&[u8]>((from, Bound::Unbounded)).map_err(failed)?, tables.times))
            })
        };
        let rows = self.clone();
        let mut behind = Bound::Included(from.to_vec());
        let (mut left, mut times) = range(&behind)?;
        let mut next = move || {
            #[cfg(test)]
            failing::read()?;
            let mut item = step(&mut left);
            if item.as_ref().is_err_and(|error| rows.renew(error, times)) {
                (left, times) = range(&behind)?;
                item = step(&mut left);
            }
            if let Ok(Some((row, _))) = &item {
                behind = Bound::Excluded(row.clone());
            }
            item
        };
        Ok(std::iter::from_fn(move || next().transpose()))
    }

    /// Up to `most` rows that the epochs of the line wrote, behind `after`: the index's key, the stem, the epoch.
    pub(crate) fn written(
        &self,
        line: LineId,
        epochs: (Epoch, Epoch),
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<Vec<Written>> {
        let first = key::of_line(b'w', line, Some(epochs.0));
        let from = after.map_or(Bound::Included(first.as_slice()), Bound::Excluded);
        self.read(|tables| tables.written_from(from, line, epochs.1, most))
    }
}

fn step(range: &mut redb::Range<'static, &'static [u8], &'static [u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    guarded(|| {
        let next = range.next().transpose().map_err(failed)?;
        Ok(next.map(|(row, value)| (row.value().to_vec(), value.value().to_vec())))
    })
}

impl Tables {
    fn written_from(&self, from: Bound<&[u8]>, line: LineId, until: Epoch, most: usize) -> Result<Vec<Written>> {
        let mut found = Vec::new();
        for item in self.written.range::<&[u8]>((from, Bound::Unbounded)).map_err(failed)?.take(most) {
            let (index, _) = item.map_err(failed)?;
            let index = index.value();
            if index.len() < 13 {
                return Err(Error::corrupt("a key is too short"));
            }
            let (of, epoch) = (key::be32(&index[1..5]), key::be64(&index[5..13]));
            if of != line || epoch > until {
                break;
            }
            found.push((index.to_vec(), index[13..].to_vec(), epoch));
        }
        Ok(found)
    }
}

/// Which read of rows by this thread fails, for tests: so many come before it.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::Cell;

    thread_local! {
        static AFTER: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// `None`: none does.
    pub(crate) fn after(reads: Option<u32>) {
        AFTER.set(reads);
    }

    /// Whether it has failed, or none was to.
    pub(crate) fn is_over() -> bool {
        AFTER.get().is_none()
    }

    pub(super) fn read() -> super::Result<()> {
        let left = AFTER.get();
        AFTER.set(left.and_then(|left| left.checked_sub(1)));
        if left == Some(0) {
            return Err(super::Error::io("reading rows")(std::io::Error::other("as a test wants it")));
        }
        Ok(())
    }
}
