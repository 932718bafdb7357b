//! What a scenario is: the one format that the mock agent plays and the mock model server answers from.
//!
//! A scenario is a conversation written down once: what the person says, what the model thinks, says and calls, and what goes
//! wrong. The server gives the model's part of it to a real agent; the mock agent plays both parts by itself. `mocks/README.md`
//! documents the format for those who write scenarios. Reading and checking a file is in `load.rs`, what is to be answered at
//! which point in [`crate::script`].

mod load;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// A whole scenario: a main conversation, and others that the agent leads beside it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows; for people and for reports.
    pub name: String,
    /// All ids and all chance come from it. Same seed, same run.
    #[serde(default)]
    pub seed: u64,
    /// Where the clock of transcripts stands at first (RFC 3339); it then only goes on by the scenario's own pauses. Without it
    /// the real clock counts.
    #[serde(default)]
    pub clock: Option<String>,
    /// Files that the mock agent makes before it begins, so that a scenario needs nothing around it.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The main conversation.
    pub steps: Vec<Step>,
    /// Other ways that it goes on from a label in it.
    #[serde(default)]
    pub branches: Vec<Branch>,
    /// Conversations of their own: sub-agents, and what follows a compaction.
    #[serde(default)]
    pub conversations: Vec<Conversation>,
    /// What a request is answered that offers no tools and is part of no conversation (titles, summaries for the screen). Without
    /// it such a request is a mismatch.
    #[serde(default)]
    pub aside: Option<String>,
}

/// A further conversation, known by its first prompt.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversation {
    /// Its name, by which a `subagent` refers to it.
    pub name: String,
    /// From its first prompt on.
    pub steps: Vec<Step>,
    /// Other ways that it goes on.
    #[serde(default)]
    pub branches: Vec<Branch>,
}

/// Another way to go on from a point.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Its name, for reports.
    pub name: String,
    /// The label after which the conversation was cut. It may stand in another branch.
    pub after: String,
    /// What comes instead of what follows the label.
    pub steps: Vec<Step>,
}

/// One step. Those that only one of the two programs can do are passed over by the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The person says this. The mock agent awaits it (and takes any other text as a fault of the scenario), the server expects it.
    Prompt(Prompt),
    /// The model thinks.
    Think(String),
    /// The model says.
    Say(String),
    /// The model calls one tool, and waits for its result.
    Tool(Box<Tool>),
    /// The model calls several tools at once, and waits for all results.
    Tools(Vec<Tool>),
    /// The model has said this before: it is in the conversation, and nobody asks for it. What an agent keeps when it compacts.
    Said(String),
    /// A name for this point, after a prompt, a turn or a tool's result.
    Label(String),

    /// The next answer of the server fails so first.
    Fault(Fault),
    /// The next answer streams slowly: this long between events.
    PaceMs(u64),
    /// The next answer says that it used so many tokens.
    InputTokens(u64),
    /// The next request must have this at these JSON pointers.
    Request(BTreeMap<String, Value>),

    /// The agent shows this in the terminal.
    Print(Print),
    /// The agent does nothing for so long, up to a quarter more by chance.
    PauseMs(u64),
    /// The agent writes a file, no tool being called.
    Write(WriteFile),
    /// The agent runs a shell command, no tool being called; not waited for if it ends in `&`.
    Run(String),
    /// From here on lines of the transcript are written so much later than they were due.
    LateMs(u64),
    /// The agent keeps a checkpoint of its own under this id.
    Checkpoint(String),
    /// A further hook event, with these members beside the usual ones.
    Hook(HookCall),
    /// What must be so now.
    Check(Box<Check>),
    /// The agent dies of SIGKILL.
    Crash,
    /// The agent does nothing any more, until it is ended.
    Hang,
    /// The agent ends with this code.
    Exit(i32),
}

/// A prompt: its text, or a pattern and what was before it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Exactly this text.
    Text(String),
    /// With more to say about it.
    Detailed(DetailedPrompt),
}

/// A prompt with more to say about it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetailedPrompt {
    /// Exactly this text.
    #[serde(default)]
    pub text: Option<String>,
    /// Or: a part of it.
    #[serde(default)]
    pub contains: Option<String>,
    /// The turn before was interrupted: of its answer any beginning may be there.
    #[serde(default)]
    pub after_interrupt: bool,
}

impl Prompt {
    /// Whether `text` is this prompt.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        match self {
            Self::Text(exact) => text.trim() == exact.trim(),
            Self::Detailed(prompt) => {
                prompt.text.as_ref().is_none_or(|exact| text.trim() == exact.trim())
                    && prompt.contains.as_ref().is_none_or(|part| text.contains(part))
            }
        }
    }

    /// Its text, as far as the scenario gives it.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Detailed(prompt) => prompt.text.as_deref().or(prompt.contains.as_deref()).unwrap_or_default(),
        }
    }

    /// Whether the turn before it was interrupted.
    #[must_use]
    pub fn after_interrupt(&self) -> bool {
        matches!(self, Self::Detailed(prompt) if prompt.after_interrupt)
    }
}

/// A tool call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// The tool's name, as the agent knows it.
    pub name: String,
    /// Its input.
    #[serde(default)]
    pub input: Option<Value>,
    /// For tools that take plain text instead (Codex's `apply_patch`).
    #[serde(default)]
    pub text: Option<String>,
    /// What the result must be like, in what the agent sends back.
    #[serde(default)]
    pub expect: ToolResult,
    /// What the mock agent gives as the result of a tool that it does not have.
    #[serde(default)]
    pub result: Option<String>,
    /// The conversation that the mock agent plays as a sub-agent.
    #[serde(default)]
    pub subagent: Option<String>,
}

/// What a tool's result must be like.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolResult {
    /// It contains this.
    #[serde(default)]
    pub contains: Option<String>,
    /// It is, or is not, an error.
    #[serde(default)]
    pub error: Option<bool>,
}

/// What goes wrong with an answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The answer is this status, and an error in the service's own form.
    #[serde(default)]
    pub status: Option<u16>,
    /// The error's type, if not the one usual for that status.
    #[serde(default)]
    pub kind: Option<String>,
    /// The `retry-after` header, in seconds.
    #[serde(default)]
    pub retry_after: Option<u64>,
    /// Further headers, such as those of rate limits.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Instead of a status: the connection breaks after so many events of the stream.
    #[serde(default)]
    pub break_after: Option<usize>,
    /// Instead of a status: the stream says `error` after so many events.
    #[serde(default)]
    pub error_after: Option<usize>,
    /// Instead of a status: nothing more comes after so many events, and the connection stays open.
    #[serde(default)]
    pub stall_after: Option<usize>,
    /// How often it happens before the answer comes; once if not said.
    #[serde(default = "once")]
    pub times: usize,
}

fn once() -> usize {
    1
}

/// Terminal output.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Print {
    /// At once.
    Text(String),
    /// With timing.
    Timed {
        /// The bytes, escape sequences included.
        text: String,
        /// Between two characters.
        #[serde(default)]
        char_ms: u64,
        /// How often.
        #[serde(default = "once")]
        times: usize,
    },
}

/// A file that is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Relative to the workspace.
    pub path: String,
    /// All of it.
    pub content: String,
}

/// A hook event beyond those that come by themselves.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookCall {
    /// The event's name.
    pub event: String,
    /// Its members beside the usual ones.
    #[serde(default)]
    pub fields: BTreeMap<String, Value>,
}

/// What must be so.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Files of the workspace.
    #[serde(default)]
    pub files: BTreeMap<String, FileIs>,
    /// What `ah` says: timeline, snapshots, branches.
    #[serde(default)]
    pub ah: Vec<AhSays>,
    /// How long it may take until all of it is so; 5 seconds if not said.
    #[serde(default)]
    pub within_ms: Option<u64>,
}

/// What a file must be.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileIs {
    /// Exactly this.
    Is(String),
    /// With this in it.
    Contains(String),
    /// There, or not.
    Exists(bool),
}

/// What a command of `ah` must say with `--json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AhSays {
    /// Its arguments, without `--json`.
    pub run: Vec<String>,
    /// A JSON pointer to a list in its answer.
    pub at: String,
    /// Only entries with these members count; `null` means that the member is not there.
    #[serde(default, rename = "where")]
    pub with: BTreeMap<String, Value>,
    /// How many there must be.
    #[serde(default)]
    pub count: Option<usize>,
    /// How many there must be at least.
    #[serde(default)]
    pub at_least: Option<usize>,
    /// The values of this member, in order.
    #[serde(default)]
    pub each: Option<(String, Vec<Value>)>,
}
