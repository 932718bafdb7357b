//! A new branch's own copies of what Git changes all the time in the repository that it was branched from.
//!
//! A branch shows what is below as it is now, and `git status` in the origin is enough to put another index there. What is copied here does not
//! follow the origin any more. Objects are not: Git never changes one, and all of them would be the size of the repository.

use std::fs::{File, FileTimes};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use ah_plugin_api::{Context, Dir, Result};
use ah_provider_directory::open_beneath;
use rustix::fs::{AtFlags, FileType, OFlags};

/// Folders of a repository that only grow, that nobody changes by using it, or that are of others.
const LEFT: [&str; 5] = ["objects", "lfs", "annex", "hooks", "worktrees"];
/// More than that is left below: making a branch costs the same whatever is there.
const MOST_FILES: usize = 2000;
const MOST_BYTES: u64 = 64 << 20;
/// Submodules' repositories lie deeper, and others' branches have slashes.
const DEEPEST: usize = 12;

/// Copies them, in a branch that was just mounted. What cannot be copied stays below. Nothing is followed out of the branch, whatever is put into it meanwhile.
///
/// # Errors
/// `Cancelled`.
pub(super) fn take_over(branch: &Dir, cx: &Context<'_>) -> Result<()> {
    match open_beneath(branch.as_fd(), b".git", FOLDER) {
        Ok(git) => Room { files: MOST_FILES, bytes: MOST_BYTES, cx }.folder(&git, DEEPEST),
        Err(_) => Ok(()),
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

struct Room<'a> {
    files: usize,
    bytes: u64,
    cx: &'a Context<'a>,
}

impl Room<'_> {
    /// What lies nearest to the top first: the index, and what packed refs there are.
    fn folder(&mut self, at: &OwnedFd, deepest: usize) -> Result<()> {
        let Ok(entries) = rustix::fs::Dir::read_from(at) else { return Ok(()) };
        let head = rustix::fs::statat(at, "HEAD", AtFlags::SYMLINK_NOFOLLOW);
        let is_repository = head.is_ok_and(|head| FileType::from_raw_mode(head.st_mode) == FileType::RegularFile);
        let mut below = Vec::new();
        for entry in entries.flatten() {
            self.cx.check_cancelled()?;
            let name = entry.file_name().to_bytes();
            match entry.file_type() {
                FileType::RegularFile if self.files > 0 => drop(self.file(at, name)),
                FileType::Directory if name != b"." && name != b".." => below.push(name.to_vec()),
                _ => {}
            }
        }
        if deepest > 0 {
            below.retain(|name| !(is_repository && LEFT.iter().any(|left| name == left.as_bytes())));
            for name in below {
                if let Ok(folder) = open_beneath(at.as_fd(), &name, FOLDER) {
                    self.folder(&folder, deepest - 1)?;
                }
            }
        }
        Ok(())
    }

    /// Writes what is there over itself, which makes it the branch's.
    fn file(&mut self, at: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let file: File = open_beneath(at.as_fd(), name, OFlags::RDWR | OFlags::NONBLOCK)?.into();
        let there = file.metadata()?;
        if !there.is_file() || there.len() > self.bytes {
            return Ok(());
        }
        (self.files, self.bytes) = (self.files - 1, self.bytes - there.len());
        let mut content = Vec::new();
        (&file).take(there.len()).read_to_end(&mut content)?;
        file.write_all_at(&content, 0)?;
        file.set_times(FileTimes::new().set_accessed(there.accessed()?).set_modified(there.modified()?))
    }
}
