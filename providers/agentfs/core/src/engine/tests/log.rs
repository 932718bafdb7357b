//! Which log goes on behind the base, and what the disk cannot read of a store.

use std::os::unix::fs::{FileExt, MetadataExt};

use ah_test_disks::Disk;

use super::*;
use crate::store::base::Base;

#[test]
fn a_log_that_an_older_program_began_is_not_asked_for() {
    let place = Place::new();
    let engine = place.open();
    branch(&engine);
    engine.checkpoint().unwrap();
    let batch = lock(&engine.log).batch;
    drop(engine);
    std::fs::remove_dir_all(place.store().join("log")).unwrap();
    std::fs::create_dir(place.store().join("log")).unwrap();
    let options = Options { background: false, ..Options::default() };
    let refused = Engine::open(&place.store(), &place.0.path().join("lower"), options, Opening::Use);
    assert!(matches!(refused, Err(crate::Error::Corrupt(_))));
    // What that writes of a checkpoint: not which log goes on.
    let base = Base::open(&place.store().join("rows.redb")).unwrap();
    let row = key::counter("batch");
    base.commit([(row.as_slice(), Some(&(batch + 1).to_be_bytes()[..]))].into_iter()).unwrap();
    drop(base);
    drop(place.open());
}

/// Has the disk of a file fail to read the block of it that holds these bytes: Btrfs has a checksum of them. Gives where on the disk that is.
fn make_unreadable(disk: &Disk, file: &std::path::Path, bytes: &[u8]) -> Vec<u64> {
    let file = std::fs::File::open(file).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let image = std::fs::File::options().read(true).write(true).open(disk.image()).unwrap();
    let (mut block, mut spoiled) = (vec![0; bytes.len()], Vec::new());
    for at in (0..image.metadata().unwrap().len() - bytes.len() as u64).step_by(4096) {
        image.read_exact_at(&mut block, at).unwrap();
        if block == bytes {
            image.write_all_at(b"spoiled", at + 100).unwrap();
            spoiled.push(at);
        }
    }
    assert!(!spoiled.is_empty());
    // Nothing of it is in memory any more.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    spoiled
}

#[test]
fn rows_that_the_disk_cannot_read_are_damage() {
    let Some(disk) = Disk::formatted("btrfs", 256, &[], "") else { return };
    let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
    drop(place.open());
    let rows = place.store().join("rows.redb");
    let bytes = std::fs::read(&rows).unwrap();
    make_unreadable(&disk, &rows, &bytes[..4096]);
    for repair in [false, true] {
        let error = check(&place.store(), &place.0.path().join("lower"), repair).unwrap_err();
        assert!(error.is_damage() && matches!(error, crate::Error::Io { .. }), "{error:?}");
    }
    assert!(!crate::Error::NoSpace.is_damage());
}

#[test]
fn a_database_of_which_the_disk_cannot_read_what_nobody_needs_is_checked_where_it_is() {
    let Some(disk) = Disk::formatted("btrfs", 256, &[], "") else { return };
    let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
    let lower = place.0.path().join("lower");
    let engine = place.open();
    let (line, view) = branch(&engine);
    for number in 0..300 {
        make(&view, &format!("{number:0200}"), b"");
        engine.checkpoint().unwrap();
    }
    drop((view, engine));
    let rows = place.store().join("rows.redb");
    let bytes = std::fs::read(&rows).unwrap();
    // A page that was written, and may hold anything by now.
    let copy = place.0.path().join("copy");
    let is_free = |at: &usize| {
        let mut spoiled = bytes.clone();
        spoiled[*at..*at + 4096].fill(9);
        std::fs::write(&copy, spoiled).unwrap();
        bytes[*at..*at + 4096].iter().any(|&byte| byte != 0)
            && Base::open(&copy).and_then(|base| base.check()).is_ok_and(|is_whole| is_whole)
    };
    let free = (4096..bytes.len()).step_by(4096).rev().find(is_free).unwrap();
    make_unreadable(&disk, &rows, &bytes[free..free + 4096]);
    // What is made there from now on shares no blocks with it, so that it is read to be copied.
    let store = std::fs::File::open(place.store()).unwrap();
    rustix::fs::ioctl_setflags(&store, rustix::fs::IFlags::NOCOW).unwrap();
    let found = check(&place.store(), &lower, false).unwrap();
    assert!(!found.repaired && found.is_read && found.branches.len() == 1, "{found:?}");
    assert!(found.problems[0].contains("`--repair`"), "{found:?}");
    let found = check(&place.store(), &lower, true).unwrap();
    assert!(found.repaired && found.problems.is_empty(), "{found:?}");
    let view = View::new(place.open(), line, Held::Pen).unwrap();
    view.lookup(ROOT, format!("{:0200}", 299).as_bytes()).unwrap();
}

#[test]
fn a_lower_directory_that_cannot_be_opened_is_no_damage_of_the_store() {
    let place = Place::new();
    std::fs::remove_dir(place.0.path().join("lower")).unwrap();
    let options = Options { background: false, ..Options::default() };
    let refused = Engine::open(&place.store(), &place.0.path().join("lower"), options, Opening::Use).err().unwrap();
    assert_eq!(refused.errno(), rustix::io::Errno::NOENT.raw_os_error());
    let crate::Error::Below { what, .. } = refused else { panic!("{refused:?}") };
    assert!(!crate::Error::Below { what, source: rustix::io::Errno::IO.into() }.is_damage());
}

#[test]
fn a_log_of_which_the_disk_cannot_read_a_block_ends_there() {
    for last in [false, true] {
        let Some(disk) = Disk::formatted("btrfs", 256, &[], "") else { return };
        let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
        let lower = place.0.path().join("lower");
        let engine = place.open();
        let (line, view) = branch(&engine);
        make(&view, "first", b"first");
        engine.sync().unwrap();
        for number in 0..300 {
            make(&view, &format!("{number:0200}"), b"");
            engine.flush().unwrap();
        }
        engine.sync().unwrap();
        drop((view, engine));
        let log = newest_log(&place);
        let bytes = std::fs::read(&log).unwrap();
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        let at = if last { end / 4096 * 4096 } else { 8192 };
        assert!(at >= 8192);
        let until = bytes.len().min(at + 4096);
        let spoiled = make_unreadable(&disk, &log, &bytes[at..until]);
        let ino = log.metadata().unwrap().ino();
        let read = std::fs::read(&log).err().and_then(|error| error.raw_os_error());
        assert_eq!(read, Some(rustix::io::Errno::IO.raw_os_error()));
        let options = Options { background: false, ..Options::default() };
        let refused = Engine::open(&place.store(), &lower, options, Opening::Use).err();
        assert!(matches!(refused, Some(crate::Error::Corrupt(_))), "{refused:?}");
        let found = check(&place.store(), &lower, false).unwrap();
        assert!(!found.repaired && found.problems[0].contains("cannot read all of it"), "{found:?}");
        // Of what is behind another such block nobody knows; here even what is in the last one.
        let is_bounded = |found: &crate::Report| found.problems[0].contains("at least");
        assert_eq!(is_bounded(&found), !last, "{found:?}");
        let found = check(&place.store(), &lower, true).unwrap();
        assert!(!found.repaired && found.problems[0].contains(".damaged"), "{found:?}");
        assert_eq!(is_bounded(&found), !last, "{found:?}");
        // It is kept itself: what the disk can read again is there.
        let kept = log.with_extension("damaged");
        assert_eq!(kept.metadata().unwrap().ino(), ino);
        let image = std::fs::File::options().write(true).open(disk.image()).unwrap();
        spoiled.iter().for_each(|from| image.write_all_at(&bytes[at..until], *from).unwrap());
        assert!(std::fs::read(&kept).unwrap() == bytes, "{at}");
        let found = check(&place.store(), &lower, false).unwrap();
        assert_eq!(found.problems, Vec::<String>::new());
        let engine = place.open();
        let view = View::new(engine.clone(), line, Held::Pen).unwrap();
        assert_eq!(content(&view, "first"), b"first");
    }
}
