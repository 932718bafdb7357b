//! The system calls of a scan: attributes, and directories opened so that no symlink or mount can lead astray.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::Timestamp;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// What tells whether an entry changed, and what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stat {
    /// Type and permission bits, as in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// Attributes as they were seen now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) stat: Stat,
    /// Whether something else is mounted there.
    pub(crate) mount: bool,
    pub(crate) device: (u32, u32),
}

impl Stat {
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

impl From<&Statx> for Seen {
    fn from(stx: &Statx) -> Self {
        let time = |t: rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec.min(999_999_999) };
        Self {
            stat: Stat {
                mode: u32::from(stx.stx_mode),
                ino: stx.stx_ino,
                size: stx.stx_size,
                mtime: time(stx.stx_mtime),
                ctime: time(stx.stx_ctime),
            },
            mount: stx.stx_attributes.intersects(StatxAttributes::MOUNT_ROOT | StatxAttributes::AUTOMOUNT),
            device: (stx.stx_dev_major, stx.stx_dev_minor),
        }
    }
}

fn mask() -> StatxFlags {
    StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME
}

/// The attributes of an entry of an open directory; of a symlink itself; nothing is mounted by looking.
pub(crate) fn stat_at(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Seen, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, mask()).map(|stx| Seen::from(&stx))
}

/// The attributes of something open.
pub(crate) fn stat_of(fd: impl AsFd) -> Result<Seen, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask()).map(|stx| Seen::from(&stx))
}

/// Opens a directory by its path below `root`, crossing no symlink and no mount. The empty path is the root.
///
/// # Errors
/// `LOOP` or `NOTDIR` where something else is in the way, `XDEV` at a mount.
pub(crate) fn open_dir(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    ah_provider_directory::open_beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)
}

/// Opens a file for reading if it is a regular one; never blocks on anything else.
///
/// # Errors
/// `LOOP` for a symlink, `NXIO` for other things that are no regular file.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<(OwnedFd, Seen), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let seen = stat_of(&fd)?;
    if seen.stat.file_type() != FileType::RegularFile {
        return Err(Errno::NXIO);
    }
    Ok((fd, seen))
}

/// What the filesystem of the workspace can be relied on for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filesystem {
    /// A directory's times change whenever a name in it does.
    pub(crate) dir_times: bool,
    /// How close to a scan's start a change may be and still get an older time, nanoseconds.
    pub(crate) tick: u64,
    /// Files are in memory only: their pages never become clean, so stores through a mapping never change the times again.
    pub(crate) memory: bool,
}

impl Filesystem {
    pub(crate) fn of(root: BorrowedFd<'_>) -> Self {
        // From linux/magic.h: ext2-4, xfs, btrfs, tmpfs, zfs, f2fs, overlayfs, bcachefs.
        const LOCAL: [u64; 8] =
            [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x2FC1_2FC1, 0xF2F5_2010, 0x794C_7630, 0xCA45_1A4E];
        let kind = rustix::fs::fstatfs(root).map_or(0, |statfs| statfs.f_type as u64 & 0xFFFF_FFFF);
        // tmpfs, ramfs.
        let memory = [0x0102_1994, 0x8584_58F6].contains(&kind);
        if LOCAL.contains(&kind) {
            // Kernel clocks tick every 10 ms at the slowest; twice that.
            Self { dir_times: true, tick: 20_000_000, memory }
        } else {
            // Another machine's clock, or FAT's two seconds.
            Self { dir_times: false, tick: 3_000_000_000, memory }
        }
    }
}

/// `time` less some nanoseconds.
pub(crate) fn before(time: Timestamp, nanos: u64) -> Timestamp {
    let (secs, rest) = ((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as u32);
    if time.nanos >= rest {
        Timestamp { secs: time.secs - secs, nanos: time.nanos - rest }
    } else {
        Timestamp { secs: time.secs - secs - 1, nanos: time.nanos + 1_000_000_000 - rest }
    }
}

#[cfg(test)]
mod tests {
    use super::{before, open_dir, open_file};
    use ah_plugin_api::Timestamp;
    use rustix::io::Errno;
    use std::os::fd::AsFd;

    #[test]
    fn times_go_back() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        assert_eq!(before(at(10, 5), 20), at(9, 999_999_985));
        assert_eq!(before(at(10, 50), 20), at(10, 30));
        assert_eq!(before(at(10, 50), 3_000_000_000), at(7, 50));
    }

    #[test]
    fn symlinks_lead_nowhere_and_fifos_do_not_block() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("s")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        assert!(open_dir(root.as_fd(), b"a/b").is_ok());
        assert!(matches!(open_dir(root.as_fd(), b"s/b"), Err(Errno::LOOP | Errno::NOTDIR)));
        assert!(matches!(open_dir(root.as_fd(), b"s"), Err(Errno::LOOP | Errno::NOTDIR)));
        assert_eq!(open_file(root.as_fd(), "fifo").unwrap_err(), Errno::NXIO);
        assert_eq!(open_file(root.as_fd(), "s").unwrap_err(), Errno::LOOP);
    }
}
