//! A way down into a tree, however deep: only its first level and its last few are open, and those between are reached again by `..`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::look;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How a directory is opened that nothing leads to but its name.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// So many levels are open at once.
const OPEN: usize = 8;

/// What tells a directory from another one.
type Key = (u64, u32, u32);

/// From a directory down to the one at hand.
#[derive(Debug)]
pub struct Way {
    at: OwnedFd,
    above: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// None: closed, to be reached again from below.
    dir: Option<OwnedFd>,
    key: Key,
}

impl From<OwnedFd> for Way {
    /// One that begins in a directory that is open for it, if only to be entered.
    fn from(at: OwnedFd) -> Self {
        Self { at, above: Vec::new() }
    }
}

impl Way {
    /// One that begins there.
    pub fn new(top: BorrowedFd<'_>) -> Result<Self, Errno> {
        // Anew: reading a directory moves a position that duplicates share.
        Ok(rustix::fs::openat(top, c".", DIRECTORY, Mode::empty())?.into())
    }

    /// The directory at hand.
    pub fn at(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }

    /// Goes down into an open directory in it.
    pub fn down(&mut self, dir: OwnedFd) -> Result<(), Errno> {
        let key = key(self.at.as_fd())?;
        let above = std::mem::replace(&mut self.at, dir);
        self.above.push(Level { dir: Some(above), key });
        // Not the first: it may be one to be entered only, which cannot be opened anew as those that were gone down into.
        if let Some(far @ 1..) = self.above.len().checked_sub(OPEN - 1)
            && let Some(level) = self.above.get_mut(far)
        {
            level.dir = None;
        }
        Ok(())
    }

    /// Goes up again; gives the directory that it leaves. `ESTALE` if that was moved elsewhere meanwhile.
    pub fn up(&mut self) -> Result<OwnedFd, Errno> {
        let level = self.above.pop().ok_or(Errno::INVAL)?;
        let above = match level.dir {
            Some(dir) => dir,
            None => rustix::fs::openat(&self.at, c"..", DIRECTORY, Mode::empty())?,
        };
        if key(above.as_fd())? != level.key {
            return Err(Errno::STALE);
        }
        Ok(std::mem::replace(&mut self.at, above))
    }
}

fn key(dir: BorrowedFd<'_>) -> Result<Key, Errno> {
    let stat = look(dir, b"")?;
    Ok((stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_from_any_depth_and_not_to_another_directory() {
        let dir = tempfile::tempdir().unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let mut way = Way::new(top.as_fd()).unwrap();
        for _ in 0..50 {
            rustix::fs::mkdirat(way.at(), "d", Mode::RWXU).unwrap();
            let below = rustix::fs::openat(way.at(), "d", DIRECTORY, Mode::empty()).unwrap();
            way.down(below).unwrap();
        }
        assert_eq!(way.above.iter().filter(|level| level.dir.is_some()).count(), OPEN - 1);
        assert!(way.above[0].dir.is_some());
        for _ in 0..25 {
            way.up().unwrap();
        }
        std::fs::rename(dir.path().join(["d"; 20].join("/")), dir.path().join("moved")).unwrap();
        let back = (0..25).try_for_each(|_| way.up().map(drop));
        assert_eq!(back, Err(Errno::STALE));
    }
}
