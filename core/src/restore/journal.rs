//! The record of a restore, on disk before the first change: what finishes it, takes it back, or cleans up after it.
//!
//! While a restore runs, or after it was killed, its journal is `workspaces/<id>/restoring/<restore>.json`; when it came to its
//! end, `workspaces/<id>/sessions/<session>/restores/<restore>.json`. The process that works on it holds a flock on the file.
//!
//! Format, version 1 (JSON; unknown fields are ignored): see [`Journal`]. Paths and times as in [`crate::text`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Entry, EntryKind, Error, ErrorKind, ProviderName, Reference, RelPath, Result, SnapshotId, Timestamp,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::plan::{Plan, Step};
use super::scope::STAGING_PREFIX;
use crate::ids::SessionName;
use crate::record::EntryRecord;
use crate::text;

const VERSION: u32 = 1;

/// A snapshot, as the journal names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// Our id.
    pub(crate) id: SnapshotId,
    /// The provider's reference.
    pub(crate) reference: Reference,
}

/// What becomes of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalStep {
    #[serde(with = "text::rel")]
    pub(crate) path: RelPath,
    /// The name in the staging folder of what is made for it, or of what was taken away: `<slot % lanes>/<slot>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
    /// What the safety snapshot holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<EntryRecord>,
    /// What the target snapshot holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<EntryRecord>,
}

/// A directory that was made writable for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unlocked {
    #[serde(with = "text::rel")]
    pub(crate) path: RelPath,
    /// The mode it had.
    pub(crate) mode: u32,
}

/// The record of one restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// 1.
    pub(crate) version: u32,
    /// The restore's id.
    pub(crate) restore: String,
    /// The session it belongs to.
    pub(crate) session: SessionName,
    /// When it began.
    #[serde(with = "text::time")]
    pub(crate) began: Timestamp,
    /// Who holds the snapshots.
    pub(crate) provider: ProviderName,
    /// What is restored.
    pub(crate) target: Named,
    /// The state before.
    pub(crate) safety: Named,
    /// What an undo goes back to: `safety`, or that of an interrupted restore that this one finished.
    pub(crate) back: Named,
    /// The paths that an undo puts back beside those of `steps`: those of the interrupted one.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub(crate) back_paths: Vec<RelPath>,
    /// The restore that this one takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) undoes: Option<String>,
    /// The paths it was asked for; empty: everything.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<RelPath>,
    /// The folder in the workspace in which files are prepared and put aside.
    #[serde(with = "text::rel")]
    pub(crate) staging: RelPath,
    /// How many subfolders that has.
    pub(crate) lanes: u64,
    /// Directories that are made writable for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unlocked: Vec<Unlocked>,
    /// What changes.
    pub(crate) steps: Vec<JournalStep>,
}

impl Journal {
    /// The steps of `plan`, with a slot for each file that passes through the staging folder, in the order of
    /// [`Plan::steps`].
    pub(crate) fn steps_of(plan: &Plan) -> Vec<JournalStep> {
        let file = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.kind != EntryKind::Dir);
        let taken = |steps: &[Step]| steps.iter().map(|step| file(&step.before)).collect::<Vec<bool>>();
        let none = |steps: &[Step]| vec![false; steps.len()];
        let made = |steps: &[Step]| vec![true; steps.len()];
        let staged =
            [taken(&plan.clear), none(&plan.dirs), made(&plan.puts), taken(&plan.removals), none(&plan.attributes)];
        let mut slots = 0u64..;
        let step = |(step, staged): (&Step, bool)| JournalStep {
            path: step.path.clone(),
            slot: staged.then(|| slots.next()).flatten(),
            before: step.before.as_ref().map(EntryRecord::from),
            after: step.after.as_ref().map(EntryRecord::from),
        };
        plan.steps().zip(staged.concat()).map(step).collect()
    }

    /// The staging folder of a restore.
    pub(crate) fn staging_of(restore: &str) -> Result<RelPath> {
        RelPath::new(format!("{STAGING_PREFIX}{restore}"))
    }

    /// Everything that an undo of it puts back.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &RelPath> {
        self.steps
            .iter()
            .map(|step| &step.path)
            .chain(&self.back_paths)
            .chain(self.unlocked.iter().map(|unlocked| &unlocked.path))
    }
}

/// A journal in work: its file, locked.
#[derive(Debug)]
pub(crate) struct OpenJournal {
    pub(crate) journal: Journal,
    path: PathBuf,
    _locked: File,
}

/// The folders of a workspace's journals.
#[derive(Debug, Clone)]
pub(crate) struct Journals {
    folder: PathBuf,
}

impl Journals {
    /// Those of the workspace whose state is in `folder`.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn running(&self) -> PathBuf {
        self.folder.join("restoring")
    }

    fn ended(&self, session: &SessionName) -> PathBuf {
        self.folder.join("sessions").join(session.as_str()).join("restores")
    }

    /// Puts a journal on disk, to survive a power cut, and locks it.
    pub(crate) fn begin(&self, journal: Journal) -> Result<OpenJournal> {
        let folder = self.running();
        let path = folder.join(format!("{}.json", journal.restore));
        let write = || -> io::Result<File> {
            make_dir(&folder)?;
            let temp = folder.join(format!(".{}.tmp", journal.restore));
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let done = serde_json::to_vec(&journal)
                .map_err(io::Error::from)
                .and_then(|bytes| file.write_all(&bytes))
                .and_then(|()| file.sync_all())
                .and_then(|()| fs::rename(&temp, &path));
            if let Err(error) = done {
                let _ = fs::remove_file(&temp);
                return Err(error);
            }
            File::open(&folder)?.sync_all()?;
            Ok(file)
        };
        let locked = write().map_err(|e| Error::from_io("cannot write the plan of the restore", &e))?;
        Ok(OpenJournal { journal, path, _locked: locked })
    }

    /// Journals of restores that nobody works on any more though they did not come to their end, the oldest first. Each is
    /// locked until it is dropped. Also clears away what never became a journal.
    pub(crate) fn interrupted(&self) -> Result<Vec<OpenJournal>> {
        let entries = match fs::read_dir(self.running()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| Error::from_io("cannot look for interrupted restores", &e))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| Error::from_io("cannot look for interrupted restores", &e))?.path();
            let Some(file) = lock(&path) else { continue };
            if path.extension().is_some_and(|ending| ending == "json") {
                found.push(OpenJournal { journal: read(&path)?, path, _locked: file });
            } else {
                // Not yet renamed to a journal, and nobody is at it: nothing has been changed by its plan.
                let _ = fs::remove_file(&path);
            }
        }
        found.sort_by(|a, b| (a.journal.began, &a.journal.restore).cmp(&(b.journal.began, &b.journal.restore)));
        Ok(found)
    }

    /// The journal of a restore that came to its end.
    pub(crate) fn ended_one(&self, session: &SessionName, restore: &str) -> Result<Journal> {
        read(&self.ended(session).join(format!("{restore}.json")))
    }

    /// Every journal of a restore that came to its end, by file.
    fn all_ended(&self) -> Result<Vec<PathBuf>> {
        let fail = |e: &io::Error| Error::from_io("cannot look for the plans of restores", e);
        let list = |folder: &Path| match fs::read_dir(folder) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            other => other
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>())
                .map_err(|e| fail(&e)),
        };
        let mut found = Vec::new();
        for session in list(&self.folder.join("sessions"))? {
            found.extend(list(&session.join("restores"))?);
        }
        Ok(found)
    }

    /// The journal of the restore with that id, if it came to its end and can be read.
    pub(crate) fn find_ended(&self, restore: &str) -> Result<Option<Journal>> {
        let name = format!("{restore}.json");
        let found = self.all_ended()?.into_iter().find(|path| path.file_name().is_some_and(|own| *own == *name));
        Ok(found.and_then(|path| read(&path).ok()))
    }

    /// Removes the journals of ended restores that `keep` does not want; gives how many.
    pub(crate) fn forget_ended(&self, keep: impl Fn(&Journal) -> bool) -> Result<u64> {
        let mut count = 0;
        for path in self.all_ended()? {
            if read(&path).is_ok_and(|journal| !keep(&journal)) && fs::remove_file(path).is_ok() {
                count += 1;
            }
        }
        Ok(count)
    }

    /// Files a journal away: its restore came to its end.
    pub(crate) fn end(&self, open: &OpenJournal) -> Result<()> {
        let folder = self.ended(&open.journal.session);
        let file = || -> io::Result<()> {
            make_dir(&folder)?;
            fs::rename(&open.path, folder.join(format!("{}.json", open.journal.restore)))?;
            File::open(&folder)?.sync_all()
        };
        file().map_err(|e| Error::from_io("cannot file the plan of the restore away", &e))
    }

    /// Takes a journal away whose restore has changed nothing.
    pub(crate) fn forget(&self, open: &OpenJournal) -> Result<()> {
        fs::remove_file(&open.path).map_err(|e| Error::from_io("cannot remove the plan of the restore", &e))
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Locks a journal; none if somebody works on it, or it is gone.
fn lock(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(rustix_nofollow()).open(path).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    // Its owner may have ended it, and unlocked it, between the listing and the lock.
    path.exists().then_some(file)
}

fn rustix_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

fn read(path: &Path) -> Result<Journal> {
    let shown = path.display();
    let bytes =
        fs::read(path).map_err(|e| Error::from_io(format!("cannot read the plan of a restore, {shown}"), &e))?;
    let damaged = |e: &serde_json::Error| {
        Error::new(ErrorKind::DataLoss, format!("the plan of a restore is damaged: {shown}"))
            .with_cause(e)
            .with_hint(format!("what it was to do can be done again with `ah agent fs restore`; then remove {shown}"))
    };
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
    if head.version > VERSION {
        let message = format!("the plan of a restore was written by a newer version: {shown}");
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("update ah"));
    }
    serde_json::from_slice(&bytes).map_err(|e| damaged(&e))
}
