//! Restores and undos that were killed: what finishes them, what goes back, and what was done in between.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Ran, User, World, is_root, skip};
use crate::told::{changed, olds, tampered};

/// Kills a command when it has changed some files; whether the test may.
fn killed(world: &World, arguments: &[&str]) -> bool {
    let Some(mut ah) = tampered(world, "renameat2:signal=KILL:when=3", arguments) else { return false };
    assert_eq!(Ran::of(&mut ah).code, 128 + 9);
    true
}

#[test]
fn work_between_a_kill_and_what_finishes_the_restore_comes_back_by_undo() {
    let world = changed();
    if !killed(&world, &["restore", "first"]) {
        return;
    }
    let (olds_then, edited) = (olds(&world), (0..5).map(|number| format!("f{number}")));
    assert!((1..5).contains(&olds_then), "{olds_then}");
    edited.for_each(|name| world.write(name, "edited"));
    world.write("new", "new");
    let finished = world.run(["agent", "fs", "restore", "first"]);
    assert_eq!((finished.code, olds(&world), world.read("new")), (0, 5, None), "{finished:?}");
    assert!(finished.stderr.contains("6 paths are not as the interrupted restore saw them"), "{finished:?}");
    let before = finished.stderr.split("`ah agent fs restore ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    world.fs(["undo"]);
    assert_eq!((world.read("f3").as_deref(), world.read("new").as_deref()), (Some("edited"), Some("new")));
    world.fs(["restore", &before]);
    assert_eq!((world.read("f3").as_deref(), world.read("new").as_deref()), (Some("newer 3"), None));
}

#[test]
fn what_finishes_a_restore_of_paths_changes_no_others() {
    let world = changed();
    world.write("d/other", "work");
    if !killed(&world, &["restore", "first", "--", "f0", "f1", "f2", "f3"]) {
        return;
    }
    let told = world.run(["agent", "fs", "snapshots"]).stderr;
    let finish = told.split("finish it with `ah ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    assert!(finish.ends_with("/f3") && finish.contains(" -- "), "{told}");
    assert_eq!(world.run(finish.split(' ')).code, 0);
    assert_eq!((olds(&world), world.read("f4").as_deref()), (4, Some("newer 4")));
    assert_eq!(world.read("d/other").as_deref(), Some("work"));
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
}

#[test]
fn an_undo_that_was_killed_is_finished_by_the_same_command() {
    let world = changed();
    world.fs(["restore", "first"]);
    if !killed(&world, &["undo"]) {
        return;
    }
    world.write("other", "work");
    let told = world.run(["agent", "fs", "snapshots"]).stderr;
    assert!(told.contains("finish it with `ah agent fs undo`"), "{told}");
    let status: serde_json::Value =
        serde_json::from_str(&world.run(["agent", "fs", "status", "--json"]).stdout).unwrap();
    assert_eq!(status["status"]["interrupted"]["finish"], "ah agent fs undo", "{status}");
    let overview = world.run([""; 0]).stdout;
    assert!(overview.contains("ah agent fs undo && ah agent fs undo  go back"), "{overview}");
    world.fs(["undo"]);
    assert_eq!((olds(&world), world.read("f0").as_deref()), (0, Some("newer 0")));
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
    world.fs(["undo"]);
    assert_eq!((olds(&world), world.read("other").as_deref()), (5, Some("work")), "the undo is taken back");
}

#[test]
fn what_a_killed_restore_read_keeps_nothing_from_being_removed() {
    for first in [&["rm", "first"][..], &["gc"]] {
        let world = changed();
        if !killed(&world, &["restore", "first"]) {
            return;
        }
        world.fs(["undo"]);
        world.fs(first.iter().copied());
        world.fs(["gc"]);
        let mounts = fs::read_dir(world.path("state/mounts")).unwrap();
        let left: Vec<_> = mounts.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{first:?}: {left:?}");
        world.fs(["rm", "--all", "--force"]);
    }
}

#[test]
fn who_resolves_an_interruption_is_not_warned_of_it() {
    for resolve in [&["restore", "first"][..], &["undo"], &["restore", "first", "--json"]] {
        let world = changed();
        let Some(mut ah) = tampered(&world, "renameat2:signal=KILL:when=3", &["restore", "first"]) else { return };
        assert_eq!(Ran::of(&mut ah).code, 128 + 9);
        let looked = world.run(["agent", "fs", "snapshots"]);
        assert!(looked.stderr.contains("interrupted"), "{looked:?}");
        let dry = world.run(["agent", "fs"].iter().chain(&["undo", "--dry-run"]));
        assert!(dry.stderr.contains("interrupted"), "nothing is resolved yet: {dry:?}");
        let ran = world.run(["agent", "fs"].iter().chain(resolve));
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!ran.stderr.contains("interrupted") && !ran.stdout.contains("interrupted-restore"), "{ran:?}");
    }
}

#[test]
fn what_is_said_of_an_interruption_that_stays_is_as_things_stand_after_the_command() {
    let told = |told: &str| {
        let command = |after: &str| told.split(after).nth(1).unwrap().split('`').next().unwrap().to_owned();
        (command("finish it with `ah "), command("go back with `ah "))
    };
    for json in [false, true] {
        let world = changed();
        world.fs(["snapshot", "-m", "second"]);
        (0..5).for_each(|number| world.write(format!("f{number}"), "newest"));
        let first = world.fs(["cat", "first", "f0"]);
        if !killed(&world, &["restore", "first"]) {
            return;
        }
        let newest = || (0..5).filter(|number| world.read(format!("f{number}")).as_deref() == Some("newest")).count();
        let half = (olds(&world), newest());
        assert!(half.0 > 0 && half.1 > 0 && first == "old 0", "{half:?}");
        let whole: &[&str] = if json { &["--json"] } else { &[] };
        // One of a single file, and the undo of another that was killed as well: each leaves the first one interrupted.
        let words = ["agent", "fs", "restore", "second"].iter().chain(whole).chain(&["--", "f4"]);
        let ran = world.run(words);
        assert_eq!(ran.code, 0, "{ran:?}");
        let (finish, back) = told(&if json { ran.stdout } else { ran.stderr });
        assert!(finish.starts_with("agent fs restore ") && back.starts_with("agent fs restore "), "{finish}, {back}");
        world.fs(["undo"]);
        assert!(killed(&world, &["restore", "second"]));
        let ran = world.run(["agent", "fs", "undo"].iter().chain(whole));
        assert_eq!((ran.code, olds(&world), newest()), (0, half.0, half.1), "{ran:?}");
        assert_eq!(told(&if json { ran.stdout } else { ran.stderr }), (finish, back.clone()));
        // Which goes back to before the first one.
        assert_eq!(world.run(back.split(' ')).code, 0);
        assert_eq!(newest(), 5);
    }
}

#[test]
fn work_between_two_kills_comes_back_by_undo() {
    let world = changed();
    if !killed(&world, &["restore", "first"]) {
        return;
    }
    (0..5).for_each(|number| world.write(format!("f{number}"), "edited"));
    if !killed(&world, &["restore", "first"]) {
        return;
    }
    let edited = || (0..5).filter(|number| world.read(format!("f{number}")).as_deref() == Some("edited")).count();
    assert!((1..5).contains(&edited()));
    world.fs(["restore", "first"]);
    assert_eq!(olds(&world), 5);
    world.fs(["undo"]);
    assert_eq!(edited(), 5, "as before the first of the two that the work was in the way of");
}

#[test]
fn an_undo_that_was_killed_twice_is_finished_once() {
    let world = changed();
    world.fs(["restore", "first"]);
    if !killed(&world, &["undo"]) || !killed(&world, &["undo"]) {
        return;
    }
    world.fs(["undo"]);
    assert_eq!((olds(&world), world.read("f4").as_deref()), (0, Some("newer 4")));
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
    world.fs(["undo"]);
    assert_eq!(olds(&world), 5);
}

#[test]
fn what_an_interrupted_restore_of_paths_was_not_to_change_comes_back_by_undo() {
    let world = changed();
    if !killed(&world, &["restore", "first", "--", "f0", "f1", "f2"]) {
        return;
    }
    world.write("f4", "edited");
    let whole = world.run(["agent", "fs", "restore", "first"]);
    assert!(
        whole.stderr.contains("not as the interrupted restore saw them") && whole.stderr.contains("/f2`"),
        "{whole:?}"
    );
    assert_eq!(olds(&world), 5);
    let undone = world.run(["agent", "fs", "undo"]);
    assert!(undone.stderr.contains("put back: f4\n"), "{undone:?}");
    assert_eq!((world.read("f3").as_deref(), world.read("f4").as_deref()), (Some("newer 3"), Some("edited")));
}

#[test]
fn what_finishes_a_restore_of_ignored_files_overwrites_these() {
    let world = World::new();
    world.write(".gitignore", "f*\n");
    let write = |text: &str| (0..5).for_each(|number| world.write(format!("f{number}"), text));
    write("old");
    world.fs(["snapshot", "-m", "first"]);
    write("newer");
    let ignored = ["restore", "first", "--ignored", "--times=exact"];
    if !killed(&world, &ignored) {
        return;
    }
    // One that would leave them is not taken for its end.
    let then = olds(&world);
    assert_eq!((world.run(["agent", "fs", "restore", "first"]).code, olds(&world)), (0, then));
    let told = world.run(["agent", "fs", "snapshots"]).stderr;
    let finish = told.split("finish it with `ah ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    assert!(finish.ends_with(" --ignored --times=exact"), "{told}");
    assert_eq!(world.run(finish.split(' ')).code, 0);
    assert_eq!(olds(&world), 5);
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
}

#[test]
fn one_that_is_killed_while_it_prepares_is_said_to_have_changed_nothing() {
    let world = changed();
    let dies = |how, arguments: &[&str]| {
        let mut ah = tampered(&world, how, arguments)?;
        assert_eq!(Ran::of(&mut ah).code, 128 + 9);
        let told = world.run(["agent", "fs", "snapshots"]).stderr;
        let status = world.run(["agent", "fs", "status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let before = "was interrupted before it changed anything";
        let is_told = [told, world.run([""; 0]).stdout].map(|told| told.contains(before));
        Some((status["status"]["interrupted"]["changed"].as_bool(), is_told))
    };
    // What is made is given to the disk to be written, file by file.
    let prepares = "fadvise64:signal=KILL:when=3";
    let Some(told) = dies(prepares, &["restore", "first"]) else { return };
    assert_eq!((told, olds(&world)), ((Some(false), [true; 2]), 0));
    // One that has changed some stays one that has, whatever comes after it.
    assert_eq!(dies("renameat2:signal=KILL:when=3", &["restore", "first"]).unwrap(), (Some(true), [false; 2]));
    assert_eq!(dies(prepares, &["restore", "first"]).unwrap(), (Some(true), [false; 2]));
    world.fs(["restore", "first"]);
    assert_eq!(olds(&world), 5);
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
    world.fs(["undo"]);
    assert_eq!(dies(prepares, &["restore", "first"]).unwrap(), (Some(false), [true; 2]));
    world.fs(["undo"]);
    assert_eq!(olds(&world), 0);
    assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"));
}

/// All that is in a directory, and so not that itself.
const SHUT: [&str; 8] = ["restore", "first", "--", "shut/f0", "shut/f1", "shut/f2", "shut/f3", "shut/f4"];

#[test]
fn directories_that_a_killed_restore_had_opened_are_shut_by_what_ends_it() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let files = || (0..5).map(|number| format!("shut/f{number}"));
    let all = |world: &World, text: &str| files().filter(|name| world.read(name).as_deref() == Some(text)).count();
    let ways: [&dyn Fn(&World); 6] = [
        &|world| _ = world.fs(SHUT),
        // All of it is done but for that.
        &|world| {
            files().for_each(|name| world.write(name, "old"));
            world.fs(SHUT);
        },
        // What finishes it is killed, too.
        &|world| {
            let mut ah = tampered(world, "renameat2:signal=KILL:when=2", &SHUT).unwrap();
            assert_eq!(Ran::of(&mut ah).code, 128 + 9);
            world.fs(SHUT);
        },
        // What was done between is saved while it is open; that is no reason to open it again.
        &|world| {
            files().for_each(|name| world.write(name, "edited"));
            world.fs(SHUT);
            world.fs(["undo"]);
            assert_eq!(all(world, "edited"), 5);
            world.fs(["undo"]);
        },
        &|world| _ = world.fs(["restore", "first"]),
        &|world| {
            world.fs(["undo"]);
            assert_eq!(all(world, "newer"), 5);
            assert_eq!(fs::metadata(world.root().join("shut")).unwrap().permissions().mode() & 0o7777, 0o555);
            world.fs(SHUT);
        },
    ];
    for (at, way) in ways.iter().enumerate() {
        let world = World::of(User::Ordinary);
        let mode = || fs::metadata(world.root().join("shut")).unwrap().permissions().mode() & 0o7777;
        let shut = |mode| fs::set_permissions(world.root().join("shut"), fs::Permissions::from_mode(mode)).unwrap();
        files().for_each(|name| world.write(name, "old"));
        shut(0o555);
        world.fs(["snapshot", "-m", "first"]);
        files().for_each(|name| world.write(name, "newer"));
        if !killed(&world, &SHUT) {
            return;
        }
        assert_eq!(mode(), 0o755, "{at}: it was not killed while it was open");
        way(&world);
        assert_eq!((mode(), all(&world, "old")), (0o555, 5), "{at}");
        assert!(!world.run(["agent", "fs", "snapshots"]).stderr.contains("interrupted"), "{at}");
        shut(0o755);
    }
}

#[test]
fn what_finishes_a_forced_one_is_forced() {
    let finish = |world: &World| {
        let told = world.run(["agent", "fs", "snapshots"]).stderr;
        let command = |after: &str| told.split(after).nth(1).unwrap().split('`').next().unwrap().to_owned();
        (command("finish it with `ah "), command("go back with `ah "))
    };
    let world = changed();
    if !killed(&world, &["restore", "first", "--force", "--", "f0", "f1", "f2", "f3"]) {
        return;
    }
    let (finished, back) = finish(&world);
    assert!(finished.contains(" --force -- ") && back == "agent fs undo", "{finished}, {back}");
    assert_eq!(world.run(finished.split(' ')).code, 0);
    assert_eq!(olds(&world), 4);
    assert!(killed(&world, &["undo", "--force", "--times=exact"]));
    let (finished, back) = finish(&world);
    assert_eq!(finished, "agent fs undo --times=exact --force");
    assert_eq!(back, format!("{finished} && ah agent fs undo"));
    assert_eq!(world.run(finished.split(' ')).code, 0);
    assert_eq!(olds(&world), 0);
}
