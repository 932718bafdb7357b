//! What differs between systems, each with a portable way out: holes, shared contents, the boot's identity, opening without leaving a
//! directory, the kernel's clock.
//!
//! But for that, `lower.rs`, a flag and the name of an error, this crate is POSIX through `rustix`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};

use crate::types::Time;

/// Gives the bytes' space back to the disk; they read as zeros from then on. False where the system cannot do that.
pub(crate) fn punch(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, offset, length);
        Ok(false)
    }
}

/// Where the next data (or hole) of `file` begins at or behind `offset`; `None`: there is no more data. Where the system
/// cannot tell, everything is data.
pub(crate) fn seek(file: &File, offset: u64, hole: bool) -> io::Result<Option<u64>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::SeekFrom;
        let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
        match rustix::fs::seek(file, from) {
            Ok(found) => return Ok(Some(found)),
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let size = file.metadata()?.len();
    Ok(if offset >= size { None } else { Some(if hole { size } else { offset }) })
}

/// Whether it is known of a directory's filesystem that each block of ours which is given back is a hole, and that what was written is none, also if it was zeros. ZFS makes holes of those, and
/// where the filesystem's own blocks are larger, what is given back within one only becomes zeros.
pub(crate) fn keeps_zeros(directory: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        // From linux/magic.h: ext2-4, xfs, btrfs, tmpfs.
        const KEEP: [u64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];
        rustix::fs::fstatfs(directory).is_ok_and(|stat| {
            KEEP.contains(&(stat.f_type as u64 & 0xFFFF_FFFF)) && stat.f_bsize as u64 <= crate::rows::chunk::BLOCK
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        false
    }
}

/// A file without a name in a directory that has the contents of another, sharing what that has on the disk; `None` where the disk cannot.
pub(crate) fn share(directory: &Path, file: &File) -> Option<File> {
    #[cfg(target_os = "linux")]
    {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let shared: File = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).ok()?.into();
        clone(file, &shared).ok()?.then_some(shared)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (directory, file);
        None
    }
}

/// Gives an empty file the contents of another, sharing what that has on the disk. False where the disk, or these two, cannot.
pub(crate) fn clone(from: &File, to: &File) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (from, to);
        Ok(false)
    }
}

/// Copies bytes from one file to another, sharing them where the disk can; fewer only where the file ends.
pub(crate) fn copy(from: &File, offset: u64, to: &File, at: u64, length: u64) -> io::Result<u64> {
    let mut done = 0;
    #[cfg(target_os = "linux")]
    while done < length {
        let (mut source, mut target) = (offset + done, at + done);
        let part = usize::try_from(length - done).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), part) {
            Ok(0) => return Ok(done),
            Ok(count) => done += count as u64,
            Err(rustix::io::Errno::INTR) => {}
            // Two filesystems, or one that cannot.
            Err(error) if error != rustix::io::Errno::NOSPC => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut bytes = vec![0; (length - done).min(1 << 20) as usize];
    while done < length {
        let part = bytes.len().min((length - done) as usize);
        match from.read_at(&mut bytes[..part], offset + done) {
            Ok(0) => break,
            Ok(count) => {
                to.write_all_at(&bytes[..count], at + done)?;
                done += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Has the system begin to write what a file has in memory, and not keep it there. Waits only until the disk's queue takes it.
pub(crate) fn begin_to_write(file: &File) {
    // That it does not is no matter.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Takes all that waits to be written on a directory's filesystem to the disk.
pub(crate) fn sync_all_of(directory: &OwnedFd) -> rustix::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        rustix::fs::syncfs(directory)
    }
    // May return before it is done.
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        rustix::fs::sync();
        Ok(())
    }
}

/// This thread works when nobody else wants to.
pub(crate) fn stand_back() {
    // Of a thread, on Linux.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(19);
}

/// A text that changes with every boot; `None` where the system has none. Tells a killed process from a lost machine.
pub(crate) fn boot_id() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

/// What a subvolume or dataset is known by among others of its kind; none on filesystems that have no such.
pub(crate) fn subvolume_id(directory: &OwnedFd) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        const BTRFS: u64 = 0x9123_683e;
        const ZFS: u64 = 0x2fc1_2fc1;
        let magic = rustix::fs::fstatfs(directory).ok()?.f_type as u64;
        if [BTRFS, ZFS].contains(&magic) {
            return Some(rustix::fs::fstatvfs(directory).ok()?.f_fsid).filter(|&id| id != 0);
        }
    }
    let _ = directory;
    None
}

/// Whether what is changed on a directory's filesystem bears the time of this machine's clock, as far as that is known.
pub(crate) fn stamps_by_this_clock(directory: &OwnedFd) -> bool {
    #[cfg(target_os = "linux")]
    {
        // From linux/magic.h: ext2-4, xfs, btrfs, tmpfs, zfs, f2fs, bcachefs.
        const LOCAL: [u64; 7] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x2FC1_2FC1, 0xF2F5_2010, 0xCA45_1A4E];
        rustix::fs::fstatfs(directory).is_ok_and(|stat| LOCAL.contains(&(stat.f_type as u64 & 0xFFFF_FFFF)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        false
    }
}

/// One more than the bytes of the longest path that the kernel takes. Source: `PATH_MAX`, which counts the end.
#[cfg(target_os = "linux")]
const LONGEST: usize = 4096;

/// Opens `path`, relative and without `..`, below `root`, following no symbolic link on the way or at the end, and entering no other
/// filesystem (XDEV) where the system can tell.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        // The kernel takes no longer path at a time.
        if let Some(cut) = path.get(..LONGEST).and_then(|head| head.iter().rposition(|&byte| byte == b'/')) {
            let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match openat2(root, &path[..cut], through, Mode::empty(), how) {
                Err(rustix::io::Errno::NOSYS) => return step_by_step(root, path, flags),
                above => return open_beneath(above?.as_fd(), &path[cut + 1..], flags),
            }
        }
        let path = if path.is_empty() { b".".as_slice() } else { path };
        match openat2(root, path, flags, Mode::empty(), how) {
            Err(rustix::io::Errno::NOSYS) => {}
            answer => return answer,
        }
    }
    step_by_step(root, path, flags)
}

/// The portable way: one component after the other.
fn step_by_step(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::openat;
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).peekable();
    if parts.peek().is_none() {
        return openat(root, ".", flags, Mode::empty());
    }
    let mut at = openat(root, ".", directory, Mode::empty())?;
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        at = openat(&at, part, if last { flags } else { directory }, Mode::empty())?;
    }
    Ok(at)
}

/// The time, to the nanosecond.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: since.as_secs() as i64 + ahead(), nanos: since.subsec_nanos() }
}

/// By how much this thread's clock is ahead of the kernel's, in seconds.
#[cfg(not(test))]
const fn ahead() -> i64 {
    0
}

#[cfg(test)]
fn ahead() -> i64 {
    AHEAD.get()
}

#[cfg(test)]
thread_local! {
    /// For tests, in which it can be: files that were changed while the clock was wrong.
    pub(crate) static AHEAD: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

/// The time that the kernel stamps files with, which may lag behind [`now`] by a tick.
fn stamp() -> Time {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Time { secs: time.tv_sec + ahead(), nanos: time.tv_nsec as u32 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let before = since.saturating_sub(Duration::from_millis(20));
        Time { secs: before.as_secs() as i64 + ahead(), nanos: before.subsec_nanos() }
    }
}

/// A time such that every file that is changed after this call bears a later one. Waits for the kernel's next tick,
/// 4 ms as a rule, 10 at most on a system of 100 Hz; for the next second where files bear `whole_seconds`.
pub(crate) fn settled_time(whole_seconds: bool) -> Time {
    let mut time = now();
    if whole_seconds {
        time.nanos = 999_999_999;
        // Each try waits 50 ms at most.
        let _ = (0..21).any(|_| settle(time));
    } else {
        settle(time);
    }
    time
}

/// Whether a time lies in the future by more than what is stamped now can: only a clock that was ahead has stamped it, and what is changed from now on bears another.
pub(crate) fn is_to_come(time: Time) -> bool {
    time.secs > now().secs + 2
}

/// Waits until files are stamped later than `time`; gives up after 50 ms, when `time` lies in the future.
pub(crate) fn settle(time: Time) -> bool {
    for _ in 0..100 {
        if stamp() > time {
            return true;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_known_to_stay_where_the_filesystem_is_known() {
        if cfg!(target_os = "linux") {
            let keeps = |path: &str| keeps_zeros(&File::open(path).unwrap());
            assert!(keeps("/dev/shm"));
            assert!(!keeps("/proc"));
        }
    }

    #[test]
    fn what_is_changed_after_a_settled_time_bears_a_later_one() {
        let time = settled_time(false);
        assert!(stamp() > time);
        let time = settled_time(true);
        // As a filesystem has it that keeps whole seconds.
        assert!(Time { nanos: 0, ..stamp() } > time);
    }
}
