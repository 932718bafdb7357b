//! Removing snapshots by name. By rule: `prune/`.

use ah_plugin_api::Result;
use serde::Serialize;

use crate::record::SnapshotRecord;
use crate::workspace::Workspace;

/// What can be said about a removal.
#[derive(Debug, Clone, Default)]
pub struct RmOptions {
    /// Say what would be removed, and do nothing.
    pub dry_run: bool,
}

/// What was removed.
#[derive(Debug, Clone, Serialize)]
pub struct RmReport {
    /// The snapshots.
    pub removed: Vec<SnapshotRecord>,
    /// Whether that is only what would be removed.
    pub dry_run: bool,
}

impl Workspace {
    /// Removes snapshots: all of those named, or with an error none of them.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `FailedPrecondition` if one is pinned, is needed by an interrupted restore, or is shown by a
    /// lease; the provider's.
    pub fn rm(&self, references: &[String], options: &RmOptions) -> Result<RmReport> {
        let _ = (references, options);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
