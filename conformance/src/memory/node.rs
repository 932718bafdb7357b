//! Trees in memory, and how a directory becomes one.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ah_plugin_api::{Context, Entry, EntryKind, Error, Omission, OmitReason, RelPath, Result, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// One entry with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) mtime: Timestamp,
    pub(super) data: Data,
}

/// What an entry is, and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    File(Arc<[u8]>),
    Symlink(Arc<[u8]>),
    Dir(BTreeMap<Vec<u8>, Arc<Node>>),
}

impl Node {
    pub(super) fn entry(&self, name: &[u8]) -> Entry {
        let (kind, size) = match &self.data {
            Data::File(bytes) => (EntryKind::File, bytes.len()),
            Data::Symlink(bytes) => (EntryKind::Symlink, bytes.len()),
            Data::Dir(_) => (EntryKind::Dir, 0),
        };
        let (mode, mtime) = (self.mode, self.mtime);
        Entry { name: name.to_vec(), kind, mode, size: size as u64, mtime, content: None, ignored: false }
    }

    /// The node at `path` below this one. Follows no symlink.
    pub(super) fn at(&self, path: &RelPath) -> Option<&Self> {
        let mut node = self;
        for name in path.components() {
            let Data::Dir(children) = &node.data else { return None };
            node = children.get(name)?;
        }
        Some(node)
    }

    /// The number of entries below this one.
    pub(super) fn count(&self) -> u64 {
        match &self.data {
            Data::Dir(children) => children.values().map(|child| 1 + child.count()).sum(),
            _ => 0,
        }
    }

    /// The bytes of all contents.
    pub(super) fn bytes(&self) -> u64 {
        match &self.data {
            Data::Dir(children) => children.values().map(|child| child.bytes()).sum(),
            Data::File(bytes) | Data::Symlink(bytes) => bytes.len() as u64,
        }
    }
}

/// Reads the tree below `dir`; `Ok` with what had to be left out.
pub(super) fn capture(dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<(Node, Vec<Omission>)> {
    let root = stat(dir, c"", AtFlags::EMPTY_PATH).map_err(|e| broken(&RelPath::root(), e))?;
    let mut omitted = Vec::new();
    let own = rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| broken(&RelPath::root(), e))?;
    let mut capture = Capture { device: device(&root), omitted: &mut omitted, cx, done: 0 };
    let children = capture.dir(own.as_fd(), &RelPath::root())?;
    Ok((Node { mode: mode(&root), mtime: mtime(&root), data: Data::Dir(children) }, omitted))
}

struct Capture<'a> {
    device: (u32, u32),
    omitted: &'a mut Vec<Omission>,
    cx: &'a Context<'a>,
    done: u64,
}

/// Why an entry is not captured: it was left out, or it is not there any more.
enum Missing {
    Omit(OmitReason),
    Gone,
}

impl Capture<'_> {
    fn dir(&mut self, dir: BorrowedFd<'_>, at: &RelPath) -> Result<BTreeMap<Vec<u8>, Arc<Node>>> {
        let mut children = BTreeMap::new();
        for entry in Dir::read_from(dir).map_err(|e| broken(at, e))? {
            let entry = entry.map_err(|e| broken(at, e))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.cx.check_cancelled()?;
            self.done += 1;
            if self.done.is_multiple_of(256) {
                self.cx.progress("reading", self.done, None);
            }
            let path = at.join(name.to_bytes())?;
            match self.entry(dir, name, &path)? {
                Ok(node) => {
                    children.insert(name.to_bytes().to_vec(), Arc::new(node));
                }
                Err(Missing::Gone) => {}
                Err(Missing::Omit(reason)) => self.omitted.push(Omission { path, reason, detail: None }),
            }
        }
        Ok(children)
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &RelPath) -> Result<Result<Node, Missing>> {
        let seen = match stat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => seen,
            Err(errno) => return missing(path, errno),
        };
        if device(&seen) != self.device {
            return Ok(Err(Missing::Omit(OmitReason::OtherFilesystem)));
        }
        let data = match FileType::from_raw_mode(seen.stx_mode.into()) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(dir, name, flags, Mode::empty()) {
                    Ok(below) => Data::Dir(self.dir(below.as_fd(), path)?),
                    Err(errno) => return missing(path, errno),
                }
            }
            FileType::Symlink => match rustix::fs::readlinkat(dir, name, Vec::new()) {
                Ok(target) => Data::Symlink(target.as_bytes().into()),
                Err(errno) => return missing(path, errno),
            },
            FileType::RegularFile => return file(dir, name, path),
            _ => return Ok(Err(Missing::Omit(OmitReason::SpecialFile))),
        };
        Ok(Ok(Node { mode: mode(&seen), mtime: mtime(&seen), data }))
    }
}

/// Reads a file until it did not change while it was read, three times at most.
fn file(dir: BorrowedFd<'_>, name: &CStr, path: &RelPath) -> Result<Result<Node, Missing>> {
    // O_NONBLOCK: if it has become a FIFO by now, opening must not wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..3 {
        let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(errno) => return missing(path, errno),
        };
        let before = stat(fd.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(|e| broken(path, e))?;
        if FileType::from_raw_mode(before.stx_mode.into()) != FileType::RegularFile {
            continue;
        }
        let mut bytes = Vec::new();
        let mut file = std::fs::File::from(fd);
        file.read_to_end(&mut bytes).map_err(|e| Error::from_io(format!("cannot read {path}"), &e))?;
        let after = stat(file.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(|e| broken(path, e))?;
        let same = time(before.stx_ctime) == time(after.stx_ctime) && mtime(&before) == mtime(&after);
        if same && after.stx_size == bytes.len() as u64 {
            return Ok(Ok(Node { mode: mode(&after), mtime: mtime(&after), data: Data::File(bytes.into()) }));
        }
    }
    Ok(Err(Missing::Omit(OmitReason::Changing)))
}

fn missing(path: &RelPath, errno: Errno) -> Result<Result<Node, Missing>> {
    match errno {
        // Somebody took it away, or put something else in its place, since the directory was read.
        Errno::NOENT | Errno::LOOP | Errno::NOTDIR => Ok(Err(Missing::Gone)),
        Errno::ACCESS | Errno::PERM => Ok(Err(Missing::Omit(OmitReason::Unreadable))),
        Errno::NXIO => Ok(Err(Missing::Omit(OmitReason::SpecialFile))),
        errno => Err(broken(path, errno)),
    }
}

fn broken(path: &RelPath, errno: Errno) -> Error {
    Error::from_io(format!("cannot read {path} in the workspace"), &errno.into())
}

fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn mode(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & 0o7777
}

fn mtime(stat: &Statx) -> Timestamp {
    time(stat.stx_mtime)
}

fn time(time: StatxTimestamp) -> Timestamp {
    Timestamp { secs: time.tv_sec, nanos: time.tv_nsec }
}

fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}
