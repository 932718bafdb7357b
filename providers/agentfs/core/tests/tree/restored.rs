//! A lower directory that was lost and brought back by copying.

use std::process::Command;

use ah_agentfs::{Class, Error, ROOT, Restored, SetAttr, Workspace};

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
    assert_eq!(taken.by_name, 0);
    let told: Vec<_> = taken.others.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    let expected: &[&str] = match change {
        ":" => &[],
        "echo six >f" => &["f"],
        "rm d/g" => &["d/g"],
        "rm -r d/e; touch d/e" => &["d/e"],
        "touch new" => &["new"],
        "ln -sfT g link" => &["link"],
        "chmod 600 f" => &["f"],
        "chmod 700 d" => &["d"],
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
    for change in
        ["echo six >f", "rm d/g", "rm -r d/e; touch d/e", "touch new", "ln -sfT g link", "chmod 600 f", "chmod 700 d"]
    {
        copied(change);
    }
}

/// What a copy is found to be of a directory that `make` fills, where names were written down, and `hashes` or not.
fn found(make: &str, hashes: bool, copy: &str) -> (Place, Restored) {
    let place = Place::new();
    let shell = |line: &str| {
        let status = Command::new("sh").args(["-ec", line]).current_dir(place.lower().parent().unwrap()).status();
        assert!(status.unwrap().success(), "{line}");
    };
    shell(&format!("cd lower; {make}"));
    let store = place.create();
    let base = store.base_with_names(b"").unwrap();
    if hashes {
        store.take_fingerprints(base).unwrap();
    }
    let branch = store.branch(base, b"").unwrap();
    store.sync().unwrap();
    drop(store);
    shell(&format!("cp -a lower copy; rm -r lower; {copy}"));
    let found = Workspace::take_restored(&place.store(), &place.lower(), branch).unwrap();
    let is_taken = Workspace::may_be_of(&place.store(), &place.lower()).unwrap();
    assert_eq!(is_taken, found.others.is_empty(), "{found:?}");
    (place, found)
}

#[test]
fn what_is_compared_by_its_name_only_is_counted() {
    let large = "for n in 1 2 3 4; do truncate -s 65M large$n; done; echo one >f";
    let (_place, found) = found(large, true, "mv copy lower; echo other >lower/large1");
    let named = [b"large1", b"large2", b"large3"].map(|name| name.to_vec());
    assert_eq!((found.others, found.by_name, found.named), (vec![], 4, named.to_vec()));
}

#[test]
fn one_of_which_too_little_is_known_is_not_taken() {
    let (_place, before_hashes) = found("echo one >f", false, "mv copy lower; echo six >lower/f");
    assert_eq!(before_hashes.others, [b""]);
    // A directory with more names than are written down.
    let make = "mkdir many; cd many; seq -f %0220g 5000 | xargs touch; cd ..; echo one >f";
    let (_place, unnamed) = found(make, true, "mv copy lower; echo other >lower/many/other");
    assert_eq!(unnamed.others, [b"many"]);
}

#[test]
fn what_a_link_leads_to_is_not_taken() {
    let (_place, linked) = found("echo one >f", true, "ln -s copy lower");
    assert_eq!(linked.others, [b""]);
}
