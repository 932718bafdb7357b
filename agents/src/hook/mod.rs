//! What an agent says when it calls a hook, and what is said back.
//!
//! An event is one JSON object on standard input. Most of it can be the output of a tool, tens of megabytes of it: strings are cut
//! while they are read (`shorten`), and fields that nobody asks for are never kept, so an event costs the same memory whatever its
//! size. Everything is read to its end, since an agent may take a closed pipe for a failed hook.
//!
//! Claude Code, Codex and opencode (by a plugin of ours) name events alike, Gemini CLI has names of its own; unknown ones are
//! [`HookKind::Other`].
//!
//! Not here: what follows from an event (`core`), and how an agent comes to call (`settings`).

mod fields;
mod shorten;

use std::io::Read;
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::Agent;
use fields::{Input, Response, Tasks, Text};

/// Longest text that is kept of any field, in bytes as written in the event; the rest is cut off.
pub const LONGEST_TEXT: usize = 64 * 1024;

/// One call of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookEvent {
    /// Who called.
    pub agent: Agent,
    /// What happened.
    pub kind: HookKind,
    /// The agent's own id of its session.
    pub session_id: String,
    /// The session's transcript, if the agent says where it is; of a sub-agent Codex does not. It may not exist yet.
    pub transcript: Option<PathBuf>,
    /// The directory the agent is in now, absolute. It changes with `cd`: a session's workspace is that of its `SessionStart`.
    pub cwd: PathBuf,
    /// What the person typed, with [`HookKind::Prompt`]; at most [`LONGEST_TEXT`].
    pub prompt: Option<String>,
    /// The agent's id of the prompt in force (Claude Code's `prompt_id`, Codex's `turn_id`).
    pub prompt_id: Option<String>,
    /// The tool, with [`HookKind::BeforeTool`] and [`HookKind::AfterTool`].
    pub tool: Option<ToolCall>,
    /// Whether the tool's command goes on when the tool has ended, as far as the agent tells.
    pub background: bool,
    /// What a tool has started that goes on in the background with tools of its own: the agent's id of that sub-agent, or of a workflow.
    pub launched: Option<String>,
    /// With [`HookKind::Stop`]: the ids of all that goes on so; `None` if the agent does not tell.
    pub going_on: Option<Vec<String>>,
    /// The agent's own checkpoint that holds the conversation as it is now, where it has such, and starts from one by
    /// `--checkpoint ID`. None of the four does by itself; the mock agent does.
    pub checkpoint: Option<String>,
    /// Why a session starts (`startup`, `resume`, `clear`, `compact`, …) or ends.
    pub reason: Option<String>,
    /// Set if the event comes from inside a sub-agent, or is about one.
    pub subagent: Option<Subagent>,
}

/// What happened, in words that hold for every agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookKind {
    /// A session began, or goes on after a resume or a compaction; [`HookEvent::reason`] tells.
    SessionStart,
    /// A session ended.
    SessionEnd,
    /// A person's prompt is about to be sent; nothing has been done for it yet, and it is not in the transcript yet.
    Prompt,
    /// A tool is about to run.
    BeforeTool,
    /// A tool has run. Its result is usually not in the transcript yet.
    AfterTool {
        /// It ended with an error, as far as the agent tells.
        failed: bool,
    },
    /// The agent has answered and waits for the next prompt.
    Stop,
    /// A sub-agent has answered.
    SubagentStop,
    /// Something else, by the agent's name for it.
    Other(String),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name, as the agent calls it.
    pub name: String,
    /// The id that joins call and result in the transcript.
    pub id: Option<String>,
    /// What it was asked for: a shell's command, the file that an edit is in (from the agent's directory, if it is in that), the files of a patch;
    /// of other tools the words that the agent has for it, if it has some. At most [`LONGEST_TEXT`].
    pub about: Option<String>,
}

/// A sub-agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subagent {
    /// Its id within the session.
    pub id: String,
    /// Its own transcript, if the agent says where it is.
    pub transcript: Option<PathBuf>,
}

/// Reads one event to the end of `input`.
///
/// # Errors
/// `InvalidArgument` if it is not a JSON object, or has no session id, event name or absolute directory; `input`'s own errors. `input` is read to
/// its end in each case.
///
/// # Cost
/// Memory bounded by [`LONGEST_TEXT`] times a handful of fields; 50 MB take well under a second.
pub fn read(agent: Agent, mut input: impl Read) -> Result<HookEvent> {
    let read = serde_json::from_reader(std::io::BufReader::new(shorten::Shorten::new(&mut input, LONGEST_TEXT)));
    // A refused event leaves the rest unread.
    std::io::copy(&mut input, &mut std::io::sink())
        .map_err(|error| Error::from_io("cannot read the hook's input", &error))?;
    let raw: Raw = read.map_err(|error| refused(agent, format!("it cannot be read: {error}")))?;
    raw.into_event(agent)
}

/// What to write to standard output after an event, with exit status 0: nothing that would reach the conversation.
///
/// Claude Code and Codex add what a hook prints at a prompt or a session's start to the conversation, so they get nothing. Gemini CLI
/// wants JSON in any case.
#[must_use]
pub fn answer_of(agent: Agent) -> &'static [u8] {
    match agent {
        Agent::Claude | Agent::Codex | Agent::Opencode => b"",
        Agent::Gemini => b"{}\n",
    }
}

fn refused(agent: Agent, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("that is not a hook event of {}: {why}", agent.title())).with_hint(
        format!("`ah hook {agent}` is called by {} itself; `ah agent hooks install {agent}` sets it up", agent.title()),
    )
}

/// The fields that are looked at; all others are skipped while reading.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    hook_event_name: Text,
    session_id: Text,
    transcript_path: Text,
    cwd: Text,
    prompt: Text,
    prompt_id: Text,
    turn_id: Text,
    checkpoint_id: Text,
    tool_name: Text,
    tool_use_id: Text,
    source: Text,
    reason: Text,
    agent_id: Text,
    agent_transcript_path: Text,
    tool_input: Input,
    tool_response: Response,
    background_tasks: Tasks,
}

impl HookEvent {
    /// What tells this event from every other of its kind in its session; `None` where the agent says no such thing. Codex's id at a prompt
    /// is its turn's, in which more prompts can follow.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self.kind {
            HookKind::BeforeTool | HookKind::AfterTool { .. } => self.tool.as_ref()?.id.as_deref(),
            HookKind::Prompt if self.agent != Agent::Codex => self.prompt_id.as_deref(),
            _ => None,
        }
    }
}

impl Raw {
    fn into_event(self, agent: Agent) -> Result<HookEvent> {
        let name = self.hook_event_name.0.ok_or_else(|| refused(agent, "it has no hook_event_name"))?;
        let session_id = self.session_id.0.ok_or_else(|| refused(agent, "it has no session_id"))?;
        let cwd = self.cwd.path().ok_or_else(|| refused(agent, "it has no absolute cwd"))?;
        let kind = match kind_of(agent, name, self.tool_response.failed) {
            // What a sub-agent was told, or a notice of the program's own: nobody has typed it, and no turn of a person's ends by it.
            HookKind::Prompt if self.agent_id.0.is_some() || self.prompt.is_notice(agent) => {
                HookKind::Other("a prompt that no person typed".to_owned())
            }
            kind => kind,
        };
        let tool = match kind {
            HookKind::BeforeTool | HookKind::AfterTool { .. } => {
                let about = self.tool_input.about(&cwd);
                self.tool_name.0.map(|name| ToolCall { name, id: self.tool_use_id.0, about })
            }
            _ => None,
        };
        let (mut transcript, mut own) = (self.transcript_path.path(), self.agent_transcript_path.path());
        // Codex names a sub-agent's own so, but where it names both.
        if agent == Agent::Codex && self.agent_id.0.is_some() && own.is_none() {
            own = transcript.take();
        }
        let going_on = self.background_tasks.0.filter(|_| kind == HookKind::Stop);
        Ok(HookEvent {
            agent,
            prompt: self.prompt.0.filter(|_| kind == HookKind::Prompt),
            kind,
            session_id,
            transcript,
            cwd,
            prompt_id: self.prompt_id.0.or(self.turn_id.0),
            checkpoint: self.checkpoint_id.0,
            background: tool.is_some() && (self.tool_input.background || self.tool_response.background),
            launched: self.tool_response.launched.filter(|_| tool.is_some()),
            going_on,
            tool,
            reason: self.source.0.or(self.reason.0),
            subagent: self.agent_id.0.map(|id| Subagent { id, transcript: own }),
        })
    }
}

fn kind_of(agent: Agent, name: String, failed: bool) -> HookKind {
    match (agent, name.as_str()) {
        (_, "SessionStart") => HookKind::SessionStart,
        (_, "SessionEnd") => HookKind::SessionEnd,
        (Agent::Gemini, "BeforeAgent") => HookKind::Prompt,
        (Agent::Gemini, "AfterAgent") => HookKind::Stop,
        (Agent::Gemini, "BeforeTool") => HookKind::BeforeTool,
        (Agent::Gemini, "AfterTool") => HookKind::AfterTool { failed },
        (Agent::Gemini, _) => HookKind::Other(name),
        (_, "UserPromptSubmit") => HookKind::Prompt,
        (_, "PreToolUse") => HookKind::BeforeTool,
        (_, "PostToolUse") => HookKind::AfterTool { failed: false },
        (_, "PostToolUseFailure") => HookKind::AfterTool { failed: true },
        (_, "Stop") => HookKind::Stop,
        (_, "SubagentStop") => HookKind::SubagentStop,
        (_, _) => HookKind::Other(name),
    }
}

#[cfg(test)]
mod tests;
