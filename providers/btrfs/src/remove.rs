//! Removing subvolumes, by whichever way this process may.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use ah_provider_directory::{failed, look, names, open_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::subvolume::is_root;
use crate::sys;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Subvolumes nested deeper than that are left alone.
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
    match sys::destroy(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(fail(errno)),
    }
    empty(&root, depth, cx)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
        }
        other => other,
    }
}

/// Removes what is in an open directory. Follows no symlink, and does not leave the mount.
fn empty(dir: &OwnedFd, depth: u32, cx: &Context<'_>) -> Result<()> {
    let fail = |errno| failed("cannot remove what is in a removed subvolume", errno);
    // A directory of which its owner took the bits.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    for name in names(dir.as_fd()).map_err(fail)? {
        entry(dir.as_fd(), &name, depth, cx)?;
    }
    Ok(())
}

/// Removes one entry of a directory, with everything below it.
pub(crate) fn entry(dir: BorrowedFd<'_>, name: &[u8], depth: u32, cx: &Context<'_>) -> Result<()> {
    let fail = |errno| match errno {
        Errno::BUSY => Error::new(ErrorKind::Busy, "something is mounted in what is to be removed"),
        errno => failed("cannot remove what is in a removed subvolume", errno),
    };
    cx.check_cancelled()?;
    let stat = match look(dir, name) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fail(errno)),
    };
    let flags = if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        AtFlags::empty()
    } else if is_root(&stat) {
        return nested(dir, name, depth + 1, cx);
    } else {
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY) => {}
            Err(errno) => return Err(fail(errno)),
        }
        if look(dir, b"").map_err(fail)?.stx_mnt_id != stat.stx_mnt_id {
            return Err(fail(Errno::BUSY));
        }
        empty(&open(dir, name).map_err(fail)?, depth, cx)?;
        AtFlags::REMOVEDIR
    };
    match rustix::fs::unlinkat(dir, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}
