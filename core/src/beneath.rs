//! Opening what lies below an open directory, so that no symlink that someone swaps in leads out of it.
//!
//! The kernel does it in one call (`openat2`). Where it, or a sandbox, has none, the same is done step by step. The one place for it:
//! restore, walks, removals and the command line use this.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Whether the way may lead into another mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// It may.
    Enter,
    /// It may not: `EXDEV`.
    Stay,
}

/// Opens `path` below `top`: relative, its components separated by slashes, without `..`; `.` is `top` itself. `O_NOFOLLOW` and
/// `O_CLOEXEC` are always set.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` if a component is a symlink or a file, `EXDEV` if it is in another mount and shall not be.
pub fn open(top: BorrowedFd<'_>, path: &[u8], flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Some((above, rest)) = split_long(path) {
        let above = open(top, above, OFlags::PATH | OFlags::DIRECTORY, mounts)?;
        return open(above.as_fd(), rest, flags, mounts);
    }
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Stay {
        resolve |= ResolveFlags::NO_XDEV;
    }
    match rustix::fs::openat2(top, path, flags, Mode::empty(), resolve) {
        // Kernels before 5.6 have no openat2; some sandboxes answer EPERM to what they do not know. EAGAIN: raced with a rename
        // somewhere up the tree.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => by_hand(top, path, flags, mounts),
        opened => opened,
    }
}

/// A path that is longer than the system takes at once (`PATH_MAX`, 4,096 bytes with the end): as much of it as it takes, and the rest.
fn split_long(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let cut = path.get(..4096)?.iter().rposition(|&byte| byte == b'/')?;
    Some((&path[..cut], &path[cut + 1..]))
}

fn by_hand(top: BorrowedFd<'_>, path: &[u8], flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(top, ".", step, Mode::empty())?;
    let mut parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        if part == b".." {
            return Err(Errno::XDEV);
        }
        let flags = if parts.peek().is_some() { step } else { flags };
        at = rustix::fs::openat(&at, part, flags, Mode::empty())?;
    }
    if mounts == Mounts::Stay && mount_of(at.as_fd()) != mount_of(top) {
        return Err(Errno::XDEV);
    }
    Ok(at)
}

/// What tells one mount from another: its id, which the kernel shows since 3.15, else its device.
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap_or_default();
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.or_else(|| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev))
}

#[cfg(test)]
mod tests {
    use super::{Errno, Mounts, OFlags, by_hand, open};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn both_ways_open_the_same_and_follow_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        symlink("f", dir.path().join("a/b/last")).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for way in [open, by_hand] {
            way(top.as_fd(), b"a/b/f", flags, Mounts::Stay).unwrap();
            for bad in [&b"link/b/f"[..], b"a/b/last", b"a/b/f/x", b"../x"] {
                let error = way(top.as_fd(), bad, flags, Mounts::Enter).unwrap_err();
                assert!(matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::XDEV), "{bad:?}: {error}");
            }
            assert_eq!(way(top.as_fd(), b"a/none", flags, Mounts::Enter).unwrap_err(), Errno::NOENT);
            assert_eq!(way(top.as_fd(), b"..", flags, Mounts::Enter).unwrap_err(), Errno::XDEV);
        }
        let root = std::fs::File::open("/").unwrap();
        for way in [open, by_hand] {
            assert_eq!(way(root.as_fd(), b"proc", OFlags::PATH | flags, Mounts::Stay).unwrap_err(), Errno::XDEV);
        }
    }
}
