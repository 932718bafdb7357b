//! The base: all rows but the newest, in one B-tree on disk (redb).
//!
//! Written only by checkpoints, each one commit that has reached the disk, with the allocator's state in it, so that opening
//! after a crash does not walk the tree. Beside the rows it keeps which rows each epoch wrote, so that deleting a snapshot
//! looks at what changed rather than at what is there.
//!
//! Why redb rather than SQLite or LMDB: see docs/agentfs.md, with the measurements.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

use crate::error::{Error, Result};
use crate::rows::key::{self, Epoch, LineId};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const WRITTEN: TableDefinition<'_, &[u8], ()> = TableDefinition::new("written");
/// Bytes of the B-tree that are kept in memory at most.
const CACHE: usize = 32 << 20;

/// The database.
pub(crate) struct Base {
    database: Database,
}

/// The rows as of one checkpoint.
pub(crate) struct Rows {
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    written: ReadOnlyTable<&'static [u8], ()>,
}

/// A row that an epoch wrote: where the index says so, the row's stem, the epoch.
pub(crate) type Written = (Vec<u8>, Vec<u8>, Epoch);

fn failed<E: Into<redb::Error>>(error: E) -> Error {
    match error.into() {
        redb::Error::Io(source) => Error::io("reading or writing the rows")(source),
        redb::Error::DatabaseAlreadyOpen => Error::Busy("another process has the store open"),
        other => Error::corrupt(other.to_string()),
    }
}

/// A page that holds nonsense makes redb panic as often as fail. Both are damage, and end no thread: without some nothing is kept. redb itself gives up the
/// transaction that a panic breaks off.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::corrupt("the rows cannot be read"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

impl Base {
    /// Makes an empty one.
    pub(crate) fn create(path: &Path) -> Result<()> {
        let base = Self { database: Database::builder().create(path).map_err(failed)? };
        base.commit(std::iter::empty())
    }

    /// Opens it. One that is missing is a loss: an empty one in its place would make all contents look superfluous.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(Error::corrupt("the rows are missing"));
        }
        guarded(|| Ok(Self { database: Database::builder().set_cache_size(CACHE).open(path).map_err(failed)? }))
    }

    /// Walks everything and compares checksums. False: there was damage, and what could be repaired was.
    pub(crate) fn check(&mut self) -> Result<bool> {
        guarded(|| self.database.check_integrity().map_err(failed))
    }

    /// The rows as they are now; what is written later does not show.
    pub(crate) fn rows(&self) -> Result<Rows> {
        guarded(|| {
            let read = self.database.begin_read().map_err(failed)?;
            let (rows, written) = (read.open_table(ROWS), read.open_table(WRITTEN));
            Ok(Rows { rows: rows.map_err(failed)?, written: written.map_err(failed)? })
        })
    }

    /// Writes and removes rows. On return they are on the disk.
    pub(crate) fn commit<'a>(&self, changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<()> {
        guarded(|| self.write(changes))
    }

    fn write<'a>(&self, changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<()> {
        let mut write = self.database.begin_write().map_err(failed)?;
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
}

/// The key under which it is kept that an epoch wrote a row.
fn index(row: &[u8]) -> Result<Vec<u8>> {
    let (stem, line, epoch) = key::split(row)?;
    let mut index = key::of_line(b'w', line, Some(epoch));
    index.extend_from_slice(stem);
    Ok(index)
}

impl Rows {
    pub(crate) fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        #[cfg(test)]
        failing::read()?;
        guarded(|| Ok(self.rows.get(row).map_err(failed)?.map(|value| value.value().to_vec())))
    }

    /// The last row within the bounds.
    pub(crate) fn last(&self, from: &[u8], to: Bound<&[u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        #[cfg(test)]
        failing::read()?;
        guarded(|| {
            let mut range = self.rows.range::<&[u8]>((Bound::Included(from), to)).map_err(failed)?;
            let last = range.next_back().transpose().map_err(failed)?;
            Ok(last.map(|(row, value)| (row.value().to_vec(), value.value().to_vec())))
        })
    }

    /// The rows from `from` on, in order.
    pub(crate) fn from(&self, from: &[u8]) -> Result<impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + use<>> {
        #[cfg(test)]
        failing::read()?;
        let mut range = guarded(|| self.rows.range::<&[u8]>(from..).map_err(failed))?;
        Ok(std::iter::from_fn(move || {
            let next = || {
                #[cfg(test)]
                failing::read()?;
                let next = range.next().transpose().map_err(failed)?;
                Ok(next.map(|(row, value)| (row.value().to_vec(), value.value().to_vec())))
            };
            guarded(next).transpose()
        }))
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
        #[cfg(test)]
        failing::read()?;
        guarded(|| self.written_from(from, line, epochs.1, most))
    }

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
