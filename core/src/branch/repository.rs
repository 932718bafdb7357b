//! What the repository of a branch names: whether commits were made in it, without asking Git.
//!
//! Only that something changed is told, not what: a mark of all references is written down when the branch is made, and compared
//! with the present one. References that `git gc` packs keep their values, and so the mark.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::str::Utf8Chunk;

use ah_plugin_api::{Dir, EntryKind, RelPath, Result};
use serde::{Deserialize, Serialize};

use crate::branch::known::is_id;
use crate::restore::at::Tree;

/// More of one file is not read: a repository with so many packed references has a mark of the first ones.
const MAX: u64 = 64 << 20;

/// What stands for all references among them, where they are in tables.
pub(super) const TABLES: &str = "tables";

/// The references of a repository at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepositoryMark {
    /// `HEAD`, and what it leads to.
    pub(super) head: String,
    /// CRC-32 of all references with their values, by name.
    refs: u32,
    /// How many they are.
    count: u64,
}

impl RepositoryMark {
    /// The mark of the repository at the top of a branch; none if there is none.
    pub(crate) fn of(branch: &Dir) -> Result<Option<Self>> {
        let Some((head, refs)) = references(Tree::new(branch.as_fd())?, &RelPath::new(".git")?) else {
            return Ok(None);
        };
        let target = head.strip_prefix("ref: ").and_then(|name| refs.get(name));
        let head = format!("{head} {}", target.map_or("", String::as_str));
        let mut sum = crc32fast::Hasher::new();
        for (name, value) in &refs {
            sum.update(format!("{name} {value}\n").as_bytes());
        }
        Ok(Some(Self { head, refs: sum.finalize(), count: refs.len() as u64 }))
    }
}

/// `HEAD` of the repository in the directory `git`, and all references with their values; none if there is no `HEAD` to read.
pub(super) fn references(tree: Tree<'_>, git: &RelPath) -> Option<(String, BTreeMap<String, String>)> {
    let head = text(tree, &git.join(b"HEAD").ok()?)?;
    let mut refs = BTreeMap::new();
    for line in text(tree, &git.join(b"packed-refs").ok()?).unwrap_or_default().lines() {
        if let Some((value, name)) = line.split_once(' ').filter(|_| !line.starts_with(['#', '^'])) {
            refs.insert(name.to_owned(), value.to_owned());
        }
    }
    loose(tree, &git.join(b"refs").ok()?, "refs", &mut refs);
    // Another form of storage has a file that changes with every reference.
    if let Some(tables) = text(tree, &git.join(b"reftable").ok()?.join(b"tables.list").ok()?) {
        refs.insert(TABLES.to_owned(), tables);
    }
    Some((head, refs))
}

/// Adds the references below a directory, which are called so, that have files of their own. What is called as Git calls none is one if it holds an id.
pub(super) fn loose(tree: Tree<'_>, dir: &RelPath, called: &str, refs: &mut BTreeMap<String, String>) {
    for name in tree.names(dir).unwrap_or_default() {
        let Ok(path) = dir.join(&name) else { continue };
        let called = format!("{called}/{}", told(&name));
        match tree.stat(&path).ok().flatten().map(|found| found.kind) {
            Some(EntryKind::Dir) => loose(tree, &path, &called, refs),
            Some(EntryKind::File) if !name.ends_with(b".lock") => {
                let value = text(tree, &path).unwrap_or_default();
                if is_name(&called) || is_id(&value) {
                    refs.insert(called, value);
                }
            }
            _ => {}
        }
    }
}

/// Whether Git takes that for the name of a reference, by `git check-ref-format`. One that is no UTF-8 cannot be told as it is.
pub(super) fn is_name(name: &str) -> bool {
    let is_odd = |c: char| c.is_ascii_control() || " ~^:?*[\\\u{fffd}".contains(c);
    let is_part = |part: &str| !(part.is_empty() || part.starts_with('.') || part.ends_with(".lock"));
    name.split('/').all(is_part)
        && !(name.ends_with('.') || name.contains(is_odd) || ["..", "@{"].iter().any(|odd| name.contains(odd)))
}

/// The text of a small file without the space around it; none if it cannot be read. What is no UTF-8 is told as [`told`] does.
pub(crate) fn text(tree: Tree<'_>, path: &RelPath) -> Option<String> {
    Some(told(&bytes(tree, path)?).trim().to_owned())
}

/// Bytes as a text that differs where they do: what is no UTF-8 becomes what no name of a reference may have, see [`is_name`], and its digits; so
/// does that character itself.
fn told(bytes: &[u8]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("\u{fffd}{byte:02x}")).collect::<String>();
    let valid = |chunk: &Utf8Chunk<'_>| chunk.valid().replace('\u{fffd}', &digits("\u{fffd}".as_bytes()));
    bytes.utf8_chunks().flat_map(|chunk| [valid(&chunk), digits(chunk.invalid())]).collect()
}

/// The contents of a small file; none if it cannot be read.
pub(super) fn bytes(tree: Tree<'_>, path: &RelPath) -> Option<Vec<u8>> {
    let file = std::fs::File::from(tree.file(path).ok()?);
    let mut bytes = Vec::new();
    file.take(MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn references_whose_names_are_not_utf_8_are_told_apart() {
        let top = tempfile::tempdir().unwrap();
        let heads = top.path().join("refs/heads");
        fs::create_dir_all(&heads).unwrap();
        fs::write(top.path().join("HEAD"), b"ref: refs/heads/caf\xe9\n").unwrap();
        fs::write(top.path().join("packed-refs"), b"1 refs/heads/caf\xe8\n2 refs/heads/caf\xe9\n").unwrap();
        fs::write(heads.join(OsStr::from_bytes(b"caf\xe9")), "3".repeat(40)).unwrap();
        fs::write(heads.join(OsStr::from_bytes(b"caf\xea")), "4".repeat(40)).unwrap();
        let top = Dir::open(top.path()).unwrap();
        let (head, refs) = references(Tree::new(top.as_fd()).unwrap(), &RelPath::root()).unwrap();
        let values: Vec<&str> = refs.values().map(String::as_str).collect();
        assert_eq!(values, ["1", &"3".repeat(40), &"4".repeat(40)]);
        assert_eq!(refs[head.strip_prefix("ref: ").unwrap()], "3".repeat(40));
        // Nobody types them.
        assert!(!refs.keys().any(|name| is_name(name)));
        // Git takes what stands for them in a name, too.
        let names = [&b"caf\xe9"[..], "caf\u{fffd}e9".as_bytes(), b"caf\xef\xbf\xbd"].map(told);
        assert!(names[0] != names[1] && names[1].starts_with(&names[2]), "{names:?}");
    }
}
