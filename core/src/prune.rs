//! Retention: removing snapshots by rule.

use ah_plugin_api::Result;
use serde::Serialize;

use crate::record::SnapshotRecord;
use crate::workspace::Workspace;

/// What can be said about a prune.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// The policy, `keep-last=50,keep-within=7d`; none: the configured one.
    pub policy: Option<String>,
    /// Say what would be removed, and do nothing.
    pub dry_run: bool,
}

/// What is done with one snapshot.
#[derive(Debug, Clone, Serialize)]
pub struct PruneVerdict {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotRecord,
    /// Whether it stays.
    pub stays: bool,
    /// Why: the rule that keeps it, or that none does.
    pub reason: String,
}

/// What a prune did.
#[derive(Debug, Clone, Serialize)]
pub struct PruneReport {
    /// The policy, written out.
    pub policy: String,
    /// Whether that is only what would be done.
    pub dry_run: bool,
    /// Each snapshot, oldest first.
    pub verdicts: Vec<PruneVerdict>,
    /// How many were (or would be) removed.
    pub removed: u64,
    /// Bytes given back, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Workspace {
    /// Applies a retention policy. Never removes what is pinned, what the last restore's undo needs, nor what a branch or a lease
    /// needs.
    ///
    /// # Errors
    /// `InvalidArgument` for a policy that is not one, or none; the provider's.
    pub fn prune(&self, options: &PruneOptions) -> Result<PruneReport> {
        let _ = options;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
