//! Whether what is found below is what was there when the base was taken, and what was, if that was written down.

use std::sync::Arc;

use crate::engine::{LOWER, Remembered};
use crate::error::{Error, Result};
use crate::lock;
use crate::lower::{Found, join, split};
use crate::rows::key;
use crate::rows::value::Inode;
use crate::types::{Ino, Kind, ROOT};
use crate::view::View;
use crate::view::pinned::is_lost;

impl View {
    /// What is found below must be what was there when the base was taken. A pen shows it as it is and says so; in a snapshot
    /// it would be something else under the snapshot's name. A directory is what it was then, if that was written down: given. Else one in which a name came or went shows what is in it
    /// now; but one that may be another, since names changed beside it too, does not.
    pub(super) fn judge(&self, found: &Found, path: &[u8]) -> Result<Option<Arc<Remembered>>> {
        if !self.is_later(found, path)? {
            return Ok(None);
        }
        let is_directory = found.kind == Kind::Directory;
        if is_directory && let Some(then) = self.written_down(path)?.filter(|then| then.is(found)) {
            // What came and went in it is told by name.
            return Ok(self.keeps.then_some(then));
        }
        let error = self.changed(path, "changed below since the base was taken");
        if self.at.is_none() {
            return Ok(None);
        }
        if is_directory {
            let above = self.engine.lower.find(split(path).0)?;
            if path.is_empty() || above.is_some_and(|above| above.ctime <= self.base) {
                return Ok(None);
            }
        }
        Err(error)
    }

    /// Whether what is found below is not known to be what was there when the base was taken. Its time of change tells, but of a file or link whose fingerprint bears the same: it may be of a clock that was ahead. And a file that a power cut left older
    /// than it was has the time that it had before.
    pub(super) fn is_later(&self, found: &Found, path: &[u8]) -> Result<bool> {
        let is_later = found.ctime > self.base;
        let has_print = found.device == 0 && matches!(found.kind, Kind::File | Kind::Symlink);
        if !has_print || !is_later && !self.doubts {
            return Ok(is_later);
        }
        let Some((then, _)) = self.engine.fingerprint(self.chain.base, path)? else { return Ok(is_later) };
        let is_it = (then.ino, then.btime) == (found.ino, found.btime);
        Ok(if is_it { !then.is_of_found(found) } else { is_later })
    }

    /// What was in a directory below when the base was taken, if that is known; of a pen that shows what is there now it is not asked.
    pub(super) fn remembered(&self, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        if self.keeps { self.written_down(below) } else { Ok(None) }
    }

    pub(super) fn written_down(&self, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        if let Some(then) = lock(&self.then).get(below) {
            return Ok(Some(then));
        }
        let Some(then) = self.engine.remembered(self.chain.base, below)?.map(Arc::new) else { return Ok(None) };
        lock(&self.then).put(below, then.clone());
        Ok(Some(then))
    }

    /// What is found below; nothing, where somebody has closed it to this user and this tree may know what it was.
    pub(super) fn reach(&self, path: &[u8]) -> Result<Option<Found>> {
        match self.engine.lower.find(path) {
            Err(error) if self.keeps && is_lost(&error) => Ok(None),
            found => found,
        }
    }

    /// What was in a directory when the base was taken, if that is known and may be something else now. `below`: where it was found; another may have been there
    /// then.
    pub(super) fn changed_names(&self, directory: Ino, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        if self.at.is_none() {
            return Ok(None);
        }
        let found = self.reach(below)?;
        if found.as_ref().is_some_and(|found| found.ctime <= self.base) {
            return Ok(None);
        }
        if let Some(then) = self.then_of(directory, below)? {
            return Ok(Some(then));
        }
        let has_row = self.seen(&key::inode(directory))?.is_some();
        let then = if has_row { None } else { self.remembered(below)? };
        Ok(then.filter(|then| found.is_some_and(|found| then.is(&found))))
    }

    /// What was at a name below of which this snapshot has lost what it was, whatever is there now: where, its number and its kind.
    pub(super) fn lost(&self, directory: Ino, name: &[u8]) -> Result<Option<(Vec<u8>, Ino, Kind)>> {
        let Some(below) = self.below(directory)? else { return Ok(None) };
        if self.seen(&key::entry(directory, name))?.is_some() {
            return Ok(None);
        }
        let remembered = self.changed_names(directory, &below)?;
        let listed = remembered.as_ref().and_then(|remembered| remembered.get(name));
        Ok(listed.map(|&(_, ino, kind)| (join(&below, name), LOWER | (ino & (LOWER - 1)), kind)))
    }

    /// The directory below from which something was just read must be the one that was meant: another may have been moved to its
    /// path. A pen shows what is there now, and says so.
    pub(super) fn judge_directory(&self, directory: Ino, path: &[u8]) -> Result<()> {
        if directory == ROOT {
            return Ok(());
        }
        let Some(found) = self.engine.lower.find(path)? else {
            // Its names are missing then.
            self.changed(path, "removed below");
            return Ok(());
        };
        let row = self.seen(&key::inode(directory))?;
        let same = match row.as_deref().map(Inode::decode).transpose()?.flatten().and_then(|inode| inode.origin) {
            Some(origin) => (origin.device, origin.ino, origin.btime) == (found.device, found.ino, found.btime),
            None => {
                let reused = directory < crate::engine::LOWER;
                self.engine.number_of(found.device, found.ino, found.btime, reused)? == directory
            }
        };
        if same {
            return Ok(());
        }
        let error = self.changed(path, "replaced below");
        if self.at.is_some() { Err(error) } else { Ok(()) }
    }

    /// An inode below is not at its path any more: a snapshot has lost it, and who looks through a pen finds by its name what is there now.
    pub(super) fn gone(&self, path: &[u8], what: &'static str) -> Error {
        let error = self.changed(path, what);
        if self.at.is_some() { error } else { Error::Stale }
    }

    pub(super) fn changed(&self, path: &[u8], what: &'static str) -> Error {
        self.note_changed(path);
        Error::DataLoss { path: String::from_utf8_lossy(path).into_owned(), what }
    }
}
