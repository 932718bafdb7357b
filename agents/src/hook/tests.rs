//! Events as the programs send them (shapes from real runs), and what hostile input does.

use std::path::Path;

use super::*;

fn claude(json: &str) -> Result<HookEvent> {
    read(Agent::Claude, json.as_bytes())
}

const COMMON: &str =
    r#""session_id":"6f0c","transcript_path":"/h/.claude/projects/-w/6f0c.jsonl","cwd":"/w","prompt_id":"p1""#;

#[test]
fn a_tool_of_claude_code() {
    let event = claude(&format!(
        r#"{{{COMMON},"permission_mode":"default","hook_event_name":"PostToolUse","tool_name":"Bash",
            "tool_input":{{"command":"echo \"hi\"","tool_name":"not this one"}},"tool_response":{{"stdout":"hi"}},"tool_use_id":"toolu_1"}}"#
    ))
    .unwrap();
    assert_eq!(event.kind, HookKind::AfterTool { failed: false });
    assert_eq!(
        event.tool,
        Some(ToolCall { name: "Bash".into(), id: Some("toolu_1".into()), about: Some("echo \"hi\"".into()) })
    );
    assert_eq!(event.transcript.as_deref(), Some(Path::new("/h/.claude/projects/-w/6f0c.jsonl")));
    assert_eq!((event.cwd.as_path(), event.prompt_id.as_deref()), (Path::new("/w"), Some("p1")));
    assert!(answer_of(event.agent).is_empty(), "what is printed at some events reaches the conversation");
}

#[test]
fn the_other_events_of_claude_code() {
    let kind = |name: &str, more: &str| claude(&format!(r#"{{{COMMON},"hook_event_name":"{name}"{more}}}"#)).unwrap();
    let start = kind("SessionStart", r#","source":"resume""#);
    assert_eq!(start.id(), None);
    assert_eq!((start.kind, start.reason.as_deref()), (HookKind::SessionStart, Some("resume")));
    let end = kind("SessionEnd", r#","reason":"other""#);
    assert_eq!((end.kind, end.reason.as_deref()), (HookKind::SessionEnd, Some("other")));
    let prompt = kind("UserPromptSubmit", r#","prompt":"Änd it\n""#);
    assert_eq!(prompt.id(), Some("p1"));
    assert_eq!((prompt.kind, prompt.prompt.as_deref()), (HookKind::Prompt, Some("Änd it\n")));
    assert_eq!(kind("PreToolUse", r#","tool_name":"Edit""#).kind, HookKind::BeforeTool);
    assert_eq!(
        kind("PostToolUseFailure", r#","tool_name":"Edit","error":"no""#).kind,
        HookKind::AfterTool { failed: true }
    );
    let stop = kind("Stop", r#","stop_hook_active":false"#);
    assert_eq!((stop.kind, stop.going_on), (HookKind::Stop, None));
    let stop = kind("Stop", r#","background_tasks":[{"id":"a1","type":"subagent"}]"#);
    assert_eq!(stop.going_on, Some(vec!["a1".into()]));
    let launched = r#","tool_name":"Agent","tool_response":{"status":"async_launched","agentId":"a1"}"#;
    assert_eq!(kind("PostToolUse", launched).launched.as_deref(), Some("a1"));
    let sub = kind("SubagentStop", r#","agent_id":"a1","agent_transcript_path":"/t/agent-a1.jsonl""#);
    assert_eq!(sub.subagent, Some(Subagent { id: "a1".into(), transcript: Some("/t/agent-a1.jsonl".into()) }));
    assert_eq!(kind("WorktreeCreate", "").kind, HookKind::Other("WorktreeCreate".into()));
}

#[test]
fn codex_has_turns_and_gemini_names_of_its_own() {
    let event = read(
        Agent::Codex,
        br#"{"session_id":"s","turn_id":"t1","transcript_path":null,"cwd":"/w","hook_event_name":"UserPromptSubmit","prompt":"go"}"#.as_slice(),
    )
    .unwrap();
    assert_eq!((event.prompt_id.as_deref(), event.id()), (Some("t1"), None), "more prompts can come in that turn");
    assert_eq!(event.transcript, None);

    let gemini = |text: &str| {
        let text = format!(r#"{{"session_id":"s","transcript_path":"/t","cwd":"/w","timestamp":"x",{text}}}"#);
        read(Agent::Gemini, text.as_bytes()).unwrap()
    };
    assert_eq!(gemini(r#""hook_event_name":"BeforeAgent","prompt":"go""#).prompt.as_deref(), Some("go"));
    let tool = |response: &str| {
        gemini(&format!(r#""hook_event_name":"AfterTool","tool_name":"edit","tool_response":{response}"#)).kind
    };
    assert_eq!(tool(r#"{"llmContent":"x","error":{"message":"no"}}"#), HookKind::AfterTool { failed: true });
    assert_eq!(tool(r#"{"llmContent":"x","error":null}"#), HookKind::AfterTool { failed: false });
    assert_eq!(tool(r#""text""#), HookKind::AfterTool { failed: false });
    assert_eq!(gemini(r#""hook_event_name":"PostToolUse""#).kind, HookKind::Other("PostToolUse".into()));
    let answer = answer_of(Agent::Gemini);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(answer).unwrap(), serde_json::json!({}));
}

/// As 0.169.0 sends them: the session is the one above, and the transcript the sub-agent's, but where both are named.
#[test]
fn a_sub_agent_of_codex_is_no_person_and_has_a_transcript_of_its_own() {
    let event = |name: &str, more: &str| {
        let text = format!(
            r#"{{"session_id":"s","turn_id":"t2","agent_id":"a1","agent_type":"default","transcript_path":"/t/sub","cwd":"/w",
                "hook_event_name":"{name}"{more}}}"#
        );
        read(Agent::Codex, text.as_bytes()).unwrap()
    };
    let sub = |transcript: &str| Some(Subagent { id: "a1".into(), transcript: Some(transcript.into()) });
    let told = event("UserPromptSubmit", r#","prompt":"SUBTASK""#);
    assert!(matches!(told.kind, HookKind::Other(_)) && told.prompt.is_none(), "{told:?}");
    let tool = event("PostToolUse", r#","tool_name":"Bash","tool_use_id":"c1""#);
    assert_eq!((tool.transcript, tool.subagent), (None, sub("/t/sub")));
    let stop = event("SubagentStop", r#","agent_transcript_path":"/t/own""#);
    assert_eq!((stop.transcript.as_deref(), stop.subagent), (Some(Path::new("/t/sub")), sub("/t/own")));
}

#[test]
fn a_notice_of_claude_code_is_no_prompt() {
    let kind = |prompt: &str| {
        let prompt = serde_json::Value::from(prompt);
        claude(&format!(r#"{{{COMMON},"hook_event_name":"UserPromptSubmit","prompt":{prompt}}}"#)).unwrap().kind
    };
    let notice = "<task-notification>\n<task-id>b1</task-id>\n<status>completed</status>\n</task-notification>";
    assert!(matches!(kind(notice), HookKind::Other(_)));
    for typed in ["/fix this", "What is a <task-notification>?", "<bash-stdout>x</bash-stdout> why?", ""] {
        assert_eq!(kind(typed), HookKind::Prompt, "{typed}");
    }
}

#[test]
fn what_is_no_event_is_refused_and_read_to_its_end() {
    for text in [
        "",
        "hello",
        "[]",
        "null",
        "{",
        r#"{"session_id":"s","cwd":"/w"}"#,
        r#"{"hook_event_name":"Stop","cwd":"/w"}"#,
        r#"{"hook_event_name":"Stop","session_id":"s"}"#,
        r#"{"hook_event_name":"Stop","session_id":"s","cwd":"relative"}"#,
        r#"{"hook_event_name":["Stop"],"session_id":"s","cwd":"/w"}"#,
        "\u{0}\u{1}",
    ] {
        let padded = format!("{text}{}", " ".repeat(300_000));
        let mut input = padded.as_bytes();
        let error = read(Agent::Claude, &mut input).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{text}");
        assert!(error.hint.is_some());
        assert!(input.is_empty(), "{text}: {} bytes left", input.len());
    }
}

#[test]
fn fields_of_another_type_are_absent_not_an_error() {
    let event = claude(
        r#"{"hook_event_name":"UserPromptSubmit","session_id":"s","cwd":"/w","prompt":[{"type":"text"}],"source":7,"reason":true,
            "transcript_path":"relative","tool_response":-1.5,"agent_id":{},"prompt_id":null}"#,
    )
    .unwrap();
    assert_eq!((event.prompt, event.reason, event.transcript, event.subagent), (None, None, None, None));
}

/// Stands in for a pipe of any length without holding it.
struct Long<'a> {
    head: &'a [u8],
    filling: u64,
    tail: &'a [u8],
}

impl Read for Long<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if !self.head.is_empty() {
            return self.head.read(buffer);
        }
        if self.filling == 0 {
            return self.tail.read(buffer);
        }
        let len = buffer.len().min(usize::try_from(self.filling).unwrap_or(usize::MAX));
        buffer[..len].fill(b'x');
        self.filling -= len as u64;
        Ok(len)
    }
}

#[test]
fn fifty_megabytes_are_read_whatever_field_they_are_in() {
    for field in ["tool_response", "prompt", "session_id"] {
        let rest = if field == "session_id" { String::new() } else { r#","session_id":"s""#.into() };
        let head = format!(r#"{{"hook_event_name":"UserPromptSubmit","cwd":"/w"{rest},"{field}":""#);
        let input = Long { head: head.as_bytes(), filling: 50 << 20, tail: br#""}"# };
        let event = read(Agent::Claude, input).unwrap();
        assert!(event.prompt.is_none_or(|prompt| prompt.len() == LONGEST_TEXT));
        assert!(event.session_id.len() <= LONGEST_TEXT);
    }
}

#[test]
fn what_a_tool_nests_however_deep_keeps_no_event_away() {
    for depth in [100, 120, 124, 125, 126, 127, 128, 140, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"]\\\"\":", "}")] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let event = claude(&format!(
                r#"{{{COMMON},"hook_event_name":"PostToolUse","tool_response":[{deep},{deep}],"tool_input":{deep},"tool_name":"T","tool_use_id":"t1"}}"#
            ));
            let tool = event.map(|event| event.tool);
            assert_eq!(
                tool.unwrap(),
                Some(ToolCall { name: "T".into(), id: Some("t1".into()), about: None }),
                "{depth} {open}"
            );
        }
    }
}
