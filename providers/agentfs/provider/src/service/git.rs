//! A new branch's own copies of what Git changes all the time in the repository that it was branched from.
//!
//! A branch shows what is below as it is now, and `git status` in the origin is enough to put another index there. What is copied here does not
//! follow the origin any more. Objects are not: Git never changes one, and all of them would be the size of the repository.

use std::fs::{DirEntry, File, FileTimes, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ah_plugin_api::{Context, Result};

/// Folders of a repository that only grow, that nobody changes by using it, or that are of others.
const LEFT: [&str; 5] = ["objects", "lfs", "annex", "hooks", "worktrees"];
/// More than that is left below: making a branch costs the same whatever is there.
const MOST_FILES: usize = 2000;
const MOST_BYTES: u64 = 64 << 20;
/// Submodules' repositories lie deeper, and others' branches have slashes.
const DEEPEST: usize = 12;

/// Copies them, in a branch that was just mounted. What cannot be copied stays below.
///
/// # Errors
/// `Cancelled`.
pub(super) fn take_over(branch: &Path, cx: &Context<'_>) -> Result<()> {
    let git = branch.join(".git");
    if !git.symlink_metadata().is_ok_and(|it| it.is_dir()) {
        return Ok(());
    }
    Room { files: MOST_FILES, bytes: MOST_BYTES, cx }.folder(&git, DEEPEST)
}

struct Room<'a> {
    files: usize,
    bytes: u64,
    cx: &'a Context<'a>,
}

impl Room<'_> {
    /// What lies nearest to the top first: the index, and what packed refs there are.
    fn folder(&mut self, at: &Path, deepest: usize) -> Result<()> {
        let Ok(entries) = std::fs::read_dir(at) else { return Ok(()) };
        let is_repository = at.join("HEAD").is_file();
        let mut below = Vec::new();
        for entry in entries.flatten() {
            self.cx.check_cancelled()?;
            match entry.file_type() {
                Ok(kind) if kind.is_file() && self.files > 0 => drop(self.file(&entry)),
                Ok(kind) if kind.is_dir() => below.push(entry.file_name()),
                _ => {}
            }
        }
        if deepest > 0 {
            below.retain(|name| !(is_repository && LEFT.iter().any(|left| name == *left)));
            below.iter().try_for_each(|name| self.folder(&at.join(name), deepest - 1))?;
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
