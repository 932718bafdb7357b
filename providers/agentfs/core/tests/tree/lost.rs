//! What the disk has lost is an error for who needs it and is told by fsck, whatever is written afterwards.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ah_agentfs::{Class, Error, Options, View, Workspace};

use crate::{Place, at, branch, content, in_another_boot, make};

/// Of a store that is not open.
fn problems(place: &Place) -> Vec<String> {
    Workspace::fsck(&place.store(), &place.lower(), false).unwrap().problems
}

fn is_lost(view: &View, path: &str) -> bool {
    matches!(view.read(at(view, path), 0, 1 << 24), Err(Error::Corrupt(_)))
}

#[test]
fn a_segment_that_is_missing_or_short_stays_so_whatever_is_written() {
    for cut in [None, Some(60_000)] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "old", &[7; 100_000]);
        let snapshot = workspace.snapshot(branch, b"", Class::Durable).unwrap();
        make(&view, "in place", &[8; 100_000]);
        make(&view, "removed", &[9; 100_000]);
        workspace.sync().unwrap();
        drop((view, workspace));
        let segment = place.store().join("data/0000000000");
        match cut {
            None => std::fs::remove_file(&segment).unwrap(),
            Some(length) => std::fs::File::options().write(true).open(&segment).unwrap().set_len(length).unwrap(),
        }
        let is_as_it_was = || std::fs::metadata(&segment).map_or(cut.is_none(), |found| Some(found.len()) == cut);
        assert!(!problems(&place).is_empty());
        for round in 0..2 {
            let workspace = place.open();
            let view = workspace.view(branch).unwrap();
            make(&view, &format!("new{round}"), &[round + 1; 5000]);
            let refused = view.write(at(&view, "in place"), 0, &[1; 5000]);
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{cut:?}: {refused:?}");
            if round == 1 {
                let ino = at(&view, "removed");
                view.unlink(1, b"removed").unwrap();
                view.forget(ino, 1);
            }
            workspace.sync().unwrap();
            assert!(is_lost(&view, "old") && is_lost(&view, "in place"), "{cut:?}");
            assert!(is_lost(&workspace.view_of(snapshot).unwrap(), "old"), "{cut:?}");
            for nth in 0..=round {
                assert_eq!(content(&view, &format!("new{nth}")), [nth + 1; 5000], "{cut:?}");
            }
            drop((view, workspace));
            assert!(is_as_it_was() && !problems(&place).is_empty(), "{cut:?}");
        }
    }
}

/// All files of a store but those that say who has it open, and what they hold.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![place.store()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if !path.ends_with("lock") && !path.ends_with("rows.redb") {
                found.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    found
}

fn newest_log(place: &Place) -> PathBuf {
    let logs = std::fs::read_dir(place.store().join("log")).unwrap().map(|log| log.unwrap().path());
    logs.filter(|log| log.extension().is_some_and(|is| is == "log")).max().unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

fn is_refused(place: &Place) -> bool {
    let options = Options { background: false, ..Options::default() };
    matches!(Workspace::open(&place.store(), &place.lower(), options), Err(Error::Corrupt(_)))
}

#[test]
fn a_log_that_is_missing_empty_or_unreadable_is_a_loss_and_can_be_put_back() {
    for how in ["removed", "emptied", "its header damaged"] {
        let place = Place::new();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        make(&view, "early", &[3; 50_000]);
        workspace.checkpoint().unwrap();
        workspace.sync().unwrap();
        make(&view, "late", &[7; 50_000]);
        let snapshot = workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
        drop((view, workspace));
        let log = newest_log(&place);
        let whole = std::fs::read(&log).unwrap();
        let damage = || match how {
            "removed" => std::fs::remove_file(&log).unwrap(),
            "emptied" => std::fs::File::options().write(true).open(&log).unwrap().set_len(0).unwrap(),
            _ => flip(&log, 12),
        };
        damage();
        let damaged = files(&place);
        let report = Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
        assert!(!report.problems.is_empty() && !report.repaired, "{how}: {report:?}");
        assert!(is_refused(&place), "{how}");
        assert!(files(&place) == damaged, "{how}: without `repair` nothing is mended");
        // It may be found again.
        std::fs::write(&log, &whole).unwrap();
        let workspace = place.open();
        assert_eq!(content(&workspace.view_of(snapshot).unwrap(), "late"), [7; 50_000], "{how}");
        drop(workspace);
        damage();
        let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
        assert!(!report.problems.is_empty() && !report.repaired, "{how}: {report:?}");
        let workspace = place.open();
        let view = workspace.view(branch).unwrap();
        assert_eq!(content(&view, "early"), [3; 50_000], "{how}");
        assert!(view.lookup(1, b"late").is_err() && workspace.view_of(snapshot).is_err(), "{how}");
        make(&view, "new", &[1; 5000]);
        workspace.sync().unwrap();
        drop((view, workspace));
        assert_eq!(problems(&place), Vec::<String>::new(), "{how}");
    }
}

#[test]
fn a_check_changes_nothing() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "early", &[3; 50_000]);
    workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
    let ino = make(&view, "open", &[4; 50_000]);
    view.unlink(1, b"open").unwrap();
    workspace.sync().unwrap();
    drop(view);
    drop(workspace);
    let _ = ino;
    in_another_boot(&place.store());
    // A torn end.
    let log = newest_log(&place);
    let length = std::fs::read(&log).unwrap().iter().rposition(|&byte| byte != 0).unwrap() as u64;
    std::fs::File::options().write(true).open(&log).unwrap().write_all_at(&[9; 50], length + 30).unwrap();
    std::fs::remove_file(place.store().join("reserve")).unwrap();
    let before = files(&place);
    place.check();
    assert!(files(&place) == before);
}
