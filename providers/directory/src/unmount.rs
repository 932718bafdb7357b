//! Taking away a mount that the mount table told of: that one, and nothing that its path may lead to by then.
//!
//! A mount can lie in a directory whose owner swaps a part of the way to it with a symlink, after the table was read and before
//! `umount2` walks it; root would take away `/boot` for them. So no symlink is followed on the way, what is seen at the end must be
//! the mount with that number, and the name that is unmounted is looked up in the directory that was looked at.
//!
//! What is left: the directory of a mount can be renamed from a mount namespace in which it is none. Who may do so can have another
//! mount *of the same directory* taken away instead, all of whose mounts are in a place of their own; nothing else.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::{Mount, look};

/// How [`unmount`] ended, or would end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// The mount is gone, or nothing is in the way.
    Done,
    /// It is in use.
    InUse,
    /// It is not what is seen where the table has it: it is gone, was moved, or something is mounted over it. A new table tells.
    Elsewhere,
}

/// Takes a mount away.
///
/// # Errors
/// What the operating system says, unless it says one of the answers.
pub fn unmount(mount: &Mount) -> Result<Unmount, Errno> {
    call(mount, UnmountFlags::empty())
}

/// Asks the kernel whether [`unmount`] would find a mount in use, and leaves it. Of one with others mounted on it the answer is always
/// yes; of what is in use in other mount namespaces nothing is said.
///
/// # Errors
/// As for [`unmount`].
pub fn would_unmount(mount: &Mount) -> Result<Unmount, Errno> {
    // What `MNT_EXPIRE` is for goes in two steps, of which the first one only looks, and leaves a mark (umount(2)).
    let answer = call(mount, UnmountFlags::EXPIRE)?;
    // Taken off by whoever looks at the mount next. If it is never reached again, it need not be.
    let _ = open_plain(&mount.point);
    Ok(answer)
}

fn call(mount: &Mount, flags: UnmountFlags) -> Result<Unmount, Errno> {
    let (Some(folder), Some(name)) = (mount.point.parent(), mount.point.file_name()) else { return Ok(Unmount::InUse) };
    let folder = match open_plain(folder) {
        Ok(folder) => folder,
        Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => return Ok(Unmount::Elsewhere),
        Err(errno) => return Err(errno),
    };
    match look(&folder, name.as_bytes()) {
        // A kernel that tells no number (before 5.8) has 0 there, which is no mount's.
        Ok(stat) if stat.stx_mnt_id == mount.id => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(Unmount::Elsewhere),
        Err(errno) => return Err(errno),
    }
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    match rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | flags) {
        // A mount without a mark, which the look above has taken off: it is not in use.
        Err(Errno::AGAIN) if flags.contains(UnmountFlags::EXPIRE) => Ok(Unmount::Done),
        Ok(()) => Ok(Unmount::Done),
        Err(Errno::BUSY) => Ok(Unmount::InUse),
        Err(Errno::INVAL | Errno::NOENT) => Ok(Unmount::Elsewhere),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory, for looking up names in it, with no symlink anywhere on the way (`ELOOP`).
///
/// # Errors
/// What the operating system says.
pub fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mounts;

    #[test]
    fn only_what_is_seen_there_is_unmounted() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/point")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        // Whatever is mounted: none of it is here.
        let mounts = Mounts::read().unwrap();
        let proc = mounts.iter().find(|mount| mount.point == Path::new("/proc")).unwrap();
        for point in ["real/point", "link/point", "none/point", "real/none"] {
            let claimed = Mount { point: top.join(point), ..proc.clone() };
            assert_eq!(unmount(&claimed), Ok(Unmount::Elsewhere), "{point}");
        }
        // The right place, reached by a symlink.
        std::os::unix::fs::symlink("/", top.join("root")).unwrap();
        assert_eq!(unmount(&Mount { point: top.join("root/proc"), ..proc.clone() }), Ok(Unmount::Elsewhere));
        assert!(Mounts::read().unwrap().iter().any(|mount| mount.id == proc.id));
        assert_eq!(open_plain(&top.join("link")).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn what_was_mounted_there_meanwhile_stays() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root, to mount");
            eprintln!("skipped: needs root, to mount");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let point = temp.path().canonicalize().unwrap();
        rustix::mount::mount("none", &point, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let here = || Mounts::read().unwrap().iter().find(|mount| mount.point == point).cloned();
        let mounted = here().unwrap();
        // The table told of another one.
        let before = Mount { id: mounted.id + 1, ..mounted.clone() };
        let answers = (would_unmount(&before), unmount(&before), here().is_some(), unmount(&mounted), here().is_none());
        let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
        assert_eq!(answers, (Ok(Unmount::Elsewhere), Ok(Unmount::Elsewhere), true, Ok(Unmount::Done), true));
    }
}
