//! Attributes of what is open or in an open directory, as the contract puts them; and its errors.

use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Entry, EntryKind, Error, ErrorKind, Timestamp};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;

/// What [`look`] asks for.
pub const MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// Attributes of `name` in `dir`, of `dir` itself if `name` is empty. Follows no symlink, triggers no automount.
///
/// # Errors
/// What the operating system says.
pub fn look(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, MASK)
}

/// What tells one mount from another; 0 on kernels that do not say (before 5.8).
///
/// # Errors
/// What the operating system says.
pub fn mount_of(fd: impl AsFd) -> Result<u64, Errno> {
    let stat = look(fd, b"")?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    Ok(if known { stat.stx_mnt_id } else { 0 })
}

/// The entry of the contract for those attributes.
#[must_use]
pub fn entry_of(stat: &Statx, name: &[u8]) -> Entry {
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Special,
    };
    Entry {
        name: name.to_vec(),
        kind,
        mode: u32::from(stat.stx_mode) & 0o7777,
        size: if matches!(kind, EntryKind::File | EntryKind::Symlink) { stat.stx_size } else { 0 },
        mtime: Timestamp { secs: stat.stx_mtime.tv_sec, nanos: stat.stx_mtime.tv_nsec.min(999_999_999) },
        content: None,
        ignored: false,
    }
}

/// Names in an open directory, without `.` and `..`, in byte order.
///
/// # Errors
/// What the operating system says.
pub fn names(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
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

/// An error of the operating system while doing what `message` says. Damage that the filesystem's own checksums found (`EIO`) is
/// `DataLoss`; what is read-only is a state of the system.
#[must_use]
pub fn failed(message: impl Into<String>, errno: Errno) -> Error {
    let mut error = Error::from_io(message, &errno.into());
    match errno {
        Errno::IO => error.kind = ErrorKind::DataLoss,
        Errno::ROFS => {
            error.kind = ErrorKind::FailedPrecondition;
            error.hint = Some("the filesystem is read-only: remount it for writing, then repeat".to_owned());
        }
        _ => {}
    }
    error
}
