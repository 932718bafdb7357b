//! `exec`: a branch at the workspace's own path, for one command and what it starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Ran, User, World, is_root, skip};

fn sh(world: &World, branch: &str, script: &str) -> Ran {
    world.run(["agent", "fs", "exec", branch, "--", "sh", "-c", script])
}

fn branch(world: &World) -> String {
    world.write("f", "outside");
    world.write("sub/deep/g", "g");
    world.fs(["snapshot"]);
    // A copy: root may look into another user's, and it does not show what is made in the workspace later.
    world.fs(["branch", "--name", "b", "--mode", "worktree"])
}

#[test]
fn the_command_and_its_children_see_the_branch_and_nobody_else() {
    World::each(|world| {
        let path = branch(world);
        let ran = sh(world, "b", "pwd; echo inside >f; sh -c 'sh -c \"cat f; pwd\"'; echo new >new");
        let root = world.root().display().to_string();
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(ran.stdout, format!("{root}\ninside\n{root}\n"));
        assert_eq!(world.read("f").as_deref(), Some("outside"));
        assert!(!world.root().join("new").exists());
        assert_eq!(fs::read_to_string(format!("{path}/f")).unwrap(), "inside\n");
        let mounts = ah_test_disks::mounts();
        assert!(!mounts.contains(&root), "nothing of it is to be seen outside");
    });
}

#[test]
fn it_starts_in_the_same_directory() {
    World::each(|world| {
        branch(world);
        let here = world.root().join("sub/deep");
        let words = ["agent", "fs", "exec", "b", "--", "sh", "-c", "pwd; echo $PWD; ls"];
        let ran = Ran::of(world.command(words).current_dir(&here));
        let shown = here.display();
        assert_eq!(ran.stdout, format!("{shown}\n{shown}\ng\n"), "{ran:?}");
        // One that the branch does not have: the nearest above.
        fs::create_dir_all(world.root().join("only/here")).unwrap();
        world.give_away();
        let ran = Ran::of(world.command(words).current_dir(world.root().join("only/here")));
        assert!(ran.stdout.starts_with(&format!("{}\n", world.root().display())), "{ran:?}");
    });
}

#[test]
fn status_and_signals_are_the_commands() {
    World::each(|world| {
        branch(world);
        assert_eq!(sh(world, "b", "exit 37").code, 37);
        let killed = sh(world, "b", "kill -TERM $$");
        assert_eq!(killed.code, 128 + 15, "{killed:?}");
        for (command, code) in [("no-such-command", 127), ("./f", 126), ("./sub", 126)] {
            let ran = world.run(["agent", "fs", "exec", "b", "--json", "--", command]);
            assert_eq!(ran.code, code, "{ran:?}");
            crate::support::schema::check("error", &serde_json::from_str(&ran.stdout).unwrap());
        }
        // Without the branch there is no question of a command.
        for words in [&["exec", "no-such-branch", "--json", "--", "true"][..], &["exec", "--json", "nonsense", "true"]]
        {
            let ran = world.run(["agent", "fs"].iter().chain(words));
            assert!([2, 3].contains(&ran.code), "{ran:?}");
            crate::support::schema::check("error", &serde_json::from_str(&ran.stdout).unwrap());
        }
    });
}

/// What is there and executable, and cannot be run all the same: the system says of it that it is not there.
#[test]
fn an_interpreter_that_is_missing_is_named() {
    World::each(|world| {
        world.write("f", "plain");
        world.write("ours", "#!/no/such/program -x\n");
        world.write("through-f", format!("#!{}/f/x\n", world.root().display()));
        for script in ["ours", "through-f"] {
            fs::set_permissions(world.root().join(script), fs::Permissions::from_mode(0o755)).unwrap();
        }
        world.give_away();
        let path = world.fs(["branch", "--name", "b", "--mode", "worktree"]);
        let path_variable = format!("{}:/usr/bin:/bin", world.root().display());
        for (command, words) in [
            ("./ours", r#"cannot run ./ours: it is there, but its interpreter "/no/such/program" probably is not"#),
            ("ours", r#""/no/such/program""#),
            ("./through-f", "/f/x\" probably is not"),
        ] {
            for exec in [&["fs", "exec", "b"][..], &["fs", "exec"], &["record"]] {
                let line = [&["agent"], exec, &["--", command]].concat();
                let ran = Ran::of(world.command(line).env("PATH", &path_variable));
                assert_eq!(ran.code, 126, "{ran:?}");
                assert!(ran.stderr.contains(words), "{ran:?}");
            }
        }
        // And what is not there, as far as it is there.
        for command in ["f/x", "./f/x/y", "./f/"] {
            let ran = world.run(["agent", "fs", "exec", "b", "--", command]);
            assert_eq!(ran.code, 127, "{ran:?}");
            assert!(ran.stderr.contains("f is no directory") && !ran.stderr.contains(&path), "{ran:?}");
        }
    });
}

/// Its branch goes with it, so that nobody is sent there.
#[test]
fn a_command_that_is_not_there_leaves_no_branch_and_names_none() {
    World::each(|world| {
        world.write("f", "plain");
        let branches = || world.json("branches", &["agent", "fs", "branches"])["branches"].as_array().unwrap().len();
        let ran = world.run(["agent", "fs", "exec", "--", ""]);
        assert!(ran.code == 2 && ran.stderr.contains("its name is empty"), "{ran:?}");
        assert!(!ran.stderr.contains("branch "), "none is made for nothing: {ran:?}");
        let ran = world.run(["agent", "fs", "exec", "--", "no-such-command"]);
        let hint = ran.stderr.lines().find(|line| line.contains("hint:")).unwrap_or_default();
        assert!(ran.code == 127 && hint.contains("`ls`") && !hint.contains("/branches/"), "{ran:?}");
        crate::support::bench::until(|| branches() == 0);
    });
}

#[test]
fn without_a_branch_one_is_made_of_the_present() {
    World::each(|world| {
        world.write("f", "present");
        let words = ["agent", "fs", "exec", "--", "sh", "-c", "cat f; echo changed >f"];
        let ran = world.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "present"), "{ran:?}");
        // It stays now, and that was said before, with how it goes.
        let name = ran.stderr.split("then `ah agent fs rm ").nth(1).and_then(|rest| rest.split('`').next());
        world.fs(["rm", "--force", name.unwrap_or_else(|| panic!("{ran:?}"))]);
        assert_eq!(world.read("f").as_deref(), Some("present"));
    });
}

#[test]
fn ah_inside_knows_the_branch() {
    World::each(|world| {
        branch(world);
        let ah = crate::support::ah().display();
        let ran =
            sh(world, "b", &format!("echo 1 >f; {ah} agent fs snapshot >/dev/null && {ah} agent fs snapshots | wc -l"));
        assert_eq!(ran.code, 0, "{ran:?}");
        // The workspace's own timeline does not have it: the snapshot that was asked for, and the branch's.
        assert_eq!(world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"].as_array().unwrap().len(), 2);
    });
}

/// Codex hands its session to a server in the background, outside of the branch or of another, where it finds one.
#[test]
fn what_codex_runs_by_is_not_shared_with_a_branch() {
    World::each(|world| {
        world.write("codex", "#!/bin/sh\necho \"got $*\"\n");
        fs::set_permissions(world.root().join("codex"), fs::Permissions::from_mode(0o755)).unwrap();
        branch(world);
        for exec in [&["b"][..], &[]] {
            let ran = world.run([&["agent", "fs", "exec"], exec, &["--", "./codex", "go on"]].concat());
            assert!(ran.stdout.contains("-c ah.session=true") && ran.stdout.contains("go on"), "{ran:?}");
        }
        // A home without Codex stays one.
        let ran = sh(
            world,
            "b",
            "cd ~; ls -d .codex; mkdir -p .codex/app-server-control; >.codex/app-server-control/outside",
        );
        assert_eq!(ran.stdout, "", "{ran:?}");
        let look = "cd ~/.codex; stat -c %a *; ls app-server-control app-server-daemon; >app-server-control/inside";
        for _ in 0..2 {
            let ran = sh(world, "b", look);
            assert_eq!(ran.stdout, "700\n700\napp-server-control:\n\napp-server-daemon:\n", "{ran:?}");
        }
        let found = fs::read_dir(world.path("home/.codex/app-server-control")).unwrap();
        let names: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["outside"]);
    });
}

#[test]
fn an_ordinary_user_stays_one() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    branch(&world);
    let ran =
        sh(&world, "b", "id -u; id -g; grep CapEff /proc/self/status; cat /etc/shadow 2>/dev/null || echo refused");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines, ["65534", "65534", "CapEff:\t0000000000000000", "refused"], "{ran:?}");
    // Nor can it take the branch away from over the workspace.
    let ran = sh(&world, "b", "umount . 2>/dev/null && echo gone || echo stays");
    assert_eq!(ran.stdout, "stays\n");
}

#[test]
fn a_workspace_that_is_gone_is_told() {
    let world = World::new();
    let path = branch(&world);
    // From the branch itself its origin cannot be found any more, so the command is given as ah gives it to itself.
    fs::remove_dir_all(world.root()).unwrap();
    let mut command = Command::new(crate::support::ah());
    let root = world.root();
    command.args(["agent", "fs", "exec", "--over"]).arg(&path).arg(&root).args(["--", "true"]);
    let ran = Ran::of(command.current_dir(world.path("home")).env("AH_HOME", world.path("state")));
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("hint: mkdir -p"), "{ran:?}");
}

#[test]
fn a_view_that_is_mounted_in_it_alone_is_none_outside() {
    if !is_root() {
        return skip("needs root, whose views are mounts");
    }
    // Those of others are read-only wherever they are seen.
    let world = World::on_git();
    branch(&world);
    let ah = crate::support::ah().display();
    let ran = sh(&world, "b", &format!("{ah} agent fs snapshot -m inside >/dev/null; {ah} agent fs seek inside"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let inside = Path::new(ran.stdout.trim());
    // There it is a directory like others.
    fs::write(inside.join("f"), "altered").unwrap();
    let at = world.path("state/branches/b");
    let again = world.json("seek", &["-C", at.to_str().unwrap(), "agent", "fs", "seek", "inside"]);
    assert!(again["lease"]["shared"] == false && again["lease"]["path"] != ran.stdout.trim(), "{again}");
    let view = Path::new(again["lease"]["path"].as_str().unwrap());
    assert_eq!(fs::read_to_string(view.join("f")).unwrap(), "outside");
    assert_eq!(fs::write(view.join("f"), "altered").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}
