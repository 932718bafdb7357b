//! What is said to somebody who asks for the wrong thing, or in the wrong place; and what completions offer.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{Ran, User, World, is_root, skip};

/// Runs `ah` in a directory, and looks for what it has to say.
fn says(world: &World, at: &Path, line: &[&str], code: i32, parts: &[&str]) {
    let ran = Ran::of(world.command(line).current_dir(at));
    assert_eq!(ran.code, code, "{line:?}: {ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part), "{line:?}: {part:?} is not in {ran:?}");
    }
}

#[test]
fn where_nothing_was_captured_what_is_asked_for_is_named() {
    let world = World::new();
    let root = world.root();
    let record = "hint: `ah agent record -- CMD` makes one";
    for (line, message, hint) in [
        (&["agent", "replay"][..], "there is no recording here", record),
        (&["agent", "replay", "7"], "there is no recording here", record),
        (&["agent", "replay", "--from", "@prompt"], "there is no recording here", record),
        (&["agent", "cast", "export"], "there is no recording here", record),
        (
            &["agent", "rewind"],
            "there is no prompt here",
            "hint: an agent's hooks have its prompts noted: `ah agent hooks status`",
        ),
        (&["session", "show", "nope"], "there is no session nope here", "hint: `ah agent fs snapshot`"),
        (
            &["agent", "fs", "exec", "nope", "--", "ls"],
            "there is no branch \"nope\" here",
            "hint: `ah agent fs snapshot`",
        ),
        (&["agent", "fs", "rm", "nope"], "there is nothing here called nope", "hint: `ah agent fs snapshot`"),
    ] {
        says(&world, &root, line, 3, &[message, "has no snapshots", hint]);
    }
    assert!(!world.path("state/workspaces").exists(), "nothing is registered by asking");
    // What is said of a branch of another workspace stays.
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    world.write("f", "1");
    world.fs(["snapshot"]);
    world.fs(["branch", "@", "--name", "b"]);
    says(&world, &other, &["agent", "fs", "rm", "b"], 3, &["a branch of another workspace"]);
}

#[test]
fn who_is_in_a_directory_that_was_deleted_is_told_what_finds_what_is_kept_of_it() {
    let world = World::on_git();
    world.write("f", "1");
    world.fs(["snapshot"]);
    let (root, ah) = (world.root(), env!("CARGO_BIN_EXE_ah"));
    let within = |line: &str| {
        let made = world.command(["version"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &line.replace("{}", root.to_str().unwrap())]).current_dir(&root);
        shell.env_clear().envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ran::of(&mut shell)
    };
    let ran = within(&format!("rm -r {{}}; {ah}"));
    let hint = format!("`ah -C {}`", root.display());
    assert!(ran.code != 0 && ran.stderr.contains(&hint), "{ran:?}");
    let there = root.to_str().unwrap();
    assert_eq!(Ran::of(world.command(["-C", there, "agent", "fs", "cat", "@", "f"]).current_dir("/")).stdout, "1");
    fs::create_dir(&root).unwrap();
    // Of a directory in it, too; of one of which nothing is kept, nothing is promised.
    let ran = within(&format!("mkdir {{}}/sub; cd {{}}/sub; rm -r {{}}; {ah}"));
    assert!(ran.code != 0 && ran.stderr.contains(&hint), "{ran:?}");
    fs::create_dir(&root).unwrap();
    let ran = within(&format!("mkdir ../other; cd ../other; rmdir ../other; {ah}"));
    assert!(
        ran.code != 0 && ran.stderr.contains("hint: go to one that is") && !ran.stderr.contains("ah -C"),
        "{ran:?}"
    );
    let ran = within(&format!("rm -r {{}}; mkdir {{}}; {ah} agent fs status"));
    assert!(ran.code != 0 && ran.stderr.contains(&format!("`cd {}`", root.display())), "{ran:?}");
}

#[test]
fn a_first_command_that_is_refused_makes_no_workspace() {
    let world = World::on_git();
    let known = || fs::read_dir(world.path("state/workspaces")).map_or(0, Iterator::count);
    world.write("f", "1");
    world.write("inside/f", "1");
    for (line, code) in [
        (&["agent", "fs", "snapshot", "-m", "a\tb"][..], 2),
        (&["moment", "-m", "a\tb"], 2),
        (&["agent", "fs", "branch", "--name", "x/y"], 2),
        (&["agent", "fs", "branch", "--at", "/nonexistent/x"], 3),
        (&["--provider", "nosuch", "agent", "fs", "snapshot"], 5),
    ] {
        says(&world, &world.root(), line, code, &[]);
        assert_eq!(known(), 0, "{line:?}");
    }
    // What the guard says can be done.
    assert_eq!(world.run(["config", "set", "capture.max-entries", "2"]).code, 0);
    let snapshot = ["agent", "fs", "snapshot"];
    says(&world, &world.root(), &snapshot, 4, &["work in a directory inside it"]);
    assert_eq!(known(), 0);
    says(&world, &world.root().join("inside"), &snapshot, 0, &[]);
    assert_eq!(known(), 1);
}

#[test]
fn the_workspace_around_a_repository_is_named() {
    let world = World::new();
    let inner = world.root().join("inner repository");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("f"), "1").unwrap();
    assert!(Command::new("git").args(["init", "-q"]).current_dir(&inner).status().unwrap().success());
    let diff = ["agent", "fs", "diff", "@"];
    let ran = Ran::of(world.command(diff).current_dir(&inner));
    assert!(ran.code == 3 && !ran.stderr.contains("around"), "nothing is there yet: {ran:?}");
    world.fs(["snapshot"]);
    let around = format!("or of the workspace around it: `ah -C {} agent fs snapshots`", world.root().display());
    for line in [&diff[..], &["agent", "fs", "snapshots"]] {
        let ran = Ran::of(world.command(line).current_dir(&inner));
        assert!(ran.stderr.contains(&around), "{ran:?}");
    }
}

#[test]
fn what_others_call_otherwise_is_named() {
    let world = World::new();
    for (line, meant) in [
        ("usage", "ah agent fs prune --dry-run"),
        ("doctor", "ah agent fs status"),
        ("agent fs verify", "ah agent fs gc"),
        ("agent fs pin", "ah agent fs edit"),
        ("agent fs mount", "ah agent fs seek"),
        ("agent fs merge left", "ah agent fs diff --patch"),
        ("init", "ah agent fs snapshot"),
        ("completions", "ah __generate completions"),
        ("agent cast list", "ah session show"),
        ("agent recordings", "ah session show"),
        ("agent fs list", "ah agent fs snapshots"),
        ("agent fs snapshot before", "ah agent fs snapshot -m before"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        says(&world, &world.root(), &words, 2, &[&format!("did you mean `{meant}`?")]);
    }
}

#[test]
fn names_that_are_almost_right_get_a_hint() {
    let world = World::new();
    world.write("src/main.rs", "1");
    world.write("r1", "1");
    world.fs(["snapshot", "-m", "same"]);
    let (root, below) = (world.root(), world.root().join("src"));
    for (at, line, code, said) in [
        (&root, "config get prune.maxsize", 2, "did you mean prune.max-size?"),
        (&root, "timeline --session nope", 3, "hint: ah session list"),
        (&root, "session show nope", 3, "the only one is main: `ah session show main`"),
        (&root, "agent fs prune max-size=1", 2, "it needs a size with its unit, like 5G"),
        (&root, "agent fs restore same -- *.log", 3, "paths are no patterns"),
        (
            &root,
            "agent fs seek same -- r1 nope",
            3,
            "`ah agent fs versions PATH` shows whether and when a file was there",
        ),
        (&below, "agent fs cat same nowhere", 3, "nowhere` shows whether and when it was there"),
        (&below, "agent fs restore same -- nowhere", 3, "nowhere` shows whether and when it was there"),
        (&root, "agent fs convert --back", 4, "is not behind AgentFS: there is nothing to take back"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        says(&world, at, &words, code, &[said]);
    }
}

#[test]
fn paths_that_were_named_from_the_top_are_named_from_here() {
    let world = World::new();
    world.write("src/main.rs", "1");
    world.write("docs/a b", "1");
    world.fs(["snapshot", "-m", "same"]);
    let below = world.root().join("src");
    for (line, code, from_here) in [
        ("agent fs cat same src/main.rs", 3, "ah agent fs cat same main.rs"),
        ("agent fs versions src/main.rs", 3, "ah agent fs versions main.rs"),
        ("agent fs restore same --dry-run -- src/main.rs", 3, "ah agent fs restore same --dry-run -- main.rs"),
        ("agent fs seek same -- main.rs src/main.rs", 3, "ah agent fs seek same -- main.rs main.rs"),
        ("agent fs diff same --stat -- src/main.rs", 0, "ah agent fs diff same --stat -- main.rs"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let hint = format!("paths are taken from the current directory: `{from_here}`");
        says(&world, &below, &words, code, &[&hint]);
        // It can be typed there.
        let words: Vec<&str> = from_here.split(' ').skip(1).collect();
        let ran = Ran::of(world.command(&words).current_dir(&below));
        assert!(ran.code == 0 && !ran.stderr.contains("neither"), "{from_here}: {ran:?}");
    }
    let elsewhere = ["agent", "fs", "restore", "same", "--", "docs/a b"];
    says(&world, &below, &elsewhere, 3, &["`ah agent fs restore same -- '../docs/a b'`"]);
    // Where `-C` leads, it leads again.
    let there = [&["-C", "src"], &elsewhere[..]].concat();
    says(&world, &world.root(), &there, 3, &["`ah -C src agent fs restore same -- '../docs/a b'`"]);
    // What is nowhere is promised nowhere.
    for command in ["restore", "seek", "diff"] {
        let ran = Ran::of(world.command(["agent", "fs", command, "same", "--", "src/nope"]).current_dir(&below));
        assert!(!ran.stderr.contains("taken from"), "{ran:?}");
    }
}

#[test]
fn what_is_no_workspace_is_told_so_and_nothing_is_advised_there() {
    let world = World::new();
    let home = world.path("home");
    for line in [&["agent", "fs", "status"][..], &[]] {
        let ran = Ran::of(world.command(line).current_dir(&home));
        assert!(ran.code == 0 && ran.stdout.contains("too much to be captured as one workspace"), "{ran:?}");
        assert!(
            !ran.stdout.contains("provider ") && !ran.stdout.contains("VERDICT") && ran.stderr.is_empty(),
            "{ran:?}"
        );
        let ran = world.run(line);
        assert!(ran.stdout.contains("provider ") && !ran.stdout.contains("too much"), "{ran:?}");
    }
    // Who insisted has one.
    Ran::of(world.command(["agent", "fs", "snapshot", "--force"]).current_dir(&home));
    let ran = Ran::of(world.command(["agent", "fs", "status"]).current_dir(&home));
    assert!(ran.stdout.contains("VERDICT") && !ran.stdout.contains("too much"), "{ran:?}");
}

#[test]
fn lists_of_a_branch_without_snapshots_say_so() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot", "-m", "first"]);
    let branch = world.path("b");
    world.fs(["branch", "first", "--at", branch.to_str().unwrap()]);
    for line in [&["timeline"][..], &["agent", "fs", "snapshots"]] {
        let ran = Ran::of(world.command(line).current_dir(&branch));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert_eq!(ran.stderr, "no snapshots here: `ah agent fs snapshot`\n", "{line:?}");
        // What is there and was not asked for is no reason to say so.
        let none = Ran::of(world.command([line, &["-n", "0"][..]].concat()).current_dir(world.root()));
        assert_eq!((none.code, none.stderr.as_str()), (0, ""), "{none:?}");
    }
}

#[test]
fn a_check_of_no_case_is_refused() {
    support::need_library();
    let world = World::new();
    let library = support::library();
    let line = ["agent", "fs", "check", library.to_str().unwrap(), "--only", "nonexistent"];
    says(&world, &world.root(), &line, 2, &["no case has \"nonexistent\" in its name", "hint: "]);
}

#[test]
fn new_directories_without_files_are_named_beside_a_patch() {
    let world = World::new();
    world.write("f", "1");
    world.fs(["snapshot"]);
    fs::create_dir_all(world.root().join("empty/inner")).unwrap();
    world.write("full/f", "1");
    let ran = world.run(["agent", "fs", "diff", "--patch"]);
    let told: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(told, ["an empty directory, so not in the patch: empty/inner"], "{ran:?}");
}

#[test]
fn completions_offer_what_comes_next_and_nothing_else() {
    let world = World::new();
    let folder = world.path("completions");
    let ran = world.run(["__generate", "completions", folder.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    for shell in ["_ah", "ah.fish"] {
        assert!(read(shell).contains("prune.max-size") && read(shell).contains("opencode"), "{shell}");
    }
    let fish = folder.join("ah.fish");
    let offered = |line: &str| {
        let script = format!("source {}; complete -C '{line}'", fish.display());
        let mut shell = Command::new("fish");
        let ran =
            Ran::of(shell.args(["--no-config", "-c", &script]).env("HOME", world.path("home")).current_dir(&folder));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    if Command::new("fish").arg("--version").output().is_err() {
        return support::skip("needs fish");
    }
    let has = |line: &str, word: &str| offered(line).iter().any(|offered| offered == word);
    assert!(has("ah agent fs ", "adopt") && has("ah agent hooks ", "install"));
    for (line, sibling) in [
        ("ah agent fs rm ", "adopt"),
        ("ah agent fs restore ", "show"),
        ("ah agent hooks install ", "uninstall"),
        ("ah agent cast export ", "import"),
    ] {
        assert!(!has(line, sibling), "{line}: {:?}", offered(line));
    }
    assert!(has("ah agent hooks install ", "claude") && has("ah agent hooks status ", "codex"));
    assert!(has("ah config get ", "provider") && has("ah config set ", "prune.max-size"));
    assert!(has("ah agent fs rm --", "--force"));
}

#[test]
fn why_a_projects_value_does_not_count_is_said_once_and_right() {
    let world = World::new();
    fs::create_dir(world.root().join(".ah")).unwrap();
    world.write(".ah/config.json", "{\"labels\": {\"a\": \"b\"}}\n");
    let ran = world.run(["config", "set", "prune.policy", "keep-last=1", "--project"]);
    assert!(ran.code == 0 && ran.stderr.contains("does not count in a project that is not trusted"), "{ran:?}");
    assert!(!ran.stderr.contains("which wins") && ran.stderr.contains("`ah config trust`"), "{ran:?}");
    // What a stronger layer has is told as ever.
    world.run(["config", "set", "mode", "auto", "--project"]);
    world.run(["config", "trust"]);
    let ran = world.run(["config", "set", "mode", "worktree"]);
    assert!(ran.stderr.contains("mode is set in the project layer too, which wins"), "{ran:?}");
}

#[test]
fn without_proc_that_is_what_is_named() {
    if !is_root() {
        return skip("needs root, to take /proc away");
    }
    let world = World::on_git();
    world.write("f", "1");
    let without = |words: &[&str]| {
        let ah = world.command(words);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""]);
        command.arg(ah.get_program()).args(ah.get_args()).current_dir(world.root());
        command.env_clear().envs(ah.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ran::of(&mut command)
    };
    for words in [&["agent", "fs", "status"][..], &["agent", "fs", "snapshot"], &["agent", "record", "--", "true"]] {
        let ran = without(words);
        for part in ["/proc is not mounted", "hint: `mount -t proc proc /proc`"] {
            assert!(ran.stderr.contains(part), "{words:?}: {ran:?}");
        }
        assert!(!ran.stderr.contains("scripts/install"), "{words:?}: {ran:?}");
    }
    assert!(!world.run(["agent", "fs", "status"]).stderr.contains("/proc"));
}

#[test]
fn a_directory_of_ones_own_that_is_closed_says_how_to_open_it() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.write("f", "one");
    world.write("d/f", "one");
    world.fs(["snapshot"]);
    let root = world.root();
    let set = |mode| fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
    let hint = format!("`chmod u+rwx {}`, then repeat `ah agent fs restore @`", root.display());
    for mode in [0o000, 0o300] {
        set(mode);
        let ran = world.run(["agent", "fs", "restore", "@"]);
        set(0o755);
        assert!(ran.code == 1 && ran.stderr.contains(&hint), "{mode:o}: {ran:?}");
    }
    // Also of what is above; of a stranger's it is not said.
    let below = root.join("d");
    let words = ["-C", below.to_str().unwrap(), "agent", "fs", "restore", "@"];
    set(0o600);
    let ran = world.run(words);
    set(0o755);
    assert!(ran.code == 1 && ran.stderr.contains(&format!("`chmod u+rwx {}`", root.display())), "{ran:?}");
    std::os::unix::fs::chown(&root, Some(0), Some(0)).unwrap();
    set(0o700);
    let ran = world.run(words);
    assert!(ran.code == 1 && !ran.stderr.contains("chmod"), "{ran:?}");
}
