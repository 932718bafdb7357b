//! What is on disk when a call returns: the disk as it is at that moment is put aside and looked at later, as after a power cut. Nothing that
//! the filesystem still holds in memory is in it. The virtual machine's tests cut the power of a disk that loses its cache, too.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use ah_plugin_api::{CloneRequest, Context, DestroyRequest, FileName, Provider, ReclaimRequest, WritableClone};
use ah_test_disks::{Cut, Disk};
use common::{Bench, run};

/// A repository, and as the workspace its linked work tree.
fn linked(at: &Path, workspace: &Path) {
    let git = |dir: &Path, args: &[&str]| {
        let path = dir.to_str().unwrap();
        let own = ["-C", path, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        run("git", &[&own[..], args].concat())
    };
    fs::create_dir(at).unwrap();
    git(at, &["init", "-q", "-b", "trunk"]);
    git(at, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(at, &["worktree", "add", "-q", workspace.to_str().unwrap(), "-b", "other"]);
}

/// Everything is on disk now, and nothing more comes there for a while by itself.
fn settle(disk: &Disk) {
    run("btrfs", &["filesystem", "sync", disk.at().to_str().unwrap()]);
}

fn clone(disk: &Disk, name: &str) -> (Bench, WritableClone) {
    let bench = Bench::in_folder(disk.at());
    let taken = bench.snapshot(name);
    settle(disk);
    let made = bench.clone(&taken, name);
    (bench, made)
}

#[test]
fn a_branch_that_is_ready_is_never_the_users_own_repository() {
    let Some(disk) = Disk::new("btrfs", 300, "commit=300") else { return };
    linked(&disk.at().join("main"), &disk.at().join("work"));
    let (bench, made) = clone(&disk, "c");
    let cut = Cut::off(&disk);
    assert!(made.path.join(".git").symlink_metadata().unwrap().is_dir());
    drop(bench);
    cut.look(&disk, |at| {
        let git = at.join("target/c/work/.git");
        assert!(git.symlink_metadata().unwrap().is_dir(), "{:?}", fs::read_to_string(&git));
        let head = run("git", &["-C", git.parent().unwrap().to_str().unwrap(), "rev-parse", "--git-dir", "HEAD"]);
        assert!(head.starts_with(".git\n") && head.trim().len() == 5 + 40, "{head}");
        assert!(fs::read_dir(at.join("target/c/work")).unwrap().count() == 1, "nothing is put aside");
    });
}

type TakeAway<'a> = &'a dyn Fn(&Bench, WritableClone);

#[test]
fn a_clone_that_was_taken_away_does_not_come_back() {
    let Some(disk) = Disk::new("btrfs", 300, "commit=300") else { return };
    let folder = |path: &Path| path.join("target/c").exists();
    let ways: [TakeAway<'_>; 2] = [
        &|bench, made| bench.destroy(&DestroyRequest::Clone(made.reference)).unwrap(),
        // The maker was killed before it heard the reference.
        &|bench, _| {
            let request = ReclaimRequest { forgotten: vec![FileName::new("c").unwrap()], ..ReclaimRequest::default() };
            let actions = bench.provider.reclaim(&bench.place(), &request, &Context::quiet()).unwrap().actions;
            assert_eq!(actions.len(), 1, "{actions:?}");
        },
    ];
    for take_away in ways {
        let (bench, made) = clone(&disk, "c");
        settle(&disk);
        take_away(&bench, made);
        let cut = Cut::off(&disk);
        assert!(!folder(disk.at()));
        bench.destroy(&DestroyRequest::Snapshot(ah_plugin_api::Reference::new("c").unwrap())).unwrap();
        bench.reclaim();
        drop(bench);
        cut.look(&disk, |at| assert!(!folder(at), "it came back"));
    }
}

#[test]
fn a_clone_that_could_not_be_made_whole_does_not_come_back() {
    let Some(disk) = Disk::new("btrfs", 300, "commit=300") else { return };
    linked(&disk.at().join("main"), &disk.at().join("work"));
    let bench = Bench::in_folder(disk.at());
    let taken = bench.snapshot("c");
    settle(&disk);
    let request = CloneRequest { snapshot: taken.reference, name: FileName::new("c").unwrap() };
    let cancelled = Cancels::default();
    let failed = bench.provider.clone_snapshot(&bench.place(), &request, &Context::new(&cancelled));
    let cut = Cut::off(&disk);
    assert!(failed.is_err(), "{failed:?}");
    assert!(!disk.at().join("target/c").exists());
    drop(bench);
    cut.look(&disk, |at| assert!(!at.join("target/c").exists(), "it came back"));
}

/// Gives up once the clone is there: the second time that it is asked.
#[derive(Default)]
struct Cancels(std::sync::atomic::AtomicU32);

impl ah_plugin_api::Observer for Cancels {
    fn cancelled(&self) -> bool {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0
    }
}
