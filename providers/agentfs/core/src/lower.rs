//! The lower directory: read, never written. Everything is found relative to one open directory and no symbolic link is followed
//! on the way, so that nothing outside can be reached, whatever is moved or swapped below meanwhile. Where another filesystem is mounted below
//! there is an empty directory.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::platform::{self, open_beneath};
use crate::rows::value::{Inode, Origin, Takes};
use crate::types::{Kind, Time};

/// See the module.
pub(crate) struct Lower {
    root: OwnedFd,
    device: u64,
    ino: u64,
    /// Whether what is changed on it bears the time of this machine.
    own_clock: bool,
    /// For tests: as if the disk had lost something that was written here.
    #[cfg(test)]
    pub(crate) loses: std::sync::atomic::AtomicBool,
    /// How often it was asked to.
    #[cfg(test)]
    pub(crate) asked: std::sync::atomic::AtomicU64,
}

/// What is found at a path.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    /// 0: the lower directory's own.
    pub(crate) device: u64,
    pub(crate) ino: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    /// What it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
}

/// One name of a directory below: name, inode below, kind.
pub(crate) type Listed = (Vec<u8>, u64, Kind);

/// Name and value of an extended attribute.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// How a directory is opened to reach what is in it, which does not take that its names may be read.
#[cfg(target_os = "linux")]
const THROUGH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
#[cfg(not(target_os = "linux"))]
const THROUGH: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The largest value of an extended attribute, in bytes, as the kernel has it.
pub(crate) const XATTR: usize = 64 << 10;
/// How long a list of their names is at most, each with a NUL behind it: no longer one is given to anybody.
pub(crate) const XATTR_NAMES: usize = 64 << 10;

fn kind(kind: FileType) -> Option<Kind> {
    Some(match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => return None,
    })
}

/// An error of the system where "not there" is an answer.
fn there<T>(what: &'static str, answer: rustix::io::Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // A link where a directory was: the path that was meant is gone. What another filesystem shows there is none of ours.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        Err(error) => Err(Error::io(what)(error)),
    }
}

impl Lower {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |what| move |error: Errno| Error::Below { what, source: error.into() };
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("opening the lower directory"))?;
        let stat = rustix::fs::fstat(&root).map_err(failed("looking at the lower directory"))?;
        let own_clock = platform::stamps_by_this_clock(&root);
        Ok(Self {
            root,
            device: stat.st_dev as u64,
            ino: stat.st_ino,
            own_clock,
            #[cfg(test)]
            loses: std::sync::atomic::AtomicBool::default(),
            #[cfg(test)]
            asked: std::sync::atomic::AtomicU64::default(),
        })
    }

    /// An empty one that nothing can come into, since it has no name: made in `directory`, and removed from there.
    pub(crate) fn nothing(directory: &Path) -> Result<Self> {
        let path = directory.join("nothing");
        std::fs::create_dir(&path)
            .or_else(|e| match e.kind() {
                std::io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(e),
            })
            .map_err(Error::io("making an empty directory"))?;
        let nothing = Self::open(&path)?;
        std::fs::remove_dir(&path).map_err(Error::io("removing an empty directory"))?;
        Ok(nothing)
    }

    /// By what [`Lower::sync`] is told what the disk loses from now on; of what it lost before, only what nobody was told yet: the system keeps no time of it, and who asked now would have to wait
    /// for the disk.
    pub(crate) fn witness(&self) -> Option<OwnedFd> {
        rustix::fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Takes all that waits to be written on this filesystem to the disk. Costs that. An error if the disk did not take something since the witness was called, else since the
    /// store was opened, whoever's it was. That is told once: the next call says that all is well.
    pub(crate) fn sync(&self, witness: Option<&OwnedFd>) -> Result<()> {
        #[cfg(test)]
        self.asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        #[cfg(test)]
        if self.loses.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(Error::io("taking what is below to the disk, as a test wants it")(Errno::IO));
        }
        platform::sync_all_of(witness.unwrap_or(&self.root)).map_err(Error::io("taking what is below to the disk"))
    }

    /// Whether a time of change is one to come, which only a clock that was ahead has stamped. Of what another machine stamps that is not known: its clock may be ahead now.
    pub(crate) fn is_to_come(&self, changed: Time) -> bool {
        self.own_clock && platform::is_to_come(changed)
    }

    /// Whether what bears that time of change may have been changed since a base was taken. A time to come was there before, unless the clock was set back since then.
    pub(crate) fn is_later(&self, changed: Time, base: Time) -> bool {
        changed > base && !(self.is_to_come(changed) && base <= platform::now())
    }

    /// Whether a directory is this one.
    pub(crate) fn is(&self, device: u64, ino: u64) -> bool {
        (self.device, self.ino) == (device, ino)
    }

    /// Whether it lies on that device.
    pub(crate) fn is_on(&self, device: u64) -> bool {
        self.device == device
    }

    /// What the directory is known by when the store is opened again, a line each. Its device number is not the same after each mount.
    pub(crate) fn identity(&self) -> String {
        let mut lines = format!("lower-inode {}\n", self.ino);
        if let Ok(Some(Found { btime, .. })) = self.find(b"")
            && btime != Time::default()
        {
            lines += &format!("lower-birth {}.{:09}\n", btime.secs, btime.nanos);
        }
        // Roots of subvolumes and datasets have the same number, and a copy's was born with the original's.
        if let Some(id) = platform::subvolume_id(&self.root) {
            lines += &format!("lower-filesystem {id:x}\n");
        }
        lines
    }

    /// Whether it can be the directory of that [`Lower::identity`]: nothing that is known of both differs.
    pub(crate) fn may_be(&self, identity: &str) -> bool {
        let mine = self.identity();
        mine.lines().filter_map(|line| line.split_once(' ')).all(|(what, mine)| {
            identity.lines().filter_map(|line| line.split_once(' ')).all(|(other, its)| other != what || mine == its)
        })
    }

    /// What is at the path, itself if a link; `None`: nothing.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Found>> {
        let (parent, name) = split(path);
        let name = if name.is_empty() { b".".as_slice() } else { name };
        if parent.is_empty() {
            return self.look(self.root.as_fd(), name);
        }
        match there("opening a directory below", open_beneath(self.root.as_fd(), parent, THROUGH))? {
            Some(parent) => self.look(parent.as_fd(), name),
            None => Ok(None),
        }
    }

    #[cfg(target_os = "linux")]
    fn look(&self, directory: std::os::fd::BorrowedFd<'_>, name: &[u8]) -> Result<Option<Found>> {
        use rustix::fs::{StatxFlags, StatxTimestamp, makedev, statx};
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let answer = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, wanted);
        let Some(stat) = there("looking at a file below", answer)? else { return Ok(None) };
        let time = |time: StatxTimestamp| Time { secs: time.tv_sec, nanos: time.tv_nsec };
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let Some(kind) = kind(FileType::from_raw_mode(u32::from(stat.stx_mode))) else { return Ok(None) };
        let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        Ok(Some(Found {
            kind,
            mode: u32::from(stat.stx_mode) & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            nlink: stat.stx_nlink,
            size: stat.stx_size,
            rdev: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            device: if device == self.device { 0 } else { device },
            ino: stat.stx_ino,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: if has_birth { time(stat.stx_btime) } else { Time::default() },
            blocks: stat.stx_blocks,
        }))
    }

    #[cfg(not(target_os = "linux"))]
    fn look(&self, directory: std::os::fd::BorrowedFd<'_>, name: &[u8]) -> Result<Option<Found>> {
        let answer = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let Some(stat) = there("looking at a file below", answer)? else { return Ok(None) };
        let Some(kind) = kind(FileType::from_raw_mode(stat.st_mode)) else { return Ok(None) };
        let device = stat.st_dev as u64;
        Ok(Some(Found {
            kind,
            mode: stat.st_mode as u32 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: stat.st_nlink as u32,
            size: stat.st_size as u64,
            rdev: stat.st_rdev as u64,
            device: if device == self.device { 0 } else { device },
            ino: stat.st_ino,
            atime: Time { secs: stat.st_atime, nanos: stat.st_atime_nsec as u32 },
            mtime: Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            ctime: Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
            btime: birth(&stat),
            blocks: stat.st_blocks as u64,
        }))
    }

    /// What an open file is now.
    pub(crate) fn find_open(&self, file: &File) -> Result<Found> {
        let stat = rustix::fs::fstat(file).map_err(Error::io("looking at a file below"))?;
        let device = stat.st_dev as u64;
        Ok(Found {
            kind: kind(FileType::from_raw_mode(stat.st_mode)).unwrap_or(Kind::File),
            mode: stat.st_mode as u32 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            size: stat.st_size as u64,
            rdev: stat.st_rdev as u64,
            device: if device == self.device { 0 } else { device },
            ino: stat.st_ino,
            atime: Time { secs: stat.st_atime, nanos: stat.st_atime_nsec as u32 },
            mtime: Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            ctime: Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
            btime: Time::default(),
            blocks: stat.st_blocks as u64,
        })
    }

    /// The names in a directory, without `.` and `..`; none if it is gone.
    pub(crate) fn list(&self, path: &[u8]) -> Result<Vec<Listed>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let answer = open_beneath(self.root.as_fd(), path, flags);
        let Some(directory) = there("opening a directory below", answer)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(Error::io("listing a directory below"))? {
            let entry = entry.map_err(Error::io("listing a directory below"))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let known = kind(entry.file_type());
            let kind = match known {
                Some(kind) => kind,
                // Some filesystems do not say.
                None => match self.find(&join(path, name))? {
                    Some(found) => found.kind,
                    None => continue,
                },
            };
            names.push((name.to_vec(), entry.ino(), kind));
        }
        Ok(names)
    }

    /// As [`Lower::open_file`], for attributes alone: also what this user may not read.
    pub(crate) fn open_for_xattrs(&self, path: &[u8]) -> Result<Option<File>> {
        match self.open_file(path) {
            #[cfg(target_os = "linux")]
            Err(error) if error.errno() == Errno::ACCESS.raw_os_error() => {
                let answer = open_beneath(self.root.as_fd(), path, OFlags::PATH);
                Ok(there("opening a file below", answer)?.map(Into::into))
            }
            opened => opened,
        }
    }

    /// Opens a regular file for reading, or a directory for its attributes; `None`: gone.
    pub(crate) fn open_file(&self, path: &[u8]) -> Result<Option<File>> {
        let answer = open_beneath(self.root.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        Ok(there("opening a file below", answer)?.map(Into::into))
    }

    /// Where a link points; `None`: gone, or something else is there.
    pub(crate) fn target(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let (parent, name) = split(path);
        let answer = open_beneath(self.root.as_fd(), parent, THROUGH);
        let Some(parent) = there("opening a directory below", answer)? else { return Ok(None) };
        let answer = rustix::fs::readlinkat(&parent, name, Vec::new());
        if matches!(answer, Err(Errno::INVAL)) {
            return Ok(None);
        }
        Ok(there("reading a link below", answer)?.map(std::ffi::CString::into_bytes))
    }
}

impl Found {
    /// The row that an inode has as long as nothing of it was changed.
    pub(crate) fn inode(&self, path: &[u8]) -> Inode {
        let content = self.kind == Kind::File;
        Inode {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            target: Vec::new(),
            lower_limit: if content { self.size } else { 0 },
            origin: Some(Origin {
                path: path.to_vec(),
                device: self.device,
                ino: self.ino,
                size: self.size,
                mtime: self.mtime,
                ctime: self.ctime,
                btime: self.btime,
            }),
            parent: 0,
            takes: content.then_some(Takes { stored: 0, below: self.blocks }),
        }
    }

    /// Whether both are one file in which nothing was changed in between.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        (self.device, self.ino, self.size) == (other.device, other.ino, other.size)
            && (self.mtime, self.ctime) == (other.mtime, other.ctime)
    }

    /// Whether this is still, byte for byte, what the origin was.
    pub(crate) fn is(&self, origin: &Origin) -> bool {
        (self.device, self.ino, self.size) == (origin.device, origin.ino, origin.size)
            && (self.mtime, self.ctime) == (origin.mtime, origin.ctime)
    }
}

/// All extended attributes of a file.
pub(crate) fn xattrs(file: &File) -> Result<Vec<Xattr>> {
    let names = match xattr_names(file) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(error) => return Err(Error::io("reading attributes below")(error)),
    };
    let value = |name: Vec<u8>| {
        let value = xattr(file, &name).map_err(Error::io("reading attributes below"))?;
        Ok((name, value))
    };
    names.into_iter().map(value).collect()
}

/// The names of an open file's extended attributes.
pub(crate) fn xattr_names(file: &File) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut list = vec![0; XATTR_NAMES];
    let length = match rustix::fs::flistxattr(file, &mut list) {
        Err(Errno::BADF) => rustix::fs::listxattr(by_number(file), &mut list)?,
        answer => answer?,
    };
    list.truncate(length);
    Ok(list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// The value of one of them.
pub(crate) fn xattr(file: &File, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; XATTR];
    let length = match rustix::fs::fgetxattr(file, name, &mut value) {
        Err(Errno::BADF) => rustix::fs::getxattr(by_number(file), name, &mut value)?,
        answer => answer?,
    };
    value.truncate(length);
    Ok(value)
}

/// A path to what is open, for what is open only to be named (`O_PATH`).
fn by_number(file: &File) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// When a file was born, where that is told; nothing else tells a file from one that is given its number later.
#[cfg(target_vendor = "apple")]
fn birth(stat: &rustix::fs::Stat) -> Time {
    Time { secs: stat.st_birthtime, nanos: stat.st_birthtime_nsec as u32 }
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn birth(_: &rustix::fs::Stat) -> Time {
    Time::default()
}

/// The directory and the name in it; of the root both are empty.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    }
}

/// A path and a name behind it.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    joined.extend_from_slice(path);
    if !path.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}
