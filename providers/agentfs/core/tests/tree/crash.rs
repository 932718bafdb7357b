//! A process that is killed: what it had been told is kept is there.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ah_agentfs::{BranchId, Class, Options, ROOT, SnapshotId, Workspace};

use crate::{Place, at, branch, content, in_another_boot, make};

/// Says what it has done, until it is killed. Run by the test below as a process of its own.
#[test]
#[ignore = "the child of another test"]
fn child() {
    let store = PathBuf::from(std::env::var_os("AGENTFS_STORE").unwrap());
    let lower = PathBuf::from(std::env::var_os("AGENTFS_LOWER").unwrap());
    let options = Options { log_limit: 64 << 10, ..Options::default() };
    let workspace = Workspace::open(&store, &lower, options).unwrap();
    let branch = BranchId(std::env::var("AGENTFS_BRANCH").unwrap().parse().unwrap());
    let view = workspace.view(branch).unwrap();
    let begun = view.list(ROOT).unwrap().len();
    let ino = view.lookup(ROOT, b"counter").unwrap().ino;
    for step in begun.. {
        view.write(ino, 0, &(step as u64).to_be_bytes().repeat(2000)).unwrap();
        make(&view, &format!("file{step}"), format!("content {step}").as_bytes());
        match step % 3 {
            0 => {
                let id = workspace.snapshot(branch, b"", Class::Instant).unwrap();
                println!("snapshot {} {step}", id.0);
            }
            1 => {
                view.fsync(ino).unwrap();
                println!("synced 0 {step}");
            }
            _ => {}
        }
    }
}

#[test]
fn what_was_reported_survives_being_killed() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    make(&workspace.view(branch).unwrap(), "counter", b"");
    workspace.sync().unwrap();
    drop(workspace);
    let mut snapshots: Vec<(u64, usize)> = Vec::new();
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("AGENTFS_STORE", place.store())
            .env("AGENTFS_LOWER", place.lower())
            .env("AGENTFS_BRANCH", branch.0.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut last = 0;
        let mut lines = 0;
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let mut take = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [what @ ("snapshot" | "synced"), id, step] = words[..] {
                last = step.parse().unwrap();
                if what == "snapshot" {
                    snapshots.push((id.parse().unwrap(), last));
                }
                return true;
            }
            false
        };
        while lines < 20 + round * 7 && output.read_line(&mut line).unwrap() > 0 {
            lines += usize::from(line.ends_with('\n') && take(&line));
            line.clear();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died counts, too.
        while output.read_line(&mut line).unwrap() > 0 {
            if line.ends_with('\n') {
                take(&line);
            }
            line.clear();
        }
        assert!(last > 0);

        let workspace = place.open();
        let view = workspace.view(branch).unwrap();
        for step in 1..=last {
            assert_eq!(content(&view, &format!("file{step}")), format!("content {step}").as_bytes());
        }
        for &(id, step) in &snapshots {
            let old = workspace.view_of(SnapshotId(id)).unwrap();
            assert_eq!(old.list(ROOT).unwrap().len(), step + 1, "snapshot {id}");
            assert_eq!(old.read(at(&old, "counter"), 0, 99_999).unwrap(), (step as u64).to_be_bytes().repeat(2000));
            assert_eq!(content(&old, &format!("file{step}")), format!("content {step}").as_bytes());
        }
        drop((view, workspace));
        place.check();
    }
}

#[test]
fn dropping_without_a_word_keeps_what_was_synced_and_no_more_than_was_done() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "synced", b"yes");
    view.fsync(at(&view, "synced")).unwrap();
    make(&view, "not", b"no");
    drop((view, workspace));
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    assert_eq!(view.list(ROOT).unwrap().len(), 1);
    assert_eq!(content(&view, "synced"), b"yes");
}

#[test]
fn after_a_power_cut_all_is_as_at_the_last_sync() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "synced", b"yes");
    let durable = workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
    make(&view, "later", b"data that may not have reached the disk");
    let instant = workspace.snapshot(branch, b"instant", Class::Instant).unwrap();
    drop((view, workspace));
    in_another_boot(&place.store());
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    assert_eq!(view.list(ROOT).unwrap().len(), 1);
    assert_eq!(content(&view, "synced"), b"yes");
    assert_eq!(workspace.view_of(durable).unwrap().list(ROOT).unwrap().len(), 1);
    assert!(workspace.snapshots().iter().all(|snapshot| snapshot.id != instant));
    make(&view, "new", b"goes on");
    workspace.sync().unwrap();
    drop((view, workspace));
    place.check();
    assert_eq!(content(&place.open().view(branch).unwrap(), "new"), b"goes on");
}

#[test]
fn what_was_written_behind_the_end_and_lost_does_not_come_back() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "file", &[1; 5000]);
    workspace.sync().unwrap();
    // In place, and longer; the new size is lost.
    view.write(at(&view, "file"), 4990, &[2; 50]).unwrap();
    drop((view, workspace));
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "file");
    assert_eq!(view.getattr(ino).unwrap().size, 5000);
    view.write(ino, 5020, &[3]).unwrap();
    assert!(view.read(ino, 5000, 20).unwrap().iter().all(|&byte| byte == 0));
}
