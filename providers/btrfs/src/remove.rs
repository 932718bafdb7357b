//! Removing subvolumes, by whichever way this process may.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use ah_provider_directory::{Way, failed, look, names, open_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::subvolume::is_root;
use crate::sys;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Subvolumes nested deeper than that are not asked for, but found by walking.
const DEEPEST: u32 = 64;

/// Removes the subvolume `name` in `parent`, and those nested in it. What is gone already is success.
///
/// By one call where this user may; else what is in it is removed file by file, which is as slow as it sounds.
///
/// # Errors
/// `Busy` if something is mounted in it, or it is being sent; `PermissionDenied`; `Cancelled`: calling it again goes on.
pub(crate) fn subvolume(parent: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
    nested(parent, name, 0, cx)
}

fn nested(parent: BorrowedFd<'_>, name: &[u8], depth: u32, cx: &Context<'_>) -> Result<()> {
    cx.check_cancelled()?;
    let shown = String::from_utf8_lossy(name).into_owned();
    let fail = |errno| match errno {
        Errno::BUSY => {
            Error::new(ErrorKind::Busy, format!("the subvolume {shown} is in use: something is mounted in it"))
        }
        errno => failed(format!("cannot remove the subvolume {shown}"), errno),
    };
    let first = match sys::destroy(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Nested ones; read-only, or not without emptying it.
        Err(errno @ (Errno::NOTEMPTY | Errno::PERM | Errno::ACCESS | Errno::ROFS)) => errno,
        Err(errno) => return Err(fail(errno)),
    };
    let root = open(parent, name).map_err(fail)?;
    if !look(&root, b"").is_ok_and(|stat| is_root(&stat)) {
        return Err(Error::new(ErrorKind::FailedPrecondition, format!("{shown} is not a subvolume")));
    }
    if first != Errno::NOTEMPTY {
        sys::make_writable(&root).map_err(fail)?;
    }
    // A directory that its owner may not write to cannot be removed by its owner either.
    let _ = rustix::fs::fchmod(&root, Mode::RWXU);
    if depth < DEEPEST {
        for one in sys::nested(&root).map_err(fail)? {
            let path = match sys::nested_path(&root, one) {
                Ok(path) => path,
                // What this user may not read; emptying it opens it up.
                Err(Errno::ACCESS | Errno::NOENT) => continue,
                Err(errno) => return Err(fail(errno)),
            };
            let (above, last) = match path.iter().rposition(|&b| b == b'/') {
                Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
                None => (&b""[..], path.as_slice()),
            };
            let above = open_beneath(root.as_fd(), above, OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
            nested(above.as_fd(), last, depth + 1, cx)?;
        }
    }
    // Writable by now, it is not what it was: whoever ends here must have seen to it that nobody takes it for that.
    cx.check_cancelled()?;
    match sys::destroy(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(fail(errno)),
    }
    contents(root.as_fd(), cx)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

/// Opens a directory, of which its owner may have taken the bits.
fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)?;
            rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
        }
        other => other,
    }
}

fn fail(errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::new(ErrorKind::Busy, "something is mounted in what is to be removed"),
        errno => failed("cannot remove what is in a removed directory", errno),
    }
}

/// Removes what is in an open directory. Follows no symlink, and does not leave the mount.
pub(crate) fn contents(dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
    let first = list(dir)?;
    let mut way = Way::new(dir).map_err(fail)?;
    let mut levels = vec![(Vec::new(), first)];
    while let Some((_, names)) = levels.last_mut() {
        cx.check_cancelled()?;
        if let Some(name) = names.next() {
            if let Some(below) = unlink(way.at(), &name).map_err(fail)? {
                levels.push((name, list(below.as_fd())?));
                way.down(below).map_err(fail)?;
            }
            continue;
        }
        let Some((name, _)) = levels.pop().filter(|_| !levels.is_empty()) else { break };
        way.up().map_err(fail)?;
        gone(rustix::fs::unlinkat(way.at(), name, AtFlags::REMOVEDIR)).map_err(fail)?;
    }
    Ok(())
}

fn list(dir: BorrowedFd<'_>) -> Result<std::vec::IntoIter<Vec<u8>>> {
    // A directory of which its owner took the bits.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    names(dir).map(Vec::into_iter).map_err(fail)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes an entry; a directory that is not empty is opened instead.
fn unlink(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let stat = match look(dir, name) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return gone(rustix::fs::unlinkat(dir, name, AtFlags::empty())).map(|()| None);
    }
    if is_root(&stat) && gone(sys::destroy(dir, name)).is_ok() {
        return Ok(None);
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTEMPTY) => {}
        // A read-only subvolume.
        Err(Errno::PERM | Errno::ACCESS | Errno::ROFS) if is_root(&stat) => {}
        Err(errno) => return Err(errno),
    }
    if look(dir, b"")?.stx_mnt_id != stat.stx_mnt_id {
        return Err(Errno::BUSY);
    }
    let below = open(dir, name)?;
    if is_root(&stat) {
        sys::make_writable(&below)?;
    }
    Ok(Some(below))
}

/// Removes one entry of a directory, with everything below it.
pub(crate) fn entry(dir: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
    let Some(below) = unlink(dir, name).map_err(fail)? else { return Ok(()) };
    contents(below.as_fd(), cx)?;
    gone(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_very_deep_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let top = rustix::fs::open(temp.path(), DIRECTORY, Mode::empty()).unwrap();
        let mut way = Way::new(top.as_fd()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(way.at(), "d", Mode::RWXU).unwrap();
            let below = rustix::fs::openat(way.at(), "d", DIRECTORY, Mode::empty()).unwrap();
            way.down(below).unwrap();
        }
        contents(top.as_fd(), &Context::quiet()).unwrap();
        assert_eq!(names(top.as_fd()).unwrap().len(), 0);
    }
}
