//! Differences between two snapshots, or a snapshot and the workspace. Comparing by walking is in `walk`.

use ah_plugin_api::{DiffMethod, RelPath, Result};
use serde::Serialize;

use crate::record::{ChangeRecord, SnapshotRecord};
use crate::workspace::Workspace;

/// What can be said about a diff.
#[derive(Debug, Clone, Default)]
pub struct DiffOptions {
    /// Only these paths and what is below them; empty: everything.
    pub paths: Vec<RelPath>,
    /// Whether a file that differs in its modification time alone is a difference.
    pub times: bool,
}

/// One side of a diff.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiffSide {
    /// A snapshot.
    Snapshot(Box<SnapshotRecord>),
    /// The workspace as it is now.
    Workspace,
}

/// The differences.
#[derive(Debug, Clone, Serialize)]
pub struct DiffReport {
    /// The older side.
    pub from: DiffSide,
    /// The newer side.
    pub to: DiffSide,
    /// How they were found.
    pub method: DiffMethod,
    /// One for each path that differs, ordered by path bytes.
    pub changes: Vec<ChangeRecord>,
}

impl Workspace {
    /// What differs from `from` to `to` (none: the workspace as it is now).
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; the provider's.
    pub fn diff(&self, from: &str, to: Option<&str>, options: &DiffOptions) -> Result<DiffReport> {
        let _ = (from, to, options);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
