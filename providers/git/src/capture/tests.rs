//! Captures of real directories, read back from the store and compared with the directories.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ah_plugin_api::{
    CapturePolicy, Context, Dir, Durability, ErrorKind, OmitReason, Snapshot, SnapshotId, SnapshotRequest, Timestamp,
};
use gix::ObjectId;
use gix::objs::{Kind, TreeRef};

use super::{Live, live, snapshot};
use crate::meta::{self, DirMeta};
use crate::store::Store;

/// What a snapshot, or a directory, has at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: char,
    mode: u32,
    mtime: (i64, u32),
    data: Vec<u8>,
}

type Listing = BTreeMap<PathBuf, Seen>;

/// A workspace and a store beside it.
struct Bench {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    count: std::cell::Cell<u32>,
    policy: CapturePolicy,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("ws")).unwrap();
        fs::create_dir(dir.path().join("store")).unwrap();
        let store = Store::open(&Dir::open(dir.path().join("store")).unwrap()).unwrap();
        Self { dir, store, count: Default::default(), policy: CapturePolicy::default() }
    }

    fn path(&self, rel: &str) -> PathBuf {
        self.dir.path().join("ws").join(rel)
    }

    fn write(&self, rel: &str, text: &str) {
        let path = self.path(rel);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn workspace(&self) -> Dir {
        Dir::open(self.path("")).unwrap()
    }

    fn request(&self) -> SnapshotRequest {
        self.count.set(self.count.get() + 1);
        SnapshotRequest {
            id: SnapshotId::new(format!("s{}", self.count.get())).unwrap(),
            created: Timestamp { secs: 1_700_000_000, nanos: 5 },
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Instant,
            policy: self.policy.clone(),
        }
    }

    fn take(&self) -> Snapshot {
        snapshot(&self.store, &self.workspace(), &self.request(), &Context::quiet()).unwrap()
    }

    fn live(&self) -> Live {
        live(&self.store, &self.workspace(), &self.policy, &Context::quiet()).unwrap()
    }

    /// Takes a snapshot and compares it with the workspace, files that are omitted left aside.
    fn take_and_compare(&self) -> Snapshot {
        let live = self.live();
        let taken = self.take();
        let (mut there, captured) = (self.on_disk(), self.listing(&taken));
        for omission in &taken.omitted {
            there.retain(|path, _| !path.starts_with(omission.path.as_path()));
        }
        assert_eq!(captured, there);
        assert_eq!(taken.entries, Some(captured.len() as u64 - 1));
        assert_eq!(super::tree_id(&live.tree, &live.meta), taken.tree.clone().unwrap());
        taken
    }

    fn object(&self, id: &gix::oid) -> (Kind, Vec<u8>) {
        let mut data = Vec::new();
        let kind = self.store.read(id, &mut data).unwrap();
        (kind, data)
    }

    fn entry(&self, tree: &gix::oid, name: &[u8]) -> Option<(bool, ObjectId)> {
        let (_, data) = self.object(tree);
        let tree = TreeRef::from_bytes(&data, gix::hash::Kind::Sha1).unwrap();
        tree.entries
            .iter()
            .find(|entry| entry.filename == name)
            .map(|entry| (entry.mode.is_tree(), entry.oid.to_owned()))
    }

    fn top(&self, taken: &Snapshot) -> ObjectId {
        let commit = self.store.snapshot(&taken.id).unwrap().unwrap();
        let (_, data) = self.object(&commit);
        ObjectId::from_hex(&data[5..45]).unwrap()
    }

    fn listing(&self, taken: &Snapshot) -> Listing {
        let top = self.top(taken);
        let (tree, meta) = (self.entry(&top, b"tree").unwrap().1, self.entry(&top, b"meta").unwrap());
        let mut out = Listing::new();
        self.list_into(&mut out, Path::new(""), &tree, meta);
        out
    }

    fn list_into(&self, out: &mut Listing, path: &Path, tree: &gix::oid, meta: (bool, ObjectId)) {
        let own = if meta.0 { self.entry(&meta.1, meta::OWN).unwrap().1 } else { meta.1 };
        let dir = DirMeta::decode(&self.object(&own).1).unwrap();
        let time = |time: Timestamp| (time.secs, time.nanos);
        let seen = Seen { kind: 'd', mode: dir.mode, mtime: time(dir.mtime), data: Vec::new() };
        out.insert(path.to_owned(), seen);
        let (_, data) = self.object(tree);
        let tree = TreeRef::from_bytes(&data, gix::hash::Kind::Sha1).unwrap();
        let mut files = dir.files.iter();
        for entry in &tree.entries {
            let below = path.join(std::ffi::OsStr::from_bytes(entry.filename));
            if entry.mode.is_tree() {
                let sub = self.entry(&meta.1, &meta::sub_name(entry.filename)).unwrap();
                self.list_into(out, &below, entry.oid, sub);
                continue;
            }
            let file = files.next().unwrap();
            let (_, data) = self.object(entry.oid);
            assert_eq!(file.size, data.len() as u64);
            let kind = if entry.mode.is_link() { 'l' } else { 'f' };
            out.insert(below, Seen { kind, mode: file.mode, mtime: time(file.mtime), data });
        }
        assert!(files.next().is_none());
    }

    fn on_disk(&self) -> Listing {
        fn go(out: &mut Listing, root: &Path, rel: &Path) {
            let path = root.join(rel);
            let stat = fs::symlink_metadata(&path).unwrap();
            let (kind, data) = if stat.is_symlink() {
                ('l', fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if stat.is_dir() {
                for entry in fs::read_dir(&path).unwrap() {
                    go(out, root, &rel.join(entry.unwrap().file_name()));
                }
                ('d', Vec::new())
            } else if stat.is_file() {
                ('f', fs::read(&path).unwrap())
            } else {
                ('s', Vec::new())
            };
            let mtime = (stat.mtime(), stat.mtime_nsec() as u32);
            out.insert(rel.to_owned(), Seen { kind, mode: stat.mode() & 0o7777, mtime, data });
        }
        let mut out = Listing::new();
        go(&mut out, &self.path(""), Path::new(""));
        out.retain(|path, _| !path.starts_with(".git"));
        out
    }

    fn git(&self, args: &[&str]) {
        let status = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(args)
            .current_dir(self.path(""))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "git {args:?}");
    }

    /// Lets the clock pass what counts as racy.
    fn settle(&self) {
        std::thread::sleep(std::time::Duration::from_millis(45));
    }
}

fn reasons(taken: &Snapshot) -> Vec<(String, OmitReason)> {
    taken.omitted.iter().map(|omission| (omission.path.to_string(), omission.reason)).collect()
}

#[test]
fn an_empty_directory() {
    let bench = Bench::new();
    assert_eq!(bench.take_and_compare().entries, Some(0));
    assert_eq!(bench.take_and_compare().entries, Some(0));
}

#[test]
fn all_kinds_come_back_exactly() {
    let bench = Bench::new();
    bench.write("a/b/c.txt", "deep");
    bench.write("a.txt", "one");
    bench.write("a-b", "sorts before a/ but after a");
    bench.write("empty", "");
    fs::create_dir_all(bench.path("void/inner")).unwrap();
    symlink("nowhere/at all", bench.path("a/link")).unwrap();
    symlink("../..", bench.path("a/b/up")).unwrap();
    let odd = bench.path("").join(std::ffi::OsStr::from_bytes(b"odd \xff\xfe\n name"));
    fs::write(&odd, "x").unwrap();
    fs::create_dir(bench.path("").join(std::ffi::OsStr::from_bytes(b"dir\xff"))).unwrap();
    for (path, mode) in [("a.txt", 0o755), ("empty", 0o4601), ("a-b", 0o400), ("a/b", 0o700), ("void", 0o1777)] {
        fs::set_permissions(bench.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(5, 123_456_789);
    fs::File::open(&odd).unwrap().set_modified(old).unwrap();
    let before_epoch = std::time::UNIX_EPOCH - std::time::Duration::new(5, 1);
    fs::File::open(bench.path("void")).unwrap().set_modified(before_epoch).unwrap();
    let taken = bench.take_and_compare();
    assert!(taken.omitted.is_empty());
    bench.settle();
    let again = bench.take_and_compare();
    assert_eq!(taken.tree, again.tree);
}

#[test]
fn every_way_of_changing_is_seen() {
    let bench = Bench::new();
    for at in 0..20 {
        bench.write(&format!("d{}/f{at}", at % 4), &format!("content {at}"));
    }
    bench.write("d0/sub/x", "x");
    bench.take_and_compare();
    bench.settle();
    bench.take_and_compare();
    let time = fs::metadata(bench.path("d1/f1")).unwrap().modified().unwrap();
    // The same size, the same mtime.
    bench.write("d1/f1", "CONTENT 1");
    fs::File::open(bench.path("d1/f1")).unwrap().set_modified(time).unwrap();
    bench.take_and_compare();
    fs::rename(bench.path("d2/f2"), bench.path("d2/f6")).unwrap();
    bench.take_and_compare();
    fs::remove_file(bench.path("d3/f3")).unwrap();
    bench.take_and_compare();
    fs::rename(bench.path("d0"), bench.path("e0")).unwrap();
    bench.take_and_compare();
    // A file becomes a directory, a directory a file, a file a symlink.
    fs::remove_file(bench.path("d1/f5")).unwrap();
    fs::create_dir(bench.path("d1/f5")).unwrap();
    bench.write("d1/f5/in", "in");
    fs::remove_dir_all(bench.path("e0/sub")).unwrap();
    bench.write("e0/sub", "a file now");
    fs::remove_file(bench.path("d1/f9")).unwrap();
    symlink("f1", bench.path("d1/f9")).unwrap();
    bench.take_and_compare();
    fs::remove_file(bench.path("d1/f9")).unwrap();
    symlink("f2", bench.path("d1/f9")).unwrap();
    bench.take_and_compare();
    fs::set_permissions(bench.path("d1/f1"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(bench.path("d1"), fs::Permissions::from_mode(0o711)).unwrap();
    bench.take_and_compare();
    // Only times.
    fs::File::open(bench.path("d1/f1")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::File::open(bench.path("d1")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    bench.take_and_compare();
    fs::remove_dir_all(bench.path("d1")).unwrap();
    bench.take_and_compare();
    bench.settle();
    for _ in 0..3 {
        bench.take_and_compare();
    }
}

#[test]
fn edits_within_a_tick_are_seen() {
    let bench = Bench::new();
    for at in 0..200 {
        bench.write("f", &format!("{at:05}"));
        let taken = bench.take();
        assert_eq!(bench.listing(&taken)[Path::new("f")].data, format!("{at:05}").into_bytes());
    }
}

#[test]
fn ignored_things_and_the_policy() {
    let mut bench = Bench::new();
    bench.policy.max_ignored_size = 10;
    bench.policy.max_file_size = 100;
    bench.policy.exclude = vec!["*.secret".into(), "/out/".into()];
    bench.policy.include = vec!["/target/keep/".into(), "/logs/*.txt".into()];
    bench.policy.own_state = vec![ah_plugin_api::RelPath::new("state/ah").unwrap()];
    bench.write(".gitignore", "target/\n*.env\nlogs/\n");
    bench.write("small.env", "tiny");
    bench.write("large.env", "larger than ten");
    bench.write("huge", &"x".repeat(101));
    bench.write("target/junk", "junk");
    bench.write("target/keep/this", "this is more than ten bytes");
    bench.write("logs/a.txt", "a");
    bench.write("logs/b.bin", "b");
    bench.write("x.secret", "x");
    bench.write("out/put", "x");
    bench.write("state/ah/db", "x");
    rustix::fs::mknodat(rustix::fs::CWD, bench.path("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let expected = [
        ("fifo", OmitReason::SpecialFile),
        ("huge", OmitReason::TooLarge),
        ("large.env", OmitReason::Ignored),
        ("logs/b.bin", OmitReason::Ignored),
        ("out", OmitReason::Excluded),
        ("state/ah", OmitReason::OwnState),
        ("target/junk", OmitReason::Ignored),
        ("x.secret", OmitReason::Excluded),
    ]
    .map(|(path, reason)| (path.to_owned(), reason));
    assert_eq!(reasons(&bench.take_and_compare()), expected);
    bench.settle();
    assert_eq!(reasons(&bench.take_and_compare()), expected);
    // What was too large shrinks, what was small grows, without a change to the directory.
    fs::write(bench.path("huge"), "small").unwrap();
    fs::write(bench.path("large.env"), "small").unwrap();
    fs::write(bench.path("small.env"), "no longer that small").unwrap();
    let taken = bench.take_and_compare();
    let now: Vec<_> = reasons(&taken).into_iter().map(|(path, _)| path).collect();
    assert!(now.contains(&"small.env".to_owned()) && !now.contains(&"huge".to_owned()));
    assert!(!now.contains(&"large.env".to_owned()));
    // Nothing left that is included: the directory is one omission.
    fs::remove_dir_all(bench.path("target/keep")).unwrap();
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("target".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
    bench.settle();
    bench.take_and_compare();
    bench.write("target/keep/again", "again");
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("target/junk".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
    // Rules that change.
    bench.settle();
    bench.take_and_compare();
    bench.write(".gitignore", "logs/\n");
    let taken = bench.take_and_compare();
    assert!(!reasons(&taken).iter().any(|(path, _)| path.starts_with("target") || path.ends_with(".env")));
    bench.write("state/.gitignore", "*\n");
    bench.write("state/more", "more than ten bytes");
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("state/more".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
}

#[test]
fn tracked_files_are_not_ignored() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "build/\n*.o\n");
    bench.write("build/tracked", "t");
    bench.write("build/deep/er/tracked", "t");
    bench.write("build/not", "n");
    bench.write("x.o", "x");
    assert_eq!(reasons(&bench.take_and_compare()), [("build".to_owned(), OmitReason::Ignored)]);
    bench.git(&["add", "-f", "build/tracked", "build/deep/er/tracked", "x.o"]);
    bench.settle();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), [("build/not".to_owned(), OmitReason::Ignored)]);
    bench.settle();
    bench.git(&["rm", "-q", "--cached", "build/deep/er/tracked"]);
    let taken = bench.take_and_compare();
    let expected = [("build/deep", OmitReason::Ignored), ("build/not", OmitReason::Ignored)];
    assert_eq!(reasons(&taken), expected.map(|(path, reason)| (path.to_owned(), reason)));
    bench.git(&["commit", "-q", "-m", "m"]);
    fs::write(bench.path(".git/info/exclude"), "*.txt\n").unwrap();
    bench.write("a.txt", &"x".repeat(2 << 20));
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("a.txt".to_owned(), OmitReason::Ignored)));
}

#[test]
fn nested_repositories_are_captured_as_files_by_their_own_rules() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "*.log\n");
    bench.write("sub/a.log", "not ignored in there");
    bench.write("sub/b.tmp", &"x".repeat(2 << 20));
    bench.git(&["init", "-q", "sub"]);
    bench.settle();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), [("sub/.git".to_owned(), OmitReason::GitDir)]);
    bench.settle();
    bench.take_and_compare();
    fs::write(bench.path("sub/.git/info/exclude"), "*.tmp\n").unwrap();
    let taken = bench.take_and_compare();
    let expected = [("sub/.git", OmitReason::GitDir), ("sub/b.tmp", OmitReason::Ignored)];
    assert_eq!(reasons(&taken), expected.map(|(path, reason)| (path.to_owned(), reason)));
    bench.settle();
    fs::remove_dir_all(bench.path("sub/.git")).unwrap();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), []);
}

#[test]
fn a_damaged_index_costs_time_and_nothing_else() {
    let bench = Bench::new();
    for at in 0..50 {
        bench.write(&format!("d{}/f{at}", at % 4), &format!("content {at}"));
    }
    bench.take_and_compare();
    bench.settle();
    let index = bench.dir.path().join("store/index");
    let whole = fs::read(&index).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&index, &damaged).unwrap();
        bench.take_and_compare();
        fs::write(&index, &whole[..at]).unwrap();
        bench.take_and_compare();
    }
    fs::remove_file(&index).unwrap();
    bench.take_and_compare();
}

#[test]
fn what_a_destroyed_snapshot_held_is_read_again() {
    let bench = Bench::new();
    bench.write("f", "held by the first only");
    bench.write("d/g", "too");
    bench.settle();
    let first = bench.take_and_compare();
    let guard = bench.store.lock(&Context::quiet()).unwrap();
    assert!(bench.store.remove_snapshot(&guard, &first.id).unwrap());
    drop(guard);
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    bench.take_and_compare();
}

#[test]
fn the_limit_of_entries() {
    let mut bench = Bench::new();
    for at in 0..10 {
        bench.write(&format!("f{at}"), "x");
    }
    bench.policy.max_entries = 10;
    bench.take_and_compare();
    bench.write("one-more", "x");
    let refused = snapshot(&bench.store, &bench.workspace(), &bench.request(), &Context::quiet()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    let request = SnapshotRequest { id: SnapshotId::new("s1").unwrap(), ..bench.request() };
    let taken = snapshot(&bench.store, &bench.workspace(), &request, &Context::quiet()).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::AlreadyExists);
}

/// Contents, inode, mode and times.
type Attributes = (Vec<u8>, u64, u32, [i64; 4]);

/// Everything below a directory, with all attributes but access times.
fn everything(dir: &Path) -> BTreeMap<PathBuf, Attributes> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let data = if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        // Keeping objects may add a link to them, which is a ctime.
        let linked = path.components().any(|part| part.as_os_str() == "objects");
        let ctime = if linked { (0, 0) } else { (stat.ctime(), stat.ctime_nsec()) };
        let times = [stat.mtime(), stat.mtime_nsec(), ctime.0, ctime.1];
        out.insert(path, (data, stat.ino(), stat.mode(), times));
    }
    out
}

fn rev_parse(dir: &Path, what: &str) -> String {
    let output = Command::new("git").args(["rev-parse", what]).current_dir(dir).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_repository_is_recorded_and_not_touched() {
    let bench = Bench::new();
    bench.write("file", "one");
    assert_eq!(bench.take_and_compare().repository, None);
    bench.git(&["init", "-q", "-b", "trunk"]);
    let unborn = bench.take_and_compare().repository.unwrap();
    assert_eq!((unborn.head, unborn.branch.as_deref()), (None, Some("refs/heads/trunk")));
    bench.git(&["add", "file"]);
    bench.git(&["commit", "-q", "-m", "m"]);
    let index = |taken: &Snapshot| bench.entry(&bench.top(taken), b"index").map(|(_, id)| bench.object(&id).1);
    let before = everything(&bench.path(".git"));
    let taken = bench.take_and_compare();
    assert_eq!(everything(&bench.path(".git")), before);
    let state = taken.repository.clone().unwrap();
    assert_eq!(state.head, Some(rev_parse(&bench.path(""), "HEAD")));
    assert_eq!((state.branch.as_deref(), state.not_kept.clone()), (Some("refs/heads/trunk"), None));
    assert_eq!(index(&taken), Some(fs::read(bench.path(".git/index")).unwrap()));
    // The index changes, and only the index.
    bench.settle();
    bench.take();
    bench.git(&["rm", "-q", "--cached", "file"]);
    assert_eq!(index(&bench.take_and_compare()), Some(fs::read(bench.path(".git/index")).unwrap()));
    bench.git(&["reset", "-q", "--hard"]);

    // A linked worktree has a HEAD and an index of its own.
    bench.git(&["worktree", "add", "-q", "-b", "side", "../linked"]);
    let linked = Bench::new();
    fs::remove_dir(linked.path("")).unwrap();
    fs::rename(bench.dir.path().join("linked"), linked.path("")).unwrap();
    let taken = linked.take();
    assert_eq!(taken.repository.as_ref().unwrap().branch.as_deref(), Some("refs/heads/side"));
    assert_eq!(reasons(&taken), []);
    assert!(linked.listing(&taken).contains_key(Path::new("file")));

    // A directory inside a repository has its rules, and is none.
    bench.write(".gitignore", "*.tmp\n");
    bench.write("inner/x.tmp", &"x".repeat(2 << 20));
    bench.write("inner/y", "y");
    let inner = Dir::open(bench.path("inner")).unwrap();
    let store = tempfile::tempdir().unwrap();
    let store = Store::open(&Dir::open(store.path()).unwrap()).unwrap();
    let taken = snapshot(&store, &inner, &base_request(), &Context::quiet()).unwrap();
    assert_eq!(taken.repository, None);
    assert_eq!(reasons(&taken), [("x.tmp".to_owned(), OmitReason::Ignored)]);

    // Nothing of it is needed any more.
    fs::remove_dir_all(bench.path(".git")).unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
    fs::write(bench.path(".git"), "gitdir: /nowhere/at/all").unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
    fs::remove_file(bench.path(".git")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, bench.path(".git"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
}

#[test]
fn a_submodule_in_an_ignored_place() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "vendor/\n");
    bench.git(&["init", "-q", "vendor/lib"]);
    bench.write("vendor/lib/file", "x");
    bench.write("vendor/other", "x");
    assert_eq!(reasons(&bench.take_and_compare()), [("vendor".to_owned(), OmitReason::Ignored)]);
    bench.settle();
    let commit =
        ["-C", "vendor/lib", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "m"];
    bench.git(&commit);
    bench.git(&["-c", "advice.addEmbeddedRepo=false", "add", "-f", "vendor/lib"]);
    let expected = [("vendor/lib/.git", OmitReason::GitDir), ("vendor/other", OmitReason::Ignored)];
    let expected = expected.map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..3 {
        let taken = bench.take_and_compare();
        assert_eq!(reasons(&taken), expected);
        assert!(bench.listing(&taken).contains_key(Path::new("vendor/lib/file")));
        bench.settle();
    }
    bench.git(&["update-index", "--force-remove", "vendor/lib"]);
    assert_eq!(reasons(&bench.take_and_compare()), [("vendor".to_owned(), OmitReason::Ignored)]);
}

#[test]
fn paths_longer_than_the_system_takes_at_once() {
    let bench = Bench::new();
    let name = "a-name-of-some-length".repeat(4);
    let mut at: std::os::fd::OwnedFd = fs::File::open(bench.path("")).unwrap().into();
    for _ in 0..60 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, &name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&at, "file", flags, rustix::fs::Mode::RWXU).unwrap();
    let first = bench.take();
    assert_eq!((first.entries, first.omitted_total), (Some(61), 0));
    bench.settle();
    assert_eq!(bench.take().tree, first.tree);
    rustix::fs::openat(&at, "other", flags, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(bench.take().entries, Some(62));
}

#[test]
fn a_deleted_workspace_is_not_an_empty_one() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    fs::remove_dir(bench.path("")).unwrap();
    let refused = snapshot(&bench.store, &workspace, &bench.request(), &Context::quiet()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
}

#[test]
fn a_clock_that_went_back() {
    let bench = Bench::new();
    bench.write("d/f", "one");
    bench.settle();
    bench.take();
    // As if that scan had taken place tomorrow.
    let path = bench.dir.path().join("store");
    let fd = fs::File::open(&path).unwrap();
    let mut index = crate::index::Index::load(fd.as_fd()).unwrap();
    let mut header = index.header().clone();
    header.started.secs += 86_400;
    crate::index::Patch::default().write(fd.as_fd(), &mut index, &header).unwrap();
    let time = fs::metadata(bench.path("d/f")).unwrap().modified().unwrap();
    bench.write("d/f", "two");
    fs::File::open(bench.path("d/f")).unwrap().set_modified(time).unwrap();
    bench.take_and_compare();
    bench.write("d/g", "new");
    bench.take_and_compare();
}

/// A change to the workspace.
#[derive(Debug, Clone)]
enum Op {
    Write(&'static str, u8),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    MakeDir(&'static str),
    Link(&'static str),
    Chmod(&'static str, u32),
    Touch(&'static str),
    Ignore(&'static str, &'static str),
    Track(&'static str),
    Repository(&'static str),
    Settle,
}

fn op() -> impl proptest::strategy::Strategy<Value = Op> {
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use proptest::sample::select;
    const PATHS: &[&str] =
        &["a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g", "e/b", "h.log", "a/h.log", "e/f/h.log", "build", "build/x"];
    const RULES: &[&str] = &["*.log\n", "build/\n", "e/\n!e/f\n", "/a/b\n", "\n", "b\n"];
    let path = || select(PATHS);
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, byte)| Op::Write(path, byte)),
        2 => path().prop_map(Op::Remove),
        2 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => path().prop_map(Op::MakeDir),
        1 => path().prop_map(Op::Link),
        1 => (path(), select(&[0o600, 0o755, 0o711][..])).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => path().prop_map(Op::Touch),
        2 => (select(&["", "a/", "e/f/"][..]), select(RULES)).prop_map(|(dir, rules)| Op::Ignore(dir, rules)),
        1 => path().prop_map(Op::Track),
        1 => select(&["a", "e/f"][..]).prop_map(Op::Repository),
        1 => Just(Op::Settle),
    ]
}

impl Bench {
    /// Does what can be done of it.
    fn apply(&self, op: &Op) {
        let _ = match op {
            Op::Write(path, byte) => {
                let _ = fs::create_dir_all(self.path(path).parent().unwrap());
                fs::write(self.path(path), vec![*byte; usize::from(*byte % 40)])
            }
            Op::Remove(path) => fs::remove_file(self.path(path)).or_else(|_| fs::remove_dir_all(self.path(path))),
            Op::Rename(from, to) => fs::rename(self.path(from), self.path(to)),
            Op::MakeDir(path) => fs::create_dir_all(self.path(path)),
            Op::Link(path) => symlink("some/where", self.path(path)),
            Op::Chmod(path, mode) => fs::set_permissions(self.path(path), fs::Permissions::from_mode(*mode)),
            Op::Touch(path) => {
                fs::File::open(self.path(path)).and_then(|file| file.set_modified(std::time::UNIX_EPOCH))
            }
            Op::Ignore(dir, rules) => fs::write(self.path(dir).join(".gitignore"), rules),
            Op::Track(path) => {
                if self.path(path).is_file() {
                    let _ = Command::new("git")
                        .args(["add", "-f", path])
                        .current_dir(self.path(""))
                        .stderr(std::process::Stdio::null())
                        .status();
                }
                Ok(())
            }
            Op::Repository(path) => {
                if self.path(path).is_dir() {
                    self.git(&["init", "-q", path]);
                }
                Ok(())
            }
            Op::Settle => {
                self.settle();
                Ok(())
            }
        };
    }
}

/// So many cases, unless `PROPTEST_CASES` says otherwise.
fn config(cases: u32) -> proptest::prelude::ProptestConfig {
    let usual = proptest::prelude::ProptestConfig { max_shrink_iters: 200, ..Default::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        usual
    } else {
        proptest::prelude::ProptestConfig { cases, ..usual }
    }
}

proptest::proptest! {
    #![proptest_config(config(24))]

    /// A scan by the index comes to the same as one that knows nothing.
    #[test]
    fn what_the_index_knows_changes_no_result(steps in proptest::collection::vec(proptest::collection::vec(op(), 0..5), 1..8), caps in proptest::prelude::any::<bool>()) {
        let mut bench = Bench::new();
        if caps {
            bench.policy.max_file_size = 30;
            bench.policy.max_ignored_size = 10;
            bench.policy.include = vec!["/e/f/".into()];
        }
        bench.git(&["init", "-q"]);
        for step in steps {
            step.iter().for_each(|op| bench.apply(op));
            let (live, taken) = (bench.live(), bench.take());
            let store = tempfile::tempdir().unwrap();
            let fresh = Store::open(&Dir::open(store.path()).unwrap()).unwrap();
            let scratch = snapshot(&fresh, &bench.workspace(), &bench.request(), &Context::quiet()).unwrap();
            proptest::prop_assert_eq!(&taken.omitted, &scratch.omitted);
            proptest::prop_assert_eq!(&taken.tree, &scratch.tree);
            proptest::prop_assert_eq!(taken.entries, scratch.entries);
            proptest::prop_assert_eq!(Some(super::tree_id(&live.tree, &live.meta)), taken.tree.clone());
            // Everything can be read back.
            let _ = bench.listing(&taken);
        }
    }
}

/// Runs a test of this binary, that is ignored otherwise, in a process of its own.
fn rerun(name: &str, command: &mut Command) -> bool {
    let args = ["--exact", name, "--ignored", "--nocapture"];
    command.args(args).env("RUST_TEST_THREADS", "1").status().unwrap().success()
}

#[test]
fn unreadable_things_are_omitted() {
    use std::os::unix::process::CommandExt;
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    if rustix::process::geteuid().is_root() {
        // Root reads everything.
        command.uid(65534).gid(65534);
    }
    assert!(rerun("capture::tests::unreadable_things_are_omitted_by_an_ordinary_user", &mut command));
}

#[test]
#[ignore = "run by unreadable_things_are_omitted"]
fn unreadable_things_are_omitted_by_an_ordinary_user() {
    let bench = Bench::new();
    bench.write("file", "x");
    bench.write("dir/file", "x");
    bench.write("fine/file", "x");
    let chmod = |path, mode| fs::set_permissions(bench.path(path), fs::Permissions::from_mode(mode)).unwrap();
    chmod("file", 0);
    chmod("dir", 0);
    let expected = [("dir", OmitReason::Unreadable), ("file", OmitReason::Unreadable)]
        .map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..3 {
        assert_eq!(reasons(&bench.take()), expected);
        bench.settle();
    }
    chmod("file", 0o644);
    chmod("dir", 0o755);
    assert_eq!(reasons(&bench.take_and_compare()), []);
    bench.settle();
    // Readable, but nothing in it can be reached.
    chmod("dir", 0o644);
    let taken = bench.take();
    assert!(!bench.listing(&taken).contains_key(Path::new("dir/file")));
    chmod("dir", 0);
    assert_eq!(reasons(&bench.take()), [("dir".to_owned(), OmitReason::Unreadable)]);
    chmod("dir", 0o755);
    bench.take_and_compare();
}

#[test]
fn other_filesystems_are_left_out() {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(exe);
    assert!(rerun("capture::tests::other_filesystems_are_left_out_in_a_namespace", &mut command));
}

#[test]
#[ignore = "run by other_filesystems_are_left_out"]
fn other_filesystems_are_left_out_in_a_namespace() {
    use nix::mount::{MsFlags, mount, umount};
    let bench = Bench::new();
    bench.write("mnt/under", "x");
    bench.write("bind/under", "x");
    bench.write("file", "x");
    bench.write("other", "y");
    bench.take_and_compare();
    bench.settle();
    let none: Option<&str> = None;
    mount(Some("tmpfs"), &bench.path("mnt"), Some("tmpfs"), MsFlags::empty(), none).unwrap();
    mount(Some(&bench.path("mnt")), &bench.path("bind"), none, MsFlags::MS_BIND, none).unwrap();
    mount(Some(&bench.path("other")), &bench.path("file"), none, MsFlags::MS_BIND, none).unwrap();
    let other = OmitReason::OtherFilesystem;
    let expected = [("bind", other), ("file", other), ("mnt", other)].map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..2 {
        assert_eq!(reasons(&bench.take()), expected);
        let live = bench.live();
        assert_eq!(bench.take().tree, Some(super::tree_id(&live.tree, &live.meta)));
        bench.write("mnt/changes", "z");
        bench.settle();
    }
    for path in ["mnt", "bind", "file"] {
        umount(&bench.path(path)).unwrap();
    }
    assert_eq!(reasons(&bench.take_and_compare()), []);
}

#[test]
fn a_file_that_never_stands_still_is_omitted_or_whole() {
    let bench = Bench::new();
    bench.write("still", "still");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each state of the file is one letter throughout.
            let file = fs::File::create(bench.dir.path().join("ws/busy")).unwrap();
            for letter in (b'a'..=b'z').cycle() {
                use std::os::unix::fs::FileExt;
                file.write_all_at(&vec![letter; 1 << 16], 0).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let store = Arc::clone(&bench.store);
        for at in 0..30 {
            let request = SnapshotRequest { id: SnapshotId::new(format!("x{at}")).unwrap(), ..base_request() };
            let workspace = Dir::open(bench.dir.path().join("ws")).unwrap();
            let taken = snapshot(&store, &workspace, &request, &Context::quiet()).unwrap();
            assert!(reasons(&taken).iter().all(|(path, reason)| path == "busy" && *reason == OmitReason::Changing));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.settle();
    assert_eq!(reasons(&bench.take_and_compare()), []);
}

#[test]
fn a_tree_that_changes_all_the_time_is_captured_all_the_same() {
    let bench = Bench::new();
    for at in 0..40 {
        bench.write(&format!("d{}/f{at}", at % 4), "x");
    }
    let root = bench.path("");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outside = bench.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    std::thread::scope(|scope| {
        let (stop, outside) = (&stop, &outside);
        scope.spawn(move || {
            for at in (0..4).cycle() {
                // A directory goes away and comes back, with a link to the outside in its place meanwhile; others are swapped with files.
                let (dir, away) = (root.join(format!("d{at}")), root.join("away"));
                let _ = fs::rename(&dir, &away);
                let _ = symlink(outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::write(&dir, "a file");
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&away, &dir);
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for at in 0..60 {
            let request = SnapshotRequest { id: SnapshotId::new(format!("x{at}")).unwrap(), ..base_request() };
            let workspace = Dir::open(bench.dir.path().join("ws")).unwrap();
            let taken = snapshot(&bench.store, &workspace, &request, &Context::quiet()).unwrap();
            let listing = bench.listing(&taken);
            assert!(!listing.keys().any(|path| path.ends_with("secret")));
            assert!(listing.values().all(|seen| seen.data != b"secret"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.take_and_compare();
}

fn base_request() -> SnapshotRequest {
    SnapshotRequest {
        id: SnapshotId::new("x").unwrap(),
        created: Timestamp::default(),
        label: None,
        attributes: BTreeMap::new(),
        durability: Durability::Instant,
        policy: CapturePolicy::default(),
    }
}
