//! Space: what is deleted comes back, what a snapshot holds is known, and a full store damages nothing.

use ah_agentfs::{Allocate, Error, Options, ROOT, Seek, SetAttr};
use proptest::prelude::*;

use crate::{HOLES, Place, at, branch, content, everything, in_another_boot, make, snapshot};

const MIB: u64 = 1 << 20;

#[test]
fn deleting_gives_back_what_only_the_deleted_held() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = make(&view, "file", &vec![1; 4 * MIB as usize]);
    let first = snapshot(&workspace, branch);
    view.write(ino, 0, &vec![2; MIB as usize]).unwrap();
    let second = snapshot(&workspace, branch);
    view.write(ino, 0, &vec![3; 2 * MIB as usize]).unwrap();
    let child = workspace.branch(second, b"child").unwrap();
    workspace.sync().unwrap();
    assert_eq!(workspace.used(), 7 * MIB);
    assert_eq!((workspace.usage(&[first]).unwrap(), workspace.usage(&[second]).unwrap()), (MIB, 0));
    workspace.checkpoint().unwrap();
    assert_eq!((workspace.usage(&[first]).unwrap(), workspace.usage(&[second]).unwrap()), (MIB, 0));
    let on_disk = place.data_on_disk();
    assert!(on_disk >= 7 * MIB);

    workspace.delete_snapshot(first).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 6 * MIB);
    assert!(!HOLES || place.data_on_disk() <= on_disk - MIB, "the disk has it back");
    // The child still needs it.
    workspace.delete_snapshot(second).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 6 * MIB);
    let of_child = workspace.view(child).unwrap();
    assert_eq!(content(&of_child, "file")[MIB as usize - 1..=MIB as usize], [2, 1]);
    drop(of_child);
    workspace.delete_branch(child).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 4 * MIB);
    // Now there is nothing between the base and the present: a change gives back at once what it replaces.
    view.write(ino, 0, &vec![4; MIB as usize]).unwrap();
    view.setattr(ino, SetAttr { size: Some(MIB), ..SetAttr::default() }).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), MIB);
    assert!(content(&view, "file").iter().all(|&byte| byte == 4));
    drop(view);
    workspace.delete_branch(branch).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!((workspace.used(), if HOLES { place.data_on_disk() } else { 0 }), (0, 0));
    drop(workspace);
    place.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// What snapshots are said to hold together is, to the block, what comes back.
    #[test]
    fn what_snapshots_hold_together_is_known(
        steps in proptest::collection::vec((0u8..12, 0u64..600, 1u64..300), 20..120),
        gone in any::<u64>(),
        checkpoint in any::<bool>(),
    ) {
        let place = Place::new();
        std::fs::write(place.lower().join("below"), vec![7; 700 * 4096]).unwrap();
        let workspace = place.create();
        let mut branch = branch(&workspace);
        let mut view = workspace.view(branch).unwrap();
        make(&view, "file", &vec![1; 600 * 4096]);
        let mut taken = Vec::new();
        for (n, (what, at, length)) in steps.into_iter().enumerate() {
            let name = if at % 3 == 0 { "below" } else { "file" };
            match what {
                0..4 => {
                    let size = view.getattr(self::at(&view, name)).unwrap().size;
                    let bytes = vec![n as u8; (length * 4096) as usize];
                    view.write(self::at(&view, name), (at * 4096).min(size), &bytes).unwrap();
                }
                4 => view.fallocate(self::at(&view, name), at * 4096, length * 4096, Allocate::Punch).unwrap(),
                5 => drop(view.setattr(self::at(&view, name), SetAttr { size: Some(at * 4096), ..SetAttr::default() }).unwrap()),
                6 => {
                    view.unlink(ROOT, b"file").unwrap();
                    make(&view, "file", &vec![n as u8; (length * 4096) as usize]);
                }
                7 if length % 4 == 0 && !taken.is_empty() => {
                    branch = workspace.branch(taken[at as usize % taken.len()], format!("b{n}").as_bytes()).unwrap();
                    view = workspace.view(branch).unwrap();
                }
                _ => taken.push(snapshot(&workspace, branch)),
            }
        }
        drop(view);
        if checkpoint {
            workspace.checkpoint().unwrap();
        }
        workspace.reclaim().unwrap();
        let picked = |bits: u64, n: usize| bits >> (n % 64) & 1 == 1;
        let numbered = || taken.iter().copied().enumerate();
        let going: Vec<_> = numbered().filter(|(n, _)| picked(gone, *n)).map(|(_, id)| id).collect();
        for (_, id) in numbered().filter(|(n, _)| picked(gone.rotate_left(7) & !gone, *n)) {
            workspace.delete_snapshot(id).unwrap();
        }
        let early = workspace.usage(&going).unwrap();
        workspace.reclaim().unwrap();
        let (held, before) = (workspace.usage(&going).unwrap(), workspace.used());
        going.iter().for_each(|id| workspace.delete_snapshot(*id).unwrap());
        prop_assert_eq!(workspace.usage(&going).unwrap(), 0);
        workspace.reclaim().unwrap();
        prop_assert_eq!(held, before - workspace.used());
        prop_assert!(early <= held, "what was deleted before comes back anyway");
        drop(workspace);
        place.check();
    }
}

#[test]
fn deleting_takes_up_where_a_crash_left_it() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "file", &vec![1; MIB as usize]);
    let id = snapshot(&workspace, branch);
    view.unlink(ROOT, b"file").unwrap();
    view.forget(2, 1);
    workspace.delete_snapshot(id).unwrap();
    workspace.sync().unwrap();
    drop((view, workspace));
    let workspace = place.open();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 0);
    drop(workspace);
    place.check();
}

#[test]
fn huge_holes_take_no_time() {
    let place = Place::new();
    std::fs::File::create(place.lower().join("below")).unwrap().set_len(1 << 43).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let (end, far) = (1 << 60, (1 << 59) + 5);
    for name in ["ours", "below"].into_iter().filter(|&name| HOLES || name == "ours") {
        let ino = if name == "ours" { make(&view, name, &[1; 5000]) } else { at(&view, name) };
        view.setattr(ino, SetAttr { size: Some(end), ..SetAttr::default() }).unwrap();
        view.write(ino, far, b"far").unwrap();
        assert_eq!(view.seek(ino, 1 << 20, Seek::Data).unwrap(), far / 4096 * 4096);
        assert!(matches!(view.seek(ino, far + 4096, Seek::Data), Err(Error::NoData)));
        assert_eq!(view.seek(ino, 1 << 20, Seek::Hole).unwrap(), 1 << 20);
        view.fallocate(ino, (1 << 43) + 10, end - (1 << 43) - 10, Allocate::Punch).unwrap();
        assert!(matches!(view.seek(ino, 1 << 20, Seek::Data), Err(Error::NoData)));
        assert_eq!(view.read(ino, far, 3).unwrap(), [0; 3]);
    }
    assert_eq!(view.read(at(&view, "ours"), 4999, 2).unwrap(), [1, 0]);
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 8192);
    drop((view, workspace));
    place.check();
}

#[test]
fn a_full_store_refuses_to_write_and_nothing_else() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    drop(workspace);
    let workspace = place.open_with(Options { limit: Some(4 * MIB), background: false, ..Options::default() });
    let view = workspace.view(branch).unwrap();
    let ino = make(&view, "file", &vec![1; 3 * MIB as usize]);
    let id = snapshot(&workspace, branch);
    let before = everything(&view);
    let error = view.write(ino, MIB / 2, &vec![2; 2 * MIB as usize]).unwrap_err();
    assert!(matches!(error, Error::NoSpace));
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error());
    assert_eq!(everything(&view), before, "a write that fails changes nothing");
    view.write(ino, 0, &[2; 4096]).unwrap();
    assert_eq!(view.statfs().unwrap().free, MIB - 4096);
    view.unlink(ROOT, b"file").unwrap();
    view.forget(ino, 9);
    workspace.delete_snapshot(id).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 0);
    make(&view, "file", &vec![3; 4 * MIB as usize]);
    drop((view, workspace));
    place.check();
}

#[test]
fn a_file_is_told_to_take_what_it_takes() {
    let place = Place::new();
    // Of the files below, one is a hole but for a block.
    let sparse = std::fs::File::create(place.lower().join("sparse")).unwrap();
    sparse.set_len(64 * MIB).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 4096], 5 * MIB).unwrap();
    std::fs::write(place.lower().join("small"), [2; 5000]).unwrap();
    sparse.sync_all().unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let blocks = |ino| view.getattr(ino).unwrap().blocks;
    let file = make(&view, "file", b"");
    assert_eq!(blocks(file), 0);
    view.setattr(file, SetAttr { size: Some(64 * MIB), ..SetAttr::default() }).unwrap();
    // None at all would say that nothing need be read.
    assert_eq!(blocks(file), 1);
    // All that is in use is this file's, once nothing else holds what it held.
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    view.write(file, 0, &[1; 4096]).unwrap();
    for round in 0..60 {
        let (at, length) = (random(8 * MIB), random(2 * MIB) + 1);
        let taken = (round % 7 == 0).then(|| snapshot(&workspace, branch));
        match random(5) {
            0 => view.fallocate(file, at, length, Allocate::Punch).unwrap(),
            1 => view.fallocate(file, at, length, Allocate::Zero).unwrap(),
            2 => drop(view.setattr(file, SetAttr { size: Some(at + 1), ..SetAttr::default() }).unwrap()),
            _ => assert_eq!(view.write(file, at, &vec![3; length as usize]).unwrap(), length as usize),
        }
        if let Some(taken) = taken {
            workspace.delete_snapshot(taken).unwrap();
            workspace.reclaim().unwrap();
        }
        workspace.sync().unwrap();
        assert_eq!(blocks(file) * 512, workspace.used().max(512), "round {round}, {at}, {length}");
    }
    view.setattr(file, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    workspace.sync().unwrap();
    assert_eq!((blocks(file), workspace.used()), (0, 0));
    if HOLES {
        let sparse = at(&view, "sparse");
        assert!((1..=1024).contains(&blocks(sparse)), "{}", blocks(sparse));
        view.setattr(sparse, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        view.write(sparse, 20 * MIB, &[4; 8192]).unwrap();
        assert!((17..=1040).contains(&blocks(sparse)), "{}", blocks(sparse));
    }
    // Small ones are copied whole, and what they took below counts no more.
    let small = at(&view, "small");
    view.write(small, 0, b"x").unwrap();
    assert_eq!(blocks(small), 16);
    view.setattr(small, SetAttr { size: Some(MIB), ..SetAttr::default() }).unwrap();
    assert_eq!(blocks(small), 16);
    workspace.sync().unwrap();
    drop((view, workspace));
    place.check();
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    assert_eq!(view.getattr(at(&view, "small")).unwrap().blocks, 16);
}

#[test]
fn holes_are_seen_and_cost_nothing() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = make(&view, "file", b"");
    view.setattr(ino, SetAttr { size: Some(1 << 40), ..SetAttr::default() }).unwrap();
    view.write(ino, 10 * MIB, &[1; 8192]).unwrap();
    assert_eq!(view.seek(ino, 0, Seek::Data).unwrap_or_default(), 10 * MIB);
    assert_eq!(view.seek(ino, 10 * MIB + 5, Seek::Hole).unwrap(), 10 * MIB + 8192);
    assert_eq!(workspace.used(), 8192);
    let old = snapshot(&workspace, branch);
    view.fallocate(ino, 10 * MIB + 100, 5000, Allocate::Punch).unwrap();
    let bytes = view.read(ino, 10 * MIB, 8192).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == u8::from(!(100..5100).contains(&at))));
    view.fallocate(ino, 10 * MIB, 8192, Allocate::Punch).unwrap();
    assert_eq!(workspace.view_of(old).unwrap().read(ino, 10 * MIB + 100, 1).unwrap(), [1]);
    view.setattr(ino, SetAttr { size: Some(20 * MIB), ..SetAttr::default() }).unwrap();
    assert!(matches!(view.seek(ino, 0, Seek::Data), Err(Error::NoData)));
    view.fallocate(ino, 20 * MIB, 10, Allocate::Keep).unwrap();
    assert_eq!(view.getattr(ino).unwrap().size, 20 * MIB);
    view.fallocate(ino, 20 * MIB, 10, Allocate::Extend).unwrap();
    assert_eq!(view.getattr(ino).unwrap().size, 20 * MIB + 10);
    assert!(matches!(view.write(ino, u64::MAX - 1, b"xx"), Err(Error::FileTooLarge)));
    workspace.delete_snapshot(old).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 0);
    drop((view, workspace));
    place.check();
}

/// A small disk of its own, which takes root; elsewhere the store's limit above is what is tested.
pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    pub(crate) fn new() -> Option<Self> {
        let disk = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=40m", "agentfs-test"])
            .arg(disk.path())
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "a small disk of its own takes root");
            eprintln!("skipped: mounting a small disk takes root");
        }
        mounted.then_some(Self(disk))
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn a_store_on_a_full_disk_opens_after_a_power_cut() {
    for reserve in [true, false] {
        let place = Place::new();
        let Some(disk) = Disk::new() else { return };
        let store = disk.path().join("store");
        ah_agentfs::Workspace::create(&store, &place.lower()).unwrap();
        let options = Options { background: false, ..Options::default() };
        let open = || ah_agentfs::Workspace::open(&store, &place.lower(), options.clone()).unwrap();
        let workspace = open();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "kept", b"kept");
        let id = snapshot(&workspace, branch);
        workspace.sync().unwrap();
        drop((view, workspace));
        let rest = disk.path().join("rest");
        let _ = std::fs::write(&rest, vec![0; 64 * MIB as usize]);
        if !reserve {
            // Room for a log's beginning, and for no more.
            std::fs::remove_file(store.join("reserve")).unwrap();
            let file = std::fs::OpenOptions::new().append(true).open(&rest).unwrap();
            let _ = std::io::Write::write_all(&mut &file, &vec![0; 64 * MIB as usize]);
            file.set_len(file.metadata().unwrap().len() / 4096 * 4096 - (64 << 10)).unwrap();
        }
        for _ in 0..3 {
            in_another_boot(&store);
            let workspace = open();
            assert_eq!(content(&workspace.view(branch).unwrap(), "kept"), b"kept");
        }
        let workspace = open();
        workspace.delete_snapshot(id).unwrap();
        drop(workspace);
        std::fs::remove_file(rest).unwrap();
        let workspace = open();
        assert_eq!(content(&workspace.view(branch).unwrap(), "kept"), b"kept");
        assert_eq!(workspace.snapshots().len(), 1, "the base alone");
        drop(workspace);
        assert_whole(&store, &place);
    }
}

#[test]
fn a_real_full_disk_damages_nothing() {
    let place = Place::new();
    let Some(disk) = Disk::new() else { return };
    let store = disk.path().join("store");
    ah_agentfs::Workspace::create(&store, &place.lower()).unwrap();
    let open = || ah_agentfs::Workspace::open(&store, &place.lower(), Options::default()).unwrap();
    let workspace = open();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "kept", &vec![7; MIB as usize]);
    let id = snapshot(&workspace, branch);
    let short = make(&view, "short", &vec![8; MIB as usize]);
    let doomed = snapshot(&workspace, branch);
    view.unlink(ROOT, b"short").unwrap();
    view.forget(short, 1);
    let ino = make(&view, "file", b"");
    let mut written = 0;
    let error = loop {
        match view.write(ino, written, &vec![1; 128 << 10]) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        assert!(written < 100 * MIB);
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    // Somebody else takes the rest.
    let rest = disk.path().join("rest");
    let _ = std::fs::write(&rest, vec![0; 64 * MIB as usize]);
    let mut made = 0;
    let refused = loop {
        match view.create(ROOT, format!("name{made}").as_bytes(), crate::ME) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 1_000_000);
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(matches!(workspace.sync(), Err(Error::NoSpace)));
    // Nothing more is said to be done that a killed process would lose, but what makes room.
    let root = view.getattr(ROOT).unwrap();
    let renamed = view.rename(ROOT, b"name0", ROOT, b"renamed", ah_agentfs::Rename::Replace);
    assert!(matches!(renamed, Err(Error::NoSpace)), "{renamed:?}");
    let stamped = view.setattr(ROOT, ah_agentfs::SetAttr { mode: Some(root.mode ^ 1), ..Default::default() });
    assert!(matches!(stamped, Err(Error::NoSpace)), "{stamped:?}");
    view.unlink(ROOT, b"name0").unwrap();
    made -= 1;
    let full = workspace.used();
    workspace.delete_snapshot(doomed).unwrap();
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), full - MIB, "deleting works on a disk that others have filled");
    assert_eq!(view.getattr(ino).unwrap().size, written);
    assert_eq!(content(&view, "kept"), vec![7; MIB as usize]);
    std::fs::remove_file(rest).unwrap();
    workspace.sync().unwrap();
    view.unlink(ROOT, b"file").unwrap();
    view.forget(ino, 9);
    workspace.reclaim().unwrap();
    make(&view, "again", b"works");
    workspace.sync().unwrap();
    assert_eq!(workspace.used(), MIB + 4096);
    drop((view, workspace));
    assert_whole(&store, &place);
    let workspace = open();
    let view = workspace.view(branch).unwrap();
    assert_eq!(view.list(ROOT).unwrap().len(), made + 2);
    assert_eq!(content(&view, "again"), b"works");
    let old = workspace.view_of(id).unwrap();
    assert_eq!(old.read(at(&old, "kept"), 0, 10).unwrap(), [7; 10]);
}

/// A store on a disk of its own, for which nothing is done in the background.
fn store_on(disk: &Disk, place: &Place) -> (std::path::PathBuf, ah_agentfs::Workspace) {
    let store = disk.path().join("store");
    ah_agentfs::Workspace::create(&store, &place.lower()).unwrap();
    let options = Options { background: false, ..Options::default() };
    let workspace = ah_agentfs::Workspace::open(&store, &place.lower(), options).unwrap();
    (store, workspace)
}

fn assert_whole(store: &std::path::Path, place: &Place) {
    let report = ah_agentfs::Workspace::fsck(store, &place.lower(), false).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// Others fill a disk to its last byte, and names until nothing can be written down any more.
fn fill(disk: &Disk, view: &ah_agentfs::View) {
    let _ = std::fs::write(disk.path().join("rest"), vec![0; 64 * MIB as usize]);
    let refused = (0..1_000_000).find_map(|n| view.create(ROOT, format!("name{n}").as_bytes(), crate::ME).err());
    assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
}

#[test]
fn removing_files_on_a_disk_that_others_have_filled_gives_their_room_back() {
    let place = Place::new();
    let Some(disk) = Disk::new() else { return };
    let (store, workspace) = store_on(&disk, &place);
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for (name, size) in [("little", 4096), ("big", 8 * MIB)] {
        let ino = make(&view, name, &vec![7; size as usize]);
        view.forget(ino, 1);
    }
    workspace.sync().unwrap();
    fill(&disk, &view);
    assert!(matches!(workspace.sync(), Err(Error::NoSpace)));
    assert!(store.join("reserve").exists(), "it is for removals");
    view.unlink(ROOT, b"little").unwrap();
    workspace.sync().unwrap();
    assert_eq!((workspace.used(), store.join("reserve").exists()), (8 * MIB, false));
    // What the reserve left is for removals, too.
    for n in 0..10_000 {
        let made = view.create(ROOT, format!("more{n}").as_bytes(), crate::ME);
        assert!(matches!(made, Err(Error::NoSpace)), "{n}");
    }
    assert!(matches!(workspace.snapshot(branch, b"", ah_agentfs::Class::Instant), Err(Error::NoSpace)));
    view.unlink(ROOT, b"big").unwrap();
    workspace.sync().unwrap();
    assert_eq!(workspace.used(), 0);
    // There is room again, and once there is enough of it, a reserve.
    make(&view, "again", b"works");
    std::fs::remove_file(disk.path().join("rest")).unwrap();
    workspace.sync().unwrap();
    assert!(store.join("reserve").exists());
    drop((view, workspace));
    assert_whole(&store, &place);
}

#[test]
fn what_a_kill_left_of_the_room_for_removals_is_made_whole() {
    let place = Place::new();
    let Some(disk) = Disk::new() else { return };
    let (store, workspace) = store_on(&disk, &place);
    drop(workspace);
    let length = || std::fs::metadata(store.join("reserve")).unwrap().len();
    assert_eq!(length(), 2 * MIB);
    std::fs::write(store.join("reserve"), "half").unwrap();
    std::fs::write(store.join("reserve.new"), "half").unwrap();
    let workspace =
        ah_agentfs::Workspace::open(&store, &place.lower(), Options { background: false, ..Options::default() })
            .unwrap();
    assert_eq!((length(), store.join("reserve.new").exists()), (2 * MIB, false));
    drop(workspace);
    assert_whole(&store, &place);
}

#[test]
fn a_removed_file_that_is_closed_on_a_full_disk_gives_its_room_back_as_soon_as_there_is_some() {
    for closed_with_the_tree in [false, true] {
        let place = Place::new();
        let Some(disk) = Disk::new() else { return };
        let (store, workspace) = store_on(&disk, &place);
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        let ino = make(&view, "open", &vec![7; MIB as usize]);
        view.unlink(ROOT, b"open").unwrap();
        workspace.sync().unwrap();
        fill(&disk, &view);
        // Others take what was kept for removals, too.
        std::fs::remove_file(store.join("reserve")).unwrap();
        let rest = disk.path().join("rest");
        let file = std::fs::OpenOptions::new().append(true).open(&rest).unwrap();
        let _ = std::io::Write::write_all(&mut &file, &vec![0; 64 * MIB as usize]);
        drop(file);
        let view = if closed_with_the_tree {
            drop(view);
            None
        } else {
            view.forget(ino, 1);
            Some(view)
        };
        assert!(matches!(workspace.sync(), Err(Error::NoSpace)));
        assert_eq!(workspace.used(), MIB);
        std::fs::remove_file(rest).unwrap();
        workspace.sync().unwrap();
        assert_eq!(workspace.used(), 0);
        drop((view, workspace));
        assert_whole(&store, &place);
    }
}

#[test]
fn a_file_on_a_disk_that_others_have_filled_is_not_written_without_its_time() {
    let place = Place::new();
    let Some(disk) = Disk::new() else { return };
    let (store, workspace) = store_on(&disk, &place);
    let view = workspace.view(branch(&workspace)).unwrap();
    let ino = make(&view, "file", &[7; 10_000]);
    workspace.sync().unwrap();
    fill(&disk, &view);
    let before = (content(&view, "file"), view.getattr(ino).unwrap());
    let cut = SetAttr { size: Some(5000), ..SetAttr::default() };
    let changes = [
        view.write(ino, 100, b"in place").map(drop),
        view.fallocate(ino, 100, 100, Allocate::Punch),
        view.setattr(ino, cut).map(drop),
    ];
    for (nth, changed) in changes.into_iter().enumerate() {
        assert!(matches!(changed, Err(Error::NoSpace)), "{nth}");
    }
    assert!((content(&view, "file"), view.getattr(ino).unwrap()) == before);
    std::fs::remove_file(disk.path().join("rest")).unwrap();
    view.write(ino, 100, b"in place").unwrap();
    assert_eq!(&content(&view, "file")[100..108], b"in place");
    drop((view, workspace));
    assert_whole(&store, &place);
}
