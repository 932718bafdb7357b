//! A disk on which the base has no room any more.

use std::sync::atomic::Ordering;

use ah_test_disks::Disk;

use super::*;
use crate::error::Error;
use crate::rows::key::counter;
use crate::store::base::Base;

const MIB: u64 = 1 << 20;
const NAMES: u32 = 20_000;

/// Names that are in the base, and one in twenty of them changed since: in each of the pages in which those are.
struct Setting {
    place: Place,
    line: u32,
    disk: Disk,
}

impl Setting {
    /// None: skipped.
    fn new() -> Option<Self> {
        let disk = Disk::formatted("ext4", 64, &["-m", "0"], "")?;
        let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
        let engine = place.open();
        let (line, view) = branch(&engine);
        for directory in ["changed", "still"] {
            let parent = view.mkdir(ROOT, directory.as_bytes(), ME).unwrap().ino;
            for n in 0..NAMES {
                view.create(parent, n.to_string().as_bytes(), ME).unwrap();
            }
        }
        engine.checkpoint().unwrap();
        let changed = view.lookup(ROOT, b"changed").unwrap().ino;
        for n in (0..NAMES).step_by(20) {
            let ino = view.lookup(changed, n.to_string().as_bytes()).unwrap().ino;
            view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        }
        engine.sync().unwrap();
        Some(Self { place, line, disk })
    }

    /// Others leave so many bytes.
    fn leave(&self, bytes: u64) {
        let rest = std::fs::File::create(self.disk.at().join("rest")).unwrap();
        let length = self.free() - bytes;
        rustix::fs::fallocate(&rest, rustix::fs::FallocateFlags::empty(), 0, length).unwrap();
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.disk.at()).unwrap();
        stat.f_bavail * stat.f_frsize
    }

    /// As it is used, with a log that is soon so long that its rows have to go to the base.
    fn open(&self) -> Arc<Engine> {
        let options = Options { background: false, log_limit: 4 << 10, ..Options::default() };
        Arc::new(Engine::open(&self.place.store(), &self.place.0.path().join("lower"), options, Opening::Use).unwrap())
    }

    fn view(&self, engine: &Arc<Engine>) -> View {
        View::new(engine.clone(), self.line, Held::Pen).unwrap()
    }
}

/// Makes the log say that it was begun in another boot.
pub(super) fn in_another_boot(place: &Place) {
    for log in std::fs::read_dir(place.store().join("log")).unwrap() {
        let log = log.unwrap().path();
        let mut bytes = std::fs::read(&log).unwrap();
        let end = 8 + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        bytes[end - 1] ^= 1;
        let checksum = crc32fast::hash(&bytes[8..end]).to_le_bytes();
        bytes[4..8].copy_from_slice(&checksum);
        std::fs::write(log, bytes).unwrap();
    }
}

/// All names in a directory are there, and what they lead to.
fn look(view: &View, directory: &str) {
    let directory = view.lookup(ROOT, directory.as_bytes()).unwrap().ino;
    for n in 0..NAMES {
        view.lookup(directory, n.to_string().as_bytes()).unwrap();
    }
}

#[test]
fn nobody_notices_that_a_base_had_no_room() {
    let Some(setting) = Setting::new() else { return };
    // With what the last commit left to be given back it has 2.5 MiB then, and needs some 3.5, now and then a little less.
    setting.leave(MIB / 2);
    let engine = setting.open();
    let view = setting.view(&engine);
    let failed = std::thread::scope(|scope| {
        let looks = scope.spawn(|| look(&view, "still"));
        let failed = engine.checkpoint();
        looks.join().unwrap();
        failed
    });
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    assert!(setting.free() > MIB, "what was written in vain is given back: {}", setting.free());
    for directory in ["still", "changed"] {
        look(&view, directory);
    }
    engine.snapshot(setting.line, b"").unwrap();
    view.create(ROOT, b"new", ME).unwrap();
    // As long as there is no room, the log ends somewhere, but not for what makes some.
    let refused = (0..NAMES).find_map(|n| view.create(ROOT, n.to_string().as_bytes(), ME).and(engine.flush()).err());
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
    view.unlink(ROOT, b"0").unwrap();
    std::fs::remove_file(setting.disk.at().join("rest")).unwrap();
    engine.checkpoint().unwrap();
    drop((view, engine));
    assert!(check(&setting.place.store(), &setting.place.0.path().join("lower"), false).unwrap().problems.is_empty());
    let engine = setting.open();
    let view = setting.view(&engine);
    view.lookup(ROOT, b"new").unwrap();
    look(&view, "changed");
}

#[test]
fn a_store_whose_log_has_no_room_in_the_base_can_be_read_once_it_is_opened() {
    let Some(setting) = Setting::new() else { return };
    in_another_boot(&setting.place);
    setting.leave(3 * MIB / 2);
    let engine = setting.open();
    let view = setting.view(&engine);
    for directory in ["still", "changed"] {
        look(&view, directory);
    }
    assert!(setting.free() > MIB, "{}", setting.free());
}

/// Few rows that changed so often that the log may not grow any more.
#[test]
fn a_long_log_of_few_rows_needs_no_more_room_than_these() {
    let Some(disk) = Disk::formatted("ext4", 64, &["-m", "0"], "") else { return };
    let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
    let options = || Options { background: false, log_limit: 2 << 20, ..Options::default() };
    let open = || Engine::open(&place.store(), &place.0.path().join("lower"), options(), Opening::Use).map(Arc::new);
    let engine = open().unwrap();
    let (_, view) = branch(&engine);
    make(&view, "a", b"content");
    let rest = std::fs::File::create(disk.at().join("rest")).unwrap();
    let free = || {
        let stat = rustix::fs::statvfs(disk.at()).unwrap();
        stat.f_bavail * stat.f_frsize
    };
    let leave = |bytes: u64| {
        let (at, length) = (rest.metadata().unwrap().len(), free() - bytes);
        rustix::fs::fallocate(&rest, rustix::fs::FallocateFlags::empty(), at, length).unwrap();
    };
    // So much that four times the log is never left.
    leave(20 * MIB);
    let long = || engine.log_length.load(std::sync::atomic::Ordering::Relaxed);
    for n in 0..200_000 {
        let (from, to) = if n % 2 == 0 { ("a", "b") } else { ("b", "a") };
        view.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), crate::types::Rename::Replace).unwrap();
        engine.flush().unwrap();
        if long() > 6 * MIB {
            break;
        }
    }
    leave(5 * MIB);
    assert!(long() > 6 * MIB && free() < 6 * MIB, "{} {}", long(), free());
    engine.checkpoint().unwrap();
    assert!(long() < MIB);
    view.create(ROOT, b"new", ME).unwrap();
}

/// So few that nothing is written before the commit is, where the header comes first.
#[test]
fn what_a_small_commit_wrote_in_vain_is_given_back() {
    let Some(disk) = Disk::formatted("ext4", 64, &["-m", "0"], "") else { return };
    let path = disk.at().join("rows.redb");
    Base::create(&path).unwrap();
    let base = Arc::new(Base::open(&path).unwrap());
    let row = |n: u32| counter(&format!("{n:06}"));
    let commit = |rows: &[u32], value: &[u8]| {
        let rows: Vec<_> = rows.iter().map(|n| row(*n)).collect();
        base.commit(rows.iter().map(|row| (row.as_slice(), Some(value))))
    };
    commit(&(0..20_000).collect::<Vec<_>>(), &[1; 200]).unwrap();
    let rest = std::fs::File::create(disk.at().join("rest")).unwrap();
    let free = || {
        let stat = rustix::fs::statvfs(disk.at()).unwrap();
        stat.f_bavail * stat.f_frsize
    };
    rustix::fs::fallocate(&rest, rustix::fs::FallocateFlags::empty(), 0, free() - (16 << 10)).unwrap();
    let left = free();
    let few: Vec<u32> = (0..6).map(|n| n * 3000).collect();
    let refused = commit(&few, &[2; 200]);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    assert!(free() + (4 << 10) >= left, "{} of {left}", free());
    let all = |value: u8| {
        let rows = base.rows().unwrap();
        few.iter().all(|n| rows.get(&row(*n)).unwrap() == Some(vec![value; 200]))
    };
    assert!(all(1));
    std::fs::remove_file(disk.at().join("rest")).unwrap();
    drop(rest);
    commit(&few, &[2; 200]).unwrap();
    assert!(all(2) && base.check().unwrap());
}

#[test]
fn what_was_below_a_base_goes_from_a_full_disk_whose_reserve_is_spent() {
    let Some(disk) = Disk::formatted("ext4", 64, &["-m", "0"], "") else { return };
    let place = Place::of(tempfile::tempdir_in(disk.at()).unwrap());
    (0..300).for_each(|n| std::fs::write(place.0.path().join(format!("lower/{n}")), [n as u8; 5000]).unwrap());
    let engine = place.open();
    let (snapshot, base) = engine.base(b"", true).unwrap();
    engine.remember_names(base).unwrap();
    engine.take_fingerprints(base).unwrap();
    let line = engine.branch(snapshot, b"").unwrap();
    engine.sync().unwrap();
    let pins = || {
        let mut count = 0;
        let count_them = &mut |pins: &[_]| {
            count += pins.len();
            Ok(())
        };
        engine.pins.list(count_them).unwrap();
        count
    };
    assert!(pins() > 200, "{}", pins());
    let setting = Setting { place, line, disk };
    std::fs::remove_file(setting.place.store().join("reserve")).unwrap();
    engine.reserve_is_spent.store(true, Ordering::Relaxed);
    setting.leave(MIB);
    engine.delete_branch(line).unwrap();
    engine.delete_snapshot(snapshot).unwrap();
    engine.reclaim_space().unwrap();
    assert!(read_lock(&engine.state).lines.is_empty());
    assert_eq!(pins(), 0);
}
