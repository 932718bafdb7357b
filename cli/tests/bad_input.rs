//! What goes wrong from outside, as the issue lists it: for each a clear error with a hint, the exit code that the design
//! promises, and nothing changed. What the words are is nobody's business here.
//!
//! One long file on purpose: the issue's list, a test a line, in its order.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Ran, User, World, is_root, skip};

/// A workspace with one snapshot.
fn world() -> World {
    with_snapshot(World::new())
}

fn with_snapshot(world: World) -> World {
    world.write("f", "one\n");
    world.fs(["snapshot", "-m", "first"]);
    world.write("f", "two\n");
    world
}

fn kind(ran: &Ran) -> String {
    let value: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    support::schema::check("error", &value);
    value["error"]["kind"].as_str().unwrap().to_owned()
}

#[test]
fn a_reference_that_names_nothing() {
    let world = world();
    let before = world.picture("w");
    for command in ["show", "restore", "seek", "branch", "edit --keep", "rm", "diff"] {
        let words: Vec<&str> = command.split(' ').collect();
        let arguments = [&["agent", "fs"], words.as_slice(), &["nothing-of-that-name"]].concat();
        assert_eq!(world.refused(3, &arguments), "not-found");
    }
    assert_eq!(world.refused(3, &["agent", "fs", "show", "@{7}"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "cat", "@", "no/such/file"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "versions", "no/such/file"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "show", "2001-01-01T00:00:00Z"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "exec", "no-such-branch", "--", "true"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "release", "/nowhere"]), "not-found");
    assert_eq!(world.refused(2, &["agent", "fs", "show", ""]), "invalid-argument");
    assert_eq!(world.refused(2, &["agent", "fs", "show", "@{x}"]), "invalid-argument");
    assert_eq!(world.picture("w"), before);
}

#[test]
fn a_reference_that_is_ambiguous() {
    let world = world();
    // 17 snapshots have ids that begin with 16 letters: two begin with the same one.
    let mut ids = vec![world.fs(["snapshot"])];
    let shared = loop {
        world.write("f", ids.len().to_string());
        ids.push(world.fs(["snapshot", "--instant"]));
        let first = &ids[ids.len() - 1][..1];
        if ids[..ids.len() - 1].iter().any(|id| id.starts_with(first)) {
            break first.to_owned();
        }
    };
    let before = world.picture("w");
    assert_eq!(world.refused(2, &["agent", "fs", "restore", &shared]), "invalid-argument");
    assert_eq!(world.picture("w"), before);
    let whole = ids.last().unwrap();
    assert_eq!(world.json("show", &["agent", "fs", "show", whole])["snapshot"]["id"], whole.as_str());
}

#[test]
fn a_directory_that_is_not_there_or_is_none() {
    let world = world();
    assert_eq!(world.refused(3, &["-C", "/no/such/directory", "agent", "fs", "snapshot"]), "not-found");
    assert_eq!(world.refused(3, &["agent", "fs", "status", "/no/such/directory"]), "not-found");
    world.write("file", "");
    assert_eq!(world.refused(2, &["-C", "file", "agent", "fs", "snapshot"]), "invalid-argument");
    // Nothing was ever captured there, and nothing is registered by asking.
    fs::create_dir(world.path("other")).unwrap();
    for command in ["undo", "show @", "restore @"] {
        let words: Vec<&str> = ["-C", "../other", "agent", "fs"].into_iter().chain(command.split(' ')).collect();
        assert_eq!(world.refused(3, &words), "not-found");
    }
    // The current directory was deleted.
    let gone = world.path("gone");
    fs::create_dir(&gone).unwrap();
    let script =
        format!("cd {0} && rmdir {0} && exec {1} agent fs status --json", gone.display(), support::ah().display());
    let ran = Ran::of(Command::new("sh").args(["-c", &script]).env("AH_HOME", world.path("state")));
    assert_eq!((ran.code, kind(&ran).as_str()), (3, "not-found"));
}

#[test]
fn lists_where_nothing_was_ever_captured_are_empty() {
    let world = World::new();
    for (shape, list) in [
        ("snapshots", &["agent", "fs", "snapshots"][..]),
        ("timeline", &["timeline"]),
        ("branches", &["agent", "fs", "branches"]),
        ("gc", &["agent", "fs", "gc"]),
        ("prune", &["agent", "fs", "prune", "keep-last=1"]),
        ("release", &["agent", "fs", "release", "--all"]),
    ] {
        let ran = world.run(list);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert_eq!(ran.stderr, "no snapshots yet: `ah agent fs snapshot`\n", "{list:?}");
        world.json(shape, list);
    }
    assert!(!world.path("state/workspaces").exists(), "nothing is registered by asking");
}

#[test]
fn an_empty_path_is_not_the_whole_workspace() {
    let world = world();
    let before = world.picture("w");
    for arguments in [
        &["restore", "@", "--", ""][..],
        &["restore", "@", "--", "f", ""],
        &["diff", "@", "--", ""],
        &["seek", "@", "--", ""],
        &["cat", "@", ""],
        &["versions", ""],
        &["release", ""],
    ] {
        assert_eq!(world.refused(2, &[&["agent", "fs"], arguments].concat()), "invalid-argument");
    }
    assert_eq!(world.picture("w"), before);
    world.fs(["restore", "@", "--", "."]);
    assert_eq!(world.read("f").unwrap(), "one\n");
}

#[test]
fn errors_on_paths_say_what_helps() {
    let world = world();
    let ends = |words: &[&str], code: i32, message: &str, hint: &str| {
        world.refused(code, words);
        let ran = world.run(words);
        assert!(ran.stderr.contains(message) && ran.stderr.contains(&format!("hint: {hint}")), "{words:?}: {ran:?}");
    };
    fs::create_dir(world.path("there")).unwrap();
    let there = world.path("there").display().to_string();
    ends(&["agent", "fs", "branch", "@", "--at", "../there"], 4, &there, "choose a place");
    let branch = world.path("b").display().to_string();
    world.fs(["branch", "@", "--name", "taken", "--at", &branch]);
    ends(&["agent", "fs", "branch", "@", "--at", "../b"], 4, &branch, "choose a place");
    ends(&["agent", "fs", "branch", "@", "--name", "taken"], 4, "a branch taken", "choose another name");
    ends(&["agent", "fs", "branch", "@", "--at", "/nonexistent/a b/c"], 3, "", "mkdir -p '/nonexistent/a b'\n");
    ends(&["config", "trust"], 3, ".ah/config.json", "only a project");
    ends(&["agent", "fs", "seek", "@", "--", "no pe"], 3, "no pe", "`ah agent fs versions 'no pe'` shows whether");
}

#[test]
fn a_directory_that_cannot_be_read() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = with_snapshot(World::of(User::Ordinary));
    let closed = world.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&closed, Some(0), Some(0)).unwrap();
    assert_eq!(world.refused(1, &["-C", closed.to_str().unwrap(), "agent", "fs", "snapshot"]), "permission-denied");
    // One that is inside is left out, with the reason, by who reads files; who captures without reading has it, as closed as it was.
    world.write("secret/f", "x");
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&world.root().join("secret"), 0o000);
    world.fs(["snapshot"]);
    let show = world.json("show", &["agent", "fs", "show", "@"]);
    let omitted = show["snapshot"]["omitted"].as_array().unwrap();
    let left_out = omitted.iter().any(|omitted| omitted["path"] == "secret" && omitted["reason"] == "unreadable");
    assert_eq!(left_out, world.can("applies-policy"), "{show}");
    if !left_out {
        assert_eq!(omitted.len(), 0, "{show}");
        assert_eq!(world.refused(1, &["agent", "fs", "cat", "@", "secret/f"]), "permission-denied");
        let branch = PathBuf::from(world.fs(["branch", "@", "--name", "b"]));
        set(&branch.join("secret"), 0o700);
        assert_eq!(fs::read_to_string(branch.join("secret/f")).unwrap(), "x");
    }
}

#[test]
fn a_directory_that_is_read_only() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = world();
    let root = world.root();
    let mount = |flags: nix::mount::MsFlags| {
        nix::mount::mount(Some(&root), &root, None::<&str>, flags, None::<&str>).unwrap();
    };
    mount(nix::mount::MsFlags::MS_BIND);
    mount(nix::mount::MsFlags::MS_BIND | nix::mount::MsFlags::MS_REMOUNT | nix::mount::MsFlags::MS_RDONLY);
    let before = world.picture("w");
    // To look and to capture needs no writing.
    let snapshot = world.run(["agent", "fs", "snapshot", "--json"]);
    let restore = world.run(["agent", "fs", "restore", "first", "--json"]);
    let after = world.picture("w");
    ah_test_disks::unmount(&root);
    assert_eq!(snapshot.code, 0, "{snapshot:?}");
    assert!([1, 4].contains(&restore.code), "{restore:?}");
    assert_eq!(after, before);
    // And works once it is writable.
    world.fs(["restore", "first"]);
    assert_eq!(world.read("f").unwrap(), "one\n");
}

/// A world whose state lies on a disk of 4 MiB.
fn with_little_room() -> World {
    let world = World::new();
    let size = Some("size=4m,mode=700");
    nix::mount::mount(Some("tmpfs"), &world.path("state"), Some("tmpfs"), nix::mount::MsFlags::empty(), size).unwrap();
    world.use_git();
    world
}

#[test]
fn a_disk_that_is_full() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = with_little_room();
    world.write("small", "one\n");
    let first = world.fs(["snapshot"]);
    let mut noise = vec![0; 8 << 20];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), &mut noise).unwrap();
    world.write("large", &noise);
    let before = world.picture("w");
    let ran = world.run(["agent", "fs", "snapshot", "--json"]);
    assert_eq!((ran.code, kind(&ran).as_str()), (1, "resource-exhausted"), "{ran:?}");
    assert_eq!(world.picture("w"), before);
    // Who goes back hears what to delete first.
    let ran = world.run(["agent", "fs", "restore", &first, "--json"]);
    assert_eq!((ran.code, kind(&ran).as_str()), (1, "resource-exhausted"), "{ran:?}");
    let large = world.root().join("large");
    let told = format!("came, or grew, after that snapshot: {} (8.0 MiB); free some space", large.display());
    assert!(ran.stdout.contains(&told), "{ran:?}");
    assert_eq!(world.picture("w"), before);
    // What was there is there, complete; what failed is not.
    fs::remove_file(&large).unwrap();
    fs::remove_file(world.root().join("small")).unwrap();
    world.fs(["restore", &first]);
    assert_eq!(world.read("small").unwrap(), "one\n");
    let list = world.json("snapshots", &["agent", "fs", "snapshots"]);
    let manual = list["snapshots"].as_array().unwrap().iter().filter(|snapshot| snapshot["kind"] == "manual").count();
    assert_eq!(manual, 1, "{list}");
}

/// Where it is now need not be written down by what makes room.
#[test]
fn a_disk_that_is_full_under_a_workspace_that_was_moved() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = with_little_room();
    let world = with_snapshot(world);
    world.fs(["snapshot", "-m", "second"]);
    fs::rename(world.root(), world.path("elsewhere")).unwrap();
    let mut filler = fs::File::create(world.path("state/filler")).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while std::io::Write::write_all(&mut filler, &vec![1; size]).is_ok() {}
    }
    let there = |words: &[&str]| {
        let all = [&["-C", "../elsewhere"], words].concat();
        Ran::of(world.command(all).current_dir(world.path("state")))
    };
    for words in [&["agent", "fs", "cat", "first", "f"][..], &["agent", "fs", "rm", "first"], &["agent", "fs", "gc"]] {
        let ran = there(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
    }
    fs::remove_file(world.path("state/filler")).unwrap();
    // It is, once there is room.
    let _ = there(&["agent", "fs", "snapshots"]);
    assert_eq!(there(&["agent", "fs", "snapshots"]).stderr, "");
}

#[test]
fn state_on_another_filesystem() {
    let shm = Path::new("/dev/shm");
    let world = World::new();
    if !shm.is_dir() || fs::metadata(shm).unwrap().dev() == fs::metadata(world.root()).unwrap().dev() {
        return skip("needs a second filesystem at /dev/shm");
    }
    let state = tempfile::Builder::new().prefix("ah-cli-").tempdir_in(shm).unwrap();
    let ah = |arguments: &[&str]| {
        let ran = Ran::of(world.command(arguments).env("AH_HOME", state.path().join("home")));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    };
    let git = Command::new("git").args(["init", "-q"]).current_dir(world.root()).status();
    assert!(git.unwrap().success());
    world.write("f", "one\n");
    ah(&["agent", "fs", "snapshot"]);
    world.write("f", "two\n");
    let view = PathBuf::from(ah(&["agent", "fs", "seek", "@"]));
    assert_eq!(fs::read_to_string(view.join("f")).unwrap(), "one\n");
    ah(&["agent", "fs", "release", "--all"]);
    let branch = PathBuf::from(ah(&["agent", "fs", "branch", "@"]));
    assert_eq!(fs::read_to_string(branch.join("f")).unwrap(), "one\n");
    ah(&["agent", "fs", "restore", "@"]);
    assert_eq!(world.read("f").unwrap(), "one\n");
    // The background would make it anew.
    let home = state.path().join("home").into_os_string().into_encoded_bytes();
    let at_work = || {
        let environments =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|at| fs::read(at.path().join("environ")).ok());
        environments.into_iter().any(|text| text.windows(home.len()).any(|part| part == home))
    };
    for _ in 0..200 {
        if !at_work() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("the background does not come to its end");
}

#[test]
fn state_that_cannot_be_written() {
    if !is_root() {
        return skip("needs root, to act as an ordinary user");
    }
    let world = World::of(User::Ordinary);
    world.write("f", "one\n");
    let before = world.picture("w");
    // A place where nothing can be made, one that is closed to this user, one that is no directory.
    let homes = [
        ("/proc/ah", 4, "failed-precondition"),
        ("/root/ah", 1, "permission-denied"),
        ("/dev/null/ah", 2, "invalid-argument"),
    ];
    for (home, code, what) in homes {
        let ran = Ran::of(world.command(["agent", "fs", "snapshot", "--json"]).env("AH_HOME", home));
        assert_eq!((ran.code, kind(&ran).as_str()), (code, what), "{ran:?}");
    }
    // Made by somebody else, who could read or change everything in it.
    let foreign = world.path("foreign");
    fs::create_dir(&foreign).unwrap();
    std::os::unix::fs::chown(&foreign, Some(0), Some(0)).unwrap();
    let ran = Ran::of(world.command(["agent", "fs", "snapshot", "--json"]).env("AH_HOME", &foreign));
    assert!([1, 4].contains(&ran.code), "{ran:?}");
    kind(&ran);
    assert_eq!(world.picture("w"), before);
}

/// A disk with errors is mounted read-only: just then somebody wants to know what was there before.
#[test]
fn state_on_a_disk_that_became_read_only() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    let world = world();
    let read_only = |root: &Path, words: &str| {
        let script = format!(
            "mount --bind \"$AH_HOME\" \"$AH_HOME\" && mount -o remount,bind,ro \"$AH_HOME\" && '{}' {words}",
            support::ah().display()
        );
        let command = world.command([""; 0]);
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &script]).current_dir(root).env_clear();
        unshare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ran::of(&mut unshare)
    };
    let reads = |root: &Path| {
        for (words, expected) in [
            ("agent fs cat first f", "one\n"),
            ("agent fs diff first --name-status", "M\tf\n"),
            ("agent fs snapshots --json", "\"label\":\"first\""),
            ("agent fs show first", "first"),
            ("agent fs versions f", "first"),
            ("agent fs status", "snapshots 1"),
            ("timeline", "first"),
        ] {
            let ran = read_only(root, words);
            assert!(ran.code == 0 && ran.stdout.contains(expected), "{words}: {ran:?}");
        }
        for words in ["agent fs snapshot", "agent fs restore first", "agent fs rm first", "agent fs seek first"] {
            let ran = read_only(root, words);
            assert!(ran.code != 0 && ran.stderr.contains("hint: "), "{words}: {ran:?}");
            // A copy holds no filesystem's own snapshots.
            assert!(!ran.stderr.contains("copy AH_HOME"), "{words}: {ran:?}");
        }
    };
    reads(&world.root());
    // A rescue system numbers disks otherwise.
    renumber(&world);
    reads(&world.root());
    world.fs(["snapshots"]);
    let elsewhere = world.path("elsewhere");
    fs::rename(world.root(), &elsewhere).unwrap();
    reads(&elsewhere);
    let ran = read_only(&world.path("."), "agent fs cat first f");
    assert!(ran.code == 3 && ran.stderr.contains("has no snapshots"), "{ran:?}");
    fs::rename(&elsewhere, world.root()).unwrap();
    assert_eq!(world.read("f").unwrap(), "two\n");
    // What the hint says helps as it is.
    let ran = read_only(
        &world.root(),
        "agent fs rm first 2>&1 | sed -n 's/.*(`\\(mount [^`]*\\)`).*/\\1/p' | sh -e && touch \"$AH_HOME/x\"",
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    world.fs(["restore", "first"]);
}

/// Writes down another number for the device that the workspace is on.
fn renumber(world: &World) {
    let edit = |path: PathBuf, place: &str| {
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let dev = json.pointer_mut(place).unwrap();
        *dev = (dev.as_u64().unwrap() + 1).into();
        fs::write(&path, json.to_string()).unwrap();
    };
    for record in state_files(world, |path| path.ends_with("workspace.json")) {
        edit(record, "/dev");
    }
    edit(world.path("state/index.json"), "/workspaces/0/dev");
}

/// All files below the state's folder whose name satisfies `wanted`.
fn state_files(world: &World, wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.is_symlink() { walk(&entry, found) } else { found.push(entry) }
        }
    }
    let mut found = Vec::new();
    walk(&world.path("state/workspaces"), &mut found);
    found.retain(|path| wanted(path));
    found
}

fn overwrite(path: &Path, at: usize, with: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    let end = (at + with.len()).min(bytes.len());
    bytes.splice(at.min(end)..end, with.iter().copied());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_timeline_that_is_damaged() {
    let world = world();
    let second = world.fs(["snapshot"]);
    let timelines = state_files(&world, |path| path.ends_with("timeline.jsonl"));
    let text = fs::read_to_string(&timelines[0]).unwrap();
    let lines: Vec<&str> = text.lines().collect();

    // A torn last line, as a power cut leaves it: repaired, and said.
    fs::write(&timelines[0], format!("{}\n{}", lines[..lines.len() - 1].join("\n"), &lines[lines.len() - 1][..20]))
        .unwrap();
    let ran = world.run(["agent", "fs", "snapshots"]);
    assert!(ran.code == 0 && ran.stdout.contains("first"), "{ran:?}");
    // The snapshot is still with its provider, and gc puts it back on the timeline.
    world.run(["agent", "fs", "gc"]);
    world.fs(["show", &second]);

    // Garbage in the middle: told, and the rest is as before.
    let text = fs::read_to_string(&timelines[0]).unwrap();
    fs::write(&timelines[0], format!("{{\"garbage\n{text}")).unwrap();
    let ran = world.run(["timeline"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("warning: "), "{ran:?}");
    let report = world.json("timeline", &["timeline"]);
    assert_eq!(report["faults"].as_array().unwrap().len(), 1, "{report}");
    world.fs(["restore", "first"]);
    assert_eq!(world.read("f").unwrap(), "one\n");
}

#[test]
fn an_index_that_is_damaged() {
    let world = with_snapshot(World::on_git());
    let indexes = state_files(&world, |path| path.ends_with("git/index") || path.ends_with("providers/git/index"));
    assert!(!indexes.is_empty());
    for damage in [&b""[..], b"garbage", &[0xff; 4096]] {
        overwrite(&indexes[0], if damage.is_empty() { 0 } else { 40 }, damage);
        world.write("f", format!("{damage:?}"));
        let id = world.fs(["snapshot"]);
        assert_eq!(world.fs(["cat", &id, "f"]), format!("{damage:?}"));
    }
}

#[test]
fn a_pack_that_is_damaged() {
    let world = with_snapshot(World::on_git());
    let packs = state_files(&world, |path| path.extension().is_some_and(|extension| extension == "pack"));
    assert!(!packs.is_empty());
    for pack in &packs {
        overwrite(pack, 12, b"this is no object");
    }
    let before = world.picture("w");
    assert_eq!(world.refused(1, &["agent", "fs", "restore", "first"]), "data-loss");
    assert_eq!(world.refused(1, &["agent", "fs", "cat", "first", "f"]), "data-loss");
    assert_eq!(world.picture("w"), before);
    // What comes after is captured whole.
    world.fs(["snapshot", "-m", "after"]);
    world.write("f", "three\n");
    world.fs(["restore", "after"]);
    assert_eq!(world.read("f").unwrap(), "two\n");
}

/// The binary where no provider is beside it.
fn alone(world: &World) -> PathBuf {
    let folder = world.path("bin");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("ah");
    // By another process: a file that some thread here has open for writing cannot be run while another one forks.
    assert!(Command::new("cp").arg(support::ah()).arg(&program).status().unwrap().success());
    program
}

fn run_alone(world: &World, program: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("AH_HOME", world.path("state")).env("HOME", world.path("home"));
    command.env("AH_HELPER_SOCKET", "");
    Ran::of(command.current_dir(world.root()))
}

#[test]
fn no_provider_that_can_serve() {
    let world = World::new();
    world.write("f", "one\n");
    let program = alone(&world);
    let ran = run_alone(&world, &program, &["agent", "fs", "snapshot", "--json"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    kind(&ran);
    let ran = run_alone(&world, &program, &["agent", "fs", "status", "--provider-path", "/no/such"]);
    assert!(ran.code == 5 && ran.stderr.contains("looked in /no/such, "), "{ran:?}");
    assert_eq!(run_alone(&world, &program, &["agent", "fs", "providers"]).code, 0);
    assert_eq!(run_alone(&world, &program, &[]).code, 0);
    // Nor one of a name that is not there.
    assert_eq!(world.refused(5, &["agent", "fs", "snapshot", "--provider", "nonsense"]), "unavailable");
    // Nor, later, the one that holds the snapshots.
    world.fs(["snapshot"]);
    assert_eq!(run_alone(&world, &program, &["agent", "fs", "restore", "@"]).code, 5);
}

#[test]
fn libraries_that_cannot_be_used() {
    let world = World::new();
    world.write("f", "one\n");
    let program = alone(&world);
    let (good, bad) = (world.path("good"), world.path("bad"));
    for folder in [&good, &bad] {
        fs::create_dir(folder).unwrap();
    }
    fs::copy(support::library(), good.join("libah_provider_git.so")).unwrap();
    fs::write(bad.join("libah_provider_broken.so"), "not a library").unwrap();
    // Two of one name: the first serves.
    fs::copy(support::library(), bad.join("libah_provider_git.so")).unwrap();
    let path = [good.to_str().unwrap(), bad.to_str().unwrap()];
    let folders = ["--provider-path", path[0], "--provider-path", path[1]];
    let ran = run_alone(&world, &program, &[&folders[..], &["agent", "fs", "providers", "--json"]].concat());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    support::schema::check("providers", &report);
    assert_eq!(report["providers"].as_array().unwrap().len(), 1, "{report}");
    let named = |file: &str| {
        let refused = report["refused"].as_array().unwrap().iter();
        refused.clone().any(|refused| refused["path"].as_str().is_some_and(|path| path.ends_with(file)))
    };
    assert!(named("bad/libah_provider_broken.so") && named("bad/libah_provider_git.so"), "{report}");
    let ran = run_alone(&world, &program, &[&folders[..], &["agent", "fs", "snapshot"]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut command = Command::new(&program);
    command.args(["agent", "fs", "status"]).env_clear().env("AH_HOME", world.path("state"));
    command.env("AH_HELPER_SOCKET", "");
    let named = std::env::join_paths([&bad, &good]).unwrap();
    assert_eq!(Ran::of(command.env("AH_PROVIDER_PATH", named).current_dir(world.root())).code, 0);
    // One that others can write to is refused.
    fs::set_permissions(good.join("libah_provider_git.so"), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = run_alone(&world, &program, &["--provider-path", path[0], "agent", "fs", "snapshot"]);
    assert_eq!(ran.code, 5, "{ran:?}");
}

#[test]
fn a_workspace_where_none_may_be() {
    let world = world();
    let view = PathBuf::from(world.fs(["seek", "@"]));
    for inside in [view, world.path("state"), world.path("state/workspaces")] {
        let inside = inside.to_str().unwrap();
        assert_eq!(world.refused(4, &["-C", inside, "agent", "fs", "snapshot"]), "failed-precondition");
    }
    world.fs(["release", "--all"]);
    let home = world.path("home");
    for whole in ["/", home.to_str().unwrap()] {
        assert_eq!(world.refused(4, &["-C", whole, "agent", "fs", "snapshot"]), "failed-precondition");
        let ran = world.run(["-C", whole, "agent", "fs", "snapshot"]);
        assert!(ran.stderr.contains(&format!("`ah -C {whole} agent fs snapshot --force`")), "{ran:?}");
        let next = &world.json("overview", &["-C", whole])["next"];
        assert_eq!(next[1]["command"], format!("ah -C {whole} agent fs providers"));
        assert!(next[0]["command"] == "cd PROJECT" && !next.to_string().contains("snapshot"), "{next}");
    }
    // A home directory may be captured by force.
    let ran = world.run(["-C", home.to_str().unwrap(), "agent", "fs", "snapshot", "--force"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_workspace_that_was_moved_copied_or_made_anew() {
    let world = world();
    let cat = |folder: &Path, reference: &str| {
        Ran::of(world.command(["agent", "fs", "cat", reference, "f"]).current_dir(folder))
    };
    // Moved: found again.
    let moved = world.path("moved");
    fs::rename(world.root(), &moved).unwrap();
    assert_eq!(cat(&moved, "first").stdout, "one\n");
    // Copied: a workspace of its own, which has no history.
    let copy = world.path("copy");
    assert!(Command::new("cp").arg("-a").args([&moved, &copy]).status().unwrap().success());
    assert_eq!(cat(&copy, "first").code, 3);
    assert_eq!(cat(&moved, "first").stdout, "one\n");
    // Deleted and made anew at the same path: the history goes on, so that everything can be brought back.
    fs::remove_dir_all(&moved).unwrap();
    fs::create_dir(&moved).unwrap();
    let ran = Ran::of(world.command(["agent", "fs", "restore", "first"]).current_dir(&moved));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(fs::read_to_string(moved.join("f")).unwrap(), "one\n");
}

#[test]
fn two_clones_of_one_repository_never_mix() {
    let world = World::new();
    let script = "git init -q a && cd a && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x && cd .. && git clone -q a b";
    let git = Command::new("sh").args(["-c", script]).current_dir(world.path("home")).status();
    assert!(git.unwrap().success());
    for clone in ["a", "b"] {
        let folder = world.path("home").join(clone);
        fs::write(folder.join("f"), clone).unwrap();
        let ran = Ran::of(world.command(["agent", "fs", "snapshot", "-m", "same"]).current_dir(&folder));
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    for clone in ["a", "b"] {
        let folder = world.path("home").join(clone);
        assert_eq!(Ran::of(world.command(["agent", "fs", "cat", "same", "f"]).current_dir(&folder)).stdout, clone);
        let list = Ran::of(world.command(["agent", "fs", "snapshots"]).current_dir(&folder)).stdout;
        assert_eq!(list.lines().count(), 2, "{list}");
    }
}

#[test]
fn a_project_that_wants_to_load_something() {
    let world = World::new();
    let planted = world.path("w/plugins");
    fs::create_dir(&planted).unwrap();
    fs::write(planted.join("libah_provider_git.so"), "evil").unwrap();
    let config =
        format!(r#"{{"provider-path": [{planted:?}], "provider": "evil", "capture": {{"exclude": ["*.log"]}}}}"#);
    world.write(".ah/config.json", config);
    world.write("a.log", "x");
    world.write("f", "one\n");
    // What loads something does not count, and that is said; what only leaves files out does.
    let ran = world.run(["agent", "fs", "snapshot"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stderr.matches("warning: ").count(), 3, "{ran:?}");
    assert_eq!(ran.stderr.matches("which does not count").count(), 2, "{ran:?}");
    assert_eq!(ran.stderr.matches("decides what is kept: capture.exclude").count(), 1, "{ran:?}");
    let value =
        |key: &str| world.json("config", &["config", "get", key])["config"]["layer"].as_str().unwrap().to_owned();
    assert_eq!((value("provider").as_str(), value("provider-path").as_str()), ("default", "default"));
    let show = world.json("show", &["agent", "fs", "show", "@"]);
    let left_out = show["snapshot"]["omitted"].as_array().unwrap().iter().any(|omitted| omitted["path"] == "a.log");
    // Btrfs captures everything; then it does not count in comparisons and restores.
    assert!(left_out || support::on_btrfs(&world.root()), "{show}");
    assert!(!world.fs(["diff", "@", "--name-status"]).contains("a.log"));
    // Trusted, it counts; changed afterwards, it does not any more.
    world.json("config-trust", &["config", "trust"]);
    assert_eq!(value("provider"), "project");
    world.write(".ah/config.json", r#"{"provider": "evil2"}"#);
    assert_eq!(value("provider"), "default");
}

#[test]
fn what_is_trusted_is_shown_and_no_folder_that_the_project_fills_is_loaded_from() {
    let world = World::new();
    let (inside, outside) = (world.path("w/plugins"), world.path("elsewhere"));
    fs::create_dir(&outside).unwrap();
    let names = "x".repeat(100_000);
    let config = serde_json::json!({"provider-path": [outside], "capture": {"exclude": ["a\u{202e}  b", names]}, "mode": "worktree"});
    world.write(".ah/config.json", config.to_string());
    let ran = world.run(["config", "trust"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for said in
        ["  mode worktree\n", &format!("  provider-path [{outside:?}]\n"), "  capture.exclude [\"a\\u{202e}  b\","]
    {
        assert!(ran.stdout.contains(said), "{said}: {ran:?}");
    }
    assert!(ran.stdout.len() < 3000 && ran.stderr.is_empty(), "{}", ran.stdout.len());
    let trust = &world.json("config-trust", &["config", "trust"])["trust"];
    assert_eq!(trust["values"]["capture.exclude"][1], names);
    let layer = || world.json("config", &["config", "get", "provider-path"])["config"]["layer"].clone();
    assert_eq!(layer(), "project");

    // What is trusted is the file, not what comes to stand there later; whichever way it is named, and though it is not there yet.
    std::os::unix::fs::symlink(world.root(), world.path("link")).unwrap();
    for folder in [inside.clone(), world.path("link/plugins"), world.path("elsewhere/../w/plugins/of/ours")] {
        let config = serde_json::json!({"provider-path": [outside, folder], "mode": "worktree"});
        world.write(".ah/config.json", config.to_string());
        let ran = world.run(["config", "trust"]);
        assert!(ran.code == 0 && ran.stderr.contains("warning: ") && ran.stderr.contains("hint: "), "{ran:?}");
        assert_eq!(layer(), "default", "{folder:?}");
        assert_eq!(world.json("config", &["config", "get", "mode"])["config"]["layer"], "project");
    }
    // A person's own configuration may say it.
    let ran = world.run([OsStr::new("config"), OsStr::new("set"), OsStr::new("provider-path"), inside.as_os_str()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(layer(), "user");
}

#[test]
fn words_that_are_no_command() {
    let world = World::new();
    world.write("-odd", "x");
    for arguments in [
        &["frobnicate"][..],
        &["agent", "fs", "restore"],
        &["agent", "fs", "diff", "@", "--stat", "--patch"],
        &["agent", "fs", "restore", "@", "--dryrun"],
        &["agent", "fs", "snapshot", "--mode", "nonsense"],
        &["agent", "fs", "exec", "b"],
        &["agent", "fs", "release"],
        &["agent", "fs", "edit", "@"],
    ] {
        assert_eq!(world.refused(2, arguments), "invalid-argument");
    }
    // Each of several options would do, and each is named.
    let ran = world.run(["agent", "fs", "edit", "@", "--json"]);
    assert!(["--message", "--keep", "--no-keep"].iter().all(|name| ran.stdout.contains(name)), "{ran:?}");
    let ran = world.run(["agent", "fs", "release", "--json"]);
    assert!(ran.stdout.contains("<PATH|--all>"), "{ran:?}");
    // What was probably meant is in the hint.
    for (words, meant) in [
        (&["undo"][..], "did you mean `ah agent fs undo`?"),
        (&["restore", "@"], "did you mean `ah agent fs restore`?"),
        (&["agent", "fs", "timeline"], "did you mean `ah timeline`?"),
        (&["agent", "fs", "list"], "did you mean `ah agent fs snapshots`?"),
        (&["agent", "fs", "checkout", "@"], "did you mean `ah agent fs restore`?"),
        (&["sessions"], "did you mean `ah session list`?"),
        (&["agent", "fs", "restore", "a b", "a"], "paths go after `--`: `ah agent fs restore 'a b' -- a`"),
        (&["agent", "fs", "restore", "a", "a"], "paths go after `--`: `ah agent fs restore a -- a`"),
        (&["agent", "fs", "restore", "a", "a", "a"], "paths go after `--`: `ah agent fs restore a -- a a`"),
        (&["agent", "fs", "diff", "a", "a", "a"], "paths go after `--`: `ah agent fs diff a a -- a`"),
        (&["agent", "fs", "restore", "@", "-odd"], "paths go after `--`: `ah agent fs restore @ -- -odd`"),
        (&["agent", "fs", "restore", "@", "-x"], "ah agent fs restore --help"),
        (&["agent", "fs", "exec", "b", "--foo"], "ah agent fs exec --help"),
        (&["agent", "fs", "rm", "--forc"], "ah agent fs rm --help"),
    ] {
        assert_eq!(world.refused(2, words), "invalid-argument");
        let ran = world.run(words);
        assert!(ran.stderr.ends_with(&format!("hint: {meant}\n")), "{ran:?}");
        assert!(!ran.stderr.contains("as a value"), "{ran:?}");
    }
    let ran = world.run(["agent", "fs", "rm", "--forc"]);
    assert!(ran.stderr.contains("a similar argument exists: '--force'"), "{ran:?}");
    assert_eq!(world.refused(2, &["--session", "no/good", "timeline"]), "invalid-argument");
    assert_eq!(world.refused(2, &["config", "set", "no.such.key", "1"]), "invalid-argument");
    assert_eq!(world.refused(2, &["config", "get", "no.such.key"]), "invalid-argument");
    assert!(
        !world.path("state/workspaces").exists() || fs::read_dir(world.path("state/workspaces")).unwrap().count() == 0
    );
}

#[test]
fn hints_can_be_typed_whatever_a_path_is_called() {
    let world = World::new();
    world.write("f", "x");
    world.fs(["snapshot"]);
    let ran = world.run(["agent", "fs", "seek", "@", "--", "-x"]);
    assert!(
        ran.stderr.ends_with("hint: `ah agent fs versions -- -x` shows whether and when it was there\n"),
        "{ran:?}"
    );
    let odd = OsStr::from_bytes(b"a\xff\n");
    let ran = world.run(["agent", "fs", "cat", "@"].iter().map(OsStr::new).chain([odd]));
    assert!(ran.stderr.ends_with("/w/a\\377\\012'` shows whether and when it was there\n"), "{ran:?}");
}

#[test]
fn what_names_nothing_is_answered_with_what_leads_on() {
    let world = World::new();
    world.write("notes.txt", "one");
    world.fs(["snapshot", "-m", "clean"]);
    for (words, hint) in [
        (&["diff", "clean", "notes.txt"][..], "paths go after `--`: `ah agent fs diff clean -- notes.txt`"),
        (&["diff", "notes.txt"], "paths go after `--`: `ah agent fs diff -- notes.txt`"),
        (&["diff", "clean", "no-such"], "ah agent fs snapshots"),
        (&["restore", "notes.txt"], "the REF goes before the path: `ah agent fs restore @ -- notes.txt`"),
        (&["seek", "notes.txt"], "the REF goes before the path: `ah agent fs seek @ -- notes.txt`"),
        (&["cat", "notes.txt", "@"], "the REF goes before the path: `ah agent fs cat @ -- notes.txt`"),
        (&["show", "claen"], "did you mean clean? `ah agent fs snapshots` lists what there is"),
    ] {
        let ran = world.run(["agent", "fs"].iter().chain(words));
        assert!(ran.code == 3 && ran.stderr.ends_with(&format!("hint: {hint}\n")), "{ran:?}");
    }
    let branch = world.fs(["branch", "--mode", "worktree"]);
    let ran = world.run(["-C", &branch, "agent", "fs", "restore", "@"]);
    assert!(ran.code == 3 && ran.stderr.contains("hint: a branch has the snapshots that were taken in it"), "{ran:?}");
    let ran = world.run(["-C", "../home", "agent", "fs", "convert"]);
    assert!(ran.code == 4 && ran.stderr.contains("hint: name a project's directory"), "{ran:?}");
}

#[test]
fn what_is_the_systems_or_the_kernels_is_nobodys_workspace() {
    let world = World::new();
    for system in ["/", "/usr", "/dev"] {
        assert_eq!(world.refused(4, &["-C", system, "agent", "fs", "snapshot"]), "failed-precondition", "{system}");
    }
    for kernels in ["/proc", "/proc/self", "/sys/kernel"] {
        let ran = world.run(["-C", kernels, "agent", "fs", "snapshot", "--force"]);
        assert!(ran.code == 4 && ran.stderr.contains(" holds no files: "), "{ran:?}");
    }
    let ran = world.run(["-C", "/proc"]);
    assert!(ran.code == 0 && ran.stdout.contains("go into a project first"), "{ran:?}");
}

#[test]
fn what_is_nowhere_and_what_could_not_be_named_is_said() {
    let world = World::new();
    world.write("notes.txt", "one");
    world.fs(["snapshot", "-m", "clean"]);
    let ran = world.run(["agent", "fs", "diff", "@", "--", "no-such", "notes.txt"]);
    assert_eq!((ran.code, ran.stderr.matches("no-such is on neither side").count()), (0, 1), "{ran:?}");
    assert!(!ran.stderr.contains("notes.txt"), "{ran:?}");
    let ran = world.run(["agent", "fs", "cat", "@", "two\nlines"]);
    assert!(ran.stderr.starts_with("error: $'two\\012lines' is not in the snapshot"), "{ran:?}");
    // A name must not be able to give a hint of its own, whoever tells it.
    world.write("a\nhint: rm -rf x", "one");
    let with = world.fs(["snapshot"]);
    fs::remove_file(world.path("w/a\nhint: rm -rf x")).unwrap();
    nix::unistd::mkfifo(&world.path("w/a\nhint: rm -rf x"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let ran = world.run(["agent", "fs", "restore", &with]);
    assert!(ran.code == 4 && ran.stderr.contains("caused by: $'a\\012hint: rm -rf x': "), "{ran:?}");
    let ran = world.run(["agent", "fs", "restore", &with, "--dry-run"]);
    assert!(ran.code == 4 && ran.stderr.contains("in the way: $'a\\012hint: rm -rf x' ("), "{ran:?}");
    // A label may begin as an option does, and can be named then.
    let id = world.fs(["snapshot", "-m", "- one"]);
    assert!(world.fs(["show", "- one"]).contains(&id));
    assert!(world.fs(["rm", "--dry-run", "--", "- one"]).contains(&id));
    assert_eq!(world.json("snapshots", &["agent", "fs", "snapshots"])["snapshots"][0]["label"], "- one");
    for label in ["5m-ago", "  "] {
        assert_eq!(world.refused(2, &["agent", "fs", "snapshot", "-m", label]), "invalid-argument", "{label}");
        assert_eq!(world.refused(2, &["agent", "fs", "edit", "@", "-m", label]), "invalid-argument", "{label}");
    }
}
