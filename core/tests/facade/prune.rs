use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, flock};

use crate::lab::Lab;
use ah_core::{
    BranchOptions, EditOptions, Error, ErrorKind, GcOptions, PruneOptions, RestoreOptions, SeekOptions, SnapshotFilter,
    SnapshotKind, SnapshotOptions, TimelineFilter, UndoOptions,
};

pub(crate) fn by(policy: &str) -> PruneOptions {
    PruneOptions { policy: Some(policy.into()), ..PruneOptions::default() }
}

fn prune(lab: &Lab, policy: &str, dry_run: bool) -> Vec<(usize, String)> {
    let options = PruneOptions { dry_run, ..by(policy) };
    let report = lab.open().prune(&options, &mut |_| Ok(())).unwrap();
    let verdicts = report.verdicts.iter().enumerate();
    verdicts.filter(|(_, verdict)| verdict.stays).map(|(at, verdict)| (at, verdict.reason.clone())).collect()
}

pub(crate) fn count(lab: &Lab) -> usize {
    lab.open().snapshots(&SnapshotFilter::default()).unwrap().len()
}

#[test]
fn keeps_what_the_rules_say() {
    let lab = Lab::new();
    (0..6).for_each(|n| drop(lab.step("a", &n.to_string())));
    let stays = |policy: &str| prune(&lab, policy, true).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(stays("keep-last=2"), [4, 5]);
    assert_eq!(stays("keep-within=150s"), [3, 4, 5]);
    assert_eq!(stays("keep-last=1,keep-within=1m"), [4, 5]);
    assert_eq!(stays("keep-hourly=5"), [5]);
    assert_eq!(stays("keep-manual"), [0, 1, 2, 3, 4, 5]);
    // Whatever the rule and the clock say, the newest stays.
    assert_eq!(stays("keep-last=0"), [5]);
    lab.wait(1_000_000_000);
    assert_eq!(stays("keep-within=7d"), [5]);
    assert_eq!(count(&lab), 6, "nothing was removed by looking");
    prune(&lab, "keep-last=2", false);
    assert_eq!(count(&lab), 2);
}

#[test]
fn what_holds_more_than_the_workspace_is_kept_for_a_quarter_of_the_time() {
    let lab = Lab::new();
    (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
    *lab.fake.pins.lock().unwrap() = Some("the subvolume /home".into());
    let (early, late) = (lab.step("a", "3"), lab.step("a", "4"));
    assert_eq!(early.pins.as_deref(), Some("the subvolume /home"));
    *lab.fake.pins.lock().unwrap() = None;
    lab.step("a", "5");
    let stays = |policy: &str| prune(&lab, policy, true).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(stays("keep-within=5m"), [0, 1, 2, 4, 5], "{} is too old, {} is not", early.id, late.id);
    assert_eq!(stays("keep-within=5m,keep-last=3"), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn never_takes_what_is_pinned_or_needed() {
    let lab = Lab::new();
    (0..5).for_each(|n| drop(lab.step("a", &n.to_string())));
    let workspace = lab.open();
    workspace.edit("@{4}", &EditOptions { keep: Some(true), label: None }).unwrap();
    workspace.seek("@{3}", &SeekOptions::default()).unwrap();
    let branch = BranchOptions { from: Some("@{2}".into()), name: Some("b".into()), ..BranchOptions::default() };
    workspace.branch(&branch).unwrap();
    let stays: Vec<usize> = prune(&lab, "keep-last=0", false).into_iter().map(|(at, _)| at).collect();
    assert_eq!(stays, [0, 1, 2, 4]);
    assert_eq!(count(&lab), 4);
    workspace.release(&ah_core::Release::All).unwrap();
}

#[test]
fn undo_of_the_last_restore_stays_possible() {
    let lab = Lab::new();
    (0..3).for_each(|n| drop(lab.step("a", &n.to_string())));
    lab.write("a", "unsaved");
    let workspace = lab.open();
    let report = workspace.restore("@{2}", &RestoreOptions::default()).unwrap();
    assert_eq!(std::fs::read_to_string(lab.path().join("a")).unwrap(), "0");
    // A later one that failed changes nothing about what undo takes back.
    lab.fake.reads_fail.store(true, Ordering::Relaxed);
    lab.write("a", "longer than before");
    workspace.restore("@{1}", &RestoreOptions::default()).unwrap_err();
    lab.fake.reads_fail.store(false, Ordering::Relaxed);
    lab.write("a", "0");
    prune(&lab, "keep-last=0", false);
    let left = workspace.snapshots(&SnapshotFilter::default()).unwrap();
    let left: Vec<_> = left.into_iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(left.len(), 2, "that, and the newest");
    assert!(left.contains(&report.safety.unwrap().id));
    workspace.undo(&UndoOptions::default()).unwrap();
    assert_eq!(std::fs::read_to_string(lab.path().join("a")).unwrap(), "unsaved");
}

#[test]
fn a_size_takes_the_oldest_but_never_the_newest() {
    let lab = Lab::new();
    (0..4).for_each(|n| drop(lab.step("a", &"x".repeat(1000 + n))));
    assert_eq!(prune(&lab, "max-size=1T", false).len(), 4);
    prune(&lab, "max-size=1B", false);
    assert_eq!(count(&lab), 1);
}

#[test]
fn a_policy_is_asked_for_or_configured() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let policy = |lab: &Lab, policy: Option<&str>| {
        let options = PruneOptions { policy: policy.map(str::to_owned), dry_run: true, ..PruneOptions::default() };
        lab.open().prune(&options, &mut |_| Ok(())).map(|report| report.policy)
    };
    assert!(policy(&lab, None).unwrap().contains("keep-manual"), "nobody loses his own to the default");
    assert_eq!(policy(&lab, Some("keep-everything")).unwrap_err().kind, ErrorKind::InvalidArgument);
    lab.settings.environment.insert("prune.policy".into(), "keep-last=3".into());
    assert_eq!(policy(&lab, None).unwrap(), "keep-last=3");
}

#[test]
fn it_is_explained_before_it_is_done() {
    let lab = Lab::new();
    (0..4).for_each(|n| drop(lab.step("a", &"x".repeat(1000 + n))));
    let mut told = Vec::new();
    let mut tell = |report: &ah_core::PruneReport| {
        told.push((report.removed, report.frees, count(&lab)));
        Ok(())
    };
    let done = lab.open().prune(&by("keep-last=1"), &mut tell).unwrap();
    assert_eq!(told.len(), 1);
    let (removed, frees, there) = told[0];
    assert_eq!((removed, there, done.removed, count(&lab)), (3, 4, 3, 1));
    assert!(frees.is_some_and(|bytes| bytes >= 3000) && done.bytes >= frees, "{frees:?} {:?}", done.bytes);
}

#[test]
fn what_was_announced_goes_although_space_cannot_be_given_back_now() {
    let lab = Lab::new();
    (0..4).for_each(|n| drop(lab.step("a", &"x".repeat(1000 + n))));
    lab.fake.reclaims_fail.store(true, Ordering::Relaxed);
    let mut told = 0;
    let outcome = lab.open().prune(&by("max-size=1B"), &mut |report| {
        told = report.removed;
        Ok(())
    });
    assert_eq!((outcome.unwrap_err().kind, told, count(&lab)), (ErrorKind::Unavailable, 3, 1));
}

#[test]
fn sizes_of_each_session() {
    let mut lab = Lab::new();
    for session in ["a", "b"] {
        lab.settings.session = Some(ah_core::SessionName::new(session).unwrap());
        (0..3).for_each(|n| drop(lab.step(session, &format!("{n}").repeat(1000))));
    }
    lab.settings.session = None;
    let stays: Vec<usize> = prune(&lab, "max-size=2500B/session", false).into_iter().map(|(at, _)| at).collect();
    assert!(stays.contains(&5) && stays.iter().any(|at| *at < 3), "{stays:?}");
    assert!(stays.len() < 6 && stays.is_sorted(), "{stays:?}");
}

/// An automatic snapshot, so many seconds later.
pub(crate) fn auto(lab: &Lab, seconds: i64) -> ah_core::SnapshotId {
    lab.wait(seconds);
    lab.write("a", &format!("after {seconds} more"));
    lab.open().snapshot(&automatic()).unwrap().id
}

fn automatic() -> SnapshotOptions {
    SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() }
}

pub(crate) fn behind(lab: &Lab) -> Vec<String> {
    let report = lab.open().gc(&GcOptions { auto: true }).unwrap();
    assert!(report.failures.is_empty(), "{report:?}");
    report.actions
}

pub(crate) fn ids(lab: &Lab) -> Vec<ah_core::SnapshotId> {
    lab.open().snapshots(&SnapshotFilter::default()).unwrap().into_iter().map(|snapshot| snapshot.id).collect()
}

#[test]
fn by_itself_at_most_once_an_hour() {
    let lab = Lab::new();
    let own = lab.step("a", "mine");
    let hour = 3_600 - lab.open().snapshot(&automatic()).unwrap().time.secs.rem_euclid(3_600);
    let first: Vec<_> = [hour, 60, 60].map(|seconds| auto(&lab, seconds)).into();
    behind(&lab);
    assert_eq!(count(&lab), 5, "all of a day stay");
    let late = auto(&lab, 25 * 3_600);
    assert!(behind(&lab).iter().any(|action| action.contains("removed")));
    let left = ids(&lab);
    assert!(left.contains(&own.id) && left.contains(&first[2]) && left.contains(&late), "{left:?}");
    assert!(!left.contains(&first[0]) && !left.contains(&first[1]), "{left:?}");
    // Whatever there is to do, not before an hour has passed.
    lab.wait(14 * 86_400);
    behind(&lab);
    let (a, b) = (auto(&lab, 0), auto(&lab, 60));
    lab.wait(3_000);
    let before = ids(&lab);
    behind(&lab);
    assert_eq!(ids(&lab), before);
    lab.wait(14 * 86_400);
    auto(&lab, 0);
    behind(&lab);
    let left = ids(&lab);
    assert!(left.contains(&own.id) && !left.contains(&a) && !left.contains(&first[2]) && !left.contains(&late));
    assert!(!left.contains(&b), "a later one of its session is there");
}

#[test]
fn stores_take_no_more_than_they_may() {
    let mut lab = Lab::new();
    lab.settings.environment.insert("prune.max-size".into(), "1B".into());
    let own = lab.step("a", "mine");
    (0..3).for_each(|_| drop(auto(&lab, 60)));
    let last = auto(&lab, 4_000);
    behind(&lab);
    assert_eq!(ids(&lab), [own.id, last]);
}

/// An automatic snapshot of a file of so many bytes, a minute later.
fn sized(lab: &Lab, bytes: usize) -> ah_core::SnapshotId {
    lab.wait(60);
    lab.write("a", &"x".repeat(bytes));
    lab.open().snapshot(&automatic()).unwrap().id
}

/// What is behind a snapshot goes on at an hour's distance from what went on before.
fn an_hour_later(lab: &Lab) {
    behind(lab);
    lab.wait(4_000);
    behind(lab);
}

#[test]
fn what_may_not_go_leaves_the_others_half_of_the_room() {
    let mut lab = Lab::new();
    let own = lab.step("a", &"x".repeat(10_000));
    let all: Vec<_> = (0..5).map(|n| sized(&lab, 1_000 + n)).collect();
    lab.settings.environment.insert("prune.max-size".into(), "4100B".into());
    an_hour_later(&lab);
    // 10,000 and the newest's 1,000 stay: with half of 4,100 for the others, two of the four fit.
    assert_eq!(ids(&lab), [&[own.id], &all[2..]].concat());
    behind(&lab);
    lab.wait(4_000);
    behind(&lab);
    assert_eq!(count(&lab), 4, "nor does another hour take more");
}

#[test]
fn a_small_workspace_is_not_emptied_for_a_large_one() {
    let mut lab = Lab::new();
    let small = lab.top.join("small");
    std::fs::create_dir(&small).unwrap();
    let take = |lab: &Lab, text: &str| {
        lab.wait(60);
        std::fs::write(small.join("a"), text).unwrap();
        lab.engine().workspace(&small, ah_core::Access::Create).unwrap().snapshot(&automatic()).unwrap();
    };
    (0..3).for_each(|n| take(&lab, &n.to_string()));
    let all: Vec<_> = (0..5).map(|n| sized(&lab, 100_000 + n)).collect();
    lab.settings.environment.insert("prune.max-size".into(), "350000B".into());
    an_hour_later(&lab);
    assert_eq!(ids(&lab), all[2..]);
    let there = lab.engine().workspace(&small, ah_core::Access::Existing).unwrap();
    assert_eq!(there.snapshots(&SnapshotFilter::default()).unwrap().len(), 3);
}

#[test]
fn what_a_filesystem_keeps_itself_takes_no_room_in_the_stores() {
    let mut fake = crate::lab::Fake::new("fake", Some(50));
    let temp = tempfile::tempdir().unwrap();
    fake.filesystems = [rustix::fs::statfs(temp.path()).unwrap().f_type as u32].into();
    let mut lab = Lab::with(vec![fake.clone()], fake);
    (0..4).for_each(|n| drop(sized(&lab, 1_000 + n)));
    lab.settings.environment.insert("prune.max-size".into(), "1B".into());
    an_hour_later(&lab);
    assert_eq!(count(&lab), 4);
}

#[test]
fn nothing_goes_by_a_policy_as_long_as_something_may_be_pinned_that_does_not_look_so() {
    let mut lab = Lab::new();
    lab.settings.environment.insert("prune.max-size".into(), "1B".into());
    lab.settings.environment.insert("prune.policy".into(), "keep-last=1".into());
    (0..3).for_each(|n| drop(sized(&lab, 1_000 + n)));
    let file = lab.timeline_file();
    let whole = std::fs::read(&file).unwrap();
    // The last line, which is known to have been written.
    sized(&lab, 1_003);
    std::fs::write(&file, [&whole[..], b"not a line\n"].concat()).unwrap();
    an_hour_later(&lab);
    let refused = lab.open().prune(&by("keep-last=1"), &mut |report| panic!("{report:?}")).unwrap_err();
    assert_eq!((refused.kind, count(&lab)), (ErrorKind::FailedPrecondition, 3));
    // What the hint says can be typed.
    let hint = refused.hint.unwrap();
    let command = hint.split_once(": ").unwrap().1;
    assert!(std::process::Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    assert_eq!(std::fs::read(&file).unwrap(), [&whole[..], b"\n"].concat());
    assert_eq!(lab.open().timeline(&TimelineFilter::default()).unwrap().faults, []);
    lab.wait(4_000);
    behind(&lab);
    assert_eq!(count(&lab), 1);
}

/// A hold on the lock of those who are about to need a snapshot.
fn stays(lab: &Lab, operation: FlockOperation) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    let file = options.append(true).create(true).open(lab.folder().join("stays.lock")).unwrap();
    flock(&file, operation).unwrap();
    file
}

#[test]
fn nothing_goes_unasked_while_somebody_is_about_to_need_it() {
    let lab = Lab::new();
    (0..3).for_each(|_| drop(auto(&lab, 60)));
    auto(&lab, 25 * 3_600);
    let held = stays(&lab, FlockOperation::LockShared);
    behind(&lab);
    assert_eq!(count(&lab), 4);
    drop(held);
    lab.wait(3_600);
    behind(&lab);
    assert!(count(&lab) < 4);
}

#[test]
fn a_copy_removes_nothing_of_what_its_original_has() {
    let mut lab = Lab::new();
    (0..3).for_each(|_| drop(auto(&lab, 60)));
    let branch = BranchOptions { from: Some("@".into()), name: Some("b".into()), ..BranchOptions::default() };
    lab.open().branch(&branch).unwrap();
    let lease = lab.open().seek("@", &SeekOptions::default()).unwrap();
    let (original, copy) = (lab.settings.home.clone(), lab.top.join("copy"));
    assert!(std::process::Command::new("cp").arg("-a").args([&original, &copy]).status().unwrap().success());
    // What it came to need since.
    let needed = auto(&lab, 60);
    let pin = EditOptions { keep: Some(true), label: None };
    lab.open().edit(needed.as_str(), &pin).unwrap();
    let all = ids(&lab);
    lab.settings.home.clone_from(&copy);
    auto(&lab, 25 * 3_600);
    lab.wait(14 * 86_400);
    let actions = behind(&lab);
    assert!(!actions.iter().any(|action| action.contains("removed")), "{actions:?}");
    let engine = lab.engine();
    engine.status(&lab.path()).unwrap();
    assert!(engine.take_notices().iter().any(|notice| notice.message.contains("a copy of")));
    let workspace = lab.open();
    let refused = [
        workspace.gc(&GcOptions::default()).map(drop),
        workspace.rm(&["@{1}".into()], &ah_core::RmOptions::default()).map(drop),
        workspace.remove_branch("b", true).map(drop),
        workspace.may_remove_branch("b", true),
        workspace.prune(&by("keep-last=1"), &mut |_| Ok(())).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.message.contains("a copy of") && error.hint.unwrap().contains(original.to_str().unwrap()));
    }
    // Its provider is not even asked for the view, which is the original's.
    *lab.fake.stuck.lock().unwrap() = Some(lease.view.clone());
    assert_eq!(workspace.release(&ah_core::Release::All).unwrap().len(), 1);
    assert!(workspace.leases().unwrap().is_empty());
    *lab.fake.stuck.lock().unwrap() = None;
    let looked = PruneOptions { dry_run: true, ..by("keep-last=1") };
    assert!(workspace.prune(&looked, &mut |_| Ok(())).unwrap().verdicts.iter().any(|verdict| !verdict.stays));
    lab.settings.home.clone_from(&original);
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), all.len());
    lab.open().gc(&GcOptions::default()).unwrap();
    assert!(all.iter().all(|id| ids(&lab).contains(id)));
    // In its place, it does what the original did.
    std::fs::rename(&original, lab.top.join("former")).unwrap();
    lab.settings.home.clone_from(&copy);
    lab.open().gc(&GcOptions::default()).unwrap();
    lab.open().prune(&PruneOptions { dry_run: false, ..looked }, &mut |_| Ok(())).unwrap();
    assert!(!ids(&lab).contains(&all[0]));
}

#[test]
fn nobody_comes_to_need_a_snapshot_while_it_is_decided_what_goes() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    lab.step("a", "2");
    lab.settings.patience = std::time::Duration::ZERO;
    let (workspace, held) = (lab.open(), stays(&lab, FlockOperation::LockExclusive));
    let branch = BranchOptions { from: Some("@".into()), ..BranchOptions::default() };
    let pin = EditOptions { keep: Some(true), label: None };
    let tries: [(&str, Option<Error>); 5] = [
        ("edit", workspace.edit("@", &pin).err()),
        ("seek", workspace.seek("@", &SeekOptions::default()).err()),
        ("branch", workspace.branch(&branch).err()),
        ("restore", workspace.restore("@{1}", &RestoreOptions::default()).err()),
        ("undo", workspace.undo(&UndoOptions::default()).err()),
    ];
    for (what, error) in tries {
        assert_eq!(error.map(|error| error.kind), Some(ErrorKind::Busy), "{what}");
    }
    drop(held);
    workspace.edit("@", &pin).unwrap();
}

#[test]
fn what_is_pinned_while_it_is_asked_what_would_help_stays() {
    let mut lab = Lab::new();
    lab.settings.environment.insert("prune.max-size".into(), "1B".into());
    let own = lab.step("a", "mine");
    let all: Vec<_> = (0..7).map(|_| auto(&lab, 1)).collect();
    let last = auto(&lab, 4_000);
    let (workspace, pinned) = (lab.open(), all[5].clone());
    let pin = EditOptions { keep: Some(true), label: None };
    let then = move || drop(workspace.edit(pinned.as_str(), &pin).unwrap());
    *lab.fake.on_usage.lock().unwrap() = Some(Box::new(then));
    behind(&lab);
    assert_eq!(ids(&lab), [own.id, all[5].clone(), last]);
}

#[test]
fn what_exec_took_for_its_branch_stays_if_somebody_wants_it_by_then() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    for wanted in [false, true] {
        let branch = workspace.branch(&BranchOptions::default()).unwrap();
        if wanted {
            let label = EditOptions { label: Some("good".into()), keep: None };
            workspace.edit(branch.snapshot.as_str(), &label).unwrap();
        }
        workspace.remove_branch_when_done(&branch.name).unwrap();
        assert_eq!(ids(&lab).contains(&branch.snapshot), wanted);
    }
}

#[test]
fn on_a_full_disk_recordings_go_before_snapshots() {
    let mut lab = Lab::new();
    lab.step("a", "mine");
    lab.settings.environment.insert("prune.recordings".into(), "keep-last=1".into());
    let main = ah_core::SessionName::main();
    for _ in 0..3 {
        let (_, mut file) = lab.open().begin_recording().unwrap();
        std::io::Write::write_all(&mut file, b"[0.1, \"o\", \"x\"]\n").unwrap();
    }
    lab.settings.environment.insert("prune.min-free".into(), "100%".into());
    lab.open().snapshot(&automatic()).unwrap_err();
    let left = lab.open().recordings(&main).unwrap();
    assert_eq!(left.iter().map(|it| (it.number, it.compressed)).collect::<Vec<_>>(), [(3, false)]);
}

#[test]
fn on_a_full_disk_captures_pause_and_go_on() {
    let mut lab = Lab::new();
    let own = lab.step("a", "mine");
    let old = auto(&lab, 60);
    auto(&lab, 2 * 3_600);
    let events = |lab: &Lab, part: &str| {
        let report = lab.open().timeline(&TimelineFilter::default()).unwrap();
        report.events.iter().filter(|event| format!("{:?}", event.body).starts_with(part)).count()
    };
    // Nobody has that much free.
    lab.settings.environment.insert("prune.min-free".into(), "100%".into());
    for _ in 0..3 {
        lab.wait(60);
        let error = lab.open().snapshot(&automatic()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
        assert!(error.hint.unwrap().contains("prune.min-free"));
    }
    assert_eq!((events(&lab, "CapturePaused"), events(&lab, "CaptureResumed")), (1, 0));
    assert!(lab.engine().status(&lab.path()).unwrap().paused);
    // What would hardly be noticed does not go; what is a person's own never does, and can still be taken.
    assert!(ids(&lab).contains(&own.id) && ids(&lab).contains(&old));
    lab.step("a", "still mine");
    lab.settings.environment.insert("prune.min-free".into(), "0%".into());
    auto(&lab, 60);
    assert_eq!((events(&lab, "CapturePaused"), events(&lab, "CaptureResumed")), (1, 1));
    assert!(!lab.engine().status(&lab.path()).unwrap().paused);
}

#[test]
fn what_restores_and_branches_took_does_not_push_out_what_somebody_took() {
    let lab = Lab::new();
    (0..2).for_each(|n| drop(lab.step("a", &n.to_string())));
    let workspace = lab.open();
    for n in 0..4 {
        lab.wait(60);
        lab.write("a", &format!("edited {n}"));
        workspace.restore("@", &RestoreOptions::default()).unwrap();
    }
    let branch = workspace.branch(&BranchOptions::default()).unwrap();
    workspace.remove_branch(&branch.name, false).unwrap();
    assert_eq!(count(&lab), 7);
    let stays = |policy: &str| prune(&lab, policy, true).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    // The last restore's undo needs its own.
    assert_eq!(stays("keep-last=2"), [0, 1, 5]);
    assert_eq!(stays("keep-daily=1"), [1, 5]);
    assert_eq!(stays("keep-last=1,keep-within=90s"), [1, 4, 5, 6]);
}

#[test]
fn recordings_that_are_closed_are_compressed_and_go_by_a_policy_of_their_own() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let long = "[0.1, \"o\", \"x\"]\n".repeat(5_000);
    let mut made = Vec::new();
    for session in ["a", "b"] {
        lab.settings.session = Some(ah_core::SessionName::new(session).unwrap());
        for _ in 0..2 {
            let (recording, mut file) = lab.open().begin_recording().unwrap();
            std::io::Write::write_all(&mut file, long.as_bytes()).unwrap();
            made.push((recording, file));
        }
    }
    lab.settings.session = None;
    // All are being made: nothing becomes of them, whatever the policy.
    let options = |recordings: &str, dry_run| PruneOptions {
        policy: Some("keep-manual".into()),
        recordings: Some(recordings.into()),
        dry_run,
    };
    let prune = |recordings: &str, dry_run| lab.open().prune(&options(recordings, dry_run), &mut |_| Ok(())).unwrap();
    assert!(prune("keep-last=0", false).recordings.iter().all(|verdict| verdict.stays));
    let live = made.pop().unwrap();
    let closed: Vec<_> = made.into_iter().map(|(recording, _)| recording).collect();
    // For an hour others can still read what was just recorded.
    lab.open().snapshot(&automatic()).unwrap();
    assert!(behind(&lab).iter().all(|action| !action.contains("recording")));
    lab.wait(3_600);
    assert!(behind(&lab).iter().any(|action| action.contains("compressed 3")));
    for recording in &closed {
        let listed = lab.open().recordings(&recording.session).unwrap();
        let packed = listed.iter().find(|it| it.number == recording.number).unwrap();
        assert!(packed.compressed && !recording.path.exists());
        let mut read = String::new();
        std::io::Read::read_to_string(&mut packed.open_at(0).unwrap(), &mut read).unwrap();
        assert_eq!(read, long);
    }
    assert!(live.0.path.exists());
    // One of each session, and nothing is removed by looking.
    let verdicts = prune("keep-last=1/session", true).recordings;
    let stays: Vec<bool> = verdicts.iter().map(|verdict| verdict.stays).collect();
    assert_eq!((stays.iter().filter(|stays| **stays).count(), verdicts.len()), (2, 4), "{verdicts:?}");
    let left = |lab: &Lab| -> usize {
        ["a", "b"]
            .map(|name| lab.open().recordings(&ah_core::SessionName::new(name).unwrap()).unwrap().len())
            .iter()
            .sum()
    };
    assert_eq!(left(&lab), 4);
    prune("keep-last=1/session", false);
    assert_eq!(left(&lab), 2);
    // A policy for snapshots alone leaves recordings alone.
    assert!(lab.open().prune(&by("keep-last=0"), &mut |_| Ok(())).unwrap().recordings.is_empty());
    assert_eq!(left(&lab), 2); // A number that moments name is not given again.
    prune("keep-last=0", false);
    assert_eq!(left(&lab), 1, "the one that is being made");
    lab.settings.session = Some(ah_core::SessionName::new("a").unwrap());
    assert_eq!(lab.open().begin_recording().unwrap().0.number, 3);
}

#[test]
fn what_is_pinned_or_labelled_between_the_plan_and_the_removal_stays() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let second = lab.step("a", "2");
    let third = lab.step("a", "3");
    lab.step("a", "4");
    let mut edit = |report: &ah_core::PruneReport| {
        assert_eq!(report.removed, 3);
        let keep = EditOptions { keep: Some(true), ..EditOptions::default() };
        lab.open().edit(first.id.as_str(), &keep)?;
        let label = EditOptions { label: Some("precious".into()), ..EditOptions::default() };
        lab.open().edit(third.id.as_str(), &label).map(drop)
    };
    let report = lab.open().prune(&by("keep-last=1,keep-labelled"), &mut edit).unwrap();
    assert_eq!(report.removed, 1);
    let left = ids(&lab);
    assert!(left.contains(&first.id) && left.contains(&third.id) && !left.contains(&second.id));
}

#[test]
fn nothing_goes_that_could_not_be_told_of() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.step("a", "2");
    let deaf = || Error::new(ErrorKind::Unavailable, "nobody listens");
    assert_eq!(lab.open().prune(&by("keep-last=1"), &mut |_| Err(deaf())).unwrap_err(), deaf());
    assert_eq!(ids(&lab).len(), 2);
}
