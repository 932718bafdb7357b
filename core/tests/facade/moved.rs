//! Conversations whose transcripts were moved since: by Claude Code's `/cd` to another project's folder, by `codex archive`.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::lab::Lab;
use crate::moments::call;

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
