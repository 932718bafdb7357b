//! Whether a directory is the same one as before: device, inode, when it was made, and the filesystem's own id.
//!
//! The roots of all Btrfs subvolumes have one inode number, a clone has its origin's time of birth, and the device numbers of subvolumes and
//! datasets are handed out anew at each mount: without the id, a branch could be taken for its origin after a reboot. Most other filesystems have no id
//! but the number of the device that they are on by chance (XFS, F2FS, FAT) or of this mount (tmpfs): there inode and time of birth decide.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use ah_plugin_api::sys::filesystem_id;
use ah_plugin_api::{Error, Result, Timestamp};
use rustix::fs::{AtFlags, CWD, StatxFlags, fstatfs, fstatvfs, statfs, statvfs};
use serde::{Deserialize, Serialize};

/// What a directory is known by. Inodes are used again, so the time of birth counts too where the filesystem has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) btime: Option<Timestamp>,
    /// What statfs(2) calls the filesystem; of a subvolume or dataset its own, the same after each mount. None where it has none that stays; one that
    /// does not was written down formerly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fsid: Option<u64>,
}

impl Identity {
    /// Of an open directory.
    pub(crate) fn of_fd(fd: impl AsFd) -> Result<Self> {
        let fsid = fstatfs(&fd).and_then(|kind| Ok(filesystem_id(&kind, &fstatvfs(&fd)?))).ok().flatten();
        Self::statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH, fsid)
            .map_err(|e| Error::from_io("cannot look at the workspace's directory", &e.into()))
    }

    /// Of a path, symlinks followed; none if it cannot be looked at.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        let fsid = statfs(path).and_then(|kind| Ok(filesystem_id(&kind, &statvfs(path)?))).ok().flatten();
        Self::statx(CWD, path, AtFlags::empty(), fsid).ok()
    }

    fn statx(
        dir: BorrowedFd<'_>,
        path: impl rustix::path::Arg,
        flags: AtFlags,
        fsid: Option<u64>,
    ) -> rustix::io::Result<Self> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::TYPE;
        let found = rustix::fs::statx(dir, path, flags, wanted)?;
        let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let btime = known.then_some(Timestamp { secs: found.stx_btime.tv_sec, nanos: found.stx_btime.tv_nsec });
        let dev = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Ok(Self { dev, ino: found.stx_ino, btime, fsid })
    }

    /// Whether it is the same directory: everything that is known of both agrees.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let born_alike = match (self.btime, other.btime) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        self.dev == other.dev && self.ino == other.ino && born_alike && self.may_share_filesystem(other)
    }

    /// Whether it is the same directory at the same path, after its filesystem was mounted anew and got another device number. Where no time of
    /// birth is to be had, which is so with filesystems in user space, the inode has to do.
    pub(crate) fn same_but_for_device(&self, other: &Self) -> bool {
        self.ino == other.ino && self.btime == other.btime && self.may_share_filesystem(other)
    }

    fn may_share_filesystem(&self, other: &Self) -> bool {
        self.fsid.zip(other.fsid).is_none_or(|(a, b)| a == b)
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;
    use ah_plugin_api::Timestamp;
    use std::path::Path;

    #[test]
    fn a_branch_that_got_its_origins_device_number_is_not_its_origin() {
        let btime = Some(Timestamp { secs: 5, nanos: 6 });
        let origin = Identity { dev: 50, ino: 256, btime, fsid: Some(1) };
        let branch = Identity { fsid: Some(2), ..origin };
        assert!(!branch.same(&origin) && !branch.same_but_for_device(&origin));
        let mounted_anew = Identity { dev: 51, ..origin };
        assert!(!mounted_anew.same(&origin) && mounted_anew.same_but_for_device(&origin));
        // As it was written down before filesystems counted.
        let former = Identity { fsid: None, ..origin };
        assert!(origin.same(&former) && branch.same(&former));
    }

    #[test]
    fn a_device_number_is_no_filesystems_id() {
        let of = |path: &str| Identity::of_path(Path::new(path)).unwrap();
        // As on XFS, it is the device number there, which is another one once the filesystem is mounted anew.
        assert!(of("/proc").fsid.is_none());
        // As it was written down before that was known.
        let now = of("/proc");
        let former = Identity { dev: now.dev + 1, fsid: Some(now.dev + 1), ..now };
        assert!(now.same_but_for_device(&former) && !now.same(&former));
    }
}
