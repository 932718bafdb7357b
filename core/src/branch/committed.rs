//! Which files of a branch are as in the commit that its HEAD is on: where the workspace's repository has that, they are no loss.
//!
//! Without Git, as in `known.rs`: only of loose objects, which those of a new commit are, and by the bytes as they are, before any filter. In doubt, a file is not
//! as committed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use ah_plugin_api::{Change, Entry, EntryKind, RelPath};
use sha1::{Digest, Sha1};

use crate::branch::known::Known;
use crate::branch::object::object;
use crate::branch::repository::references;
use crate::restore::at::{self, Tree};

/// So much of a commit or of one directory in it is read.
const MOST: u64 = 16 << 20;
/// The bits of a mode of which Git keeps one.
const EXECUTABLE: u32 = 0o111;

/// The files of a commit.
pub(super) struct Committed<'a> {
    branch: Tree<'a>,
    git: RelPath,
    /// The id of its top directory.
    top: String,
    /// What was read of its directories, by id.
    read: RefCell<BTreeMap<String, Vec<u8>>>,
}

impl<'a> Committed<'a> {
    /// Those of the commit that HEAD of a branch is on; none if that is not `known`.
    pub(super) fn of(branch: Tree<'a>, known: &Known<'_>) -> Option<Self> {
        let git = RelPath::new(".git").ok()?;
        let (head, refs) = references(branch, &git)?;
        let id = match head.strip_prefix("ref: ") {
            Some(name) => refs.get(name)?,
            None => &head,
        };
        if !known.lacks([id]).is_empty() {
            return None;
        }
        let (kind, contents) = object(branch, &git, id, MOST)?;
        let line = contents.split(|&byte| byte == b'\n').next()?;
        let top = std::str::from_utf8(line).ok()?.strip_prefix("tree ").filter(|_| kind == "commit")?.to_owned();
        Some(Self { branch, git, top, read: RefCell::default() })
    }

    /// Whether it has the file that was changed as that is now, and of its mode no more was changed than Git keeps.
    pub(super) fn has(&self, change: &Change) -> bool {
        let Some(after) = &change.after else { return false };
        let before = change.before.as_ref().filter(|before| before.kind == after.kind);
        let keeps_mode = before.is_none_or(|before| (before.mode ^ after.mode) & !EXECUTABLE == 0);
        keeps_mode && self.look(&change.path, after).unwrap_or(false)
    }

    fn look(&self, path: &RelPath, entry: &Entry) -> Option<bool> {
        let own: &[u8] = match entry.kind {
            EntryKind::Symlink => b"120000",
            EntryKind::File if entry.mode & 0o100 != 0 => b"100755",
            EntryKind::File => b"100644",
            _ => return None,
        };
        let (mut directory, mut names) = (self.top.clone(), path.as_bytes().split(|&byte| byte == b'/').peekable());
        while let Some(name) = names.next() {
            let (mode, id) = self.entry(&directory, name)?;
            if names.peek().is_none() {
                return Some(mode == own && id == self.id_now(path, entry)?);
            }
            if mode != b"40000" {
                return None;
            }
            directory = id;
        }
        None
    }

    /// The mode and id of what is called so in a directory of the commit.
    fn entry(&self, directory: &str, name: &[u8]) -> Option<(Vec<u8>, String)> {
        let mut read = self.read.borrow_mut();
        if !read.contains_key(directory) {
            let (kind, contents) = object(self.branch, &self.git, directory, MOST)?;
            read.insert(directory.to_owned(), Some(contents).filter(|_| kind == "tree")?);
        }
        let (mut rest, size) = (read.get(directory)?.as_slice(), directory.len() / 2);
        loop {
            let space = rest.iter().position(|&byte| byte == b' ')?;
            let (mode, named) = (&rest[..space], &rest[space + 1..]);
            let end = named.iter().position(|&byte| byte == 0)?;
            let (called, id) = (&named[..end], named.get(end + 1..end + 1 + size)?);
            if called == name {
                return Some((mode.to_vec(), hex(id)));
            }
            rest = &named[end + 1 + size..];
        }
    }

    /// The id that Git has for a file or symlink of the branch, in a repository that counts by SHA-1.
    fn id_now(&self, path: &RelPath, entry: &Entry) -> Option<String> {
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", entry.size));
        if entry.kind == EntryKind::Symlink {
            let parent = self.branch.dir(&path.parent()?).ok()?;
            hash.update(at::read_link(parent.as_fd(), path.file_name()?).ok()?);
        } else {
            let (mut file, mut part) = (File::from(self.branch.file(path).ok()?), vec![0; 64 << 10]);
            loop {
                match file.read(&mut part).ok()? {
                    0 => break,
                    read => hash.update(&part[..read]),
                }
            }
        }
        Some(hex(&hash.finalize()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
