//! `ah agent fs rm --all`: a workspace that is to be none any more.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ah_test_disks::Disk;
use support::{Ran, User, World};

/// What `ah` with these words says in a directory of the world.
fn there(world: &World, directory: &Path, words: &[&str]) -> Ran {
    Ran::of(world.command(words).current_dir(directory))
}

/// The folders of the workspaces that are known.
fn folders(world: &World) -> Vec<PathBuf> {
    fs::read_dir(world.path("state/workspaces")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Which workspace a directory belongs to by its next snapshot.
fn workspace_of(world: &World, directory: &Path) -> String {
    let ran = there(world, directory, &["agent", "fs", "snapshot", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    value["workspace"].as_str().unwrap().to_owned()
}

/// The commands that a text names.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|part| part.starts_with("ah "))
}

/// What a shell does with a line in which `ah` is ours.
fn typed(world: &World, directory: &Path, line: &str) -> Ran {
    let made = world.command(["version"]);
    let mut shell = Command::new("sh");
    let ah = env!("CARGO_BIN_EXE_ah");
    shell.args(["-c", &format!("ah() {{ '{ah}' \"$@\"; }}; {line}")]).current_dir(directory);
    shell.env_clear().envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ran::of(&mut shell)
}

#[test]
fn what_is_said_of_one_whose_place_another_one_was_moved_to_does_nothing_to_that_one() {
    let world = World::new();
    let (a, b, fresh) = (world.path("a"), world.path("b"), world.path("fresh"));
    for (place, label) in [(&a, "inA"), (&b, "inB")] {
        fs::create_dir(place).unwrap();
        fs::write(place.join("f"), label).unwrap();
        assert_eq!(there(&world, place, &["agent", "fs", "snapshot", "-m", label]).code, 0);
    }
    fs::remove_dir_all(&a).unwrap();
    fs::rename(&b, &a).unwrap();
    let at = a.to_str().unwrap();
    let listed = |directory: &Path| there(&world, directory, &["agent", "fs", "snapshots"]).stdout;
    // By `-C`, and without it.
    let lines = [&["snapshots"][..], &["gc"], &["status"], &["gc"], &["status"]];
    let mut told: Vec<String> = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let there_by: &[&str] = if n < 3 { &["-C", at] } else { &[] };
        let ran = there(&world, &a, &[there_by, &["agent", "fs"], line].concat());
        assert!(ran.code == 0 && ran.stderr.contains("its snapshots are kept"), "{line:?}: {ran:?}");
        told.extend(commands(&ran.stderr).map(|command| command.replace("DIR", at)));
    }
    assert!(told.iter().any(|command| command.contains(" rm --all --force")), "{told:?}");
    // Typed where the other one is, none of them takes anything of that one away.
    for command in told.iter().filter(|command| !command.ends_with(" gc")) {
        let ran = typed(&world, &a, command);
        assert!(listed(&a).contains("inB"), "{command}: {ran:?}");
    }
    assert_eq!(folders(&world).len(), 2, "the other one's is kept as well");
    // In a new directory, what was promised is done.
    fs::create_dir(&fresh).unwrap();
    let both = told.iter().find(|command| command.contains(" adopt ") && command.contains(" rm --all")).unwrap();
    assert_eq!(typed(&world, &fresh, both).code, 0, "{both}");
    assert!(folders(&world).len() == 1 && listed(&a).contains("inB"));
}

#[test]
fn what_was_captured_by_mistake_is_no_workspace_any_more() {
    World::each(|world| {
        world.write("app/main", "1");
        world.write("lib/x", "1");
        let beside = world.path("beside");
        fs::create_dir(&beside).unwrap();
        world.give_away();
        world.fs(["snapshot", "-m", "slip"]);
        world.fs(["snapshot", "-m", "pinned"]);
        world.fs(["edit", "pinned", "--keep"]);
        assert_eq!(workspace_of(world, &beside), beside.to_str().unwrap());
        let app = world.root().join("app");
        assert_eq!(workspace_of(world, &app), world.root().to_str().unwrap());
        world.wait_for_background();

        let known = || {
            let mut known = world.picture("state/workspaces");
            // Where a subvolume was, a snapshot of Btrfs shows a directory with the time at which that is looked at.
            known.retain(|line| !line.contains("/tree/"));
            known
        };
        let (files, state) = (world.picture("w"), known());
        assert_eq!(world.refused(4, &["agent", "fs", "rm", "--all"]), "failed-precondition");
        let ran = there(world, &app, &["agent", "fs", "rm", "--all"]);
        for told in
            ["3 snapshots", "1 of them pinned", "`ah agent fs rm --all --force`", world.root().to_str().unwrap()]
        {
            assert!(ran.stderr.contains(told), "{told}: {ran:?}");
        }
        assert_eq!((ran.code, ran.stdout.as_str()), (4, ""));
        let dry = world.json("rm", &["agent", "fs", "rm", "--all", "--dry-run"]);
        assert_eq!((dry["rm"]["removed"].as_array().unwrap().len(), &dry["all"]["sessions"]), (3, &1.into()), "{dry}");
        world.wait_for_background();
        assert_eq!(known(), state, "nothing was to be changed");

        let others: Vec<_> = folders(world).into_iter().filter(|folder| names(folder, &beside)).collect();
        let ran = there(world, &app, &["agent", "fs", "rm", "--all", "--force"]);
        assert_eq!((ran.code, ran.stdout.trim_end()), (0, world.root().to_str().unwrap()), "{ran:?}");
        assert_eq!(world.picture("w"), files);
        assert_eq!(folders(world), others, "that of the other workspace, and no other");
        assert_eq!(there(world, &app, &["agent", "fs", "rm", "--all", "--force"]).code, 3);
        assert_eq!(workspace_of(world, &app), app.to_str().unwrap());
        assert_eq!(there(world, &beside, &["agent", "fs", "snapshots"]).stdout.lines().count(), 2);
        let gc = there(world, &beside, &["agent", "fs", "gc"]);
        assert!(gc.code == 0 && !gc.stderr.contains("warning"), "{gc:?}");
    });
}

/// Whether a workspace's folder says that it is that directory.
fn names(folder: &Path, directory: &Path) -> bool {
    fs::read_to_string(folder.join("workspace.json")).unwrap().contains(&format!("{directory:?}"))
}

#[test]
fn one_whose_directory_is_gone_goes_by_the_command_that_gc_names() {
    let world = World::new();
    let gone = world.path("gone");
    fs::create_dir(&gone).unwrap();
    world.fs(["snapshot"]);
    workspace_of(&world, &gone);
    fs::remove_dir_all(&gone).unwrap();
    let command = format!("`ah -C {} agent fs rm --all`", gone.display());
    let ran = world.run(["agent", "fs", "gc"]);
    assert!(ran.stderr.contains(&command), "{ran:?}");
    assert!(world.run(["agent", "fs", "status"]).stderr.contains("agent fs rm --all"), "so does status");
    assert_eq!(world.run(["-C", gone.to_str().unwrap(), "agent", "fs", "rm", "--all"]).code, 4);
    let ran = world.run(["-C", gone.to_str().unwrap(), "agent", "fs", "rm", "--all", "--force"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = world.run(["agent", "fs", "gc"]);
    assert!(ran.code == 0 && !ran.stderr.contains("gone"), "{ran:?}");
    assert_eq!(folders(&world).len(), 1);
}

#[test]
fn it_is_refused_while_something_of_it_is_in_use() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot"]);
    let forced = ["agent", "fs", "rm", "--all", "--force"];
    let refused = |hint: &str| {
        for words in [&forced[..], &forced[..4]] {
            let ran = world.run(words);
            assert!(ran.code == 4 && ran.stderr.contains(hint), "{words:?}: {ran:?}");
        }
        assert_eq!(world.fs(["cat", "@", "f"]), "1");
    };
    let view = world.fs(["seek", "@"]);
    refused(&format!("`ah agent fs release {view}`"));
    world.fs(["release", &view]);

    let branch = world.fs(["branch", "--name", "idea", "--mode", "worktree"]);
    refused("`ah agent fs rm idea`");
    let ran = there(&world, Path::new(&branch), &forced);
    assert!(ran.code == 4 && ran.stderr.contains("is the branch idea"), "{ran:?}");
    world.fs(["rm", "idea"]);

    // It is being recorded from when it says so until it is told to end.
    let mut recorder = world.command(["agent", "record", "--", "sh", "-c", "echo begun; read end"]);
    let mut recorder = recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    BufReader::new(recorder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    refused("wait for the command that is recorded to end");
    drop(recorder.stdin.take());
    recorder.wait().unwrap();
    let ran = world.run(["agent", "fs", "rm", "--all"]);
    assert!(ran.stderr.contains("1 recording"), "{ran:?}");

    let removed = world.json("rm", &forced);
    assert_eq!(removed["all"]["recordings"], 1, "{removed}");
    assert!(folders(&world).is_empty());
}

#[test]
fn it_stays_while_what_a_convert_left_was_not_seen_to() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    support::need_btrfs();
    let world = World::within(User::Me, disk.at());
    world.write("f", "1");
    world.fs(["snapshot"]);
    let [folder] = <[PathBuf; 1]>::try_from(folders(&world)).unwrap();
    let store = folder.join("providers/btrfs");
    assert!(store.is_dir(), "a snapshot of Btrfs");
    // Of one that was killed, around which a directory was moved since.
    let (key, was) = ("0123456789abcdef".repeat(2), world.path("was here"));
    let note = store.join(format!("convert-{key}"));
    fs::write(&note, format!("1.2.3\0.ah-convert-{key}\0{}\x004.5.6 7.8 755\0", was.display())).unwrap();
    let ran = world.run(["agent", "fs", "gc"]);
    assert!(ran.code == 0 && ran.stdout.contains(was.to_str().unwrap()), "{ran:?}");
    let forced = ["agent", "fs", "rm", "--all", "--force"];
    let ran = world.run(forced);
    assert!(ran.code == 4 && ran.stderr.contains(was.to_str().unwrap()), "{ran:?}");
    assert!(note.exists());
    fs::remove_file(&note).unwrap();
    assert_eq!(world.run(forced).code, 0);
    assert!(folders(&world).is_empty());
}

#[test]
fn a_name_and_all_do_not_go_together() {
    let world = World::new();
    world.fs(["snapshot"]);
    assert_eq!(world.refused(2, &["agent", "fs", "rm", "--all", "@"]), "invalid-argument");
    assert_eq!(world.refused(2, &["agent", "fs", "rm"]), "invalid-argument");
}

#[test]
fn who_insists_on_the_home_directory_is_told_what_that_means() {
    let world = World::new();
    let home = world.path("home");
    let ran = there(&world, &home, &["agent", "fs", "snapshot"]);
    assert!(ran.code == 4 && ran.stderr.contains("all folders below it"), "{ran:?}");
}
