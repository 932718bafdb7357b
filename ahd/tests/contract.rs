//! The contract's cases on a real Btrfs, by an ordinary user who is served by the helper.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ah_conformance::{Instance, Options, Target, Way, run};
use ah_host::helper::{self, Helper};
use ah_plugin_api::{Error, ErrorKind};
use ah_test_disks::Disk;
use common::{ALICE, Daemon, Home, is_root};

/// The helper as the suite sees it: each instance is a connection of its own.
struct Served {
    helper: Helper,
    /// Whether workspaces are subvolumes.
    subvolumes: bool,
}

impl Target for Served {
    fn name(&self) -> String {
        "btrfs_ahd".to_owned()
    }

    // There is no process here that is a provider's alone, to be killed.
    fn way(&self) -> Way {
        Way::Trait
    }

    fn open(&self) -> Result<Instance, Error> {
        let all = helper::load(&self.helper)?;
        let found = all.into_iter().find(|(description, _)| description.name.as_str() == "btrfs_ahd");
        let missing = || Error::new(ErrorKind::NotFound, "ahd does not offer it");
        Ok(Instance { provider: found.ok_or_else(missing)?.1, process: None })
    }

    fn make_workspace(&self, path: &Path) -> std::io::Result<()> {
        if !self.subvolumes {
            return std::fs::create_dir(path);
        }
        let made = Command::new("btrfs").args(["subvolume", "create"]).arg(path).output()?;
        if made.status.success() { Ok(()) } else { Err(std::io::Error::other(format!("{made:?}"))) }
    }
}

/// Runs the suite as an ordinary user with directories in `scratch`.
fn suite(daemon: &Daemon, scratch: &Path, subvolumes: bool) {
    let mut child = Command::new("setpriv");
    let id = ALICE.to_string();
    child.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"]);
    child.arg(std::env::current_exe().unwrap()).args(["--exact", "as_a_user", "--ignored", "--nocapture"]);
    child.env("AHD_TEST_SOCKET", &daemon.socket).env("AHD_TEST_SCRATCH", scratch);
    child.env("HOME", scratch).env("TMPDIR", scratch).current_dir(scratch);
    if subvolumes {
        child.env("AHD_TEST_SUBVOLUMES", "1");
    }
    let out = child.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    println!("{said}");
    assert!(out.status.success() && said.contains("CONTRACT"), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(daemon.mounts().is_empty(), "{:?}", daemon.mounts());
    let left = daemon.state("records");
    assert!(left.is_empty(), "{left:?}");
}

const LIMITS: &str = r#""limits": {"connections": 64, "calls-per-minute": 1000000, "stores": 100000}"#;

/// With it, what is written while a snapshot is taken is captured whole.
const OPTIONS: &str = "flushoncommit";

#[test]
fn in_a_subvolume_of_roots_as_most_homes_are() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 1024, OPTIONS) else { return };
    let config = format!("{{\"allow-containing\": [\"{ALICE}\"], {LIMITS}}}");
    let daemon = Daemon::with(&config, &["btrfs"], &[]);
    let home = Home::make(disk.at().join("home"), ALICE);
    suite(&daemon, &home.root, false);
}

#[test]
fn in_a_subvolume_of_their_own_which_needs_no_permission() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 1024, OPTIONS) else { return };
    let daemon = Daemon::with(&format!("{{{LIMITS}}}"), &["btrfs"], &[]);
    let home = disk.at().join("home");
    assert!(Command::new("btrfs").args(["subvolume", "create"]).arg(&home).status().unwrap().success());
    let home = Home::make(home, ALICE);
    suite(&daemon, &home.root, true);
}

/// Not a test of its own: the suite, run by the one above as an ordinary user.
#[test]
#[ignore = "run by others"]
fn as_a_user() {
    let Some(socket) = std::env::var_os("AHD_TEST_SOCKET") else { return };
    let helper = Helper { socket: PathBuf::from(socket), named: true, limit: Duration::from_secs(60) };
    let subvolumes = std::env::var_os("AHD_TEST_SUBVOLUMES").is_some();
    let target: Arc<dyn Target> = Arc::new(Served { helper, subvolumes });
    let mut options = Options::new(std::env::var_os("AHD_TEST_SCRATCH").unwrap());
    // To run some cases only: AH_TEST_CASES=exact.,views.names
    let only = std::env::var("AH_TEST_CASES").unwrap_or_default();
    options.only = only.split(',').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
    if subvolumes && options.only.is_empty() {
        // What the other layout has shown of contents need not be shown twice.
        options.only = ["answers.", "views.", "clones.", "concurrency.", "process."].map(ToOwned::to_owned).into();
    }
    let report = run(&target, &options, &mut |_| {});
    println!("CONTRACT {}", report.to_text(true));
    assert!(report.ok, "{}", report.to_text(false));
}
