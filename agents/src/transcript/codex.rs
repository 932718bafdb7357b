//! Codex's transcripts, which it calls rollouts: `<home>/sessions/YYYY/MM/DD/rollout-<local time>-<id>.jsonl`.
//!
//! One object a line, `{timestamp, type, payload}`: `session_meta` first, then `response_item` (what the model saw and said: messages, calls and their
//! outputs, joined by `call_id`), `event_msg` (what the person saw), `turn_context`, `world_state`, `compacted`, …. The order is the conversation; nothing hangs
//! on anything by id, so a line can be left out.
//!
//! See `docs/agents/codex.md` for what was seen in which version.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::copy::{self, Edit, Until};
use super::line::{Lines, Seen, What, text_of, time_of};
use super::{Destination, Position, Trimmed};
use crate::Agent;

/// Where the lines bear the session's id.
const ID_MEMBERS: [&str; 3] = ["id", "session_id", "thread_id"];

/// More lines than the program puts before a command's output.
const OWN_LINES: usize = 8;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Payload<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    turn_id: Option<&'a RawValue>,
    #[serde(borrow)]
    call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Vec<Text<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Text<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

impl<'a> Line<'a> {
    /// The line, its kind, and its payload; `None` if it is not JSON of that shape.
    fn parse(line: &'a [u8]) -> Option<(Self, Cow<'a, str>, Payload<'a>)> {
        let this: Self = serde_json::from_slice(line).ok()?;
        let kind = text_of(this.kind)?;
        let payload = this.payload.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        Some((this, kind, payload))
    }
}

/// What a line is to a call: its beginning or its result.
enum Side {
    Call,
    Result,
}

fn side(kind: &str) -> Option<Side> {
    // `function_call`, `custom_tool_call`, `local_shell_call`, `tool_search_call`, …, each with its `…_output`.
    if kind.ends_with("_call_output") || kind.ends_with("_call_result") {
        Some(Side::Result)
    } else if kind.ends_with("_call") {
        Some(Side::Call)
    } else {
        None
    }
}

pub(super) fn look(line: &[u8]) -> Seen {
    let Some((line, kind, payload)) = Line::parse(line) else { return Seen::default() };
    let time = text_of(line.timestamp).and_then(|text| time_of(&text));
    let owned = |raw| text_of(raw).map(Cow::into_owned);
    let inner = text_of(payload.kind).unwrap_or_default();
    let turn = owned(payload.turn_id);
    let what = match (kind.as_ref(), inner.as_ref()) {
        ("event_msg", "user_message") => match owned(payload.message).filter(|text| !text.is_empty()) {
            Some(text) => What::Prompt { text, id: turn },
            None => What::Other,
        },
        ("event_msg", "item_completed") => {
            typed(payload.item).map_or(What::Other, |text| What::Prompt { text, id: turn })
        }
        ("event_msg", "task_started") | ("turn_context", _) => What::Opening { id: turn },
        ("event_msg", "thread_settings_applied") | ("world_state", _) => What::Opening { id: None },
        ("response_item", "additional_tools") => What::Opening { id: None },
        ("response_item", "message") if matches!(text_of(payload.role).as_deref(), Some("user" | "developer")) => {
            What::Opening { id: None }
        }
        ("response_item", inner) if matches!(side(inner), Some(Side::Result)) => match owned(payload.call_id) {
            Some(call) if goes_on(payload.output) => What::GoesOn(call),
            call => What::Results(call.into_iter().collect()),
        },
        _ => What::Other,
    };
    let uuid = if kind == "response_item" { owned(payload.id) } else { None };
    Seen { uuid, time, what }
}

/// Whether a command goes on, by what the model gets of it: so many lines of the program's own, then the command's.
fn goes_on(output: Option<&RawValue>) -> bool {
    let text = text_of(output).unwrap_or_default();
    let own = text.lines().take_while(|line| *line != "Output:");
    own.take(OWN_LINES).any(|line| line.starts_with("Process running with session ID "))
}

/// What a person typed, of a finished item.
fn typed(item: Option<&RawValue>) -> Option<String> {
    let raw = item.filter(|raw| raw.get().contains("\"UserMessage\""))?;
    let item: Item<'_> = serde_json::from_str(raw.get()).ok()?;
    if text_of(item.kind).as_deref() != Some("UserMessage") {
        return None;
    }
    let parts: Vec<Cow<'_, str>> = item.content.iter().filter_map(|part| text_of(part.text)).collect();
    Some(parts.join("\n")).filter(|text| !text.is_empty())
}

/// What of a rollout does not come along.
#[derive(Default)]
struct Plan {
    dropped: HashSet<u64>,
    /// What was said by anybody.
    messages: u64,
    /// The session's id, from its first line.
    id: Option<String>,
}

fn plan(lines: &mut Lines, until: &Until) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut open: HashMap<String, Vec<u64>> = HashMap::new();
    while !until.reached(lines.offset)? {
        let number = lines.line + 1;
        let Some(bytes) = lines.next()? else { break };
        let Some((_, kind, payload)) = Line::parse(bytes) else { continue };
        let inner = text_of(payload.kind).unwrap_or_default();
        match (kind.as_ref(), side(&inner)) {
            ("session_meta", _) if plan.id.is_none() => plan.id = text_of(payload.id).map(Cow::into_owned),
            ("response_item", Some(side)) => {
                let Some(call) = text_of(payload.call_id) else { continue };
                match side {
                    Side::Call => open.entry(call.into_owned()).or_default().push(number),
                    Side::Result => {
                        open.remove(call.as_ref());
                    }
                }
            }
            ("response_item", None) if inner == "message" => {
                plan.messages += u64::from(text_of(payload.role).as_deref() == Some("assistant"));
            }
            ("event_msg", _) if inner == "user_message" => plan.messages += 1,
            ("event_msg", _) if inner == "item_completed" => plan.messages += u64::from(typed(payload.item).is_some()),
            _ => {}
        }
    }
    plan.dropped.extend(open.into_values().flatten());
    Ok(plan)
}

pub(super) fn trim(at: &Position, to: &Destination<'_>, session_id: &str) -> Result<Trimmed> {
    let at = copy::settled(Agent::Codex, at)?;
    let file = place(&at, to, session_id)?;
    copy::refuse_existing(&file)?;
    let plan = plan(&mut Lines::open(&at.file, None)?, &Until::Offset(at.offset, at.file.clone()))?;
    if plan.messages == 0 {
        return Err(copy::nothing_said(&at));
    }
    let Some(old) = &plan.id else {
        let message =
            format!("{} does not begin with a session_meta line, as a rollout of Codex does", at.file.display());
        return Err(
            Error::new(ErrorKind::Unsupported, message).with_hint("only its files can be had: ah agent fs branch REF")
        );
    };
    let counts = copy::write(&at, &file, |number, line| {
        if plan.dropped.contains(&number) || serde_json::from_slice::<IgnoredAny>(line).is_err() {
            return Edit::Drop;
        }
        renamed(line, old, session_id)
    })?;
    Ok(Trimmed {
        file,
        session_id: session_id.into(),
        lines: counts.lines,
        dropped: counts.dropped,
        others: Vec::new(),
        notes: Vec::new(),
    })
}

/// Replaces the session's id where it is the value of a member that bears it. Within text a quote is escaped, so this is never part of one.
fn renamed(line: &[u8], old: &str, new: &str) -> Edit {
    let quoted = format!("\"{old}\"");
    let mut parts = Vec::new();
    for start in memchr::memmem::find_iter(line, quoted.as_bytes()) {
        let before = &line[..start];
        let before = before.trim_ascii_end().strip_suffix(b":").unwrap_or_default().trim_ascii_end();
        if ID_MEMBERS.iter().any(|name| before.strip_suffix(b"\"").is_some_and(|rest| ends_with_member(rest, name))) {
            parts.push((start + 1..start + 1 + old.len(), new.to_owned()));
        }
    }
    if parts.is_empty() { Edit::Keep } else { Edit::Splice(parts) }
}

/// Whether `text` ends with `"name`, and the quote is not an escaped one.
fn ends_with_member(text: &[u8], name: &str) -> bool {
    text.strip_suffix(name.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"\""))
        .is_some_and(|rest| !rest.ends_with(b"\\"))
}

/// Where the copy goes: the folder of the day in the original's name, as far as it can be told, else beside the original.
fn place(at: &Position, to: &Destination<'_>, session_id: &str) -> Result<PathBuf> {
    let odd = || {
        let message = format!("{} is not named as a rollout of Codex is", at.file.display());
        Error::new(ErrorKind::Unsupported, message).with_hint("expected: rollout-YYYY-MM-DDThh-mm-ss-ID.jsonl")
    };
    let name = at.file.file_name().and_then(OsStr::to_str).ok_or_else(odd)?;
    let (time, day) = time_and_day(name).ok_or_else(odd)?;
    Ok(to.home.codex.join("sessions").join(day).join(format!("rollout-{time}-{session_id}.jsonl")))
}

/// The time in a rollout's name, and the folder of its day below `sessions`.
pub(super) fn time_and_day(name: &str) -> Option<(&str, PathBuf)> {
    let time = name.strip_prefix("rollout-")?.get(..19)?;
    let digits =
        |range: std::ops::Range<usize>| time.get(range).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let day = [digits(0..4)?, digits(5..7)?, digits(8..10)?];
    let is_plain = time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-' || byte == b'T');
    is_plain.then(|| (time, day.iter().collect()))
}

#[cfg(test)]
mod tests;
