//! The names in the directories below, as they were when a base was taken: written down behind the base, so that its snapshots know them once somebody has changed
//! them.
//!
//! Of a directory that has changed before it was its turn nothing is written down. One that has not changed since needs none of it.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::{Found, Listed, join};
use crate::rows::key::{self, LineId};
use crate::rows::value::{Reader, Writer};
use crate::state::State;
use crate::types::{Kind, Time};
use crate::{read_lock, write_lock};

/// Larger lists are not written down, in bytes.
const LARGEST: usize = 1 << 20;
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
    fn encode(&self) -> Vec<u8> {
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
        let mut waiting = vec![Vec::new()];
        while let Some(path) = waiting.pop() {
            let Some(time) = self.base_seen(&read_lock(&self.state), base).filter(|_| !self.is_stopped()) else {
                return Ok(false);
            };
            // One that cannot be read is none of this user's, here and in branches.
            let Ok(Some(found)) = self.lower.find(&path) else { continue };
            if found.kind != Kind::Directory {
                continue;
            }
            let row = row_of(b'b', base, &path);
            // Before a kill. Another may be there now.
            if let Some(then) = self.remembered(base, &path)? {
                let below = then.names.iter().filter(|(_, _, kind)| *kind == Kind::Directory);
                waiting.extend(below.map(|(name, _, _)| join(&path, name)));
                continue;
            }
            let Ok(mut names) = self.lower.list(&path) else { continue };
            names.sort_unstable();
            let below = names.iter().filter(|(_, _, kind)| *kind == Kind::Directory);
            waiting.extend(below.map(|(name, _, _)| join(&path, name)));
            let same = |now: &Found| now.ino == found.ino && now.ctime == found.ctime;
            let unchanged = matches!(self.lower.find(&path), Ok(Some(now)) if same(&now));
            if found.device != 0 || found.ctime > time || !unchanged {
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

    /// When a base was taken that anybody sees still.
    pub(super) fn base_seen(&self, state: &State, base: LineId) -> Option<Time> {
        state.lines.get(&base).filter(|line| !line.points.is_empty()).map(|line| line.base)
    }

    /// What was in a directory below when the base was taken; `None`: not known.
    pub(crate) fn remembered(&self, base: LineId, path: &[u8]) -> Result<Option<Remembered>> {
        let row = read_lock(&self.state).layers.get(&row_of(b'b', base, path))?;
        row.map(|row| Remembered::decode(&row)).transpose()
    }

    /// Nobody sees the base any more.
    pub(super) fn forget_below(&self, base: LineId) -> Result<()> {
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

    fn forget_rows(&self, prefix: &[u8]) -> Result<()> {
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
