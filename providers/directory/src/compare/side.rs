//! One side of a comparison: its entries with all that the filesystem says of them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, EntryKind, RelPath, Result};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::way::DIRECTORY;
use crate::{failed, look, names, open_beneath};

/// A snapshot's directory, or the workspace.
pub struct Side {
    top: OwnedFd,
    hidden: BTreeSet<RelPath>,
    is_elsewhere: fn(&Statx) -> bool,
    /// How entries are looked at. Tests have a disk that fails.
    pub(super) look: fn(BorrowedFd<'_>, &[u8]) -> Result<Statx, Errno>,
}

/// An entry.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) name: Vec<u8>,
    pub(super) stat: Statx,
}

impl Found {
    pub(super) fn kind(&self) -> EntryKind {
        match FileType::from_raw_mode(self.stat.stx_mode.into()) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Dir,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Special,
        }
    }
}

/// What is in a directory, ordered by name bytes.
#[derive(Default)]
pub(super) struct Listing {
    /// None if it is not there.
    pub(super) dir: Option<OwnedFd>,
    pub(super) entries: Vec<Found>,
    /// The names of what is in it and cannot be looked at: damaged, or not given by the disk.
    pub(super) unread: BTreeSet<Vec<u8>>,
}

impl Side {
    /// What is at and below an open directory, but for the directories of which `is_elsewhere` says that they are not this side's: another
    /// filesystem's, or what stands for one.
    #[must_use]
    pub fn new(top: OwnedFd, is_elsewhere: fn(&Statx) -> bool) -> Self {
        Self { top, hidden: BTreeSet::new(), is_elsewhere, look: |dir, name| look(dir, name) }
    }

    /// Passes over these paths.
    #[must_use]
    pub fn hiding(mut self, paths: impl IntoIterator<Item = RelPath>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// Its directory.
    #[must_use]
    pub fn top(&self) -> &OwnedFd {
        &self.top
    }

    fn is_elsewhere(&self, stat: &Statx) -> bool {
        FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory && (self.is_elsewhere)(stat)
    }

    /// A path's entry, and the directory that it is in; for the top, itself under the name `.`.
    pub(super) fn find(&self, path: &RelPath) -> Result<Option<(OwnedFd, Found)>> {
        let fail = |errno| failed(format!("cannot look at {path}"), errno);
        let Some(name) = path.file_name() else {
            let top = self.top.try_clone().map_err(|e| ah_plugin_api::Error::from_io("cannot open a directory", &e))?;
            let stat = (self.look)(top.as_fd(), b"").map_err(fail)?;
            return Ok(Some((top, Found { name: b".".to_vec(), stat })));
        };
        if self.hidden.iter().any(|hidden| path.starts_with(hidden)) {
            return Ok(None);
        }
        let parent = path.parent().unwrap_or_default();
        let found = open_beneath(self.top.as_fd(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|dir| (self.look)(dir.as_fd(), name).map(|stat| (dir, stat)));
        match found {
            Ok((dir, stat)) if !self.is_elsewhere(&stat) => Ok(Some((dir, Found { name: name.to_vec(), stat }))),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(fail(errno)),
        }
    }

    /// What is in the directory `name` of `parent`, which is at `path`. None if this user may not look into it.
    pub(super) fn list(&self, parent: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Option<Listing>> {
        let fail = |errno| failed(format!("cannot list {path}"), errno);
        let dir = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            // In the workspace it may go, or change its kind, at any time.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Some(Listing::default())),
            Err(Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        let names = match names(dir.as_fd()) {
            Ok(names) => names,
            // It may be opened and not be entered.
            Err(Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        let (mut entries, mut unread) = (Vec::new(), BTreeSet::new());
        for name in names {
            if !self.hidden.is_empty() && self.hidden.contains(&path.join(&name)?) {
                continue;
            }
            match (self.look)(dir.as_fd(), &name) {
                Ok(stat) if self.is_elsewhere(&stat) => {}
                Ok(stat) => entries.push(Found { name, stat }),
                Err(Errno::NOENT) => {}
                // It may be listed and not be entered.
                Err(Errno::ACCESS) => return Ok(None),
                Err(errno) => match fail(errno) {
                    error if error.is_unreadable() => drop(unread.insert(name)),
                    error => return Err(error),
                },
            }
        }
        Ok(Some(Listing { dir: Some(dir), entries, unread }))
    }
}

/// Whether two files, or two symlinks, have the same contents. `ECANCELED` if the caller wants to stop.
pub(super) fn same_contents(
    (a_dir, a): (BorrowedFd<'_>, &Found),
    (b_dir, b): (BorrowedFd<'_>, &Found),
    cx: &Context<'_>,
) -> Result<bool, Errno> {
    if a.kind() == EntryKind::Symlink {
        let target =
            |dir: BorrowedFd<'_>, found: &Found| rustix::fs::readlinkat(dir, found.name.as_slice(), Vec::new());
        return Ok(target(a_dir, a)? == target(b_dir, b)?);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open =
        |dir: BorrowedFd<'_>, found: &Found| rustix::fs::openat(dir, found.name.as_slice(), flags, Mode::empty());
    let (a, b) = (open(a_dir, a)?, open(b_dir, b)?);
    let (mut left, mut right) = (vec![0; 128 << 10], vec![0; 128 << 10]);
    let mut at = 0;
    loop {
        if cx.check_cancelled().is_err() {
            return Err(Errno::CANCELED);
        }
        let (n, m) = (fill(&a, &mut left, at)?, fill(&b, &mut right, at)?);
        if left.get(..n) != right.get(..m) {
            return Ok(false);
        }
        if n < left.len() {
            return Ok(true);
        }
        at += n as u64;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &OwnedFd, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, buffer.get_mut(filled..).unwrap_or_default(), at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}
