//! Stores in which something is damaged: what can be read comes back, and what cannot is named and stays as it is.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Ran, World};
use crate::told::tampered;

/// Nothing that gets smaller, so that where it lies in a pack is known.
fn noise(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..60_000).map(next).collect()
}

fn store(world: &World) -> PathBuf {
    let workspace = fs::read_dir(world.path("state/workspaces")).unwrap().next().unwrap().unwrap().path();
    workspace.join("providers/git/git")
}

fn pack(world: &World) -> PathBuf {
    let packs = fs::read_dir(store(world).join("objects/pack")).unwrap();
    packs.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|it| it == "pack")).unwrap()
}

/// A workspace with a snapshot `before`, of which two files are damaged since, and from which everything differs.
fn damaged() -> World {
    let world = World::on_git();
    world.write("dir/lost", noise(1));
    world.write("place", noise(2));
    world.write("kept", "then");
    world.fs(["snapshot", "-m", "before"]);
    world.wait_for_background();
    let pack = pack(&world);
    let mut bytes = fs::read(&pack).unwrap();
    // Nearly all of it are these two.
    for at in [bytes.len() / 4, bytes.len() / 4 * 3] {
        bytes[at] ^= 0x55;
    }
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
    world.write("dir/lost", "now");
    fs::remove_file(world.root().join("place")).unwrap();
    world.write("place/inside", "now");
    world.write("kept", "now");
    world.write("new", "now");
    world
}

#[test]
fn what_can_be_read_comes_back_and_the_rest_is_named() {
    let world = damaged();
    let untouched = || ["w/dir", "w/place"].map(|folder| world.picture(folder));
    let before = untouched();
    let ran = world.run(["agent", "fs", "restore", "before"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (4, 1), "{ran:?}");
    for path in ["dir/lost", "place", "place/inside"] {
        assert!(ran.stderr.contains(&format!("could not be changed: {path} (")), "{path}: {ran:?}");
    }
    assert!(ran.stderr.contains("1 changed, 1 deleted") && ran.stderr.contains("ah agent fs versions PATH"), "{ran:?}");
    let read = |name| world.read(name);
    assert_eq!((read("kept").as_deref(), read("new")), (Some("then"), None));
    assert_eq!(untouched(), before);
    world.fs(["undo"]);
    assert_eq!(untouched(), before);
    assert_eq!((read("kept").as_deref(), read("new").as_deref()), (Some("now"), Some("now")));
    // What is named, and nothing else.
    assert_eq!(world.run(["agent", "fs", "restore", "before", "--", "dir/lost"]).code, 4);
    world.fs(["restore", "before", "--", "kept"]);
    assert_eq!((read("kept").as_deref(), read("new").as_deref()), (Some("then"), Some("now")));
}

/// Damages the trees of directories of a snapshot.
fn break_directories(world: &World, snapshot: &str, names: &[&str]) {
    let (git, pack) = (store(world), pack(world));
    let ask = |arguments: &[&str], input: Stdio| {
        let mut asked = Command::new("git");
        let asked = asked.arg("--git-dir").arg(&git).args(arguments).stdin(input).output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        String::from_utf8(asked.stdout).unwrap()
    };
    let listed = ask(&["show-index"], fs::File::open(pack.with_extension("idx")).unwrap().into());
    let mut bytes = fs::read(&pack).unwrap();
    for name in names {
        let tree = ask(
            &["rev-parse", format!("refs/ah/snapshots/{snapshot}:tree/{name}").trim_end_matches('/')],
            Stdio::null(),
        );
        let line = listed.lines().find(|line| line.contains(tree.trim())).unwrap();
        let at: usize = line.split(' ').next().unwrap().parse().unwrap();
        // Behind what says how long it is.
        bytes[at + 6] ^= 0x55;
    }
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
}

#[test]
fn a_directory_that_is_damaged_keeps_no_other_from_coming_back() {
    let world = World::on_git();
    for name in ["dir/a", "dir/b", "place/a", "whole/a", "kept"] {
        world.write(name, format!("{name} then"));
    }
    let snapshot = world.fs(["snapshot", "-m", "before"]);
    world.wait_for_background();
    break_directories(&world, &snapshot, &["dir", "place"]);
    fs::remove_dir_all(world.root().join("place")).unwrap();
    for name in ["dir/a", "dir/new", "place", "whole/a", "whole/new", "kept"] {
        world.write(name, "now");
    }
    let dry = world.run(["agent", "fs", "restore", "before", "--dry-run"]);
    let ran = world.run(["agent", "fs", "restore", "before"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    for path in ["dir", "place"] {
        let told = format!("could not be changed: {path} (it stays as it is, with all that is in it: it is damaged");
        assert!(ran.stderr.contains(&told) && dry.stderr.contains(&told), "{path}: {dry:?} {ran:?}");
    }
    for name in ["dir/a", "dir/new", "place"] {
        assert_eq!(world.read(name).as_deref(), Some("now"), "{name}");
    }
    assert_eq!((world.read("whole/a").as_deref(), world.read("whole/new")), (Some("whole/a then"), None));
    assert_eq!(world.read("kept").as_deref(), Some("kept then"));
    world.fs(["undo"]);
    assert_eq!((world.read("kept").as_deref(), world.read("whole/new").as_deref()), (Some("now"), Some("now")));
}

#[test]
fn what_is_named_in_a_damaged_directory_keeps_nothing_else_that_is_named_from_coming_back() {
    let world = World::on_git();
    for name in ["dir/a", "dir/b", "kept"] {
        world.write(name, format!("{name} then"));
    }
    let snapshot = world.fs(["snapshot", "-m", "before"]);
    world.wait_for_background();
    break_directories(&world, &snapshot, &["dir"]);
    fs::remove_file(world.root().join("dir/a")).unwrap();
    world.write("kept", "now");
    let ran = world.run(["agent", "fs", "restore", "before", "--", "dir/a", "kept"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("could not be changed: dir (it stays as it is, with all that is in it: it is damaged"));
    assert_eq!((world.read("kept").as_deref(), world.read("dir/a")), (Some("kept then"), None));
}

#[test]
fn where_the_top_directory_is_damaged_nothing_is_changed_and_that_is_said() {
    let world = World::on_git();
    world.write("dir/a", "then");
    let snapshot = world.fs(["snapshot", "-m", "before"]);
    world.wait_for_background();
    break_directories(&world, &snapshot, &[""]);
    world.write("new", "now");
    for paths in [&[][..], &["--", "dir/a"]] {
        let ran = world.run([&["agent", "fs", "restore", "before"], paths].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stderr.contains("nothing of the snapshot can be read"), "{ran:?}");
        assert!(ran.stderr.contains("hint: `ah agent fs snapshots` lists the others"), "{ran:?}");
    }
    assert_eq!(world.read("new").as_deref(), Some("now"));
}

#[test]
fn an_interrupted_restore_is_over_once_only_what_is_damaged_is_missing() {
    let world = damaged();
    let is_interrupted = || world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted");
    // Others come before those that change files.
    for number in 1.. {
        let how = format!("renameat2:signal=KILL:when={number}");
        let Some(mut ah) = tampered(&world, &how, &["restore", "before"]) else { return };
        assert_eq!(Ran::of(&mut ah).code, 128 + 9);
        if is_interrupted() {
            break;
        }
    }
    world.write("kept", "then");
    let ran = world.run(["agent", "fs", "restore", "before"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(!is_interrupted(), "{ran:?}");
}

#[test]
fn no_tree_is_made_without_what_is_damaged() {
    let world = damaged();
    for command in ["seek", "branch"] {
        let ran = world.run(["agent", "fs", command, "before"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(
            ran.stderr.contains("caused by: dir/lost: object ") && ran.stderr.contains("caused by: place: object ")
        );
        assert!(ran.stderr.contains("`ah agent fs restore SNAPSHOT` brings back"), "{ran:?}");
        assert_eq!(world.refused(1, &["agent", "fs", command, "before"]), "data-loss");
    }
    for made in ["mounts", "branches"] {
        let left = fs::read_dir(world.path("state").join(made)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{made}");
    }
    let view = PathBuf::from(world.fs(["seek", "before", "--", "kept"]));
    assert_eq!(fs::read_to_string(view.join("kept")).unwrap(), "then");
    world.fs(["release", "--all"]);
}
