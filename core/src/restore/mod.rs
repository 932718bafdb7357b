//! Putting files back in place, and taking that back. (H7's; the shapes that the command line needs are settled.)

use ah_plugin_api::{Error, ErrorKind, RelPath, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::record::{ChangeRecord, SnapshotRecord};
use crate::text::{self, text_enum};
use crate::workspace::Workspace;

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
    /// Go on also where something would be lost that the safety snapshot cannot keep.
    pub force: bool,
}

/// What can be said about an undo.
#[derive(Debug, Clone, Default)]
pub struct UndoOptions {
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    /// As in [`RestoreOptions`].
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
    /// What stands in the way; not empty means refused (in a dry run) unless forced.
    pub conflicts: Vec<LeftAlone>,
    /// Anything a person should know: HEAD differs now, say.
    pub notes: Vec<String>,
}

/// A path that was left as it is.
#[derive(Debug, Clone, Serialize)]
pub struct LeftAlone {
    /// The path.
    #[serde(with = "text::rel")]
    pub path: RelPath,
    /// Why.
    pub reason: String,
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
}

impl Workspace {
    /// Puts files back as they were in a snapshot; the present state is saved first.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `Conflict` where something would be lost that the safety snapshot cannot keep, or where a file
    /// changed meanwhile; the provider's.
    pub fn restore(&self, reference: &str, options: &RestoreOptions) -> Result<RestoreReport> {
        let _ = (reference, options);
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// Takes the last restore (or undo) back.
    ///
    /// # Errors
    /// `NotFound` if there was none; otherwise as [`Workspace::restore`].
    pub fn undo(&self, options: &UndoOptions) -> Result<RestoreReport> {
        let _ = options;
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }

    /// The restore that did not come to its end, if there is one. Cost: one look for a file.
    ///
    /// # Errors
    /// If its record is there and cannot be read.
    pub fn interrupted(&self) -> Result<Option<InterruptedRestore>> {
        Ok(None)
    }
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
    /// `done`, `abandoned` (another one took over), `failed`.
    pub outcome: String,
}
