//! What is handed over and back. Structures have the same size and layout on all 64-bit systems; numbers that stand for something come
//! in as plain integers, because a C enum may hold anything.

use std::ffi::c_void;

use ah_agentfs as core;

use crate::outcome::{Outcome, Stop};

/// A byte string that the caller keeps: 16 bytes. Not ended by a NUL. With length 0 the pointer may be null.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bytes {
    /// The first byte.
    pub data: *const u8,
    /// How many there are.
    pub length: usize,
}

/// What an inode is.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Kind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket's name.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

/// What a snapshot must survive from the moment it is reported.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Class {
    /// The death of any process.
    Instant = 1,
    /// A power cut.
    Durable = 2,
}

/// How a branch's tree is opened.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Access {
    /// To read and write; one at a time of each branch.
    Write = 1,
    /// To read; any number, beside the one that writes.
    Read = 2,
}

/// How `agentfs_rename` treats a name that is taken.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Rename {
    /// It is replaced.
    Replace = 1,
    /// It is an error.
    NoReplace = 2,
    /// Both names change places.
    Exchange = 3,
}

/// What `agentfs_fallocate` does.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Allocate {
    /// Makes the file at least that long. Space is not set aside.
    Extend = 1,
    /// Nothing at all but the checks.
    Keep = 2,
    /// A hole: reads as zeros, takes no space, the size is kept.
    Punch = 3,
    /// Zeros, and the file at least that long.
    Zero = 4,
}

/// What `agentfs_seek` looks for.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum Seek {
    /// The next byte that may not be zero.
    Data = 1,
    /// The next hole, or the end.
    Hole = 2,
}

/// Whether an extended attribute may, must or must not be there before.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum SetXattr {
    /// It is made or replaced.
    Any = 1,
    /// It must be new.
    Create = 2,
    /// It must be there.
    Replace = 3,
}

/// A point in time: 16 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Time {
    /// Seconds since 1970, which may be negative.
    pub seconds: i64,
    /// Nanoseconds after that, below 1,000,000,000.
    pub nanoseconds: u32,
    /// Zero.
    pub reserved: u32,
}

/// What `stat` shows: 120 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Attr {
    /// The inode's number.
    pub ino: u64,
    /// Bytes; of a link the length of its target.
    pub size: u64,
    /// Units of 512 bytes that its content takes; an estimate.
    pub blocks: u64,
    /// The device that a device node stands for, as `makedev` makes it.
    pub rdev: u64,
    /// Last access. Reading does not move it.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Birth; all zero if it is not known.
    pub btime: Time,
    /// One of `agentfs_kind`.
    pub kind: u32,
    /// Permission bits, set-id and sticky included: the lower 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// How many names it has.
    pub nlink: u32,
    /// Zero.
    pub reserved: u32,
}

/// Who makes a new inode and with which permissions: 12 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Owner {
    /// Permission bits, after the umask.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// `agentfs_setattr` sets `mode`.
pub const AGENTFS_SET_MODE: u32 = 1;
/// It sets `uid`.
pub const AGENTFS_SET_UID: u32 = 2;
/// It sets `gid`.
pub const AGENTFS_SET_GID: u32 = 4;
/// It sets the size: cuts, or fills up with zeros.
pub const AGENTFS_SET_SIZE: u32 = 8;
/// It sets `atime`.
pub const AGENTFS_SET_ATIME: u32 = 16;
/// It sets `mtime`.
pub const AGENTFS_SET_MTIME: u32 = 32;
/// It sets the time of access to the present one.
pub const AGENTFS_SET_ATIME_NOW: u32 = 64;
/// It sets the time of modification to the present one.
pub const AGENTFS_SET_MTIME_NOW: u32 = 128;

/// What `agentfs_setattr` changes: 56 bytes. What has no bit in `set` stays.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SetAttr {
    /// Which of them, as a sum of AGENTFS_SET_….
    pub set: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Access.
    pub atime: Time,
    /// Modification.
    pub mtime: Time,
}

/// One name in a directory: 40 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entry {
    /// Where to go on behind this entry: 3 or more, below 2^63, rising.
    pub cookie: u64,
    /// The inode, as far as it is known without looking: `agentfs_lookup` is exact.
    pub ino: u64,
    /// One of `agentfs_kind`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Any bytes but `/` and NUL.
    pub name: Bytes,
}

/// What the filesystem has left, in bytes and counts: 24 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StatFs {
    /// Size of the disk that the store is on, or the store's own limit.
    pub total: u64,
    /// What can still be written.
    pub free: u64,
    /// Inodes that can still be made.
    pub free_inodes: u64,
}

/// A snapshot as it is listed: 48 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SnapshotInfo {
    /// Its number, never used again.
    pub id: u64,
    /// When it was taken.
    pub time: Time,
    /// The branch that it is of, if `has_branch` is 1.
    pub branch: u32,
    /// 1 if that branch is there still; 0 of a snapshot of the lower directory itself, too.
    pub has_branch: u32,
    /// What it was called.
    pub label: Bytes,
}

/// A branch as it is listed: 24 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BranchInfo {
    /// Its number, never used again.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
    /// What it was called.
    pub label: Bytes,
}

/// `agentfs_open`: although the lower directory is not there any more, or is another, as if everything had been removed from it.
pub const AGENTFS_OPEN_WITHOUT_LOWER: u32 = 1;
/// `agentfs_open`: nothing of the lower directory is kept behind bases that are taken; branches of them show what is done there.
pub const AGENTFS_OPEN_WITHOUT_PINS: u32 = 2;

/// How a store is opened: 16 bytes. All zero is the usual way.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Options {
    /// The most that contents of files may take in the store, in bytes; 0: what the disk has.
    pub limit: u64,
    /// A sum of AGENTFS_OPEN_….
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Called for each name of a directory. What it is shown is there during the call only. False: no more. It may call any function of
/// this interface, and must return: no exception, no longjmp.
pub type OnEntry = Option<unsafe extern "C" fn(context: *mut c_void, entry: *const Entry) -> bool>;
/// As agentfs_on_entry, for each snapshot.
pub type OnSnapshot = Option<unsafe extern "C" fn(context: *mut c_void, snapshot: *const SnapshotInfo) -> bool>;
/// As agentfs_on_entry, for each branch.
pub type OnBranch = Option<unsafe extern "C" fn(context: *mut c_void, branch: *const BranchInfo) -> bool>;
/// As agentfs_on_entry, for the name of each extended attribute, or for each path.
pub type OnName = Option<unsafe extern "C" fn(context: *mut c_void, name: Bytes) -> bool>;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Bytes>() == 16);
    assert!(size_of::<Time>() == 16);
    assert!(size_of::<Attr>() == 120);
    assert!(size_of::<Owner>() == 12);
    assert!(size_of::<SetAttr>() == 56);
    assert!(size_of::<Entry>() == 40);
    assert!(size_of::<StatFs>() == 24);
    assert!(size_of::<SnapshotInfo>() == 48);
    assert!(size_of::<BranchInfo>() == 24);
    assert!(size_of::<Options>() == 16);
};

impl Bytes {
    /// What the caller has there.
    ///
    /// # Safety
    ///
    /// `data` is null or has `length` bytes that nobody changes for as long as `'a`.
    pub(crate) unsafe fn get<'a>(self) -> Outcome<&'a [u8]> {
        match self {
            Self { length: 0, .. } => Ok(&[]),
            Self { data, .. } if data.is_null() => Err(Stop::Argument("a null pointer for a byte string")),
            Self { length, .. } if length > isize::MAX as usize => {
                Err(Stop::Argument("a byte string that long cannot be"))
            }
            // SAFETY: not null, not longer than memory can be, and the caller's promise.
            Self { data, length } => Ok(unsafe { std::slice::from_raw_parts(data, length) }),
        }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), length: bytes.len() }
    }
}

/// Writes an answer where the caller wants it.
///
/// # Safety
///
/// `to` is null or can be written.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Stop::Argument("a null pointer for the answer"));
    }
    // SAFETY: not null, and the caller's promise; what was there before is not looked at.
    unsafe { to.write(value) };
    Ok(())
}

/// Before anything is done whose answer could not be given.
pub(crate) fn must_have<T>(to: *mut T) -> Outcome {
    if to.is_null() { Err(Stop::Argument("a null pointer for the answer")) } else { Ok(()) }
}

impl From<core::Time> for Time {
    fn from(time: core::Time) -> Self {
        Self { seconds: time.secs, nanoseconds: time.nanos, reserved: 0 }
    }
}

impl Time {
    fn asked(self) -> Outcome<core::Time> {
        if self.nanoseconds >= 1_000_000_000 {
            return Err(Stop::Argument("a second has 1,000,000,000 nanoseconds"));
        }
        Ok(core::Time { secs: self.seconds, nanos: self.nanoseconds })
    }
}

impl From<core::Kind> for Kind {
    fn from(kind: core::Kind) -> Self {
        match kind {
            core::Kind::File => Self::File,
            core::Kind::Directory => Self::Directory,
            core::Kind::Symlink => Self::Symlink,
            core::Kind::Fifo => Self::Fifo,
            core::Kind::Socket => Self::Socket,
            core::Kind::CharDevice => Self::CharDevice,
            core::Kind::BlockDevice => Self::BlockDevice,
        }
    }
}

impl From<core::Attr> for Attr {
    fn from(attr: core::Attr) -> Self {
        Self {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            rdev: attr.rdev,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
            kind: Kind::from(attr.kind) as u32,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            reserved: 0,
        }
    }
}

impl From<Owner> for core::Owner {
    fn from(owner: Owner) -> Self {
        Self { mode: owner.mode & 0o7777, uid: owner.uid, gid: owner.gid }
    }
}

impl SetAttr {
    pub(crate) fn asked(&self) -> Outcome<core::SetAttr> {
        const ALL: u32 = 2 * AGENTFS_SET_MTIME_NOW - 1;
        if self.set & !ALL != 0 {
            return Err(Stop::Argument("an attribute that is not known"));
        }
        let has = |bit| self.set & bit != 0;
        let time = |given: u32, now: u32, time: Time| match (has(given), has(now)) {
            (true, true) => Err(Stop::Argument("a time and the present one")),
            (true, false) => Ok(Some(core::SetTime::At(time.asked()?))),
            (false, true) => Ok(Some(core::SetTime::Now)),
            (false, false) => Ok(None),
        };
        Ok(core::SetAttr {
            mode: has(AGENTFS_SET_MODE).then_some(self.mode),
            uid: has(AGENTFS_SET_UID).then_some(self.uid),
            gid: has(AGENTFS_SET_GID).then_some(self.gid),
            size: has(AGENTFS_SET_SIZE).then_some(self.size),
            atime: time(AGENTFS_SET_ATIME, AGENTFS_SET_ATIME_NOW, self.atime)?,
            mtime: time(AGENTFS_SET_MTIME, AGENTFS_SET_MTIME_NOW, self.mtime)?,
        })
    }
}

impl Options {
    pub(crate) fn asked(self) -> Outcome<core::Options> {
        if self.flags & !(AGENTFS_OPEN_WITHOUT_LOWER | AGENTFS_OPEN_WITHOUT_PINS) != 0 || self.reserved != 0 {
            return Err(Stop::Argument("an option that is not known"));
        }
        Ok(core::Options {
            limit: Some(self.limit).filter(|&limit| limit > 0),
            without_lower: self.flags & AGENTFS_OPEN_WITHOUT_LOWER != 0,
            pins: self.flags & AGENTFS_OPEN_WITHOUT_PINS == 0,
            ..core::Options::default()
        })
    }
}

/// For each number that stands for something, the core's word of the same name.
macro_rules! word {
    ($name:ident, $number:ident => $word:ty, $what:literal, $($variant:ident),+) => {
        pub(crate) fn $name(number: u32) -> Outcome<$word> {
            $(if number == $number::$variant as u32 {
                return Ok(<$word>::$variant);
            })+
            Err(Stop::Argument(concat!("not one of ", $what)))
        }
    };
}

word!(
    kind, Kind => core::Kind, "agentfs_kind",
    File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice
);
word!(class, Class => core::Class, "agentfs_class", Instant, Durable);
word!(access, Access => Access, "agentfs_access", Write, Read);
word!(rename, Rename => core::Rename, "agentfs_rename", Replace, NoReplace, Exchange);
word!(allocate, Allocate => core::Allocate, "agentfs_allocate", Extend, Keep, Punch, Zero);
word!(seek, Seek => core::Seek, "agentfs_seek", Data, Hole);
word!(set_xattr, SetXattr => core::SetXattr, "agentfs_set_xattr", Any, Create, Replace);
