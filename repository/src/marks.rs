//! What tells whether anything of a repository but its objects was changed: attributes of a few files and folders.
//!
//! Git replaces the index, HEAD and `packed-refs` by renaming, and makes a lock file beside each ref that it writes, so that the folder's
//! times tell of the refs in it, and no ref need be read. Tables of refs are replaced the same way.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;

use ah_rules::GitDir;
use rustix::fs::{AtFlags, Dir, FileType};

use crate::repository::open_dir;

/// More folders of refs than this are not looked at.
const FOLDERS: usize = 4096;
/// Nor deeper ones, as with refs: each on the way is held open.
const DEPTH: usize = 32;

/// The marks of a repository; none if they cannot be told.
pub(crate) fn of(git: &GitDir) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    // What is in progress has a file or a folder here; an edit of the description or the like is not worth a reading of it.
    for name in ["index", "HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"] {
        attributes(&git.git_dir, name).hash(&mut hasher);
    }
    // These may be shared by links, see `repository`.
    attributes(git.common(), "packed-refs").hash(&mut hasher);
    let mut folders = 0;
    for name in ["refs", "reftable"] {
        below(git.common(), name.as_bytes(), &mut folders, DEPTH, &mut hasher)?;
    }
    Some(format!("{:016x}", hasher.finish()))
}

type Attributes = Option<(u64, i64, i64, i64, i64, i64)>;

fn attributes(dir: impl AsFd, name: &str) -> Attributes {
    let stat = rustix::fs::statat(dir, name, AtFlags::empty()).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
    Some((
        stat.st_ino,
        stat.st_size,
        stat.st_mtime as i64,
        stat.st_mtime_nsec as i64,
        stat.st_ctime as i64,
        stat.st_ctime_nsec as i64,
    ))
}

fn below(dir: impl AsFd, name: &[u8], folders: &mut usize, depth: usize, hasher: &mut DefaultHasher) -> Option<()> {
    *folders += 1;
    if *folders > FOLDERS {
        return None;
    }
    let folder = match open_dir(dir, name) {
        Ok(folder) => folder,
        // On a filesystem that does not say what an entry is, it may have been a file.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Some(()),
        Err(_) => return None,
    };
    name.hash(hasher);
    attributes(&folder, ".").hash(hasher);
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) && name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort();
    for name in names {
        below(&folder, &name, folders, depth.checked_sub(1)?, hasher)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_lie_deep_are_not_held_open_one_in_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let marks = |deep: usize| {
            std::fs::create_dir_all(dir.path().join("refs").join(vec!["a"; deep].join("/"))).unwrap();
            let top = std::fs::File::open(dir.path()).unwrap();
            below(&top, b"refs", &mut 0, DEPTH, &mut DefaultHasher::new())
        };
        assert!(marks(DEPTH).is_some());
        assert!(marks(DEPTH + 1).is_none());
    }
}
