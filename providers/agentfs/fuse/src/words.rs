//! Attributes, times and errors, in the kernel's words and in the tree's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ah_agentfs::{Attr, Error, Kind, SetTime, Time};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};

pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// What `mknod` is to make, by the mode's upper bits.
pub(crate) fn kind(mode: u32) -> Option<Kind> {
    use rustix::fs::FileType as Type;
    Some(match Type::from_raw_mode(mode) {
        Type::RegularFile => Kind::File,
        Type::Fifo => Kind::Fifo,
        Type::Socket => Kind::Socket,
        Type::CharacterDevice => Kind::CharDevice,
        Type::BlockDevice => Kind::BlockDevice,
        _ => return None,
    })
}

pub(crate) fn attributes(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: kernel_device(attr.rdev),
        blksize: 4096,
        flags: 0,
    }
}

/// The kernel's own 32-bit form of a device's number, which FUSE speaks.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(crate) fn device(kernel: u32) -> u64 {
    rustix::fs::makedev((kernel & 0xf_ff00) >> 8, (kernel & 0xff) | ((kernel >> 12) & 0xf_ff00))
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|second| second.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(asked(time)),
    }
}

/// A time to set, as `fuser` 0.18 hands it on: of times before 1970 it subtracts the nanoseconds, which are to be added.
fn asked(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
            Time { secs, nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 1_048_575)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(super::device(kernel_device(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_have_their_nanoseconds_after_the_second() {
        let time = Time { secs: -2, nanos: 800_000_000 };
        assert_eq!(UNIX_EPOCH.duration_since(system_time(time)).unwrap(), Duration::from_millis(1_200));
    }
}
