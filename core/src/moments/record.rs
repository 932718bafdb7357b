//! What a moment is, as the timeline keeps it and the command line prints it.
//!
//! A moment stands on the timeline as one line when it happens, and later lines (`moment-update`) say what became of it: its
//! snapshot, or why there is none. Between the two it has neither, whoever was killed: a moment is never bound to what is not its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ah_plugin_api::{RelPath, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::text::{self, text_enum};

text_enum! {
    /// What a moment marks.
    pub enum MomentKind {
        /// A person or a program asked for it: `ah moment`, a key in the recorder.
        Manual = "manual",
        /// An agent's session began, or was taken up again.
        SessionStart = "session-start",
        /// An agent's session ended.
        SessionEnd = "session-end",
        /// A prompt was given to an agent; it has done nothing about it yet.
        Prompt = "prompt",
        /// An agent's tool has run.
        Tool = "tool",
        /// An agent's tool has failed; it may have changed files all the same.
        ToolFailed = "tool-failed",
        /// An agent has answered, and waits.
        Stop = "stop",
        /// A command of an interactive shell has ended.
        Shell = "shell",
    }
}

/// A moment, without its place in the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentRecord {
    /// Its id: like a snapshot's, and never the same as one.
    pub id: SnapshotId,
    /// What it marks.
    pub kind: MomentKind,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The snapshot that belongs to it; several moments between which nothing changed share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Why it has no snapshot, or why that is inexact. Neither a snapshot nor a reason: its capture has not come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the session's own tools may have written between the moment and its snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inexact: bool,
    /// The beginning of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The agent's id of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
    /// Of a prompt: whether no person typed it. The agent gave it to itself, at a time that had been set, say, or got it from another program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
    /// Of a prompt: whether it was typed while the agent was at work, and read between two of its tools. The files are those of the moment before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub meanwhile: bool,
    /// Where the agent was at work, if that is outside of the workspace, or another work tree in it.
    #[serde(with = "text::abs_option", default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<PathBuf>,
    /// The tool that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<MomentTool>,
    /// The sub-agent whose tool it was, as the agent calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_agent: Option<String>,
    /// How far the conversation had come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<TranscriptPosition>,
    /// The agent's own checkpoint that holds the conversation as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// How far the recording of the terminal had come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<RecordingPosition>,
    /// Of a prompt: the files that changed until the agent had answered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesChanged>,
}

impl MomentRecord {
    /// A moment of which nothing more is known.
    #[must_use]
    pub fn new(id: SnapshotId, kind: MomentKind) -> Self {
        Self {
            id,
            kind,
            label: None,
            snapshot: None,
            reason: None,
            inexact: false,
            prompt: None,
            prompt_id: None,
            by_agent: false,
            meanwhile: false,
            elsewhere: None,
            tool: None,
            sub_agent: None,
            transcript: None,
            checkpoint: None,
            recording: None,
            files: None,
        }
    }

    /// The snapshot that shows the workspace as it was at this moment, and nothing that came later.
    #[must_use]
    pub fn exact(&self) -> Option<&SnapshotId> {
        self.snapshot.as_ref().filter(|_| !self.inexact)
    }

    /// Whether it is a prompt that a person typed, as far as is known.
    #[must_use]
    pub fn is_persons_prompt(&self) -> bool {
        self.kind == MomentKind::Prompt && !self.by_agent
    }

    /// Whether it marks something that an agent did, or was told.
    pub(crate) fn is_an_agents(&self) -> bool {
        !matches!(self.kind, MomentKind::Manual | MomentKind::Shell)
    }

    /// What a later line says of it.
    pub(crate) fn update(&mut self, update: &MomentUpdate) {
        let MomentUpdate { moment: _, snapshot, inexact, reason, transcript, by_agent, files } = update;
        // A worker that was killed after its line was written leaves the moment to another one, which knows less.
        let knows_less = self.exact().is_some() && (snapshot.is_none() || *inexact);
        if (snapshot.is_some() || reason.is_some()) && !knows_less {
            self.snapshot.clone_from(snapshot);
            self.inexact = *inexact;
            self.reason.clone_from(reason);
        }
        if transcript.is_some() {
            self.transcript.clone_from(transcript);
        }
        self.by_agent |= by_agent;
        if files.is_some() {
            self.files.clone_from(files);
        }
    }
}

/// What became of a moment, or became known of it; what is absent is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentUpdate {
    /// Which moment.
    pub moment: SnapshotId,
    /// The snapshot that belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Whether the session's own tools may have written between the moment and its snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inexact: bool,
    /// Why it has no snapshot, or why that is inexact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How far the conversation had come, now that the lines that were late are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<TranscriptPosition>,
    /// Of a prompt: that no person typed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
    /// Of a prompt: the files that changed until the agent had answered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesChanged>,
}

impl MomentUpdate {
    /// Whether it says what became of that moment: its snapshot, or why it has none.
    pub(crate) fn settles(&self, moment: &SnapshotId) -> bool {
        self.moment == *moment && (self.snapshot.is_some() || self.reason.is_some())
    }

    /// An update that says nothing yet.
    #[must_use]
    pub fn new(moment: SnapshotId) -> Self {
        Self { moment, snapshot: None, inexact: false, reason: None, transcript: None, by_agent: false, files: None }
    }
}

/// A tool of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentTool {
    /// Its name: `Bash`, `Edit`, ….
    pub name: String,
    /// The agent's id of this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it was asked for, its beginning: a shell's command, the file that was edited, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

impl MomentTool {
    /// Name and what it was asked for, for a person.
    #[must_use]
    pub fn title(&self) -> String {
        self.about.as_ref().map_or_else(|| self.name.clone(), |about| format!("{}: {about}", self.name))
    }
}

/// A point in an agent's transcript: the end of the last line that belongs to the moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscriptPosition {
    /// The agent's own file.
    #[serde(with = "text::abs")]
    pub file: PathBuf,
    /// The number of that line, from 1; 0: none belongs to it.
    pub line: u64,
    /// The byte after that line.
    pub offset: u64,
    /// What the agent calls that line, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl TranscriptPosition {
    /// Whether it is in the conversation whose transcript `file` is, or was before it was moved.
    pub(crate) fn is_in(&self, file: &Path) -> bool {
        conversation(&self.file) == conversation(file)
    }
}

/// What a conversation is known by, wherever its transcript is by now: the file's name. Agents move it to another folder (Claude Code's `/cd`, `codex archive`).
pub(crate) fn conversation(transcript: &Path) -> &OsStr {
    transcript.file_name().unwrap_or(transcript.as_os_str())
}

/// A point in a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingPosition {
    /// Bytes of the file until there.
    pub offset: u64,
    /// The session whose recording it is, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionName>,
    /// Which of that session's recordings, where it is not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
}

/// Files that changed between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesChanged {
    /// How many.
    pub total: u64,
    /// The first of them, in the order of their bytes.
    #[serde(with = "text::rels")]
    pub paths: Vec<RelPath>,
}

/// A moment with its place in the order, and what later lines said of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Its place in the order of all events of the workspace.
    pub seq: u64,
    /// When.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// The session it belongs to.
    pub session: SessionName,
    /// What it is.
    #[serde(flatten)]
    pub record: MomentRecord,
}
