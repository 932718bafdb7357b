//! Lines in the form of Claude Code's transcript, as 2.1.197 writes them; in time or late, always in order.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::ids;

/// The version of Claude Code whose form it is.
const VERSION: &str = "2.1.197";

/// A transcript that grows.
#[derive(Debug)]
pub(super) struct Transcript {
    session: String,
    cwd: String,
    seed: u64,
    /// How many lines were made.
    made: usize,
    last: Option<String>,
    /// A sub-agent's id, if it is one's.
    agent: Option<String>,
    lines: Option<Sender<Due>>,
    writer: Option<JoinHandle<()>>,
    /// When the last line is due.
    due: Instant,
    /// How much later than usual lines are written.
    pub late: Duration,
    /// Which prompt lines belong to.
    pub prompt: String,
    /// The time on lines.
    pub now: Option<jiff::Timestamp>,
}

impl Transcript {
    /// Opens a transcript, new or not.
    pub(super) fn open(
        file: &Path,
        session: &str,
        cwd: &Path,
        seed: u64,
        made: usize,
        last: Option<String>,
    ) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let opened = opened.with_context(|| format!("cannot write {}", file.display()))?;
        let (lines, due) = channel::<Due>();
        let writer = std::thread::spawn(move || write(opened, &due));
        Ok(Self {
            session: session.to_owned(),
            cwd: cwd.to_string_lossy().into_owned(),
            seed,
            made,
            last,
            agent: None,
            lines: Some(lines),
            writer: Some(writer),
            due: Instant::now(),
            late: Duration::ZERO,
            prompt: String::new(),
            now: None,
        })
    }

    /// The same for a sub-agent, whose lines go into a file of their own.
    pub(super) fn of_subagent(&self, file: &Path, agent: &str) -> Result<Self> {
        let mut transcript = Self::open(file, &self.session, Path::new(&self.cwd), self.seed, 0, None)?;
        transcript.agent = Some(agent.to_owned());
        transcript.prompt.clone_from(&self.prompt);
        (transcript.late, transcript.now) = (self.late, self.now);
        Ok(transcript)
    }

    /// The person says something; or the agent in their name.
    pub(super) fn user(&mut self, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.add("user", json!({"message": message, "promptId": self.prompt, "permissionMode": "default"}));
    }

    /// One block of the model's turn; the blocks of a turn share the message's id. Gives the line's uuid.
    pub(super) fn assistant(&mut self, message: &str, block: &Value, stop: &str) -> String {
        let usage = json!({"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0});
        let message = json!({"id": message, "type": "message", "role": "assistant", "model": "mock",
            "content": [block], "stop_reason": stop, "stop_sequence": null, "usage": usage});
        self.add("assistant", json!({"message": message}))
    }

    /// A tool's result.
    pub(super) fn result(&mut self, call: &str, asked_by: &str, content: &str, error: bool, response: &Value) {
        let block = json!({"type": "tool_result", "tool_use_id": call, "content": content, "is_error": error});
        let message = json!({"role": "user", "content": [block]});
        self.add(
            "user",
            json!({"message": message, "promptId": self.prompt, "toolUseResult": response,
            "sourceToolAssistantUUID": asked_by}),
        );
    }

    /// The person interrupted.
    pub(super) fn interrupted(&mut self, tool: bool) {
        let text = if tool { "[Request interrupted by user for tool use]" } else { "[Request interrupted by user]" };
        let message = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        self.add("user", json!({"message": message, "promptId": self.prompt}));
    }

    fn add(&mut self, kind: &str, mut line: Value) -> String {
        self.made += 1;
        let whose = self.agent.as_deref().unwrap_or(&self.session);
        let uuid = ids::uuid(self.seed, &format!("{whose} line {}", self.made));
        let time = self.now.unwrap_or_else(jiff::Timestamp::now);
        line["parentUuid"] = self.last.take().map_or(Value::Null, Value::String);
        line["isSidechain"] = self.agent.is_some().into();
        if let Some(agent) = &self.agent {
            line["agentId"] = agent.as_str().into();
        }
        line["type"] = kind.into();
        line["uuid"] = uuid.as_str().into();
        line["timestamp"] = format!("{time:.3}").into();
        line["userType"] = "external".into();
        line["entrypoint"] = "mock".into();
        line["cwd"] = self.cwd.as_str().into();
        line["sessionId"] = self.session.as_str().into();
        line["version"] = VERSION.into();
        line["gitBranch"] = "HEAD".into();
        self.last = Some(uuid.clone());
        self.send(&line);
        uuid
    }

    fn send(&mut self, line: &Value) {
        let Some(lines) = &self.lines else { return };
        let now = Instant::now();
        // Lines stay in order: none comes before one that was due earlier and is late.
        let due = (now + self.late).max(self.due);
        self.due = due;
        let (written, seen) = channel();
        let _ = lines.send(Due { at: due, line: format!("{line}\n"), written });
        // What is not late is there before anything else happens.
        if due <= now {
            let _ = seen.recv();
        }
    }

    /// Writes what is still due, and closes it.
    pub(super) fn close(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// A line that is to be written.
#[derive(Debug)]
struct Due {
    at: Instant,
    line: String,
    /// Told when it was; nobody need listen.
    written: Sender<()>,
}

/// Writes each line when its time has come, until nobody can send any more.
fn write(mut file: File, lines: &Receiver<Due>) {
    for Due { at, line, written } in lines {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // In one call, as a line must not be torn but by a crash.
        if let Err(error) = file.write_all(line.as_bytes()) {
            eprintln!("warning: the transcript cannot be written: {error}");
        }
        let _ = written.send(());
    }
}
