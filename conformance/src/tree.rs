//! Directory trees as they are on disk, for comparing: what was captured with what is shown, before with after.
//!
//! Walks relative to descriptors, so that trees deeper than `PATH_MAX` are no trouble, follows no symlink, and opens
//! nothing but regular files and directories. Not here: making trees ([`crate::editor`]), or keeping contents
//! ([`crate::MemoryProvider`]); a [`Node`] knows its contents by a digest only.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ah_plugin_api::{EntryKind, RelPath, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};

/// What the suite knows of one entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of a file or of a symlink's target, 0 for others.
    pub size: u64,
    /// When its contents were last modified.
    pub mtime: Timestamp,
    /// Of a file's contents or a symlink's target; none where there are none, or they may not be read.
    pub digest: Option<u64>,
    /// What only the filesystem knows; none where the node did not come from one.
    pub inode: Option<Inode>,
}

/// The part of an entry that a snapshot need not keep, but that nobody may change in a workspace either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    dev: (u32, u32),
    ino: u64,
    nlink: u32,
    owner: (u32, u32),
    ctime: Timestamp,
}

/// A directory tree, the root included, under the empty path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<RelPath, Node>);

/// How permission bits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// All of them.
    Exact,
    /// The expected ones without write bits.
    WithoutWrite,
}

/// The digest by which contents are compared.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl Tree {
    /// Walks the tree at `path`.
    ///
    /// # Errors
    /// If an entry vanishes on the way, or cannot be read for another reason than its permissions.
    pub fn walk(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let mut tree = Self::default();
        let stat = rustix::fs::statx(&dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        tree.0.insert(RelPath::root(), node(&stat, None));
        tree.walk_into(&dir, &RelPath::root())?;
        Ok(tree)
    }

    fn walk_into(&mut self, dir: &OwnedFd, at: &RelPath) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = at.join(name.to_bytes()).map_err(io::Error::other)?;
            let stat = rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
            match FileType::from_raw_mode(stat.stx_mode.into()) {
                FileType::Directory => {
                    self.0.insert(path.clone(), node(&stat, None));
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
                        Ok(below) => self.walk_into(&below, &path)?,
                        Err(rustix::io::Errno::ACCESS) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                    self.0.insert(path, node(&stat, Some(digest(target.as_bytes()))));
                }
                FileType::RegularFile => {
                    self.0.insert(path, node(&stat, digest_file(dir.as_fd(), name)?));
                }
                _ => {
                    self.0.insert(path, node(&stat, None));
                }
            }
        }
        Ok(())
    }

    /// The same tree without the entries at and below those for which `drop` says so.
    #[must_use]
    pub fn without(mut self, drop: impl Fn(&RelPath) -> bool) -> Self {
        self.0.retain(|path, _| {
            let mut above = Some(path.clone());
            while let Some(path) = above {
                if drop(&path) {
                    return false;
                }
                above = path.parent();
            }
            true
        });
        self
    }

    /// Where `shown` does not show what this tree has: kinds, contents, permission bits, times; one line for each entry.
    #[must_use]
    pub fn differences(&self, shown: &Self, modes: Modes) -> Vec<String> {
        let mut found = Vec::new();
        for (path, want) in &self.0 {
            let Some(have) = shown.0.get(path) else {
                found.push(format!("{path:?} is missing"));
                continue;
            };
            let mode = match modes {
                Modes::Exact => want.mode,
                // Nobody asks for a symlink's bits, and nobody can take them off.
                Modes::WithoutWrite if want.kind == EntryKind::Symlink => have.mode,
                Modes::WithoutWrite => want.mode & !0o222,
            };
            let mut wrong = Vec::new();
            if have.kind != want.kind {
                wrong.push(format!("is a {} instead of a {}", have.kind, want.kind));
            } else if (have.size, have.digest) != (want.size, want.digest) {
                wrong.push(format!("has other contents ({} instead of {} bytes)", have.size, want.size));
            }
            if have.mode != mode {
                wrong.push(format!("has mode {:04o} instead of {mode:04o}", have.mode));
            }
            if have.mtime != want.mtime {
                wrong.push(format!("has mtime {} instead of {}", show(have.mtime), show(want.mtime)));
            }
            if !wrong.is_empty() {
                found.push(format!("{path:?} {}", wrong.join(", ")));
            }
        }
        found.extend(
            shown.0.keys().filter(|path| !self.0.contains_key(path)).map(|path| format!("{path:?} is too much")),
        );
        found
    }

    /// What was changed between this fingerprint and a later one, down to change times, owners and inode numbers.
    ///
    /// A hard link taken of one of a repository's objects changes that object's link count and change time, and nothing
    /// that anybody uses; only there these two may differ.
    #[must_use]
    pub fn touched(&self, later: &Self) -> Vec<String> {
        let mut found = self.differences(later, Modes::Exact);
        for (path, before) in &self.0 {
            let Some(after) = later.0.get(path) else { continue };
            let (Some(mut old), Some(new)) = (before.inode.clone(), after.inode.clone()) else { continue };
            let in_objects = path.components().zip(path.components().skip(1)).any(|pair| pair == (b".git", b"objects"));
            if in_objects && before.kind == EntryKind::File {
                old.nlink = new.nlink;
                old.ctime = new.ctime;
            }
            if old != new {
                found.push(format!("{path:?}: inode was {old:?}, is {new:?}"));
            }
        }
        found
    }
}

/// A timestamp for messages.
fn show(time: Timestamp) -> String {
    format!("{}.{:09}", time.secs, time.nanos)
}

fn node(stat: &Statx, digest: Option<u64>) -> Node {
    let mode = u32::from(stat.stx_mode);
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Special,
    };
    let time = |t: rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec };
    Node {
        kind,
        mode: mode & 0o7777,
        size: if matches!(kind, EntryKind::File | EntryKind::Symlink) { stat.stx_size } else { 0 },
        mtime: time(stat.stx_mtime),
        digest,
        inode: Some(Inode {
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            nlink: stat.stx_nlink,
            owner: (stat.stx_uid, stat.stx_gid),
            ctime: time(stat.stx_ctime),
        }),
    }
}

fn digest_file(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Option<u64>> {
    // O_NONBLOCK: if the file became a FIFO meanwhile, opening it must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => std::fs::File::from(fd),
        Err(rustix::io::Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(Some(hasher.finish()));
        }
        hasher.write(&buffer[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_what_is_missing_too_much_and_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "1").unwrap();
        std::fs::write(dir.path().join("b"), "1").unwrap();
        let before = Tree::walk(dir.path()).unwrap();
        assert!(before.differences(&before, Modes::Exact).is_empty());
        assert!(before.touched(&before).is_empty());
        std::fs::write(dir.path().join("a"), "2").unwrap();
        std::fs::remove_file(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("c"), "1").unwrap();
        let after = Tree::walk(dir.path()).unwrap();
        let found = before.differences(&after, Modes::Exact).join("\n");
        assert!(found.contains("\"a\" has other contents"), "{found}");
        assert!(found.contains("\"b\" is missing"), "{found}");
        assert!(found.contains("\"c\" is too much"), "{found}");
    }

    #[test]
    fn digests_of_streams_and_slices_agree() {
        let dir = tempfile::tempdir().unwrap();
        let data = vec![7; 200_000];
        std::fs::write(dir.path().join("a"), &data).unwrap();
        let tree = Tree::walk(dir.path()).unwrap();
        assert_eq!(tree.0[&RelPath::new("a").unwrap()].digest, Some(digest(&data)));
    }
}
