//! The suite against the Btrfs provider on a real Btrfs, over a socket from a child that loads its library. Straight through the trait, and as
//! an ordinary user, it is in `providers/btrfs/tests/conformance.rs`.

#![allow(clippy::unwrap_used)]

mod common;

use ah_conformance::{Options, check};
use ah_test_disks::Disk;

#[test]
fn over_a_socket() {
    // With the option under which also what is written during a snapshot is captured whole.
    let Some(disk) = Disk::new("btrfs", 1024, "flushoncommit") else { return };
    let library = common::build("providers/btrfs/plugin/Cargo.toml", "libah_provider_btrfs.so");
    let options = Options { scratch: disk.at().to_owned(), ..common::options() };
    common::must_keep(&check(common::child(), &library, &options, &mut |_| {}));
}
