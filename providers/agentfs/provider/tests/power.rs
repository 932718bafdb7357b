//! What of a branch is on disk when it was made: the disk as it is at that moment is put aside and looked at in its place, as after a power cut.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, Dir, Durability, FileName, ListRequest, Place, Provider, SnapshotId,
    SnapshotRequest, Timestamp,
};
use ah_provider_agentfs::AgentFsProvider;
use ah_test_disks::Disk;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Ends the service of a store, and waits until it let go of it.
fn end_service(store: &Path) {
    let began = Instant::now();
    loop {
        let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let services = all.filter(|proc| {
            let line = std::fs::read(proc.join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
            words.get(1..3) == Some(&[b"--serve", store.as_os_str().as_encoded_bytes()])
        });
        let pids: Vec<String> = services.map(|proc| proc.file_name().unwrap().to_string_lossy().into_owned()).collect();
        if pids.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the service does not end");
        for pid in &pids {
            let _ = Command::new("kill").arg(pid).output();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_branch_of_a_linked_work_tree_is_never_the_users_own_repository() {
    let Some(disk) = Disk::new("ext4", 200, "commit=300") else { return };
    let at = |name: &str| disk.at().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    for name in ["main", "store", "branches"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    run("git", &["init", "-q", "-b", "trunk", &text("main")]);
    let who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-C", &text("main")];
    run("git", &[&who[..], &["commit", "-q", "--allow-empty", "-m", "one"]].concat());
    run("git", &[&who[..], &["worktree", "add", "-q", &text("work"), "-b", "other"]].concat());
    let provider = AgentFsProvider::new();
    let open = |name: &str| Dir::open(at(name)).unwrap();
    let (store, work, target) = (open("store"), open("work"), open("branches"));
    let request = SnapshotRequest {
        id: SnapshotId::new("base").unwrap(),
        created: Timestamp { secs: 1, nanos: 2 },
        label: None,
        attributes: BTreeMap::new(),
        durability: Durability::Durable,
        policy: CapturePolicy::default(),
    };
    let cx = Context::quiet();
    let base = provider.snapshot(&Place::new(&store).with_workspace(&work), &request, &cx).unwrap();
    run("sync", &["-f", disk.at().to_str().unwrap()]);
    let request = CloneRequest { snapshot: base.reference, name: FileName::new("b").unwrap() };
    let made = provider.clone_snapshot(&Place::new(&store).with_target(&target), &request, &cx).unwrap();
    // What the disk has at this moment.
    let cut = disk.image().with_file_name("cut");
    run("cp", &["--sparse=always", disk.image().to_str().unwrap(), cut.to_str().unwrap()]);
    assert!(made.path.join(".git").symlink_metadata().unwrap().is_dir());
    let store_path = store.path().to_owned();
    drop((store, work, target, provider));
    end_service(&store_path);
    ah_test_disks::unmount(disk.at());
    run("mount", &["-o", "loop", cut.to_str().unwrap(), disk.at().to_str().unwrap()]);
    // Whoever asks for anything has it mounted again.
    let provider = AgentFsProvider::new();
    let (store, target) = (open("store"), open("branches"));
    let list = provider.list(&Place::new(&store).with_target(&target), &ListRequest::default(), &cx).unwrap();
    let git = made.path.join(".git");
    let looked = git.symlink_metadata().map(|found| found.is_dir());
    let head = Command::new("git").arg("-C").arg(&made.path).args(["rev-parse", "--git-dir", "HEAD"]).output();
    drop((store, target, provider));
    end_service(&store_path);
    assert_eq!(list.len(), 1);
    assert!(looked.unwrap(), "it is the user's");
    let head = String::from_utf8(head.unwrap().stdout).unwrap();
    assert!(head.starts_with(".git\n") && head.trim().len() == 5 + 40, "{head}");
}

#[test]
fn what_a_durable_snapshot_of_a_branch_reads_below_is_on_the_disk_with_it() {
    let Some(disk) = Disk::new("ext4", 200, "commit=300") else { return };
    for name in ["work", "store", "own", "branches"] {
        std::fs::create_dir(disk.at().join(name)).unwrap();
    }
    run("sync", &["-f", disk.at().to_str().unwrap()]);
    // Names and sizes are on the disk with whatever is synced next; contents, half a minute later.
    for name in ["one", "two", "three"] {
        std::fs::write(disk.at().join("work").join(name), [b'x'; 5000]).unwrap();
    }
    let provider = AgentFsProvider::new();
    let open = |name: &str| Dir::open(disk.at().join(name)).unwrap();
    let (store, own, work, target) = (open("store"), open("own"), open("work"), open("branches"));
    let cx = Context::quiet();
    let request = |id: &str, durability| SnapshotRequest {
        id: SnapshotId::new(id).unwrap(),
        created: Timestamp { secs: 1, nanos: 2 },
        label: None,
        attributes: BTreeMap::new(),
        durability,
        policy: CapturePolicy::default(),
    };
    let base = request("base", Durability::Instant);
    let base = provider.snapshot(&Place::new(&store).with_workspace(&work), &base, &cx).unwrap();
    let clone = CloneRequest { snapshot: base.reference, name: FileName::new("b").unwrap() };
    let made = provider.clone_snapshot(&Place::new(&store).with_target(&target), &clone, &cx).unwrap();
    let branch = Dir::open(&made.path).unwrap();
    let durable = request("durable", Durability::Durable);
    provider.snapshot(&Place::new(&own).with_workspace(&branch), &durable, &cx).unwrap();
    let cut = disk.image().with_file_name("cut");
    run("cp", &["--sparse=always", disk.image().to_str().unwrap(), cut.to_str().unwrap()]);
    let store_path = store.path().to_owned();
    drop((store, own, work, target, branch, provider));
    end_service(&store_path);
    ah_test_disks::unmount(disk.at());
    run("mount", &["-o", "loop", cut.to_str().unwrap(), disk.at().to_str().unwrap()]);
    let held = ["one", "two", "three"].map(|name| std::fs::read(disk.at().join("work").join(name)));
    for held in held {
        assert_eq!(held.unwrap(), [b'x'; 5000]);
    }
}
