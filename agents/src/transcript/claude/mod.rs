//! Claude Code's transcripts: `<home>/projects/<project>/<session>.jsonl`.
//!
//! One object a line. Messages (`user`, `assistant`, `attachment`, `system`) have a `uuid` and hang on another by `parentUuid`: a tree, the newest
//! leaf of which is the conversation. Each block of an answer is a line of its own, so parallel calls are a chain of lines, and each result hangs
//! on its call. Other lines (`queue-operation`, `last-prompt`, `mode`, `file-history-snapshot`, …) are notes about the session.
//!
//! The program itself looks for some members byte by byte, so lines are changed by replacing bytes, never by writing JSON anew.
//!
//! See `docs/agents/claude.md` for what was seen in which version. Not here: copying (`super::copy`).

mod memory;
mod place;
mod plan;
mod rewound;
mod subagents;
mod typed;

use std::borrow::Cow;

use ah_plugin_api::Result;
use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::copy::{self, Edit, Until};
use super::line::{Lines, Seen, What, is_true, text_of, time_of, value_of};
use super::{Destination, Position, Trimmed};
use typed::{by_agent, by_text, queued};

pub(super) use memory::remembered_since;
pub(crate) use typed::NOTICE;
pub(super) use typed::QUEUED;

/// The members of a line that are looked at, as they are written.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    subtype: Option<&'a RawValue>,
    #[serde(borrow)]
    uuid: Option<&'a RawValue>,
    #[serde(borrow, rename = "parentUuid")]
    parent: Option<&'a RawValue>,
    #[serde(borrow, rename = "sessionId")]
    session: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow, rename = "promptId")]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, rename = "isSidechain")]
    sidechain: Option<&'a RawValue>,
    #[serde(borrow, rename = "isMeta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, rename = "isCompactSummary")]
    compact: Option<&'a RawValue>,
    #[serde(borrow, rename = "isVisibleInTranscriptOnly")]
    shown_only: Option<&'a RawValue>,
    #[serde(borrow, rename = "leafUuid")]
    leaf: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    attachment: Option<&'a RawValue>,
    #[serde(borrow, rename = "toolUseResult")]
    result: Option<&'a RawValue>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    fn kind(&self) -> Cow<'a, str> {
        text_of(self.kind).unwrap_or_default()
    }

    /// The tool calls and results in the line's message, by their ids.
    fn content(&self) -> Content {
        let wanted = matches!(self.kind().as_ref(), "user" | "assistant");
        let message: Option<Message> = self.message.filter(|_| wanted).and_then(value_of);
        message.unwrap_or_default().content
    }

    /// What the line is, as far as finding places goes.
    fn what(&self) -> What {
        let id = text_of(self.prompt).map(Cow::into_owned);
        match self.kind().as_ref() {
            "queue-operation" | "file-history-snapshot" => What::Opening { id: None },
            // Says that a prompt comes that was scheduled.
            "system" if text_of(self.subtype).as_deref() == Some("scheduled_task_fire") => What::Opening { id: None },
            "user" => {
                let content = self.content();
                let is_said = ![self.sidechain, self.compact, self.shown_only].into_iter().any(is_true);
                if !content.results.is_empty() {
                    What::Results(content.results)
                } else if !is_said {
                    What::Other
                } else if is_true(self.meta) {
                    by_agent(&content.text, id)
                } else {
                    by_text(&content.text, id)
                }
            }
            "attachment" if !is_true(self.sidechain) => {
                queued(self.attachment).map_or(What::Other, |text| What::Prompt { text, id })
            }
            _ => What::Other,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    content: Content,
}

/// What of a message's content is looked at.
#[derive(Default)]
struct Content {
    /// Its text, if it is not mixed with results.
    text: String,
    calls: Vec<String>,
    results: Vec<String>,
    /// Whether one of the calls puts a task on the list.
    tasks: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, rename = "tool_use_id")]
    of: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Blocks;
        impl<'de> Visitor<'de> for Blocks {
            type Value = Content;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("text or blocks")
            }
            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content { text: text.to_owned(), ..Content::default() })
            }
            fn visit_unit<E>(self) -> Result<Content, E> {
                Ok(Content::default())
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Content::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
                let mut content = Content::default();
                while let Some(block) = seq.next_element::<Block<'de>>()? {
                    match text_of(block.kind).as_deref() {
                        Some("tool_use") => {
                            content.calls.extend(text_of(block.id).map(Cow::into_owned));
                            content.tasks |= text_of(block.name).as_deref() == Some("TaskCreate");
                        }
                        Some("tool_result") => content.results.extend(text_of(block.of).map(Cow::into_owned)),
                        Some("text") => {
                            if !content.text.is_empty() {
                                content.text.push('\n');
                            }
                            content.text.push_str(&text_of(block.text).unwrap_or_default());
                        }
                        _ => {}
                    }
                }
                Ok(content)
            }
        }
        deserializer.deserialize_any(Blocks)
    }
}

pub(super) fn look(line: &[u8]) -> Seen {
    let Some(line) = Line::parse(line) else { return Seen::default() };
    let uuid = text_of(line.uuid).map(Cow::into_owned);
    let time = text_of(line.timestamp).and_then(|text| time_of(&text));
    Seen { uuid, time, what: line.what() }
}

/// What a person typed while the agent was at work, if the line is that.
pub(super) fn meanwhile(line: &[u8]) -> Option<String> {
    let line = Line::parse(line).filter(|line| line.kind() == "attachment" && !is_true(line.sidechain))?;
    queued(line.attachment)
}

/// The list is kept in `tasks/<session>`, as it is now and not as it was at a place.
const TASKS_STAY: &str = "Claude Code keeps the list of tasks by the session that made it: its tools (TaskList, TaskUpdate) know none of those that this conversation speaks of";

pub(super) fn trim(at: &Position, to: &Destination<'_>, session_id: &str, before_prompt: bool) -> Result<Trimmed> {
    let folder = place::project(to)?;
    let file = folder.join(format!("{session_id}.jsonl"));
    copy::refuse_existing(&file)?;
    let at = copy::settled(crate::Agent::Claude, at)?;
    let until = Until::Offset(at.offset, at.file.clone());
    let rewound = if before_prompt { rewound::Rewound::at(&at)? } else { rewound::Rewound::default() };
    let plan = plan::plan(&mut Lines::open(&at.file, None)?, &until, rewound)?;
    if plan.messages == 0 {
        return Err(copy::nothing_said(&at));
    }
    // Sub-agents first: the session is there once its own file is.
    let others = subagents::copy(&at, &plan, &folder, session_id)?;
    let counts = copy::write(&at, &file, |number, line| edit(&plan, session_id, number, line));
    if counts.is_err() {
        subagents::remove(&others);
    }
    let counts = counts?;
    let notes = plan.tasks.then(|| TASKS_STAY.to_owned()).into_iter().collect();
    Ok(Trimmed { file, session_id: session_id.into(), lines: counts.lines, dropped: counts.dropped, others, notes })
}

/// What becomes of a line.
fn edit(plan: &plan::Plan, session_id: &str, number: u64, line: &[u8]) -> Edit {
    if plan.dropped.contains(&number) {
        return Edit::Drop;
    }
    let Some(parsed) = Line::parse(line) else {
        // Not of a shape that is known: kept if it is JSON at all, dropped if it is torn.
        return if serde_json::from_slice::<IgnoredAny>(line).is_ok() { Edit::Keep } else { Edit::Drop };
    };
    let mut edit = Edit::Keep;
    if let Some(session) = parsed.session.filter(|raw| raw.get().starts_with('"')) {
        edit = edit.replace(line, session.get(), format!("\"{session_id}\""));
    }
    let heir = text_of(parsed.parent).and_then(|parent| plan.heirs.get(parent.as_ref()));
    if let Some((parent, heir)) = parsed.parent.zip(heir) {
        edit = edit.replace(line, parent.get(), heir.as_ref().map_or("null".into(), |heir| format!("\"{heir}\"")));
    }
    edit
}

#[cfg(test)]
mod tests;
