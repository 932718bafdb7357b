//! The log of what was done for whom: one line of JSON for each call that changes something, or was refused.
//!
//! Lines go to stderr (the journal) and to `audit.log` in the state folder, which is set aside when it has grown, a few times.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ah_plugin_api::Error;
use serde::Serialize;

use crate::peer::Peer;

/// A file larger than this is set aside, bytes.
const MAX_SIZE: u64 = 8 << 20;
/// So many are kept beside the present one.
const KEPT: u32 = 3;
/// Longer texts are cut, bytes.
const MAX_TEXT: usize = 4096;

/// Writes the log.
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<Option<Open>>,
}

struct Open {
    file: File,
    size: u64,
}

/// What a line says beside who, when and how it ended.
#[derive(Debug, Default, Serialize)]
pub(crate) struct What<'a> {
    pub(crate) op: &'a str,
    pub(crate) provider: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970 UTC.
    time: f64,
    uid: u32,
    pid: i32,
    #[serde(flatten)]
    what: &'a What<'a>,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Audit {
    /// A log in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: folder.join("audit.log"), file: Mutex::new(None) }
    }

    /// Writes down how something ended.
    pub(crate) fn note(&self, peer: &Peer, what: &What<'_>, outcome: Result<(), &Error>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let error = outcome.err();
        let line = Line {
            time: (now.as_secs_f64() * 1000.0).round() / 1000.0,
            uid: peer.uid,
            pid: peer.pid,
            what,
            ok: error.is_none(),
            error: error.map(|error| error.kind.to_string()),
            message: error.map(|error| cut(&told(error))),
        };
        // JSON escapes control characters, so that nobody can write a line of their own.
        if let Ok(mut text) = serde_json::to_string(&line) {
            text.push('\n');
            self.write(&text);
        }
    }

    /// Writes a line that is about the helper itself.
    pub(crate) fn say(&self, message: &str) {
        #[derive(Serialize)]
        struct Said<'a> {
            time: f64,
            message: &'a str,
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        if let Ok(mut text) = serde_json::to_string(&Said { time: now.as_secs_f64(), message }) {
            text.push('\n');
            self.write(&text);
        }
    }

    /// Best effort: a full disk stops nobody's work.
    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|open| open.size > MAX_SIZE) {
            *slot = None;
            for number in (1..KEPT).rev() {
                let _ = std::fs::rename(self.aside(number), self.aside(number + 1));
            }
            let _ = std::fs::rename(&self.path, self.aside(1));
        }
        if slot.is_none() {
            let mut options = File::options();
            options.append(true).create(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
            *slot = options.open(&self.path).ok().map(|file| {
                let size = file.metadata().map_or(0, |at| at.len());
                Open { file, size }
            });
        }
        if let Some(open) = slot.as_mut() {
            let _ = open.file.write_all(text.as_bytes());
            open.size += text.len() as u64;
        }
    }

    fn aside(&self, number: u32) -> PathBuf {
        self.path.with_extension(format!("log.{number}"))
    }
}

/// An error with its causes, on one line.
pub(crate) fn told(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ah_plugin_api::ErrorKind;

    #[test]
    fn a_line_is_a_line_whatever_is_in_it_and_a_full_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        let peer = Peer { uid: 1, gid: 1, pid: 2, groups: Vec::new() };
        let what =
            What { op: "snapshot", provider: "x", workspace: Some("/a\n{\"ok\":true}".into()), ..What::default() };
        audit.note(&peer, &what, Err(&Error::new(ErrorKind::PermissionDenied, "é".repeat(5000))));
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((line["uid"].as_u64(), line["ok"].as_bool()), (Some(1), Some(false)));
        assert_eq!(line["error"], "permission-denied");
        for _ in 0..5 {
            std::fs::OpenOptions::new()
                .append(true)
                .open(dir.path().join("audit.log"))
                .unwrap()
                .set_len(MAX_SIZE + 1)
                .unwrap();
            *audit.file.lock().unwrap() = None;
            audit.note(&peer, &what, Ok(()));
            audit.note(&peer, &what, Ok(()));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count() as u32, KEPT + 1);
    }
}
