//! Opening what lies below an open directory, without following a symlink and without leaving it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens `path` below `top`: relative, components separated by slashes, none of them `..`; the empty path is `top` itself.
/// Never crosses into another mount (`EXDEV`), nor follows a symlink (`ELOOP`, `ENOTDIR`).
///
/// # Errors
/// What the operating system says.
pub fn open_beneath(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if path.is_empty() {
        return rustix::fs::openat(top, c".", flags, Mode::empty());
    }
    // Longer than the system takes at once (`PATH_MAX`, 4,096 bytes with the end).
    let long = path.get(..4096).and_then(|head| head.iter().rposition(|&byte| byte == b'/'));
    if let Some((above, rest)) = long.and_then(|cut| path.split_at_checked(cut)) {
        let above = open_beneath(top, above, OFlags::PATH | OFlags::DIRECTORY)?;
        return open_beneath(above.as_fd(), &rest[1..], flags);
    }
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(top, path, flags, Mode::empty(), resolve) {
        // Not in kernels before 5.6, and not in some sandboxes; raced with a rename further up.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => step_by_step(top, path, flags),
        opened => opened,
    }
}

fn step_by_step(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(top, c".", step, Mode::empty())?;
    let mut parts = path.split(|&b| b == b'/').peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() || part == b".." {
            return Err(Errno::XDEV);
        }
        at = rustix::fs::openat(&at, part, if parts.peek().is_some() { step } else { flags }, Mode::empty())?;
    }
    if mount_or_device(at.as_fd())? != mount_or_device(top)? {
        return Err(Errno::XDEV);
    }
    Ok(at)
}

/// The mount, or, on kernels that do not say, the device.
fn mount_or_device(fd: BorrowedFd<'_>) -> Result<(u64, u32, u32), Errno> {
    let stat = crate::look(fd, b"")?;
    Ok(match crate::mount_of(fd)? {
        0 => (0, stat.stx_dev_major, stat.stx_dev_minor),
        mount => (mount, 0, 0),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn both_ways_open_the_same_and_follow_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        symlink("f", dir.path().join("a/b/last")).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for way in [open_beneath, step_by_step] {
            way(top.as_fd(), b"a/b/f", flags).unwrap();
            for bad in [&b"link/b/f"[..], b"a/b/last", b"a/b/f/x", b"../x", b"a/../../x"] {
                let error = way(top.as_fd(), bad, flags).unwrap_err();
                assert!(matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::XDEV), "{bad:?}: {error}");
            }
            assert_eq!(way(top.as_fd(), b"a/none", flags).unwrap_err(), Errno::NOENT);
        }
        let root = std::fs::File::open("/").unwrap();
        for way in [open_beneath, step_by_step] {
            assert_eq!(way(root.as_fd(), b"proc", OFlags::PATH | flags).unwrap_err(), Errno::XDEV);
        }
    }
}
