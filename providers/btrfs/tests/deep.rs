//! Subvolumes that are nested so deep that the kernel does not tell their paths at once, where everybody may make directories.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ah_plugin_api::{DestroyRequest, ErrorKind, LogLevel, Observer, Side};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path};
use common::{Bench, omitted, side, subvolume, subvolumes};
use rustix::fs::{Mode, OFlags, openat};

const LEVELS: usize = 22;

/// Makes a subvolume `sub` that deep in an existing directory; gives its path from there.
fn nest(top: &Path) -> PathBuf {
    let name = "d".repeat(200);
    nest_below(top, &name, LEVELS, &["sub"]);
    [vec![name; LEVELS], vec!["sub".to_owned()]].concat().iter().collect()
}

/// Makes subvolumes so many directories of one name deep in an existing one.
fn nest_below(top: &Path, name: &str, levels: usize, subvolumes: &[&str]) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at: OwnedFd = fs::File::open(top).unwrap().into();
    for _ in 0..levels {
        rustix::fs::mkdirat(&at, name, Mode::from_bits_retain(0o755)).unwrap();
        at = openat(at.as_fd(), name, flags, Mode::empty()).unwrap();
    }
    let deepest = format!("/proc/self/fd/{}", at.as_raw_fd());
    for one in subvolumes {
        let made = Command::new("btrfs").args(["subvolume", "create", one]).current_dir(&deepest).status().unwrap();
        assert!(made.success());
    }
}

/// Counts how often it is asked whether to stop, which it says after so often, and keeps what is said.
struct Watch {
    asked: AtomicUsize,
    patience: usize,
    said: Mutex<Vec<String>>,
}

impl Watch {
    fn new(patience: usize) -> Self {
        Self { asked: AtomicUsize::new(0), patience, said: Mutex::default() }
    }
}

impl Observer for Watch {
    fn cancelled(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.patience
    }

    fn log(&self, _: LogLevel, message: &str) {
        self.said.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn very_many_levels_elsewhere_are_climbed_once_and_not_by_who_is_to_stop() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    let elsewhere = disk.at().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    nest_below(&elsewhere, "d", 5000, &["a", "b", "c", "d", "e", "f", "g", "h"]);
    // More than one climb of all levels, and less than two.
    let watch = Watch::new(8000);
    let taken = bench.watched_snapshot("a", &watch).unwrap();
    let asked = watch.asked.into_inner();
    assert!(taken.omitted.is_empty() && asked > 5000, "{asked}: {taken:?}");
    assert_eq!(*watch.said.lock().unwrap(), [""; 0]);
    let stopped = bench.watched_snapshot("b", &Watch::new(1000)).unwrap_err();
    assert_eq!((stopped.kind, bench.ids()), (ErrorKind::Cancelled, vec!["a".to_owned()]));
}

#[test]
fn nobody_climbs_without_an_end() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    nest_below(&bench.work(""), "d", 17_000, &["sub", "another"]);
    let watch = Watch::new(usize::MAX);
    let taken = bench.watched_snapshot("a", &watch).unwrap();
    let said = watch.said.lock().unwrap();
    assert!(taken.omitted.is_empty() && said.len() == 1 && said[0].contains("so deep"), "{said:?} {taken:?}");
    // Nothing seems to differ there.
    assert_eq!(bench.diff(side(&taken), Side::Workspace, &["f"], false), [""; 0]);
    assert_eq!(bench.names(&taken, ""), ["d", "f"]);
}

#[test]
fn one_elsewhere_is_in_nobodys_way_and_one_inside_is_listed() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    chown(bench.work(""), Some(NOBODY), Some(NOBODY)).unwrap();
    let elsewhere = disk.at().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    nest(&elsewhere);
    assert!(bench.snapshot("a").omitted.is_empty());
    let path = nest(&bench.work(""));
    assert_eq!(omitted(&bench.snapshot("b").omitted), [format!("other-filesystem {}", path.display())]);
    // Of what the workspace's owner may not read nobody is told, as anywhere.
    let first = bench.work("d".repeat(200).as_str());
    fs::set_permissions(&first, fs::Permissions::from_mode(0o711)).unwrap();
    assert!(bench.snapshot("c").omitted.is_empty());
    assert_eq!(bench.convert().unwrap_err().kind, ErrorKind::FailedPrecondition, "it would have to be moved");
    let other = Bench::of(&disk.at().join("other"), &disk.at().join("store2"), &disk.at().join("target"));
    assert!(other.convert().unwrap().changed);
}

#[test]
fn a_clone_with_one_in_it_goes_whole() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    let taken = bench.snapshot("a");
    let clone = bench.clone(&taken, "c");
    nest(&clone.path);
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    bench.reclaim();
    assert_eq!(subvolumes(disk.at()), 2, "the depot and the snapshot");
}

#[test]
fn without_privilege_it_says_what_keeps_it() {
    const TEST: &str = "without_privilege_it_says_what_keeps_it";
    if let Some(path) = ordinary_users_path() {
        let bench = Bench::in_folder(&path);
        nest(&bench.work(""));
        let error = bench.try_snapshot("a").unwrap_err();
        assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error:?}");
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let own = disk.at().join("own");
    subvolume(&own);
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    as_ordinary_user(TEST, &own);
}
