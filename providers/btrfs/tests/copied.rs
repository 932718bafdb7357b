//! What stands in the place of a snapshot and may not be what was captured: a copy of its files, or a subvolume that was made writable.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ah_plugin_api::{
    CloneRequest, Context, DestroyRequest, Error, ErrorKind, FileName, MountRequest, Provider, Snapshot,
};
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

/// As of an `AH_HOME` and a copy of it, where the snapshots are in neither.
#[test]
fn what_one_of_two_stores_shows_the_other_does_not_remove() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let beside = tempfile::tempdir().unwrap();
    let (first, second) = (beside.path().join("first"), beside.path().join("second"));
    let work = disk.at().join("work");
    let one = Bench::of(&work, &first, &beside.path().join("t1"));
    one.write("f", "x");
    let taken = one.snapshot("a");
    run("cp", &["-a", first.to_str().unwrap(), second.to_str().unwrap()]);
    let other = Bench::of(&work, &second, &beside.path().join("t2"));
    assert_eq!(other.ids(), ["a"]);
    let removal = DestroyRequest::Snapshot(taken.reference.clone());
    for (shows, removes) in [(&one, &other), (&other, &one)] {
        let view = shows.view(&taken, "v");
        assert_eq!(removes.destroy(&removal).unwrap_err().kind, ErrorKind::Busy);
        removes.reclaim();
        assert_eq!(fs::read_to_string(view.path.join("f")).unwrap(), "x");
        shows.unmount(&view);
    }
    other.destroy(&removal).unwrap();
    assert!(one.ids().is_empty());
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
