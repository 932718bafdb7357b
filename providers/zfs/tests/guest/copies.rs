//! Copies of a branch that others have made of it: what has its name, and is not it.

use ah_plugin_api::ErrorKind;

use crate::bench::{Bench, Pool, closed, run};

/// Sends a dataset to another pool, under the same name there.
fn copied(pool: &Pool, backup: &Pool, dataset: &str) -> String {
    let copy = dataset.replacen(&pool.name, &backup.name, 1);
    run("zfs", &["snapshot", &format!("{dataset}@sent")]);
    run("sh", &["-c", &format!("zfs send -p '{dataset}@sent' | zfs recv -u '{copy}'")]);
    // Nothing of others' in it, which would keep it from being destroyed.
    [dataset, &copy].into_iter().for_each(|sent| drop(run("zfs", &["destroy", &format!("{sent}@sent")])));
    copy
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_received_copy_is_not_the_branch() {
    let (pool, backup) = (Pool::new(), Pool::new());
    pool.create("w", &[]);
    backup.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "work").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let copy = copied(&pool, &backup, &dataset);
    let is_there = |name: &str| backup.names("filesystem", "w").iter().any(|there| there == name);
    let bench = closed(&pool, bench);
    pool.export();
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.unwrap().contains("zpool import"));
    bench.reclaim(&["fork"]);
    assert!(is_there(&copy), "the copy is not the branch's");
    assert_eq!(bench.clone_records().len(), 1);
    // One under the very name of the branch, in another pool that was given its pool's. Not mounted (-N): it would be where the branch is.
    let name = backup.name.clone();
    run("zpool", &["export", &name]);
    let disks = backup.temp.path().to_str().unwrap();
    run("zpool", &["import", "-N", "-d", disks, &name, &pool.name]);
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.unwrap().contains("zpool import"));
    bench.reclaim(&["fork"]);
    assert!(pool.names("filesystem", "w").contains(&dataset), "it has the name, and is another one");
    assert_eq!(bench.clone_records().len(), 1, "its pool is only hidden");
    run("zpool", &["export", &pool.name]);
    run("zpool", &["import", "-N", "-d", disks, &pool.name, &name]);
    pool.import();
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!((pool.names("filesystem", "w").len(), bench.clone_records().len()), (1, 0));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_removal_that_was_cut_off_does_not_go_on_with_a_copy() {
    let (pool, backup) = (Pool::new(), Pool::new());
    pool.create("w", &[]);
    backup.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let copy = copied(&pool, &backup, &dataset);
    // As left by a remover that was killed when the dataset was destroyed.
    let record = |suffix: &str| bench.store.path().join(format!("clone-{}{suffix}", clone.reference));
    std::fs::rename(record(""), record(".gone")).unwrap();
    run("zfs", &["unmount", &dataset]);
    run("zfs", &["destroy", &dataset]);
    let actions = bench.reclaim(&[]).actions;
    assert!(backup.names("filesystem", "w").contains(&copy), "the copy is nobody's but its owner's");
    assert_eq!((actions.len(), bench.clone_records().len(), clone.path.exists()), (1, 0, false));
}

/// Makes a record one of an older version, which had no guid in it.
fn made_old(bench: &Bench, clone: &ah_plugin_api::WritableClone) {
    let path = bench.store.path().join(format!("clone-{}", clone.reference));
    let text = std::fs::read_to_string(&path).unwrap();
    let at = text.find(",\"guid\":").unwrap();
    std::fs::write(&path, format!("{}}}", &text[..at])).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_branch_of_an_older_version_is_known_by_its_name_alone() {
    let (pool, backup) = (Pool::new(), Pool::new());
    pool.create("w", &[]);
    backup.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let (first, second) = (bench.clone(&a, "first").unwrap(), bench.clone(&a, "second").unwrap());
    [&first, &second].into_iter().for_each(|clone| made_old(&bench, clone));
    bench.destroy_clone(&first.reference).unwrap();
    assert_eq!((pool.names("filesystem", "w").len(), first.path.exists()), (2, false));
    let dataset = pool.names("filesystem", "w").remove(1);
    let copy = copied(&pool, &backup, &dataset);
    run("zfs", &["destroy", &dataset]);
    bench.destroy_clone(&second.reference).unwrap();
    assert!(backup.names("filesystem", "w").contains(&copy));
    assert_eq!(bench.clone_records().len(), 0);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_pool_under_another_name_is_not_taken_for_the_branchs() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    let bench = closed(&pool, bench);
    // As half of it that was split off, or a copy of its disk, would be.
    pool.export();
    let (disks, other) = (pool.temp.path().to_str().unwrap(), format!("{}-half", pool.name));
    run("zpool", &["import", "-N", "-d", disks, &pool.name, &other]);
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
    assert!(error.hint.unwrap().contains(&format!("zpool import {other} {}", pool.name)));
    bench.reclaim(&["fork"]);
    assert_eq!((run("zfs", &["list", "-H", "-r", &other]).lines().count(), bench.clone_records().len()), (3, 1));
    run("zpool", &["export", &other]);
    run("zpool", &["import", "-d", disks, &other, &pool.name]);
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!((pool.names("filesystem", "w").len(), bench.clone_records().len()), (1, 0));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_branch_destroyed_in_a_pool_that_has_another_name_now_is_gone() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    run("zfs", &["destroy", "-f", &pool.names("filesystem", "w").remove(1)]);
    let bench = closed(&pool, bench);
    pool.export();
    let (disks, other) = (pool.temp.path().to_str().unwrap(), format!("{}-new", pool.name));
    run("zpool", &["import", "-N", "-d", disks, &pool.name, &other]);
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!(bench.clone_records().len(), 0);
    run("zpool", &["export", &other]);
    run("zpool", &["import", "-N", "-d", disks, &other, &pool.name]);
}
