//! A workspace that cannot be snapshotted because of where its earlier snapshots are, or of what is in it: the probe says so, so that another
//! provider serves, and what it advises helps.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ah_plugin_api::{Context, DestroyRequest, Error, ErrorKind, ListRequest, Place, Provider};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path, unmount};
use common::{Bench, run, subvolume, subvolumes};

/// No snapshot can be taken, and the probe knows it; gives what it advises.
fn advice(bench: &Bench) -> String {
    let probe = bench.probe();
    assert!(!probe.usable && !probe.reason.is_empty(), "{probe:?}");
    let error = bench.try_snapshot("never").unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    assert_eq!(error.hint, probe.remedy, "{error:?}");
    probe.remedy.unwrap()
}

/// Types the command that a hint ends with.
fn follow(hint: &str) {
    let command = hint.find("rm '").map(|at| &hint[at..]).unwrap_or_else(|| panic!("nothing to type: {hint}"));
    run("sh", &["-ec", command]);
}

fn list(bench: &Bench) -> Result<usize, Error> {
    let list = bench.provider.list(&Place::new(&bench.store), &ListRequest::default(), &Context::quiet());
    list.map(|list| list.len())
}

#[test]
fn snapshots_that_somebody_cleared_away() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let bench = Bench::of(&disk.at().join("work"), &elsewhere.path().join("it's a store"), &elsewhere.path().join("t"));
    bench.write("f", "x");
    bench.snapshot("a");
    let above = disk.at().join(".ah-snapshots");
    // Moved, they are only away.
    fs::rename(&above, disk.at().join("moved")).unwrap();
    assert!(advice(&bench).starts_with(&format!("move {} back", above.display())));
    // Nor are they gone where somebody else's snapshot has made another folder in that place.
    let other = Bench::of(&disk.at().join("other"), &elsewhere.path().join("other"), &elsewhere.path().join("t2"));
    other.snapshot("b");
    assert!(advice(&bench).starts_with(&format!("{} is another folder by now", above.display())));
    bench.provider.reclaim(&bench.place(), &Default::default(), &Context::quiet()).unwrap_err();
    fs::rename(&above, disk.at().join("of the other")).unwrap();
    fs::rename(disk.at().join("moved"), &above).unwrap();
    assert!(bench.probe().usable && bench.ids() == ["a"]);
    // Removed, nobody but a person knows it.
    let gone = |path: &Path| {
        run("sh", &["-ec", &format!("btrfs subvolume delete '{0}'/*/snapshots/*/tree '{0}'", path.display())])
    };
    gone(&above);
    let hint = advice(&bench);
    assert_eq!(list(&bench).unwrap_err().hint.as_ref(), Some(&hint));
    bench.provider.reclaim(&bench.place(), &Default::default(), &Context::quiet()).unwrap_err();
    assert!(elsewhere.path().join("it's a store/elsewhere").exists(), "nothing is forgotten by itself");
    follow(&hint);
    assert!(bench.probe().usable && list(&bench).unwrap() == 0);
    bench.snapshot("b");
    assert_eq!(bench.ids(), ["b"]);
    // A note that cannot be read.
    let note = elsewhere.path().join("it's a store/elsewhere");
    fs::write(&note, "nonsense").unwrap();
    let probe = bench.probe();
    assert!(!probe.usable, "{probe:?}");
    follow(&probe.remedy.unwrap());
    bench.snapshot("c");
}

/// The device of what is mounted there.
fn device(at: &Path) -> String {
    let text = run("findmnt", &["-nvo", "SOURCE", at.to_str().unwrap()]);
    text.lines().next_back().unwrap().to_owned()
}

/// As who goes back to a snapshot of all of a home does, which is a mount of its own.
#[test]
fn snapshots_that_stayed_behind_in_the_subvolume_around_them() {
    for is_in_store in [true, false] {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let beside = tempfile::tempdir().unwrap();
        let (home, former) = (disk.at().join("home"), disk.at().join("former"));
        let (store, depot) = match is_in_store {
            true => (home.join("store"), "store/depot"),
            false => (beside.path().join("store"), ".ah-snapshots"),
        };
        subvolume(&home);
        // A mount of its own, so that no place is above it.
        run("mount", &["--bind", home.to_str().unwrap(), home.to_str().unwrap()]);
        let bench = || Bench::of(&home.join("work"), &store, &store.with_file_name("t"));
        bench().write("f", "x");
        bench().snapshot("a");
        unmount(&home);
        run("btrfs", &["-q", "subvolume", "snapshot", home.to_str().unwrap(), disk.at().join("new").to_str().unwrap()]);
        fs::rename(&home, &former).unwrap();
        fs::rename(disk.at().join("new"), &home).unwrap();
        let part =
            |name: &str| run("mount", &["-o", &format!("subvol={name}"), &device(disk.at()), home.to_str().unwrap()]);
        part("home");
        let hint = advice(&bench());
        assert_eq!(list(&bench()).unwrap_err().hint.as_ref(), Some(&hint));
        bench().provider.reclaim(&bench().place(), &Default::default(), &Context::quiet()).unwrap_err();
        assert!(home.join(depot).exists(), "it says where the snapshots belong");
        let (_, command) = hint.split_once("perl ").unwrap_or_else(|| panic!("{hint}"));
        let (command, _) = command.split_once(" (on").unwrap_or_else(|| panic!("{hint}"));
        let old = former.join(depot);
        let command = format!("LC_ALL=C perl {command}").replace(" OLD ", &format!(" {} ", old.display()));
        // As it is typed there, it does not get from one mount to the other, and does nothing.
        let all_of_it = || run("find", &[old.to_str().unwrap(), "-maxdepth", "2", "-printf", "%i %C@ %p\n"]);
        let before = all_of_it();
        let out = Command::new("sh").args(["-ec", &command]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.starts_with("Invalid cross-device link"), "{out:?}");
        assert_eq!(all_of_it(), before);
        // In the one mount of all that the hint speaks of.
        let all = beside.path().join("all");
        fs::create_dir_all(&all).unwrap();
        run("mount", &["-o", "subvolid=5", &device(&home), all.to_str().unwrap()]);
        let at = disk.at().to_str().unwrap();
        let out = Command::new("sh").args(["-ec", &command.replace(at, all.to_str().unwrap())]).output().unwrap();
        unmount(&all);
        assert!(out.status.success(), "{out:?}");
        assert!(bench().probe().usable && bench().ids() == ["a"]);
        bench().snapshot("b");
        unmount(&home);
    }
}

#[test]
fn a_newline_in_the_path_of_where_snapshots_are() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let beside = tempfile::tempdir().unwrap();
    let at = beside.path().join("a\n0a\nb");
    fs::create_dir(&at).unwrap();
    run("mount", &["--bind", disk.at().to_str().unwrap(), at.to_str().unwrap()]);
    let bench = Bench::of(&at.join("work"), &beside.path().join("store"), &beside.path().join("t"));
    bench.write("f", "x");
    let taken = bench.try_snapshot("a");
    let told = (list(&bench).ok(), bench.probe().usable);
    drop(bench);
    unmount(&at);
    taken.unwrap();
    assert_eq!(told, (Some(1), true));
}

#[test]
fn snapshots_on_another_filesystem_than_the_workspace_by_now() {
    let (Some(first), Some(second)) = (Disk::new("btrfs", 300, ""), Disk::new("btrfs", 300, "")) else { return };
    let beside = tempfile::tempdir().unwrap();
    // In the store, and elsewhere.
    for store in [first.at().join("store"), beside.path().join("store")] {
        let work = first.at().join("work");
        let bench = || Bench::of(&work, &store, &store.with_file_name("t"));
        bench().write("f", "former");
        let taken = bench().snapshot("a");
        run("mount", &["--bind", second.at().to_str().unwrap(), work.to_str().unwrap()]);
        fs::create_dir_all(work.join("work")).unwrap();
        // A directory in it: there has to be one above where snapshots can be.
        let work = work.join("work");
        let other = Bench::of(&work, &store, &store.with_file_name("t"));
        let hint = advice(&other);
        assert!(hint.contains("ah agent fs rm") && hint.ends_with("ah agent fs gc"), "{hint}");
        // What there was is there.
        assert_eq!(other.names(&taken, ""), ["f"]);
        other.remove(&taken);
        assert!(!other.probe().usable, "it is not gone yet");
        other.reclaim();
        assert!(other.probe().usable, "{:?}", other.probe());
        other.write("f", "new");
        let new = other.snapshot("b");
        assert_eq!((other.ids(), other.names(&new, "")), (vec!["b".to_owned()], vec!["f".to_owned()]));
        assert_eq!(subvolumes(first.at()), 0);
        other.remove(&new);
        other.reclaim();
        drop(other);
        unmount(&first.at().join("work"));
    }
}

/// Nothing is above it, so what helps has to be in it.
#[test]
fn a_workspace_that_is_where_its_filesystem_is_mounted() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let beside = tempfile::tempdir().unwrap();
    let store = |name: &str| beside.path().join(name);
    let bench = Bench::of(disk.at(), &store("store"), &store("t"));
    let hint = advice(&bench);
    assert!(hint.contains("AH_HOME") && hint.contains("a directory in it"), "{hint}");
    assert!(!hint.contains("ahd"), "whom it would be no better with: {hint}");
    let own = Bench::of(disk.at(), &disk.at().join(".ah/store"), &disk.at().join(".ah/t"));
    let below = Bench::of(&disk.at().join("work"), &store("store"), &store("t"));
    for bench in [own, below] {
        assert!(bench.probe().usable, "{:?}", bench.probe());
        bench.write("f", "x");
        let taken = bench.snapshot("a");
        assert!(bench.names(&taken, "").contains(&"f".to_owned()));
    }
}

#[test]
fn a_swap_file_whose_path_the_kernel_writes_otherwise() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let home = disk.at().join("my home\\");
    subvolume(&home);
    let bench = Bench::of(&home, &disk.at().join("store"), &disk.at().join("target"));
    let swap = home.join("the\tswap file");
    run("truncate", &["-s", "0", swap.to_str().unwrap()]);
    run("chattr", &["+C", swap.to_str().unwrap()]);
    run("dd", &["if=/dev/zero", &format!("of={}", swap.display()), "bs=1M", "count=16", "status=none"]);
    fs::set_permissions(&swap, fs::Permissions::from_mode(0o600)).unwrap();
    run("mkswap", &[swap.to_str().unwrap()]);
    run("swapon", &[swap.to_str().unwrap()]);
    let (probe, refused) = (bench.probe(), bench.try_snapshot("a"));
    run("swapoff", &[swap.to_str().unwrap()]);
    assert!(!probe.usable && probe.reason.contains("the\tswap file"), "{probe:?}");
    let error = refused.unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("the\tswap file"), "{error:?}");
    // Not in use, it is a file like others.
    let taken = bench.snapshot("a");
    assert_eq!((bench.names(&taken, ""), taken.omitted_total), (vec!["the\tswap file".to_owned()], 0));
}

#[test]
fn where_nobody_can_say_what_is_mounted_nothing_is_claimed() {
    const TEST: &str = "where_nobody_can_say_what_is_mounted_nothing_is_claimed";
    if let Some(path) = std::env::var_os("AH_TEST_WITHOUT_MOUNTS") {
        let bench = Bench::in_folder(Path::new(&path));
        for error in [bench.try_snapshot("a").unwrap_err(), bench.convert().map(drop).unwrap_err()] {
            assert!(error.kind == ErrorKind::Unavailable && error.hint.is_some(), "{error:?}");
        }
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let (test, path) = (std::env::current_exe().unwrap(), disk.at().to_str().unwrap());
    for table in ["/dev/null", "/proc/self/mem"] {
        // It is empty, and it cannot be read.
        let script = format!("mount --bind {table} /proc/$$/mountinfo && exec \"$0\" --exact {TEST}");
        let mut shell = std::process::Command::new("unshare");
        shell.args(["-m", "sh", "-c", &script]).arg(&test).env("AH_TEST_WITHOUT_MOUNTS", path);
        let out = shell.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("1 passed"), "{table}: {text}");
    }
    assert_eq!(bench.ids(), Vec::<String>::new());
    assert!(bench.convert().unwrap().changed);
}

#[test]
fn a_clone_that_was_moved_away_and_back_is_known() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("f", "x");
    let snapshot = bench.snapshot("a");
    let path = bench.target.path().join("b");
    for by_an_earlier_version in [false, true] {
        let clone = bench.clone(&snapshot, "b");
        let records = || fs::read_dir(bench.store.path().join("depot/made")).unwrap().count();
        if by_an_earlier_version {
            let whole = clone.reference.as_str().replace("clone-", "whole-");
            let whole = bench.store.path().join("depot/made").join(whole);
            fs::remove_file(&whole).unwrap();
            // A process that another test begins has the lock of who made the clone, too, until it runs its program.
            let noted = (0..100).any(|round| {
                std::thread::sleep(std::time::Duration::from_millis(round.min(50)));
                assert_eq!(bench.reclaim().actions, [""; 0]);
                whole.symlink_metadata().is_ok()
            });
            assert!(noted);
        }
        let away = disk.at().join("away");
        fs::rename(&path, &away).unwrap();
        assert_eq!(bench.reclaim().actions, [""; 0], "it may come back");
        fs::rename(&away, &path).unwrap();
        bench.destroy(&DestroyRequest::Clone(clone.reference.clone())).unwrap();
        assert!(!path.exists() && records() == 0);
    }
    // Its record is one of a clone that was never made, as who is killed just before that leaves it.
    let clone = bench.clone(&snapshot, "b");
    let made = bench.store.path().join("depot/made");
    fs::remove_file(made.join(clone.reference.as_str().replace("clone-", "whole-"))).unwrap();
    run("btrfs", &["-q", "subvolume", "delete", path.to_str().unwrap()]);
    let mut told = (0..100).map(|round| {
        std::thread::sleep(std::time::Duration::from_millis(round.min(50)));
        bench.reclaim().actions
    });
    let told = told.find(|actions| !actions.is_empty());
    assert_eq!(told.unwrap_or_default(), ["forgot the clone b, which is not there"]);
    assert_eq!(fs::read_dir(&made).unwrap().count(), 0);
}

#[test]
fn what_is_in_a_clones_place_keeps_its_mode() {
    let test = "what_is_in_a_clones_place_keeps_its_mode";
    if let Some(folder) = ordinary_users_path() {
        let bench = Bench::in_folder(&folder);
        subvolume(&folder.join("work/own"));
        let bench = Bench::of(&folder.join("work/own"), bench.store.path(), bench.target.path());
        let clone = bench.clone(&bench.snapshot("a"), "b");
        fs::rename(&clone.path, folder.join("away")).unwrap();
        subvolume(&clone.path);
        let mode = |mode| fs::set_permissions(&clone.path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o0);
        bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
        assert_eq!(fs::metadata(&clone.path).unwrap().permissions().mode() & 0o777, 0);
        mode(0o700);
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "user_subvol_rm_allowed") else { return };
    let own = disk.at().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    as_ordinary_user(test, &own);
}
