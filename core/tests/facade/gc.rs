use crate::lab::Lab;
use crate::prune::{auto, behind, by, ids};
use ah_core::{
    Access, BranchOptions, Durability, Error, ErrorKind, GcOptions, PruneOptions, RestoreOptions, RmOptions,
    SnapshotFilter, SnapshotOptions, UndoOptions,
};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

fn gc(lab: &Lab) -> ah_core::GcReport {
    lab.open().gc(&GcOptions::default()).unwrap()
}

#[test]
fn a_snapshot_whose_line_was_never_written_is_listed_again() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let before = fs::read(lab.timeline_file()).unwrap();
    let second = lab.step("a", "2");
    lab.unwrite(before);
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap(), std::slice::from_ref(&first));
    let report = gc(&lab);
    assert_eq!(report.actions.len(), 1, "{report:?}");
    let listed = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!((&listed[1].id, listed[1].time, listed[1].kind), (&second.id, second.time, second.kind));
    assert!(gc(&lab).actions.is_empty());
}

#[test]
fn one_that_is_listed_again_does_not_become_the_newest() {
    for set_back in [0, -7_200] {
        let lab = Lab::new();
        let first = lab.step("a", "1");
        let before = fs::read(lab.timeline_file()).unwrap();
        let second = lab.step("a", "2");
        lab.unwrite(before);
        lab.wait(set_back);
        let third = lab.step("a", "3");
        assert_eq!(gc(&lab).actions.len(), 1);
        let means = |text: &str| lab.open().resolve(text).unwrap().id;
        assert_eq!((means("@"), means("@{1}"), means("@{2}")), (third.id.clone(), second.id, first.id));
        assert_eq!(lab.engine().status(&lab.path()).unwrap().latest.unwrap().id, third.id);
        let policy = PruneOptions { policy: Some("keep-last=1".to_owned()), ..PruneOptions::default() };
        lab.open().prune(&policy, &mut |_| Ok(())).unwrap();
        let left = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
        assert_eq!(left.iter().map(|snapshot| &snapshot.id).collect::<Vec<_>>(), [&third.id]);
    }
}

#[test]
fn one_that_cannot_be_made_durable_keeps_no_other_from_it() {
    let lab = Lab::new();
    let instant = SnapshotOptions { durability: Some(Durability::Instant), ..SnapshotOptions::default() };
    let take = |text: &str| {
        lab.write("a", text);
        lab.open().snapshot(&instant).unwrap()
    };
    let (first, _, _) = (take("1"), take("2"), take("3"));
    let marks = || fs::read_dir(lab.folder().join("unsynced")).unwrap().count();
    assert_eq!(marks(), 3);
    *lab.fake.unsyncable.lock().unwrap() = Some(first.reference);
    for auto in [true, false] {
        let report = lab.open().gc(&GcOptions { auto }).unwrap();
        assert!(report.failures.iter().any(|failure| failure.contains("made to fail")), "{report:?}");
        assert_eq!((marks(), lab.fake.syncs.load(Ordering::Relaxed)), (1, 2), "{report:?}");
    }
    *lab.fake.unsyncable.lock().unwrap() = None;
    assert!(gc(&lab).failures.is_empty() && marks() == 0);
}

#[test]
fn a_removal_that_was_cut_short_is_finished() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    // The provider's copy is brought back by hand: a store that shows it again is what a kill before `destroy` leaves.
    let removed = workspace.resolve("@").unwrap();
    let before = fs::read(lab.timeline_file()).unwrap();
    workspace.rm(&["@".into()], &RmOptions::default()).unwrap();
    let after = fs::read(lab.timeline_file()).unwrap();
    assert!(after.starts_with(&before) && after.len() > before.len());
    assert!(gc(&lab).actions.is_empty());
    // Off the provider, on the timeline: reported, and rm takes it off.
    lab.unwrite(&before);
    let report = gc(&lab);
    assert!(report.failures.iter().any(|failure| failure.contains(removed.id.as_str())), "{report:?}");
    lab.open().rm(&["@".into()], &RmOptions::default()).unwrap();
    assert!(gc(&lab).failures.is_empty());
}

#[test]
fn what_a_killed_removal_left_goes_behind_within_an_hour() {
    let lab = Lab::new();
    let taken = lab.step("a", "1");
    lab.step("a", "2");
    behind(&lab);
    // Off the timeline, and its provider has it still.
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    lab.open().rm(&["@{1}".into()], &RmOptions::default()).unwrap_err();
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    lab.wait(3_000);
    assert_eq!(behind(&lab), [""; 0], "stores are not looked through each time");
    lab.wait(600);
    let actions = behind(&lab);
    assert!(actions.len() == 1 && actions[0].contains(taken.id.as_str()), "{actions:?}");
    assert!(gc(&lab).actions.is_empty());
}

#[test]
fn a_step_that_fails_behind_a_snapshot_keeps_no_other_from_being_done() {
    let mut lab = Lab::new();
    lab.settings.environment.insert("prune.recordings".into(), "keep-last=0".into());
    lab.settings.environment.insert("prune.max-size".into(), "1B".into());
    (0..3).for_each(|_| drop(auto(&lab, 60)));
    behind(&lab);
    let record = || {
        let (recording, mut file) = lab.open().begin_recording().unwrap();
        std::io::Write::write_all(&mut file, b"[0.1, \"o\", \"x\"]\n").unwrap();
        recording.path
    };
    let [.., last] = [record(), record(), record()];
    // In the way of what the last one, which stays, is compressed to.
    fs::create_dir(last.with_extension("cast.gz")).unwrap();
    let newest = auto(&lab, 4_000);
    let report = lab.open().gc(&GcOptions { auto: true }).unwrap();
    assert!(matches!(report.failures.as_slice(), [failure] if failure.contains("compress")), "{report:?}");
    let left = lab.open().recordings(&ah_core::SessionName::main()).unwrap();
    assert_eq!(left.into_iter().map(|recording| recording.path).collect::<Vec<_>>(), [last]);
    assert_eq!(ids(&lab), [newest]);
}

#[test]
fn plans_of_restores_go_behind_within_an_hour_of_their_snapshots() {
    let lab = Lab::new();
    (0..2).for_each(|n| drop(lab.step("a", &n.to_string())));
    behind(&lab);
    for n in 0..3 {
        lab.write("a", &format!("edited {n}"));
        lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    }
    let plans = || fs::read_dir(lab.folder().join("sessions/main/restores")).unwrap().count();
    lab.open().prune(&by("keep-last=2"), &mut |_| Ok(())).unwrap();
    assert_eq!((ids(&lab).len(), plans()), (3, 3));
    // Somebody restores: that is not waited for.
    let restoring = fs::File::options().write(true).open(lab.folder().join("restore.lock")).unwrap();
    rustix::fs::flock(&restoring, rustix::fs::FlockOperation::LockExclusive).unwrap();
    lab.wait(4_000);
    assert_eq!((behind(&lab), plans()), (Vec::new(), 3));
    drop(restoring);
    lab.wait(4_000);
    let actions = behind(&lab);
    assert!(matches!(actions.as_slice(), [action] if action.contains("2 plans of restores")), "{actions:?}");
    // What the last one's undo needs is there.
    assert_eq!(plans(), 1);
    lab.open().undo(&UndoOptions::default()).unwrap();
}

#[test]
fn a_last_run_at_no_possible_time_keeps_nothing_from_being_done() {
    let lab = Lab::new();
    lab.step("a", "1");
    for time in [i64::MIN, i64::MAX] {
        fs::write(lab.folder().join("pruned"), format!("{time}\n")).unwrap();
        lab.step("a", &time.to_string());
        assert!(lab.open().gc(&GcOptions { auto: true }).unwrap().failures.is_empty());
        assert_ne!(
            fs::read_to_string(lab.folder().join("pruned")).unwrap(),
            format!("{time}\n"),
            "the next run sets it right"
        );
    }
}

#[test]
fn what_a_removal_by_hand_left_is_told_of_once() {
    let lab = Lab::new();
    lab.step("a", "1");
    for n in 1..=7 {
        fs::create_dir_all(lab.settings.home.join(format!("workspaces/left{n}/providers/fake/depot"))).unwrap();
    }
    let failures = gc(&lab).failures;
    assert!(failures.len() == 1 && failures[0].starts_with("7 workspace folders"), "{failures:?}");
    assert!(failures[0].contains("left1"), "{failures:?}");
}

#[test]
fn a_branch_that_another_machine_is_making_is_left_to_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let settings = lab.settings.clone();
    let root = lab.path();
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |made| {
        // Of its processes nothing is known here, as if it were another run of this machine.
        let records = fs::read_dir(settings.home.join("branches")).unwrap().map(|entry| entry.unwrap().path());
        let record = records.into_iter().find(|path| path.extension().is_some_and(|it| it == "json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        json["maker"]["boot"] = "another".into();
        fs::write(&record, json.to_string()).unwrap();
        let there = ah_core::Engine::open(settings.clone()).unwrap().workspace(&root, Access::Existing).unwrap();
        let report = there.gc(&GcOptions::default()).unwrap();
        assert!(report.actions.is_empty() && report.failures.is_empty(), "{report:?}");
        for force in [false, true] {
            assert_eq!(there.remove_branch("slow", force).unwrap_err().kind, ErrorKind::Busy);
        }
        Ok(made)
    }));
    let options = BranchOptions { from: Some("@".into()), name: Some("slow".into()), ..BranchOptions::default() };
    let branch = lab.open().branch(&options).unwrap();
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "1");
    lab.open().remove_branch("slow", false).unwrap();
    // Nor does one that fails leave anything behind.
    let locks = || {
        fs::read_dir(lab.folder())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("branch-"))
    };
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(|_| Err(Error::new(ErrorKind::Busy, "made to fail"))));
    lab.open().branch(&options).unwrap_err();
    assert_eq!(locks().count(), 0);
}

#[test]
fn an_unfinished_branch_that_cannot_be_looked_at_keeps_no_other_from_being_finished() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (around, aside) = (lab.top.join("around"), lab.top.join("aside"));
    fs::create_dir(&around).unwrap();
    let branch = |name: &str, at: Option<PathBuf>| {
        lab.wait(1);
        let options = BranchOptions { from: Some("@".into()), name: Some(name.into()), at, ..BranchOptions::default() };
        let branch = lab.open().branch(&options).unwrap();
        let record = lab.settings.home.join(format!("branches/{}.json", branch.id));
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        // Its maker was killed, in another run of the machine.
        (json["state"], json["maker"]["boot"]) = ("making".into(), "another".into());
        fs::write(&record, json.to_string()).unwrap();
        branch
    };
    let (bad, good) = (branch("bad", Some(around.join("bad"))), branch("good", None));
    fs::rename(&around, &aside).unwrap();
    std::os::unix::fs::symlink("around", &around).unwrap();
    let report = gc(&lab);
    assert!(report.failures.iter().any(|failure| failure.contains("branch bad")), "{report:?}");
    assert!(report.actions.iter().any(|action| action.contains("branch good")), "{report:?}");
    assert!(!good.path.exists() && aside.join("bad").is_dir());
    fs::remove_file(&around).unwrap();
    fs::rename(&aside, &around).unwrap();
    assert!(gc(&lab).actions.iter().any(|action| action.contains("branch bad")));
    assert!(!bad.path.exists());
}

#[test]
fn a_damaged_snapshot_is_not_called_lost() {
    let lab = Lab::new();
    let taken = lab.step("a", "1");
    *lab.fake.damaged.lock().unwrap() = Some(taken.reference.clone());
    let failures = gc(&lab).failures;
    assert_eq!(failures.len(), 1, "{failures:?}");
    let told = |what: &str| failures[0].contains(what);
    assert!(told(taken.id.as_str()) && told("its record is damaged") && told("look at it"), "{failures:?}");
    assert!(!told("agent fs rm"), "nothing is to be given up: {failures:?}");
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
}

#[test]
fn providers_are_asked_to_take_away_the_views_of_dead_processes() {
    let lab = Lab::new();
    lab.step("a", "1");
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let mounts = lab.settings.home.join("mounts");
    let (old, living) = (format!("walk-{dead}-0"), format!("walk-{}-0", std::process::id()));
    fs::create_dir_all(mounts.join(&old)).unwrap();
    fs::create_dir_all(mounts.join(&living)).unwrap();
    let report = gc(&lab);
    assert_eq!(*lab.fake.forgotten.lock().unwrap(), std::slice::from_ref(&old));
    assert!(report.actions.iter().any(|action| action.contains(&old)) && report.failures.is_empty(), "{report:?}");
    assert!(!mounts.join(&old).exists() && mounts.join(&living).exists());
    // Who restores asks no other workspace's: its service may hang.
    lab.fake.forgotten.lock().unwrap().clear();
    fs::create_dir_all(mounts.join(&old)).unwrap();
    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    lab.engine().workspace(&other, Access::Create).unwrap().snapshot(&SnapshotOptions::default()).unwrap();
    lab.open().restore("@", &RestoreOptions::default()).unwrap();
    assert_eq!(lab.fake.forgotten.lock().unwrap().len(), 1);
    gc(&lab);
    assert_eq!(lab.fake.forgotten.lock().unwrap().len(), 3);
}

#[test]
fn files_of_dead_processes_go_and_those_of_living_ones_stay() {
    let lab = Lab::new();
    lab.step("a", "1");
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let home = &lab.settings.home;
    let (old, new) =
        (home.join(format!(".index.json.tmp-{dead}-0")), home.join(format!(".x.tmp-{}-0", std::process::id())));
    fs::write(&old, "").unwrap();
    fs::write(&new, "").unwrap();
    fs::create_dir_all(home.join("trash/thing/deep")).unwrap();
    fs::create_dir_all(home.join("workspaces/neverdone")).unwrap();
    let report = gc(&lab);
    assert!(report.failures.is_empty(), "{report:?}");
    assert!(!old.exists() && new.exists() && !home.join("trash/thing").exists());
    assert!(!home.join("workspaces/neverdone").exists());
    assert!(gc(&lab).actions.is_empty());
}

#[test]
fn workspaces_that_are_not_there_are_named_and_reclaimed_in() {
    let lab = Lab::new();
    lab.step("a", "1");
    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    let gone = lab.engine().workspace(&other, Access::Create).unwrap();
    gone.snapshot(&SnapshotOptions::default()).unwrap();
    let status = || lab.engine().status(&lab.path()).unwrap();
    assert!(status().missing.is_empty() && gc(&lab).missing.is_empty());
    fs::remove_dir_all(&other).unwrap();
    // As where branches were once.
    fs::create_dir(lab.settings.home.join("branches")).unwrap();
    let before = lab.fake.reclaims.load(Ordering::Relaxed);
    let report = gc(&lab);
    assert!(report.failures.is_empty() && lab.open().engine().take_notices().is_empty(), "{report:?}");
    assert_eq!(lab.fake.reclaims.load(Ordering::Relaxed) - before, 4, "two folders in each of two stores");
    assert_eq!((&report.missing[0].id, &report.missing[0].path), (gone.id(), &other));
    assert_eq!(status().missing, report.missing);
    // Its snapshots are all there still.
    fs::create_dir(&other).unwrap();
    lab.engine().workspace(&other, Access::Existing).unwrap().resolve("@").unwrap();
    assert!(gc(&lab).missing.is_empty());
}

#[test]
fn what_is_kept_of_nobody_is_put_away_by_what_is_said_of_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let folder = lab.settings.home.join("workspaces/kkkkkkkkkkkk");
    fs::create_dir_all(folder.join("providers/fs/depot")).unwrap();
    let told = gc(&lab).failures;
    assert!(told.len() == 1 && told[0].contains(&format!("`mv {} ~`", folder.display())), "{told:?}");
    fs::rename(&folder, lab.settings.home.parent().unwrap().join("away")).unwrap();
    assert_eq!(gc(&lab).failures, [""; 0]);
}

#[test]
fn what_frees_a_full_disk_needs_no_new_lock() {
    let lab = Lab::new();
    lab.open();
    for name in ["gc", "orphans", "prune", "restore", "stays", "sync", "timeline"] {
        assert!(lab.folder().join(format!("{name}.lock")).exists(), "{name}");
    }
    for name in ["leases", "views"] {
        assert!(lab.settings.home.join(format!("{name}.lock")).exists(), "{name}");
    }
}
