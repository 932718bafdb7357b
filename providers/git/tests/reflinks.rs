//! Clones and views share data with the workspace on a filesystem that can (Btrfs, on a loop device).

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use ah_test_disks::Disk;
use common::{Bench, git, listing};

fn is_shared(path: &Path) -> bool {
    let out = Command::new("filefrag").arg("-v").arg(path).output().unwrap();
    String::from_utf8_lossy(&out.stdout).contains("shared")
}

#[test]
fn large_files_are_shared_and_never_wrong() {
    let Some(disk) = Disk::new("btrfs", 256, "") else { return };
    let bench = Bench::on(disk.at());
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (0..200_000).map(|_| next()).collect()
    };
    for (name, seed) in [("same", 1), ("behind", 2), ("gone", 3), ("newer", 4)] {
        bench.write(&format!("d/{name}"), noise(seed));
    }
    bench.write("small", "small");
    let expected = listing(bench.workspace.path());
    let snapshot = bench.snapshot();

    // Changed behind its time; gone; a symlink in its place; and one that is simply newer.
    let behind = std::fs::OpenOptions::new().write(true).open(bench.work("d/behind")).unwrap();
    let time = behind.metadata().unwrap().modified().unwrap();
    behind.write_all_at(b"changed", 100_000).unwrap();
    behind.set_modified(time).unwrap();
    std::fs::rename(bench.work("d/gone"), bench.work("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", bench.work("d/gone")).unwrap();
    bench.write("d/newer", noise(5));
    std::fs::File::open(bench.work("d/newer"))
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_secs(1))
        .unwrap();

    let clone = bench.clone(&snapshot, "c");
    assert_eq!(listing(&clone.path), expected);
    let view = bench.mount(&snapshot, "v");
    assert_eq!(listing(&view.path), expected);
    assert!(is_shared(&clone.path.join("d/same")) && is_shared(&view.path.join("d/same")));
    assert!(!is_shared(&clone.path.join("d/behind")) && !is_shared(&clone.path.join("d/gone")));
    // The workspace writes on; what was shared stays as it was.
    std::fs::OpenOptions::new().write(true).open(bench.work("d/same")).unwrap().write_all_at(b"x", 0).unwrap();
    assert_eq!(listing(&clone.path), expected);
    bench.unmount(&view).unwrap();
}

#[test]
fn who_writes_into_a_clones_objects_writes_into_no_others() {
    let Some(disk) = Disk::new("btrfs", 256, "") else { return };
    let bench = Bench::on(disk.at());
    bench.write("f", "x");
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "one"], &["repack", "-q", "-a", "-d"]] {
        git(bench.workspace.path(), args);
    }
    bench.write("f", "y");
    git(bench.workspace.path(), &["commit", "-q", "-a", "-m", "two"]);
    let clone = bench.clone(&bench.snapshot(), "c");
    let mut todo = vec![clone.path.join(".git/objects")];
    let mut spoilt = 0;
    while let Some(path) = todo.pop() {
        let meta = std::fs::metadata(&path).unwrap();
        if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"spoilt", 0).unwrap();
        spoilt += 1;
    }
    assert!(spoilt >= 5);
    git(bench.workspace.path(), &["fsck", "--full", "--strict"]);
    let second = bench.clone(&bench.snapshot(), "d");
    git(&second.path, &["fsck", "--full", "--strict"]);
}
