//! Transcripts of real runs (2.1.197 against a stub, made small by hand), hostile ones, and random ones.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::{ErrorKind, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::hook::HookKind;
use crate::transcript::{
    Caught, Destination, Position, Prompt, Sought, Trimmed, catch_up, catch_up_all, position_now, prompts, trim,
};
use crate::{Agent, Home};

const NEW: &str = "99999999-9999-4999-8999-999999999999";
const OLD: &str = "11111111-1111-4111-8111-111111111111";

/// A home with one session in it.
pub(super) struct Place {
    dir: tempfile::TempDir,
    home: Home,
    pub(super) file: PathBuf,
}

pub(super) fn place(lines: &str) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::plain(dir.path(), "");
    let file = home.claude.join(format!("projects/-home-u-w/{OLD}.jsonl"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, lines).unwrap();
    Place { dir, home, file }
}

pub(super) fn tools() -> Place {
    let place = place(include_str!("../../../fixtures/claude/tools.jsonl"));
    let folder = place.file.with_extension("").join("subagents");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["agent-a0a4d844b8af18f7a.jsonl", "agent-a0a4d844b8af18f7a.meta.json"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/claude/tools-subagents").join(name);
        std::fs::copy(from, folder.join(name)).unwrap();
    }
    place
}

fn sought<'a>(kind: &'a HookKind, tool_id: Option<&'a str>, prompt: Option<&'a str>, time: Timestamp) -> Sought<'a> {
    Sought { kind, tool_id, prompt_id: None, prompt, time, written: 0 }
}

impl Place {
    /// The place behind line `line`.
    pub(super) fn at(&self, line: u64) -> Position {
        let text = std::fs::read(&self.file).unwrap();
        let offset =
            text.split_inclusive(|b| *b == b'\n').take(usize::try_from(line).unwrap()).map(<[u8]>::len).sum::<usize>();
        Position { file: self.file.clone(), line, offset: offset as u64, uuid: None }
    }

    pub(super) fn trim_at(&self, at: &Position) -> ah_plugin_api::Result<Trimmed> {
        self.trim_as(at, true)
    }

    pub(super) fn trim_as(&self, at: &Position, before_prompt: bool) -> ah_plugin_api::Result<Trimmed> {
        let cwd = self.dir.path().join("the branch");
        trim(Agent::Claude, at, &Destination { home: &self.home, cwd: &cwd }, NEW, before_prompt)
    }

    pub(super) fn trim(&self, line: u64) -> Trimmed {
        let before = std::fs::read(&self.file).unwrap();
        let trimmed = self.trim_at(&self.at(line)).unwrap();
        assert_eq!(std::fs::read(&self.file).unwrap(), before, "the original was touched");
        trimmed
    }

    fn catch(&self, kind: &HookKind, tool: Option<&str>, prompt: Option<&str>, time: &str) -> Caught {
        let time = crate::transcript::line::time_of(time).unwrap();
        let sought = Sought { prompt_id: prompt, ..sought(kind, tool, None, time) };
        catch_up(Agent::Claude, &sought, &Position::start(&self.file)).unwrap()
    }
}

pub(super) fn values(file: &Path) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn calls_and_results(lines: &[Value]) -> (HashSet<String>, HashSet<String>) {
    let (mut calls, mut results) = (HashSet::new(), HashSet::new());
    for block in lines.iter().filter_map(|line| line["message"]["content"].as_array()).flatten() {
        let id = |member: &str| block[member].as_str().unwrap().to_owned();
        match block["type"].as_str() {
            Some("tool_use") => drop(calls.insert(id("id"))),
            Some("tool_result") => drop(results.insert(id("tool_use_id"))),
            _ => {}
        }
    }
    (calls, results)
}

#[test]
fn a_copy_ends_at_the_place_and_bears_the_new_id() {
    let place = tools();
    let copy = place.trim(8);
    let name = super::place::name_of(&place.dir.path().join("the branch"));
    assert_eq!(copy.file, place.home.claude.join("projects").join(name).join(format!("{NEW}.jsonl")));
    assert_eq!((copy.lines, copy.dropped, copy.session_id.as_str()), (8, 0, NEW));
    let text = std::fs::read_to_string(&copy.file).unwrap();
    let original = std::fs::read_to_string(&place.file).unwrap();
    let expected: String = original.lines().take(8).map(|line| line.replace(OLD, NEW) + "\n").collect();
    assert_eq!(text, expected);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy.file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(place.trim_at(&place.at(8)).unwrap_err().kind, ErrorKind::AlreadyExists);
}

#[test]
fn of_parallel_calls_the_one_without_a_result_goes_and_the_rest_hangs_together() {
    let place = tools();
    // Line 9 calls one tool, line 10 another and hangs on 9, line 11 is the second's result.
    let copy = place.trim(11);
    assert_eq!((copy.lines, copy.dropped), (10, 1));
    let lines = values(&copy.file);
    let (calls, results) = calls_and_results(&lines);
    assert_eq!(calls, results);
    assert!(calls.contains("toolu_002_1") && !calls.contains("toolu_002_0"));
    let second = lines.iter().find(|line| line["message"]["content"][0]["id"] == "toolu_002_1").unwrap();
    assert_eq!(second["parentUuid"], lines[7]["uuid"], "it hangs on what the first hung on");
}

#[test]
fn a_call_without_any_result_goes_alone() {
    let place = tools();
    assert_eq!((place.trim(7).lines, place.trim_at(&place.at(7)).is_err()), (6, true));
}

#[test]
fn a_subagent_whose_result_is_there_comes_along_and_an_unfinished_one_does_not() {
    let place = tools();
    let copy = place.trim(19);
    let folder = copy.file.with_extension("").join("subagents");
    assert_eq!(
        copy.others,
        [folder.join("agent-a0a4d844b8af18f7a.jsonl"), folder.join("agent-a0a4d844b8af18f7a.meta.json")]
    );
    let lines = values(&copy.others[0]);
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line["sessionId"] == NEW));
    assert!(copy.others.iter().all(|file| file.metadata().unwrap().mode() & 0o777 == 0o600));

    let place = tools();
    let copy = place.trim(18);
    assert_eq!((copy.lines, copy.dropped, copy.others), (17, 1, vec![]));
}

#[test]
fn a_subagents_later_work_stays_behind() {
    let place = tools();
    let folder = place.file.with_extension("").join("subagents");
    let mut text = std::fs::read_to_string(folder.join("agent-a0a4d844b8af18f7a.jsonl")).unwrap();
    text.push_str("{\"type\":\"user\",\"uuid\":\"later\",\"sessionId\":\"x\",\"timestamp\":\"2027-01-01T00:00:00Z\",\"message\":{\"content\":\"more\"}}\n");
    std::fs::write(folder.join("agent-a0a4d844b8af18f7a.jsonl"), text).unwrap();
    let copy = place.trim(24);
    assert_eq!(values(&copy.others[0]).len(), 5);
}

#[test]
fn pointers_to_what_is_not_there_go() {
    let place = tools();
    // Line 14 is a `last-prompt` that points at line 13.
    assert_eq!(place.trim(14).lines, 14);
    let place = tools();
    let text = std::fs::read_to_string(&place.file).unwrap();
    let head = "{\"type\":\"summary\",\"summary\":\"old\",\"leafUuid\":\"00000000-0000-4000-8000-000000000000\"}\n";
    let away = "{\"type\":\"relocated\",\"relocatedCwd\":\"/elsewhere\",\"sessionId\":\"x\"}\n";
    std::fs::write(&place.file, format!("{head}{away}{text}")).unwrap();
    let copy = place.trim(10);
    assert_eq!((copy.lines, copy.dropped), (8, 2));
    assert!(values(&copy.file).iter().all(|line| line["type"] != "summary" && line["type"] != "relocated"));
}

#[test]
fn unknown_lines_stay_and_torn_ones_go() {
    let odd = [
        r#"{"type":"of-the-future","sessionId":"old","x":[1,{"sessionId":"inner"}]}"#,
        "[1,2]",
        r#"{"type":7,"uuid":[],"message":"?"}"#,
    ];
    let torn = r#"{"type":"user","uuid":"0000"#;
    let user =
        r#"{"parentUuid":null,"type":"user","message":{"role":"user","content":"hi"},"uuid":"u1","sessionId":"old"}"#;
    let place = place(&format!("{}\n{}\n{torn}\n{}\n{user}\n{torn}", odd[0], odd[1], odd[2]));
    let copy = place.trim(5);
    assert_eq!((copy.lines, copy.dropped), (4, 1));
    let text = std::fs::read_to_string(&copy.file).unwrap();
    let expected =
        [odd[0], odd[1], odd[2], user].map(|line| line.replace("\"old\"", &format!("\"{NEW}\"")) + "\n").concat();
    assert_eq!(text, expected);
}

#[test]
fn compaction_is_kept_whole() {
    let place = place(include_str!("../../../fixtures/claude/compacted.jsonl"));
    for line in [14, 17, 29, 35] {
        let copy = place.trim(line);
        assert_eq!((copy.lines, copy.dropped), (line, 0), "line {line}");
        std::fs::remove_file(copy.file).unwrap();
    }
}

#[test]
fn before_anything_was_said_there_is_nothing_to_copy() {
    let place = tools();
    for line in [0, 2] {
        assert_eq!(place.trim_at(&place.at(line)).unwrap_err().kind, ErrorKind::FailedPrecondition);
    }
    assert!(
        !place.home.claude.join("projects").join(super::place::name_of(&place.dir.path().join("the branch"))).exists()
    );
}

#[test]
fn a_place_that_moved_is_found_by_its_id_and_one_that_is_gone_refused() {
    let place = tools();
    let mut at = position_now(Agent::Claude, &place.file, None).unwrap();
    assert_eq!((at.line, at.uuid.is_some()), (24, true));
    let text = std::fs::read_to_string(&place.file).unwrap();
    // The agent took out its second line.
    let shorter: String =
        text.lines().enumerate().filter(|(at, _)| *at != 1).map(|(_, line)| format!("{line}\n")).collect();
    std::fs::write(&place.file, shorter).unwrap();
    assert_eq!(place.trim_at(&at).unwrap().lines, 21, "up to the line with the id, and no further");
    std::fs::remove_file(place.trim_at(&at).map(|copy| copy.file).unwrap_or_else(|_| {
        place
            .home
            .claude
            .join("projects")
            .join(super::place::name_of(&place.dir.path().join("the branch")))
            .join(format!("{NEW}.jsonl"))
    }))
    .unwrap();
    at.uuid = Some("gone".into());
    assert_eq!(place.trim_at(&at).unwrap_err().kind, ErrorKind::Conflict);
    at.uuid = None;
    assert_eq!(place.trim_at(&at).unwrap_err().kind, ErrorKind::Conflict, "behind the end of the file");
    std::fs::remove_file(&place.file).unwrap();
    assert_eq!(place.trim_at(&at).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn ids_are_checked_before_anything_is_done() {
    let place = tools();
    let to = Destination { home: &place.home, cwd: Path::new("/b") };
    for id in ["", "../x", "ABCDEF00-0000-4000-8000-000000000000"] {
        assert_eq!(trim(Agent::Claude, &place.at(8), &to, id, false).unwrap_err().kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn prompts_are_what_a_person_typed() {
    let texts = |lines: &str| {
        let place = place(lines);
        let all: Vec<Prompt> = prompts(Agent::Claude, &place.file, None).unwrap().map(Result::unwrap).collect();
        all.into_iter().map(|prompt| (prompt.text, prompt.before.line, prompt.position.line)).collect::<Vec<_>>()
    };
    let two = texts(include_str!("../../../fixtures/claude/tools.jsonl"));
    assert_eq!(two, [("first prompt".into(), 0, 3), ("second prompt".into(), 14, 17)]);
    let compacted = texts(include_str!("../../../fixtures/claude/compacted.jsonl"));
    let expected = [("first prompt", 0, 3), ("interrupted prompt", 23, 24), ("third prompt", 32, 33)];
    assert_eq!(compacted, expected.map(|(text, before, at)| (text.to_owned(), before, at)));

    // On a terminal: typed, queued while it was at work, interrupted.
    let typed = texts(include_str!("../../../fixtures/claude/interactive.jsonl"));
    let expected = [
        ("first prompt", 2, 5),
        ("second prompt", 13, 15),
        ("queued while busy", 20, 22),
        ("third prompt", 30, 32),
        ("/model/exit", 35, 37),
    ];
    assert_eq!(typed, expected.map(|(text, before, at)| (text.to_owned(), before, at)));

    let line = |content: Value, more: Value| {
        let mut line = json!({"type": "user", "uuid": "u", "message": {"role": "user", "content": content}});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("{line}\n")
    };
    let image =
        json!([{"type": "image", "source": {"type": "base64", "data": "AAAA"}}, {"type": "text", "text": "look"}]);
    let own = json!(
        "<command-message>fix is running…</command-message>\n<command-name>/fix</command-name>\n<command-args>the bug</command-args>"
    );
    let queued = json!({"type": "attachment", "attachment": {"type": "queued_command", "prompt": "and this", "commandMode": "prompt"}});
    let all = [
        line(image, json!({})),
        line(own, json!({})),
        line(json!("side"), json!({"isSidechain": true})),
        line(json!("meta"), json!({"isMeta": true})),
        line(json!("summary"), json!({"isCompactSummary": true})),
        line(json!("<command-name>/model</command-name>"), json!({})),
        line(json!("  "), json!({})),
        line(json!(7), json!({})),
        format!("{queued}\n"),
        "torn".to_owned(),
    ];
    let found: Vec<String> = texts(&all.concat()).into_iter().map(|(text, ..)| text).collect();
    assert_eq!(found, ["look", "/fix the bug", "and this"]);
}

#[test]
fn each_moment_finds_its_place_afterwards() {
    let place = tools();
    // The hooks ran a little before the results were made.
    for (id, second, line) in [
        ("toolu_001_1", "21.1", 8),
        ("toolu_002_1", "21.3", 11),
        ("toolu_002_0", "21.6", 12),
        ("toolu_004_0", "23.3", 19),
    ] {
        let time = format!("2026-11-21T22:46:{second}Z");
        let after = place.catch(&HookKind::AfterTool { failed: false }, Some(id), None, &time);
        assert!(matches!(after, Caught::Exact(ref at) if at.line == line), "{id}: {after:?}");
    }
    for (id, time, line) in [
        ("117326eb-1dd5-4e38-b3c4-71f51e043780", "2026-11-21T22:46:20.890Z", 0),
        ("bcab68fc-74f7-4a7e-b35f-e30ad1304ed1", "2026-11-21T22:46:22.990Z", 14),
        ("never written", "2026-11-21T22:46:22.000Z", 14),
    ] {
        let prompt = place.catch(&HookKind::Prompt, None, Some(id), time);
        assert!(matches!(prompt, Caught::Exact(ref at) if at.line == line), "{id}: {prompt:?}");
    }
    let stop = place.catch(&HookKind::Stop, None, None, "2026-11-21T22:46:21.700Z");
    assert!(matches!(stop, Caught::Exact(ref at) if at.line == 14), "{stop:?}");
    let last = place.catch(&HookKind::Stop, None, None, "2026-11-21T23:00:00Z");
    assert!(matches!(last, Caught::SoFar(ref at) if at.line == 24), "{last:?}");
    // A prompt that was queued while the agent was at work, and its answer's end.
    let terminal = self::place(include_str!("../../../fixtures/claude/interactive.jsonl"));
    let id = Some("12bbcca9-5d3e-410b-a370-1e463e9ec9ee");
    let queued = terminal.catch(&HookKind::Prompt, None, id, "2026-11-21T23:47:14.010Z");
    assert!(matches!(queued, Caught::Exact(ref at) if at.line == 20), "{queued:?}");
    // Without an id, by what was typed: its line was made just before the hook ran. The second is not taken for the third.
    for (text, time, line) in
        [("second pr", "2026-11-21T23:47:05.190Z", 13), ("third prompt\n", "2026-11-21T23:47:17.730Z", 30)]
    {
        let time = crate::transcript::line::time_of(time).unwrap();
        let sought = sought(&HookKind::Prompt, None, Some(text), time);
        let prompt = catch_up(Agent::Claude, &sought, &Position::start(&terminal.file)).unwrap();
        assert!(matches!(prompt, Caught::Exact(ref at) if at.line == line), "{text}: {prompt:?}");
    }
    let stop = terminal.catch(&HookKind::Stop, None, None, "2026-11-21T23:47:17.200Z");
    assert!(matches!(stop, Caught::Exact(ref at) if at.line == 27), "{stop:?}");
    // A sub-agent's tool is not in the session's own file: what was there by then.
    let within =
        place.catch(&HookKind::AfterTool { failed: false }, Some("toolu_005_0"), None, "2026-11-21T22:46:21.400Z");
    assert!(matches!(within, Caught::Exact(ref at) if at.line == 11), "{within:?}");
}

#[test]
fn lines_that_are_written_late_are_waited_for() {
    let place = tools();
    let whole = std::fs::read_to_string(&place.file).unwrap();
    let early: String = whole.lines().take(9).map(|line| format!("{line}\n")).collect();
    std::fs::write(&place.file, format!("{early}{{\"torn")).unwrap();
    let now = position_now(Agent::Claude, &place.file, None).unwrap();
    assert_eq!(now.line, 9);
    let time = Timestamp { secs: 1_795_301_181, nanos: 340_000_000 };
    let sought = |tool| sought(&HookKind::AfterTool { failed: false }, Some(tool), None, time);
    let so_far = catch_up(Agent::Claude, &sought("toolu_002_1"), &now).unwrap();
    assert_eq!(so_far, Caught::SoFar(now.clone()));
    std::fs::write(&place.file, &whole).unwrap();
    let exact = catch_up(Agent::Claude, &sought("toolu_002_1"), &now).unwrap();
    assert_eq!(
        exact,
        Caught::Exact(Position { uuid: Some("41b2f31a-fb16-4122-93e3-980612e868d0".into()), ..place.at(11) })
    );
    assert_eq!(
        position_now(Agent::Claude, &place.file, Some(&now)).unwrap(),
        position_now(Agent::Claude, &place.file, None).unwrap()
    );
}

#[test]
fn several_are_found_with_one_reading() {
    let place = tools();
    let after = HookKind::AfterTool { failed: false };
    let time = |text| crate::transcript::line::time_of(text).unwrap();
    let all = [
        sought(&after, Some("toolu_002_1"), None, time("2026-11-21T22:46:21.340Z")),
        sought(&HookKind::Prompt, None, Some("second prompt"), time("2026-11-21T22:46:23.500Z")),
        sought(&HookKind::Stop, None, None, time("2026-11-21T22:46:21.400Z")),
        sought(&HookKind::Stop, None, None, time("2030-01-01T00:00:00Z")),
        sought(&after, Some("none"), None, time("2026-11-21T22:46:21.400Z")),
    ];
    let start = Position::start(&place.file);
    let each: Vec<Caught> = all.iter().map(|one| catch_up(Agent::Claude, one, &start).unwrap()).collect();
    assert_eq!(catch_up_all(Agent::Claude, &all, &start).unwrap(), each);
    assert!(matches!(&each[0], Caught::Exact(at) if at.line == 11), "{each:?}");
    assert!(matches!(&each[1], Caught::Exact(at) if at.line == 14), "{each:?}");
    assert!(matches!(&each[3], Caught::SoFar(_)), "{each:?}");
}

#[test]
fn a_prompt_is_found_by_its_text_although_its_line_is_dated_before_the_hook() {
    let place = tools();
    let time = crate::transcript::line::time_of("2026-11-21T22:46:23.500Z").unwrap();
    let sought = |prompt| sought(&HookKind::Prompt, None, Some(prompt), time);
    let found = catch_up(Agent::Claude, &sought("second prompt"), &place.at(13)).unwrap();
    assert!(matches!(&found, Caught::Exact(position) if position.line == 14), "{found:?}");
    let other = catch_up(Agent::Claude, &sought("another prompt"), &place.at(13)).unwrap();
    assert_ne!(other.position().line, 14);
}

#[test]
fn a_file_that_is_not_there_yet_is_empty() {
    let place = tools();
    let missing = place.dir.path().join("none.jsonl");
    let start = Position::start(&missing);
    assert_eq!(position_now(Agent::Claude, &missing, None).unwrap(), start);
    assert_eq!(place.catch(&HookKind::SessionStart, None, None, "2020-01-01T00:00:00Z").position().line, 0);
    let sought = sought(&HookKind::Stop, None, None, Timestamp::default());
    assert_eq!(catch_up(Agent::Claude, &sought, &start).unwrap(), Caught::SoFar(start));
    assert!(prompts(Agent::Claude, &missing, None).is_err());
}

#[test]
fn the_last_id_is_found_however_far_back_it_is() {
    let note =
        format!("{{\"type\":\"mode\",\"mode\":\"normal\",\"sessionId\":\"{OLD}\",\"pad\":\"{}\"}}\n", "x".repeat(200));
    let first = "{\"type\":\"user\",\"uuid\":\"first\",\"message\":{\"content\":\"hi\"}}\n";
    let place = place(&format!("{first}{}", note.repeat(2000)));
    let now = position_now(Agent::Claude, &place.file, None).unwrap();
    assert_eq!((now.line, now.uuid.as_deref()), (2001, Some("first")));
    assert_eq!(place.trim_at(&now).unwrap().lines, 2001);
    let later = position_now(Agent::Claude, &place.file, Some(&place.at(1000))).unwrap();
    assert_eq!((later.line, later.uuid), (2001, None), "nothing is known of what lies before");
}

/// One step of a random conversation.
#[derive(Debug, Clone)]
enum Step {
    Prompt,
    /// A number of parallel calls; in one line or one each; how many get results, in which order, and whether in one line.
    Tools {
        calls: usize,
        one_line: bool,
        answered: usize,
        backwards: bool,
        together: bool,
    },
    Note,
    Side,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tools = (1usize..4, any::<bool>(), 0usize..4, any::<bool>(), any::<bool>()).prop_map(
        |(calls, one_line, answered, backwards, together)| Step::Tools {
            calls,
            one_line,
            answered,
            backwards,
            together,
        },
    );
    proptest::collection::vec(
        prop_oneof![2 => Just(Step::Prompt), 6 => tools, 1 => Just(Step::Note), 1 => Just(Step::Side)],
        1..12,
    )
}

fn transcript(steps: &[Step]) -> Vec<Value> {
    let mut lines: Vec<Value> = Vec::new();
    let mut parent = Value::Null;
    let mut serial = 0;
    let mut add = |lines: &mut Vec<Value>, parent: &Value, kind: &str, content: Value, side: bool| {
        serial += 1;
        let uuid = format!("{serial:08x}-0000-4000-8000-000000000000");
        lines.push(json!({"parentUuid": parent, "isSidechain": side, "type": kind, "message": {"role": kind, "content": content},
            "uuid": uuid, "timestamp": "2026-01-01T00:00:00Z", "sessionId": OLD}));
        json!(uuid)
    };
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Prompt => parent = add(&mut lines, &parent, "user", json!(format!("prompt {at} \"{OLD}\"")), false),
            Step::Note => lines.push(json!({"type": "mode", "mode": "normal", "sessionId": OLD})),
            Step::Side => drop(add(&mut lines, &Value::Null, "user", json!("side"), true)),
            Step::Tools { calls, one_line, answered, backwards, together } => {
                let call =
                    |n: usize| json!({"type": "tool_use", "id": format!("t{at}_{n}"), "name": "Bash", "input": {}});
                let mut owners = Vec::new();
                if *one_line {
                    parent = add(&mut lines, &parent, "assistant", (0..*calls).map(call).collect(), false);
                    owners = vec![parent.clone(); *calls];
                } else {
                    for n in 0..*calls {
                        parent = add(&mut lines, &parent, "assistant", json!([call(n)]), false);
                        owners.push(parent.clone());
                    }
                }
                let mut order: Vec<usize> = (0..*calls).collect();
                if *backwards {
                    order.reverse();
                }
                order.truncate(*answered);
                let result =
                    |n: &usize| json!({"type": "tool_result", "tool_use_id": format!("t{at}_{n}"), "content": "ok"});
                if *together && !order.is_empty() {
                    parent = add(&mut lines, &owners[order[0]], "user", order.iter().map(result).collect(), false);
                } else {
                    for n in &order {
                        parent = add(&mut lines, &owners[*n], "user", json!([result(n)]), false);
                    }
                }
            }
        }
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn whatever_is_cut_where_calls_have_results_and_the_chain_holds(steps in steps(), cut in 0.0..=1.0f64) {
        let lines = transcript(&steps);
        let text: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        let place = place(&text.concat());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let at = place.at((cut * lines.len() as f64) as u64);
        let copy = match place.trim_at(&at) {
            Ok(copy) => copy,
            Err(error) => {
                prop_assert_eq!(error.kind, ErrorKind::FailedPrecondition);
                return Ok(());
            }
        };
        let kept = values(&copy.file);
        prop_assert_eq!(copy.lines + copy.dropped, at.line);
        let (calls, results) = calls_and_results(&kept);
        prop_assert_eq!(&calls, &results);
        // Every parent is in the copy, and before its child.
        let mut seen: HashSet<&str> = HashSet::new();
        for line in &kept {
            prop_assert!(line["parentUuid"].as_str().is_none_or(|parent| seen.contains(parent)), "{} has no parent", line);
            seen.extend(line["uuid"].as_str());
        }
        // Each line is the original's but for the id of the session, and of the parent if that is gone.
        let originals: HashMap<&str, &Value> = lines.iter().filter_map(|line| Some((line["uuid"].as_str()?, line))).collect();
        for line in &kept {
            let Some(uuid) = line["uuid"].as_str() else { continue };
            let mut original = originals[uuid].clone();
            original["sessionId"] = json!(NEW);
            if original["parentUuid"].as_str().is_some_and(|parent| !seen.contains(parent)) {
                original["parentUuid"] = line["parentUuid"].clone();
            }
            prop_assert_eq!(&original, line);
        }
        // Nothing goes that need not: calls answered before the place, alone in their lines, are all there.
        let head = &lines[..usize::try_from(at.line).unwrap()];
        let (_, answered) = calls_and_results(head);
        for line in head {
            let Some(blocks) = line["message"]["content"].as_array() else { continue };
            if let [block] = blocks.as_slice()
                && block["type"] == "tool_use"
                && !steps.iter().any(|step| matches!(step, Step::Tools { together: true, .. }))
            {
                let id = block["id"].as_str().unwrap();
                prop_assert_eq!(answered.contains(id), calls.contains(id));
            }
        }
    }
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let home = crate::Home::plain(dir.path(), "");
    let to = Destination { home: &home, cwd: dir.path() };
    for file in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
        let kind = |error: ah_plugin_api::Error| assert_eq!(error.kind, ErrorKind::Unsupported, "{file:?}");
        let sought = sought(&HookKind::Stop, None, None, Timestamp::default());
        for agent in [Agent::Claude, Agent::Codex, Agent::Gemini] {
            kind(crate::transcript::position_now(agent, file, None).unwrap_err());
            kind(crate::transcript::catch_up(agent, &sought, &Position::start(file)).unwrap_err());
            kind(crate::transcript::prompts(agent, file, None).err().unwrap());
            let at = Position { file: file.into(), line: 1, offset: 1, uuid: None };
            kind(crate::transcript::trim(agent, &at, &to, "6f0c2b1e-0000-4000-8000-000000000001", false).unwrap_err());
        }
    }
}
