//! What stands in the place of a snapshot and may not be what was captured: a copy of its files, or a subvolume that was made writable.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ah_plugin_api::{CloneRequest, Context, Error, ErrorKind, FileName, MountRequest, Provider, Snapshot};
use ah_test_disks::Disk;
use common::{Bench, run, subvolumes};

/// What a snapshot is answered with that is there, but not as it was captured.
fn refused(bench: &Bench, snapshot: &Snapshot) -> Error {
    let error = bench.stat(snapshot).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DataLoss, "{error:?}");
    let view =
        MountRequest { snapshot: snapshot.reference.clone(), name: FileName::new("v").unwrap(), paths: Vec::new() };
    assert_eq!(bench.provider.mount(&bench.place(), &view, &Context::quiet()).unwrap_err().kind, ErrorKind::DataLoss);
    let clone = CloneRequest { snapshot: snapshot.reference.clone(), name: FileName::new("c").unwrap() };
    let clone = bench.provider.clone_snapshot(&bench.place(), &clone, &Context::quiet());
    assert_eq!(clone.unwrap_err().kind, ErrorKind::DataLoss);
    assert!(bench.ids().is_empty(), "it is listed");
    error
}

#[test]
fn a_copy_of_a_snapshot_is_none_and_goes_when_it_is_removed() {
    let (Some(disk), Some(other)) = (Disk::new("btrfs", 300, ""), Disk::new("ext4", 100, "")) else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    bench.write("deep/in/f", "x");
    std::os::unix::fs::symlink(bench.work("deep"), bench.work("link")).unwrap();
    fs::set_permissions(bench.work("deep/in"), fs::Permissions::from_mode(0o500)).unwrap();
    let taken = bench.snapshot("a");
    for copied in [disk.at().join("copied"), other.at().join("copied")] {
        run("cp", &["-a", bench.store.path().to_str().unwrap(), copied.to_str().unwrap()]);
        let copy = Bench::of(bench.workspace.path(), &copied, &disk.at().join("target"));
        fs::write(copied.join("depot/snapshots/a/tree/work/f"), "changed").unwrap();
        let told = refused(&copy, &taken);
        assert!(told.hint.unwrap().ends_with(copied.join("depot/snapshots/a/tree").to_str().unwrap()));
        // On the workspace's filesystem it goes on.
        if copied.starts_with(disk.at()) {
            let next = copy.snapshot("b");
            assert_eq!(copy.ids(), ["b"]);
            copy.remove(&next);
        }
        copy.remove(&taken);
        assert_eq!(copy.stat(&taken).unwrap_err().kind, ErrorKind::NotFound);
        copy.reclaim();
        assert_eq!(fs::read_dir(copied.join("depot/trash")).unwrap().count(), 0);
        assert!(bench.work("deep/in/f").exists() && bench.ids() == ["a"]);
    }
}

#[test]
fn a_snapshot_that_was_made_writable_is_none_until_it_is_not_any_more() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let taken = bench.snapshot("a");
    let tree = disk.at().join("store/depot/snapshots/a/tree");
    let set = |to: &str| run("btrfs", &["property", "set", "-ts", tree.to_str().unwrap(), "ro", to]);
    let lock = |flag: &str| run("chattr", &[flag, tree.to_str().unwrap()]);
    // Also one of a workspace whose directory nobody may change.
    for flag in ["-i", "+i"] {
        set("false");
        lock(flag);
        let hint = refused(&bench, &taken).hint.unwrap();
        run("sh", &["-ec", hint.split_once(": ").unwrap().1]);
        assert!(bench.stat(&taken).is_ok() && bench.ids() == ["a"]);
    }
    set("false");
    lock("-i");
    bench.remove(&taken);
    bench.reclaim();
    assert_eq!(subvolumes(disk.at()), 1, "the depot");
}
