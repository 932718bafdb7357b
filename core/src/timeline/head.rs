//! What the last events of a workspace's timelines amount to: a cache in one small file, read and written under their lock.
//!
//! One object with a checksum as its first line, written over the old one where it is: a new file in its place would cost more
//! than the line of the timeline (ext4 writes a renamed file's contents out at once). What is torn has no sound checksum, and is as good as lost.
//!
//! It names the last lines of the sessions that were written to last, too: one that is not there any more was lost with the end of its timeline. It is
//! written behind the line, so that a kill leaves a line that it does not name, and never the other way round.
//!
//! It is not synced, so that a power cut may leave one that does not fit the timelines: one of an earlier run of the machine gives no more than a
//! number, and which lines had been synced. And it never names a snapshot that the timeline says is removed, whenever who writes the two is killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{ContentId, ProviderName, Reference, RepositoryState, Result, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::SessionName;
use crate::text;
use crate::timeline::event::{Event, EventBody};
use crate::timeline::line::{self, MAX_SEQ};
use crate::timeline::log::is_unmoved;

/// The ends of so many timelines are noted.
const MAX_ENDS: usize = 8;

/// The cache's file.
pub(super) struct HeadFile {
    path: PathBuf,
    file: io::Result<File>,
}

impl HeadFile {
    /// The file, and what it says if that can be believed.
    pub(super) fn open(path: &Path) -> (Self, Option<Head>) {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(fsio::FILE_MODE).custom_flags(fsio::NOFOLLOW_NONBLOCK).open(path);
        let head = file.as_ref().ok().and_then(Self::read);
        (Self { path: path.to_owned(), file }, head)
    }

    fn read(file: &File) -> Option<Head> {
        let mut text = Vec::with_capacity(1024);
        file.take(fsio::MAX_READ).read_to_end(&mut text).ok()?;
        let line = text.split(|byte| *byte == b'\n').next()?;
        line::sound(line).ok()?;
        serde_json::from_slice(line).ok()
    }

    /// What the file says, for who only reads.
    pub(super) fn said(path: &Path) -> Option<Head> {
        let mut options = OpenOptions::new();
        Self::read(&options.read(true).custom_flags(fsio::NOFOLLOW_NONBLOCK).open(path).ok()?)
    }

    /// Only a cache: if it cannot be written it is taken away, so that it never says what is not so.
    ///
    /// # Errors
    /// If that fails, too: it may say what it said before.
    pub(super) fn write(&self, head: &Head) -> Result<()> {
        let line = line::seal(serde_json::to_vec(head).unwrap_or_default());
        match self.file.as_ref().is_ok_and(|file| file.write_all_at(&line, 0).is_ok()) {
            true => Ok(()),
            false => fsio::remove_file(&self.path),
        }
    }
}

/// What the last events amount to; a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The last number given.
    pub(crate) seq: u64,
    /// The last snapshot, to see whether the next one is equal to it.
    #[serde(default)]
    pub(crate) snapshot: Option<HeadSnapshot>,
    /// The run of the machine in which that was written.
    #[serde(default)]
    pub(super) boot: String,
    /// The ends of the timelines that were written to last, the latest last.
    #[serde(default)]
    pub(super) ends: Vec<End>,
}

/// The end of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    session: SessionName,
    /// Its last line.
    seq: u64,
    /// The last one that was on disk when its writer went on; zero: none. That one survives a power cut.
    synced: u64,
}

/// The last snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeadSnapshot {
    pub(crate) id: SnapshotId,
    pub(crate) provider: ProviderName,
    /// By which an equal one is told, where that is known.
    pub(crate) tree: Option<String>,
    /// The session that it stands in.
    #[serde(default = "SessionName::main")]
    pub(crate) session: SessionName,
    /// Whether it was taken for its own sake, and not by a restore or a branch.
    #[serde(default)]
    pub(crate) counts: bool,
    /// The provider's name for it.
    #[serde(default)]
    pub(crate) reference: Option<Reference>,
    /// Where the user's repository stood.
    #[serde(default)]
    pub(crate) repository: Option<RepositoryState>,
}

impl HeadSnapshot {
    /// Whether it can be what a moment of that session shows, if its tree is equal: it was taken for its own sake, in that session, and
    /// the repository stands where it stood.
    pub(crate) fn serves(&self, session: &SessionName, repository: Option<&RepositoryState>) -> bool {
        self.counts && self.session == *session && is_unmoved(self.repository.as_ref(), repository)
    }

    /// Whether a snapshot of that provider with that tree is equal to this one.
    pub(crate) fn equals(&self, provider: &ProviderName, tree: Option<&ContentId>) -> bool {
        let tree = tree.map(|ContentId(bytes)| text::hex(bytes));
        self.provider == *provider && tree.is_some() && tree == self.tree
    }

    /// Whether that provider would find this one by a reference.
    pub(crate) fn is_found_by(&self, provider: &ProviderName, reference: &Reference) -> bool {
        self.provider == *provider && self.reference.as_ref() == Some(reference)
    }
}

impl Head {
    /// What one of an earlier run of the machine gives for this one. Where the power failed, lines may be gone that were not synced.
    pub(super) fn after_a_start(self, boot: String) -> Self {
        let on_disk = |end: End| (end.synced > 0).then_some(End { seq: end.synced, ..end });
        Self { seq: self.seq, snapshot: None, boot, ends: self.ends.into_iter().filter_map(on_disk).collect() }
    }

    /// Whether it was written in that run of the machine. Where it is not known which one that is (no `/proc`), it may be an earlier one: then each reader looks
    /// at the timelines themselves.
    pub(super) fn is_of(&self, boot: &str) -> bool {
        !boot.is_empty() && self.boot == boot
    }

    /// What it says of a line that has been taken out since is not believed.
    pub(super) fn is_believed(&self) -> bool {
        self.seq < MAX_SEQ
    }

    /// The sessions of which it is known which line was the last, with that.
    pub(super) fn ends(&self) -> impl Iterator<Item = (&SessionName, u64)> {
        self.ends.iter().map(|end| (&end.session, end.seq))
    }

    /// The last line of a session, if that is known.
    pub(super) fn end(&self, session: &SessionName) -> Option<u64> {
        self.ends().find(|(ended, _)| *ended == session).map(|(_, seq)| seq)
    }

    /// Takes note of a session's last line, which is there, and whether it was synced.
    pub(super) fn note_end(&mut self, session: &SessionName, seq: u64, is_synced: bool) {
        let former = self.ends.iter().position(|end| end.session == *session).map(|at| self.ends.remove(at));
        let synced = if is_synced { seq } else { former.map_or(0, |former| former.synced) };
        self.ends.push(End { session: session.clone(), seq, synced });
        self.ends.drain(..self.ends.len().saturating_sub(MAX_ENDS));
    }

    /// Whether an event takes away the last snapshot.
    pub(super) fn loses(&self, body: &EventBody) -> bool {
        let EventBody::Remove { snapshots, .. } = body else { return false };
        self.snapshot.as_ref().is_some_and(|last| snapshots.contains(&last.id))
    }

    /// Takes an event into account.
    pub(super) fn note(&mut self, event: &Event) {
        match &event.body {
            EventBody::Snapshot { snapshot } => {
                self.snapshot = Some(HeadSnapshot {
                    id: snapshot.id.clone(),
                    provider: snapshot.provider.clone(),
                    tree: snapshot.tree.clone(),
                    session: event.session.clone(),
                    counts: snapshot.counts(),
                    reference: Some(snapshot.reference.clone()),
                    repository: snapshot.repository.clone(),
                });
            }
            body if self.loses(body) => self.snapshot = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, HeadFile, HeadSnapshot};
    use crate::ids::SessionName;
    use crate::lock::{Lock, boot_id};
    use crate::settings::Clock;
    use crate::timeline::{EventBody, FaultKind, Log};
    use ah_plugin_api::{Durability, Observer, ProviderName, Quiet, SnapshotId, Timestamp};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    fn long() -> Head {
        let snapshot = HeadSnapshot {
            id: SnapshotId::new("kkkkmmmmpppp").unwrap(),
            provider: ProviderName::new("git").unwrap(),
            tree: Some("0".repeat(64)),
            session: SessionName::main(),
            counts: true,
            reference: None,
            repository: None,
        };
        Head { seq: 1, snapshot: Some(snapshot), ..Head::default() }
    }

    #[test]
    fn a_shorter_one_takes_the_place_of_a_longer_one_and_a_torn_one_is_none() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("head");
        let said = || HeadFile::open(&path).1;
        assert_eq!(said(), None);
        for head in [long(), Head { seq: 2, ..Head::default() }, long()] {
            HeadFile::open(&path).0.write(&head).unwrap();
            assert_eq!(said(), Some(head));
        }
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() - 1 {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(said(), None, "{end} bytes");
        }
        // The end of an older one behind the beginning of a newer one.
        std::fs::write(&path, [b"{\"seq\":7,\"snapshot\"", &whole[19..]].concat()).unwrap();
        assert_eq!(said(), None);
    }

    #[test]
    fn one_of_an_earlier_run_of_the_machine_gives_no_more_than_a_number() {
        let temp = tempfile::tempdir().unwrap();
        let log = Log {
            folder: temp.path().to_owned(),
            clock: &Clock::system(),
            observer: &Quiet,
            patience: Duration::ZERO,
            held: None,
        };
        let now = Head { boot: boot_id(), ..long() };
        for (boot, snapshot) in [("another", None), (&now.boot, now.snapshot.clone())] {
            log.head().0.write(&Head { boot: boot.to_owned(), ..long() }).unwrap();
            assert_eq!(log.head().1, Head { snapshot, ..now.clone() });
        }
    }

    #[test]
    fn nor_does_one_of_a_run_that_is_not_known() {
        let unknown = Head { boot: String::new(), ..long() };
        assert!(!unknown.is_of(""));
        assert!(Head { boot: boot_id(), ..long() }.is_of(&boot_id()));
    }

    #[test]
    fn one_that_is_being_written_is_waited_for() {
        struct Writer(PathBuf, Mutex<Option<Lock>>);
        impl Observer for Writer {
            // Asked while the lock is waited for.
            fn cancelled(&self) -> bool {
                if let Some(lock) = self.1.lock().unwrap().take() {
                    let mut head = Head { seq: 7, boot: boot_id(), ..long() };
                    head.note_end(&SessionName::main(), 7, true);
                    HeadFile::open(&self.0).0.write(&head).unwrap();
                    drop(lock);
                }
                false
            }
        }
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("head");
        std::fs::write(&path, "{\"seq\":7,").unwrap();
        let lock = Lock::try_take(&temp.path().join("timeline.lock"), true).unwrap();
        let observer = Writer(path, Mutex::new(lock));
        let (clock, patience) = (&Clock::system(), Duration::from_secs(60));
        let log = Log { folder: temp.path().to_owned(), clock, observer: &observer, patience, held: None };
        let (report, _) = log.read(None).unwrap();
        assert_eq!(report.faults.iter().map(|fault| fault.kind).collect::<Vec<_>>(), [FaultKind::End]);
        assert!(log.read_since(7).unwrap().is_some() && log.read_since(6).unwrap().is_none());
        // Nor is it known what came behind an event where the timeline says that lines were lost since.
        log.append(&SessionName::main(), Durability::Instant, |_| vec![EventBody::LinesSought {}]).unwrap();
        assert!(log.read_since(9).unwrap().is_some() && log.read_since(7).unwrap().is_none());
    }

    #[test]
    fn what_is_removed_is_not_named_from_before_the_line_that_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("head");
        let named = Arc::new(Mutex::new(Vec::new()));
        let (said, at) = (Arc::clone(&named), path.clone());
        // Asked last just before the line is written: as who is killed behind that leaves it.
        let clock = Clock::from_fn(move || {
            said.lock().unwrap().push(HeadFile::open(&at).1.is_some_and(|head| head.snapshot.is_some()));
            Timestamp::default()
        });
        let log = Log {
            folder: temp.path().to_owned(),
            clock: &clock,
            observer: &Quiet,
            patience: Duration::from_secs(60),
            held: None,
        };
        let last = Head { boot: boot_id(), ..long() };
        let remove = |ids: &[&str]| {
            HeadFile::open(&path).0.write(&last).unwrap();
            let snapshots = ids.iter().map(|id| SnapshotId::new(*id).unwrap()).collect();
            let body = EventBody::Remove { snapshots, by: "rm".to_owned() };
            log.append(&SessionName::main(), Durability::Instant, |_| vec![body]).unwrap();
            named.lock().unwrap().last().copied()
        };
        assert_eq!(remove(&["zzzzmmmmpppp"]), Some(true));
        assert_eq!(remove(&["zzzzmmmmpppp", "kkkkmmmmpppp"]), Some(false));
    }

    #[test]
    fn what_is_no_file_of_ours_is_not_written_to() {
        let temp = tempfile::tempdir().unwrap();
        let (path, target) = (temp.path().join("head"), temp.path().join("target"));
        std::fs::write(&target, "theirs").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        HeadFile::open(&path).0.write(&long()).unwrap();
        assert!(!path.is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), b"theirs");
    }
}
