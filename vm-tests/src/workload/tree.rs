//! Directory trees: changed at random, and measured.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use sha1::{Digest as _, Sha1};

use crate::random::Random;
use crate::record::Digest;

/// A few changes of every kind, made for a user.
pub(super) fn change_for(uid: u32, root: &Path, random: &mut Random) -> io::Result<()> {
    change(root, random)?;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.uid() != uid {
                lchown(entry.path(), Some(uid), Some(uid))?;
            }
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

/// A few changes of every kind.
fn change(root: &Path, random: &mut Random) -> io::Result<()> {
    for _ in 0..=random.below(6) {
        let folder = root.join(["", "a", "a/b", "c"][usize::try_from(random.below(4)).unwrap_or(0)]);
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("f{}", random.below(10)));
        let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        match random.below(8) {
            0 => gone(&path)?,
            1 if is_file => fs::rename(&path, root.join(format!("moved-{}", random.below(10))))?,
            2 if is_file => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600 | (random.number() & 0o155) as u32))?;
            }
            3 => {
                gone(&path)?;
                symlink(format!("target-{}", random.number()), &path)?;
            }
            4 => {
                let empty = folder.join(format!("empty-{}", random.below(4)));
                fs::create_dir_all(empty)?;
            }
            _ => {
                gone(&path)?;
                let longest = 1 << random.below(17);
                let length = usize::try_from(random.below(longest)).unwrap_or(0);
                fs::write(&path, random.bytes(length))?;
            }
        }
    }
    // No two states are equal, so that a digest tells which one it is.
    fs::write(root.join("state"), random.number().to_string())
}

fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Measures a workspace as `ah` sees it: without its repository and what that ignores. Times of the root are not part of it.
pub(super) fn digest(root: &Path) -> io::Result<Digest> {
    let names =
        fs::read_dir(root)?.map(|entry| Ok(PathBuf::from(entry?.file_name()))).collect::<io::Result<Vec<_>>>()?;
    digest_of(
        root,
        names.into_iter().filter(|name| ![".git", "out"].map(Path::new).contains(&name.as_path())).collect(),
    )
}

/// Measures what is at these paths below `root`, as far as there is something.
pub(super) fn digest_of(root: &Path, mut paths: Vec<PathBuf>) -> io::Result<Digest> {
    let (mut plain, mut timed) = (Sha1::new(), Sha1::new());
    paths.sort();
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        let meta = match fs::symlink_metadata(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta?,
        };
        let content = if meta.is_dir() {
            let below = fs::read_dir(&full)?.map(|entry| Ok(path.join(entry?.file_name())));
            let mut below = below.collect::<io::Result<Vec<_>>>()?;
            below.sort();
            paths.append(&mut below);
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&full)?.as_os_str().as_bytes().to_vec()
        } else {
            fs::read(&full)?
        };
        for (hash, times) in [(&mut plain, false), (&mut timed, true)] {
            hash.update(path.as_os_str().as_bytes());
            // Permission bits of symlinks mean nothing.
            let mode = if meta.is_symlink() { 0 } else { meta.mode() };
            hash.update(format!("\0{mode:o} {} ", content.len()));
            if times {
                hash.update(format!("{}.{} ", meta.mtime(), meta.mtime_nsec()));
            }
            hash.update(&content);
        }
    }
    let hex = |hash: Sha1| hash.finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    Ok(Digest { plain: hex(plain), timed: hex(timed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_and_its_copy_measure_the_same_and_any_change_shows() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::create_dir(&one).unwrap();
        let mut random = Random::new(5);
        for _ in 0..20 {
            change(&one, &mut random).unwrap();
        }
        assert!(std::process::Command::new("cp").args(["-a"]).args([&one, &two]).status().unwrap().success());
        let before = digest(&one).unwrap();
        assert_eq!(before, digest(&two).unwrap());
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        fs::File::options().write(true).open(two.join("state")).unwrap().set_times(times).unwrap();
        let after = digest(&two).unwrap();
        assert_eq!(before.plain, after.plain);
        assert_ne!(before.timed, after.timed);
        change(&one, &mut random).unwrap();
        let after = digest(&one).unwrap();
        assert_ne!(before.plain, after.plain);
        fs::create_dir_all(one.join("out")).unwrap();
        fs::create_dir_all(one.join(".git")).unwrap();
        assert_eq!(after, digest(&one).unwrap());
        let theirs = || digest_of(&one, vec![".git".into(), "missing".into()]).unwrap();
        let before = theirs();
        fs::write(one.join(".git/HEAD"), "x").unwrap();
        assert_ne!(before, theirs());
    }
}
