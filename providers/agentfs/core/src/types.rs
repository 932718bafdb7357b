//! The words in which a host speaks to the tree: inode numbers, kinds, times, attributes.

/// The number of an inode, the same in all branches and snapshots of a workspace, and across restarts.
pub type Ino = u64;

/// The root directory's number.
pub const ROOT: Ino = 1;

/// A point in time: seconds since 1970, which may be negative, and nanoseconds after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
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

impl Kind {
    pub(crate) fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// What `stat` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The inode's number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-id and sticky included: the lower 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// How many names it has. Of a directory: what the lower filesystem counts, or two and one for each child directory.
    pub nlink: u32,
    /// Bytes; of a link the length of its target.
    pub size: u64,
    /// Units of 512 bytes that its content takes, here or below; an estimate for files that are partly below.
    pub blocks: u64,
    /// The device that a device node stands for, as `makedev` makes it.
    pub rdev: u64,
    /// Last access. Reading does not move it.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
}

/// Who makes a new inode and with which permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits, after the umask.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present one.
    Now,
    /// This one.
    At(Time),
}

/// What `setattr` changes; what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: cut, or filled up with zeros.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Where to go on behind this entry.
    pub cookie: u64,
    /// The inode, as far as it is known without looking: `lookup` is exact.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
}

/// How `rename` treats a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// It is an error.
    NoReplace,
    /// Both names change places.
    Exchange,
}

/// What `fallocate` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Makes the file at least that long. Space is not set aside: a later write can still meet a full disk.
    Extend,
    /// Nothing at all but the checks: the size is kept, and nothing is set aside.
    Keep,
    /// A hole: reads as zeros, takes no space, the size is kept.
    Punch,
    /// Zeros, and the file at least that long.
    Zero,
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may not be zero.
    Data,
    /// The next hole, or the end.
    Hole,
}

/// What `statfs` shows, in bytes and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the disk that the store is on, without what is kept there for root alone, or the store's own limit.
    pub total: u64,
    /// What can still be written.
    pub free: u64,
    /// Inodes that can still be made, as far as the disk knows.
    pub free_inodes: u64,
}
