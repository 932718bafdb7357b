//! The conformance suite on a real Btrfs, straight through the trait: as root and as an ordinary user, with workspaces that are
//! subvolumes and such that are directories in one. Over a socket it is in `ah-conformance`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use ah_conformance::{InProcess, Instance, Options, Target, Way, run};
use ah_plugin_api::Error;
use ah_provider_btrfs::BtrfsProvider;
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path};

/// With that option, what is written while a snapshot is taken is captured whole as well. Without, a file that is saved in that very
/// moment can be captured empty: `concurrency.while-changing` sees to it.
const OPTIONS: &str = "flushoncommit";

/// A target whose workspaces are subvolumes of their own.
struct OnSubvolumes<T>(T);

impl<T: Target> Target for OnSubvolumes<T> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn way(&self) -> Way {
        self.0.way()
    }

    fn open(&self) -> Result<Instance, Error> {
        self.0.open()
    }

    fn make_workspace(&self, path: &Path) -> std::io::Result<()> {
        let made = Command::new("btrfs").args(["subvolume", "create"]).arg(path).output()?;
        if made.status.success() { Ok(()) } else { Err(std::io::Error::other(format!("{made:?}"))) }
    }
}

/// As the environment says.
fn options(scratch: &Path) -> Options {
    let mut options = Options::new(scratch);
    // To run some cases only: AH_TEST_CASES=exact.,views.names
    let only = std::env::var("AH_TEST_CASES").unwrap_or_default();
    options.only = only.split(',').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
    options
}

fn suite(scratch: &Path, on_subvolumes: bool) {
    let plain = InProcess::new("btrfs", BtrfsProvider::new);
    let target: Arc<dyn Target> = if on_subvolumes { Arc::new(OnSubvolumes(plain)) } else { Arc::new(plain) };
    let report = run(&target, &options(scratch), &mut |_| {});
    println!("{}", report.to_text(true));
    assert!(report.ok, "{}", report.to_text(false));
}

#[test]
fn workspaces_inside_a_subvolume() {
    let Some(disk) = Disk::new("btrfs", 1024, OPTIONS) else { return };
    suite(disk.at(), false);
}

#[test]
fn workspaces_that_are_subvolumes() {
    let Some(disk) = Disk::new("btrfs", 1024, OPTIONS) else { return };
    suite(disk.at(), true);
}

/// Runs `test` once more as an ordinary user who owns a subvolume.
fn ordinary(test: &str, options: &str, on_subvolumes: bool) {
    if let Some(path) = ordinary_users_path() {
        return suite(&path, on_subvolumes);
    }
    let Some(disk) = Disk::new("btrfs", 1024, &format!("{OPTIONS}{options}")) else { return };
    let home = disk.at().join("home");
    let made = Command::new("btrfs").args(["subvolume", "create"]).arg(&home).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    print!("{}", as_ordinary_user(test, &home));
}

#[test]
fn an_ordinary_user_who_may_remove_subvolumes() {
    ordinary("an_ordinary_user_who_may_remove_subvolumes", ",user_subvol_rm_allowed", false);
}

#[test]
fn an_ordinary_user_who_may_not() {
    ordinary("an_ordinary_user_who_may_not", "", true);
}
