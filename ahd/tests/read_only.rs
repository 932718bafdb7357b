//! A disk that fell ill, or is full: what was captured can be looked at all the same, by a user without rights of their own.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;

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
    let fill = |name: String| disk.at().join(name);
    // Until not even one more symlink fits.
    for (size, name) in [(1 << 20, "m"), (1 << 12, "k")] {
        (0..100_000).any(|i| fs::write(fill(format!("{name}{i}")), vec![2; size]).is_err());
    }
    (0..1_000_000).any(|i| symlink("y".repeat(3000), fill(format!("s{i}"))).is_err());
    shows(&taken);
    disk.remount("ro");
    shows(&taken);
}
