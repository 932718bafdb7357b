//! Captures of real directories, read back from the store and compared with the directories.

mod damage;
mod index;
mod moving;
mod places;
mod repository;
mod rules;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ah_plugin_api::{
    CapturePolicy, Context, Dir, Durability, OmitReason, Snapshot, SnapshotId, SnapshotRequest, Timestamp,
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
        Self::of(tempfile::tempdir().unwrap())
    }

    fn of(dir: tempfile::TempDir) -> Self {
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
        let kind = self.store.read(id, &mut data, &Context::quiet()).unwrap();
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
