//! What others test filesystems with, on a real mount: pjdfstest, and fsx with snapshots taken meanwhile. `scripts/setup filesystems` puts both into
//! `target/tools`; where they are missing each test says so and does nothing, unless `AH_TEST_REQUIRE_ALL` is set. How much fsx does is `AH_TEST_FSX` times what is
//! usual.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ah_agentfs::Class;
use ah_agentfs_fuse::Mount;
use rustix::process::{Pid, Signal, kill_process};

use common::{Lab, unmount};

/// A program that `scripts/setup filesystems` has installed.
fn tool(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let target = tests.ancestors().nth(3).unwrap();
    let tool = target.join("tools/bin").join(name);
    if tool.exists() {
        return Some(tool);
    }
    assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: scripts/setup filesystems installs {name}");
    println!("skipped: scripts/setup filesystems installs {name}");
    None
}

/// Which of pjdfstest's cases fail at a place, and how many pass.
fn pjdfstest(program: &Path, configuration: &Path, at: &Path) -> (BTreeSet<String>, usize) {
    let output = Command::new(program).arg("-c").arg(configuration).arg("-p").arg(at).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = |ending: &str| {
        let name = |line: &str| line.strip_suffix(ending).map(|name| name.trim().to_owned());
        text.lines().filter_map(name).collect::<BTreeSet<_>>()
    };
    let (failed, passed) = (named(" FAILED"), named(" ok").len());
    assert!(text.contains(&format!("Summary: {} failed,", failed.len())), "{text}");
    (failed, passed)
}

#[test]
fn pjdfstest_finds_nothing_that_the_disk_itself_does_not_have() {
    let (Some(lab), Some(program)) = (Lab::new(), tool("pjdfstest")) else { return };
    let (_workspace, mount) = lab.mount("work");
    let [plain, mounted] = [lab.path("plain"), mount.at().join("suite")];
    let configuration = lab.path("pjdfstest.toml");
    fs::write(
        &configuration,
        "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\nrename_ctime = {}\n\
         [settings]\nnaptime = 0.02\nallow_remount = false\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
    )
    .unwrap();
    let [there, here] = [plain, mounted].map(|at| {
        fs::create_dir(&at).unwrap();
        pjdfstest(&program, &configuration, &at)
    });
    let new: Vec<_> = here.0.difference(&there.0).collect();
    assert!(new.is_empty(), "fails only here: {new:?}");
    // One is for disks with few links to a file.
    assert!(here.1 >= 380 && here.1 + 1 >= there.1, "{} pass, on the disk {}", here.1, there.1);
    unmount(mount);
}

/// Whether a process stands still, or has ended.
fn at_rest(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z']))
}

#[test]
fn fsx_finds_nothing_and_snapshots_have_what_there_was() {
    let (Some(lab), Some(program)) = (Lab::new(), tool("fsx")) else { return };
    let times: u64 = std::env::var("AH_TEST_FSX").map_or(1, |times| times.parse().unwrap());
    let (workspace, mount) = lab.mount("work");
    let branch = workspace.branches()[0].id;
    for seed in 1..=3 {
        let file = mount.at().join(format!("fsx{seed}"));
        let mut fsx = Command::new(&program)
            .args(["-q", "-N", &(5_000 * times).to_string(), "-S", &seed.to_string(), "-P"])
            .arg(lab.path(""))
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut taken = Vec::new();
        let status = loop {
            std::thread::sleep(Duration::from_millis(100));
            if let Some(status) = fsx.try_wait().unwrap() {
                break status;
            }
            let pid = Pid::from_child(&fsx);
            kill_process(pid, Signal::STOP).unwrap();
            // A write that it is in comes to its end first.
            while !at_rest(pid) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // What it changed in memory is brought along.
            let there = File::open(&file).and_then(|open| open.sync_all().and_then(|()| fs::read(&file)));
            let snapshot = workspace.snapshot(branch, b"", Class::Instant).unwrap();
            kill_process(pid, Signal::CONT).unwrap();
            taken.extend(there.ok().map(|bytes| (snapshot, bytes)));
        };
        assert!(status.success(), "fsx with seed {seed}: {status}");
        assert!(!taken.is_empty());
        for (snapshot, bytes) in taken {
            let place = lab.place();
            let view = Mount::new(workspace.view_of(snapshot).unwrap(), &place).unwrap();
            let then = fs::read(place.join(format!("fsx{seed}"))).unwrap();
            assert!(then == bytes, "snapshot {} has other bytes", snapshot.0);
            unmount(view);
            workspace.delete_snapshot(snapshot).unwrap();
        }
    }
    unmount(mount);
}
