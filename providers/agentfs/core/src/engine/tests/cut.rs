//! What can go wrong while a damaged log is cut.

use std::os::unix::fs::FileExt;
use std::path::Path;

use ah_test_disks::Disk;

use super::*;
use crate::engine::Report;
use crate::error::Error;
use crate::state::Layers;

fn lower(place: &Place) -> PathBuf {
    place.0.path().join("lower")
}

fn fsck(place: &Place, repair: bool) -> Report {
    check(&place.store(), &lower(place), repair).unwrap()
}

fn open_for(place: &Place, how: Opening) -> crate::Result<Engine> {
    let options = Options { background: false, ..Options::default() };
    Engine::open(&place.store(), &lower(place), options, how)
}

/// A store whose log is damaged, so that a file is back whose contents were given back to the disk. Gives the branch, and the log.
fn given_back(place: &Place) -> (u32, PathBuf) {
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "file", &[7; 100_000]);
    make(&view, "other", &[6; 5000]);
    engine.sync().unwrap();
    let log = newest_log(place);
    let early = written(&log);
    make(&view, "between", b"x");
    engine.sync().unwrap();
    let ino = view.lookup(ROOT, b"file").unwrap().ino;
    view.unlink(ROOT, b"file").unwrap();
    view.forget(ino, 2);
    drop(view);
    engine.sync().unwrap();
    engine.sync().unwrap();
    drop(engine);
    spoil(&log, early + 30);
    (line, log)
}

/// Up to where a log is written, but for zeros.
fn written(log: &Path) -> u64 {
    std::fs::read(log).unwrap().iter().rposition(|&byte| byte != 0).unwrap() as u64 + 1
}

fn spoil(log: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(log).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

/// The file is back, and what it held is lost; the other is as it was.
fn is_as_told(place: &Place, line: u32) {
    let engine = place.open();
    let view = View::new(engine, line, Held::Pen).unwrap();
    let ino = view.lookup(ROOT, b"file").unwrap().ino;
    assert!(matches!(view.read(ino, 0, 1 << 20), Err(Error::Corrupt(_))));
    assert_eq!(content(&view, "other"), [6; 5000]);
}

fn tells(found: &Report) -> bool {
    !found.repaired && found.problems.iter().any(|problem| problem.starts_with("contents of file are lost"))
}

#[test]
fn a_repair_that_is_killed_behind_the_cut_is_ended_by_the_next() {
    let place = Place::new();
    let (line, _) = given_back(&place);
    drop(open_for(&place, Opening::Repair).unwrap());
    for how in [Opening::Use, Opening::Restored] {
        let refused = open_for(&place, how).err();
        assert!(matches!(&refused, Some(Error::Corrupt(what)) if what.contains("`--repair`")), "{refused:?}");
    }
    for repair in [false, false, true] {
        let found = fsck(&place, repair);
        assert!(tells(&found) && found.is_cut, "{repair}: {found:?}");
    }
    is_as_told(&place, line);
    let found = fsck(&place, false);
    assert!(tells(&found) && !found.is_cut, "{found:?}");
}

#[test]
fn a_repair_that_is_killed_before_its_checkpoint_is_ended_by_the_next() {
    let place = Place::new();
    let (line, log) = given_back(&place);
    let rows = place.store().join("rows.redb");
    let before = std::fs::read(&rows).unwrap();
    drop(open_for(&place, Opening::Repair).unwrap());
    // What is written first, and the log as it was cut: all before the damage.
    let damaged = std::fs::read(log.with_extension("damaged")).unwrap();
    std::fs::write(&rows, before).unwrap();
    for log in std::fs::read_dir(place.store().join("log")).unwrap() {
        std::fs::remove_file(log.unwrap().path()).unwrap();
    }
    std::fs::write(&log, &damaged).unwrap();
    let base = Arc::new(crate::store::base::Base::open(&rows).unwrap());
    crate::engine::damage::note_cut(&base).unwrap();
    let in_base = Layers::new(Arc::new(base.rows().unwrap())).get(&key::counter("batch")).unwrap();
    let in_base = key::be64(&in_base.unwrap());
    drop(base);
    let boot = boot_id().unwrap_or_default();
    let found = crate::store::log::read(&place.store().join("log"), &boot, in_base).unwrap();
    assert!(found.damaged);
    crate::store::log::cut(&place.store().join("log"), &found.files).unwrap();
    assert!(matches!(open_for(&place, Opening::Use).err(), Some(Error::Corrupt(_))));
    assert!(tells(&fsck(&place, true)));
    is_as_told(&place, line);
}

/// A store whose log is damaged, so that a branch is back whose pins are gone. What `changed` and `link` held is below no more. `keeping`: not all was done yet behind its base by then.
fn unpinned(place: &Place, keeping: bool) {
    for name in ["changed", "same"] {
        std::fs::write(lower(place).join(name), [5; 5000]).unwrap();
    }
    std::os::unix::fs::symlink("somewhere", lower(place).join("link")).unwrap();
    std::fs::write(lower(place).join("else"), [4; 6000]).unwrap();
    let engine = place.open();
    let (line, view) = branch(&engine);
    let base = read_lock(&engine.state).chain(line).unwrap().base;
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    if keeping {
        let how = key::of_line(b'j', base, None);
        write_lock(&engine.state).layers.put(&how, crate::engine::pinning::KEEPING.to_vec());
    }
    engine.sync().unwrap();
    let log = newest_log(place);
    let early = written(&log);
    make(&view, "between", b"x");
    engine.sync().unwrap();
    drop(view);
    engine.delete_branch(line).unwrap();
    let snapshots: Vec<_> = read_lock(&engine.state).snapshots.keys().copied().collect();
    snapshots.into_iter().for_each(|id| engine.delete_snapshot(id).unwrap());
    engine.reclaim().unwrap();
    engine.sweep_pins(true).unwrap();
    engine.sync().unwrap();
    drop(engine);
    assert!(!place.store().join("pins").exists());
    std::fs::write(lower(place).join("changed"), "changed").unwrap();
    std::fs::remove_file(lower(place).join("link")).unwrap();
    spoil(&log, early + 30);
}

/// The paths that are told as lost.
fn told(found: &Report) -> Vec<&'static str> {
    let of = |name: &&str| found.problems.iter().any(|told| told.starts_with(&format!("what {name} held when")));
    ["changed", "link", "same", "else"].into_iter().filter(of).collect()
}

#[test]
fn what_was_pinned_for_a_branch_that_is_back_is_told_where_nothing_holds_it_any_more() {
    for keeping in [false, true] {
        let place = Place::new();
        unpinned(&place, keeping);
        drop(open_for(&place, Opening::Repair).unwrap());
        for repair in [false, true] {
            let found = fsck(&place, repair);
            assert!(!found.repaired && told(&found) == ["changed", "link"], "{keeping}, {repair}: {found:?}");
        }
        // By then it was said.
        assert_eq!(told(&fsck(&place, false)), Vec::<&str>::new());
    }
}

#[test]
fn nothing_that_was_pinned_for_a_branch_that_is_back_is_said_to_be_lost_where_what_is_below_is_not_there() {
    let place = Place::new();
    unpinned(&place, false);
    drop(open_for(&place, Opening::Repair).unwrap());
    let elsewhere = place.0.path().join("elsewhere");
    std::fs::rename(lower(&place), &elsewhere).unwrap();
    let says = |found: &Report| found.problems.iter().any(|problem| problem.contains("nobody knows what is lost"));
    let found = fsck(&place, false);
    assert!(!found.repaired && says(&found) && told(&found).is_empty(), "{found:?}");
    std::fs::rename(&elsewhere, lower(&place)).unwrap();
    let found = fsck(&place, false);
    assert!(!says(&found) && told(&found) == ["changed", "link"], "{found:?}");
}

fn damaged(log: &Path) -> PathBuf {
    log.with_extension("damaged")
}

#[test]
fn what_a_log_was_is_kept_beside_what_an_earlier_one_was() {
    let place = Place::new();
    let (line, log) = given_back(&place);
    let was = std::fs::read(&log).unwrap();
    std::fs::write(damaged(&log), b"earlier").unwrap();
    let found = fsck(&place, true);
    assert!(tells(&found) && found.problems[0].contains(".damaged.1"), "{found:?}");
    assert_eq!(std::fs::read(damaged(&log)).unwrap(), b"earlier");
    let kept = std::fs::read(log.with_extension("damaged.1")).unwrap();
    assert!(was.starts_with(&kept) && was[kept.len()..].iter().all(|&byte| byte == 0));
    is_as_told(&place, line);
}

#[test]
fn what_was_given_back_within_a_larger_block_of_the_disk_is_not_said_to_be_told() {
    let Some(disk) = Disk::formatted("xfs", 512, &["-b", "size=16384"], "") else { return };
    let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
    given_back(&place);
    let found = fsck(&place, true);
    assert!(found.problems.iter().any(|problem| problem.contains("may read as zeros")), "{found:?}");
}

#[test]
fn a_damaged_log_is_cut_on_a_full_disk() {
    for (free, reserve) in [(0, true), (600 << 10, false)] {
        let Some(disk) = Disk::formatted("ext4", 64, &["-m", "0"], "") else { return };
        let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
        let (line, log) = given_back(&place);
        if !reserve {
            std::fs::remove_file(place.store().join("reserve")).unwrap();
        }
        let rest = std::fs::File::create(disk.at().join("rest")).unwrap();
        let left = || {
            let stat = rustix::fs::statvfs(disk.at()).unwrap();
            stat.f_bavail * stat.f_frsize
        };
        let mut length = 0;
        // What the file itself needs grows with it.
        while left() > free {
            let more = (left() - free).div_ceil(2).next_multiple_of(4096);
            if rustix::fs::fallocate(&rest, rustix::fs::FallocateFlags::empty(), length, more).is_err() {
                break;
            }
            length += more;
        }
        assert!(left() <= free, "{} left", left());
        let found = fsck(&place, true);
        assert!(tells(&found), "{free}: {found:?}");
        assert_eq!(damaged(&log).exists(), reserve, "{free}");
        assert_eq!(found.problems[0].contains("no room"), !reserve, "{free}: {found:?}");
        is_as_told(&place, line);
    }
}
