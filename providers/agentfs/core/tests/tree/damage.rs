//! Stores that cannot be opened, and what fsck makes of damaged ones.

use std::os::unix::fs::FileExt;

use ah_agentfs::{Error, Options, Workspace};

use crate::{ME, Place, at, branch, content, make, snapshot};

fn open(place: &Place) -> Result<Workspace, Error> {
    Workspace::open(&place.store(), &place.lower(), Options { background: false, ..Options::default() })
}

#[test]
fn a_newer_format_another_directory_and_a_second_opener_are_refused() {
    let place = Place::new();
    let workspace = place.create();
    assert!(matches!(open(&place), Err(Error::Busy(_))));
    assert!(matches!(Workspace::create(&place.store(), &place.lower()), Err(Error::Exists)));
    drop(workspace);
    let inside = place.lower().join("store");
    assert!(matches!(Workspace::create(&inside, &place.lower()), Err(Error::Invalid(_))));
    let other = tempfile::tempdir().unwrap();
    assert!(matches!(Workspace::open(&place.store(), other.path(), Options::default()), Err(Error::OtherLower)));
    let format = place.store().join("format");
    let text = std::fs::read_to_string(&format).unwrap();
    // One with the same number that was born at another time, or is another subvolume, where that is known.
    for what in ["lower-birth ", "lower-filesystem "].into_iter().filter(|what| text.contains(what)) {
        std::fs::write(&format, text.replace(what, &format!("{what}1"))).unwrap();
        assert!(matches!(open(&place), Err(Error::OtherLower)), "{what}");
    }
    // As it was written down before that counted.
    let former: String =
        text.lines().filter(|line| !line.starts_with("lower-b")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&format, former).unwrap();
    drop(open(&place).unwrap());
    // An older one is of this one once it was open: who knows only that would not know what is in the log.
    std::fs::write(&format, text.replace("agentfs 2", "agentfs 1")).unwrap();
    drop(open(&place).unwrap());
    assert_eq!(std::fs::read_to_string(&format).unwrap(), text);
    std::fs::write(&format, text.replace("agentfs 2", "agentfs 3")).unwrap();
    assert!(matches!(open(&place), Err(Error::NewerFormat { found: 3, known: 2 })));
    assert!(matches!(Workspace::fsck(&place.store(), &place.lower(), true), Err(Error::NewerFormat { .. })));
    std::fs::write(&format, "nonsense").unwrap();
    assert!(matches!(open(&place), Err(Error::Corrupt(_))));
}

#[test]
fn a_store_that_has_lost_its_format_is_not_made_anew() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    make(&workspace.view(branch).unwrap(), "file", b"written");
    workspace.sync().unwrap();
    drop(workspace);
    let format = place.store().join("format");
    let text = std::fs::read(&format).unwrap();
    std::fs::remove_file(&format).unwrap();
    assert!(matches!(Workspace::create(&place.store(), &place.lower()), Err(Error::Corrupt(_))));
    std::fs::write(&format, text).unwrap();
    assert_eq!(content(&open(&place).unwrap().view(branch).unwrap(), "file"), b"written");
}

#[test]
fn a_log_damaged_before_its_end_is_refused_and_can_be_cut() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "early", b"early");
    workspace.sync().unwrap();
    let log = std::fs::read_dir(place.store().join("log")).unwrap().next().unwrap().unwrap().path();
    let early = std::fs::metadata(&log).unwrap().len();
    for nth in 0..5 {
        make(&view, &format!("late{nth}"), b"late");
        workspace.sync().unwrap();
    }
    drop((view, workspace));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&log).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, early + 30).unwrap();
    file.write_all_at(&[!byte[0]], early + 30).unwrap();
    assert!(matches!(open(&place), Err(Error::Corrupt(_))));
    let damaged = std::fs::read(&log).unwrap();
    let found = Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
    assert!(found.problems.len() == 1 && !found.repaired, "{found:?}");
    assert!(std::fs::read(&log).unwrap() == damaged && open(&place).is_err());
    let mended = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
    assert!(mended.problems.len() == 1 && !mended.repaired, "what is lost is told, and not mended: {mended:?}");
    let lost = damaged.iter().rposition(|&byte| byte != 0).unwrap() + 1 - early as usize;
    assert!(mended.problems[0].contains(&format!("{lost} bytes")), "{mended:?}, {lost} bytes are lost");
    let workspace = open(&place).unwrap();
    let view = workspace.view(branch).unwrap();
    assert_eq!(content(&view, "early"), b"early");
    assert_eq!(view.list(1).unwrap().len(), 1);
    drop((view, workspace));
    place.check();
}

#[test]
fn lost_contents_and_leaked_blocks_are_found() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "file", &[1; 100_000]);
    snapshot(&workspace, branch);
    view.write(at(&view, "file"), 0, &[2; 50_000]).unwrap();
    workspace.sync().unwrap();
    drop((view, workspace));
    place.check();
    let segment = place.store().join("data/0000000000");
    let whole = std::fs::read(&segment).unwrap();
    std::fs::remove_file(&segment).unwrap();
    let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
    assert!(!report.problems.is_empty() && !report.repaired, "{report:?}");
    let workspace = open(&place).unwrap();
    let view = workspace.view(branch).unwrap();
    let lost = view.read(at(&view, "file"), 0, 10).unwrap_err();
    assert!(matches!(lost, Error::Corrupt(_)), "not zeros: {lost}");
    drop((view, workspace));
    std::fs::write(&segment, &whole).unwrap();
    place.check();
    // Cut in the middle.
    std::fs::write(&segment, &whole[..60_000]).unwrap();
    assert!(!Workspace::fsck(&place.store(), &place.lower(), false).unwrap().problems.is_empty());
}

#[test]
fn a_store_whose_lower_directory_is_gone_or_another_is_checked() {
    let place = Place::new();
    std::fs::write(place.lower().join("below"), [1; 100_000]).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    view.write(at(&view, "below"), 0, b"ours").unwrap();
    make(&view, "file", b"written");
    workspace.sync().unwrap();
    drop((view, workspace));
    let away = place.store().with_file_name("away");
    std::fs::rename(place.lower(), &away).unwrap();
    let segment = place.store().join("data/0000000000");
    for lower in ["gone", "another"] {
        for repair in [false, true] {
            let report = Workspace::fsck(&place.store(), &place.lower(), repair).unwrap();
            assert!(report.problems.is_empty() && report.repaired && report.blocks > 0, "{lower}: {report:?}");
        }
        std::fs::rename(&segment, away.with_file_name("segment")).unwrap();
        let report = Workspace::fsck(&place.store(), &place.lower(), true).unwrap();
        assert!(!report.problems.is_empty() && !report.repaired, "{lower}: {report:?}");
        std::fs::rename(away.with_file_name("segment"), &segment).unwrap();
        std::fs::create_dir_all(place.lower()).unwrap();
    }
    std::fs::remove_dir(place.lower()).unwrap();
    std::fs::rename(&away, place.lower()).unwrap();
    let workspace = open(&place).unwrap();
    let view = workspace.view(branch).unwrap();
    assert_eq!((&content(&view, "below")[..5], &content(&view, "file")[..]), (&b"ours\x01"[..], &b"written"[..]));
}

#[test]
fn damage_in_the_base_is_found() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for nth in 0..2000 {
        make(&view, &format!("some-name-{nth}"), b"");
    }
    workspace.checkpoint().unwrap();
    drop((view, workspace));
    let base = place.store().join("rows.redb");
    let mut bytes = std::fs::read(&base).unwrap();
    let at = bytes.windows(13).position(|window| window == b"some-name-999").unwrap();
    bytes[at] ^= 0xff;
    std::fs::write(&base, bytes).unwrap();
    // Time and again, since nothing is changed by that.
    for _ in 0..2 {
        let found = Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
        assert!(!found.problems.is_empty() && !found.repaired, "{found:?}");
    }
    assert!(!place.store().join("rows.check").exists());
    // What a kill leaves of it goes with the next who opens the store.
    std::fs::write(place.store().join("rows.check"), b"").unwrap();
    drop(open(&place).unwrap());
    assert!(!place.store().join("rows.check").exists());
}

#[test]
fn damaged_rows_are_errors_and_end_no_thread() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    for nth in 0..500 {
        make(&view, &format!("{nth}"), b"");
    }
    workspace.checkpoint().unwrap();
    drop((view, workspace));
    let base = place.store().join("rows.redb");
    let whole = std::fs::read(&base).unwrap();
    let logs = place.store().join("log");
    let newest = std::fs::read_dir(&logs).unwrap().next().unwrap().unwrap();
    let (name, log) = (newest.file_name(), std::fs::read(newest.path()).unwrap());
    // A leaf of the tree begins with a 1; how many rows it has, and where their keys end, comes behind that.
    let leaves = (0..whole.len()).step_by(4096).filter(|&at| whole[at] == 1);
    let mut found = (0, 0, 0);
    for at in leaves.flat_map(|at| [at + 3, at + 6]) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        std::fs::write(&base, bytes).unwrap();
        std::fs::remove_dir_all(&logs).unwrap();
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(logs.join(&name), &log).unwrap();
        let Ok(workspace) = open(&place).inspect_err(|error| assert!(matches!(error, Error::Corrupt(_)), "{error}"))
        else {
            found.0 += 1;
            continue;
        };
        let view = workspace.view(branch).unwrap();
        let look = |nth: &usize| {
            view.lookup(1, nth.to_string().as_bytes()).is_err_and(|error| matches!(error, Error::Corrupt(_)))
        };
        found.1 += (0..500).filter(look).count();
        // What can be made is written down, though nothing goes to the base.
        let _ = view.create(1, b"new", ME);
        found.2 += usize::from(workspace.checkpoint().is_err());
        workspace.sync().unwrap();
    }
    assert!(found.0 > 0 && found.1 > 0 && found.2 > 0, "{found:?}");
}

#[test]
fn a_store_without_its_rows_is_refused_and_keeps_its_contents() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    make(&workspace.view(branch).unwrap(), "file", &[1; 100_000]);
    workspace.checkpoint().unwrap();
    drop(workspace);
    let (rows, away) = (place.store().join("rows.redb"), place.store().join("away"));
    std::fs::rename(&rows, &away).unwrap();
    assert!(matches!(open(&place), Err(Error::Corrupt(_))));
    for repair in [false, true] {
        assert!(matches!(Workspace::fsck(&place.store(), &place.lower(), repair), Err(Error::Corrupt(_))));
    }
    // Nor does a base that knows of nothing.
    let empty = Place::new();
    Workspace::create(&empty.store(), &empty.lower()).unwrap();
    std::fs::copy(empty.store().join("rows.redb"), &rows).unwrap();
    let logs = place.store().join("log");
    let aside = place.store().join("log-aside");
    std::fs::rename(&logs, &aside).unwrap();
    std::fs::create_dir(&logs).unwrap();
    Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
    drop(open(&place).unwrap());
    std::fs::remove_dir_all(&logs).unwrap();
    std::fs::rename(&aside, &logs).unwrap();
    std::fs::rename(&away, &rows).unwrap();
    assert_eq!(content(&open(&place).unwrap().view(branch).unwrap(), "file"), [1; 100_000]);
    place.check();
}

#[test]
fn where_there_is_no_store_nothing_is_made() {
    let place = Place::new();
    let open = |store: &std::path::Path| Workspace::open(store, &place.lower(), Options::default()).map(drop);
    assert!(matches!(open(&place.store()), Err(Error::NotFound)));
    std::fs::create_dir(place.store()).unwrap();
    assert!(matches!(open(&place.store()), Err(Error::NotFound)));
    assert_eq!(std::fs::read_dir(place.store()).unwrap().count(), 0);
}
