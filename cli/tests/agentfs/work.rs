//! Working in branches: going back, side by side, with git, within `exec`.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::bench::{Bench, until};
use crate::support::{self, Ran, User, is_root, skip};

#[test]
fn a_branch_is_worked_in_and_gone_back_in() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        // Everything is there, ignored files too; and nothing is written to the workspace.
        assert_eq!(
            bench.sh(&format!("cat {text}/f {text}/src/main {text}/node_modules/big")),
            "onefn main() {}ignored, and needed"
        );
        assert_eq!(bench.at(&branch, &["diff"]), "");
        bench.sh(&format!("echo two > {text}/f; mkdir {text}/new; echo n > {text}/new/n; rm -r {text}/src"));
        assert_eq!(bench.at(&branch, &["diff"]), "M\tf\nA\tnew/\nA\tnew/n\nD\tsrc/\nD\tsrc/main");
        assert_eq!((bench.0.read("f").unwrap(), bench.0.read("new/n")), ("one".to_owned(), None));

        let snapshot = bench.at(&branch, &["snapshot", "-m", "half"]);
        assert!(bench.at(&branch, &["status"]).contains("agentfs"));
        bench.sh(&format!("echo three > {text}/f; rm -r {text}/new {text}/node_modules; touch {text}/later"));
        assert_eq!(bench.at(&branch, &["cat", "half", "f"]), "two");
        let view = bench.at(&branch, &["seek", &snapshot]);
        assert_eq!(bench.sh(&format!("cat {view}/new/n {view}/f; ls {view}")), "n\ntwo\nf\nnew\nnode_modules");
        assert!(bench.sh(&format!("touch {view}/x 2>&1 || true")).contains("Read-only"));
        bench.at(&branch, &["restore", "half"]);
        assert_eq!(
            bench.sh(&format!("cat {text}/f {text}/new/n {text}/node_modules/big; ls {text}")),
            "two\nn\nignored, and neededf\nnew\nnode_modules"
        );
        bench.at(&branch, &["undo"]);
        assert_eq!(bench.sh(&format!("cat {text}/f; ls {text}")), "three\nf\nlater");
        bench.at(&branch, &["release", &view]);

        // A branch of the branch, from what it was.
        let second = PathBuf::from(bench.at(&branch, &["branch", "half", "--name", "second"]));
        assert_eq!(bench.sh(&format!("cat {}/f {0}/new/n", second.display())), "two\nn");
        assert!(bench.at(&second, &["status", "--json"]).contains("\"agentfs\""));

        // What is nowhere else is not taken away by mistake.
        assert_eq!(bench.ran(&branch, &["rm", "second"]).code, 0);
        assert_eq!(bench.0.run(["agent", "fs", "rm", "b"]).code, 4);
        bench.0.fs(["rm", "--force", "b"]);
        assert_eq!((bench.mounts(), branch.exists()), (Vec::new(), false));
        assert_eq!(bench.0.read("f").unwrap(), "one");
        // What it grew from is no point of the workspace, and goes with the last that grew from it.
        let left = bench.0.json("snapshots", &["agent", "fs", "snapshots"]);
        assert_eq!(left["snapshots"].as_array().unwrap().len(), 0, "{left}");
    });
}

#[test]
fn what_is_ignored_is_compared_where_it_is_named() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        let diff = |sides: &[&str], names: &[&str]| {
            let words = [&["diff"][..], sides, &["--"][..usize::from(!names.is_empty())], names].concat();
            let ran = bench.ran(&branch, &words);
            assert_eq!(ran.code, 0, "{ran:?}");
            let note = ran.stderr.contains("not compared, as it is ignored: node_modules; named after `--`, it is");
            (ran.stdout.trim_end().to_owned(), note)
        };
        bench.at(&branch, &["snapshot", "-m", "s"]);
        assert_eq!(diff(&["s"], &[]), (String::new(), false));
        bench.sh(&format!("echo broken > {text}/node_modules/big"));
        bench.at(&branch, &["snapshot", "-m", "s2"]);
        let modified = "M\tnode_modules/big".to_owned();
        // Since it grew as well.
        for sides in [&["s", "s2"][..], &["s"], &[]] {
            assert_eq!(diff(sides, &[]), (String::new(), true), "{sides:?}");
            assert_eq!(diff(sides, &["src"]), (String::new(), false), "{sides:?}");
            for name in ["node_modules", "node_modules/big"] {
                assert_eq!(diff(sides, &[name]), (modified.clone(), false), "{sides:?} {name}");
            }
        }
        assert!(bench.at(&branch, &["diff", "s", "--json"]).contains("\"ignored\":[\"node_modules\"]"));
        bench.sh(&format!("rm -r {text}/node_modules"));
        let gone = "D\tnode_modules/\nD\tnode_modules/big".to_owned();
        assert_eq!(diff(&["s2"], &["node_modules"]), (gone, false));
        bench.at(&branch, &["restore", "s2"]);
        assert_eq!(diff(&["s2"], &["node_modules"]), (String::new(), false));
    });
}

#[test]
fn no_branch_is_made_inside_of_one() {
    Bench::each(|bench| {
        let at = |place: &Path, how: &str, from: &Path| {
            bench.ran(from, &["branch", "--mode", how, "--at", place.to_str().unwrap()])
        };
        let (root, outer) = (bench.0.root(), bench.0.path("outer"));
        assert_eq!(at(&outer, "cow-overlay", &root).code, 0);
        let inner = outer.join("src/inner");
        for how in ["cow-overlay", "worktree"] {
            for from in [&root, &outer] {
                let refused = at(&inner, how, from);
                assert!(refused.code == 2 && refused.stderr.contains("hint: choose a place "), "{refused:?}");
                assert!(refused.stderr.contains("inside the"), "{refused:?}");
            }
        }
        // Nor where it is to be once more.
        bench.kill_services();
        assert_eq!(at(&inner, "cow-overlay", &root).code, 2);
        bench.0.fs(["branches"]);
        assert_eq!(bench.sh(&format!("ls {}/src", outer.display())), "main");
        bench.0.fs(["rm", "--force", "outer"]);
        let listed = bench.0.json("snapshots", &["agent", "fs", "snapshots"]);
        assert_eq!(listed["snapshots"].as_array().unwrap().len(), 0, "nothing is taken in vain: {listed}");
    });
}

#[test]
fn two_agents_work_side_by_side_at_the_same_path() {
    Bench::each(|bench| {
        // The first two at once: one of them makes what both need.
        let (a, b) = std::thread::scope(|scope| {
            let a = scope.spawn(|| bench.branch("a"));
            let b = bench.branch("b");
            (a.join().unwrap(), b)
        });
        let root = bench.0.root();
        let work = |name: &'static str| {
            let script = format!(
                "pwd; for i in $(seq 50); do echo {name} > f; cat f; echo $i > made-by-{name}; done | sort -u; ls"
            );
            let mut command = bench.0.command(["agent", "fs", "exec", name, "--", "sh", "-c", &script]);
            std::thread::spawn(move || Ran::of(&mut command))
        };
        let (one, two) = (work("a"), work("b"));
        for (name, ran) in [("a", one.join().unwrap()), ("b", two.join().unwrap())] {
            assert_eq!(ran.code, 0, "{ran:?}");
            let seen = format!("{}\n{name}\nf\nmade-by-{name}\nnode_modules\nsrc\n", root.display());
            assert_eq!(ran.stdout, seen);
        }
        assert_eq!(bench.0.read("f").unwrap(), "one");
        assert_eq!(bench.sh(&format!("cat {}/f {}/f", a.display(), b.display())), "a\nb");
        // A snapshot from inside is one of that branch.
        let ran = bench.0.run([
            "agent",
            "fs",
            "exec",
            "a",
            "--",
            support::ah().to_str().unwrap(),
            "agent",
            "fs",
            "snapshot",
            "-m",
            "inside",
        ]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(bench.at(&a, &["cat", "inside", "made-by-a"]), "50");
        assert_eq!(bench.ran(&b, &["cat", "inside", "f"]).code, 3);
    });
}

#[test]
fn git_goes_on_in_a_branch_whatever_is_done_in_the_origin() {
    Bench::each(|bench| {
        let root = bench.0.root();
        let git = |at: &Path, line: &str| {
            let name = "-c user.name=a -c user.email=a@b -c safe.directory=*";
            bench.sh(&format!("cd {} && export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 && git() {{ command git {name} \"$@\"; }} && {line}", at.display()))
        };
        git(&root, "git init -q && git add -A && git commit -qm one");
        let branch = bench.branch("b");
        git(&branch, "echo two > f && git status --short");
        // Another index, other heads: as a shell's prompt, an editor or the user's own work makes them.
        git(&root, "git status --short && git commit -q --allow-empty -m two");
        assert_eq!(git(&branch, "git status --short && git log --format=%s"), " M f\none");
        assert_eq!(bench.at(&branch, &["diff"]), "M\tf");
        git(&branch, "git add f && git commit -qm mine && git fsck 2>&1");
        assert_eq!(git(&branch, "git log --format=%s"), "mine\none");
        assert_eq!(git(&root, "git log --format=%s"), "two\none");
        // What Git has changed on both sides is not what anybody compares.
        let ran = bench.ran(&branch, &["diff"]);
        assert!(ran.stdout == "M\tf\n" && !ran.stderr.contains(".git"), "{ran:?}");
        // All objects go into a pack that the branch has never seen; its own stay.
        git(&root, "git gc -q --prune=now && test ! -e .git/objects/??");
        until(|| git(&branch, "git log --format=%s 2>&1 || true") == "mine\none");
        git(&branch, "git fsck 2>&1 && git status --short && git commit -q --allow-empty -m more");
    });
}

#[test]
fn hints_say_what_helps() {
    Bench::each(|bench| {
        bench.unpin("f");
        let branch = bench.branch("b");
        bench.at(&branch, &["snapshot", "-m", "k"]);
        bench.sh(&format!("echo mine > {0}/f; echo mine > {0}/src/main", branch.display()));
        bench.0.write("f", "the user's");
        // Repeating it would not help.
        let ran = bench.ran(&branch, &["restore", "k"]);
        assert!(ran.code == 4 && ran.stdout.lines().count() == 1, "{ran:?}");
        assert!(
            ran.stderr.contains("`ah -C . agent fs versions PATH` there") && !ran.stderr.contains("make writable"),
            "{ran:?}"
        );
        assert_eq!(bench.sh(&format!("cat {0}/f {0}/src/main", branch.display())), "mine\nfn main() {}");
        let ran = bench.ran(&branch, &["cat", "k", "f"]);
        assert!(ran.code == 1 && ran.stderr.contains("`ah -C . agent fs versions PATH` there"), "{ran:?}");
        let ran = bench.ran(&branch, &["exec", "k", "--", "true"]);
        assert!(ran.code == 3 && ran.stderr.contains("agent fs branch k` makes a branch"), "{ran:?}");
        let ran = bench.ran(&branch, &["rm", "nothing"]);
        assert!(ran.code == 3 && ran.stderr.contains("branches` list what there is"), "{ran:?}");
    });
}

#[test]
fn within_exec_what_is_mounted_is_seen_or_it_is_said_why_not() {
    if !is_root() {
        return skip("needs root, to make a mount namespace");
    }
    // What a command of `exec` does, in a namespace outside which has mounts of that kind. There a branch is made behind its start.
    let within = |bench: &Bench, mounts: &str, script: &str| {
        let world = &bench.0;
        let ah = format!("ah() {{ {} agent fs \"$@\"; }}", support::ah().display());
        let line = format!(
            "{ah}; ah branch --mode cow-overlay --name a > /dev/null\n\
             {} agent fs exec a -- sh -c '{ah}; echo > $AH_HOME/runs; until test -e $AH_HOME/go; do sleep 0.05; done; {script}' &\n\
             until test -e $AH_HOME/runs; do sleep 0.05; done; ah branch --mode cow-overlay --name late > /dev/null; echo > $AH_HOME/go; wait $!",
            support::ah().display()
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", mounts]);
        if world.user == User::Ordinary {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        }
        command.args(["sh", "-c", &line]).env_clear().env("AH_HELPER_SOCKET", "");
        command.env("AH_HOME", world.path("state")).env("HOME", world.path("home"));
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        let ran = Ran::of(command.current_dir(world.root()));
        bench.kill_services();
        ran
    };
    let seen = "set -e; w=$PWD b=$AH_HOME/branches; echo changed > f; ah snapshot -m s > /dev/null; v=$(ah seek s); cat $v/f; ah branch --name inner > /dev/null\n\
                ah exec inner -- cat f; ah -C $b/late status > /dev/null; cat $b/late/f\n\
                cd $b/inner; if ah -C $w rm --force inner 2> /dev/null; then exit 9; fi; echo again > f; cat f; cd $v; if ah release $v 2> /dev/null; then exit 9; fi\n\
                cd $w; ah release --all > /dev/null; ah rm --force inner > /dev/null; ls $AH_HOME/mounts; grep -c \"$b\" /proc/self/mountinfo; ls $b | grep -v json";
    let unseen = "ah snapshot -m s > /dev/null; ah seek s; ah branch --name inner; ls $AH_HOME/mounts; ls $AH_HOME/branches | grep -v json";
    Bench::each(|bench| {
        // They do not come in. Nothing is left of what was made in vain.
        let ran = within(bench, "private", unseen);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "a\nlate\n"), "{ran:?}");
        let said = ran.stderr.lines().filter(|line| line.starts_with("hint: ") && line.contains("--make-rshared"));
        assert_eq!(said.count(), 2, "{ran:?}");
        let bench = Bench::new(bench.0.user);
        let ran = within(&bench, "shared", seen);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "changed\nchanged\noneagain\n2\na\nlate\n"), "{ran:?}");
    });
}

#[test]
fn how_branches_grow_is_chosen_apart_from_who_captures() {
    Bench::each(|bench| {
        let world = &bench.0;
        let best = if support::on_btrfs(&world.root()) { "btrfs" } else { "git" };
        let by = || {
            let status = world.json("status", &["agent", "fs", "status"])["status"].clone();
            [&status["provider"], &status["branch_provider"]].map(|name| name.as_str().unwrap().to_owned())
        };
        // Left alone, branches of the present grow by the best there is; who wants a copy gets one.
        let grows = if best == "git" { "agentfs" } else { best };
        assert_eq!(by(), [best, grows]);
        let plain = world.fs(["branch", "--name", "plain"]);
        assert_eq!(bench.mounts(), if best == "git" { vec![plain] } else { Vec::new() });
        world.fs(["rm", "--force", "plain"]);
        world.fs(["branch", "--name", "copied", "--mode", "worktree"]);
        assert_eq!(bench.mounts(), Vec::<String>::new());
        world.run(["config", "set", "mode", "cow-overlay"]);
        assert_eq!(by(), [best, "agentfs"]);
        let said = world.fs(["status"]);
        assert!(said.contains("branches  grow by agentfs"), "{said}");
        let taken = world.fs(["snapshot", "-m", "a moment"]);
        let branch = PathBuf::from(world.fs(["branch", "--name", "at-once"]));
        assert_eq!(bench.mounts(), [branch.to_str().unwrap()]);
        assert_eq!(bench.sh(&format!("cat {}/node_modules/big", branch.display())), "ignored, and needed");
        // What the branch grew from is no moment of the workspace, which goes on being captured where it is.
        assert_eq!(world.json("show", &["agent", "fs", "show", "@"])["snapshot"]["id"], taken);
        let next = world.fs(["snapshot"]);
        assert_eq!(world.json("show", &["agent", "fs", "show", &next])["snapshot"]["provider"], best);
        // A moment's own provider serves what grows from it, and says so; who wants a copy gets one.
        let ran = world.run(["agent", "fs", "branch", "a moment", "--name", "of-moment"]);
        assert!(ran.code == 0 && ran.stderr.contains("it is a copy: the snapshot is of"), "{ran:?}");
        world.fs(["branch", "--name", "copy", "--mode", "worktree"]);
        assert_eq!(bench.mounts(), [branch.to_str().unwrap()]);
        // For one command.
        let ran = world.run(["agent", "fs", "exec", "--", "sh", "-c", "cat node_modules/big; rm -r src; ls"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "ignored, and neededf\nnode_modules\n"), "{ran:?}");
        assert!(world.root().join("src/main").exists());
        // A copy that `exec` shows at the workspace's path: what grew there would read in the workspace once the command has ended.
        let ah = support::ah().to_str().unwrap();
        let ran = world.run(["agent", "fs", "exec", "copy", "--", ah, "agent", "fs", "branch", "--name", "inner"]);
        assert!(ran.code == 5 && ran.stderr.contains("shown at another path"), "{ran:?}");
    });
}

#[test]
fn a_repository_further_down_that_is_gone_is_named_with_what_brings_it_back() {
    Bench::each(|bench| {
        bench.0.write("nested/.git/HEAD", "ref: refs/heads/main\n");
        bench.0.write("nested/n", "n");
        bench.0.write("sub/.git", "gitdir: ../.git/modules/sub\n");
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.at(&branch, &["snapshot", "-m", "s"]);
        let failed = |ran: &Ran| {
            let report = serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
            support::schema::check("restore", &report);
            let restore = &report["restore"];
            let names = |list: &serde_json::Value| {
                list.as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            (names(&restore["failed"]), restore["copy_out"].as_array().unwrap().len())
        };
        let copy_out = |ran: &Ran| {
            let report = serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
            for command in report["restore"]["copy_out"].as_array().unwrap() {
                let ah = format!("$({} -C", support::ah().display());
                let command = command.as_str().unwrap().replace("$(ah -C", &ah);
                bench.sh(&format!("export AH_HOME={}; cd /; {command}", bench.0.path("state").display()));
            }
        };
        // A change in a repository that is there is none that is told; without its HEAD it is none.
        bench.sh(&format!("cd {text}; echo x > nested/.git/HEAD; rm sub/.git"));
        let ran = bench.ran(&branch, &["restore", "s", "--dry-run", "--json"]);
        assert_eq!((ran.code, failed(&ran)), (4, (vec!["sub/.git".to_owned()], 1)), "{ran:?}");
        bench.sh(&format!("rm {text}/nested/.git/HEAD"));
        let ran = bench.ran(&branch, &["restore", "s", "--json"]);
        let both = vec!["nested/.git".to_owned(), "sub/.git".to_owned()];
        assert_eq!((ran.code, failed(&ran)), (4, (both, 2)), "{ran:?}");
        copy_out(&ran);
        assert_eq!(bench.sh(&format!("cat {text}/nested/.git/HEAD; rm {text}/sub/.git")), "ref: refs/heads/main");
        bench.sh(&format!(
            "cd {text}; echo 'ref: refs/heads/main' > nested/.git/HEAD; echo 'gitdir: ../.git/modules/sub' > sub/.git"
        ));
        // One alone, and one that went with all around it.
        bench.sh(&format!("rm -r {text}/nested/.git"));
        let ran = bench.ran(&branch, &["restore", "s"]);
        assert!(ran.code == 4 && !ran.stderr.contains("already"), "{ran:?}");
        assert!(ran.stderr.contains("nested/.git") && ran.stderr.contains("not complete"), "{ran:?}");
        bench.sh(&format!("rm -r {text}/nested {text}/sub"));
        assert_eq!(bench.ran(&branch, &["restore", "s", "--", "src"]).code, 0);
        let ran = bench.ran(&branch, &["restore", "s", "--json"]);
        let both = vec!["nested/.git".to_owned(), "sub/.git".to_owned()];
        assert_eq!((ran.code, failed(&ran)), (4, (both, 2)), "{ran:?}");
        let timeline = Ran::of(&mut bench.0.command(["-C", text, "timeline", "--json"]));
        assert!(timeline.stdout.contains("\"partial\""), "{timeline:?}");
        assert_eq!(bench.sh(&format!("cat {text}/nested/n")), "n");
        // What it says is what brings them back.
        copy_out(&ran);
        let ran = bench.ran(&branch, &["restore", "s"]);
        assert!(ran.code == 0 && ran.stderr.contains("already"), "{ran:?}");
        let ran = bench.ran(&branch, &["undo"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    });
}

/// What is mounted can be taken away under who works in it, who would then write nowhere.
#[test]
fn a_branch_is_not_removed_under_a_command_by_force_either() {
    Bench::each(|bench| {
        bench.branch("b");
        let script = "echo begun; read line; echo late > made; cat made";
        let mut command = bench.0.command(["agent", "fs", "exec", "b", "--", "sh", "-c", script]);
        let mut command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, mut output) = (command.stdin.take().unwrap(), command.stdout.take().unwrap());
        output.read_exact(&mut [0; 6]).unwrap();
        let refused = bench.0.run(["agent", "fs", "rm", "--force", "b"]);
        input.write_all(b"go\n").unwrap();
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert!(command.wait().unwrap().success());
        assert!(refused.code == 4 && refused.stderr.contains(&format!("process {}", command.id())), "{refused:?}");
        assert_eq!(said, "late\n");
        bench.0.fs(["rm", "--force", "b"]);
    });
}

#[test]
fn a_service_in_another_mount_namespace_is_named_with_what_is_to_be_done() {
    if !is_root() {
        return skip("needs root, to make a mount namespace");
    }
    let bench = Bench::new(User::Me);
    let world = &bench.0;
    world.write("f", "one");
    let script = format!(
        "{} agent fs branch --mode cow-overlay --name far >/dev/null && echo work > $AH_HOME/branches/far/f",
        support::ah().display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "--propagation", "private", "sh", "-c", &script]).env_clear().current_dir(world.root());
    let command = world.command(["--version"]);
    unshare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut unshare);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = world.run(["agent", "fs", "branches"]);
    let end = ran.stderr.split("kill -TERM ").nth(1).and_then(|rest| rest.split(',').next());
    let service = end.and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
    let service = service.unwrap_or_else(|| panic!("{ran:?}"));
    // A new one is a copy, and who is to blame is not this command.
    let ran = world.run(["agent", "fs", "branch", "--name", "near"]);
    assert!(ran.code == 0 && !ran.stderr.contains("this command"), "{ran:?}");
    rustix::process::kill_process(service, rustix::process::Signal::TERM).unwrap();
    let far = world.path("state/branches/far/f");
    support::bench::until(|| {
        world.run(["agent", "fs", "branches"]);
        fs::read_to_string(&far).is_ok_and(|held| held == "work\n")
    });
    world.fs(["rm", "--force", "far"]);
}

#[test]
fn what_a_branch_began_with_is_had_by_the_command_that_it_names() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.sh(&format!("rm {}/f", branch.display()));
        let refused = bench.ran(&branch, &["restore", "@"]);
        let command = refused.stderr.split('`').find(|part| part.contains("agent fs seek")).map(str::to_owned);
        let command = command.unwrap_or_else(|| panic!("{refused:?}"));
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let view = Ran::of(bench.0.command(words).current_dir("/")).stdout;
        assert_eq!(bench.sh(&format!("cat {}/f", view.trim_end())), "one");
        bench.at(&bench.0.root(), &["release", "--all"]);
    });
}

#[test]
fn what_a_patch_leaves_out_is_named() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.sh(&format!("cd {} && mkfifo pipe && mkdir empty && echo two > f", branch.display()));
        let patch = bench.ran(&branch, &["diff", "--patch"]);
        assert!(patch.code == 0 && patch.stdout.contains("+two") && !patch.stdout.contains("pipe"), "{patch:?}");
        assert!(patch.stderr.contains("not in the patch: pipe") && patch.stderr.contains("not in the patch: empty"));
    });
}

#[test]
fn what_a_restore_worked_in_is_no_difference() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let staging = branch.join(".ah-restore-kkkkzzzzkkkk");
        bench.sh(&format!("mkdir -p {0}/0 && touch {0}/0/1", staging.display()));
        bench.at(&branch, &["snapshot", "-m", "meanwhile"]);
        bench.sh(&format!("rm -r {} && touch {}/new", staging.display(), branch.display()));
        bench.at(&branch, &["snapshot", "-m", "then"]);
        for words in [&["diff", "meanwhile", "--stat"][..], &["diff", "meanwhile", "then", "--stat"]] {
            let told = bench.ran(&branch, words);
            let all = format!("{}{}", told.stdout, told.stderr);
            assert!(told.code < 2 && all.contains("new") && !all.contains(".ah-restore-"), "{words:?}: {told:?}");
        }
    });
}
