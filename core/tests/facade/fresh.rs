//! A directory that became a workspace for something that was refused.

use crate::lab::{Lab, labelled};
use ah_core::{Access, Engine, Error, ErrorKind, SnapshotOptions};
use ah_plugin_api::Observer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn is_one(lab: &Lab, engine: &Engine) -> bool {
    engine.workspace(&lab.path(), Access::Existing).is_ok()
}

#[test]
fn is_none_again() {
    let lab = Lab::new();
    let engine = lab.engine();
    let workspace = engine.workspace(&lab.path(), Access::Create).unwrap();
    workspace.snapshot(&labelled("a\tb")).unwrap_err();
    drop(workspace);
    engine.take_back_new().unwrap();
    assert!(!is_one(&lab, &lab.engine()));
    assert!(std::fs::read_dir(lab.settings.home.join("workspaces")).unwrap().next().is_none());
    // Then what lies below it is one of its own.
    let below = lab.path().join("below");
    std::fs::create_dir(&below).unwrap();
    assert_eq!(lab.engine().workspace(&below, Access::Create).unwrap().root(), below);
}

#[test]
fn stays_one_once_something_is_kept_of_it() {
    let lab = Lab::new();
    let engine = lab.engine();
    let workspace = engine.workspace(&lab.path(), Access::Create).unwrap();
    lab.write("a", "1");
    workspace.snapshot(&labelled("kept")).unwrap();
    drop(workspace);
    engine.take_back_new().unwrap();
    assert!(is_one(&lab, &engine) && !lab.folder().join("new").exists());
}

#[test]
fn stays_one_while_somebody_else_works_in_it() {
    let lab = Lab::new();
    let engine = lab.engine();
    drop(engine.workspace(&lab.path(), Access::Create).unwrap());
    let other = lab.engine().workspace(&lab.path(), Access::Create).unwrap();
    engine.take_back_new().unwrap();
    lab.write("a", "1");
    other.snapshot(&labelled("theirs")).unwrap();
    assert!(is_one(&lab, &engine));
}

#[test]
fn stays_one_for_who_did_not_make_it() {
    let lab = Lab::new();
    drop(lab.open());
    let engine = lab.engine();
    drop(engine.workspace(&lab.path(), Access::Create).unwrap());
    engine.take_back_new().unwrap();
    assert!(is_one(&lab, &engine));
}

#[test]
fn is_none_again_at_once_when_its_first_snapshot_failed() {
    /// Is asked while a lock is waited for, too.
    #[derive(Default)]
    struct Asked(AtomicU64);
    impl Observer for Asked {
        fn cancelled(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }
    }
    let asked = |is_head_there: bool| {
        let mut lab = Lab::new();
        lab.settings.patience = Duration::ZERO;
        *lab.fake.fails.lock().unwrap() = Some(Error::new(ErrorKind::ResourceExhausted, "made to fail"));
        let asked = Arc::new(Asked::default());
        lab.settings.observer = asked.clone();
        let engine = lab.engine();
        let workspace = engine.workspace(&lab.path(), Access::Create).unwrap();
        workspace.snapshot(&SnapshotOptions::default()).unwrap_err();
        drop(workspace);
        // Who asked for the last snapshot made that file, and nobody wrote to it.
        let head = lab.folder().join("head");
        assert_eq!(std::fs::metadata(&head).unwrap().len(), 0);
        if !is_head_there {
            std::fs::remove_file(&head).unwrap();
        }
        asked.0.store(0, Ordering::Relaxed);
        engine.take_back_new().unwrap();
        assert!(!is_one(&lab, &engine));
        asked.0.load(Ordering::Relaxed)
    };
    assert_eq!(asked(true), asked(false), "nobody else holds a lock");
}
