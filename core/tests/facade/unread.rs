//! Files of the state that cannot be read: damaged, or something else in their place. What has a second copy, or is a cache, stops nothing, and of the rest is told.

use crate::lab::{Lab, kinds};
use ah_core::{
    Access, BranchOptions, ErrorKind, FaultKind, GcOptions, NoticeKind, PruneOptions, SessionName, SnapshotFilter,
    SnapshotOptions, TimelineFilter,
};
use ah_plugin_api::Durability;
use nix::sys::stat::Mode;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

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
    fs::write(&record, "").unwrap();
    assert_eq!(lab.open().find_branch("b").unwrap(), branch);
    no_backups(&record);
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
    let branch = lab.open().branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    lab.open().remove_branch("b", true).unwrap();
    let names = fs::read_dir(lab.settings.home.join("branches")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains(branch.id.as_str())).collect();
    assert!(left.is_empty(), "{left:?}");
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
