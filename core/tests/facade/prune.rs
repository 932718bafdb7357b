use std::sync::atomic::Ordering;

use crate::lab::Lab;
use ah_core::{
    BranchOptions, EditOptions, ErrorKind, PruneOptions, RestoreOptions, SeekOptions, SnapshotFilter, UndoOptions,
};

fn prune(lab: &Lab, policy: &str, dry_run: bool) -> Vec<(usize, String)> {
    let options = PruneOptions { policy: Some(policy.into()), dry_run };
    let report = lab.open().prune(&options).unwrap();
    let verdicts = report.verdicts.iter().enumerate();
    verdicts.filter(|(_, verdict)| verdict.stays).map(|(at, verdict)| (at, verdict.reason.clone())).collect()
}

fn count(lab: &Lab) -> usize {
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
    prune(&lab, "max-size=1", false);
    assert_eq!(count(&lab), 1);
}

#[test]
fn a_policy_is_asked_for_or_configured() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let none = PruneOptions { policy: None, dry_run: true };
    assert_eq!(lab.open().prune(&none).unwrap_err().kind, ErrorKind::InvalidArgument);
    let bad = PruneOptions { policy: Some("keep-everything".into()), dry_run: true };
    assert_eq!(lab.open().prune(&bad).unwrap_err().kind, ErrorKind::InvalidArgument);
    lab.settings.environment.insert("prune.policy".into(), "keep-last=3".into());
    assert_eq!(lab.open().prune(&none).unwrap().policy, "keep-last=3");
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
