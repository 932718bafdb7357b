//! What restore says beside its result: of dry runs, of Ctrl-C, of what rules keep it from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Ran, User, World, is_root, skip};

/// `ah agent fs …` under strace, which tampers with a system call; none (and a message) if the tests may not. The process that
/// is started is `ah` itself, not strace.
pub(crate) fn tampered(world: &World, how: &str, arguments: &[&str]) -> Option<Command> {
    tampered_with(world, how, &world.command(["agent", "fs"].iter().chain(arguments)))
}

/// The same of any command.
fn tampered_with(world: &World, how: &str, ah: &Command) -> Option<Command> {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    if !traced.is_ok_and(|status| status.success()) {
        skip("needs strace (apt-get install strace), and to be allowed to trace");
        return None;
    }
    let call = how.split(':').next().unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o"]).arg(world.path("log"));
    strace.args(["-e", &format!("trace={call}"), "-e", &format!("inject={how}"), "--"]);
    strace.arg(ah.get_program()).args(ah.get_args()).env_clear().current_dir(world.root());
    strace.envs(ah.get_envs().filter_map(|(name, value)| Some((name, value?))));
    strace.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(strace)
}

/// A workspace with a snapshot `first` from which five files differ.
pub(crate) fn changed() -> World {
    let world = World::new();
    let write = |text: &str| (0..5).for_each(|number| world.write(format!("f{number}"), format!("{text} {number}")));
    write("old");
    world.fs(["snapshot", "-m", "first"]);
    write("newer");
    world
}

pub(crate) fn olds(world: &World) -> usize {
    (0..5).filter(|number| world.read(format!("f{number}")).is_some_and(|text| text.starts_with("old"))).count()
}

fn interrupt_once(mut child: Child, there: impl Fn() -> bool) -> (i32, String) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !there() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "it never came to that");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn undo_names_what_it_puts_back_and_what_it_deletes() {
    let world = changed();
    fs::remove_file(world.root().join("f1")).unwrap();
    world.fs(["restore", "first"]);
    let ran = world.run(["agent", "fs", "undo"]);
    assert!(!world.root().join("f1").exists() && world.read("f2").as_deref() == Some("newer 2"), "{ran:?}");
    assert!(ran.stderr.contains("deleted: f1\n") && ran.stderr.contains("put back: f2\n"), "{ran:?}");
    assert!(!ran.stderr.contains("put back: f1\n"), "{ran:?}");
}

#[test]
fn ctrl_c_while_files_change_is_answered() {
    let world = changed();
    let Some(mut ah) = tampered(&world, "renameat2:delay_enter=200000", &["restore", "first"]) else { return };
    let (code, stderr) = interrupt_once(ah.spawn().unwrap(), || olds(&world) > 0);
    assert_eq!((code, olds(&world)), (0, 5), "{stderr}");
    assert_eq!(stderr.matches("finishing: ").count(), 1, "{stderr}");
}

#[test]
fn ctrl_c_before_that_names_the_command_that_starts_again() {
    let world = changed();
    let Some(mut ah) = tampered(&world, "linkat:delay_enter=200000", &["restore", "first"]) else { return };
    let names = || fs::read_dir(world.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (code, stderr) = interrupt_once(ah.spawn().unwrap(), || names().any(|name| name.starts_with(".ah-")));
    assert_eq!((code, olds(&world)), (130, 0), "{stderr}");
    assert!(stderr.contains("`ah agent fs restore first` starts again"), "{stderr}");
    // Nothing of it reads as if something was half done.
    assert!(stderr.starts_with("error: stopped before it changed anything: all files are as they were\n"), "{stderr}");
    assert!(!stderr.contains("caused by"), "{stderr}");
    let status = world.run(["agent", "fs", "status"]);
    assert!(status.code == 0 && !status.stderr.contains("interrupted"), "{status:?}");
    let timeline = world.run(["timeline"]).stdout;
    assert!(timeline.trim_end().ends_with("failed: nothing was changed"), "{timeline}");
}

#[test]
fn ctrl_c_while_the_present_state_is_saved_says_that_nothing_was_changed() {
    let world = changed();
    for again in ["restore first", "undo"] {
        let words: Vec<&str> = again.split(' ').collect();
        let Some(mut ah) = tampered(&world, "fsync,fdatasync,syncfs:delay_enter=300000", &words) else { return };
        fs::write(world.path("log"), "").unwrap();
        let writes = || fs::metadata(world.path("log")).is_ok_and(|log| log.len() > 0);
        let (code, stderr) = interrupt_once(ah.spawn().unwrap(), writes);
        assert_eq!((code, olds(&world)), (130, if again == "undo" { 5 } else { 0 }), "{stderr}");
        assert!(stderr.starts_with("error: stopped before it changed anything"), "{stderr}");
        assert!(stderr.contains(&format!("`ah agent fs {again}` starts again")), "{stderr}");
        world.fs(["restore", "first"]);
    }
}

#[test]
fn what_a_rule_ignores_that_came_since_comes_back_with_it_and_goes_with_its_undo() {
    let world = World::on_git();
    world.write("src/a", "good");
    world.write("src/gone", "good");
    world.write("b", "good");
    world.fs(["snapshot", "-m", "first"]);
    world.write(".gitignore", "src/\nb\n");
    world.write("src/a", "wrecked");
    world.write("b", "wrecked");
    fs::remove_file(world.root().join("src/gone")).unwrap();
    let state = |a: &str, gone: Option<&str>, rules: Option<&str>| {
        assert_eq!((world.read("src/a").as_deref(), world.read("b").as_deref()), (Some(a), Some(a)));
        assert_eq!((world.read("src/gone").as_deref(), world.read(".gitignore").as_deref()), (gone, rules));
    };
    let dry = world.run(["agent", "fs", "restore", "first", "--dry-run"]);
    assert_eq!((dry.code, dry.stdout.as_str()), (0, "D\t.gitignore\nM\tb\nM\tsrc/a\nA\tsrc/gone\n"), "{dry:?}");
    let ran = world.run(["agent", "fs", "restore", "first"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    state("good", Some("good"), None);
    world.fs(["undo"]);
    state("wrecked", None, Some("src/\nb\n"));
    world.fs(["undo"]);
    state("good", Some("good"), None);
    // One safety snapshot each is left of that.
    let safety = world.fs(["snapshots", "--json"]).matches("\"safety\"").count();
    assert_eq!(safety, 3);
    // A rule that stays is minded, and a file that is named is not.
    world.write("d/c", "then");
    world.fs(["snapshot", "-m", "second"]);
    world.write(".gitignore", "d/c\n");
    world.write("d/c", "now".repeat(1 << 20));
    let left = world.run(["agent", "fs", "restore", "second", "--", "d"]);
    assert!(left.code == 0 && left.stderr.contains("left alone: d/c (ignored: `--ignored` overwrites it)"), "{left:?}");
    assert_eq!(world.fs(["restore", "second", "--dry-run", "--ignored", "--", "d"]), "M\td/c");
    world.fs(["restore", "second", "--", "d/c"]);
    assert_eq!(world.read("d/c").as_deref(), Some("then"));
    world.fs(["undo"]);
    assert_eq!(world.read("d/c"), Some("now".repeat(1 << 20)));
}

#[test]
fn rules_that_ignore_themselves_keep_nothing_from_coming_back() {
    for how in [&["s"][..], &["s", "--", "src/a*[x] y\n\\"], &["s", "--ignored"], &["s", "--force"]] {
        let world = World::on_git();
        let name = "src/a*[x] y\n\\";
        world.write(name, "good");
        world.write("src/same", "same");
        world.fs(["snapshot", "-m", "s"]);
        world.write(".gitignore", "*\n");
        world.write(name, "bad");
        let ran = world.run(["agent", "fs", "restore"].iter().chain(how));
        assert_eq!((ran.code, world.read(name).as_deref()), (0, Some("good")), "{how:?}: {ran:?}");
        assert!(!ran.stderr.contains("lost for good"), "{ran:?}");
        if !how.contains(&"--") {
            let left =
                "left alone: .gitignore (it is ignored, and ignored files are never deleted; its rules hold until";
            assert!(ran.stderr.contains(left), "{ran:?}");
        }
        assert_eq!(world.read(".gitignore").as_deref(), Some("*\n"));
        world.fs(["undo"]);
        assert_eq!(world.read(name).as_deref(), Some("bad"));
        assert_eq!(world.read("src/same").as_deref(), Some("same"));
    }
}

#[test]
fn what_comes_back_into_an_ignored_directory_goes_with_the_undo() {
    for rules in ["src/\n", "*\n"] {
        let world = World::on_git();
        world.write("src/same", "same");
        world.write("src/gone", "good");
        world.fs(["snapshot", "-m", "s"]);
        world.write(".gitignore", rules);
        fs::remove_file(world.root().join("src/gone")).unwrap();
        world.fs(["restore", "s"]);
        assert_eq!(world.read("src/gone").as_deref(), Some("good"));
        world.fs(["undo"]);
        assert_eq!((world.read("src/gone"), world.read(".gitignore").as_deref()), (None, Some(rules)));
        assert_eq!(world.read("src/same").as_deref(), Some("same"));
    }
}

#[test]
fn what_came_hidden_by_rules_that_go_is_named() {
    for rules in ["*\n", "/src\nnode_modules\n"] {
        let world = World::on_git();
        world.write(".gitignore", "node_modules\n");
        world.write("src/dir/a", "a");
        world.fs(["snapshot", "-m", "s"]);
        world.write(".gitignore", rules);
        for new in ["src/new", "src/dir/new", "src/made/new", "src/node_modules/new", "node_modules/new"] {
            world.write(new, "n");
        }
        let told = |how: &[&str]| {
            let ran = world.run(["agent", "fs", "restore", "s"].iter().chain(how));
            assert_eq!(ran.code, 0, "{ran:?}");
            let left = ran.stderr.lines().filter_map(|line| line.split("left alone: ").nth(1)).map(str::to_owned);
            left.filter_map(|line| Some(line.split_once(" (")?.0.to_owned())).collect::<Vec<_>>()
        };
        let names = ["src/dir/new", "src/made", "src/new"];
        let dry = told(&["--dry-run"]);
        assert!(names.iter().all(|name| dry.iter().any(|left| left == name)), "{dry:?}");
        // What is ignored by the rules that come back is no news.
        assert_eq!(told(&[]), names);
        assert_eq!(world.read("src/new").as_deref(), Some("n"));
    }
}

#[test]
fn what_only_was_left_out_then_is_not_told_as_new_without_a_word() {
    let world = World::on_git();
    world.write(".gitignore", "build\n");
    world.write("build/o", "v1");
    world.fs(["snapshot", "-m", "s"]);
    let silent = world.run(["agent", "fs", "diff", "s"]);
    assert!(silent.stdout.is_empty() && !silent.stderr.contains("may have been"), "{silent:?}");
    world.write(".gitignore", "");
    world.write("new", "new");
    let ran = world.run(["agent", "fs", "diff", "s"]);
    assert_eq!(ran.stdout, "M\t.gitignore\nA\tbuild/\nA\tbuild/o\nA\tnew\n");
    let told = "may have been there: build (the snapshot left it out)\n";
    assert!(ran.stderr.contains(told) && ran.stderr.matches("may have been").count() == 1, "{ran:?}");
    assert_eq!(world.json("diff", &["agent", "fs", "diff", "s"])["diff"]["omitted"][0], "build");
}

#[test]
fn an_incomplete_restore_says_how_it_is_taken_back() {
    let world = changed();
    let Some(mut ah) = tampered(&world, "renameat2:error=EIO:when=3", &["restore", "first"]) else { return };
    let ran = Ran::of(&mut ah);
    assert_eq!((ran.code, olds(&world)), (4, 4), "{ran:?}");
    let back = format!("`ah agent fs restore {}` goes back to before this one", ran.stdout.trim());
    assert!(
        ran.stderr.contains("`ah agent fs undo` takes back what was changed") && ran.stderr.contains(&back),
        "{ran:?}"
    );
    world.fs(["restore", "first"]);
    assert_eq!(olds(&world), 5);
    world.fs(["restore", ran.stdout.trim()]);
    assert_eq!(olds(&world), 0);
}

#[test]
fn who_takes_a_projects_hooks_back_is_told() {
    let world = World::new();
    world.write("a", "1");
    world.fs(["snapshot", "-m", "first"]);
    assert_eq!(world.run(["agent", "hooks", "install", "claude", "--project"]).code, 0);
    let restored = world.run(["agent", "fs", "restore", "first"]);
    assert!(restored.stderr.contains("`ah agent hooks status` shows"), "{restored:?}");
}

#[test]
fn what_came_since_and_is_excluded_is_named() {
    let world = World::new();
    world.write("a", "good");
    world.fs(["snapshot", "-m", "good"]);
    world.write(".ah/config.json", r#"{"capture": {"exclude": ["/new", "/.ah"]}}"#);
    world.write("new", "an agent's");
    let ran = world.run(["agent", "fs", "restore", "good"]);
    assert!(ran.stderr.contains("left alone: new (") && !ran.stderr.contains("everything is as in"), "{ran:?}");
}

#[test]
fn a_dry_run_that_would_be_refused_says_only_that() {
    let world = World::new();
    world.write("f", "a file");
    world.fs(["snapshot"]);
    fs::remove_file(world.root().join("f")).unwrap();
    // A socket cannot be saved, so that it would be lost.
    let _socket = std::os::unix::net::UnixListener::bind(world.root().join("f")).unwrap();
    assert_eq!(world.run(["agent", "fs", "diff", "@", "--name-status"]).stdout, "T\tf\n");
    let ran = world.run(["agent", "fs", "restore", "@", "--dry-run"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("in the way: f") && ran.stderr.contains("refused"), "{ran:?}");
    assert!(!ran.stderr.contains("everything is as in") && !ran.stderr.contains("would restore"), "{ran:?}");
    fs::remove_file(world.root().join("f")).unwrap();
    world.write("f", "a file");
    assert!(world.run(["agent", "fs", "restore", "@", "--dry-run"]).stderr.contains("everything is as in"));
    // What came since, and no snapshot holds, differs as well.
    let _socket = std::os::unix::net::UnixListener::bind(world.root().join("came")).unwrap();
    let ran = world.run(["agent", "fs", "restore", "@"]);
    assert!(ran.code == 0 && ran.stdout.is_empty() && ran.stderr.contains("what differs from"), "{ran:?}");
    // Who captures everything holds a socket, which could not be made again.
    let reasons = [
        "it came since, and no snapshot holds it (special-file)",
        "it is a special file, which could not be made again",
    ];
    assert!(reasons.iter().any(|reason| ran.stderr.contains(&format!("left alone: came ({reason})"))), "{ran:?}");
}

#[test]
fn what_is_lost_by_force_is_named_and_no_undo_promised_for_it() {
    let world = World::on_git();
    world.write("f", "small");
    world.run(["config", "set", "capture.max-file-size", "1000B"]);
    world.fs(["snapshot"]);
    world.write("f", "x".repeat(2000));
    let reason = "f (the snapshot of the present state does not hold it (too-large))";
    let dry = world.run(["agent", "fs", "restore", "@", "--force", "--dry-run"]);
    assert!(dry.code == 0 && dry.stderr.contains(&format!("would be lost for good: {reason}")), "{dry:?}");
    assert!(dry.stderr.contains("1 changed") && dry.stdout.contains("M\tf"), "{dry:?}");
    let told = world.json("restore", &["agent", "fs", "restore", "@", "--force", "--dry-run"]);
    assert_eq!(told["restore"]["overwritten"][0]["path"], "f");
    let ran = world.run(["agent", "fs", "restore", "@", "--force"]);
    assert!(ran.stderr.contains(&format!("lost for good: {reason}")), "{ran:?}");
    assert!(ran.stderr.contains("undo` takes the rest back"), "{ran:?}");
    assert_eq!(world.read("f").as_deref(), Some("small"));
}

#[test]
fn what_may_not_be_looked_at_is_neither_gone_nor_undone() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.write("a", "a");
    world.write("locked/f", "f");
    world.fs(["snapshot"]);
    fs::remove_dir_all(world.root().join("locked")).unwrap();
    world.fs(["restore", "@"]);
    fs::set_permissions(world.root().join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let diff = world.json("diff", &["agent", "fs", "diff", "@"]);
    // At most that it is closed now; nothing of what is in it.
    let changes = diff["diff"]["changes"].as_array().unwrap();
    assert!(changes.iter().all(|change| change["path"] == "locked" && change["after"]["mode"] == 0), "{diff}");
    let unreadable = diff["diff"]["unreadable"].as_array().unwrap();
    let is_it = |path: &serde_json::Value| ["locked", "locked/f"].contains(&path.as_str().unwrap());
    assert!(!unreadable.is_empty() && unreadable.iter().all(is_it), "{diff}");
    let ran = world.run(["agent", "fs", "undo"]);
    assert!(ran.code == 4 && ran.stderr.contains("locked"), "{ran:?}");
    fs::set_permissions(world.root().join("locked"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_cannot_come_back_is_named() {
    let world = World::on_git();
    world.write("a", "a");
    for n in 0..7 {
        world.write(format!("data{n}"), "x".repeat(2000));
    }
    world.write(".ah-restore-notes", "mine");
    world.run(["config", "set", "capture.max-file-size", "1000B"]);
    world.fs(["snapshot"]);
    fs::remove_file(world.root().join(".ah-restore-notes")).unwrap();
    let missing = |names: std::ops::Range<u32>| {
        names.for_each(|n| drop(fs::remove_file(world.root().join(format!("data{n}")))));
        let ran = world.run(["agent", "fs", "restore", "@", "--dry-run"]);
        ran.stderr.lines().filter(|line| line.contains("missing now")).map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(missing(0..0), [""; 0]);
    let two = missing(0..2);
    assert!(two.len() == 2 && two[0].contains("data0 (too-large)"), "{two:?}");
    assert_eq!(missing(2..7).len(), 6);
    world.fs(["restore", "@"]);
    assert_eq!(world.read(".ah-restore-notes").as_deref(), Some("mine"));
}

#[test]
fn what_was_left_out_as_ignored_and_is_gone_is_named_too() {
    let world = World::on_git();
    world.write(".gitignore", "node_modules/\n*.log\n");
    world.write("a", "a");
    world.write("node_modules/x", "i");
    world.write("big.log", vec![0; 2 << 20]);
    world.fs(["snapshot", "-m", "s"]);
    let cat = world.run(["agent", "fs", "cat", "s", "big.log"]);
    assert!(cat.code == 3 && cat.stderr.contains("left it out: ignored"), "{cat:?}");
    let versions = world.run(["agent", "fs", "versions", "node_modules/x"]);
    assert!(versions.code == 3 && versions.stderr.contains("left it out: ignored"), "{versions:?}");
    let named = world.run(["agent", "fs", "restore", "s", "--", "node_modules"]);
    assert!(named.code == 0 && named.stderr.contains("left alone: node_modules"), "{named:?}");
    fs::remove_dir_all(world.root().join("node_modules")).unwrap();
    for gone in ["big.log", "a"] {
        fs::remove_file(world.root().join(gone)).unwrap();
    }
    for path in ["node_modules", "node_modules/x"] {
        let named = world.run(["agent", "fs", "restore", "s", "--", path]);
        assert!(named.code == 3 && named.stderr.contains("is missing, and not in the snapshot: ignored"), "{named:?}");
        assert!(named.stderr.contains("`ah agent fs versions "), "{named:?}");
    }
}

#[test]
fn what_could_not_be_put_back_is_not_counted() {
    let world = changed();
    let Some(mut ah) = tampered(&world, "renameat2:error=EIO:when=3", &["restore", "first", "--json"]) else { return };
    let ran = Ran::of(&mut ah);
    assert_eq!((ran.code, olds(&world)), (4, 4), "{ran:?}");
    let report = &serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["restore"];
    let count = |what: &str| report[what].as_array().unwrap().len();
    assert_eq!((count("changes"), count("failed")), (4, 1), "{report}");
    world.fs(["restore", "first"]);
    assert_eq!(olds(&world), 5);
}

#[test]
fn what_force_cannot_lose_is_refused_in_a_dry_run_as_well() {
    let world = World::on_git();
    world.write("f", "a file");
    world.fs(["snapshot", "-m", "s"]);
    fs::remove_file(world.root().join("f")).unwrap();
    world.write(".gitignore", "f/kept\n");
    world.write("f/kept/large", "ignored");
    for how in [&["--dry-run"][..], &["--dry-run", "--force"], &["--force"], &[]] {
        let ran = world.run(["agent", "fs", "restore", "s"].iter().chain(how));
        assert!(ran.code == 4 && !ran.stderr.contains("already"), "{how:?}: {ran:?}");
    }
    assert!(world.root().join("f/kept/large").exists());
}

#[test]
fn what_lies_in_a_directory_that_may_be_listed_and_not_entered_is_left_out_and_never_removed() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    for mode in [0o400, 0o640] {
        let world = World::of(User::Ordinary);
        world.write("d/f", "precious");
        world.write("a", "one");
        let directory = world.root().join("d");
        let open = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        open(mode);
        let first = world.fs(["snapshot"]);
        // Filesystems that snapshot by themselves have all of it.
        let shown = world.json("show", &["agent", "fs", "show", &first]);
        let left_out = shown["snapshot"]["omitted"].as_array().unwrap().iter().any(|it| it["path"] == "d/f");
        assert_eq!(left_out, world.can("applies-policy"), "{shown:#}");
        world.fs(["diff", &first]);
        open(0o755);
        world.write("a", "two");
        world.fs(["restore", &first]);
        open(0o755);
        assert_eq!((world.read("d/f").as_deref(), world.read("a").as_deref()), (Some("precious"), Some("one")));
    }
}

#[test]
fn nothing_is_looked_for_behind_a_symlink() {
    let world = World::new();
    world.write("real/f", "old");
    std::os::unix::fs::symlink("real", world.root().join("link")).unwrap();
    world.fs(["snapshot"]);
    world.write("real/f", "newer");
    let ran = world.run(["agent", "fs", "restore", "@", "--", "link/f"]);
    assert!(ran.code != 0 && ran.stderr.contains("link is a symlink: name the file where it is"), "{ran:?}");
    let ran = world.run(["agent", "fs", "diff", "@", "--", "link/f"]);
    assert!(ran.stderr.contains("link/f is on neither side"), "{ran:?}");
    assert_eq!(world.read("real/f").as_deref(), Some("newer"));
}

#[test]
fn a_refused_undo_advises_no_paths() {
    let world = World::new();
    world.write("f", "old");
    world.fs(["snapshot"]);
    world.write("f", "newer");
    world.fs(["restore", "@"]);
    fs::remove_file(world.root().join("f")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.root().join("f")).unwrap();
    let ran = world.run(["agent", "fs", "undo"]);
    assert!(ran.code == 4 && ran.stderr.contains("in the way"), "{ran:?}");
    assert!(ran.stderr.contains("move these out of the way") && !ran.stderr.contains("after `--`"), "{ran:?}");
}

#[test]
fn a_diff_reads_what_is_not_captured_any_more_where_its_times_may_be_forged() {
    let world = World::on_git();
    ["edited", "touched"].iter().for_each(|name| world.write(format!("data/{name}"), "old"));
    world.fs(["snapshot", "-m", "first"]);
    world.write(".gitignore", "data/\n");
    let open = |name: &str| fs::File::options().write(true).open(world.root().join("data").join(name)).unwrap();
    let time = open("edited").metadata().unwrap().modified().unwrap();
    world.write("data/edited", "new");
    open("edited").set_modified(time).unwrap();
    open("touched").set_modified(time + Duration::from_secs(1)).unwrap();
    let told = |arguments: &[&str]| world.fs(["diff", "first", "--name-status"].iter().chain(arguments));
    assert_eq!(told(&[]), "A\t.gitignore\nM\tdata/edited");
}

#[test]
fn what_changed_nothing_is_not_said_to_be_taken_back() {
    let world = changed();
    world.fs(["restore", "first"]);
    world.write("f0", "newest");
    let Some(mut ah) = tampered(&world, "renameat2:error=EIO", &["restore", "first"]) else { return };
    let ran = Ran::of(&mut ah);
    assert_eq!((ran.code, world.read("f0").as_deref()), (4, Some("newest")), "{ran:?}");
    // That would take back the one before.
    assert!(ran.stderr.contains("not complete") && !ran.stderr.contains("undo"), "{ran:?}");
    // It ends so, too, where nobody reads the answer.
    let (nobody, closed) = std::io::pipe().unwrap();
    drop(nobody);
    let mut ah = tampered(&world, "renameat2:error=EIO", &["restore", "first", "--json"]).unwrap();
    assert_eq!(Ran::of(ah.stdout(closed)).code, 4);
}

#[test]
fn a_rewind_that_is_not_complete_ends_so_in_json_too() {
    let world = changed();
    let ran = world.run(["moment", "-m", "mine"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    world.write("f0", "newest");
    for form in [&[][..], &["--json"]] {
        let ah = world.command(["agent", "rewind", "mine", "--files"].iter().chain(form));
        let Some(mut ah) = tampered_with(&world, "renameat2:error=EIO", &ah) else { return };
        let ran = Ran::of(&mut ah);
        assert_eq!((ran.code, world.read("f0").as_deref()), (4, Some("newest")), "{ran:?}");
    }
}

#[test]
fn what_is_wanted_back_is_what_the_hint_brings_back() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot", "-m", "full"]);
    fs::remove_file(world.root().join("f")).unwrap();
    world.fs(["snapshot"]);
    let root = world.root();
    fs::remove_dir_all(&root).unwrap();
    let mut command = world.command(["-C", root.to_str().unwrap(), "agent", "fs", "restore", "full"]);
    let ran = Ran::of(command.current_dir("/"));
    let hint = format!("mkdir {0} && ah -C {0} agent fs restore full", root.display());
    assert!(ran.code == 3 && ran.stderr.contains(&hint), "{ran:?}");
    fs::create_dir(&root).unwrap();
    world.fs(["restore", "full"]);
    assert_eq!(world.read("f").as_deref(), Some("1"));
}
