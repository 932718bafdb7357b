//! What moments show whose snapshots come late.

use std::fs;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ah_agents::Agent;
use ah_core::{
    ErrorKind, HookContext, Moment, MomentKind, MomentTool, NewMoment, NoticeKind, RestoreOptions, RmOptions,
    SessionName, SnapshotFilter, TranscriptPosition, UndoOptions,
};
use rustix::fs::{FlockOperation, flock};

use crate::lab::{Lab, kinds};

/// A moment that waits for its snapshot, after a file was written.
fn waiting(lab: &Lab, text: &str) {
    lab.write("a", text);
    another(lab);
}

pub(crate) fn another(lab: &Lab) {
    lab.wait(1);
    lab.open().add_moment(&SessionName::main(), NewMoment::new(MomentKind::Stop)).unwrap();
}

pub(crate) fn captured(lab: &Lab) -> Moment {
    lab.open().capture().unwrap();
    lab.open().moments(None).unwrap().pop().unwrap()
}

#[test]
fn what_was_put_back_before_the_snapshot_makes_it_inexact() {
    let lab = Lab::new();
    lab.step("a", "0");
    let mut put_back: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| drop(lab.open().restore("@", &RestoreOptions::default()).unwrap())),
        Box::new(|| drop(lab.open().undo(&UndoOptions::default()).unwrap())),
    ];
    for (at, put_back) in put_back.drain(..).enumerate() {
        waiting(&lab, &format!("before {at}"));
        put_back();
        let moment = captured(&lab).record;
        assert_eq!((moment.inexact, moment.exact()), (true, None), "{moment:?}");
        assert!(moment.reason.is_some_and(|reason| reason.contains("restored")));
        waiting(&lab, &format!("after {at}"));
        assert!(captured(&lab).record.exact().is_some());
    }
    // What is only looked at changes nothing.
    waiting(&lab, "more");
    lab.open().restore("@", &RestoreOptions { dry_run: true, ..RestoreOptions::default() }).unwrap();
    assert!(captured(&lab).record.exact().is_some());
}

#[test]
fn what_is_captured_while_files_are_put_back_is_inexact() {
    let lab = Lab::new();
    lab.step("a", "0");
    waiting(&lab, "half-way");
    let restoring = fs::File::create(lab.folder().join("restore.lock")).unwrap();
    flock(&restoring, FlockOperation::LockExclusive).unwrap();
    let moment = captured(&lab).record;
    assert!(moment.inexact && moment.reason.unwrap().contains("restored"));
    drop(restoring);
    waiting(&lab, "done");
    assert!(captured(&lab).record.exact().is_some());
}

#[test]
fn a_session_that_cannot_be_served_does_not_stop_the_others() {
    let lab = Lab::new();
    lab.step("a", "0");
    let (broken, sound) = (SessionName::new("broken").unwrap(), SessionName::new("sound").unwrap());
    for session in [&broken, &sound] {
        lab.write("a", session.as_str());
        lab.wait(1);
        lab.open().add_moment(session, NewMoment::new(MomentKind::Stop)).unwrap();
    }
    let timeline = lab.folder().join("sessions/broken/timeline.jsonl");
    let aside = lab.folder().join("aside");
    fs::rename(&timeline, &aside).unwrap();
    fs::create_dir(&timeline).unwrap();
    lab.open().capture().unwrap_err();
    fs::remove_dir(&timeline).unwrap();
    fs::rename(&aside, &timeline).unwrap();
    let of = |session: &SessionName| lab.open().moments(Some(session)).unwrap().pop().unwrap().record.snapshot;
    assert!(of(&broken).is_none() && of(&sound).is_some());
    lab.open().capture().unwrap();
    assert!(of(&broken).is_some());
}

#[test]
fn a_moment_that_nobody_heard_of_says_so_in_time() {
    let lab = Lab::new();
    lab.step("a", "0");
    let reason = || {
        lab.open().gc(&ah_core::GcOptions::default()).unwrap();
        lab.open().moments(None).unwrap().pop().unwrap().record.reason
    };
    waiting(&lab, "1");
    fs::remove_dir_all(lab.folder().join("pending")).unwrap();
    assert_eq!(reason(), None, "its hook may be at it");
    lab.wait(601);
    assert!(reason().unwrap().contains("nobody heard of it"));
    // Said once.
    let said = lab.open().timeline(&ah_core::TimelineFilter::default()).unwrap().events.len();
    reason();
    assert_eq!(lab.open().timeline(&ah_core::TimelineFilter::default()).unwrap().events.len(), said);
}

#[test]
fn what_waited_when_the_machine_went_down_is_inexact() {
    let lab = Lab::new();
    lab.step("a", "0");
    waiting(&lab, "1");
    let file = fs::read_dir(lab.folder().join("pending")).unwrap().next().unwrap().unwrap().path();
    let mut left: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(!left["boot"].as_str().unwrap().is_empty());
    left["boot"] = "another".into();
    fs::write(&file, left.to_string()).unwrap();
    let moment = captured(&lab).record;
    assert!(moment.inexact && moment.snapshot.is_some(), "{moment:?}");
    assert!(moment.reason.is_some_and(|reason| reason.contains("started anew")));
}

#[test]
fn a_snapshot_that_is_gone_serves_no_moment() {
    let lab = Lab::new();
    lab.fake.treeless.store(true, Ordering::Relaxed);
    lab.step("a", "0");
    waiting(&lab, "1");
    let first = captured(&lab).record.snapshot.unwrap();
    another(&lab);
    assert_eq!(captured(&lab).record.snapshot.as_ref(), Some(&first), "nothing has changed");
    lab.open().rm(&[first.to_string()], &RmOptions::default()).unwrap();
    another(&lab);
    let now = captured(&lab).record.exact().cloned().unwrap();
    let there = lab.open().snapshots(&SnapshotFilter::default()).unwrap();
    assert!(now != first && there.iter().any(|snapshot| snapshot.id == now));
}

#[test]
fn whether_a_snapshot_is_shared_is_asked_of_the_end_of_the_timeline_alone() {
    let lab = Lab::new();
    lab.fake.treeless.store(true, Ordering::Relaxed);
    lab.step("a", "0");
    waiting(&lab, "1");
    let first = captured(&lab).record.snapshot;
    let text = fs::read_to_string(lab.timeline_file()).unwrap();
    let shared = || {
        another(&lab);
        let workspace = lab.open();
        workspace.capture().unwrap();
        let read_whole = kinds(&workspace.engine().take_notices()).contains(&NoticeKind::TimelineDamaged);
        (workspace.moments(None).unwrap().pop().unwrap().record.snapshot == first, read_whole)
    };
    // A damaged line is a notice to whoever reads it.
    fs::write(lab.timeline_file(), text.replacen("\"crc\":\"", "\"crc\":\"x", 1)).unwrap();
    for _ in 0..3 {
        assert_eq!(shared(), (true, false));
    }
    // What cannot be read might be that the other one was removed.
    let text = fs::read_to_string(lab.timeline_file()).unwrap();
    let last = text.rfind("\"crc\":\"").unwrap();
    fs::write(lab.timeline_file(), format!("{}x{}", &text[..last], &text[last..])).unwrap();
    assert!(!shared().0);
}

#[test]
fn a_call_waits_for_others_no_longer_than_until_its_end() {
    let mut lab = Lab::new();
    lab.step("a", "0");
    let call = |lab: &Lab, session: &str, event: &str| {
        let event = format!(r#"{{"session_id":"{session}","cwd":{:?},"hook_event_name":"{event}"}}"#, lab.path());
        let event = ah_agents::hook::read(Agent::Claude, &mut event.as_bytes()).unwrap();
        lab.engine().hook(&event, &HookContext::default())
    };
    lab.settings.deadline = Some(Instant::now());
    let since = Instant::now();
    call(&lab, "s1", "SessionStart").unwrap().unwrap();
    let home = lab.settings.home.clone();
    let hold = |file: &std::path::Path| {
        let file = fs::File::create(file).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    };
    let held: Vec<_> = (0..16).map(|digit| hold(&home.join(format!("agents-{digit:x}.lock")))).collect();
    assert_eq!(call(&lab, "s2", "Stop").unwrap_err().kind, ErrorKind::Busy);
    drop(held);
    let held = hold(&lab.folder().join("timeline.lock"));
    call(&lab, "s1", "Stop").unwrap().unwrap();
    assert_eq!(lab.open().moments(None).unwrap().len(), 1, "the other one waits beside the timeline");
    drop(held);
    // The first moment waits still: each of these would hold the agent up for two seconds.
    for _ in 0..8 {
        call(&lab, "s1", "UserPromptSubmit").unwrap();
    }
    let kinds: Vec<_> = lab.open().moments(None).unwrap().iter().map(|moment| moment.record.kind).collect();
    assert_eq!((&kinds[..3], kinds.len()), (&[MomentKind::SessionStart, MomentKind::Stop, MomentKind::Prompt][..], 10));
    assert!(since.elapsed() < Duration::from_secs(12), "{:?}", since.elapsed());
}

#[test]
fn late_places_are_looked_for_when_captures_are_done_and_all_at_once() {
    let lab = Lab::new();
    lab.step("a", "0");
    let file = lab.top.join("transcript");
    let result = |at: usize| {
        let content = serde_json::json!([{"type": "tool_result", "tool_use_id": format!("t{at}"), "content": "ok"}]);
        let message = serde_json::json!({"role": "user", "content": content});
        format!("{}\n", serde_json::json!({"type": "user", "message": message, "uuid": format!("u{at}")}))
    };
    fs::write(&file, (1..=3).map(result).collect::<String>()).unwrap();
    let tool = |at: usize| {
        let transcript = Some(TranscriptPosition { file: file.clone(), line: 0, offset: 0, uuid: None });
        let tool = Some(MomentTool { name: "Bash".to_owned(), id: Some(format!("t{at}")), about: None });
        let new = NewMoment { transcript, tool, agent: Some(Agent::Claude), ..NewMoment::new(MomentKind::Tool) };
        lab.open().add_moment(&SessionName::main(), new).unwrap();
    };
    let lines = || -> Vec<u64> {
        let moments = lab.open().moments(None).unwrap().into_iter();
        moments.map(|moment| moment.record.transcript.unwrap().line).collect()
    };
    // As if another worker looked.
    let looking = fs::File::create(lab.folder().join("late.lock")).unwrap();
    flock(&looking, FlockOperation::LockExclusive).unwrap();
    [2, 1].into_iter().for_each(tool);
    assert!(captured(&lab).record.exact().is_some());
    assert_eq!(lines(), [0, 0]);
    drop(looking);
    tool(3);
    captured(&lab);
    assert_eq!(lines(), [2, 1, 3]);
}

#[test]
fn a_call_reads_only_so_much_of_a_transcript_and_the_place_is_found_behind_it() {
    let lab = Lab::new();
    lab.step("a", "0");
    let file = lab.top.join("transcript");
    let write = |at: u64, text: &str| {
        let transcript = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&transcript, text.as_bytes(), at).unwrap();
    };
    (1..=4).for_each(|line| write(line * (50 << 20) - 1, "\n"));
    write(
        200 << 20,
        "{\"type\":\"user\",\"message\":{\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":\"ok\"}]}}\n",
    );
    let event = serde_json::json!({
        "session_id": "s", "cwd": lab.path(), "transcript_path": file,
        "hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_use_id": "t1",
    });
    let event = ah_agents::hook::read(Agent::Claude, &mut event.to_string().as_bytes()).unwrap();
    lab.engine().hook(&event, &HookContext::default()).unwrap();
    let line = || lab.open().moments(None).unwrap().pop().unwrap().record.transcript.unwrap().line;
    assert_eq!(line(), 2);
    lab.open().capture().unwrap();
    assert_eq!(line(), 5);
}

/// A line of a transcript with the result of that call.
fn result_of(id: &str) -> String {
    let content = serde_json::json!([{"type": "tool_result", "tool_use_id": id, "content": "ok"}]);
    format!("{}\n", serde_json::json!({"type": "user", "message": {"role": "user", "content": content}}))
}

/// A call of the agent's, whose transcript is `file`.
pub(crate) fn call(lab: &Lab, file: &std::path::Path, event: &str, more: &serde_json::Value) {
    let mut fields = serde_json::json!({
        "session_id": "s", "cwd": lab.path(), "transcript_path": file, "hook_event_name": event,
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let event = ah_agents::hook::read(Agent::Claude, &mut fields.to_string().as_bytes()).unwrap();
    lab.engine().hook(&event, &HookContext::default()).unwrap();
}

fn last_line(lab: &Lab) -> u64 {
    lab.open().moments(None).unwrap().pop().unwrap().record.transcript.unwrap().line
}

#[test]
fn a_tools_result_is_looked_for_behind_the_call_before_alone() {
    let lab = Lab::new();
    lab.step("a", "0");
    let file = lab.top.join("transcript");
    // Who read all of the turn would find an earlier one by that id.
    let before = [result_of("t1"), "{}\n".to_owned()].concat();
    fs::write(&file, &before).unwrap();
    call(&lab, &file, "SessionStart", &serde_json::json!({"source": "resume"}));
    call(&lab, &file, "PostToolUse", &serde_json::json!({"tool_name": "Bash", "tool_use_id": "t1"}));
    assert_eq!(last_line(&lab), 2);
    fs::write(&file, [before, "{}\n".to_owned(), result_of("t1"), "{}\n".to_owned()].concat()).unwrap();
    lab.open().capture().unwrap();
    assert_eq!(last_line(&lab), 4);
}

#[test]
fn a_sub_agents_tool_is_looked_for_in_no_transcript() {
    let lab = Lab::new();
    lab.step("a", "0");
    let file = lab.top.join("transcript");
    fs::write(&file, "{}\n").unwrap();
    let tool = serde_json::json!({"tool_name": "Bash", "tool_use_id": "t1", "agent_id": "a1", "agent_type": "Explore"});
    call(&lab, &file, "PostToolUse", &tool);
    fs::write(&file, ["{}\n".to_owned(), result_of("t1")].concat()).unwrap();
    lab.open().capture().unwrap();
    assert_eq!(last_line(&lab), 1);
}

#[test]
fn what_older_versions_left_is_looked_for_from_the_last_prompt_on() {
    let lab = Lab::new();
    lab.step("a", "0");
    let file = lab.top.join("transcript");
    fs::write(&file, "{}\n").unwrap();
    call(&lab, &file, "PostToolUse", &serde_json::json!({"tool_name": "Bash", "tool_use_id": "t1"}));
    call(&lab, &file, "PostToolUse", &serde_json::json!({"tool_name": "Bash", "tool_use_id": "t2"}));
    for left in fs::read_dir(lab.folder().join("pending")).unwrap().map(|entry| entry.unwrap().path()) {
        let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&left).unwrap()).unwrap();
        fields["late"].as_object_mut().unwrap().remove("from");
        fs::write(&left, fields.to_string()).unwrap();
    }
    fs::write(&file, [result_of("t1"), result_of("t2")].concat()).unwrap();
    lab.open().capture().unwrap();
    assert_eq!(last_line(&lab), 2);
}

#[test]
fn a_line_of_any_length_keeps_no_later_moment_from_a_recording() {
    let lab = Lab::new();
    lab.step("a", "0");
    let workspace = lab.open();
    let (recording, mut file) = workspace.begin_recording().unwrap();
    file.write_all(b"{}\n").unwrap();
    let mut follower = workspace.follow_moments(&recording).unwrap();
    let mut timeline =
        fs::OpenOptions::new().append(true).open(lab.folder().join("sessions/main/timeline.jsonl")).unwrap();
    timeline.write_all(&[vec![b'x'; 3 << 20], b"\n".to_vec()].concat()).unwrap();
    another(&lab);
    let mut found = 0;
    follower.look(|_| found += 1);
    assert_eq!(found, 1);
}
