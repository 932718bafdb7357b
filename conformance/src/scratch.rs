//! A directory for one case, taken away afterwards whatever is in it: mounts, read-only directories, deep trees.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ah_plugin_api::proc_path;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        // Closed to others: set-user-id files come to lie in it, and a provider may leave those bits out where anybody could run them.
        let closed = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix("ah-conformance-").permissions(closed).tempdir_in(parent)?;
        // Canonical, because mounts are looked for by path.
        Ok(Self(dir.keep().canonicalize()?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Takes everything away; what cannot be taken away is the error.
    pub(crate) fn clear(&self) -> io::Result<()> {
        detach_mounts(&self.0);
        if self.0.symlink_metadata().is_ok() {
            open_up(rustix::fs::CWD, self.0.as_os_str())?;
            std::fs::remove_dir_all(&self.0)?;
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whoever wants to know of a failure has called `clear`.
        let _ = self.clear();
    }
}

/// The mount points below `dir`, the innermost last.
pub(crate) fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let mut found: Vec<PathBuf> = table
        .split(|&b| b == b'\n')
        .filter_map(|line| line.split(|&b| b == b' ').nth(4))
        .map(proc_path)
        .filter(|path| path != dir && path.starts_with(dir))
        .collect();
    found.sort();
    found
}

fn detach_mounts(dir: &Path) {
    for mount in mounts_below(dir).iter().rev() {
        if umount2(mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) == Err(Errno::EPERM) {
            // A user's own, in user space.
            let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(mount).stderr(Stdio::null()).status();
        }
    }
}

/// Gives every directory back its owner's bits, so that what is in it can be removed.
fn open_up(at: impl std::os::fd::AsFd, name: &OsStr) -> io::Result<()> {
    // Best effort: what cannot be opened up fails to be removed, and that is reported.
    let _ = rustix::fs::chmodat(&at, name, Mode::RWXU, AtFlags::empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&at, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if entry.file_type() == FileType::Directory && name != "." && name != ".." {
            open_up(&dir, name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_read_only_directories() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let dir = scratch.path().join("a/b");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("c"), "").unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o000)).unwrap();
        scratch.clear().unwrap();
        assert!(!scratch.path().exists());
    }
}
