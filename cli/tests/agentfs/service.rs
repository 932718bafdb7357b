//! The process that keeps branches mounted: killed, stopped, started anew, not to be had.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::bench::{Bench, until};
use crate::support::{self, Ran, User, is_root, skip};

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

#[test]
fn a_copy_of_the_state_mounts_nothing_in_the_originals_place() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        let text = branch.to_str().unwrap();
        let copy = bench.copy_of_state();
        bench.sh(&format!("echo precious > {text}/kept; sync {text}/kept"));
        bench.kill_services();
        let listed = Ran::of(bench.0.command(["agent", "fs", "branches"]).env("AH_HOME", &copy));
        assert!(listed.code == 0 && listed.stdout.contains("not-mounted"), "{listed:?}");
        assert!(!ah_test_disks::mounts().contains(copy.to_str().unwrap()));
        bench.0.fs(["branches"]);
        assert_eq!(bench.sh(&format!("cat {text}/kept")), "precious");
        let refused = Ran::of(bench.0.command(["agent", "fs", "rm", "--force", "b"]).env("AH_HOME", &copy));
        assert!(refused.code == 4 && refused.stderr.contains("a copy of"), "{refused:?}");
        // What the copy makes is its own to remove.
        for words in [&["branch", "--mode", "cow-overlay", "--name", "c"][..], &["rm", "--force", "c"]] {
            let ran = Ran::of(bench.0.command([&["agent", "fs"], words].concat()).env("AH_HOME", &copy));
            assert_eq!(ran.code, 0, "{ran:?}");
        }
        assert_eq!(bench.sh(&format!("cat {text}/kept")), "precious");
    });
}

#[test]
fn branches_of_a_state_that_was_moved_are_there_again_when_it_is_back() {
    Bench::each(|bench| {
        let branch = bench.branch("b");
        bench.sh(&format!("echo precious > {}/kept", branch.display()));
        let (state, moved) = (bench.0.path("state"), bench.0.path("state-moved"));
        fs::rename(&state, &moved).unwrap();
        until(|| bench.mounts().is_empty() && bench.services().is_empty());
        let there =
            |words: &[&str]| Ran::of(bench.0.command([&["agent", "fs"], words].concat()).env("AH_HOME", &moved));
        for (words, code) in [(&["branches"][..], 0), (&["rm", "--force", "b"], 4)] {
            let ran = there(words);
            assert!(ran.code == code && ran.stderr.contains("hint: if AH_HOME was moved"), "{ran:?}");
        }
        fs::rename(&moved, &state).unwrap();
        let ran = bench.0.run(["agent", "fs", "exec", "b", "--", "cat", "kept"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "precious\n"), "{ran:?}");
    });
}

#[test]
fn one_that_a_command_in_a_branch_started_does_not_hold_that_branch() {
    let bench = &Bench::new(User::Me);
    bench.0.fs(["branch", "--mode", "worktree", "--name", "copy"]);
    let (other, ah) = (bench.0.path("other"), support::ah().to_str().unwrap());
    fs::create_dir(&other).unwrap();
    let branch = ["-C", other.to_str().unwrap(), "agent", "fs", "branch", "--mode", "cow-overlay"];
    bench.0.fs(["exec", "copy", "--", ah].iter().chain(&branch));
    assert_eq!(bench.services().len(), 1);
    bench.0.fs(["rm", "copy"]);
}

#[test]
fn many_branches_take_little_memory_and_give_it_back() {
    let bench = &Bench::new(User::Me);
    let names: Vec<String> = (0..12).map(|n| format!("b{n}")).collect();
    std::thread::scope(|scope| names.iter().for_each(|name| drop(scope.spawn(|| bench.branch(name)))));
    let service = bench.services()[0];
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{service}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    };
    let many = resident();
    assert!(many < 100 << 10, "{many} KiB");
    bench.0.fs(["rm", "--force"].into_iter().chain(names[1..].iter().map(String::as_str)));
    assert!(resident() < many + 1024, "{many} KiB before, {} after", resident());
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
    // Where nobody has asked for it, it is as if it were not to be had.
    let left_alone = bench.0.command(["agent", "fs", "branch", "--name", "copied"]);
    let mut closed = Command::new(left_alone.get_program());
    closed.arg("--no-new-privs").args(left_alone.get_args()).env_clear().current_dir(bench.0.root());
    closed.envs(left_alone.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut closed);
    assert!(ran.code == 0 && ran.stderr.contains("agentfs could not grow the branch, git does"), "{ran:?}");
    assert_eq!((bench.mounts(), bench.sh(&format!("cat {}/f", ran.stdout.trim_end()))), (Vec::new(), "one".to_owned()));

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
fn where_times_are_whole_seconds_branches_are_copies() {
    let Some(disk) = ah_test_disks::Disk::formatted("ext4", 400, &["-I", "128"], "") else { return };
    let bench = Bench::within(User::Me, disk.at());
    let status = bench.0.fs(["status"]);
    assert!(status.contains("whole seconds"), "{status}");
    let branch = PathBuf::from(bench.0.fs(["branch", "--name", "b"]));
    assert_eq!(bench.mounts(), Vec::<String>::new());
    bench.0.write("f", "two");
    assert_eq!(bench.sh(&format!("cat {}/f", branch.display())), "one");
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
fn a_service_that_is_stopped_holds_nobody_up_for_long() {
    Bench::each(|bench| {
        let world = &bench.0;
        let other = world.path("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        world.give_away();
        bench.at(&other, &["snapshot"]);
        let branch = bench.branch("a&b");
        // Of another home, which has a branch, too.
        let foreign = |at: &Path, words: &[&str]| {
            let mut command = world.command(["-C", at.to_str().unwrap(), "agent", "fs"].iter().chain(words));
            support::Ran::of(command.env("AH_HOME", world.path("state-of-another")).current_dir("/"))
        };
        assert_eq!(foreign(&other, &["branch", "--provider", "git"]).code, 0);
        let [service] = bench.services()[..] else { panic!("{:?}", bench.services()) };
        let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(service), signal).unwrap();
        signal(nix::sys::signal::Signal::SIGSTOP);
        // All of it: what one of its threads has begun to answer, nobody gets out of before it goes on.
        let stands = |task: &Path| {
            fs::read_to_string(task.join("stat")).is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" T"))
        };
        until(|| {
            let mut tasks = fs::read_dir(format!("/proc/{service}/task")).unwrap();
            tasks.all(|task| stands(&task.unwrap().path()))
        });
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
        // Who only comes by it learns which mount it is.
        let ran = foreign(&branch, &["status"]);
        let which = format!("what is mounted at {} does not answer", branch.display());
        assert!(ran.code != 0 && ran.stderr.contains(&which), "{ran:?}");
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

/// Who copies or compares it meanwhile would take what is not there for what was removed. Between what was mounted and what is lies a moment, and in it nothing else
/// is done.
#[test]
fn a_view_whose_service_was_killed_is_no_empty_directory_while_branches_are_mounted_again() {
    let bench = Bench::new(User::Me);
    let branches: Vec<String> =
        (0..12).map(|number| bench.branch(&format!("b{number}")).to_str().unwrap().to_owned()).collect();
    let branch = Path::new(&branches[0]);
    bench.at(branch, &["snapshot"]);
    let view = bench.at(branch, &["seek", "@"]);
    let names = || fs::read_dir(&view).map(Iterator::count);
    let whole = names().unwrap();
    assert!(whole > 0);
    for _ in 0..3 {
        bench.kill_services();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| bench.at(&bench.0.root(), &["branches"]));
            while !again.is_finished() {
                if names().is_ok_and(|there| there < whole) {
                    let mounts = bench.mounts();
                    assert!(branches.iter().all(|branch| mounts.contains(branch)), "{mounts:?}");
                }
            }
        });
        assert_eq!(names().unwrap(), whole);
    }
}
