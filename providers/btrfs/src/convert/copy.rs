//! A copy of a directory that shares its data: reflinks, hard links, holes, owners, permission bits, extended attributes, times to the
//! nanosecond, and what is neither file nor directory. And what a directory looked like, to notice that it was changed.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, RelPath, Result};
use ah_provider_directory::{failed, look, names, open_beneath};
use rustix::fs::{
    AtFlags, FileType, Gid, IFlags, Mode, OFlags, SeekFrom, Statx, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What everything in a directory looked like: number, change time, size. Whatever is done in it shows.
#[derive(Debug, Default)]
pub(super) struct State {
    entries: Vec<(u64, i64, u32, u64)>,
    inodes: HashSet<u64>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl State {
    /// What a directory looks like now.
    pub(super) fn of(dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Self> {
        let mut state = Self::default();
        let stat = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
        state.add_top(&stat);
        state.walk(dir, cx)?;
        Ok(state)
    }

    fn walk(&mut self, dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
        let fail = |errno| failed("cannot look at what is in the workspace", errno);
        for name in names(dir).map_err(fail)? {
            cx.check_cancelled()?;
            // What is gone by now shows in the length.
            let stat = match look(dir, &name) {
                Err(Errno::NOENT) => continue,
                stat => stat.map_err(fail)?,
            };
            self.add(&stat);
            if is(&stat, FileType::Directory) {
                let below = rustix::fs::openat(dir, name.as_slice(), DIRECTORY, Mode::empty()).map_err(fail)?;
                self.walk(below.as_fd(), cx)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, stat: &Statx) {
        self.entries.push((stat.stx_ino, stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec, stat.stx_size));
        self.inodes.insert(stat.stx_ino);
    }

    /// The directory itself, whose change time changes when it changes its name.
    fn add_top(&mut self, stat: &Statx) {
        let look = (stat.stx_ino, stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec, u64::from(stat.stx_mode));
        self.entries.push(look);
        self.inodes.insert(stat.stx_ino);
    }

    /// Whether something of that number was there.
    pub(super) fn has(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }
}

fn is(stat: &Statx, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == kind
}

/// Makes the copy.
pub(super) struct Copier<'a> {
    top: BorrowedFd<'a>,
    cx: &'a Context<'a>,
    /// Where the first name of each file with several is.
    linked: HashMap<u64, RelPath>,
    /// What was copied, as it was just before.
    pub(super) state: State,
    done: u64,
}

impl<'a> Copier<'a> {
    /// Into `top`, which is empty.
    pub(super) fn new(top: BorrowedFd<'a>, cx: &'a Context<'a>) -> Self {
        Self { top, cx, linked: HashMap::new(), state: State::default(), done: 0 }
    }

    /// Copies everything of `from`, its own attributes as well.
    pub(super) fn run(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
        let fail = |errno| failed("cannot look at the workspace", errno);
        let stat = look(from, b"").map_err(fail)?;
        self.state.add_top(&stat);
        copy_flags(from, to);
        self.directory(from, to, &RelPath::root())?;
        attributes(from, to, &stat, &RelPath::root())
    }

    fn directory(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, at: &RelPath) -> Result<()> {
        for name in names(from).map_err(|errno| cannot(at, errno))? {
            self.cx.check_cancelled()?;
            self.done += 1;
            if self.done.is_multiple_of(512) {
                self.cx.progress("copying", self.done, None);
            }
            let path = at.join(&name)?;
            let stat = look(from, &name).map_err(|errno| cannot(&path, errno))?;
            self.state.add(&stat);
            self.entry(from, to, &name, &path, &stat)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Statx,
    ) -> Result<()> {
        let fail = |errno| cannot(path, errno);
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        if kind != FileType::Directory && stat.stx_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.stx_ino) {
                let parent = first.parent().unwrap_or_default();
                let parent =
                    open_beneath(self.top, parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
                let first = first.file_name().unwrap_or_default();
                return rustix::fs::linkat(&parent, first, to, name, AtFlags::empty()).map_err(fail);
            }
            self.linked.insert(stat.stx_ino, path.clone());
        }
        match kind {
            FileType::Directory => {
                rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(fail)?;
                let below = rustix::fs::openat(from, name, DIRECTORY, Mode::empty()).map_err(fail)?;
                let copy = rustix::fs::openat(to, name, DIRECTORY, Mode::empty()).map_err(fail)?;
                copy_flags(below.as_fd(), copy.as_fd());
                self.directory(below.as_fd(), copy.as_fd(), path)?;
                attributes(below.as_fd(), copy.as_fd(), stat, path)
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let file = rustix::fs::openat(from, name, flags, Mode::empty()).map_err(fail)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
                copy_flags(file.as_fd(), copy.as_fd());
                self.contents(&file, &copy, path)?;
                attributes(file.as_fd(), copy.as_fd(), stat, path)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(fail)?;
                rustix::fs::symlinkat(target, to, name).map_err(fail)?;
                own(to, name, stat, path)?;
                rustix::fs::utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
            }
            kind => {
                let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                rustix::fs::mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, device).map_err(fail)?;
                own(to, name, stat, path)?;
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let copy = rustix::fs::openat(to, name, flags, Mode::empty()).map_err(fail)?;
                rustix::fs::chmod(format!("/proc/self/fd/{}", copy.as_raw_fd()), bits(stat)).map_err(fail)?;
                rustix::fs::utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
            }
        }
    }

    fn contents(&self, from: &OwnedFd, to: &OwnedFd, path: &RelPath) -> Result<()> {
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => Ok(()),
            // Of an odd kind: byte by byte.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY) => self.bytes(from, to, path),
            Err(errno) => Err(cannot(path, errno)),
        }
    }

    /// Without what is a hole.
    fn bytes(&self, from: &OwnedFd, to: &OwnedFd, path: &RelPath) -> Result<()> {
        let fail = |errno| cannot(path, errno);
        let size = look(from, b"").map_err(fail)?.stx_size;
        rustix::fs::ftruncate(to, size).map_err(fail)?;
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(()),
                Err(errno) => return Err(fail(errno)),
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(at)).map_err(fail)?;
            while at < end {
                self.cx.check_cancelled()?;
                let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
                let got = rustix::io::pread(from, buffer.get_mut(..wanted).unwrap_or_default(), at).map_err(fail)?;
                if got == 0 {
                    return Ok(());
                }
                let mut written = 0;
                while written < got {
                    let rest = buffer.get(written..got).unwrap_or_default();
                    written += rustix::io::pwrite(to, rest, at + written as u64).map_err(fail)?;
                }
                at += got as u64;
            }
        }
    }
}

fn cannot(path: &RelPath, errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::new(ErrorKind::Busy, format!("{path} was taken away while the workspace was converted"))
            .with_hint("end what writes there, then repeat"),
        errno => failed(format!("cannot copy {path}"), errno),
    }
}

/// What has to be set before there are contents: whether they are overwritten in place.
fn copy_flags(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    if let (Ok(want), Ok(have)) = (rustix::fs::ioctl_getflags(from), rustix::fs::ioctl_getflags(to))
        && (want ^ have).contains(IFlags::NOCOW)
    {
        // If it cannot be had, the contents are the same all the same.
        let _ = rustix::fs::ioctl_setflags(to, (have - IFlags::NOCOW) | (want & IFlags::NOCOW));
    }
}

fn bits(stat: &Statx) -> Mode {
    Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777)
}

fn times(stat: &Statx) -> Timestamps {
    let time = |t: rustix::fs::StatxTimestamp| Timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_nsec.into() };
    Timestamps { last_access: time(stat.stx_atime), last_modification: time(stat.stx_mtime) }
}

/// Gives an entry to its owner. Itself, where the name is empty.
fn own(dir: BorrowedFd<'_>, name: &[u8], stat: &Statx, path: &RelPath) -> Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let now = look(dir, name).map_err(|errno| cannot(path, errno))?;
    if (now.stx_uid, now.stx_gid) == (stat.stx_uid, stat.stx_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
    rustix::fs::chownat(dir, name, Some(user), Some(group), flags).map_err(|errno| {
        failed(format!("{path} belongs to another user or group, and you may not give it away"), errno)
            .with_hint("convert it as root")
    })
}

/// Owner, extended attributes, permission bits and times, in the order in which each leaves the others as they are.
fn attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>, stat: &Statx, path: &RelPath) -> Result<()> {
    let fail = |errno| cannot(path, errno);
    own(to, b"", stat, path)?;
    let length = rustix::fs::flistxattr_query(from).map_err(fail)?;
    if length > 0 {
        let mut list = vec![0; length];
        let got = rustix::fs::flistxattr(from, list.as_mut_slice()).map_err(fail)?;
        list.truncate(got);
        for name in list.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 64 << 10];
            let got = match rustix::fs::fgetxattr(from, name, value.as_mut_slice()) {
                Ok(got) => got,
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(fail(errno)),
            };
            value.truncate(got);
            match rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty()) {
                Ok(()) => {}
                // What only root may set is set by the system for a new file as it was for the old one.
                Err(Errno::PERM | Errno::OPNOTSUPP) if !name.starts_with(b"user.") => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
    }
    rustix::fs::fchmod(to, bits(stat)).map_err(fail)?;
    rustix::fs::futimens(to, &times(stat)).map_err(fail)
}
