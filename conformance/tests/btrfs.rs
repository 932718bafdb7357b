//! The suite against the Btrfs provider on a real Btrfs, from its library and over a socket. Straight through the trait, and as an ordinary
//! user, it is in `providers/btrfs/tests/conformance.rs`.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ah_conformance::{Library, Options, Target, check, run};
use ah_test_disks::Disk;

fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| common::build("providers/btrfs/plugin/Cargo.toml", "libah_provider_btrfs.so")).clone()
}

/// With the option under which also what is written during a snapshot is captured whole.
fn disk() -> Option<Disk> {
    Disk::new("btrfs", 1024, "flushoncommit")
}

fn options(disk: &Disk) -> Options {
    Options { scratch: disk.at().to_owned(), ..common::options() }
}

#[test]
fn from_its_library() {
    let Some(disk) = disk() else { return };
    let target: Arc<dyn Target> = Arc::new(Library::new(library()));
    common::must_keep(&run(&target, &options(&disk), &mut |_| {}));
}

#[test]
fn over_a_socket() {
    let Some(disk) = disk() else { return };
    common::must_keep(&check(common::child(), &library(), &options(&disk), &mut |_| {}));
}
