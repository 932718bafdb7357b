//! A branch in which something was deleted: that is told as what it is, and is nothing to lose.

use std::fs;

use super::support::World;
use super::{branched, git, refused};

#[test]
fn what_was_only_deleted_does_not_hold_a_branch() {
    let world = World::new();
    world.write("src/a", "a");
    world.write("src/b", "b");
    let branch = branched(&world);
    fs::remove_dir_all(branch.join("src")).unwrap();
    fs::write(branch.join("f"), "two").unwrap();
    refused(&world, "nowhere else: 1 changed file, 2 deleted files\n");
    refused(&world, "src/b\n");
    fs::write(branch.join("f"), "one").unwrap();
    // A file in the place of a directory is one that is there.
    fs::write(branch.join("src"), "mine").unwrap();
    refused(&world, "nowhere else: 1 changed file, 2 deleted files\n");
    fs::remove_file(branch.join("src")).unwrap();
    world.fs(["rm", "b"]);
    assert!(!branch.exists() && world.read("src/a").as_deref() == Some("a"));
}

#[test]
fn a_repository_that_is_gone_or_broken_holds_a_branch() {
    let world = World::new();
    let branch = branched(&world);
    fs::write(branch.join("work"), "w").unwrap();
    git(&branch, &["add", "work"]);
    git(&branch, &["commit", "-q", "-m", "work"]);
    fs::remove_file(branch.join("work")).unwrap();
    for part in ["HEAD", "refs", "objects"] {
        let (part, aside) = (branch.join(".git").join(part), branch.join(".git/aside"));
        fs::rename(&part, &aside).unwrap();
        // The commit is there still, and is nowhere else.
        refused(&world, "perhaps commits (its repository is broken or gone)");
        fs::rename(&aside, &part).unwrap();
    }
    refused(&world, "HEAD moved");
    for entry in fs::read_dir(&branch).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    // Of those that are ignored not every provider tells.
    refused(&world, "perhaps commits (its repository is broken or gone), ");
    refused(&world, " deleted files\n");
    world.fs(["rm", "--force", "b"]);
}

#[test]
fn a_file_that_is_a_directory_in_both_was_deleted_in_both() {
    let world = World::new();
    world.write("plain", "p");
    let branch = branched(&world);
    fs::write(branch.join("f"), "two").unwrap();
    fs::remove_file(branch.join("plain")).unwrap();
    fs::create_dir(branch.join("plain")).unwrap();
    refused(&world, "nowhere else: 1 changed file, 1 deleted file\n");
    fs::remove_file(world.root().join("plain")).unwrap();
    fs::create_dir(world.root().join("plain")).unwrap();
    refused(&world, "nowhere else: 1 changed file\n");
    world.fs(["rm", "--force", "b"]);
}
