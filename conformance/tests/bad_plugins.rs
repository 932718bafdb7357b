//! `check` against plugins that are bad, each in its own way: it survives all of them, and names the fault.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use ah_conformance::{Options, Outcome, Report, check};
use ah_test_plugins::library;

fn report(name: &str, only: &[&str]) -> Report {
    // One at a time, so that it is certain how many are tried before the rest is not.
    let mut options = Options { limit: Duration::from_secs(5), jobs: 1, ..common::options() };
    options.only = only.iter().map(|&part| part.to_owned()).collect();
    let report = check(common::child(), &library(name), &options, &mut |_| {});
    println!("{}", report.to_text(false));
    report
}

fn checked(name: &str, only: &[&str]) -> Report {
    let report = report(name, only);
    assert!(!report.ok, "{name} is bad, but passed");
    assert_eq!(report.exit_status(), 1);
    report
}

/// The plugin cannot be used at all; the report says why, in these words, and names the file.
fn must_not_load(name: &str, why: &str) {
    let report = checked(name, &[]);
    let fault = report.fault.expect("a fault");
    assert!(fault.contains(why), "{fault:?} does not say {why:?}");
    assert!(fault.contains(&format!("plugin_{name}")), "{fault:?} does not name the file");
    assert!(report.cases.is_empty());
}

#[test]
fn what_fails_at_loading_is_named() {
    must_not_load("crashes", "crashes while it is loaded");
    must_not_load("exits", "ends the process that loads it");
    must_not_load("not_ours", "not a provider plugin");
    must_not_load("other_abi", "of the plugin ABI");
    must_not_load("other_layout", "another layout");
    must_not_load("init_fails", "initialiser failed");
    must_not_load("init_panics", "it panicked: no moon at all");
}

#[test]
fn no_library_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("plugin_text.so");
    std::fs::write(&text, "not a library").unwrap();
    for path in [text, dir.path().join("plugin_missing.so"), dir.path().to_owned()] {
        let report = check(common::child(), &path, &common::options(), &mut |_| {});
        let fault = report.fault.clone().expect("a fault");
        assert!(!report.ok && fault.contains(&*path.to_string_lossy()), "{fault}");
    }
}

#[test]
fn a_panic_is_a_defect() {
    let report = checked("panics", &["answers.given-back", "answers.describe"]);
    for case in &report.cases {
        let Outcome::Failed { message, .. } = &case.outcome else { panic!("{case:?} should fail") };
        assert!(message.contains("panicked"), "{message}");
    }
}

#[test]
fn a_hang_is_killed_and_the_rest_not_waited_for() {
    let report = checked("hangs", &["exact.", "immutable."]);
    let messages: Vec<_> = report
        .cases
        .iter()
        .filter_map(|case| match &case.outcome {
            Outcome::Failed { message, .. } => Some(message.as_str()),
            _ => None,
        })
        .collect();
    assert!(messages[0].contains("snapshot, called") && messages[0].contains("did not return"), "{}", messages[0]);
    assert_eq!(messages.iter().filter(|message| message.contains("did not return")).count(), 3, "{messages:?}");
    assert!(messages.last().unwrap().contains("not tried"), "{messages:?}");
    assert_eq!(children_of("plugin_hangs.so"), 0, "a child is left behind");
}

#[test]
fn a_lie_is_found() {
    let report = checked("lies", &["exact.contents", "exact.names"]);
    for case in &report.cases {
        assert!(matches!(case.outcome, Outcome::Failed { .. }), "{case:?} should fail");
    }
}

/// A few bytes of an answer may be many in memory, and that is this process's.
#[test]
fn a_flood_is_not_taken_in() {
    let report = checked("floods", &["answers.given-back"]);
    let too_large = |case: &ah_conformance::CaseReport| match &case.outcome {
        Outcome::Failed { message, .. } => message.contains("too large"),
        _ => false,
    };
    assert!(report.cases.iter().any(too_large), "{:?}", report.cases);
}

/// One operation older: what it has is tested. That what it lacks reads as unsupported is `ah-host`'s to test.
#[test]
fn an_older_plugin_is_used() {
    let report = report("older", &["answers.describe", "convert.busy"]);
    let outcome = |id: &str| report.cases.iter().find(|case| case.id == id).map(|case| case.outcome.clone()).unwrap();
    assert_eq!(outcome("answers.describe"), Outcome::Passed);
    assert!(matches!(outcome("convert.busy"), Outcome::Skipped { .. }), "{:?}", outcome("convert.busy"));
}

/// Whole runs, to see that nothing a plugin does in some later case brings the suite down.
#[test]
fn whole_runs_end() {
    for name in ["lies", "panics"] {
        let report = checked(name, &[]);
        assert!(report.fault.is_none() && report.cases.len() > 100, "{:?}", report.summary);
    }
}

/// Processes that have loaded this library, within the few seconds in which they end by themselves.
fn children_of(library: &str) -> usize {
    let loads = |dir: &std::fs::DirEntry| {
        let arguments = std::fs::read(dir.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(library)
    };
    let count = || std::fs::read_dir("/proc").unwrap().flatten().filter(loads).count();
    let start = Instant::now();
    while count() > 0 && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(100));
    }
    count()
}
