//! Conversions that were killed: one of the two directories is there whole, and what is left of the other is cleared up or kept.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ah_plugin_api::Reclaimed;
use ah_test_disks::Disk;
use common::{Bench, listing, run};

/// Converts in a folder, and is killed once the two directories have changed places; `newer`: somebody has written in the former one by then.
fn killed_at_the_last_look(folder: &Path, newer: bool) {
    Bench::in_folder(folder).write("dir/f", "old");
    let killed = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "convert_what_the_environment_names", "--ignored"])
        .env("AH_TEST_CONVERT", folder)
        .env("AH_TEST_DIE", newer.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!killed.success());
}

#[test]
fn killed_before_the_last_look_ended_what_is_newer_stays() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    for newer in [true, false] {
        let folder = disk.at().join(format!("newer-{newer}"));
        killed_at_the_last_look(&folder, newer);
        let Reclaimed { actions, stays, .. } = Bench::in_folder(&folder).reclaim();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let counts = (actions.len(), stays.len(), left.len());
        assert_eq!(counts, if newer { (0, 1, 4) } else { (1, 0, 3) }, "{actions:?} {stays:?} {left:?}");
        if newer {
            let kept = left.iter().find(|path| stays[0].contains(path.to_str().unwrap())).unwrap();
            assert_eq!(fs::read_to_string(kept.join("dir/f")).unwrap(), "newer");
        }
        assert_eq!(fs::read_to_string(folder.join("work/dir/f")).unwrap(), "old");
    }
}

#[test]
fn what_is_left_is_found_though_a_directory_above_was_moved_and_else_told_of() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    let (folder, moved) = (disk.at().join("folder"), disk.at().join("moved"));
    killed_at_the_last_look(&folder, true);
    fs::rename(&folder, &moved).unwrap();
    let stays = Bench::in_folder(&moved).reclaim().stays;
    assert!(stays.len() == 1 && stays[0].contains("/moved/.ah-convert-"), "{stays:?}");
    // Neither where it was, nor around the workspace.
    let store = disk.at().join("it's a store");
    fs::rename(moved.join("store"), &store).unwrap();
    let elsewhere = Bench::of(&disk.at().join("elsewhere/work"), &store, &disk.at().join("target"));
    let stays = elsewhere.reclaim().stays;
    assert!(stays.len() == 1 && stays[0].contains(folder.to_str().unwrap()), "{stays:?}");
    assert_eq!(elsewhere.reclaim().stays, stays, "as long as nobody has seen to it");
    // Moved back, it is found again; and forgotten by what it says.
    fs::rename(&moved, &folder).unwrap();
    let found = elsewhere.reclaim().stays;
    assert!(found.len() == 1 && found[0].contains("/folder/.ah-convert-"), "{found:?}");
    run("sh", &["-ec", &stays[0][stays[0].find("rm ").unwrap()..]]);
    assert_eq!(elsewhere.reclaim(), Reclaimed::default());
}

/// Started by the next test, and killed by it.
#[test]
#[ignore = "does nothing by itself"]
fn convert_what_the_environment_names() {
    let Some(folder) = std::env::var_os("AH_TEST_CONVERT") else { return };
    // As a program does that was told where to work; it has to be able to convert that.
    std::env::set_current_dir(Path::new(&folder).join("work")).unwrap();
    let bench = Bench::in_folder(Path::new(&folder));
    let Some(newer) = std::env::var_os("AH_TEST_DIE") else {
        let _ = bench.convert();
        return;
    };
    let _ = bench.convert_watched(|stage| {
        if stage == "looking once more" {
            let mut names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let former = names.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(".ah-convert-"));
            if newer == "true" {
                fs::write(former.unwrap().join("dir/f"), "newer").unwrap();
            }
            std::process::abort();
        }
    });
}

#[test]
fn killed_anywhere_one_of_the_two_is_there_whole() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    let mut converted = 0;
    for round in 0..14u32 {
        let folder = disk.at().join(format!("round{round}"));
        let bench = Bench::in_folder(&folder);
        for i in 0..300 {
            bench.write(&format!("{}/f{i}", i % 7), format!("contents {i}"));
        }
        let before = listing(bench.workspace.path());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "convert_what_the_environment_names", "--ignored"])
            .env("AH_TEST_CONVERT", &folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The last ones are not disturbed.
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 12));
        if round < 12 {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let now = |lines: Vec<String>| -> Vec<String> {
            // Reading may have changed a time of access.
            lines.into_iter().map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(now(listing(&folder.join("work"))), now(before.clone()), "round {round}");
        let bench = Bench::in_folder(&folder);
        bench.reclaim();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "round {round}: {left:?}");
        assert_eq!(fs::read_dir(folder.join("store")).unwrap().count(), 0, "round {round}");
        assert_eq!(now(listing(&folder.join("work"))), now(before), "round {round}");
        converted += u32::from(fs::metadata(folder.join("work")).unwrap().ino() == 256);
    }
    assert!(converted >= 2, "none came to its end");
}
