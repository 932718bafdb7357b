//! What workspaces look like in practice: nested subvolumes, mounts inside, swap files, stores elsewhere, what happens behind our back.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use ah_plugin_api::{
    Capability, Context, DestroyRequest, Dir, ErrorKind, ListRequest, OmitReason, Place, Provider, ReclaimRequest,
    UnmountRequest,
};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path, unmount};
use common::{Bench, omitted, run, subvolume, subvolumes};

#[test]
fn what_is_nested_or_mounted_inside_is_omitted_and_not_shown() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let home = disk.at().join("home");
    subvolume(&home);
    let bench = Bench::in_folder(&home);
    bench.write("src/main", "x");
    subvolume(&bench.work("src/nested"));
    bench.write("src/nested/in", "x");
    subvolume(&bench.work("src/nested/deeper"));
    subvolume(&home.join("beside"));
    for (name, kind) in [("mounted", "tmpfs"), ("with blank", "tmpfs")] {
        fs::create_dir(bench.work(name)).unwrap();
        run("mount", &["-t", kind, kind, bench.work(name).to_str().unwrap()]);
    }
    fs::create_dir(bench.work("bound")).unwrap();
    bench.write("hidden/below", "x");
    run("mount", &["--bind", bench.work("src").to_str().unwrap(), bench.work("bound").to_str().unwrap()]);
    run("mount", &["--bind", bench.work("bound").to_str().unwrap(), bench.work("hidden").to_str().unwrap()]);
    let taken = bench.snapshot("a");
    let expected = [
        "other-filesystem bound",
        "other-filesystem hidden",
        "other-filesystem mounted",
        "other-filesystem src/nested",
        "other-filesystem with blank",
    ];
    assert_eq!(omitted(&taken.omitted), expected);
    assert_eq!(taken.pins, Some(format!("the subvolume {}", home.display())));
    assert_eq!(bench.stat(&taken).unwrap(), taken);
    assert_eq!(bench.names(&taken, ""), ["src"]);
    assert_eq!(bench.names(&taken, "src"), ["main"]);
    // A clone has them as empty directories, which can be removed.
    let clone = bench.clone(&taken, "c");
    assert!(clone.path.ends_with("target/c/work") && clone.notes.len() == 1, "{clone:?}");
    assert!(fs::read_dir(clone.path.join("src/nested")).unwrap().next().is_none());
    fs::remove_dir(clone.path.join("src/nested")).unwrap();
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(!home.join("target/c").exists());
}

#[test]
fn root_tells_of_nothing_that_the_workspaces_owner_may_not_look_for() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    std::os::unix::fs::chown(bench.work(""), Some(NOBODY), Some(NOBODY)).unwrap();
    for (folder, mode) in [("closed", 0o700), ("open", 0o755), ("only to be entered", 0o711)] {
        // What is right in such a directory the kernel tells everybody.
        fs::create_dir_all(bench.work(&format!("{folder}/deeper"))).unwrap();
        fs::set_permissions(bench.work(folder), fs::Permissions::from_mode(mode)).unwrap();
        subvolume(&bench.work(&format!("{folder}/deeper/secret")));
    }
    let taken = bench.snapshot("a");
    assert_eq!(omitted(&taken.omitted), ["other-filesystem open/deeper/secret"]);
    // And what is not told of is not shown.
    assert!(bench.names(&taken, "closed/deeper").is_empty());
}

#[test]
fn a_store_inside_of_the_workspace_is_its_own_state() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let work = disk.at().join("work");
    subvolume(&work);
    let bench = Bench::of(&work, &work.join(".ah/store"), &work.join(".ah/target"));
    bench.write("f", "one");
    let first = bench.snapshot("a");
    assert_eq!((first.omitted.len(), first.pins.clone()), (0, None));
    bench.write("f", "two");
    let second = bench.snapshot("b");
    assert_eq!(omitted(&second.omitted), ["own-state .ah/store/depot"]);
    assert_eq!(second.omitted[0].reason, OmitReason::OwnState);
    let view = bench.view(&second, "v");
    assert!(fs::read_dir(view.path.join(".ah/store/depot")).unwrap().next().is_none());
    assert_eq!(bench.names(&second, ".ah/store"), Vec::<String>::new());
    assert_eq!(fs::read_to_string(view.path.join("f")).unwrap(), "two");
}

#[test]
fn a_workspace_on_a_mount_of_its_own_is_found_in_its_subvolume() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let home = disk.at().join("home");
    subvolume(&home);
    let real = home.join("a/deep/work");
    fs::create_dir_all(real.join("in")).unwrap();
    fs::write(real.join("in/f"), "x").unwrap();
    let bound = disk.at().join("bound");
    fs::create_dir(&bound).unwrap();
    run("mount", &["--bind", real.to_str().unwrap(), bound.to_str().unwrap()]);
    let bench = Bench::of(&bound, &disk.at().join("store"), &disk.at().join("target"));
    assert!(bench.probe().usable, "{:?}", bench.probe());
    let taken = bench.snapshot("a");
    assert_eq!(bench.names(&taken, "in"), ["f"]);
    let below = Bench::of(&bound.join("in"), &disk.at().join("store2"), &disk.at().join("target"));
    assert_eq!(below.names(&below.snapshot("a"), ""), ["f"]);
    assert!(below.convert().unwrap().changed);
    drop((bench, below));
    unmount(&bound);
    assert_eq!(fs::metadata(real.join("in")).unwrap().ino(), 256);
}

#[test]
fn a_store_on_another_filesystem() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let bench =
        Bench::of(&disk.at().join("me/work"), &elsewhere.path().join("store"), &elsewhere.path().join("target"));
    bench.write("f", "x");
    assert!(bench.probe().usable);
    assert!(bench.ids().is_empty());
    let taken = bench.snapshot("a");
    let above = disk.at().join(".ah-snapshots");
    assert_eq!(fs::metadata(&above).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&above).unwrap().ino(), 256);
    let view = bench.view(&taken, "v");
    assert!(view.path.starts_with(&above) && view.path.join("f").exists());
    let clone = bench.clone(&taken, "c");
    assert!(clone.path.starts_with(&above) && clone.notes.len() == 2, "{clone:?}");
    fs::write(clone.path.join("f"), "mine").unwrap();
    // Who asks whether the store may be removed is told of it, with and without a target folder.
    assert_eq!(bench.reclaim().held, std::slice::from_ref(&clone.reference));
    let alone = Place::new(&bench.store);
    let held = || bench.provider.reclaim(&alone, &ReclaimRequest::default(), &Context::quiet()).unwrap().held;
    assert_eq!(held(), std::slice::from_ref(&clone.reference));
    // Another store has a place of its own there.
    let other =
        Bench::of(&disk.at().join("me/work"), &elsewhere.path().join("other"), &elsewhere.path().join("target"));
    other.snapshot("a");
    assert_eq!(fs::read_dir(&above).unwrap().count(), 2);
    // Unmounted, it says so rather than that nothing is there.
    let busy = bench.destroy(&DestroyRequest::Snapshot(taken.reference.clone())).unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    bench.unmount(&view);
    fs::rename(&above, disk.at().join("moved")).unwrap();
    let gone = bench.stat(&taken).unwrap_err();
    assert!(gone.kind == ErrorKind::FailedPrecondition && gone.hint.is_some(), "{gone:?}");
    fs::rename(disk.at().join("moved"), &above).unwrap();
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(held().is_empty());
    bench.remove(&taken);
    bench.reclaim();
    assert!(bench.ids().is_empty());
    assert_eq!(fs::read_dir(&above).unwrap().count(), 1, "an empty place goes");
    other.destroy(&DestroyRequest::Snapshot(ah_plugin_api::Reference::new("a").unwrap())).unwrap();
    other.reclaim();
    assert!(!above.exists());
    assert_eq!(subvolumes(disk.at()), 0);
}

#[test]
fn a_place_that_is_taken_away_while_somebody_comes_to_it() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let dir = |name: &str| elsewhere.path().join(name);
    let bench = Bench::of(&disk.at().join("work"), &dir("store"), &dir("target"));
    let other = Bench::of(&disk.at().join("work"), &dir("other"), &dir("target"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for bench in [&bench, &bench, &other] {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    bench.reclaim();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..100 {
                let (mine, theirs) = (bench.snapshot(&format!("s{round}")), other.snapshot("o"));
                assert!(bench.stat(&mine).is_ok() && other.ids() == ["o"]);
                bench.remove(&mine);
                other.remove(&theirs);
                assert_eq!(bench.ids(), Vec::<String>::new());
            }
        }));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    bench.reclaim();
    other.reclaim();
    assert!(!disk.at().join(".ah-snapshots").exists());
    for store in ["store", "other"] {
        assert_eq!(fs::read_dir(dir(store)).unwrap().count(), 0, "{store}");
    }
}

#[test]
fn what_was_killed_while_it_made_a_place_or_took_one_away_leaves_nothing() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let dir = |name: &str| elsewhere.path().join(name);
    let bench = Bench::of(&disk.at().join("work"), &dir("store"), &dir("target"));
    let taken = bench.snapshot("a");
    let above = disk.at().join(".ah-snapshots");
    // Before there was a place, before it was the store's, half-way into writing it down, and just after it was the store's.
    let unmade = "0".repeat(32);
    let made = "1".repeat(32);
    fs::create_dir_all(above.join(&made).join("snapshots")).unwrap();
    for (key, text) in
        [(&unmade, format!("{unmade} {}\n", above.display())), (&made, format!("{made} {}\n", above.display()))]
    {
        fs::write(dir("store").join(format!("elsewhere.{key}")), text).unwrap();
    }
    fs::write(dir("store").join(format!("elsewhere.{}", "2".repeat(32))), "2222").unwrap();
    let own = fs::read_to_string(dir("store").join("elsewhere")).unwrap();
    fs::hard_link(dir("store").join("elsewhere"), dir("store").join(format!("elsewhere.{}", &own[..32]))).unwrap();
    let left = || fs::read_dir(dir("store")).unwrap().count();
    // What other tests start at this moment has the locks of this process until it is another program.
    for _ in 0..50 {
        bench.reclaim();
        if left() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(left(), 1);
    assert_eq!(fs::read_dir(&above).unwrap().count(), 1);
    assert!(bench.stat(&taken).is_ok());
    // While it was taken away.
    bench.remove(&taken);
    bench
        .provider
        .reclaim(&bench.place(), &ReclaimRequest { auto: true, ..ReclaimRequest::default() }, &Context::quiet())
        .unwrap();
    fs::rename(dir("store").join("elsewhere"), dir("store").join(format!("elsewhere.{}", &own[..32]))).unwrap();
    assert!(bench.ids().is_empty());
    bench.reclaim();
    assert!(!above.exists() && fs::read_dir(dir("store")).unwrap().count() == 0);
    bench.snapshot("b");
}

#[test]
fn a_note_that_is_back_after_a_power_cut_names_nothing() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let dir = |name: &str| elsewhere.path().join(name);
    let bench = Bench::of(&disk.at().join("work"), &dir("store"), &dir("target"));
    // By another store's, the folder of depots stays.
    Bench::of(&disk.at().join("work"), &dir("other"), &dir("target")).snapshot("x");
    for gc in [false, true] {
        let taken = bench.snapshot("a");
        let note = fs::read(dir("store/elsewhere")).unwrap();
        bench.remove(&taken);
        bench.reclaim();
        assert!(!dir("store/elsewhere").exists());
        fs::write(dir("store/elsewhere"), note).unwrap();
        assert!(bench.ids().is_empty());
        if gc {
            bench.reclaim();
            assert!(!dir("store/elsewhere").exists());
        }
        let taken = bench.snapshot("b");
        assert_eq!(bench.ids(), ["b"]);
        bench.remove(&taken);
        bench.reclaim();
    }
    // Where the filesystem is not there, nobody knows.
    bench.snapshot("c");
    fs::rename(disk.at().join(".ah-snapshots"), disk.at().join("moved")).unwrap();
    let place = Place::new(&bench.store);
    let lost = bench.provider.list(&place, &ListRequest::default(), &Context::quiet());
    assert_eq!(lost.unwrap_err().kind, ErrorKind::FailedPrecondition);
    let partial = ListRequest { partial: true };
    assert_eq!(bench.provider.list(&place, &partial, &Context::quiet()).unwrap(), []);
    fs::rename(disk.at().join("moved"), disk.at().join(".ah-snapshots")).unwrap();
    assert_eq!(bench.ids(), ["c"]);
}

#[test]
fn a_folder_of_that_name_that_is_not_ours_is_not_used() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = disk.at().join("secret");
    fs::create_dir(&secret).unwrap();
    std::os::unix::fs::symlink(&secret, disk.at().join(".ah-snapshots")).unwrap();
    fs::create_dir_all(disk.at().join("me/.ah-snapshots")).unwrap();
    let bench = Bench::of(&disk.at().join("me/b/work"), &elsewhere.path().join("s"), &elsewhere.path().join("t"));
    let taken = bench.snapshot("a");
    assert!(bench.view(&taken, "v").path.starts_with(disk.at().join("me/b/.ah-snapshots")));
    assert!(fs::read_dir(&secret).unwrap().next().is_none());
    let alone = Bench::of(disk.at(), &elsewhere.path().join("s2"), &elsewhere.path().join("t"));
    let refused = alone.probe();
    assert!(!refused.usable && refused.remedy.is_some(), "{refused:?}");
    assert_eq!(alone.try_snapshot("a").unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[test]
fn what_is_done_behind_our_back() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let (a, b) = (bench.snapshot("a"), bench.snapshot("b"));
    let view = bench.view(&a, "v");
    run("btrfs", &["subvolume", "delete", view.path.parent().unwrap().to_str().unwrap()]);
    assert_eq!(bench.ids(), ["b"]);
    assert_eq!(bench.stat(&a).unwrap_err().kind, ErrorKind::NotFound);
    bench.remove(&a);
    bench.unmount(&view);
    bench.reclaim();
    assert_eq!(bench.ids(), ["b"]);
    // Its id is free again.
    let again = bench.snapshot("a");
    // A clone's directory deleted by hand, and something else put there.
    let clone = bench.clone(&b, "c");
    fs::remove_dir_all(disk.at().join("target/c")).unwrap();
    fs::create_dir(disk.at().join("target/c")).unwrap();
    fs::write(disk.at().join("target/c/mine"), "x").unwrap();
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(disk.at().join("target/c/mine").exists());
    // A record that was damaged.
    let folder = disk.at().join("store/depot/snapshots/a");
    rustix::fs::setxattr(&folder, "user.ah.snapshot", b"nonsense", rustix::fs::XattrFlags::empty()).unwrap();
    let damaged = bench.stat(&again).unwrap_err();
    assert_eq!(damaged.kind, ErrorKind::DataLoss);
    assert!(damaged.hint.unwrap().ends_with(folder.join("tree").to_str().unwrap()));
    assert_eq!(bench.ids(), ["b"]);
    // It can be removed all the same.
    bench.remove(&again);
    bench.reclaim();
    assert_eq!(subvolumes(disk.at()), 2, "the depot and b");
}

#[test]
fn what_is_removed_is_off_the_list_at_once_and_given_back_in_turns() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    let ids: Vec<String> = (0..150).map(|number| format!("s{number}")).collect();
    let taken: Vec<_> = ids.iter().map(|id| bench.snapshot(id)).collect();
    let with_all = subvolumes(disk.at());
    taken.iter().for_each(|snapshot| bench.remove(snapshot));
    // Put aside, no more.
    assert_eq!((bench.ids().len(), subvolumes(disk.at())), (0, with_all));
    assert_eq!(bench.stat(&taken[0]).unwrap_err().kind, ErrorKind::NotFound);
    // As often as the background asks; somebody else gets in between.
    let request = ReclaimRequest { auto: true, ..ReclaimRequest::default() };
    let turn = || bench.provider.reclaim(&bench.place(), &request, &Context::quiet()).unwrap();
    let mut turns = 0;
    while !turn().actions.is_empty() {
        turns += 1;
        bench.snapshot(&format!("meanwhile{turns}"));
    }
    assert_eq!((bench.ids().len(), subvolumes(disk.at())), (turns, with_all - taken.len() + turns));
    assert!(turns > 1, "all at once");
    // Whoever asks for a gc by hand gets all of it.
    bench
        .provider
        .list(&bench.place(), &ListRequest::default(), &Context::quiet())
        .unwrap()
        .iter()
        .for_each(|s| bench.remove(s));
    bench.reclaim();
    assert_eq!(subvolumes(disk.at()), with_all - taken.len());
}

#[test]
fn a_view_that_a_process_is_in_stays() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("in/f", "x");
    let taken = bench.snapshot("a");
    let (first, last) = (bench.view(&taken, "v"), bench.view(&taken, "w"));
    let mut inside = std::process::Command::new("sleep").arg("60").current_dir(first.path.join("in")).spawn().unwrap();
    // The other one goes on showing it.
    bench.unmount(&first);
    let request = UnmountRequest { view: last.reference.clone(), unused: false };
    let busy = bench.provider.unmount(&bench.place(), &request, &Context::quiet()).unwrap_err();
    let removal = bench.destroy(&DestroyRequest::Snapshot(taken.reference.clone())).unwrap_err();
    // Who knows better is believed: nobody is looked for.
    let third = bench.view(&taken, "x");
    bench.unmount(&last);
    let unused = UnmountRequest { view: third.reference, unused: true };
    bench.provider.unmount(&bench.place(), &unused, &Context::quiet()).unwrap();
    let last = bench.view(&taken, "w");
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert!(busy.kind == ErrorKind::Busy && busy.message.contains(&inside.id().to_string()), "{busy:?}");
    assert!(removal.kind == ErrorKind::Busy && busy.hint.is_some(), "{removal:?}");
    bench.unmount(&last);
    bench.remove(&taken);
    assert!(bench.ids().is_empty());
}

#[test]
fn clones_with_subvolumes_in_them_go_whole() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let taken = bench.snapshot("a");
    let clone = bench.clone(&taken, "c");
    subvolume(&clone.path.join("one"));
    fs::create_dir_all(clone.path.join("one/dir")).unwrap();
    subvolume(&clone.path.join("one/dir/two"));
    run(
        "btrfs",
        &[
            "subvolume",
            "snapshot",
            "-r",
            clone.path.join("one/dir/two").to_str().unwrap(),
            clone.path.join("ro").to_str().unwrap(),
        ],
    );
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(!disk.at().join("target/c").exists());
    assert_eq!(subvolumes(disk.at()), 2, "the depot and the snapshot");
}

#[test]
fn an_interrupted_snapshot_is_none() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    bench.snapshot("a");
    let folder = disk.at().join("store/depot/snapshots");
    fs::create_dir(folder.join("half")).unwrap();
    assert_eq!(bench.ids(), ["a"]);
    // Held by whoever makes it, it stays.
    fs::create_dir(folder.join("making")).unwrap();
    let making = Dir::open(folder.join("making")).unwrap();
    rustix::fs::flock(&making, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(bench.reclaim().actions.len(), 1);
    assert!(!folder.join("half").exists() && folder.join("making").exists());
    let busy = bench.try_snapshot("making").unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    drop(making);
    bench.snapshot("making");
}

#[test]
fn not_btrfs_read_only_and_swap() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let ordinary = tempfile::tempdir().unwrap();
    let bench = Bench::of(&ordinary.path().join("w"), &disk.at().join("s"), &disk.at().join("t"));
    let no = bench.probe();
    assert!(!no.usable && no.reason.contains("not on a Btrfs"), "{no:?}");
    assert_eq!(bench.try_snapshot("a").unwrap_err().kind, ErrorKind::FailedPrecondition);

    let bench = Bench::in_folder(&disk.at().join("x"));
    let taken = bench.snapshot("a");
    disk.remount("ro");
    let no = bench.probe();
    assert!(!no.usable && no.reason.contains("read-only"), "{no:?}");
    assert_eq!(bench.try_snapshot("b").unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(bench.stat(&taken).unwrap(), taken);
    disk.remount("rw");

    let swap = disk.at().join("x/swap");
    run("truncate", &["-s", "0", swap.to_str().unwrap()]);
    run("chattr", &["+C", swap.to_str().unwrap()]);
    run("dd", &["if=/dev/zero", &format!("of={}", swap.display()), "bs=1M", "count=16", "status=none"]);
    fs::set_permissions(&swap, fs::Permissions::from_mode(0o600)).unwrap();
    run("mkswap", &[swap.to_str().unwrap()]);
    run("swapon", &[swap.to_str().unwrap()]);
    let (no, refused) = (bench.probe(), bench.try_snapshot("b"));
    run("swapoff", &[swap.to_str().unwrap()]);
    assert!(!no.usable && no.reason.contains("swap") && no.remedy.is_some(), "{no:?}");
    assert_eq!(refused.unwrap_err().kind, ErrorKind::FailedPrecondition);
    fs::remove_file(&swap).unwrap();
}

#[test]
fn without_privilege_it_says_what_would_help() {
    const TEST: &str = "without_privilege_it_says_what_would_help";
    if let Some(path) = ordinary_users_path() {
        let bench = Bench::in_folder(&path);
        let probe = bench.probe();
        if path.ends_with("foreign") {
            assert!(!probe.usable && probe.reason.contains("somebody else"), "{probe:?}");
            // That `convert` would, whoever shows this adds.
            assert!(probe.remedy.is_some_and(|remedy| remedy.contains("ahd")) && probe.convertible.is_some());
            assert_eq!(bench.try_snapshot("a").unwrap_err().kind, ErrorKind::PermissionDenied);
            assert!(bench.ids().is_empty());
            // And that does help.
            bench.write("f", "x");
            assert!(bench.convert().unwrap().changed);
            let bench = Bench::in_folder(&path);
            assert!(bench.probe().usable && bench.probe().convertible.is_none(), "{:?}", bench.probe());
            let taken = bench.snapshot("a");
            assert_eq!((taken.pins.clone(), bench.names(&taken, "")), (None, vec!["f".to_owned()]));
        } else {
            assert_eq!((probe.usable, probe.can_delete), (true, false), "{probe:?}");
            assert!(probe.remedy.is_some_and(|remedy| remedy.contains("user_subvol_rm_allowed")));
            // It can all the same, by emptying it.
            bench.write("closed/f", "x");
            fs::set_permissions(bench.work("closed"), fs::Permissions::from_mode(0o500)).unwrap();
            let taken = bench.snapshot("a");
            bench.remove(&taken);
            assert!(bench.ids().is_empty());
            assert_eq!(bench.reclaim().actions.len(), 1);
            assert!(fs::read_dir(path.join("store/depot/trash")).unwrap().next().is_none());
            assert!(bench.work("closed/f").exists());
        }
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let (own, foreign) = (disk.at().join("own"), disk.at().join("foreign"));
    subvolume(&own);
    fs::create_dir(&foreign).unwrap();
    // As most homes are: it may be passed, not listed.
    fs::set_permissions(disk.at(), fs::Permissions::from_mode(0o711)).unwrap();
    for path in [&own, &foreign] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        as_ordinary_user(TEST, path);
    }
}

#[test]
fn what_was_written_before_is_there_whole() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    for n in 0..10 {
        // As editors save, and never put on disk.
        bench.write("new", vec![b'a' + n; 100_000]);
        fs::rename(bench.work("new"), bench.work("saved")).unwrap();
        let taken = bench.snapshot(&format!("s{n}"));
        let view = bench.view(&taken, &format!("v{n}"));
        assert_eq!(fs::read(view.path.join("saved")).unwrap(), vec![b'a' + n; 100_000]);
    }
    assert!(!bench.provider.describe().capabilities.contains(&Capability::PointInTime));
    assert!(
        bench.provider.list(&Place::new(&bench.store), &Default::default(), &ah_plugin_api::Context::quiet()).is_ok()
    );
}
