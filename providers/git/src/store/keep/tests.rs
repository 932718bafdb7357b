//! Kept objects against real Git.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, Durability, SnapshotId};
use gix::ObjectId;
use gix::objs::Kind;

use super::Kept;
use crate::leb128;
use crate::store::files::faults::{self, Fault};
use crate::store::pack::{Body, Entry};
use crate::store::{Store, hash};
use ah_repository::Repository;

fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(dir)
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always", "-c", "gc.auto=0"])
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

struct Bench {
    _temp: tempfile::TempDir,
    repository: std::path::PathBuf,
    store: Arc<Store>,
    clones: std::path::PathBuf,
}

fn bench() -> Bench {
    // In memory where that is to be had: these tests bring many files to disk.
    let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let [repository, store, clones] = ["repository", "store", "clones"].map(|name| temp.path().join(name));
    for dir in [&repository, &store, &clones] {
        std::fs::create_dir(dir).unwrap();
    }
    git(&repository, &["init", "-q", "-b", "main"]);
    let store = Store::open(&Dir::open(store).unwrap()).unwrap();
    Bench { _temp: temp, repository, store, clones }
}

impl Bench {
    fn commit(&self, text: &str) {
        std::fs::write(self.repository.join("file"), text).unwrap();
        git(&self.repository, &["add", "."]);
        git(&self.repository, &["commit", "-q", "-m", text]);
    }

    /// Publishes a snapshot that has nothing but the list.
    fn snapshot(&self, id: &str, from: &Path) -> Result<ObjectId, String> {
        self.publish(id, from, Durability::Instant)
    }

    fn publish(&self, id: &str, from: &Path, durability: Durability) -> Result<ObjectId, String> {
        let repository = Repository::of(&Dir::open(from).unwrap()).unwrap();
        let guard = self.store.lock(&Context::quiet()).unwrap();
        let batch = self.store.begin(&guard).unwrap();
        let list = match self.store.keep(&batch, &repository, &Context::quiet()).unwrap() {
            Kept::List(list) => list,
            Kept::Not(why) => return Err(why),
        };
        let tree = [b"100644 kept\0", list.as_slice()].concat();
        let tree = batch.object(Kind::Tree, &tree, None).unwrap();
        let commit = format!("tree {tree}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\n{id}\n");
        let commit = batch.object(Kind::Commit, commit.as_bytes(), None).unwrap();
        batch.publish(&SnapshotId::new(id).unwrap(), commit, durability).unwrap();
        Ok(list)
    }

    fn remove(&self, id: &str) {
        let guard = self.store.lock(&Context::quiet()).unwrap();
        assert!(self.store.remove_snapshot(&guard, &SnapshotId::new(id).unwrap()).unwrap());
    }

    /// Makes a repository with the list's objects, and checks that `commit` is whole in it.
    fn check(&self, list: ObjectId, commit: &str) -> Option<Vec<u8>> {
        let name = format!("{}", std::fs::read_dir(&self.clones).unwrap().count());
        let dir = self.clones.join(&name);
        git(&self.clones, &["init", "-q", &name]);
        std::fs::remove_dir_all(dir.join(".git/objects")).unwrap();
        std::fs::create_dir(dir.join(".git/objects")).unwrap();
        let objects = Dir::open(dir.join(".git/objects")).unwrap();
        let shallow = self.store.populate(&list, objects.as_fd(), &Context::quiet()).unwrap();
        if let Some(shallow) = &shallow {
            std::fs::write(dir.join(".git/shallow"), shallow).unwrap();
        }
        git(&dir, &["reset", "-q", "--hard", commit]);
        git(&dir, &["fsck", "--full", "--strict"]);
        git(&dir, &["gc", "-q", "--prune=now"]);
        shallow
    }
}

#[test]
fn a_snapshot_outlives_whatever_is_done_to_the_repository() {
    let bench = bench();
    bench.commit("one");
    let one = git(&bench.repository, &["rev-parse", "HEAD"]);
    let first = bench.snapshot("one", &bench.repository).unwrap();
    git(&bench.repository, &["repack", "-q", "-a", "-d"]);
    bench.commit("two");
    let two = git(&bench.repository, &["rev-parse", "HEAD"]);
    let second = bench.snapshot("two", &bench.repository).unwrap();
    assert_ne!(first, second);
    std::fs::write(bench.repository.join("file"), "staged").unwrap();
    git(&bench.repository, &["add", "."]);
    let staged = git(&bench.repository, &["write-tree"]);
    std::thread::sleep(std::time::Duration::from_millis(80));
    let third = bench.snapshot("three", &bench.repository).unwrap();
    assert_eq!(bench.snapshot("four", &bench.repository).unwrap(), third);

    // Nothing but another branch.
    git(&bench.repository, &["branch", "elsewhere", &git(&bench.repository, &["commit-tree", "-m", "x", &staged])]);
    let other = git(&bench.repository, &["rev-parse", "elsewhere"]);
    let fifth = bench.snapshot("five", &bench.repository).unwrap();
    assert_ne!(fifth, third);
    git(&bench.repository, &["branch", "-q", "-D", "elsewhere"]);

    git(&bench.repository, &["reset", "-q", "--hard", "HEAD~1"]);
    git(&bench.repository, &["reflog", "expire", "--expire=now", "--all"]);
    git(&bench.repository, &["gc", "-q", "--prune=now"]);
    bench.check(first, &one);
    bench.check(second, &two);
    std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
    bench.check(third, &two);
    git(&bench.clones.join("2"), &["cat-file", "-e", &two]);
    bench.check(first, &one);
    bench.check(fifth, &other);

    for id in ["two", "three", "four", "five"] {
        bench.remove(id);
    }
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    bench.check(first, &one);
    let again = bench.store.populate(&third, Dir::open(&bench.clones).unwrap().as_fd(), &Context::quiet());
    assert_eq!(again.unwrap_err().kind, ah_plugin_api::ErrorKind::DataLoss);
    bench.remove("one");
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    assert!(
        crate::store::files::names(crate::store::files::open_dir(&bench.store.folders.keep, "packs").unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn borrowed_shallow_and_linked_repositories_are_kept() {
    let bench = bench();
    bench.commit("one");
    git(&bench.repository, &["repack", "-q", "-a", "-d"]);
    bench.commit("two");
    let head = git(&bench.repository, &["rev-parse", "HEAD"]);
    let parent = bench.repository.parent().unwrap();
    git(parent, &["clone", "-q", "--shared", "repository", "borrower"]);
    git(&bench.repository, &["worktree", "add", "-q", "../linked", "-b", "other"]);
    git(parent, &["clone", "-q", "--depth=1", &format!("file://{}", bench.repository.display()), "shallow"]);
    git(
        parent,
        &[
            "clone",
            "-q",
            "--filter=blob:none",
            "--no-checkout",
            &format!("file://{}", bench.repository.display()),
            "partial",
        ],
    );
    let lists = ["borrower", "linked", "shallow"].map(|name| bench.snapshot(name, &parent.join(name)).unwrap());
    let why = bench.snapshot("partial", &parent.join("partial")).unwrap_err();
    assert!(why.contains("partial"), "{why}");
    for name in ["repository", "borrower", "linked", "shallow"] {
        std::fs::remove_dir_all(parent.join(name)).unwrap();
    }
    for (at, list) in lists.into_iter().enumerate() {
        assert_eq!(bench.check(list, &head).is_some(), at == 2);
    }
}

#[test]
fn a_hostile_repository_is_harmless() {
    let bench = bench();
    bench.commit("one");
    let objects = bench.repository.join(".git/objects");
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    // One in which no object of the repository's own lies.
    let folder = (0..256).map(|first| format!("{first:02x}")).find(|name| !objects.join(name).exists()).unwrap();
    std::fs::create_dir_all(objects.join(&folder)).unwrap();
    fifo(&objects.join(&folder).join("c".repeat(38)));
    std::os::unix::fs::symlink("/etc/passwd", objects.join(&folder).join("d".repeat(38))).unwrap();
    let head = git(&bench.repository, &["rev-parse", "HEAD"]);
    let list = bench.snapshot("one", &bench.repository).unwrap();
    std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
    bench.check(list, &head);
    let dir = bench.store.folders.keep.try_clone().unwrap();
    let kept = crate::store::files::open_dir(&dir, &format!("loose/{folder}")).unwrap();
    assert!(crate::store::files::names(kept).unwrap().is_empty());
}

/// Every file and folder below `dir`.
fn below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut out = vec![dir.to_owned()];
    let mut at = 0;
    while at < out.len() {
        if out[at].is_dir() {
            out.extend(std::fs::read_dir(&out[at]).unwrap().map(|entry| entry.unwrap().path()));
        }
        at += 1;
    }
    out
}

impl Bench {
    fn kept(&self) -> Vec<std::path::PathBuf> {
        let keep = self.repository.parent().unwrap().join("store/keep");
        let is_cache =
            |path: &std::path::PathBuf| matches!(path.file_name().unwrap().to_str(), Some("state" | "first"));
        below(&keep).into_iter().filter(|path| path.is_file() && !is_cache(path)).collect()
    }

    /// Panics if anything that snapshots need was changed while it was watched, and not synced after that.
    fn all_on_disk(&self) {
        let unsynced = faults::unsynced();
        let store = self.repository.parent().unwrap().join("store");
        let needed = ["git", "keep/packs", "keep/loose"].map(|folder| below(&store.join(folder))).concat();
        for path in needed.iter().chain([&store.join("keep")]) {
            let meta = std::fs::symlink_metadata(path).unwrap();
            assert!(!unsynced.contains(&(meta.dev(), meta.ino())), "{} is not on disk", path.display());
        }
    }

    /// A repository with a pack and loose objects.
    fn grown() -> (Self, String) {
        let bench = bench();
        bench.commit("one");
        git(&bench.repository, &["repack", "-q", "-a", "-d"]);
        bench.commit("two");
        let head = git(&bench.repository, &["rev-parse", "HEAD"]);
        (bench, head)
    }
}

#[test]
fn what_a_durable_snapshot_needs_is_on_disk() {
    let (bench, _) = Bench::grown();
    faults::watch();
    bench.publish("one", &bench.repository, Durability::Durable).unwrap();
    bench.all_on_disk();

    // What an instant one left behind is brought to disk by the next durable one.
    bench.commit("three");
    faults::watch();
    bench.snapshot("two", &bench.repository).unwrap();
    bench.publish("three", &bench.repository, Durability::Durable).unwrap();
    bench.all_on_disk();

    // More than are synced one by one.
    for n in 0..150 {
        std::fs::write(bench.repository.join(format!("f{n}")), format!("{n}")).unwrap();
    }
    bench.commit("many");
    faults::watch();
    bench.publish("four", &bench.repository, Durability::Durable).unwrap();
    bench.all_on_disk();
}

#[test]
fn a_disk_that_fails_while_keeping_leaves_nothing_half() {
    for fault in [Fault::NoSpace, Fault::Killed] {
        for reclaims in [false, true] {
            for step in 0.. {
                let (bench, head) = Bench::grown();
                let repository = Repository::of(&Dir::open(&bench.repository).unwrap()).unwrap();
                let guard = bench.store.lock(&Context::quiet()).unwrap();
                let batch = bench.store.begin(&guard).unwrap();
                faults::watch();
                faults::arm(fault, step);
                let outcome = bench.store.keep(&batch, &repository, &Context::quiet());
                let missed = faults::disarm();
                drop(batch);
                drop(guard);
                if reclaims {
                    bench.store.reclaim(false, &Context::quiet()).unwrap();
                    assert_eq!(bench.kept(), Vec::<std::path::PathBuf>::new(), "{fault:?} at step {step}");
                }
                let list = bench.publish("one", &bench.repository, Durability::Durable).unwrap();
                bench.all_on_disk();
                // Several processes each time: not for every step.
                if missed || step % 4 == 0 {
                    std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
                    bench.check(list, &head);
                }
                if missed {
                    assert!(matches!(outcome, Ok(Kept::List(_))), "{outcome:?}");
                    break;
                }
            }
        }
    }
}

#[test]
fn what_was_linked_for_a_list_that_came_to_nothing_is_reclaimed() {
    let (bench, _) = Bench::grown();
    // Found after the loose objects were linked.
    let pack = bench.repository.join(".git/objects/pack");
    std::fs::write(pack.join(format!("pack-{}.idx", "a".repeat(40))), "").unwrap();
    std::fs::write(pack.join(format!("pack-{}.promisor", "a".repeat(40))), "").unwrap();
    assert!(bench.snapshot("one", &bench.repository).is_err());
    let guard = bench.store.lock(&Context::quiet()).unwrap();
    let repository = Repository::of(&Dir::open(&bench.repository).unwrap()).unwrap();
    let batch = bench.store.begin(&guard).unwrap();
    assert!(matches!(bench.store.keep(&batch, &repository, &Context::quiet()).unwrap(), Kept::Not(_)));
    let tree = batch.object(Kind::Tree, b"", None).unwrap();
    let commit = format!("tree {tree}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nx\n");
    let commit = batch.object(Kind::Commit, commit.as_bytes(), None).unwrap();
    batch.publish(&SnapshotId::new("x").unwrap(), commit, Durability::Durable).unwrap();
    drop(guard);
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!(bench.kept(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_pack_of_the_same_name_and_another_size_is_no_damage() {
    let (bench, head) = Bench::grown();
    bench.snapshot("one", &bench.repository).unwrap();
    let packs = || -> Vec<_> {
        let dir = std::fs::read_dir(bench.repository.join(".git/objects/pack")).unwrap();
        let mut all: Vec<_> = dir.map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    };
    // As other tools name packs: by their objects alone.
    let before = packs();
    let stem = before.iter().find(|path| path.extension().unwrap() == "pack").unwrap().with_extension("");
    git(&bench.repository, &["-c", "pack.compression=0", "repack", "-q", "-a", "-d", "-F"]);
    for path in packs().into_iter().filter(|path| !before.contains(path)) {
        let name = stem.with_extension(path.extension().unwrap());
        let _ = std::fs::remove_file(&name);
        std::fs::rename(&path, name).unwrap();
    }
    git(&bench.repository, &["branch", "another"]);
    let list = bench.snapshot("two", &bench.repository).unwrap();
    let cloned = bench.clones.join("objects");
    std::fs::create_dir(&cloned).unwrap();
    bench.store.populate(&list, Dir::open(&cloned).unwrap().as_fd(), &Context::quiet()).unwrap();
    let _ = head;
}

#[test]
fn on_another_filesystem_objects_are_copied() {
    let (bench, head) = Bench::grown();
    let Some(other) = elsewhere(&bench) else { return };
    faults::watch();
    let list = bench.publish("one", &other.path().join("repository"), Durability::Durable).unwrap();
    bench.all_on_disk();
    drop(other);
    let kept = bench.kept();
    // The pack with its index, and three loose objects.
    assert_eq!(kept.len(), 5, "{kept:?}");
    assert!(kept.iter().all(|path| std::fs::metadata(path).unwrap().nlink() == 1));
    bench.check(list, &head);
}

#[test]
fn a_copy_that_was_cut_short_is_made_again() {
    let (bench, head) = Bench::grown();
    let Some(other) = elsewhere(&bench) else { return };
    let theirs = other.path().join("repository");
    let objects = below(&theirs.join(".git/objects")).into_iter();
    let files: Vec<_> =
        objects.filter(|path| path.is_file()).map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    let put_all = |whole: bool| {
        for (bytes, path) in &files {
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, if whole { bytes } else { &bytes[..bytes.len() - 1] }).unwrap();
        }
    };
    put_all(false);
    let first = bench.snapshot("one", &theirs).unwrap();
    put_all(true);
    faults::watch();
    let second = bench.publish("two", &theirs, Durability::Durable).unwrap();
    bench.all_on_disk();
    put_all(false);
    let third = bench.snapshot("three", &theirs).unwrap();
    for list in [first, second, third] {
        bench.check(list, &head);
    }
    assert_eq!(bench.kept().len(), 5);
}

/// A folder on another filesystem than the store, with a copy of the repository in it.
fn elsewhere(bench: &Bench) -> Option<tempfile::TempDir> {
    let other = tempfile::tempdir().ok()?;
    let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
    if device(other.path()) == device(&bench.repository) {
        let strict = std::env::var_os("AH_TEST_REQUIRE_ALL").is_some();
        assert!(!strict, "/dev/shm and the temporary folder have to be on different filesystems");
        println!("skipped: no second filesystem");
        return None;
    }
    assert!(Command::new("cp").arg("-a").arg(&bench.repository).arg(other.path()).status().unwrap().success());
    Some(other)
}

#[test]
fn the_first_commit_is_found_once_and_remembered() {
    let first = |bench: &Bench, path: &Path| {
        let repository = Repository::of(&Dir::open(path).unwrap()).unwrap();
        bench.store.first_commit(&repository, &Context::quiet()).unwrap()
    };
    let bench = bench();
    assert_eq!(first(&bench, &bench.repository), None);
    bench.commit("one");
    let one = git(&bench.repository, &["rev-parse", "HEAD"]);
    for n in 0..20 {
        bench.commit(&format!("{n}"));
    }
    git(&bench.repository, &["repack", "-q", "-a", "-d"]);
    bench.commit("loose");
    // A merge of a history without a common beginning: first parents lead to ours.
    git(&bench.repository, &["checkout", "-q", "--orphan", "other"]);
    bench.commit("stranger");
    let stranger = git(&bench.repository, &["rev-parse", "HEAD"]);
    git(&bench.repository, &["checkout", "-q", "main"]);
    git(&bench.repository, &["merge", "-q", "-s", "ours", "--allow-unrelated-histories", "-m", "merge", "other"]);
    let parent = bench.repository.parent().unwrap();
    git(parent, &["clone", "-q", "--depth=1", &format!("file://{}", bench.repository.display()), "shallow"]);
    assert_eq!(first(&bench, &parent.join("shallow")), None);
    assert_eq!(first(&bench, &bench.repository), Some(one.clone()));
    // From here on no object is needed.
    git(&bench.repository, &["checkout", "-q", "other"]);
    std::fs::remove_dir_all(bench.repository.join(".git/objects/pack")).unwrap();
    assert_eq!(first(&bench, &bench.repository), Some(one));
    // Another repository in its place.
    std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
    std::fs::remove_file(bench.repository.join("file")).unwrap();
    git(&bench.repository, &["init", "-q", "-b", "main"]);
    bench.commit("anew");
    let anew = git(&bench.repository, &["rev-parse", "HEAD"]);
    assert_eq!(first(&bench, &bench.repository), Some(anew.clone()));
    assert_ne!(anew, stranger);

    // Where an object is missing there is none, and it is not looked for again from the same HEAD.
    std::fs::remove_file(parent.join("store/keep/first")).unwrap();
    bench.commit("next");
    std::fs::remove_file(bench.repository.join(format!(".git/objects/{}/{}", &anew[..2], &anew[2..]))).unwrap();
    assert_eq!(first(&bench, &bench.repository), None);
    assert_eq!(first(&bench, &bench.repository), None);
}

/// Makes a pack as somebody may who means harm: a commit is a small delta of something of `large` bytes, which is a small delta of a commit.
/// Gives the id of the former.
fn small_of_large(packs: &Path, large: usize) -> ObjectId {
    let mut base = format!("tree {}\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\n", "1".repeat(40)).into_bytes();
    base.resize(0x10000, b'x');
    let sized = |from: usize, to: usize, instructions: &[u8]| {
        let mut delta = Vec::new();
        leb128::put(&mut delta, from as u64);
        leb128::put(&mut delta, to as u64);
        delta.extend_from_slice(instructions);
        delta
    };
    // An instruction without a size copies 64 KiB.
    let grow = sized(base.len(), large, &vec![0x80; large / base.len()]);
    let shrink = sized(large, 200, &[0x90, 200]);
    let small = hash(Kind::Commit, &base[..200]);
    let ids = [hash(Kind::Commit, &base), ObjectId::from_bytes_or_panic(&[0x11; 20]), small];
    let (mut pack, mut at) = (b"PACK\0\0\0\x02\0\0\0\x03".to_vec(), Vec::new());
    for data in [&base, &grow, &shrink] {
        let start = pack.len();
        let body = at.last().map_or(Body::Whole(Kind::Commit), |before| Body::Before((start - before) as u64));
        Entry::write(body, data.len() as u64, &mut pack);
        let mut zlib = flate2::write::ZlibEncoder::new(&mut pack, flate2::Compression::best());
        std::io::Write::write_all(&mut zlib, data).unwrap();
        zlib.finish().unwrap();
        at.push(start);
    }
    let mut entries: Vec<_> = ids.iter().zip(&at).collect();
    entries.sort();
    let mut index = b"\xfftOc\0\0\0\x02".to_vec();
    for first in 0..=255 {
        let below = entries.iter().filter(|(id, _)| id.as_bytes()[0] <= first).count();
        index.extend_from_slice(&(below as u32).to_be_bytes());
    }
    entries.iter().for_each(|(id, _)| index.extend_from_slice(id.as_bytes()));
    index.extend_from_slice(&[0; 3 * 4]);
    entries.iter().for_each(|(_, at)| index.extend_from_slice(&(**at as u32).to_be_bytes()));
    for file in [&mut pack, &mut index] {
        file.extend_from_slice(&[0; 20]);
    }
    index.extend_from_slice(&[0; 20]);
    std::fs::write(packs.join("pack-x.pack"), pack).unwrap();
    std::fs::write(packs.join("pack-x.idx"), index).unwrap();
    small
}

#[test]
fn a_commit_that_is_made_of_something_large_is_none() {
    for (large, there) in [(1 << 20, true), (64 << 20, false)] {
        let bench = bench();
        let head = small_of_large(&bench.repository.join(".git/objects/pack"), large);
        std::fs::write(bench.repository.join(".git/refs/heads/main"), format!("{head}\n")).unwrap();
        let repository = Repository::of(&Dir::open(&bench.repository).unwrap()).unwrap();
        let first = bench.store.first_commit(&repository, &Context::quiet()).unwrap();
        assert_eq!(first, there.then(|| head.to_string()));
    }
}
