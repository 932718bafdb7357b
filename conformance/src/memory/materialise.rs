//! How a tree in memory becomes a directory again.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use ah_plugin_api::{Context, Error, RelPath, Result, Timestamp};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::node::{Data, Node};

/// What of a tree is wanted, and how.
pub(super) struct Wanted<'a> {
    /// These paths, with what is above and below them; empty: everything.
    pub(super) paths: &'a [RelPath],
    /// Whether write bits are taken off.
    pub(super) read_only: bool,
}

/// Makes `node` as `name` in `parent`. On failure nothing of it stays.
pub(super) fn materialise(
    node: &Node,
    parent: BorrowedFd<'_>,
    name: &[u8],
    wanted: &Wanted<'_>,
    cx: &Context<'_>,
) -> Result<()> {
    make_dir(parent, name).map_err(|e| broken(name, e))?;
    fill(node, parent, name, &RelPath::root(), wanted, cx).inspect_err(|_| {
        // The error at hand is the one to tell of.
        let _ = remove(parent, name);
    })
}

/// Fills the directory `name`, which is there and empty, then gives it its bits and its time.
fn fill(
    node: &Node,
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &RelPath,
    wanted: &Wanted<'_>,
    cx: &Context<'_>,
) -> Result<()> {
    let Data::Dir(children) = &node.data else {
        return Err(Error::new(ah_plugin_api::ErrorKind::Internal, "a directory's node holds no directory"));
    };
    let dir = open_dir(parent, name).map_err(|e| broken(name, e))?;
    for (name, child) in children {
        cx.check_cancelled()?;
        let path = path.join(name)?;
        let within = |p: &RelPath| path.starts_with(p) || p.starts_with(&path);
        if !wanted.paths.is_empty() && !wanted.paths.iter().any(within) {
            continue;
        }
        match &child.data {
            Data::Dir(_) => {
                make_dir(dir.as_fd(), name).map_err(|e| broken(name, e))?;
                fill(child, dir.as_fd(), name, &path, wanted, cx)?;
            }
            Data::File(bytes) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&dir, OsStr::from_bytes(name), flags, Mode::RUSR | Mode::WUSR)
                    .map_err(|e| broken(name, e))?;
                let mut file = std::fs::File::from(fd);
                file.write_all(bytes).map_err(|e| Error::from_io("cannot write", &e))?;
                rustix::fs::fchmod(&file, bits(child, wanted)).map_err(|e| broken(name, e))?;
                rustix::fs::futimens(&file, &times(child.mtime)).map_err(|e| broken(name, e))?;
            }
            Data::Symlink(target) => {
                let name = OsStr::from_bytes(name);
                rustix::fs::symlinkat(OsStr::from_bytes(target), &dir, name)
                    .and_then(|()| rustix::fs::utimensat(&dir, name, &times(child.mtime), AtFlags::SYMLINK_NOFOLLOW))
                    .map_err(|e| broken(name.as_bytes(), e))?;
            }
        }
    }
    rustix::fs::fchmod(&dir, bits(node, wanted))
        .and_then(|()| rustix::fs::futimens(&dir, &times(node.mtime)))
        .map_err(|e| broken(name, e))
}

/// Removes what is called `name`, with everything below it, following no symlink. Success if nothing is.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let dir = open_dir(parent, name)?;
    // A view's directories have no write bits.
    rustix::fs::fchmod(&dir, Mode::RWXU)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.iter().try_for_each(|name| remove(dir.as_fd(), name))?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn make_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)
}

fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        // A directory that its owner may not read: only in a clone, and only its owner comes here.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        other => other,
    }
}

fn bits(node: &Node, wanted: &Wanted<'_>) -> Mode {
    Mode::from_raw_mode(if wanted.read_only { node.mode & !0o222 } else { node.mode })
}

fn times(time: Timestamp) -> Timestamps {
    let time = Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn broken(name: &[u8], errno: Errno) -> Error {
    Error::from_io(format!("cannot make {:?}", String::from_utf8_lossy(name)), &errno.into())
}
