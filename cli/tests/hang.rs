//! A provider that hangs is named, and does not take the command with it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::time::{Duration, Instant};

use support::World;

#[test]
fn a_call_that_hangs_ends_the_command_with_5() {
    let world = World::new();
    world.write("f", "x");
    let folder = ah_test_plugins::folder(&["hangs"]);
    let began = Instant::now();
    let words = ["--provider-path", folder.path().to_str().unwrap(), "--provider", "hangs", "--hang-limit", "1"];
    let ran = world.run(words.iter().chain(&["agent", "fs", "snapshot"]));
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("hangs") && ran.stderr.contains("snapshot"), "{ran:?}");
    assert!(ran.stderr.lines().any(|line| line.starts_with("hint: ")), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(100));
    // Others go on.
    world.fs(["snapshot"]);
}
