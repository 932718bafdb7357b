//! Removing trees that others may have written: branches, views, trash.
//!
//! Relative to descriptors, so that a directory that is swapped for a symlink meanwhile leads nowhere else; never into another mount, as
//! what is mounted there is not ours; also through folders without write bits, as views have them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ah_plugin_api::Result;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{self, Mounts};
use crate::crash;
use crate::fsio::failed;

/// Removes a tree, or a file; what is gone already is no error. A mount in it is `Busy`, and everything around it may be gone then.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    let run = || -> io::Result<()> {
        crash::point("remove-tree")?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent, flags, Mode::empty())?;
        let name = std::ffi::CString::new(name.as_bytes())?;
        Ok(remove_at(parent.as_fd(), &name)?)
    };
    match run() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}

fn remove_at(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        // Linux says EISDIR, others EPERM.
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    for _ in 0..3 {
        empty(parent, name)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // Not every filesystem lists all names to one who removes them at the same time; or somebody made a new one.
            Err(Errno::NOTEMPTY) => {}
            other => return other,
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Removes everything in a directory.
fn empty(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    let dir = open_dir(parent, name)?;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let child = entry.file_name();
        if child == c"." || child == c".." {
            continue;
        }
        match remove_at(dir.as_fd(), child) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Opens a directory to be emptied, giving its owner every right to it.
fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let open = |flags: OFlags| match beneath::open(parent, name.to_bytes(), flags | OFlags::DIRECTORY, Mounts::Stay) {
        Err(Errno::XDEV) => Err(Errno::BUSY),
        other => other,
    };
    let place = open(OFlags::PATH)?;
    let stat = rustix::fs::fstat(&place)?;
    if stat.st_mode & 0o700 != 0o700 {
        // A descriptor by path only cannot be changed itself, but by its name in /proc, which leads to nothing else.
        let own = format!("/proc/self/fd/{}", place.as_raw_fd());
        rustix::fs::chmod(own, Mode::RWXU)?;
    }
    open(OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use super::remove_tree;
    use ah_plugin_api::ErrorKind;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn removes_read_only_trees_and_follows_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("precious"), "x").unwrap();
        std::fs::write(tree.join("sub/file"), "x").unwrap();
        std::os::unix::fs::symlink(&other, tree.join("sub/link")).unwrap();
        std::fs::set_permissions(tree.join("sub"), std::fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && other.join("precious").exists());
        remove_tree(&tree).unwrap();
        std::os::unix::fs::symlink(&other, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(std::fs::symlink_metadata(&tree).is_err() && other.join("precious").exists());
    }

    #[test]
    fn does_not_enter_another_mount() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        std::fs::create_dir_all(tree.join("mnt")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("precious"), "x").unwrap();
        let flags = nix::mount::MsFlags::MS_BIND;
        if nix::mount::mount(Some(&other), &tree.join("mnt"), None::<&str>, flags, None::<&str>).is_err() {
            // Only root can mount; elsewhere there is nothing to be entered.
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root, to mount");
            eprintln!("skipped: needs root, to mount");
            return;
        }
        let error = remove_tree(&tree).unwrap_err();
        ah_test_disks::unmount(&tree.join("mnt"));
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(other.join("precious").exists());
    }
}
