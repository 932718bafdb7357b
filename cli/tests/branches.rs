//! Taking branches away: what is nowhere else stays unless it is forced, and what fails changes nothing.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "branches/base.rs"]
mod base;
#[path = "branches/deleted.rs"]
mod deleted;
#[path = "branches/home.rs"]
mod home;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_test_disks::Disk;
use support::{User, World, is_root, skip};

/// Runs git; what it printed.
fn git(at: &Path, words: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]).args(words);
    let output = git.current_dir(at).env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with a commit, a snapshot and a branch `b`; where that is.
fn branched(world: &World) -> PathBuf {
    world.write("f", "one");
    world.write(".gitignore", "out/\n");
    git(&world.root(), &["init", "-q", "-b", "main"]);
    git(&world.root(), &["add", "."]);
    git(&world.root(), &["commit", "-q", "-m", "first"]);
    world.write("out/build", "x");
    world.fs(["snapshot"]);
    world.fs(["branch", "@", "--name", "b"]).into()
}

fn refused(world: &World, part: &str) {
    assert_eq!(world.refused(4, &["agent", "fs", "rm", "b"]), "failed-precondition");
    let ran = world.run(["agent", "fs", "rm", "b"]);
    assert!(ran.stderr.contains(part) && ran.stderr.contains("rm --force b"), "{ran:?}");
}

#[test]
fn what_was_done_in_one_is_told_there_and_can_be_brought_home() {
    let world = World::new();
    world.write("gone", "soon");
    let branch = branched(&world);
    let there = |words: &[&str]| {
        let ran = world.run(["-C", branch.to_str().unwrap()].iter().chain(&["agent", "fs"]).chain(words));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout
    };
    assert_eq!(there(&["diff"]), "");
    fs::write(branch.join("f"), "two").unwrap();
    fs::write(branch.join("new"), "n").unwrap();
    fs::write(branch.join("out/build"), "y").unwrap();
    fs::remove_file(branch.join("gone")).unwrap();
    let changes = "M\tf\nD\tgone\nA\tnew\n";
    assert_eq!(there(&["diff"]), changes);
    // Its own snapshots change nothing in that, nor do those of the workspace, or the workspace.
    there(&["snapshot"]);
    world.write("f", "three");
    world.fs(["snapshot"]);
    assert_eq!(there(&["diff"]), changes);
    assert_eq!(there(&["diff", "@"]), "");
    assert_eq!(there(&["diff", "--", "new"]), "A\tnew\n");
    world.json("diff", &["-C", branch.to_str().unwrap(), "agent", "fs", "diff"]);
    // Where there is no branch, since the latest.
    assert_eq!(world.fs(["diff"]), "");
    world.write("f", "one");
    assert_eq!(world.fs(["diff"]), "M\tf");
    let patch = world.path("patch");
    fs::write(&patch, there(&["diff", "--patch"])).unwrap();
    git(&world.root(), &["apply", patch.to_str().unwrap()]);
    assert_eq!(
        (world.read("f").as_deref(), world.read("new").as_deref(), world.read("gone")),
        (Some("two"), Some("n"), None)
    );
    // The snapshot it grew from may be gone.
    let base =
        world.json("branches", &["agent", "fs", "branches"])["branches"][0]["snapshot"].as_str().unwrap().to_owned();
    world.fs(["rm", "--force", &base]);
    let words = ["-C", branch.to_str().unwrap(), "agent", "fs", "diff"];
    assert_eq!(world.refused(3, &words), "not-found");
}

#[test]
fn one_that_was_built_in_goes() {
    let world = World::new();
    let branch = branched(&world);
    fs::write(branch.join("out/build"), "y").unwrap();
    fs::write(branch.join("out/more"), "z").unwrap();
    git(&branch, &["status"]);
    git(&branch, &["gc", "-q"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn one_whose_directory_was_deleted_is_called_gone_and_can_be_taken_away() {
    let world = World::new();
    let branch = branched(&world);
    fs::remove_dir_all(&branch).unwrap();
    let listed = world.json("branches", &["agent", "fs", "branches"]);
    assert_eq!(listed["branches"][0]["state"], "gone");
    let ran = world.run(["agent", "fs", "branches"]);
    assert!(ran.stderr.contains("`ah agent fs rm --force b`"), "{ran:?}");
    assert_eq!(world.refused(3, &["agent", "fs", "exec", "b", "--", "true"]), "not-found");
    let ran = world.run(["agent", "fs", "exec", "b", "--", "true"]);
    assert!(ran.stderr.contains("`ah agent fs rm --force b`"), "{ran:?}");
    world.fs(["rm", "--force", "b"]);
    assert_eq!(world.json("branches", &["agent", "fs", "branches"])["branches"], serde_json::json!([]));
}

#[test]
fn commits_and_references_are_work() {
    let world = World::new();
    let branch = branched(&world);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "second"]);
    refused(&world, "HEAD moved");
    git(&branch, &["branch", "kept"]);
    git(&branch, &["reset", "-q", "--hard", "HEAD~1"]);
    refused(&world, "references moved");
    git(&branch, &["branch", "-q", "-D", "kept"]);
    git(&branch, &["checkout", "-q", "-b", "other"]);
    refused(&world, "HEAD moved");
    git(&branch, &["checkout", "-q", "main"]);
    git(&branch, &["branch", "-q", "-D", "other"]);
    fs::write(branch.join("f"), "two").unwrap();
    git(&branch, &["stash", "-q"]);
    refused(&world, "references moved");
    world.fs(["rm", "--force", "b"]);
    assert!(!branch.exists());
}

#[test]
fn repositories_inside_are_work_unless_what_they_name_is_elsewhere() {
    let world = World::new();
    let branch = branched(&world);
    let (mine, theirs) = (branch.join("out/mine"), world.path("theirs"));
    git(&branch, &["init", "-q", "-b", "main", "out/mine"]);
    git(&mine, &["commit", "-q", "--allow-empty", "-m", "only here"]);
    refused(&world, "commits or references in out/mine");
    git(&mine, &["checkout", "-q", "--detach"]);
    git(&mine, &["branch", "-q", "-D", "main"]);
    refused(&world, "commits or references in out/mine");
    // Pushed, and so in another repository.
    git(&mine, &["branch", "-q", "main"]);
    git(&world.root(), &["init", "-q", "--bare", theirs.to_str().unwrap()]);
    git(&mine, &["remote", "add", "origin", theirs.to_str().unwrap()]);
    git(&mine, &["push", "-q", "-u", "origin", "main"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_linked_work_trees_need_is_work() {
    let world = World::new();
    let branch = branched(&world);
    let (linked, aside) = (world.path("linked"), world.path("aside"));
    let known = git(&branch, &["rev-parse", "HEAD"]);
    git(&branch, &["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
    // Nothing was done there, but it would be no repository any more.
    refused(&world, &format!("the repository of the linked work tree {}", linked.display()));
    git(&linked, &["commit", "-q", "--allow-empty", "-m", "in the linked tree"]);
    refused(&world, &format!("the repository of the linked work tree {}", linked.display()));
    // Its commit stays where it is when the tree itself is not there.
    fs::rename(&linked, &aside).unwrap();
    let commit = git(&aside, &["rev-parse", "HEAD"]);
    refused(&world, &format!("commit {commit} of the linked work tree {}", linked.display()));
    git(&aside, &["reset", "-q", "--hard", &known]);
    git(&aside, &["update-ref", "refs/worktree/kept", &commit]);
    refused(&world, &format!("commit {commit} of the linked work tree {}", linked.display()));
    fs::rename(&aside, &linked).unwrap();
    git(&branch, &["worktree", "remove", "--force", linked.to_str().unwrap()]);
    // One inside goes with the branch, but not with what is only there.
    git(&branch, &["worktree", "add", "-q", "--detach", "out/inside"]);
    let inside = branch.join("out/inside");
    git(&inside, &["commit", "-q", "--allow-empty", "-m", "inside"]);
    assert!(!world.run(["agent", "fs", "rm", "b"]).stderr.contains("the repository of"));
    refused(&world, &format!("of the linked work tree {}", inside.display()));
    let commit = git(&inside, &["rev-parse", "HEAD"]);
    home::bring_home(&world);
    assert_eq!(git(&world.root(), &["rev-parse", &format!("b-{}", &commit[..12])]), commit);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn linked_work_trees_of_repositories_inside_are_looked_at() {
    let world = World::new();
    let branch = branched(&world);
    let (mine, theirs, linked) = (branch.join("out/mine"), world.path("theirs"), world.path("linked"));
    git(&branch, &["init", "-q", "-b", "main", "out/mine"]);
    git(&mine, &["commit", "-q", "--allow-empty", "-m", "pushed"]);
    git(&world.root(), &["init", "-q", "--bare", theirs.to_str().unwrap()]);
    git(&mine, &["remote", "add", "origin", theirs.to_str().unwrap()]);
    git(&mine, &["push", "-q", "-u", "origin", "main"]);
    git(&mine, &["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
    refused(&world, &format!("the repository of the linked work tree {}", linked.display()));
    git(&mine, &["worktree", "remove", linked.to_str().unwrap()]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn another_branch_inside_is_not_taken_along() {
    let world = World::new();
    branched(&world);
    world.fs(["rm", "b"]);
    let branch = world.path("elsewhere");
    let at = |name: &str, at: &Path| world.fs(["branch", "@", "--name", name, "--at", at.to_str().unwrap()]);
    at("b", &branch);
    fs::create_dir_all(branch.join("out")).unwrap();
    let inner = branch.join("out/inner");
    at("inner", &inner);
    fs::write(inner.join("only-here"), "x").unwrap();
    refused(&world, "the branch inner");
    assert_eq!(fs::read_to_string(inner.join("only-here")).unwrap(), "x");
    world.fs(["rm", "--force", "inner"]);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn rm_refuses_a_branch_of_which_the_record_as_a_workspace_is_lost() {
    let world = World::new();
    world.write("a", "1");
    let path = world.fs(["branch", "--name", "b"]);
    fs::write(Path::new(&path).join("a"), "work").unwrap();
    world.wait_for_background();
    let listed: serde_json::Value =
        serde_json::from_str(&world.run(["agent", "fs", "branches", "--json"]).stdout).unwrap();
    let id = listed["branches"][0]["workspace"].as_str().unwrap();
    fs::remove_dir_all(world.path("state").join("workspaces").join(id)).unwrap();
    refused(&world, "cannot be found out");
    assert!(Path::new(&path).join("a").exists());
    world.fs(["rm", "--force", "b"]);
}

#[test]
fn what_is_behind_a_workspace_inside_is_not_taken_along() {
    let world = World::new();
    let branch = branched(&world);
    let behind = branch.join("out/.ah-behind-project");
    fs::create_dir_all(&behind).unwrap();
    fs::write(behind.join("only-here"), "x").unwrap();
    refused(&world, "out/.ah-behind-project");
    fs::remove_dir_all(&behind).unwrap();
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_subvolume_inside_is_not_taken_along() {
    let Some(disk) = Disk::new("btrfs", 300, "user_subvol_rm_allowed") else { return };
    let world = World::within(User::Me, disk.at());
    let branch = branched(&world);
    let inside = branch.join("out/volume");
    let made = Command::new("btrfs").args(["subvolume", "create"]).arg(&inside).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::write(inside.join("only-here"), "x").unwrap();
    refused(&world, "the subvolume out/volume");
    fs::remove_file(inside.join("only-here")).unwrap();
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn files_and_snapshots_of_its_own_are_counted() {
    let world = World::new();
    let branch = branched(&world);
    fs::write(branch.join("f"), "two").unwrap();
    fs::create_dir(branch.join("new")).unwrap();
    fs::write(branch.join("new/g"), "g").unwrap();
    refused(&world, "2 changed files");
    refused(&world, "new/g\n");
    let place = branch.to_str().unwrap();
    world.fs(["-C", place, "snapshot"]);
    refused(&world, "2 changed files, 1 snapshot of its own");
    world.fs(["rm", "--force", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_a_project_leaves_out_is_work_unless_that_is_trusted() {
    let world = World::new();
    let branch = branched(&world);
    fs::create_dir_all(branch.join(".ah")).unwrap();
    fs::create_dir(branch.join("src")).unwrap();
    fs::write(branch.join("f"), "two").unwrap();
    fs::write(branch.join("src/work"), "precious").unwrap();
    let all = [serde_json::json!({"exclude": ["**"]}), serde_json::json!({"exclude": ["src", "f", ".ah"]})];
    for capture in all {
        fs::write(branch.join(".ah/config.json"), serde_json::json!({ "capture": capture }).to_string()).unwrap();
        refused(&world, "3 changed files");
    }
    world.fs(["rm", "--force", "b"]);

    let grown = || PathBuf::from(world.fs(["branch", "--name", "b"]));
    // In the workspace a stranger's counts as little, but somebody can trust it there.
    world.write(".ah/config.json", r#"{"capture": {"exclude": ["made"]}}"#);
    let branch = grown();
    fs::write(branch.join("made"), "x").unwrap();
    refused(&world, "1 changed file");
    assert_eq!(world.run(["config", "trust"]).code, 0);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());

    // What a project captures although it is ignored is work, whatever the branch says of it.
    world.write(".gitignore", "out/\n.ah/\n");
    world.write(".ah/config.json", r#"{"capture": {"include": ["out"]}}"#);
    let branch = grown();
    assert_eq!(fs::read_to_string(branch.join("out/build")).unwrap(), "x");
    fs::write(branch.join("out/build"), "y").unwrap();
    refused(&world, "1 changed file");
    fs::create_dir_all(branch.join(".ah")).unwrap();
    fs::write(branch.join(".ah/config.json"), "{}").unwrap();
    refused(&world, "1 changed file");
}

#[test]
fn what_is_in_use_stays_whole() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = World::new();
    let branch = branched(&world);
    let place = branch.to_str().unwrap();
    world.fs(["-C", place, "snapshot"]);
    let before = world.picture("state/branches/b");
    let whole = || {
        let ran = world.run(["agent", "fs", "rm", "--force", "b"]);
        assert_eq!(ran.code, 4, "{ran:?}");
        assert_eq!(world.picture("state/branches/b"), before);
        world.fs(["gc"]);
        assert_eq!(world.picture("state/branches/b"), before);
        let listed = world.json("branches", &["agent", "fs", "branches"]);
        assert_eq!(listed["branches"][0]["state"], "ready");
        world.fs(["-C", place, "show", "@"]);
    };
    // A process in a view of one of its snapshots.
    let view = world.fs(["-C", place, "seek", "@"]);
    let mut inside = Command::new("sleep").arg("60").current_dir(&view).spawn().unwrap();
    whole();
    inside.kill().unwrap();
    inside.wait().unwrap();
    // Something mounted in it.
    let (point, none) = (branch.join("out"), None::<&str>);
    nix::mount::mount(Some(&world.path("home")), &point, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let ran = world.run(["agent", "fs", "rm", "--force", "b"]);
        assert_eq!(ran.code, 4, "{ran:?}");
        world.fs(["gc"]);
        assert!(branch.join("f").exists());
    }));
    ah_test_disks::unmount(&point);
    outcome.unwrap();
    // What runs beside in a mount namespace of its own may have a copy of that mount, as long as it does.
    let gone = |_| world.run(["agent", "fs", "rm", "--force", "b"]).code == 0;
    assert!((0..1000).any(gone) && !branch.exists());
}

#[test]
fn a_workspace_bears_the_first_commit_of_its_repository() {
    let world = World::on_git();
    branched(&world);
    let output = Command::new("git").args(["rev-list", "--max-parents=0", "HEAD"]).current_dir(world.root()).output();
    let first = String::from_utf8(output.unwrap().stdout).unwrap();
    let status = world.json("status", &["agent", "fs", "status"]);
    assert_eq!(status["status"]["first_commit"], first[..12]);
    world.json("snapshots", &["agent", "fs", "snapshots"]);
}

/// Waits until that is so, a minute at most.
fn in_time(what: impl Fn() -> bool) -> bool {
    (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        what()
    })
}

#[test]
fn a_branch_that_exec_made_goes_with_the_command_unless_it_was_used() {
    let world = World::new();
    world.write("f", "one");
    world.fs(["snapshot"]);
    let branches = || world.json("branches", &["agent", "fs", "branches"])["branches"].as_array().unwrap().len();
    let snapshots = || world.fs(["snapshots"]).lines().count();
    let before = snapshots();
    // A command that waits for its children has none of ours.
    let ran = world.run(["agent", "fs", "exec", "--", "sh", "-c", "wait; cat f"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "one"), "{ran:?}");
    assert!(ran.stderr.contains("it goes when the command ends"), "{ran:?}");
    assert!(in_time(|| branches() == 0 && snapshots() == before));
    // As long as anything of it runs, it is there.
    let ran = world.run(["agent", "fs", "exec", "--", "sh", "-c", "sleep 3 > /dev/null 2>&1 & echo begun"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(branches(), 1);
    assert!(in_time(|| branches() == 0));
    // What was changed is kept, whatever the branch says of it.
    let work = r#"echo two > g; mkdir .ah; echo '{"capture": {"exclude": ["**"]}}' > .ah/config.json"#;
    let ran = world.run(["agent", "fs", "exec", "--", "sh", "-c", work]);
    assert_eq!(ran.code, 0, "{ran:?}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(branches(), 1);
}

#[test]
fn a_branch_that_exec_made_stays_with_the_linked_work_trees_that_were_made_in_it() {
    let world = World::new();
    branched(&world);
    world.fs(["rm", "b"]);
    let linked = world.path("linked");
    let words = ["agent", "fs", "exec", "--", "git", "worktree", "add", "-q", "--detach", linked.to_str().unwrap()];
    let ran = world.run(words);
    assert_eq!(ran.code, 0, "{ran:?}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    let listed = world.json("branches", &["agent", "fs", "branches"]);
    let name = listed["branches"][0]["name"].as_str().unwrap();
    let ran = world.run(["agent", "fs", "rm", name]);
    let part = format!("the repository of the linked work tree {}", linked.display());
    assert!(ran.code == 4 && ran.stderr.contains(&part), "{ran:?}");
}

#[test]
fn a_branch_of_a_branch_that_is_gone_can_be_removed() {
    let world = World::on_git();
    let branch = branched(&world);
    let place = branch.to_str().unwrap();
    let second = PathBuf::from(world.fs(["-C", place, "branch", "--name", "second"]));
    world.fs(["rm", "--force", "b"]);
    assert!(second.exists());
    // Nobody can tell any more what is in it alone.
    assert_eq!(world.refused(4, &["agent", "fs", "rm", "second"]), "failed-precondition");
    world.fs(["rm", "--force", "second"]);
    assert!(!second.exists());
    assert_eq!(world.refused(3, &["agent", "fs", "rm", "second"]), "not-found");
}

#[test]
fn a_name_is_more_than_blanks() {
    let world = World::on_git();
    world.write("f", "one");
    world.fs(["snapshot"]);
    for name in ["", " ", "   ", "\u{a0}"] {
        assert_eq!(world.refused(2, &["agent", "fs", "branch", "@", "--name", name]), "invalid-argument");
    }
    world.fs(["branch", "@", "--name", " a b "]);
}

#[test]
fn one_that_cannot_be_made_leaves_no_row_on_the_timeline() {
    let world = World::on_git();
    world.write("f", "one");
    // No directory can be made there, which only the provider finds out.
    for _ in 0..2 {
        assert_eq!(world.run(["agent", "fs", "branch", "--at", "/proc/none"]).code, 3);
    }
    let events = world.json("timeline", &["timeline"])["events"].as_array().unwrap().len();
    assert_eq!((events, world.run(["timeline"]).stdout.lines().count()), (4, 0), "twice a snapshot, and that it went");
    world.fs(["branch", "--name", "b"]);
    assert_eq!(world.run(["timeline"]).stdout.lines().count(), 3);
    assert_eq!(world.run(["timeline", "-n", "2"]).stdout.lines().count(), 3);
}

#[test]
fn where_the_workspace_was_deleted_hints_can_be_typed() {
    let world = World::on_git();
    world.write("f", "one");
    world.fs(["snapshot"]);
    world.fs(["branch", "@", "--name", "it's"]);
    fs::remove_dir_all(world.root()).unwrap();
    let root = world.root();
    let run = |words: &[&str]| {
        let mut command = world.command(["-C", root.to_str().unwrap(), "agent", "fs"].iter().chain(words));
        support::Ran::of(command.current_dir("/"))
    };
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &line.replacen("ah ", &format!("{} ", support::ah().display()), 1)]).current_dir("/");
        command.env("AH_HOME", world.path("state")).env("AH_HELPER_SOCKET", "").env("HOME", world.path("home"));
        support::Ran::of(&mut command)
    };
    for words in [&["branch"][..], &["exec", "--", "true"], &["snapshot"], &["restore", "@"], &["diff"]] {
        let ran = run(words);
        assert!(ran.code == 3 && ran.stderr.contains("error: there is nothing at"), "{words:?}: {ran:?}");
        let hint = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        let typed: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
        assert_eq!(typed.len(), 4, "{hint}");
        for line in typed {
            let ran = shell(line);
            assert!(ran.code == 0 && !ran.stdout.is_empty(), "{line}: {ran:?}");
        }
        // One of them brought it back.
        fs::remove_dir_all(&root).unwrap();
    }
    let ran = run(&["exec", "it's", "--", "true"]);
    let hint = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
    let typed: Vec<&str> = hint.split("; or work in the branch itself: ").collect();
    assert!(ran.code == 4 && typed.len() == 2 && typed[1].contains("it'\\''s"), "{ran:?}");
    assert!(shell(typed[1]).code == 0 && shell(typed[0]).code == 0 && root.is_dir(), "{hint}");
}

#[test]
fn a_branch_is_called_as_its_place_unless_that_is_taken() {
    let world = World::new();
    world.write("f", "one");
    let name = |at: &str| {
        let made = world.json("branch", &["agent", "fs", "branch", "--at", at]);
        made["branch"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(name("../experiment"), "experiment");
    std::fs::create_dir(world.path("other")).unwrap();
    assert!(name("../other/experiment").starts_with("w-"));
    assert!(name("../.hidden").starts_with("w-"));
}

#[test]
fn a_branchs_name_wins_over_the_beginning_of_an_id() {
    let world = World::new();
    world.write("f", "one");
    let snapshot = world.fs(["snapshot"]);
    let path = world.fs(["branch", "@", "--name", &snapshot[..1]]);
    world.fs(["rm", "--force", &snapshot[..1]]);
    assert!(!std::path::Path::new(&path).exists() && world.fs(["snapshots"]).contains(&snapshot));
    // A whole id is as exact.
    world.fs(["branch", "@", "--name", &snapshot]);
    assert_eq!(world.refused(2, &["agent", "fs", "rm", &snapshot]), "invalid-argument");
}

#[test]
fn a_branch_that_was_moved_is_taken_up_where_it_is() {
    let world = World::on_git();
    world.write("f", "one");
    let path = world.fs(["branch", "--name", "b"]);
    let place = world.path("elsewhere");
    std::fs::rename(path, &place).unwrap();
    let gone = world.run(["agent", "fs", "exec", "b", "--", "true"]);
    assert!(gone.code == 3 && gone.stderr.contains("`ah -C NEWPLACE agent fs status`"), "{gone:?}");
    assert_eq!(world.run(["-C", place.to_str().unwrap(), "agent", "fs", "status"]).code, 0);
    assert_eq!(world.fs(["exec", "b", "--", "cat", "f"]), "one");
    assert!(world.fs(["branches"]).contains(place.to_str().unwrap()));
    // It is taken away where it was made: how to have it there is still said.
    let kept = world.run(["agent", "fs", "rm", "b"]);
    let mut words = kept.stderr.split('`').skip(1).step_by(2);
    let (moves, looks) = (words.next().unwrap(), words.next().unwrap());
    assert!(kept.code == 4 && moves.starts_with("mv "), "{kept:?}");
    assert!(std::process::Command::new("sh").args(["-c", moves]).status().unwrap().success(), "{kept:?}");
    assert_eq!(world.run(looks.split(' ').skip(1)).code, 0, "{kept:?}");
    world.fs(["rm", "b"]);
    std::fs::rename(world.fs(["branch", "--name", "c"]), &place).unwrap();
    world.run(["-C", place.to_str().unwrap(), "agent", "fs", "status"]);
    let forced = world.run(["agent", "fs", "rm", "--force", "c"]);
    assert!(forced.code == 0 && forced.stderr.contains("stay in"), "{forced:?}");
    assert_eq!(std::fs::read_to_string(place.join("f")).unwrap(), "one");
}

#[test]
fn a_branchs_name_wins_over_a_symlink_that_leads_to_another() {
    let world = World::new();
    world.write("f", "one");
    world.fs(["snapshot"]);
    let places = ["old", "b"].map(|name| PathBuf::from(world.fs(["branch", "@", "--name", name])));
    std::os::unix::fs::symlink(&places[0], world.root().join("b")).unwrap();
    world.fs(["rm", "--force", "b"]);
    assert!(places[0].exists() && !places[1].exists());
}

#[test]
fn what_may_not_be_read_is_not_taken_away_unseen() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.write("f", "one");
    world.write("known/f", "one");
    world.fs(["snapshot"]);
    let branch = PathBuf::from(world.fs(["branch", "@", "--name", "b"]));
    let lock = |name: &str, mode| fs::set_permissions(branch.join(name), fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(branch.join("shut")).unwrap();
    fs::write(branch.join("shut/w"), "work").unwrap();
    world.give_away();
    for name in ["shut", "known"] {
        lock(name, 0);
        refused(&world, &format!("perhaps what cannot be compared ({name})"));
        lock(name, 0o755);
        fs::remove_dir_all(branch.join("shut")).unwrap_or_default();
    }
    lock("known", 0);
    world.fs(["rm", "--force", "b"]);
    assert!(!branch.exists());
}
