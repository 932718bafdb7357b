//! Loading a file for the first time: in a child process, with the outcome remembered.
//!
//! A library that crashes, hangs or exits in its constructor takes the process with it. So a file that was never loaded before is
//! loaded in a child first, and what happened is remembered by the file's identity (device, inode, size, times): from then
//! on a good file is loaded at once and a bad one is refused at once. The system's linker cache is part of the identity: when other
//! libraries are installed, everything is tried again.
//!
//! Of a good file it is also remembered which provider is in it and where that can serve at all, so that a file can be left alone which does
//! not come into question ([`Known`]).
//!
//! What may be the machine's fault (too slow, killed for want of memory) is not remembered. What is remembered is a cache. Without a folder for it, or with a damaged file, everything is tried again.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ah_plugin_api::abi::AbiVersion;
use ah_plugin_api::{Description, ProviderName};
use nix::sys::signal::Signal;

use crate::report::Fault;
use crate::sys::{self, Ending};

/// How long loading may take in the child. Loading takes milliseconds; a busy machine may take a thousand times as long.
const LIMIT: Duration = Duration::from_secs(10);
/// The most outcomes that are remembered, and the most bytes that are read.
const MAX_LINES: usize = 64;
const MAX_BYTES: u64 = 64 << 10;

/// What is known of a plugin without loading it: what it said of itself the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The provider's name.
    pub name: ProviderName,
    /// Its place in the order of selection, as in [`Description`].
    pub rank: Option<u32>,
    /// Where it can serve at all, as in [`Description`].
    pub filesystems: BTreeSet<u32>,
}

impl Known {
    pub(crate) fn of(description: &Description) -> Self {
        let Description { name, rank, filesystems, .. } = description.clone();
        Self { name, rank, filesystems }
    }
}

/// Outcomes by identity.
pub(crate) struct Memory {
    file: Option<PathBuf>,
    lines: Vec<Line>,
    changed: bool,
}

/// One line: `OUTCOME DEV INO SIZE MTIME CTIME`, of a good file also ` NAME RANK FILESYSTEMS`.
struct Line {
    identity: String,
    ending: Ending,
    known: Option<Known>,
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
        let lines = if lines.next() == Some(&head()) { lines.filter_map(Line::parse).collect() } else { Vec::new() };
        Self { file, lines, changed: false }
    }

    /// What loading `file` comes to, if it does not come to a good end; `load` is what is run in the child if that is not known yet.
    pub(crate) fn try_out(&mut self, file: &File, load: impl FnOnce()) -> Result<(), Fault> {
        let identity = identity(&file.metadata().map_err(Fault::Unreadable)?);
        let ending = match self.lines.iter().find(|line| line.identity == identity) {
            Some(line) => line.ending,
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

    /// Remembers an outcome, unless the machine may be the reason: too busy, or short of memory; or nobody knows what it was.
    fn note(&mut self, identity: String, ending: Ending) {
        if matches!(ending, Ending::TimedOut | Ending::Signal(Signal::SIGKILL) | Ending::Exit(-1)) {
            return;
        }
        self.lines.retain(|line| line.identity != identity);
        self.lines.push(Line { identity, ending, known: None });
        self.changed = true;
    }

    /// What is known of the file at `path` if it was loaded before.
    pub(crate) fn recall(&self, path: &Path) -> Option<Known> {
        let identity = identity(&std::fs::metadata(path).ok()?);
        self.lines.iter().find(|line| line.identity == identity)?.known.clone()
    }

    /// Remembers what a file that was loaded says of itself.
    pub(crate) fn learn(&mut self, file: &File, description: &Description) {
        let Ok(identity) = file.metadata().map(|at| identity(&at)) else { return };
        let known = Known::of(description);
        if let Some(line) =
            self.lines.iter_mut().find(|line| line.identity == identity && line.known.as_ref() != Some(&known))
        {
            line.known = Some(known);
            self.changed = true;
        }
    }

    /// Forgets the file at `path`, so that it is looked at from the beginning the next time.
    pub(crate) fn forget(&mut self, path: &Path) {
        let Ok(identity) = std::fs::metadata(path).map(|at| identity(&at)) else { return };
        self.drop_line(&identity);
    }

    fn drop_line(&mut self, identity: &str) {
        let before = self.lines.len();
        self.lines.retain(|line| line.identity != identity);
        self.changed |= self.lines.len() != before;
    }

    /// Where `file` is remembered; none: nowhere.
    pub(crate) fn trace(&self, file: &File) -> Option<Trace> {
        let identity = identity(&file.metadata().ok()?);
        Some(Trace { folder: self.file.as_ref()?.parent()?.to_owned(), identity })
    }

    /// Writes down what is new. Best effort: what is not remembered is tried again.
    pub(crate) fn write(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        self.changed = false;
        let mut text = head();
        text.push('\n');
        for line in &self.lines[self.lines.len().saturating_sub(MAX_LINES)..] {
            text.push_str(&format!("{line}\n"));
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

/// Takes away what processes that have ended had begun to write in `folder`, best effort; the names of what went. One of another namespace cannot be seen here: it
/// loses what is tried again.
#[must_use]
pub fn sweep(folder: &Path) -> Vec<String> {
    let is_left = |name: &str| {
        let maker = name.strip_prefix("plugins.tried.").and_then(|maker| maker.parse::<u32>().ok());
        maker.is_some_and(|maker| !Path::new("/proc").join(maker.to_string()).exists())
    };
    // Without it nobody is seen.
    if !Path::new("/proc/self").exists() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_left(name) && std::fs::remove_file(folder.join(name)).is_ok()).collect()
}

/// Where a file is remembered, for who ends the process and cannot hand on that it is to be forgotten.
#[derive(Clone)]
pub(crate) struct Trace {
    folder: PathBuf,
    identity: String,
}

impl Trace {
    /// Forgets the file, as [`Memory::forget`] does.
    pub(crate) fn forget(&self) {
        let mut memory = Memory::read(Some(&self.folder));
        memory.drop_line(&self.identity);
        memory.write();
    }
}

/// Remembered outcomes count only for this build's ABI and this state of the system's libraries.
fn head() -> String {
    let (secs, nanos) = std::fs::metadata("/etc/ld.so.cache").map_or((0, 0), |at| (at.mtime(), at.mtime_nsec()));
    format!("ah plugins tried 2 {} {secs}.{nanos}", AbiVersion::OURS)
}

fn identity(at: &Metadata) -> String {
    let (modified, changed) = ((at.mtime(), at.mtime_nsec()), (at.ctime(), at.ctime_nsec()));
    let (dev, ino, size) = (at.dev(), at.ino(), at.size());
    format!("{dev} {ino} {size} {}.{} {}.{}", modified.0, modified.1, changed.0, changed.1)
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (outcome, rest) = words.split_first()?;
        let (identity, known) = rest.split_at_checked(5)?;
        let ending = match *outcome {
            "fine" => Ending::Finished,
            other => {
                Signal::from_str(other).map(Ending::Signal).ok().or_else(|| other.parse().ok().map(Ending::Exit))?
            }
        };
        let known = match known {
            [name, rank, filesystems] => Some(Known {
                name: ProviderName::new(*name).ok()?,
                rank: if *rank == "-" { None } else { Some(rank.parse().ok()?) },
                filesystems: filesystems.split_terminator(',').map(str::parse).collect::<Result<_, _>>().ok()?,
            }),
            _ => None,
        };
        Some(Self { identity: identity.join(" "), ending, known })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ending {
            Ending::Finished => f.write_str("fine")?,
            Ending::Signal(signal) => f.write_str(signal.as_str())?,
            Ending::Exit(code) => write!(f, "{code}")?,
            // Never written down; read, it would mean nothing.
            Ending::TimedOut => f.write_str("hangs")?,
        }
        write!(f, " {}", self.identity)?;
        let Some(Known { name, rank, filesystems }) = &self.known else { return Ok(()) };
        let rank = rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        write!(f, " {name} {rank} ")?;
        filesystems.iter().try_for_each(|filesystem| write!(f, "{filesystem},"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, Known, Line, Memory, ProviderName, Signal};

    #[test]
    fn accidents_are_not_remembered() {
        let mut memory = Memory::read(None);
        memory.note("a".into(), Ending::TimedOut);
        memory.note("a".into(), Ending::Signal(Signal::SIGKILL));
        memory.note("a".into(), Ending::Exit(-1));
        assert!(memory.lines.is_empty() && !memory.changed);
        memory.note("a".into(), Ending::Signal(Signal::SIGSEGV));
        memory.note("b".into(), Ending::Finished);
        assert!(memory.lines.len() == 2 && memory.changed);
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let name = ProviderName::new("a").unwrap();
        let known = |rank, filesystems: &[u32]| {
            Some(Known { name: name.clone(), rank, filesystems: filesystems.iter().copied().collect() })
        };
        let of_all_kinds = [
            (Ending::Finished, known(Some(300), &[7, 2_435_016_766])),
            (Ending::Finished, known(None, &[])),
            (Ending::Finished, None),
            (Ending::Signal(Signal::SIGBUS), None),
            (Ending::Exit(3), None),
        ];
        for (ending, known) in of_all_kinds {
            let line = Line { identity: "1 2 3 4.5 6.7".to_owned(), ending, known };
            let again = Line::parse(&line.to_string()).unwrap();
            assert!(again.identity == line.identity && again.known == line.known, "{line}");
            assert_eq!(again.to_string(), line.to_string());
        }
        for damaged in ["", "fine", "fine 1 2 3", "what 1 2 3 4 5", "fine 1 2 3 4 5 A 1 ", "fine 1 2 3 4 5 a b "] {
            assert!(Line::parse(damaged).is_none(), "{damaged}");
        }
    }
}
