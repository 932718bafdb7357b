//! In a user namespace somebody is root of what is theirs, and of nothing else.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::process::Command;

use ah_plugin_api::ErrorKind;
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path};
use common::{Bench, subvolume};

#[test]
fn a_strangers_subvolume_is_one_in_a_user_namespace_too_and_nothing_is_left_of_the_try() {
    const TEST: &str = "a_strangers_subvolume_is_one_in_a_user_namespace_too_and_nothing_is_left_of_the_try";
    const INSIDE: &str = "AH_TEST_IN_NAMESPACE";
    if let Some(path) = ordinary_users_path() {
        if std::env::var_os(INSIDE).is_none() {
            let mut inside = Command::new("unshare");
            inside.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
            let ended = inside.args(["--exact", TEST, "--nocapture"]).env(INSIDE, "1").output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
        let there = path.join("there").canonicalize().unwrap();
        let bench = Bench::of(&there.join("work"), &path.join("store"), &path.join("target"));
        let probe = bench.probe();
        let is_own = there.ends_with("own");
        assert_eq!(probe.usable, is_own, "{probe:?}");
        if is_own {
            let taken = bench.snapshot(if std::env::var_os(INSIDE).is_some() { "a" } else { "b" });
            return bench.remove(&taken);
        }
        assert_eq!(bench.try_snapshot("a").unwrap_err().kind, ErrorKind::PermissionDenied);
        // Nobody would know of a place for snapshots, once the store is gone.
        let names = |at| fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!((names(there), names(path.join("store"))), (vec!["work".into()], vec![]));
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    for name in ["own", "foreign"] {
        // The root of the filesystem is a stranger's, and in it a directory of theirs.
        let (there, folder) = (disk.at().join(name), tempfile::tempdir().unwrap());
        if name == "own" {
            subvolume(&there);
        } else {
            fs::create_dir(&there).unwrap();
        }
        symlink(&there, folder.path().join("there")).unwrap();
        for path in [there.as_path(), folder.path()] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        as_ordinary_user(TEST, folder.path());
    }
}
