//! Taking branches away, and what becomes of those that grew from what is gone.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::bench::{Bench, until};
use crate::support::{self, Ran, User, is_root, skip};

#[test]
fn a_branch_of_a_branch_that_is_gone_is_everybodys_to_remove() {
    Bench::each(|bench| {
        let middle = bench.branch("middle");
        bench.sh(&format!("echo two > {}/f", middle.display()));
        let leaf = PathBuf::from(bench.at(&middle, &["branch", "--name", "leaf"]));
        assert_eq!(bench.sh(&format!("cat {}/f", leaf.display())), "two");
        bench.0.fs(["rm", "--force", "middle"]);
        bench.kill_services();
        bench.0.fs(["rm", "--force", "leaf"]);
        assert_eq!((bench.mounts(), leaf.exists(), middle.exists()), (Vec::new(), false, false));
    });
}

#[test]
fn a_directory_that_was_made_anew_is_branched_once_nothing_is_left_of_the_other() {
    for serves in [false, true] {
        let bench = Bench::new(User::Me);
        let former = bench.branch("b");
        bench.at(&former, &["snapshot"]);
        bench
            .sh(&format!("cd / && mv {0} {0}.gone && cp -a {0}.gone {0} && rm -rf {0}.gone", bench.0.root().display()));
        if !serves {
            bench.kill_services();
        }
        let words = ["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "c"];
        let ran = bench.ran(&bench.0.root(), &words);
        assert!(ran.code == 4 && ran.stderr.contains("another directory"), "{ran:?}");
        bench.at(&bench.0.root(), &["rm", "--force", "b"]);
        let listed = bench.at(&bench.0.root(), &["snapshots", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        for snapshot in listed["snapshots"].as_array().unwrap() {
            bench.at(&bench.0.root(), &["rm", "--force", snapshot["id"].as_str().unwrap()]);
        }
        let branch = PathBuf::from(bench.at(&bench.0.root(), &words));
        assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
    }
}

#[test]
fn what_branches_are_made_of_is_not_removed_under_them() {
    Bench::each(|bench| {
        let copy: PathBuf = bench.0.fs(["branch", "--provider", "git", "--name", "copy"]).into();
        let grown: PathBuf =
            bench.at(&copy, &["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "grown"]).into();
        bench.sh(&format!("echo work > {}/only-here", grown.display()));
        let before = bench.at(&copy, &["snapshots"]);
        let ran = bench.ran(&bench.0.root(), &["rm", "copy", "--force"]);
        assert!(ran.code == 4 && ran.stderr.contains("ah agent fs rm grown"), "{ran:?}");
        assert_eq!(bench.sh(&format!("cat {}/only-here", grown.display())), "work");
        assert_eq!(bench.at(&copy, &["snapshots"]), before);
        // Also when nobody serves it, and what it was branched from is not there any more.
        bench.kill_services();
        bench.sh(&format!("mv {0} {0}.aside", copy.display()));
        let ran = bench.ran(&bench.0.root(), &["rm", "copy", "--force"]);
        assert!(ran.code == 4 && ran.stderr.contains("ah agent fs rm grown"), "{ran:?}");
        bench.sh(&format!("mv {0}.aside {0}", copy.display()));
        bench.at(&copy, &["rm", "grown", "--force"]);
        bench.at(&bench.0.root(), &["rm", "copy", "--force"]);
        assert!(!copy.exists() && !grown.exists());
    });
}

#[test]
fn commits_in_repositories_and_submodules_inside_are_work() {
    let bench = Bench::new(User::Me);
    let root = bench.0.root();
    let git = "git -c user.name=n -c user.email=e@x -c protocol.file.allow=always -c init.defaultBranch=main";
    bench.sh(&format!(
        "cd {0} && {git} init -q . && {git} init -q nested && {git} -C nested commit -q --allow-empty -m one && \
         {git} init -q ../other && {git} -C ../other commit -q --allow-empty -m one && {git} submodule --quiet add ../other sub",
        root.display()
    ));
    for at in ["nested", "sub"] {
        let work = |branch: &Path, word: &str| bench.sh(&format!("cd {}/{at} && {git} {word}", branch.display()));
        let branch = bench.branch("b");
        work(&branch, "checkout -q -b feature");
        work(&branch, "commit -q --allow-empty -m work");
        work(&branch, "checkout -q main");
        let ran = bench.ran(&root, &["rm", "b"]);
        let place = if at == "sub" { ".git/modules/sub" } else { at };
        assert!(ran.code == 4 && ran.stderr.contains(&format!("commits or references in {place}")), "{ran:?}");
        assert!(
            ran.stderr.contains(&format!(
                "git -C {0}/{place} fetch --no-prune {1}/{place} ",
                root.display(),
                branch.display()
            )),
            "{ran:?}"
        );
        // Brought home, it is not only here.
        work(&root, &format!("fetch -q {}/{at} feature:feature", branch.display()));
        bench.at(&root, &["rm", "b"]);
        assert!(!branch.exists());
        // Where only the workspace's has gone on, nothing is lost.
        let branch = bench.branch("b");
        until(|| !bench.at(&branch, &["status"]).contains("still being kept"));
        work(&root, "commit -q --allow-empty -m later");
        bench.at(&root, &["rm", "b"]);
        assert!(!branch.exists());
    }
}

#[test]
fn another_directory_in_the_workspaces_place_is_not_taken_for_it() {
    let bench = Bench::new(User::Me);
    let branch = bench.branch("b");
    let text = branch.to_str().unwrap();
    bench.sh(&format!("echo mine > {text}/mine; cat {text}/f"));
    // Moved while the service runs, it is the same.
    let (root, aside) = (bench.0.root(), bench.0.path("aside"));
    fs::rename(&root, &aside).unwrap();
    bench.at(&aside, &["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "moved"]);
    assert_eq!(bench.sh(&format!("cat {}/../moved/src/main", text)), "fn main() {}");
    fs::rename(&aside, &root).unwrap();
    assert_eq!(bench.0.fs(["branches"]).lines().count(), 3);
    // Made anew, it is not.
    fs::rename(&root, &aside).unwrap();
    fs::create_dir(&root).unwrap();
    bench.0.write("f", "brand new");
    let ran = bench.ran(&root, &["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "c"]);
    assert!(ran.code == 4 && ran.stderr.contains("another directory"), "{ran:?}");
    // Nor is it promised.
    let promised = || {
        let said = bench.ran(&root, &["status", "--mode", "cow-overlay", "--provider", "agentfs"]).stdout;
        said.lines().find(|line| line.contains(" agentfs ")).unwrap_or_default().to_owned()
    };
    assert!(promised().starts_with('-') && promised().contains("another directory"), "{}", promised());
    // While nobody serves it, it was moved: that is said, and where it is now it is found.
    bench.kill_services();
    let (was, aside) = (aside, bench.0.path("elsewhere"));
    fs::rename(&was, &aside).unwrap();
    let status = || bench.at(&branch, &["status"]);
    assert!(
        status().contains("is not at") && status().contains("what was not kept of that is missing"),
        "{}",
        status()
    );
    let shown = || bench.sh(&format!("cat {text}/mine {text}/f {text}/src/main"));
    assert_eq!(shown(), "mine\nonefn main() {}");
    fs::rename(&root, bench.0.path("anew")).unwrap();
    fs::rename(&aside, &root).unwrap();
    bench.at(&root, &["gc"]);
    assert!(!status().contains("is not at"), "{}", status());
    assert_eq!(shown(), "mine\nonefn main() {}");
    fs::rename(&root, &aside).unwrap();
    fs::rename(bench.0.path("anew"), &root).unwrap();
    // Gone for good, what was kept of it is there, and the branch is worked in as before.
    fs::remove_dir_all(&aside).unwrap();
    for _ in 0..2 {
        bench.kill_services();
        let ran = bench.0.run(["agent", "fs", "branches"]);
        assert!(ran.code == 0 && !ran.stderr.contains("not mounted"), "{ran:?}");
        assert_eq!(shown(), "mine\nonefn main() {}");
        assert!(promised().starts_with('-'), "{}", promised());
    }
    let id = bench.at(&branch, &["snapshot"]);
    bench.sh(&format!("rm {text}/src/main; echo late > {text}/mine"));
    assert_eq!(bench.at(&branch, &["diff", &id]), "M\tmine\nD\tsrc/main");
    bench.at(&branch, &["restore", &id]);
    assert_eq!(shown(), "mine\nonefn main() {}");
    bench.0.fs(["rm", "--force", "b", "moved"]);
    assert_eq!(bench.mounts(), Vec::<String>::new());
}

#[test]
fn what_branches_grew_from_goes_by_force_alone_and_they_are_named() {
    Bench::each(|bench| {
        let middle = bench.branch("middle");
        let leaf = PathBuf::from(bench.at(&middle, &["branch", "--name", "leaf"]));
        let ran = bench.ran(&bench.0.root(), &["rm", "middle"]);
        assert!(ran.code == 4 && ran.stderr.contains("what leaf grew from goes"), "{ran:?}");
        let hint = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        assert!(hint.contains(&format!("`ah -C {} agent fs rm leaf`", middle.display())), "{hint}");
        assert_eq!(bench.at(&leaf, &["diff"]), "");
        let ran = bench.ran(&bench.0.root(), &["rm", "--force", "middle"]);
        assert!(ran.code == 0 && ran.stderr.contains("what leaf grew from is gone"), "{ran:?}");
        assert_eq!(bench.ran(&leaf, &["diff"]).code, 3);
        assert_eq!(bench.sh(&format!("cat {}/f", leaf.display())), "one");
        bench.0.fs(["rm", "--force", "leaf"]);
        assert_eq!(bench.mounts(), Vec::<String>::new());
    });
}

#[test]
fn work_that_was_brought_home_is_not_held_back() {
    Bench::each(|bench| {
        let (branch, root) = (bench.branch("b"), bench.0.root());
        let (there, here) = (branch.display(), root.display());
        bench.sh(&format!("cd {there}; echo two > f; chmod +x src/main; rm .gitignore; ln -s f link"));
        let held = |changed: &str| {
            let ran = bench.ran(&root, &["rm", "b"]);
            assert!(ran.code == 4 && ran.stderr.contains(&format!("nowhere else: {changed}\n")), "{changed}: {ran:?}");
        };
        held("3 changed files, 1 deleted file");
        bench.sh(&format!("cd {here}; echo two > f"));
        held("2 changed files, 1 deleted file");
        bench.sh(&format!("cd {here}; rm .gitignore; ln -s other link"));
        held("2 changed files");
        bench.sh(&format!("cd {here}; ln -sfn f link"));
        held("1 changed file");
        bench.sh(&format!("cd {here}; chmod +x src/main"));
        bench.0.fs(["rm", "b"]);
        assert_eq!(bench.mounts(), Vec::<String>::new());
    });
}

#[test]
fn on_a_full_disk_a_branch_can_be_removed() {
    if !is_root() {
        return skip("needs root, to mount a small disk");
    }
    let bench = Bench::new(User::Me);
    let state = bench.0.path("state");
    fs::create_dir_all(&state).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(&state).status().unwrap();
    assert!(mounted.success());
    let branch = bench.branch("b");
    bench.sh(&format!(
        "echo mine > {}/f; head -c 40M /dev/zero > {}/fill 2>&1 || true",
        branch.display(),
        state.display()
    ));
    let ran = bench.0.run(["agent", "fs", "branch", "--mode", "cow-overlay", "--name", "c"]);
    assert!(ran.code == 1 && ran.stderr.contains("`df -h` shows which disk is full"), "{ran:?}");
    bench.0.fs(["rm", "--force", "b"]);
    assert!(!branch.exists());
}

#[test]
fn what_is_kept_of_a_deleted_workspace_is_had_and_removed_by_its_path() {
    Bench::each(|bench| {
        let (root, other) = (bench.0.root(), bench.0.path("other"));
        fs::create_dir(&other).unwrap();
        bench.0.give_away();
        let kept = bench.branch("kept");
        bench.branch("untouched");
        bench.sh(&format!("echo two > {}/f", kept.display()));
        let seen = bench.at(&kept, &["snapshot"]);
        fs::remove_dir_all(&root).unwrap();
        let from = |at: &Path, words: &[&str]| {
            let mut command = bench.0.command(["-C", root.to_str().unwrap(), "agent", "fs"].iter().chain(words));
            Ran::of(command.current_dir(at))
        };
        let at_root = |words: &[&str]| from(&other, words);
        // From anywhere it is said where.
        let mut command = bench.0.command(["agent", "fs", "rm", "kept"]);
        let ran = Ran::of(command.current_dir(&other));
        let hint = format!("hint: ah -C {} agent fs rm kept", root.display());
        assert!(ran.code == 3 && ran.stderr.contains(&hint), "{ran:?}");
        let ran = at_root(&["branches"]);
        assert!(ran.code == 0 && ran.stdout.contains("kept") && ran.stdout.contains("untouched"), "{ran:?}");
        assert!(ran.stderr.contains("there is nothing at"), "{ran:?}");
        assert_eq!(at_root(&["rm", "untouched"]).code, 0);
        assert_eq!(bench.at(&kept, &["cat", &seen, "f"]), "two");
        for started_anew in [false, true] {
            if started_anew {
                bench.kill_services();
            }
            let ran = at_root(&["rm", "kept"]);
            let forced = format!("`ah -C {} agent fs rm --force kept`", root.display());
            assert!(ran.code == 4 && ran.stderr.contains(&forced), "{ran:?}");
        }
        assert_eq!(at_root(&["rm", "--force", "kept"]).code, 0);
        assert_eq!((bench.mounts(), kept.exists()), (Vec::new(), false));
        // What needs the directory, and what nobody knows, is refused, and nothing is made.
        for words in [&["snapshot"][..], &["status"]] {
            assert_eq!(at_root(words).code, 3, "{words:?}");
        }
        assert_eq!(bench.ran(&root.join("src"), &["branches"]).code, 3);
        assert!(!root.exists());
    });
}

#[test]
fn a_branch_of_a_branch_that_is_gone_is_mounted_by_whatever_uses_it() {
    Bench::each(|bench| {
        let other = bench.0.path("other");
        fs::create_dir(&other).unwrap();
        bench.0.give_away();
        let middle = bench.branch("middle");
        let leaf = PathBuf::from(bench.at(&middle, &["branch", "--name", "leaf"]));
        let text = leaf.to_str().unwrap();
        bench.sh(&format!("echo two > {text}/f; sync {text}/f"));
        bench.0.fs(["rm", "--force", "middle"]);
        for words in [&["branches"][..], &["exec", "leaf", "--", "cat", "f"], &["status"], &["seek", "@"]] {
            bench.kill_services();
            let at = if ["status", "seek"].contains(&words[0]) { &leaf } else { &bench.0.root() };
            if words[0] == "seek" {
                bench.at(at, &["snapshot"]);
                bench.kill_services();
            }
            let ran = bench.ran(at, words);
            assert_eq!(ran.code, 0, "{ran:?}");
            assert!(words[0] != "branches" || ran.stdout.contains("leaf") && ran.stdout.contains("ready"), "{ran:?}");
            assert!(words[0] != "exec" || ran.stdout == "two\n", "{ran:?}");
            assert_eq!(bench.sh(&format!("cat {text}/f")), "two", "{words:?}");
        }
        // It is the first one's, in whose store it is: another workspace neither has it nor shows it at its own path.
        bench.at(&other, &["snapshot"]);
        assert!(!bench.at(&other, &["branches"]).contains("leaf"));
        let ran = bench.ran(&other, &["exec", "leaf", "--", "cat", "f"]);
        assert!(ran.code == 3 && ran.stderr.contains("is a branch of another workspace"), "{ran:?}");
        bench.0.fs(["rm", "--force", "leaf"]);
        assert_eq!(bench.mounts(), Vec::<String>::new());
    });
}

/// What is left of its mount looks like something else in the branch's place.
#[test]
fn a_branch_whose_service_is_killed_while_it_is_made_leaves_nothing_but_what_is_told() {
    Bench::each(|bench| {
        bench.sh(&format!("cd {}; for n in $(seq 2000); do echo $n > f$n; done", bench.0.root().display()));
        bench.branch("warm");
        for wait in [20, 40, 60, 80, 110, 150] {
            let name = format!("b{wait}");
            let words = ["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", &name];
            std::thread::scope(|scope| {
                scope.spawn(|| bench.ran(&bench.0.root(), &words));
                std::thread::sleep(Duration::from_millis(wait));
                bench.kill_services();
            });
            let did = bench.at(&bench.0.root(), &["gc"]);
            let told = bench.at(&bench.0.root(), &["branches"]);
            let listed = told.contains(&name);
            let place = bench.0.path(format!("state/branches/{name}"));
            let mounted = bench.mounts().iter().any(|mount| Path::new(mount) == place);
            assert_eq!(mounted, listed, "killed after {wait} ms: {did}\n{told}");
            assert!(listed || place.symlink_metadata().is_err(), "killed after {wait} ms: {did}\n{told}");
        }
        // Nor in the store.
        let all = bench.at(&bench.0.root(), &["branches", "--json"]);
        let all: serde_json::Value = serde_json::from_str(&all).unwrap();
        for branch in all["branches"].as_array().unwrap() {
            bench.at(&bench.0.root(), &["rm", "--force", branch["name"].as_str().unwrap()]);
        }
        bench.at(&bench.0.root(), &["rm", "--all", "--force"]);
    });
}

/// Has a branch's record say what is left of a removal that the machine's end cut short. Gives where it is.
fn removal_was_cut_short(bench: &Bench, name: &str) -> PathBuf {
    let records = fs::read_dir(bench.0.path("state/branches")).unwrap().map(|entry| entry.unwrap().path());
    for record in records.filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        if text["name"] == name {
            text["state"] = "removing".into();
            text["maker"]["boot"] = "before".into();
            fs::write(&record, text.to_string()).unwrap();
            return record;
        }
    }
    panic!("there is no branch {name}");
}

#[test]
fn a_removal_that_was_cut_short_takes_nothing_that_was_made_since() {
    Bench::each(|bench| {
        for (name, unmount) in [("dead", false), ("away", true)] {
            for command in ["rm", "gc"] {
                let branch = bench.branch(&format!("{name}-{command}"));
                let name = branch.file_name().unwrap().to_str().unwrap();
                let file = branch.join("new");
                bench.sh(&format!("echo precious > {0}; sync {0}", file.display()));
                removal_was_cut_short(bench, name);
                bench.kill_services();
                if unmount {
                    assert!(Command::new("umount").args(["-l", branch.to_str().unwrap()]).status().unwrap().success());
                }
                let words = if command == "rm" { vec!["rm", name] } else { vec!["gc"] };
                let ran = bench.ran(&bench.0.root(), &words);
                let told = format!("{}{}", ran.stdout, ran.stderr);
                assert!(told.contains("1 changed file") && ran.code == if command == "rm" { 4 } else { 0 }, "{ran:?}");
                assert_eq!(bench.sh(&format!("cat {}", file.display())), "precious", "{ran:?}");
                bench.0.fs(["rm", "--force", name]);
            }
        }
    });
}

#[test]
fn a_removal_that_a_power_cut_ended_is_finished_by_one_gc() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.kill_services();
        assert!(Command::new("umount").args(["-l", branch.to_str().unwrap()]).status().unwrap().success());
        let record = removal_was_cut_short(bench, "b");
        let ran = bench.ran(&bench.0.root(), &["gc"]);
        assert!(ran.code == 0 && ran.stdout.contains("took away the branch b"), "{ran:?}");
        let ran = bench.ran(&bench.0.root(), &["gc"]);
        assert!(ran.code == 0 && !ran.stdout.contains("branch"), "{ran:?}");
        assert_eq!((branch.exists(), record.exists(), bench.mounts()), (false, false, Vec::new()));
    });
}

#[test]
fn who_is_in_a_branch_is_told_to_leave_it_and_not_to_end_their_shell() {
    Bench::each(|bench| {
        let (branch, root) = (bench.branch("b"), bench.0.root());
        let ah = support::ah().display();
        let home = bench.0.path("state");
        let line = |at: &Path| {
            let (at, root, home) = (at.display(), root.display(), home.display());
            format!("cd {at}; AH_HELPER_SOCKET= AH_HOME={home} {ah} -C {root} agent fs rm --force b 2>&1; true")
        };
        let said = bench.sh(&line(&branch.join("src")));
        let hint = format!("`cd / && ah -C {} agent fs rm --force b`", root.display());
        assert!(said.contains(&hint) && !said.contains("kill"), "{said}");
        // Who names one by its own path is in it, too, where it grew from a branch that was removed since.
        let grown: PathBuf =
            bench.at(&branch, &["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "grown"]).into();
        bench.at(&root, &["rm", "--force", "b"]);
        let ran = bench.ran(&grown, &["rm", "--force", "grown"]);
        let hint = format!("`cd / && ah -C {} agent fs rm --force grown`", root.display());
        assert!(ran.code == 4 && ran.stderr.contains(&hint), "{ran:?}");
        bench.at(&root, &["rm", "--force", "grown"]);
        let branch = bench.branch("b");
        assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
        let said = bench.sh(&line(Path::new("/")));
        assert_eq!((said.as_str(), branch.exists()), (branch.to_str().unwrap(), false));
    });
}

#[test]
fn what_stands_in_the_place_of_a_branch_whose_store_is_lost_goes_with_it() {
    Bench::each_unpinned(|bench| {
        let branch = bench.branch("b");
        let gone = |branch: &Path| {
            bench.kill_services();
            assert!(Command::new("umount").args(["-l", branch.to_str().unwrap()]).status().unwrap().success());
            assert!(branch.join("NOT-MOUNTED.txt").exists());
            // What of it is a filesystem's own snapshots stays, read-only as those are.
            let state = bench.0.path("state");
            bench.sh(&format!(
                "cd {}; (chmod -R u+w workspaces; rm -rf workspaces) 2>&1; rm index.json",
                state.display()
            ));
            bench.0.fs(["snapshot"]);
        };
        gone(&branch);
        bench.0.fs(["rm", "--force", "b"]);
        assert!(!branch.exists());
        // What somebody put there stays.
        let branch = bench.branch("b");
        gone(&branch);
        bench.sh(&format!("cd {}; chmod u+w .; echo mine >mine", branch.display()));
        bench.0.fs(["rm", "--force", "b"]);
        assert_eq!(bench.sh(&format!("cat {}/mine", branch.display())), "mine");
    });
}

#[test]
fn a_branch_in_use_is_not_called_a_view() {
    let bench = Bench::new(User::Me);
    let branch = bench.branch("b");
    let mut user = Command::new("sleep").arg("100").current_dir(&branch).spawn().unwrap();
    let ran = bench.ran(&bench.0.root(), &["rm", "--force", "b"]);
    user.kill().unwrap();
    user.wait().unwrap();
    let told = ran.code == 4 && ran.stderr.contains("the branch b cannot be taken away");
    assert!(told && ran.stderr.contains("in use by process") && !ran.stderr.contains("view"), "{ran:?}");
    bench.0.fs(["rm", "--force", "b"]);
}

#[test]
fn what_a_branch_says_of_itself_hides_no_work() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let work = r#"mkdir .ah && echo '{"capture": {"exclude": ["**"]}}' > .ah/config.json && echo two > f"#;
        bench.sh(&format!("cd {} && {work}", branch.display()));
        let ran = bench.0.run(["agent", "fs", "rm", "b"]);
        assert!(ran.code == 4 && ran.stderr.contains("2 changed files"), "{ran:?}");
    });
}

#[test]
fn the_base_stays_as_long_as_it_alone_has_what_was_in_the_workspace() {
    Bench::each(|bench| {
        let root = bench.0.root();
        let listed = || bench.0.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"].clone();
        // What is the same, whatever its times are, ignored, or came later, is in no base alone.
        let kept = |branch: &Path| until(|| !bench.at(branch, &["status"]).contains("still being kept"));
        kept(&bench.branch("b"));
        bench.sh(&format!("cd {} && touch f && echo other > node_modules/big && echo new > new", root.display()));
        let ran = bench.ran(&root, &["rm", "b"]);
        assert!(ran.code == 0 && !ran.stderr.contains("stays"), "{ran:?}");
        assert_eq!(listed().as_array().unwrap().len(), 0, "{}", listed());
        let changes = [
            ("f", "one", "echo two > f"),
            // Of the same size, with its former time.
            ("f", "two\n", "touch -r f stamp && echo six > f && touch -r stamp f"),
            ("src/main", "fn main() {}", "rm -r src"),
            ("f", "six\n", "rm f && mkdir f && echo in > f/in"),
            // Nobody trusts that file.
            ("f/in", "in\n", r#"mkdir .ah && echo '{"capture": {"exclude": ["f"]}}' > .ah/config.json && rm -r f"#),
        ];
        for (path, held, change) in changes {
            kept(&bench.branch("b"));
            bench.sh(&format!("cd {} && {change}", root.display()));
            let ran = bench.ran(&root, &["rm", "b"]);
            assert!(ran.code == 0 && ran.stderr.contains(&format!("all that has {path} as it was")), "{ran:?}");
            let (base, all) = (listed()[0]["id"].as_str().unwrap().to_owned(), listed());
            assert_eq!(all.as_array().unwrap().len(), 1, "{change}: {all}");
            assert_eq!(bench.ran(&root, &["cat", &base, path]).stdout, held, "{change}");
            bench.at(&root, &["rm", &base]);
        }
        // So it is with a branch that `exec` makes; nobody is told when that goes.
        let branches = || bench.0.json("branches", &["agent", "fs", "branches"])["branches"].clone();
        for changed in [false, true] {
            let words = ["-C", root.to_str().unwrap(), "agent", "fs", "exec", "--", "sh", "-c", "read line"];
            let mut command = bench.0.command(words);
            let mut exec = command.current_dir("/").stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            until(|| branches().as_array().unwrap().iter().any(|branch| branch["state"] == "ready"));
            kept(Path::new(branches()[0]["path"].as_str().unwrap()));
            if changed {
                bench.0.write("src-later", "new");
                bench.0.write(".gitignore", "node_modules/\nmore/\n");
            }
            exec.stdin.take().unwrap().write_all(b"done\n").unwrap();
            assert!(exec.wait().unwrap().success());
            until(|| branches().as_array().unwrap().is_empty());
            until(|| listed().as_array().unwrap().len() == usize::from(changed));
        }
        let base = listed()[0]["id"].as_str().unwrap().to_owned();
        assert_eq!(bench.ran(&root, &["cat", &base, ".gitignore"]).stdout, "node_modules/\n");
    });
}

#[test]
fn a_base_is_not_kept_for_what_it_has_lost() {
    Bench::each_plain(|bench| {
        let root = bench.0.root();
        let listed = || bench.0.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"].clone();
        // More than is copied behind the branch before it changes.
        let grow = || bench.sh(&format!("truncate -s 80M {}/src/large", root.display()));
        let branch = || {
            let branch = bench.branch("b");
            until(|| !bench.at(&branch, &["status"]).contains("still being kept"));
        };
        grow();
        branch();
        bench.sh(&format!("echo more >> {}/src/large", root.display()));
        let ran = bench.ran(&root, &["rm", "b"]);
        assert!(ran.code == 0 && !ran.stderr.contains("stays"), "{ran:?}");
        assert_eq!(listed().as_array().unwrap().len(), 0);
        // What is gone beside it does not go unseen.
        grow();
        branch();
        bench.sh(&format!("cd {}/src && echo more >> large && rm main", root.display()));
        let ran = bench.ran(&root, &["rm", "b"]);
        assert!(ran.code == 0 && ran.stderr.contains("all that has src/main as it was"), "{ran:?}");
        let base = listed()[0]["id"].as_str().unwrap().to_owned();
        let lost = bench.ran(&root, &["cat", &base, "src/large"]);
        assert!(lost.code == 1 && lost.stderr.contains("src/large"), "{lost:?}");
        assert_eq!(bench.ran(&root, &["cat", &base, "src/main"]).stdout, "fn main() {}");
    });
}
