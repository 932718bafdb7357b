//! Which mount a descriptor is on, and what a mount is: without asking the filesystem, which may be a user's program.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result, proc_path};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// What of its filesystem it shows.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) point: PathBuf,
    /// The filesystem's type.
    pub(crate) kind: String,
    /// Whether no program is started from it.
    pub(crate) noexec: bool,
    /// Whether no symlink on it is followed.
    pub(crate) nosymfollow: bool,
}

/// What a descriptor is, as far as it can be said without asking anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) dev: (u32, u32),
    pub(crate) ino: u64,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) mount: u64,
}

impl About {
    /// Of what is open as `fd`. A filesystem in a user's program is not asked, or refuses root.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let at = rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        // Before Linux 5.8 the kernel does not tell; nothing can be judged then.
        if at.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err(Errno::NOSYS);
        }
        Ok(Self {
            kind: FileType::from_raw_mode(at.stx_mode.into()),
            mode: u32::from(at.stx_mode) & 0o7777,
            uid: at.stx_uid,
            dev: (at.stx_dev_major, at.stx_dev_minor),
            ino: at.stx_ino,
            links: at.stx_nlink,
            size: at.stx_size,
            mount: at.stx_mnt_id,
        })
    }

    /// Whether both are the same file.
    pub(crate) fn same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
}

/// `STATX_MNT_ID_UNIQUE` of statx(2), which no crate in use names.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The number of the mount that a descriptor is on which no other mount gets in this run of the machine; none before Linux 6.8.
pub(crate) fn unique(fd: impl AsFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let at = rustix::fs::statx(fd, c"", flags, MNT_ID_UNIQUE).ok()?;
    (at.stx_mask & MNT_ID_UNIQUE.bits() != 0).then_some(at.stx_mnt_id)
}

/// The mount of that number, if it is one of this process's mount namespace.
pub(crate) fn find(id: u64) -> Result<Option<Mount>> {
    Ok(parse(&table()?).find(|mount| mount.id == id))
}

/// All mounts of this process's mount namespace.
pub(crate) fn all() -> Result<Vec<Mount>> {
    Ok(parse(&table()?).collect())
}

fn table() -> Result<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo").map_err(|e| Error::from_io("cannot read the mounts", &e))
}

/// Opens a directory by its path, with no symlink anywhere on the way.
pub(crate) fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)
}

/// Where an open directory is, as this process sees it.
pub(crate) fn path_of(dir: BorrowedFd<'_>) -> Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))
        .map_err(|e| Error::from_io("cannot find out where a directory is", &e))
        .and_then(|path| {
            if path.is_absolute() {
                return Ok(path);
            }
            Err(Error::new(ErrorKind::FailedPrecondition, "the directory is in no place that can be named"))
        })
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|&b| b == b'\n').filter_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let root = fields.nth(2)?;
        let point = fields.next()?;
        let options: Vec<_> = fields.next()?.split(|&b| b == b',').collect();
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(Mount {
            id,
            root: proc_path(root),
            point: proc_path(point),
            kind: String::from_utf8_lossy(kind).into_owned(),
            noexec: options.contains(&b"noexec".as_slice()),
            nosymfollow: options.contains(&b"nosymfollow".as_slice()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let table = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noexec,noatime master:1 shared:2 - ext3 /dev/root rw\n\
            37 35 0:5 / / rw - btrfs /dev/sdb rw\ngarbage\n";
        let mounts: Vec<_> = parse(table).collect();
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[0].root.as_path(), mounts[0].point.as_path()), (Path::new("/mnt1"), Path::new("/mnt 2")));
        assert_eq!((mounts[0].kind.as_str(), mounts[1].kind.as_str()), ("ext3", "btrfs"));
        assert_eq!((mounts[0].noexec, mounts[1].noexec, mounts[0].nosymfollow), (true, false, false));
    }

    #[test]
    fn a_directory_is_on_a_mount_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_plain(&dir.path().canonicalize().unwrap()).unwrap();
        let about = About::of(&fd).unwrap();
        assert!(find(about.mount).unwrap().is_some());
        assert_eq!(path_of(fd.as_fd()).unwrap(), dir.path().canonicalize().unwrap());
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert_eq!(open_plain(&dir.path().join("link")).unwrap_err(), Errno::LOOP);
        assert_eq!(find(u64::MAX).unwrap(), None);
    }
}
