//! What a snapshot, and a branch that shows what is pinned (`isolated`), shows of what somebody changed, replaced or removed below: files and links whose contents and targets were pinned behind the base, directories of which it was written
//! down what they were.
//!
//! Asked by snapshots only where the answer would be [`Error::DataLoss`] otherwise, and never by a pen that shows what is there. Fingerprints and lists of names say what was true of an inode when the base
//! was taken, whatever is at its place now. So who has an inode's number of then is answered by that; who has a name is answered by the list of the directory that was there.

use std::fs::File;
use std::sync::Arc;

use crate::engine::{Fingerprint, LOWER, Remembered};
use crate::error::{Error, Result};
use crate::lower::{Found, split};
use crate::rows::key;
use crate::rows::value::{Inode, Origin};
use crate::types::{Ino, Kind, ROOT, Time};
use crate::view::{Named, Node, View};

impl View {
    /// What was in a directory when the base was taken, if it is the one that was at that path then. Of a pen that shows what is there it is not asked.
    pub(super) fn then_of(&self, directory: Ino, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        if self.keeps { self.was_in(directory, below) } else { Ok(None) }
    }

    /// Whether a name is known not to have been in a directory when the base was taken.
    pub(super) fn is_new(&self, directory: Ino, below: &[u8], name: &[u8]) -> Result<bool> {
        Ok(self.was_in(directory, below)?.is_some_and(|then| then.get(name).is_none()))
    }

    fn was_in(&self, directory: Ino, below: &[u8]) -> Result<Option<Arc<Remembered>>> {
        let Some(then) = self.written_down(below)? else { return Ok(None) };
        let row = self.seen(&key::inode(directory))?;
        let same = match row.as_deref().map(Inode::decode).transpose()?.flatten().and_then(|inode| inode.origin) {
            Some(origin) => (origin.device, origin.ino, origin.btime) == (0, then.ino, then.birth),
            None => directory == ROOT || self.is_number_of(directory, then.ino, then.birth)?,
        };
        Ok(Some(then).filter(|_| same))
    }

    /// Whether an inode of the lower directory's own device has that number in this tree.
    fn is_number_of(&self, number: Ino, ino: u64, birth: Time) -> Result<bool> {
        Ok(self.engine.number_of(0, ino, birth, number < LOWER)? == number)
    }

    /// What a name in a directory led to when the base was taken; `None`: that is not known, or not kept. `Some(None)`: there was no such name.
    pub(super) fn named_then(&self, directory: Ino, below: &[u8], path: &[u8]) -> Result<Option<Option<Named>>> {
        let Some(then) = self.then_of(directory, below)? else { return Ok(None) };
        if then.get(split(path).1).is_none() {
            return Ok(Some(None));
        }
        let Some(found) = self.pinned(path)? else { return Ok(None) };
        let Some(ino) = self.number_then(&found, path)? else { return Ok(None) };
        let row = self.seen(&key::inode(ino))?;
        let kind = found.kind;
        let found = Some(found).filter(|_| row.is_none());
        Ok(Some(Some(Named { ino, kind, path: Some(path.to_vec()), found })))
    }

    /// An inode as it was at a path when the base was taken, if that is the one that was there.
    pub(super) fn node_then(&self, ino: Ino, path: &[u8]) -> Result<Option<Node>> {
        let Some(found) = self.pinned(path)? else { return Ok(None) };
        if !self.is_number_of(ino, found.ino, found.btime)? {
            return Ok(None);
        }
        self.node_of(ino, &found, path).map(Some)
    }

    /// Whether what was at a path when the base was taken is kept.
    pub(super) fn is_pinned(&self, path: &[u8]) -> Result<bool> {
        Ok(self.pinned(path)?.is_some())
    }

    /// What was at a path when the base was taken, as far as it is kept.
    fn pinned(&self, path: &[u8]) -> Result<Option<Found>> {
        let (above, name) = split(path);
        let Some(directory) = self.remembered(above)? else { return Ok(None) };
        let Some(&(_, ino, kind)) = directory.get(name) else { return Ok(None) };
        match kind {
            Kind::Directory => {
                // Not what is asked for one name after the other.
                let then = self.engine.remembered(self.chain.base, path)?;
                Ok(then.filter(|then| then.ino == ino).map(|then| self.directory_then(&then)))
            }
            Kind::File | Kind::Symlink => {
                let Some((then, of)) = self.engine.fingerprint(self.chain.base, path)? else { return Ok(None) };
                let is_it = then.ino == ino && of == (directory.ino, directory.birth);
                if !is_it || !self.engine.pins.is_there(kind, &then.hash, then.size) {
                    return Ok(None);
                }
                let nlink = self.engine.names_then(self.chain.base, ino)?;
                Ok(Some(Found { nlink, ..file_then(&then, kind) }))
            }
            _ => Ok(None),
        }
    }

    /// A directory as it is remembered. Its time of change is not, but that it was before the base.
    fn directory_then(&self, then: &Remembered) -> Found {
        let children = then.names.iter().filter(|(_, _, kind)| *kind == Kind::Directory).count();
        Found {
            kind: Kind::Directory,
            mode: then.mode,
            uid: then.uid,
            gid: then.gid,
            nlink: u32::try_from(children).unwrap_or(u32::MAX).saturating_add(2),
            size: 0,
            rdev: 0,
            device: 0,
            ino: then.ino,
            atime: then.mtime,
            mtime: then.mtime,
            ctime: then.mtime.min(self.base),
            btime: then.birth,
            blocks: 0,
        }
    }

    /// The number under which a tree shows what was at a path. The filesystem below may have used its own again since, for a file of which this tree has changed something.
    /// `None`: what the tree has under that number may be the same file, or not.
    fn number_then(&self, found: &Found, path: &[u8]) -> Result<Option<Ino>> {
        // Of what is kept that came later (a repository's objects) that may be the number of something else that is shown.
        let ino = self.engine.number_of(0, found.ino, found.btime, found.btime > self.base)?;
        let row = self.seen(&key::inode(ino))?;
        match row.as_deref().map(Inode::decode).transpose()? {
            None => return Ok(Some(ino)),
            // One that lost its last name here cannot have another.
            Some(None) => {}
            Some(Some(Inode { origin: Some(origin), .. })) if origin.btime == found.btime => match found.kind {
                _ if origin.path == path => return Ok(Some(ino)),
                // Moved below before this tree took it over: one that was somewhere else then.
                Kind::Directory => {}
                // Both were its names, and no branch showed anything else there.
                _ if self.isolates && self.listed_then(&origin.path)? == Some(Some(found.ino)) => return Ok(Some(ino)),
                // It may be that, or one of several names: whether this one showed what was written here is not known.
                _ => return Ok(None),
            },
            Some(Some(Inode { origin: Some(_), .. })) => {}
            Some(Some(_)) => return Ok(None),
        }
        let number = self.engine.number_of(0, found.ino, found.btime, true)?;
        Ok(if self.seen(&key::inode(number))?.is_some() { None } else { Some(number) })
    }

    /// Whether a file of which this tree has something under one name showed that under another, too, as far as that is known. A pen shows what is there.
    pub(super) fn had_both_names(&self, found: &Found, path: &[u8], own: &[u8]) -> Result<bool> {
        if self.at.is_none() || path == own || found.kind == Kind::Directory {
            return Ok(true);
        }
        Ok(self.had_name(found, path)? && self.had_name(found, own)?)
    }

    /// Whether that was a name of what is found below when the base was taken, as far as that is known.
    pub(super) fn had_name(&self, found: &Found, path: &[u8]) -> Result<bool> {
        Ok(self.listed_then(path)? == Some(Some(found.ino)))
    }

    /// Which inode was at a path when the base was taken, told from the root down; `None`: not known. `Some(None)`: nothing was.
    fn listed_then(&self, path: &[u8]) -> Result<Option<Option<u64>>> {
        let mut directory = self.engine.remembered(self.chain.base, b"")?;
        let mut end = 0;
        loop {
            let Some(then) = directory else { return Ok(None) };
            let rest = path.get(end..).unwrap_or_default();
            let length = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
            let Some(&(_, ino, kind)) = then.get(&rest[..length]) else { return Ok(Some(None)) };
            if length == rest.len() {
                return Ok(Some(Some(ino)));
            }
            if kind != Kind::Directory {
                return Ok(Some(None));
            }
            let below = self.engine.remembered(self.chain.base, &path[..end + length])?;
            directory = below.filter(|below| below.ino == ino);
            end += length + 1;
        }
    }

    /// The number of the directory that was at a path when the base was taken, told from the root down, if another is there now.
    pub(super) fn other_place_then(&self, path: &[u8], now: Option<&Found>) -> Result<Option<Ino>> {
        let Some(then) = self.remembered(path)?.filter(|then| !now.is_some_and(|now| then.is(now))) else {
            return Ok(None);
        };
        match self.listed_then(path)? {
            Some(Some(ino)) if ino == then.ino => self.number_then(&self.directory_then(&then), path),
            _ => Ok(None),
        }
    }

    /// Where a link pointed when the base was taken, if that is the one.
    pub(super) fn target_then(&self, found: &Found, path: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.keeps {
            return Ok(None);
        }
        let then = self.engine.fingerprint(self.chain.base, path)?;
        let then = then.filter(|(then, _)| (then.ino, then.ctime, then.size) == (found.ino, found.ctime, found.size));
        Ok(then.and_then(|(then, _)| self.engine.pins.target(&then.hash)))
    }

    /// What the file of an origin held, from its pin, and what that pin is.
    pub(super) fn contents_then(&self, origin: &Origin) -> Result<Option<(File, Found)>> {
        if !self.keeps {
            return Ok(None);
        }
        let then = self.engine.fingerprint(self.chain.base, &origin.path)?.filter(|(then, _)| then.is_of(origin));
        then.map_or(Ok(None), |(then, _)| self.engine.pinned(&then.hash, then.size))
    }

    /// Whether what a file or directory was is kept, which has no extended attributes then: of a directory they are not known any more.
    pub(super) fn has_none_then(&self, node: &Node, origin: &Origin) -> Result<bool> {
        match node.inode.kind {
            Kind::File => Ok(self.contents_then(origin)?.is_some()),
            Kind::Directory => Ok(self.then_of(node.ino, &origin.path)?.is_some()),
            _ => Ok(false),
        }
    }

    /// An answer that goes by what is below, or else what was there then.
    pub(super) fn or_then<T>(&self, answer: Result<T>, then: impl FnOnce() -> Result<Option<T>>) -> Result<T> {
        match answer {
            Err(error) if self.keeps && is_lost(&error) => then()?.ok_or(error),
            answer => answer,
        }
    }
}

/// Whether it is not known what was there. What somebody has closed below since is no more known than what they removed.
pub(super) fn is_lost(error: &Error) -> bool {
    match error {
        Error::DataLoss { .. } => true,
        Error::Io { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// A file or link as its fingerprint has it. How many names it had is not known.
fn file_then(then: &Fingerprint, kind: Kind) -> Found {
    Found {
        kind,
        mode: then.mode,
        uid: then.uid,
        gid: then.gid,
        nlink: 1,
        size: then.size,
        rdev: 0,
        device: 0,
        ino: then.ino,
        atime: then.mtime,
        mtime: then.mtime,
        ctime: then.ctime,
        btime: then.btime,
        // How many there were is not known.
        blocks: u64::MAX,
    }
}
