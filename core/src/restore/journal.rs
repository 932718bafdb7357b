//! The record of a restore, on disk before the first change: what finishes it, takes it back, or cleans up after it.
//!
//! Until what a restore has put in place is known to be on disk, its journal is `workspaces/<id>/restoring/<restore>.json`; then
//! `workspaces/<id>/sessions/<session>/restores/<restore>.json`. Files come, move and go only under the workspace's lock
//! `restore`; whoever has that lock knows that nobody works on any of them. How far a restore is, is in `standing.rs`.
//!
//! Format, version 1 (JSON; unknown fields are ignored): see [`Journal`]. Paths and times as in [`crate::text`].

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Durability, Entry, EntryKind, Error, ErrorKind, ProviderName, Reference, RelPath, Result, SnapshotId, Timestamp,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::at::Found;
use super::plan::{Plan, Step};
use super::scope::STAGING_PREFIX;
use crate::crash;
use crate::fsio;
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
    /// Whether an interrupted restore had done that, which this one took over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) left_open: bool,
}

impl Unlocked {
    /// Those of a plan.
    pub(crate) fn all_of(plan: &Plan) -> Vec<Self> {
        let of =
            |left_open| move |(path, was): &(RelPath, Found)| Self { path: path.clone(), mode: was.mode, left_open };
        plan.unlock.iter().map(of(false)).chain(plan.left_open.iter().map(of(true))).collect()
    }
}

/// What a restore is a part of: who goes back with the conversation as well is not done when the files are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartOfRewind {
    /// The moment to which the session goes back.
    pub(crate) moment: SnapshotId,
    /// Whether the files alone do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) files_only: bool,
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
    /// The run of the machine in which it began: what it has written may be lost with that.
    #[serde(default)]
    pub(crate) boot: String,
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
    /// The rewind that this is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rewind: Option<PartOfRewind>,
    /// The paths it was asked for; empty: everything.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<RelPath>,
    /// Whether it overwrites ignored files, and gives all files their former times.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ignored: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exact_times: bool,
    /// Whether it goes on where something is lost that nothing holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) force: bool,
    /// The folder in the workspace in which files are prepared and put aside.
    #[serde(with = "text::rel")]
    pub(crate) staging: RelPath,
    /// How many subfolders that has.
    pub(crate) lanes: u64,
    /// Directories that are made writable for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unlocked: Vec<Unlocked>,
    /// Once it has come to its end: the paths of `steps` that it left as they were.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<RelPath>,
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

    /// Takes note of the steps that were not carried out, by path. One whose kind changes has two.
    pub(crate) fn leave(&mut self, undone: &[RelPath]) {
        let mut left: HashMap<&RelPath, usize> = HashMap::new();
        undone.iter().for_each(|path| *left.entry(path).or_default() += 1);
        for step in &self.steps {
            if let Some(count) = left.get_mut(&step.path) {
                *count = count.wrapping_sub(1);
            }
        }
        self.left = left.into_iter().filter(|(_, others)| *others == 0).map(|(path, _)| path.clone()).collect();
        self.left.sort();
    }

    /// How much of what `plan` takes away the state before this interrupted restore does not have, so that going back to that would not bring it back: what was written
    /// since, and what it was not to change. `others`: those that are finished with it.
    pub(crate) fn unseen(&self, others: &[Self], plan: &Plan) -> usize {
        let of: Vec<&Self> = others.iter().filter(|other| other.back.id == self.back.id).collect();
        let unlocked: HashSet<&RelPath> = of.iter().flat_map(|it| &it.unlocked).map(|dir| &dir.path).collect();
        let mut known: HashMap<&RelPath, Vec<&EntryRecord>> = HashMap::new();
        for step in of.iter().flat_map(|journal| &journal.steps) {
            known.entry(&step.path).or_default().extend(&step.before);
        }
        let is_new = |step: &&Step| {
            let Some(now) = step.before.as_ref().map(EntryRecord::from) else { return false };
            let befores = known.get(&step.path);
            let seen = match now.kind {
                // Made, or opened, by one of them, as far as that came; or it is only its time that differs, which is that of what is in it.
                EntryKind::Dir => {
                    let stays = |after: &Entry| after.kind == EntryKind::Dir && after.mode == now.mode;
                    befores.is_some() || unlocked.contains(&step.path) || step.after.as_ref().is_some_and(stays)
                }
                // An empty file, as a power cut leaves one, holds nothing.
                EntryKind::File if now.size == 0 && befores.is_some() => true,
                _ => befores.is_some_and(|befores| befores.iter().any(|before| before.is_as(&now))),
            };
            !seen
        };
        plan.steps().filter(is_new).count()
    }

    /// Everything that an undo of it puts back. Not the directories that it opened, which are shut when it ends (`doors.rs`).
    pub(crate) fn touched(&self) -> impl Iterator<Item = &RelPath> {
        let left: HashSet<&RelPath> = self.left.iter().collect();
        self.steps.iter().map(|step| &step.path).filter(move |path| !left.contains(path)).chain(&self.back_paths)
    }
}

/// What a journal says but for its steps, which may be very many: enough for who only looks. Not a flattened part of [`Journal`]: for that,
/// serde would hold all of the steps in memory twice.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Head {
    pub(crate) restore: String,
    pub(crate) session: SessionName,
    #[serde(with = "text::time")]
    pub(crate) began: Timestamp,
    #[serde(default)]
    pub(crate) boot: String,
    pub(crate) target: Named,
    pub(crate) safety: Named,
    pub(crate) back: Named,
    #[serde(default)]
    pub(crate) undoes: Option<String>,
    #[serde(default)]
    pub(crate) rewind: Option<PartOfRewind>,
    #[serde(default, with = "text::rels")]
    pub(crate) paths: Vec<RelPath>,
    #[serde(default)]
    pub(crate) ignored: bool,
    #[serde(default)]
    pub(crate) exact_times: bool,
    #[serde(default)]
    pub(crate) force: bool,
    #[serde(with = "text::rel")]
    pub(crate) staging: RelPath,
    #[serde(default)]
    pub(crate) unlocked: Vec<Unlocked>,
}

/// A journal that cannot be read, and why.
pub(crate) type Unreadable = (PathBuf, Error);

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

    fn open_folder(&self) -> PathBuf {
        self.folder.join("restoring")
    }

    fn open_path(&self, restore: &str) -> PathBuf {
        self.open_folder().join(format!("{restore}.json"))
    }

    fn ended_folder(&self, session: &SessionName) -> PathBuf {
        self.folder.join("sessions").join(session.as_str()).join("restores")
    }

    /// Puts a journal on disk, to survive a power cut.
    pub(crate) fn begin(&self, journal: &Journal) -> Result<()> {
        let bytes = serde_json::to_vec(journal)
            .map_err(|e| Error::new(ErrorKind::Internal, "the plan of the restore cannot be written").with_cause(&e))?;
        fsio::make_dir(&self.open_folder())?;
        fsio::replace(&self.open_path(&journal.restore), &bytes, Durability::Durable)
    }

    /// The journals that are not filed away, by the times at which they began, and those that cannot be read.
    pub(crate) fn open(&self) -> Result<(Vec<Head>, Vec<Unreadable>)> {
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        for name in fsio::names(&self.open_folder())? {
            if fsio::is_temp(&name) || !name.ends_with(".json") {
                continue;
            }
            let path = self.open_folder().join(name);
            match read_head(&path) {
                Ok(Some(head)) => found.push(head),
                // Filed away between the listing and the look.
                Ok(None) => {}
                Err(error) => unreadable.push((path, error)),
            }
        }
        found.sort_by(|a, b| (a.began, &a.restore).cmp(&(b.began, &b.restore)));
        Ok((found, unreadable))
    }

    /// The journal of a restore of that session, filed away or not.
    pub(crate) fn of(&self, session: &SessionName, restore: &str) -> Result<Option<Journal>> {
        // In this order: it may be filed away between the two looks.
        match read(&self.open_path(restore))? {
            Some(journal) => Ok(Some(journal)),
            None => read(&self.ended_folder(session).join(format!("{restore}.json"))),
        }
    }

    /// Every journal that was filed away, by file.
    fn all_ended(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for session in crate::session::names(&self.folder)? {
            let folder = self.ended_folder(&session);
            let names = fsio::names(&folder)?.into_iter().filter(|name| !fsio::is_temp(name));
            found.extend(names.map(|name| folder.join(name)));
        }
        Ok(found)
    }

    /// The journal of the restore with that id, if it was filed away and can be read.
    pub(crate) fn find_ended(&self, restore: &str) -> Result<Option<Journal>> {
        let name = format!("{restore}.json");
        let found = self.all_ended()?.into_iter().find(|path| path.file_name().is_some_and(|own| *own == *name));
        Ok(found.and_then(|path| read(&path).ok().flatten()))
    }

    /// Removes the journals of ended restores that `keep` does not want; gives how many.
    pub(crate) fn forget_ended(&self, keep: impl Fn(&Head) -> bool) -> Result<u64> {
        let mut count = 0;
        for path in self.all_ended()? {
            if matches!(read_head(&path), Ok(Some(head)) if !keep(&head)) {
                fsio::remove_file(&path)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Files the journal of a session's restore away.
    pub(crate) fn end(&self, session: &SessionName, restore: &str) -> Result<()> {
        let (from, folder) = (self.open_path(restore), self.ended_folder(session));
        fsio::make_dir(&folder)?;
        let run = || -> std::io::Result<()> {
            crash::point("journal.end")?;
            fs::rename(&from, folder.join(format!("{restore}.json")))?;
            fsio::sync_dir(&folder)?;
            fsio::sync_dir(&self.open_folder())
        };
        run().map_err(|e| Error::from_io("cannot file the plan of the restore away", &e))
    }

    /// Takes a journal away whose restore has changed nothing.
    pub(crate) fn forget(&self, journal: &Journal) -> Result<()> {
        fsio::remove_file(&self.open_path(&journal.restore))
    }

    /// Puts a damaged journal where nobody looks for one; gives its new path.
    pub(crate) fn set_aside(&self, path: &Path) -> Result<PathBuf> {
        let aside = path.with_extension("damaged");
        fs::rename(path, &aside).map_err(|e| fsio::failed("set aside", path, &e))?;
        Ok(aside)
    }
}

/// Reads a journal; none if it is not there.
fn read(path: &Path) -> Result<Option<Journal>> {
    fsio::read(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

/// Reads what a journal says but for its steps, which come last: however many they are, each command and each hook looks.
fn read_head(path: &Path) -> Result<Option<Head>> {
    // Nothing else reads so: in a text the quotes have backslashes.
    let Some(mut bytes) = fsio::read_up_to(path, br#","steps":["#)? else { return Ok(None) };
    bytes.push(b'}');
    match parse(path, &bytes) {
        Ok(head) => Ok(Some(head)),
        // Without steps, of a newer version, damaged, or not in the order in which it is written.
        Err(_) => fsio::read(path)?.map(|bytes| parse(path, &bytes)).transpose(),
    }
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    let shown = path.display();
    let damaged = |e: &serde_json::Error| {
        Error::new(ErrorKind::DataLoss, format!("the plan of a restore is damaged: {shown}"))
            .with_cause(e)
            .with_hint("do the restore again: `ah agent fs restore REF`; `ah timeline` shows which it was")
    };
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let found: Version = serde_json::from_slice(bytes).map_err(|e| damaged(&e))?;
    if found.version > VERSION {
        let message = format!("the plan of a restore was written by a newer version: {shown}");
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("update ah"));
    }
    serde_json::from_slice(bytes).map_err(|e| damaged(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_read_without_the_steps() {
        let temp = tempfile::tempdir().unwrap();
        let journals = Journals::new(temp.path().to_owned());
        let named = |id: &str| Named { id: SnapshotId::new(id).unwrap(), reference: Reference::new(id).unwrap() };
        let path = RelPath::new(r#","steps":["#).unwrap();
        let step = |n: u64| JournalStep { path: path.clone(), slot: Some(n), before: None, after: None };
        let mut journal = Journal {
            version: VERSION,
            restore: "r".to_owned(),
            session: SessionName::main(),
            began: Timestamp::now(),
            boot: "b".to_owned(),
            provider: ProviderName::new("git").unwrap(),
            target: named("t"),
            safety: named("s"),
            back: named("k"),
            back_paths: Vec::new(),
            undoes: None,
            rewind: None,
            // Over where one piece ends and the next begins.
            paths: vec![path.clone(); 1500],
            ignored: true,
            exact_times: false,
            force: false,
            staging: path.clone(),
            lanes: 1,
            unlocked: Vec::new(),
            left: Vec::new(),
            steps: (0..1000).map(step).collect(),
        };
        for steps in [1000, 0] {
            journal.steps.truncate(steps);
            journals.begin(&journal).unwrap();
            let (heads, unreadable) = journals.open().unwrap();
            assert!(unreadable.is_empty() && heads.len() == 1, "{unreadable:?}");
            assert_eq!(
                (&heads[0].restore, &heads[0].back, heads[0].began),
                (&journal.restore, &journal.back, journal.began)
            );
            assert_eq!(journals.of(&journal.session, "r").unwrap().as_ref(), Some(&journal));
        }
        // In another order it is read as well.
        let file = temp.path().join("restoring/r.json");
        let value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        fs::write(&file, value.to_string()).unwrap();
        assert_eq!(journals.open().unwrap().0.len(), 1);
        // The rest is not even looked at.
        journals.begin(&journal).unwrap();
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, [&bytes[..bytes.len() - 2], b"no JSON"].concat()).unwrap();
        assert_eq!(journals.open().unwrap().0.len(), 1);
        fs::write(&file, &bytes[..200]).unwrap();
        assert_eq!(journals.open().unwrap().1.len(), 1);
    }
}
