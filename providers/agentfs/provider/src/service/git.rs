//! A new branch's own copies of what Git changes all the time in the repository that it was branched from.
//!
//! A branch shows what is below as it is now, and `git status` in the origin is enough to put another index there. What is copied here does not
//! follow the origin any more. Objects are not: Git never changes one, and all of them would be the size of the repository.

use std::fs::{DirEntry, File, FileTimes, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Folders that only grow, or that nobody changes by using the repository.
const LEFT: [&str; 4] = ["objects", "lfs", "annex", "hooks"];
/// More than that is left below: making a branch costs the same whatever is there.
const MOST_FILES: usize = 2000;
const MOST_BYTES: u64 = 64 << 20;
/// Submodules' repositories lie deeper, and others' branches have slashes.
const DEEPEST: usize = 12;

/// Copies them, in a branch that was just mounted. What cannot be copied stays below.
pub(super) fn take_over(branch: &Path) {
    let mut room = Room { files: MOST_FILES, bytes: MOST_BYTES };
    let git = branch.join(".git");
    if git.symlink_metadata().is_ok_and(|it| it.is_dir()) {
        let _ = room.folder(&git, DEEPEST);
    }
}

struct Room {
    files: usize,
    bytes: u64,
}

impl Room {
    fn folder(&mut self, at: &Path, deepest: usize) -> io::Result<()> {
        for entry in std::fs::read_dir(at)?.flatten() {
            if self.files == 0 {
                break;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_file() => drop(self.file(&entry)),
                Ok(kind) if kind.is_dir() && deepest > 0 && !LEFT.iter().any(|left| entry.file_name() == *left) => {
                    let _ = self.folder(&entry.path(), deepest - 1);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes what is there over itself, which makes it the branch's.
    fn file(&mut self, entry: &DirEntry) -> io::Result<()> {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let file: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open(entry.path())?;
        let there = file.metadata()?;
        if there.len() > self.bytes {
            return Ok(());
        }
        (self.files, self.bytes) = (self.files - 1, self.bytes - there.len());
        let mut content = Vec::new();
        (&file).take(there.len()).read_to_end(&mut content)?;
        file.write_all_at(&content, 0)?;
        file.set_times(FileTimes::new().set_accessed(there.accessed()?).set_modified(there.modified()?))
    }
}
