//! Branches by AgentFS: what grows at once from a plain directory, is worked in, gone back in, lost and found again. One program, long as it is: all of it needs
//! the same bench, whose services and mounts are gone at the end.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{Ran, User, World, is_root, need_agentfs, skip};

/// A world whose mounts and services are gone at the end, also if the test fails.
struct Bench(World);

impl Bench {
    fn new(user: User) -> Self {
        need_agentfs();
        let world = World::of(user);
        world.write("f", "one");
        world.write("src/main", "fn main() {}");
        world.write(".gitignore", "node_modules/\n");
        world.write("node_modules/big", "ignored, and needed");
        Self(world)
    }

    fn each(test: impl Fn(&Self)) {
        test(&Self::new(User::Me));
        // As distributions have it, and scripts/setup makes it.
        let open = fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 0o006 == 0o006);
        match (is_root(), open) {
            (true, true) => test(&Self::new(User::Ordinary)),
            (true, false) => skip("/dev/fuse is root's alone: chmod 0666 /dev/fuse"),
            (false, _) => skip("needs root, to act as an ordinary user as well"),
        }
    }

    fn branch(&self, name: &str) -> PathBuf {
        self.0.fs(["branch", "--mode", "cow-overlay", "--name", name]).into()
    }

    fn ran(&self, at: &Path, words: &[&str]) -> Ran {
        let mut command = self.0.command(["-C", at.to_str().unwrap(), "agent", "fs"].iter().chain(words));
        Ran::of(command.current_dir("/"))
    }

    fn at(&self, at: &Path, words: &[&str]) -> String {
        let ran = self.ran(at, words);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// A shell's line, as the user.
    fn sh(&self, line: &str) -> String {
        let mut command = match self.0.user {
            User::Me => Command::new("sh"),
            User::Ordinary => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "sh"]);
                command
            }
        };
        let output = command.arg("-c").arg(line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The processes that serve a home of this world.
    fn services(&self) -> Vec<i32> {
        let ours = self.0.path("state");
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains("--serve") && line.contains(ours.to_str().unwrap())
        };
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(serves).collect()
    }

    fn kill_services(&self) {
        let services = self.services();
        for pid in &services {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::SIGKILL);
        }
        // The last of its threads may answer still while the first are gone.
        let is_gone = |pid: &i32| {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            threads == 0 || threads == 1 && stat.contains(") Z ")
        };
        until(|| services.iter().all(is_gone));
    }

    fn mounts(&self) -> Vec<String> {
        let below = self.0.path("");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| Path::new(point).starts_with(&below)).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.kill_services();
        for point in self.mounts() {
            let _ = Command::new("umount").args(["-l", &point]).status();
        }
    }
}

fn until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "it took too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

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
fn a_killed_service_is_followed_by_another() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("echo two > {text}/f; echo kept > {text}/kept"));
        bench.at(&branch, &["snapshot", "-m", "before"]);
        let view = bench.at(&branch, &["seek", "before"]);
        for way in ["from the workspace", "from the branch", "by a snapshot", "by its name"] {
            bench.sh(&format!("echo {way} > {text}/f; sync {text}/f"));
            bench.kill_services();
            // Nothing hangs, and nothing is lost that was synced.
            match way {
                "from the workspace" => drop(bench.0.fs(["branches"])),
                "from the branch" => drop(bench.at(&branch, &["snapshots"])),
                "by a snapshot" => drop(bench.at(&branch, &["snapshot", "-m", "after"])),
                _ => {
                    let ran = bench.0.run(["agent", "fs", "exec", "b", "--", "cat", "f"]);
                    assert_eq!((ran.code, ran.stdout.as_str()), (0, "by its name\n"), "{ran:?}");
                }
            }
            assert_eq!(bench.sh(&format!("cat {text}/f {text}/kept")), format!("{way}\nkept"));
            assert_eq!(bench.sh(&format!("cat {view}/f")), "two");
            assert_eq!(bench.services().len(), 1);
        }
        assert_eq!(bench.at(&branch, &["cat", "before", "f"]), "two");
        let labels = bench.at(&branch, &["snapshots"]);
        assert!(labels.contains("before") && labels.contains("after"), "{labels}");
        let timeline = bench.0.run(["-C", text, "timeline"]);
        assert!(!timeline.stdout.contains("made-anew"), "{timeline:?}");
    });
}

/// Files `1`, `2`, … in a folder, each with its number in it many times over.
fn numbered(n: u64) -> String {
    format!("{n}\n").repeat(usize::try_from(n % 700).unwrap() + 1)
}

/// How many of [`numbered`] are in a folder. They are the first ones, whole; but the last may be half written.
fn count_numbered(folder: &Path, context: &str) -> u64 {
    let names = fs::read_dir(folder).into_iter().flatten();
    let mut found: Vec<u64> =
        names.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    found.sort_unstable();
    assert!(found.iter().copied().eq(1..=found.len() as u64), "{context}: one is missing of {found:?}");
    let last = found.len() as u64;
    let mut whole = last;
    for n in found {
        let (text, wanted) = (fs::read_to_string(folder.join(n.to_string())).unwrap(), numbered(n));
        if n == last && text != wanted {
            assert!(wanted.starts_with(&text), "{context}: {n} has what was never written");
            whole -= 1;
            continue;
        }
        assert!(text == wanted, "{context}: {n} has other bytes");
    }
    whole
}

#[test]
fn killed_again_and_again_under_load_it_loses_no_snapshot() {
    let rounds = if support::full() { 100 } else { 10 };
    let bench = &Bench::new(User::Me);
    let branch = bench.branch("b");
    let (mut settled, mut reported) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let folder = branch.join(format!("r{round}"));
        fs::create_dir(&folder).unwrap();
        let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Until it is cut off, and no longer than this takes.
            let writer = scope.spawn(|| {
                for n in 1..200_000 {
                    if over.load(Ordering::SeqCst) || fs::write(folder.join(n.to_string()), numbered(n)).is_err() {
                        break;
                    }
                    written.store(n, Ordering::SeqCst);
                }
            });
            let snapshot = |label: &str| {
                let before = written.load(Ordering::SeqCst);
                let ran = bench.ran(&branch, &["snapshot", "-m", label]);
                (ran.code == 0).then(|| (ran.stdout.trim_end().to_owned(), before, written.load(Ordering::SeqCst) + 1))
            };
            let first = snapshot("first").expect("a snapshot");
            let least = first.1;
            reported.push((round, settled.clone(), first));
            // One more, in the middle of which it is killed, earlier or later.
            let cut = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(round * 7 % 40));
                // Who noticed nothing, since all was mounted again meanwhile, would leave a gap.
                over.store(true, Ordering::SeqCst);
                bench.kill_services();
            });
            let second = snapshot("second");
            cut.join().unwrap();
            // Taken after the kill, it lacks what was written last, and was not synced.
            if let Some((id, _, most)) = second {
                reported.push((round, settled.clone(), (id, least, most)));
            }
            // Where the second was asked after the kill, all is mounted again, and nobody else cuts it off.
            bench.kill_services();
            writer.join().unwrap();
        });
        bench.at(&branch, &["snapshots"]);
        let (_, _, (_, least, _)) = reported.last().unwrap();
        let left = count_numbered(&folder, "the branch");
        assert!(left >= *least, "{left} files are left in the branch, and {least} are in a snapshot of it");
        // What was half written stays so.
        fs::remove_file(folder.join((left + 1).to_string())).ok();
        settled.push(left);
    }
    assert!(reported.len() >= settled.len());
    for (round, settled, (id, least, most)) in &reported {
        let view = PathBuf::from(bench.at(&branch, &["seek", id]));
        for (earlier, count) in settled.iter().enumerate() {
            assert_eq!(count_numbered(&view.join(format!("r{earlier}")), id), *count, "r{earlier} in {id}");
        }
        let count = count_numbered(&view.join(format!("r{round}")), id);
        assert!((*least..=*most).contains(&count), "{count} files in {id}, not {least} to {most}");
        assert!(view.join("node_modules/big").exists() && !view.join(format!("r{}", round + 1)).exists());
        bench.at(&branch, &["release", view.to_str().unwrap()]);
    }
}

#[test]
fn after_the_machine_was_started_anew_the_next_command_mounts() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("echo two > {text}/f"));
        bench.at(&branch, &["snapshot", "-m", "before"]);
        let lost = || {
            bench.kill_services();
            for point in bench.mounts() {
                assert!(Command::new("umount").args(["-l", &point]).status().unwrap().success());
            }
            // Whoever comes by learns what to do, and writes nothing there by accident.
            let there: Vec<_> = fs::read_dir(&branch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(there, ["NOT-MOUNTED.txt"]);
            assert!(bench.sh(&format!("cat {text}/*")).contains("`ah agent fs branches`"));
            assert_eq!(fs::metadata(&branch).unwrap().permissions().mode() & 0o777, 0o500);
        };
        if is_root() {
            lost();
            assert_eq!(bench.at(&branch, &["cat", "before", "f"]), "two");
            assert_eq!(bench.sh(&format!("cat {text}/f")), "two");
            lost();
            assert!(bench.0.fs(["branches"]).contains("ready"));
            assert_eq!(bench.sh(&format!("cat {text}/f")), "two");
            // Somebody has put files where it is to be mounted: they are not hidden, and it is said why it is not mounted.
            lost();
            bench.sh(&format!("chmod u+w {text}; echo mine > {text}/mine"));
            for words in [&["snapshot"][..], &["diff"], &["exec", "b", "--", "ls"], &["rm", "b"]] {
                let at = if words.len() > 1 { bench.0.root() } else { branch.clone() };
                let ran = bench.ran(&at, words);
                assert!(ran.code == 4 && ran.stderr.contains("is not mounted"), "{words:?}: {ran:?}");
            }
            let ran = bench.0.run(["agent", "fs", "branches"]);
            assert!(
                ran.code == 0 && ran.stderr.contains("there are files in") && ran.stderr.contains("hint: "),
                "{ran:?}"
            );
            assert!(ran.stdout.contains("not-mounted") && !ran.stdout.contains("ready"), "{ran:?}");
            for words in [["agent", "fs", "status"], ["agent", "fs", "gc"]] {
                let ran = bench.0.run(words);
                assert!(ran.code == 0 && !ran.stderr.contains("is not there"), "{ran:?}");
            }
            assert_eq!(bench.sh(&format!("cat {text}/mine")), "mine");
            bench.sh(&format!("rm {text}/mine"));
            bench.0.fs(["branches"]);
            assert_eq!(bench.sh(&format!("cat {text}/f")), "two");
        } else {
            skip("needs root, to unmount");
        }
        // Told to end, it takes everything away; so it does when nothing is mounted any more.
        bench.0.fs(["rm", "--force", "b"]);
        assert_eq!(bench.mounts(), Vec::<String>::new());
    });
}

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
    Bench::each(|bench| {
        let former = bench.branch("b");
        bench.at(&former, &["snapshot"]);
        bench
            .sh(&format!("cd / && mv {0} {0}.gone && cp -a {0}.gone {0} && rm -rf {0}.gone", bench.0.root().display()));
        bench.kill_services();
        let words = ["branch", "--provider", "agentfs", "--mode", "cow-overlay", "--name", "c"];
        let ran = bench.ran(&bench.0.root(), &words);
        assert!(ran.code == 4 && ran.stderr.contains("gone for good"), "{ran:?}");
        bench.at(&bench.0.root(), &["rm", "--force", "b"]);
        let listed = bench.at(&bench.0.root(), &["snapshots", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        for snapshot in listed["snapshots"].as_array().unwrap() {
            bench.at(&bench.0.root(), &["rm", "--force", snapshot["id"].as_str().unwrap()]);
        }
        let branch = PathBuf::from(bench.at(&bench.0.root(), &words));
        assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
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
    fs::remove_dir_all(&aside).unwrap();
    bench.kill_services();
    let ran = bench.0.run(["agent", "fs", "branches"]);
    assert!(ran.code == 0 && ran.stderr.contains("is not mounted"), "{ran:?}");
    // What cannot be opened can be removed.
    assert!(promised().starts_with('-'), "{}", promised());
    bench.0.fs(["rm", "--force", "b", "moved"]);
    assert_eq!(bench.mounts(), Vec::<String>::new());
}

#[test]
fn another_mount_namespace_holds_nobody_up() {
    if !is_root() {
        return skip("needs root, to make a mount namespace");
    }
    let bench = Bench::new(User::Me);
    bench.branch("b");
    // Other tests' mounts are not held there.
    let script = format!(
        "for point in $(grep agentfs: /proc/self/mountinfo | cut -d' ' -f5 | grep -v ^{}); do umount -l $point; done; exec sleep 60",
        bench.0.path("").display()
    );
    let mut elsewhere =
        Command::new("unshare").args(["-m", "--propagation", "private", "sh", "-c", &script]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    // Gone, or kept with the reason; in time either way.
    let ran = bench.0.run(["agent", "fs", "rm", "--force", "b"]);
    assert!(ran.code == 0 || ran.stderr.contains("another mount namespace"), "{ran:?}");
    bench.branch("c");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    until(|| bench.0.run(["agent", "fs", "rm", "--force", "b"]).code != 1);
    bench.0.fs(["rm", "--force", "c"]);
    assert_eq!(bench.mounts(), Vec::<String>::new());
    // A service that was started elsewhere mounts there; root brings it here.
    bench.0.wait_for_background();
    bench.kill_services();
    let made = bench.0.command(["agent", "fs", "branch", "--mode", "cow-overlay", "--name", "d"]);
    let branch = bench.0.path("state/branches/d");
    let (program, words) = (made.get_program().to_owned(), made.get_args().map(ToOwned::to_owned).collect::<Vec<_>>());
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["-m", "--propagation", "private"]).arg(program).args(words).env_clear();
    elsewhere.envs(made.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(bench.0.root());
    assert_eq!(Ran::of(&mut elsewhere).code, 0);
    assert_eq!((bench.mounts(), branch.join("f").exists()), (Vec::new(), false));
    assert_eq!(bench.at(&branch, &["diff"]), "");
    assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
    bench.0.fs(["rm", "d"]);
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
        held("4 changed files");
        bench.sh(&format!("cd {here}; echo two > f"));
        held("3 changed files");
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
fn hints_say_what_helps() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.at(&branch, &["snapshot", "-m", "k"]);
        bench.sh(&format!("echo mine > {0}/f; echo mine > {0}/src/main", branch.display()));
        bench.0.write("f", "the user's");
        // Repeating it would not help.
        let ran = bench.ran(&branch, &["restore", "k"]);
        assert!(ran.code == 4 && ran.stdout.lines().count() == 1, "{ran:?}");
        assert!(ran.stderr.contains("`versions PATH` there") && !ran.stderr.contains("make writable"), "{ran:?}");
        assert_eq!(bench.sh(&format!("cat {0}/f {0}/src/main", branch.display())), "mine\nfn main() {}");
        let ran = bench.ran(&branch, &["cat", "k", "f"]);
        assert!(ran.code == 1 && ran.stderr.contains("`versions PATH` there"), "{ran:?}");
        let ran = bench.ran(&branch, &["exec", "k", "--", "true"]);
        assert!(ran.code == 3 && ran.stderr.contains("agent fs branch k` makes a branch"), "{ran:?}");
        let ran = bench.ran(&branch, &["rm", "nothing"]);
        assert!(ran.code == 3 && ran.stderr.contains("branches` list what there is"), "{ran:?}");
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
        let hint = format!("hint: ah -C {} agent fs branches", root.display());
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
        let ordinary = bench.0.user == User::Ordinary;
        let ran = within(bench, "private", if ordinary { unseen } else { seen });
        if ordinary {
            // It may not bring them in. Nothing is left of what was made in vain.
            assert_eq!((ran.code, ran.stdout.as_str()), (0, "a\nlate\n"), "{ran:?}");
            let said = ran.stderr.lines().filter(|line| line.starts_with("hint: ") && line.contains("--make-rshared"));
            assert_eq!(said.count(), 2, "{ran:?}");
        } else {
            assert_eq!((ran.code, ran.stdout.as_str()), (0, "changed\nchanged\noneagain\n2\na\nlate\n"), "{ran:?}");
        }
        let bench = Bench::new(bench.0.user);
        let ran = within(&bench, "shared", seen);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "changed\nchanged\noneagain\n2\na\nlate\n"), "{ran:?}");
    });
}

#[test]
fn what_is_changed_below_is_never_shown_as_something_else() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("cat {text}/f; echo mine > {text}/src/main"));
        bench.at(&branch, &["snapshot", "-m", "before"]);
        let told = || {
            let timeline = bench.0.run(["-C", text, "timeline", "--json"]).stdout;
            let timeline: serde_json::Value = serde_json::from_str(&timeline).unwrap();
            support::schema::check("timeline", &timeline);
            let events = timeline["events"].as_array().unwrap().clone();
            events.into_iter().filter(|event| event["type"] == "changed-below").collect::<Vec<_>>()
        };
        assert_eq!(told(), Vec::<serde_json::Value>::new());
        bench.0.write("f", "changed by the user");
        bench.0.write("src/main", "also changed");
        assert_eq!(bench.at(&branch, &["cat", "before", "src/main"]), "mine");
        let ran = bench.ran(&branch, &["cat", "before", "f"]);
        assert!(ran.code == 1 && ran.stderr.contains("f"), "{ran:?}");
        // Status says so at once, the timeline with the next snapshot, and once.
        let status = || bench.at(&branch, &["status"]);
        until(|| status().contains("; 1 path that it reads in the workspace became other there"));
        assert!(!status().contains("src/main"), "{}", status());
        bench.at(&branch, &["snapshot", "-m", "after"]);
        bench.at(&branch, &["snapshot"]);
        let events = told();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((&events[0]["total"], &events[0]["paths"]), (&1.into(), &serde_json::json!(["f"])));
        let table = bench.0.run(["-C", text, "timeline"]).stdout;
        assert!(table.contains("changed below") && table.contains("in the workspace: 1 path: f"), "{table}");
        // Another branch has heard of nothing, and grew from what is there now.
        let other = bench.branch("other");
        bench.at(&other, &["snapshot"]);
        let status = || bench.at(&other, &["status"]);
        assert!(!status().contains("became other there"));
        // A mode is told, too: the branch shows it, and its snapshots the old one.
        bench.sh(&format!("cat {}/src/main", other.display()));
        fs::set_permissions(bench.0.root().join("src/main"), PermissionsExt::from_mode(0o755)).unwrap();
        until(|| status().contains("; 1 path that it reads in the workspace became other there"));
        bench.0.fs(["rm", "--force", "b", "other"]);
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
        assert_eq!(by(), [best, best]);
        // Left alone, who captures the workspace makes branches.
        world.fs(["branch", "--name", "plain"]);
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
fn what_branches_grow_from_saves_nothing_of_the_workspace_that_is_restored() {
    Bench::each(|bench| {
        let world = &bench.0;
        bench.branch("b");
        let base = world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"][0]["id"].clone();
        world.write("came-later", "and is to come back");
        world.fs(["restore", base.as_str().unwrap()]);
        assert_eq!(world.read("came-later"), None);
        world.fs(["undo"]);
        assert_eq!(world.read("came-later").as_deref(), Some("and is to come back"));
    });
}

#[test]
fn what_a_branch_changed_is_told_whatever_is_done_in_the_workspace() {
    Bench::each(|bench| {
        bench.0.write("both", "of both");
        let (first, second) = (bench.branch("first"), bench.branch("second"));
        bench.sh(&format!("echo 1 > {0}/f; echo 1 > {0}/both; mkdir {0}/new; echo 1 > {0}/new/n", first.display()));
        bench.sh(&format!("echo 2 > {0}/src/main; echo 2 > {0}/both; rm -r {0}/node_modules", second.display()));
        let before = bench.at(&second, &["snapshot", "-m", "before"]);
        // The first one's work is brought home, and more is done there.
        let patch = bench.at(&first, &["diff", "--patch"]);
        bench.0.write("patch", format!("{patch}\n"));
        bench.sh(&format!("cd {} && git apply patch && rm patch && rm .gitignore", bench.0.root().display()));
        assert_eq!(bench.0.read("f").unwrap(), "1\n");
        assert_eq!(bench.at(&second, &["diff"]), "M\tboth\nD\tnode_modules/\nD\tnode_modules/big\nM\tsrc/main");
        assert_eq!(bench.at(&first, &["diff"]), "M\tboth\nM\tf\nA\tnew/\nA\tnew/n");
        // Of what both changed there is no patch any more, and that is no patch's silence.
        let ran = bench.ran(&second, &["diff", "--patch"]);
        assert!(ran.code == 1 && ran.stderr.contains("error: both differs"), "{ran:?}");
        assert!(ran.stdout.contains("+++ b/src/main") && !ran.stdout.contains("+++ b/both"), "{ran:?}");
        // And the second one goes back in its own time.
        bench.sh(&format!("echo 3 > {0}/src/main; rm {0}/both; echo 3 > {0}/third", second.display()));
        assert_eq!(bench.at(&second, &["diff", &before]), "D\tboth\nM\tsrc/main\nA\tthird");
        bench.at(&second, &["restore", &before]);
        assert_eq!(
            bench.sh(&format!("cat {0}/src/main {0}/both; ls {0}", second.display())),
            "2\n2\nboth\nf\nnew\nsrc"
        );
        bench.at(&second, &["undo"]);
        assert_eq!(bench.sh(&format!("cat {0}/src/main {0}/third", second.display())), "3\n3");
        // What they hold is known, and held.
        let refused = bench.0.run(["agent", "fs", "rm", "second"]);
        assert!(refused.code == 4 && refused.stderr.contains("4 changed files"), "{refused:?}");
        bench.0.fs(["rm", "first"]);
        bench.0.fs(["rm", "--force", "second"]);
    });
}

#[test]
fn where_it_cannot_be_mounted_nothing_is_left_and_a_place_stays_marked() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user, and to take /dev/fuse away");
    }
    let bench = Bench::new(User::Ordinary);
    if support::on_btrfs(&bench.0.root()) {
        return;
    }
    // As in an agent's sandbox: fusermount3 is there, and may not do it.
    let plain = bench.0.command(["agent", "fs", "branch", "--mode", "cow-overlay", "--name", "refused"]);
    let mut closed = Command::new(plain.get_program());
    closed.arg("--no-new-privs").args(plain.get_args()).env_clear().current_dir(bench.0.root());
    closed.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut closed);
    assert!(ran.code == 1 && ran.stderr.contains("fusermount3"), "{ran:?}");
    let snapshots = bench.0.json("snapshots", &["agent", "fs", "snapshots"]);
    assert_eq!(snapshots["snapshots"].as_array().unwrap().len(), 0, "what was taken in vain is gone: {snapshots}");

    let bench = Bench::new(User::Me);
    let branch = bench.branch("b");
    bench.kill_services();
    bench.mounts().iter().for_each(|at| assert!(Command::new("umount").args(["-l", at]).status().unwrap().success()));
    let marked = || {
        let names: Vec<_> = fs::read_dir(&branch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        (names, fs::metadata(&branch).unwrap().permissions().mode() & 0o777)
    };
    assert_eq!(marked(), (vec!["NOT-MOUNTED.txt".into()], 0o500));
    let plain = bench.0.command(["agent", "fs", "branches"]);
    let script = format!("mount -t tmpfs none /dev; exec {} agent fs branches", support::ah().display());
    let mut hidden = Command::new("unshare");
    hidden.args(["-m", "sh", "-c", &script]).env_clear().current_dir(bench.0.root());
    hidden.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut hidden);
    assert!(ran.stderr.contains("the branch b is not mounted") && !ran.stderr.contains("there are files"), "{ran:?}");
    assert_eq!(marked(), (vec!["NOT-MOUNTED.txt".into()], 0o500));
    bench.kill_services();
    bench.0.fs(["branches"]);
    assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
}

#[test]
fn what_reads_in_the_workspace_is_named_before_it_is_changed() {
    Bench::each(|bench| {
        let world = &bench.0;
        let first = world.fs(["snapshot", "-m", "first"]);
        world.write("f", "two");
        let ran = world.run(["agent", "fs", "branch", "--mode", "cow-overlay", "--name", "idea", "--carry", "none"]);
        assert!(ran.code == 0 && ran.stderr.contains("ignored files are there too"), "{ran:?}");
        world.fs(["branch", &first, "--name", "copy"]);
        for words in [&["restore", "first", "--dry-run"][..], &["restore", "first"]] {
            let ran = bench.ran(&world.root(), words);
            assert!(ran.code == 0 && ran.stderr.contains("had not changed it themselves: idea"), "{words:?}: {ran:?}");
        }
        // What it grew from says nothing of a file that was changed since, and nobody is to do anything about that.
        let ran = bench.ran(&world.root(), &["versions", "f"]);
        assert!(ran.code == 0 && !ran.stderr.contains("passed over"), "{ran:?}");
        let ran = bench.ran(&world.root(), &["convert"]);
        assert!(ran.code == 4 && ran.stderr.contains("idea") && ran.stderr.contains("agent fs rm idea"), "{ran:?}");
        // Unless the one who captures it does not say how much it stores.
        if world.can("usage") {
            world.fs(["prune", "max-size=1G", "--dry-run"]);
        }
        world.fs(["rm", "--force", "idea", "copy"]);
        assert!(!bench.ran(&world.root(), &["restore", "@", "--dry-run"]).stderr.contains("idea"));
    });
}

#[test]
fn a_store_that_cannot_be_opened_is_told_and_left_alone() {
    let bench = Bench::new(User::Me);
    if !is_root() {
        return skip("needs root, to unmount");
    }
    let branch = bench.branch("b");
    fs::write(branch.join("f"), "two").unwrap();
    bench.at(&branch, &["snapshot", "-m", "kept"]);
    let home = fs::read_dir(bench.0.path("state/workspaces")).unwrap().map(|entry| entry.unwrap().path());
    let tree = home.map(|home| home.join("providers/agentfs/tree")).find(|tree| tree.is_dir()).unwrap();
    let down = || {
        bench.kill_services();
        bench
            .mounts()
            .iter()
            .for_each(|at| assert!(Command::new("umount").args(["-l", at]).status().unwrap().success()));
    };
    // What it says, with the reason behind it.
    let newer = |format: &[u8]| [&format[..8], b"9", &format[9..]].concat();
    let damaged = |rows: &[u8]| [b"no database", &rows[11..]].concat();
    type Fault<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let faults: [(&str, Fault<'_>, &str); 2] =
        [("format", &newer, "the store has format 9"), ("rows.redb", &damaged, "Not a redb database")];
    for (name, fault, said) in faults {
        down();
        let file = tree.join(name);
        let whole = fs::read(&file).unwrap();
        fs::write(&file, fault(&whole)).unwrap();
        for words in [&["exec", "b", "--", "true"][..], &["rm", "b"]] {
            let ran = bench.ran(&bench.0.root(), words);
            assert!(ran.code != 0 && ran.stderr.contains(said) && ran.stderr.contains("hint: "), "{words:?}: {ran:?}");
        }
        // The workspace itself is another matter.
        bench.0.fs(["snapshot"]);
        assert_eq!(fs::read(&file).unwrap(), fault(&whole), "{name}");
        fs::write(&file, whole).unwrap();
        assert_eq!(bench.at(&bench.0.root(), &["exec", "b", "--", "cat", "f"]), "two");
        assert_eq!(bench.at(&branch, &["cat", "kept", "f"]), "two");
    }
    bench.0.fs(["rm", "--force", "b"]);
}

#[test]
fn where_it_cannot_be_it_says_why() {
    let bench = Bench::new(User::Me);
    let verdict = |command: &mut Command| {
        let ran = Ran::of(command);
        assert!(ran.code == 0 || ran.code == 5, "{ran:?}");
        ran.stdout.lines().find(|line| line.contains(" agentfs ")).unwrap_or_default().to_owned()
    };
    let status = ["agent", "fs", "status", "--provider", "agentfs", "--mode", "cow-overlay"];
    let line = verdict(&mut bench.0.command(status));
    assert!(line.starts_with('b'), "{line}");
    if !is_root() {
        return skip("needs root, to take /dev/fuse away");
    }
    let ordinary = Bench::new(User::Ordinary);
    let (world, ah) = (&ordinary.0, support::ah());
    let said = ordinary.sh(&format!(
        "cd {}; AH_HOME={} HOME={} PATH=/nonexistent {} {} || test $? = 5",
        world.root().display(),
        world.path("state").display(),
        world.path("home").display(),
        ah.display(),
        status.join(" ")
    ));
    let line = said.lines().find(|line| line.contains(" agentfs ")).unwrap_or_default();
    assert!(line.starts_with('-') && line.contains("fusermount3 is not installed"), "{line}");
    // A user of whom the system knows no more than a number.
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    let (own, state) = (world.path("own"), world.path("nameless"));
    for folder in [&own, &state] {
        fs::create_dir(folder).unwrap();
        std::os::unix::fs::chown(folder, Some(54_321), Some(54_321)).unwrap();
    }
    let mut nameless = Command::new("setpriv");
    nameless.args(["--reuid=54321", "--regid=54321", "--clear-groups", "--inh-caps=-all"]).arg(ah).args(status);
    nameless.env_clear().env("AH_HOME", state).env("AH_HELPER_SOCKET", "").env("PATH", "/usr/bin:/bin");
    let line = verdict(nameless.current_dir(&own));
    assert!(line.starts_with('-') && line.contains("user 54321 has no name"), "{line}");
    let hidden = |hide: &str| {
        let mut command = bench.0.command(["--version"]);
        let script = format!("{hide}; exec {} {}", ah.display(), status.join(" "));
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &script]).env_clear().current_dir(bench.0.root());
        unshare.envs(command.env("PATH", "/usr/bin:/bin").get_envs().filter_map(|(name, value)| Some((name, value?))));
        verdict(&mut unshare)
    };
    let line = hidden("mount -t tmpfs none /dev");
    assert!(line.starts_with('-') && line.contains("no /dev/fuse"), "{line}");
}

#[test]
fn a_restore_puts_back_what_is_known_and_names_the_rest() {
    Bench::each(|bench| {
        let world = &bench.0;
        world.write("both", "of both");
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        bench.sh(&format!("echo then > {text}/src/main"));
        let before = bench.at(&branch, &["snapshot"]);
        // Two names come below, one file is changed there; then the branch writes to all of that.
        for name in ["gone-again", "over", "both"] {
            world.write(name, "came later");
        }
        until(|| bench.sh(&format!("ls {text}")).contains("over"));
        bench.sh(&format!("cd {text}; rm gone-again; echo mine > over; echo mine > both; echo now > src/main"));

        let restored = |dry: bool| {
            let mut words = vec!["restore", &before, "--json"];
            words.extend(dry.then_some("--dry-run"));
            let ran = bench.ran(&branch, &words);
            assert_eq!(ran.code, 4, "it is partial, and so it would be: {ran:?}");
            let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
            support::schema::check("restore", &told);
            told["restore"].clone()
        };
        let (would, did) = (restored(true), restored(false));
        for told in [&would, &did] {
            let paths = |list: &str| {
                let list = told[list].as_array().unwrap().iter();
                list.map(|it| it["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            assert_eq!((paths("changes"), paths("conflicts")), (vec!["over".into(), "src/main".into()], vec![]));
            assert_eq!(paths("failed"), ["both"]);
            assert!(told["failed"][0]["reason"].as_str().unwrap().contains("DataLoss"), "{told}");
        }
        // As the snapshot shows it, but for what nobody knows any more. In the workspace all is as it was.
        let there = "both\nf\nnode_modules\nsrc\nthen\nmine";
        assert_eq!(bench.sh(&format!("cd {text}; ls; cat src/main both")), there);
        assert_eq!((world.read("over"), world.read("both")), (Some("came later".into()), Some("came later".into())));
        let timeline = world.run(["-C", text, "timeline", "--json"]).stdout;
        assert!(timeline.contains("\"outcome\":\"partial\""), "{timeline}");
        bench.at(&branch, &["undo"]);
        let there = "both\nf\nnode_modules\nover\nsrc\nnow\nmine\nmine";
        assert_eq!(bench.sh(&format!("cd {text}; ls; cat src/main both over")), there);

        // What nobody could give back afterwards is not overwritten unless that is asked for.
        let told = bench.ran(&branch, &["restore", &before, "--", "both"]);
        assert!(told.code == 4 && told.stderr.contains("both (it stays as it is"), "{told:?}");
        assert!(!told.stderr.contains("everything is as in"), "{told:?}");
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

#[test]
fn a_removal_that_a_power_cut_ended_is_finished_by_one_gc() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.kill_services();
        assert!(Command::new("umount").args(["-l", branch.to_str().unwrap()]).status().unwrap().success());
        let records = bench.0.path("state/branches");
        let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let record = fs::read_dir(records).unwrap().map(|entry| entry.unwrap().path()).find(is_record).unwrap();
        let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        text["state"] = "removing".into();
        text["maker"]["boot"] = "before".into();
        fs::write(&record, text.to_string()).unwrap();
        let ran = bench.ran(&bench.0.root(), &["gc"]);
        assert!(ran.code == 0 && ran.stdout.contains("took away the branch b"), "{ran:?}");
        let ran = bench.ran(&bench.0.root(), &["gc"]);
        assert!(ran.code == 0 && !ran.stdout.contains("branch"), "{ran:?}");
        assert_eq!((branch.exists(), record.exists(), bench.mounts()), (false, false, Vec::new()));
    });
}

#[test]
fn a_service_that_is_stopped_holds_nobody_up_for_long() {
    Bench::each(|bench| {
        let world = &bench.0;
        let other = world.path("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        world.give_away();
        bench.at(&other, &["snapshot"]);
        let branch = bench.branch("a&b");
        let [service] = bench.services()[..] else { panic!("{:?}", bench.services()) };
        let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(service), signal).unwrap();
        signal(nix::sys::signal::Signal::SIGSTOP);
        let began = Instant::now();
        // Who has nothing to do with it notices nothing.
        for words in [&["status"][..], &["gc"], &["snapshot"]] {
            let ran = bench.ran(&other, words);
            assert!(ran.code == 0 && !ran.stderr.contains("is not there"), "{words:?}: {ran:?}");
        }
        bench.at(&world.root(), &["status"]);
        // Who needs it learns which process it is, and what to do.
        let told = format!("process {service}, is stopped");
        let exec = ["exec", "a&b", "--", "true"];
        for (at, words) in [(&world.root(), &exec[..]), (&world.root(), &["rm", "a&b"]), (&branch, &["status"])] {
            let ran = bench.ran(at, words);
            let hint = format!("hint: let it go on: kill -CONT {service}");
            assert!(ran.code == 4 && ran.stderr.contains(&told) && ran.stderr.contains(&hint), "{words:?}: {ran:?}");
        }
        let ran = bench.ran(&world.root(), &["branches"]);
        assert!(ran.code == 0 && ran.stderr.contains(&told), "{ran:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        signal(nix::sys::signal::Signal::SIGCONT);
        bench.sh(&format!("echo mine > '{}/f'", branch.display()));

        // A name that has to be quoted is, and one of elsewhere is known.
        let ran = bench.ran(&world.root(), &["rm", "a&b"]);
        assert!(ran.code == 4 && ran.stderr.contains("rm --force 'a&b'"), "{ran:?}");
        let ran = bench.ran(&other, &["rm", "a&b"]);
        assert!(ran.code == 3 && ran.stderr.contains("is a branch of another workspace"), "{ran:?}");
        bench.at(&world.root(), &["rm", "--force", "a&b"]);
    });
}
