use crate::lab::{Lab, Stop, write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ah_core::{
    Access, BranchOptions, BranchRecord, BranchState, Error, ErrorKind, GcOptions, RestoreOptions, RmOptions,
    SnapshotFilter, SnapshotKind, SnapshotOptions, TimelineFilter,
};
use std::fs;
use std::path::PathBuf;

fn named(name: &str) -> BranchOptions {
    BranchOptions { name: Some(name.into()), ..BranchOptions::default() }
}

#[test]
fn what_a_ref_means_is_found_out_before_a_branch_that_is_removed_with_it_goes() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "1"), lab.step("a", "2"));
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions { from: Some("@".into()), ..named("retry") }).unwrap();
    let (settings, path) = (lab.settings.clone(), lab.path());
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || {
        write(&path.join("a"), "3");
        let other = ah_core::Engine::open(settings).unwrap().workspace(&path, Access::Create).unwrap();
        other.snapshot(&SnapshotOptions::default()).unwrap();
    }));
    let report = workspace.rm_with_branches(&["@{1}".to_owned()], &[branch], &RmOptions::default()).unwrap();
    assert_eq!(report.removed.iter().map(|it| &it.id).collect::<Vec<_>>(), [&first.id]);
    let left = workspace.snapshots(&SnapshotFilter::default()).unwrap();
    assert!(left.len() == 2 && left[0].id == second.id, "{left:?}");
}

#[test]
fn is_a_workspace_of_its_own() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    lab.step("a", "2");
    let workspace = lab.open();
    let options = BranchOptions { from: Some("@{1}".into()), ..named("fix") };
    let branch = workspace.branch(&options).unwrap();
    assert_eq!(branch.path, lab.settings.home.join("branches/fix"));
    assert_eq!((branch.state, &branch.snapshot), (BranchState::Ready, &first.id));
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "1");
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    assert_eq!(Some(own.id()), branch.workspace.as_ref());
    assert!(own.snapshots(&SnapshotFilter::default()).unwrap().is_empty());
    write(&branch.path.join("a"), "3");
    own.snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "2");
    assert_eq!(workspace.find_branch("fix").unwrap(), branch);
    assert_eq!(workspace.find_branch(branch.path.to_str().unwrap()).unwrap(), branch);
    let status = lab.engine().status(&branch.path).unwrap();
    assert_eq!(status.branch.unwrap().id, branch.id);
    assert_eq!(workspace.branch(&options).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(workspace.show("@{1}").unwrap().branches, std::slice::from_ref(&branch.id));
    // Somebody may call one as another's id is.
    let other = workspace.branch(&named(branch.id.as_str())).unwrap();
    assert_eq!(workspace.find_branch(branch.id.as_str()).unwrap(), other);
}

/// What a provider set aside in a store may be nothing that can be removed as files are.
#[test]
fn a_branchs_store_is_emptied_by_its_provider_before_it_goes() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("fix")).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    let before = lab.fake.reclaims.load(Ordering::Relaxed);
    workspace.remove_branch("fix", true).unwrap();
    // Before it, it was asked which branches live in there.
    assert_eq!(lab.fake.reclaims.load(Ordering::Relaxed) - before, 2);
}

#[test]
fn without_a_ref_it_grows_from_the_present() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.write("a", "unsaved");
    let branch = lab.open().branch(&BranchOptions::default()).unwrap();
    assert!(branch.name.starts_with("ws-"), "{}", branch.name);
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "unsaved");
    let snapshots = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    assert_eq!(snapshots.last().unwrap().kind, SnapshotKind::Branch);
}

#[test]
fn bad_names_and_places_are_refused_before_anything_is_made() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    for name in ["", ".x", "-x", "a/b", "x.json", "a\nb"] {
        assert_eq!(workspace.branch(&named(name)).unwrap_err().kind, ErrorKind::InvalidArgument, "{name:?}");
    }
    let at = |path: PathBuf| BranchOptions { at: Some(path), ..named("n") };
    for (path, kind) in [
        (lab.path().join("inside"), ErrorKind::InvalidArgument),
        (lab.settings.home.join("mounts/x"), ErrorKind::InvalidArgument),
        (lab.top.join("no/where"), ErrorKind::NotFound),
        (PathBuf::from("/"), ErrorKind::InvalidArgument),
    ] {
        fs::create_dir_all(lab.settings.home.join("mounts")).unwrap();
        assert_eq!(workspace.branch(&at(path.clone())).unwrap_err().kind, kind, "{}", path.display());
    }
    fs::create_dir(lab.top.join("there")).unwrap();
    let options = BranchOptions { from: Some("@".into()), ..at(lab.top.join("there")) };
    assert_eq!(workspace.branch(&options).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
    assert!(workspace.branches().unwrap().is_empty());
}

#[test]
fn one_elsewhere_that_is_moved_is_still_known() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let options = BranchOptions { at: Some(lab.top.join("beside")), ..named("n") };
    let branch = workspace.branch(&options).unwrap();
    assert_eq!(branch.path, lab.top.join("beside"));
    let moved = lab.top.join("moved");
    fs::rename(&branch.path, &moved).unwrap();
    let own = lab.engine().workspace(&moved, Access::Existing).unwrap();
    assert_eq!(Some(own.id()), branch.workspace.as_ref());
    assert_eq!(workspace.find_branch("n").unwrap().path, moved);
}

#[test]
fn of_a_workspace_that_was_moved_is_told_where_that_is_now() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.open().branch(&named("n")).unwrap();
    let (before, after) = (lab.path(), lab.top.join("after"));
    fs::rename(&before, &after).unwrap();
    lab.engine().workspace(&after, Access::Existing).unwrap();
    let said = lab.engine().foreign_branch(None, "n", |_| "branches".to_owned()).unwrap();
    assert_eq!(said.message, format!("n is a branch of another workspace: {}", after.display()));
    assert_eq!(said.hint.unwrap(), format!("ah -C {} agent fs branches", after.display()));
}

#[test]
fn is_taken_away_only_with_nothing_in_it_or_by_force() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    write(&branch.path.join("new"), "work");
    let refused = || {
        let error = workspace.remove_branch("b", false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
        assert!(error.hint.unwrap().contains("--force b"));
        assert_eq!(workspace.find_branch("b").unwrap().state, BranchState::Ready);
        error.message
    };
    assert!(refused().ends_with(": 1 changed file"));
    assert!(branch.path.join("new").exists());
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    // Its snapshots go with it, so that saves nothing.
    assert!(refused().ends_with(": 1 changed file, 1 snapshot of its own"));
    fs::remove_file(branch.path.join("new")).unwrap();
    assert!(refused().ends_with(": 1 snapshot of its own"));
    // Also one whose maker was killed before it was listed.
    let timeline = lab.settings.home.join("workspaces").join(own.id().as_str()).join("sessions/main/timeline.jsonl");
    let listed = fs::read(&timeline).unwrap();
    fs::write(&timeline, "").unwrap();
    assert!(refused().ends_with(": 1 snapshot that no timeline lists"));
    fs::write(&timeline, listed).unwrap();
    workspace.remove_branch("b", true).unwrap();
    assert!(!branch.path.exists());
    assert!(workspace.branches().unwrap().is_empty());
    assert!(!lab.settings.home.join("workspaces").join(own.id().as_str()).exists());
    assert_eq!(workspace.remove_branch("b", true).unwrap_err().kind, ErrorKind::NotFound);

    let branch = workspace.branch(&named("b")).unwrap();
    workspace.remove_branch("b", false).unwrap();
    assert!(!branch.path.exists());
}

#[test]
fn what_is_made_in_one_while_it_is_looked_at_stays_with_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let own = |branch: &BranchRecord| lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    let mut kept = 0;
    for round in 0..20 {
        let name = format!("b{round}");
        let branch = workspace.branch(&named(&name)).unwrap();
        // It can begin as soon as the first look is over, which asks those who took snapshots once.
        let (begun, it) = (Arc::new(Mutex::new(None)), own(&branch));
        let first = it.snapshot(&SnapshotOptions::default()).unwrap().id.to_string();
        it.rm(&[first], &RmOptions { force: true, ..RmOptions::default() }).unwrap();
        let heard = Arc::clone(&begun);
        *lab.fake.on_list.lock().unwrap() = Some(Box::new(move || {
            let snapshot = move || it.snapshot(&SnapshotOptions::default()).map_err(|error| error.message);
            *heard.lock().unwrap() = Some(std::thread::spawn(snapshot));
        }));
        let removed = workspace.remove_branch(&name, false);
        let taken = begun.lock().unwrap().take().unwrap().join().unwrap();
        match (&removed, &taken) {
            (Ok(_), Err(_)) => {}
            (Err(error), Ok(_)) => {
                assert!(error.message.ends_with("1 snapshot of its own"), "{error}");
                assert_eq!(own(&branch).snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
                kept += 1;
            }
            both => panic!("{both:?}"),
        }
    }
    assert!(kept > 0, "nothing was ever made while it was looked at");
}

#[test]
fn nothing_is_made_in_one_that_is_being_taken_away() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    let first = own.snapshot(&SnapshotOptions::default()).unwrap().id.to_string();
    let begun = Arc::new(Mutex::new(Vec::new()));
    let refused = Arc::clone(&begun);
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || {
        let child = BranchOptions { from: Some(first.clone()), ..named("child") };
        let said = [
            own.snapshot(&SnapshotOptions::default()).map(|_| ()),
            own.branch(&child).map(|_| ()),
            own.restore(&first, &RestoreOptions::default()).map(|_| ()),
        ];
        *refused.lock().unwrap() = said.map(Result::unwrap_err).to_vec();
    }));
    workspace.remove_branch("b", true).unwrap();
    let said = begun.lock().unwrap();
    assert!(said.len() == 3 && said.iter().all(|error| error.message.contains("is removing the branch b")), "{said:?}");
}

#[test]
fn gc_takes_away_what_a_killed_process_was_making() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let file = lab.settings.home.join(format!("branches/{}.json", branch.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["state"] = "making".into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    assert_eq!(workspace.remove_branch("b", true).unwrap_err().kind, ErrorKind::Busy);
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty(), "this process lives");
    value["maker"]["start"] = 1.into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty() && !report.actions.is_empty(), "{report:?}");
    assert!(!file.exists() && !branch.path.exists());
}

/// What is written down of a branch.
pub(crate) fn record(lab: &Lab, branch: &BranchRecord) -> PathBuf {
    lab.settings.home.join(format!("branches/{}.json", branch.id))
}

/// As if a process had been killed while it made or removed the branch.
pub(crate) fn killed(lab: &Lab, branch: &BranchRecord, state: &str) {
    let file = record(lab, branch);
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["state"] = state.into();
    value["maker"]["start"] = 1.into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
}

#[test]
fn gc_leaves_a_branch_whose_maker_came_to_its_end_meanwhile() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    // As they are looked at.
    let mut both = ["a", "b"].map(|name| workspace.branch(&named(name)).unwrap());
    both.sort_by_key(|branch| (branch.created, branch.id.clone()));
    let [first, second] = both;
    let ready = fs::read(record(&lab, &second)).unwrap();
    killed(&lab, &first, "making");
    killed(&lab, &second, "making");
    let file = record(&lab, &second);
    let maker = serde_json::from_slice::<serde_json::Value>(&fs::read(&file).unwrap()).unwrap()["maker"].clone();
    let mut ready: serde_json::Value = serde_json::from_slice(&ready).unwrap();
    ready["maker"] = maker;
    let then = file.clone();
    *lab.fake.on_destroy.lock().unwrap() = Some(Box::new(move || {
        fs::write(&then, serde_json::to_vec(&ready).unwrap()).unwrap();
    }));
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty() && report.actions.len() == 1, "{report:?}");
    assert!(!first.path.exists() && second.path.exists() && file.exists());
    workspace.find_ready_branch(&second.name).unwrap();
}

/// A workspace that is a repository as far as one looks at its files, with `.env` and `target/` ignored.
fn repository(lab: &Lab) -> ah_core::Workspace {
    lab.write(".gitignore", ".env*\ntarget/\n");
    lab.write(".git/HEAD", "ref: refs/heads/main\n");
    lab.write(".git/refs/heads/main", "1111111111111111111111111111111111111111\n");
    fs::create_dir_all(lab.path().join(".git/objects")).unwrap();
    lab.write(".env", "SECRET=1");
    lab.step("a", "1");
    lab.open()
}

#[test]
fn one_that_was_only_looked_at_or_built_in_goes() {
    let lab = Lab::new();
    let workspace = repository(&lab);
    lab.write("target/out", "from the workspace");
    lab.write(".env.local", "since the snapshot");
    let options = BranchOptions { from: Some("@".into()), ..named("b") };
    let branch = workspace.branch(&options).unwrap();
    assert_eq!(fs::read_to_string(branch.path.join("target/out")).unwrap(), "from the workspace");
    assert_eq!(fs::read_to_string(branch.path.join(".env.local")).unwrap(), "since the snapshot");
    write(&branch.path.join("target/out"), "built");
    write(&branch.path.join("target/more"), "built");
    workspace.remove_branch("b", false).unwrap();

    let branch = workspace.branch(&options).unwrap();
    write(&branch.path.join(".env.local"), "edited in the branch");
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
    write(&branch.path.join(".env.local"), "since the snapshot");
    write(&branch.path.join(".env"), "SECRET=2");
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
    write(&branch.path.join(".env"), "SECRET=1");
    workspace.remove_branch("b", false).unwrap();
}

#[test]
fn a_removal_that_failed_leaves_a_branch_to_work_in() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    workspace.remove_branch("b", true).unwrap_err();
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    assert_eq!(workspace.find_ready_branch("b").unwrap().state, BranchState::Ready);
    write(&branch.path.join("work"), "new");
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
    assert!(branch.path.join("work").exists());
    assert_eq!(own.snapshots(&SnapshotFilter::default()).unwrap().len(), 1, "its history is there as well");
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[test]
fn a_branch_that_was_moved_behind_a_symlink_is_not_removed() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    let moved = lab.top.join("moved");
    fs::rename(&branch.path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &branch.path).unwrap();
    let error = workspace.remove_branch("b", false).unwrap_err();
    assert!(error.message.contains(branch.path.to_str().unwrap()), "{error:?}");
    assert!(moved.join("a").exists() && branch.path.is_symlink());
    assert_eq!(workspace.find_ready_branch("b").unwrap().id, branch.id);
}

#[test]
fn gc_finishes_a_removal_only_if_nobody_worked_there_since() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    killed(&lab, &branch, "removing");
    write(&branch.path.join("work"), "new");
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty() && report.actions.len() == 1, "{report:?}");
    assert!(branch.path.join("work").exists());
    assert_eq!(workspace.find_branch("b").unwrap().state, BranchState::Ready);

    // What the killed process took away itself is nothing to lose.
    fs::remove_file(branch.path.join("work")).unwrap();
    fs::remove_file(branch.path.join("a")).unwrap();
    killed(&lab, &branch, "removing");
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty() && report.actions.len() == 1, "{report:?}");
    assert!(!branch.path.exists() && !record(&lab, &branch).exists());
}

#[test]
fn one_that_is_not_where_it_was_made_keeps_its_history() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions { at: Some(lab.top.join("beside")), ..named("b") }).unwrap();
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    own.snapshot(&SnapshotOptions::default()).unwrap();
    let (folder, moved) = (lab.settings.home.join("workspaces").join(own.id().as_str()), lab.top.join("moved"));
    fs::rename(&branch.path, &moved).unwrap();
    for noticed in [false, true] {
        if noticed {
            lab.engine().workspace(&moved, Access::Existing).unwrap();
        }
        let error = workspace.remove_branch("b", false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{noticed}");
    }
    // Somebody else's things in its place.
    write(&branch.path.join("precious"), "x");
    assert_eq!(workspace.remove_branch("b", false).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(folder.exists());
    workspace.remove_branch("b", true).unwrap();
    assert!(!folder.exists());
    assert!(branch.path.join("precious").exists() && moved.join("a").exists());
}

#[test]
fn exec_takes_only_one_that_is_ready() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    workspace.find_ready_branch("b").unwrap();
    for state in ["making", "removing"] {
        killed(&lab, &branch, state);
        assert_eq!(workspace.find_ready_branch("b").unwrap_err().kind, ErrorKind::FailedPrecondition);
        let _before = workspace.engine().take_notices();
        workspace.branches_looked_at().unwrap();
        let said = workspace.engine().take_notices();
        assert!(said.iter().any(|notice| notice.message.starts_with("the branch b is half ")), "{said:?}");
    }
}

#[test]
fn nothing_of_a_branch_that_was_never_finished_stays_registered() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("b")).unwrap();
    killed(&lab, &branch, "making");
    let file = record(&lab, &branch);
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("workspace").unwrap();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    let report = workspace.gc(&GcOptions::default()).unwrap();
    assert!(report.failures.is_empty(), "{report:?}");
    assert!(!branch.path.exists() && !file.exists());
    assert_eq!(fs::read_dir(lab.settings.home.join("workspaces")).unwrap().count(), 1);
}

#[test]
fn one_that_is_stopped_while_it_is_made_leaves_nothing_and_is_begun_again() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let stop = Stop::default();
    let stopped = Arc::clone(&stop.0);
    lab.settings.observer = Arc::new(stop);
    let then = Arc::clone(&stopped);
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |_| {
        then.store(true, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Cancelled, "cancelled"))
    }));
    let workspace = lab.open();
    assert_eq!(workspace.branch(&named("b")).unwrap_err().kind, ErrorKind::Cancelled);
    stopped.store(false, Ordering::Relaxed);
    *lab.fake.of_clones.lock().unwrap() = None;
    assert!(workspace.branches().unwrap().is_empty());
    assert_eq!(fs::read_dir(lab.settings.home.join("branches")).unwrap().count(), 0);
    workspace.branch(&named("b")).unwrap();
}

#[test]
fn the_name_of_one_whose_maker_has_ended_is_free() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let left = workspace.branch(&named("b")).unwrap();
    // While it is there, a branch has its name, and so does one that is being made.
    let taken = || workspace.branch(&named("b")).unwrap_err().kind;
    assert_eq!(taken(), ErrorKind::AlreadyExists);
    let ready = fs::read_to_string(record(&lab, &left)).unwrap();
    fs::write(record(&lab, &left), ready.replace("\"ready\"", "\"making\"")).unwrap();
    assert_eq!(taken(), ErrorKind::AlreadyExists);
    killed(&lab, &left, "making");
    let made = workspace.branch(&named("b")).unwrap();
    assert!(made.id != left.id && !record(&lab, &left).exists());
    assert_eq!(workspace.branches().unwrap().len(), 1);
}

#[test]
fn what_was_taken_for_one_whose_maker_was_killed_goes_with_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let count = || workspace.snapshots(&SnapshotFilter::default()).unwrap().len();
    for (grew, left) in [(false, 1), (true, 2)] {
        let branch = workspace.branch(&named("b")).unwrap();
        killed(&lab, &branch, "making");
        if !grew {
            // Its maker did not come to write down that it is there.
            let timeline = fs::read_to_string(lab.timeline_file()).unwrap();
            let (before, last) = timeline.trim_end().rsplit_once('\n').unwrap();
            assert!(last.contains("\"branch\""), "{last}");
            lab.unwrite(format!("{before}\n"));
        }
        let report = workspace.gc(&GcOptions::default()).unwrap();
        assert!(report.failures.is_empty() && !branch.path.exists(), "{report:?}");
        assert_eq!(count(), left, "{grew}");
    }
}

#[test]
fn one_that_fails_leaves_no_snapshot_and_none_is_counted() {
    let lab = Lab::new();
    let taken = lab.step("a", "1");
    let workspace = lab.open();
    let count = || workspace.snapshots(&SnapshotFilter::default()).unwrap().len();
    fs::create_dir(lab.top.join("there")).unwrap();
    for at in ["there", "ws/inside", "none/there"] {
        let options = BranchOptions { at: Some(lab.top.join(at)), ..BranchOptions::default() };
        workspace.branch(&options).unwrap_err();
        assert_eq!(count(), 1, "{at}");
    }
    // One that the provider cannot make.
    let from_now = BranchOptions { at: Some(lab.top.join("new")), ..BranchOptions::default() };
    lab.fake.clones_fail.store(true, Ordering::Relaxed);
    workspace.branch(&from_now).unwrap_err();
    assert_eq!(count(), 1);
    // Nor a row on the timeline, though that keeps what happened; `-n` counts what is shown.
    let rows = |limit| {
        let report = workspace.timeline(&TimelineFilter { limit, ..TimelineFilter::default() }).unwrap();
        (report.events.len(), report.events.iter().filter(|event| !report.came_to_nothing(event)).count())
    };
    assert_eq!((rows(None), rows(Some(1))), ((3, 1), (3, 1)));
    lab.fake.clones_fail.store(false, Ordering::Relaxed);
    workspace.branch(&from_now).unwrap();
    assert_eq!((count(), workspace.resolve("@").unwrap().id), (2, taken.id));
}

#[test]
fn what_it_grew_from_goes_only_with_it_or_by_force() {
    let lab = Lab::new();
    (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
    let workspace = lab.open();
    let grow = |from: &str| {
        let options = BranchOptions {
            from: Some(from.into()),
            name: Some(format!("b{}", from.len())),
            ..BranchOptions::default()
        };
        workspace.branch(&options).unwrap()
    };
    let (first, second) = (grow("@"), grow("@{1}"));
    let names = ["@".to_owned(), "@{2}".to_owned()];
    let error = workspace.rm(&names, &RmOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.message.contains(&first.name), "{error:?}");
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 3, "nothing was removed");
    let with = RmOptions { branches: vec![first.id], ..RmOptions::default() };
    workspace.rm(&["@".into()], &with).unwrap();
    workspace.rm(&[second.snapshot.to_string()], &RmOptions { force: true, ..RmOptions::default() }).unwrap();
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
}

#[test]
fn one_whose_directory_is_gone_is_told_of() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&named("fix")).unwrap();
    assert_eq!(workspace.branches_looked_at().unwrap().len(), 1);
    assert!(workspace.engine().take_notices().is_empty());
    fs::remove_dir_all(&branch.path).unwrap();
    assert_eq!(workspace.branches_looked_at().unwrap().len(), 1, "its history is there");
    let notices = workspace.engine().take_notices();
    assert!(notices.len() == 1 && notices[0].message.contains("not at"), "{notices:?}");
    workspace.remove_branch("fix", true).unwrap();
    assert!(workspace.branches_looked_at().unwrap().is_empty());
}
