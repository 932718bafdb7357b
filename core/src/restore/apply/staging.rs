//! The folder in the workspace in which files are prepared and put aside.
//!
//! Whoever may rename in the workspace's top directory can put another folder in its place at any moment. So all that is done in it goes by descriptors
//! that were opened once, and nothing is taken away in it but by the names that were given there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{EntryKind, RelPath, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::commit::DIRECTORY;
use crate::crash;
use crate::restore::at::{self, Tree, io};

/// What is made in two folders, to see whether there is room.
const ROOM: &[u8] = b"room";

/// Is in the folder until the first path is changed.
const PREPARING: &[u8] = b"preparing";

/// The folder, open.
pub(in crate::restore) struct Staging {
    /// The workspace's top directory, and the folder's name in it.
    top: OwnedFd,
    name: Vec<u8>,
    own: OwnedFd,
    /// One for each thread that makes files.
    pub(super) lanes: Vec<OwnedFd>,
    /// How many there are, or were to be.
    count: u64,
}

impl Staging {
    pub(super) fn make(tree: Tree<'_>, path: &RelPath, lanes: u64) -> Result<Self> {
        let fail = |e| io(format!("cannot make the folder {path} in the workspace"), e);
        crash::point("restore-staging").map_err(|e| ah_plugin_api::Error::from_io("cannot make a folder", &e))?;
        let top = tree.dir(&RelPath::root()).map_err(fail)?;
        let own = made(top.as_fd(), path.as_bytes()).map_err(fail)?;
        let mut staging = Self { top, name: path.as_bytes().to_vec(), own, lanes: Vec::new(), count: lanes };
        let make = |staging: &mut Self| {
            rustix::fs::mkdirat(&staging.own, PREPARING, Mode::RWXU)?;
            for lane in 0..lanes {
                staging.lanes.push(made(staging.own.as_fd(), lane.to_string().as_bytes())?);
            }
            Ok(())
        };
        if let Err(error) = make(&mut staging) {
            staging.sweep(std::iter::empty());
            return Err(fail(error));
        }
        Ok(staging)
    }

    /// Notes that from now on paths are changed.
    pub(super) fn begin(&self) -> Result<()> {
        rustix::fs::unlinkat(&self.own, PREPARING, AtFlags::REMOVEDIR)
            .map_err(|e| io("cannot note that files are changed from now on", e))
    }

    /// Whether a restore whose folder that is has prepared files, and changed none. If that cannot be told, it may have.
    pub(in crate::restore) fn only_prepares(tree: Tree<'_>, path: &RelPath) -> bool {
        let preparing = path.join(PREPARING).and_then(|path| tree.stat(&path).map_err(|e| io("cannot look", e)));
        preparing.is_ok_and(|found| found.is_some_and(|found| found.kind == EntryKind::Dir))
    }

    /// That of a restore that was killed, as far as it is there; it may be another folder, of that name.
    pub(in crate::restore) fn found(tree: Tree<'_>, path: &RelPath, lanes: u64) -> Result<Self, Errno> {
        let (top, own) = (tree.dir(&RelPath::root())?, tree.dir(path)?);
        let lane = |lane: u64| at::open_dir(own.as_fd(), lane.to_string().as_bytes());
        // It was killed before it had made all.
        let count = lanes.max(1);
        let lanes = (0..count).map_while(|number| lane(number).ok()).collect();
        Ok(Self { top, name: path.as_bytes().to_vec(), own, lanes, count })
    }

    /// Whether there is room for what comes next. Btrfs wants more of it to exchange two files than to make one, so that a disk on which all could be made
    /// may let none of it into its place.
    ///
    /// # Errors
    /// No room for an exchange. Any other trouble with it is left to those that matter.
    pub(super) fn has_room(&self) -> Result<()> {
        // In two folders, as those that follow: in one it takes less.
        let (a, b) = (self.lanes[0].as_fd(), self.own.as_fd());
        let make = |dir| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(dir, ROOM, flags, Mode::RUSR).map(drop)
        };
        let exchanged = make(a).and_then(|()| make(b)).and_then(|()| at::exchange((a, ROOM), (b, ROOM)));
        self.no_room();
        match exchanged {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(io("cannot put the files in place", error)),
            _ => Ok(()),
        }
    }

    /// Whether anything can be written here, down to the disk.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub(super) fn can_write(&self) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let write = || {
            crash::point("restore-write").map_err(|_| Errno::IO)?;
            let file = rustix::fs::openat(&self.own, ROOM, flags, Mode::RUSR | Mode::WUSR)?;
            let written = rustix::io::write(&file, ROOM).and_then(|_| rustix::fs::fsync(&file));
            rustix::fs::unlinkat(&self.own, ROOM, AtFlags::empty()).and(written)
        };
        write().map_err(|e| io("cannot write in the workspace", e))
    }

    /// Takes away what a look for room left.
    fn no_room(&self) {
        for dir in self.lanes.first().into_iter().chain([&self.own]) {
            let look = at::stat(dir.as_fd(), ROOM).ok().flatten();
            if look.is_some_and(|found| found.kind == EntryKind::File && found.size == 0) {
                let _ = rustix::fs::unlinkat(dir, ROOM, AtFlags::empty());
            }
        }
    }

    /// Where a slot is.
    pub(in crate::restore) fn slot(&self, slot: u64) -> Option<(BorrowedFd<'_>, String)> {
        Some((self.lanes.get(self.lane(slot))?.as_fd(), slot.to_string()))
    }

    fn lane(&self, slot: u64) -> usize {
        usize::try_from(slot % self.count).unwrap_or(usize::MAX)
    }

    /// Removes what is in these slots, and the folder. False if something is left.
    pub(in crate::restore) fn sweep(&self, slots: impl Iterator<Item = u64>) -> bool {
        let mut of_lane: Vec<Vec<String>> = vec![Vec::new(); self.lanes.len()];
        for slot in slots {
            of_lane.get_mut(self.lane(slot)).into_iter().for_each(|names| names.push(slot.to_string()));
        }
        self.no_room();
        // A thread for each lane: taking files away costs as much as making them.
        std::thread::scope(|scope| {
            for (lane, names) in self.lanes.iter().zip(&of_lane) {
                scope.spawn(move || {
                    let _ = rustix::fs::unlinkat(lane, DIRECTORY, AtFlags::REMOVEDIR);
                    for name in names {
                        let _ = rustix::fs::unlinkat(lane, name.as_bytes(), AtFlags::empty());
                    }
                });
            }
        });
        let _ = rustix::fs::unlinkat(&self.own, PREPARING, AtFlags::REMOVEDIR);
        for lane in 0..self.count {
            let _ = rustix::fs::unlinkat(&self.own, lane.to_string().as_bytes(), AtFlags::REMOVEDIR);
        }
        rustix::fs::unlinkat(&self.top, self.name.as_slice(), AtFlags::REMOVEDIR).is_ok()
    }
}

/// Makes a directory, and opens it. `ESTALE` if that is another one by then.
pub(super) fn made(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    let look = || {
        let dir = at::open_dir(parent, name)?;
        if at::names(dir.as_fd())?.is_empty() { Ok(dir) } else { Err(Errno::STALE) }
    };
    look().inspect_err(|_| _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}
