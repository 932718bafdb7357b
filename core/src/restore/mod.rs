//! Putting files back in place, and taking that back: one implementation for all providers.
//!
//! A restore saves the present state in a *safety snapshot*, finds out what differs between that and the snapshot wanted, looks
//! at each such path on disk, and refuses if anything would be lost that the safety snapshot does not hold. Then it writes its
//! journal and changes files. An undo is a restore of the paths that a restore touched, from its safety snapshot, and so can
//! be undone itself.
//!
//! - `facade.rs`: the order of all this, with the timeline. `told.rs`: what is said of it. `standing.rs`: which are interrupted, and which are on disk.
//! - `scope.rs`, `ignores.rs`: what a restore may touch. `plan.rs`: what it will do. `journal.rs`: what it says about that on disk.
//! - `read_back.rs`: whether the safety snapshot really gives back what will be lost.
//! - `below.rs`: what it cannot put back, since it was changed in the workspace that a branch reads in. `readers.rs`: which branches read here what it changes.
//! - `apply/`: doing it. `clean.rs`: what a killed one left; `doors.rs`: the directories that it had opened; `tidy.rs`: what ended ones left. `at.rs`: work relative to a directory, safe from symlinks.
//!
//! # Times
//!
//! A file whose contents change gets the present time, because build tools compare times; with `exact_times` the captured one.
//! Files put back together keep the order of their captured times, some nanoseconds apart. Ignored files (what builds make)
//! always get the captured time: none may look newer than the source it was not made of. Equal files keep theirs. A directory's time changes only if a name comes or goes in it; with `exact_times` it is the captured one
//! or, where that does not differ, the one it had.
//!
//! # Durability
//!
//! Snapshots and journal are synced before the first change. Restored files are not waited for: writing them to disk is begun
//! before they are put in place, and finished in the background. Where the filesystem orders data before renames each file is
//! the old or the new one after a power cut. If the machine restarts before the background is done, the restore counts as
//! interrupted: done again, it compares contents and puts in place what is missing.
//!
//! # What is not kept
//!
//! A file that is replaced is a new file: hard links to the old one keep the old contents. So is one with other names of which only mode or time
//! differs, unless all of these are to be like it: what is set in place is set under each. Owner, group, extended attributes and access lists are
//! the snapshot's where a view of it shows them (`apply/attributes.rs`), else the owner stays, and what root brings back is root's; where the owner
//! cannot be set the file stays closed to others, and is listed as failed. Set-id bits come back on a file that has them and keeps its
//! contents, or with one that the snapshot tells to have been its maker's, who is not root; capabilities never.

pub(crate) mod at;

mod apply;
mod below;
mod clean;
mod doors;
mod facade;
mod ignores;
mod journal;
mod named;
mod plan;
mod read_back;
mod readers;
mod room;
mod safety;
mod scope;
mod standing;
#[cfg(test)]
mod tests;
mod tidy;
mod told;

pub(crate) use apply::{lanes, on_threads};
pub(crate) use ignores::Ignores;
pub(crate) use journal::PartOfRewind;
pub(crate) use scope::Omissions;

use std::collections::BTreeSet;
use std::path::Path;

use ah_plugin_api::{RelPath, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::record::{ChangeRecord, SnapshotRecord};
use crate::text::{self, text_enum};

text_enum! {
    /// Which times restored files get.
    pub enum Times {
        /// A file whose content changes gets the present time; equal files are untouched.
        Touch = "touch",
        /// The captured ones.
        Exact = "exact",
    }
}

/// What can be said about a restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Only these paths and what is below them; empty: everything.
    pub paths: Vec<RelPath>,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    /// Overwrite ignored files, too.
    pub ignored: bool,
    /// Give files their captured times (`--times=exact`).
    pub exact_times: bool,
    /// Go on also where a file would be lost that the safety snapshot does not hold. Directories that hold such files, and
    /// special files, stay in the way.
    pub force: bool,
}

/// What can be said about an undo.
#[derive(Debug, Clone, Default)]
pub struct UndoOptions {
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    /// As in [`RestoreOptions`]; what was restored so is taken back so anyway.
    pub exact_times: bool,
    /// As in [`RestoreOptions`].
    pub force: bool,
}

/// What a restore, or an undo, did or would do.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreReport {
    /// The id of the restore; none for a dry run, or when there was nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
    /// The snapshot that was restored.
    pub target: SnapshotRecord,
    /// The snapshot of the state before; none for a dry run, or when there was nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety: Option<SnapshotRecord>,
    /// Whether that is only what would be done.
    pub dry_run: bool,
    /// What was (or would be) changed: `before` as it is, `after` as it becomes.
    pub changes: Vec<ChangeRecord>,
    /// Differences that were left alone, and why.
    pub left: Vec<LeftAlone>,
    /// What stands in the way; not empty means that it would be refused. Only in a dry run: otherwise it is refused.
    pub conflicts: Vec<LeftAlone>,
    /// Files that were (or would be) replaced or taken away by force and that nothing holds any more then, and why: no undo brings them back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<LeftAlone>,
    /// Paths that could not be changed, or that the snapshot cannot give any more, and why. Not empty means that the restore is not complete (exit code 4): what is in
    /// `changes` has been done.
    pub failed: Vec<LeftAlone>,
    /// How many of `failed` the snapshot cannot give any more: doing it again helps none of them.
    #[serde(skip)]
    pub lost: usize,
    /// How many of `failed` should go and are held by nothing: doing it again takes none of them away.
    #[serde(skip)]
    pub unheld: usize,
    /// How many of `failed` are there but for their owner or attributes: doing it again gives them to none.
    #[serde(skip)]
    pub bare: usize,
    /// How many of `failed` stay as they are, as what the snapshot holds in their place is damaged: doing it again helps none of them.
    #[serde(skip)]
    pub damaged: usize,
    /// How many of `failed` should go and stay, as nobody can tell whether the snapshot is there: who names them takes them away.
    #[serde(skip)]
    pub waiting: usize,
    /// Whether anything was changed that an undo takes back; if not, that would take back what was restored before.
    #[serde(skip)]
    pub undoable: bool,
    /// Commands that bring back those of `failed` that are repositories, which the snapshot holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copy_out: Vec<String>,
    /// How many paths that the workspace reads in the one it grew from were changed there, which no restore puts back; a note names them.
    #[serde(skip)]
    pub below: usize,
    /// Anything a person should know: HEAD differs now, say.
    pub notes: Vec<String>,
}

/// A path that was left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// The path.
    #[serde(with = "text::rel")]
    pub path: RelPath,
    /// Why.
    pub reason: String,
}

/// So many paths are named in a command; of more, what they are in, unless that is the workspace.
const OPENED: usize = 5;

impl LeftAlone {
    /// Whether it is the user's own, to be opened rather than lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.reason == plan::unreadable::CLOSED
    }
}

/// What a person can do about what stands in the way of a restore in the workspace at `root`, also where it was `forced`.
#[must_use]
pub fn way_out(root: &Path, conflicts: &[LeftAlone], forced: bool) -> String {
    let (closed, others): (Vec<&LeftAlone>, Vec<&LeftAlone>) = conflicts.iter().partition(|it| it.is_closed());
    if closed.is_empty() {
        return way_around(&others, forced).to_owned();
    }
    let mut paths: BTreeSet<RelPath> = closed.iter().map(|conflict| conflict.path.clone()).collect();
    while paths.len() > OPENED {
        let above: BTreeSet<RelPath> = paths.iter().map(|path| path.parent().unwrap_or_default()).collect();
        // What is closed to nobody is in the workspace, too: Git's objects, and what is for reading only.
        if above.iter().any(RelPath::is_root) {
            break;
        }
        paths = above;
    }
    let more = match paths.len().saturating_sub(OPENED) {
        0 => String::new(),
        more => format!(", and so for {more} more"),
    };
    let whole = |path: &RelPath| match path.is_root() {
        true => text::shell(root.as_os_str()),
        false => text::shell(root.join(path.as_path()).as_os_str()),
    };
    let paths: Vec<String> = paths.iter().take(OPENED).map(whole).collect();
    let open = format!("`chmod -R u+rwX {}`{more}, then repeat it", paths.join(" "));
    match others.is_empty() {
        true => format!("they are yours, and closed to you as well: {open}"),
        false => format!(
            "of what is yours, and closed to you as well: {open}; of the others: {}",
            way_around(&others, forced)
        ),
    }
}

/// The same, of what is not closed to its owner alone.
fn way_around(conflicts: &[&LeftAlone], forced: bool) -> &'static str {
    let all = |reasons: &[&str]| conflicts.iter().all(|conflict| reasons.contains(&conflict.reason.as_str()));
    if all(&plan::IN_USE) {
        "something is at work on these: repeat it when that has stopped"
    } else if all(&[plan::SHUT]) {
        "have these opened by whom they belong to (`chmod`, `chown`)"
    } else if all(&[plan::MOUNTED_NOW]) {
        "unmount what is on these"
    } else if all(&[plan::MOUNTED_NOW, plan::FOREIGN_NOW]) {
        "unmount what is on these, or move them out of the way"
    } else if forced {
        "`--force` does not cover these: move them out of the way"
    } else {
        "move these out of the way"
    }
}

/// The command that copies something out of a snapshot which no restore touches.
fn copies_out(root: &Path, snapshot: &SnapshotId, path: &RelPath, to: &Path) -> String {
    let [root, path, to] = [root, path.as_path(), to].map(|path| text::shell(path.as_os_str()));
    // What is shown is copied, or nothing: never what has such a path without it.
    format!("v=$(ah -C {root} agent fs seek {snapshot}) && cp -aT \"$v\"/{path} {to}")
}

/// A restore that did not come to its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InterruptedRestore {
    /// Its id.
    pub restore: String,
    /// The snapshot it was to restore.
    pub target: SnapshotId,
    /// The snapshot of the state before it.
    pub safety: SnapshotId,
    /// The session it belongs to.
    pub session: SessionName,
    /// When it began.
    #[serde(with = "text::time")]
    pub began: Timestamp,
    /// Whether it may have changed anything; if not, it was stopped while it prepared files.
    pub changed: bool,
    /// The command that takes it to its end.
    pub finish: String,
    /// The command that goes back to before it.
    pub back: String,
}

/// Event: a restore (or undo) begins; its plan is on disk. Comes before the first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreBegin {
    /// Its id.
    pub restore: String,
    /// The snapshot it restores.
    pub target: SnapshotId,
    /// The snapshot of the state before.
    pub safety: SnapshotId,
    /// The restore that it takes back, if it is an undo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// The paths it was asked for; empty: everything.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPath>,
    /// How many paths it changes.
    #[serde(default)]
    pub changes: u64,
}

/// Event: a restore (or undo) came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreEnd {
    /// Its id.
    pub restore: String,
    /// `done`, `partial` (some paths could not be changed), `failed` (nothing was changed), `abandoned` (interrupted, and
    /// another one took over). If there are two of one restore, the later one counts.
    pub outcome: String,
    /// How many of the paths that it was to change it left as they were.
    #[serde(default, skip_serializing_if = "none_left")]
    pub left: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn none_left(left: &u64) -> bool {
    *left == 0
}
