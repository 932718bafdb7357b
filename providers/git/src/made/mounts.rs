//! Read-only mounts over directories of ours, and whether this process can have them.
//!
//! All by descriptors and single names relative to them. Not here: what is in the directories.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use ah_plugin_api::{Error, Result};
use ah_provider_directory::{has_capability, in_first_user_namespace};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::identity::{MountId, stat};

/// Whether this process may mount in a namespace that outlives it: it has CAP_SYS_ADMIN, not only in a user namespace of
/// its own, whose mounts vanish with it and leave a writable directory behind. Asked once.
pub(crate) fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| has_capability(CAP_SYS_ADMIN) && in_first_user_namespace())
}

const CAP_SYS_ADMIN: u32 = 21;

/// Whether a mount can really be had: containers and security modules forbid it to some who have the capability. Tried once, on
/// the open, empty directory `dir`, which is `name` in `target`.
pub(crate) fn work(target: BorrowedFd<'_>, name: &CStr, dir: BorrowedFd<'_>) -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| bind(dir).is_ok() && unmount(target, name).is_ok())
}

/// Whether nobody but this user can come to what is in `target`: some directory on the way to it is closed to all others. False if
/// that cannot be told.
pub(crate) fn is_private(target: BorrowedFd<'_>) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(target, c".", flags, Mode::empty());
    while let Ok(dir) = at {
        let Ok(stat) = rustix::fs::fstat(&dir) else { return false };
        // With an access control list, the group's bits are the most that anybody on it gets.
        if stat.st_mode & 0o011 == 0 && stat.st_uid == rustix::process::geteuid().as_raw() {
            return true;
        }
        at = rustix::fs::openat(&dir, c"..", flags, Mode::empty());
        let Some(Ok(above)) = at.as_ref().ok().map(rustix::fs::fstat) else { return false };
        if (above.st_dev, above.st_ino) == (stat.st_dev, stat.st_ino) {
            return false;
        }
    }
    false
}

pub(super) fn bind(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    rustix::mount::mount_bind(path.as_str(), path.as_str())
}

/// Takes off the topmost mount on `name` in `target`. By name, because an open descriptor would itself keep the mount busy.
pub(super) fn unmount(target: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    let path = [format!("/proc/self/fd/{}/", target.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
    rustix::mount::unmount(path.as_slice(), UnmountFlags::NOFOLLOW)
}

/// Puts the open directory `dir`, which is `name` in `target`, under a mount of itself that is read-only and without devices and
/// set-id programs.
pub(crate) fn mount_read_only(target: BorrowedFd<'_>, name: &CStr, dir: BorrowedFd<'_>) -> Result<()> {
    let failed = |e: Errno| Error::from_io("cannot make a read-only mount of the view", &e.into());
    bind(dir).map_err(failed)?;
    let restrict = || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::openat(target, name, flags, Mode::empty())?;
        if MountId::from_statx(&stat(&top)?) == MountId::from_statx(&stat(dir)?) {
            return Err(Errno::STALE);
        }
        // A remount sets all flags anew: what the filesystem around forbids stays forbidden.
        let around = rustix::fs::fstatvfs(&top)?.f_flag;
        let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        for (is, becomes) in [
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
            (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
            (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
            (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        ] {
            flags.set(becomes, around.contains(is));
        }
        rustix::mount::mount_remount(format!("/proc/self/fd/{}", top.as_raw_fd()), flags, c"")
    };
    restrict().map_err(|e| {
        let _ = unmount(target, name);
        failed(e)
    })
}
