//! Every command's JSON, checked against the shape that `docs/schema` documents, with names that are not UTF-8 in it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;
use support::World;

/// A workspace with everything in it that has a shape of its own.
fn world() -> World {
    let world = World::new();
    world.write("f", "one\n");
    world.write(OsStr::from_bytes(b"caf\xe9"), "not UTF-8 in the name\n");
    world.write("binary", b"\xff\0");
    world.write(".gitignore", "target\n");
    world.write("target/large", "built");
    world.fs(["snapshot", "-m", "first"]);
    world.write("f", "two\n");
    fs::remove_file(world.root().join(OsStr::from_bytes(b"caf\xe9"))).unwrap();
    world
}

#[test]
fn status_and_overview() {
    let world = world();
    world.fs(["seek", "@"]);
    world.fs(["branch", "@", "--name", "b"]);
    let status = &world.json("status", &["agent", "fs", "status"])["status"];
    let serves = if support::on_btrfs(&world.root()) { "btrfs" } else { "git" };
    assert_eq!(status["provider"], serves);
    assert_eq!(status["latest"]["label"], "first");
    assert_eq!(status["leases"].as_array().unwrap().len(), 1);
    assert_eq!(status["leases"][0]["snapshot"], status["latest"]["id"]);
    let overview = world.json("overview", &[]);
    assert_eq!(overview["next"].as_array().unwrap().len(), 3);
    // The commands that it names are there.
    for next in overview["next"].as_array().unwrap() {
        let words = next["command"].as_str().unwrap().split(' ').skip(1).take_while(|word| !word.contains('@'));
        let ran = world.run(words.chain(["--help"]));
        assert_eq!(ran.code, 0, "{next}");
    }
    world.fs(["release", "--all"]);
}

#[test]
fn what_the_overview_offers_can_be_done() {
    let works = |world: &World| {
        for next in world.json("overview", &[])["next"].as_array().unwrap() {
            let ran = world.run(next["command"].as_str().unwrap().split(' ').skip(1));
            assert_eq!(ran.code, 0, "{next}: {ran:?}");
        }
    };
    // Before the first snapshot, and after it.
    let world = World::new();
    works(&world);
    works(&world);
    // A branch's is one that `@` does not mean.
    let world = World::new();
    world.write("f", "one");
    world.fs(["branch", "--name", "b", "--mode", "worktree"]);
    works(&world);
}

#[test]
fn a_provider_that_is_asked_for_and_not_there_is_named_by_status() {
    let world = World::new();
    world.run(["config", "set", "provider", "nosuch"]);
    let ran = world.run(["agent", "fs", "status"]);
    assert!(ran.code == 5 && ran.stderr.contains("the provider nosuch is not there"), "{ran:?}");
}

#[test]
fn snapshots() {
    let world = world();
    let taken = world.json("snapshot", &["agent", "fs", "snapshot", "-m", "second"]);
    assert_eq!(taken["workspace"], world.root().to_str().unwrap());
    let same = world.json("snapshot", &["agent", "fs", "snapshot", "--instant"]);
    if same["snapshot"]["tree"].is_string() {
        assert_eq!(same["snapshot"]["equal_to"], taken["snapshot"]["id"]);
    }
    let list = world.json("snapshots", &["agent", "fs", "snapshots", "-n", "2"]);
    assert_eq!(list["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(list["snapshots"][0]["id"], same["snapshot"]["id"], "the newest first");
    let show = world.json("show", &["agent", "fs", "show", "second"]);
    let left_out = show["snapshot"]["omitted"].as_array().unwrap().iter().any(|omitted| omitted["path"] == "target");
    assert_eq!(left_out, world.can("applies-policy"), "{show}");
    world.json("snapshot", &["agent", "fs", "edit", "second", "--keep", "-m", "renamed"]);
    world.json("rm", &["agent", "fs", "rm", "--dry-run", "first"]);
    world.json("prune", &["agent", "fs", "prune", "keep-last=1", "--dry-run"]);
    world.json("gc", &["agent", "fs", "gc"]);
    world.json("timeline", &["timeline"]);
    world.json("session-list", &["session", "list"]);
}

#[test]
fn differences() {
    let world = world();
    let diff = world.json("diff", &["agent", "fs", "diff", "@", "--stat"]);
    let changes = diff["diff"]["changes"].as_array().unwrap();
    assert_eq!(changes[0]["path"], json!({"bytes": "636166e9", "text": "caf\u{fffd}"}));
    assert_eq!(diff["stat"][1], json!({"path": "f", "added": 1, "deleted": 1}));
    assert_eq!(diff["diff"]["to"], "workspace");
    let patch = world.json("diff", &["agent", "fs", "diff", "@", "--patch"]);
    assert!(patch["patch"].as_str().unwrap().contains("-one\n+two\n"), "{patch}");
    world.json("diff", &["agent", "fs", "diff", "@", "@"]);
}

#[test]
fn views_and_files() {
    let world = world();
    let seek = world.json("seek", &["agent", "fs", "seek", "@"]);
    assert!(seek["lease"]["path"].as_str().unwrap().starts_with(world.path("state").to_str().unwrap()));
    world.json("release", &["agent", "fs", "release", "--all"]);
    assert_eq!(world.json("cat", &["agent", "fs", "cat", "@", "f"])["text"], "one\n");
    assert_eq!(world.json("cat", &["agent", "fs", "cat", "@", "binary"])["bytes"], "ff00");
    let versions = world.json("versions", &["agent", "fs", "versions", "f"]);
    assert_eq!(versions["versions"].as_array().unwrap().len(), 1);
    // Too much to be of use so.
    fs::File::create(world.root().join("large")).unwrap().set_len((32 << 20) + 1).unwrap();
    let large = world.fs(["snapshot"]);
    let ran = world.run(["agent", "fs", "cat", "--json", &large, "large"]);
    assert!(ran.code == 1 && ran.stdout.contains("\"resource-exhausted\""), "{}", ran.stderr);
    assert_eq!(world.run(["agent", "fs", "cat", &large, "large"]).stdout.len(), (32 << 20) + 1);
}

#[test]
fn restore_and_undo() {
    let world = world();
    let plan = world.json("restore", &["agent", "fs", "restore", "@", "--dry-run"]);
    assert!(plan["restore"]["safety"].is_null() && plan["restore"]["dry_run"] == true, "{plan}");
    let done = world.json("restore", &["agent", "fs", "restore", "@"]);
    assert_eq!(done["restore"]["safety"]["kind"], "safety");
    world.json("restore", &["agent", "fs", "undo"]);
    world.json("timeline", &["timeline"]);
}

#[test]
fn branches() {
    let world = world();
    let made = world.json("branch", &["agent", "fs", "branch", "@", "--name", "b"]);
    assert_eq!(made["branch"]["state"], "ready");
    world.json("branches", &["agent", "fs", "branches"]);
    let removed = world.json("rm", &["agent", "fs", "rm", "--force", "b"]);
    assert_eq!(removed["branches"][0]["name"], "b");
}

#[test]
fn configuration_and_providers() {
    let world = world();
    world.json("config", &["config", "set", "provider", "git"]);
    assert_eq!(world.json("config", &["config", "get", "provider"])["config"]["value"], "git");
    assert_eq!(world.json("config", &["config", "unset", "provider"])["config"]["layer"], "default");
    world.json("config-list", &["config", "list"]);
    world.write(".ah/config.json", r#"{"provider": "nonsense"}"#);
    assert_eq!(world.json("config-trust", &["config", "trust"])["trust"]["trusted"], true);
    assert_eq!(world.json("config-trust", &["config", "trust", "--revoke"])["trust"]["trusted"], false);
    let providers = world.json("providers", &["agent", "fs", "providers"]);
    assert!(providers["providers"].as_array().unwrap().iter().any(|provider| provider["name"] == "git"));
}

#[test]
fn conformance_report() {
    let world = World::new();
    let library = support::library();
    let report =
        world.json("check", &["agent", "fs", "check", library.to_str().unwrap(), "--only", "answers.describe"]);
    assert_eq!(report["provider"]["name"], "git");
}

#[test]
fn a_workspace_that_was_adopted() {
    let world = world();
    // What a move to another filesystem amounts to: another directory, and the old one is gone.
    let (old, new) = (world.root(), world.path("elsewhere").join(world.root().file_name().unwrap()));
    fs::create_dir(world.path("elsewhere")).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").args([&old, &new]).status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(&old).unwrap();
    // Whoever asks there how things stand hears of it before anything is captured anew.
    let overview = support::Ran::of(world.command::<&str>([]).current_dir(&new));
    assert!(overview.stdout.contains(&format!("\n  ah agent fs adopt {}", old.display())), "{overview:?}");
    let ran =
        support::Ran::of(world.command(["agent", "fs", "adopt", "--json", old.to_str().unwrap()]).current_dir(&new));
    assert_eq!(ran.code, 0, "{ran:?}");
    support::schema::check("adopt", &serde_json::from_str(&ran.stdout).unwrap());
    let ran = support::Ran::of(world.command(["agent", "fs", "cat", "first", "f"]).current_dir(&new));
    assert_eq!(ran.stdout, "one\n", "{ran:?}");
}

#[test]
fn a_helper_that_does_not_serve_is_told_where_providers_are() {
    let world = world();
    let socket = world.path("ahd.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    // It hangs up on everybody; as a user's, it is not to be trusted.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let named = socket.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let ran = support::Ran::of(world.command(arguments).env("AH_HELPER_SOCKET", &socket));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    };
    for command in ["status", "providers"] {
        let ran = run(&["agent", "fs", command]);
        assert!(ran.stderr.contains(named), "{command}: {ran:?}");
    }
    let ran = run(&["agent", "fs", "providers", "--json"]);
    let value = serde_json::from_str(&ran.stdout).unwrap();
    support::schema::check("providers", &value);
    assert_eq!((value["helper"]["path"].as_str(), ran.stderr.as_str()), (Some(named), ""));
    assert!(value["helper"]["reason"].as_str().unwrap().contains(named), "{value}");
    let ran = run(&["agent", "fs", "status", "--json"]);
    let value = serde_json::from_str(&ran.stdout).unwrap();
    support::schema::check("status", &value);
    assert!(value["notices"].as_array().unwrap().iter().any(|notice| notice["kind"] == "helper"), "{value}");
}
