//! The end of a transcript: how many whole lines there are, and the last of them, without reading what they say. A line that is longer than any is
//! read ([`LONGEST_LINE`]) ends it: nothing behind it could be found again.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, Result};

use super::line::rewritten;
use super::{LONGEST_LINE, Position, open};

/// No more is counted at once, bytes: whoever asks may be waited for. More than the longest line, so that each time gets further.
const AT_ONCE: u64 = 2 * LONGEST_LINE as u64;

/// Where the whole lines of a file end.
pub(super) struct End {
    file: File,
    path: PathBuf,
    /// Where counting began.
    from: u64,
    /// Whole lines from the start of the file.
    pub(super) line: u64,
    /// The byte behind the last of them.
    pub(super) offset: u64,
    /// Whether the text that was asked for stands anywhere in what was read.
    pub(super) has: bool,
}

/// Counts the whole lines of `path`, on from `since`, [`AT_ONCE`] at most, and looks whether `text` is in them.
pub(super) fn whole_lines(path: &Path, since: Option<&Position>, text: &[u8]) -> Result<End> {
    let fail = |error: std::io::Error| Error::from_io(format!("cannot read the transcript {}", path.display()), &error);
    let file = open(path)?;
    let (mut line, from) = since.map_or((0, 0), |since| (since.line, since.offset));
    if file.metadata().map_err(fail)?.len() < from {
        return Err(rewritten(path));
    }
    let (mut at, mut offset) = (from, from);
    let finder = memchr::memmem::Finder::new(text);
    // Behind the end of what was read before, within which the text may begin.
    let mut kept = 0;
    let mut buffer = vec![0; 256 * 1024 + text.len()];
    let mut has = false;
    loop {
        let len = match file.read_at(&mut buffer[kept..], at) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(fail(error)),
        };
        let chunk = &buffer[kept..kept + len];
        line += memchr::memchr_iter(b'\n', chunk).count() as u64;
        if let Some(last) = memchr::memrchr(b'\n', chunk) {
            offset = at + last as u64 + 1;
        }
        has = has || finder.find(&buffer[..kept + len]).is_some();
        let end = kept + len;
        kept = end.min(text.len().saturating_sub(1));
        buffer.copy_within(end - kept..end, 0);
        at += len as u64;
        if at - offset > LONGEST_LINE as u64 || at - from > AT_ONCE {
            break;
        }
    }
    Ok(End { file, path: path.into(), from, line, offset, has })
}

/// Whether a line begins at the byte `offset` of `path`, or the file ends there with a newline.
pub(super) fn is_boundary(path: &Path, offset: u64) -> Result<bool> {
    if offset == 0 {
        return Ok(true);
    }
    let mut byte = [0];
    match open(path)?.read_exact_at(&mut byte, offset - 1) {
        Ok(()) => Ok(byte == *b"\n"),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::from_io(format!("cannot read the transcript {}", path.display()), &error)),
    }
}

/// The lines of `path` up to the byte `offset`, for [`End::last_that`].
pub(super) fn upto(path: &Path, offset: u64) -> Result<End> {
    Ok(End { file: open(path)?, path: path.into(), from: 0, line: 0, offset, has: false })
}

impl End {
    /// The first answer that `ask` gives to a line, from the last one back to where counting began.
    pub(super) fn last_that<T>(&self, ask: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let fail = |error: std::io::Error| {
            Error::from_io(format!("cannot read the transcript {}", self.path.display()), &error)
        };
        let (mut end, mut window) = (self.offset, 64 * 1024_u64);
        while end > self.from {
            let start = end.saturating_sub(window).max(self.from);
            let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
            self.file.read_exact_at(&mut bytes, start).map_err(fail)?;
            // Every line ends with a newline, so the last byte is one. What lies before the first is part of a line unless we are at the start.
            let whole = if start == self.from {
                Some(0)
            } else {
                memchr::memchr(b'\n', &bytes[..bytes.len() - 1]).map(|at| at + 1)
            };
            let Some(whole) = whole else {
                if window > LONGEST_LINE as u64 {
                    return Ok(None);
                }
                window = (window * 4).min(LONGEST_LINE as u64 + 1);
                continue;
            };
            for line in bytes[whole..bytes.len() - 1].rsplit(|byte| *byte == b'\n') {
                if let Some(answer) = ask(line) {
                    return Ok(Some(answer));
                }
            }
            end = start + whole as u64;
        }
        Ok(None)
    }
}
