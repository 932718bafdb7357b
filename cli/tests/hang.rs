//! A provider that hangs is named, and does not take the command with it; one that takes it is named, too.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod support;

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Ran, World};

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

#[test]
fn a_library_that_ends_the_process_is_named_and_that_is_no_success() {
    let world = World::new();
    world.write("f", "x");
    let folder = ah_test_plugins::folder(&["quits"]);
    let words = ["--provider-path", folder.path().to_str().unwrap(), "--provider", "quits"];
    for command in [&["agent", "fs", "snapshot"][..], &["agent", "fs", "snapshot", "--json"]] {
        let ran = world.run(words.iter().chain(command));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stderr.starts_with("error: the provider quits ("), "{ran:?}");
        assert!(
            ran.stderr.contains("/libah_provider_quits.so) ended the process in its operation snapshot\n"),
            "{ran:?}"
        );
        assert!(ran.stderr.lines().any(|line| line.starts_with("hint: ")), "{ran:?}");
    }
    // Whoever ends as usual is not meant.
    assert_eq!(world.run(words.iter().chain(&["agent", "fs", "status"])).code, 0);
    world.fs(["snapshot"]);
}

#[test]
fn a_library_that_ends_the_process_while_it_is_loaded_is_named_and_tried_again() {
    for place in ["constructor", "initialiser"] {
        let world = World::on_git();
        world.write("f", "x");
        let folder = ah_test_plugins::folder(&["flees"]);
        let words = ["--provider-path", folder.path().to_str().unwrap(), "--provider", "flees"];
        let run = |flee: bool, command: &[&str]| {
            let mut command = world.command(words.iter().chain(command));
            Ran::of(if flee { command.env("AH_TEST_FLEE", place) } else { &mut command })
        };
        // Tried, and remembered to be fine.
        assert_eq!(run(false, &["agent", "fs", "snapshot"]).code, 0);
        let ran = run(true, &["agent", "fs", "snapshot", "--json"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(
            ran.stderr.starts_with("error: the plugin ") && ran.stderr.contains("/libah_provider_flees.so "),
            "{ran:?}"
        );
        assert!(ran.stderr.contains(" ended the process while it was loaded\nhint: "), "{ran:?}");
        // Now it is known what it does.
        let ran = run(true, &["agent", "fs", "snapshot"]);
        assert!(ran.code == 5 && ran.stderr.contains("ends the process that loads it"), "{place}: {ran:?}");
    }
}

#[test]
fn what_a_library_would_do_when_all_is_done_does_not_run() {
    let world = World::on_git();
    world.write("f", "x");
    let folder = ah_test_plugins::folder(&["lingers"]);
    let words = ["--provider-path", folder.path().to_str().unwrap(), "--provider", "lingers"];
    let ran = world.run(words.iter().chain(&["agent", "fs", "snapshot"]));
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 1), "{ran:?}");
    let ran = world.run(words.iter().chain(&["agent", "fs", "snapshot", "--json"]));
    assert!(ran.code == 0 && ran.stdout.ends_with("}\n"), "{ran:?}");
    // What failed ends by its own code, too.
    let ran = world.run(words.iter().chain(&["agent", "fs", "cat", "@", "missing"]));
    assert!(ran.code != 0 && ran.stderr.starts_with("error: ") && ran.stderr.contains("hint: "), "{ran:?}");
}

#[test]
fn a_provider_that_is_short_of_room_says_itself_where() {
    let world = World::on_git();
    world.write("f", "x");
    let folder = ah_test_plugins::folder(&["cramped"]);
    let words = ["--provider-path", folder.path().to_str().unwrap(), "--provider", "cramped"];
    assert_eq!(world.run(words.iter().chain(&["agent", "fs", "snapshot"])).code, 0);
    let ran = world.run(words.iter().chain(&["agent", "fs", "cat", "@", "f"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("hint: enlarge the pool\n") && !ran.stderr.contains("output"), "{ran:?}");
}

/// More than what is between a program and who reads its output holds, bytes.
const MUCH: usize = 8 << 20;

#[test]
fn who_reads_slowly_gets_all_of_a_file() {
    World::each(|world| {
        world.write("much", vec![b'x'; MUCH]);
        world.fs(["snapshot"]);
        let words = ["--hang-limit", "3", "agent", "fs", "cat", "@", "much"];
        let mut child = world.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut [0; 1000]).unwrap();
        std::thread::sleep(Duration::from_secs(7));
        let mut all = Vec::new();
        output.read_to_end(&mut all).unwrap();
        let ran = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), all.len()), (Some(0), MUCH - 1000), "{said}");
    });
}

#[test]
fn ctrl_c_is_answered_while_nobody_reads() {
    let world = World::on_git();
    world.write("much", vec![b'x'; MUCH]);
    world.fs(["snapshot"]);
    let command = ["agent", "fs", "cat", "@", "much"];
    let mut child = world.command(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    let began = Instant::now();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(130), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(began.elapsed() < Duration::from_secs(60));
}
