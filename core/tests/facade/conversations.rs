//! Session branches and rewinding, from outside of core.

use std::fs;
use std::sync::atomic::Ordering;

use ah_core::{
    Access, BranchOptions, ErrorKind, EventBody, GcOptions, ResumeMethod, RmOptions, SnapshotFilter, TimelineFilter,
    UndoOptions,
};

use crate::lab::Lab;
use crate::talk::{ID, Talk, project};

/// A conversation of two turns.
pub(crate) fn talked(lab: &Lab) -> Talk {
    lab.step("a", "0");
    let mut talk = Talk::begin(lab);
    talk.turn(lab, "the first", "1");
    talk.turn(lab, "the second", "2");
    talk
}

#[test]
fn the_copy_lies_where_the_agent_will_look_for_it() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    let made = workspace.session_branch(&talk.branch_of("@prompt", "there")).unwrap();
    let options = ah_core::SessionBranchOptions { can_show: |_| false, ..talk.branch_of("@prompt", "here") };
    let plain = workspace.session_branch(&options).unwrap();
    for (made, cwd) in [(&made, lab.path()), (&plain, plain.branch.path.clone())] {
        assert_eq!((&made.conversation.cwd, made.conversation.method), (&cwd, ResumeMethod::Resume));
        let copy = made.conversation.transcript.as_ref().unwrap();
        let id = made.conversation.agent_session.as_ref().unwrap();
        assert_eq!(*copy, talk.home.claude.join("projects").join(project(&cwd)).join(format!("{id}.jsonl")));
        let text = fs::read_to_string(copy).unwrap();
        assert!(text.contains("done with the first") && !text.contains("the second") && !text.contains(ID), "{text}");
        let words: Vec<_> = made.conversation.command.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words, ["claude", "--resume", id, "--", "go on"]);
        assert_eq!(fs::read_to_string(made.branch.path.join("a")).unwrap(), "1");
    }
    assert_eq!(talk.files().len(), 3);
    // Nothing is left of the work.
    let pending = fs::read_dir(lab.folder().join("conversations")).unwrap().count();
    assert_eq!(pending, 0);
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
    assert_eq!(talk.files().len(), 3);
}

#[test]
fn a_session_branch_is_a_session_of_its_branch() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    let made = workspace.session_branch(&talk.branch_of("@prompt", "retry")).unwrap();
    let own = lab.engine().workspace(&made.branch.path, Access::Existing).unwrap();
    let names = |workspace: &ah_core::Workspace| {
        let listed = workspace.related_sessions().unwrap().into_iter();
        listed.map(|session| (session.record.name.to_string(), session.branch)).collect::<Vec<_>>()
    };
    let named = |name: &str, branch: Option<&str>| (name.to_owned(), branch.map(str::to_owned));
    assert_eq!(names(&workspace), [named("main", None), named("claude-one", None), named("retry", Some("retry"))]);
    assert_eq!(names(&own), [named("claude-one", None), named("retry", None)]);
    let from = made.session.provenance.as_ref().unwrap();
    assert_eq!((&from.from_session_id, &from.fs_snapshot_id), (&talk.session, &made.from.snapshot));
    assert_eq!(from.from_ts, made.from.time);
    for workspace in [&workspace, &own] {
        let events = workspace.timeline(&TimelineFilter::default()).unwrap().events;
        let said = events.iter().filter(|event| matches!(&event.body, EventBody::SessionBranch(_)));
        assert_eq!(said.count(), 1);
    }
    workspace.remove_branch("retry", true).unwrap();
    assert_eq!(names(&workspace).len(), 2);
}

/// Which groups of the timeline begin with a prompt that was left behind.
fn left(workspace: &ah_core::Workspace) -> Vec<bool> {
    let report = workspace.timeline(&TimelineFilter::default()).unwrap();
    report.prompts().iter().map(|group| group.left).collect()
}

#[test]
fn going_back_twice_goes_back_further() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let text = || fs::read_to_string(lab.path().join("a")).unwrap();
    assert_eq!(workspace.prompts(true, 9).unwrap().len(), 3);
    for (left, a) in [(2, "2"), (1, "1"), (0, "0")] {
        let report = workspace.rewind(&talk.back_to("@prompt")).unwrap();
        assert_eq!((text().as_str(), workspace.prompts(true, 9).unwrap().len()), (a, left));
        let session =
            workspace.related_sessions().unwrap().into_iter().find(|listed| listed.record.name == talk.session);
        let agent = session.unwrap().record.agent;
        // Before the first prompt there is nothing to go on with, and the agent starts anew.
        let made = report.conversation.unwrap();
        assert_eq!(made.agent_session.is_some(), left > 0);
        assert_eq!(agent.map(|agent| agent.id), made.agent_session);
    }
    assert_eq!(workspace.rewind(&talk.back_to("@prompt")).unwrap_err().kind, ErrorKind::NotFound);
    // One forward.
    workspace.undo(&UndoOptions::default()).unwrap();
    assert_eq!(text(), "1");
    assert_eq!(workspace.prompts(true, 9).unwrap().len(), 0, "the conversation stays where it is");
    assert_eq!(left(&workspace), [false, true, true, true], "what came before the first prompt is no prompt");
}

#[test]
fn who_goes_on_with_a_conversation_that_was_left_goes_back_in_that() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let text = || fs::read_to_string(lab.path().join("a")).unwrap();
    workspace.rewind(&talk.back_to("@prompt{2}")).unwrap();
    workspace.undo(&UndoOptions::default()).unwrap();
    talk.turn(&lab, "the fourth", "4");
    for (left, a) in [(3, "3"), (2, "2"), (1, "1")] {
        workspace.rewind(&talk.back_to("@prompt")).unwrap();
        assert_eq!((text().as_str(), workspace.prompts(true, 9).unwrap().len()), (a, left));
    }
}

#[test]
fn who_goes_forward_again_goes_back_from_there() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let text = || fs::read_to_string(lab.path().join("a")).unwrap();
    let third = workspace.prompts(true, 9).unwrap()[0].moment.to_string();
    for (to, a) in [("@prompt{2}", "1"), (third.as_str(), "2"), ("@prompt", "1"), ("@prompt", "0")] {
        workspace.rewind(&talk.back_to(to)).unwrap();
        assert_eq!(text(), a, "{to}");
    }
}

#[test]
fn files_and_conversation_that_went_back_apart_from_each_other_meet_again() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    workspace.rewind(&ah_core::RewindOptions { conversation: false, ..talk.back_to("@prompt") }).unwrap();
    workspace.rewind(&ah_core::RewindOptions { files: false, ..talk.back_to("@prompt") }).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "2");
    assert_eq!((workspace.prompts(true, 9).unwrap().len(), workspace.prompts(false, 9).unwrap().len()), (2, 2));
}

#[test]
fn an_undo_after_a_rewind_that_could_change_nothing_takes_back_nothing_older() {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
    if !root {
        return eprintln!("skipped: needs root");
    }
    let lab = Lab::new();
    let mut talk = talked(&lab);
    lab.write("b", "work");
    let workspace = lab.open();
    workspace.restore("@", &ah_core::RestoreOptions::default()).unwrap();
    talk.turn(&lab, "the third", "3");
    let held = crate::restores::Held::new(lab.path().join("a"));
    let files = ah_core::RewindOptions { conversation: false, ..talk.back_to("@prompt") };
    let restored = workspace.rewind(&files).unwrap().restore.unwrap();
    assert_eq!((restored.changes.len(), restored.failed.len()), (0, 1), "{restored:?}");
    drop(held);
    assert_eq!(workspace.undo(&UndoOptions::default()).unwrap_err().kind, ErrorKind::FailedPrecondition);
    assert!(!lab.path().join("b").exists());
}

#[test]
fn what_the_files_went_back_to_alone_counts_until_that_is_undone() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    let files = ah_core::RewindOptions { conversation: false, ..talk.back_to("@prompt") };
    let report = workspace.rewind(&files).unwrap();
    assert!(report.conversation.is_none() && talk.files().len() == 1);
    assert_eq!((workspace.prompts(false, 9).unwrap().len(), left(&workspace)), (1, vec![false, false, true]));
    workspace.undo(&UndoOptions::default()).unwrap();
    assert_eq!((workspace.prompts(false, 9).unwrap().len(), left(&workspace)), (2, vec![false; 3]));
    // The undo undone.
    workspace.undo(&UndoOptions::default()).unwrap();
    assert_eq!(workspace.prompts(false, 9).unwrap().len(), 1);
}

#[test]
fn a_branch_that_cannot_be_made_leaves_nothing_and_offers_another_snapshot() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    lab.fake.clones_fail.store(true, Ordering::Relaxed);
    let error = workspace.session_branch(&talk.branch_of("@prompt", "retry")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    assert!(error.hint.unwrap().starts_with("ah session branch "));
    assert!(workspace.branches().unwrap().is_empty());
    assert_eq!(talk.files().len(), 1);
    lab.fake.clones_fail.store(false, Ordering::Relaxed);
    // The moment's own is gone.
    let point = workspace.point("@prompt").unwrap();
    workspace.rm(&[point.snapshot.id.to_string()], &RmOptions::default()).unwrap();
    let moment = point.moment.unwrap().record.id;
    let error = workspace.session_branch(&talk.branch_of(moment.as_str(), "retry")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    let hint = error.hint.unwrap();
    let offered = hint.split(' ').nth(3).unwrap();
    assert_ne!(offered, point.snapshot.id.as_str());
    workspace.session_branch(&talk.branch_of(offered, "retry")).unwrap();
}

#[test]
fn where_the_agents_home_cannot_be_written_nothing_is_left() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    // A file where the folder for the branch's directory would have to be.
    let options = ah_core::SessionBranchOptions { can_show: |_| false, ..talk.branch_of("@prompt", "retry") };
    let folder = talk.home.claude.join("projects").join(project(&lab.settings.home.join("branches/retry")));
    fs::write(&folder, "").unwrap();
    let error = workspace.session_branch(&options).unwrap_err();
    assert!(!error.message.is_empty());
    assert!(workspace.branches().unwrap().is_empty(), "{error:?}");
    assert_eq!(talk.files().len(), 2);
    assert!(workspace.gc(&GcOptions::default()).unwrap().actions.is_empty());
    fs::remove_file(&folder).unwrap();
    workspace.session_branch(&options).unwrap();
}

#[test]
fn copies_of_whole_transcripts_go_as_recordings_do() {
    let mut lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let copies = |lab: &Lab| -> Vec<std::path::PathBuf> {
        let all = fs::read_dir(lab.folder().join("sessions/claude-one")).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("untrimmed-")).collect()
    };
    lab.open().rewind(&talk.back_to("@prompt")).unwrap();
    let newest = lab.open().rewind(&talk.back_to("@prompt")).unwrap().conversation.unwrap();
    assert_eq!(copies(&lab).len(), 2);
    let run = |lab: &Lab| {
        lab.wait(4_000);
        assert!(lab.open().gc(&GcOptions { auto: true }).unwrap().failures.is_empty());
    };
    run(&lab);
    run(&lab);
    assert_eq!(copies(&lab).len(), 2, "by the default policy they stay");
    lab.settings.environment.insert("prune.recordings".into(), "max-size=1B".into());
    run(&lab);
    assert_eq!(copies(&lab), [newest.untrimmed.unwrap()]);
    assert!(talk.file.exists());
}

/// How this process is written down.
fn me(lab: &Lab) -> serde_json::Value {
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions::default()).unwrap();
    let record = lab.settings.home.join(format!("branches/{}.json", branch.id));
    let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    workspace.remove_branch(&branch.name, true).unwrap();
    record["maker"].clone()
}

/// What a process that was killed while it made the conversation `id` would have written down of it.
fn unfinished(lab: &Lab, id: &str, more: &serde_json::Value) {
    let workspace = lab.open();
    let mut maker = me(lab);
    maker["start"] = 1.into();
    let mut intent = serde_json::json!({
        "version": 1, "id": id, "maker": maker, "workspace": workspace.id().as_str(), "session": "claude-one",
    });
    intent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let folder = lab.folder().join("conversations");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{id}.json")), intent.to_string()).unwrap();
}

#[test]
fn who_was_killed_before_the_timeline_said_so_has_gone_back_all_the_same() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let id = workspace.rewind(&talk.back_to("@prompt")).unwrap().conversation.unwrap().agent_session.unwrap();
    let timeline = lab.folder().join("sessions/claude-one/timeline.jsonl");
    let text = fs::read_to_string(&timeline).unwrap();
    let (before, last) = text.trim_end().rsplit_once('\n').unwrap();
    let event: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["type"], "rewind", "{event}");
    fs::write(&timeline, format!("{before}\n")).unwrap();
    unfinished(&lab, &id, &serde_json::json!({"rewind": event}));
    assert_eq!(lab.open().prompts(true, 9).unwrap().len(), 3, "as if it had not gone back");
    let workspace = lab.open();
    workspace.rewind(&talk.back_to("@prompt")).unwrap();
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "1");
    let notices = workspace.engine().take_notices();
    assert!(notices.iter().any(|notice| notice.message.contains("went back to")), "{notices:?}");
    assert_eq!(fs::read_dir(lab.folder().join("conversations")).unwrap().count(), 0);
}

#[test]
fn one_that_cannot_be_read_keeps_no_other_from_being_finished() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let ids = [1, 5, 9].map(|n| format!("{n}0000000-0000-4000-8000-000000000000"));
    ids.iter().for_each(|id| unfinished(&lab, id, &serde_json::json!({})));
    let file = |id: &str| lab.folder().join(format!("conversations/{id}.json"));
    for id in &ids {
        fs::write(file(id), "{").unwrap();
        let report = lab.open().gc(&GcOptions::default()).unwrap();
        let told = |at: usize| report.actions.iter().any(|action| action.contains(&ids[at]));
        assert_eq!((report.failures.len(), report.actions.len()), (1, 2), "{report:?}");
        assert!(
            report.failures[0].contains(file(id).to_str().unwrap()) && (0..3).all(|at| told(at) == (ids[at] != *id))
        );
        ids.iter().for_each(|id| unfinished(&lab, id, &serde_json::json!({})));
    }
    assert_eq!(talk.files().len(), 1);
}

#[test]
fn a_conversation_that_a_session_had_once_is_not_taken_away() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let back = || lab.open().rewind(&talk.back_to("@prompt")).unwrap().conversation.unwrap();
    let first = back();
    back();
    let copy = first.transcript.unwrap();
    let made = serde_json::json!([{"path": copy, "bytes": fs::metadata(&copy).unwrap().len()}]);
    unfinished(&lab, &first.agent_session.unwrap(), &serde_json::json!({"files": made}));
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(copy.exists() && report.failures.is_empty(), "{report:?}");
    assert_eq!(fs::read_dir(lab.folder().join("conversations")).unwrap().count(), 0);
}

#[test]
fn conversations_among_the_workspaces_files_are_not_restored_over() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let inside = lab.path().join(".claude");
    let options = |talk: &Talk| {
        let mut options = talk.back_to("@prompt");
        options.agents.claude.clone_from(&inside);
        options
    };
    talk.turn(&lab, "the third", "3");
    let error = lab.open().rewind(&options(&talk)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    assert!(error.hint.unwrap().contains("/.claude/projects/"));
    assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "3");
    assert!(talk.file.exists() && !inside.join("projects").exists());
    let alone = ah_core::RewindOptions { files: false, ..options(&talk) };
    assert!(lab.open().rewind(&alone).unwrap().conversation.unwrap().transcript.unwrap().exists());
}

#[test]
fn nor_are_they_where_the_agents_home_is_spelled_through_a_link() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let (inside, link) = (lab.path().join("claude"), lab.top.join("link"));
    fs::create_dir(&inside).unwrap();
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    let mut options = talk.back_to("@prompt");
    options.agents.claude.clone_from(&link);
    let error = lab.open().rewind(&options).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    assert!(error.hint.unwrap().contains("/claude/projects/"));
    // Where a branch is shown at the workspace's path, the agent finds the branch's folder there.
    let mut options = talk.branch_of("@prompt", "retry");
    options.agents.claude = link;
    let made = lab.open().session_branch(&options).unwrap();
    let copy = made.conversation.transcript.unwrap();
    assert!(copy.starts_with(made.branch.path.join("claude")) && copy.exists(), "{copy:?}");
}

#[test]
fn nor_is_the_one_that_there_was_where_no_copy_is_made() {
    let lab = Lab::new();
    lab.step("a", "0");
    let mut talk = Talk::begin(&lab);
    talk.keeps_below(&lab.path().join(".claude"));
    talk.turn(&lab, "the first", "1");
    talk.turn(&lab, "the second", "2");
    let refused = |to: &str, text: &str| {
        let error = lab.open().rewind(&talk.back_to(to)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
        assert!(error.hint.unwrap().contains("/.claude/projects/"));
        assert_eq!(fs::read_to_string(&talk.file).unwrap(), text);
        assert_eq!(fs::read_to_string(lab.path().join("a")).unwrap(), "2");
    };
    let first = lab.open().prompts(true, 9).unwrap()[1].moment.to_string();
    refused(&first, &fs::read_to_string(&talk.file).unwrap());
    // It cannot be cut.
    fs::write(&talk.file, "{}\n").unwrap();
    refused("@prompt", "{}\n");
}

#[test]
fn what_was_removed_at_the_old_end_is_said_and_the_next_named() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let workspace = lab.open();
    let first = workspace.prompts(true, 9).unwrap().pop().unwrap();
    let point = workspace.point(first.moment.as_str()).unwrap();
    let snapshots = workspace.snapshots(&SnapshotFilter::default()).unwrap();
    let (old, left) = snapshots.split_at(snapshots.iter().position(|it| it.id == point.snapshot.id).unwrap() + 1);
    let old: Vec<String> = old.iter().map(|snapshot| snapshot.id.to_string()).collect();
    workspace.rm(&old, &RmOptions::default()).unwrap();
    for error in [
        workspace.session_branch(&talk.branch_of(first.moment.as_str(), "retry")).unwrap_err(),
        workspace.rewind(&talk.back_to(first.moment.as_str())).unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
        assert!(error.message.contains("was removed"), "{error:?}");
        assert!(error.hint.unwrap().contains(left[0].id.as_str()));
    }
    let taken = workspace.session_branch(&talk.branch_of("@prompt", "claude-one")).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::AlreadyExists, "{taken:?}");
}

#[test]
fn who_is_told_the_prompts_anew_hears_those_until_then_whatever_became_of_the_transcript() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let second = workspace.prompts(true, 9).unwrap()[1].moment.to_string();
    let whole = fs::read_to_string(&talk.file).unwrap();
    // What is left is shorter: by where it lies, all of it would be before that place.
    let prompts = |line: &&str| line.contains(r#""content":"the "#);
    let short: String = whole.lines().filter(prompts).map(|line| format!("{line}\n")).collect();
    for (text, told) in [(short, "the first"), (String::new(), "the first")] {
        fs::write(&talk.file, text).unwrap();
        let made = workspace.session_branch(&talk.branch_of(&second, "retry")).unwrap();
        assert_eq!((made.conversation.method, made.conversation.replayed), (ResumeMethod::Replay, 1));
        let command = made.conversation.command.last().unwrap().to_str().unwrap();
        assert!(command.contains(told) && !command.contains("the second"), "{command}");
        workspace.remove_branch("retry", true).unwrap();
    }
}

#[test]
fn a_moment_without_a_place_is_in_the_conversation_that_there_was_then() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let workspace = lab.open();
    let before = talk.mark(&lab);
    let back = || workspace.rewind(&talk.back_to("@prompt")).unwrap();
    back();
    let between = talk.mark(&lab);
    back();
    let copy_of = |moment: &str, name: &str| {
        let made = workspace.session_branch(&talk.branch_of(moment, name)).unwrap();
        let copy = fs::read_to_string(made.conversation.transcript.as_ref().unwrap()).unwrap();
        assert!(copy.contains("done with the first"), "{copy}");
        let a = fs::read_to_string(made.branch.path.join("a")).unwrap();
        (a, copy.contains("done with the second"), copy.contains("done with the third"), made.conversation.notes)
    };
    assert_eq!(copy_of(&before, "before"), ("3".to_owned(), true, true, vec![]));
    assert_eq!(copy_of(&between, "between"), ("2".to_owned(), true, false, vec![]));
    let now = talk.mark(&lab);
    assert_eq!(copy_of(&now, "now"), ("1".to_owned(), false, false, vec![]));
    // When the agent has ended, or has begun another conversation, it is the one that there was.
    talk.end(&lab);
    let late = talk.mark(&lab);
    let (.., notes) = copy_of(&late, "late");
    assert!(notes.iter().any(|note| note.contains("was over by then")), "{notes:?}");
}

#[test]
fn the_agent_that_still_runs_is_named_however_often_its_session_went_back() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let mut process = me(&lab);
    talk.calls_by(&lab, &process);
    let runs = || ah_core::RewindOptions { run: true, ..talk.back_to("@prompt") };
    for left in [2, 1] {
        let report = lab.open().rewind(&talk.back_to("@prompt")).unwrap();
        assert!(report.notes.iter().any(|note| note.contains("still runs")), "{left}: {report:?}");
        let files = talk.files();
        let error = lab.open().rewind(&runs()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
        assert!(error.hint.unwrap().contains(&format!("process {}", std::process::id())));
        assert_eq!((talk.files(), lab.open().prompts(true, 9).unwrap().len()), (files, left), "nothing was done");
    }
    process["start"] = 1.into();
    talk.calls_by(&lab, &process);
    assert_eq!(lab.open().rewind(&runs()).unwrap().notes, [""; 0]);
}
