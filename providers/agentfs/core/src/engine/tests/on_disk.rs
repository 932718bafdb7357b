//! What is believed of files below by their attributes, once the disk had them.

use super::*;
use crate::engine::fingerprints::{Fingerprint, Hash, rows_of};
use crate::rows::key::LineId;

const OTHER: Hash = [7; 32];

/// A base of a directory with one file, hashed.
fn base(engine: &Engine) -> LineId {
    let (_, base) = engine.base(b"", true).unwrap();
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    base
}

fn print(engine: &Engine, base: LineId) -> (Fingerprint, (u64, crate::types::Time)) {
    engine.fingerprint(base, b"file").unwrap().unwrap()
}

/// As if the file had held something else when it was hashed, under the same attributes.
fn falsify(engine: &Engine, base: LineId) {
    let (print, of) = print(engine, base);
    for (row, value) in rows_of(base, b"", of, vec![Fingerprint { hash: OTHER, ..print }]) {
        write_lock(&engine.state).layers.put(&row, value);
    }
}

#[test]
fn a_hash_is_taken_over_only_within_a_boot_and_if_the_disk_had_the_file_by_then() {
    let row = |base| key::of_line(b'j', base, Some(0));
    for (taken_over, mark) in
        [(true, None), (false, Some(None)), (false, Some(Some(vec![0; 8]))), (false, Some(Some(vec![1; 8])))]
    {
        let place = Place::new();
        std::fs::write(place.0.path().join("lower/file"), "contents").unwrap();
        let engine = place.open();
        let first = base(&engine);
        falsify(&engine, first);
        match &mark {
            // As it is.
            None => {}
            // By an older program.
            Some(None) => write_lock(&engine.state).layers.remove(&row(first)),
            // When there were fingerprints already, and in another boot.
            Some(Some(mark)) => write_lock(&engine.state).layers.put(&row(first), mark.clone()),
        }
        let second = base(&engine);
        assert_eq!(print(&engine, second).0.hash == OTHER, taken_over, "{mark:?}");
        // What was hashed before that is not taken for what was hashed behind it.
        [first, second].iter().for_each(|&base| write_lock(&engine.state).layers.remove(&row(base)));
        engine.flush().unwrap();
        drop(engine);
        let engine = place.open();
        engine.take_below_to_disk().unwrap();
        let third = base(&engine);
        assert_eq!(print(&engine, third).0.hash, *blake3::hash(b"contents").as_bytes(), "{mark:?}");
        engine.sync().unwrap();
        drop(engine);
        let report = check(&place.store(), &place.0.path().join("lower"), false).unwrap();
        // The second base has made a pin under the false hash, then.
        assert_eq!(report.problems.is_empty(), !taken_over, "{:?}", report.problems);
    }
}

#[test]
fn what_a_file_held_before_it_was_taken_to_the_disk_is_not_believed_of_it_then() {
    let place = Place::new();
    let path = place.0.path().join("lower/file");
    std::fs::write(&path, "contents").unwrap();
    let engine = place.open();
    let file = std::fs::File::open(&path).unwrap();
    let (found, _) = engine.hash_of(&file).unwrap().unwrap();
    // A shared mapping can have changed it since, under the same time.
    lock(&engine.hashes).get_mut(&(found.device, found.ino)).unwrap().4 = OTHER;
    assert_eq!(engine.hash_of(&file).unwrap().unwrap().1, OTHER);
    let base = base(&engine);
    assert_eq!(print(&engine, base).0.hash, *blake3::hash(b"contents").as_bytes());
}
