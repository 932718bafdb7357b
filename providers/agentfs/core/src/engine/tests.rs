//! Tests of what only shows when the disk refuses something in a certain moment.

mod cut;
mod full;
mod keep;
mod log;
mod numbers;
mod on_disk;
mod reads;
mod segments;
mod snapshots;

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Engine, Held, Opening, Options, check};
use crate::platform::boot_id;
use crate::rows::key;
use crate::store::log::Log;
use crate::store::segments::Refuse;
use crate::types::{Owner, ROOT, Rename, SetAttr};
use crate::view::View;
use crate::write_lock;
use crate::{lock, read_lock};

const ME: Owner = Owner { mode: 0o644, uid: 0, gid: 0 };

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    fn of(directory: tempfile::TempDir) -> Self {
        let place = Self(directory);
        std::fs::create_dir(place.0.path().join("lower")).unwrap();
        Engine::create(&place.store(), &place.0.path().join("lower")).unwrap();
        place
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn open(&self) -> Arc<Engine> {
        let options = Options { background: false, ..Options::default() };
        Arc::new(Engine::open(&self.store(), &self.0.path().join("lower"), options, Opening::Use).unwrap())
    }
}

/// A branch of the lower directory, and its pen's view.
fn branch(engine: &Arc<Engine>) -> (u32, View) {
    let line = engine.branch(engine.base(b"", true).unwrap().0, b"").unwrap();
    (line, View::new(engine.clone(), line, Held::Pen).unwrap())
}

fn make(view: &View, name: &str, content: &[u8]) {
    let ino = view.create(ROOT, name.as_bytes(), ME).unwrap().ino;
    view.write(ino, 0, content).unwrap();
}

fn content(view: &View, name: &str) -> Vec<u8> {
    let ino = view.lookup(ROOT, name.as_bytes()).unwrap().ino;
    view.read(ino, 0, 1 << 20).unwrap()
}

fn newest_log(place: &Place) -> PathBuf {
    std::fs::read_dir(place.store().join("log")).unwrap().map(|log| log.unwrap().path()).max().unwrap()
}

#[test]
fn a_change_in_the_middle_of_which_its_thread_panics_is_as_if_it_had_not_been_begun() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "first", b"first");
    let chain = read_lock(&engine.state).chain(line).unwrap();
    let ino = view.lookup(ROOT, b"first").unwrap().ino;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        engine.change(line, &chain, |state, view| -> crate::Result<()> {
            state.write(&key::entry(ROOT, b"first"), vec![0], view)?;
            state.purge(ino, view)?;
            panic!("as a test wants it")
        })
    }));
    panicked.unwrap_err();
    assert_eq!(content(&view, "first"), b"first");
    make(&view, "second", b"second");
    engine.sync().unwrap();
    drop((view, engine));
    assert_eq!(check(&place.store(), &place.0.path().join("lower"), false).unwrap().problems, Vec::<String>::new());
    let engine = place.open();
    let view = View::new(engine.clone(), line, Held::Pen).unwrap();
    assert_eq!((content(&view, "first"), content(&view, "second")), (b"first".to_vec(), b"second".to_vec()));
}

#[test]
fn a_checkpoint_that_cannot_sync_loses_nothing() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "first", b"first");
    *lock(&engine.segments.refuse) = Some(Refuse::Open);
    engine.checkpoint().unwrap_err();
    *lock(&engine.segments.refuse) = None;
    make(&view, "second", b"second");
    assert_eq!(content(&view, "first"), b"first");
    drop((view, engine));
    let engine = place.open();
    let view = View::new(engine.clone(), line, Held::Pen).unwrap();
    assert_eq!(content(&view, "first"), b"first");
    *lock(&engine.segments.refuse) = Some(Refuse::Open);
    engine.checkpoint().unwrap_err();
    *lock(&engine.segments.refuse) = None;
    engine.checkpoint().unwrap();
    drop((view, engine));
    let engine = place.open();
    assert_eq!(content(&View::new(engine.clone(), line, Held::Pen).unwrap(), "first"), b"first");
}

#[test]
fn what_a_dead_process_wrote_is_synced() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "file", b"not synced");
    engine.flush().unwrap();
    drop((view, engine));
    let engine = place.open();
    *lock(&engine.segments.refuse) = Some(Refuse::Sync(ErrorKind::Other));
    engine.sync().unwrap_err();
    drop(engine);
    let engine = place.open();
    engine.sync().unwrap();
    assert_eq!(content(&View::new(engine.clone(), line, Held::Pen).unwrap(), "file"), b"not synced");
}

#[test]
fn what_the_disk_did_not_take_is_never_taken_for_kept() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::Other] {
        for checkpoint in [false, true] {
            let place = Place::new();
            let engine = place.open();
            let (_, view) = branch(&engine);
            make(&view, "file", b"lost");
            *lock(&engine.segments.refuse) = Some(Refuse::Sync(kind));
            if checkpoint { engine.checkpoint() } else { engine.sync() }.unwrap_err();
            *lock(&engine.segments.refuse) = None;
            assert!(engine.sync().is_err() && engine.checkpoint().is_err(), "{kind:?}, {checkpoint}");
        }
    }
}

#[test]
fn all_logs_that_failed_checkpoints_left_are_synced_before_a_mark() {
    let place = Place::new();
    let engine = place.open();
    let (_, view) = branch(&engine);
    for name in ["one", "two"] {
        make(&view, name, b"");
        *lock(&engine.segments.refuse) = Some(Refuse::Open);
        make_dirty(&engine);
        engine.checkpoint().unwrap_err();
    }
    assert_eq!(lock(&engine.previous_logs).len(), 2);
    *lock(&engine.segments.refuse) = None;
    engine.sync().unwrap();
    assert!(lock(&engine.previous_logs).is_empty());
}

/// So that a sync has something to open.
fn make_dirty(engine: &Engine) {
    let refuse = lock(&engine.segments.refuse).take();
    let block = engine.segments.allocate(1);
    engine.segments.write(block, 0, b"x").unwrap();
    engine.segments.settle(block, 1);
    *lock(&engine.segments.refuse) = refuse;
}

#[test]
fn what_the_disk_does_not_take_back_now_it_is_given_later() {
    let place = Place::new();
    let engine = place.open();
    let (_, view) = branch(&engine);
    for name in ["a", "kept", "b"] {
        make(&view, name, &vec![7; 1 << 20]);
    }
    engine.sync().unwrap();
    let free = || read_lock(&engine.state).free.iter().map(|(_, blocks)| blocks).sum::<u64>();
    for name in ["a", "b"] {
        let ino = view.lookup(ROOT, name.as_bytes()).unwrap().ino;
        view.setattr(ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    }
    engine.flush().unwrap();
    let waits = free();
    assert!(waits > 0);
    *lock(&engine.segments.refuse) = Some(Refuse::Open);
    // All that was written is on disk.
    engine.sync().unwrap();
    assert_eq!(free(), waits);
    *lock(&engine.segments.refuse) = None;
    engine.sync().unwrap();
    assert_eq!((free(), content(&view, "kept").len()), (0, 1 << 20));
}

#[test]
fn what_cannot_be_cleared_up_keeps_nothing_else_from_that() {
    let place = Place::new();
    let engine = place.open();
    let lines: Vec<u32> = ["first", "second", "third"]
        .into_iter()
        .map(|name| {
            let (line, view) = branch(&engine);
            make(&view, name, &[7; 9000]);
            line
        })
        .collect();
    let above = |of: u32, parent| write_lock(&engine.state).lines.get_mut(&of).unwrap().parent.replace(parent).unwrap();
    for &line in &lines {
        engine.delete_branch(line).unwrap();
    }
    let was = above(lines[1], (u32::MAX, 1));
    assert!(matches!(engine.reclaim(), Err(crate::Error::Corrupt(_))));
    let dead = || read_lock(&engine.state).dead.iter().map(|&(line, _)| line).collect::<Vec<_>>();
    assert_eq!(dead(), [lines[1]]);
    above(lines[1], was);
    engine.reclaim().unwrap();
    assert_eq!(dead(), Vec::<u32>::new());
}

#[test]
fn a_segment_that_is_removed_while_it_is_synced_is_no_error() {
    let place = Place::new();
    let engine = place.open();
    make_dirty(&engine);
    engine.segments.remove(0).unwrap();
    // As if a sync had taken the note before.
    engine.segments.note(0);
    engine.segments.sync(&engine.failed).unwrap();
    engine.segments.note(1);
    engine.segments.sync(&engine.failed).unwrap_err();
}

#[test]
fn who_syncs_while_another_does_waits_for_what_that_one_takes_to_the_disk() {
    let place = Place::new();
    let engine = place.open();
    make_dirty(&engine);
    let barrier = Arc::new(std::sync::Barrier::new(2));
    *lock(&engine.segments.refuse) = Some(Refuse::Wait(barrier.clone()));
    let sync = || {
        std::thread::spawn({
            let engine = engine.clone();
            move || engine.segments.sync(&engine.failed)
        })
    };
    let first = sync();
    barrier.wait();
    let second = sync();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!second.is_finished());
    barrier.wait();
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
}

#[test]
fn fsck_gives_nothing_back_when_a_row_cannot_be_read() {
    let place = Place::new();
    let engine = place.open();
    let (_, view) = branch(&engine);
    make(&view, "file", &[7; 8192]);
    {
        let mut state = write_lock(&engine.state);
        let rows = state.layers.prefix(b"c").unwrap();
        state.layers.put(&rows[0].0, vec![1, 0xff]);
    }
    engine.sync().unwrap();
    drop((view, engine));
    let report = check(&place.store(), &place.0.path().join("lower"), true).unwrap();
    assert!(!report.repaired);
    assert_eq!(std::fs::read(place.store().join("data/0000000000")).unwrap(), [7; 8192]);
}

#[test]
fn damaged_rows_are_an_error_and_nothing_worse() {
    let place = Place::new();
    let long = |bytes: &[u8]| [bytes, &[0xff; 8]].concat();
    let line = crate::state::Line {
        parent: Some((9, 1)),
        base: crate::types::Time::default(),
        epoch: 1,
        before: 0,
        pen: true,
        label: Vec::new(),
        points: std::collections::BTreeMap::new(),
    };
    let rows: [(Vec<u8>, Vec<u8>); 7] = [
        (b"k".to_vec(), Vec::new()),
        (b"kabc".to_vec(), Vec::new()),
        (b"o".to_vec(), Vec::new()),
        (long(b"f"), vec![0xff; 8]),
        (long(b"g"), vec![0xff; 8]),
        (b"l\0\0\0\x09".to_vec(), line.encode()),
        (b"mblock".to_vec(), vec![0xff; 8]),
    ];
    for (row, value) in rows {
        {
            let mut log = Log::begin(&place.store().join("log"), 1, 0, &boot_id().unwrap_or_default()).unwrap();
            log.append([(&*row, Some(&*value))].into_iter()).unwrap();
        }
        let options = Options { background: false, ..Options::default() };
        let opened = Engine::open(&place.store(), &place.0.path().join("lower"), options, Opening::Use);
        assert!(matches!(opened, Err(crate::Error::Corrupt(_))), "{row:?}");
    }
}

#[test]
fn a_file_below_that_is_renamed_while_it_is_written_has_one_name() {
    for overtaken in [false, true] {
        let place = Place::new();
        std::fs::create_dir(place.0.path().join("lower/to")).unwrap();
        std::fs::write(place.0.path().join("lower/old"), "below").unwrap();
        let engine = place.open();
        let (line, view) = branch(&engine);
        let ino = view.lookup(ROOT, b"old").unwrap().ino;
        let to = view.lookup(ROOT, b"to").unwrap().ino;
        let mut before = None;
        let rename = || {
            if overtaken {
                // A snapshot waits for the write, but from then on the pen is in the next epoch.
                let engine = engine.clone();
                let epoch = read_lock(&engine.state).lines[&line].epoch;
                let of = engine.clone();
                before = Some(std::thread::spawn(move || of.snapshot(line, b"").unwrap()));
                while read_lock(&engine.state).lines[&line].epoch == epoch {
                    std::thread::yield_now();
                }
            }
            view.rename(ROOT, b"old", to, b"new", Rename::Replace).unwrap();
        };
        view.write_and(ino, b"OURS!", rename).unwrap();
        assert_eq!(view.read(ino, 0, 10).unwrap(), b"OURS!");
        let names = |view: &View, directory| view.list(directory).unwrap().into_iter().map(|entry| entry.name);
        assert_eq!(names(&view, ROOT).collect::<Vec<_>>(), [b"to"]);
        assert_eq!(names(&view, to).collect::<Vec<_>>(), [b"new"]);
        if let Some(before) = before {
            let id = before.join().unwrap();
            let epoch = read_lock(&engine.state).snapshots[&id].epoch;
            let old = View::new(engine.clone(), line, Held::At(epoch)).unwrap();
            assert_eq!(content(&old, "old"), b"OURS!");
            assert_eq!(names(&old, ROOT).count(), 2);
            let to = old.lookup(ROOT, b"to").unwrap().ino;
            assert_eq!(names(&old, to).count(), 0);
        }
    }
}

#[test]
fn a_file_that_cannot_be_copied_holds_up_no_others() {
    let place = Place::new();
    let below = |name: &str| place.0.path().join("lower").join(name);
    for name in ["one", "two"] {
        std::fs::write(below(name), [7; 100_000]).unwrap();
    }
    let engine = place.open();
    let (line, view) = branch(&engine);
    let mut inodes = ["one", "two"].map(|name| view.lookup(ROOT, name.as_bytes()).unwrap().ino);
    inodes.sort_unstable();
    for ino in inodes {
        view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    }
    {
        let mut state = write_lock(&engine.state);
        let epoch = state.lines[&line].epoch;
        state.layers.put(&key::versioned(&key::chunk(inodes[0], 0), line, epoch), vec![1, 0xff]);
    }
    assert!(matches!(engine.copy_taken_over(), Err(crate::Error::Corrupt(_))));
    for name in ["one", "two"] {
        std::fs::remove_file(below(name)).unwrap();
    }
    assert_eq!(view.read(inodes[1], 0, 1 << 20).unwrap(), [7; 100_000]);
}

#[test]
fn a_file_is_copied_although_a_snapshot_overtook_who_took_it_over() {
    for other in [false, true] {
        let place = Place::new();
        let below = place.0.path().join("lower/large");
        std::fs::write(&below, [7; 100_000]).unwrap();
        let engine = place.open();
        let (line, view) = branch(&engine);
        let ino = view.lookup(ROOT, b"large").unwrap().ino;
        let mut before = None;
        let overtake = || {
            let epoch = read_lock(&engine.state).lines[&line].epoch;
            let of = engine.clone();
            before = Some(std::thread::spawn(move || of.snapshot(line, b"").unwrap()));
            while read_lock(&engine.state).lines[&line].epoch == epoch {
                std::thread::yield_now();
            }
            if other {
                view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
            }
        };
        view.write_and(ino, b"ours", overtake).unwrap();
        let id = before.unwrap().join().unwrap();
        engine.copy_taken_over().unwrap();
        std::fs::remove_file(&below).unwrap();
        let epoch = read_lock(&engine.state).snapshots[&id].epoch;
        let old = View::new(engine.clone(), line, Held::At(epoch)).unwrap();
        for (what, tree) in [("branch", &view), ("snapshot", &old)] {
            let ino = tree.lookup(ROOT, b"large").unwrap().ino;
            let found = tree.read(ino, 0, 1 << 20).unwrap_or_else(|error| panic!("{what}, {other}: {error}"));
            assert_eq!((&found[..4], &found[4..]), (&b"ours"[..], &[7; 99_996][..]), "{what}, {other}");
        }
    }
}

#[test]
fn what_is_copied_behind_a_branch_is_in_its_place_when_a_snapshot_is_durable() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/large"), [7; 100_000]).unwrap();
    let engine = place.open();
    if engine.boot.is_empty() {
        // Contents never go into the log then.
        return;
    }
    let (_, view) = branch(&engine);
    let ino = view.lookup(ROOT, b"large").unwrap().ino;
    view.write(ino, 0, b"ours").unwrap();
    let in_place = || {
        engine.persist().unwrap();
        lock(&engine.syncing).contents
    };
    assert!(in_place(), "the first time it is not known what was written before");
    view.write(ino, 0, b"OURS").unwrap();
    assert!(!in_place(), "a few bytes go into the log");
    engine.copy_taken_over().unwrap();
    assert!(in_place(), "no note was made of what was copied");
    view.write(ino, 0, b"ours").unwrap();
    assert!(!in_place());
}

#[test]
fn a_copy_for_snapshots_of_a_branch_that_is_gone_leaves_nothing_in_the_branch() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/large"), [7; 100_000]).unwrap();
    let engine = place.open();
    let (line, view) = branch(&engine);
    let ino = view.lookup(ROOT, b"large").unwrap().ino;
    view.write(ino, 0, b"ours").unwrap();
    engine.snapshot(line, b"").unwrap();
    view.setattr(ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    drop(view);
    engine.delete_branch(line).unwrap();
    let of_branch = || {
        let state = read_lock(&engine.state);
        let epoch = state.lines[&line].epoch;
        let rows = state.layers.prefix(&key::stem(b'c', ino)).unwrap();
        rows.into_iter().filter(|(row, _)| key::split(row).unwrap().2 == epoch).count()
    };
    let before = of_branch();
    engine.copy_taken_over().unwrap();
    // Whoever clears up behind the branch may have been there already.
    assert_eq!(of_branch(), before);
    engine.reclaim_space().unwrap();
    assert_eq!(read_lock(&engine.state).used_blocks(), 25, "one that was written, and the others below");
}

#[test]
fn nobody_waits_for_a_pin_that_is_being_removed() {
    let place = Place::new();
    let engine = place.open();
    std::fs::create_dir(place.store().join("pins")).unwrap();
    let (base, line) = engine.base(b"", true).unwrap();
    let (_, view) = branch(&engine);
    let (done, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // As who asks the disk to.
        let removing = lock(&engine.pins.decided);
        scope.spawn(|| {
            engine.delete_snapshot(base).unwrap();
            engine.forget_below(line).unwrap();
            make(&view, "file", b"content");
            done.send(()).unwrap();
        });
        let heard = hears.recv_timeout(std::time::Duration::from_secs(30));
        drop(removing);
        heard.unwrap();
    });
}

#[test]
fn that_there_may_be_pins_to_remove_is_said_in_other_words_each_time() {
    let place = Place::new();
    let mut said = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let engine = place.open();
        for _ in 0..2 {
            engine.mark_pins(&mut write_lock(&engine.state), 1);
            let row = read_lock(&engine.state).layers.get(&key::of_line(b'p', 1, None)).unwrap().unwrap();
            assert!(said.insert(row.to_vec()), "who removes pins takes it for what it began with");
        }
    }
}

#[test]
fn fingerprints_of_a_directory_go_on_where_they_ended() {
    let place = Place::new();
    let lower = place.0.path().join("lower");
    for n in 100..200 {
        std::fs::write(lower.join(format!("{n}")), format!("{n}")).unwrap();
    }
    let engine = place.open();
    let (_, base) = engine.base(b"", true).unwrap();
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    let rows = key::of_line(b'h', base, None);
    // As if the last had not come to the disk.
    let all = read_lock(&engine.state).layers.prefix(&rows).unwrap();
    let kept = all.len() / 2;
    assert!(kept > 0);
    all.iter().skip(kept).for_each(|(row, _)| write_lock(&engine.state).layers.remove(row));
    let known = || (100..200).filter(|n| engine.fingerprint(base, n.to_string().as_bytes()).unwrap().is_some()).count();
    assert!(known() < 100);
    std::fs::write(lower.join("100"), "changed").unwrap();
    engine.take_fingerprints(base).unwrap();
    assert_eq!(known(), 100);
}

#[test]
fn what_was_pinned_in_vain_before_a_kill_goes_when_the_rest_is_kept() {
    let place = Place::new();
    let file = place.0.path().join("lower/file");
    std::fs::write(&file, "then").unwrap();
    let engine = place.open();
    let (_, base) = engine.base(b"", true).unwrap();
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    // As if it had been killed before the fingerprint was written down.
    {
        let mut state = write_lock(&engine.state);
        let rows = state.layers.prefix(&key::of_line(b'h', base, None)).unwrap();
        rows.iter().for_each(|(row, _)| state.layers.remove(row));
        engine.mark_pins(&mut state, base);
    }
    std::fs::write(&file, "changed").unwrap();
    engine.take_fingerprints(base).unwrap();
    assert!(engine.pins.any());
    engine.sweep_pins(false).unwrap();
    assert!(!engine.pins.any());
}

#[test]
fn who_closes_the_store_while_names_are_written_down_leaves_the_rest_to_the_next() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/file"), "then").unwrap();
    let engine = place.open();
    let (_, base) = engine.base(b"", true).unwrap();
    engine.stop();
    engine.keep_below(base);
    assert_eq!(engine.unfinished(), [base]);
    drop(engine);
    let engine = place.open();
    engine.keep_below(base);
    assert_eq!(engine.unfinished(), []);
    assert!(engine.fingerprint(base, b"file").unwrap().is_some());
}

#[test]
fn nobody_who_gives_blocks_back_waits_for_what_is_read_below() {
    let place = Place::new();
    std::fs::write(place.0.path().join("lower/large"), [7; 300_000]).unwrap();
    let engine = place.open();
    let (_, view) = branch(&engine);
    let ino = view.lookup(ROOT, b"large").unwrap().ino;
    let mut expected = vec![7; 300_000];
    for at in [10, 150_000] {
        // Of the blocks at its edges the rest is read below.
        view.write(ino, at, &[9; 10_000]).unwrap();
        expected[at as usize..at as usize + 10_000].fill(9);
    }
    assert_eq!(view.read(ino, 0, 1 << 20).unwrap(), expected);
    let noted = std::mem::take(&mut *lock(&engine.segments.read_below));
    assert!(noted.len() >= 6 && !noted.contains(&true), "{noted:?}");
}
