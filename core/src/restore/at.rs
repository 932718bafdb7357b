//! Work in a tree relative to an open directory, so that no symlink that someone swaps in leads out of it.
//!
//! How a path is opened is `beneath.rs`'s. Used by restore, walk and carry. What any of them decides is not here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Entry, EntryKind, Error, RelPath, Result, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Statx, StatxAttributes, StatxFlags, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use crate::beneath::{self, Mounts};

/// A change time this close before a snapshot, or later, says nothing: filesystems stamp with a clock that ticks every
/// 1 to 10 ms. Then contents are compared. Nanoseconds.
const DOUBT: i128 = 100_000_000;

/// The same where times are of whole seconds: ext4 with small inodes, or of two: FAT.
const DOUBT_OF_SECONDS: i128 = 2_000_000_000 + DOUBT;

/// What `statx` says of one entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
    /// As in [`Entry`]: 0 for directories and special files.
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) dev: (u32, u32),
    pub(crate) ino: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether something is mounted there, this filesystem itself perhaps. None: kernels before 5.8 do not tell.
    pub(crate) mounted: Option<bool>,
}

impl Found {
    fn new(stat: &Statx) -> Self {
        let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Dir,
            FileType::Symlink => EntryKind::Symlink,
            _ => EntryKind::Special,
        };
        let time = |t: rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec };
        Self {
            kind,
            mode: u32::from(stat.stx_mode) & 0o7777,
            size: if matches!(kind, EntryKind::File | EntryKind::Symlink) { stat.stx_size } else { 0 },
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mounted: stat
                .stx_attributes_mask
                .contains(StatxAttributes::MOUNT_ROOT)
                .then(|| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        }
    }

    /// As an entry of the contract, without a content id.
    pub(crate) fn entry(&self, name: &[u8]) -> Entry {
        Entry {
            name: name.to_vec(),
            kind: self.kind,
            mode: self.mode,
            size: self.size,
            mtime: self.mtime,
            content: None,
            ignored: false,
        }
    }

    /// Whether this is still what `entry` recorded, as far as attributes tell. A directory's own time says only that
    /// something in it came or went, so it does not count.
    pub(crate) fn is_still(&self, entry: &Entry) -> bool {
        self.kind == entry.kind
            && match self.kind {
                EntryKind::Dir => true,
                EntryKind::Symlink => self.size == entry.size && self.mtime == entry.mtime,
                _ => self.size == entry.size && self.mtime == entry.mtime && self.mode == entry.mode,
            }
    }

    /// Whether something may have been done to it since a snapshot that was taken at that time.
    pub(crate) fn may_be_touched_since(&self, taken: Timestamp) -> bool {
        let whole_seconds = (self.ctime.nanos, self.mtime.nanos) == (0, 0);
        let doubt = if whole_seconds { DOUBT_OF_SECONDS } else { DOUBT };
        self.ctime.as_nanos() >= taken.as_nanos() - doubt
    }

    /// Whether it is the same file with the same contents as another look at it, whatever its name and change time.
    pub(crate) fn same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.kind, self.size, self.mtime)
            == (other.dev, other.ino, other.kind, other.size, other.mtime)
    }

    /// Whether nothing at all has happened to it since another look.
    pub(crate) fn untouched_since(&self, other: &Self) -> bool {
        self.same_file(other) && (self.ctime, self.mode) == (other.ctime, other.mode)
    }
}

/// Attributes of `name` in `dir`, itself if `name` is empty; never follows a symlink. `None` if there is nothing.
pub(crate) fn stat(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Found>, Errno> {
    stat_by(dir, name, AtFlags::empty())
}

/// As [`stat`], asking who serves the filesystem also where the kernel remembers the answer.
pub(crate) fn stat_anew(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Found>, Errno> {
    stat_by(dir, name, AtFlags::STATX_FORCE_SYNC)
}

fn stat_by(dir: BorrowedFd<'_>, name: &[u8], how: AtFlags) -> Result<Option<Found>, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | how;
    match rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(Some(Found::new(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A tree to work in.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    top: BorrowedFd<'a>,
    dev: (u32, u32),
}

impl<'a> Tree<'a> {
    /// The tree below an open directory.
    pub(crate) fn new(top: BorrowedFd<'a>) -> Result<Self> {
        let found = stat(top, b"").map_err(|e| io("cannot look at the top directory", e))?;
        let found = found.ok_or_else(|| io("cannot look at the top directory", Errno::NOENT))?;
        Ok(Self { top, dev: found.dev })
    }

    /// Opens a directory for work relative to it (`O_PATH`).
    ///
    /// `ELOOP` or `ENOTDIR` if a component is a symlink or a file, `EXDEV` if something is mounted on the way.
    pub(crate) fn dir(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Opens a directory for listing.
    pub(crate) fn listing(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file for reading. Never blocks on a FIFO: what is not a regular file is `EINVAL`.
    pub(crate) fn file(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        let parent = self.dir(&path.parent().unwrap_or_default())?;
        open_file(parent.as_fd(), path.file_name().unwrap_or_default())
    }

    fn open(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if path.is_root() {
            return rustix::fs::openat(self.top, ".", flags, Mode::empty());
        }
        // Not through a bind mount either: what is behind it is no part of the workspace, though the device is the same.
        let opened = beneath::open(self.top, path.as_bytes(), flags, Mounts::Stay)?;
        match stat(opened.as_fd(), b"")? {
            Some(found) if found.dev == self.dev => Ok(opened),
            _ => Err(Errno::XDEV),
        }
    }

    /// Attributes of a path. `None` if it, or a directory on the way, is not there. `ELOOP`, `ENOTDIR`, `EXDEV` as
    /// [`Self::dir`] for what is on the way.
    pub(crate) fn stat(&self, path: &RelPath) -> Result<Option<Found>, Errno> {
        let Some(name) = path.file_name() else { return stat(self.top, b"") };
        match self.dir(&path.parent().unwrap_or_default()) {
            Ok(parent) => stat(parent.as_fd(), name),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The topmost directory on the way to a path that is on another device, which [`Self::dir`] does not enter.
    pub(crate) fn foreign_above(&self, path: &RelPath) -> Option<(RelPath, Found)> {
        let above: Vec<RelPath> = std::iter::successors(path.parent(), RelPath::parent).collect();
        above.into_iter().rev().filter(|dir| !dir.is_root()).find_map(|dir| {
            let found = self.stat(&dir).ok()??;
            (found.mounted == Some(true) || found.dev != self.dev).then_some((dir, found))
        })
    }

    /// The topmost of a path and the directories on the way to it that belongs to this user, who may not look into it as it is.
    pub(crate) fn closed_above(&self, path: &RelPath) -> Option<RelPath> {
        let me = rustix::process::geteuid().as_raw();
        let way: Vec<RelPath> = std::iter::successors(Some(path.clone()), RelPath::parent).collect();
        way.into_iter().rev().filter(|at| !at.is_root()).find(|at| {
            let is_mine = matches!(self.stat(at), Ok(Some(found)) if found.uid == me);
            is_mine && self.is_unreadable(at)
        })
    }

    /// Whether something is there, or may be, that this user may not look at: a file's contents, a directory's names.
    pub(crate) fn is_unreadable(&self, path: &RelPath) -> bool {
        use rustix::fs::Access;
        let found = match self.stat(path) {
            Ok(Some(found)) => found,
            other => return matches!(other, Err(Errno::ACCESS)),
        };
        let (Some(name), Ok(parent)) = (path.file_name(), self.dir(&path.parent().unwrap_or_default())) else {
            return false;
        };
        let wanted = match found.kind {
            EntryKind::File => Access::READ_OK,
            EntryKind::Dir => Access::READ_OK | Access::EXEC_OK,
            _ => return false,
        };
        matches!(rustix::fs::accessat(&parent, name, wanted, AtFlags::EACCESS), Err(Errno::ACCESS))
    }

    /// Names in a directory, without `.` and `..`, in byte order.
    pub(crate) fn names(&self, path: &RelPath) -> Result<Vec<Vec<u8>>, Errno> {
        names(self.listing(path)?.as_fd())
    }

    /// The device this tree is on.
    pub(crate) fn dev(&self) -> (u32, u32) {
        self.dev
    }
}

/// Names in an open directory, without `.` and `..`, in byte order.
pub(crate) fn names(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a regular file for reading; see [`Tree::file`].
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    match stat(fd.as_fd(), b"")? {
        Some(found) if found.kind == EntryKind::File => Ok(fd),
        _ => Err(Errno::INVAL),
    }
}

/// Opens a directory below `dir` for listing, without following a symlink.
pub(crate) fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Keeps the last opened directory, since sorted work asks for the same one again and again.
pub(crate) struct LastDir<'a> {
    tree: Tree<'a>,
    last: Option<(RelPath, OwnedFd)>,
}

impl<'a> LastDir<'a> {
    pub(crate) fn new(tree: Tree<'a>) -> Self {
        Self { tree, last: None }
    }

    /// The directory that `path` is in, and its name there.
    pub(crate) fn parent<'s, 'p>(&'s mut self, path: &'p RelPath) -> Result<(BorrowedFd<'s>, &'p [u8]), Errno> {
        let parent = path.parent().unwrap_or_default();
        if self.last.as_ref().is_none_or(|(at, _)| *at != parent) {
            let fd = self.tree.dir(&parent)?;
            self.last = Some((parent, fd));
        }
        let (_, fd) = self.last.as_ref().ok_or(Errno::BADF)?;
        Ok((fd.as_fd(), path.file_name().unwrap_or(b".")))
    }

    /// Forgets it, because the tree above changed.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

/// Swaps two entries in one step. `false` if this filesystem cannot.
pub(crate) fn exchange(a: (BorrowedFd<'_>, &[u8]), b: (BorrowedFd<'_>, &[u8])) -> Result<bool, Errno> {
    match rustix::fs::renameat_with(a.0, a.1, b.0, b.1, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames unless something is at the new name already (`EEXIST`).
pub(crate) fn rename_new(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8])) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // Not on this filesystem: a look first leaves a gap of microseconds, which is the best there is.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if stat(to.0, to.1)?.is_some() {
                return Err(Errno::EXIST);
            }
            rustix::fs::renameat(from.0, from.1, to.0, to.1)
        }
        other => other,
    }
}

/// Sets permission bits of an entry, which must not be a symlink, and never follows one that was swapped in. `ESTALE` if it is not the one that `is_it` says.
pub(crate) fn chmod(dir: BorrowedFd<'_>, name: &[u8], mode: u32, is_it: impl Fn(&Found) -> bool) -> Result<(), Errno> {
    let judge = |fd: &OwnedFd| match stat(fd.as_fd(), b"")? {
        Some(found) if found.kind != EntryKind::Symlink && is_it(&found) => Ok(()),
        Some(found) if found.kind != EntryKind::Symlink => Err(Errno::STALE),
        _ => Err(Errno::LOOP),
    };
    let bits = Mode::from_raw_mode(mode & 0o7777);
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // O_PATH needs no permission on the entry, and opens nothing that could block. fchmod does not take such a descriptor,
    // the name of it under /proc does.
    let fd = rustix::fs::openat(dir, name, OFlags::PATH | flags, Mode::empty())?;
    judge(&fd)?;
    match rustix::fs::chmod(proc_name(fd.as_fd()), bits) {
        Err(Errno::NOENT) => {
            let fd = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | flags, Mode::empty())?;
            judge(&fd)?;
            rustix::fs::fchmod(fd, bits)
        }
        other => other,
    }
}

/// The name under `/proc` of an open descriptor.
pub(crate) fn proc_name(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Sets the modification time of an entry itself, not of what it may point to.
pub(crate) fn set_mtime(dir: BorrowedFd<'_>, name: &[u8], mtime: Timestamp) -> Result<(), Errno> {
    let times = times(mtime);
    rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

/// `mtime`, with the access time left as it is.
pub(crate) fn times(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

/// The target of a symlink.
pub(crate) fn read_link(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes())
}

/// An operating system error while doing what `message` says.
pub(crate) fn io(message: impl Into<String>, error: Errno) -> Error {
    Error::from_io(message, &error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn no_symlink_is_followed_on_the_way() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tmp.path().join("in/real")).unwrap();
        std::fs::create_dir(tmp.path().join("out")).unwrap();
        std::fs::write(tmp.path().join("out/secret"), "x").unwrap();
        symlink("../out", tmp.path().join("in/link")).unwrap();
        let top = ah_plugin_api::Dir::open(tmp.path().join("in")).unwrap();
        let tree = Tree::new(top.as_fd()).unwrap();
        assert!(tree.dir(&path("real")).is_ok());
        for flags in [OFlags::PATH | OFlags::DIRECTORY, OFlags::RDONLY | OFlags::DIRECTORY] {
            assert!(tree.open(&path("link"), flags).is_err());
        }
        assert!(tree.stat(&path("link/secret")).is_err());
        assert_eq!(tree.stat(&path("link")).unwrap().unwrap().kind, EntryKind::Symlink);
        assert!(tree.stat(&path("real/none")).unwrap().is_none());
        assert!(tree.stat(&path("none/none")).unwrap().is_none());
        assert!(chmod(tree.dir(&path("")).unwrap().as_fd(), b"link", 0o700, |_| true).is_err());
    }

    #[test]
    fn whether_something_is_mounted_is_known_where_the_kernel_tells() {
        let tmp = tempfile::tempdir().unwrap();
        let mut stat =
            rustix::fs::statx(rustix::fs::CWD, tmp.path(), AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
        stat.stx_attributes_mask = StatxAttributes::MOUNT_ROOT;
        stat.stx_attributes = StatxAttributes::MOUNT_ROOT;
        assert_eq!(Found::new(&stat).mounted, Some(true));
        stat.stx_attributes = StatxAttributes::empty();
        assert_eq!(Found::new(&stat).mounted, Some(false));
        stat.stx_attributes_mask = StatxAttributes::empty();
        assert_eq!(Found::new(&stat).mounted, None);
    }

    #[test]
    fn a_fifo_is_not_opened() {
        let tmp = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&tmp.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let top = ah_plugin_api::Dir::open(tmp.path()).unwrap();
        assert_eq!(Tree::new(top.as_fd()).unwrap().file(&path("pipe")).err(), Some(Errno::INVAL));
    }

    #[test]
    fn modes_of_unreadable_things_can_be_set() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let top = ah_plugin_api::Dir::open(tmp.path()).unwrap();
        for mode in [0o000, 0o4755, 0o640] {
            chmod(top.as_fd(), b"f", mode, |_| true).unwrap();
            assert_eq!(chmod(top.as_fd(), b"f", 0o777, |_| false), Err(Errno::STALE));
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn exchange_and_rename_new() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("a"), "a").unwrap();
        std::fs::write(tmp.path().join("b"), "b").unwrap();
        let top = ah_plugin_api::Dir::open(tmp.path()).unwrap();
        let fd = top.as_fd();
        assert_eq!(rename_new((fd, b"a"), (fd, b"b")), Err(Errno::EXIST));
        assert!(exchange((fd, b"a"), (fd, b"b")).unwrap());
        assert_eq!(std::fs::read(tmp.path().join("a")).unwrap(), b"b");
        rename_new((fd, b"a"), (fd, b"c")).unwrap();
        assert_eq!(std::fs::read(tmp.path().join("c")).unwrap(), b"b");
    }
}
