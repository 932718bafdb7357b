//! The asciicast formats, versions 2 and 3: what a recording consists of.
//!
//! Version 2 gives each event's time from the beginning, version 3 from the event before it; version 3 also knows how the
//! command ended. Both are one JSON document a line: a header, then events. `write.rs` makes lines, `read.rs` reads them.

mod read;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

pub use read::{Placed, Reader};
pub use write::Encoder;

/// Which version of asciicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Times from the beginning; what every asciinema tool reads.
    #[default]
    V2,
    /// Times from the event before, and an event for the end of the command.
    V3,
}

impl Format {
    /// The number in the header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Header {
    /// The version.
    pub format: Format,
    /// Columns of the terminal; at least 1.
    pub cols: u16,
    /// Rows of the terminal; at least 1.
    pub rows: u16,
    /// When it began, in seconds since 1970.
    pub timestamp: Option<i64>,
    /// What was run, as a shell would take it.
    pub command: Option<String>,
    /// A title for people.
    pub title: Option<String>,
    /// Environment variables; `TERM` and `SHELL` by custom.
    pub env: BTreeMap<String, String>,
    /// Whoever made it wishes pauses to be at most so many seconds when it is played.
    pub idle_limit: Option<f64>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When, from the beginning. Never before the event that precedes it.
    pub time: Duration,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Something was shown.
    Output(String),
    /// Something was typed.
    Input(String),
    /// The terminal has another size.
    Resize {
        /// Columns.
        cols: u16,
        /// Rows.
        rows: u16,
    },
    /// A labelled point; a moment.
    Marker(String),
    /// The command ended with this status.
    Exit(i32),
    /// What this version does not know.
    Other {
        /// Its code.
        code: String,
        /// Its data, as JSON.
        data: String,
    },
}

/// The terminal's size as it goes into a file: one of 0 × 0 is taken for the usual one, because no player has such a screen.
#[must_use]
pub fn sane_size(cols: u16, rows: u16) -> (u16, u16) {
    if cols == 0 || rows == 0 { (80, 24) } else { (cols, rows) }
}
