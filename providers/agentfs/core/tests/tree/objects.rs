//! Stores of Git's objects: kept whole for branches, whatever Git packs meanwhile.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ah_agentfs::{BranchId, Kind, Options, ROOT, SetAttr, View, Workspace};

use crate::{Place, at, on_each_disk, snapshot};

/// Git in a directory, without what it does by itself; gives what it says.
fn git(at: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(at)
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0", "-c", "gc.packRefs=false"])
        .args(["-c", "core.compression=0"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A repository, some of whose objects are in a pack.
fn plant(at: &Path) {
    git(at, &["init", "-q", "-b", "main"]);
    for n in 0..8 {
        for file in 0..10 {
            std::fs::write(at.join(format!("f{n}-{file}")), format!("{n} {file}\n").repeat(n + 1)).unwrap();
        }
        git(at, &["add", "."]);
        git(at, &["commit", "-qm", "c", "--allow-empty"]);
        if n == 3 {
            git(at, &["gc", "-q"]);
        }
    }
}

fn objects(at: &Path) -> usize {
    git(at, &["rev-list", "--objects", "--all"]).lines().count()
}

/// Whether the repository that a tree shows is whole, by Git, and has so many objects that something leads to. No two files of the tree have one number.
fn is_whole(view: &View, objects_then: usize) {
    let copy = tempfile::tempdir().unwrap();
    let mut numbers = HashSet::new();
    let mut directories = vec![(ROOT, copy.path().to_owned())];
    while let Some((directory, at)) = directories.pop() {
        // What `git gc` has there while it works may be seen coming, and goes with it.
        for entry in view.list(directory).unwrap().into_iter().filter(|entry| entry.name != b"gc.pid") {
            let attr = view.lookup(directory, &entry.name).unwrap();
            assert!(numbers.insert(attr.ino), "{entry:?}");
            let at = at.join(std::str::from_utf8(&entry.name).unwrap());
            match attr.kind {
                Kind::Directory => {
                    std::fs::create_dir(&at).unwrap();
                    directories.push((attr.ino, at));
                }
                Kind::File => {
                    let mut copy = std::fs::File::create(at).unwrap();
                    let mut done = 0;
                    while done < attr.size {
                        let bytes = view.read(attr.ino, done, 1 << 20).unwrap();
                        assert!(!bytes.is_empty());
                        copy.write_all(&bytes).unwrap();
                        done += bytes.len() as u64;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    git(copy.path(), &["fsck", "--full"]);
    assert_eq!(objects(copy.path()), objects_then);
}

/// A branch's own copies of what of a repository is no object, as its maker has it.
fn take_over(view: &View) {
    let mut directories = vec![at(view, ".git")];
    while let Some(directory) = directories.pop() {
        for entry in view.list(directory).unwrap().into_iter().filter(|entry| entry.name != b"objects") {
            let attr = view.lookup(directory, &entry.name).unwrap();
            match attr.kind {
                Kind::Directory => directories.push(attr.ino),
                _ => {
                    let content = view.read(attr.ino, 0, 1 << 20).unwrap();
                    view.setattr(attr.ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
                    view.write(attr.ino, 0, &content).unwrap();
                }
            }
        }
    }
}

fn until_kept(workspace: &Workspace, branch: BranchId) {
    let begun = Instant::now();
    while workspace.is_keeping(branch) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Everything in the workspace goes, and a branch's repository is whole, in its snapshots too.
fn outlives(workspace: &Workspace, branch: BranchId, view: &View, lower: &Path, objects: usize) {
    let before = snapshot(workspace, branch);
    std::fs::remove_dir_all(lower.join(".git")).unwrap();
    is_whole(view, objects);
    is_whole(&workspace.look(branch).unwrap(), objects);
    for snapshot in [before, snapshot(workspace, branch)] {
        is_whole(&workspace.view_of(snapshot).unwrap(), objects);
    }
    let objects = |path: &&Vec<u8>| path.starts_with(b".git/objects");
    assert_eq!(workspace.changed_below(branch).unwrap().iter().find(objects), None);
}

#[test]
fn a_repository_that_is_packed_before_it_is_kept_is_whole_in_its_branches() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let lower = place.lower();
        plant(&lower);
        let all = objects(&lower);
        let workspace = place.create();
        let base = workspace.base_with_names(b"").unwrap();
        let branch = workspace.branch(base, b"").unwrap();
        let view = workspace.view(branch).unwrap();
        take_over(&view);
        is_whole(&view, all);
        git(&lower, &["gc", "-q"]);
        is_whole(&view, all);
        workspace.take_fingerprints(base).unwrap();
        is_whole(&view, all);
        // Once it is kept, nothing that comes there later shows.
        std::fs::write(lower.join("later"), "later").unwrap();
        git(&lower, &["add", "later"]);
        git(&lower, &["commit", "-qm", "later"]);
        git(&lower, &["gc", "-q"]);
        outlives(&workspace, branch, &view, &lower, all);
        drop(view);
        drop(workspace);
        place.check();
    });
}

#[test]
fn a_repository_that_was_packed_before_its_names_were_written_down_is_kept_too() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let lower = place.lower();
        plant(&lower);
        let all = objects(&lower);
        // Nothing is kept behind it.
        let workspace = place.create();
        let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
        take_over(&workspace.view(branch).unwrap());
        git(&lower, &["gc", "-q"]);
        workspace.sync().unwrap();
        drop(workspace);
        let workspace = place.open_with(Options::default());
        until_kept(&workspace, branch);
        let view = workspace.view(branch).unwrap();
        outlives(&workspace, branch, &view, &lower, all);
    });
}

#[test]
fn a_repository_is_whole_in_a_branch_whenever_it_is_packed() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let lower = place.lower();
        drop(place.create());
        let workspace = place.open_with(Options::default());
        for after in [0, 5, 20, 60] {
            plant(&lower);
            let all = objects(&lower);
            let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
            let view = workspace.view(branch).unwrap();
            take_over(&view);
            std::thread::sleep(Duration::from_millis(after));
            git(&lower, &["gc", "-q"]);
            until_kept(&workspace, branch);
            outlives(&workspace, branch, &view, &lower, all);
        }
    });
}

#[test]
fn a_repository_that_goes_before_it_is_kept_is_told() {
    let place = Place::pinned();
    plant(&place.lower());
    let workspace = place.create();
    let base = workspace.base_with_names(b"").unwrap();
    let branch = workspace.branch(base, b"").unwrap();
    std::fs::remove_dir_all(place.lower().join(".git")).unwrap();
    workspace.take_fingerprints(base).unwrap();
    assert_eq!(workspace.changed_below(branch).unwrap(), [b".git/objects"]);
}

#[test]
fn of_a_repository_that_cannot_be_pinned_as_a_whole_what_is_packed_shows() {
    // An object that is too large goes into a pack, or such a pack into another.
    for packed in [false, true] {
        let place = Place::pinned();
        let lower = place.lower();
        plant(&lower);
        let mut large = std::fs::File::create(lower.join("large")).unwrap();
        std::io::copy(&mut std::fs::File::open("/dev/urandom").unwrap().take(65 << 20), &mut large).unwrap();
        git(&lower, &["add", "large"]);
        git(&lower, &["commit", "-qm", "large"]);
        if packed {
            git(&lower, &["gc", "-q"]);
        }
        let all = objects(&lower);
        let (workspace, branch) = crate::pins::begin(&place);
        let view = workspace.view(branch).unwrap();
        std::fs::write(lower.join("more"), "more").unwrap();
        git(&lower, &["add", "more"]);
        git(&lower, &["commit", "-qm", "more"]);
        is_whole(&view, all);
        git(&lower, &["gc", "-q"]);
        is_whole(&view, all);
    }
}
