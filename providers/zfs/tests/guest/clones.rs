//! Clones: what is inherited, who holds them, clones of clones, others' snapshots in them.

use std::process::{Command, Stdio};

use ah_plugin_api::{Context, ErrorKind, ReclaimRequest};

use crate::bench::{Bench, Elsewhere, Pool, run, wait};

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_is_writable_and_comes_back_by_itself() {
    let pool = Pool::new();
    pool.create("w", &["-o", "atime=off", "-o", "compression=gzip"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    run("zfs", &["set", "readonly=on", &pool.full("w")]);
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "two").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let of = |property: &str| run("zfs", &["get", "-H", "-o", "value", property, &dataset]).trim().to_owned();
    assert_eq!((of("atime").as_str(), of("compression").as_str(), of("canmount").as_str()), ("off", "gzip", "on"));
    // As after a reboot.
    run("zfs", &["unmount", &dataset]);
    run("zfs", &["mount", &dataset]);
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "two");
    bench.destroy_clone(&clone.reference).unwrap();
    assert!(!clone.path.exists());
    assert_eq!(pool.names("filesystem", "w").len(), 1);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn who_uses_a_clone_is_named_in_whatever_namespace() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "x").unwrap();
    let mut user = Command::new("sleep").arg("600").current_dir(&clone.path).stdin(Stdio::null()).spawn().unwrap();
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.message.contains(&format!("process {}", user.id())), "{error}");
    user.kill().unwrap();
    user.wait().unwrap();
    let elsewhere = Elsewhere::new();
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    let number = elsewhere.space().unwrap();
    assert!(error.message.contains(number.trim_start_matches("mnt:[").trim_end_matches(']')), "{error}, {number}");
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "x", "what is refused is undone");
    drop(elsewhere);
    wait("the end of the namespace", || bench.destroy_clone(&clone.reference).is_ok());
    assert!(!clone.path.exists());
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_is_in_use_is_not_taken_away_and_brought_back() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    // What a mount that was made anew would not have.
    let at = clone.path.to_str().unwrap();
    run("mount", &["-o", "remount,bind,noexec", at]);
    let is_as_it_was = || {
        assert!(run("findmnt", &["-n", "-o", "OPTIONS", "--mountpoint", at]).contains("noexec"), "it was away");
        assert_eq!(bench.clone_records(), [""]);
    };
    let refused = |what: &str| {
        let error = bench.destroy_clone(&clone.reference).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy, "{what}: {error}");
        is_as_it_was();
    };
    let elsewhere = Elsewhere::new();
    refused("mounted where no unmount reaches");
    drop(elsewhere);
    // With one of its snapshots shown inside, and at another place.
    let inner = Bench::named(&pool, "inner", &clone.path);
    let view = inner.mount(&inner.take("own"), "v").unwrap();
    drop(inner);
    let bound = pool.temp.path().join("bound");
    std::fs::create_dir(&bound).unwrap();
    run("mount", &["--bind", view.path.to_str().unwrap(), bound.to_str().unwrap()]);
    let user =
        |dir: &std::path::Path| Command::new("sleep").arg("600").current_dir(dir).stdin(Stdio::null()).spawn().unwrap();
    for dir in [&clone.path, &view.path, &bound] {
        let mut user = user(dir);
        refused("somebody is in it");
        let mounts = String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap()).into_owned();
        for kept in [&view.path, &bound] {
            assert!(mounts.contains(&format!(" {} ", kept.display())), "{} is gone", kept.display());
        }
        user.kill().unwrap();
        user.wait().unwrap();
    }
    let other = clone.path.join("other");
    std::fs::create_dir(&other).unwrap();
    run("mount", &["-t", "tmpfs", "other", other.to_str().unwrap()]);
    refused("something is mounted in it");
    run("umount", &[other.to_str().unwrap()]);
    is_as_it_was();
    wait("nobody to be in it", || bench.destroy_clone(&clone.reference).is_ok());
    assert!(!clone.path.exists());
}

fn auto() -> ReclaimRequest {
    ReclaimRequest { auto: true, forgotten: Vec::new() }
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_removal_that_was_refused_is_not_made_up_for() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    let inner = Bench::named(&pool, "inner", &clone.path);
    inner.take("own");
    let Bench { workspace, .. } = inner;
    drop(workspace);
    let elsewhere = Elsewhere::new();
    assert_eq!(bench.destroy_clone(&clone.reference).unwrap_err().kind, ErrorKind::Busy);
    drop(elsewhere);
    assert_eq!(bench.clone_records(), [""], "it is whole");
    assert_eq!(pool.names("snapshot", "w").len(), 2, "its own snapshot is there");
    std::fs::write(clone.path.join("later"), "work").unwrap();
    for request in [auto(), ReclaimRequest { auto: false, forgotten: Vec::new() }] {
        assert_eq!(bench.try_reclaim(&request).unwrap().actions, Vec::<String>::new());
    }
    assert_eq!(std::fs::read_to_string(clone.path.join("later")).unwrap(), "work");
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!(pool.names("filesystem,snapshot", "w").len(), 2);
}

/// Cancels as soon as it is asked the so-many-th time.
struct Cancels(std::sync::atomic::AtomicI32);

impl ah_plugin_api::Observer for Cancels {
    fn cancelled(&self) -> bool {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_removal_that_was_cancelled_leaves_the_clone_as_it_was() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "x").unwrap();
    for after in 0..100 {
        let cancels = Cancels(after.into());
        let Err(error) = bench.destroy_clone_in(&clone.reference, &Context::new(&cancels)) else {
            assert!(after > 0, "it was never asked");
            break;
        };
        assert_eq!(error.kind, ErrorKind::Cancelled);
        assert_eq!(bench.clone_records(), [""]);
        assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "x");
    }
    assert_eq!(bench.clone_records(), [""; 0]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn reclaim_goes_on_with_the_removals_of_the_dead_only() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let record = |suffix: &str| bench.store.path().join(format!("clone-{}{suffix}", clone.reference));
    // As left by a remover that was killed, in a clone that somebody has mounted since.
    std::fs::rename(record(""), record(".gone")).unwrap();
    assert_eq!(bench.try_reclaim(&auto()).unwrap().actions.len(), 1);
    assert_eq!((bench.clone_records(), clone.path.exists()), (vec![String::new()], true));
    // One that is alive.
    std::fs::rename(record(""), record(".gone")).unwrap();
    run("zfs", &["unmount", &dataset]);
    let file = std::fs::File::open(record(".gone")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(bench.try_reclaim(&auto()).unwrap().actions.len(), 0);
    assert_eq!(pool.names("filesystem", "w").len(), 2);
    drop(file);
    assert_eq!(bench.try_reclaim(&auto()).unwrap().actions.len(), 1);
    assert_eq!((pool.names("filesystem", "w").len(), bench.clone_records().len()), (1, 0));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_that_cannot_be_seen_is_not_forgotten() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let (first, second) = (bench.clone(&a, "first").unwrap(), bench.clone(&a, "second").unwrap());
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    pool.export();
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.temp.path()).unwrap(), target };
    let error = bench.destroy_clone(&first.reference).unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.unwrap().contains("zpool import"));
    bench.reclaim(&["first", "second"]);
    assert_eq!(bench.clone_records().len(), 2);
    pool.import();
    bench.destroy_clone(&first.reference).unwrap();
    // The dataset around it has another name now, and so has it.
    run("zfs", &["rename", &pool.full("w"), &pool.full("x")]);
    bench.reclaim(&["second"]);
    assert_eq!((pool.names("filesystem", "x").len(), bench.clone_records().len()), (1, 0));
    assert!(!second.path.exists());
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn set_uid_means_nothing_in_a_clone() {
    use std::os::unix::fs::PermissionsExt;
    let pool = Pool::new();
    pool.create("w", &["-o", "exec=on", "-o", "relatime=on"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("program", "#!/bin/sh\n");
    let program = bench.workspace.path().join("program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let options = || run("findmnt", &["-n", "-o", "OPTIONS", "--mountpoint", clone.path.to_str().unwrap()]);
    assert!(options().contains("nosuid") && !options().contains("noexec"), "{}", options());
    run("zfs", &["unmount", &dataset]);
    run("zfs", &["mount", &dataset]);
    assert!(options().contains("nosuid"), "by whomever it is mounted: {}", options());
    // Its own snapshots are shown where it is.
    let inner = Bench::named(&pool, "inner", &clone.path);
    let own = inner.take("own");
    assert_eq!(inner.seen(&own, "program"), "#!/bin/sh\n");
    drop(inner);
    bench.destroy_clone(&clone.reference).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn the_clones_own_snapshots_are_seen_right_away() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let clone = bench.clone(&bench.take("a"), "fork").unwrap();
    let inner = Bench::named(&pool, "inner", &clone.path);
    let own = inner.take("own");
    assert_eq!(inner.seen(&own, "file"), "x");
    drop(inner);
    bench.destroy_clone(&clone.reference).unwrap();
}

/// Sets what it holds when it goes.
struct Ends<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_way_that_others_may_change_does_not_lead_root_astray() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    // A folder of a user's, who swaps it with a symlink all the time.
    let (theirs, victim) = (pool.temp.path().join("theirs"), pool.temp.path().join("victim"));
    std::fs::create_dir_all(theirs.join("target")).unwrap();
    std::fs::create_dir(&victim).unwrap();
    (0..6).for_each(|i| std::fs::create_dir(victim.join(format!("fork{i}"))).unwrap());
    std::os::unix::fs::symlink(&victim, theirs.join("link")).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
    let bench = Bench { target: ah_plugin_api::Dir::open(theirs.join("target")).unwrap(), ..bench };
    let end = AtomicBool::new(false);
    let mut clones = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (target, link) = (theirs.join("target"), theirs.join("link"));
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            while !end.load(Ordering::Relaxed) {
                let _ = rustix::fs::renameat_with(rustix::fs::CWD, &target, rustix::fs::CWD, &link, flags);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        // Also when what is below fails.
        let _end = Ends(&end);
        for i in 0..6 {
            let made = bench.clone(&a, &format!("fork{i}"));
            let mounts = String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap()).into_owned();
            assert!(!mounts.contains(&format!(" {}/fork", victim.display())), "mounted on what a symlink leads to");
            clones.extend(made.ok());
        }
    });
    // Whatever mounts all there is at the machine's start, does not go by that path.
    for clone in &clones {
        assert!(clone.notes.iter().any(|note| note.contains("zfs mount")), "{:?}", clone.notes);
    }
    for dataset in pool.names("filesystem", "w").iter().skip(1) {
        assert_eq!(run("zfs", &["get", "-H", "-o", "value", "canmount", dataset]).trim(), "noauto");
    }
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_look_at_a_branchs_snapshot_does_not_lead_root_astray() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    // A folder of a user's, in which root has made a branch.
    let (theirs, victim) = (pool.temp.path().join("theirs"), pool.temp.path().join("victim"));
    std::fs::create_dir_all(theirs.join("target")).unwrap();
    std::fs::create_dir(&victim).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
    let bench = Bench { target: ah_plugin_api::Dir::open(theirs.join("target")).unwrap(), ..bench };
    let clone = bench.clone(&a, "fork").unwrap();
    let inner = Bench::named(&pool, "inner", &clone.path);
    let taken = inner.take("own");
    let error = inner.mount(&taken, "v").map(drop);
    // Where the kernel goes by that path. Newer ones find it out by themselves.
    if let Err(error) = error {
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("zfs mount")), "{error:?}");
    }
    drop(inner);
    let dataset = pool.names("filesystem", "w").remove(1);
    let (_, own) = pool
        .names("snapshot", "w")
        .into_iter()
        .find_map(|name| {
            name.split_once('@').filter(|(of, _)| *of == dataset).map(|(of, own)| (of.to_owned(), own.to_owned()))
        })
        .unwrap();
    // They put another one in its place.
    let moved = theirs.join("moved");
    std::fs::rename(theirs.join("target"), &moved).unwrap();
    let shown = theirs.join("target/fork/.zfs/snapshot");
    std::fs::create_dir_all(&shown).unwrap();
    std::os::unix::fs::symlink(&victim, shown.join(&own)).unwrap();
    let _ = std::fs::read_dir(moved.join("fork/.zfs/snapshot").join(&own)).map(Iterator::count);
    let mounts = String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap()).into_owned();
    assert!(!mounts.contains(&format!(" {} ", victim.display())), "mounted on what a symlink leads to");
    assert!(clone.notes.iter().any(|note| note.contains("look where")), "{:?}", clone.notes);
    bench.destroy_clone(&clone.reference).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_way_that_is_swapped_does_not_take_other_mounts_away() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    // A user's folder, in which root has made a branch, and has mounted it again, so that a snapshot of it can be shown; and a place that is not theirs, where
    // others are mounted by the same names.
    let (theirs, victim) = (pool.temp.path().join("theirs"), pool.temp.path().join("victim"));
    let (folder, link) = (theirs.join("t"), theirs.join("link"));
    std::fs::create_dir_all(folder.join("boot")).unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let others = [victim.join("fork"), victim.join("boot")];
    for other in &others {
        std::fs::create_dir_all(other).unwrap();
        run("mount", &["-t", "tmpfs", "other", other.to_str().unwrap()]);
    }
    let bench = Bench { target: ah_plugin_api::Dir::open(&folder).unwrap(), ..bench };
    for round in 0..8 {
        let clone = bench.clone(&a, "fork").unwrap();
        let dataset = pool.names("filesystem", "w").remove(1);
        run("zfs", &["unmount", &dataset]);
        run("zfs", &["mount", &dataset]);
        let inner = Bench::named(&pool, "inner", &clone.path);
        let view = inner.mount(&inner.take(&format!("own{round}")), &format!("v{round}")).unwrap();
        run("mount", &["--bind", view.path.to_str().unwrap(), folder.join("boot").to_str().unwrap()]);
        drop(inner);
        let end = AtomicBool::new(false);
        let removed = std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let swap = || rustix::fs::renameat_with(rustix::fs::CWD, &folder, rustix::fs::CWD, &link, flags);
                let mut swaps = 0;
                while !end.load(Ordering::Relaxed) || swaps % 2 == 1 {
                    swap().unwrap();
                    swaps += 1;
                }
            });
            let _end = Ends(&end);
            bench.destroy_clone(&clone.reference)
        });
        let mounts = String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap()).into_owned();
        for other in &others {
            assert!(mounts.contains(&format!(" {} ", other.display())), "round {round}: {} is gone", other.display());
        }
        // It may be that it was never seen where it was.
        if let Err(error) = removed {
            assert_eq!(error.kind, ErrorKind::Busy, "{error}");
            bench.destroy_clone(&clone.reference).unwrap();
        }
        assert_eq!(pool.names("filesystem", "w").len(), 1);
        let _ = std::fs::remove_dir(folder.join("fork"));
    }
    others.iter().for_each(|other| drop(run("umount", &[other.to_str().unwrap()])));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_of_a_clone_outlives_it() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    let a = bench.take("a");
    let first = bench.clone(&a, "first").unwrap();
    let inner = Bench::named(&pool, "inner", &first.path);
    inner.write("file", "two");
    let (early, b) = (inner.take("early"), inner.take("b"));
    let second = inner.clone(&b, "second").unwrap();
    inner.take("late");
    drop(inner);
    let _ = early;
    bench.destroy_clone(&first.reference).unwrap();
    assert_eq!(std::fs::read_to_string(second.path.join("file")).unwrap(), "two");
    assert!(!first.path.exists());
    assert_eq!(pool.names("filesystem", "w").len(), 2);
    bench.destroy(&a).unwrap();
    assert_eq!(std::fs::read_to_string(second.path.join("file")).unwrap(), "two");
    let inner = Bench::named(&pool, "inner", &pool.path("w"));
    inner.destroy_clone(&second.reference).unwrap();
    assert_eq!(pool.names("filesystem,snapshot", "w"), [pool.full("w")]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn others_snapshots_in_a_clone_are_left_alone_and_not_in_the_way() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    run("zfs", &["snapshot", "-r", &format!("{}@autosnap", pool.full("w"))]);
    bench.destroy_clone(&clone.reference).unwrap();
    assert!(!clone.path.exists());
    let theirs = pool.names("snapshot", "w").into_iter().find(|name| name.contains("/ah-")).unwrap();
    assert!(theirs.ends_with("@autosnap"));
    assert_eq!(bench.reclaim(&[]).actions.len(), 0);
    bench.clone(&a, "fork").unwrap();
    run("zfs", &["destroy", &theirs]);
    assert_eq!(bench.reclaim(&["fork"]).actions.len(), 2, "the old one, and the new one that its caller forgot");
    assert_eq!(pool.names("filesystem", "w").len(), 1);
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
}
