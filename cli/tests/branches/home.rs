//! A branch and the workspace that it grew from: commits that were brought home, names that are known in the other one, a workspace that was moved.

use std::fs;
use std::process::Command;

use super::support::{Ran, World, ah};
use super::{branched, git, refused};

/// What `rm` says of it, as it is refused.
fn said(world: &World) -> String {
    let Ran { code, stderr, .. } = world.run(["agent", "fs", "rm", "b"]);
    assert_eq!(code, 4, "{stderr}");
    stderr
}

/// Runs each of the commands by which `rm` says that commits and stashes come home, but for those that merge; which these are.
pub(super) fn bring_home(world: &World) -> Vec<String> {
    let said = said(world);
    let (merging, others): (Vec<_>, Vec<_>) =
        said.split('`').filter(|part| part.starts_with("git ")).partition(|part| part.contains(" merge "));
    assert!(!others.is_empty(), "{said}");
    others.into_iter().for_each(pasted);
    merging.into_iter().map(str::to_owned).collect()
}

/// Runs a line of a shell, away from any repository.
fn pasted(line: &str) {
    let names = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line])
        .current_dir("/")
        .envs(names.map(|name| (name, "e@x")))
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    let ran = shell.output().unwrap();
    assert!(ran.status.success(), "{line}: {ran:?}");
}

#[test]
fn what_the_hint_brings_home_changes_nothing_there() {
    let world = World::new();
    let (branch, root) = (branched(&world), world.root());
    git(&root, &["branch", "side"]);
    git(&branch, &["checkout", "-q", "-b", "side"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "beside"]);
    git(&branch, &["checkout", "-q", "-b", "exp"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "tried"]);
    git(&branch, &["checkout", "-q", "main"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "done"]);
    for contents in ["two", "three"] {
        fs::write(branch.join("f"), contents).unwrap();
        git(&branch, &["stash", "-q"]);
    }
    // What somebody prunes by default is not theirs to lose by this.
    git(&root, &["config", "fetch.prune", "true"]);
    git(&root, &["branch", "b-main-of-mine"]);
    git(&root, &["commit", "-q", "--allow-empty", "-m", "meanwhile"]);
    let state =
        || (git(&root, &["rev-parse", "HEAD", "side", "b-main-of-mine"]), git(&root, &["status", "--porcelain"]));
    let (before, id) = (state(), |name: &str| git(&branch, &["rev-parse", name]));
    let merging = bring_home(&world);
    assert_eq!(state(), before);
    assert_eq!(git(&root, &["rev-parse", "b-main", "b-side", "exp"]), [id("main"), id("side"), id("exp")].join("\n"));
    let stashes = ["stash@{0}", "stash@{1}"];
    assert_eq!(stashes.map(|name| git(&root, &["rev-parse", name])), stashes.map(id));
    // What is merged is what goes on with the branch that is checked out, and nothing else.
    let [merge] = <[String; 1]>::try_from(merging).unwrap();
    pasted(&merge);
    assert_eq!(git(&root, &["rev-parse", "HEAD^2"]), id("main"));
    assert_eq!(git(&root, &["rev-list", "--merges", "--count", "HEAD"]), "1");
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_stash_alone_is_brought_home_as_one() {
    let world = World::new();
    let (branch, root) = (branched(&world), world.root());
    fs::write(branch.join("f"), "two").unwrap();
    git(&branch, &["stash", "-q"]);
    world.write("f", "mine");
    git(&root, &["stash", "-q"]);
    let (ours, tip) = (git(&root, &["rev-parse", "stash@{0}"]), git(&root, &["rev-parse", "main"]));
    assert_eq!(bring_home(&world), [""; 0]);
    assert_eq!(git(&root, &["rev-parse", "main"]), tip);
    assert_eq!(git(&root, &["rev-parse", "stash@{0}"]), git(&branch, &["rev-parse", "stash@{0}"]));
    assert_eq!(git(&root, &["rev-parse", "stash@{1}"]), ours);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_name_that_is_taken_at_home_is_not_written_over() {
    let world = World::new();
    let (branch, root) = (branched(&world), world.root());
    for name in ["b-main", "b-HEAD/x"] {
        git(&root, &["branch", name]);
    }
    let there = git(&root, &["rev-parse", "b-main"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&branch, &["checkout", "-q", "--detach"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "two"]);
    bring_home(&world);
    assert_eq!(git(&root, &["rev-parse", "b-main", "main"]), format!("{there}\n{there}"));
    assert_eq!(git(&root, &["rev-parse", "b-main-2"]), git(&branch, &["rev-parse", "main"]));
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_name_that_git_has_no_room_for_beside_those_at_home_becomes_another() {
    let world = World::on_git();
    let (branch, root) = (branched(&world), world.root());
    for (home, there) in [("a", "a/b"), ("c/d", "c")] {
        git(&root, &["branch", home]);
        git(&branch, &["checkout", "-q", "-b", there]);
        git(&branch, &["commit", "-q", "--allow-empty", "-m", there]);
    }
    let before = git(&root, &["rev-parse", "a", "c/d"]);
    bring_home(&world);
    assert_eq!(git(&root, &["rev-parse", "a", "c/d"]), before);
    assert_eq!(git(&root, &["rev-parse", "b-a-b", "b-c"]), git(&branch, &["rev-parse", "a/b", "c"]));
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_git_takes_for_no_name_is_not_asked_for_by_it() {
    let world = World::on_git();
    let (branch, root) = (branched(&world), world.root());
    git(&root, &["branch", "feat"]);
    git(&branch, &["checkout", "-q", "-b", "feat"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&branch, &["checkout", "-q", "--detach"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "two"]);
    let refs = branch.join(".git/refs/heads");
    fs::write(refs.join(".DS_Store"), b"\0\0\0\x01Bud1").unwrap();
    let (id, before) = (git(&branch, &["rev-parse", "HEAD"]), git(&root, &["rev-parse", "feat"]));
    git(&branch, &["checkout", "-q", "main"]);
    fs::write(refs.join("fe*"), format!("{id}\n")).unwrap();
    bring_home(&world);
    assert_eq!(git(&root, &["rev-parse", "feat", "b-fe-"]), format!("{before}\n{id}"));
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_replaces_commits_in_a_branch_replaces_none_at_home() {
    let world = World::on_git();
    let (branch, root) = (branched(&world), world.root());
    git(&branch, &["checkout", "-q", "--orphan", "exp"]);
    git(&branch, &["commit", "-q", "-m", "other"]);
    git(&branch, &["replace", "main", "exp"]);
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "looked at"]);
    git(&branch, &["update-ref", "refs/bisect/bad", "HEAD"]);
    git(&branch, &["reset", "-q", "--hard", "HEAD~1"]);
    let bad = git(&branch, &["rev-parse", "refs/bisect/bad"]);
    bring_home(&world);
    assert_eq!(git(&root, &["log", "-1", "--format=%s"]), "first");
    assert_eq!(git(&root, &["for-each-ref", "refs/replace", "refs/bisect"]), "");
    assert_eq!(git(&root, &["rev-parse", "b-bisect-bad"]), bad);
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_branch_that_is_called_as_no_branch_of_gits_can_be_is_merged_by_what_the_hint_says() {
    let world = World::on_git();
    let root = world.root();
    branched(&world);
    world.fs(["rm", "b"]);
    let branch = std::path::PathBuf::from(world.fs(["branch", "--name", "#12"]));
    git(&branch, &["commit", "-q", "--allow-empty", "-m", "there"]);
    let told = world.run(["agent", "fs", "rm", "#12"]).stderr;
    told.split('`').filter(|part| part.starts_with("git ")).for_each(pasted);
    assert_eq!(
        git(&root, &["rev-parse", "HEAD", "12-main"]),
        [git(&branch, &["rev-parse", "HEAD"]).as_str(); 2].join("\n")
    );
    world.fs(["rm", "#12"]);
    assert!(!branch.exists());
}

#[test]
fn a_repository_inside_is_brought_home_to_the_one_at_its_place() {
    let world = World::on_git();
    world.write(".gitignore", "mine/\n");
    let (branch, root) = (branched(&world), world.root());
    let (ours, theirs) = (root.join("mine"), branch.join("mine"));
    git(&root, &["init", "-q", "-b", "main", "mine"]);
    git(&ours, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&branch, &["clone", "-q", ours.to_str().unwrap(), "mine"]);
    fs::write(theirs.join("g"), "one").unwrap();
    git(&theirs, &["add", "g"]);
    git(&theirs, &["commit", "-q", "-m", "second"]);
    fs::write(theirs.join("g"), "two").unwrap();
    git(&theirs, &["stash", "-q"]);
    refused(&world, "commits or references in mine");
    let tips = || git(&root, &["rev-parse", "HEAD"]) + &git(&ours, &["rev-parse", "HEAD"]);
    let before = tips();
    let [merge] = <[String; 1]>::try_from(bring_home(&world)).unwrap();
    assert_eq!(tips(), before);
    pasted(&merge);
    let names = ["rev-parse", "HEAD", "stash@{0}"];
    assert_eq!(git(&ours, &names), git(&theirs, &names));
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
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
        git(&root, &["fetch", "-q", branch.to_str().unwrap()]);
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
    let tip = git(&world.root(), &["rev-parse", "HEAD"]);
    bring_home(&world);
    assert_eq!(git(&world.root(), &["rev-parse", "HEAD"]), tip);
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

#[test]
fn a_branch_is_told_of_also_where_ids_begin_with_its_name() {
    let world = World::new();
    let mut letters = std::collections::BTreeSet::new();
    // Of so many ids two begin with the same one of sixteen letters.
    let mut ids = (0..17).map(|n| {
        world.write("f", n.to_string());
        world.fs(["snapshot"])
    });
    let twice = ids.find_map(|id| Some(id[..1].to_owned()).filter(|letter| !letters.insert(letter.clone()))).unwrap();
    let diff = || world.run(["agent", "fs", "diff", &twice]);
    let ran = diff();
    assert!(ran.code == 2 && ran.stderr.contains("is ambiguous"), "{ran:?}");
    world.fs(["branch", "--name", &twice]);
    let ran = diff();
    assert!(ran.code == 3 && ran.stderr.contains("is a branch, and no snapshot's id"), "{ran:?}");
}

#[test]
fn where_a_branch_stands_for_a_snapshot_it_is_told_what_brings_home_what_is_in_it() {
    let world = World::new();
    let branch = branched(&world);
    let there = branch.to_str().unwrap();
    fs::write(branch.join("f"), "two").unwrap();
    let taken = world.run(["-C", there, "agent", "fs", "snapshot", "-m", "solved"]).stdout;
    let home = "`ah agent fs exec b -- ah agent fs diff --patch | git -C ";
    for name in ["b", "solved", taken.trim()] {
        for words in [&["restore", name][..], &["diff", name], &["show", name], &["cat", name, "f"]] {
            let ran = world.run(["agent", "fs"].iter().chain(words));
            let said = match name {
                "b" => "is a branch".to_owned(),
                _ => format!("`ah -C {there} agent fs show {name}`"),
            };
            assert!(ran.code == 3 && ran.stderr.contains(&said) && ran.stderr.contains(home), "{words:?}: {ran:?}");
        }
    }
    // What means something by its place here means nothing there.
    for name in ["@{9}", "50d-ago", "other"] {
        let ran = world.run(["agent", "fs", "show", name]);
        assert!(ran.code == 3 && !ran.stderr.contains("branch b") && !ran.stderr.contains(home), "{ran:?}");
    }
    let said = world.run(["agent", "fs", "diff", "b"]).stderr;
    let line = said.split('`').find(|part| part.starts_with("ah agent fs exec")).unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", ah().parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(world.root()).env("PATH", path);
    let ours = world.command(["version"]);
    shell.envs(ours.get_envs().filter(|(name, _)| *name != "PATH").filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut shell);
    assert_eq!((ran.code, world.read("f").as_deref()), (0, Some("two")), "{ran:?}");
}

#[test]
fn the_branch_of_a_workspace_that_was_moved_names_its_new_place() {
    let world = World::new();
    let branch = branched(&world);
    let moved = world.path("moved");
    fs::rename(world.root(), &moved).unwrap();
    let there = Ran::of(world.command(["agent", "fs", "branches"]).current_dir(&moved));
    assert_eq!(there.code, 0, "{there:?}");
    let place = branch.to_str().unwrap();
    let ran = Ran::of(world.command(["-C", place]).current_dir(&moved));
    assert!(ran.stdout.contains(&format!("branch b of {}\n", moved.display())), "{ran:?}");
    let ran = Ran::of(world.command(["-C", place, "--json"]).current_dir(&moved));
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["status"]["branch"]["origin_path"], moved.to_str().unwrap());
}

#[test]
fn a_branch_of_another_workspace_is_told_with_that_and_the_command_there() {
    let world = World::new();
    world.fs(["branch", "--name", "retry", "--mode", "worktree"]);
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    let words = ["agent", "fs", "branch", "--name", "retry", "--mode", "worktree"];
    let there = |words: &[&str]| Ran::of(world.command(words).current_dir(&other));
    let ran = there(&words);
    let root = world.root().display().to_string();
    assert!(ran.code == 4 && ran.stderr.contains(&format!("a branch retry of {root} ")), "{ran:?}");
    // Also where nothing was ever captured.
    for _ in 0..2 {
        for (words, hint) in [
            (&["agent", "fs", "rm", "--force", "retry"][..], "rm --force retry"),
            (&["agent", "fs", "exec", "retry", "--", "echo", "a b"], "exec retry -- echo 'a b'"),
        ] {
            let ran = there(words);
            let hint = format!("hint: ah -C {root} agent fs {hint}\n");
            assert!(ran.code == 3 && ran.stderr.contains(&hint), "{hint}: {ran:?}");
        }
        assert_eq!(there(&["agent", "fs", "snapshot"]).code, 0);
    }
}

#[test]
fn files_of_a_commit_that_was_only_fetched_hold_the_branch_until_the_merge_that_is_named() {
    let world = World::on_git();
    let (branch, root) = (branched(&world), world.root());
    fs::write(branch.join("f"), "two").unwrap();
    fs::write(branch.join("new"), "n").unwrap();
    git(&branch, &["add", "."]);
    git(&branch, &["commit", "-q", "-m", "work"]);
    let until = "changed files hold it until they are in the workspace as well, by a merge or `cp`";
    let told = said(&world);
    assert!(told.contains("2 changed files") && told.contains(until), "{told}");
    let [first] = <[String; 1]>::try_from(bring_home(&world)).unwrap();
    // Fetched, the commit needs no other name there, and the files are as far away as before.
    let told = said(&world);
    assert!(told.contains("nowhere else: 2 changed files\n") && told.contains(until), "{told}");
    assert!(!told.contains(" fetch "), "{told}");
    let merge = told.split('`').find(|part| part.starts_with("git ")).unwrap();
    assert_eq!(merge, first);
    pasted(merge);
    // What was merged is not to be merged again.
    fs::write(branch.join("new"), "more").unwrap();
    let told = said(&world);
    assert!(told.contains("nowhere else: 1 changed file\n") && !told.contains("git -C"), "{told}");
    fs::copy(branch.join("new"), root.join("new")).unwrap();
    world.fs(["rm", "b"]);
    assert!(!branch.exists());
}

#[test]
fn a_branch_that_is_called_as_a_snapshot_goes_by_what_the_hint_says() {
    let world = World::on_git();
    world.write("f", "one");
    world.fs(["snapshot", "-m", "base"]);
    let branch = std::path::PathBuf::from(world.fs(["branch", "base", "--name", "base"]));
    fs::write(branch.join("f"), "two").unwrap();
    let hinted = |words: &[&str], code: i32| {
        let ran = world.run(words);
        assert_eq!(ran.code, code, "{ran:?}");
        let line = ran.stderr.split("hint: ").nth(1).and_then(|hint| hint.split("ah agent fs ").nth(1));
        line.unwrap_or_else(|| panic!("{ran:?}")).split(['`', ';']).next().unwrap().to_owned()
    };
    let first = hinted(&["agent", "fs", "rm", "base"], 2);
    let id = first.split(' ').nth(1).unwrap();
    assert_eq!(hinted(&["agent", "fs", "rm", id], 4), format!("rm --force {id}"));
    assert_eq!(hinted(&["agent", "fs", "rm", "--all"], 4), format!("rm {id}"));
    let forced = hinted(&["agent", "fs", "rm", "--force", "base"], 2);
    assert!(forced.starts_with(&format!("rm --force {id} ")), "{forced}");
    // Of one that is missing, too.
    fs::rename(&branch, world.path("aside")).unwrap();
    let ran = world.run(["agent", "fs", "branches"]);
    assert!(ran.stderr.contains(&format!("`ah agent fs rm --force {id}`")), "{ran:?}");
    fs::rename(world.path("aside"), &branch).unwrap();
    world.fs(["rm", "--force", id]);
    assert!(!branch.exists() && world.fs(["cat", "base", "f"]) == "one");
    for name in ["@", "@x"] {
        assert_eq!(world.refused(2, &["agent", "fs", "branch", "base", "--name", name]), "invalid-argument");
    }
}
