//! The way of an afternoon's work: snapshot, mess, look, restore, undo, branch; as root and as an ordinary user.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::World;

fn fill(world: &World) {
    world.write("src/main.rs", "fn main() {}\n");
    world.write("src/lib.rs", "");
    world.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(world.root().join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(world.root().join("empty")).unwrap();
    symlink("src/main.rs", world.root().join("link")).unwrap();
    world.give_away();
}

fn mess(world: &World) {
    fs::remove_dir_all(world.root().join("src")).unwrap();
    fs::remove_dir(world.root().join("empty")).unwrap();
    fs::remove_file(world.root().join("link")).unwrap();
    world.write("src", "now a file");
    world.write("new/file", "new");
    fs::set_permissions(world.root().join("run.sh"), fs::Permissions::from_mode(0o600)).unwrap();
}

/// Names, kinds, modes and contents, without times: restored files get new ones.
fn without_times(picture: &[String]) -> Vec<String> {
    let strip = |line: &String| {
        let mut words: Vec<&str> = line.splitn(4, ' ').collect();
        words.remove(2);
        words.join(" ")
    };
    picture.iter().map(strip).collect()
}

#[test]
fn snapshot_restore_undo_undo() {
    World::each(|world| {
        fill(world);
        let before = without_times(&world.picture("w"));
        let id = world.fs(["snapshot", "-m", "before"]);
        assert_eq!(id.len(), 12, "{id}");
        mess(world);
        let after = without_times(&world.picture("w"));

        let untouched = world.picture("w");
        let plan = world.fs(["restore", "before", "--dry-run"]);
        assert!(plan.lines().any(|line| line == "A\tsrc/main.rs"), "{plan}");
        assert_eq!(world.picture("w"), untouched, "a dry run changed something");

        let safety = world.fs(["restore", "before"]);
        assert_eq!(safety.len(), 12, "the id of the safety snapshot, alone: {safety}");
        assert_eq!(without_times(&world.picture("w")), before);
        world.fs(["undo"]);
        assert_eq!(without_times(&world.picture("w")), after);
        world.fs(["undo"]);
        assert_eq!(without_times(&world.picture("w")), before);

        let list = world.fs(["snapshots"]);
        assert!(list.contains(&id) && list.contains(&safety), "{list}");
        assert_eq!(world.fs(["restore", &id]), "", "nothing differs, so there is nothing to save");
    });
}

#[test]
fn only_the_paths_asked_for() {
    World::each(|world| {
        world.write("a/file", "1");
        world.write("b/file", "1");
        world.fs(["snapshot"]);
        world.write("a/file", "2");
        world.write("b/file", "2");
        world.write("a/new", "2");
        // From a subdirectory, where the same name means another path.
        let mut command = world.command(["agent", "fs", "restore", "@", "--", "file"]);
        let ran = support::Ran::of(command.current_dir(world.root().join("a")));
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stderr.contains("workspace "), "the workspace is named: {ran:?}");
        assert_eq!(world.read("a/file").unwrap(), "1");
        assert_eq!(world.read("b/file").unwrap(), "2");
        assert_eq!(world.read("a/new").unwrap(), "2");
    });
}

/// Whether a view was given back: nobody holds it, and nothing is left of it but the snapshot, where that shows itself.
fn gone(world: &World, view: &Path) -> bool {
    let made = view.starts_with(world.path("state/mounts"));
    !(world.fs(["status"]).contains(view.to_str().unwrap()) || made && view.exists())
}

#[test]
fn seek_shows_what_was_and_cannot_be_written_to() {
    World::each(|world| {
        fill(world);
        world.fs(["snapshot"]);
        mess(world);
        let view = PathBuf::from(world.fs(["seek", "@"]));
        assert_eq!(fs::read_to_string(view.join("src/main.rs")).unwrap(), "fn main() {}\n");
        assert!(view.join("empty").is_dir() && view.join("link").is_symlink() && !view.join("new").exists());
        if world.user == support::User::Ordinary {
            let written = fs::write(view.join("src/main.rs"), "x");
            let bits = fs::metadata(view.join("src/main.rs")).unwrap().permissions().mode() & 0o222;
            assert!(bits == 0 || written.is_err(), "{bits:o}");
        } else if nix::unistd::geteuid().is_root() {
            assert!(fs::write(view.join("src/main.rs"), "x").is_err());
        }
        // From anywhere.
        let mut command = world.command(["agent", "fs", "release"]);
        let ran = support::Ran::of(command.arg(&view).current_dir("/"));
        assert_eq!(ran.raw.strip_suffix(b"\n"), Some(view.as_os_str().as_bytes()), "{ran:?}");
        assert!(gone(world, &view));
        // Each view is listed once, and given back once, also where one is held twice.
        let mut views = [world.fs(["seek", "@"]), world.fs(["seek", "@"])].to_vec();
        views.dedup();
        let id = world.fs(["snapshots"]).lines().nth(1).unwrap()[..12].to_owned();
        let status = world.fs(["status"]);
        for view in &views {
            assert_eq!(status.matches(&format!("  {view} ({id})\n")).count(), 1, "{status}");
        }
        assert_eq!(world.fs(["release", "--all"]).lines().collect::<Vec<_>>(), views);
        assert!(!world.fs(["status"]).contains("views"));
        // Only some paths, and all views at once.
        let view = PathBuf::from(world.fs(["seek", "@", "--", "src"]));
        assert!(view.join("src/lib.rs").exists());
        world.fs(["release", "--all"]);
        assert!(gone(world, &view));
    });
}

#[test]
fn who_stands_in_a_view_finds_the_way_out() {
    World::each(|world| {
        world.write("sub/f", "1");
        world.fs(["snapshot"]);
        let view = PathBuf::from(world.fs(["seek", "@"]));
        let inside = |arguments: &[&str]| support::Ran::of(world.command(arguments).current_dir(view.join("sub")));
        for arguments in [&[][..], &["timeline"], &["agent", "fs", "snapshot"]] {
            let ran = inside(arguments);
            assert_eq!(ran.code, 4, "{ran:?}");
            assert!(ran.stderr.ends_with(&format!("hint: cd {}\n", world.root().display())), "{ran:?}");
        }
        let ran = inside(&["agent", "fs", "release", "--all"]);
        assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", view.display())));
        assert!(gone(world, &view));
    });
}

#[test]
fn what_nobody_asked_to_leave_out_is_said() {
    let world = World::on_git();
    world.write(".gitignore", "ignored\n");
    world.write("ignored", "x");
    // As a submodule has it.
    world.write("module/.git", "gitdir: ../.git/modules/module\n");
    assert!(!world.run(["agent", "fs", "snapshot"]).stderr.contains("left out"));
    world.fs(["snapshot"]);
    for part in ["HEAD", "objects/x", "refs/x"] {
        world.write(format!("nested/.git/{part}"), "ref: refs/heads/main\n");
    }
    let ran = world.run(["agent", "fs", "snapshot"]);
    assert!(ran.stderr.contains("left out: nested/.git (git-dir); "), "{ran:?}");
    fs::remove_dir_all(world.root().join("nested")).unwrap();
    world.run(["config", "set", "capture.max-file-size", "10B"]);
    for name in ["a", "b", "c", "d", "e"] {
        world.write(name, "more than ten bytes");
    }
    let ran = world.run(["agent", "fs", "snapshot"]);
    assert!(ran.stderr.contains("left out: a (too-large), b (too-large), c (too-large), and 2 more; "), "{ran:?}");
    let id = ran.stdout.trim_end();
    assert!(ran.stderr.contains(&format!("`ah agent fs show {id}`")) && !ran.stderr.contains("ignored"), "{ran:?}");
}

#[test]
fn what_is_not_captured_any_more_is_not_told_as_deleted() {
    let world = World::on_git();
    for name in ["grown", "same", "dir/ignored", "gone"] {
        world.write(name, "ten bytes");
    }
    world.write("dir/edited", "1\n");
    world.fs(["snapshot"]);
    world.run(["config", "set", "capture.max-file-size", "10B"]);
    world.write("grown", "more than ten bytes\n");
    world.write(".gitignore", "dir\n");
    world.write("dir/edited", "2\n");
    fs::remove_file(world.root().join("gone")).unwrap();
    let told = "A\t.gitignore\nM\tdir/edited\nD\tgone\nM\tgrown";
    assert_eq!(world.fs(["diff", "@", "--name-status"]), told);
    let patch = world.fs(["diff", "@", "--patch"]);
    assert!(patch.contains("+more than ten bytes") && patch.contains("-1\n+2\n"), "{patch}");
}

#[test]
fn one_file_then() {
    World::each(|world| {
        world.write("f", "one\n");
        world.fs(["snapshot"]);
        world.write("f", "two\n");
        world.fs(["snapshot"]);
        fs::remove_file(world.root().join("f")).unwrap();
        assert_eq!(world.fs(["cat", "@{1}", "f"]), "one");
        assert_eq!(world.fs(["cat", "@", "f"]), "two");
        let json = world.json("versions", &["agent", "fs", "versions", "f"]);
        assert_eq!(json["versions"].as_array().unwrap().len(), 2);
        // A content that came back is known by its id.
        world.write("f", "one\n");
        world.fs(["snapshot"]);
        let table = world.fs(["versions", "f"]);
        let at = table.find("CONTENT").unwrap();
        let ids: Vec<&str> = table.lines().skip(1).map(|row| &row[at..at + 10]).collect();
        assert!(ids.len() == 3 && ids[0] == ids[2] && ids[0] != ids[1], "{table}");
    });
}

#[test]
fn a_branch_is_a_place_to_work_in() {
    World::each(|world| {
        fill(world);
        world.fs(["snapshot"]);
        mess(world);
        let branch = PathBuf::from(world.fs(["branch", "@", "--name", "retry"]));
        assert_eq!(fs::read_to_string(branch.join("src/main.rs")).unwrap(), "fn main() {}\n");
        let untouched = world.picture("w");
        fs::write(branch.join("src/main.rs"), "changed").unwrap();
        assert_eq!(world.picture("w"), untouched);
        assert!(world.fs(["branches"]).contains("retry"));
        // Changed since it was made, so that it goes only by force; and nothing else that is named with it goes before.
        let origin = world.fs(["snapshots", "--json"]);
        world.refused(4, &["agent", "fs", "rm", "@", "retry"]);
        assert_eq!(world.fs(["snapshots", "--json"]), origin);
        let removed = world.fs(["rm", "--force", "retry", "@"]);
        assert!(removed.ends_with(branch.to_str().unwrap()), "{removed}");
        assert!(!branch.exists());
        assert_eq!(world.fs(["snapshots"]), "");
    });
}

#[test]
fn exec_shows_the_branch_at_the_path_of_the_workspace() {
    World::each(|world| {
        world.write("f", "branch\n");
        world.fs(["snapshot"]);
        world.fs(["branch", "@", "--name", "b"]);
        world.write("f", "workspace\n");
        let ran = world.run(["agent", "fs", "exec", "b", "--", "sh", "-c", "pwd; cat f; echo done > g; exit 7"]);
        assert_eq!(ran.code, 7, "{ran:?}");
        assert_eq!(ran.stdout, format!("{}\nbranch\n", world.root().display()));
        assert_eq!(world.read("g"), None);
        let ran = world.run(["agent", "fs", "exec", "b", "--", "sh", "-c", "kill -TERM $$"]);
        assert_eq!(ran.code, 128 + 15, "{ran:?}");
        // From within, it is itself, and of the others it is said where they are to be had.
        world.fs(["branch", "@", "--name", "c"]);
        let inside = |words: &str| {
            world.run([
                "agent",
                "fs",
                "exec",
                "b",
                "--",
                "sh",
                "-c",
                &format!("\"$0\" agent fs {words}"),
                env!("CARGO_BIN_EXE_ah"),
            ])
        };
        let ran = inside("exec b -- sh -c 'cat f; exit 7'");
        assert_eq!((ran.code, ran.stdout.as_str()), (7, "branch\n"), "{ran:?}");
        let path = world.path("state/branches/b");
        assert_eq!(inside(&format!("exec {} -- cat f", path.display())).stdout, "branch\n");
        for words in ["exec c -- true", "rm c", "rm b"] {
            let ran = inside(words);
            let hint = format!("outside of `exec`: `ah -C {} agent fs {words}`", world.root().display());
            assert!(ran.code == 3 && ran.stderr.contains(&hint), "{ran:?}");
        }
        world.fs(["rm", "c"]);
        // As long as something runs in it, it is not taken away.
        let mut command = world.command(["agent", "fs", "exec", "b", "--", "sh", "-c", "echo in; read line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        let ran = world.run(["agent", "fs", "rm", "b"]);
        assert!(ran.code == 4 && ran.stderr.contains("runs in the branch"), "{ran:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        let ran = world.run(["agent", "fs", "rm", "b"]);
        assert!(ran.code == 4 && ran.stderr.contains("nowhere else"), "{ran:?}");
        world.fs(["rm", "--force", "b"]);
    });
}

#[test]
fn exec_without_a_branch_starts_from_the_present_state() {
    World::each(|world| {
        world.fs(["snapshot"]);
        world.write("sub/f", "present\n");
        let script = "cat f; echo changed > f; cat f; exit 3";
        let mut command = world.command(["agent", "fs", "exec", "--", "sh", "-c", script]);
        let ran = support::Ran::of(command.current_dir(world.root().join("sub")));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, "present\nchanged\n"), "{ran:?}");
        assert_eq!(world.read("sub/f").unwrap(), "present\n");
        assert_eq!(world.json("branches", &["agent", "fs", "branches"])["branches"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn labels_pins_and_removal() {
    World::each(|world| {
        world.write("f", "1");
        let first = world.fs(["snapshot", "--keep"]);
        world.write("f", "2");
        let second = world.fs(["snapshot"]);
        assert_eq!(world.fs(["edit", &second, "-m", "better"]), second);
        assert!(world.fs(["show", "better", "--json"]).contains(&second));
        world.refused(4, &["agent", "fs", "rm", &first]);
        // All or nothing.
        world.refused(4, &["agent", "fs", "rm", &second, &first]);
        assert_eq!(world.fs(["rm", "--dry-run", "better"]), second);
        assert_eq!(world.fs(["rm", "better"]), second);
        world.refused(3, &["agent", "fs", "show", "better"]);
        world.fs(["edit", &first, "--no-keep"]);
        world.fs(["rm", &first]);
        assert_eq!(world.fs(["snapshots"]), "");
        world.fs(["gc"]);
    });
}

#[test]
fn prune_by_rule() {
    World::each(|world| {
        for content in ["1", "2", "3", "4"] {
            world.write("f", content);
            world.fs(["snapshot"]);
        }
        world.fs(["prune", "keep-last=2", "--dry-run"]);
        assert_eq!(world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"].as_array().unwrap().len(), 4);
        world.fs(["prune", "keep-last=2"]);
        assert_eq!(world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"].as_array().unwrap().len(), 2);
        world.refused(2, &["agent", "fs", "prune", "keep-nonsense=1"]);
        // It would go for all sessions.
        world.refused(2, &["--session", "other", "agent", "fs", "prune", "keep-last=1"]);
    });
}

#[test]
fn sessions_do_not_mix() {
    World::each(|world| {
        world.write("f", "1");
        world.fs(["snapshot", "--session", "one"]);
        world.write("f", "2");
        world.fs(["snapshot", "--session", "two"]);
        let latest = |session: &str| world.fs(["cat", "@", "f", "--session", session]);
        assert_eq!((latest("one"), latest("two"), world.fs(["cat", "@", "f"])), ("1".into(), "2".into(), "2".into()));
        let mut command = world.command(["agent", "fs", "cat", "@", "f"]);
        assert_eq!(support::Ran::of(command.env("AH_SESSION", "one")).stdout, "1");
        let sessions = world.json("session-list", &["session", "list"]);
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), 2, "{sessions}");
    });
}

#[test]
fn labels_that_no_ref_reaches_are_refused() {
    let world = World::new();
    world.write("f", "1");
    for label in ["@", "@now", "5m-ago", "12.5s", "2026-03-01T12:00:00Z", "kkkkmmmmpppp", "-x", "--x"] {
        assert_eq!(world.refused(2, &["agent", "fs", "snapshot", "-m", label]), "invalid-argument", "{label}");
    }
    let id = world.fs(["snapshot", "-m", "before"]);
    world.refused(2, &["agent", "fs", "edit", "before", "-m", "5m"]);
    assert!(world.fs(["show", "before"]).contains(&id));
}

#[test]
fn the_latest_of_safety_snapshots_alone_is_none() {
    let world = World::new();
    world.write("f", "1");
    let first = world.fs(["snapshot"]);
    world.write("f", "2");
    world.fs(["restore", &first]);
    world.fs(["rm", &first]);
    let ran = world.run(["agent", "fs", "show", "@"]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("took for itself") && !ran.stderr.contains("no snapshots yet"), "{ran:?}");
}
