//! Lines of a transcript as they lie in the file, one at a time in one buffer.
//!
//! A line ends with a newline; what follows the last one is torn (still being written, or cut off by a crash) and not a line.
//!
//! Not here: what a line means (`claude`, `codex`, `gemini`).

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{LONGEST_LINE, Position, open};
use crate::halves;

/// A transcript being read.
pub(super) struct Lines {
    file: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Lines read, which is the number of the last one.
    pub(super) line: u64,
    /// The byte behind the last line read.
    pub(super) offset: u64,
}

impl Lines {
    /// Opens `path` behind `since`, or at its beginning.
    pub(super) fn open(path: &Path, since: Option<&Position>) -> Result<Self> {
        let fail =
            |error: std::io::Error| Error::from_io(format!("cannot read the transcript {}", path.display()), &error);
        let mut file = open(path)?;
        let (line, offset) = since.map_or((0, 0), |since| (since.line, since.offset));
        if file.metadata().map_err(fail)?.len() < offset {
            return Err(rewritten(path));
        }
        file.seek(SeekFrom::Start(offset)).map_err(fail)?;
        Ok(Self {
            file: BufReader::with_capacity(256 * 1024, file),
            path: path.into(),
            buffer: Vec::new(),
            line,
            offset,
        })
    }

    /// The next whole line with its newline, or `None` at the end; a torn one does not count.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>> {
        self.buffer.clear();
        // A line that was long should not hold its memory for the rest of the file.
        if self.buffer.capacity() > 4 << 20 {
            self.buffer = Vec::new();
        }
        let limit = LONGEST_LINE as u64 + 1;
        let read = self.file.by_ref().take(limit).read_until(b'\n', &mut self.buffer);
        let len = read
            .map_err(|error| Error::from_io(format!("cannot read the transcript {}", self.path.display()), &error))?;
        if self.buffer.last() != Some(&b'\n') {
            if len as u64 == limit {
                let message = format!("line {} of {} is longer than 64 MiB", self.line + 1, self.path.display());
                return Err(
                    Error::new(ErrorKind::Unsupported, message).with_hint("choose a moment before it: ah timeline")
                );
            }
            return Ok(None);
        }
        self.line += 1;
        self.offset += len as u64;
        Ok(Some(&self.buffer))
    }

    /// Where reading stands, with the id of the last line given.
    pub(super) fn position(&self, uuid: Option<String>) -> Position {
        Position { file: self.path.clone(), line: self.line, offset: self.offset, uuid }
    }
}

/// A place is not in its file any more.
pub(super) fn rewritten(path: &Path) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the transcript {} was rewritten since: the place is not in it any more", path.display()),
    )
    .with_hint("choose another moment, or only its files: ah agent fs branch REF")
}

/// What a line says, as far as finding places goes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The line's own id.
    pub(super) uuid: Option<String>,
    /// When it was made.
    pub(super) time: Option<Timestamp>,
    /// What it is.
    pub(super) what: What,
}

/// See [`Seen`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum What {
    /// Nothing that matters here.
    #[default]
    Other,
    /// Belongs to the prompt that comes next, if nothing else comes before that.
    Opening {
        /// The id that the prompt will have, where the line tells.
        id: Option<String>,
    },
    /// A person's prompt.
    Prompt {
        /// What was typed.
        text: String,
        /// The agent's id of it.
        id: Option<String>,
    },
    /// Begins like the agent's own text, but a person may have typed or pasted that: it is the prompt that is sought where both id and text are that one's.
    Unsure {
        /// What it says.
        text: String,
        /// The agent's id of the prompt that it belongs to; lines of the agent's bear it, too.
        id: Option<String>,
        /// Whether the line says that no person typed it.
        by_agent: bool,
    },
    /// Results of tool calls, by their ids.
    Results(Vec<String>),
    /// What the model gets of a call whose command goes on: the call's id. Its result never comes under that.
    GoesOn(String),
}

/// Reads a time as transcripts write it; another text is no time.
pub(super) fn time_of(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    let (mut secs, mut nanos) = (time.as_second(), time.subsec_nanosecond());
    if nanos < 0 {
        (secs, nanos) = (secs - 1, nanos + 1_000_000_000);
    }
    Some(Timestamp { secs, nanos: nanos.cast_unsigned() })
}

/// A JSON value as text, if it is a string. Half a character in it is U+FFFD, as it is in what a hook says.
pub(super) fn text_of(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);
    let raw = raw?.get();
    if !raw.starts_with('"') {
        return None;
    }
    let whole = || Some(Cow::Owned(serde_json::from_str(&halves::replaced(raw)).ok()?));
    serde_json::from_str::<Borrowed<'_>>(raw).ok().map(|text| text.0).or_else(whole)
}

/// A JSON value with texts in it, which may hold half a character as that of a hook may.
pub(super) fn value_of<T: DeserializeOwned>(raw: &RawValue) -> Option<T> {
    let whole = || serde_json::from_str(&halves::replaced(raw.get())).ok();
    serde_json::from_str(raw.get()).ok().or_else(whole)
}

/// Whether a JSON value is `true`.
pub(super) fn is_true(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() == "true")
}
