//! What a provider says need not be so: it has lost what it knew, or it is wrong.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ah_core::{
    Access, BranchOptions, BranchRecord, DiffOptions, ErrorKind, GcOptions, RelPath, RestoreOptions, RmOptions,
    SeekOptions, SnapshotOptions, Workspace,
};
use ah_plugin_api::{ContentId, Error, Reference, Snapshot, View, WritableClone};

use crate::lab::{Lab, write};
use crate::moments::{another, captured};

fn named(name: &str) -> BranchOptions {
    BranchOptions { name: Some(name.into()), ..BranchOptions::default() }
}

/// Whether an error is the provider's, by its name.
fn is_defect(error: &Error) -> bool {
    let told = error.causes.iter().chain([&error.message]).any(|text| text.contains("the provider fake"));
    told && error.kind == ErrorKind::Internal && error.hint.is_some()
}

/// The provider has lost the store of a workspace.
fn lose_store(lab: &Lab, workspace: &Workspace) {
    let stores = lab.settings.home.join("workspaces").join(workspace.id().as_str()).join("providers");
    fs::remove_dir_all(stores.join("fake")).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.ends_with(".json")).collect();
    names.sort();
    names
}

fn said(workspace: &Workspace, path: &Path) -> bool {
    let path = path.display().to_string();
    workspace.engine().take_notices().iter().any(|notice| notice.message.contains(&path))
}

#[test]
fn a_branch_that_its_provider_knows_nothing_of_goes_all_the_same() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    lose_store(&lab, &workspace);
    workspace.remove_branch("b", true).unwrap();
    assert_eq!(names(&lab.settings.home.join("branches")), [""; 0]);
    // Its name is free.
    lab.step("a", "2");
    assert_eq!(lab.open().branch(&named("b")).unwrap().path, branch.path);
}

#[test]
fn elsewhere_it_stays_and_is_not_said_to_be_gone() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let place = lab.top.join("beside");
    let branch = workspace.branch(&BranchOptions { at: Some(place.clone()), ..named("b") }).unwrap();
    lose_store(&lab, &workspace);
    let error = workspace.remove_branch("b", true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.message.contains(place.to_str().unwrap()) && error.hint.is_some(), "{error:?}");
    assert!(place.join("a").exists());
    assert_eq!(workspace.find_ready_branch("b").unwrap().id, branch.id);
    // As the hint says.
    fs::remove_dir_all(&place).unwrap();
    workspace.remove_branch("b", true).unwrap();
    assert!(workspace.branches().unwrap().is_empty());
}

#[test]
fn what_is_in_the_place_of_one_of_which_all_is_lost_stays() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap().id().to_owned();
    fs::remove_dir_all(lab.settings.home.join("workspaces").join(own.as_str())).unwrap();
    lose_store(&lab, &workspace);
    fs::rename(&branch.path, lab.top.join("aside")).unwrap();
    write(&branch.path.join("precious"), "x");
    let error = workspace.remove_branch("b", true).unwrap_err();
    assert!(error.message.contains(branch.path.to_str().unwrap()) && error.hint.is_some(), "{error:?}");
    assert!(branch.path.join("precious").exists());
}

#[test]
fn what_is_in_the_place_of_one_is_said_to_stay() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    fs::rename(&branch.path, lab.top.join("aside")).unwrap();
    write(&branch.path.join("precious"), "x");
    let _before = workspace.engine().take_notices();
    workspace.remove_branch("b", true).unwrap();
    assert!(branch.path.join("precious").exists());
    assert!(said(&workspace, &branch.path));
}

/// A branch at `place` whose origin, a branch itself, is gone.
fn orphan(lab: &Lab, place: &Path) -> BranchRecord {
    let workspace = lab.open();
    let origin = workspace.branch(&named("origin")).unwrap();
    let origin = lab.engine().workspace(&origin.path, Access::Existing).unwrap();
    let orphan = origin.branch(&BranchOptions { at: Some(place.to_owned()), ..named("orphan") }).unwrap();
    workspace.remove_branch("origin", true).unwrap();
    orphan
}

#[test]
fn without_an_origin_one_goes_only_from_where_it_was_asked_for() {
    let lab = Lab::new();
    lab.step("a", "1");
    let place = lab.top.join("beside");
    let branch = orphan(&lab, &place);
    let workspace = lab.open();
    let file = lab.settings.home.join("branches").join(format!("{}.json", branch.id));
    let asked_for = |target: &Path| {
        let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        value["target"] = target.to_str().unwrap().into();
        fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    };
    // Where it is was a provider's choice.
    asked_for(&lab.path());
    let error = workspace.remove_branch("orphan", true).unwrap_err();
    assert!(error.message.contains(place.to_str().unwrap()), "{error:?}");
    assert!(place.join("a").exists());
    asked_for(&lab.top);
    workspace.remove_branch("orphan", true).unwrap();
    assert!(!place.exists());
}

#[test]
fn what_was_made_and_answered_wrongly_goes() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let refused = |_| Err(Error::new(ErrorKind::Internal, "an answer that cannot be read"));
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(refused));
    assert_eq!(workspace.branch(&named("b")).unwrap_err().kind, ErrorKind::Internal);
    assert_eq!(names(&lab.settings.home.join("branches")), [""; 0]);
    assert!(workspace.branches().unwrap().is_empty());
}

#[test]
fn a_branch_is_not_where_others_things_are() {
    let mut lab = Lab::new();
    lab.settings.user_home = Some(lab.top.join("me"));
    for name in ["me", "other", "strangers", "holds/another"] {
        fs::create_dir_all(lab.top.join(name)).unwrap();
        fs::write(lab.top.join(name).join("precious"), "x").unwrap();
    }
    lab.step("a", "1");
    for name in ["other", "holds/another"] {
        lab.engine().workspace(&lab.top.join(name), Access::Create).unwrap();
    }
    let workspace = lab.open();
    let home = lab.settings.home.clone();
    let inside = lab.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let wrong: [PathBuf; 8] = [
        lab.path(),
        inside,
        lab.top.join("other"),
        lab.top.join("holds"),
        lab.top.join("strangers"),
        lab.top.join("me"),
        home.clone(),
        home.join("branches"),
    ];
    for path in wrong {
        let answer = path.clone();
        let lie = move |clone: WritableClone| Ok(WritableClone { path: answer.clone(), ..clone });
        *lab.fake.of_clones.lock().unwrap() = Some(Box::new(lie));
        let error = workspace.branch(&BranchOptions { from: Some("@".into()), ..named("b") }).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{}", path.display());
        assert!(path.exists() && workspace.branches().unwrap().is_empty(), "{}", path.display());
        assert_eq!(names(&home.join("branches")), [""; 0], "{}", path.display());
    }
}

#[test]
fn a_view_is_not_what_is_worked_in() {
    let lab = Lab::new();
    lab.step("sub/a", "1");
    let workspace = lab.open();
    std::os::unix::fs::symlink(lab.path(), lab.top.join("link")).unwrap();
    let (home, strangers) = (lab.settings.home.clone(), lab.top.join("strangers"));
    fs::create_dir(&strangers).unwrap();
    let store = home.join("workspaces").join(workspace.id().as_str()).join("providers/fake");
    let worked_in = [lab.path(), lab.path().join("sub"), lab.top.clone(), lab.top.join("link"), "/".into()];
    // On another filesystem, mostly: anybody's files are there, too.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let others = [strangers, store, home.join("mounts"), home, elsewhere.path().to_owned()];
    for path in worked_in.into_iter().chain(others) {
        let answer = path.clone();
        *lab.fake.of_views.lock().unwrap() =
            Some(Box::new(move |view: View| Ok(View { path: answer.clone(), ..view })));
        let error = workspace.seek("@", &SeekOptions::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{}", path.display());
        assert!(workspace.leases().unwrap().is_empty());
        assert_eq!(names(&lab.settings.home.join("mounts")), [""; 0], "{}", path.display());
    }
    *lab.fake.of_views.lock().unwrap() = None;
    assert!(workspace.seek("@", &SeekOptions::default()).unwrap().path.join("sub/a").exists());
}

#[test]
fn what_is_worked_in_is_not_read_as_what_was_captured() {
    let lab = Lab::new();
    lab.fake.shows_alone.store(true, Ordering::Relaxed);
    lab.step("a", "1");
    lab.write("a", "2");
    let workspace = lab.open();
    let path = lab.path();
    let lie = move |view: View| Ok(View { path: path.clone(), ..view });
    *lab.fake.of_views.lock().unwrap() = Some(Box::new(lie));
    let (file, out) = (RelPath::new("a").unwrap(), tempfile::tempfile().unwrap());
    let answers = [
        workspace.restore("@", &RestoreOptions::default()).map(drop),
        workspace.diff("@", None, &DiffOptions::default()).map(drop),
        workspace.cat("@", &file, out.as_fd()).map(drop),
    ];
    for (at, answer) in answers.into_iter().enumerate() {
        assert!(is_defect(&answer.unwrap_err()), "{at}");
    }
    // Who looks for a file in all snapshots passes over those, and says so.
    let _before = workspace.engine().take_notices();
    workspace.versions(&file).unwrap_err();
    assert!(said(&workspace, &lab.path()));
    assert_eq!(names(&lab.settings.home.join("mounts")), [""; 0]);
    *lab.fake.of_views.lock().unwrap() = None;
    workspace.restore("@", &RestoreOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "1");
}

#[test]
fn a_file_that_the_saved_state_does_not_give_is_not_said_to_be_worked_on() {
    let lab = Lab::new();
    let target = lab.step("a", "old");
    lab.write("a", "new!");
    let workspace = lab.open();
    lab.fake.reads_short.store(true, Ordering::Relaxed);
    // What was touched has to be compared with what was saved.
    let file = fs::File::open(lab.path().join("a")).unwrap();
    let touch = move || file.set_modified(std::time::SystemTime::now()).unwrap();
    *lab.fake.on_diff.lock().unwrap() = Some(Box::new(touch));
    let error = workspace.restore(target.id.as_str(), &RestoreOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    let told = error.causes.join("\n");
    assert!(told.contains("a: ") && told.contains("the provider fake gave 2 bytes of a, not 4"), "{error:?}");
    let hint = error.hint.unwrap();
    assert!(!hint.contains("--force") && !hint.contains("at work"), "{hint}");
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "new!");
    lab.fake.reads_short.store(false, Ordering::Relaxed);
    workspace.restore(target.id.as_str(), &RestoreOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "old");
}

/// What a snapshot that is taken next bears as its reference.
fn will_bear(lab: &Lab, reference: &Reference) {
    let reference = reference.clone();
    let lie = move |snapshot: Snapshot| Ok(Snapshot { reference: reference.clone(), ..snapshot });
    *lab.fake.of_snapshots.lock().unwrap() = Some(Box::new(lie));
}

#[test]
fn a_snapshot_that_bears_the_last_ones_reference_is_refused_and_the_last_one_stays() {
    let lab = Lab::new();
    for treeless in [false, true] {
        lab.fake.treeless.store(treeless, Ordering::Relaxed);
        let last = lab.step("a", if treeless { "1" } else { "2" });
        will_bear(&lab, &last.reference);
        lab.write("a", "3");
        let workspace = lab.open();
        let taken = workspace.snapshot(&SnapshotOptions::default()).map(drop);
        let restored = workspace.restore("@", &RestoreOptions::default()).map(drop);
        for error in [taken.unwrap_err(), restored.unwrap_err()] {
            assert!(is_defect(&error), "{error:?}");
        }
        assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "3");
        *lab.fake.of_snapshots.lock().unwrap() = None;
        workspace.restore(last.id.as_str(), &RestoreOptions::default()).unwrap();
    }
}

#[test]
fn what_another_snapshot_is_found_by_is_not_removed() {
    let lab = Lab::new();
    let (first, _) = (lab.step("a", "1"), lab.step("a", "2"));
    will_bear(&lab, &first.reference);
    let third = lab.step("a", "3");
    *lab.fake.of_snapshots.lock().unwrap() = None;
    let workspace = lab.open();
    let error = workspace.rm(&[third.id.to_string()], &RmOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    workspace.gc(&GcOptions::default()).unwrap();
    workspace.restore(first.id.as_str(), &RestoreOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "1");
    // With the last that it is found by it goes.
    workspace.rm(&[first.id.to_string()], &RmOptions::default()).unwrap();
}

#[test]
fn what_is_taken_back_unheard_takes_no_other_along() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let will_say = |reference: Option<Reference>| {
        let (tree, told) = (Some(ContentId(vec![2])), move |own| reference.clone().unwrap_or(own));
        let lie = move |own: Snapshot| Ok(Snapshot { reference: told(own.reference), tree: tree.clone(), ..own });
        *lab.fake.of_snapshots.lock().unwrap() = Some(Box::new(lie));
    };
    will_say(None);
    lab.write("a", "2");
    another(&lab);
    let second = captured(&lab).record.snapshot;
    will_say(Some(first.reference.clone()));
    let is_there = || {
        let tried = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
        lab.open().restore(first.id.as_str(), &tried).map(drop)
    };
    // A restore that is only tried saves the present state, too.
    is_there().unwrap();
    is_there().unwrap();
    // The moment gets the snapshot that is there.
    another(&lab);
    assert_eq!(captured(&lab).record.snapshot, second);
    is_there().unwrap();
    *lab.fake.of_snapshots.lock().unwrap() = None;
    lab.open().restore(first.id.as_str(), &RestoreOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "1");
}

#[test]
fn one_that_was_for_nothing_takes_no_other_along() {
    let lab = Lab::new();
    lab.fake.treeless.store(true, Ordering::Relaxed);
    let first = lab.step("a", "1");
    another(&lab);
    let before = captured(&lab).record.snapshot;
    will_bear(&lab, &first.reference);
    another(&lab);
    assert_eq!(captured(&lab).record.snapshot, before, "nothing has changed");
    *lab.fake.of_snapshots.lock().unwrap() = None;
    lab.write("a", "2");
    lab.open().restore(first.id.as_str(), &RestoreOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "1");
}

#[test]
fn a_view_that_is_no_directory_is_its_providers_defect() {
    let lab = Lab::new();
    lab.fake.shows_alone.store(true, Ordering::Relaxed);
    lab.step("a", "1");
    let workspace = lab.open();
    let (out, elsewhere) = (tempfile::tempfile().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| elsewhere.path().canonicalize().unwrap().join(name);
    write(&at("file"), "x");
    fs::create_dir(at("dir")).unwrap();
    std::os::unix::fs::symlink(at("dir"), at("link")).unwrap();
    for path in [at("file"), at("link"), at("nothing")] {
        let answer = path.clone();
        *lab.fake.of_views.lock().unwrap() =
            Some(Box::new(move |view: View| Ok(View { path: answer.clone(), ..view })));
        let sought = workspace.seek("@", &SeekOptions::default()).map(drop);
        let read = workspace.cat("@", &RelPath::new("a").unwrap(), out.as_fd()).map(drop);
        for error in [sought.unwrap_err(), read.unwrap_err()] {
            assert!(is_defect(&error), "{error:?}");
        }
        assert_eq!(names(&lab.settings.home.join("mounts")), [""; 0]);
    }
}

#[test]
fn a_branch_that_is_no_directory_is_its_providers_defect_and_leaves_nothing() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branches = lab.settings.home.join("branches");
    for what in ["file", "link", "dangling", "nothing", "below"] {
        let (precious, asked) = (lab.top.join("precious"), branches.join("b"));
        fs::create_dir_all(&precious).unwrap();
        let lie = move |clone: WritableClone| {
            fs::remove_dir_all(&clone.path).unwrap();
            match what {
                "file" => fs::write(&asked, "x").unwrap(),
                "link" => std::os::unix::fs::symlink(&precious, &asked).unwrap(),
                "dangling" => std::os::unix::fs::symlink("nowhere", &asked).unwrap(),
                "below" => write(&asked.join("in"), "x"),
                _ => {}
            }
            let path = if what == "below" { asked.join("in") } else { asked.clone() };
            Ok(WritableClone { path, ..clone })
        };
        *lab.fake.of_clones.lock().unwrap() = Some(Box::new(lie));
        let error = workspace.branch(&BranchOptions { from: Some("@".into()), ..named("b") }).unwrap_err();
        assert!(is_defect(&error), "{what}: {error:?}");
        assert!(workspace.branches().unwrap().is_empty(), "{what}");
        assert_eq!(names(&branches), [""; 0], "{what}");
        assert!(lab.top.join("precious").is_dir(), "{what}");
    }
}

#[test]
fn one_that_its_provider_cannot_take_away_now_stays_on_record() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let lie = |clone: WritableClone| fs::remove_dir_all(&clone.path).map(|()| clone).map_err(|_| unreachable!());
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(lie));
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    assert!(is_defect(&workspace.branch(&named("b")).unwrap_err()));
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    let branches = lab.settings.home.join("branches");
    let records = || -> Vec<PathBuf> {
        let all = fs::read_dir(&branches).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
    };
    let record = records().remove(0);
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    value["maker"]["start"] = 1.into();
    fs::write(&record, value.to_string()).unwrap();
    workspace.gc(&GcOptions::default()).unwrap();
    assert_eq!((lab.fake.forgotten.lock().unwrap().as_slice(), records()), (&["b".to_owned()][..], Vec::new()));
}

#[test]
fn who_always_finds_something_is_not_asked_for_ever() {
    let lab = Lab::new();
    lab.step("a", "1");
    // How often since it last took its time, as it may on a machine that has other work.
    let asked = Arc::new(Mutex::new((0, Instant::now())));
    let counted = Arc::clone(&asked);
    *lab.fake.of_reclaims.lock().unwrap() = Some(Box::new(move |mut reclaimed| {
        let (count, last) = &mut *counted.lock().unwrap();
        // A turn that takes 60 ms, and the pause behind it.
        *count = if last.elapsed() < Duration::from_millis(120) { *count + 1 } else { 1 };
        *last = Instant::now();
        reclaimed.actions = vec!["gave back the same".to_owned(); 100];
        reclaimed.bytes = u64::MAX;
        Ok(reclaimed)
    }));
    let report = lab.open().gc(&GcOptions { auto: true }).unwrap();
    let (asked, _) = *asked.lock().unwrap();
    assert!(asked <= 101, "{asked}");
    assert_eq!((report.actions.len(), report.bytes), (100, u64::MAX));
    assert!(report.failures.is_empty(), "{report:?}");
}
