//! A conversion that puts the former directory back: whatever somebody did in the copy while that was in the workspace's place stays.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ah_plugin_api::{Converted, ErrorKind, Result};
use ah_test_disks::Disk;
use common::Bench;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

/// A process that another test starts has for a moment open what this one has.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What conversions left beside the workspace.
fn left(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(".ah-convert-")).collect()
}

/// Converts while somebody opens a file of the former directory, so that it has to come back; `then` is called just before it does, while
/// the workspace's name still is the copy's.
fn convert_and_put_back(bench: &Bench, then: impl Fn() + Sync) -> Result<Converted> {
    let held = Mutex::new(None);
    let converted = bench.convert_watched(|stage| match stage {
        "looking once more" => {
            *held.lock().unwrap() =
                Some(rustix::fs::openat(&bench.workspace, "dir/f", OFlags::RDONLY, Mode::empty()).unwrap());
        }
        "putting it back" => {
            assert_eq!(fs::metadata(bench.work("")).unwrap().ino(), 256);
            then();
        }
        _ => {}
    });
    assert!(held.lock().unwrap().is_some(), "refused before");
    converted
}

/// What somebody does in the copy.
type Work<'a> = &'a (dyn Fn(&Bench) + Sync);

#[test]
fn what_is_written_while_the_former_is_put_back_stays() {
    let _one = one_at_a_time();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let writing = Mutex::new(None);
    let cases: [(&str, &str, Work<'_>); 4] = [
        ("new", "src/new.rs", &|bench| fs::write(bench.work("src/new.rs"), "work").unwrap()),
        ("saved", "dir/f", &|bench| {
            fs::write(bench.work("dir/f~"), "work").unwrap();
            fs::rename(bench.work("dir/f~"), bench.work("dir/f")).unwrap();
        }),
        // What is written later goes where it was opened.
        ("open", "dir/f", &|bench| {
            *writing.lock().unwrap() = Some(fs::OpenOptions::new().write(true).open(bench.work("dir/f")).unwrap());
        }),
        ("at the top", "new", &|bench| fs::write(bench.work("new"), "work").unwrap()),
    ];
    for (case, path, work) in cases {
        let folder = disk.at().join(case);
        let bench = Bench::in_folder(&folder);
        bench.write("dir/f", "old");
        bench.write("src/lib.rs", "old");
        let error = convert_and_put_back(&bench, || work(&bench)).unwrap_err();
        if let Some(mut file) = writing.lock().unwrap().take() {
            file.write_all(b"work").unwrap();
        }
        assert_eq!(error.kind, ErrorKind::Busy, "{case}: {error:?}");
        assert_ne!(fs::metadata(folder.join("work")).unwrap().ino(), 256, "{case}");
        assert_eq!(fs::read_to_string(folder.join("work/dir/f")).unwrap(), "old", "{case}");
        let kept = left(&folder);
        assert_eq!(kept.len(), 1, "{case}: {error:?}");
        assert_eq!(fs::read_to_string(kept[0].join(path)).unwrap(), "work", "{case}");
        let hint = error.hint.unwrap();
        assert!(
            hint.contains("the workspace is the former directory") && hint.contains(kept[0].to_str().unwrap()),
            "{hint}"
        );
        common::is_named_until_it_is_gone(&bench, &kept[0]);
    }
}

#[test]
fn a_copy_that_nobody_used_goes() {
    let _one = one_at_a_time();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "old");
    assert_eq!(convert_and_put_back(&bench, || ()).unwrap_err().kind, ErrorKind::Busy);
    assert_ne!(fs::metadata(disk.at().join("work")).unwrap().ino(), 256);
    assert_eq!(left(disk.at()), Vec::<PathBuf>::new());
    assert_eq!(fs::read_dir(disk.at().join("store")).unwrap().count(), 0);
    assert!(Bench::in_folder(disk.at()).convert().unwrap().changed);
}

#[test]
fn whoever_works_in_the_copy_by_then_keeps_it() {
    let _one = one_at_a_time();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "old");
    let held = Mutex::new(None);
    let refused = bench.convert_watched(|stage| match stage {
        "looking once more" => {
            let former = rustix::fs::openat(&bench.workspace, "dir/f", OFlags::RDONLY, Mode::empty()).unwrap();
            // Not a byte is written yet.
            let new = fs::OpenOptions::new().append(true).open(bench.work("dir/f")).unwrap();
            *held.lock().unwrap() = Some((former, new));
        }
        "putting it back" => panic!("under somebody's hands"),
        _ => {}
    });
    let error = refused.unwrap_err();
    let kept = left(disk.at());
    assert_eq!(fs::read_to_string(kept[0].join("dir/f")).unwrap(), "old");
    let hint = error.hint.unwrap();
    assert!(hint.contains("the workspace is the new subvolume") && hint.contains(kept[0].to_str().unwrap()), "{hint}");
    assert_eq!(fs::metadata(disk.at().join("work")).unwrap().ino(), 256);
    // Once nobody works there, and nothing was changed, it is as any former directory.
    assert_eq!(bench.reclaim().stays.len(), 1);
    held.lock().unwrap().take();
    assert_eq!((bench.reclaim().stays, left(disk.at())), (Vec::new(), Vec::new()));
}

#[test]
fn nobody_is_told_to_remove_what_lies_where_the_former_directory_was_moved_from() {
    let _one = one_at_a_time();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("dir/f", "old");
    let held = Mutex::new(None);
    let refused = bench.convert_watched(|stage| match stage {
        "looking once more" => {
            let former = left(disk.at()).remove(0);
            *held.lock().unwrap() = Some(fs::File::open(former.join("dir/f")).unwrap());
            fs::rename(&former, disk.at().join("elsewhere")).unwrap();
            fs::create_dir(&former).unwrap();
        }
        "putting it back" => panic!("with what is somebody else's"),
        _ => {}
    });
    let error = refused.unwrap_err();
    let hint = error.hint.unwrap();
    assert!(hint.contains("moved away from") && !hint.contains("remove"), "{hint}");
    assert!(error.causes.iter().any(|why| why.contains("was moved while")), "{:?}", error.causes);
    assert_eq!(left(disk.at()).len(), 1);
    assert_eq!(fs::read_to_string(disk.at().join("elsewhere/dir/f")).unwrap(), "old");
}

/// Started by the next test; dies in it.
#[test]
#[ignore = "does nothing by itself"]
fn put_back_and_die() {
    let Some(folder) = std::env::var_os("AH_TEST_PUT_BACK").map(PathBuf::from) else { return };
    let bench = Bench::in_folder(&folder);
    let _ = convert_and_put_back(&bench, || {
        if std::env::var_os("AH_TEST_WRITES").is_some() {
            fs::write(bench.work("src/new.rs"), "work").unwrap();
        }
        // The next step, and not one more.
        rustix::fs::renameat_with(CWD, folder.join("work"), CWD, &left(&folder)[0], RenameFlags::EXCHANGE).unwrap();
        std::process::abort();
    });
}

#[test]
fn killed_after_it_was_put_back_what_was_begun_in_the_copy_stays() {
    let _one = one_at_a_time();
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    for writes in [true, false] {
        let folder = disk.at().join(format!("writes-{writes}"));
        let bench = Bench::in_folder(&folder);
        bench.write("dir/f", "old");
        bench.write("src/lib.rs", "old");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "put_back_and_die", "--ignored"]).env("AH_TEST_PUT_BACK", &folder);
        if writes {
            child.env("AH_TEST_WRITES", "1");
        }
        assert!(!child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        assert_eq!(left(&folder).len(), 1);
        for _ in 0..2 {
            let stays = bench.reclaim().stays;
            let kept = left(&folder);
            assert_eq!((kept.len(), stays.len()), (usize::from(writes), usize::from(writes)), "{stays:?}");
            if let Some(kept) = kept.first() {
                assert_eq!(fs::read_to_string(kept.join("src/new.rs")).unwrap(), "work");
                assert!(stays[0].contains(kept.to_str().unwrap()), "{stays:?}");
            }
        }
        assert_eq!(fs::read_to_string(folder.join("work/dir/f")).unwrap(), "old");
    }
}
