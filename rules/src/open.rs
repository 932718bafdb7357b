//! Opening what a hostile tree may have put in place of a file: never blocks, never reads anything but regular files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The largest ignore file that counts.
pub(crate) const LARGEST_IGNORE_FILE: u64 = 16 << 20;

/// Whether a symlink in the last place is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

/// Opens what a path leads to, which somebody else has written: symlinks are followed as `flags` say, but none of those in `/proc` that stand for what a
/// process has open or works in. By those root would come to what whoever wrote the path has no way to, with whosever rights it reads.
///
/// # Errors
/// Those of the system; `ELOOP` for such a link.
pub fn without_magic(dir: impl AsFd, path: impl Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = path.into_c_str()?;
    match rustix::fs::openat2(&dir, &*path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        // Before Linux 5.6, or forbidden in a container. Who acts for themselves follows nothing there that is not theirs already; who acts for somebody
        // else makes sure beforehand that there is the call.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(&dir, &*path, flags, Mode::empty()),
        opened => opened,
    }
}

/// Opens a regular file. None if there is none, or something else in its place, or it may not be read.
pub(crate) fn regular(dir: BorrowedFd<'_>, name: impl Arg, links: Links) -> Option<(OwnedFd, rustix::fs::Stat)> {
    // A FIFO must not block us, and a terminal not become ours.
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let fd = without_magic(dir, name, flags).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some((fd, stat))
}

/// Reads a regular file of at most `limit` bytes; none if there is no such file.
pub(crate) fn read(dir: BorrowedFd<'_>, name: impl Arg, links: Links, limit: u64) -> Option<Vec<u8>> {
    let (fd, stat) = regular(dir, name, links)?;
    read_open(fd, stat.st_size.cast_unsigned(), limit).ok()
}

/// Reads an open file of at most `limit` bytes; `size` is a hint.
pub(crate) fn read_open(fd: OwnedFd, size: u64, limit: u64) -> io::Result<Vec<u8>> {
    if size > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    File::from(fd).take(limit + 1).read_to_end(&mut out)?;
    if out.len() as u64 > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(out) }
}

/// Opens a directory without following a symlink in the last place.
pub(crate) fn directory(dir: BorrowedFd<'_>, name: impl Arg, links: Links) -> Option<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    without_magic(dir, name, flags).ok()
}

/// Device and inode of an open file.
pub(crate) fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}
