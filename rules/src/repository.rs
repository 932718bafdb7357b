//! Finding the repository whose rules hold, by descriptors and without trusting what it says.
//!
//! [`GitDir`] is for others too: whoever looks into a repository finds it by the same reading of `.git` and `commondir`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use bstr::ByteSlice;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::open::{self, Links};

/// Where a work tree's own data is: `.git`, or what a `.git` file names.
#[derive(Debug)]
pub struct GitDir {
    /// HEAD and index are here.
    pub git_dir: OwnedFd,
    /// `info/exclude` is here; none if it is `git_dir`.
    common_dir: Option<OwnedFd>,
}

impl GitDir {
    /// The repository whose work tree's top is `dir`; none if `dir` has no `.git`, or one that is no repository.
    #[must_use]
    pub fn of(dir: BorrowedFd<'_>) -> Option<Self> {
        // Git follows a `.git` that is a symlink to a directory.
        let git_dir = match open::directory(dir, c".git", Links::Follow) {
            Some(fd) => fd,
            None => {
                let text = open::read(dir, c".git", Links::Follow, 1 << 16)?;
                let target = text.strip_prefix(b"gitdir: ")?.trim_end_with(|c| c == '\n' || c == '\r');
                open::directory(dir, target, Links::Follow)?
            }
        };
        // What makes it a repository for Git: a HEAD, and objects and refs in the common directory.
        rustix::fs::statat(&git_dir, c"HEAD", AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let common_dir = match open::read(git_dir.as_fd(), c"commondir", Links::Follow, 1 << 16) {
            Some(text) => {
                let target = text.trim_end_with(|c| c == '\n' || c == '\r');
                Some(open::directory(git_dir.as_fd(), target, Links::Follow)?)
            }
            None => None,
        };
        let this = Self { git_dir, common_dir };
        for needed in [c"objects", c"refs"] {
            open::without_magic(this.common(), needed, OFlags::PATH | OFlags::CLOEXEC).ok()?;
        }
        Some(this)
    }

    /// Where config, `info/exclude`, refs and objects are: shared by all linked work trees.
    #[must_use]
    pub fn common(&self) -> BorrowedFd<'_> {
        self.common_dir.as_ref().unwrap_or(&self.git_dir).as_fd()
    }

    /// The repository's own exclude file.
    pub(crate) fn exclude_file(&self) -> Option<Vec<u8>> {
        open::read(self.common(), c"info/exclude", Links::Follow, open::LARGEST_IGNORE_FILE)
    }
}

/// A repository found from a directory at or below its top.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) git_dir: GitDir,
    /// The directories from the top to the one above the start, each with the name by which the next is reached.
    pub(crate) above: Vec<(OwnedFd, Vec<u8>)>,
}

impl Found {
    /// Looks in `start` and upwards, on one filesystem, as Git does.
    pub(crate) fn discover(start: BorrowedFd<'_>) -> Option<Self> {
        if let Some(git_dir) = GitDir::of(start) {
            return Some(Self { git_dir, above: Vec::new() });
        }
        // The names can only be had from a path, and a path may have changed since: each is checked against its inode.
        let path = rustix::fs::readlink(format!("/proc/self/fd/{}", raw(start)), Vec::new()).ok()?;
        let mut names: Vec<Vec<u8>> = std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()))
            .components()
            .filter_map(|component| match component {
                std::path::Component::Normal(name) => Some(name.as_bytes().to_vec()),
                _ => None,
            })
            .collect();
        let (device, mut inode) = open::identity(start)?;
        let mut above = Vec::new();
        let mut at: Option<OwnedFd> = None;
        while let Some(name) = names.pop() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = at.as_ref().map_or(start, AsFd::as_fd);
            let parent = rustix::fs::openat(from, c"..", flags, Mode::empty()).ok()?;
            let seen = rustix::fs::statat(&parent, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let (parent_device, parent_inode) = open::identity(&parent)?;
            if parent_device != device || (seen.st_dev, seen.st_ino) != (device, inode) {
                return None;
            }
            // As Git does, no rules are taken from a stranger's repository further up: in /tmp, say.
            let git_dir = GitDir::of(parent.as_fd()).filter(|found| is_trusted(found, start));
            above.push((rustix::io::fcntl_dupfd_cloexec(&parent, 0).ok()?, name));
            if let Some(git_dir) = git_dir {
                above.reverse();
                return Some(Self { git_dir, above });
            }
            inode = parent_inode;
            at = Some(parent);
        }
        None
    }
}

/// Whether a repository belongs to whoever runs this, to the workspace's owner, or to root.
fn is_trusted(git_dir: &GitDir, workspace: BorrowedFd<'_>) -> bool {
    let owner = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_uid).ok();
    owner(git_dir.git_dir.as_fd())
        .is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw() || Some(uid) == owner(workspace))
}

fn raw(fd: BorrowedFd<'_>) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}
