//! A branch whose commits were brought home goes.

use std::fs;
use std::process::Command;

use super::support::{Ran, World};
use super::{branched, git, refused};

/// What `rm` says of it, as it is refused.
fn said(world: &World) -> String {
    let Ran { code, stderr, .. } = world.run(["agent", "fs", "rm", "b"]);
    assert_eq!(code, 4, "{stderr}");
    stderr
}

#[test]
fn what_was_merged_is_not_only_there() {
    let world = World::new();
    let root = world.root();
    for diverged in [false, true] {
        let branch = match diverged {
            false => branched(&world),
            true => world.fs(["branch", "--name", "b"]).into(),
        };
        fs::write(branch.join("f"), if diverged { "three" } else { "two" }).unwrap();
        git(&branch, &["commit", "-q", "-a", "-m", "in the branch"]);
        if diverged {
            // Words of a commit are not a commit.
            let like = format!("like {}", git(&branch, &["rev-parse", "HEAD"]));
            git(&root, &["commit", "-q", "--allow-empty", "-m", &like]);
        }
        refused(&world, "HEAD moved");
        let place = branch.to_str().unwrap();
        assert!(said(&world).contains(&format!("`git fetch {place} refs/heads/main`, then `git merge FETCH_HEAD`")));
        git(&root, &["fetch", "-q", place]);
        // By that alone it is not for long.
        refused(&world, "HEAD moved");
        git(&root, &["merge", "-q", "--no-edit", "FETCH_HEAD"]);
        // A packed commit is not looked into: with a name it need not be.
        if diverged {
            git(&root, &["gc", "-q"]);
            refused(&world, "HEAD moved");
            git(&root, &["branch", "kept", "FETCH_HEAD"]);
        }
        world.fs(["rm", "b"]);
        assert!(!branch.exists());
    }
    // Fresh, a merge tells what it is of.
    let branch = std::path::PathBuf::from(world.fs(["branch", "--name", "b"]));
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "two"]);
    git(&root, &["commit", "-q", "--allow-empty", "-m", "meanwhile"]);
    git(&root, &["fetch", "-q", branch.to_str().unwrap()]);
    git(&root, &["merge", "-q", "--no-edit", "FETCH_HEAD"]);
    git(&branch, &["reset", "-q", "--soft", "HEAD~1"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_the_hint_says_brings_references_home() {
    let world = World::new();
    let branch = branched(&world);
    git(&branch, &["checkout", "-q", "-b", "it's"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "there"]);
    git(&branch, &["tag", "-a", "-m", "done", "v1"]);
    // The commit alone is not the name.
    git(&world.root(), &["fetch", "-q", branch.to_str().unwrap(), "it's"]);
    git(&world.root(), &["merge", "-q", "FETCH_HEAD"]);
    refused(&world, "HEAD moved");
    let said = said(&world);
    let fetch = said.split('`').find(|part| part.starts_with("git fetch ")).unwrap();
    let ran = Command::new("sh").args(["-c", fetch]).current_dir(world.root()).output().unwrap();
    assert!(ran.status.success(), "{fetch}: {ran:?}");
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_is_stashed_below_the_last_is_only_there() {
    let world = World::new();
    let branch = branched(&world);
    for contents in ["two", "three"] {
        fs::write(branch.join("f"), contents).unwrap();
        git(&branch, &["stash", "-q"]);
    }
    git(&world.root(), &["fetch", "-q", branch.to_str().unwrap(), "refs/stash:refs/stash"]);
    refused(&world, "references moved");
    git(&branch, &["stash", "drop", "-q", "stash@{1}"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_linked_work_tree_has_what_its_repository_has() {
    let world = World::new();
    let (root, main) = (world.root(), world.path("main"));
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q", "-b", "main"]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&main, &["worktree", "add", "-q", "-b", "linked", root.to_str().unwrap()]);
    world.write("f", "one");
    let branch = std::path::PathBuf::from(world.fs(["branch", "--name", "b"]));
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "there"]);
    refused(&world, "HEAD moved");
    git(&main, &["fetch", "-q", branch.to_str().unwrap()]);
    git(&main, &["branch", "kept", "FETCH_HEAD"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}
