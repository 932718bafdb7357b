//! A removal that is refused or fails leaves a clone as it was. What was removed takes no room beyond the limits.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use ah_plugin_api::{Context, DestroyRequest, Error, ErrorKind, FileName, Provider, ReclaimRequest, WritableClone};
use ah_test_disks::Disk;
use common::{ALICE, ALLOWED, BOB, Daemon, Home, as_user, is_root};
use nix::mount::{MsFlags, mount};
use std::os::unix::fs::chown;

/// A clone with a file of its own.
fn clone(provider: &dyn Provider, home: &Home) -> WritableClone {
    as_user(ALICE, || {
        let open = home.open();
        let one = open.snapshot(provider, "one").unwrap().reference;
        let clone = open.fork(provider, &one, "c").unwrap();
        fs::write(clone.path.join("new"), "mine").unwrap();
        clone
    })
}

fn remove(provider: &dyn Provider, home: &Home, clone: &WritableClone) -> Result<(), Error> {
    as_user(ALICE, || home.open().destroy(provider, &DestroyRequest::Clone(clone.reference.clone())))
}

/// Puts the store in order as `gc` does, over a new connection.
fn gc(provider: &dyn Provider, home: &Home) {
    let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
    as_user(ALICE, || provider.reclaim(&home.open().place(), &request, &Context::quiet())).unwrap();
}

fn is_whole(clone: &WritableClone) -> bool {
    fs::read_to_string(clone.path.join("new")).is_ok_and(|text| text == "mine")
}

#[test]
fn without_room_to_write_down_that_it_goes_nothing_of_a_clone_does() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    daemon.kill();
    let state = daemon.base.path().join("state");
    mount(Some("tmpfs"), &state, Some("tmpfs"), MsFlags::empty(), Some("nr_inodes=64,mode=700")).unwrap();
    daemon.run().unwrap();
    let alice = daemon.home(ALICE);
    let clone = clone(&*daemon.provider(), &alice);
    let provider = daemon.provider();
    // As many files as fit in there.
    while fs::File::create(state.join(format!("filler-{}", daemon.state("").len()))).is_ok() {}
    let error = remove(&*provider, &alice, &clone).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    assert!(is_whole(&clone));
}

#[test]
fn what_a_provider_refuses_to_remove_is_there_as_before() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    let clone = clone(&*daemon.provider(), &alice);
    let held = clone.path.join("held");
    fs::write(&held, "").unwrap();
    assert_eq!(remove(&*daemon.provider(), &alice, &clone).unwrap_err().kind, ErrorKind::Busy);
    assert!(is_whole(&clone));
    // It cannot even be shown again: what is there is somebody else's.
    chown(&clone.path, Some(BOB), None).unwrap();
    assert_eq!(remove(&*daemon.provider(), &alice, &clone).unwrap_err().kind, ErrorKind::Busy);
    assert!(!is_whole(&clone));
    let clones = daemon.base.path().join("state/clones");
    let source = clones.join(&daemon.state("clones")[0]);
    fs::remove_file(source.join("held")).unwrap();
    gc(&*daemon.provider(), &alice);
    daemon.restart();
    gc(&*daemon.provider(), &alice);
    chown(&source, Some(ALICE), None).unwrap();
    gc(&*daemon.provider(), &alice);
    assert!(is_whole(&clone));
    remove(&*daemon.provider(), &alice, &clone).unwrap();
    assert!(daemon.state("records").is_empty() && daemon.state("clones").is_empty());
}

#[test]
fn a_clone_that_is_not_mounted_any_more_is_when_its_user_comes() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    let clone = clone(&*daemon.provider(), &alice);
    ah_test_disks::unmount(&clone.path);
    assert!(!is_whole(&clone));
    as_user(ALICE, || alice.open().list(&*daemon.provider()).unwrap());
    assert!(is_whole(&clone));
}

/// Somebody works in a clone: in vain it is removed, and they go on in it as it is.
fn is_not_taken_from_under(provider: &dyn Provider, home: &Home) {
    let clone = clone(provider, home);
    let mut inside =
        Command::new("cat").current_dir(&clone.path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let at = || fs::read_link(Path::new("/proc").join(inside.id().to_string()).join("cwd")).unwrap();
    let error = remove(provider, home, &clone).unwrap_err();
    assert_eq!((error.kind, at()), (ErrorKind::Busy, clone.path.clone()), "{error}");
    assert!(is_whole(&clone));
    gc(provider, home);
    assert!(is_whole(&clone));
    inside.kill().unwrap();
    inside.wait().unwrap();
    remove(provider, home, &clone).unwrap();
    assert!(!clone.path.exists());
}

#[test]
fn a_clone_is_not_taken_from_under_who_works_in_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::with(ALLOWED, &["copies", "btrfs"], &[]);
    is_not_taken_from_under(&*daemon.provider(), &daemon.home(ALICE));
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    is_not_taken_from_under(&*daemon.named("btrfs_ahd"), &Home::make(disk.at().join("home"), ALICE));
}

/// Kills the helper, with what is left where that happens as it was about to unmount the only clone to remove it.
fn kill_before_it_unmounts(daemon: &mut Daemon) {
    daemon.kill();
    note(daemon, "going-tmp");
}

#[test]
fn a_clone_stays_whose_removal_was_cut_off_before_it_was_unmounted() {
    if !is_root() {
        return;
    }
    for unmounted in [false, true] {
        let mut daemon = Daemon::start(ALLOWED);
        let alice = daemon.home(ALICE);
        let clone = clone(&*daemon.provider(), &alice);
        let mut inside =
            Command::new("cat").current_dir(&clone.path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // Refused, as somebody works there: it is not noted that it goes, before or after.
        assert_eq!(remove(&*daemon.provider(), &alice, &clone).unwrap_err().kind, ErrorKind::Busy);
        assert!(daemon.state("records").iter().all(|name| !name.contains(".going")));
        kill_before_it_unmounts(&mut daemon);
        fs::write(clone.path.join("later"), "goes on").unwrap();
        if unmounted {
            // As after the machine's next start.
            inside.kill().unwrap();
            inside.wait().unwrap();
            ah_test_disks::unmount(&clone.path);
        }
        daemon.run().unwrap();
        gc(&*daemon.provider(), &alice);
        assert!(is_whole(&clone) && clone.path.join("later").exists(), "unmounted: {unmounted}");
        let _ = inside.kill();
        inside.wait().unwrap();
        remove(&*daemon.provider(), &alice, &clone).unwrap();
        assert!(daemon.state("records").is_empty() && daemon.state("clones").is_empty());
    }
}

/// Writes a note beside the record of the only clone.
fn note(daemon: &Daemon, extension: &str) {
    let records = daemon.base.path().join("state/records");
    let [record] = <[String; 1]>::try_from(daemon.state("records")).unwrap();
    fs::write(records.join(record).with_extension(extension), "").unwrap();
}

/// Writes down that the removal of the only clone was begun, as a helper does that was killed then.
fn note_going(daemon: &Daemon) {
    note(daemon, "going");
}

#[test]
fn a_clone_whose_removal_was_cut_off_goes_unless_it_is_mounted() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let alice = daemon.home(ALICE);
    let clone = clone(&*daemon.provider(), &alice);
    daemon.kill();
    note_going(&daemon);
    daemon.run().unwrap();
    gc(&*daemon.provider(), &alice);
    assert!(is_whole(&clone));
    assert_eq!(daemon.state("records").len(), 1, "it says so no more");
    daemon.kill();
    note_going(&daemon);
    ah_test_disks::unmount(&clone.path);
    daemon.run().unwrap();
    gc(&*daemon.provider(), &alice);
    assert!(daemon.state("records").is_empty() && daemon.state("clones").is_empty());
}

/// The folder of that name somewhere in `top`.
fn folder(top: &Path, name: &str) -> Option<PathBuf> {
    let folders = fs::read_dir(top).ok()?.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    folders.filter(|path| !path.is_symlink()).find_map(|path| match path.ends_with(name) {
        true => Some(path),
        false => folder(&path, name),
    })
}

#[test]
fn removed_snapshots_do_not_heap_up_beyond_the_limit() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let config = r#"{"allow-containing": ["65534"], "limits": {"snapshots": 3}}"#;
    let daemon = Daemon::with(config, &["btrfs"], &[]);
    let alice = Home::make(disk.at().join("home"), ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.named("btrfs_ahd"), alice.open());
        for i in 0..12 {
            let one = open.snapshot(&*provider, &format!("s{i}")).unwrap().reference;
            open.destroy(&*provider, &DestroyRequest::Snapshot(one)).unwrap();
        }
    });
    let trash = folder(disk.at(), "trash").unwrap();
    let left = fs::read_dir(trash).unwrap().count();
    assert!(left <= 3, "{left} removed snapshots are kept");
}

#[test]
fn clones_that_are_forgotten_go_though_their_user_comes_at_the_same_time() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(r#"{"allow-containing": ["65534"], "limits": {"calls-per-minute": 1000000}}"#);
    let alice = daemon.home(ALICE);
    let one = as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one").unwrap().reference);
    let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    for name in &names {
        let clone = as_user(ALICE, || alice.open().fork(&*daemon.provider(), &one, name).unwrap());
        // As after a power cut: what a clone was made of may not have reached the disk; its record has.
        ah_test_disks::unmount(&clone.path);
    }
    for left in daemon.state("clones") {
        fs::remove_dir_all(daemon.base.path().join("state/clones").join(left)).unwrap();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    as_user(ALICE, || drop(daemon.provider()));
                }
            });
        }
        let forgotten = names.iter().map(|name| FileName::new(name.as_str()).unwrap()).collect();
        let request = ReclaimRequest { auto: false, forgotten };
        let call = || daemon.provider().reclaim(&alice.open().place(), &request, &Context::quiet());
        let reclaimed = as_user(ALICE, call);
        over.store(true, Ordering::Relaxed);
        reclaimed.unwrap();
    });
    assert_eq!(daemon.state("records"), [""; 0]);
}

/// Deletes a subvolume as an administrator may, by hand.
fn delete_subvolume(at: &Path) {
    let deleted = Command::new("btrfs").args(["-q", "subvolume", "delete"]).arg(at).status().unwrap();
    assert!(deleted.success(), "{}", at.display());
}

#[test]
fn what_was_deleted_from_under_its_mount_goes_with_the_mount() {
    if !is_root() {
        return;
    }
    for restart in [false, true] {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let mut daemon = Daemon::with(ALLOWED, &["btrfs"], &[]);
        let alice = Home::make(disk.at().join("home"), ALICE);
        let provider = daemon.named("btrfs_ahd");
        let (one, view, clone) = as_user(ALICE, || {
            let open = alice.open();
            let one = open.snapshot(&*provider, "one").unwrap().reference;
            let view = open.mount(&*provider, &one, "v").unwrap();
            let clone = open.fork(&*provider, &one, "c").unwrap();
            (one, view, clone)
        });
        let depot = folder(disk.at(), "snapshots").unwrap();
        delete_subvolume(&folder(&depot.join(one.as_str()), "tree").unwrap());
        let made = fs::read_dir(depot.with_file_name("clones")).unwrap();
        made.for_each(|made| delete_subvolume(&made.unwrap().path()));
        if restart {
            daemon.restart();
        }
        let provider = daemon.named("btrfs_ahd");
        as_user(ALICE, || {
            let open = alice.open();
            open.mount(&*provider, &one, "again").unwrap_err();
            open.unmount(&*provider, &view.reference).unwrap();
            open.destroy(&*provider, &DestroyRequest::Clone(clone.reference.clone())).unwrap();
            open.destroy(&*provider, &DestroyRequest::Snapshot(one.clone())).unwrap();
        });
        let (mounts, home) = (ah_test_disks::mounts(), alice.root.to_str().unwrap());
        assert!(!mounts.contains(home), "{mounts}");
        assert_eq!(daemon.state("records"), [""; 0]);
        assert_eq!(fs::read_dir(alice.at("target")).unwrap().count(), 0);
    }
}
