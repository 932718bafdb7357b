//! Branches are not taken away from under commands that have closed all that they inherited, as many programs do.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::support::{User, World, is_root, skip};

/// Closes all but the standard three.
const CLOSE: &str = "for fd in /proc/$BASHPID/fd/*; do fd=${fd##*/}; [ $fd -lt 3 ] || eval \"exec $fd>&-\"; done; ";

/// Says who it is, waits, and works.
const WORK: &str = "echo $BASHPID > $T/begun; read line < $T/go; echo work > result || echo LOST > $T/lost";

fn prepared(world: &World) {
    world.write("f", "one");
    for name in ["begun", "go"] {
        mkfifo(&world.path(name), Mode::S_IRWXU).unwrap();
    }
    world.give_away();
    world.fs(["snapshot"]);
}

/// A command of `exec`, and the process of it that has closed everything.
struct Work {
    command: Child,
    worker: u32,
}

impl Work {
    fn begin(world: &World, words: &[&str]) -> Self {
        let mut command = world.command(["agent", "fs", "exec"].iter().chain(words));
        let command = command.env("T", world.path("")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let worker = fs::read_to_string(world.path("begun")).unwrap();
        Self { command, worker: worker.trim().parse().unwrap() }
    }

    fn runs(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.worker)).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait(&mut self) {
        assert!(self.command.wait().unwrap().success());
    }

    /// Lets it work to its end.
    fn end(&mut self, world: &World) {
        fs::OpenOptions::new().write(true).open(world.path("go")).unwrap().write_all(b"go\n").unwrap();
        self.wait();
        while self.runs() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Only after a failure.
        if self.runs() {
            let _ = kill(Pid::from_raw(self.worker.cast_signed()), Signal::SIGKILL);
        }
        let _ = self.command.wait();
    }
}

/// The only branch's name and place.
fn branch(world: &World) -> Option<(String, PathBuf)> {
    let listed = world.json("branches", &["agent", "fs", "branches"]);
    let branch = listed["branches"].as_array().unwrap().first()?;
    Some((branch["name"].as_str().unwrap().to_owned(), branch["path"].as_str().unwrap().into()))
}

/// That the only branch can be worked in.
fn is_ready(world: &World) -> bool {
    world.json("branches", &["agent", "fs", "branches"])["branches"][0]["state"] == "ready"
}

/// Also by force, which is for what would be lost, and not for who works.
fn refused(world: &World, name: &str, work: &Work) {
    for force in [None, Some("--force")] {
        let words: Vec<&str> = ["agent", "fs", "rm", name].into_iter().chain(force).collect();
        assert_eq!(world.refused(4, &words), "busy");
        let ran = world.run(words);
        assert!(ran.stderr.contains(&format!("process {}", work.worker)), "{ran:?}");
    }
}

/// What waits for the end of a command, and is killed by this.
fn kill_waiter(world: &World) {
    let home = [b"AH_HOME=", world.path("state").as_os_str().as_encoded_bytes()].concat();
    let waits = |process: &Path| {
        let has = |file: &str, word: &[u8]| {
            fs::read(process.join(file)).is_ok_and(|text| text.split(|byte| *byte == 0).any(|part| part == word))
        };
        has("cmdline", b"--after-command") && has("cmdline", b"--detached") && has("environ", &home)
    };
    let waiter = loop {
        let found = fs::read_dir("/proc").unwrap().flatten().find(|process| waits(&process.path()));
        if let Some(process) = found {
            break process.file_name().to_str().unwrap().parse().unwrap();
        }
    };
    kill(Pid::from_raw(waiter), Signal::SIGKILL).unwrap();
}

fn in_time(what: impl Fn() -> bool) -> bool {
    (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        what()
    })
}

/// `exec 3>log` is what scripts do.
#[test]
fn low_numbers_of_descriptors_are_the_commands_own() {
    let world = World::new();
    world.write("f", "one");
    world.fs(["branch", "--name", "b"]);
    let numbers = |listed: &str| listed.lines().map(|line| line.parse().unwrap()).collect::<Vec<u32>>();
    // Whoever started the tests may have left some open.
    let before = Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
    let before = numbers(std::str::from_utf8(&before).unwrap());
    let mut open = numbers(&world.fs(["exec", "b", "--", "ls", "/proc/self/fd"]));
    open.retain(|number| !before.contains(number));
    assert!(open.len() == 1 && open[0] >= 200, "{open:?}");
}

#[test]
fn a_branch_made_for_a_command_stays_while_that_works_without_what_it_inherited() {
    World::each(|world| {
        prepared(world);
        let script = format!("{CLOSE}{WORK}");
        let mut work = Work::begin(world, &["--", "bash", "-c", &script]);
        let (name, _) = branch(world).unwrap();
        // Who waited for its end would take it away about now.
        for _ in 0..10 {
            assert!(is_ready(world));
        }
        refused(world, &name, &work);
        world.fs(["gc"]);
        work.end(world);
        world.wait_for_background();
        assert_eq!(world.fs(["exec", &name, "--", "cat", "result"]), "work");
        assert!(!world.path("lost").exists());
    });
}

#[test]
fn a_branch_made_for_a_command_stays_for_what_that_left_running() {
    World::each(|world| {
        prepared(world);
        // That it worked is to be seen outside: so nothing holds the branch then.
        let script = format!("({CLOSE}{}) >/dev/null 2>&1 &", WORK.replace("> result", "> $T/worked"));
        let mut work = Work::begin(world, &["--", "bash", "-c", &script]);
        work.wait();
        let (name, path) = branch(world).unwrap();
        for _ in 0..10 {
            assert!(is_ready(world));
        }
        refused(world, &name, &work);
        work.end(world);
        assert!(in_time(|| branch(world).is_none()), "and then it goes");
        assert!(!path.exists() && world.path("worked").exists());
    });
}

#[test]
fn rm_refuses_while_a_command_works_that_closed_what_it_inherited() {
    World::each(|world| {
        prepared(world);
        let path = PathBuf::from(world.fs(["branch", "--name", "b", "--mode", "worktree"]));
        let script = format!("{CLOSE}{WORK}");
        // Also one that made a namespace of its own.
        let further: &[&str] = if is_root() && world.user == User::Me { &["unshare", "-m"] } else { &[] };
        for before in [&[], further] {
            let words = [&["b", "--"], before, &["bash", "-c", &script]].concat();
            let mut work = Work::begin(world, &words);
            refused(world, "b", &work);
            work.end(world);
            assert_eq!(fs::read_to_string(path.join("result")).unwrap(), "work\n");
            fs::remove_file(path.join("result")).unwrap();
        }
        // And where the mount is no more by which it was shown the branch.
        let mut work = Work::begin(world, &["b", "--", "bash", "-c", &script]);
        fs::remove_dir_all(world.root()).unwrap();
        fs::create_dir(world.root()).unwrap();
        world.give_away();
        refused(world, "b", &work);
        work.end(world);
        assert_eq!(fs::read_to_string(path.join("result")).unwrap(), "work\n");
        fs::remove_file(path.join("result")).unwrap();
        world.fs(["rm", "b"]);
        assert!(!path.exists());
    });
}

#[test]
fn gc_goes_on_for_who_was_killed_that_waited_for_a_commands_end() {
    World::each(|world| {
        prepared(world);
        let gc = |words: &[&str]| {
            let ran = world.run(["agent", "fs", "gc"].iter().chain(words));
            assert_eq!(ran.code, 0, "{ran:?}");
            ran.stdout
        };
        // By what is asked for, and by the hourly run.
        for words in [&[][..], &["--auto"]] {
            let script = format!("{CLOSE}{}", WORK.replace("> result", "> $T/worked"));
            let mut work = Work::begin(world, &["--", "bash", "-c", &script]);
            kill_waiter(world);
            let (name, path) = branch(world).unwrap();
            let due = || {
                let workspaces = fs::read_dir(world.path("state/workspaces")).unwrap().flatten();
                for workspace in workspaces.filter(|it| it.path().join("pruned").exists()) {
                    fs::write(workspace.path().join("pruned"), "0\n").unwrap();
                }
            };
            due();
            gc(words);
            assert!(branch(world).is_some(), "somebody works there");
            work.end(world);
            world.wait_for_background();
            assert!(branch(world).is_some());
            due();
            assert!(gc(words).contains(&name) && branch(world).is_none() && !path.exists());
        }
        // What holds something is a branch as others are from then on.
        let script = format!("{CLOSE}{WORK}");
        let mut work = Work::begin(world, &["--", "bash", "-c", &script]);
        kill_waiter(world);
        work.end(world);
        let (name, _) = branch(world).unwrap();
        let said = gc(&[]);
        assert!(said.contains(&format!("kept the branch {name}")), "{said}");
        world.fs(["exec", &name, "--", "rm", "result"]);
        assert!(!gc(&[]).contains(&name));
        world.fs(["rm", &name]);
    });
}

#[test]
fn what_force_does_not_cover_is_told_so() {
    let world = World::new();
    world.write("dd/1", "one");
    world.fs(["snapshot"]);
    fs::remove_dir_all(world.root().join("dd")).unwrap();
    mkfifo(&world.root().join("dd"), Mode::S_IRWXU).unwrap();
    for words in [&["restore", "@"][..], &["restore", "@", "--dry-run"]] {
        let said = |more: &[&str]| world.run([&["agent", "fs"], words, more].concat()).stderr;
        assert!(said(&["--force"]).contains("`--force` does not cover these"), "{}", said(&["--force"]));
        assert!(!said(&[]).contains("does not cover"), "{}", said(&[]));
    }
}

#[test]
fn who_has_a_branch_mounted_is_not_taken_for_a_command() {
    let world = World::on_git();
    if !is_root() {
        return skip("root, to mount");
    }
    prepared(&world);
    let branch = world.fs(["branch", "--name", "b", "--mode", "worktree"]);
    let place = world.path("place");
    fs::create_dir(&place).unwrap();
    let script = "mount --bind \"$1\" \"$2\"; cd / && echo $$ >$T/begun && read line <$T/go";
    let mut container = Command::new("unshare");
    container.args(["-m", "sh", "-c", script, "sh"]).arg(&branch).arg(&place).env("T", world.path(""));
    let mut container = container.spawn().unwrap();
    let pid = fs::read_to_string(world.path("begun")).unwrap();
    let ran = world.run(["agent", "fs", "rm", "b"]);
    fs::write(world.path("go"), "\n").unwrap();
    container.wait().unwrap();
    let named = format!("process {} has the branch b mounted", pid.trim());
    assert!(ran.code == 4 && ran.stderr.contains(&named) && !ran.stderr.contains("exec"), "{ran:?}");
    world.fs(["rm", "b"]);
}
