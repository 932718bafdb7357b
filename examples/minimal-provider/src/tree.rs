//! Directory trees: copying and removing them, relative to open directories, following no symlink.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Omission, OmitReason, RelPath, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// Copies one tree.
pub struct Copier<'a> {
    cx: &'a Context<'a>,
    /// Permission bits that the copy keeps.
    keep: u32,
    /// Device of the workspace, and the store in case it lies inside; not there when the source is a snapshot, of which nothing may
    /// be missing.
    workspace: Option<(u64, (u64, u64))>,
    /// What was left out, and why.
    pub omitted: Vec<Omission>,
    /// How many entries were copied.
    pub entries: u64,
}

/// What became of one entry.
enum Outcome {
    Copied,
    Gone,
    Omitted(OmitReason),
}

impl<'a> Copier<'a> {
    /// A copy of a workspace.
    pub fn of_workspace(workspace: BorrowedFd<'_>, store: BorrowedFd<'_>, cx: &'a Context<'a>) -> Result<Self> {
        let device = rustix::fs::fstat(workspace).map_err(|e| failed("cannot look at the workspace", e))?.st_dev;
        let store = rustix::fs::fstat(store).map_err(|e| failed("cannot look at the store", e))?;
        let workspace = Some((device, (store.st_dev, store.st_ino)));
        Ok(Self { cx, keep: 0o7777, workspace, omitted: Vec::new(), entries: 0 })
    }

    /// A copy of a snapshot's tree, without write bits if it is `read_only`.
    pub fn of_snapshot(read_only: bool, cx: &'a Context<'a>) -> Self {
        let keep = if read_only { 0o7777 & !0o222 } else { 0o7777 };
        Self { cx, keep, workspace: None, omitted: Vec::new(), entries: 0 }
    }

    /// Makes the directory `name` in `to`, a copy of the directory `from`.
    pub fn run(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let stat = rustix::fs::fstat(from).map_err(|e| failed("cannot look at a directory", e))?;
        // The descriptor's own position is left alone: others may use it at the same time.
        let from = open_dir(from, b".")?;
        rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(|e| failed("cannot make a directory", e))?;
        self.dir(from.as_fd(), to, name, &RelPath::root(), &stat)
    }

    fn dir(
        &mut self,
        from: BorrowedFd<'_>,
        parent: BorrowedFd<'_>,
        name: &[u8],
        at: &RelPath,
        stat: &Stat,
    ) -> Result<()> {
        let to = open_dir(parent, name)?;
        for name in names(from)? {
            self.cx.check_cancelled()?;
            let path = at.join(&name)?;
            let reason = match self.entry(from, to.as_fd(), &name, &path)? {
                Outcome::Copied => {
                    self.entries += 1;
                    continue;
                }
                Outcome::Gone => None,
                Outcome::Omitted(reason) => Some(reason),
            };
            if self.workspace.is_none() {
                return Err(Error::new(ErrorKind::DataLoss, format!("{path} of the snapshot cannot be read")));
            }
            self.omitted.extend(reason.map(|reason| Omission { path, reason, detail: None }));
        }
        self.finish(to.as_fd(), stat)
    }

    fn entry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Outcome> {
        let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => return unread(path, errno),
        };
        if let Some((device, store)) = self.workspace {
            if stat.st_dev != device {
                return Ok(Outcome::Omitted(OmitReason::OtherFilesystem));
            }
            if (stat.st_dev, stat.st_ino) == store {
                return Ok(Outcome::Omitted(OmitReason::OwnState));
            }
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(from, to, name, path),
            FileType::Directory => {
                let from = match rustix::fs::openat(from, name, DIRECTORY, Mode::empty()) {
                    Ok(dir) => dir,
                    Err(errno) => return unread(path, errno),
                };
                rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(|e| failed(&format!("cannot copy {path}"), e))?;
                self.dir(from.as_fd(), to, name, path, &stat)?;
                Ok(Outcome::Copied)
            }
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(from, name, Vec::new()) {
                    Ok(target) => target,
                    Err(errno) => return unread(path, errno),
                };
                rustix::fs::symlinkat(&target, to, name)
                    .and_then(|()| rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW))
                    .map_err(|e| failed(&format!("cannot copy {path}"), e))?;
                Ok(Outcome::Copied)
            }
            _ => Ok(Outcome::Omitted(OmitReason::SpecialFile)),
        }
    }

    fn file(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Outcome> {
        let cannot = |e: &std::io::Error| Error::from_io(format!("cannot copy {path}"), e);
        for _ in 0..3 {
            // O_NONBLOCK: should it be a FIFO by now, opening it must not wait for its other end.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let source = match rustix::fs::openat(from, name, flags, Mode::empty()) {
                Ok(file) => File::from(file),
                Err(errno) => return unread(path, errno),
            };
            let before = rustix::fs::fstat(&source).map_err(|e| cannot(&e.into()))?;
            if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
                continue;
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| cannot(&e.into()))?;
            let mut copy = File::from(copy);
            if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
                // In pieces, to look now and then whether the caller still wants it.
                while std::io::copy(&mut (&source).take(8 << 20), &mut copy).map_err(|e| cannot(&e))? > 0 {
                    self.cx.check_cancelled()?;
                }
            }
            let after = rustix::fs::fstat(&source).map_err(|e| cannot(&e.into()))?;
            if unchanged(&before, &after) {
                self.finish(copy.as_fd(), &before)?;
                return Ok(Outcome::Copied);
            }
        }
        match rustix::fs::unlinkat(to, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Outcome::Omitted(OmitReason::Changing)),
            Err(errno) => Err(cannot(&errno.into())),
        }
    }

    /// Gives a copy its permission bits and its time, the time last.
    fn finish(&self, copy: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode & self.keep))
            .and_then(|()| rustix::fs::futimens(copy, &times(stat)))
            .map_err(|e| failed("cannot set permission bits and times", e))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory in a directory.
pub fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
        .map_err(|e| failed(&format!("cannot open the directory {:?}", String::from_utf8_lossy(name)), e))
}

/// The names in a directory.
pub fn names(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(|e| failed("cannot read a directory", e))? {
        let entry = entry.map_err(|e| failed("cannot read a directory", e))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// `NotFound` unless `path` is there, below `tree`, without a symlink on the way.
pub fn find(tree: BorrowedFd<'_>, path: &RelPath) -> Result<()> {
    let name = if path.is_root() { b"." } else { path.as_bytes() };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(tree, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
        Ok(_) => Ok(()),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            Err(Error::new(ErrorKind::NotFound, format!("{path} is not in the snapshot")))
        }
        Err(errno) => Err(failed(&format!("cannot look for {path}"), errno)),
    }
}

/// `AlreadyExists` if there is something of that name.
pub fn must_not_exist(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(failed(&format!("{:?} is taken", String::from_utf8_lossy(name)), Errno::EXIST)),
        Err(_) => Ok(()),
    }
}

/// Device and inode of an entry, which no other bears as long as it is there.
pub fn identity(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(u64, u64)> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Renames, but not over something.
pub fn rename(from: BorrowedFd<'_>, old: &[u8], to: BorrowedFd<'_>, new: &[u8]) -> Result<()> {
    rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE)
        .map_err(|e| failed(&format!("cannot rename to {:?}", String::from_utf8_lossy(new)), e))
}

/// Removes what is called `name`, with everything below it. Success if nothing is.
pub fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let cannot = |e| failed(&format!("cannot remove {:?}", String::from_utf8_lossy(name)), e);
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(cannot(errno)),
    }
    let dir = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty()).map_err(cannot)?;
            open_dir(parent, name)?
        }
        other => other.map_err(cannot)?,
    };
    // It may be a copy of a directory in which nobody may write.
    rustix::fs::fchmod(&dir, Mode::RWXU).map_err(cannot)?;
    for name in names(dir.as_fd())? {
        remove(dir.as_fd(), &name)?;
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // Two may be removing the same.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(cannot(errno)),
    }
}

/// An error of the operating system as one of the contract.
pub fn failed(what: &str, errno: Errno) -> Error {
    Error::from_io(what, &errno.into())
}

/// What it means that an entry of the source cannot be read.
fn unread(path: &RelPath, errno: Errno) -> Result<Outcome> {
    match errno {
        // Somebody took it away, or put something else in its place, since the directory was read.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(Outcome::Gone),
        Errno::ACCESS | Errno::PERM => Ok(Outcome::Omitted(OmitReason::Unreadable)),
        Errno::NXIO => Ok(Outcome::Omitted(OmitReason::SpecialFile)),
        errno => Err(failed(&format!("cannot read {path}"), errno)),
    }
}

fn unchanged(before: &Stat, after: &Stat) -> bool {
    let look = |s: &Stat| (s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
    look(before) == look(after)
}

fn times(stat: &Stat) -> Timestamps {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
    let time = Timespec { tv_sec: stat.st_mtime as i64, tv_nsec: stat.st_mtime_nsec as _ };
    Timestamps { last_access: time, last_modification: time }
}
