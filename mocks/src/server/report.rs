//! What was asked of the server, and what of it was wrong: for tests, and for people who wonder why one failed.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

/// The report, as JSON.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The scenario's name, or the recording's path.
    pub source: String,
    /// Whether nothing was wrong.
    pub passed: bool,
    /// How many requests there were in all.
    pub requests: usize,
    /// Those that got an answer of the scenario, in order.
    pub answered: Vec<Answered>,
    /// How many got a failure that the scenario wants.
    pub faults: usize,
    /// How many were beside any conversation.
    pub asides: usize,
    /// What should not have been asked, or not so.
    pub mismatches: Vec<Mismatch>,
    /// Places of answers that nobody asked for.
    pub unasked: Vec<String>,
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// `anthropic`, `responses`, `chat` or `recording`.
    pub api: String,
    /// The answer's place in the scenario.
    pub place: String,
    /// The way on which it stands: a conversation's name, or `name/branch`.
    pub path: String,
    /// The last that was said before it.
    pub after: String,
}

/// What should not have been.
#[derive(Debug, Serialize)]
pub struct Mismatch {
    /// The request's method and path.
    pub request: String,
    /// What is wrong with it.
    pub why: String,
    /// The conversation as it was understood, one line each.
    pub conversation: Vec<String>,
}

impl Report {
    /// Writes it in one piece, so that a reader never sees half of it.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        let beside = path.with_extension("new");
        fs::write(&beside, text + "\n")?;
        fs::rename(&beside, path)
    }
}
