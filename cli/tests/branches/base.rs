//! A branch, and the snapshot that it grew from: that is gone.

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
