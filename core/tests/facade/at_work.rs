//! Commands that work in a branch, and who looks whether it may go.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ah_core::{Access, BranchOptions, ErrorKind, SnapshotOptions};
use rustix::fs::{FlockOperation, flock};

use crate::lab::Lab;

fn named(name: &str) -> BranchOptions {
    BranchOptions { name: Some(name.into()), ..BranchOptions::default() }
}

#[test]
fn no_command_is_begun_in_one_that_is_being_taken_away() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    for force in [false, true] {
        let branch = workspace.branch(&named("b")).unwrap();
        let (begun, other, it) = (Arc::new(Mutex::new(None)), lab.open(), branch.clone());
        let heard = Arc::clone(&begun);
        *lab.fake.on_destroy.lock().unwrap() =
            Some(Box::new(move || *heard.lock().unwrap() = Some(other.hold_branch(&it).map_err(|error| error.kind))));
        workspace.remove_branch("b", force).unwrap();
        assert_eq!(*begun.lock().unwrap(), Some(Err(ErrorKind::Busy)));
        assert_eq!(workspace.hold_branch(&branch).unwrap_err().kind, ErrorKind::NotFound);
        let locks = || fs::read_dir(lab.folder()).unwrap().flatten().map(|entry| entry.file_name());
        let of_it = format!("branch-{}.lock", branch.id);
        assert!(!locks().any(|name| name == *of_it), "{:?}", locks().collect::<Vec<_>>());
    }
}

#[test]
fn one_that_is_only_looked_at_is_worked_in_once_that_is_over() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    let (begun, other, it) = (Arc::new(Mutex::new(None)), lab.open(), branch);
    let heard = Arc::clone(&begun);
    // While it is looked for what it holds.
    *lab.fake.on_list.lock().unwrap() = Some(Box::new(move || {
        *heard.lock().unwrap() = Some(std::thread::spawn(move || other.hold_branch(&it)));
        std::thread::sleep(Duration::from_millis(300));
    }));
    assert_eq!(workspace.may_remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
    begun.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::Busy, "it is worked in");
}

#[test]
fn who_looks_at_one_for_too_long_is_named() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let branch = lab.open().branch(&named("b")).unwrap();
    let held = fs::File::create(lab.folder().join(format!("branch-{}.lock", branch.id))).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    lab.settings.patience = Duration::from_millis(20);
    let error = lab.open().hold_branch(&branch).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    let me = format!("process {} holds ", std::process::id());
    assert!(error.causes.iter().any(|cause| cause.starts_with(&me)), "{error:?}");
    assert!(!error.message.contains("removed"), "{error}");
    drop(held);
    lab.open().hold_branch(&branch).unwrap();
}
