use crate::lab::{Fake, Lab, kinds, labelled, write};
use ah_core::{
    BranchOptions, DiffOptions, DiffSide, Durability, EditOptions, EntryKind, Error, ErrorKind, EventBody, Mode,
    NoticeKind, ProviderSet, ProviderSource, RelPath, RestoreOptions, RmOptions, SeekOptions, SessionName,
    SnapshotFilter, SnapshotKind, SnapshotOptions, TimelineFilter,
};
use ah_plugin_api::Probe;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn rel(path: &str) -> RelPath {
    RelPath::new(path).unwrap()
}

fn automatic() -> SnapshotOptions {
    SnapshotOptions { kind: SnapshotKind::Auto, ..SnapshotOptions::default() }
}

#[test]
fn is_listed_named_and_shown() {
    let lab = Lab::new();
    lab.write("a", "1");
    let workspace = lab.open();
    let first = workspace.snapshot(&labelled("before")).unwrap();
    lab.wait(60);
    lab.write("a", "2");
    let second = workspace.snapshot(&SnapshotOptions::default()).unwrap();
    assert!(first.id.as_str().len() == 12 && first.id.as_str().bytes().all(|b| (b'k'..=b'z').contains(&b)));
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), [first.clone(), second.clone()]);
    for (name, wanted) in [("@", &second), ("@{1}", &first), ("before", &first), ("1m-ago", &first)] {
        assert_eq!(workspace.resolve(name).unwrap(), *wanted, "{name}");
    }
    assert_eq!(workspace.resolve(&second.id.as_str()[..11]).unwrap(), second);
    let details = workspace.show("@").unwrap();
    assert_eq!(details.record, second);
    let json = serde_json::to_value(&details).unwrap();
    assert_eq!(json["id"], second.id.as_str());
    assert_eq!(json["time"], "2027-01-15T08:01:00Z");
    let error = workspace.resolve("zzzz").unwrap_err();
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::NotFound, Some("ah agent fs snapshots")));
}

#[test]
fn says_when_nothing_has_changed() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    assert_eq!(first.equal_to, None);
    let workspace = lab.open();
    if first.tree.is_some() {
        let second = workspace.snapshot(&SnapshotOptions::default()).unwrap();
        assert_eq!(second.equal_to, Some(first.id));
        workspace.rm(&[second.id.to_string()], &RmOptions::default()).unwrap();
        assert_eq!(workspace.snapshot(&SnapshotOptions::default()).unwrap().equal_to, None);
    }
    assert_eq!(lab.step("a", "2").equal_to, None);
}

#[test]
fn contents_that_are_not_whole_are_no_success() {
    let lab = Lab::new();
    lab.step("a", "one");
    let workspace = lab.open();
    lab.fake.reads_nothing.store(true, Ordering::Relaxed);
    let file = tempfile::NamedTempFile::new().unwrap();
    let (_from, pipe) = std::io::pipe().unwrap();
    let appended = std::fs::File::options().append(true).open(file.path()).unwrap();
    for out in [file.as_file().as_fd(), pipe.as_fd(), appended.as_fd()] {
        let error = workspace.cat("@", &rel("a"), out).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DataLoss, "{error}");
    }
    lab.fake.reads_nothing.store(false, Ordering::Relaxed);
    for out in [file.as_file().as_fd(), pipe.as_fd(), appended.as_fd()] {
        workspace.cat("@", &rel("a"), out).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "oneone");
}

#[test]
fn one_file_is_had_without_a_view() {
    let lab = Lab::new();
    let (first, _, third) = (lab.step("a", "one"), lab.step("b", "x"), lab.step("a", "two"));
    std::fs::remove_file(lab.path().join("a")).unwrap();
    let fourth = lab.step("b", "y");
    let workspace = lab.open();
    let out = tempfile::NamedTempFile::new().unwrap();
    let entry = workspace.cat("@{3}", &rel("a"), out.as_file().as_fd()).unwrap();
    assert_eq!((entry.kind, entry.size), (EntryKind::File, 3));
    assert_eq!(std::fs::read_to_string(out.path()).unwrap(), "one");
    let (mut from, to) = std::io::pipe().unwrap();
    workspace.cat("@{3}", &rel("a"), to.as_fd()).unwrap();
    drop(to);
    assert_eq!(std::io::read_to_string(&mut from).unwrap(), "one");
    assert_eq!(workspace.cat("@", &rel("a"), out.as_file().as_fd()).unwrap_err().kind, ErrorKind::NotFound);
    let root = workspace.cat("@", &RelPath::root(), out.as_file().as_fd()).unwrap_err();
    assert_eq!(root.kind, ErrorKind::InvalidArgument);
    assert_eq!(root.hint.unwrap(), format!("`ah agent fs seek {}` shows what is in it", fourth.id));

    let versions = workspace.versions(&rel("a")).unwrap();
    let shown: Vec<_> = versions.iter().map(|v| (v.snapshot.clone(), v.snapshots, v.entry.is_some())).collect();
    assert_eq!(shown, [(first.id, 2, true), (third.id, 1, true), (fourth.id, 1, false)]);
    assert_eq!(workspace.versions(&rel("never")).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn differences_are_listed() {
    let lab = Lab::new();
    lab.step("a", "1");
    lab.step("b", "1");
    lab.write("c", "1");
    let workspace = lab.open();
    let paths = |from: &str, to: Option<&str>| {
        let report = workspace.diff(from, to, &DiffOptions::default()).unwrap();
        assert_eq!(matches!(report.to, DiffSide::Workspace), to.is_none());
        report.changes.iter().map(|change| change.path.to_string()).filter(|path| path != ".").collect::<Vec<_>>()
    };
    assert_eq!(paths("@{1}", Some("@")), ["b"]);
    assert_eq!(paths("@{1}", None), ["b", "c"]);
    let only = DiffOptions { paths: vec![rel("c")], times: false };
    assert_eq!(workspace.diff("@{1}", None, &only).unwrap().changes.len(), 1);
}

/// Who may not look somewhere can do nothing about it; who is shown less than there is for a broken disk has to know.
#[test]
fn what_is_not_compared_is_told_by_what_keeps_it_from_that() {
    let lab = Lab::new();
    lab.write("dir/a", "1");
    lab.step("other", "1");
    lab.write("dir/a", "2");
    lab.step("other", "2");
    for (error, is_shut) in [
        (Error::new(ErrorKind::PermissionDenied, "made to fail"), true),
        (Error::from_io("made to fail", &std::io::Error::from_raw_os_error(5)), false),
        // It lists it by then.
        (Error::new(ErrorKind::NotFound, "made to fail"), false),
    ] {
        *lab.fake.unlisted.lock().unwrap() = Some((rel("dir"), error));
        for to in [None, Some("@")] {
            let report = lab.open().diff("@{1}", to, &DiffOptions::default()).unwrap();
            let told = if is_shut { (vec![rel("dir")], vec![]) } else { (vec![], vec![rel("dir")]) };
            assert_eq!((report.unreadable, report.damaged), told);
            assert!(report.changes.iter().any(|change| change.path == rel("other")));
        }
    }
}

/// A provider that captures everything also tells of everything; what the rules leave out is no difference all the same.
#[test]
fn what_the_rules_leave_out_is_no_difference_whoever_finds_it() {
    let lab = Lab::new();
    lab.write(".gitignore", "*.log\nout/\n");
    lab.write(".git/HEAD", "ref: refs/heads/main\n");
    lab.step("a", "1");
    lab.write(".git/HEAD", "ref: refs/heads/other\n");
    lab.write("large.log", &"l".repeat(2 << 20));
    lab.write("out/built", "1");
    lab.write("b", "1");
    let workspace = lab.open();
    let report = workspace.diff("@", None, &DiffOptions::default()).unwrap();
    let paths: Vec<_> =
        report.changes.iter().map(|change| change.path.to_string()).filter(|path| path != ".").collect();
    assert_eq!(paths, ["b"]);
}

/// Who the older snapshot is from may have captured less; and of two providers' names for contents none says anything.
#[test]
fn snapshots_of_two_providers_are_compared_by_what_they_hold() {
    let (lab, better, _) = two();
    lab.write(".gitignore", "out/\n");
    lab.write("same", "1");
    lab.write("edited", "old");
    let one = lab.step("gone", "1");
    *better.probe.lock().unwrap() = Some(no("not that filesystem"));
    lab.write("edited", "new");
    lab.write("out/built", "1");
    std::fs::remove_file(lab.path().join("gone")).unwrap();
    let two = lab.step("added", "1");
    assert_eq!([one.provider.as_str(), two.provider.as_str()], ["better", "other"]);
    let workspace = lab.open();
    let letters = |from: &str, to: &str| {
        let report = workspace.diff(from, Some(to), &DiffOptions::default()).unwrap();
        let letter = |change: &ah_core::ChangeRecord| match (&change.before, &change.after) {
            (None, _) => "A",
            (_, None) => "D",
            _ => "M",
        };
        let told = report.changes.iter().filter(|change| !change.path.is_root());
        told.map(|change| format!("{} {}", letter(change), change.path)).collect::<Vec<_>>()
    };
    assert_eq!(letters("@{1}", "@"), ["A added", "M edited", "D gone"]);
    assert_eq!(letters("@", "@{1}"), ["D added", "M edited", "A gone"]);
}

#[test]
fn labels_and_pins_change() {
    let lab = Lab::new();
    let first = lab.step("a", "1");
    let workspace = lab.open();
    let edit = |label: Option<&str>, keep| EditOptions { label: label.map(str::to_owned), keep };
    assert_eq!(workspace.edit("@", &edit(None, None)).unwrap_err().kind, ErrorKind::InvalidArgument);
    assert_eq!(workspace.edit("@", &edit(Some("a\nb"), None)).unwrap_err().kind, ErrorKind::InvalidArgument);
    assert_eq!(workspace.edit("@", &edit(Some("good"), Some(true))).unwrap().label.as_deref(), Some("good"));
    let now = workspace.resolve("good").unwrap();
    assert!(now.kept && now.id == first.id);
    let error = workspace.rm(&["good".into()], &RmOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.hint.unwrap().contains("--no-keep"));
    workspace.edit("good", &edit(Some(""), Some(false))).unwrap();
    assert_eq!(workspace.resolve("@").unwrap(), first);
}

#[test]
fn removal_is_all_or_nothing() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "1"), lab.step("a", "2"));
    let workspace = lab.open();
    let ask = |names: &[&str], dry_run| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        workspace.rm(&names, &RmOptions { dry_run, ..RmOptions::default() })
    };
    assert_eq!(ask(&["@", "nothing"], false).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(ask(&["@", second.id.as_str()], true).unwrap().removed, std::slice::from_ref(&second));
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap().len(), 2);
    assert_eq!(ask(&["@{1}", "@"], false).unwrap().removed, [first, second]);
    assert!(workspace.snapshots(&SnapshotFilter::default()).unwrap().is_empty());
    assert!(workspace.gc(&ah_core::GcOptions::default()).unwrap().actions.is_empty());
}

#[test]
fn sessions_do_not_mix() {
    let mut lab = Lab::new();
    let own = lab.step("a", "1");
    let agent = SessionName::new("agent-1").unwrap();
    lab.settings.agent_session = Some(agent.clone());
    let of_agent = lab.step("a", "2");
    assert_eq!((own.session, of_agent.session.clone()), (SessionName::main(), agent.clone()));
    lab.settings.agent_session = None;
    let last = lab.step("a", "3");
    lab.settings.agent_session = Some(agent.clone());
    let inside = lab.open();
    assert_eq!(inside.resolve("@").unwrap(), of_agent);
    assert_eq!(inside.resolve("@{1}").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(inside.snapshots(&SnapshotFilter::default()).unwrap().len(), 3);
    lab.settings.agent_session = None;
    assert_eq!(lab.open().resolve("@").unwrap(), last);
    lab.settings.session = Some(agent);
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap(), [of_agent]);
    lab.settings.session = Some(SessionName::new("nobody").unwrap());
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap_err().kind, ErrorKind::NotFound);
}

fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the pool is gone")
}

fn two() -> (Lab, Fake, Fake) {
    let (better, other) = (Fake::new("better", Some(300)), Fake::new("other", Some(100)));
    (Lab::with(vec![other.clone(), better.clone()], better.clone()), better, other)
}

fn no(reason: &str) -> Probe {
    Probe {
        usable: false,
        reason: reason.into(),
        remedy: Some("ah agent fs fix".into()),
        modes: [].into(),
        can_delete: true,
        convertible: None,
    }
}

#[test]
fn the_best_that_can_serves() {
    let (mut lab, better, _) = two();
    assert_eq!(lab.step("a", "1").provider.as_str(), "better");
    *better.probe.lock().unwrap() = Some(no("not that filesystem"));
    assert_eq!(lab.step("a", "2").provider.as_str(), "other");
    *better.probe.lock().unwrap() = Some(Probe { usable: true, can_delete: false, ..no("fine") });
    let status = lab.engine().status(&lab.path()).unwrap();
    let verdicts: Vec<_> = status.candidates.iter().map(|c| (c.name.as_str(), c.usable, c.chosen)).collect();
    assert_eq!(verdicts, [("better", false, false), ("other", true, true)]);
    assert!(status.candidates[0].reason.contains("delete"));
    *better.probe.lock().unwrap() =
        Some(Probe { usable: true, can_delete: true, modes: [Mode::CowOverlay].into(), ..no("overlay only") });
    assert_eq!(lab.step("a", "3").provider.as_str(), "other");
    // What it made, it still serves.
    assert_eq!(lab.open().show("@{2}").unwrap().record.provider.as_str(), "better");

    lab.settings.flags.insert("provider".into(), "better".into());
    *better.probe.lock().unwrap() = Some(Probe { usable: true, can_delete: false, ..no("fine") });
    assert_eq!(lab.step("a", "4").provider.as_str(), "better", "who names it means it");
    *better.probe.lock().unwrap() =
        Some(Probe { usable: true, can_delete: true, modes: [Mode::CowOverlay].into(), ..no("overlay only") });
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Unavailable, Some("ah agent fs fix")));
    lab.settings.flags.insert("provider".into(), "nowhere".into());
    assert_eq!(lab.open().snapshot(&SnapshotOptions::default()).unwrap_err().kind, ErrorKind::Unavailable);
    lab.settings.flags.insert("provider".into(), "No Name".into());
    assert_eq!(lab.open().snapshot(&SnapshotOptions::default()).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn one_for_another_filesystem_is_asked_only_when_nobody_serves() {
    let mut elsewhere = Fake::new("elsewhere", Some(900));
    elsewhere.filesystems = [1].into();
    let other = Fake::new("other", Some(100));
    let lab = Lab::with(vec![other.clone(), elsewhere.clone()], other.clone());
    assert_eq!(lab.step("a", "1").provider.as_str(), "other");
    assert_eq!(elsewhere.probes.load(Ordering::Relaxed), 0);
    let no = |reason: &str| Probe {
        usable: false,
        reason: reason.into(),
        remedy: None,
        modes: [].into(),
        can_delete: true,
        convertible: None,
    };
    *elsewhere.probe.lock().unwrap() = Some(no("not on that filesystem"));
    *other.probe.lock().unwrap() = Some(no("not today"));
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(error.causes, ["other: not today", "elsewhere: not on that filesystem"]);
}

#[test]
fn one_that_makes_no_branches_gives_way_to_the_helpers_that_does() {
    let (direct, helped) = (Fake::new("fs", Some(400)), Fake::new("fs_ahd", Some(399)));
    let other = Fake::new("other", Some(300));
    let lab = Lab::with(vec![other.clone(), helped.clone(), direct.clone()], direct.clone());
    let can = |modes: &[Mode]| Probe {
        usable: true,
        reason: "fine".into(),
        remedy: None,
        modes: modes.iter().copied().collect(),
        can_delete: true,
        convertible: None,
    };
    let both = can(&[Mode::InPlace, Mode::Worktree]);
    let serves = |text: &str| {
        let served = lab.step("a", text).provider;
        let candidates = lab.engine().status(&lab.path()).unwrap().candidates;
        let chosen: Vec<_> = candidates.into_iter().filter(|candidate| candidate.chosen).map(|c| c.name).collect();
        assert_eq!(chosen, std::slice::from_ref(&served), "status says the same");
        served.to_string()
    };
    *direct.probe.lock().unwrap() = Some(both.clone());
    *helped.probe.lock().unwrap() = Some(both.clone());
    assert_eq!(serves("1"), "fs");
    *direct.probe.lock().unwrap() = Some(can(&[Mode::InPlace]));
    assert_eq!(serves("2"), "fs_ahd");
    // If that cannot either, nothing is won.
    *helped.probe.lock().unwrap() = Some(can(&[Mode::InPlace]));
    assert_eq!(serves("3"), "fs");
    *helped.probe.lock().unwrap() = Some(Probe { usable: false, ..both });
    assert_eq!(serves("4"), "fs");
}

#[test]
fn what_the_helper_does_already_needs_no_remedy() {
    let (direct, helped) = (Fake::new("fs", Some(400)), Fake::new("fs_ahd", Some(399)));
    let lab = Lab::with(vec![helped.clone(), direct.clone()], direct.clone());
    let no = Probe {
        usable: false,
        reason: "it is somebody else's".into(),
        remedy: Some("set up the helper".into()),
        modes: std::collections::BTreeSet::new(),
        can_delete: true,
        convertible: None,
    };
    let remedies = || {
        let candidates = lab.engine().status(&lab.path()).unwrap().candidates.into_iter();
        candidates.filter_map(|candidate| candidate.remedy).collect::<Vec<_>>()
    };
    *direct.probe.lock().unwrap() = Some(no.clone());
    assert_eq!(remedies(), [""; 0]);
    *helped.probe.lock().unwrap() = Some(Probe { remedy: Some("ask the administrator".into()), ..no });
    assert_eq!(remedies(), ["ask the administrator"]);
}

#[test]
fn when_the_best_fails_a_person_is_offered_the_next() {
    let (lab, better, _) = two();
    *better.fails.lock().unwrap() = Some(broken());
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.hint.unwrap().contains("--provider other"));
    assert!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().is_empty());
}

#[test]
fn when_the_best_fails_an_automatic_one_is_taken_with_the_next() {
    let (lab, better, _) = two();
    *better.fails.lock().unwrap() = Some(broken());
    let workspace = lab.open();
    assert_eq!(workspace.snapshot(&automatic()).unwrap().provider.as_str(), "other");
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Degraded]);
    let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
    assert!(matches!(&events[0].body, EventBody::Degraded { provider, .. } if provider.as_str() == "better"));
    assert!(lab.engine().status(&lab.path()).unwrap().degraded.unwrap().contains("the pool is gone"));
    // What a person would have to do first stops nothing that can go on without them.
    let unmounted = || Error::new(ErrorKind::FailedPrecondition, "not mounted").with_hint("mount it");
    *better.fails.lock().unwrap() = Some(unmounted());
    assert_eq!(workspace.snapshot(&automatic()).unwrap().provider.as_str(), "other");
    let offered = workspace.snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(offered.hint.unwrap(), "mount it; or ah agent fs snapshot --provider other");
    // Where the request is at fault, it is so with all of them.
    *better.fails.lock().unwrap() = Some(Error::new(ErrorKind::InvalidArgument, "no"));
    assert_eq!(workspace.snapshot(&automatic()).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn no_other_provider_is_tried_where_it_is_the_timeline_that_cannot_be_written() {
    let (mut lab, _, _) = two();
    lab.settings.patience = std::time::Duration::ZERO;
    let workspace = lab.open();
    let timeline = std::fs::File::create(lab.folder().join("timeline.lock")).unwrap();
    rustix::fs::flock(&timeline, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for options in [automatic(), SnapshotOptions::default()] {
        let error = workspace.snapshot(&options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(!error.hint.unwrap_or_default().contains("--provider"));
    }
    assert!(workspace.engine().take_notices().is_empty());
    drop(timeline);
    assert_eq!(workspace.snapshot(&automatic()).unwrap().provider.as_str(), "better");
}

#[test]
fn automatic_ones_are_instant_and_made_durable_later() {
    let lab = Lab::new();
    let workspace = lab.open();
    let auto = ah_core::GcOptions { auto: true };
    workspace.gc(&auto).unwrap();
    let record = workspace.snapshot(&automatic()).unwrap();
    let syncs = || lab.fake.syncs.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(syncs(), 0);
    let done = workspace.gc(&auto).unwrap().actions;
    assert!(record.durability == Durability::Durable || done == ["made 1 snapshot durable"], "{done:?}");
    assert_eq!(syncs(), i64::from(record.durability == Durability::Instant));
    workspace.gc(&auto).unwrap();
    assert_eq!(syncs(), i64::from(record.durability == Durability::Instant));
}

#[test]
fn our_own_state_is_left_out_of_what_surrounds_it() {
    let lab = Lab::new();
    let engine = lab.engine();
    let workspace = engine.workspace(&lab.top, ah_core::Access::Create).unwrap();
    write(&lab.top.join("file"), "x");
    // The in-memory provider applies no policy; that it is asked for is seen in the request of one that does (the Git provider's tests).
    workspace.snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!(engine.workspace(&lab.top, ah_core::Access::Existing).unwrap().id(), workspace.id());
}

#[test]
fn labels_of_the_configuration_are_put_on() {
    let mut lab = Lab::new();
    lab.settings.environment.insert("labels".into(), serde_json::json!({"team": "blue"}));
    assert_eq!(lab.step("a", "1").attributes["team"], "blue");
}

#[test]
fn a_workspace_bears_its_repositorys_first_commit() {
    let lab = Lab::new();
    let first_commit = || lab.engine().status(&lab.path()).unwrap().first_commit;
    lab.step("a", "1");
    assert_eq!(first_commit(), None);
    for digit in ["1", "1", "2"] {
        let state = ah_plugin_api::RepositoryState { first_commit: Some(digit.repeat(40)), ..Default::default() };
        *lab.fake.repository.lock().unwrap() = Some(state);
        lab.step("a", digit);
        assert_eq!(first_commit(), Some(digit.repeat(12)));
    }
    // One in which it is not known takes nothing away.
    *lab.fake.repository.lock().unwrap() = Some(ah_plugin_api::RepositoryState::default());
    lab.step("a", "3");
    assert_eq!(first_commit(), Some("2".repeat(12)));
}

#[test]
fn who_asks_for_a_snapshot_that_its_provider_has_lost_is_told_what_takes_it_off() {
    let lab = Lab::new();
    let lost = |lab: &Lab| {
        let taken = lab.step("a", "one");
        let listed = std::fs::read(lab.timeline_file()).unwrap();
        lab.open().rm(&["@".into()], &RmOptions::default()).unwrap();
        std::fs::write(lab.timeline_file(), listed).unwrap();
        taken
    };
    let (taken, workspace) = (lost(&lab), lab.open());
    let wanted = Some(format!("`ah agent fs rm {}` takes it off", taken.id));
    let from = BranchOptions { from: Some("@".into()), ..BranchOptions::default() };
    let null = std::fs::File::create("/dev/null").unwrap();
    let cat = |shows_alone| {
        lab.fake.shows_alone.store(shows_alone, Ordering::Relaxed);
        workspace.cat("@", &rel("a"), null.as_fd()).unwrap_err()
    };
    for (what, error) in [
        ("cat", cat(true)),
        ("show", workspace.show("@").unwrap_err()),
        ("diff", workspace.diff("@", None, &DiffOptions::default()).unwrap_err()),
        ("diff", workspace.diff("@", Some("@"), &DiffOptions::default()).unwrap_err()),
        ("cat", cat(false)),
        ("seek", workspace.seek("@", &SeekOptions::default()).unwrap_err()),
        ("restore", workspace.restore("@", &RestoreOptions::default()).unwrap_err()),
        ("branch", workspace.branch(&from).unwrap_err()),
    ] {
        assert_eq!((error.kind, &error.hint), (ErrorKind::NotFound, &wanted), "{what}: {error:?}");
        assert!(error.message.contains("does not have it any more"), "{what}: {error:?}");
    }
    workspace.rm(&["@".into()], &RmOptions::default()).unwrap();
    assert!(workspace.snapshots(&SnapshotFilter::default()).unwrap().is_empty());
}

#[test]
fn versions_tell_of_a_snapshot_that_its_provider_has_lost() {
    let lab = Lab::new();
    let (first, second) = (lab.step("a", "one"), lab.step("a", "two"));
    let listed = std::fs::read(lab.timeline_file()).unwrap();
    lab.open().rm(&[first.id.to_string()], &RmOptions::default()).unwrap();
    std::fs::write(lab.timeline_file(), listed).unwrap();
    let workspace = lab.open();
    let versions = workspace.versions(&rel("a")).unwrap();
    assert_eq!(versions.iter().map(|version| version.snapshot.clone()).collect::<Vec<_>>(), [second.id]);
    let notices = workspace.engine().take_notices();
    let hint = format!("`ah agent fs rm {}` takes it off", first.id);
    assert!(notices.iter().any(|notice| notice.hint.as_ref() == Some(&hint)), "{notices:?}");
}

#[test]
fn versions_end_though_a_process_has_the_output_open() {
    let lab = Lab::new();
    lab.step("a", "one");
    lab.step("a", "two");
    *lab.fake.outputs.lock().unwrap() = Some(Vec::new());
    let outputs = Arc::clone(&lab.fake.outputs);
    let (done, came) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(lab.open().versions(&rel("a")).unwrap().len()).unwrap());
    assert_eq!(came.recv_timeout(std::time::Duration::from_secs(20)).unwrap(), 2);
    assert!(!outputs.lock().unwrap().take().unwrap().is_empty());
}

#[test]
fn versions_tell_of_a_provider_that_is_not_there() {
    let (mut lab, better, other) = two();
    let first = lab.step("a", "one");
    *better.probe.lock().unwrap() = Some(no("gone"));
    let second = lab.step("a", "two");
    assert_eq!((first.provider.as_str(), second.provider.as_str()), ("better", "other"));
    lab.settings.providers = ProviderSource::Given(ProviderSet::of(vec![Arc::new(other)]));
    let workspace = lab.open();
    let versions = workspace.versions(&rel("a")).unwrap();
    assert_eq!(versions.iter().map(|version| &version.snapshot).collect::<Vec<_>>(), [&second.id]);
    let notices = workspace.engine().take_notices();
    let told = |notice: &ah_core::Notice| notice.message.starts_with("1 snapshot of better passed over: ");
    assert!(notices.iter().any(told), "{notices:?}");
    let error = workspace.versions(&rel("b")).unwrap_err();
    assert!(error.message.starts_with("no snapshot that can be looked at has b"), "{error:?}");
}

#[test]
fn where_the_one_that_only_branches_fails_the_next_makes_the_branch() {
    let (lab, better, _) = two();
    let overlays = Probe {
        usable: true,
        reason: "overlays only".into(),
        remedy: None,
        modes: [Mode::CowOverlay].into(),
        can_delete: true,
        convertible: None,
    };
    *better.probe.lock().unwrap() = Some(overlays);
    better.clones_fail.store(true, Ordering::Relaxed);
    let workspace = lab.open();
    let options = |name: &str| BranchOptions { name: Some(name.into()), ..BranchOptions::default() };
    assert_eq!(workspace.branch(&options("a")).unwrap().provider.as_str(), "other");
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Degraded]);
    // It may come of it still what was asked for.
    better.reclaims_fail.store(true, Ordering::Relaxed);
    let error = workspace.branch(&options("b")).unwrap_err();
    assert_eq!((error.kind, error.message.contains("made to fail")), (ErrorKind::Unavailable, true));
}

#[test]
fn why_another_saves_the_present_state_is_said_where_status_does_not_know() {
    let (lab, better, _other) = two();
    let first = lab.step("a", "one").id;
    let note = |text| {
        lab.write("a", text);
        let report = lab.open().restore(first.as_str(), &RestoreOptions::default()).unwrap();
        report.notes.into_iter().find(|note| note.contains("is saved by other")).unwrap()
    };
    *better.fails.lock().unwrap() = Some(broken());
    let said = note("two");
    assert!(said.contains("the pool is gone") && !said.contains("status"), "{said}");
    *better.fails.lock().unwrap() = None;
    *better.probe.lock().unwrap() = Some(no("not here"));
    let said = note("three");
    assert!(said.contains("`ah agent fs status` says why"), "{said}");
}
