//! What the disk has lost is an error for who needs it and is told by fsck, whatever is written afterwards.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ah_agentfs::{Class, Error, Options, View, Workspace};

use crate::{HOLES, Place, at, branch, content, in_another_boot, make};

/// Of a store that is not open.
fn problems(place: &Place) -> Vec<String> {
    Workspace::fsck(&place.store(), &place.lower(), false).unwrap().problems
}

fn is_lost(view: &View, path: &str) -> bool {
    matches!(view.read(at(view, path), 0, 1 << 24), Err(Error::Corrupt(_)))
}

#[test]
fn a_segment_that_is_missing_or_short_stays_so_whatever_is_written() {
    for cut in [None, Some(60_000)] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "old", &[7; 100_000]);
        let snapshot = workspace.snapshot(branch, b"", Class::Durable).unwrap();
        make(&view, "in place", &[8; 100_000]);
        make(&view, "removed", &[9; 100_000]);
        workspace.sync().unwrap();
        drop((view, workspace));
        let segment = place.store().join("data/0000000000");
        match cut {
            None => std::fs::remove_file(&segment).unwrap(),
            Some(length) => std::fs::File::options().write(true).open(&segment).unwrap().set_len(length).unwrap(),
        }
        let is_as_it_was = || std::fs::metadata(&segment).map_or(cut.is_none(), |found| Some(found.len()) == cut);
        let names = ["contents of old are lost in snapshot", "contents of in place are lost in branch"];
        let found = problems(&place);
        let tells = |name: &&str| found.iter().any(|problem| problem.starts_with(name));
        assert!(names.iter().all(tells), "{cut:?}: {found:?}");
        for round in 0..2 {
            let workspace = place.open();
            let view = workspace.view(branch).unwrap();
            make(&view, &format!("new{round}"), &[round + 1; 5000]);
            let refused = view.write(at(&view, "in place"), 0, &[1; 5000]);
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{cut:?}: {refused:?}");
            if round == 1 {
                let ino = at(&view, "removed");
                view.unlink(1, b"removed").unwrap();
                view.forget(ino, 1);
            }
            workspace.sync().unwrap();
            assert!(is_lost(&view, "old") && is_lost(&view, "in place"), "{cut:?}");
            assert!(is_lost(&workspace.view_of(snapshot).unwrap(), "old"), "{cut:?}");
            for nth in 0..=round {
                assert_eq!(content(&view, &format!("new{nth}")), [nth + 1; 5000], "{cut:?}");
            }
            drop((view, workspace));
            assert!(is_as_it_was() && !problems(&place).is_empty(), "{cut:?}");
        }
    }
}

#[test]
fn contents_of_the_log_bring_no_segment_back_as_zeros() {
    for cut in [None, Some(20_000)] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "old", &[7; 100_000]);
        workspace.sync().unwrap();
        make(&view, "late", &[8; 5000]);
        workspace.snapshot(branch, b"", Class::Durable).unwrap();
        drop((view, workspace));
        in_another_boot(&place.store());
        let segment = place.store().join("data/0000000000");
        match cut {
            None => std::fs::remove_file(&segment).unwrap(),
            Some(length) => std::fs::File::options().write(true).open(&segment).unwrap().set_len(length).unwrap(),
        }
        let before = files(&place);
        let tells = || problems(&place).iter().any(|problem| problem.starts_with("contents of old are lost"));
        assert!(tells(), "{cut:?}: before it is written again");
        assert!(files(&place) == before, "{cut:?}: a check changes nothing");
        for round in 0..3 {
            let workspace = place.open();
            let view = workspace.view(branch).unwrap();
            assert!(is_lost(&view, "old"), "{cut:?} {round}");
            assert_eq!(content(&view, "late"), [8; 5000], "{cut:?} {round}");
            if round == 1 {
                make(&view, "new", &[1; 5000]);
                workspace.checkpoint().unwrap();
            }
            // The first is killed at once.
            drop((view, workspace));
            assert!(tells(), "{cut:?} {round}");
            in_another_boot(&place.store());
        }
        assert!(!Workspace::fsck(&place.store(), &place.lower(), true).unwrap().repaired, "{cut:?}");
        let workspace = place.open();
        let view = workspace.view(branch).unwrap();
        assert!(is_lost(&view, "old"), "{cut:?}");
        assert_eq!(content(&view, "new"), [1; 5000], "{cut:?}");
    }
}

/// All files of a store but the one that says who has it open, and the database, which writes of itself when it is opened and closed; and what they hold.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![place.store()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if !path.ends_with("lock") && !path.ends_with("rows.redb") {
                found.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    found
}

fn newest_log(place: &Place) -> PathBuf {
    let logs = std::fs::read_dir(place.store().join("log")).unwrap().map(|log| log.unwrap().path());
    logs.filter(|log| log.extension().is_some_and(|is| is == "log")).max().unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

fn is_refused(place: &Place) -> bool {
    let options = Options { background: false, ..Options::default() };
    matches!(Workspace::open(&place.store(), &place.lower(), options), Err(Error::Corrupt(_)))
}

#[test]
fn a_log_that_is_missing_empty_or_unreadable_is_a_loss_and_can_be_put_back() {
    for how in ["removed", "emptied", "its header damaged"] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "early", &[3; 50_000]);
        workspace.checkpoint().unwrap();
        workspace.sync().unwrap();
        make(&view, "late", &[7; 50_000]);
        let snapshot = workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
        drop((view, workspace));
        let log = newest_log(&place);
        let whole = std::fs::read(&log).unwrap();
        let damage = || match how {
            "removed" => std::fs::remove_file(&log).unwrap(),
            "emptied" => std::fs::File::options().write(true).open(&log).unwrap().set_len(0).unwrap(),
            _ => flip(&log, 12),
        };
        damage();
        let damaged = files(&place);
        let report = Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
        assert!(!report.problems.is_empty() && !report.repaired, "{how}: {report:?}");
        let is_known = how == "its header damaged";
        assert_eq!(report.problems[0].contains("nobody knows how much"), !is_known, "{how}: {report:?}");
        assert!(is_refused(&place), "{how}");
        assert!(files(&place) == damaged, "{how}: without `repair` nothing is mended");
        // It may be found again.
        std::fs::write(&log, &whole).unwrap();
        let workspace = place.open();
        assert_eq!(content(&workspace.view_of(snapshot).unwrap(), "late"), [7; 50_000], "{how}");
        drop(workspace);
        damage();
        let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
        assert!(!report.problems.is_empty() && !report.repaired, "{how}: {report:?}");
        let workspace = place.open();
        let view = workspace.view(branch).unwrap();
        assert_eq!(content(&view, "early"), [3; 50_000], "{how}");
        assert!(view.lookup(1, b"late").is_err() && workspace.view_of(snapshot).is_err(), "{how}");
        make(&view, "new", &[1; 5000]);
        workspace.sync().unwrap();
        drop((view, workspace));
        assert_eq!(problems(&place), Vec::<String>::new(), "{how}");
    }
}

#[test]
fn a_check_changes_nothing() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "early", &[3; 50_000]);
    workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
    let ino = make(&view, "open", &[4; 50_000]);
    view.unlink(1, b"open").unwrap();
    workspace.sync().unwrap();
    drop(view);
    drop(workspace);
    let _ = ino;
    in_another_boot(&place.store());
    // A torn end.
    let log = newest_log(&place);
    let length = std::fs::read(&log).unwrap().iter().rposition(|&byte| byte != 0).unwrap() as u64;
    std::fs::File::options().write(true).open(&log).unwrap().write_all_at(&[9; 50], length + 30).unwrap();
    std::fs::remove_file(place.store().join("reserve")).unwrap();
    let before = files(&place);
    place.check();
    assert!(files(&place) == before);
}

/// A store in which contents were given back behind what can be read of the log: by removing a file, by another that took its place, by
/// deleting the snapshot that had them.
fn given_back(how: &str) -> (Place, ah_agentfs::BranchId, ah_agentfs::SnapshotId) {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = make(&view, "file", &[7; 100_000]);
    make(&view, "other", &[6; 100_000]);
    let snapshot = workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
    if how != "snapshot" {
        // So that nothing else needs it.
        workspace.delete_snapshot(snapshot).unwrap();
        workspace.reclaim().unwrap();
    } else {
        view.write(ino, 0, &[8; 100_000]).unwrap();
    }
    workspace.sync().unwrap();
    let log = newest_log(&place);
    let early = std::fs::read(&log).unwrap().iter().rposition(|&byte| byte != 0).unwrap() as u64 + 1;
    make(&view, "between", b"x");
    workspace.sync().unwrap();
    match how {
        "unlink" => {
            view.unlink(1, b"file").unwrap();
            view.forget(ino, 1);
        }
        "rename" => {
            make(&view, "file.new", &[9; 100_000]);
            view.rename(1, b"file.new", 1, b"file", ah_agentfs::Rename::Replace).unwrap();
            view.forget(ino, 1);
        }
        _ => {
            workspace.delete_snapshot(snapshot).unwrap();
            workspace.reclaim().unwrap();
        }
    }
    drop(view);
    workspace.sync().unwrap();
    workspace.sync().unwrap();
    drop(workspace);
    flip(&log, early + 30);
    (place, branch, snapshot)
}

#[test]
fn what_a_cut_log_brings_back_without_its_contents_is_lost_and_no_zeros() {
    if !HOLES {
        return;
    }
    // As `fsck` does it: elsewhere it is told only that there may be zeros.
    #[cfg(target_os = "linux")]
    {
        let stat = rustix::fs::statfs(std::env::temp_dir()).unwrap();
        if ![0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994].contains(&(stat.f_type as u64 & 0xFFFF_FFFF)) {
            return;
        }
    }
    for how in ["unlink", "rename", "snapshot"] {
        let (place, branch, snapshot) = given_back(how);
        let log = newest_log(&place);
        let damaged = std::fs::read(&log).unwrap();
        let written = damaged.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        // It is said what would go.
        let found = problems(&place);
        assert!(found.len() == 1 && found[0].contains("batches"), "{how}: {found:?}");
        let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
        assert!(report.problems.len() > 1 && !report.repaired, "{how}: {report:?}");
        assert!(report.problems.iter().any(|problem| problem.contains("copied sparsely")), "{how}: {report:?}");
        assert!(std::fs::read(log.with_extension("damaged")).unwrap()[..] == damaged[..written], "{how}: it is kept");
        for round in 0..2 {
            let workspace = place.open();
            let view = match how {
                "snapshot" => workspace.view_of(snapshot).unwrap(),
                _ => workspace.view(branch).unwrap(),
            };
            assert!(is_lost(&view, "file"), "{how}");
            assert_eq!(content(&view, "other"), [6; 100_000], "{how}");
            drop(view);
            let view = workspace.view(branch).unwrap();
            if how != "snapshot" {
                assert!(matches!(view.write(at(&view, "file"), 5, b"x"), Err(Error::Corrupt(_))), "{how}");
            }
            make(&view, &format!("new{round}"), &[1; 5000]);
            workspace.checkpoint().unwrap();
            workspace.sync().unwrap();
            drop((view, workspace));
            let again = Workspace::fsck(&place.store(), &place.lower(), round > 0).unwrap();
            assert!(!again.problems.is_empty() && !again.repaired, "{how}: {again:?}");
        }
        // What is lost can be removed, and all is well then.
        let workspace = place.open();
        if how == "snapshot" {
            workspace.delete_snapshot(snapshot).unwrap();
        } else {
            let view = workspace.view(branch).unwrap();
            let ino = at(&view, "file");
            view.unlink(1, b"file").unwrap();
            view.forget(ino, 1);
        }
        workspace.reclaim().unwrap();
        workspace.sync().unwrap();
        drop(workspace);
        assert!(Workspace::fsck(&place.store(), &place.lower(), true).unwrap().repaired, "{how}");
        assert_eq!(problems(&place), Vec::<String>::new(), "{how}");
    }
}

/// A store with a file below that was pinned and removed then, the branch in which it is, and its pin.
fn pinned() -> (Place, ah_agentfs::BranchId, PathBuf) {
    let place = Place::pinned();
    std::fs::write(place.lower().join("below"), [4; 50_000]).unwrap();
    let workspace = place.create();
    let base = workspace.base_with_names(b"").unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    workspace.take_fingerprints(base).unwrap();
    std::fs::remove_file(place.lower().join("below")).unwrap();
    assert_eq!(content(&workspace.view(branch).unwrap(), "below"), [4; 50_000]);
    workspace.sync().unwrap();
    drop(workspace);
    let pin = files(&place).into_keys().find(|path| path.starts_with(place.store().join("pins")));
    (place, branch, pin.unwrap())
}

/// Does it as a user who may not read everything.
fn as_another<T: Send>(place: &Place, work: impl FnOnce() -> T + Send) -> T {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    let user = 65_534;
    let mut directories = vec![place.store().parent().unwrap().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
            directories.extend(path.is_dir().then_some(path));
        }
        std::os::unix::fs::chown(&directory, Some(user), Some(user)).unwrap();
    }
    // Of one thread, which ends then.
    let as_user = move || {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join().unwrap())
}

#[test]
fn a_pin_that_cannot_be_read_stays_and_is_told() {
    let (place, branch, pin) = pinned();
    std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o000)).unwrap();
    for repair in [false, true] {
        let report = as_another(&place, || Workspace::fsck(&place.store(), &place.lower(), repair).unwrap());
        assert!(report.problems.len() == 1 && !report.repaired, "{repair}: {report:?}");
    }
    std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o600)).unwrap();
    let read = || content(&place.open().view(branch).unwrap(), "below");
    assert_eq!(as_another(&place, read), [4; 50_000]);
}

#[test]
fn what_a_damaged_pin_alone_held_is_lost_and_named() {
    for is_below in [true, false] {
        let (place, _, pin) = pinned();
        let below = place.lower().join("below");
        if is_below {
            // With the same contents, in a base of its own: what is there then needs no pin.
            std::fs::write(&below, [4; 50_000]).unwrap();
            let workspace = place.open();
            let base = workspace.base_with_names(b"").unwrap();
            workspace.take_fingerprints(base).unwrap();
            let old = workspace.branches();
            for branch in old {
                workspace.delete_branch(branch.id).unwrap();
            }
            let first = workspace.snapshots().into_iter().map(|snapshot| snapshot.id).min().unwrap();
            workspace.delete_snapshot(first).unwrap();
            workspace.reclaim().unwrap();
            workspace.sync().unwrap();
        }
        std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::File::options().write(true).open(&pin).unwrap().write_all_at(b"x", 100).unwrap();
        let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
        let names = report.problems.iter().any(|problem| problem.contains("below held"));
        assert!(report.repaired == is_below && names != is_below && !pin.exists(), "{is_below}: {report:?}");
    }
}

#[test]
fn what_a_damaged_pin_held_is_not_said_to_be_lost_where_what_is_below_cannot_be_looked_at() {
    let (place, _, pin) = pinned();
    std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::File::options().write(true).open(&pin).unwrap().write_all_at(b"x", 100).unwrap();
    // Its names may be read, and nothing of what they lead to.
    std::fs::set_permissions(place.lower(), std::fs::Permissions::from_mode(0o400)).unwrap();
    let report = as_another(&place, || Workspace::fsck(&place.store(), &place.lower(), false).unwrap());
    std::fs::set_permissions(place.lower(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let of_it: Vec<_> = report.problems.iter().filter(|problem| problem.contains("below held")).collect();
    assert!(
        of_it.len() == 1 && of_it[0].contains("cannot be looked at") && !of_it[0].contains("is lost"),
        "{report:?}"
    );
    assert!(!report.repaired);
}

#[test]
fn where_a_part_of_the_database_cannot_be_read_the_rest_is_checked_and_it_is_told_what_can_not() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "content", &[7; 100_000]);
    for nth in 0..3000 {
        make(&view, &format!("some-name-{nth:04}"), b"");
    }
    workspace.checkpoint().unwrap();
    workspace.sync().unwrap();
    drop((view, workspace));
    let rows = place.store().join("rows.redb");
    let whole = std::fs::read(&rows).unwrap();
    let name = whole.windows(14).position(|window| window == b"some-name-0999").unwrap();
    // Of how many rows it has; where the key of one ends.
    for (what, at) in [("count", 3), ("key", 6)] {
        flip_bit(&rows, (name / 4096 * 4096 + at) as u64);
        std::fs::File::options()
            .write(true)
            .open(place.store().join("data/0000000000"))
            .unwrap()
            .set_len(60_000)
            .unwrap();
        for repair in [false, true] {
            let report = Workspace::fsck(&place.store(), &place.lower(), repair).unwrap();
            let tells = |what: &str| report.problems.iter().any(|problem| problem.contains(what));
            assert!(!report.repaired && tells("database") && tells("cp -a"), "{what}, {repair}: {report:?}");
            assert!(tells("beyond the end"), "{what}, {repair}: {report:?}");
            assert!(report.branches.len() == 1 && report.rows > 3000, "{what}, {repair}: {report:?}");
        }
        std::fs::write(&rows, &whole).unwrap();
    }
}

fn flip_bit(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}
