//! Removing snapshots: clones, holds, views in use, and what others have made or removed.

use std::process::{Command, Stdio};

use ah_plugin_api::{Context, Dir, ErrorKind, Provider as _, ReclaimRequest, Snapshot, UsageRequest};

use crate::bench::{Bench, Pool, closed, run, wait};

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_keeps_the_data_but_not_the_name() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    let first = bench.take("a");
    let clone = bench.clone(&first, "fork").unwrap();
    bench.destroy(&first).unwrap();
    assert_eq!(bench.ids(), "");
    assert_eq!(bench.stat(&first).unwrap_err().kind, ErrorKind::NotFound);
    bench.write("file", "two");
    let second = bench.take("a");
    assert_eq!(bench.seen(&second, "file"), "two");
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "one");
    assert_eq!(pool.names("snapshot", "w").len(), 2);
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!(pool.names("snapshot", "w").len(), 1, "what was removed went with its last clone");
    assert_eq!(bench.ids(), "a");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_hold_keeps_the_data_until_it_is_released() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let full = pool.names("snapshot", "w").remove(0);
    run("zfs", &["hold", "theirs", &full]);
    bench.destroy(&a).unwrap();
    assert_eq!(bench.ids(), "");
    bench.take("a");
    let held = pool.names("snapshot", "w").into_iter().find(|name| *name != full).unwrap();
    assert!(run("zfs", &["holds", "-H", &held]).contains("theirs"));
    bench.reclaim(&[]);
    assert_eq!(pool.names("snapshot", "w").len(), 2);
    run("zfs", &["release", "theirs", &held]);
    assert_eq!(pool.names("snapshot", "w"), [full]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn who_uses_a_snapshot_is_named() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("dir/file", "x");
    let a = bench.take("a");
    let view = bench.mount(&a, "v").unwrap();
    let error = bench.destroy(&a).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "a view of it is there: {error}");
    bench.unmount(&view);
    let mut user =
        Command::new("sleep").arg("600").current_dir(view.path.join("dir")).stdin(Stdio::null()).spawn().unwrap();
    let error = bench.destroy(&a).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    assert!(error.message.contains(&format!("process {} (sleep)", user.id())), "{error}");
    assert_eq!(bench.ids(), "a");
    user.kill().unwrap();
    user.wait().unwrap();
    bench.destroy(&a).unwrap();
    assert_eq!(pool.names("snapshot", "w"), [""; 0]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_others_made_is_neither_seen_nor_touched() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let foreign =
        ["autosnap_2026-01-01_00:00:00_hourly", "zrepl_20260101_000000_000", "ah-0123456789abcdef-a", "ah-2026-01-01"];
    let theirs: Vec<String> = foreign.iter().map(|name| format!("{}@{name}", pool.full("w"))).collect();
    theirs.iter().for_each(|name| drop(run("zfs", &["snapshot", name])));
    let a = bench.take("a");
    let other = Bench::named(&pool, "other", &pool.path("w"));
    other.take("a");
    assert_eq!(bench.ids(), "a");
    bench.destroy(&a).unwrap();
    bench.reclaim(&[]);
    let left = pool.names("snapshot", "w");
    assert!(theirs.iter().all(|name| left.contains(name)), "{left:?}");
    assert_eq!((left.len(), other.ids().as_str()), (5, "a"));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_was_removed_by_hand_is_gone() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let (a, b) = (bench.take("a"), bench.take("b"));
    let clone = bench.clone(&b, "fork").unwrap();
    let full = pool.names("snapshot", "w").into_iter().find(|name| name.ends_with("-a")).unwrap();
    run("zfs", &["destroy", &full]);
    assert_eq!(bench.ids(), "b");
    assert_eq!(bench.stat(&a).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(bench.mount(&a, "v").unwrap_err().kind, ErrorKind::NotFound);
    bench.destroy(&a).unwrap();
    let dataset = pool.names("filesystem", "w").into_iter().find(|name| name.contains("/ah-")).unwrap();
    run("zfs", &["destroy", &dataset]);
    bench.destroy_clone(&clone.reference).unwrap();
    bench.reclaim(&[]);
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
    // Properties that somebody took away: left out, and the others are listed.
    let full = pool.names("snapshot", "w").remove(0);
    bench.take("c");
    run("zfs", &["inherit", "org.ah-project:created", &full]);
    assert_eq!(bench.ids(), "c");
    assert_eq!(bench.stat(&b).unwrap_err().kind, ErrorKind::DataLoss);
    bench.destroy(&b).unwrap();
    wait("its end", || pool.names("snapshot", "w").len() == 1);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn no_snapshot_goes_under_a_view_just_given_out() {
    use rustix::fs::{FlockOperation, flock};
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    for i in 0..12 {
        let a = bench.take(&format!("a{i}"));
        let (view, destroyed) = std::thread::scope(|scope| {
            let view = scope.spawn(|| bench.mount(&a, "v"));
            let destroyed = scope.spawn(|| bench.destroy(&a));
            (view.join().unwrap(), destroyed.join().unwrap())
        });
        match view {
            Ok(view) => {
                assert_eq!(destroyed.unwrap_err().kind, ErrorKind::Busy);
                assert_eq!(std::fs::read_to_string(view.path.join("file")).unwrap(), "x");
                bench.unmount(&view);
                bench.destroy(&a).unwrap();
            }
            Err(error) => assert!(error.kind == ErrorKind::NotFound && destroyed.is_ok(), "{error}"),
        }
    }
    // Whichever comes first, the other one waits for it.
    let a = bench.take("a");
    let store = std::fs::File::open(bench.store.path()).unwrap();
    std::thread::scope(|scope| {
        flock(&store, FlockOperation::LockExclusive).unwrap();
        let mount = scope.spawn(|| bench.mount(&a, "v"));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!mount.is_finished(), "somebody is destroying");
        flock(&store, FlockOperation::LockShared).unwrap();
        let view = mount.join().unwrap().unwrap();
        bench.unmount(&view);
        let destroy = scope.spawn(|| bench.destroy(&a));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(!destroy.is_finished(), "somebody is showing it");
        flock(&store, FlockOperation::Unlock).unwrap();
        destroy.join().unwrap().unwrap();
    });
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_view_in_use_is_not_given_back() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("dir/file", "x");
    let a = bench.take("a");
    let (view, other) = (bench.mount(&a, "v").unwrap(), bench.mount(&a, "w").unwrap());
    let mut user =
        Command::new("sleep").arg("600").current_dir(view.path.join("dir")).stdin(Stdio::null()).spawn().unwrap();
    // The other one goes on showing it.
    bench.unmount(&other);
    let error = bench.try_unmount(&view).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    assert!(error.message.contains(&format!("process {} (sleep)", user.id())), "{error}");
    assert_eq!(bench.destroy(&a).unwrap_err().kind, ErrorKind::Busy);
    user.kill().unwrap();
    user.wait().unwrap();
    bench.unmount(&view);
    bench.unmount(&view);
    bench.destroy(&a).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_store_at_work_is_told_unless_nobody_asked() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.take("a");
    let lock = std::fs::File::open(bench.store.path().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
    let ask = |auto| bench.try_reclaim(&ReclaimRequest { auto, forgotten: Vec::new() });
    assert_eq!(ask(false).unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(ask(true).unwrap().actions.len(), 0);
    drop(lock);
    ask(false).unwrap();
}

/// Overwrites all copies of the block that the snapshot `full` begins with. Nobody has anything of the pool open.
fn damage(pool: &Pool, full: &str) {
    use std::os::unix::fs::FileExt as _;
    pool.export();
    let folder = pool.temp.path().to_str().unwrap();
    let told = run("zdb", &["-e", "-p", folder, "-d", "-d", "-d", "-d", "-d", full, "0"]);
    let root = told.lines().find(|line| line.contains("rootbp")).unwrap();
    let copies: Vec<u64> = root
        .split("=<0:")
        .skip(1)
        .map(|rest| u64::from_str_radix(rest.split(':').next().unwrap(), 16).unwrap())
        .collect();
    assert!(copies.len() > 1, "{root}");
    let disk = std::fs::OpenOptions::new().write(true).open(pool.temp.path().join("disk")).unwrap();
    for at in copies {
        // Behind two labels and the boot block.
        disk.write_all_at(&[0xaa; 512], at + (4 << 20)).unwrap();
    }
    pool.import();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn one_that_is_damaged_is_left_out_and_can_be_removed() {
    let pool = Pool::new();
    pool.create("w", &["-o", "compression=off"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    const MIB: u64 = 1 << 20;
    let usage = |bench: &Bench, snapshots: &[&Snapshot]| {
        let snapshots = snapshots.iter().map(|snapshot| snapshot.reference.clone()).collect();
        let request = UsageRequest { snapshots };
        bench.provider.usage(&bench.place(), &request, &Context::quiet()).unwrap().bytes.unwrap()
    };
    let take = |id: &str| {
        bench.write("file", &id.repeat(1 << 20));
        bench.take(id)
    };
    bench.write("both", &"x".repeat(1 << 20));
    let (a, b) = (take("a"), take("b"));
    bench.write("both", "");
    let c = take("c");
    bench.write("file", "");
    let full = pool.names("snapshot", "w").into_iter().find(|name| name.ends_with("-b")).unwrap();
    let bench = closed(&pool, bench);
    damage(&pool, &full);
    let bench = Bench { workspace: Dir::open(pool.path("w")).unwrap(), ..bench };
    assert_eq!(bench.ids(), "a c");
    assert_eq!(bench.stat(&b).unwrap_err().kind, ErrorKind::DataLoss);
    assert_eq!(bench.try_take("b").unwrap_err().kind, ErrorKind::AlreadyExists);
    bench.reclaim(&[]);
    assert!((MIB..2 * MIB).contains(&usage(&bench, &[&b])), "it holds what it held");
    assert!((3 * MIB..4 * MIB).contains(&usage(&bench, &[&a, &b])), "with its neighbour what both have, too");
    assert!((2 * MIB..3 * MIB).contains(&usage(&bench, &[&a, &c])), "it lies between");
    bench.destroy(&b).unwrap();
    assert!(!pool.names("snapshot", "w").contains(&full));
    assert_eq!(bench.ids(), "a c");
    bench.destroy(&b).unwrap();
    bench.reclaim(&[]);
    bench.take("b");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_branch_goes_when_what_is_damaged_in_it_is_gone() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    let branch = Bench::named(&pool, "branch", &clone.path);
    let b = branch.take("b");
    let full = pool.names("snapshot", "w").into_iter().find(|name| name.ends_with("-b")).unwrap();
    let (bench, branch) = (closed(&pool, bench), closed(&pool, branch));
    damage(&pool, &full);
    // Whether it was made in the branch, or given to it by somebody, cannot be known.
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert!(error.kind == ErrorKind::DataLoss && error.message.contains(&full), "{error:?}");
    assert!(error.hint.unwrap().contains("remove that snapshot first"));
    branch.destroy(&b).unwrap();
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!((pool.names("filesystem", "w").len(), bench.clone_records().len()), (1, 0));
}
