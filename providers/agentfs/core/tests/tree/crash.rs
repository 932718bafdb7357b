//! A process that is killed: what it had been told is kept is there.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ah_agentfs::{BranchId, Class, Options, ROOT, SnapshotId, Workspace};

use crate::{OnDisk, Place, at, branch, content, in_another_boot, make};

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
fn contents_that_the_disk_has_in_the_log_alone_are_there_after_a_power_cut() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let file = make(&view, "file", &[1; 9000]);
    workspace.sync().unwrap();
    let disk = OnDisk::now(&place.store());
    view.write(file, 100, &[2; 5000]).unwrap();
    let durable = workspace.snapshot(branch, b"", Class::Durable).unwrap();
    view.write(file, 8990, &[3; 200]).unwrap();
    view.fsync(file).unwrap();
    // In place, and not asked to be kept.
    view.write(file, 8990, &[4; 200]).unwrap();
    drop((view, workspace));
    disk.is_all(&place.store());
    // More than once, and looked at before: the log is all that there is until the store was opened.
    place.check();
    let expected = |view: &ah_agentfs::View, end: &[u8]| {
        let bytes = content(view, "file");
        assert_eq!((&bytes[..100], &bytes[100..5100]), (&[1; 100][..], &[2; 5000][..]));
        assert_eq!((&bytes[5100..8990], &bytes[8990..]), (&[1; 3890][..], end));
    };
    for boot in 0..3 {
        let workspace = place.open();
        let view = workspace.view(branch).unwrap();
        expected(&view, &[3; 200]);
        expected(&workspace.view_of(durable).unwrap(), &[1; 10]);
        drop((view, workspace));
        if boot == 1 {
            in_another_boot(&place.store());
        }
    }
    // What a killed process wrote on top is not undone by what the log brought back.
    let workspace = place.open();
    let view = workspace.view(branch).unwrap();
    view.write(file, 8990, &[5; 200]).unwrap();
    workspace.flush().unwrap();
    drop((view, workspace));
    expected(&place.open().view(branch).unwrap(), &[5; 200]);
    place.check();
}

#[test]
fn a_process_that_dies_while_contents_are_brought_back_leaves_them_to_the_next() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let file = make(&view, "file", b"");
    workspace.sync().unwrap();
    let disk = OnDisk::now(&place.store());
    view.write(file, 0, &[7; 20_000]).unwrap();
    view.fsync(file).unwrap();
    drop((view, workspace));
    disk.is_all(&place.store());
    // As far as it got.
    std::fs::write(place.store().join("data/0000000000"), [7; 5000]).unwrap();
    let workspace = place.open();
    assert_eq!(content(&workspace.view(branch).unwrap(), "file"), [7; 20_000]);
    drop(workspace);
    place.check();
}

#[test]
fn contents_in_the_log_alone_are_there_after_the_disk_alone_was_cut_off() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let file = make(&view, "file", &[1; 9000]);
    workspace.sync().unwrap();
    let data = place.store().join("data/0000000000");
    let before = std::fs::read(&data).unwrap();
    view.write(file, 4000, &[2; 9000]).unwrap();
    view.fsync(file).unwrap();
    drop((view, workspace));
    std::fs::write(&data, before).unwrap();
    let workspace = place.open();
    let bytes = content(&workspace.view(branch).unwrap(), "file");
    assert_eq!((&bytes[..4000], &bytes[4000..]), (&[1; 4000][..], &[2; 9000][..]));
    drop(workspace);
    place.check();
}

#[test]
fn what_is_more_than_the_log_takes_goes_to_its_place() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let file = make(&view, "file", b"");
    workspace.sync().unwrap();
    // Without the zeros that are written ahead.
    let log = || -> usize {
        let files = std::fs::read_dir(place.store().join("log")).unwrap();
        let bytes = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        bytes.map(|bytes| bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)).sum()
    };
    let before = log();
    view.write(file, 0, &[1; 100_000]).unwrap();
    view.fsync(file).unwrap();
    let few = log();
    assert!((100_000..102_000).contains(&(few - before)));
    view.write(file, 0, &[2; 300_000]).unwrap();
    view.fsync(file).unwrap();
    assert!(log() - few < 3000);
    // All but the log's end, as after a power cut.
    drop((view, workspace));
    in_another_boot(&place.store());
    let workspace = place.open();
    assert_eq!(content(&workspace.view(branch).unwrap(), "file"), [2; 300_000]);
    drop(workspace);
    place.check();
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
