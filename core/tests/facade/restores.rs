//! What is written down of restores, and what other processes make of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::lab::{Lab, Stop, kinds};
use ah_core::{
    Background, BranchOptions, ErrorKind, Event, EventBody, GcOptions, NoticeKind, Observer, RelPath, RestoreOptions,
    RmOptions, SessionName, SnapshotFilter, SnapshotKind, SnapshotOptions, TimelineFilter, UndoOptions,
};
use rustix::fs::{FlockOperation, flock};

const AUTO: GcOptions = GcOptions { auto: true };

/// A workspace with a restore that came to its end and may not be on disk yet; its journal.
pub(crate) fn restored(lab: &Lab) -> PathBuf {
    lab.step("a", "one");
    lab.step("a", "second");
    let report = lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    lab.folder().join(format!("restoring/{}.json", report.restore.unwrap()))
}

fn text(lab: &Lab) -> String {
    fs::read_to_string(lab.path().join("a")).unwrap()
}

fn everything() -> RestoreOptions {
    RestoreOptions { paths: vec![RelPath::root()], ..RestoreOptions::default() }
}

/// As if the machine had restarted since.
pub(crate) fn reboot(journal: &PathBuf) {
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(journal).unwrap()).unwrap();
    assert!(!value["boot"].as_str().unwrap().is_empty());
    value["boot"] = "another".into();
    fs::write(journal, serde_json::to_vec(&value).unwrap()).unwrap();
}

fn notices(lab: &Lab) -> Vec<NoticeKind> {
    let workspace = lab.open();
    kinds(&workspace.engine().take_notices())
}

#[test]
fn the_background_puts_it_on_disk() {
    let lab = Lab::new();
    let journal = restored(&lab);
    assert!(journal.exists());
    assert!(lab.open().interrupted().unwrap().is_none() && notices(&lab).is_empty());
    lab.open().gc(&AUTO).unwrap();
    assert!(!journal.exists());
    assert!(lab.folder().join("sessions/main/restores").join(journal.file_name().unwrap()).exists());
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second");
}

/// A file that nobody can change, until it is dropped.
pub(crate) struct Held(fs::File);

impl Held {
    pub(crate) fn new(path: PathBuf) -> Self {
        let file = fs::File::open(path).unwrap();
        rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).unwrap();
        Self(file)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty()).unwrap();
    }
}

#[test]
fn an_undo_leaves_what_the_restore_could_not_change() {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
    if !root {
        return eprintln!("skipped: needs root");
    }
    let lab = Lab::new();
    let text = |name: &str| fs::read_to_string(lab.path().join(name)).unwrap();
    let ends = || {
        let events = lab.open().timeline(&TimelineFilter::default()).unwrap().events;
        let end = |event: &Event| match &event.body {
            EventBody::RestoreEnd(end) => Some((end.outcome.clone(), end.left)),
            _ => None,
        };
        events.iter().filter_map(end).collect::<Vec<_>>()
    };
    for name in ["a", "held", "other"] {
        lab.write(name, "old");
    }
    let target = lab.step("gone", "old");
    for name in ["a", "held", "other"] {
        lab.write(name, "newer");
    }
    let held = Held::new(lab.path().join("held"));
    let report = lab.open().restore(target.id.as_str(), &RestoreOptions::default()).unwrap();
    assert_eq!(report.failed.iter().map(|left| left.path.to_string()).collect::<Vec<_>>(), ["held"]);
    // Nothing is done by one that cannot do anything.
    let again = RestoreOptions { paths: vec![RelPath::new("held").unwrap()], ..RestoreOptions::default() };
    assert_eq!(lab.open().restore(target.id.as_str(), &again).unwrap().changes, []);
    assert_eq!(ends(), [("partial".to_owned(), 1), ("failed".to_owned(), 1)]);
    drop(held);
    lab.write("held", "newest");
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(["a", "held", "other"].map(text), ["newer", "newest", "newer"]);
}

#[test]
fn before_that_it_can_be_undone_as_well() {
    let lab = Lab::new();
    restored(&lab);
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second");
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "one");
    // Nothing is needed that a person may want to remove.
    lab.open().rm(&["@{1}".into()], &RmOptions::default()).unwrap();
    lab.open().gc(&AUTO).unwrap();
    assert_eq!(fs::read_dir(lab.folder().join("restoring")).unwrap().count(), 0);
}

#[test]
fn what_it_goes_back_to_is_removed_only_when_it_is_on_disk() {
    let mut lab = Lab::new();
    let journal = restored(&lab);
    let safety = |lab: &Lab| {
        let safeties = SnapshotFilter { kinds: vec![SnapshotKind::Safety], ..SnapshotFilter::default() };
        let snapshots = lab.open().snapshots(&safeties).unwrap();
        snapshots.first().map(|snapshot| snapshot.id.to_string())
    };
    let names = [safety(&lab).unwrap()];
    // Somebody restores: it cannot be said of this one that it is on disk.
    lab.settings.patience = std::time::Duration::ZERO;
    let restoring = fs::File::create(lab.folder().join("restore.lock")).unwrap();
    flock(&restoring, FlockOperation::LockExclusive).unwrap();
    let refused = lab.open().rm(&names, &RmOptions::default()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    drop(restoring);
    assert!(journal.exists() && safety(&lab).is_some());
    lab.open().rm(&names, &RmOptions::default()).unwrap();
    // A restart of the machine would not leave a restore that nobody can take back.
    assert!(!journal.exists() && safety(&lab).is_none());
}

#[test]
fn after_a_restart_of_the_machine_it_counts_as_interrupted() {
    let lab = Lab::new();
    let journal = restored(&lab);
    reboot(&journal);
    assert_eq!(notices(&lab), [NoticeKind::InterruptedRestore]);
    assert_eq!(lab.open().gc(&AUTO).unwrap().failures, [""; 0]);
    assert!(journal.exists(), "a person decides");
    assert_eq!(lab.open().rm(&["@{1}".into()], &RmOptions::default()).unwrap_err().kind, ErrorKind::FailedPrecondition);
    // The disk lost what was in the file.
    lab.write("a", "");
    let report = lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    assert_eq!((text(&lab).as_str(), report.changes.len()), ("one", 1));
    assert!(notices(&lab).is_empty() && !journal.exists());
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second", "both parts are taken back");
}

#[test]
fn who_names_the_top_means_everything() {
    let lab = Lab::new();
    let journal = restored(&lab);
    reboot(&journal);
    lab.write("a", "");
    lab.open().restore("@{1}", &everything()).unwrap();
    assert!(notices(&lab).is_empty() && text(&lab) == "one", "it finishes one of everything");
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second");
}

#[test]
fn the_undo_of_exact_times_gives_the_times_back() {
    let lab = Lab::new();
    let touch = |name: &str, secs| {
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs);
        fs::File::open(lab.path().join(name)).unwrap().set_modified(time).unwrap();
    };
    let times = || ["a", "b"].map(|name| fs::metadata(lab.path().join(name)).unwrap().mtime());
    lab.write("b", "one");
    lab.write("a", "one");
    touch("a", 1000);
    touch("b", 1001);
    let target = lab.open().snapshot(&SnapshotOptions::default()).unwrap().id;
    lab.write("b", "second");
    touch("a", 2000);
    touch("b", 2001);
    let exact = RestoreOptions { exact_times: true, ..RestoreOptions::default() };
    lab.open().restore(target.as_str(), &exact).unwrap();
    assert_eq!(times(), [1000, 1001]);
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(times(), [2000, 2001]);
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(times(), [1000, 1001]);
}

#[test]
fn after_a_restart_it_can_be_taken_back_or_found_whole() {
    let lab = Lab::new();
    reboot(&restored(&lab));
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second");
    assert!(notices(&lab).is_empty());

    let lab = Lab::new();
    reboot(&restored(&lab));
    lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    assert!(notices(&lab).is_empty(), "nothing was missing");
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "second");
}

#[test]
fn an_undo_says_how_much_came_since_what_it_takes_back() {
    let lab = Lab::new();
    let journal = restored(&lab);
    let said = |dry_run| {
        let report = lab.open().undo(&UndoOptions { dry_run, ..UndoOptions::default() }).unwrap();
        report.notes.into_iter().filter(|note| note.starts_with("this takes back")).collect::<Vec<_>>()
    };
    lab.wait(3 * 86_400);
    assert!(!said(true)[0].contains("ago"), "{:?}: it is the last thing that happened", said(true));
    lab.step("b", "1");
    assert!(said(true)[0].ends_with(", 3 days ago; 1 snapshot came since"), "{:?}", said(true));
    lab.step("b", "2");
    let then = said(true);
    assert!(then.len() == 1 && then[0].ends_with(", 3 days ago; 2 snapshots came since"), "{then:?}");
    // Interrupted, it is the same.
    reboot(&journal);
    assert_eq!(said(true), then);
    assert_eq!(said(false), then);
    // The restores' own do not count.
    assert!(!said(false)[0].contains("ago"));
}

#[test]
fn an_interrupted_one_comes_first_whatever_the_session() {
    let mut lab = Lab::new();
    lab.settings.agent_session = Some(SessionName::new("a").unwrap());
    restored(&lab);
    lab.open().gc(&AUTO).unwrap();
    lab.settings.agent_session = None;
    lab.step("a", "third one");
    let half = lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    reboot(&lab.folder().join(format!("restoring/{}.json", half.restore.unwrap())));
    lab.settings.agent_session = Some(SessionName::new("a").unwrap());
    let undone = lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(undone.target.id, half.safety.unwrap().id);
    assert_eq!(text(&lab), "third one");
}

#[test]
fn one_that_runs_is_not_interrupted_and_keeps_its_snapshots() {
    let lab = Lab::new();
    let journal = restored(&lab);
    reboot(&journal);
    let lock = fs::File::open(lab.folder().join("restore.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let temp = journal.with_file_name(format!(".x.json.tmp-{}-0", std::process::id()));
    fs::write(&temp, "").unwrap();
    assert!(notices(&lab).is_empty());
    for reference in ["@{1}", lab.open().snapshots(&SnapshotFilter::default()).unwrap()[2].id.as_str()] {
        let error = lab.open().rm(&[reference.into()], &RmOptions::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    }
    assert!(temp.exists() && journal.exists(), "who only looks removes nothing");
}

#[test]
fn looking_keeps_nobody_from_restoring() {
    let lab = Lab::new();
    reboot(&restored(&lab));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..200).for_each(|_| drop(lab.engine().status(&lab.path()).unwrap())));
        }
        for round in 0..20 {
            lab.open().restore(["@", "@{1}"][round % 2], &RestoreOptions::default()).unwrap();
        }
    });
}

#[test]
fn a_damaged_record_blocks_nothing() {
    let lab = Lab::new();
    let journal = restored(&lab);
    fs::write(&journal, "{").unwrap();
    assert_eq!(notices(&lab), [NoticeKind::InterruptedRestore]);
    lab.step("a", "more");
    // Nobody knows what it needs.
    assert_eq!(lab.open().rm(&["@".into()], &RmOptions::default()).unwrap_err().kind, ErrorKind::DataLoss);
    let report = lab.open().restore("@{1}", &RestoreOptions::default()).unwrap();
    assert_eq!(report.notes.len(), 1, "{report:?}");
    assert!(journal.with_extension("damaged").exists() && !journal.exists());
    assert!(notices(&lab).is_empty());
    lab.open().rm(&["@".into()], &RmOptions::default()).unwrap();
}

#[test]
fn what_cannot_be_cleared_keeps_nobody_from_restoring() {
    let lab = Lab::new();
    let journal = restored(&lab);
    lab.open().gc(&AUTO).unwrap();
    let ended = lab.folder().join("sessions/main/restores").join(journal.file_name().unwrap());
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&ended).unwrap()).unwrap();
    value["provider"] = "gone".into();
    fs::write(&ended, serde_json::to_vec(&value).unwrap()).unwrap();
    let folder = format!(".ah-restore-{}", journal.file_stem().unwrap().to_str().unwrap());
    fs::create_dir(lab.path().join(&folder)).unwrap();
    let report = lab.open().restore("@", &RestoreOptions::default()).unwrap();
    assert!(report.notes.iter().any(|note| note.contains(&folder)), "{report:?}");
    assert_eq!(text(&lab), "second");
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(report.failures.iter().any(|failure| failure.contains(&folder)), "{report:?}");
}

#[test]
fn instant_snapshots_do_not_wait_for_a_gc_at_work() {
    let lab = Lab::new();
    lab.step("a", "1");
    let lock = fs::File::create(lab.folder().join("gc.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let auto = SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() };
    lab.open().snapshot(&auto).unwrap();
    let marks = || fs::read_dir(lab.folder().join("unsynced")).unwrap().count();
    assert_eq!(marks(), 1);
    lab.open().gc(&AUTO).unwrap();
    assert_eq!(marks(), 0);
}

#[test]
fn the_next_command_starts_what_the_background_left() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let auto = SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() };
    lab.open().snapshot(&auto).unwrap();
    let (trace, lock) = (lab.top.join("started"), lab.folder().join("sync.lock"));
    lab.settings.background = Some(Background {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), format!("echo >{}", trace.display()).into()],
        env: Vec::new(),
    });
    let started = || {
        lab.open();
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            trace.exists()
        })
    };
    assert!(started());
    // Another one is at it.
    fs::remove_file(&trace).unwrap();
    let lock = fs::File::create(lock).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!started());
}

#[test]
fn the_background_does_not_hold_a_branch_that_a_command_was_run_in() {
    let mut lab = Lab::new();
    lab.step("a", "one");
    let branch = lab.open().branch(&BranchOptions::default()).unwrap();
    lab.open().hold_branch(&branch).unwrap();
    lab.write("a", "two");
    let (trace, whole) = (lab.top.join("open"), lab.top.join("whole"));
    let line = format!("readlink /proc/$$/fd/* >{0}; mv {0} {1}", trace.display(), whole.display());
    lab.settings.background =
        Some(Background { program: "/bin/sh".into(), args: vec!["-c".into(), line.into()], env: Vec::new() });
    lab.open().restore("@", &RestoreOptions::default()).unwrap();
    for _ in 0..3000 {
        if whole.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let open = fs::read_to_string(&whole).unwrap();
    assert!(open.contains("/dev/null") && !open.contains(".lock"), "{open}");
}

#[test]
fn what_cannot_be_read_back_is_not_destroyed() {
    let lab = Lab::new();
    lab.step("a", "one");
    lab.write("extra", "the only good copy");
    lab.fake.reads_fail.store(true, Ordering::Relaxed);
    let error = lab.open().restore("@", &RestoreOptions::default()).unwrap_err();
    assert_eq!((error.kind, lab.path().join("extra").exists()), (ErrorKind::Conflict, true));
    assert!(error.causes[0].starts_with("extra: "), "{error:?}");
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
    let dry = lab.open().restore("@", &RestoreOptions { dry_run: true, ..RestoreOptions::default() }).unwrap();
    assert_eq!(dry.conflicts.len(), 1);
    let forced = lab.open().restore("@", &RestoreOptions { force: true, ..RestoreOptions::default() }).unwrap();
    assert!(!lab.path().join("extra").exists() && forced.overwritten.len() == 1, "{forced:?}");
}

#[test]
fn an_interrupted_one_does_not_come_before_a_later_one() {
    let lab = Lab::new();
    lab.write("b", "b one");
    let journal = restored(&lab);
    reboot(&journal);
    lab.write("b", "b edited");
    let named = RestoreOptions { paths: vec![RelPath::new("b").unwrap()], ..RestoreOptions::default() };
    let later = lab.open().restore("@{1}", &named).unwrap();
    lab.write("a", "work since the interruption");
    let workspace = lab.open();
    let notice = workspace.engine().take_notices().remove(0);
    assert!(!notice.hint.unwrap().contains("undo"), "that takes back the later one");
    let undone = workspace.undo(&UndoOptions::default()).unwrap();
    assert_eq!(undone.target.id, later.safety.unwrap().id);
    assert_eq!(text(&lab), "work since the interruption");
    assert_eq!(fs::read_to_string(lab.path().join("b")).unwrap(), "b edited");
    assert!(workspace.interrupted().unwrap().is_some(), "a person decides");
}

#[test]
fn one_whose_plan_cannot_be_written_says_that_nothing_was_changed() {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
    if !root {
        return eprintln!("skipped: needs root");
    }
    let lab = Lab::new();
    let journal = restored(&lab);
    lab.write("a", "third");
    let held = Held::new(journal.parent().unwrap().to_owned());
    let error = lab.open().restore("@{1}", &RestoreOptions::default()).unwrap_err();
    drop(held);
    assert!(error.message.ends_with("before it changed anything"), "{error:?}");
    assert_eq!(text(&lab), "third");
}

/// A snapshot that is only not on the timeline is not gone.
#[test]
fn a_damaged_line_does_not_cost_the_undo() {
    let lab = Lab::new();
    lab.step("a", "old");
    lab.write("a", "new");
    lab.open().restore("@", &RestoreOptions::default()).unwrap();
    let lines = fs::read_to_string(lab.timeline_file()).unwrap();
    let damaged = |line: &str| match line.contains("\"kind\":\"safety\"") {
        true => line.replace("\"seq\"", "\"seQ\""),
        false => line.to_owned(),
    };
    let damaged: Vec<String> = lines.lines().map(damaged).collect();
    assert_eq!(lines.lines().zip(&damaged).filter(|(was, is)| was != is).count(), 1, "{lines}");
    fs::write(lab.timeline_file(), damaged.join("\n") + "\n").unwrap();
    let refused = lab.open().undo(&UndoOptions::default()).unwrap_err();
    assert!(refused.message.ends_with("is not on the timeline") && refused.hint.unwrap().contains("gc"));
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(report.actions.iter().any(|action| action.starts_with("listed ")), "{report:?}");
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(&lab), "new");
}

#[test]
fn a_path_that_nobody_knows_is_not_passed_over_beside_one_that_somebody_does() {
    let lab = Lab::new();
    lab.step("a", "one");
    lab.step("a", "second");
    let options =
        RestoreOptions { paths: vec![RelPath::new("a").unwrap(), RelPath::new("aa").unwrap()], ..Default::default() };
    let error = lab.open().restore("@{1}", &options).unwrap_err();
    assert!(error.kind == ErrorKind::NotFound && error.to_string().contains("aa is neither"), "{error}");
    assert_eq!(text(&lab), "second");
}

#[test]
fn an_undo_whose_snapshot_somebody_removed_is_not_told_to_look_for_it() {
    let lab = Lab::new();
    restored(&lab);
    lab.open().gc(&AUTO).unwrap();
    let safeties = SnapshotFilter { kinds: vec![SnapshotKind::Safety], ..SnapshotFilter::default() };
    let safety = lab.open().snapshots(&safeties).unwrap()[0].id.to_string();
    lab.open().rm(&[safety], &RmOptions::default()).unwrap();
    let error = lab.open().undo(&UndoOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::NotFound && error.to_string().contains("was removed"), "{error}");
}

/// `undo` takes it back then, and does not finish it.
#[test]
fn an_interrupted_undo_of_what_nobody_knows_is_finished_by_a_restore() {
    for (loss, finishes) in [("gone", true), ("damaged", true), ("gone", false)] {
        let lab = Lab::new();
        lab.write("b", "b one");
        let journal = restored(&lab);
        lab.write("b", "b edited");
        lab.open().gc(&AUTO).unwrap();
        let undone = lab.open().undo(&UndoOptions::default()).unwrap();
        reboot(&lab.folder().join(format!("restoring/{}.json", undone.restore.unwrap())));
        let known = lab.folder().join("sessions/main/restores").join(journal.file_name().unwrap());
        assert_eq!(lab.open().interrupted().unwrap().unwrap().finish, "ah agent fs undo");
        match loss {
            "gone" => fs::remove_file(known).unwrap(),
            _ => fs::write(known, "{").unwrap(),
        }
        let interrupted = lab.open().interrupted().unwrap().unwrap();
        let file = lab.path().join("a");
        let finish = format!("ah agent fs restore {} -- {}", interrupted.target, file.display());
        assert_eq!((interrupted.finish, interrupted.back.as_str()), (finish, "ah agent fs undo"), "{loss}");
        if finishes {
            lab.write("a", "half");
            let paths = vec![RelPath::new("a").unwrap()];
            let options = RestoreOptions { paths, ..RestoreOptions::default() };
            lab.open().restore(interrupted.target.as_str(), &options).unwrap();
            assert_eq!(text(&lab), "second", "{loss}");
        } else {
            lab.open().undo(&UndoOptions::default()).unwrap();
            assert_eq!(text(&lab), "one", "{loss}");
        }
        assert_eq!(fs::read_to_string(lab.path().join("b")).unwrap(), "b edited");
        assert!(lab.open().interrupted().unwrap().is_none(), "{loss}");
    }
}

/// Stops what runs from the time on when it has looked so often whether it is to stop.
struct StopsAt(AtomicUsize);

impl Observer for StopsAt {
    fn cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |looks| looks.checked_sub(1)).is_err()
    }
}

#[test]
fn who_stops_a_restore_anywhere_hears_nothing_of_a_snapshot_that_cannot_be_read() {
    let stopped = (0..1000).take_while(|looks| {
        let mut lab = Lab::new();
        let target = lab.step("a", "1").id;
        lab.write("a", "2");
        lab.settings.observer = Arc::new(StopsAt(AtomicUsize::new(*looks)));
        let restored = lab.open().restore(target.as_str(), &RestoreOptions::default());
        let told = restored.as_ref().err().map(|error| format!("{error:?}"));
        assert!(!told.is_some_and(|told| told.contains("cannot read")), "{looks}: {restored:?}");
        restored.is_err()
    });
    assert!((5..1000).contains(&stopped.count()));
}

#[test]
fn a_restore_that_comes_to_nothing_leaves_no_snapshot_of_it() {
    type Fault = fn(&Lab, &Arc<AtomicBool>);
    let stops: Fault = |lab, stop| {
        let stop = Arc::clone(stop);
        *lab.fake.on_diff.lock().unwrap() = Some(Box::new(move || stop.store(true, Ordering::Relaxed)));
    };
    let fails: Fault = |lab, _| {
        lab.fake.no_mounts.store(true, Ordering::Relaxed);
    };
    for (fault, kind) in [(stops, ErrorKind::Cancelled), (fails, ErrorKind::Unavailable)] {
        let mut lab = Lab::new();
        let target = lab.step("a", "1").id;
        lab.write("a", "2");
        let stop = Stop::default();
        let stopped = Arc::clone(&stop.0);
        lab.settings.observer = Arc::new(stop);
        fault(&lab, &stopped);
        let error = lab.open().restore(target.as_str(), &RestoreOptions::default()).unwrap_err();
        assert_eq!(error.kind, kind, "{error:?}");
        stopped.store(false, Ordering::Relaxed);
        lab.fake.no_mounts.store(false, Ordering::Relaxed);
        let report = lab.open().gc(&GcOptions::default()).unwrap();
        assert!(report.actions.is_empty() && report.failures.is_empty(), "{report:?}");
        assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), 1);
    }
}
