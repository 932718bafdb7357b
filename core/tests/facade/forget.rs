//! A workspace that is to be none any more; the command line's tests have the rest.

use crate::lab::Lab;
use ah_core::{Access, ErrorKind, RestoreOptions, SnapshotFilter, SnapshotOptions};
use std::fs;

#[test]
fn who_still_has_it_open_does_not_begin_it_anew() {
    let lab = Lab::new();
    lab.step("a", "1");
    let held = lab.open();
    lab.open().forget().unwrap();
    let workspaces = || fs::read_dir(lab.settings.home.join("workspaces")).unwrap().count();
    assert!(held.snapshot(&SnapshotOptions::default()).is_err());
    assert!(held.mark(None).is_err());
    assert!(held.restore("@", &RestoreOptions::default()).is_err());
    assert!(held.forget().is_err());
    assert_eq!(workspaces(), 0);
    lab.step("a", "2");
    assert_eq!((workspaces(), lab.open().snapshots(&SnapshotFilter::default()).unwrap().len()), (1, 1));
}

#[test]
fn what_cannot_be_removed_keeps_the_workspace() {
    let lab = Lab::new();
    let snapshot = lab.step("a", "1");
    // A view that is being made, or was, by a process that may live.
    let lease = lab.open().seek("@", &ah_core::SeekOptions::default()).unwrap();
    let file = lab.settings.home.join(format!("leases/{}.json", lease.id));
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..30]).unwrap();
    let error = lab.open().forget().unwrap_err();
    assert!(error.kind == ErrorKind::DataLoss && error.hint.is_some(), "{error:?}");
    fs::write(&file, &whole).unwrap();
    assert_eq!(lab.open().forget().unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert_eq!(lab.open().to_forget().unwrap_err().kind, ErrorKind::FailedPrecondition);
    lab.open().release(&ah_core::Release::All).unwrap();
    let gone = lab.open().forget().unwrap();
    assert_eq!(gone.snapshots.iter().map(|it| &it.id).collect::<Vec<_>>(), [&snapshot.id]);
    assert_eq!(lab.engine().workspace(&lab.path(), Access::Existing).err().unwrap().kind, ErrorKind::NotFound);
}
