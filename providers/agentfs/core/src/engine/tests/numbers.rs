//! No number is given out twice, whatever becomes of the log.

use std::fs::{File, remove_file};

use super::full::in_another_boot;
use super::*;

fn logs(place: &Place) -> Vec<PathBuf> {
    let logs = std::fs::read_dir(place.store().join("log")).unwrap().map(|log| log.unwrap().path());
    logs.filter(|log| log.extension().is_some_and(|kind| kind == "log")).collect()
}

/// What is given out next: line, epoch and snapshot, of a base and a branch. The higher ones of both.
fn given(engine: &Arc<Engine>) -> [u64; 3] {
    let (snapshot, base) = engine.base(b"", true).unwrap();
    let line = engine.branch(snapshot, b"").unwrap();
    let snapshot = engine.snapshot(line, b"").unwrap();
    let epoch = read_lock(&engine.state).lines[&line].epoch;
    assert!(line > base);
    [line.into(), epoch, snapshot]
}

/// The lowest numbers that are given out now are higher than all of those.
fn are_behind(place: &Place, before: [u64; 3], what: &str) -> [u64; 3] {
    let engine = place.open();
    let (snapshot, line) = engine.base(b"", true).unwrap();
    let epoch = read_lock(&engine.state).snapshots[&snapshot].epoch;
    let now = [line.into(), epoch, snapshot];
    assert!(now.iter().zip(before).all(|(now, before)| *now > before), "{what}: {now:?} is not behind {before:?}");
    given(&engine)
}

#[test]
fn what_a_power_cut_takes_had_numbers_that_nothing_else_gets() {
    // Nothing of it is on the disk but the beginning of the log; some; all that a mark covers.
    for part in [0, 1, 2, 3] {
        let place = Place::new();
        let engine = place.open();
        given(&engine);
        engine.sync().unwrap();
        let before = given(&engine);
        drop(engine);
        in_another_boot(&place);
        let log = logs(&place).pop().unwrap();
        let bytes = std::fs::read(&log).unwrap();
        let header = 8 + u64::from(u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        let cut = header + (bytes.len() as u64 - header) * part / 3;
        File::options().write(true).open(&log).unwrap().set_len(cut).unwrap();
        let again = are_behind(&place, before, "once");
        // The next takes what was taken since, too, be it that nobody has synced it.
        in_another_boot(&place);
        let again = are_behind(&place, again, "twice");
        // A kill takes nothing, and costs no numbers.
        let [line, ..] = are_behind(&place, again, "killed");
        assert!(line < again[0] + 10, "{line}");
    }
}

#[test]
fn what_a_repair_gives_up_had_numbers_that_nothing_else_gets() {
    for removed in [false, true] {
        let place = Place::new();
        let engine = place.open();
        let before = given(&engine);
        engine.sync().unwrap();
        drop(engine);
        for log in logs(&place) {
            let lose = if removed { remove_file(&log) } else { std::fs::write(&log, b"") };
            lose.unwrap();
        }
        let lower = place.0.path().join("lower");
        // One that is killed behind the cut, and one that goes on, and has nothing to cut any more.
        let options = Options { background: false, ..Options::default() };
        drop(Engine::open(&place.store(), &lower, options, Opening::Repair).unwrap());
        check(&place.store(), &lower, true).unwrap();
        are_behind(&place, before, "given up");
    }
}

#[test]
fn more_numbers_than_a_checkpoint_is_expected_for_are_given_once_all_the_same() {
    let place = Place::new();
    let engine = place.open();
    let (snapshot, _) = engine.base(b"", true).unwrap();
    let mut before = [0; 3];
    for _ in 0..40_000 {
        before[0] = engine.branch(snapshot, b"").unwrap().into();
    }
    engine.sync().unwrap();
    drop(engine);
    logs(&place).iter().for_each(|log| std::fs::write(log, b"").unwrap());
    check(&place.store(), &place.0.path().join("lower"), true).unwrap();
    are_behind(&place, before, "given up");
}

#[test]
fn what_the_base_counts_alone_is_not_given_again_once_the_log_is_read() {
    let place = Place::new();
    let engine = place.open();
    let [line, epoch, snapshot] = given(&engine).map(|number| number + 1000);
    // Nothing else comes of it before a kill.
    let next = crate::state::Numbers { line: line as u32, epoch, snapshot };
    write_lock(&engine.state).next = next;
    engine.count_numbers().unwrap();
    drop(engine);
    assert_eq!(read_lock(&place.open().state).next, next);
}
