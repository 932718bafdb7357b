//! A disk that fell ill, or is full: what was captured can be looked at all the same, by a user without rights of their own.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ah_plugin_api::{DestroyRequest, Dir, ErrorKind, Provider, Reference};
use ah_test_disks::Disk;
use common::*;

/// What the store holds is shown, and stays as long as it is.
fn shows(open: &Open, provider: &dyn Provider, one: &Reference) {
    let view = open.mount(provider, one, "v").unwrap();
    assert_eq!(fs::read_to_string(view.path.join("file")).unwrap(), format!("of {ALICE}"));
    let refused = open.destroy(provider, &DestroyRequest::Snapshot(one.clone())).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    open.unmount(provider, &view.reference).unwrap();
    open.unmount(provider, &view.reference).unwrap();
    assert!(!view.path.exists());
}

/// The user's workspace on that disk, all else of theirs on another one.
fn home(daemon: &Daemon, disk: &Disk) -> Open {
    let (there, here) = (Home::make(disk.at().join("u"), ALICE), daemon.home(ALICE));
    as_user(ALICE, || Open { workspace: Dir::open(there.at("w")).unwrap(), ..here.open() })
}

/// Until not even one more symlink fits.
fn fill_up(folder: &Path) {
    for (size, name) in [(1 << 20, "m"), (1 << 12, "k")] {
        (0..100_000).any(|i| fs::write(folder.join(format!("{name}{i}")), vec![2; size]).is_err());
    }
    (0..1_000_000).any(|i| symlink("y".repeat(3000), folder.join(format!("s{i}"))).is_err());
}

#[test]
fn a_snapshot_is_shown_on_a_full_disk_and_on_one_that_is_read_only_now() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::formatted("btrfs", 100, &["--mixed"], "") else { return };
    let daemon = Daemon::with(ALLOWED, &["btrfs"], &[]);
    let open = home(&daemon, &disk);
    let shows = |taken: &Reference| as_user(ALICE, || shows(&open, &*daemon.named("btrfs_ahd"), taken));
    let taken = as_user(ALICE, || open.snapshot(&*daemon.named("btrfs_ahd"), "one").unwrap().reference);
    fill_up(disk.at());
    shows(&taken);
    disk.remount("ro");
    shows(&taken);
}

#[test]
fn a_helper_starts_whose_own_disk_has_room_for_nothing_and_what_fills_it_can_be_removed() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::formatted("btrfs", 100, &["--mixed"], "") else { return };
    let mut daemon = Daemon::with(ALLOWED, &["btrfs"], &[]);
    daemon.kill();
    let (state, here) = (daemon.base.path().join("state"), disk.at().join("state"));
    let run = |program: &str, arguments: &[&OsStr]| {
        assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program}");
    };
    run("cp", &["-a".as_ref(), state.as_os_str(), here.as_os_str()]);
    run("mount", &["--bind".as_ref(), here.as_os_str(), state.as_os_str()]);
    daemon.run().unwrap();
    // Where the number of who worked here before could not be taken away, it may be one of a process by now that has ended.
    let mut ended = Command::new("true").spawn().unwrap();
    let number = fs::read_to_string(state.join("lock")).unwrap();
    fs::write(state.join("lock"), ended.id().to_string()).unwrap();
    let is_one = |daemon: &Daemon| {
        let (status, said) = daemon.command(&["--stores"]);
        !status && said.contains("another ahd works on")
    };
    wait_for("it has not ended", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", ended.id())).unwrap();
        stat.contains(") Z")
    });
    let alone = is_one(&daemon);
    ended.wait().unwrap();
    assert!(alone, "there are two");
    fs::write(state.join("lock"), number).unwrap();
    let open = home(&daemon, &disk);
    let taken = as_user(ALICE, || open.snapshot(&*daemon.named("btrfs_ahd"), "one").unwrap().reference);
    fill_up(disk.at());
    for _ in 0..2 {
        daemon.kill();
        daemon.run().unwrap();
        assert!(is_one(&daemon));
    }
    as_user(ALICE, || {
        let provider = daemon.named("btrfs_ahd");
        open.destroy(&*provider, &DestroyRequest::Snapshot(taken)).unwrap();
        assert!(open.list(&*provider).unwrap().is_empty());
    });
}
