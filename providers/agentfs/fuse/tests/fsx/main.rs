//! fsx on a real mount, with snapshots taken meanwhile and each compared afterwards: a million operations with each of ten seeds, or a tenth of them.
//!
//! The store is in memory, since fsx syncs what it writes to a mapping, and would wait for the disk most of the time. fsx and who
//! answers it are on one processor, where a message and its answer cost half of what they do between two; the store's own thread is on any.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ah_agentfs::{BranchId, Class, Options, SnapshotId, Workspace};
use ah_agentfs_fuse::Mount;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use common::{Child, Lab, full_or_tenth, is_sound, sh, tool, unmount};

/// How long fsx runs between two snapshots.
const PACE: Duration = Duration::from_millis(400);
/// So many snapshots are there at once.
const HELD: usize = 64;

/// Everything that fsx can do, in a file of up to 1.25 MiB, which are two chunks; what is written to a mapping goes to the host when the kernel likes.
/// Nothing of no length: it would take `posix_fallocate`'s answer to that for a fault.
const EVERYTHING: &str = "
flen = 1310720
nomsyncafterwrite = true
[opsize]
min = 1
[weights]
close_open = 2
invalidate = 1
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 3
punch_hole = 10
sendfile = 3
posix_fadvise = 3
copy_file_range = 5
";

struct Bench<'a> {
    lab: &'a Lab,
    workspace: &'a Workspace,
    branch: BranchId,
    mount: &'a Mount,
}

impl Bench<'_> {
    /// Starts fsx on a file.
    fn start(&self, program: &Path, seed: u32, file: &Path) -> Child {
        let mut command = Command::new(program);
        command.args(["-q", "-N", &full_or_tenth(1_000_000).to_string(), "-S", &seed.to_string()]);
        if seed.is_multiple_of(2) {
            command.arg("-f").arg(self.lab.path("fsx.toml"));
        }
        let said = File::create(self.lab.path("said")).unwrap();
        command.arg("-P").arg(self.lab.path("")).arg(file).env("LD_PRELOAD", self.lab.path("preload.so"));
        Child(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    /// A snapshot while fsx stands still, and what was in the file.
    fn snapshot(&self, pid: Pid, file: &Path) -> (SnapshotId, Vec<u8>) {
        kill_process(pid, Signal::STOP).unwrap();
        // A write that it is in comes to its end first.
        while !at_rest(pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // What it changed in memory is brought along.
        File::open(file).and_then(|open| open.sync_all()).unwrap();
        let there = fs::read(file).unwrap();
        let snapshot = self.workspace.snapshot(self.branch, b"", Class::Instant).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
        (snapshot, there)
    }

    /// Compares a snapshot with what there was, and deletes it.
    fn compare(&self, (snapshot, there): (SnapshotId, Vec<u8>), file: &Path) {
        let place = self.lab.place();
        let view = Mount::new(self.workspace.view_of(snapshot).unwrap(), &place).unwrap();
        let then = fs::read(place.join(file.file_name().unwrap())).unwrap();
        assert!(then == there, "snapshot {} has other bytes", snapshot.0);
        unmount(view);
        fs::remove_dir(place).unwrap();
        self.workspace.delete_snapshot(snapshot).unwrap();
    }

    fn run(&self, program: &Path, seed: u32) {
        let file = self.mount.at().join(format!("fsx{seed}"));
        let began = Instant::now();
        let mut fsx = self.start(program, seed, &file);
        let (mut held, mut taken) = (Vec::new(), 0);
        let status = loop {
            std::thread::sleep(PACE);
            if let Some(status) = fsx.0.try_wait().unwrap() {
                break status;
            }
            held.push(self.snapshot(Pid::from_child(&fsx.0), &file));
            taken += 1;
            if held.len() > HELD {
                // One from anywhere in their midst, while fsx goes on.
                self.compare(held.swap_remove(taken * 7 % HELD), &file);
            }
        };
        let said = fs::read_to_string(self.lab.path("said")).unwrap();
        assert!(status.success(), "fsx with seed {seed}: {status}: {said}");
        assert!(taken > 3, "{taken} snapshots");
        let ran = began.elapsed();
        held.into_iter().for_each(|one| self.compare(one, &file));
        println!("seed {seed}: {} operations in {ran:.1?}, {taken} snapshots compared", full_or_tenth(1_000_000));
    }
}

/// Whether a process stands still, or has ended.
fn at_rest(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z']))
}

#[test]
fn fsx_finds_nothing_and_snapshots_have_what_there_was() {
    let (Some(lab), Some(program), Some(_)) = (Lab::new(), tool("fsx"), tool("cc")) else { return };
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fsx/preload.c");
    sh(&lab.path(""), &format!("cc -shared -fPIC -O1 -o preload.so {}", source.display()));
    fs::write(lab.path("fsx.toml"), EVERYTHING).unwrap();
    // Unmounted with the lab.
    let memory = lab.place();
    sh(&memory, "mount -t tmpfs -o size=2g none .");
    let store = memory.join("store");
    Workspace::create(&store, &lab.lower()).unwrap();
    let workspace = Workspace::open(&store, &lab.lower(), Options::default()).unwrap();
    let branch = workspace.branch(workspace.base(b"").unwrap(), b"work").unwrap();
    let (all, mut one) = (sched_getaffinity(None).unwrap(), CpuSet::new());
    one.set((0..CpuSet::MAX_CPU).rev().find(|&processor| all.is_set(processor)).unwrap());
    // This thread, and those that it starts from here on.
    sched_setaffinity(None, &one).unwrap();
    for seed in 1..=10 {
        let mount = Mount::new(workspace.view(branch).unwrap(), &lab.place()).unwrap();
        Bench { lab: &lab, workspace: &workspace, branch, mount: &mount }.run(&program, seed);
        unmount(mount);
    }
    drop(workspace);
    is_sound(&store, &lab.lower());
}
