//! Removing what is in a directory, however deep, read-only or odd.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::way::DIRECTORY;
use crate::{Way, failed, look, names};

/// What only one filesystem has, and removes in a way of its own: a subvolume, say.
pub trait Special {
    /// Whether a directory is such a thing.
    fn is(&self, stat: &Statx) -> bool;

    /// Removes it with all that is in it, if that can be done at once.
    ///
    /// # Errors
    /// What the system says: then it is removed as other directories are.
    fn remove(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno>;

    /// Sees to it that what is in it can be removed.
    ///
    /// # Errors
    /// What the system says.
    fn open_up(&self, opened: &OwnedFd) -> Result<(), Errno>;
}

/// Nothing is special.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Special for Plain {
    fn is(&self, _stat: &Statx) -> bool {
        false
    }

    fn remove(&self, _dir: BorrowedFd<'_>, _name: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn open_up(&self, _opened: &OwnedFd) -> Result<(), Errno> {
        Ok(())
    }
}

/// Removes what is in an open directory. Follows no symlink, and does not leave the mount.
///
/// # Errors
/// `Busy` if something is mounted in it; `Cancelled`; those of the system. Calling it again goes on.
pub fn remove_contents(dir: BorrowedFd<'_>, special: &impl Special, cx: &Context<'_>) -> Result<()> {
    let first = list(dir)?;
    let mut way = Way::new(dir).map_err(cannot_remove)?;
    let (mut levels, mut done) = (vec![(Vec::new(), first)], 0_u64);
    while let Some((_, names)) = levels.last_mut() {
        cx.check_cancelled()?;
        if let Some(name) = names.next() {
            done += 1;
            if done.is_multiple_of(512) {
                cx.progress("removing", done, None);
            }
            if let Some(below) = unlink(way.at(), &name, special).map_err(cannot_remove)? {
                levels.push((name, list(below.as_fd())?));
                way.down(below).map_err(cannot_remove)?;
            }
            continue;
        }
        let Some((name, _)) = levels.pop().filter(|_| !levels.is_empty()) else { break };
        way.up().map_err(cannot_remove)?;
        gone(rustix::fs::unlinkat(way.at(), name, AtFlags::REMOVEDIR)).map_err(cannot_remove)?;
    }
    Ok(())
}

/// Removes one entry of a directory, with everything below it. What is gone is success.
///
/// # Errors
/// As for [`remove_contents`].
pub fn remove_entry(dir: BorrowedFd<'_>, name: &[u8], special: &impl Special, cx: &Context<'_>) -> Result<()> {
    let Some(below) = unlink(dir, name, special).map_err(cannot_remove)? else { return Ok(()) };
    remove_contents(below.as_fd(), special, cx)?;
    gone(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)).map_err(cannot_remove)
}

/// Opens a directory that is to be removed, of which its owner may have taken the bits.
///
/// # Errors
/// What the system says.
pub fn open_to_remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            open_up(parent, name, |_| true)?;
            rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
        }
        other => other,
    }
}

/// Gives the owner of a directory all rights to it, if `is_it` says that it is the one: what a symlink leads to, or somebody has put there meanwhile,
/// is left alone. Gives the directory, opened as a path, and the mode it had.
///
/// # Errors
/// What the system says; `ENOTDIR` if it is not the one.
pub fn open_up(
    parent: BorrowedFd<'_>,
    name: &[u8],
    is_it: impl FnOnce(&Statx) -> bool,
) -> Result<(OwnedFd, Mode), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = look(&found, b"")?;
    if !is_it(&stat) {
        return Err(Errno::NOTDIR);
    }
    set_mode(&found, Mode::RWXU)?;
    Ok((found, Mode::from_raw_mode(stat.stx_mode.into())))
}

/// Sets the mode of a directory that is opened as a path, which by itself has none to set.
///
/// # Errors
/// What the system says.
pub fn set_mode(found: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)
}

fn cannot_remove(errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::new(ErrorKind::Busy, "something is mounted in what is to be removed"),
        errno => failed("cannot remove what is in a removed directory", errno),
    }
}

fn list(dir: BorrowedFd<'_>) -> Result<std::vec::IntoIter<Vec<u8>>> {
    // A directory of which its owner took the bits.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    names(dir).map(Vec::into_iter).map_err(cannot_remove)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes an entry; a directory that is not empty is opened instead.
fn unlink(dir: BorrowedFd<'_>, name: &[u8], special: &impl Special) -> Result<Option<OwnedFd>, Errno> {
    let stat = match look(dir, name) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return gone(rustix::fs::unlinkat(dir, name, AtFlags::empty())).map(|()| None);
    }
    let is_special = special.is(&stat);
    if is_special && gone(special.remove(dir, name)).is_ok() {
        return Ok(None);
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTEMPTY) => {}
        // It is read-only, perhaps.
        Err(Errno::PERM | Errno::ACCESS | Errno::ROFS) if is_special => {}
        Err(errno) => return Err(errno),
    }
    if look(dir, b"")?.stx_mnt_id != stat.stx_mnt_id {
        return Err(Errno::BUSY);
    }
    let below = open_to_remove(dir, name)?;
    if is_special {
        special.open_up(&below)?;
    }
    Ok(Some(below))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use ah_plugin_api::{Observer, Progress};

    use super::*;

    /// How far it was said to be.
    #[derive(Default)]
    struct Counts(AtomicU64);

    impl Observer for Counts {
        fn progress(&self, progress: &Progress) {
            self.0.store(progress.done, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_deep_or_closed_is_removed_and_what_links_lead_to_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let (top, kept) = (temp.path().join("top"), temp.path().join("kept"));
        fs::create_dir_all(top.join("closed/in")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&kept, top.join("link")).unwrap();
        fs::write(top.join("closed/in/file"), "").unwrap();
        for (path, mode) in [("closed/in", 0o555), ("closed", 0)] {
            fs::set_permissions(top.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        let dir = fs::File::open(&top).unwrap();
        let mut way = Way::new(dir.as_fd()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(way.at(), "d", Mode::RWXU).unwrap();
            way.down(rustix::fs::openat(way.at(), "d", DIRECTORY, Mode::empty()).unwrap()).unwrap();
        }
        let counted = Counts::default();
        remove_contents(dir.as_fd(), &Plain, &Context::new(&counted)).unwrap();
        assert_eq!(counted.0.load(Ordering::Relaxed), 2560, "what takes long shows how far it is");
        assert_eq!(names(dir.as_fd()).unwrap(), Vec::<Vec<u8>>::new());
        assert!(kept.join("file").exists());
    }
}
