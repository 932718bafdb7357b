//! Being killed, and failing calls, at every durable step of snapshot, restore, rm and gc.
//!
//! Afterwards each snapshot that is listed holds byte for byte what it was taken of, a restore can be finished and can be taken
//! back, and nothing that is not listed is left once gc has run.
//!
//! All places together take minutes; by default a sample of each operation's is tried, another one each time the code
//! changes its calls. `AH_TEST_FULL` (`scripts/test --full`) tries all.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
#[path = "../support/mod.rs"]
mod support;

use std::process::Command;

use bench::{Bench, Point, Strike};

/// So many places are tried of each operation, unless all are.
const SAMPLE: usize = 16;

/// strace is needed; without it this fails where nothing may be skipped.
fn strace() -> bool {
    let there = Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success());
    if !there {
        support::skip("needs strace (apt-get install strace), and to be allowed to trace");
    }
    there
}

/// A sample that has something of every kind of call.
fn sample(points: Vec<Point>, most: usize) -> Vec<Point> {
    if support::full() || points.len() <= most {
        return points;
    }
    (0..most).map(|n| points[n * points.len() / most]).collect()
}

#[test]
fn snapshot() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    bench.fs(&["snapshot"]);
    bench.change();
    let points = bench.points(&["snapshot"]);
    let points = sample(points, SAMPLE);
    let count = points.len();
    for (at, point) in points.into_iter().enumerate() {
        bench.change();
        let now = bench.now();
        let ran = bench.struck(&["snapshot"], point, Strike::Kill);
        bench.check(&[], at + 1 == count);
        if let Some(ran) = ran {
            assert_eq!(ran.code, 0, "{point:?}: {ran:?}");
            assert!(bench.listed().contains(&ran.stdout.trim().to_owned()), "{point:?}: {ran:?}");
        }
        assert_eq!(bench.now(), now, "{point:?}: the workspace changed");
    }
}

#[test]
fn restore_and_undo() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    let target = bench.fs(&["snapshot"]);
    let wanted = bench.now();
    bench.change();
    let points = bench.points(&["restore", &target]);
    assert_eq!(bench.now(), wanted);
    let points = sample(points, 2 * SAMPLE);
    let count = points.len();
    let (mut resumed, mut undone) = (0, 0);
    for (at, point) in points.into_iter().enumerate() {
        bench.change();
        let present = bench.now();
        bench.struck(&["restore", &target], point, Strike::Kill);
        let interrupted = bench.interrupted();
        if at.is_multiple_of(2) {
            bench.fs(&["restore", &target]);
            assert_eq!(bench.now(), wanted, "{point:?}: the restore was not finished");
            assert!(!bench.interrupted(), "{point:?}");
            bench.fs(&["undo"]);
            assert_eq!(bench.now(), present, "{point:?}: a finished restore was not taken back");
            bench.fs(&["undo"]);
            assert_eq!(bench.now(), wanted, "{point:?}: the undo was not taken back");
            resumed += usize::from(interrupted);
        } else if interrupted || bench.now() == wanted {
            bench.fs(&["undo"]);
            assert_eq!(bench.now(), present, "{point:?}: an interrupted restore was not taken back");
            assert!(!bench.interrupted(), "{point:?}");
            undone += usize::from(interrupted);
        } else {
            bench.nothing_of_ours_in_the_workspace();
            assert_eq!(bench.now(), present, "{point:?}: half a restore that nobody reports");
        }
        bench.nothing_of_ours_in_the_workspace();
        bench.check(&[], at + 1 == count);
    }
    // How many of a sample fall between the first and the last change is chance, but both ways must have been gone.
    assert!(resumed > 0 && undone > 0, "{resumed} and {undone}: nothing was interrupted");
}

#[test]
fn undo_interrupted() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    let target = bench.fs(&["snapshot"]);
    let wanted = bench.now();
    bench.change();
    bench.fs(&["restore", &target]);
    let points = bench.points(&["undo"]);
    let mut interrupted = 0;
    for point in sample(points, SAMPLE) {
        bench.change();
        let present = bench.now();
        bench.fs(&["restore", &target]);
        bench.struck(&["undo"], point, Strike::Kill);
        // Whatever it came to, the snapshot before the restore is there, and leads back.
        if bench.interrupted() {
            interrupted += 1;
            bench.fs(&["undo"]);
            assert_eq!(bench.now(), present, "{point:?}: an interrupted undo was not finished");
            assert!(!bench.interrupted(), "{point:?}");
            bench.fs(&["undo"]);
            assert_eq!(bench.now(), wanted, "{point:?}: an interrupted undo was not taken back");
        }
        bench.nothing_of_ours_in_the_workspace();
        let now = bench.now();
        assert!(now == wanted || now == present, "{point:?}: half an undo that nobody reports");
        bench.check(&[], false);
    }
    assert!(interrupted > 0, "no undo was interrupted");
}

#[test]
fn rm() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    bench.fs(&["snapshot"]);
    bench.change();
    let first = bench.fs(&["snapshot"]);
    let points = bench.points(&["rm", &first]);
    bench.check(&[first], false);
    for point in sample(points, SAMPLE) {
        bench.change();
        let doomed = bench.fs(&["snapshot"]);
        bench.change();
        bench.fs(&["snapshot"]);
        bench.struck(&["rm", &doomed], point, Strike::Kill);
        bench.check(&[doomed], false);
    }
    bench.check(&[], true);
}

#[test]
fn gc() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    let mess = |bench: &mut Bench| {
        let mut removed = Vec::new();
        for n in 0..3 {
            bench.change();
            let id = bench.fs(&["snapshot"]);
            if n == 1 {
                removed.push(id);
            }
        }
        // What a kill leaves, so that there is something to do.
        bench.change();
        bench.struck(&["snapshot"], Point { call: "rename", nth: 1 }, Strike::Kill);
        let ids: Vec<&str> = removed.iter().map(String::as_str).collect();
        bench.fs(&[&["rm"], ids.as_slice()].concat());
        removed
    };
    let removed = mess(&mut bench);
    let points = bench.points(&["gc"]);
    bench.check(&removed, false);
    let points = sample(points, SAMPLE);
    let count = points.len();
    for (at, point) in points.into_iter().enumerate() {
        let removed = mess(&mut bench);
        bench.struck(&["gc"], point, Strike::Kill);
        bench.check(&removed, at + 1 == count);
    }
}

#[test]
fn failing_calls() {
    if !strace() {
        return;
    }
    let mut bench = Bench::new();
    let target = bench.fs(&["snapshot"]);
    let wanted = bench.now();
    bench.change();
    let points = bench.points(&["restore", &target]);
    let strikes = [Strike::Fail("EIO"), Strike::FailFromThenOn("ENOSPC"), Strike::Fail("ENOSPC")];
    for (at, point) in sample(points, SAMPLE).into_iter().enumerate() {
        let strike = strikes[at % strikes.len()];
        bench.change();
        let present = bench.now();
        let snapshot = bench.struck(&["snapshot"], point, strike);
        assert_eq!(bench.now(), present, "{point:?} {strike:?}");
        if let Some(ran) = snapshot.filter(|ran| ran.code == 0) {
            assert!(bench.listed().contains(&ran.stdout.trim().to_owned()), "{point:?} {strike:?}: {ran:?}");
        }
        let restore = bench.struck(&["restore", &target], point, strike);
        let told = restore.is_some_and(|ran| ran.code != 0);
        let half = bench.now() != wanted && bench.now() != present;
        assert!(!half || told || bench.interrupted(), "{point:?} {strike:?}: half a restore, and nobody says so");
        bench.fs(&["restore", &target]);
        assert_eq!(bench.now(), wanted, "{point:?} {strike:?}");
        bench.nothing_of_ours_in_the_workspace();
        bench.check(&[], false);
    }
    bench.check(&[], true);
}
