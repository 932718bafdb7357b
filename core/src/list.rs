//! Looking at what there is: `snapshots`, `show`.

use ah_plugin_api::Result;
use serde::Serialize;

use crate::ids::{BranchId, LeaseId, SessionName};
use crate::record::{OmittedRecord, SnapshotKind, SnapshotRecord};
use crate::workspace::Workspace;

/// Which snapshots are asked for.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Those of one session; none: as [`crate::Settings::session`] says, else of all.
    pub session: Option<SessionName>,
    /// Only those of these kinds; empty: all.
    pub kinds: Vec<SnapshotKind>,
    /// At most so many, the latest.
    pub limit: Option<usize>,
}

/// Everything that is known of a snapshot.
#[derive(Debug, Clone, Serialize)]
pub struct SnapshotDetails {
    /// What the timeline knows.
    #[serde(flatten)]
    pub record: SnapshotRecord,
    /// What it survives by now.
    pub durability_now: ah_plugin_api::Durability,
    /// What was left out, and why.
    pub omitted: Vec<OmittedRecord>,
    /// Bytes that removing it alone would free, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_bytes: Option<u64>,
    /// Leases that show it.
    pub leases: Vec<LeaseId>,
    /// Branches that grew from it.
    pub branches: Vec<BranchId>,
}

impl Workspace {
    /// The snapshots, oldest first.
    ///
    /// # Errors
    /// If a timeline cannot be read at all; damaged lines are a notice.
    pub fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRecord>> {
        let _ = filter;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// Everything about one snapshot.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; the provider's.
    pub fn show(&self, reference: &str) -> Result<SnapshotDetails> {
        let _ = reference;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
