//! Where the user's repository stands, read without trusting it.
//!
//! Nothing that a repository contains makes this do more than open directories and regular files for reading: a `.git` file
//! may point anywhere, a name may be a FIFO or a symlink. What cannot be understood is said in [`RepositoryState::not_kept`], and
//! is never an error: a snapshot of the files is always possible.
//!
//! Not here: finding it ([`GitDir`]), keeping its objects (a provider's), its ignore rules (`ah-rules`).

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::iter;
use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Dir, Error, RepositoryState, Result};
use ah_rules::{GitDir, without_magic};
use gix::ObjectId;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::config::has_worktree_config;
use crate::owner::as_owner;
use crate::{marks, progress, refs};

/// The user's repository as it was found from a workspace.
#[derive(Debug)]
pub struct Repository {
    /// The git directory and the common directory.
    pub(crate) git: GitDir,
    /// HEAD: the commit in hex and the branch, where known; and why objects cannot be kept, if so.
    pub state: RepositoryState,
    /// The objects folders, the repository's own first, then those of alternates.
    pub objects: Vec<OwnedFd>,
    /// The commits that its `shallow` file names: there the history is cut off. What in it is no id is left out.
    pub shallow: BTreeSet<ObjectId>,
    /// Branches, tags and remote-tracking refs, in the form of [`refs`]; none if there are too many.
    pub refs: Option<Vec<u8>>,
}

/// Refs, HEAD, `.git` files: larger ones are none.
pub(crate) const SMALL: u64 = 64 << 10;
pub(crate) const CONFIG_LIMIT: u64 = 4 << 20;
const PACKED_LIMIT: u64 = 256 << 20;
/// Alternates of alternates; Git itself follows five.
const DEPTH: usize = 5;
/// The most that are looked at in all: each is held open.
const MOST_BORROWED: usize = 64;

impl Repository {
    /// The repository whose work tree's top the workspace is; none if it is none's. A directory inside of a repository has none: it is no
    /// place to put a repository of its own.
    pub fn of(workspace: &Dir) -> Option<Self> {
        let git = GitDir::of(workspace.as_fd())?;
        let refs = refs::read(git.common());
        let state = RepositoryState::default();
        let mut this = Self { git, state, objects: Vec::new(), shallow: BTreeSet::new(), refs };
        let shallow = read_linked(this.git.common(), "shallow", CONFIG_LIMIT).ok().flatten().unwrap_or_default();
        let lines = shallow.split(|&byte| byte == b'\n');
        this.shallow = lines.filter_map(|line| ObjectId::from_hex(line.trim_ascii()).ok()).collect();
        if let Err(why) = this
            .read_head()
            .and_then(|()| this.open_objects())
            .and_then(|()| this.check_config())
            .and_then(|()| this.check_index())
        {
            this.state.not_kept = Some(why);
        }
        this.state.marks = marks::of(&this.git);
        Some(this)
    }

    /// Where the repository at the top of `workspace` stands, for a snapshot that holds `.git` as it is; none without one. Costs a few
    /// small files.
    #[must_use]
    pub fn standing(workspace: &Dir) -> Option<RepositoryState> {
        as_owner(workspace, || Self::look(workspace)).flatten()
    }

    fn look(workspace: &Dir) -> Option<RepositoryState> {
        let git = GitDir::of(workspace.as_fd())?;
        let state = RepositoryState::default();
        let mut this = Self { git, state, objects: Vec::new(), shallow: BTreeSet::new(), refs: None };
        if let Err(why) = this.read_head() {
            this.state.not_kept = Some(why);
        }
        let dot_git = rustix::fs::statat(workspace, ".git", rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if dot_git.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
            let why = "its objects are outside the workspace; a branch gets those that are there when it is made";
            this.state.not_kept = Some(why.to_owned());
        }
        this.state.marks = marks::of(&this.git);
        Some(this.state)
    }

    /// The user's index file, opened for reading, with its size; none if there is none (or it is no regular file).
    ///
    /// # Errors
    /// Those of the system.
    pub fn index(&self) -> Result<Option<(OwnedFd, u64)>> {
        open_file(&self.git.git_dir, "index")
            .map_err(|errno| Error::from_io("cannot open the repository's index", &errno.into()))
    }

    /// What is in progress: names of files in the git directory with their contents, see [`crate::progress`].
    pub fn progress(&self) -> Vec<(&'static str, Vec<u8>)> {
        progress::read(&self.git.git_dir)
    }

    /// A regular file of the common directory (`info/exclude`, `config`), whole; none if there is none or it is larger than
    /// `limit` bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn common_file(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        read_file(self.git.common(), name, limit)
            .map_err(|errno| Error::from_io(format!("cannot read {name} of the repository"), &errno.into()))
    }

    /// A regular file of the git directory, as [`Self::common_file`] gives one: of a linked work tree's own (`info/sparse-checkout`).
    ///
    /// # Errors
    /// Those of the system.
    pub fn own_file(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        read_file(&self.git.git_dir, name, limit)
            .map_err(|errno| Error::from_io(format!("cannot read {name} of the repository"), &errno.into()))
    }

    /// The texts of its configuration: the common one, and the work tree's where Git reads that.
    ///
    /// # Errors
    /// Those of the system.
    pub fn configs(&self, limit: u64) -> Result<Vec<Vec<u8>>> {
        let Some(common) = self.common_file("config", limit)? else { return Ok(Vec::new()) };
        let own = if has_worktree_config(&common) { self.own_file("config.worktree", limit)? } else { None };
        Ok(iter::once(common).chain(own).collect())
    }

    fn read_head(&mut self) -> Result<(), String> {
        let head = read_file(&self.git.git_dir, "HEAD", SMALL).map_err(|e| format!("its HEAD cannot be read: {e}"))?;
        let head = head.ok_or("its HEAD cannot be read")?;
        let mut value = head.trim_ascii_end().to_vec();
        for step in 0..DEPTH {
            let Some(name) = value.strip_prefix(b"ref: ") else { break };
            if step == 0 {
                if name == b"refs/heads/.invalid" {
                    return Err("its refs are in a reftable".into());
                }
                self.state.set_branch_name(name.to_vec());
            }
            match self.read_ref(name) {
                Some(next) => value = next,
                None => return Ok(()), // A branch without commits.
            }
        }
        let hex = String::from_utf8(value).unwrap_or_default();
        if matches!(hex.len(), 40 | 64) && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            self.state.head = Some(hex);
            return Ok(());
        }
        Err("its HEAD is damaged".into())
    }

    fn read_ref(&self, name: &[u8]) -> Option<Vec<u8>> {
        let leads_out = |part: &[u8]| matches!(part, b"" | b"." | b"..");
        if !name.starts_with(b"refs/") || name.split(|&byte| byte == b'/').any(leads_out) {
            return None;
        }
        if let Ok(Some(text)) = read_file(self.git.common(), name, SMALL) {
            return Some(text.trim_ascii_end().to_vec());
        }
        let (packed, _) = open_linked(self.git.common(), "packed-refs").ok().flatten()?;
        // Line by line: whose it is, it may be of any size.
        let mut lines = BufReader::new(File::from(packed).take(PACKED_LIMIT));
        let mut line = Vec::new();
        while lines.by_ref().take(SMALL).read_until(b'\n', &mut line).ok()? > 0 {
            let mut words = line.trim_ascii_end().splitn(2, |&byte| byte == b' ');
            if let (Some(commit), Some(found)) = (words.next(), words.next())
                && found == name
            {
                return Some(commit.to_vec());
            }
            line.clear();
        }
        None
    }

    fn open_objects(&mut self) -> Result<(), String> {
        let own = open_dir(self.git.common(), b"objects").map_err(|e| format!("its objects cannot be read: {e}"))?;
        let look = |dir: &OwnedFd| rustix::fs::fstat(dir).map_err(|e| format!("its objects cannot be read: {e}"));
        let (mut seen, mut todo, mut borrowed) = (vec![look(&own)?], vec![(own, 0)], 0);
        while let Some((dir, depth)) = todo.pop() {
            let alternates = read_file(&dir, "info/alternates", CONFIG_LIMIT).unwrap_or(None).unwrap_or_default();
            // Some scripts add the same line again and again.
            let mut lines = HashSet::new();
            for line in alternates.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#') {
                if !lines.insert(line) {
                    continue;
                }
                borrowed += 1;
                if borrowed > MOST_BORROWED {
                    return Err(format!("it borrows objects from more than {MOST_BORROWED} places"));
                }
                let next = open_dir(&dir, line).map_err(|e| {
                    format!("it borrows objects from {}, which cannot be read: {e}", String::from_utf8_lossy(line))
                })?;
                let stat = look(&next)?;
                if depth < DEPTH && !seen.iter().any(|other| same(other, &stat)) {
                    seen.push(stat);
                    todo.push((next, depth + 1));
                }
            }
            self.objects.push(dir);
        }
        Ok(())
    }

    /// A file can say that it is larger than any disk; nobody is to wait for it to be read.
    fn check_index(&self) -> Result<(), String> {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let size = rustix::fs::statat(&self.git.git_dir, "index", flags).map_or(0, |stat| stat.st_size);
        if size.cast_unsigned() > ah_rules::LARGEST_INDEX {
            return Err(format!("its index is larger than {} MiB", ah_rules::LARGEST_INDEX >> 20));
        }
        Ok(())
    }

    fn check_config(&self) -> Result<(), String> {
        let config = read_linked(self.git.common(), "config", CONFIG_LIMIT).ok().flatten().unwrap_or_default();
        for (key, value) in extensions(&config) {
            match &*key {
                "objectformat" if value != "sha1" => return Err(format!("it is a {value} repository")),
                "refstorage" if value != "files" => return Err(format!("its refs are in a {value}")),
                "partialclone" => return Err("it is a partial clone: not all of its objects are there".into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The keys of `[extensions]`, both sides in lower case.
fn extensions(config: &[u8]) -> Vec<(String, String)> {
    let mut inside = false;
    let mut out = Vec::new();
    for line in String::from_utf8_lossy(config).lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((section, rest)) = rest.split_once(']') else { continue };
            inside = section.trim().eq_ignore_ascii_case("extensions");
            line = rest.trim();
        }
        if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            let value = value.split(['#', ';']).next().unwrap_or_default().trim().trim_matches('"');
            out.push((key.trim().to_ascii_lowercase(), value.to_ascii_lowercase()));
        }
    }
    out
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Opens a directory, wherever the path leads, but by what other processes have open.
pub(crate) fn open_dir(at: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    without_magic(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

/// Opens a regular file; none if there is nothing, or something else, of that name.
pub(crate) fn open_file(at: impl AsFd, name: impl AsRef<[u8]>) -> rustix::io::Result<Option<(OwnedFd, u64)>> {
    open_regular(at, name, READ | OFlags::NOFOLLOW)
}

/// Likewise, also where a symlink leads to it: some work trees share a repository by links in their git directory (`git-new-workdir`).
/// Only for what is read for ids, names of refs and keys. What is copied into a branch must be the repository's own, since whoever
/// wrote the link need not be allowed to read what it leads to.
fn open_linked(at: impl AsFd, name: &str) -> rustix::io::Result<Option<(OwnedFd, u64)>> {
    // Looked at first: some devices do something as soon as they are opened.
    match open_regular(&at, name, OFlags::PATH | OFlags::CLOEXEC)? {
        Some(_) => open_regular(&at, name, READ),
        None => Ok(None),
    }
}

/// Nothing that is no regular file is waited for, or becomes this process's terminal.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

fn open_regular(at: impl AsFd, name: impl AsRef<[u8]>, flags: OFlags) -> rustix::io::Result<Option<(OwnedFd, u64)>> {
    let fd = match without_magic(at, name.as_ref(), flags) {
        Ok(fd) => fd,
        // No such name, a directory on the way that is none, a symlink, a socket.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&fd)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(regular.then(|| (fd, u64::try_from(stat.st_size).unwrap_or(0))))
}

pub(crate) fn read_file(at: impl AsFd, name: impl AsRef<[u8]>, limit: u64) -> rustix::io::Result<Option<Vec<u8>>> {
    read_opened(open_file(at, name)?, limit)
}

/// Reads what [`open_linked`] opens.
pub(crate) fn read_linked(at: impl AsFd, name: &str, limit: u64) -> rustix::io::Result<Option<Vec<u8>>> {
    read_opened(open_linked(at, name)?, limit)
}

fn read_opened(opened: Option<(OwnedFd, u64)>, limit: u64) -> rustix::io::Result<Option<Vec<u8>>> {
    let Some((fd, size)) = opened else { return Ok(None) };
    if size > limit {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    loop {
        let start = out.len();
        out.resize(start + 4096.max(out.capacity() - start), 0);
        let read = match rustix::io::read(&fd, &mut out[start..]) {
            Ok(read) => read,
            Err(Errno::INTR) => {
                out.truncate(start);
                continue;
            }
            Err(errno) => return Err(errno),
        };
        out.truncate(start + read);
        if read == 0 {
            return Ok(Some(out));
        }
        if out.len() as u64 > limit {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::process::Command;

    use ah_plugin_api::Dir;

    use super::{Repository, extensions};
    use crate::testing::git;

    fn discover(path: &Path) -> Option<Repository> {
        Repository::of(&Dir::open(path).unwrap())
    }

    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    fn inode_of(path: &Path) -> u64 {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
    }

    #[test]
    fn every_kind_of_repository_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let main = temp.path().join("main");
        std::fs::create_dir(&main).unwrap();
        assert!(discover(&main).is_none());
        git(&main, &["init", "-q", "-b", "trunk"]);
        let unborn = discover(&main).unwrap();
        assert_eq!(unborn.state.branch.as_deref(), Some("refs/heads/trunk"));
        assert_eq!((unborn.state.head, unborn.state.not_kept), (None, None));
        assert!(unborn.shallow.is_empty());

        std::fs::create_dir_all(main.join("a/b")).unwrap();
        std::fs::write(main.join("a/b/file"), "x").unwrap();
        git(&main, &["add", "."]);
        git(&main, &["commit", "-q", "-m", "one"]);
        let head = git(&main, &["rev-parse", "HEAD"]);
        assert!(discover(&main.join("a/b")).is_none());
        let found = discover(&main).unwrap();
        assert_eq!(found.state.head, Some(head.clone()));
        assert!(found.index().unwrap().unwrap().1 > 0);

        git(&main, &["pack-refs", "--all"]);
        assert_eq!(discover(&main).unwrap().state.head, Some(head.clone()));
        git(&main, &["worktree", "add", "-q", "../linked", "-b", "other"]);
        let linked = discover(&temp.path().join("linked")).unwrap();
        assert_eq!(linked.state.branch.as_deref(), Some("refs/heads/other"));
        assert_eq!(linked.state.head, Some(head.clone()));
        let standing = |path: &Path| Repository::standing(&Dir::open(path).unwrap()).unwrap();
        let (whole, elsewhere) = (standing(&main), standing(&temp.path().join("linked")));
        assert_eq!((whole.head.as_ref(), whole.not_kept), (Some(&head), None));
        assert_eq!((elsewhere.branch, elsewhere.not_kept.is_some()), (linked.state.branch.clone(), true));
        assert_eq!(inode(linked.git.common()), inode_of(&main.join(".git")));
        assert_eq!(inode(&linked.objects[0]), inode_of(&main.join(".git/objects")));
        git(&main, &["checkout", "-q", "--detach"]);
        let detached = discover(&main).unwrap();
        assert_eq!((detached.state.head, detached.state.branch), (Some(head), None));

        let url = format!("file://{}", main.display());
        git(temp.path(), &["clone", "-q", "--shared", "main", "borrower"]);
        let borrower = discover(&temp.path().join("borrower")).unwrap();
        assert_eq!(borrower.objects.len(), 2);
        assert_eq!(inode(&borrower.objects[1]), inode_of(&main.join(".git/objects")));
        git(&main, &["commit", "-q", "--allow-empty", "-m", "two"]);
        git(temp.path(), &["clone", "-q", "--depth=1", &url, "shallow"]);
        assert!(discover(&temp.path().join("shallow")).unwrap().shallow.len() == 1);
        git(temp.path(), &["init", "-q", "--object-format=sha256", "long"]);
        let long = discover(&temp.path().join("long")).unwrap();
        assert_eq!(long.state.not_kept.as_deref(), Some("it is a sha256 repository"));
    }

    /// As `git-new-workdir` makes them.
    #[test]
    fn a_repository_that_is_shared_by_links_is_read_through_them() {
        let temp = tempfile::tempdir().unwrap();
        let (main, linked) = (temp.path().join("main/.git"), temp.path().join("linked/.git"));
        std::fs::create_dir(temp.path().join("main")).unwrap();
        git(&temp.path().join("main"), &["init", "-q", "-b", "trunk"]);
        git(&temp.path().join("main"), &["commit", "-q", "--allow-empty", "-m", "one"]);
        git(&temp.path().join("main"), &["tag", "v1"]);
        git(&temp.path().join("main"), &["pack-refs", "--all"]);
        let head = git(&temp.path().join("main"), &["rev-parse", "HEAD"]);
        std::fs::write(main.join("shallow"), format!("{head}\n")).unwrap();
        std::fs::create_dir_all(&linked).unwrap();
        std::fs::copy(main.join("HEAD"), linked.join("HEAD")).unwrap();
        for name in ["config", "refs", "objects", "packed-refs", "shallow"] {
            std::os::unix::fs::symlink(main.join(name), linked.join(name)).unwrap();
        }
        let found = discover(&temp.path().join("linked")).unwrap();
        assert_eq!((found.state.head.as_ref(), found.state.not_kept), (Some(&head), None));
        assert_eq!(found.refs.map(|refs| refs.split(|byte| *byte == b'\n').count()), Some(3), "branch, tag, the end");
        assert!(found.shallow.len() == 1 && found.state.marks.is_some());
        for args in [&["tag", "v2"][..], &["pack-refs", "--all"]] {
            let before = discover(&temp.path().join("linked")).unwrap().state.marks;
            git(&temp.path().join("main"), args);
            assert_ne!(discover(&temp.path().join("linked")).unwrap().state.marks, before, "{args:?}");
        }
        std::fs::write(main.join("config"), "[extensions]\n\tobjectFormat = sha256\n").unwrap();
        let found = discover(&temp.path().join("linked")).unwrap();
        assert_eq!(found.state.not_kept.as_deref(), Some("it is a sha256 repository"));
        // What is copied into branches is not read through links.
        assert!(found.common_file("config", 1000).unwrap().is_none());
        for place in ["/dev/zero", "/proc/self/fd/0", "/nowhere"] {
            for name in ["config", "packed-refs", "shallow"] {
                std::fs::remove_file(linked.join(name)).unwrap();
                std::os::unix::fs::symlink(place, linked.join(name)).unwrap();
            }
            let found = discover(&temp.path().join("linked")).unwrap();
            assert!(found.state.head.is_none() && found.shallow.is_empty(), "{place}");
        }
    }

    #[test]
    fn a_hostile_repository_is_harmless() {
        let temp = tempfile::tempdir().unwrap();
        let dot_git = temp.path().join(".git");
        let mkfifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        mkfifo(&dot_git);
        assert!(discover(temp.path()).is_none());
        std::fs::remove_file(&dot_git).unwrap();
        for text in ["", "gitdir:", "gitdir: /nowhere", "gitdir: /dev/null", "gitdir: .", "nonsense"] {
            std::fs::write(&dot_git, text).unwrap();
            assert!(discover(temp.path()).is_none(), "{text}");
        }
        std::fs::remove_file(&dot_git).unwrap();
        std::os::unix::fs::symlink(".git", &dot_git).unwrap();
        assert!(discover(temp.path()).is_none());
        std::fs::remove_file(&dot_git).unwrap();

        std::fs::create_dir_all(dot_git.join("objects/info")).unwrap();
        std::fs::create_dir_all(dot_git.join("refs/heads")).unwrap();
        mkfifo(&dot_git.join("index"));
        mkfifo(&dot_git.join("shallow"));
        mkfifo(&dot_git.join("packed-refs"));
        mkfifo(&dot_git.join("refs/heads/fifo"));
        for head in ["ref: refs/heads/fifo", "ref: ../../../etc/passwd", "ref: /etc/passwd", "ref: HEAD", "junk", ""] {
            std::fs::write(dot_git.join("HEAD"), head).unwrap();
            let found = discover(temp.path()).unwrap();
            assert!(found.state.head.is_none());
            assert!(found.index().unwrap().is_none());
        }
        std::fs::write(dot_git.join("objects/info/alternates"), "/nowhere\n").unwrap();
        std::fs::write(dot_git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        assert!(discover(temp.path()).unwrap().state.not_kept.unwrap().contains("/nowhere"));
        std::fs::write(dot_git.join("objects/info/alternates"), ".\n../objects\n").unwrap();
        assert_eq!(discover(temp.path()).unwrap().objects.len(), 1);
    }

    #[test]
    fn not_everything_that_objects_are_borrowed_from_is_held_open() {
        let temp = tempfile::tempdir().unwrap();
        let dot_git = temp.path().join(".git");
        for folder in ["objects/info", "refs/heads"] {
            std::fs::create_dir_all(dot_git.join(folder)).unwrap();
        }
        std::fs::write(dot_git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        let borrow = |places: usize| {
            let lines = (0..places).map(|place| {
                std::fs::create_dir_all(temp.path().join(format!("{place}"))).unwrap();
                format!("../../{place}\n")
            });
            // Each again and again.
            std::fs::write(dot_git.join("objects/info/alternates"), lines.collect::<String>().repeat(9)).unwrap();
            discover(temp.path()).unwrap()
        };
        let most = borrow(super::MOST_BORROWED);
        assert_eq!((most.objects.len(), most.state.not_kept), (1 + super::MOST_BORROWED, None));
        let beyond = borrow(super::MOST_BORROWED + 1);
        assert!(beyond.objects.is_empty() && beyond.state.not_kept.unwrap().contains("more than"));
        // One place by many ways.
        let ways = (0..super::MOST_BORROWED).map(|way| format!("../../{}0\n", "0/../".repeat(way)));
        std::fs::write(dot_git.join("objects/info/alternates"), ways.collect::<String>()).unwrap();
        assert_eq!(discover(temp.path()).unwrap().objects.len(), 2);
    }

    #[test]
    fn extensions_are_read_as_git_reads_them() {
        let config = b"[core]\n\tx = y\n[Extensions] objectFormat = \"SHA256\" ; why\n\tpartialClone=origin\n[other]\nobjectformat = no\n";
        let expected = [("objectformat", "sha256"), ("partialclone", "origin")];
        assert_eq!(extensions(config), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
