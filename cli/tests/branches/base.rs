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
    let makes_another = format!("`ah -C {} agent fs branch` makes another", world.root().display());
    assert!(said(&["diff", "@"]).contains(&makes_another));
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
