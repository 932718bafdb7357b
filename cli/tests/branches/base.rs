//! A branch, and the snapshot that it grows from: what is said where that is gone, or was never there.

use super::support::World;

#[test]
fn who_asks_what_was_done_is_not_sent_in_a_circle() {
    let world = World::new();
    world.write("f", "one");
    let base = world.fs(["snapshot"]);
    let branch = world.fs(["branch", "@", "--name", "b"]);
    let said = |words: &[&str]| {
        let ran = world.run([&["-C", &branch, "agent", "fs"], words].concat());
        assert_eq!(ran.code, 3, "{ran:?}");
        ran.stderr
    };
    // What it began with is had by the command that is named.
    std::fs::remove_file(std::path::Path::new(&branch).join("f")).unwrap();
    let begun = format!("`ah -C {} agent fs seek {base}`", world.root().display());
    for words in [&["diff", "@"][..], &["restore", "@"], &["restore", &base], &["cat", "before", "f"], &["seek", "@"]] {
        assert!(said(words).contains(&begun), "{words:?}: {}", said(words));
    }
    world.fs(["-C", &branch, "snapshot", "-m", "own"]);
    assert!(said(&["cat", &base, "f"]).contains(&begun), "{}", said(&["cat", &base, "f"]));
    assert!(!said(&["cat", "before", "f"]).contains(&begun), "{}", said(&["cat", "before", "f"]));
    let words = begun.trim_matches('`').split(' ').skip(1);
    let view = world.run(words).stdout;
    assert_eq!(std::fs::read_to_string(std::path::Path::new(view.trim_end()).join("f")).unwrap(), "one");
    world.fs(["release", "--all"]);
    world.fs(["-C", &branch, "rm", "own"]);
    world.fs(["rm", "--force", &base]);
    let snapshot = format!("`ah -C {branch} agent fs snapshot`");
    assert!(said(&["diff"]).contains(&snapshot), "{}", said(&["diff"]));
    assert!(!said(&["diff", "@"]).contains("agent fs diff"), "{}", said(&["diff", "@"]));
    world.fs(["-C", &branch, "snapshot"]);
    assert!(said(&["diff"]).contains("agent fs diff @"), "{}", said(&["diff"]));
    world.fs(["-C", &branch, "diff", "@"]);
}

#[test]
fn a_name_in_the_place_of_a_ref_is_told_where_it_goes() {
    let world = World::new();
    let said = || world.run(["agent", "fs", "branch", "retry"]).stderr;
    let hint = "`ah agent fs branch --name retry`";
    assert!(said().contains(hint), "{}", said());
    world.write("f", "one");
    world.fs(["snapshot"]);
    assert!(said().contains(hint), "{}", said());
    world.fs(["branch", "--name", "retry", "--mode", "worktree"]);
    // What else it may have been is told first.
    world.fs(["snapshot", "-m", "retried"]);
    let near = world.run(["agent", "fs", "branch", "retride"]).stderr;
    assert!(near.contains("did you mean retried?") && near.contains("--name retride"), "{near}");
    let nowhere = world.run(["agent", "fs", "branch", "retried", "--at", "missing/x"]).stderr;
    assert!(nowhere.contains("hint: mkdir -p") && !nowhere.contains("--name"), "{nowhere}");
    // A time is none.
    assert!(!world.run(["agent", "fs", "branch", "5h-ago"]).stderr.contains("--name"));
}
