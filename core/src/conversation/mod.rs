//! An agent's conversation made anew as it was at a moment: what session branches and rewinding have in common.
//!
//! - `start`: which moment, snapshot and place in the transcript a REF means. `offer`: what else there is if the snapshot is no use.
//! - `rebuild`: the best way that the agent has, and the command that it is started with. `known`: where it knows its files, and whether it will see them there.
//! - `place`: the copy put where the agent looks for it. `intent`: what is written down first, so that `gc` finds what a killed
//!   process left.
//!
//! What a transcript is, and how one is cut, is `ah-agents`'. Not here: the files (`branch/`, `restore/`), and which session bears the
//! conversation (`session_branch.rs`, `rewind/`).

mod intent;
mod known;
mod offer;
mod place;
mod rebuild;
mod start;

use std::ffi::OsString;
use std::path::PathBuf;

use ah_plugin_api::{SnapshotId, Timestamp};
use serde::Serialize;

use crate::ids::SessionName;
use crate::session::ResumeMethod;
use crate::text;

pub(crate) use intent::is_untrimmed;
pub(crate) use offer::is_about_the_snapshot;
pub(crate) use place::Seat;
pub(crate) use rebuild::{Bearer, Rebuilt};
pub(crate) use start::Start;

/// Where a conversation was taken up, or files were taken from.
#[derive(Debug, Clone, Serialize)]
pub struct FromRecord {
    /// The session.
    pub session: SessionName,
    /// The moment.
    pub moment: SnapshotId,
    /// When that was.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// The beginning of the prompt, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The snapshot that the files are those of.
    pub snapshot: SnapshotId,
    /// Whether that snapshot may show more than there was at that moment.
    pub inexact: bool,
}

/// A conversation that was made anew, and how the agent is started with it.
#[derive(Debug, Clone, Serialize)]
pub struct ConversationReport {
    /// The agent.
    pub agent: String,
    /// How it was made.
    pub method: ResumeMethod,
    /// The agent's id of it; none where only the agent can give one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_session: Option<String>,
    /// The trimmed copy, in the agent's home.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub transcript: Option<PathBuf>,
    /// The whole transcript that it was cut from, in the session's folder; none where that could not be kept, or nothing was cut.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub untrimmed: Option<PathBuf>,
    /// Lines in the copy.
    pub lines: u64,
    /// Lines before the place that are not in it.
    pub dropped: u64,
    /// How many prompts it gets again instead; less than the conversation was.
    pub replayed: u64,
    /// Where the agent is to be started, as it will see it.
    #[serde(with = "text::abs")]
    pub cwd: PathBuf,
    /// Where it knows its files, if the agent will see them elsewhere: what it does by that path is done to what is there.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub known_at: Option<PathBuf>,
    /// The agent's program and its arguments.
    #[serde(with = "text::words")]
    pub command: Vec<OsString>,
    /// What a person should know of it.
    pub notes: Vec<String>,
}
