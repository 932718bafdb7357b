//! Whether a directory is the same one as before: device, inode, and when it was made.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use ah_plugin_api::{Error, Result, Timestamp};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::{Deserialize, Serialize};

/// What a directory is known by. Inodes are used again, so the time of birth counts too where the filesystem has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) btime: Option<Timestamp>,
}

impl Identity {
    /// Of an open directory.
    pub(crate) fn of_fd(fd: impl AsFd) -> Result<Self> {
        Self::statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH)
            .map_err(|e| Error::from_io("cannot look at the workspace's directory", &e.into()))
    }

    /// Of a path, symlinks followed; none if it cannot be looked at.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Self::statx(CWD, path, AtFlags::empty()).ok()
    }

    fn statx(dir: BorrowedFd<'_>, path: impl rustix::path::Arg, flags: AtFlags) -> rustix::io::Result<Self> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::TYPE;
        let found = rustix::fs::statx(dir, path, flags, wanted)?;
        let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let btime = known.then_some(Timestamp { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec });
        let dev = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Ok(Self { dev, ino: found.stx_ino, btime })
    }

    /// Whether it is the same directory: everything that is known of both agrees.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let born_alike = match (self.btime, other.btime) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        self.dev == other.dev && self.ino == other.ino && born_alike
    }

    /// Whether it is the same directory at the same path, after its filesystem was mounted anew and got another device number.
    pub(crate) fn same_but_for_device(&self, other: &Self) -> bool {
        self.ino == other.ino && self.btime.is_some() && self.btime == other.btime
    }
}
