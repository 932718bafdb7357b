//! A lower directory that was lost and brought back by copying.

use std::process::Command;

use ah_agentfs::{Class, Error, ROOT, SetAttr, Workspace};

use crate::{Place, content};

/// A store with a branch whose root and a directory in it have permissions of their own, and a snapshot of it; what is below was replaced by a copy since.
fn copied(change: &str) -> (Place, Workspace, ah_agentfs::BranchId, ah_agentfs::SnapshotId) {
    let place = Place::new();
    let shell = |line: &str| {
        let status = Command::new("sh").args(["-ec", line]).current_dir(place.lower().parent().unwrap()).status();
        assert!(status.unwrap().success(), "{line}");
    };
    shell("cd lower; mkdir -p d/e; echo one >f; echo two >d/g; ln -s f link; touch d/e/empty");
    let store = place.create();
    let base = store.base_with_names(b"").unwrap();
    store.take_fingerprints(base).unwrap();
    let branch = store.branch(base, b"").unwrap();
    let view = store.view(branch).unwrap();
    let d = view.lookup(ROOT, b"d").unwrap().ino;
    for ino in [ROOT, d] {
        view.setattr(ino, SetAttr { mode: Some(0o750), ..SetAttr::default() }).unwrap();
    }
    let snapshot = store.snapshot(branch, b"", Class::Instant).unwrap();
    store.sync().unwrap();
    drop((view, store));
    shell(&format!("cp -a lower copy; rm -r lower; mv copy lower; cd lower; {change}"));
    assert!(!Workspace::may_be_of(&place.store(), &place.lower()).unwrap());
    let taken = Workspace::take_restored(&place.store(), &place.lower(), branch).unwrap();
    let told: Vec<_> = taken.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    let expected: &[&str] = match change {
        ":" => &[],
        "echo six >f" => &["f"],
        "rm d/g" => &["d/g"],
        "rm -r d/e; touch d/e" => &["d/e", "d/e"],
        "touch new" => &["new"],
        "ln -sfT g link" => &["link"],
        other => panic!("{other}"),
    };
    assert_eq!(told, expected, "{change}");
    assert_eq!(Workspace::may_be_of(&place.store(), &place.lower()).unwrap(), expected.is_empty());
    let options = ah_agentfs::Options { background: false, without_lower: !expected.is_empty(), ..Default::default() };
    let store = place.open_with(options);
    (place, store, branch, snapshot)
}

#[test]
fn it_is_taken_where_it_holds_what_is_known_of_it() {
    let (_place, store, branch, snapshot) = copied(":");
    let view = store.view(branch).unwrap();
    let d = view.lookup(ROOT, b"d").unwrap().ino;
    assert_eq!(content(&view, "f"), b"one\n");
    assert_eq!(content(&view, "d/g"), b"two\n");
    // All that belongs to a directory can be copied.
    for ino in [ROOT, d] {
        assert_eq!(view.listxattr(ino).unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(view.getattr(ino).unwrap().mode, 0o750);
    }
    let view = store.view_of(snapshot).unwrap();
    let answer = view.lookup(ROOT, b"f").and_then(|f| view.read(f.ino, 0, 100));
    assert!(matches!(answer, Err(Error::DataLoss { .. })), "{answer:?}");
}

#[test]
fn another_directory_is_not() {
    for change in ["echo six >f", "rm d/g", "rm -r d/e; touch d/e", "touch new", "ln -sfT g link"] {
        copied(change);
    }
}
