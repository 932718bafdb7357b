//! Files of the state that cannot be read: damaged, or something else in their place. What has a second copy, or is a cache, stops nothing, and of the rest is told.

use crate::branches::{killed, record};
use crate::lab::{Lab, kinds};
use ah_core::{
    Access, BranchId, BranchOptions, BranchState, EditOptions, ErrorKind, FaultKind, GcOptions, NoticeKind,
    PruneOptions, RestoreOptions, RmOptions, SessionName, SnapshotFilter, SnapshotOptions, TimelineFilter, UndoOptions,
};
use ah_plugin_api::Durability;
use nix::sys::stat::Mode;
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Puts something else in the place of a file.
fn displace(path: &Path, by: impl FnOnce(&Path)) {
    let _ = fs::remove_file(path);
    by(path);
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
}

fn folder(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("in it"), "").unwrap();
}

fn no_backups(file: &Path) {
    for n in 1..=5 {
        let _ = fs::remove_file(format!("{}.bak{n}", file.display()));
    }
}

#[test]
fn a_record_that_is_no_file_or_anothers_is_read_from_its_backup() {
    let damages: [&dyn Fn(&Path); 3] = [&|path| displace(path, fifo), &|path| displace(path, folder), &|path| {
        let text = fs::read_to_string(path).unwrap();
        let id = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        fs::write(path, text.replace(id, "kkkkkkkkkkkk")).unwrap();
    }];
    for (at, damage) in damages.into_iter().enumerate() {
        let lab = Lab::new();
        let first = lab.step("a", "1").id;
        let branch = lab.open().branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
        damage(&lab.folder().join("workspace.json"));
        let _ = fs::remove_file(lab.settings.home.join("index.json"));
        lab.open().gc(&GcOptions::default()).unwrap();
        let workspace = lab.engine().workspace(&lab.path(), Access::Create).unwrap();
        assert_eq!(workspace.resolve("@").unwrap().id, first, "{at}");
        assert_eq!(workspace.branches_looked_at().unwrap(), [branch], "{at}");
    }
}

#[test]
fn where_a_record_can_neither_be_read_nor_written_anew_no_second_history_begins() {
    let lab = Lab::new();
    let first = lab.step("a", "1").id;
    let record = lab.folder().join("workspace.json");
    let aside = lab.top.join("aside");
    fs::rename(&record, &aside).unwrap();
    no_backups(&record);
    folder(&record);
    for path in [lab.path(), lab.top.clone()] {
        // Whoever asks: the index is made anew for each of them.
        let _ = lab.engine().workspace(&path, Access::Existing).map(|it| it.gc(&GcOptions::default()));
    }
    fs::create_dir(lab.settings.home.join("workspaces/new")).unwrap();
    let opened = lab.engine().workspace(&lab.path(), Access::Create);
    let _ = opened.map(|workspace| workspace.snapshot(&SnapshotOptions::default()));
    fs::remove_dir_all(&record).unwrap();
    fs::rename(&aside, &record).unwrap();
    assert!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().iter().any(|snapshot| snapshot.id == first));
}

#[test]
fn a_fifo_in_the_place_of_a_timeline_holds_nobody_up() {
    let lab = Lab::new();
    lab.write("a", "1");
    let options = SnapshotOptions { durability: Some(Durability::Instant), ..SnapshotOptions::default() };
    lab.open().snapshot(&options).unwrap();
    displace(&lab.timeline_file(), fifo);
    assert!(!lab.open().gc(&GcOptions { auto: true }).unwrap().failures.is_empty());
    // Nor is anything written into it.
    assert_eq!(lab.open().snapshot(&options).unwrap_err().kind, ErrorKind::DataLoss);
    assert!(!lab.open().gc(&GcOptions::default()).unwrap().failures.is_empty());
}

#[test]
fn the_record_of_a_branch_is_read_from_its_backup_and_without_one_it_is_told() {
    let lab = Lab::new();
    lab.step("a", "1");
    let branch = lab.open().branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    let record = lab.settings.home.join("branches").join(format!("{}.json", branch.id));
    let backup = record.with_extension("json.bak1");
    let kept = fs::read(&backup).unwrap();
    let nowhere = |path: &Path| symlink("nowhere", path).unwrap();
    let empty = |path: &Path| fs::write(path, "").unwrap();
    let damages: [&dyn Fn(&Path); 4] = [&fifo, &folder, &empty, &nowhere];
    // As to the last one, it may be there, and newer.
    for (damage, has_backup) in damages.into_iter().zip([true, true, true, false]) {
        let _ = fs::remove_dir_all(&record);
        displace(&record, damage);
        fs::write(&backup, &kept).unwrap();
        assert_eq!(lab.open().find_branch("b").ok(), has_backup.then(|| branch.clone()));
        no_backups(&record);
        assert!(lab.open().branches_looked_at().unwrap().is_empty());
        // Nobody knows what it grew from.
        let by = PruneOptions { policy: Some("keep-last=1".into()), ..PruneOptions::default() };
        lab.open().prune(&by, &mut |report| panic!("{report:?}")).unwrap_err();
    }
    let workspace = lab.open();
    assert!(workspace.branches_looked_at().unwrap().is_empty());
    let notices = workspace.engine().take_notices();
    assert!(notices.iter().any(|notice| notice.message.contains(branch.id.as_str())), "{notices:?}");
    let error = workspace.find_branch("b").unwrap_err();
    for error in [error, workspace.find_ready_branch("b").unwrap_err(), workspace.resolve("b").unwrap_err()] {
        assert!(error.causes.iter().any(|cause| cause.contains(branch.id.as_str())), "{error:?}");
    }
}

#[test]
fn of_a_branch_that_is_removed_no_backup_stays() {
    let lab = Lab::new();
    lab.step("a", "1");
    let make =
        |name: &str| lab.open().branch(&BranchOptions { name: Some(name.into()), ..BranchOptions::default() }).unwrap();
    let branch = make("b");
    let record = |id: &BranchId| lab.settings.home.join("branches").join(format!("{id}.json"));
    // By that it could be worked in, as long as it is not gone.
    let going = record(&branch.id);
    *lab.fake.on_destroy.lock().unwrap() =
        Some(Box::new(move || assert!(going.exists() && !going.with_extension("json.bak1").exists())));
    lab.open().remove_branch("b", true).unwrap();
    assert!(lab.fake.on_destroy.lock().unwrap().is_none());
    // Nor of one whose record a person has moved out of the way.
    let moved = make("c");
    fs::rename(record(&moved.id), lab.top.join("aside")).unwrap();
    lab.open().gc(&GcOptions::default()).unwrap();
    assert!(!record(&moved.id).with_extension("json.bak1").exists());
    let names = fs::read_dir(lab.settings.home.join("branches")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains(branch.id.as_str())).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_branch_whose_removal_cannot_be_written_down_whole_stays_what_it_was() {
    let lab = Lab::new();
    lab.step("a", "1");
    let branch = lab.open().branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    let backup = lab.settings.home.join("branches").join(format!("{}.json.bak1", branch.id));
    displace(&backup, folder);
    lab.open().remove_branch("b", true).unwrap_err();
    assert_eq!(lab.open().find_branch("b").unwrap(), branch);
    assert_eq!(lab.open().gc(&GcOptions::default()).unwrap().failures, [""; 0]);
    fs::remove_dir_all(&backup).unwrap();
    lab.open().remove_branch("b", true).unwrap();
}

#[test]
fn a_branch_that_is_half_removed_stays_that_where_the_rest_cannot_be_removed_or_nothing_be_written() {
    let mut lab = Lab::new();
    lab.settings.patience = Duration::ZERO;
    lab.step("a", "1");
    let branch = lab.open().branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    killed(&lab, &branch, "removing");
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    lab.open().remove_branch("b", true).unwrap_err();
    assert_eq!(lab.open().find_branch("b").unwrap().state, BranchState::Removing);
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);

    killed(&lab, &branch, "removing");
    let before = fs::read(record(&lab, &branch)).unwrap();
    let workspace = lab.open();
    let registry = fs::File::create(lab.settings.home.join("lock")).unwrap();
    flock(&registry, FlockOperation::LockExclusive).unwrap();
    assert_eq!(workspace.remove_branch("b", true).unwrap_err().kind, ErrorKind::Busy);
    drop(registry);
    assert_eq!(fs::read(record(&lab, &branch)).unwrap(), before);
    lab.open().remove_branch("b", true).unwrap();
}

#[test]
fn a_branch_that_lacks_files_since_its_removal_was_cut_short_is_none_to_work_in() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    fs::remove_file(branch.path.join("a")).unwrap();
    let state = || workspace.find_branch("b").unwrap().state;
    // Something grows from it while it is looked at: when it is asked which snapshots are in its store.
    let own = lab.engine().workspace(&branch.path, Access::Existing).unwrap();
    let first = own.snapshot(&SnapshotOptions::default()).unwrap().id.to_string();
    own.rm(&[first], &RmOptions { force: true, ..RmOptions::default() }).unwrap();
    killed(&lab, &branch, "removing");
    let mut grown: serde_json::Value = serde_json::from_slice(&fs::read(record(&lab, &branch)).unwrap()).unwrap();
    let id = BranchId::new("0123456789abcdef").unwrap();
    let child = lab.settings.home.join(format!("branches/{id}.json"));
    (grown["id"], grown["name"]) = (id.as_str().into(), "child".into());
    (grown["origin"], grown["state"]) = (grown["workspace"].clone(), "ready".into());
    grown["path"] = lab.top.join("child").to_str().unwrap().into();
    let grows = child.clone();
    *lab.fake.on_list.lock().unwrap() = Some(Box::new(move || fs::write(grows, grown.to_string()).unwrap()));
    let refused = workspace.remove_branch("b", false).unwrap_err();
    assert!(refused.message.contains("child grew from"), "{refused}");
    assert_eq!(state(), BranchState::Removing);
    fs::remove_file(child).unwrap();
    // It holds something: this process lives, so each `gc` finds it left by the killed one.
    fs::write(branch.path.join("work"), "new").unwrap();
    for _ in 0..2 {
        let report = workspace.gc(&GcOptions::default()).unwrap();
        assert!(report.failures.is_empty() && report.actions.len() == 1, "{report:?}");
        assert_eq!(state(), BranchState::Removing);
    }
    workspace.remove_branch("b", true).unwrap();
}

#[test]
fn one_sessions_timeline_that_cannot_be_read_closes_no_other() {
    let mut lab = Lab::new();
    let first = lab.step("a", "1");
    lab.settings.session = Some(SessionName::new("other").unwrap());
    lab.step("a", "2");
    lab.settings.session = None;
    let other = lab.folder().join("sessions/other/timeline.jsonl");
    displace(&other, folder);
    let workspace = lab.open();
    assert_eq!(workspace.snapshots(&SnapshotFilter::default()).unwrap(), std::slice::from_ref(&first));
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::TimelineDamaged]);
    let faults = workspace.timeline(&TimelineFilter::default()).unwrap().faults;
    assert_eq!(faults.iter().map(|fault| fault.kind).collect::<Vec<_>>(), [FaultKind::File]);
    // What it may have pinned stays.
    let by = PruneOptions { policy: Some("keep-last=1".into()), ..PruneOptions::default() };
    let refused = workspace.prune(&by, &mut |report| panic!("{report:?}")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    assert_eq!(lab.step("a", "3").session, SessionName::main());
    // Nor is it in the way of what the others' lines have to survive.
    lab.write("a", "4");
    let options = SnapshotOptions { durability: Some(Durability::Instant), ..SnapshotOptions::default() };
    let last = lab.open().snapshot(&options).unwrap();
    assert_eq!(lab.open().resolve("@").unwrap().id, last.id);
    fs::remove_dir_all(&other).unwrap();
}

#[test]
fn the_others_snapshots_are_made_durable_once_while_one_sessions_timeline_cannot_be() {
    let mut lab = Lab::new();
    let instant = SnapshotOptions { durability: Some(Durability::Instant), ..SnapshotOptions::default() };
    let take = |lab: &Lab, text: &str| {
        lab.write("a", text);
        lab.open().snapshot(&instant).unwrap().id
    };
    lab.settings.session = Some(SessionName::new("other").unwrap());
    let others = take(&lab, "1");
    lab.settings.session = None;
    let (marks, other) = (lab.folder().join("unsynced"), lab.folder().join("sessions/other/timeline.jsonl"));
    let marked = || -> Vec<_> { fs::read_dir(&marks).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    let aside = lab.top.join("aside");
    fs::rename(&other, &aside).unwrap();
    folder(&other);
    for (text, auto) in [("2", true), ("3", true), ("4", false)] {
        let own = take(&lab, text);
        if text == "3" {
            // As an older version left it.
            fs::write(marks.join(own.as_str()), "{}").unwrap();
        }
        let report = lab.open().gc(&GcOptions { auto }).unwrap();
        assert!(!report.failures.is_empty(), "{report:?}");
        assert_eq!(marked(), [others.as_str()], "{report:?}");
    }
    fs::remove_dir_all(&other).unwrap();
    fs::rename(&aside, &other).unwrap();
    assert_eq!(lab.open().gc(&GcOptions { auto: true }).unwrap().failures, [""; 0]);
    assert!(marked().is_empty());
}

#[test]
fn what_may_be_listed_where_nobody_can_read_is_not_taken_back() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (timeline, aside) = (lab.timeline_file(), lab.top.join("aside"));
    fs::rename(&timeline, &aside).unwrap();
    folder(&timeline);
    lab.write("a", "2");
    lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    fs::remove_dir_all(&timeline).unwrap();
    fs::rename(&aside, &timeline).unwrap();
    lab.open().gc(&GcOptions::default()).unwrap();
    assert_eq!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().len(), 2);
}

#[test]
fn nothing_goes_as_long_as_nobody_knows_what_it_is_shared_with() {
    let mut lab = Lab::new();
    let first = lab.step("a", "1").id;
    let begun = lab.step("a", "2").id;
    lab.settings.session = Some(SessionName::new("other").unwrap());
    let others = lab.step("a", "3").id;
    lab.settings.session = None;
    lab.fake.destroys_fail.store(true, Ordering::Relaxed);
    lab.open().rm(&[begun.to_string()], &RmOptions::default()).unwrap_err();
    lab.fake.destroys_fail.store(false, Ordering::Relaxed);
    let (other, aside) = (lab.folder().join("sessions/other/timeline.jsonl"), lab.top.join("aside"));
    fs::rename(&other, &aside).unwrap();
    folder(&other);
    for dry_run in [true, false] {
        let options = RmOptions { dry_run, ..RmOptions::default() };
        assert_eq!(lab.open().rm(&[first.to_string()], &options).unwrap_err().kind, ErrorKind::DataLoss);
    }
    assert_eq!(lab.open().to_forget().unwrap_err().kind, ErrorKind::DataLoss);
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(report.failures.iter().any(|failure| failure.contains(begun.as_str())), "{report:?}");
    fs::remove_dir_all(&other).unwrap();
    fs::rename(&aside, &other).unwrap();
    let there: Vec<_> = lab.open().snapshots(&SnapshotFilter::default()).unwrap().into_iter().map(|it| it.id).collect();
    assert_eq!(there, [first, others]);
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(matches!(&report.actions[..], [action] if action.contains(begun.as_str())), "{report:?}");
}

#[test]
fn gc_tells_that_nothing_is_pinned_as_long_as_another_timeline_cannot_be_read() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    lab.settings.session = Some(SessionName::new("other").unwrap());
    lab.step("a", "2");
    lab.settings.session = None;
    let (other, aside) = (lab.folder().join("sessions/other/timeline.jsonl"), lab.top.join("aside"));
    fs::rename(&other, &aside).unwrap();
    folder(&other);
    let gc = || lab.open().gc(&GcOptions::default()).unwrap();
    let tells_why = |failure: &String| failure.starts_with("pinning") && failure.contains(other.to_str().unwrap());
    assert!(!gc().failures.iter().any(tells_why));
    fs::write(lab.timeline_file(), "").unwrap();
    for _ in 0..2 {
        let report = gc();
        assert!(report.failures.iter().any(tells_why), "{report:?}");
    }
    fs::remove_dir_all(&other).unwrap();
    fs::rename(&aside, &other).unwrap();
    let report = gc();
    assert!(report.failures.is_empty() && report.actions.iter().any(|it| it.contains("pinned")), "{report:?}");
    assert!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().iter().all(|snapshot| snapshot.kept));
}

#[test]
fn a_timeline_that_the_disk_does_not_give_can_be_done_without() {
    let mut lab = Lab::new();
    let first = lab.step("a", "1").id;
    lab.settings.session = Some(SessionName::new("other").unwrap());
    let others = lab.step("a", "2").id;
    lab.settings.session = None;
    let other = lab.folder().join("sessions/other/timeline.jsonl");
    displace(&other, folder);
    let workspace = lab.open();
    let by = PruneOptions { policy: Some("keep-last=1".into()), ..PruneOptions::default() };
    let remove = || workspace.rm(&[first.to_string()], &RmOptions::default());
    let refused =
        [remove().unwrap_err(), workspace.to_forget().unwrap_err(), workspace.prune(&by, &mut |_| Ok(())).unwrap_err()];
    let told = workspace.engine().take_notices().into_iter().map(|notice| notice.hint);
    for hint in refused.into_iter().map(|error| error.hint).chain(told) {
        let way_out = format!("`mv -T {0} {0}.unread`", other.display());
        assert!(hint.as_ref().is_some_and(|hint| hint.contains(&way_out)), "{hint:?}");
    }
    fs::rename(&other, lab.top.join("aside")).unwrap();
    lab.open().gc(&GcOptions::default()).unwrap();
    let listed = || lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    // What it may have pinned is.
    assert!(listed().iter().all(|snapshot| snapshot.kept));
    workspace.edit(first.as_str(), &EditOptions { keep: Some(false), label: None }).unwrap();
    remove().unwrap();
    assert_eq!(listed().into_iter().map(|snapshot| snapshot.id).collect::<Vec<_>>(), [others]);
}

#[test]
fn what_a_timeline_that_was_put_aside_may_have_pinned_stays_whatever_is_known_of_its_end() {
    for is_told_late in [false, true] {
        let mut lab = Lab::new();
        let in_session = |lab: &mut Lab, name: &str| lab.settings.session = Some(SessionName::new(name).unwrap());
        let first = lab.step("a", "1").id;
        in_session(&mut lab, "other");
        let pinned = lab.step("a", "2").id;
        lab.open().edit(pinned.as_str(), &EditOptions { keep: Some(true), label: None }).unwrap();
        // So many that nobody notes any more where that one ended.
        for name in ["b", "c", "d", "e", "f", "g", "h", "i"] {
            in_session(&mut lab, name);
            lab.step("a", name);
        }
        lab.settings.session = None;
        let other = lab.folder().join("sessions/other/timeline.jsonl");
        // What takes its place may come to the same.
        for aside in ["unread", "unread-2"] {
            displace(&other, folder);
            let refused = lab.open().rm(&[first.to_string()], &RmOptions::default()).unwrap_err();
            let way_out = refused.hint.unwrap().split('`').nth(1).unwrap().to_owned();
            assert!(Command::new("sh").args(["-c", &way_out]).status().unwrap().success(), "{way_out}");
            assert!(other.with_extension(format!("jsonl.{aside}")).is_dir(), "{way_out}");
        }
        let by = PruneOptions { policy: Some("keep-last=1".into()), ..PruneOptions::default() };
        let prune = || lab.open().prune(&by, &mut |_| Ok(()));
        assert_eq!(prune().unwrap_err().kind, ErrorKind::FailedPrecondition);
        if is_told_late {
            in_session(&mut lab, "other");
            lab.step("a", "3");
            lab.settings.session = None;
        }
        let prune = || lab.open().prune(&by, &mut |_| Ok(()));
        assert_eq!(prune().unwrap_err().kind, ErrorKind::FailedPrecondition);
        let gc = || lab.open().gc(&GcOptions::default()).unwrap();
        assert_eq!(gc().failures, [""; 0]);
        let all = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
        assert_eq!(all.len(), 10 + usize::from(is_told_late));
        assert!(all[..10].iter().all(|snapshot| snapshot.kept), "{all:?}");
        // From then on all is as ever.
        lab.step("a", "4");
        lab.step("a", "5");
        assert!(prune().unwrap().removed >= 1);
        assert!(gc().actions.iter().all(|action| !action.contains("pinned")));
        assert!(other.with_extension("jsonl.lost").is_dir());
    }
}

#[test]
fn what_a_session_lists_that_cannot_be_read_is_neither_listed_again_nor_given_up() {
    let mut lab = Lab::new();
    lab.step("a", "1");
    let before = fs::read(lab.timeline_file()).unwrap();
    let lost = lab.step("a", "2").id;
    lab.unwrite(before);
    lab.settings.session = Some(SessionName::new("other").unwrap());
    let others = lab.step("a", "3").id;
    lab.step("a", "4");
    lab.open().restore(others.as_str(), &RestoreOptions::default()).unwrap();
    lab.settings.session = None;
    let other = lab.folder().join("sessions/other/timeline.jsonl");
    let whole = fs::read(&other).unwrap();
    // What is too long can be appended to, and not read.
    let too_long = |path: &Path| {
        let file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.set_len(1 << 30).unwrap();
        let last = whole[..whole.len() - 1].rsplit(|byte| *byte == b'\n').next().unwrap();
        (&file).write_all(&[b"\n", last, b"\n"].concat()).unwrap();
    };
    let damages: [&dyn Fn(&Path); 2] = [&too_long, &|path| displace(path, folder)];
    for damage in damages {
        damage(&other);
        let len = fs::metadata(&other).unwrap().len();
        lab.open().gc(&GcOptions::default()).unwrap();
        assert_eq!(fs::metadata(&other).unwrap().len(), len);
        // What is lost of another session is.
        assert!(lab.open().snapshots(&SnapshotFilter::default()).unwrap().iter().any(|snapshot| snapshot.id == lost));
        let _ = fs::remove_dir_all(&other);
        fs::write(&other, &whole).unwrap();
    }
    lab.settings.session = Some(SessionName::new("other").unwrap());
    lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "4");
}

#[test]
fn a_cache_that_cannot_be_read_is_a_lost_one() {
    let displacements: [&dyn Fn(&Path); 3] =
        [&folder, &fifo, &|path| symlink(path.file_name().unwrap(), path).unwrap()];
    for displacement in displacements {
        let lab = Lab::new();
        let first = lab.step("a", "1");
        displace(&lab.settings.home.join("index.json"), displacement);
        assert_eq!(lab.open().resolve("@").unwrap(), first);
        assert_eq!(lab.open().gc(&GcOptions::default()).unwrap().failures, [""; 0]);
        let call = |prompt: &str| {
            let event = format!(
                "{{\"hook_event_name\":\"UserPromptSubmit\",\"session_id\":\"s\",\"prompt_id\":\"{prompt}\",\"cwd\":{:?},\"prompt\":\"{prompt}\"}}",
                lab.path()
            );
            let event = ah_agents::hook::read(ah_agents::Agent::Claude, &mut event.as_bytes()).unwrap();
            lab.engine().hook(&event, &ah_core::HookContext::default()).unwrap().unwrap().session
        };
        let session = call("one");
        displace(&lab.folder().join("sessions").join(session.as_str()).join("seen"), displacement);
        call("two");
        let events = lab.open().timeline(&TimelineFilter::default()).unwrap().events;
        let json = serde_json::to_string(&events).unwrap();
        assert!(json.contains("\"two\"") && !json.contains("hook-failed"), "{json}");
    }
}

#[test]
fn a_folder_in_the_place_of_a_file_is_nobodys_wrong_word_and_the_home_is_where_it_was() {
    let lab = Lab::new();
    lab.step("a", "1");
    let lock = lab.folder().join("timeline.lock");
    displace(&lock, folder);
    let error = lab.open().snapshot(&SnapshotOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DataLoss);
    assert!(error.hint.unwrap().contains("timeline.lock"));
    let home = lab.settings.home.join("home.json");
    displace(&home, folder);
    let error = ah_core::Engine::open(lab.settings.clone()).err().unwrap();
    assert!(error.hint.unwrap().contains("home.json"));
}

#[test]
fn a_branch_of_the_workspace_in_which_it_was_looked_for_is_no_other_ones() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    let said = |here| lab.engine().foreign_branch(here, "b", |_| "branches".to_owned()).unwrap();
    let error = said(Some(workspace.id()));
    assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Conflict, Some("repeat the command")));
    assert_eq!(said(None).kind, ErrorKind::NotFound);
}
