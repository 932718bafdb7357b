//! What its owner has closed to themselves as well: `chmod -R 000`, say. It is opened, and nothing of it is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::bench::Bench;
use crate::support::{Ran, User, World, is_root, skip};

fn set_mode(path: PathBuf, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Does what a hint says, typed as it stands.
fn open_as_told(ran: &Ran) {
    let line = ran.stderr.split('`').find(|text| text.starts_with("chmod -R u+rwX ")).unwrap();
    assert!(Command::new("sh").args(["-c", line]).status().unwrap().success(), "{line}");
}

fn one_of_ten(dir: &str) -> impl Iterator<Item = String> {
    (0..10).map(move |at| format!("{dir}/{at}"))
}

/// Files of an ordinary user, of which a snapshot holds what was before the last work on them.
fn worked_on() -> World {
    let world = World::of(User::Ordinary);
    world.use_git();
    one_of_ten("src").for_each(|name| world.write(name, "good"));
    world.fs(["snapshot", "-m", "good"]);
    one_of_ten("src").for_each(|name| world.write(name, "the user's"));
    world
}

#[test]
fn a_directory_that_its_owner_closed_is_named_once_and_opened() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = worked_on();
    let src = world.root().join("src");
    for mode in [0o000, 0o300, 0o600] {
        set_mode(src.clone(), mode);
        for how in [&[][..], &["--dry-run"], &["--", "src/1"]] {
            let ran = world.run(["agent", "fs", "restore", "good"].iter().chain(how));
            assert!(ran.code == 4 && ran.stderr.contains("src") && !ran.stderr.contains("src/"), "{how:?}: {ran:?}");
            assert!(ran.stderr.contains("it is yours, and closed to you as well"), "{how:?}: {ran:?}");
            assert!(!ran.stderr.contains("--force") && !ran.stderr.contains("after `--`"), "{how:?}: {ran:?}");
        }
    }
    open_as_told(&world.run(["agent", "fs", "restore", "good"]));
    world.fs(["restore", "good"]);
    assert!(one_of_ten("src").all(|name| world.read(name).as_deref() == Some("good")));
    world.fs(["undo"]);
    assert!(one_of_ten("src").all(|name| world.read(name).as_deref() == Some("the user's")));
}

#[test]
fn files_that_their_owner_closed_are_opened_and_not_lost() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = worked_on();
    one_of_ten("src").for_each(|name| set_mode(world.root().join(name), 0o000));
    let ran = world.run(["agent", "fs", "restore", "good"]);
    assert!(ran.code == 4 && !ran.stderr.contains("--force"), "{ran:?}");
    open_as_told(&ran);
    world.fs(["restore", "good"]);
    world.fs(["undo"]);
    assert!(one_of_ten("src").all(|name| world.read(name).as_deref() == Some("the user's")));
    // What else is in the way has a way of its own.
    set_mode(world.root().join("src/1"), 0o000);
    fs::remove_file(world.root().join("src/2")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.root().join("src/2")).unwrap();
    let ran = world.run(["agent", "fs", "restore", "good"]);
    assert!(ran.code == 4 && ran.stderr.contains("of the others: move these out of the way"), "{ran:?}");
    open_as_told(&ran);
    assert_eq!(world.read("src/1").as_deref(), Some("the user's"));
}

#[test]
fn what_its_owner_closed_in_a_branch_is_said_to_be_theirs() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let bench = Bench::new(User::Ordinary);
    let branch = bench.branch("b");
    bench.at(&branch, &["snapshot", "-m", "good"]);
    bench.sh(&format!("cd {} && echo new > src/main && chmod 000 src/main", branch.display()));
    let ran = bench.ran(&branch, &["restore", "good"]);
    assert!(ran.stderr.contains("src/main (") && ran.stderr.contains("`chmod -R u+rwX` opens it"), "{ran:?}");
}
