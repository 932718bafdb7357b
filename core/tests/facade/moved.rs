//! Conversations whose transcripts were moved since: by Claude Code's `/cd` to another project's folder, by `codex archive`.

use std::fs;
use std::io::Write;
use std::path::Path;

use ah_core::{MomentKind, NewMoment, ResumeMethod, TranscriptPosition};

use crate::conversations::talked;
use crate::cuts::copy_of;
use crate::lab::Lab;
use crate::moments::call;
use crate::talk::Talk;

/// Appends the line of what was typed while the agent was at work.
fn type_meanwhile(file: &Path, text: &str) {
    let time = "2999-01-01T00:00:00.000Z";
    let attachment = serde_json::json!({
        "type": "queued_command", "prompt": text, "commandMode": "prompt", "origin": {"kind": "human"}, "timestamp": time,
    });
    let line = serde_json::json!({"type": "attachment", "attachment": attachment, "uuid": text, "timestamp": time});
    let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
    writeln!(file, "{line}").unwrap();
}

#[test]
fn what_was_typed_meanwhile_is_told_once_though_the_transcript_is_moved() {
    let lab = Lab::new();
    lab.step("a", "0");
    let (file, moved) = (lab.top.join("one/t.jsonl"), lab.top.join("other/t.jsonl"));
    [&file, &moved].into_iter().for_each(|file| fs::create_dir(file.parent().unwrap()).unwrap());
    fs::write(&file, "{}\n").unwrap();
    let tool = |file, id| call(&lab, file, "PostToolUse", &serde_json::json!({"tool_name": "Bash", "tool_use_id": id}));
    call(&lab, &file, "SessionStart", &serde_json::json!({"source": "startup"}));
    type_meanwhile(&file, "one");
    tool(&file, "t1");
    let session = lab.open().moments(None).unwrap().pop().unwrap().session;
    let counted = lab.folder().join("sessions").join(session.as_str()).join("transcript");
    let before = fs::read(&counted).unwrap();
    type_meanwhile(&file, "two");
    tool(&file, "t2");
    // As a call has it that ran beside that one.
    fs::write(&counted, before).unwrap();
    fs::rename(&file, &moved).unwrap();
    type_meanwhile(&moved, "three");
    tool(&moved, "t3");
    let prompts = lab.open().moments(None).unwrap().into_iter().filter_map(|moment| moment.record.prompt);
    assert_eq!(prompts.collect::<Vec<_>>(), ["one", "two", "three"]);
}

/// The moment of a prompt.
fn prompt(lab: &Lab, text: &str) -> String {
    let moments = lab.open().moments(None).unwrap();
    moments.into_iter().find(|moment| moment.record.prompt.as_deref() == Some(text)).unwrap().record.id.to_string()
}

/// That what the conversation is from there on ends with that turn.
fn ends_with(lab: &Lab, talk: &Talk, from: &str, last: &str, next: &str) {
    let copy = copy_of(lab, talk, from);
    assert!(copy.contains(&format!("done with {last}")) && !copy.contains(next), "{from}: {copy}");
}

#[test]
fn a_conversation_is_taken_up_at_moments_before_and_after_its_transcript_was_moved() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let marked = talk.mark(&lab);
    talk.moves_to("-elsewhere");
    talk.turn(&lab, "the third", "3");
    talk.moves_to("-elsewhere-still");
    talk.turn(&lab, "the fourth", "4");
    for (from, last, next) in [
        (prompt(&lab, "the second"), "the first", "the second"),
        (marked, "the second", "the third"),
        (prompt(&lab, "the third"), "the second", "the third"),
        (prompt(&lab, "the fourth"), "the third", "the fourth"),
    ] {
        ends_with(&lab, &talk, &from, last, next);
    }
    // Back and forth.
    for (to, last) in [("the third", "the second"), ("the second", "the first"), ("the fourth", "the third")] {
        let back = lab.open().rewind(&talk.back_to(&prompt(&lab, to))).unwrap().conversation.unwrap();
        assert_eq!((back.method, back.notes), (ResumeMethod::Resume, Vec::<String>::new()));
        let untrimmed = fs::read(back.untrimmed.unwrap()).unwrap();
        assert_eq!(untrimmed, fs::read(&talk.file).unwrap(), "a copy of the whole");
        let copy = fs::read_to_string(back.transcript.unwrap()).unwrap();
        assert!(copy.contains(&format!("done with {last}")) && !copy.contains(to), "{to}: {copy}");
    }
}

#[test]
fn a_conversation_that_was_left_and_then_moved_is_gone_on_with_where_it_was() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let marked = talk.mark(&lab);
    lab.open().rewind(&talk.back_to("@prompt")).unwrap();
    talk.moves_to("-elsewhere");
    ends_with(&lab, &talk, &marked, "the second", "the third");
    talk.turn(&lab, "the third", "3");
    // It counts from there, not from what was gone back to.
    ends_with(&lab, &talk, "@prompt", "the second", "the third");
    ends_with(&lab, &talk, "@prompt{2}", "the first", "the second");
}

#[test]
fn what_was_typed_meanwhile_is_gone_back_to_though_the_transcript_was_moved() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let text = fs::read_to_string(&talk.file).unwrap();
    let before = TranscriptPosition {
        file: talk.file.clone(),
        line: text.lines().count() as u64,
        offset: text.len() as u64,
        uuid: None,
    };
    type_meanwhile(&talk.file, "the third");
    let typed =
        NewMoment { prompt: Some("the third".to_owned()), meanwhile: true, ..NewMoment::new(MomentKind::Prompt) };
    lab.open().add_moment(&talk.session, NewMoment { transcript: Some(before), ..typed }).unwrap();
    lab.open().capture().unwrap();
    talk.moves_to("-elsewhere");
    ends_with(&lab, &talk, &prompt(&lab, "the third"), "the second", "the third");
}

#[test]
fn of_a_transcript_that_is_nowhere_the_prompts_are_told() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.moves_to("-elsewhere");
    fs::remove_file(&talk.file).unwrap();
    let back = lab.open().rewind(&talk.back_to("@prompt")).unwrap().conversation.unwrap();
    assert_eq!((back.method, back.replayed), (ResumeMethod::Replay, 1));
    // It is called by where it was known to be.
    let known = Talk::known(&lab.top).file;
    assert!(back.notes.iter().any(|note| note.contains(known.to_str().unwrap())), "{:?}", back.notes);
}

#[test]
fn a_conversation_of_codex_is_taken_up_in_its_archive_and_out_of_it() {
    let lab = Lab::new();
    lab.step("a", "0");
    let talk = Talk::begin(&lab);
    fs::copy(lab.top.join("bin/claude"), lab.top.join("bin/codex")).unwrap();
    let id = "01900000-0000-7000-8000-000000000001";
    let file = talk.home.codex.join(format!("sessions/2026/11/21/rollout-2026-11-21T22-47-14-{id}.jsonl"));
    let archived = talk.home.codex.join("archived_sessions").join(file.file_name().unwrap());
    for file in [&file, &archived] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    let line = |kind: &str, payload: serde_json::Value| {
        let time = ah_core::text::format_time(lab.settings.clock.now());
        format!("{}\n", serde_json::json!({"timestamp": time, "type": kind, "payload": payload}))
    };
    let said = |text: &str| line("event_msg", serde_json::json!({"type": "user_message", "message": text}));
    let begin = line("session_meta", serde_json::json!({"id": id, "cwd": lab.path()})) + &said("the first");
    fs::write(&file, &begin).unwrap();
    let session = ah_core::SessionName::new("codex-one").unwrap();
    let at = TranscriptPosition { file: file.clone(), line: 2, offset: begin.len() as u64, uuid: None };
    lab.open().add_moment(&session, NewMoment { transcript: Some(at), ..NewMoment::new(MomentKind::Manual) }).unwrap();
    lab.open().capture().unwrap();
    let moment = lab.open().moments(None).unwrap().pop().unwrap().record.id.to_string();
    let record = lab.folder().join("sessions/codex-one/session.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    fields["agent"] = serde_json::json!({"name": "codex", "id": id, "transcript": file, "start": lab.path()});
    fs::write(&record, fields.to_string()).unwrap();
    lab.wait(10);
    fs::write(&file, begin.clone() + &said("the second")).unwrap();
    for (from, to) in [(&file, &archived), (&archived, &file), (&file, &archived)] {
        fs::rename(from, to).unwrap();
        let copy = copy_of(&lab, &talk, &moment);
        assert!(copy.contains("the first") && !copy.contains("the second"), "{copy}");
    }
    // One that cannot be cut gives its prompts until then.
    fs::write(&archived, begin.replace("session_meta", "another_line") + &said("the second")).unwrap();
    let made = lab.open().session_branch(&talk.branch_of(&moment, "cut")).unwrap().conversation;
    assert_eq!((made.method, made.replayed), (ResumeMethod::Replay, 1), "{:?}", made.notes);
}

/// It is looked for again and again; from nowhere nothing better comes than what was known.
#[test]
fn a_place_that_was_known_stays_where_the_transcript_is_moved_before_all_of_it_is_read() {
    for moves in [&["gone/t.jsonl"][..], &["projects/b/t.jsonl"], &["projects/b/t.jsonl", "gone/t.jsonl"]] {
        let lab = Lab::new();
        lab.step("a", "0");
        let mut file = lab.top.join("projects/a/t.jsonl");
        for folder in ["projects/a", "projects/b", "gone"] {
            fs::create_dir_all(lab.top.join(folder)).unwrap();
        }
        fs::write(&file, "{\"type\":\"mode\"}\n{\"type\":\"mode\"}\n").unwrap();
        let known = fs::metadata(&file).unwrap().len();
        call(&lab, &file, "UserPromptSubmit", &serde_json::json!({"prompt": "One", "prompt_id": "p1"}));
        for to in moves {
            fs::rename(&file, lab.top.join(to)).unwrap();
            file = lab.top.join(to);
        }
        lab.open().capture().unwrap();
        let moments = lab.open().moments(None).unwrap();
        let place = moments
            .iter()
            .find_map(|moment| moment.record.transcript.as_ref().filter(|_| moment.record.prompt.is_some()));
        assert_eq!(place.map(|place| place.offset), Some(known), "{moves:?}");
    }
}
