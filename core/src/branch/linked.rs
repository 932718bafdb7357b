//! Linked work trees of a repository: which of them are there and work by it, and what only they name.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{EntryKind, RelPath};
use ah_rules::GitDir;
use rustix::fs::OFlags;

use crate::branch::repository::{bytes, loose, text};
use crate::restore::at::{self, Tree};

/// What a repository knows of one of its linked work trees.
pub(super) struct Linked {
    /// Where that is, or was.
    pub(super) place: PathBuf,
    /// Whether it is there, and no repository without this one.
    pub(super) needs_it: bool,
    /// What its HEAD and references of its own name; where they are not in files, something that changes with them.
    pub(super) named: Vec<String>,
}

/// The linked work trees of the repository in the directory `git`.
pub(super) fn linked(tree: Tree<'_>, git: &RelPath) -> Vec<Linked> {
    let Ok(all) = git.join(b"worktrees") else { return Vec::new() };
    let names = tree.names(&all).unwrap_or_default();
    names.iter().filter_map(|name| one(tree, &all.join(name).ok()?)).collect()
}

/// What the HEADs of the linked work trees were on.
pub(super) fn been(tree: Tree<'_>, git: &RelPath) -> Vec<String> {
    let Ok(all) = git.join(b"worktrees") else { return Vec::new() };
    let names = tree.names(&all).unwrap_or_default();
    let log = |name: &Vec<u8>| text(tree, &all.join(name).ok()?.join(b"logs").ok()?.join(b"HEAD").ok()?);
    names.iter().filter_map(log).collect()
}

fn one(tree: Tree<'_>, entry: &RelPath) -> Option<Linked> {
    let own = tree.dir(entry).ok()?;
    let file = |name: &str| name.split('/').try_fold(entry.clone(), |path, part| path.join(part.as_bytes())).ok();
    let mut refs = BTreeMap::new();
    loose(tree, &file("refs")?, "refs", &mut refs);
    let others = ["HEAD", "reftable/tables.list"].into_iter().filter_map(|name| text(tree, &file(name)?));
    // Where it leads to, the repository names itself.
    let named = others.chain(refs.into_values()).filter(|value| !value.starts_with("ref: ")).collect();
    // Its `.git` file, from here if it is relative.
    let led = bytes(tree, &file("gitdir")?).unwrap_or_default();
    let place = Path::new(OsStr::from_bytes(led.trim_ascii_end())).parent().unwrap_or(Path::new(""));
    let there = work_tree(&own, place).and_then(|there| real(there.as_fd()));
    Some(Linked { needs_it: there.is_some(), place: there.unwrap_or_else(|| place.to_owned()), named })
}

/// The work tree at a place that somebody else has written down, if it leads back; or nowhere, as one that was made by `exec`, where the branch is shown
/// elsewhere.
fn work_tree(own: &OwnedFd, place: &Path) -> Option<OwnedFd> {
    let tree = ah_rules::without_magic(own, place, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()?;
    let found = |fd: &OwnedFd, name: &[u8]| at::stat(fd.as_fd(), name).ok().flatten();
    let inode = |fd: &OwnedFd| found(fd, b"").map(|found| (found.dev, found.ino));
    let needs_it = match GitDir::of(tree.as_fd()) {
        Some(git) => inode(&git.git_dir)? == inode(own)?,
        None => found(&tree, b".git")?.kind == EntryKind::File,
    };
    needs_it.then_some(tree)
}

/// Where an open directory is.
pub(super) fn real(dir: BorrowedFd<'_>) -> Option<PathBuf> {
    std::fs::read_link(at::proc_name(dir)).ok()
}
