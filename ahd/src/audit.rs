//! The log of what was done for whom: one line of JSON for each call that changes something, or was refused.
//!
//! Lines go to stderr (the journal) and to `audit.log` in the state folder, which is set aside when it has grown, a few times. Nobody can push older
//! lines out of it: of what one user has written there is so much in a minute, and what is more is only counted.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ah_plugin_api::Error;
use serde::Serialize;

use crate::accounts;
use crate::peer::Peer;

/// A file larger than this is set aside, bytes.
const MAX_SIZE: u64 = 8 << 20;
/// So many are kept beside the present one.
const KEPT: u32 = 3;
/// Longer texts are cut, bytes: paths and references at their beginning, which says least, messages at their end.
const MAX_TEXT: usize = 256;
const MAX_MESSAGE: usize = 1024;
/// What one user may have written in a minute, bytes: some 400 usual lines. All that is kept takes one user nine hours to push out.
const PER_MINUTE: f64 = 64_000.0;

/// Writes the log.
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<Option<Open>>,
    users: Mutex<HashMap<u32, Share>>,
}

/// What a user may still have written.
struct Share {
    /// Bytes at `since`.
    left: f64,
    since: Instant,
    /// Lines that were left out since the last one that was written.
    left_out: u64,
}

/// What becomes of a line.
enum Turn {
    /// It is written, and how many before it were not.
    Written(u64),
    /// It is the first that is left out.
    FirstLeftOut,
    LeftOut,
}

struct Open {
    file: File,
    size: u64,
    /// Whether its last line has no end: there was no room for more.
    is_cut: bool,
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
    /// Lines of this user that were left out before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
}

impl Audit {
    /// A log in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: folder.join("audit.log"), file: Mutex::new(None), users: Mutex::default() }
    }

    /// Writes down how something ended.
    pub(crate) fn note(&self, peer: &Peer, what: &What<'_>, outcome: Result<(), &Error>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let error = outcome.err();
        let end = |text: &Option<String>| text.as_deref().map(cut_to_end);
        let what =
            What { workspace: end(&what.workspace), target: end(&what.target), object: end(&what.object), ..*what };
        let mut line = Line {
            time: (now.as_secs_f64() * 1000.0).round() / 1000.0,
            uid: peer.uid,
            pid: peer.pid,
            what: &what,
            ok: error.is_none(),
            error: error.map(|error| error.kind.to_string()),
            message: error.map(|error| cut(&told(error))),
            left_out: None,
        };
        let Some(text) = encoded(&line) else { return };
        match self.turn(peer.uid, text.len()) {
            Turn::Written(0) => self.write(text),
            Turn::Written(left_out) => {
                line.left_out = Some(left_out);
                self.write(encoded(&line).unwrap_or(text));
            }
            Turn::FirstLeftOut => self.say_no_more(peer.uid),
            Turn::LeftOut => {}
        }
    }

    fn say_no_more(&self, uid: u32) {
        self.say(&format!("user {uid} has too much written: what comes now is only counted"));
    }

    /// Writes a line that is about the helper itself and that a user can have it write again and again: out of their share.
    pub(crate) fn say_of(&self, uid: u32, message: &str) {
        let message = cut(message);
        // What cannot be printed takes six times as much there.
        let Some(text) = said(&message) else { return };
        match self.turn(uid, text.len()) {
            Turn::Written(0) => self.write(text),
            Turn::Written(left_out) => {
                self.say(&format!("{message} ({left_out} lines of theirs before this were left out)"));
            }
            Turn::FirstLeftOut => self.say_no_more(uid),
            Turn::LeftOut => {}
        }
    }

    /// Takes the room of a line from its user's share.
    fn turn(&self, uid: u32, bytes: usize) -> Turn {
        let (now, uid) = (Instant::now(), accounts::of(uid));
        let mut users = lock(&self.users);
        // Who has their whole share again need not be remembered.
        users.retain(|other, share| {
            *other == uid || share.left_out > 0 || now.duration_since(share.since) < Duration::from_secs(60)
        });
        let share = users.entry(uid).or_insert(Share { left: PER_MINUTE, since: now, left_out: 0 });
        let gained = now.duration_since(share.since).as_secs_f64() / 60.0 * PER_MINUTE;
        share.left = (share.left + gained).min(PER_MINUTE);
        share.since = now;
        let bytes = bytes as f64;
        // Once lines are left out there is to be room for some again, or every other line would say that.
        let enough = if share.left_out > 0 { PER_MINUTE / 4.0 } else { bytes };
        if share.left < enough.max(bytes) {
            share.left_out += 1;
            return if share.left_out == 1 { Turn::FirstLeftOut } else { Turn::LeftOut };
        }
        share.left -= bytes;
        Turn::Written(std::mem::take(&mut share.left_out))
    }

    /// Writes a line that is about the helper itself.
    pub(crate) fn say(&self, message: &str) {
        if let Some(text) = said(message) {
            self.write(text);
        }
    }

    /// Best effort: a full disk stops nobody's work.
    fn write(&self, mut text: String) {
        text.push('\n');
        let _ = std::io::stderr().write_all(text.as_bytes());
        let mut slot = lock(&self.file);
        if slot.as_ref().is_some_and(|open| open.size > MAX_SIZE) {
            *slot = None;
            for number in (1..KEPT).rev() {
                let _ = std::fs::rename(self.aside(number), self.aside(number + 1));
            }
            let _ = std::fs::rename(&self.path, self.aside(1));
        }
        if slot.is_none() {
            let mut options = File::options();
            options.read(true).append(true).create(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
            *slot = options.open(&self.path).ok().map(|file| {
                let size = file.metadata().map_or(0, |at| at.len());
                let mut last = [b'\n'];
                // Of one that is empty nothing is read.
                let _ = file.read_at(&mut last, size.saturating_sub(1));
                Open { file, size, is_cut: last != [b'\n'] }
            });
        }
        if let Some(open) = slot.as_mut() {
            open.size += append(&mut open.file, &mut open.is_cut, &text);
        }
    }

    fn aside(&self, number: u32) -> PathBuf {
        self.path.with_extension(format!("log.{number}"))
    }
}

/// Writes a line behind what is there, as far as there is room; on a line of its own, if the last one was cut short. How many bytes were written.
fn append(file: &mut impl Write, is_cut: &mut bool, line: &str) -> u64 {
    let text = [if *is_cut { "\n" } else { "" }, line].concat();
    let mut done = 0;
    while let Some(rest) = text.as_bytes().get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(count) => done += count,
        }
    }
    if let Some(last) = text.as_bytes()[..done].last() {
        *is_cut = *last != b'\n';
    }
    done as u64
}

/// A line that is about the helper itself.
fn said(message: &str) -> Option<String> {
    #[derive(Serialize)]
    struct Said<'a> {
        time: f64,
        message: &'a str,
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    encoded(&Said { time: now.as_secs_f64(), message })
}

/// In JSON, with everything escaped by which somebody could write a line of their own, or make one look otherwise in a terminal: what moves the
/// cursor, of which JSON itself escapes a part, and what turns the order of what stands beside it. Such are in texts only.
fn encoded(line: &impl Serialize) -> Option<String> {
    let json = serde_json::to_string(line).ok()?;
    let misleads = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !json.contains(misleads) {
        return Some(json);
    }
    let mut safe = String::with_capacity(json.len() * 2);
    for c in json.chars() {
        if misleads(c) {
            // All of them are within the first 65,536.
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    Some(safe)
}

/// An error with its causes, on one line.
pub(crate) fn told(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}

/// The beginning of a message.
fn cut(text: &str) -> String {
    let end = (0..=text.len().min(MAX_MESSAGE)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].to_owned()
}

/// The end of a path or reference.
fn cut_to_end(text: &str) -> String {
    match text.len().checked_sub(MAX_TEXT) {
        None | Some(0) => text.to_owned(),
        Some(more) => {
            let begin = (more..text.len()).find(|&begin| text.is_char_boundary(begin)).unwrap_or(text.len());
            format!("…{}", &text[begin..])
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn what_comes_after_a_line_that_was_cut_short_is_a_line_of_its_own() {
        /// A disk with room for so much.
        struct Disk(Vec<u8>, usize);
        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let length = bytes.len().min(self.1 - self.0.len());
                self.0.extend(&bytes[..length]);
                if length > 0 || bytes.is_empty() { Ok(length) } else { Err(std::io::ErrorKind::StorageFull.into()) }
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (mut disk, mut is_cut) = (Disk(Vec::new(), 8), false);
        for (room, line, written) in
            [(8, "first\n", 6), (8, "second\n", 2), (8, "third\n", 0), (30, "fourth\n", 8), (30, "fifth\n", 6)]
        {
            disk.1 = room;
            assert_eq!(append(&mut disk, &mut is_cut, line), written, "{line}");
        }
        assert_eq!(std::str::from_utf8(&disk.0), Ok("first\nse\nfourth\nfifth\n"));
        // Nor is what a former helper's line was cut to.
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("audit.log"), "cut").unwrap();
        (0..2).for_each(|_| Audit::new(dir.path()).say("x"));
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        assert_eq!(text.lines().map(|line| line.starts_with('{')).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn nothing_in_a_line_moves_the_cursor_or_turns_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        let peer = Peer { uid: 1, gid: 1, pid: 2, groups: Vec::new() };
        let odd = "/a\u{7f}b\u{85}c\u{9b}31md\u{61c}e\u{200f}f\u{2028}g\u{202e}h\u{2069}i\u{1b}\u{e9}";
        let what = What { op: "probe", workspace: Some(odd.to_owned()), ..What::default() };
        audit.note(&peer, &what, Err(&Error::new(ErrorKind::PermissionDenied, odd)));
        audit.say_of(1, odd);
        audit.say(odd);
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        assert!(text.chars().all(|c| c == '\n' || c == '\u{e9}' || c.is_ascii_graphic() || c == ' '), "{text:?}");
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["workspace"], &lines[0]["message"]), (&odd.into(), &odd.into()));
        assert!(lines[1..].iter().all(|line| line["message"] == odd));
    }

    #[test]
    fn what_the_helper_says_of_a_user_is_counted_as_long_as_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        for i in 0..100 {
            // By ids of theirs, too.
            audit.say_of(if i % 2 == 0 { 1 } else { 4_000_000 + i }, &"\u{1}".repeat(4096));
        }
        // Short ones are mostly the time.
        (0..10_000).for_each(|_| audit.say_of(2, "x"));
        let size = std::fs::metadata(dir.path().join("audit.log")).unwrap().len();
        assert!((size as f64) < PER_MINUTE * 2.1, "{size} bytes");
    }

    #[test]
    fn one_user_cannot_push_out_what_was_written_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path());
        let peer = |uid| Peer { uid, gid: 1, pid: 2, groups: Vec::new() };
        let long = What { op: "destroy", object: Some("\"".repeat(4096)), ..What::default() };
        for _ in 0..6000 {
            audit.note(&peer(1), &long, Ok(()));
        }
        audit.note(&peer(2), &What { op: "snapshot", ..What::default() }, Ok(()));
        // When there is room again the next line says how many there were.
        audit.users.lock().unwrap().get_mut(&1).unwrap().since -= Duration::from_secs(40);
        audit.note(&peer(1), &What { op: "mount", ..What::default() }, Ok(()));
        let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
        assert!((text.len() as f64) < PER_MINUTE * 1.1, "{} bytes", text.len());
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let count = |op| lines.iter().filter(|line| line["op"] == op).count();
        assert_eq!((count("snapshot"), count("mount")), (1, 1));
        assert_eq!(lines.last().unwrap()["left_out"].as_u64(), Some(6000 - count("destroy") as u64));
        assert_eq!(lines.iter().filter(|line| line.get("op").is_none()).count(), 1, "it is told when it begins");
    }
}
