//! A rollout of a real run (0.169.0 against a stub, made small by hand).

use std::path::PathBuf;

use ah_plugin_api::ErrorKind;
use proptest::prelude::*;

use crate::hook::HookKind;
use crate::transcript::{
    Caught, Destination, Position, Prompt, Results, Sought, Trimmed, catch_up, position_now, prompts, results, trim,
};
use crate::{Agent, Home};

const OLD: &str = "01900000-0000-7000-8000-000000000001";
const NEW: &str = "01999999-9999-7999-8999-999999999999";
const TEXT: &str =
    include_str!("../../../fixtures/codex/rollout-2026-11-21T22-47-14-01900000-0000-7000-8000-000000000001.jsonl");

struct Place {
    dir: tempfile::TempDir,
    home: Home,
    file: PathBuf,
}

fn place(text: &str) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::plain(dir.path(), "");
    let file = home.codex.join(format!("sessions/2026/11/21/rollout-2026-11-21T22-47-14-{OLD}.jsonl"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, text).unwrap();
    Place { dir, home, file }
}

impl Place {
    fn trim(&self, line: usize) -> ah_plugin_api::Result<Trimmed> {
        let text = std::fs::read_to_string(&self.file).unwrap();
        let offset = text.split_inclusive('\n').take(line).map(str::len).sum::<usize>() as u64;
        let at = Position { file: self.file.clone(), line: line as u64, offset, uuid: None };
        let copy = trim(Agent::Codex, &at, &Destination { home: &self.home, cwd: self.dir.path() }, NEW, false);
        assert_eq!(std::fs::read_to_string(&self.file).unwrap(), text, "the original was touched");
        copy
    }
}

fn number_of(part: &str) -> usize {
    TEXT.lines().position(|line| line.contains(part)).unwrap() + 1
}

#[test]
fn a_copy_ends_at_a_result_and_bears_the_new_id_in_name_and_lines() {
    let place = place(TEXT);
    let end = number_of("\"type\":\"function_call_output\"");
    let copy = place.trim(end).unwrap();
    assert_eq!(
        copy.file,
        place.home.codex.join(format!("sessions/2026/11/21/rollout-2026-11-21T22-47-14-{NEW}.jsonl"))
    );
    let text = std::fs::read_to_string(&copy.file).unwrap();
    let expected: String = TEXT.lines().take(end).map(|line| line.replace(OLD, NEW) + "\n").collect();
    assert_eq!(text, expected);
    assert!(!text.contains(OLD) && copy.dropped == 0);
    assert_eq!(place.trim(end).unwrap_err().kind, ErrorKind::AlreadyExists);
}

#[test]
fn calls_without_a_result_go() {
    let place = place(TEXT);
    // Of two parallel calls the first has its result.
    let end = number_of("\"call_1_0\",\"output\"");
    let copy = place.trim(end).unwrap();
    assert_eq!(copy.dropped, 1);
    let text = std::fs::read_to_string(&copy.file).unwrap();
    assert!(
        text.contains("\"call_1_0\"")
            && !text.contains("\"name\":\"exec_command\",\"arguments\":\"{\\\"cmd\\\": \\\"echo two\\\"}\"")
    );

    let place = self::place(TEXT);
    let custom = number_of("\"type\":\"custom_tool_call\"");
    let copy = place.trim(custom).unwrap();
    assert_eq!(copy.dropped, 1);
    assert!(!std::fs::read_to_string(&copy.file).unwrap().contains("custom_tool_call"));
}

#[test]
fn the_id_is_replaced_only_where_it_is_one() {
    let said = format!(r#"{{"type":"response_item","payload":{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{OLD} \"id\":\"{OLD}\""}}],"other":"{OLD}"}}}}"#)
        .replace("\"id\":\"", "\\\"id\\\":\\\"");
    let meta = format!(r#"{{"type":"session_meta","payload":{{"id" : "{OLD}","cwd":"/w"}}}}"#);
    let place = place(&format!("{meta}\n{said}\nnot json\n"));
    let copy = place.trim(3).unwrap();
    let text = std::fs::read_to_string(&copy.file).unwrap();
    assert_eq!(text, format!("{}\n{said}\n", meta.replace(OLD, NEW)));
    assert_eq!((copy.lines, copy.dropped), (2, 1));
}

#[test]
fn prompts_and_where_they_begin() {
    let place = place(TEXT);
    let all: Vec<Prompt> = prompts(Agent::Codex, &place.file, None).unwrap().map(Result::unwrap).collect();
    let texts: Vec<&str> = all.iter().map(|prompt| prompt.text.as_str()).collect();
    assert_eq!(texts, ["first prompt", "second prompt"]);
    assert_eq!(all[0].before.line, 1, "behind the session's own line");
    assert_eq!(all[1].before.line as usize, number_of("\"task_complete\""), "behind the first turn");
    assert_eq!(all[1].id.as_deref(), Some("01a2004a-f09a-7861-91dc-53bd70f5e01a"));
    // The older form of the same.
    let old = r#"{"type":"session_meta","payload":{"id":"x"}}
{"type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>"}]}}
{"type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"go"}]}}
{"type":"event_msg","payload":{"type":"user_message","message":"go"}}
"#;
    let place = self::place(old);
    let all: Vec<Prompt> = prompts(Agent::Codex, &place.file, None).unwrap().map(Result::unwrap).collect();
    assert_eq!((all.len(), all[0].text.as_str(), all[0].before.line), (1, "go", 1));
}

/// What the model gets of a command at the end of its yield, as 0.169.0 writes it; the hook comes when a later look finds that it ended.
#[test]
fn a_command_that_goes_on_has_its_place_where_it_was_heard_to_have_ended() {
    let line = |time: &str, payload: &str| {
        format!("{{\"timestamp\":\"2026-11-30T00:00:{time}.000Z\",\"type\":\"response_item\",\"payload\":{payload}}}\n")
    };
    let output = |call: &str, text: &str| {
        let text = format!("Chunk ID: fa9f71\nWall time: 1.0 seconds\n{text}\nOriginal token count: 0\nOutput:\n");
        serde_json::json!({"type": "function_call_output", "call_id": call, "output": text}).to_string()
    };
    let call = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}","name":"x","arguments":"{{}}"}}"#);
    let said = serde_json::json!({"type": "function_call_output", "call_id": "c0",
        "output": "Process exited with code 0\nOutput:\nProcess running with session ID 1"});
    let text: String = [
        line("01", &call("c0")),
        line("02", &said.to_string()),
        line("03", &call("c1")),
        line("04", &output("c1", "Process running with session ID 7421")),
        line("05", &call("c2")),
        line("06", &output("c2", "Process exited with code 0")),
        line("07", &call("c3")),
        line("10", &output("c3", "Process exited with code 0")),
    ]
    .concat();
    let place = place(&text);
    let found = results(Agent::Codex, &place.file, 0).unwrap();
    assert_eq!(found, Results { ended: vec!["c0".into(), "c2".into(), "c3".into()], going_on: vec!["c1".into()] });
    let kind = HookKind::AfterTool { failed: false };
    let time = crate::transcript::line::time_of("2026-11-30T00:00:09Z").unwrap();
    let sought = Sought { kind: &kind, tool_id: Some("c1"), prompt_id: None, prompt: None, time, written: 0 };
    let found = catch_up(Agent::Codex, &sought, &Position::start(&place.file)).unwrap();
    assert_eq!(found.position().line, 7, "before what that look gave, and behind all that came meanwhile");
}

#[test]
fn each_moment_finds_its_place_afterwards() {
    let place = place(TEXT);
    let catch = |kind: &HookKind, tool: Option<&str>, prompt: Option<&str>, time: &str| {
        let time = crate::transcript::line::time_of(time).unwrap();
        let sought = Sought { kind, tool_id: tool, prompt_id: prompt, prompt: None, time, written: 0 };
        catch_up(Agent::Codex, &sought, &Position::start(&place.file)).unwrap()
    };
    let after = HookKind::AfterTool { failed: false };
    for (id, part) in [("call_0_1", "\"call_0_1\",\"output\""), ("call_2_0", "\"custom_tool_call_output\"")] {
        let at = catch(&after, Some(id), None, "2026-11-21T22:47:15Z");
        assert!(matches!(at, Caught::Exact(ref at) if at.line as usize == number_of(part)), "{at:?}");
    }
    let at = catch(&HookKind::Prompt, None, Some("01a2004a-f09a-7861-91dc-53bd70f5e01a"), "2026-11-21T22:47:21.020Z");
    assert!(matches!(at, Caught::Exact(ref at) if at.line as usize == number_of("\"task_complete\"")), "{at:?}");
    let at = catch(&HookKind::Stop, None, None, "2026-11-21T22:47:16Z");
    assert!(matches!(at, Caught::Exact(ref at) if at.line as usize == number_of("\"task_complete\"")), "{at:?}");
    let end = position_now(Agent::Codex, &place.file, None).unwrap();
    assert_eq!((end.line as usize, end.uuid.as_deref()), (TEXT.lines().count(), Some("m5_0")));
}

/// A turn in which two prompts are given, the second while it runs.
fn turn_with(first: &str, second: &str, more: &str) -> String {
    let event = |at: u32, kind: &str, more: &str| {
        format!("{{\"timestamp\":\"2026-11-21T10:00:{at:02}Z\",\"type\":\"{kind}\",\"payload\":{{{more}}}}}\n")
    };
    let said = |at, text: &str| {
        let typed = format!("\"type\":\"message\",\"role\":\"user\",\"content\":[{{\"text\":\"{text}\"}}]");
        let shown = format!("\"type\":\"user_message\",\"turn_id\":\"T\",\"message\":\"{text}\"");
        event(at, "response_item", &typed) + &event(at, "event_msg", &shown)
    };
    [
        event(0, "session_meta", &format!("\"id\":\"{OLD}\"")),
        event(1, "event_msg", "\"type\":\"task_started\",\"turn_id\":\"T\""),
        event(1, "turn_context", "\"turn_id\":\"T\""),
        said(2, first),
        event(3, "response_item", "\"type\":\"function_call\",\"call_id\":\"c\""),
        event(5, "response_item", "\"type\":\"function_call_output\",\"call_id\":\"c\""),
        said(6, second),
        more.to_owned(),
    ]
    .concat()
}

#[test]
fn a_prompt_that_is_typed_while_a_turn_runs_has_a_place_of_its_own() {
    let catch = |place: &Place, prompt: Option<&str>, second: u32| {
        let time = crate::transcript::line::time_of(&format!("2026-11-21T10:00:{second:02}.5Z")).unwrap();
        let sought = Sought { kind: &HookKind::Prompt, tool_id: None, prompt_id: Some("T"), prompt, time, written: 0 };
        let caught = catch_up(Agent::Codex, &sought, &Position::start(&place.file)).unwrap();
        (matches!(caught, Caught::Exact(_)), caught.position().line)
    };
    // By what was typed; where that is the same or not known, by the time.
    for (first, second, one, two) in
        [("one", "two", Some("one"), Some("two")), ("on", "on", Some("on"), Some("on")), ("one", "two", None, None)]
    {
        let place = place(&turn_with(first, second, ""));
        assert_eq!((catch(&place, one, 1), catch(&place, two, 5)), ((true, 1), (true, 7)), "{first} {second}");
    }
    // The text is another in the transcript: the first that was made since has it.
    let other = r#"{"timestamp":"2026-11-21T10:00:09Z","type":"event_msg","payload":{"type":"user_message","turn_id":"U","message":"next"}}"#;
    let place = self::place(&turn_with("one", "two", &format!("{other}\n")));
    assert_eq!((catch(&place, Some("1"), 1), catch(&place, Some("2"), 5)), ((true, 1), (true, 7)));
    // It has none, as something refused it.
    let text = turn_with("one", "two", "");
    let refused = text.split_inclusive('\n').take(3).collect::<String>() + other + "\n";
    assert_eq!(catch(&self::place(&refused), Some("one"), 1), (true, 1));
    // Its line is not there yet.
    for (lines, second, line) in [(3, 1, 1), (7, 5, 7)] {
        let place = self::place(&text.split_inclusive('\n').take(lines).collect::<String>());
        let prompt = if second == 1 { "one" } else { "two" };
        assert_eq!(catch(&place, Some(prompt), second), (false, line));
    }
}

#[test]
fn what_is_no_rollout_is_refused() {
    let place = place("{\"type\":\"event_msg\",\"payload\":{\"type\":\"user_message\",\"message\":\"go\"}}\n");
    assert_eq!(place.trim(1).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(self::place(TEXT).trim(1).unwrap_err().kind, ErrorKind::FailedPrecondition, "nothing was said yet");
    let odd = place.file.with_file_name("chat.jsonl");
    std::fs::write(&odd, TEXT).unwrap();
    let at = position_now(Agent::Codex, &odd, None).unwrap();
    let to = Destination { home: &place.home, cwd: place.dir.path() };
    assert_eq!(trim(Agent::Codex, &at, &to, NEW, false).unwrap_err().kind, ErrorKind::Unsupported);
}

proptest! {
    #[test]
    fn whatever_is_cut_where_calls_have_outputs(events in proptest::collection::vec((0u8..6, 0usize..4), 0..30), cut in 0usize..40) {
        let mut text = format!("{{\"type\":\"session_meta\",\"payload\":{{\"id\":\"{OLD}\"}}}}\n");
        text.push_str("{\"type\":\"event_msg\",\"payload\":{\"type\":\"user_message\",\"message\":\"go\"}}\n");
        let mut serial = [0; 4];
        let mut open = [false; 4];
        for (what, slot) in events {
            let kind = ["function_call", "custom_tool_call", "local_shell_call"][usize::from(what) % 3];
            let suffix = if open[slot] { "_output" } else { "" };
            serial[slot] += usize::from(!open[slot]);
            open[slot] = !open[slot];
            let id = format!("call-{slot}-{}", serial[slot]);
            text.push_str(&format!("{{\"type\":\"response_item\",\"payload\":{{\"type\":\"{kind}{suffix}\",\"call_id\":\"{id}\"}}}}\n"));
        }
        let place = place(&text);
        let cut = cut.clamp(2, text.lines().count());
        let copy = place.trim(cut).unwrap();
        let kept = std::fs::read_to_string(&copy.file).unwrap();
        let ids = |output: bool| {
            let mut ids: Vec<String> = kept
                .lines()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"].clone())
                .filter(|payload| payload["call_id"].is_string() && payload["type"].as_str().unwrap().ends_with("_output") == output)
                .map(|payload| payload["call_id"].to_string())
                .collect();
            ids.sort();
            ids
        };
        prop_assert_eq!(ids(false), ids(true));
        prop_assert_eq!(copy.lines + copy.dropped, cut as u64);
    }
}
