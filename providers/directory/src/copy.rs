//! A copy of a directory that shares its data: reflinks, hard links, holes, owners, permission bits, flags, extended attributes, times to
//! the nanosecond, and what is neither file nor directory.
//!
//! What it is may change hands while it is copied, and root may copy what belongs to others: owner, bits and contents of each entry come
//! from one open descriptor, of which they did not change in between, and nobody else can come to the copy before all that is done.
//!
//! It is of one filesystem: inode numbers tell files apart only there, and what is on another one has its own way of coming along.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ah_plugin_api::{Context, Error, ErrorKind, RelPath, Result, text};
use rustix::fs::{
    AtFlags, FileType, Gid, IFlags, Mode, OFlags, SeekFrom, Statx, StatxAttributes, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::way::DIRECTORY;
use crate::{State, Way, failed, holders, look, names, open_beneath};

/// That it is never compressed.
const NOCOMP: IFlags = IFlags::from_bits_retain(linux_raw_sys::general::FS_NOCOMP_FL);

/// What is set at files by chattr(1) and can be taken over. Compression is an extended attribute, too.
const FLAGS: IFlags =
    IFlags::NOCOW.union(NOCOMP).union(IFlags::NOATIME).union(IFlags::NODUMP).union(IFlags::SYNC).union(IFlags::DIRSYNC);

/// Longer than the steps of the clock that change times are taken from.
pub const TICK: Duration = Duration::from_millis(20);

/// Makes the copy.
pub struct Copier<'a> {
    top: BorrowedFd<'a>,
    /// The workspace's path, for hints.
    shown: PathBuf,
    cx: &'a Context<'a>,
    /// Where the first name of each file with several is, how many were seen and how many there are.
    linked: HashMap<u64, (RelPath, u32, u32)>,
    /// What was copied, as it was just before.
    pub state: State,
    lost: Lost,
    done: u64,
}

/// What did not come along: how many, and the first.
#[derive(Default)]
struct Lost {
    flags: Option<(u64, RelPath)>,
    xattrs: Option<(u64, RelPath, String)>,
    unasked: Option<(u64, RelPath)>,
}

/// A directory on the way down.
struct Level {
    names: std::vec::IntoIter<Vec<u8>>,
    stat: Statx,
}

impl<'a> Copier<'a> {
    /// Into `top`, which is empty, of the directory whose path is `shown`.
    pub fn new(top: BorrowedFd<'a>, shown: PathBuf, cx: &'a Context<'a>) -> Self {
        let (state, lost) = (State::default(), Lost::default());
        Self { top, shown, cx, linked: HashMap::new(), state, lost, done: 0 }
    }

    /// Copies everything that is in `from`; gives what `from` itself was like, for [`Self::finish`].
    pub fn run(&mut self, from: BorrowedFd<'_>) -> Result<Statx> {
        let mut path = RelPath::root();
        let top = look(from, b"").map_err(|errno| self.cannot(&path, errno))?;
        self.state.set_top(&top);
        self.refuse_locked(&top, &path)?;
        let_pass(&top);
        let place = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_mnt_id);
        self.flags(from, self.top, &path);
        let way = |dir| Way::new(dir).map_err(|errno| failed("cannot look at the workspace", errno));
        let (mut old, mut new) = (way(from)?, way(self.top)?);
        let mut levels = vec![self.level(old.at(), &path, top)?];
        while let Some(level) = levels.last_mut() {
            self.cx.check_cancelled()?;
            let Some(name) = level.names.next() else {
                let stat = levels.pop().filter(|_| !levels.is_empty()).map(|level| level.stat);
                if let Some(stat) = stat {
                    let left = old.up().and_then(|old| Ok((old, new.up()?)));
                    let (old, new) = left.map_err(|errno| self.cannot(&path, errno))?;
                    self.attributes(old.as_fd(), new.as_fd(), &stat, &path)?;
                    path = path.parent().unwrap_or_default();
                }
                continue;
            };
            self.done += 1;
            if self.done.is_multiple_of(512) {
                self.cx.progress("copying", self.done, None);
            }
            path = path.join(&name)?;
            let stat = look(old.at(), &name).map_err(|errno| self.cannot(&path, errno))?;
            if place(&stat) != place(&top) {
                let message = format!("{path} is a filesystem or subvolume of its own, which would have to come along");
                return Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("move it out of there, or unmount it, then repeat"));
            }
            self.state.add(&stat);
            self.refuse_locked(&stat, &path)?;
            let_pass(&stat);
            between(Point::Looked);
            if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory {
                let (below, copy) = self.enter(old.at(), new.at(), &name, &path, &stat)?;
                levels.push(self.level(below.as_fd(), &path, stat)?);
                old.down(below).and_then(|()| new.down(copy)).map_err(|errno| self.cannot(&path, errno))?;
            } else {
                self.entry(old.at(), new.at(), &name, &path, &stat)?;
                path = path.parent().unwrap_or_default();
            }
        }
        Ok(top)
    }

    /// Gives the copy the attributes of the directory itself: until then it is nobody else's.
    pub fn finish(&mut self, from: BorrowedFd<'_>, stat: &Statx) -> Result<()> {
        self.attributes(from, self.top, stat, &RelPath::root())
    }

    /// What a person should know of the copy.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        // Git, and snapshots by it, give objects such names, and never change what is in them.
        let outside = self.linked.values().filter(|(path, seen, all)| seen < all && !is_object(path));
        if let Some((first, _, _)) = outside.clone().min_by(|a, b| a.0.cmp(&b.0)) {
            let many = outside.count();
            notes.push(format!(
                "{} a name outside of it too, which goes on naming the former file, not this one: {first} (the first)",
                text::count(many, "file has", "files have")
            ));
        }
        if let Some((many, first, name)) = &self.lost.xattrs {
            notes.push(format!(
                "{} left behind, which only root may set: {name} of {first} (the first)",
                text::count(*many, "extended attribute was", "extended attributes were")
            ));
        }
        if let Some((many, first)) = &self.lost.flags {
            notes.push(format!(
                "{} lost flags that chattr had set: {first} (the first)",
                text::count(*many, "file", "files")
            ));
        }
        if let Some((many, first)) = &self.lost.unasked {
            notes.push(format!(
                "the system would not say who has {} open: {first} (the first)",
                text::count(*many, "file", "files")
            ));
        }
        notes
    }

    fn level(&self, dir: BorrowedFd<'_>, path: &RelPath, stat: Statx) -> Result<Level> {
        let names = names(dir).map_err(|errno| self.cannot(path, errno))?.into_iter();
        Ok(Level { names, stat })
    }

    fn enter(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Statx,
    ) -> Result<(OwnedFd, OwnedFd)> {
        let below = self.opened(from, name, DIRECTORY, path, stat)?;
        let fail = |errno| failed(format!("cannot copy {path}"), errno);
        rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(fail)?;
        let copy = rustix::fs::openat(to, name, DIRECTORY, Mode::empty()).map_err(fail)?;
        self.flags(below.as_fd(), copy.as_fd(), path);
        Ok((below, copy))
    }

    /// Opens what was looked at, and nothing else.
    fn opened(
        &self,
        from: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        path: &RelPath,
        stat: &Statx,
    ) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(from, name, flags, Mode::empty()) {
            // Somebody has a lease.
            Err(Errno::AGAIN) => return Err(holders::is_open(path)),
            // It is something else by now.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(changed()),
            file => file.map_err(|errno| self.cannot(path, errno))?,
        };
        self.same(file.as_fd(), stat, path)?;
        Ok(file)
    }

    /// An error unless what is open is, and looks like, what was looked at.
    fn same(&self, open: BorrowedFd<'_>, stat: &Statx, path: &RelPath) -> Result<()> {
        let now = look(open, b"").map_err(|errno| self.cannot(path, errno))?;
        let key = |s: &Statx| {
            let time = |t: &rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
            let which = (s.stx_ino, s.stx_dev_major, s.stx_dev_minor);
            (which, s.stx_mode, s.stx_uid, s.stx_gid, s.stx_size, time(&s.stx_mtime), time(&s.stx_ctime))
        };
        if key(&now) == key(stat) { Ok(()) } else { Err(changed()) }
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Statx,
    ) -> Result<()> {
        let fail = |errno| failed(format!("cannot copy {path}"), errno);
        if stat.stx_nlink > 1 {
            if let Some((first, seen, _)) = self.linked.get_mut(&stat.stx_ino) {
                *seen += 1;
                let parent = first.parent().unwrap_or_default();
                let parent =
                    open_beneath(self.top, parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
                let first = first.file_name().unwrap_or_default();
                return rustix::fs::linkat(&parent, first, to, name, AtFlags::empty()).map_err(fail);
            }
            self.linked.insert(stat.stx_ino, (path.clone(), 1, stat.stx_nlink));
        }
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        if kind == FileType::RegularFile {
            return self.file(from, to, name, path, stat);
        }
        let found = self.opened(from, name, OFlags::PATH, path, stat)?;
        if kind == FileType::Symlink {
            let target = rustix::fs::readlinkat(&found, c"", Vec::new()).map_err(fail)?;
            rustix::fs::symlinkat(target, to, name).map_err(fail)?;
        } else {
            let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
            rustix::fs::mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, device).map_err(fail)?;
        }
        own(to, name, stat, path)?;
        self.xattrs_by_name((from, to), name, path)?;
        if kind != FileType::Symlink {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let copy = rustix::fs::openat(to, name, flags, Mode::empty()).map_err(fail)?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", copy.as_raw_fd()), bits(stat)).map_err(fail)?;
        }
        self.same(found.as_fd(), stat, path)?;
        rustix::fs::utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Statx,
    ) -> Result<()> {
        let file = self.opened(from, name, OFlags::RDONLY, path, stat)?;
        if !holders::refuse_open(file.as_fd(), path)? {
            count(&mut self.lost.unasked, path);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed(format!("cannot copy {path}"), errno))?;
        self.flags(file.as_fd(), copy.as_fd(), path);
        self.contents(&file, &copy, path)?;
        between(Point::Copied);
        self.attributes(file.as_fd(), copy.as_fd(), stat, path)
    }

    fn contents(&self, from: &OwnedFd, to: &OwnedFd, path: &RelPath) -> Result<()> {
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => Ok(()),
            // Of an odd kind: byte by byte.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY) => self.bytes(from, to, path),
            Err(errno) => Err(failed(format!("cannot copy {path}"), errno)),
        }
    }

    /// Without what is a hole.
    fn bytes(&self, from: &OwnedFd, to: &OwnedFd, path: &RelPath) -> Result<()> {
        let fail = |errno| failed(format!("cannot copy {path}"), errno);
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

    /// Owner, extended attributes, permission bits and times, in the order in which each leaves the others as they are.
    fn attributes(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, stat: &Statx, path: &RelPath) -> Result<()> {
        let fail = |errno| failed(format!("cannot copy {path}"), errno);
        own(to, b"", stat, path)?;
        let list = list(|buffer| match buffer {
            None => rustix::fs::flistxattr_query(from),
            Some(buffer) => rustix::fs::flistxattr(from, buffer),
        });
        let listed = list.map_err(|errno| self.unlisted(path, errno))?;
        for name in split(&listed) {
            let set = |value: &[u8]| rustix::fs::fsetxattr(to, name, value, XattrFlags::empty());
            let (old, new) = (
                |b: &mut [u8]| rustix::fs::fgetxattr(from, name, b),
                |b: &mut [u8]| rustix::fs::fgetxattr(to, name, b),
            );
            self.xattr(name, old, new, set, path)?;
        }
        // What the directory above gave the copy, and the original lacks, would let others in.
        for name in [c"system.posix_acl_access", c"system.posix_acl_default"] {
            if !split(&listed).any(|listed| listed == name.to_bytes()) {
                let _ = rustix::fs::fremovexattr(to, name);
            }
        }
        // The contents are those of what had these bits from before they were copied until after it.
        self.same(from, stat, path)?;
        rustix::fs::fchmod(to, bits(stat)).map_err(fail)?;
        rustix::fs::futimens(to, &times(stat)).map_err(fail)
    }

    /// Those of what cannot be opened.
    fn xattrs_by_name(
        &mut self,
        (from, to): (BorrowedFd<'_>, BorrowedFd<'_>),
        name: &[u8],
        path: &RelPath,
    ) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let at = |dir: BorrowedFd<'_>| {
            PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(std::ffi::OsStr::from_bytes(name))
        };
        let (from, to) = (at(from), at(to));
        let list = list(|buffer| match buffer {
            None => rustix::fs::llistxattr_query(&from),
            Some(buffer) => rustix::fs::llistxattr(&from, buffer),
        });
        let list = match list {
            Err(Errno::OPNOTSUPP) => return Ok(()),
            list => list.map_err(|errno| self.unlisted(path, errno))?,
        };
        for name in split(&list) {
            let set = |value: &[u8]| rustix::fs::lsetxattr(&to, name, value, XattrFlags::empty());
            let (old, new) = (
                |b: &mut [u8]| rustix::fs::lgetxattr(&from, name, b),
                |b: &mut [u8]| rustix::fs::lgetxattr(&to, name, b),
            );
            self.xattr(name, old, new, set, path)?;
        }
        Ok(())
    }

    fn xattr(
        &mut self,
        name: &[u8],
        old: impl Fn(&mut [u8]) -> Result<usize, Errno>,
        new: impl Fn(&mut [u8]) -> Result<usize, Errno>,
        set: impl Fn(&[u8]) -> Result<(), Errno>,
        path: &RelPath,
    ) -> Result<()> {
        let fail = |errno| failed(format!("cannot copy {path}"), errno);
        let get = |get: &dyn Fn(&mut [u8]) -> Result<usize, Errno>| {
            let mut value = vec![0; 64 << 10];
            let got = get(&mut value)?;
            value.truncate(got);
            Ok(value)
        };
        let value = match get(&old) {
            Ok(value) => value,
            Err(Errno::NODATA) => return Ok(()),
            Err(errno) => return Err(fail(errno)),
        };
        match set(&value) {
            Ok(()) => Ok(()),
            // The system may have set it for a new file as it did for the old one.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) if !name.starts_with(b"user.") => {
                if get(&new) != Ok(value) {
                    let name = || String::from_utf8_lossy(name).into_owned();
                    self.lost.xattrs.get_or_insert_with(|| (0, path.clone(), name())).0 += 1;
                }
                Ok(())
            }
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE)) => {
                let (name, size) = (String::from_utf8_lossy(name), value.len());
                let what = format!("cannot copy {path} with its attribute {name} of {size} bytes");
                Err(failed(what, errno).with_hint(format!(
                    "the filesystem there may hold less, as ext4 does (4 KiB together): take it away, `setfattr -x {name}` and the file; if its disk is full, free some space"
                )))
            }
            Err(errno) => Err(fail(errno)),
        }
    }

    /// What is best set before there are contents.
    fn flags(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &RelPath) {
        let (Ok(want), Ok(have)) = (rustix::fs::ioctl_getflags(from), rustix::fs::ioctl_getflags(to)) else { return };
        let set = |flags| rustix::fs::ioctl_setflags(to, flags).is_ok();
        let bare = have - FLAGS - IFlags::COMPRESSED;
        if have == bare | (want & FLAGS) {
            return;
        }
        // What the directory above gave it goes first: some exclude others, those of before too. Compression comes later, as an attribute.
        if have != bare {
            set(bare);
        }
        if !set(bare | (want & FLAGS)) {
            // Whether it is overwritten in place matters more than all others.
            set(bare | (want & IFlags::NOCOW));
            count(&mut self.lost.flags, path);
        }
    }

    /// What nobody may change could not be removed either.
    fn refuse_locked(&self, stat: &Statx, path: &RelPath) -> Result<()> {
        for (flag, letter, what) in
            [(StatxAttributes::IMMUTABLE, 'i', "immutable"), (StatxAttributes::APPEND, 'a', "append-only")]
        {
            if stat.stx_attributes.contains(flag) {
                let message = format!("{} is {what}: it could not be removed", self.named(path));
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "chattr -{letter} {}",
                    text::shell(self.shown.join(path.as_path()).as_os_str())
                )));
            }
        }
        Ok(())
    }

    fn named(&self, path: &RelPath) -> String {
        if path.is_root() { self.shown.display().to_string() } else { path.to_string() }
    }

    /// Why the names of its extended attributes cannot be read.
    fn unlisted(&self, path: &RelPath, errno: Errno) -> Error {
        let error = failed(format!("cannot copy {path}"), errno);
        if errno != Errno::TOOBIG {
            return error;
        }
        let mut new = self.shown.join(path.as_path()).into_os_string();
        let old = text::shell(&new);
        new.push(".new");
        let new = text::shell(&new);
        error.with_hint(format!(
            "it has more extended attributes than the system lists, so that nothing can copy them: put a copy without them in its place, as a file's by `cp -p {old} {new} && mv {new} {old}`"
        ))
    }

    /// Why something of the workspace cannot be read.
    fn cannot(&self, path: &RelPath, errno: Errno) -> Error {
        match errno {
            Errno::NOENT | Errno::STALE => changed(),
            Errno::ACCESS => {
                let error = failed(format!("cannot read {}", self.named(path)), errno);
                error.with_hint(format!(
                    "make it readable: chmod u+rX {}",
                    text::shell(self.shown.join(path.as_path()).as_os_str())
                ))
            }
            errno => failed(format!("cannot copy {}", self.named(path)), errno),
        }
    }
}

/// Whether a path leads to what a repository is made of.
fn is_object(path: &RelPath) -> bool {
    let names: Vec<_> = path.components().collect();
    names.windows(2).any(|pair| pair == [b".git".as_slice(), b"objects"])
}

/// That the directory was worked in while it was copied.
#[must_use]
pub fn changed() -> Error {
    Error::new(ErrorKind::Busy, "files in the workspace were changed while it was converted")
        .with_hint("end what writes there, then repeat")
}

/// Waits until a change of what looks like this would show: within one step of the clock it has the time that this one has (kernels before
/// 6.13, and some filesystems after). One wait is enough for all that was changed before it.
fn let_pass(stat: &Statx) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed = stat.stx_ctime;
    let changed = Duration::new(changed.tv_sec.try_into().unwrap_or_default(), changed.tv_nsec);
    if now.abs_diff(changed) < TICK {
        std::thread::sleep(TICK);
    }
}

fn count(counter: &mut Option<(u64, RelPath)>, path: &RelPath) {
    counter.get_or_insert_with(|| (0, path.clone())).0 += 1;
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
    let now = look(dir, name).map_err(|errno| failed(format!("cannot copy {path}"), errno))?;
    if (now.stx_uid, now.stx_gid) == (stat.stx_uid, stat.stx_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
    rustix::fs::chownat(dir, name, Some(user), Some(group), flags).map_err(|errno| {
        failed(format!("{path} belongs to another user or group, and you may not give it away"), errno)
            .with_hint("convert it as root")
    })
}

/// The names of extended attributes, each with a NUL behind it.
fn list(get: impl Fn(Option<&mut [u8]>) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut list = vec![0; get(None)?];
    if !list.is_empty() {
        let got = get(Some(&mut list))?;
        list.truncate(got);
    }
    Ok(list)
}

fn split(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&b| b == 0).filter(|name| !name.is_empty())
}

/// Where others may come in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Looked,
    Copied,
}

#[cfg(not(test))]
fn between(_point: Point) {}

#[cfg(test)]
use tests::between;

#[cfg(test)]
mod tests;
