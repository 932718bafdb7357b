//! The file system as the store uses it: relative to open directories, errors with a name in them.
//!
//! All that changes the disk goes through here, so that tests can cut it off at any step (see `faults`).

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Says what was being done when a system call failed.
pub(super) trait Doing<T> {
    /// Turns the system's error into the contract's; `what` completes "cannot …".
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::from_io(format!("cannot {}", what()), &errno.into()))
    }
}

/// An error of kind `DataLoss`.
pub(super) fn damaged(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::DataLoss, message)
}

/// Opens a directory below `parent`, which must not be a symlink.
pub(super) fn open_dir(parent: impl AsFd, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).doing(|| format!("open the directory {name} of the store"))
}

/// Opens a regular file for reading; none if there is nothing of that name.
pub(super) fn open_file(parent: impl AsFd, name: &str) -> Result<Option<(OwnedFd, u64)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno).doing(|| format!("open {name} of the store")),
    };
    let stat = rustix::fs::fstat(&fd).doing(|| format!("look at {name} of the store"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(damaged(format!("{name} of the store is not a regular file")));
    }
    Ok(Some((fd, u64::try_from(stat.st_size).unwrap_or(0))))
}

/// Reads a small file whole; none if there is none. `DataLoss` if it is larger than `limit`.
pub(super) fn read_file(parent: impl AsFd, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let Some((fd, size)) = open_file(parent, name)? else { return Ok(None) };
    if size > limit {
        return Err(damaged(format!("{name} of the store is too large: {size} bytes")));
    }
    let mut out = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    let read = pread_full(&fd, &mut out, 0).doing(|| format!("read {name} of the store"))?;
    out.truncate(read);
    Ok(Some(out))
}

/// Reads from `offset` until `buf` is full or the file ends; gives the number of bytes.
pub(super) fn pread_full(fd: impl AsFd, buf: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(&fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Writes all of `buf` at the descriptor's offset.
pub(crate) fn write_all(fd: impl AsFd, mut buf: &[u8]) -> rustix::io::Result<()> {
    changed(&fd);
    while !buf.is_empty() {
        step()?;
        match rustix::io::write(&fd, short(buf)) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => buf = &buf[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all of `buf` at `offset`.
pub(crate) fn pwrite_all(fd: impl AsFd, mut buf: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    changed(&fd);
    while !buf.is_empty() {
        step()?;
        match rustix::io::pwrite(&fd, short(buf), offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Creates a file that must not exist, for reading and writing.
pub(super) fn create_new(parent: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    changed(&parent);
    step()
        .and_then(|()| rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode)))
        .inspect(|file| changed(file))
        .doing(|| format!("create {name} in the store"))
}

/// Makes a directory; one that is there already is success.
pub(super) fn make_dir(parent: impl AsFd, name: &str) -> Result<()> {
    match step().and_then(|()| rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))) {
        Ok(()) => {
            changed(&parent);
            Ok(())
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno).doing(|| format!("make the directory {name} in the store")),
    }
}

/// Renames, replacing what is there.
pub(super) fn rename(from: impl AsFd, old: &str, to: impl AsFd, new: &str) -> Result<()> {
    changed(&to);
    step()
        .and_then(|()| rustix::fs::renameat(from, old, to, new))
        .doing(|| format!("rename {old} to {new} in the store"))
}

/// Removes a file; whether there was one.
pub(super) fn remove(parent: impl AsFd, name: &str) -> Result<bool> {
    match step().and_then(|()| rustix::fs::unlinkat(parent, name, AtFlags::empty())) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno).doing(|| format!("remove {name} from the store")),
    }
}

/// Brings a file or directory to disk.
pub(super) fn sync(fd: impl AsFd, name: &str) -> Result<()> {
    synced(&fd);
    step().and_then(|()| rustix::fs::fsync(fd)).doing(|| format!("bring {name} of the store to disk"))
}

/// Brings everything on the file system of `fd` to disk.
pub(super) fn sync_all(fd: impl AsFd) -> Result<()> {
    synced_all();
    step().and_then(|()| rustix::fs::syncfs(fd)).doing(|| "bring the store to disk".to_owned())
}

/// Writes a small file in one go: a new file in `tmp`, to disk if `durable`, renamed to its place.
pub(super) fn put(
    tmp: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &str,
    data: &[u8],
    mode: u32,
    durable: bool,
) -> Result<()> {
    let temp = temp_name(name)?;
    let fd = create_new(tmp, &temp, mode)?;
    let written = write_all(&fd, data)
        .doing(|| format!("write {name} of the store"))
        .and_then(|()| if durable { sync(&fd, name) } else { Ok(()) })
        .and_then(|()| rename(tmp, &temp, parent, name));
    if written.is_err() {
        // The error that counts is the first; what stays behind is found in `tmp` by the next writer.
        let _ = remove(tmp, &temp);
    }
    written
}

/// A name in `tmp` that nobody else has.
pub(super) fn temp_name(name: &str) -> Result<String> {
    Ok(format!("{:016x}-{name}", random()?))
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Internal, format!("the system gives no random numbers: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Whether there is anything of that name. If that cannot be told, there is.
pub(super) fn exists(parent: impl AsFd, name: &str) -> bool {
    !matches!(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
}

/// The names in a directory, `.` and `..` excepted, in no order. Names that are not UTF-8 are not the store's: left out.
pub(super) fn names(dir: impl AsFd) -> Result<Vec<String>> {
    let mut out = Vec::new();
    each_name(dir, |name, _| {
        if let Ok(name) = name.to_str() {
            out.push(name.to_owned());
        }
    })
    .doing(|| "list a directory of the store".to_owned())?;
    Ok(out)
}

/// Calls `each` with every name in a directory and its type where the file system tells it.
pub(super) fn each_name(dir: impl AsFd, mut each: impl FnMut(&CStr, FileType)) -> rustix::io::Result<()> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            each(entry.file_name(), entry.file_type());
        }
    }
    Ok(())
}

/// Where tests step in; nothing at all otherwise.
#[cfg(not(test))]
mod hooks {
    use std::os::fd::AsFd;

    #[inline]
    #[allow(clippy::unnecessary_wraps, reason = "in tests it fails on demand")]
    pub(crate) fn step() -> rustix::io::Result<()> {
        Ok(())
    }

    #[inline]
    pub(super) fn short(buf: &[u8]) -> &[u8] {
        buf
    }

    #[inline]
    pub(crate) fn listed() {}

    #[inline]
    pub(crate) fn changed(_fd: impl AsFd) {}

    #[inline]
    pub(crate) fn changed_inode(_stat: &rustix::fs::Stat) {}

    #[inline]
    pub(super) fn synced(_fd: impl AsFd) {}

    #[inline]
    pub(super) fn synced_all() {}
}

#[cfg(test)]
pub(crate) mod faults;
#[cfg(test)]
use faults as hooks;

pub(super) use hooks::{changed, changed_inode, listed, step};
use hooks::{short, synced, synced_all};
