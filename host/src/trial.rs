//! Loading a file for the first time: in a child process, with the outcome remembered.
//!
//! A library that crashes, hangs or exits in its constructor takes the process with it. So a file that was never loaded before is
//! loaded in a child first, and what happened is remembered by the file's identity (device, inode, size, times): from then
//! on a good file is loaded at once and a bad one is refused at once. The system's linker cache is part of the identity: when other
//! libraries are installed, everything is tried again.
//!
//! What may be the machine's fault (too slow, killed for want of memory) is not remembered. What is remembered is a cache. Without a folder for it, or with a damaged file, everything is tried again.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ah_plugin_api::abi::AbiVersion;
use nix::sys::signal::Signal;

use crate::report::Fault;
use crate::sys::{self, Ending};

/// How long loading may take in the child. Loading takes milliseconds; a busy machine may take a thousand times as long.
const LIMIT: Duration = Duration::from_secs(10);
/// The most outcomes that are remembered, and the most bytes that are read.
const MAX_LINES: usize = 64;
const MAX_BYTES: u64 = 64 << 10;

/// Outcomes by identity.
pub(crate) struct Memory {
    file: Option<PathBuf>,
    lines: Vec<(String, String)>,
    changed: bool,
}

impl Memory {
    /// Reads what is remembered in `folder`.
    pub(crate) fn read(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join("plugins.tried"));
        let mut text = String::new();
        if let Some(Ok(opened)) = file.as_ref().map(|file| {
            File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(file)
        }) {
            let _ = opened.take(MAX_BYTES).read_to_string(&mut text);
        }
        let mut lines = text.lines();
        let lines = if lines.next() == Some(&head()) {
            lines.filter_map(|line| line.split_once(' ').map(|(a, b)| (b.to_owned(), a.to_owned()))).collect()
        } else {
            Vec::new()
        };
        Self { file, lines, changed: false }
    }

    /// What loading `file` comes to, if it does not come to a good end; `load` is what is run in the child if that is not known yet.
    pub(crate) fn try_out(&mut self, file: &File, load: impl FnOnce()) -> Result<(), Fault> {
        let identity = identity(file).map_err(Fault::Unreadable)?;
        let known = self.lines.iter().find(|(id, _)| *id == identity).and_then(|(_, outcome)| parse(outcome));
        let ending = match known {
            Some(ending) => ending,
            None => {
                let ending = sys::in_child(LIMIT, load).map_err(Fault::Untried)?;
                self.note(identity, ending);
                ending
            }
        };
        match ending {
            Ending::Finished => Ok(()),
            Ending::Signal(signal) => Err(Fault::Crashes { signal: signal.as_str().to_owned() }),
            Ending::Exit(code) => Err(Fault::Exits { code }),
            Ending::TimedOut => Err(Fault::Hangs(LIMIT)),
        }
    }

    /// Remembers an outcome, unless the machine may be the reason: too busy, or short of memory.
    fn note(&mut self, identity: String, ending: Ending) {
        if matches!(ending, Ending::TimedOut | Ending::Signal(Signal::SIGKILL)) {
            return;
        }
        self.lines.retain(|(id, _)| *id != identity);
        self.lines.push((identity, print(ending)));
        self.changed = true;
    }

    /// Writes down what is new. Best effort: what is not remembered is tried again.
    pub(crate) fn write(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let mut text = head();
        text.push('\n');
        for (identity, outcome) in &self.lines[self.lines.len().saturating_sub(MAX_LINES)..] {
            text.push_str(&format!("{outcome} {identity}\n"));
        }
        // Not synced: after a power cut an empty file is as good as none.
        let temp = file.with_extension(format!("tried.{}", std::process::id()));
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        let written = options.open(&temp).and_then(|mut file| file.write_all(text.as_bytes()));
        if written.and_then(|()| std::fs::rename(&temp, file)).is_err() {
            let _ = std::fs::remove_file(&temp);
        }
    }
}

/// Remembered outcomes count only for this build's ABI and this state of the system's libraries.
fn head() -> String {
    let (secs, nanos) = std::fs::metadata("/etc/ld.so.cache").map_or((0, 0), |at| (at.mtime(), at.mtime_nsec()));
    format!("ah plugins tried 1 {} {secs}.{nanos}", AbiVersion::OURS)
}

fn identity(file: &File) -> std::io::Result<String> {
    let at = file.metadata()?;
    let (modified, changed) = ((at.mtime(), at.mtime_nsec()), (at.ctime(), at.ctime_nsec()));
    let (dev, ino, size) = (at.dev(), at.ino(), at.size());
    Ok(format!("{dev} {ino} {size} {}.{} {}.{}", modified.0, modified.1, changed.0, changed.1))
}

fn print(ending: Ending) -> String {
    match ending {
        Ending::Finished => "fine".to_owned(),
        Ending::Signal(signal) => signal.as_str().to_owned(),
        Ending::Exit(code) => code.to_string(),
        // Never written down; read, it would mean nothing.
        Ending::TimedOut => "hangs".to_owned(),
    }
}

fn parse(outcome: &str) -> Option<Ending> {
    match outcome {
        "fine" => Some(Ending::Finished),
        other => Signal::from_str(other).map(Ending::Signal).ok().or_else(|| other.parse().ok().map(Ending::Exit)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, Memory, Signal};

    #[test]
    fn accidents_are_not_remembered() {
        let mut memory = Memory::read(None);
        memory.note("a".into(), Ending::TimedOut);
        memory.note("a".into(), Ending::Signal(Signal::SIGKILL));
        assert!(memory.lines.is_empty() && !memory.changed);
        memory.note("a".into(), Ending::Signal(Signal::SIGSEGV));
        memory.note("b".into(), Ending::Finished);
        assert!(memory.lines.len() == 2 && memory.changed);
    }
}
