//! Finding the place that belongs to a moment.
//!
//! An id decides where there is one: the tool call's for its result, the prompt's for the prompt. Otherwise the time does: a line bears the
//! time at which it was made, not that of its being written, so what was made by the moment belongs to it however late it comes. Codex's id is the
//! turn's: of several prompts in one, the text decides, and a line that is older than the moment is not the one. What had been written by the moment
//! belongs to it whatever its time: clocks are set back.

use std::collections::VecDeque;
use std::path::Path;

use ah_plugin_api::{ErrorKind, Result, Timestamp};

use super::line::{Lines, Seen, What};
use super::{Caught, Position, Prompt, Results, Sought, claude, codex, gemini, tail};
use crate::Agent;
use crate::hook::HookKind;

/// Claude Code dates a prompt's line before it calls the hook, so by that the moment is a little later. Seconds, for a busy machine.
const BEFORE: i64 = 10;

/// So far on from a call its result is looked for, in bytes: who asks holds the agent up.
const RESULTS: u64 = 8 << 20;

/// No more of what was typed meanwhile is told at once, the last ones: nobody types that much between two calls, and each costs who asks a line.
const MEANWHILE: usize = 16;

/// What a line of `agent`'s transcript says.
pub(super) fn look(agent: Agent, line: &[u8]) -> Seen {
    match agent {
        Agent::Claude => claude::look(line),
        Agent::Codex => codex::look(line),
        Agent::Gemini => gemini::look(line),
        Agent::Opencode => Seen::default(),
    }
}

/// The end of the file, and the prompts behind `since` that were typed meanwhile.
pub(super) fn end_of(agent: Agent, file: &Path, since: Option<&Position>) -> Result<(Position, Vec<Prompt>)> {
    let end = match tail::whole_lines(file, since, claude::QUEUED.as_bytes()) {
        Ok(end) => end,
        Err(error) if error.kind == ErrorKind::NotFound && since.is_none_or(|since| since.line == 0) => {
            return Ok((Position::start(file), Vec::new()));
        }
        Err(error) => return Err(error),
    };
    let uuid = end.last_that(|line| look(agent, line).uuid)?.or_else(|| since?.uuid.clone());
    let meanwhile = match since.filter(|_| end.has && agent == Agent::Claude) {
        Some(since) => meanwhile(since, end.offset)?,
        None => Vec::new(),
    };
    Ok((Position { file: file.into(), line: end.line, offset: end.offset, uuid }, meanwhile))
}

/// What was typed while Claude Code was at work, and given to it without a call of a hook: the last of it, [`MEANWHILE`] at most.
fn meanwhile(since: &Position, until: u64) -> Result<Vec<Prompt>> {
    let mut lines = Lines::open(&since.file, Some(since))?;
    let (mut last, mut found) = (since.clone(), VecDeque::new());
    while lines.offset < until
        && let Some(line) = lines.next()?
    {
        let Seen { uuid, time, .. } = claude::look(line);
        let text = claude::meanwhile(line);
        let position = lines.position(uuid.clone().or_else(|| last.uuid.clone()));
        let before = std::mem::replace(&mut last, position.clone());
        found.extend(text.map(|text| Prompt { text, id: None, uuid, before, position, time, by_agent: false }));
        if found.len() > MEANWHILE {
            found.pop_front();
        }
    }
    Ok(found.into())
}

/// The results behind a byte, up to [`RESULTS`] bytes on.
pub(super) fn results(agent: Agent, file: &Path, from: u64) -> Result<Results> {
    let mut lines = Lines::open(file, Some(&Position { offset: from, ..Position::start(file) }))?;
    let mut found = Results::default();
    while lines.offset < from.saturating_add(RESULTS)
        && let Some(line) = lines.next()?
    {
        match look(agent, line).what {
            What::Results(ids) => found.ended.extend(ids),
            What::GoesOn(id) => found.going_on.push(id),
            What::Opening { .. } | What::Prompt { .. } | What::Unsure { .. } | What::Other => {}
        }
    }
    Ok(found)
}

/// The place of each, with the lines read once.
pub(super) fn catch_up(agent: Agent, sought: &[Sought<'_>], since: &Position) -> Result<Vec<Caught>> {
    let mut searches: Vec<Search<'_>> = sought.iter().map(|sought| Search::new(agent, sought)).collect();
    let mut lines = match Lines::open(&since.file, Some(since)) {
        Ok(lines) => lines,
        Err(error) if error.kind == ErrorKind::NotFound && since.line == 0 => {
            return Ok(sought.iter().map(|_| Caught::SoFar(since.clone())).collect());
        }
        Err(error) => return Err(error),
    };
    let mut last = since.clone();
    // Where the lines begin that belong to the next prompt, if it comes at once.
    let mut opening: Option<Position> = None;
    while searches.iter().any(|search| search.found.is_none())
        && let Some(line) = lines.next()?
    {
        let Seen { uuid, time, what } = look(agent, line);
        let before = std::mem::replace(&mut last, lines.position(None));
        last.uuid = uuid.or_else(|| before.uuid.clone());
        let begin = opening.take().unwrap_or(before);
        for search in searches.iter_mut().filter(|search| search.found.is_none()) {
            search.see((&begin, &last), time, &what);
        }
        if matches!(what, What::Opening { .. }) {
            opening = Some(begin);
        }
    }
    let so_far = |search: Search<'_>| Caught::SoFar(search.best(&last));
    Ok(searches.into_iter().map(|mut search| search.found.take().unwrap_or_else(|| so_far(search))).collect())
}

/// The search for one place.
struct Search<'a> {
    sought: &'a Sought<'a>,
    /// Whether prompts share the ids of their turns.
    by_turn: bool,
    /// Whether a prompt's line is written behind its hook, so that one that was there before is that of an earlier prompt.
    writes_later: bool,
    /// Where the turn begins that has the id sought, until its first prompt has been met.
    turn: Option<Position>,
    /// Whether that was met.
    turn_is_on: bool,
    /// The place of the first prompt with that id that was made since, though it says something else; or that says the same, though its line was there before.
    by_id: Option<Position>,
    /// The place by time, once a line that is newer than the moment has been met.
    by_time: Option<Position>,
    found: Option<Caught>,
}

impl<'a> Search<'a> {
    fn new(agent: Agent, sought: &'a Sought<'a>) -> Self {
        let by_turn = agent == Agent::Codex;
        let writes_later = agent == Agent::Claude;
        Self { sought, by_turn, writes_later, turn: None, turn_is_on: false, by_id: None, by_time: None, found: None }
    }

    /// The best that can be said where lines were read up to `last`.
    fn best(self, last: &Position) -> Position {
        self.turn.or(self.by_id).or(self.by_time).unwrap_or_else(|| last.clone())
    }

    /// Looks at a line. What belongs to it begins at `begin`, and it ends at `last`.
    fn see(&mut self, (begin, last): (&Position, &Position), time: Option<Timestamp>, what: &What) {
        let sought = self.sought;
        let at_prompt = *sought.kind == HookKind::Prompt;
        let wanted_result = sought.tool_id.filter(|_| matches!(sought.kind, HookKind::AfterTool { .. }));
        // Whatever was written by then is no newer, though it says so where the clock was set back.
        let there = last.offset <= sought.written;
        let newer = !there && time.is_some_and(|time| time > sought.time);
        let near = time.is_some_and(|time| time.secs + BEFORE > sought.time.secs);
        if newer && self.by_time.is_none() {
            self.by_time = Some(begin.clone());
        }
        let its_id = |id: &Option<String>| at_prompt && id.is_some() && id.as_deref() == sought.prompt_id;
        let mut by_agent = false;
        let (place, is_prompt) = match what {
            What::Results(ids) => {
                self.turn = None;
                (wanted_result.filter(|wanted| ids.iter().any(|id| id == wanted)).map(|_| last.clone()), false)
            }
            What::Opening { id } => {
                if its_id(id) && !self.turn_is_on {
                    self.turn.get_or_insert_with(|| begin.clone());
                }
                (None, false)
            }
            What::Prompt { text, id } => {
                let turn = self.turn.take();
                if self.by_turn && (its_id(id) || turn.is_some() && id.is_none()) {
                    self.turn_is_on = true;
                    let place = turn.unwrap_or_else(|| begin.clone());
                    let alike = sought.prompt.is_none_or(|wanted| begin_alike(text, wanted));
                    // The hook runs before the line is made.
                    let older = time.is_some_and(|time| time < sought.time);
                    if !older && !alike {
                        self.by_id.get_or_insert_with(|| place.clone());
                    }
                    ((alike && !older).then_some(place), false)
                } else {
                    // That of the turn never came.
                    self.by_id = self.by_id.take().or(turn);
                    let its = at_prompt && is_it(sought, text, id.as_deref(), (newer, near));
                    let earlier = self.writes_later && there && !its_id(id);
                    if its && earlier {
                        self.by_id.get_or_insert_with(|| begin.clone());
                    }
                    ((its && !earlier).then(|| begin.clone()), true)
                }
            }
            What::GoesOn(_) => {
                self.turn = None;
                (None, false)
            }
            What::Unsure { text, id, by_agent: own } => {
                let wanted = sought.prompt_id.zip(sought.prompt).filter(|_| at_prompt);
                let its = wanted.is_some_and(|wanted| is_told(wanted, id.as_deref(), text));
                by_agent = its && *own;
                (its.then(|| begin.clone()), its)
            }
            What::Other => (None, false),
        };
        // Lines are written in the order in which they were made, so a newer one ends the search by time. A result may be newer than its
        // moment, since the hook runs first; what ends that search is the next prompt. An opening line may be newer than the prompt sought.
        let ends = newer && (is_prompt || (wanted_result.is_none() && !at_prompt));
        let by_time = || self.by_id.take().or(self.by_time.take()).unwrap_or_else(|| last.clone());
        let place = place.or_else(|| ends.then(by_time));
        self.found = place.map(if by_agent { Caught::ByAgent } else { Caught::Exact });
    }
}

/// A prompt with single blanks between its words: agents write commands anew, so white space tells no two apart.
#[must_use]
pub fn words(prompt: &str) -> String {
    prompt.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether one of two prompts begins with the other.
pub(super) fn begin_alike(one: &str, other: &str) -> bool {
    let (one, other) = (words(one), words(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// Whether a line that begins like the agent's own text is the prompt that a hook told of: by its id, and by its text, without which it is none.
pub(super) fn is_told((wanted_id, wanted): (&str, &str), id: Option<&str>, text: &str) -> bool {
    id == Some(wanted_id) && !words(wanted).is_empty() && begin_alike(text, wanted)
}

/// Whether a prompt's line is that of the prompt sought: by id if both have one, else by text, if it was not made long before the moment, else
/// the first that was made after it.
fn is_it(sought: &Sought<'_>, text: &str, id: Option<&str>, (newer, near): (bool, bool)) -> bool {
    match (sought.prompt_id, id, sought.prompt) {
        (Some(wanted), Some(id), _) => wanted == id,
        (.., Some(wanted)) => near && begin_alike(text, wanted),
        (.., None) => newer,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{begin_alike, catch_up, look};
    use crate::Agent;
    use crate::hook::HookKind;
    use crate::transcript::line::{What, time_of};
    use crate::transcript::{Caught, Position, Sought};

    /// A transcript of those lines, and how many bytes it had after each.
    fn lines(all: &[Value]) -> (tempfile::NamedTempFile, Vec<u64>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<String> = all.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(file.path(), text.concat()).unwrap();
        let ends = text.iter().scan(0, |end, line| {
            *end += line.len() as u64;
            Some(*end)
        });
        (file, ends.collect())
    }

    fn user(time: &str, id: &str, text: &str) -> Value {
        json!({"type": "user", "timestamp": time, "promptId": id, "message": {"role": "user", "content": text}})
    }

    /// Four lines from before the clock was set back, and four from after.
    #[test]
    fn what_was_there_is_no_newer_than_the_moment_where_the_clock_was_set_back() {
        let (early, late) =
            (|s: u32| format!("2026-01-01T03:00:0{s}.000Z"), |s: u32| format!("2026-01-01T00:00:0{s}.000Z"));
        let claude = {
            let said = |time: String, text: &str| json!({"type": "assistant", "timestamp": time, "message": {"content": text}});
            let called = |time: String| json!({"type": "user", "timestamp": time, "message": {"content": [{"type": "tool_result", "tool_use_id": "call", "content": "ok"}]}});
            let mode = || json!({"type": "mode"});
            [
                user(&early(1), "p1", "one"),
                said(early(2), "1"),
                mode(),
                user(&late(2), "p2", "two"),
                called(late(3)),
                said(late(4), "2"),
                user(&late(8), "p3", "three"),
            ]
        };
        let codex = {
            let line =
                |time: String, kind: &str, payload: Value| json!({"timestamp": time, "type": kind, "payload": payload});
            let typed =
                |time: String, text: &str| line(time, "event_msg", json!({"type": "user_message", "message": text}));
            let said = |time: String| line(time, "event_msg", json!({"type": "agent_message", "message": "x"}));
            let called = |time: String| {
                line(time, "response_item", json!({"type": "function_call_output", "call_id": "call", "output": "ok"}))
            };
            let begun =
                |time: String, id: &str| line(time, "event_msg", json!({"type": "task_started", "turn_id": id}));
            [
                typed(early(1), "one"),
                said(early(2)),
                begun(late(2), "p2"),
                typed(late(2), "two"),
                called(late(3)),
                said(late(4)),
                typed(late(8), "three"),
            ]
        };
        for (agent, all, places) in [(Agent::Claude, claude, [3, 5, 6]), (Agent::Codex, codex, [2, 5, 6])] {
            let (file, ends) = lines(&all);
            let time = |s: u32| time_of(&late(s)).unwrap();
            let (prompt, tool, stop) = (HookKind::Prompt, HookKind::AfterTool { failed: false }, HookKind::Stop);
            let of = |kind, time, written| Sought { kind, tool_id: None, prompt_id: None, prompt: None, time, written };
            let sought = [
                Sought { prompt_id: Some("p2"), prompt: Some("two"), ..of(&prompt, time(1), ends[1]) },
                Sought { tool_id: Some("call"), ..of(&tool, time(3), ends[3]) },
                of(&stop, time(5), ends[5]),
            ];
            let found = catch_up(agent, &sought, &Position::start(file.path())).unwrap();
            let lines: Vec<(bool, u64)> =
                found.iter().map(|at| (matches!(at, Caught::Exact(_)), at.position().line)).collect();
            assert_eq!(lines, places.map(|line| (true, line)), "{agent:?}");
        }
    }

    /// A queued prompt bears the id of what was interrupted for it.
    #[test]
    fn a_prompt_that_begins_like_the_agents_own_text_is_one_by_its_id_and_its_text() {
        let pasted = "<bash-stdout>a log</bash-stdout> what is this?";
        let time = "2026-01-01T00:00:01Z";
        let all = [
            user(time, "p1", "one"),
            user(time, "p2", "[Request interrupted by user]"),
            user(time, "p2", pasted),
            user(time, "p3", "three"),
        ];
        let (file, _) = lines(&all);
        let place = |id, text| {
            let (kind, time) = (HookKind::Prompt, time_of(time).unwrap());
            let sought =
                Sought { kind: &kind, tool_id: None, prompt_id: Some(id), prompt: Some(text), time, written: 0 };
            catch_up(Agent::Claude, &[sought], &Position::start(file.path())).unwrap().remove(0)
        };
        let is_at = |caught: Caught, line| matches!(caught, Caught::Exact(at) if at.line == line);
        assert!(is_at(place("p2", pasted), 2));
        assert!(is_at(place("p3", "three"), 3));
        let told = |told: &[(&str, &str)]| -> Vec<String> {
            let told = told.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect();
            let all = crate::transcript::prompts(Agent::Claude, file.path(), None).unwrap().told(told);
            all.map(|prompt| prompt.unwrap().text).collect()
        };
        assert_eq!(told(&[]), ["one", "three"]);
        assert_eq!(told(&[("p2", &pasted[..20])]), ["one", pasted, "three"]);
        // An image alone is told without text, and every text begins with none.
        assert_eq!(told(&[("p2", " ")]), ["one", "three"]);
        assert!(!is_at(place("p2", ""), 1));
    }

    #[test]
    fn a_prompt_with_half_a_character_is_one() {
        let seen = |agent, line: &str| look(agent, line.as_bytes()).what;
        let prompt =
            |id: Option<&str>| What::Prompt { text: "bad \u{fffd} \u{1f600}".into(), id: id.map(str::to_owned) };
        let text = r"bad \ud83d \ud83d\ude00";
        let line = format!(r#"{{"type":"user","message":{{"content":"{text}"}},"promptId":"p"}}"#);
        assert_eq!(seen(Agent::Claude, &line), prompt(Some("p")));
        // So its place is before it, though its line is older than the moment.
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = line.replacen('{', r#"{"timestamp":"2026-01-01T00:00:00.000Z","#, 1);
        std::fs::write(file.path(), format!("{{}}\n{line}\n")).unwrap();
        let time = time_of("2026-01-01T00:00:01Z").unwrap();
        let sought =
            Sought { kind: &HookKind::Prompt, tool_id: None, prompt_id: Some("p"), prompt: None, time, written: 3 };
        let found = catch_up(Agent::Claude, &[sought], &Position::start(file.path())).unwrap();
        assert!(matches!(&found[..], [Caught::Exact(Position { line: 1, .. })]), "{found:?}");
        let blocks = format!(r#"{{"type":"user","message":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#);
        assert_eq!(seen(Agent::Claude, &blocks), prompt(None));
        let line = format!(r#"{{"type":"event_msg","payload":{{"type":"user_message","message":"{text}"}}}}"#);
        assert_eq!(seen(Agent::Codex, &line), prompt(None));
        assert_eq!(seen(Agent::Gemini, &format!(r#"{{"type":"user","content":"{text}"}}"#)), prompt(None));
    }

    #[test]
    fn white_space_tells_no_prompts_apart() {
        for (line, told) in [("/fix this", "/fix  this"), ("/fix line one", "/fix\nline one\n"), ("a b", " a")] {
            assert!(begin_alike(line, told) && begin_alike(told, line), "{line:?} {told:?}");
        }
        assert!(!begin_alike("/fix this", "/fix that"));
    }
}
