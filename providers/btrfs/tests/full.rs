//! Disks and quotas that have no room left: what frees them works all the same, and what is cut short on the way is no snapshot any more.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ah_plugin_api::{Context, DestroyRequest, ErrorKind, Observer, Provider, ReclaimRequest, Reference};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path};
use common::{Bench, run, subvolume};

const FILES: usize = 1500;

fn remove(reference: &str) -> DestroyRequest {
    DestroyRequest::Snapshot(Reference::new(reference).unwrap())
}

/// Dies when it is asked for the n-th time whether to go on.
struct Dies(AtomicU32);

impl Observer for Dies {
    fn cancelled(&self) -> bool {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            std::process::abort();
        }
        false
    }
}

/// Removes the snapshot `a` in a process of its own, which dies in the middle.
fn remove_and_die(test: &str, path: &Path, after: u32) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test]).env("AH_TEST_AS_ORDINARY_USER", path).env("AH_TEST_DIES", after.to_string());
    let ended = child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(ended.signal(), Some(6), "{ended:?}");
}

/// In that process.
fn dies(path: &Path) -> bool {
    let Some(after) = std::env::var("AH_TEST_DIES").ok().and_then(|text| text.parse().ok()) else { return false };
    let bench = Bench::in_folder(path);
    let dies = Dies(AtomicU32::new(after));
    let done = bench.provider.destroy(&bench.place(), &remove("a"), &Context::new(&dies));
    panic!("it came to its end: {done:?}");
}

/// How many files are left of the snapshot `a`, where it was.
fn left(path: &Path) -> usize {
    fs::read_dir(path.join("store/depot/snapshots/a/tree/work")).map_or(0, Iterator::count)
}

/// It is there no more for anybody, though something is left of it.
fn is_none(bench: &Bench) {
    assert_eq!(bench.ids(), Vec::<String>::new());
    let shown = bench.provider.read_dir(
        &bench.place(),
        &ah_plugin_api::ReadDirRequest { snapshot: Reference::new("a").unwrap(), path: Default::default() },
        &Context::quiet(),
    );
    assert_eq!(shown.unwrap_err().kind, ErrorKind::NotFound);
}

/// And `gc` gives the space back.
fn is_cleared(bench: &Bench, path: &Path) {
    bench.reclaim();
    for folder in ["snapshots", "trash"] {
        let left = fs::read_dir(path.join("store/depot").join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder}");
    }
}

fn fill(at: &Path) {
    // In pieces that get smaller, until not one more fits.
    for (size, name) in [(1 << 20, "m"), (1 << 16, "k"), (1 << 10, "b"), (0, "e")] {
        for i in 0..200_000 {
            if fs::write(at.join(format!("{name}{i}")), vec![2; size]).is_err() {
                break;
            }
            if i % 50 == 0 && name != "m" {
                let _ = fs::File::open(at).and_then(|dir| dir.sync_all());
            }
        }
    }
}

#[test]
fn a_removal_that_is_cut_short_on_a_full_disk_leaves_no_snapshot() {
    const TEST: &str = "a_removal_that_is_cut_short_on_a_full_disk_leaves_no_snapshot";
    if let Some(path) = ordinary_users_path() {
        if dies(&path) {
            return;
        }
        let bench = Bench::in_folder(&path);
        for i in 0..FILES {
            bench.write(&format!("f{i}"), vec![1; 1000]);
        }
        bench.snapshot("a");
        fs::create_dir(path.join("fill")).unwrap();
        fill(&path.join("fill"));
        if bench.probe().can_delete {
            // Writable, and there still.
            remove_and_die(TEST, &path, 2);
            assert_eq!(left(&path), FILES);
        } else {
            remove_and_die(TEST, &path, 400);
            assert!((1..FILES).contains(&left(&path)), "it died in the middle: {} are left", left(&path));
        }
        is_none(&bench);
        is_cleared(&bench, &path);
        bench.snapshot("b");
        assert_eq!(bench.ids(), ["b"]);
        return;
    }
    for options in ["", "user_subvol_rm_allowed"] {
        let Some(disk) = Disk::new("btrfs", 120, options) else { return };
        let own = disk.at().join("own");
        subvolume(&own);
        std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
        as_ordinary_user(TEST, &own);
    }
}

#[test]
fn a_quota_that_is_used_up_says_so_and_can_be_freed() {
    const TEST: &str = "a_quota_that_is_used_up_says_so_and_can_be_freed";
    if let Some(path) = ordinary_users_path() {
        if dies(&path) {
            return;
        }
        let bench = Bench::in_folder(&path);
        match fs::read_to_string(path.join("step")).unwrap().as_str() {
            "take" => {
                for i in 0..FILES {
                    bench.write(&format!("f{i}"), vec![1; 1000]);
                }
                bench.snapshot("a");
                bench.snapshot("b");
            }
            "none" => {
                let error = bench.try_snapshot("c").unwrap_err();
                assert!(error.kind == ErrorKind::ResourceExhausted && error.hint.is_some(), "{error:?}");
                assert!(error.hint.unwrap().contains("quota"));
                assert!(!path.join("store/depot/snapshots/c").exists());
                // Not even that it goes can be written down: then it stays, whole.
                let refused = bench.destroy(&remove("a")).unwrap_err();
                assert!(refused.kind == ErrorKind::ResourceExhausted && refused.hint.is_some(), "{refused:?}");
                assert_eq!((bench.ids(), left(&path)), (vec!["a".to_owned(), "b".to_owned()], FILES));
            }
            "little" => {
                remove_and_die(TEST, &path, 400);
                assert!((1..FILES).contains(&left(&path)), "{} are left", left(&path));
                assert_eq!(bench.ids(), ["b"]);
                assert!(bench.destroy(&remove("b")).is_ok());
                is_none(&bench);
                is_cleared(&bench, &path);
            }
            other => panic!("{other}"),
        }
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let at = disk.at().to_str().unwrap();
    run("btrfs", &["quota", "enable", at]);
    let own = disk.at().join("own");
    subvolume(&own);
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let step = |what: &str, room: Option<u64>| {
        fs::write(own.join("step"), what).unwrap();
        if let Some(room) = room {
            // By its number: named by its path, setting it would be subject to it.
            let depot = run("btrfs", &["inspect-internal", "rootid", own.join("store/depot").to_str().unwrap()]);
            run("btrfs", &["qgroup", "limit", &room.to_string(), &format!("0/{}", depot.trim()), at]);
        }
        as_ordinary_user(TEST, &own);
    };
    step("take", None);
    // The depot has one node of its own. What is begun in it reserves one for each item that may be written: a record that is struck two, a
    // rename more.
    step("none", Some(20 << 10));
    step("little", Some(64 << 10));
}

#[test]
fn what_frees_a_full_disk_works_on_it() {
    let Some(disk) = Disk::new("btrfs", 120, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("big", vec![1; 20 << 20]);
    // What is so small lies in the trees themselves: those fill up too, and what only gives back contents makes no room for a snapshot.
    for i in 0..FILES {
        bench.write(&format!("f{i}"), vec![1; 2000]);
    }
    let first = bench.snapshot("a");
    for name in (0..FILES).map(|i| format!("f{i}")).chain(["big".to_owned()]) {
        fs::remove_file(bench.work(&name)).unwrap();
    }
    fill(disk.at());
    // It fits, or it says why it does not, and then nothing is left of it.
    match bench.try_snapshot("b") {
        Ok(second) => bench.remove(&second),
        Err(error) => assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}"),
    }
    assert_eq!(bench.ids(), ["a"]);
    bench.remove(&first);
    assert!(bench.ids().is_empty());
    bench.reclaim();
    run("btrfs", &["subvolume", "sync", disk.at().to_str().unwrap()]);
    // What its trees took comes back when that is on the disk.
    run("btrfs", &["filesystem", "sync", disk.at().to_str().unwrap()]);
    bench.write("big", vec![3; 10 << 20]);
    bench.snapshot("c");
}

#[test]
fn what_is_removed_comes_back_at_once_when_somebody_waits_for_it() {
    // By itself, the kernel begins with that as seldom as it commits.
    let Some(disk) = Disk::new("btrfs", 300, "commit=300") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("large", vec![1; 150 << 20]);
    run("sync", &[]);
    let taken = bench.snapshot("a");
    fs::remove_file(bench.work("large")).unwrap();
    bench.remove(&taken);
    // The background was there before.
    let background = ReclaimRequest { auto: true, ..ReclaimRequest::default() };
    let emptied = bench.provider.reclaim(&bench.place(), &background, &Context::quiet()).unwrap();
    assert!(!emptied.actions.is_empty());
    bench.reclaim();
    let began = std::time::Instant::now();
    while fs::write(bench.work("new"), vec![2; 150 << 20]).is_err() {
        assert!(began.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
