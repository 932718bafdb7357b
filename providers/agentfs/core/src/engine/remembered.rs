//! The names in the directories below, as they were when a base was taken: written down behind the base, so that its snapshots know them once somebody has changed
//! them.
//!
//! Of a directory that has changed before it was its turn nothing is written down, but of one that is a repository, where something changes all the time: that is written down as it is by then.
//! One that has not changed since needs none of it. Repositories' objects come later (`objects`).

use crate::engine::Engine;
use crate::engine::objects::store_in;
use crate::error::{Error, Result};
use crate::lower::{Found, Listed, join};
use crate::rows::key::{self, LineId};
use crate::rows::value::{Reader, Writer};
use crate::state::{Row, State};
use crate::types::{Kind, Time};
use crate::{lock, read_lock, write_lock};

/// Larger lists are not written down, in bytes.
pub(super) const LARGEST: usize = 1 << 20;
/// Rows that are removed while others wait.
const STEP: usize = 128;

/// A directory below, as it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) ino: u64,
    pub(crate) birth: Time,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    /// By name.
    pub(crate) names: Vec<Listed>,
}

impl Remembered {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(self.ino).time(self.birth);
        writer.number(u64::from(self.mode)).number(u64::from(self.uid)).number(u64::from(self.gid)).time(self.mtime);
        for (name, ino, kind) in &self.names {
            writer.bytes(name).number(*ino).number(*kind as u64);
        }
        writer.0
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut reader = Reader(row);
        let mut remembered = Self {
            ino: reader.number()?,
            birth: reader.time()?,
            mode: reader.small()?,
            uid: reader.small()?,
            gid: reader.small()?,
            mtime: reader.time()?,
            names: Vec::new(),
        };
        while !reader.0.is_empty() {
            let (name, ino) = (reader.bytes()?.to_vec(), reader.number()?);
            let kind = u8::try_from(reader.number()?).ok().and_then(Kind::from_u8);
            let kind = kind.ok_or_else(|| Error::corrupt("a name below is of no known kind"))?;
            remembered.names.push((name, ino, kind));
        }
        Ok(remembered)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Listed> {
        let at = self.names.binary_search_by(|(known, _, _)| known.as_slice().cmp(name)).ok()?;
        self.names.get(at)
    }

    /// Whether that is the directory.
    pub(crate) fn is(&self, found: &Found) -> bool {
        (self.ino, self.birth) == (found.ino, found.btime)
    }
}

/// The directories in one of those names that are written down with the others: not the store of a repository.
fn directories_in(path: &[u8], names: &[Listed], store: Option<u64>) -> Vec<Vec<u8>> {
    let below = names.iter().filter(|(_, ino, kind)| *kind == Kind::Directory && store != Some(*ino));
    below.map(|(name, _, _)| join(path, name)).collect()
}

/// Of a directory, when that base was taken: its names (`b`), or its files' fingerprints (`h`).
pub(super) fn row_of(kind: u8, base: LineId, path: &[u8]) -> Vec<u8> {
    let mut row = key::of_line(kind, base, None);
    row.extend_from_slice(path);
    row
}

impl Engine {
    /// Writes the names down that are in the directories below since the base was taken. Costs listing all of them. Ends early when the base is gone or the
    /// store is being closed; gives whether it did not.
    pub(crate) fn remember_names(&self, base: LineId) -> Result<bool> {
        let isolates = self.isolates(base)?;
        let mut waiting = vec![Vec::new()];
        while let Some(path) = waiting.pop() {
            let Some(time) = self.base_seen(&read_lock(&self.state), base).filter(|_| !self.is_stopped()) else {
                return Ok(false);
            };
            let row = row_of(b'b', base, &path);
            // Before a kill. Another may be there now.
            if let Some(then) = self.remembered(base, &path)? {
                let store = store_in(then.birth, &then.names).filter(|_| isolates);
                waiting.extend(directories_in(&path, &then.names, store));
                continue;
            }
            // One that cannot be read is none of this user's, here and in branches.
            let Some((found, names, unchanged)) = self.look_in(&path) else { continue };
            let store = store_in(found.btime, &names).filter(|_| isolates);
            waiting.extend(directories_in(&path, &names, store));
            // One that came later is in no branch.
            let is_repository = store.is_some() && found.btime <= time;
            if found.device != 0 || !is_repository && (self.lower.is_later(found.ctime, time) || !unchanged) {
                continue;
            }
            let Found { ino, btime: birth, mode, uid, gid, mtime, .. } = found;
            let value = Remembered { ino, birth, mode, uid, gid, mtime, names }.encode();
            if value.len() > LARGEST {
                continue;
            }
            self.room_for_rows()?;
            let mut state = write_lock(&self.state);
            if self.base_seen(&state, base).is_none() {
                return Ok(false);
            }
            state.layers.put(&row, value);
            drop(state);
            self.wake();
        }
        Ok(true)
    }

    /// A directory below and the names in it, and whether its time says that they are of one moment; `None`: there is none that can be read.
    pub(super) fn look_in(&self, path: &[u8]) -> Option<(Found, Vec<Listed>, bool)> {
        for last in [false, false, true] {
            let found = self.lower.find(path).ok()?.filter(|found| found.kind == Kind::Directory)?;
            let mut names = self.lower.list(path).ok()?;
            names.sort_unstable();
            let same = |now: &Found| now.ino == found.ino && now.ctime == found.ctime;
            let unchanged = matches!(self.lower.find(path), Ok(Some(now)) if same(&now));
            if unchanged || last {
                return Some((found, names, unchanged));
            }
        }
        None
    }

    /// When a base was taken that anybody sees still.
    pub(super) fn base_seen(&self, state: &State, base: LineId) -> Option<Time> {
        state.lines.get(&base).filter(|line| !line.points.is_empty()).map(|line| line.base)
    }

    /// What was in a directory below when the base was taken; `None`: not known.
    pub(crate) fn remembered(&self, base: LineId, path: &[u8]) -> Result<Option<Remembered>> {
        let row = read_lock(&self.state).layers.get(&row_of(b'b', base, path))?;
        row.map(|row| Remembered::decode(&row)).transpose()
    }

    /// The next directory behind a path of which that is written down, and its row; at first the first one.
    pub(super) fn next_remembered(&self, base: LineId, after: Option<&[u8]>) -> Result<Option<Row>> {
        let prefix = row_of(b'b', base, b"");
        let state = read_lock(&self.state);
        // The root's own row is the prefix itself.
        if after.is_none()
            && let Some(row) = state.layers.get(&prefix)?
        {
            return Ok(Some((Vec::new(), row)));
        }
        let next = state.layers.next(&prefix, &row_of(b'b', base, after.unwrap_or_default()))?;
        Ok(next.map(|(row, value)| (row.get(prefix.len()..).unwrap_or_default().to_vec(), value)))
    }

    /// Nobody sees the base any more.
    pub(super) fn forget_below(&self, base: LineId) -> Result<()> {
        lock(&self.not_kept).remove(&base);
        self.on_disk.forget(base);
        if self.pins.any() {
            self.mark_pins(&mut write_lock(&self.state), base);
        }
        for kind in *b"bhj" {
            let prefix = row_of(kind, base, b"");
            write_lock(&self.state).layers.remove(&prefix);
            self.forget_rows(&prefix)?;
        }
        Ok(())
    }

    pub(super) fn forget_rows(&self, prefix: &[u8]) -> Result<()> {
        let mut after = prefix.to_vec();
        loop {
            // The next who opens the store goes on.
            if self.is_stopped() {
                return Err(Error::Busy("the store is being closed"));
            }
            self.room_for_removal()?;
            let mut state = write_lock(&self.state);
            for _ in 0..STEP {
                let Some((row, _)) = state.layers.next(prefix, &after)? else { return Ok(()) };
                state.layers.remove(&row);
                after = row;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were() {
        let names = vec![(b"a\xff".to_vec(), 7, Kind::File), (b"d".to_vec(), u64::MAX, Kind::Directory)];
        let (birth, mtime) = (Time { secs: -5, nanos: 9 }, Time { secs: 5, nanos: 0 });
        let remembered = Remembered { ino: 3, birth, mode: 0o2755, uid: u32::MAX, gid: 0, mtime, names };
        let row = remembered.encode();
        assert_eq!(Remembered::decode(&row).unwrap(), remembered);
        assert!(remembered.get(b"d").is_some() && remembered.get(b"e").is_none());
        assert!(matches!(Remembered::decode(&row[..row.len() - 1]), Err(Error::Corrupt(_))));
    }
}
