//! Deleting a directory with everything below it: relative to open directories, through no symlink and across no mount.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;

use super::identity::{Identity, MountId, stat};

/// Directories this deep are first moved up to the top, so that no depth runs out of descriptors or stack.
const DEEP: usize = 48;

/// Deletes the directory `name` in `parent`, if it is the one that `expected` tells. Returns false, and changes nothing, if it is not
/// there or is another. Takes permissions it needs on directories below, which are its own.
///
/// # Errors
/// `Busy` where something is mounted below. What could not be deleted stays, and the call can be repeated.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &CStr, expected: &Identity, cx: &Context<'_>) -> Result<bool> {
    let top = match open_dir(parent, name) {
        Ok(top) => top,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        Err(e) => return Err(failed(name, e)),
    };
    let looked = stat(&top).map_err(|e| failed(name, e))?;
    if !Identity::from_statx(&looked).is(expected) {
        return Ok(false);
    }
    let mut removal = Removal { top: top.as_fd(), mount: MountId::from_statx(&looked), moved: 0, done: 0, cx };
    own(&top, looked.stx_mode).map_err(|e| failed(name, e))?;
    removal.empty(top.as_fd(), 0)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(e) => Err(failed(name, e)),
    }
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    mount: MountId,
    moved: u64,
    done: u64,
    cx: &'a Context<'a>,
}

impl Removal<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<()> {
        // Deleting while reading may skip names, and deep directories come up into the top: so a round is repeated until
        // it finds nothing.
        let mut room = [const { MaybeUninit::<u8>::uninit() }; 16 << 10];
        loop {
            rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0)).map_err(|e| failed(c".", e))?;
            let mut names = RawDir::new(dir, &mut room);
            let mut found = false;
            while let Some(entry) = names.next() {
                let entry = entry.map_err(|e| failed(c".", e))?;
                let name = entry.file_name();
                if name != c"." && name != c".." {
                    found = true;
                    self.one(dir, name, entry.file_type(), depth)?;
                }
            }
            if !found {
                return Ok(());
            }
        }
    }

    fn one(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType, depth: usize) -> Result<()> {
        self.done += 1;
        if self.done.is_multiple_of(512) {
            self.cx.check_cancelled()?;
            self.cx.progress("removing", self.done, None);
        }
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                // Some filesystems do not say the kind in the listing.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(e) => return Err(failed(name, e)),
            }
        }
        if depth + 1 >= DEEP { self.move_up(dir, name) } else { self.dir(dir, name, depth + 1) }
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        // To move a directory one must be able to write to it.
        let handle = open_dir(dir, name).map_err(|e| failed(name, e))?;
        let looked = stat(&handle).map_err(|e| failed(name, e))?;
        own(&handle, looked.stx_mode).map_err(|e| failed(name, e))?;
        loop {
            // Neither part has a NUL. A crash may have left such names: the next free one is taken.
            let up = CString::new(format!(".ah-deep-{}", self.moved)).unwrap_or_default();
            self.moved += 1;
            match rustix::fs::renameat_with(dir, name, self.top, &up, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(Errno::BUSY | Errno::XDEV) => return Err(mounted(name)),
                Err(e) => return Err(failed(name, e)),
            }
        }
    }

    fn dir(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<()> {
        // Most directories of a view are either empty or not; asking the kernel is cheaper than looking.
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) => return Err(mounted(name)),
            Err(_) => {}
        }
        let dir = open_dir(parent, name).map_err(|e| failed(name, e))?;
        let looked = stat(&dir).map_err(|e| failed(name, e))?;
        if MountId::from_statx(&looked) != self.mount {
            return Err(mounted(name));
        }
        own(&dir, looked.stx_mode).map_err(|e| failed(name, e))?;
        self.empty(dir.as_fd(), depth)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(mounted(name)),
            Err(Errno::NOTEMPTY) => {
                Err(Error::new(ErrorKind::Busy, format!("something is writing to {name:?} while it is removed")))
            }
            Err(e) => Err(failed(name, e)),
        }
    }
}

/// Takes the right to list and change a directory, where its mode does not give it.
fn own(dir: &OwnedFd, mode: u16) -> rustix::io::Result<()> {
    if mode & 0o700 == 0o700 { Ok(()) } else { rustix::fs::fchmod(dir, Mode::RWXU) }
}

/// Opens a directory of ours, taking the right to read it first where it lacks that.
fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let handle = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
            // A path descriptor cannot be changed itself; its entry in /proc leads to the very same directory.
            rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
            rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty())
        }
        other => other,
    }
}

fn mounted(name: &CStr) -> Error {
    Error::new(ErrorKind::Busy, format!("{name:?} cannot be removed: something is mounted on it"))
        .with_hint("unmount what is mounted there, then repeat")
}

fn failed(name: &CStr, e: Errno) -> Error {
    Error::from_io(format!("cannot remove {name:?}"), &e.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use ah_plugin_api::Context;

    use super::remove_tree;
    use crate::made::Identity;

    fn remove(dir: &Path, name: &std::ffi::CStr, expected: &Identity) -> ah_plugin_api::Result<bool> {
        remove_tree(std::fs::File::open(dir).unwrap().as_fd(), name, expected, &Context::quiet())
    }

    fn identity(path: &Path) -> Identity {
        Identity::of(std::fs::File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn removes_all_but_what_symlinks_name() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("v");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/f"), "x").unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/f"), "keep").unwrap();
        symlink("../outside", top.join("link")).unwrap();
        std::fs::set_permissions(top.join("a/b"), std::fs::Permissions::from_mode(0o000)).unwrap();
        std::fs::set_permissions(top.join("a"), std::fs::Permissions::from_mode(0o555)).unwrap();
        let expected = identity(&top);
        assert!(remove(dir.path(), c"v", &expected).unwrap());
        assert!(!top.exists());
        assert!(dir.path().join("outside/f").exists());
        assert!(!remove(dir.path(), c"v", &expected).unwrap());
    }

    #[test]
    fn leaves_another_directory_of_that_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("b/f"), "x").unwrap();
        let a = identity(&dir.path().join("a"));
        assert!(!remove(dir.path(), c"b", &a).unwrap());
        assert!(dir.path().join("b/f").exists());
        std::fs::remove_dir_all(dir.path().join("b")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert!(!remove(dir.path(), c"b", &a).unwrap());
    }

    #[test]
    fn any_depth_and_leftovers_of_a_former_try() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("v");
        std::fs::create_dir_all(top.join(".ah-deep-0/x")).unwrap();
        let expected = identity(&top);
        let mut at = std::os::fd::OwnedFd::from(std::fs::File::open(&top).unwrap());
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, c"d", rustix::fs::Mode::from(0o755)).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
            at = rustix::fs::openat(&at, c"d", flags, rustix::fs::Mode::empty()).unwrap();
        }
        assert!(remove(dir.path(), c"v", &expected).unwrap());
        assert!(!top.exists());
    }
}
