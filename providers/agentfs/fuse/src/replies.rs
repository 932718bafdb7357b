//! What the kernel is answered.

use std::time::{Duration, SystemTime};

use ah_agentfs::{Attr, Ino, Result};
use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyXattr,
};

use crate::words::{attributes, errno};

/// How long the kernel may keep what it was told: a year.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// It is to ask again at once.
pub(crate) const NEVER: Duration = Duration::ZERO;
/// Numbers of inodes are never used for another.
pub(crate) const GENERATION: Generation = Generation(0);

/// An inode of which nothing but that is known.
pub(crate) fn bare(ino: Ino, kind: FileType) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

pub(crate) fn entry(reply: ReplyEntry, outcome: Result<Attr>) {
    match outcome {
        Ok(attr) => reply.entry(&FOREVER, &attributes(&attr), GENERATION),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn empty(reply: ReplyEmpty, outcome: Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn attr(reply: ReplyAttr, outcome: Result<Attr>) {
    match outcome {
        Ok(attr) => reply.attr(&FOREVER, &attributes(&attr)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn offset(reply: ReplyLseek, outcome: Result<u64>) {
    match outcome {
        Ok(at) => reply.offset(at.cast_signed()),
        Err(error) => reply.error(errno(&error)),
    }
}

/// A value whose size is asked for first, or that has to fit.
pub(crate) fn value(reply: ReplyXattr, size: u32, outcome: Result<Vec<u8>>) {
    match outcome {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}
