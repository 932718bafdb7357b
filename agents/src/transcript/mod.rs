//! Reading transcripts: places in them, the prompts, and copies that end at a place.
//!
//! Claude Code, Codex and Gemini CLI write one JSON object a line and only ever append. They write late: when a hook runs, the lines
//! about what it reports may be missing. So a moment first remembers [`position_now`], and later, when there is time, what
//! [`catch_up`] finds to belong to it.
//!
//! The formats are the agents' own and change. What is not known is kept as it is; of what is known, as little is used as possible.
//! Everything streams: memory is that of the longest line, and a few bytes a line where ids have to be known.
//!
//! What "belongs" to a moment, by its kind:
//!
//! | moment | the conversation then |
//! |---|---|
//! | prompt | everything before the prompt: it has been typed, but nothing was done for it, and a new instruction takes its place |
//! | after a tool | up to the line with the tool's result; of a command that went on when the model did (Codex), up to where it was heard to have ended |
//! | stop, session end, manual | what was said by then: lines no newer than the moment, and before the next prompt |
//! | session start | what was there: nothing, or what is resumed |
//!
//! Not here: which moment has which position (`core`), and starting the agent with a copy (`launch`).

mod catch;
mod claude;
mod codex;
mod copy;
mod gemini;
mod id;
mod line;
mod moved;
mod prompts;
mod tail;

use std::fs::File;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::files::open_regular;
use crate::hook::{HookEvent, HookKind};
use crate::{Agent, Home};

pub use catch::words;
pub(crate) use claude::NOTICE;
pub use id::new_session_id;
pub use moved::place_now;
pub use prompts::{Prompt, Prompts};

/// Longest line that is read, in bytes. An agent's limit for an image or a document is below half of it.
pub const LONGEST_LINE: usize = 64 << 20;

/// A place between two lines of a transcript: everything up to and including `line` belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The transcript.
    pub file: PathBuf,
    /// The last line that belongs, counted from 1; 0 if none does.
    pub line: u64,
    /// The byte after that line and its newline.
    pub offset: u64,
    /// The agent's id of that line, or the nearest one before it that has one; by it the place is found again should the file have been
    /// rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Position {
    /// Before the first line of `file`.
    #[must_use]
    pub fn start(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), line: 0, offset: 0, uuid: None }
    }
}

/// What [`catch_up`] looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought<'a> {
    /// The kind of the moment; [`HookKind::Other`] for manual ones and shell commands.
    pub kind: &'a HookKind,
    /// The tool call's id, after a tool.
    pub tool_id: Option<&'a str>,
    /// The agent's id of the prompt, at a prompt.
    pub prompt_id: Option<&'a str>,
    /// What was typed, or its beginning, at a prompt.
    pub prompt: Option<&'a str>,
    /// When the moment was.
    pub time: Timestamp,
    /// How many bytes the transcript had by then; 0 if that is not known. Claude Code writes a prompt's line later.
    pub written: u64,
}

impl<'a> Sought<'a> {
    /// What belongs to `event`, which came in at `time`.
    #[must_use]
    pub fn of(event: &'a HookEvent, time: Timestamp) -> Self {
        Self {
            kind: &event.kind,
            tool_id: event.tool.as_ref().and_then(|tool| tool.id.as_deref()),
            prompt_id: event.prompt_id.as_deref(),
            prompt: event.prompt.as_deref(),
            time,
            written: 0,
        }
    }
}

/// What [`catch_up`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caught {
    /// The place; it will not change any more.
    Exact(Position),
    /// The same of a prompt that no person typed: the agent gave it to itself, at a time that had been set, say, or got it from another program.
    ByAgent(Position),
    /// The best that can be said of the file as it is; asking again later may find better.
    SoFar(Position),
}

impl Caught {
    /// The place, final or not.
    #[must_use]
    pub fn position(&self) -> &Position {
        match self {
            Self::Exact(position) | Self::ByAgent(position) | Self::SoFar(position) => position,
        }
    }

    /// As [`Self::position`], by value.
    #[must_use]
    pub fn into_position(self) -> Position {
        match self {
            Self::Exact(position) | Self::ByAgent(position) | Self::SoFar(position) => position,
        }
    }
}

/// Where a trimmed copy goes: the place in which the agent will look for it.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The agent's home.
    pub home: &'a Home,
    /// The directory in which the agent will be started, as it will see it, absolute. Under a mount namespace this is the path inside.
    pub cwd: &'a Path,
}

/// A copy that [`trim`] made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trimmed {
    /// The new transcript.
    pub file: PathBuf,
    /// The new session's id, to resume by.
    pub session_id: String,
    /// Lines in it.
    pub lines: u64,
    /// Lines up to the place that are not in it: calls without a result, torn lines, pointers to what is not there.
    pub dropped: u64,
    /// Further files made, such as transcripts of sub-agents; for removing them with the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PathBuf>,
    /// What it lacks that the conversation speaks of, for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Opens a transcript for reading; it is where the agent says, which may be anything.
///
/// # Errors
/// `NotFound` with a hint; `Unsupported` if it is no regular file; the filesystem's own errors.
pub fn open(file: &Path) -> Result<File> {
    open_regular(file).map_err(|error| {
        let this = Error::from_io(format!("cannot read the transcript {}", file.display()), &error);
        match this.kind {
            ErrorKind::NotFound => {
                this.with_hint("the agent may have removed it: `ah timeline` lists what is still there")
            }
            _ => this,
        }
    })
}

/// The end of `file` as it is now, a torn last line left out. A file that does not exist yet is empty.
///
/// `since` is an earlier place in the same file, from which lines are counted on; without it they are counted from the start. If 128 MiB do not
/// lead to the end, the place is that far on; asked from there, it comes nearer.
///
/// # Errors
/// `Unsupported` for agents without a transcript in a file (opencode); the filesystem's own errors.
///
/// # Cost
/// Reads what is behind `since`, 128 MiB at most: about 50 ms for 100 MB.
pub fn position_now(agent: Agent, file: &Path, since: Option<&Position>) -> Result<Position> {
    Ok(position_and_meanwhile(agent, file, since)?.0)
}

/// As [`position_now`], with the prompts behind `since` that were typed while the agent was at work, and that it read between two of its tools: Claude
/// Code calls no hook for these. Of many the last 16 are told; without `since` none are.
///
/// # Errors
/// As [`position_now`].
///
/// # Cost
/// As [`position_now`]; where there are such prompts, what is behind `since` is read once more.
pub fn position_and_meanwhile(agent: Agent, file: &Path, since: Option<&Position>) -> Result<(Position, Vec<Prompt>)> {
    in_files(agent)?;
    catch::end_of(agent, file, since)
}

/// The place that belongs to a moment, found once the agent has written its lines.
///
/// `since` is a place known not to lie behind the moment, such as that of the moment before; [`Position::start`] always holds.
///
/// # Errors
/// As [`position_now`].
///
/// # Cost
/// Reads from `since` to where the place is certain.
pub fn catch_up(agent: Agent, sought: &Sought<'_>, since: &Position) -> Result<Caught> {
    let caught = catch_up_all(agent, std::slice::from_ref(sought), since)?;
    Ok(caught.into_iter().next().unwrap_or_else(|| Caught::SoFar(since.clone())))
}

/// As [`catch_up`], for several moments with one reading: `since` must hold for each of them.
///
/// # Errors
/// As [`position_now`].
pub fn catch_up_all(agent: Agent, sought: &[Sought<'_>], since: &Position) -> Result<Vec<Caught>> {
    in_files(agent)?;
    catch::catch_up(agent, sought, since)
}

/// What became of tool calls, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// They have their results.
    pub ended: Vec<String>,
    /// The model went on before their commands had ended (Codex).
    pub going_on: Vec<String>,
}

/// The tool calls whose results stand behind the byte `from` of `file`, in which the agent may be writing: what is not there yet comes
/// later. The one at `from` itself may begin in the middle of a line, which is passed over.
///
/// # Errors
/// As [`position_now`].
///
/// # Cost
/// Reads 8 MiB at most, and the line at which they end.
pub fn results(agent: Agent, file: &Path, from: u64) -> Result<Results> {
    in_files(agent)?;
    catch::results(agent, file, from)
}

/// The prompts of a person in `file`, in order, from `since` on; without tool results, reminders, commands' output and summaries.
///
/// Lines that are not understood are passed over; an error of reading is yielded once and ends the list.
///
/// # Errors
/// `NotFound` if there is no such file; `Unsupported` as [`position_now`].
pub fn prompts(agent: Agent, file: &Path, since: Option<&Position>) -> Result<Prompts> {
    in_files(agent)?;
    Prompts::open(agent, file, since)
}

/// Makes a copy of a transcript that ends at `at`, under the id `session_id`, where the agent finds it from `to.cwd`.
///
/// Each line is the original's but for the session id. Left out are tool calls whose result lies behind the place (lines that hung on them
/// hang on what was before them), torn lines, pointers to messages that are not in the copy, and, `before_prompt`, what the agent's own rewinding
/// gave up right before the prompt at the place (Claude Code); at any other place that had not been given up yet. Images, compaction, sub-agents' lines and lines of unknown kinds are kept. The original is only read. A
/// crash leaves at most a file whose name begins with `.ah-`.
///
/// `session_id` comes from [`new_session_id`].
///
/// # Errors
/// `NotFound` without a transcript; `Conflict` if the place is not in it any more (the agent rewrote it); `AlreadyExists` if the new session exists;
/// `Unsupported` where the agent's format does not allow it, with a hint; `InvalidArgument` for an id that is not a UUID.
///
/// # Cost
/// Two passes over what lies before the place; 100 MB in under 2 s.
pub fn trim(
    agent: Agent,
    at: &Position,
    to: &Destination<'_>,
    session_id: &str,
    before_prompt: bool,
) -> Result<Trimmed> {
    id::check(session_id)?;
    match agent {
        Agent::Claude => claude::trim(at, to, session_id, before_prompt),
        Agent::Codex => codex::trim(at, to, session_id),
        Agent::Gemini => gemini::trim(at, to, session_id),
        Agent::Opencode => Err(not_in_files()),
    }
}

/// Says, for a person, that the agent wrote down something after `since` that it reads whenever it starts in `to`, whatever conversation it goes on with;
/// none if it did not.
#[must_use]
pub fn remembered_since(agent: Agent, to: &Destination<'_>, since: Timestamp) -> Option<String> {
    match agent {
        Agent::Claude => claude::remembered_since(to, since),
        Agent::Codex | Agent::Gemini | Agent::Opencode => None,
    }
}

fn in_files(agent: Agent) -> Result<()> {
    match agent {
        Agent::Claude | Agent::Codex | Agent::Gemini => Ok(()),
        Agent::Opencode => Err(not_in_files()),
    }
}

fn not_in_files() -> Error {
    Error::new(ErrorKind::Unsupported, "opencode keeps conversations in a database, which ah does not read")
        .with_hint("its files can be brought back all the same: ah agent fs branch REF")
}
