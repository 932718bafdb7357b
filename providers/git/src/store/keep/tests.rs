//! Kept objects against real Git.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, Durability, SnapshotId};
use gix::ObjectId;
use gix::objs::Kind;

use super::{Kept, Populated};
use crate::repository::Repository;
use crate::store::Store;

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
    let temp = tempfile::tempdir().unwrap();
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
        let repository = Repository::discover(&Dir::open(from).unwrap()).unwrap().unwrap();
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
        batch.publish(&SnapshotId::new(id).unwrap(), commit, Durability::Instant).unwrap();
        Ok(list)
    }

    fn remove(&self, id: &str) {
        let guard = self.store.lock(&Context::quiet()).unwrap();
        assert!(self.store.remove_snapshot(&guard, &SnapshotId::new(id).unwrap()).unwrap());
    }

    /// Makes a repository with the list's objects, and checks that `commit` is whole in it.
    fn check(&self, list: ObjectId, commit: &str) -> Populated {
        let name = format!("{}", std::fs::read_dir(&self.clones).unwrap().count());
        let dir = self.clones.join(&name);
        git(&self.clones, &["init", "-q", &name]);
        std::fs::remove_dir_all(dir.join(".git/objects")).unwrap();
        std::fs::create_dir(dir.join(".git/objects")).unwrap();
        let objects = Dir::open(dir.join(".git/objects")).unwrap();
        let populated = self.store.populate(&list, objects.as_fd(), &Context::quiet()).unwrap();
        if let Some(shallow) = &populated.shallow {
            std::fs::write(dir.join(".git/shallow"), shallow).unwrap();
        }
        git(&dir, &["reset", "-q", "--hard", commit]);
        git(&dir, &["fsck", "--full", "--strict"]);
        git(&dir, &["gc", "-q", "--prune=now"]);
        populated
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
    let populated = bench.check(third, &two);
    assert!(populated.shared > 0 && populated.copied == 0);
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
        assert_eq!(bench.check(list, &head).shallow.is_some(), at == 2);
    }
}

#[test]
fn a_hostile_repository_is_harmless() {
    let bench = bench();
    bench.commit("one");
    let objects = bench.repository.join(".git/objects");
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    std::fs::create_dir_all(objects.join("ab")).unwrap();
    fifo(&objects.join("ab").join("c".repeat(38)));
    std::os::unix::fs::symlink("/etc/passwd", objects.join("ab").join("d".repeat(38))).unwrap();
    let head = git(&bench.repository, &["rev-parse", "HEAD"]);
    let list = bench.snapshot("one", &bench.repository).unwrap();
    std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
    bench.check(list, &head);
    let dir = bench.store.folders.keep.try_clone().unwrap();
    assert!(crate::store::files::names(crate::store::files::open_dir(&dir, "loose/ab").unwrap()).unwrap().is_empty());
}

#[test]
fn a_disk_that_fails_while_keeping_leaves_nothing_half() {
    use crate::store::files::faults::{Fault, arm, disarm};
    for fault in [Fault::NoSpace, Fault::Killed] {
        for step in 0.. {
            let bench = bench();
            bench.commit("one");
            git(&bench.repository, &["repack", "-q", "-a", "-d"]);
            bench.commit("two");
            let head = git(&bench.repository, &["rev-parse", "HEAD"]);
            let repository = Repository::discover(&Dir::open(&bench.repository).unwrap()).unwrap().unwrap();
            let guard = bench.store.lock(&Context::quiet()).unwrap();
            let batch = bench.store.begin(&guard).unwrap();
            arm(fault, step);
            let outcome = bench.store.keep(&batch, &repository, &Context::quiet());
            let missed = disarm();
            drop(batch);
            drop(guard);
            let list = bench.snapshot("one", &bench.repository).unwrap();
            std::fs::remove_dir_all(bench.repository.join(".git")).unwrap();
            bench.check(list, &head);
            if missed {
                assert!(matches!(outcome, Ok(Kept::List(_))), "{outcome:?}");
                break;
            }
        }
    }
}

#[test]
fn on_another_filesystem_objects_are_copied() {
    let bench = bench();
    bench.commit("one");
    git(&bench.repository, &["repack", "-q", "-a", "-d"]);
    bench.commit("two");
    let head = git(&bench.repository, &["rev-parse", "HEAD"]);
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let copy = Command::new("cp").arg("-a").arg(&bench.repository).arg(other.path()).status().unwrap();
    assert!(copy.success());
    let list = bench.snapshot("one", &other.path().join("repository")).unwrap();
    drop(other);
    bench.store.sync(&Context::quiet()).unwrap();
    bench.check(list, &head);
}
