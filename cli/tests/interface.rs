//! What holds for every command: where output goes, what help, completions and man pages there are, closed pipes, colour,
//! names that are not UTF-8, Ctrl-C.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use support::{Ran, World};

const LATIN: &[u8] = b"caf\xe9";

#[test]
fn names_that_are_not_utf8_come_out_byte_for_byte() {
    World::each(|world| {
        let root = world.root().join(OsStr::from_bytes(LATIN));
        fs::create_dir(&root).unwrap();
        world.give_away();
        let ah = |arguments: &[&OsStr]| {
            let ran = Ran::of(world.command(arguments).current_dir(&root));
            assert_eq!(ran.code, 0, "{ran:?}");
            OsString::from_vec(ran.raw.strip_suffix(b"\n").unwrap_or(&ran.raw).to_vec())
        };
        let words = |text: &'static str| text.split(' ').map(OsStr::new).collect::<Vec<_>>();
        fs::write(root.join(OsStr::from_bytes(b"\xff")), "one").unwrap();
        world.give_away();
        ah(&words("agent fs snapshot"));
        assert_eq!(ah(&[words("agent fs cat @"), vec![OsStr::from_bytes(b"\xff")]].concat()), "one");
        let at = root.with_file_name(OsStr::from_bytes(b"branch\xe9"));
        let branch = ah(&[words("agent fs branch @ --at"), vec![at.as_os_str()]].concat());
        // Below it where more than the workspace had to be cloned.
        assert!(PathBuf::from(&branch).starts_with(&at), "{branch:?}");
        assert_eq!(fs::read(PathBuf::from(branch).join(OsStr::from_bytes(b"\xff"))).unwrap(), b"one");
        fs::write(root.join(OsStr::from_bytes(b"\xff")), "two").unwrap();
        assert_eq!(ah(&words("agent fs diff @")).as_bytes(), b"M\t\xff");
    });
}

#[test]
fn names_that_would_move_the_cursor_are_quoted() {
    let world = World::new();
    world.write("a\x1b[2J\nb", "one");
    world.refused(2, &["agent", "fs", "snapshot", "-m", "label\x1b[2J"]);
    world.fs(["snapshot"]);
    world.write("a\x1b[2J\nb", "two");
    assert_eq!(world.fs(["diff", "@"]), "M\t$'a\\033[2J\\012b'");
    for command in ["snapshots", "show"] {
        let ran = world.run(["agent", "fs", command].into_iter().chain((command == "show").then_some("@")));
        assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
    }
    // Nor do those beyond ASCII, or what turns the direction of writing.
    world.write("x\u{9b}2J", "");
    world.write("\u{202e}y", "");
    world.fs(["snapshot", "-m", "\u{2066}label"]);
    assert_eq!(world.fs(["diff", "@{1}", "@", "--", "x\u{9b}2J"]), "A\t$'x\\302\\2332J'");
    for command in [&["agent", "fs", "diff", "@{1}", "@"][..], &["agent", "fs", "snapshots"]] {
        let ran = world.run(command);
        assert!(!ran.stdout.contains(['\u{9b}', '\u{202e}', '\u{2066}']), "{ran:?}");
    }
    let ran = world.run(["agent", "fs", "show", "no\x1b[2Jsuch"]);
    assert!(!ran.stderr.contains('\x1b'), "{ran:?}");
}

#[test]
fn patches_apply() {
    let world = World::new();
    let git = |arguments: &[&str], folder: PathBuf| {
        let ran = Ran::of(Command::new("git").args(arguments).current_dir(folder));
        assert_eq!(ran.code, 0, "{ran:?}");
    };
    world.write("changed", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    world.write("no newline", "a\nb");
    world.write("carriage", "x\ry\n");
    world.write("deleted", "gone\n");
    world.write("mode", "#!/bin/sh\n");
    world.write("becomes-link", "file\n");
    world.write(OsStr::from_bytes(LATIN), "latin\n");
    world.write("quo\"te\\d", "q\n");
    // What is not text is passed over, wherever it stands between the others.
    for name in ["aa", "deleted.bin", "mode.bin", "zz"] {
        world.write(name, b"\0one");
    }
    world.write("binary-becomes-link", b"\0");
    world.fs(["snapshot"]);
    let old = PathBuf::from(world.fs(["branch", "@", "--name", "old", "--carry", "none"]));
    world.write("changed", "1\n2\nzwei-einhalb\n3\n4\n5\n6\n7\n8\n9\nzehn\n");
    world.write("no newline", "a\nc");
    world.write("carriage", "x\rz\r");
    world.write("new/deep/file", "new\n");
    world.write("new/empty", "");
    world.write(OsStr::from_bytes(LATIN), "ISO\n");
    world.write("quo\"te\\d", "Q\n");
    for gone in ["deleted", "becomes-link"] {
        fs::remove_file(world.root().join(gone)).unwrap();
    }
    symlink("changed", world.root().join("becomes-link")).unwrap();
    Command::new("chmod").arg("+x").arg(world.root().join("mode")).status().unwrap();
    let texts = PathBuf::from(world.fs(["branch", "--name", "texts", "--carry", "none", "--mode", "worktree"]));
    for name in ["aa", "mode.bin", "new/empty.bin", "zz"] {
        world.write(name, b"\0two");
    }
    fs::remove_file(world.root().join("deleted.bin")).unwrap();
    fs::remove_file(world.root().join("binary-becomes-link")).unwrap();
    symlink("changed", world.root().join("binary-becomes-link")).unwrap();
    Command::new("chmod").arg("+x").arg(world.root().join("mode.bin")).status().unwrap();
    let ran = world.run(["agent", "fs", "diff", "@", "--patch"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stdout.matches("Binary files ").count(), 6, "{ran:?}");
    let patch = world.path("patch");
    fs::write(&patch, &ran.raw).unwrap();
    git(&["apply", "--whitespace=nowarn", patch.to_str().unwrap()], old.clone());
    let same = Command::new("diff").args(["-r", "--no-dereference"]).args([&old, &texts]).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
}

#[test]
fn a_patch_names_what_it_does_not_hold_and_nothing_else() {
    let world = World::new();
    for name in ["binary", "text", "closed", "both", "d/f"] {
        world.write(name, if name == "binary" { "\0" } else { "one\n" });
        fs::set_permissions(world.root().join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(world.root().join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    world.fs(["snapshot"]);
    for (name, mode) in [("binary", 0o755), ("text", 0o755), ("closed", 0o600), ("both", 0o700), ("d", 0o700)] {
        fs::set_permissions(world.root().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    // Of what is new, what would be made open to others than it is.
    for (name, closed) in
        [("key", Some(0o600)), ("new/f", None), ("tool", Some(0o700)), ("vault/f", None), ("vault", Some(0o700))]
    {
        if name != "vault" {
            world.write(name, "new\n");
        }
        if let Some(mode) = closed {
            fs::set_permissions(world.root().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    // Whatever the one is that tests are run with.
    let line = format!("umask 022; exec {} agent fs diff @ --patch", env!("CARGO_BIN_EXE_ah"));
    let made = world.command(["version"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(world.root()).env_clear();
    let ran = Ran::of(shell.envs(made.get_envs().filter_map(|(name, value)| Some((name, value?)))));
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("not in the patch")).collect();
    let expected =
        ["both", "closed", "d", "key", "tool", "vault"].map(|name| format!("permissions, so not in the patch: {name}"));
    assert_eq!(told, expected, "{ran:?}");
    assert_eq!(ran.stdout.matches("new mode 100755\n").count(), 3, "{ran:?}");
}

#[test]
fn git_merges_a_patch_by_what_it_names() {
    let world = World::new();
    let git = |arguments: &[&str]| {
        let own = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"];
        let ran = Ran::of(Command::new("git").args(own).args(arguments).current_dir(world.root()));
        (ran.code, ran.stderr)
    };
    world.write("f", "1\n2\n3\n4\n5\n");
    for words in [&["init", "-q"][..], &["add", "."], &["commit", "-qm", "first"]] {
        assert_eq!(git(words).0, 0, "{words:?}");
    }
    world.fs(["snapshot", "-m", "begin"]);
    world.write("f", "1\n2\n3\nfour\n5\n");
    let patch = world.path("patch");
    fs::write(&patch, world.run(["agent", "fs", "diff", "begin", "--patch"]).raw).unwrap();
    // Meanwhile somebody else's work came home, in a line that the patch has beside its own.
    world.write("f", "1\ntwo\n3\n4\n5\n");
    assert_eq!(git(&["commit", "-qam", "second"]).0, 0);
    let patch = patch.to_str().unwrap();
    assert_ne!(git(&["apply", patch]).0, 0);
    let (code, said) = git(&["apply", "--3way", patch]);
    assert_eq!((code, world.read("f").as_deref()), (0, Some("1\ntwo\n3\nfour\n5\n")), "{said}");
}

#[test]
fn a_pipe_that_is_closed_is_no_error() {
    let world = World::new();
    for number in 0..3000 {
        fs::write(world.root().join(format!("a-rather-long-name-of-a-file-{number}")), "x").unwrap();
    }
    world.fs(["snapshot", "-m", "many"]);
    world.write("large", vec![b'x'; 4 << 20]);
    world.fs(["snapshot"]);
    for arguments in ["diff many @ --patch", "show @ --json", "cat @ large", "diff many --json"] {
        let words = ["agent", "fs"].into_iter().chain(arguments.split(' '));
        let mut child = world.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        let _ = stdout.read(&mut first);
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments}: {output:?}");
    }
    // One that cannot be written to is.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for command in [&["snapshots"][..], &["cat", "@", "large"]] {
        let mut ah = world.command(["agent", "fs"].iter().chain(command));
        let output = ah.stdout(full.try_clone().unwrap()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr.contains("hint: ") && !stderr.contains("prune"), "{stderr}");
    }
}

#[test]
fn what_is_done_is_said_where_the_answer_cannot_be_written() {
    let world = World::new();
    world.write("f", "old");
    world.fs(["snapshot", "-m", "first"]);
    world.write("f", "new");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = |words: &[&str]| {
        let mut ah = world.command(["agent", "fs"].iter().chain(words));
        let output = ah.stdout(full.try_clone().unwrap()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap().to_owned();
        assert!(error.starts_with("error: it is done, but the answer cannot be written"), "{stderr}");
        (stderr, error.rsplit(' ').next().unwrap().to_owned())
    };
    let (stderr, safety) = told(&["restore", "first"]);
    assert!(stderr.contains("`ah agent fs undo` takes it back"), "{stderr}");
    assert_eq!((world.read("f").as_deref(), world.fs(["cat", &safety, "f"]).as_str()), (Some("old"), "new"));
    told(&["undo", "--json"]);
    assert_eq!(world.read("f").as_deref(), Some("new"));
    for words in [&["branch", "first", "--name", "b"][..], &["seek", "first"]] {
        let (_, path) = told(words);
        assert_eq!(fs::read_to_string(PathBuf::from(path).join("f")).unwrap(), "old", "{words:?}");
    }
    let (_, id) = told(&["snapshot"]);
    assert_eq!(told(&["rm", &id]).1, id);
    assert_eq!(world.run(["agent", "fs", "show", &id]).code, 3);
    let ids: Vec<String> = (0..2).map(|_| world.fs(["snapshot"])).collect();
    let (stderr, _) = told(&["rm", &ids[0], &ids[1]]);
    assert!(ids.iter().all(|id| stderr.contains(id)), "{stderr}");
    world.write("f", "newer");
    let (stderr, _) = told(&["restore", "first", "--json"]);
    let safety = world.fs(["snapshots", "--json"]);
    let safety = serde_json::from_str::<serde_json::Value>(&safety).unwrap()["snapshots"].clone();
    let is_told = |it: &serde_json::Value| it["kind"] == "safety" && stderr.contains(it["id"].as_str().unwrap());
    assert!(safety.as_array().unwrap().iter().any(is_told), "{stderr}");
    let views: Vec<String> = (0..2).map(|number| world.fs(["seek", if number == 0 { "first" } else { "@" }])).collect();
    let (stderr, _) = told(&["release", "--all"]);
    assert!(views.iter().all(|view| stderr.contains(view)), "{stderr}");
    for words in [
        &["set", "mode", "auto", "--json"][..],
        &["set", "mode", "auto", "--project", "--json"],
        &["trust"],
        &["trust", "--json"],
    ] {
        let mut ah = world.command(["config"].iter().chain(words));
        let output = ah.stdout(full.try_clone().unwrap()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains("error: it is done"), "{words:?}: {stderr}");
    }
}

#[test]
fn what_is_to_be_known_of_what_was_done_is_said_behind_an_answer_that_nobody_takes() {
    let world = World::on_git();
    world.write("f", "old");
    world.fs(["snapshot"]);
    fs::create_dir_all(world.path("home/.claude")).unwrap();
    fs::write(world.path("home/.claude/settings.json"), "{}").unwrap();
    let snapshot = ["agent", "fs", "snapshot"];
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = world.command(snapshot).stdout(full).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("nothing has changed since"));
    for (words, said) in
        [(&snapshot[..], "nothing has changed since"), (&["agent", "hooks", "install", "claude"], "as it was before")]
    {
        let (nobody, closed) = std::io::pipe().unwrap();
        drop(nobody);
        let output = world.command(words).stdout(closed).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(0) && stderr.contains(said), "{words:?}: {stderr}");
    }
}

#[test]
fn a_command_ends_as_it_does_whoever_takes_its_answer() {
    let world = World::new();
    world.write("f", "old");
    world.fs(["snapshot"]);
    fs::create_dir_all(world.path("state/leases")).unwrap();
    fs::write(world.path("state/leases/odd.json"), "{").unwrap();
    for words in [&["gc"][..], &["gc", "--json"], &["status", "--provider", "none"]] {
        let words: Vec<&str> = ["agent", "fs"].iter().chain(words).copied().collect();
        let ran = world.run(&words);
        let (nobody, closed) = std::io::pipe().unwrap();
        drop(nobody);
        let output = world.command(&words).stdout(closed).output().unwrap();
        assert!(ran.code > 0 && output.status.code() == Some(ran.code), "{words:?}: {ran:?}, {output:?}");
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = world.command(&words).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(ran.code) && !stderr.contains("error: it is done"), "{words:?}: {stderr}");
        assert!(words[2] != "gc" || stderr.contains("odd.json"), "{stderr}");
    }
}

#[test]
fn what_was_only_looked_at_is_not_said_to_be_done() {
    let world = World::new();
    world.write("f", "old");
    world.fs(["snapshot", "-m", "first"]);
    world.write("f", "new");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for words in [
        &["rm", "first", "--dry-run"][..],
        &["rm", "--all", "--dry-run"],
        &["rm", "--all", "--dry-run", "--json"],
        &["restore", "first", "--dry-run", "--json"],
        &["prune", "keep-last=1", "--dry-run", "--json"],
        &["status", "--json"],
        &["snapshots", "--json"],
        &["diff", "first", "--json"],
    ] {
        let mut ah = world.command(["agent", "fs"].iter().chain(words));
        let output = ah.stdout(full.try_clone().unwrap()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {stderr}");
        assert!(stderr.contains("error: cannot write to standard output"), "{words:?}: {stderr}");
    }
    // An error that cannot be written there is said where people are.
    for (word, code) in [("nothing", 3), ("--nothing", 2)] {
        let mut ah = world.command(["agent", "fs", "show", word, "--json"]);
        let output = ah.stdout(full.try_clone().unwrap()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let is_told = stderr.starts_with("error: ") && stderr.contains(word);
        assert!(output.status.code() == Some(code) && is_told, "{word}: {stderr}");
    }
}

#[test]
fn the_times_that_are_shown_are_times_that_can_be_said() {
    let world = World::new();
    world.write("f", "1");
    let id = world.fs(["snapshot"]);
    world.write("f", "2");
    // In another second: the time that is shown has no fractions.
    std::thread::sleep(Duration::from_millis(1100));
    world.fs(["snapshot", "-m", "2001-01-01"]);
    let zone = |arguments: &[&str]| Ran::of(world.command(arguments).env("TZ", "Asia/Tokyo"));
    let shown = zone(&["agent", "fs", "show", &id]).stdout;
    let taken = shown.lines().find_map(|line| line.strip_prefix("taken")).unwrap().trim()[..19].to_owned();
    for time in [taken.clone(), taken.replace(' ', "T")] {
        assert_eq!(zone(&["agent", "fs", "cat", &time, "f"]).stdout, "1", "{time}");
    }
    assert_eq!(zone(&["agent", "fs", "show", "2001-01-02"]).code, 3, "nothing was there by then");
    assert_eq!(zone(&["agent", "fs", "cat", "2099-01-01", "f"]).stdout, "2");
    assert_eq!(zone(&["agent", "fs", "cat", "2001-01-01", "f"]).stdout, "2", "labels come first");
}

#[test]
fn a_time_of_the_first_hour_of_two_can_be_said_as_it_is_shown() {
    // A zone whose clocks are set back by an hour in ten minutes.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let date = Command::new("date").args(["-u", "-d", &format!("@{}", now + 600 + 3600), "+%j %T"]).output().unwrap();
    let date = String::from_utf8(date.stdout).unwrap();
    let (day, time) = date.trim().split_once(' ').unwrap();
    let day = day.parse::<u32>().unwrap() - 1;
    let zone = format!("WIN0SUM-1,{}/0,{day}/{time}", (day + 180) % 360);

    let world = World::new();
    let run = |arguments: &[&str]| Ran::of(world.command(arguments).env("TZ", &zone));
    world.write("f", "1");
    let id = world.run(["moment"]).stdout.trim().to_owned();
    world.write("f", "2");
    // In another second: the time that is shown has no fractions.
    std::thread::sleep(Duration::from_millis(1100));
    world.fs(["snapshot"]);
    let shown = run(&["agent", "fs", "show", &id]).stdout;
    for name in ["when", "taken"] {
        let time = shown.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let time = time.split(" (").next().unwrap().trim();
        assert!(time.ends_with(" +01:00"), "{shown}");
        assert_eq!(run(&["agent", "fs", "cat", time, "f"]).stdout, "1", "{time}");
    }
    assert_eq!(run(&["agent", "fs", "cat", "@", "f"]).stdout, "2");
}

#[test]
fn colour_only_where_it_is_wanted() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot"]);
    let ran = world.run(["agent", "fs", "snapshots"]);
    assert!(!ran.stdout.contains('\x1b'), "not a terminal: {ran:?}");
    let ran = world.run(["agent", "fs", "snapshots", "--color", "always"]);
    assert!(ran.stdout.contains('\x1b'), "{ran:?}");
    let ran = Ran::of(world.command(["agent", "fs", "snapshots", "--color", "never"]).env("CLICOLOR_FORCE", "1"));
    assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
}

#[test]
fn quiet_leaves_errors_and_results() {
    let world = World::new();
    world.write("sub/f", "1");
    let mut command = world.command(["agent", "fs", "snapshot"]);
    let talkative = Ran::of(command.current_dir(world.root()));
    assert_eq!(talkative.code, 0);
    let quiet = |arguments: &[&str]| Ran::of(world.command(arguments).current_dir(world.root().join("sub")));
    let ran = quiet(&["agent", "fs", "snapshot", "--quiet"]);
    assert!(ran.stderr.is_empty() && ran.stdout.len() == 13, "{ran:?}");
    assert!(!quiet(&["agent", "fs", "snapshot"]).stderr.is_empty());
    assert!(!quiet(&["agent", "fs", "show", "nothing", "-q"]).stderr.is_empty());
}

#[test]
fn help_completions_and_man_pages() {
    let world = World::new();
    let ran = world.run(["--help"]);
    assert!(ran.code == 0 && ran.stderr.is_empty(), "{ran:?}");
    assert!(!ran.stdout.contains("__"), "hidden commands are hidden: {}", ran.stdout);
    assert_eq!(world.run(["--version"]).code, 0);
    assert_eq!(world.run(["agent", "fs"]).code, 2, "no command is no help that was asked for");
    let folder = world.path("generated");
    for what in ["completions", "man"] {
        let ran = world.run([OsStr::new("__generate"), OsStr::new(what), folder.as_os_str()]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for shell in ["ah.bash", "_ah", "ah.fish"] {
        let script = read(shell);
        assert!(script.contains("snapshot") && script.contains("dry-run"), "{shell}");
        assert!(!script.contains("__generate") && !script.contains("__check-child"), "{shell} offers hidden commands");
    }
    let bash = Command::new("bash").arg("-n").arg(folder.join("ah.bash")).status().unwrap();
    assert!(bash.success());
    for page in ["ah.1", "ah-agent-fs-snapshot.1", "ah-timeline.1", "ah-config-set.1"] {
        assert!(read(page).contains(".TH "), "{page}");
    }
    let page = read("ah-agent-fs-restore.1");
    assert!(page.contains("ah agent fs restore before"), "examples are in the page");
    assert!(page.contains(r"[\fB\-C\fR \fIDIR\fR]") && page.contains(r"[\-\- \fIPATH\fR...]"), "{page}");
    assert!(page.contains("cow\\-overlay"), "the values of --mode: {page}");
    let end = &page[page.find(".SH \"EXIT STATUS\"").expect("exit codes are in every command's page")..];
    assert!(end.contains("3 not found") && end.contains("130 interrupted"), "{end}");
    for option in [r"[\fB\-\-session\fR \fISESSION\fR]", r"[\fB\-\-times\fR \fITIMES\fR]", r"[\fB\-\-dry\-run\fR]"] {
        assert!(page.contains(option), "{option} is not in {page}");
    }
    assert!(read("ah-agent-fs-snapshots.1").contains(r"[\fB\-n\fR|\fB\-\-limit\fR \fIN\fR]"), "the value stands once");
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let text = read(&name);
        // Nothing that is not installed is referred to.
        assert!(!text.contains("help(1)") && !text.contains("docs/"), "{name}");
    }
    // Whoever takes a REF says what one can be.
    for command in ["show", "diff", "seek", "cat", "branch", "restore", "edit", "rm"] {
        let ran = world.run(["agent", "fs", command, "--help"]);
        assert!(ran.stdout.contains("INTO the session") && ran.stdout.contains("@prompt{2}"), "{ran:?}");
    }
    assert!(!folder.join("ah-__generate.1").exists());
}

#[test]
fn ctrl_c_stops_and_cleans_up() {
    let world = World::new();
    for number in 0..8_000 {
        fs::write(world.root().join(format!("{number}")), format!("{number}")).unwrap();
    }
    let before = world.picture("w");
    let mut interrupted = 0;
    for delay in [0, 5, 20, 40, 80, 160, 320] {
        let mut child =
            world.command(["agent", "fs", "snapshot"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Counted from when it listens.
        let status = format!("/proc/{}/status", child.id());
        let listens = |text: String| {
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
            caught.is_some_and(|bits| u64::from_str_radix(bits, 16).unwrap() & 2 != 0)
        };
        while !listens(fs::read_to_string(&status).unwrap()) && child.try_wait().unwrap().is_none() {}
        std::thread::sleep(Duration::from_millis(delay));
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        let sent = Instant::now();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let status = child.wait().unwrap();
        let ended = status.code();
        assert!(matches!(ended, Some(0 | 130)), "{status:?}");
        interrupted += u32::from(ended == Some(130));
        assert!(sent.elapsed() < Duration::from_secs(100));
        if ended == Some(0) {
            break;
        }
    }
    assert!(interrupted > 0, "no run was caught");
    assert_eq!(world.picture("w"), before);
    // Nothing half is listed, and nothing is in the way.
    let id = world.fs(["snapshot"]);
    fs::remove_file(world.root().join("77")).unwrap();
    world.fs(["restore", &id, "--", "77"]);
    assert_eq!(world.read("77").unwrap(), "77");
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let world = World::new();
    for number in 0..5_000 {
        fs::write(world.root().join(format!("{number}")), "x").unwrap();
    }
    // `exec` keeps the process: what the shell ignores, `ah` is started with.
    let script = format!("trap '' HUP INT; echo ready; exec {} agent fs snapshot", support::ah().display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("AH_HOME", world.path("state")).env("HOME", world.path("home"));
    let mut child = command.current_dir(world.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    for _ in 0..20 {
        for signal in [nix::sys::signal::Signal::SIGHUP, nix::sys::signal::Signal::SIGINT] {
            // It may have come to its end by now.
            let _ = nix::sys::signal::kill(pid, signal);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn no_question_is_ever_asked() {
    // With stdin open and silent, every command ends by itself.
    let world = World::new();
    world.write("f", "1");
    let commands: &[&[&str]] =
        &[&[], &["agent", "fs", "snapshot"], &["agent", "fs", "restore", "@"], &["agent", "fs", "gc"]];
    for arguments in commands {
        let mut child = world.command(*arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.flush();
        let deadline = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{arguments:?} waits for something");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(stdin);
    }
}

#[test]
fn a_path_on_a_terminal_is_shown_without_its_escapes() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot"]);
    let place = world.path("b\x1b[2J");
    let made = world.command(["agent", "fs", "branch", "@", "--at", place.to_str().unwrap()]);
    let words = std::iter::once(made.get_program()).chain(made.get_args()).map(|word| word.to_str().unwrap());
    let line = words.map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(world.root()).stdin(Stdio::null());
    script.env_clear().envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::of(&mut script);
    assert!(ran.code == 0 && ran.stdout.contains(r"b\u{1b}[2J"), "{ran:?}");
    assert!(!ran.stdout.contains("\x1b[2J") && place.is_dir(), "{ran:?}");
}

#[test]
fn a_patch_that_is_looked_at_moves_no_cursor_and_one_that_is_applied_is_as_it_is() {
    let world = World::new();
    world.fs(["snapshot"]);
    world.write("a", "evil\x1b[2J\r+ harmless\n");
    let patch = |color: &str| world.run(["agent", "fs", "diff", "@", "--patch", "--color", color]).stdout;
    let (seen, applied) = (patch("always"), patch("auto"));
    assert!(seen.contains("+evil\\u{1b}[2J\\r+ harmless") && !seen.contains("\x1b[2J"), "{seen:?}");
    assert!(applied.ends_with("+evil\x1b[2J\r+ harmless\n"), "{applied:?}");
    world.write("b", "\0");
    let ran = world.run(["agent", "fs", "diff", "@", "--patch"]);
    assert!(ran.stderr.contains("not text, so not in the patch: b\n") && ran.code == 0, "{ran:?}");
    world.fs(["snapshot"]);
    world.write("c", "new");
    let ran = world.run(["agent", "fs", "restore", "@"]);
    assert!(ran.stderr.contains("deleted: c\n"), "{ran:?}");
}
