//! Directory trees: changed at random, and measured.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

use crate::kinds::Kind;
use crate::random::Random;
use crate::record::Digest;

/// Not part of the work: repositories, and what is ignored in them.
const NOT_WORK: [&str; 2] = [".git", "out"];
/// What the name of a folder begins with in which an interrupted restore was at work.
const STAGING: &str = ".ah-restore-";
/// The guest's users.
const USERS: [u32; 3] = [0, 1000, 1001];
/// An extended attribute that anybody may give.
const ATTRIBUTE: &str = "user.mark";

/// What is known of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    /// All that a snapshot holds and a restore gives back.
    plain: String,
    /// The first name of the same file, if this is a further one.
    first: Option<PathBuf>,
    is_directory: bool,
    modified: (i64, i64),
}

/// A tree, measured path by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree(BTreeMap<PathBuf, Node>);

impl Tree {
    pub(super) fn digest(&self) -> Digest {
        let (mut plain, mut linked, mut timed) = (Sha1::new(), Sha1::new(), Sha1::new());
        for (path, node) in &self.0 {
            let what = format!("{}\0{}\n", path.display(), node.plain);
            let link = format!("{what}{:?}\n", node.first);
            let time = format!("{link}{:?}\n", node.modified);
            plain.update(what);
            linked.update(link);
            timed.update(time);
        }
        Digest { plain: hex(plain), linked: hex(linked), timed: hex(timed) }
    }

    /// The paths at which this is like none of these trees; that nothing is there counts as well. Times and further names do not.
    pub(super) fn unlike_all(&self, others: &[&Self]) -> Vec<PathBuf> {
        let at = |tree: &Self, path: &PathBuf| tree.0.get(path).map(|node| node.plain.clone());
        let paths: BTreeSet<_> = others.iter().flat_map(|tree| tree.0.keys()).chain(self.0.keys()).collect();
        let unlike = paths.into_iter().filter(|path| others.iter().all(|other| at(other, path) != at(self, path)));
        unlike.cloned().collect()
    }

    /// What is known of the paths at which two trees differ in anything, and whether nothing differs but times of directories.
    pub(super) fn differences(&self, other: &Self) -> (Vec<String>, bool) {
        let paths: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let (mut unlike, mut are_times) = (Vec::new(), true);
        for path in paths {
            let (was, is) = (self.0.get(path), other.0.get(path));
            if was != is {
                are_times &= was
                    .zip(is)
                    .is_some_and(|(was, is)| was.is_directory && *was == Node { modified: was.modified, ..is.clone() });
                unlike.push(format!("{}: {was:?}, {is:?}", path.display()));
            }
        }
        (unlike, are_times)
    }
}

/// A few changes of every kind, made for a workspace's owner; where its provider keeps such things, with other users' files, attributes and
/// hard links among them.
pub(super) fn change_for(kind: &Kind, root: &Path, random: &mut Random) -> io::Result<()> {
    change(root, random, kind.keeps_all())?;
    let mut paths = work(root)?;
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full)?;
        dress(kind, &full, &meta)?;
        if meta.is_dir() {
            paths.append(&mut below(root, &path)?);
        }
    }
    Ok(())
}

/// Gives an entry its owner and attribute, as what is in it has them, or a directory's name: `ah` takes files that differ in these alone for
/// equal, so no equal ones may.
fn dress(kind: &Kind, path: &Path, meta: &Metadata) -> io::Result<()> {
    let content = if meta.is_dir() { path.as_os_str().as_bytes().to_vec() } else { content(path, meta)? };
    let [owner, group, mark, ..] = <[u8; 20]>::from(Sha1::digest(content));
    let one_of = |byte: u8| USERS[usize::from(byte) % USERS.len()];
    let is_roots = kind.keeps_all() && kind.uid() == 0;
    let (uid, gid) = if is_roots { (one_of(owner), one_of(group)) } else { (kind.uid(), kind.uid()) };
    if (meta.uid(), meta.gid()) != (uid, gid) {
        lchown(path, Some(uid), Some(gid))?;
    }
    if !kind.keeps_all() || meta.is_symlink() {
        return Ok(());
    }
    let wanted = mark.is_multiple_of(2).then(|| vec![mark]);
    match (attribute(path, ATTRIBUTE)?, wanted) {
        (is, wanted) if is == wanted => Ok(()),
        (_, Some(wanted)) => Ok(lsetxattr(path, ATTRIBUTE, &wanted, XattrFlags::empty())?),
        (_, None) => Ok(lremovexattr(path, ATTRIBUTE)?),
    }
}

/// A few changes of every kind.
fn change(root: &Path, random: &mut Random, links: bool) -> io::Result<()> {
    for _ in 0..=random.below(6) {
        let folder = root.join(["", "a", "a/b", "c"][usize::try_from(random.below(4)).unwrap_or(0)]);
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("f{}", random.below(10)));
        let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
        match random.below(9) {
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
            5 if is_file && links => {
                let link = root.join(format!("link-{}", random.below(4)));
                gone(&link)?;
                fs::hard_link(&path, link)?;
            }
            _ => {
                let longest = 1 << random.below(17);
                let length = usize::try_from(random.below(longest)).unwrap_or(0);
                anew(&path, &random.bytes(length))?;
            }
        }
    }
    // No two states are equal, so that a digest tells which one it is.
    anew(&root.join("state"), random.number().to_string().as_bytes())
}

/// A file in the place of another, if there is one.
fn anew(path: &Path, content: &[u8]) -> io::Result<()> {
    gone(path)?;
    fs::write(path, content)
}

fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The top names of a workspace as `ah` sees it.
fn work(root: &Path) -> io::Result<Vec<PathBuf>> {
    let is_work = |name: &Path| {
        let text = name.to_string_lossy();
        !NOT_WORK.contains(&&*text) && !text.starts_with(STAGING)
    };
    Ok(below(root, Path::new(""))?.into_iter().filter(|name| is_work(name)).collect())
}

/// The paths in a folder, by name.
fn below(root: &Path, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let names = fs::read_dir(root.join(folder))?.map(|entry| Ok(folder.join(entry?.file_name())));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// What a file or symlink holds.
fn content(path: &Path, meta: &Metadata) -> io::Result<Vec<u8>> {
    if meta.is_symlink() {
        return Ok(fs::read_link(path)?.as_os_str().as_bytes().to_vec());
    }
    fs::read(path)
}

/// An extended attribute, if it is there.
fn attribute(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(64);
    match lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Users' extended attributes, by name.
fn attributes(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = Vec::with_capacity(1 << 12);
    match llistxattr(path, rustix::buffer::spare_capacity(&mut names)) {
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        listed => listed?,
    };
    let names = names.split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    let users = names.filter(|name| name.starts_with("user."));
    users.map(|name| Ok((name.clone(), attribute(path, &name)?.unwrap_or_default()))).collect()
}

/// Measures a workspace as `ah` sees it: without its repository and what that ignores. The root itself is not part of it.
pub(super) fn of(root: &Path) -> io::Result<Tree> {
    of_paths(root, work(root)?)
}

/// The same, in short.
pub(super) fn digest(root: &Path) -> io::Result<Digest> {
    Ok(of(root)?.digest())
}

/// Measures what is at these paths below `root`, as far as there is something.
pub(super) fn of_paths(root: &Path, mut paths: Vec<PathBuf>) -> io::Result<Tree> {
    let (mut tree, mut files) = (Tree::default(), HashMap::new());
    paths.sort();
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        let meta = match fs::symlink_metadata(&full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta?,
        };
        let content = if meta.is_dir() { Vec::new() } else { content(&full, &meta)? };
        // Permission bits of symlinks mean nothing.
        let mode = if meta.is_symlink() { 0 } else { meta.mode() };
        let mut plain = Sha1::new();
        plain.update(format!("{mode:o} {} {} {:?} ", meta.uid(), meta.gid(), attributes(&full)?));
        plain.update(content);
        let first = match meta.is_file() && meta.nlink() > 1 {
            true => Some(files.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone()).clone()),
            false => None,
        };
        let first = first.filter(|first| *first != path);
        if meta.is_dir() {
            paths.append(&mut below(root, &path)?);
        }
        tree.0.insert(
            path,
            Node { plain: hex(plain), first, is_directory: meta.is_dir(), modified: (meta.mtime(), meta.mtime_nsec()) },
        );
    }
    Ok(tree)
}

fn hex(hash: Sha1) -> String {
    hash.finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
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
            change(&one, &mut random, true).unwrap();
        }
        assert!(std::process::Command::new("cp").args(["-a"]).args([&one, &two]).status().unwrap().success());
        let before = digest(&one).unwrap();
        assert_eq!(before, digest(&two).unwrap());
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        fs::File::options().write(true).open(two.join("state")).unwrap().set_times(times).unwrap();
        let after = digest(&two).unwrap();
        assert_eq!(before.plain, after.plain);
        assert_ne!(before.timed, after.timed);
        let were = of(&two).unwrap();
        assert_eq!(were.differences(&were), (Vec::new(), true));
        let (changed, are_times) = of(&one).unwrap().differences(&were);
        assert!(changed.len() == 1 && !are_times, "a file's time counts: {changed:?}");
        fs::create_dir(two.join("new")).unwrap();
        let were = of(&two).unwrap();
        fs::write(two.join("new/file"), "").unwrap();
        assert!(!were.differences(&of(&two).unwrap()).1, "a file that came counts");
        fs::remove_file(two.join("new/file")).unwrap();
        let (changed, are_times) = were.differences(&of(&two).unwrap());
        assert!(changed.len() == 1 && are_times, "{changed:?}");
        change(&one, &mut random, true).unwrap();
        let after = digest(&one).unwrap();
        assert_ne!(before.plain, after.plain);
        fs::create_dir_all(one.join("out")).unwrap();
        fs::create_dir_all(one.join(".git")).unwrap();
        fs::create_dir_all(one.join(".ah-restore-abcdefghijkl")).unwrap();
        assert_eq!(after, digest(&one).unwrap());
        let theirs = || of_paths(&one, vec![".git".into(), "missing".into()]).unwrap();
        let before = theirs();
        fs::write(one.join(".git/HEAD"), "x").unwrap();
        assert_ne!(before, theirs());
    }

    #[test]
    fn each_thing_that_a_provider_keeps_shows_in_one_number_and_those_behind() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("one"), "1").unwrap();
        fs::write(root.join("two"), "1").unwrap();
        let was = digest(root).unwrap();
        fs::remove_file(root.join("two")).unwrap();
        fs::hard_link(root.join("one"), root.join("two")).unwrap();
        let linked = digest(root).unwrap();
        assert_eq!(was.plain, linked.plain);
        assert_ne!(was.linked, linked.linked);
        // Another name elsewhere is nobody's affair here.
        fs::hard_link(root.join("one"), folder.path().with_extension("name")).unwrap();
        assert_eq!(linked, digest(root).unwrap());
        fs::remove_file(folder.path().with_extension("name")).unwrap();
        // As everywhere but where a filesystem has no attributes at all.
        if lsetxattr(root.join("one"), ATTRIBUTE, b"1", XattrFlags::empty()).is_ok() {
            assert_ne!(linked.plain, digest(root).unwrap().plain);
        }
        if rustix::process::geteuid().is_root() {
            let before = digest(root).unwrap();
            lchown(root.join("one"), None, Some(1)).unwrap();
            assert_ne!(before.plain, digest(root).unwrap().plain);
        }
    }

    #[test]
    fn a_tree_of_two_halves_is_told_from_one_with_something_else_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let now = || of(folder.path()).unwrap();
        write("a", "old");
        write("b", "old");
        let before = now();
        write("a", "new");
        fs::remove_file(folder.path().join("b")).unwrap();
        let after = now();
        write("b", "old");
        assert_eq!(now().unlike_all(&[&before, &after]), Vec::<PathBuf>::new());
        assert_eq!(now().unlike_all(&[&before]), [PathBuf::from("a")]);
        write("b", "");
        assert_eq!(now().unlike_all(&[&before, &after]), [PathBuf::from("b")]);
        write("c", "");
        assert_eq!(now().unlike_all(&[&before, &after]).len(), 2);
    }
}
