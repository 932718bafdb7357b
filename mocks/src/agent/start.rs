//! What the mock agent is told at its start: Claude Code's own options as far as they matter, and which session they mean.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::checkpoint;
use crate::conversation::{self, Item};
use crate::ids;
use crate::scenario::Scenario;

/// What is asked of it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The session to go on with.
    pub resume: Option<String>,
    /// Go on with the latest session of this directory.
    pub go_on: bool,
    /// Leave the session as it is, and go on under another id.
    pub fork: bool,
    /// Go on from a checkpoint of its own.
    pub checkpoint: Option<String>,
    /// The new session's id; made from the seed if not said.
    pub session_id: Option<String>,
    /// One prompt, then end.
    pub print: bool,
    /// The first prompt.
    pub prompt: Option<String>,
    /// Further settings: a file, or JSON.
    pub settings: Option<String>,
    /// `$CLAUDE_CONFIG_DIR`, else `~/.claude`.
    pub config: PathBuf,
    /// The workspace.
    pub cwd: PathBuf,
    /// What its children get.
    pub environment: Vec<(OsString, OsString)>,
}

/// The session that is played.
#[derive(Debug)]
pub(super) struct Session {
    pub id: String,
    /// Its transcript.
    pub transcript: PathBuf,
    /// What was said before.
    pub items: Vec<Item>,
    /// The uuid of the last line, to which the next one refers.
    pub last: Option<String>,
    /// How many ids were made before.
    pub made: usize,
    /// What hooks are told: `startup` or `resume`.
    pub source: &'static str,
}

impl Options {
    /// The folder of this directory's transcripts.
    #[must_use]
    pub fn project(&self) -> PathBuf {
        let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '-' };
        self.config.join("projects").join(self.cwd.to_string_lossy().chars().map(plain).collect::<String>())
    }

    /// Finds or makes the session.
    pub(super) fn session(&self, scenario: &Scenario) -> Result<Session> {
        let project = self.project();
        fs::create_dir_all(&project).with_context(|| format!("cannot make {}", project.display()))?;
        let file = |id: &str| project.join(format!("{id}.jsonl"));
        let from = match (&self.resume, &self.checkpoint, self.go_on) {
            (Some(id), ..) => {
                let file = file(id);
                if !file.exists() {
                    bail!("No conversation found with session ID: {id}");
                }
                Some(read(&file)?)
            }
            (None, Some(checkpoint), _) => Some(checkpoint::read(&self.config, checkpoint)?),
            (None, None, true) => Some(read(&latest(&project)?)?),
            (None, None, false) => None,
        };
        let fresh = |what: &str| {
            // The same seed twice in one directory: two sessions.
            let ids = (0..).map(|count: usize| ids::uuid(scenario.seed, &format!("{what} {count}")));
            ids.into_iter().find(|id| !file(id).exists()).unwrap_or_default()
        };
        let Some(from) = from else {
            let id = self.session_id.clone().unwrap_or_else(|| fresh("session"));
            let transcript = file(&id);
            return Ok(Session { id, transcript, items: Vec::new(), last: None, made: 0, source: "startup" });
        };
        let stays = !self.fork && self.checkpoint.is_none();
        let id = match &self.session_id {
            Some(id) => id.clone(),
            None if stays => from.id.clone(),
            None => fresh(&format!("fork of {}", from.id)),
        };
        let transcript = file(&id);
        if id != from.id {
            let copy = from.lines.iter().map(|line| line.replace(&from.id, &id) + "\n");
            fs::write(&transcript, copy.collect::<String>())?;
        }
        let made = from.lines.len();
        Ok(Session { id, transcript, items: from.items, last: from.last, made, source: "resume" })
    }
}

/// A transcript that was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub id: String,
    pub lines: Vec<String>,
    pub items: Vec<Item>,
    pub last: Option<String>,
}

/// Reads a transcript; a torn last line is left out, and lines of unknown kinds count for nothing.
pub(super) fn read(file: &Path) -> Result<Read> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let id = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let mut read = Read { id, ..Read::default() };
    let mut messages = Vec::new();
    for line in String::from_utf8_lossy(&text).split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { break };
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let Some(uuid) = value["uuid"].as_str() {
            read.last = Some(uuid.to_owned());
        }
        let counts = matches!(value["type"].as_str(), Some("user" | "assistant")) && value["isSidechain"] != true;
        if counts && value["isMeta"] != true {
            messages.push(value["message"].clone());
        }
        read.lines.push(line.to_owned());
    }
    read.items = conversation::of_messages(&messages.into());
    Ok(read)
}

/// The transcript that was written last.
fn latest(project: &Path) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(project)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "jsonl") {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.into_iter().max().map(|(_, path)| path).context("No conversation found to continue")
}
