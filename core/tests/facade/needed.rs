//! Snapshots that are needed by what is being made of them, and all others, which are nobody's to wait for.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ah_core::{
    Access, BranchOptions, BranchRecord, EditOptions, Engine, Error, ErrorKind, GcOptions, Release, RmOptions,
    SeekOptions, Settings, SnapshotFilter, Workspace,
};
use rustix::fs::{FlockOperation, flock};

use crate::conversations::talked;
use crate::lab::Lab;

/// What became of each removal while something was made.
type Heard = Arc<Mutex<Vec<Result<(), Error>>>>;

fn heard(heard: &Heard) -> Vec<Result<(), ErrorKind>> {
    heard.lock().unwrap().drain(..).map(|outcome| outcome.map_err(|error| error.kind)).collect()
}

fn rm(settings: &Settings, path: &std::path::Path, id: &str, force: bool) -> Result<(), Error> {
    let settings = Settings { patience: Duration::ZERO, ..settings.clone() };
    let workspace = Engine::open(settings).unwrap().workspace(path, Access::Existing).unwrap();
    workspace.rm(&[id.to_owned()], &RmOptions { force, ..RmOptions::default() }).map(drop)
}

/// Removes `other`, and tries to remove `needed`, or else the newest, as another process would that waits for nobody.
fn remover(lab: &Lab, other: &str, needed: Option<&str>) -> (Heard, impl Fn() + Send + 'static) {
    let (told, settings, path) = (Heard::default(), lab.settings.clone(), lab.path());
    let (heard, other, needed) = (Arc::clone(&told), other.to_owned(), needed.map(str::to_owned));
    let remove = move || {
        let newest = || {
            let workspace = Engine::open(settings.clone()).unwrap().workspace(&path, Access::Existing).unwrap();
            ids(&workspace).pop().unwrap()
        };
        let needed = needed.clone().unwrap_or_else(newest);
        let outcomes = [(&other, false), (&needed, false), (&needed, true)];
        heard.lock().unwrap().extend(outcomes.map(|(id, force)| rm(&settings, &path, id, force)));
    };
    (told, remove)
}

const REFUSED: Result<(), ErrorKind> = Err(ErrorKind::FailedPrecondition);
const BUSY: Result<(), ErrorKind> = Err(ErrorKind::Busy);

fn ids(workspace: &Workspace) -> Vec<String> {
    let all = workspace.snapshots(&SnapshotFilter::default()).unwrap();
    all.into_iter().map(|snapshot| snapshot.id.to_string()).collect()
}

#[test]
fn while_a_branch_is_made_its_snapshot_stays_and_others_go() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "1"), lab.step("a", "2"));
    let (told, remove) = remover(&lab, first.id.as_str(), Some(second.id.as_str()));
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |made| {
        remove();
        Ok(made)
    }));
    let workspace = lab.open();
    let options = BranchOptions { from: Some(second.id.to_string()), ..BranchOptions::default() };
    let branch = workspace.branch(&options).unwrap();
    *lab.fake.of_clones.lock().unwrap() = None;
    assert_eq!(heard(&told), [Ok(()), REFUSED, BUSY]);
    assert_eq!(
        (ids(&workspace), fs::read_to_string(branch.path.join("a")).unwrap()),
        (vec![second.id.to_string()], "2".into())
    );
    // Once it is whole, `--force` has it.
    rm(&lab.settings, &lab.path(), second.id.as_str(), true).unwrap();
}

#[test]
fn what_a_killed_maker_left_is_no_reason_against_force() {
    let lab = Lab::new();
    let taken = lab.step("a", "1");
    let workspace = lab.open();
    let options = BranchOptions { from: Some("@".into()), ..BranchOptions::default() };
    let branch = workspace.branch(&options).unwrap();
    let file = lab.settings.home.join(format!("branches/{}.json", branch.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    (value["state"], value["maker"]["start"]) = ("making".into(), 1.into());
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    let remove = |force| rm(&lab.settings, &lab.path(), taken.id.as_str(), force).map_err(|error| error.kind);
    assert_eq!((remove(false), remove(true)), (REFUSED, Ok(())));
}

/// A branch whose maker, as its record says, has not come to the end, and the file of that record.
fn half_made(lab: &Lab, maker: impl FnOnce(&mut serde_json::Value)) -> (BranchRecord, std::path::PathBuf) {
    let options = BranchOptions { from: Some("@".into()), name: Some("b".into()), ..BranchOptions::default() };
    let branch = lab.open().branch(&options).unwrap();
    let file = lab.settings.home.join(format!("branches/{}.json", branch.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["state"] = "making".into();
    maker(&mut value["maker"]);
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    (branch, file)
}

/// One that cannot be seen from here.
fn in_another_namespace(maker: &mut serde_json::Value) {
    (maker["namespace"], maker["pid"]) = (1.into(), 999_999.into());
}

/// One of which nobody here can tell.
fn on_another_machine(maker: &mut serde_json::Value) {
    maker["boot"] = "another".into();
}

#[test]
fn whether_a_branch_is_being_made_its_lock_says_wherever_its_maker_is() {
    for maker in [in_another_namespace, on_another_machine] {
        let lab = Lab::new();
        let taken = lab.step("a", "1");
        let (branch, file) = half_made(&lab, maker);
        let remove = |force| rm(&lab.settings, &lab.path(), taken.id.as_str(), force).map_err(|error| error.kind);
        let remove_branch = || lab.open().remove_branch("b", true).map(drop).map_err(|error| error.kind);
        let lock = lab.folder().join(format!("branch-{}.lock", branch.id));
        // As its maker holds it.
        let held = fs::File::open(&lock).unwrap();
        flock(&held, FlockOperation::LockShared).unwrap();
        assert_eq!((remove(false), remove(true), remove_branch()), (REFUSED, BUSY, BUSY));
        let report = lab.open().gc(&GcOptions::default()).unwrap();
        assert!(file.exists() && branch.path.exists(), "{report:?}");
        // It was killed.
        drop(held);
        assert_eq!((remove(false), remove(true)), (REFUSED, Ok(())));
    }
}

#[test]
fn what_a_maker_that_cannot_be_seen_left_is_taken_away_once_its_lock_is_free() {
    type Take = fn(&Lab);
    let by_gc: Take = |lab| drop(lab.open().gc(&GcOptions::default()).unwrap());
    let by_rm: Take = |lab| drop(lab.open().remove_branch("b", false).unwrap());
    let by_another: Take = |lab| {
        let options = BranchOptions { from: Some("@".into()), name: Some("b".into()), ..BranchOptions::default() };
        lab.open().branch(&options).unwrap();
    };
    for take in [by_gc, by_rm, by_another] {
        let lab = Lab::new();
        lab.step("a", "1");
        let (branch, file) = half_made(&lab, in_another_namespace);
        take(&lab);
        assert!(!file.exists());
        assert!(!lab.folder().join(format!("branch-{}.lock", branch.id)).exists());
    }
    // Where there is no lock to look at, its maker may be at it.
    let lab = Lab::new();
    lab.step("a", "1");
    let (branch, file) = half_made(&lab, in_another_namespace);
    fs::remove_file(lab.folder().join(format!("branch-{}.lock", branch.id))).unwrap();
    by_gc(&lab);
    assert_eq!(lab.open().remove_branch("b", true).unwrap_err().kind, ErrorKind::Busy);
    assert!(file.exists());
}

#[test]
fn while_a_branch_of_the_present_state_is_made_others_go() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    lab.write("a", "2");
    let (told, remove) = remover(&lab, first.id.as_str(), None);
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |made| {
        remove();
        Ok(made)
    }));
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions::default()).unwrap();
    *lab.fake.of_clones.lock().unwrap() = None;
    assert_eq!(heard(&told), [Ok(()), REFUSED, BUSY]);
    assert_eq!(ids(&workspace), [branch.snapshot.to_string()]);
}

#[test]
fn while_a_session_branch_is_made_its_snapshot_stays_and_others_go() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    let other = ids(&workspace).remove(0);
    let needed = workspace.resolve("@prompt").unwrap().id;
    assert_ne!(needed.as_str(), other);
    let (told, remove) = remover(&lab, &other, Some(needed.as_str()));
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |made| {
        remove();
        Ok(made)
    }));
    let made = workspace.session_branch(&talk.branch_of("@prompt", "retry")).unwrap();
    *lab.fake.of_clones.lock().unwrap() = None;
    assert_eq!(made.branch.snapshot, needed);
    assert_eq!(heard(&told), [Ok(()), REFUSED, BUSY]);
    assert!(made.branch.path.join("a").exists());
}

#[test]
fn while_a_view_is_made_its_snapshot_stays_and_others_go() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "1"), lab.step("a", "2"));
    let (told, remove) = remover(&lab, first.id.as_str(), Some(second.id.as_str()));
    *lab.fake.of_views.lock().unwrap() = Some(Box::new(move |view| {
        remove();
        Ok(view)
    }));
    let workspace = lab.open();
    let lease = workspace.seek(second.id.as_str(), &SeekOptions::default()).unwrap();
    *lab.fake.of_views.lock().unwrap() = None;
    assert_eq!(heard(&told), [Ok(()), BUSY, BUSY]);
    assert_eq!(
        (ids(&workspace), fs::read_to_string(lease.path.join("a")).unwrap()),
        (vec![second.id.to_string()], "2".into())
    );
    workspace.release(&Release::All).unwrap();
}

#[test]
fn a_branch_that_fails_leaves_its_snapshot_to_who_has_come_to_need_it() {
    let (pinned, labelled, shown, by_nobody) = (0, 1, 2, 3);
    for needed in [pinned, labelled, shown, by_nobody] {
        let lab = Lab::new();
        let first = lab.step("a", "1");
        lab.write("a", "2");
        let (settings, path) = (lab.settings.clone(), lab.path());
        *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |_| {
            let other = Engine::open(settings.clone()).unwrap().workspace(&path, Access::Existing).unwrap();
            let newest = ids(&other).pop().unwrap();
            let edit = |options| drop(other.edit(&newest, &options).unwrap());
            match needed {
                0 => edit(EditOptions { keep: Some(true), ..EditOptions::default() }),
                1 => edit(EditOptions { label: Some("mine".into()), ..EditOptions::default() }),
                2 => drop(other.seek(&newest, &SeekOptions::default()).unwrap()),
                _ => {}
            }
            Err(Error::new(ErrorKind::Internal, "made to fail"))
        }));
        let workspace = lab.open();
        let error = workspace.branch(&BranchOptions::default()).unwrap_err();
        *lab.fake.of_clones.lock().unwrap() = None;
        assert_eq!(error.message, "made to fail");
        let left = ids(&workspace);
        assert_eq!(
            (left.len(), &left[0]),
            (if needed == by_nobody { 1 } else { 2 }, &first.id.to_string()),
            "{needed}"
        );
        // Its provider has it, too.
        for id in &left {
            workspace.seek(id, &SeekOptions::default()).unwrap();
        }
        workspace.release(&Release::All).unwrap();
    }
}
