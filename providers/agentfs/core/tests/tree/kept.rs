//! What a branch took over of files below is copied behind it, and then it does not matter what becomes of those.

use std::os::unix::fs::{FileExt, PermissionsExt};

use ah_agentfs::{Allocate, BranchId, Error, Options, ROOT, Seek, SetAttr, Workspace};

use crate::{HOLES, Place, at, branch, content, snapshot};

const MIB: usize = 1 << 20;

/// Of three chunks and a bit, no two blocks of it alike.
fn large() -> Vec<u8> {
    (0..3 * MIB + 777).map(|at| (at / 4096 * 7 + at % 251) as u8).collect()
}

/// A large file below of which the branch has changed some bytes, and more after a snapshot.
fn taken_over(place: &Place) -> (Workspace, BranchId, [Vec<u8>; 2]) {
    std::fs::write(place.lower().join("large"), large()).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "large");
    let mut first = large();
    view.write(ino, 5000, b"one").unwrap();
    first[5000..5003].copy_from_slice(b"one");
    snapshot(&workspace, branch);
    let mut second = first.clone();
    view.write(ino, 2 * MIB as u64, &[2; 9000]).unwrap();
    second[2 * MIB..2 * MIB + 9000].fill(2);
    drop(view);
    (workspace, branch, [first, second])
}

#[test]
fn what_was_copied_is_read_whatever_becomes_of_the_file_below() {
    for fate in ["touched", "linked", "closed", "cut", "overwritten", "replaced", "removed"] {
        let place = Place::new();
        let (workspace, branch, [first, second]) = taken_over(&place);
        let snapshots = workspace.snapshots();
        let old = workspace.view_of(snapshots.last().unwrap().id).unwrap();
        let view = workspace.view(branch).unwrap();
        // Known before, as a host has it open.
        assert_eq!(content(&old, "large"), first);
        workspace.copy_taken_over().unwrap();
        let below = place.lower().join("large");
        match fate {
            "touched" => std::fs::File::options()
                .write(true)
                .open(&below)
                .unwrap()
                .set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap(),
            "linked" => std::fs::hard_link(&below, place.lower().join("link")).unwrap(),
            "closed" => std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o000)).unwrap(),
            "cut" => std::fs::File::options().write(true).open(&below).unwrap().set_len(1).unwrap(),
            "overwritten" => std::fs::write(&below, vec![9; 3 * MIB]).unwrap(),
            "replaced" => {
                std::fs::write(place.lower().join("new"), "new").unwrap();
                std::fs::rename(place.lower().join("new"), &below).unwrap();
            }
            _ => std::fs::remove_file(&below).unwrap(),
        }
        assert_eq!(workspace.changed_below(branch).unwrap(), Vec::<Vec<u8>>::new(), "{fate}");
        for _ in 0..2 {
            assert!(content(&old, "large") == first, "{fate}: snapshot");
            assert!(content(&view, "large") == second, "{fate}: branch");
            assert_eq!(view.listxattr(at(&view, "large")).unwrap(), Vec::<Vec<u8>>::new(), "{fate}");
            // A second time from what the disk has.
            workspace.sync().unwrap();
            workspace.checkpoint().unwrap();
        }
        // What comes after that is as ever.
        view.setattr(at(&view, "large"), SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
        view.setattr(at(&view, "large"), SetAttr { size: Some(9000), ..SetAttr::default() }).unwrap();
        assert!(content(&view, "large") == [&second[..100], &[0; 8900]].concat(), "{fate}");
        assert!(content(&old, "large") == first, "{fate}: snapshot");
        drop((old, view, workspace));
        place.check();
    }
}

#[test]
fn it_is_copied_although_the_snapshot_of_that_time_is_gone() {
    let place = Place::new();
    std::fs::write(place.lower().join("large"), large()).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "large");
    view.write(ino, 0, b"ours").unwrap();
    workspace.delete_snapshot(snapshot(&workspace, branch)).unwrap();
    view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    workspace.copy_taken_over().unwrap();
    std::fs::remove_file(place.lower().join("large")).unwrap();
    assert!(content(&view, "large")[4..] == large()[4..]);
    drop((view, workspace));
    place.check();
}

#[test]
fn what_was_not_copied_yet_is_lost_as_before() {
    let place = Place::new();
    let (workspace, branch, _) = taken_over(&place);
    std::fs::File::options().write(true).open(place.lower().join("large")).unwrap().write_all_at(b"x", 0).unwrap();
    workspace.copy_taken_over().unwrap();
    let view = workspace.view(branch).unwrap();
    assert!(matches!(view.read(at(&view, "large"), 0, 10), Err(Error::DataLoss { .. })));
    assert_eq!(view.read(at(&view, "large"), 2 * MIB as u64, 9000).unwrap(), [2; 9000]);
    drop((view, workspace));
    place.check();
}

#[test]
fn the_copy_is_what_is_missing_and_goes_with_what_needs_it() {
    let place = Place::new();
    let file = std::fs::File::create(place.lower().join("sparse")).unwrap();
    file.set_len(40 * MIB as u64).unwrap();
    file.write_all_at(&[7; 8192], 20 * MIB as u64).unwrap();
    drop(file);
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "sparse");
    view.write(ino, 20 * MIB as u64, &[8; 4096]).unwrap();
    assert_eq!(workspace.used(), 4096);
    let id = snapshot(&workspace, branch);
    workspace.copy_taken_over().unwrap();
    assert!(!HOLES || workspace.used() == 8192, "what is nowhere below is nowhere here: {}", workspace.used());
    let used = workspace.used();
    workspace.copy_taken_over().unwrap();
    assert_eq!(workspace.used(), used, "nothing is copied twice");
    std::fs::remove_file(place.lower().join("sparse")).unwrap();
    let old = workspace.view_of(id).unwrap();
    for (what, tree) in [("branch", &view), ("snapshot", &old)] {
        let ino = at(tree, "sparse");
        let start = 20 * MIB as u64;
        assert_eq!(tree.read(ino, start + 4095, 2).unwrap(), [8, 7], "{what}");
        if HOLES {
            assert_eq!(tree.seek(ino, 0, Seek::Data).unwrap(), start, "{what}");
            assert_eq!(tree.seek(ino, start, Seek::Hole).unwrap(), start + 8192, "{what}");
            assert!(matches!(tree.seek(ino, start + 8192, Seek::Data), Err(Error::NoData)), "{what}");
        }
    }
    view.fallocate(ino, 0, 40 * MIB as u64, Allocate::Punch).unwrap();
    assert!(view.read(ino, 0, 40 * MIB).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(old.read(at(&old, "sparse"), 20 * MIB as u64 + 4095, 2).unwrap(), [8, 7]);
    view.unlink(ROOT, b"sparse").unwrap();
    view.forget(ino, 9);
    drop((view, old));
    workspace.delete_snapshot(id).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 0);
    drop(workspace);
    place.check();
}

#[test]
fn what_was_taken_over_without_being_written_is_copied_too() {
    let place = Place::new();
    std::fs::write(place.lower().join("small"), "small").unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "small");
    view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    workspace.copy_taken_over().unwrap();
    std::fs::write(place.lower().join("small"), "other").unwrap();
    assert_eq!(content(&view, "small"), b"small");
    view.write(ino, 0, b"S").unwrap();
    assert_eq!((content(&view, "small"), content(&old, "small")), (b"Small".to_vec(), b"small".to_vec()));
    // A branch of the snapshot has it as well.
    let child = workspace.branch(workspace.snapshots().last().unwrap().id, b"").unwrap();
    assert_eq!(content(&workspace.view(child).unwrap(), "small"), b"small");
}

#[test]
fn what_is_too_large_or_has_no_room_stays_below() {
    let place = Place::new();
    let file = std::fs::File::create(place.lower().join("huge")).unwrap();
    file.set_len(65 * MIB as u64).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    std::fs::write(place.lower().join("large"), large()).unwrap();
    Workspace::create(&place.store(), &place.lower()).unwrap();
    let limit = Some(8 * MIB as u64);
    let workspace = place.open_with(Options { background: false, limit, ..Options::default() });
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    view.write(at(&view, "huge"), MIB as u64, b"x").unwrap();
    view.write(at(&view, "large"), MIB as u64, b"x").unwrap();
    let used = workspace.used();
    workspace.copy_taken_over().unwrap();
    // A disk that shares contents takes what is in the huge one.
    assert!(workspace.used() <= used + 8192, "{}", workspace.used());
    workspace.sync().unwrap();
    drop((view, workspace));
    // With more room it is made up for.
    let workspace = place.open();
    workspace.copy_taken_over().unwrap();
    std::fs::remove_file(place.lower().join("large")).unwrap();
    let view = workspace.look(branch).unwrap();
    assert_eq!(view.read(at(&view, "large"), 0, 4096).unwrap(), large()[..4096]);
    drop((view, workspace));
    place.check();
}

#[test]
fn a_copy_leaves_more_room_than_it_takes() {
    let place = Place::new();
    let huge = std::fs::File::create(place.lower().join("huge")).unwrap();
    huge.set_len(65 * MIB as u64).unwrap();
    huge.write_all_at(&[7; 4096], 0).unwrap();
    std::fs::write(place.lower().join("large"), vec![7; 12 * MIB]).unwrap();
    Workspace::create(&place.store(), &place.lower()).unwrap();
    let with_limit = |limit| place.open_with(Options { background: false, limit: Some(limit), ..Options::default() });
    // Eight times the room of each piece, but not of the whole.
    let workspace = with_limit(24 * MIB as u64);
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for name in ["huge", "large"] {
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        view.setattr(at(&view, name), mode).unwrap();
        workspace.copy_taken_over().unwrap();
        if name == "huge" && workspace.used() > 0 {
            // The disk shares contents: a copy takes nothing.
            return;
        }
    }
    assert_eq!(workspace.used(), 0);
    workspace.sync().unwrap();
    drop((view, workspace));
    let workspace = with_limit(9 * 12 * MIB as u64);
    workspace.copy_taken_over().unwrap();
    assert_eq!(workspace.used(), 12 * MIB as u64);
    drop(workspace);
    place.check();
}

#[test]
fn who_reads_while_a_file_becomes_the_branchs_own_is_not_sent_below() {
    let place = Place::new();
    let names: Vec<String> = (0..300).map(|nth| format!("{nth}")).collect();
    for name in &names {
        std::fs::write(place.lower().join(name), [7; 60_000]).unwrap();
    }
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for name in &names {
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        view.setattr(at(&view, name), mode).unwrap();
    }
    workspace.copy_taken_over().unwrap();
    for name in &names {
        std::fs::remove_file(place.lower().join(name)).unwrap();
    }
    for name in &names {
        let ino = at(&view, name);
        let written = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                while !written.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(view.read(ino, 4096, 60_000).unwrap(), [7; 60_000 - 4096]);
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(300));
            view.write(ino, 0, b"ours").unwrap();
            written.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
    }
}

#[test]
fn it_happens_by_itself() {
    let place = Place::new();
    std::fs::write(place.lower().join("large"), large()).unwrap();
    Workspace::create(&place.store(), &place.lower()).unwrap();
    let workspace = place.open_with(Options::default());
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    view.write(at(&view, "large"), 0, b"ours").unwrap();
    let begun = std::time::Instant::now();
    while workspace.used() < large().len() as u64 {
        assert!(begun.elapsed().as_secs() < 30, "{}", workspace.used());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop((view, workspace));
    place.check();
}

#[test]
fn a_disk_that_shares_contents_takes_files_of_any_size() {
    for kind in ["xfs", "btrfs"] {
        let Some(disk) = ah_test_disks::Disk::new(kind, 400, "") else { return };
        let (lower, store) = (disk.at().join("lower"), disk.at().join("store"));
        std::fs::create_dir(&lower).unwrap();
        let bytes: Vec<u8> = (0..100 * MIB + 5).map(|at| (at / 4096 * 7 + at % 251) as u8).collect();
        std::fs::write(lower.join("huge"), &bytes).unwrap();
        let free = || {
            assert!(std::process::Command::new("sync").arg("-f").arg(disk.at()).status().unwrap().success());
            let stat = rustix::fs::statvfs(disk.at()).unwrap();
            stat.f_bavail * stat.f_frsize
        };
        Workspace::create(&store, &lower).unwrap();
        let options = Options { background: false, ..Options::default() };
        let workspace = Workspace::open(&store, &lower, options).unwrap();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        let ino = at(&view, "huge");
        view.write(ino, 50 * MIB as u64, b"ours").unwrap();
        let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        workspace.sync().unwrap();
        let before = free();
        workspace.copy_taken_over().unwrap();
        workspace.sync().unwrap();
        assert!(before.saturating_sub(free()) < 8 * MIB as u64, "{kind}: {} bytes", before.saturating_sub(free()));
        std::fs::write(lower.join("huge"), b"other").unwrap();
        for tree in [&view, &old] {
            let found = tree.read(at(tree, "huge"), 0, 101 * MIB).unwrap();
            assert!(found.len() == bytes.len() && found[50 * MIB..50 * MIB + 4] == *b"ours", "{kind}");
            assert!(found[..50 * MIB] == bytes[..50 * MIB] && found[50 * MIB + 4..] == bytes[50 * MIB + 4..], "{kind}");
        }
        drop((view, old, workspace));
        let report = Workspace::fsck(&store, &lower, false).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn a_huge_file_that_is_mostly_holes_takes_no_row_for_each_of_them() {
    let Some(disk) = ah_test_disks::Disk::new("xfs", 400, "") else { return };
    let (lower, store) = (disk.at().join("lower"), disk.at().join("store"));
    std::fs::create_dir(&lower).unwrap();
    std::fs::File::create(lower.join("huge")).unwrap().set_len((256 << 30) + 1).unwrap();
    Workspace::create(&store, &lower).unwrap();
    let workspace = Workspace::open(&store, &lower, Options { background: false, ..Options::default() }).unwrap();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    view.write(at(&view, "huge"), 0, b"ours").unwrap();
    let rows = workspace.rows_in_memory();
    workspace.copy_taken_over().unwrap();
    assert!(workspace.rows_in_memory() < rows + 10);
}
