//! The state of a workspace at a glance.

use std::path::PathBuf;

use ah_plugin_api::ProviderName;
use serde::Serialize;

use crate::branch::BranchRecord;
use crate::ids::WorkspaceId;
use crate::providers::RefusedPlugin;
use crate::record::SnapshotRecord;
use crate::restore::InterruptedRestore;
use crate::seek::LeaseRecord;
use crate::select::Candidate;
use crate::session::SessionRecord;
use crate::text;

/// The state of a workspace.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Where it is.
    #[serde(with = "text::abs")]
    pub root: PathBuf,
    /// Its id; none: nothing was ever captured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// The branch that it is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchRecord>,
    /// The provider that serves here; none: no one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderName>,
    /// Each provider's verdict, by rank.
    pub candidates: Vec<Candidate>,
    /// Plugins that were not loaded, and why.
    pub refused: Vec<RefusedPlugin>,
    /// Its sessions.
    pub sessions: Vec<SessionRecord>,
    /// How many snapshots there are.
    pub snapshots: u64,
    /// The latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<SnapshotRecord>,
    /// Its branches.
    pub branches: Vec<BranchRecord>,
    /// Its views.
    pub leases: Vec<LeaseRecord>,
    /// A restore that did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<InterruptedRestore>,
    /// The last time that the chosen provider failed, and who took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
}
