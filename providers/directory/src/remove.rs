//! Removing what is in a directory, however deep, read-only or odd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::{Way, failed, look, names};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes what is in an open directory. Follows no symlink, and does not leave the mount.
///
/// # Errors
/// `Busy` if something is mounted in it; those of the system. Calling it again goes on.
pub fn remove_contents(dir: BorrowedFd<'_>) -> Result<()> {
    let first = list(dir)?;
    let mut way = Way::new(dir).map_err(fail)?;
    let mut levels = vec![(Vec::new(), first)];
    while let Some((_, names)) = levels.last_mut() {
        if let Some(name) = names.next() {
            if let Some(below) = unlink(way.at(), &name).map_err(fail)? {
                levels.push((name, list(below.as_fd())?));
                way.down(below).map_err(fail)?;
            }
            continue;
        }
        let Some((name, _)) = levels.pop().filter(|_| !levels.is_empty()) else { break };
        way.up().map_err(fail)?;
        gone(rustix::fs::unlinkat(way.at(), name, AtFlags::REMOVEDIR)).map_err(fail)?;
    }
    Ok(())
}

fn fail(errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::new(ErrorKind::Busy, "something is mounted in what is to be removed"),
        errno => failed("cannot remove what is in a removed directory", errno),
    }
}

fn list(dir: BorrowedFd<'_>) -> Result<std::vec::IntoIter<Vec<u8>>> {
    // A directory of which its owner took the bits.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    names(dir).map(Vec::into_iter).map_err(fail)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes an entry; a directory that is not empty is opened instead.
fn unlink(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let stat = match look(dir, name) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return gone(rustix::fs::unlinkat(dir, name, AtFlags::empty())).map(|()| None);
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTEMPTY) => {}
        Err(errno) => return Err(errno),
    }
    if look(dir, b"")?.stx_mnt_id != stat.stx_mnt_id {
        return Err(Errno::BUSY);
    }
    match rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()) {
        // Its owner may not read it.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()).map(Some)
        }
        below => below.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
        remove_contents(dir.as_fd()).unwrap();
        assert_eq!(names(dir.as_fd()).unwrap(), Vec::<Vec<u8>>::new());
        assert!(kept.join("file").exists());
    }
}
