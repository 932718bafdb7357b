//! Contents on both sides of the end of a segment.

use super::full::in_another_boot;
use super::*;
use crate::rows::chunk::BLOCK;
use crate::store::segments::SEGMENT;

/// A store in which one more block is left in the first segment.
fn at_the_end(engine: &Engine) {
    let blocks = SEGMENT - 1;
    assert_eq!(engine.segments.allocate(blocks), 0);
    engine.segments.settle(0, blocks);
}

fn problems(place: &Place) -> Vec<String> {
    check(&place.store(), &place.0.path().join("lower"), false).unwrap().problems
}

fn segment(place: &Place, number: u64) -> std::fs::File {
    let path = place.store().join(format!("data/{number:010}"));
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn blocks_on_both_sides_of_a_segments_end_are_read_and_written_there() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    at_the_end(&engine);
    let ino = view.create(ROOT, b"file", ME).unwrap().ino;
    // One allocation ends there, the next begins.
    for nth in 0..3 {
        view.write(ino, nth * BLOCK, &[nth as u8 + 1; BLOCK as usize]).unwrap();
    }
    let blocks = |bytes: [u8; 3]| bytes.map(|byte| [byte; BLOCK as usize]).concat();
    assert!(content(&view, "file") == blocks([1, 2, 3]));
    engine.sync().unwrap();
    // In place.
    view.write(ino, 0, &blocks([4, 5, 6])).unwrap();
    view.fsync(ino).unwrap();
    let is_there = |view: &View| {
        assert!(content(view, "file") == blocks([4, 5, 6]));
        for nth in 0..3 {
            assert_eq!(view.read(ino, nth * BLOCK, 9).unwrap(), [nth as u8 + 4; 9], "block {nth}");
        }
    };
    is_there(&view);
    drop((view, engine));
    assert_eq!(segment(&place, 0).metadata().unwrap().len(), SEGMENT * BLOCK);
    assert_eq!(problems(&place), Vec::<String>::new());
    in_another_boot(&place);
    let engine = place.open();
    is_there(&View::new(engine.clone(), line, Held::Pen).unwrap());
    drop(engine);
    assert_eq!(problems(&place), Vec::<String>::new());
}

#[test]
fn contents_that_were_logged_over_a_segments_end_go_to_both_sides_of_it() {
    let place = Place::new();
    let engine = place.open();
    at_the_end(&engine);
    let first = engine.segments.allocate(1);
    assert_eq!((first, engine.segments.allocate(2)), (SEGMENT - 1, SEGMENT));
    engine
        .segments
        .write_again(&(first * BLOCK + 9, [[7; BLOCK as usize], [8; BLOCK as usize]].concat()), true)
        .unwrap();
    let mut byte = [0; 2];
    engine.segments.read(SEGMENT - 1, BLOCK - 2, &mut byte).unwrap();
    assert_eq!(byte, [7; 2]);
    engine.segments.read(SEGMENT, 8, &mut byte).unwrap();
    assert_eq!(byte, [7, 8]);
    let behind_all = engine.segments.write_again(&(u64::MAX - 1, vec![1, 2]), true);
    assert!(matches!(behind_all, Err(crate::Error::Corrupt(_))), "{behind_all:?}");
}

#[test]
fn what_was_written_over_a_segments_end_is_told_and_takes_nothing_with_it() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    at_the_end(&engine);
    for name in ["last", "first"] {
        make(&view, name, &[7; BLOCK as usize]);
    }
    engine.sync().unwrap();
    drop((view, engine));
    // As such a write once was.
    std::os::unix::fs::FileExt::write_all_at(&segment(&place, 0), &[8; BLOCK as usize], SEGMENT * BLOCK).unwrap();
    let lower = place.0.path().join("lower");
    let found = check(&place.store(), &lower, true).unwrap();
    assert!(found.problems.len() == 1 && !found.repaired, "{found:?}");
    // It is of no use to anybody any more.
    let engine = place.open();
    let view = View::new(engine.clone(), line, Held::Pen).unwrap();
    assert_eq!(content(&view, "first"), [7; BLOCK as usize]);
    make(&view, "other", &[9; BLOCK as usize]);
    let first = view.lookup(ROOT, b"first").unwrap().ino;
    view.setattr(first, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    engine.sync().unwrap();
    drop((view, engine));
    assert_eq!(check(&place.store(), &lower, true).unwrap().problems, Vec::<String>::new());
    let engine = place.open();
    let view = View::new(engine, line, Held::Pen).unwrap();
    assert_eq!(["last", "other"].map(|name| content(&view, name)), [7, 9].map(|byte| vec![byte; BLOCK as usize]));
}

#[test]
fn what_was_given_out_and_never_written_is_no_loss_after_a_power_cut() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "early", &[6; 5000]);
    engine.sync().unwrap();
    let length = segment(&place, 0).metadata().unwrap().len();
    // For somebody who was still writing.
    engine.segments.allocate(3);
    make(&view, "late", &[7; 5000]);
    engine.persist().unwrap();
    drop((view, engine));
    in_another_boot(&place);
    segment(&place, 0).set_len(length).unwrap();
    assert_eq!(problems(&place), Vec::<String>::new());
    for round in 0..2 {
        let engine = place.open();
        let view = View::new(engine.clone(), line, Held::Pen).unwrap();
        assert_eq!(["early", "late"].map(|name| content(&view, name)), [6, 7].map(|byte| vec![byte; 5000]));
        let name = format!("new{round}");
        make(&view, &name, &[8; 50_000]);
        assert_eq!(content(&view, &name), [8; 50_000]);
        engine.sync().unwrap();
        drop((view, engine));
        assert_eq!(problems(&place), Vec::<String>::new());
    }
    let lower = place.0.path().join("lower");
    assert!(check(&place.store(), &lower, true).unwrap().repaired);
    let engine = place.open();
    assert!(read_lock(&engine.state).lost.is_empty(), "what nothing names is forgotten");
}

#[test]
fn a_block_that_is_given_out_anew_is_not_lost_any_more() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "early", &[6; 5000]);
    let next = engine.segments.next();
    // As a state that a cut log brought back may have it: the log said more of them.
    let rows = crate::write_lock(&engine.state).lose([(next - 1, 3), (next + 1, 4)]);
    assert_eq!(rows.len(), 2);
    engine.sync().unwrap();
    drop((view, engine));
    for round in 0..2 {
        let engine = place.open();
        let view = View::new(engine.clone(), line, Held::Pen).unwrap();
        if round == 0 {
            make(&view, "new", &[8; 50_000]);
            engine.sync().unwrap();
        }
        assert_eq!(content(&view, "new"), [8; 50_000], "{round}");
        assert_eq!(read_lock(&engine.state).lost, [(next - 1, 1)], "{round}");
        let ino = view.lookup(ROOT, b"early").unwrap().ino;
        assert!(matches!(view.read(ino, 4096, 5), Err(crate::Error::Corrupt(_))), "{round}");
    }
}

#[test]
fn runs_that_are_lost_may_lie_over_each_other() {
    let place = Place::new();
    let engine = place.open();
    let (_, view) = branch(&engine);
    make(&view, "file", &[6; 80_000]);
    engine.sync().unwrap();
    drop((view, engine));
    let engine = place.open();
    for (first, count) in [(2, 8), (4, 2), (12, 1), (9, 3)] {
        engine.segments.lose(first, count);
    }
    let is_lost = |block| engine.segments.read(block, 0, &mut [0]).is_err();
    assert_eq!((0..16).filter(|&block| is_lost(block)).collect::<Vec<_>>(), (2..13).collect::<Vec<_>>());
    let mut state = crate::write_lock(&engine.state);
    state.lose([(2, 8), (2, 3)]);
    assert_eq!(state.lost, [(2, 8)]);
}

#[test]
fn a_segment_that_is_missing_is_told_in_one_sentence() {
    let place = Place::new();
    let engine = place.open();
    let (_, view) = branch(&engine);
    let files = ["one", "other"].map(|name| view.create(ROOT, name.as_bytes(), ME).unwrap().ino);
    // Blocks of both in turn.
    for nth in 0..50 {
        for ino in files {
            view.write(ino, nth * 4096, &[7; 4096]).unwrap();
        }
    }
    engine.sync().unwrap();
    drop((view, engine));
    std::fs::remove_file(std::fs::read_dir(place.store().join("data")).unwrap().next().unwrap().unwrap().path())
        .unwrap();
    let found = check(&place.store(), &place.0.path().join("lower"), false).unwrap();
    let told: Vec<_> = found.problems.iter().filter(|told| !told.starts_with("contents of")).collect();
    assert!(told.len() == 1 && told[0].starts_with("100 blocks from block "), "{told:?}");
    assert_eq!(found.problems.len(), 3, "{found:?}");
}
