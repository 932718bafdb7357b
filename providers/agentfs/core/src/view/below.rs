//! What somebody changed below a branch since its base was taken: noticed when a host hears of it, and when the branch looks at it, and judged again when
//! it is told ([`crate::Workspace::changed_below`]).

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::Remembered;
use crate::error::Result;
use crate::lower::{Listed, join, split};
use crate::rows::key;
use crate::rows::value::{Entry, Inode};
use crate::types::{Ino, Kind, ROOT};
use crate::view::View;

impl View {
    /// Where below, if a name is not this tree's own, and what is there is not what was there when the base was taken, as far as that is known. `thorough`: a file
    /// of the same contents, mode and owner is none, which may cost reading it.
    fn other_below(&self, directory: Ino, name: &[u8], thorough: bool) -> Result<Option<Vec<u8>>> {
        if let Some(row) = self.seen(&key::entry(directory, name))? {
            return Entry::decode(&row)?.map_or(Ok(None), |own| self.own_other_below(own.ino, thorough));
        }
        let Some(below) = self.below(directory)? else { return Ok(None) };
        let path = join(&below, name);
        if self.is_isolated() && self.isolated_name(directory, &below, &path)?.is_some() {
            return Ok(None);
        }
        let then = self.written_down(&below)?;
        let then = then.as_ref().map(|then| then.get(name));
        let is_other = match (self.reach(&path)?, then) {
            // It is its names that matter, and snapshots have them.
            (Some(found), Some(then)) if found.kind == Kind::Directory => {
                then.is_none_or(|&(_, ino, kind)| (ino, kind) != (found.ino, found.kind))
            }
            (Some(found), _) => {
                found.kind != Kind::Directory
                    && self.is_later(&found, &path)?
                    && !(thorough && self.same_then(&found, &path)?.is_some_and(|then| then.shows_as(&found)))
            }
            // What came and went again is none.
            (None, then) => then.flatten().is_some(),
        };
        Ok(is_other.then_some(path))
    }

    /// Where below, if something that was taken over reads there still, and what is there is another now, or nothing: a directory whose names shine
    /// through, a file of which not all was copied.
    fn own_other_below(&self, ino: Ino, thorough: bool) -> Result<Option<Vec<u8>>> {
        let row = self.seen(&key::inode(ino))?;
        let Some(inode) = row.as_deref().map(Inode::decode).transpose()?.flatten() else { return Ok(None) };
        let Some(origin) = inode.origin else { return Ok(None) };
        let found = self.reach(&origin.path)?;
        let same = match inode.kind {
            Kind::Directory => {
                found.is_some_and(|it| (it.device, it.ino, it.btime) == (origin.device, origin.ino, origin.btime))
                    || self.is_isolated() && self.then_of(ino, &origin.path)?.is_some()
            }
            Kind::File => {
                inode.lower_limit == 0
                    || found.is_some_and(|it| it.is(&origin))
                    || self.is_copied(ino)?
                    || self.is_isolated() && self.contents_then(&origin)?.is_some()
                    || thorough && self.is_same_at(&origin)?
            }
            _ => true,
        };
        Ok((!same).then_some(origin.path))
    }

    /// The host heard that something may have been changed below. What is another than when the base was taken is told by
    /// [`crate::Workspace::changed_below`].
    pub fn hear_of_change(&self, directory: Ino, name: &[u8]) -> Result<()> {
        if let Some(path) = self.other_below(directory, name, false)? {
            self.note_changed(&path);
        }
        Ok(())
    }

    /// Whether what was noted of a path below is so still, and of what this tree shows. Of what is not found at that path in this tree it is.
    pub(crate) fn is_other_at(&self, path: &[u8]) -> bool {
        let (above, name) = split(path);
        let directory = self.directory_at(above);
        directory.and_then(|directory| self.other_below(directory, name, true)).map_or(true, |found| found.is_some())
    }

    fn directory_at(&self, path: &[u8]) -> Result<Ino> {
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(ROOT, |directory, name| Ok(self.lookup(directory, name)?.ino))
    }

    /// Whether this tree shows what is at a path, which is not pinned, as it is below: it has not got all of that itself.
    pub(crate) fn reads_below(&self, path: &[u8]) -> bool {
        let reads = || -> Result<bool> {
            let (above, name) = split(path);
            let directory = self.directory_at(above)?;
            let Some(row) = self.seen(&key::entry(directory, name))? else {
                return Ok(self.lookup(directory, name).is_ok());
            };
            let Some(own) = Entry::decode(&row)? else { return Ok(false) };
            let row = self.seen(&key::inode(own.ino))?;
            Ok(match row.as_deref().map(Inode::decode).transpose()?.flatten() {
                Some(Inode { kind: Kind::File, lower_limit: 0, .. } | Inode { origin: None, .. }) => false,
                Some(_) => !self.is_copied(own.ino)?,
                None => true,
            })
        };
        // What this user cannot read is none of theirs.
        matches!(self.engine.lower.open_file(path), Ok(Some(_))) && reads().unwrap_or(false)
    }

    /// What was in a directory below when the base was taken, if this is a branch, and something was changed in there since.
    pub(super) fn changed_for_branch(&self, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        let is_changed = || Ok(self.engine.lower.find(below)?.is_some_and(|found| found.ctime > self.base));
        if self.tells && self.at.is_none() && is_changed()? { self.written_down(below) } else { Ok(None) }
    }

    /// What a branch finds in a directory below, where other names may have been: that is told.
    pub(super) fn hear_of_names(&self, below: &[u8], there: &[Listed]) -> Result<()> {
        let Some(then) = self.changed_for_branch(below)? else { return Ok(()) };
        let there: HashSet<&[u8]> = there.iter().map(|(name, ..)| name.as_slice()).collect();
        let gone = then.names.iter().map(|(name, ..)| name.as_slice()).filter(|name| !there.contains(name));
        let came = there.iter().copied().filter(|name| then.get(name).is_none());
        gone.chain(came).for_each(|name| self.note_changed(&join(below, name)));
        Ok(())
    }

    pub(super) fn note_changed(&self, path: &[u8]) {
        let is_kept = || self.isolates && matches!(self.is_pinned(path), Ok(true));
        if self.tells && !is_kept() {
            self.engine.note_changed(self.line, path);
        }
    }
}
