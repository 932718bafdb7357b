//! What is believed of files below by their attributes, once the disk had them.

use std::io::Write;
use std::sync::atomic::Ordering;

use ah_test_disks::Disk;

use super::*;
use crate::engine::fingerprints::{Fingerprint, Hash, rows_of};
use crate::error::Error;
use crate::platform::AHEAD;
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
fn what_the_disk_lost_below_is_not_forgotten_with_the_next_call() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/file"), "contents").unwrap();
    let engine = place.open();
    let (earlier, _) = branch(&engine);
    engine.take_below_to_disk(earlier).unwrap();
    let (line, view) = branch(&engine);
    engine.lower.loses.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert!(matches!(engine.take_below_to_disk(line), Err(Error::LostBelow)));
        assert!(!engine.below_is_on_disk(line));
    }
    // Bases of before and after that have their own, and what waits for nothing below goes on.
    engine.take_below_to_disk(earlier).unwrap();
    let (later, _) = branch(&engine);
    engine.take_below_to_disk(later).unwrap();
    assert_eq!([earlier, line, later].map(|line| engine.below_is_on_disk(line)), [true, false, true]);
    make(&view, "ours", b"ours");
    engine.snapshot(line, b"").unwrap();
    engine.sync().unwrap();
    drop((view, engine));
    let engine = place.open();
    engine.take_below_to_disk(line).unwrap();
    assert!(engine.below_is_on_disk(line));
}

#[test]
fn what_the_disk_lost_below_is_kept_until_somebody_was_told() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/file"), "contents").unwrap();
    let engine = place.open();
    let (line, _) = branch(&engine);
    let base = read_lock(&engine.state).chain(line).unwrap().base;
    engine.lower.loses.store(true, Ordering::SeqCst);
    // By who does it behind the base, and by who makes old snapshots durable: neither tells anybody.
    assert!(matches!(engine.take_fingerprints(base), Err(Error::LostBelow)));
    engine.sync().unwrap();
    drop(engine);
    for _ in 0..2 {
        let engine = place.open();
        assert!(matches!(engine.have_below_on_disk(line), Err(Error::LostBelow)));
        let (later, _) = branch(&engine);
        engine.have_below_on_disk(later).unwrap();
        assert_eq!([line, later].map(|line| engine.below_is_on_disk(line)), [false, true]);
    }
    let engine = place.open();
    (0..2).for_each(|_| assert!(matches!(engine.take_below_to_disk(line), Err(Error::LostBelow))));
    engine.sync().unwrap();
    drop(engine);
    place.open().take_below_to_disk(line).unwrap();
    assert!(check(&place.store(), &place.0.path().join("lower"), false).unwrap().problems.is_empty());
}

#[test]
fn what_is_below_is_hashed_by_the_next_who_opens_the_store_whoever_was_told_what_the_disk_lost() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/file"), "contents").unwrap();
    let engine = place.open();
    let (line, _) = branch(&engine);
    let base = read_lock(&engine.state).chain(line).unwrap().base;
    engine.remember_names(base).unwrap();
    engine.sync().unwrap();
    drop(engine);
    // Also when it is lost once more.
    for _ in 0..2 {
        let engine = place.open();
        engine.lower.loses.store(true, Ordering::SeqCst);
        (0..2).for_each(|_| assert!(matches!(engine.take_fingerprints(base), Err(Error::LostBelow))));
        assert_eq!((engine.fingerprint(base, b"file").unwrap(), engine.unfinished()), (None, vec![base]));
        engine.sync().unwrap();
    }
    let engine = place.open();
    engine.take_fingerprints(base).unwrap();
    let hash = blake3::hash(b"contents");
    assert_eq!((print(&engine, base).0.hash, engine.unfinished()), (*hash.as_bytes(), vec![]));
    let pin = hash.to_hex().to_string();
    assert!(place.store().join("pins").join(&pin[..2]).join(&pin).exists());
    // That is no reason to take a snapshot for durable.
    assert!(matches!(engine.take_below_to_disk(line), Err(Error::LostBelow)));
    assert_eq!((engine.below_is_on_disk(line), engine.lower.asked.load(Ordering::SeqCst)), (false, 1));
    engine.sync().unwrap();
    drop(engine);
    place.open().take_below_to_disk(line).unwrap();
    assert!(check(&place.store(), &place.0.path().join("lower"), false).unwrap().problems.is_empty());
}

#[test]
fn the_disk_is_asked_once_for_all_bases_unless_it_lost_something() {
    let place = Place::new();
    let engine = place.open();
    for (lost, asked) in [(false, 1), (true, 2)] {
        let lines: Vec<_> = (0..3).map(|_| branch(&engine).0).collect();
        engine.lower.asked.store(0, Ordering::SeqCst);
        engine.lower.loses.store(lost, Ordering::SeqCst);
        engine.take_below_to_disk(lines[2]).unwrap();
        assert_eq!(engine.lower.asked.load(Ordering::SeqCst), asked);
        assert_eq!(lines.iter().map(|&line| engine.below_is_on_disk(line)).collect::<Vec<_>>(), [!lost, true, true]);
    }
}

#[test]
fn a_base_is_told_of_what_the_disk_lost_since_it_was_taken_and_of_nothing_that_was_told_before() {
    let Some(disk) = Disk::formatted("ext4", 48, &["-m", "0"], "") else { return };
    let lower = disk.below("ext4", 64, &["-O", "^has_journal"]);
    let temp = tempfile::tempdir().unwrap();
    let store = temp.path().join("store");
    Engine::create(&store, lower.at()).unwrap();
    let options = Options { background: false, ..Options::default() };
    let engine = Arc::new(Engine::open(&store, lower.at(), options, Opening::Use).unwrap());
    // Told to somebody else, so that nobody who comes later hears of it.
    let lose = |name: &str| {
        let full = disk.at().join("full");
        let mut file = std::fs::File::create(&full).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        let other = std::fs::File::open(lower.at()).unwrap();
        std::fs::write(lower.at().join(name), vec![1; 1 << 20]).unwrap();
        rustix::fs::syncfs(&other).unwrap_err();
        std::fs::remove_file(full).unwrap();
        rustix::fs::syncfs(&other).unwrap();
    };
    lose("before");
    let (first, _) = branch(&engine);
    engine.take_below_to_disk(first).unwrap();
    let (second, _) = branch(&engine);
    lose("since");
    assert!(matches!(engine.take_below_to_disk(second), Err(Error::LostBelow)));
    let (third, _) = branch(&engine);
    for line in [first, third] {
        engine.take_below_to_disk(line).unwrap();
    }
    assert_eq!([first, second, third].map(|line| engine.below_is_on_disk(line)), [true, false, true]);
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
        for base in [first, second] {
            engine.take_below_to_disk(base).unwrap();
        }
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

#[test]
fn files_whose_time_of_change_is_to_come_are_kept_as_others_are() {
    let place = Place::new();
    let lower = place.0.path().join("lower");
    std::fs::create_dir(lower.join("d")).unwrap();
    for name in ["kept", "touched", "removed", "d/inner"] {
        std::fs::write(lower.join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("there", lower.join("link")).unwrap();
    // They were written while the clock was three hours ahead.
    AHEAD.set(-3 * 3600);
    let engine = place.open();
    let (line, view) = branch(&engine);
    let base = read_lock(&engine.state).chain(line).unwrap().base;
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    let id = engine.snapshot(line, b"").unwrap();
    let epoch = read_lock(&engine.state).snapshots[&id].epoch;
    let snapshot = || View::new(engine.clone(), line, Held::At(epoch)).unwrap();
    let shown = |view: &View| {
        let directory = view.lookup(ROOT, b"d").unwrap().ino;
        let inner = view.lookup(directory, b"inner").unwrap().ino;
        let link = view.lookup(ROOT, b"link").unwrap().ino;
        let files = ["kept", "touched", "removed"].map(|name| content(view, name));
        (files, view.read(inner, 0, 100).unwrap(), view.readlink(link).unwrap())
    };
    let all =
        (["kept", "touched", "removed"].map(|name| name.as_bytes().to_vec()), b"d/inner".to_vec(), b"there".to_vec());
    assert_eq!((shown(&view), shown(&snapshot())), (all.clone(), all.clone()));
    assert_eq!(engine.changed_below(line), Vec::<Vec<u8>>::new());
    std::fs::write(lower.join("touched"), "TOUCHED").unwrap();
    std::fs::remove_file(lower.join("removed")).unwrap();
    std::fs::write(lower.join("d/inner"), "other").unwrap();
    assert_eq!((shown(&view), shown(&snapshot())), (all.clone(), all));
    assert_eq!(engine.changed_below(line), Vec::<Vec<u8>>::new());
    AHEAD.set(0);
}

#[test]
fn what_a_power_cut_left_older_than_its_fingerprint_is_shown_from_its_pin() {
    for (clock, known) in [(0, false), (3600, false), (3600, true)] {
        let place = Place::new();
        let path = place.0.path().join("lower/file");
        std::fs::write(&path, [b'x'; 5000]).unwrap();
        // Whatever is done to the file bears a time from before the base then, as what a power cut brings back does.
        AHEAD.set(clock);
        let engine = place.open();
        let (line, view) = branch(&engine);
        let base = read_lock(&engine.state).chain(line).unwrap().base;
        engine.remember_names(base).unwrap();
        engine.take_fingerprints(base).unwrap();
        if !known {
            write_lock(&engine.state).layers.remove(&key::of_line(b'j', base, Some(0)));
        }
        let id = engine.snapshot(line, b"").unwrap();
        engine.sync().unwrap();
        drop((view, engine));
        std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        let engine = place.open();
        let view = View::new(engine.clone(), line, Held::Pen).unwrap();
        let epoch = read_lock(&engine.state).snapshots[&id].epoch;
        let snapshot = View::new(engine.clone(), line, Held::At(epoch)).unwrap();
        // Of a base before which the disk had it, its times tell.
        let length = if known { 0 } else { 5000 };
        for view in [&view, &snapshot] {
            assert_eq!(content(view, "file").len(), length, "{clock}, {known}");
            assert_eq!(view.lookup(ROOT, b"file").unwrap().size, length as u64, "{clock}, {known}");
        }
        AHEAD.set(0);
    }
}

#[test]
fn a_pin_that_a_power_cut_damaged_is_none_for_the_next_base() {
    // Another boot; another, before which the disk had the pin; this one, in which nothing can have become of it.
    for (boot, had_it) in [(Some([1; 8]), false), (Some([1; 8]), true), (None, true)] {
        let place = Place::new();
        let path = place.0.path().join("lower/file");
        std::fs::write(&path, [b'x'; 5000]).unwrap();
        let engine = place.open();
        base(&engine);
        let hash = blake3::hash(&[b'x'; 5000]).to_hex().to_string();
        let pin = place.store().join("pins").join(&hash[..2]).join(&hash);
        std::fs::set_permissions(&pin, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&pin, [0; 5000]).unwrap();
        if let Some(boot) = boot {
            let until: i64 = if had_it { i64::MAX } else { 0 };
            let value = [&until.to_be_bytes()[..], &[0; 4], &boot].concat();
            write_lock(&engine.state).layers.put(&key::counter("pins"), value);
        }
        base(&engine);
        assert_eq!(std::fs::read(&pin).unwrap() == [b'x'; 5000], !had_it, "{boot:?}, {had_it}");
        base(&engine);
        engine.sync().unwrap();
        drop(engine);
        let report = check(&place.store(), &place.0.path().join("lower"), false).unwrap();
        assert_eq!(report.problems.is_empty(), !had_it, "{:?}", report.problems);
    }
}
