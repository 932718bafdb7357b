//! Branches: writable workspaces grown from a snapshot. Which ignored files come along is `carry`'s.

use std::path::PathBuf;

use ah_plugin_api::{ProviderName, Reference, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::carry::{Carry, CarryReport};
use crate::ids::{BranchId, WorkspaceId};
use crate::text::{self, text_enum};
use crate::workspace::Workspace;

text_enum! {
    /// How far a branch is.
    pub enum BranchState {
        /// It is being made, or was when its maker died; then `gc` takes it away.
        Making = "making",
        /// It can be worked in.
        Ready = "ready",
        /// It is being taken away.
        Removing = "removing",
    }
}

/// What can be said about a branch to be made.
#[derive(Debug, Clone, Default)]
pub struct BranchOptions {
    /// The REF to grow from; none: the present state, of which a snapshot is taken.
    pub from: Option<String>,
    /// Its name; none: made from the workspace's name.
    pub name: Option<String>,
    /// Where it is made: a path that does not exist yet; none: `$AH_HOME/branches/<name>`.
    pub at: Option<PathBuf>,
    /// Whether ignored files that work needs come along; none: as configured.
    pub carry: Option<Carry>,
}

/// A branch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BranchRecord {
    /// Its id.
    pub id: BranchId,
    /// Its name, unique in `$AH_HOME`.
    pub name: String,
    /// How far it is.
    pub state: BranchState,
    /// Where it is.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// The workspace it grew from.
    pub origin: WorkspaceId,
    /// Where that was when the branch was made.
    #[serde(with = "text::abs")]
    pub origin_path: PathBuf,
    /// The snapshot it grew from.
    pub snapshot: SnapshotId,
    /// The workspace that it is itself; none before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// Who made it.
    pub provider: ProviderName,
    /// The provider's name for it; none before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// When.
    #[serde(with = "text::time")]
    pub created: Timestamp,
    /// What a person should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What came along from the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<CarryReport>,
}

/// A branch that was taken away.
#[derive(Debug, Clone, Serialize)]
pub struct BranchRemoved {
    /// What it was.
    #[serde(flatten)]
    pub branch: BranchRecord,
}

impl Workspace {
    /// Makes a writable workspace from a snapshot; the origin does not change.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `AlreadyExists` if the name or the path is taken; the provider's.
    pub fn branch(&self, options: &BranchOptions) -> Result<BranchRecord> {
        let _ = options;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// The branches that grew from this workspace, oldest first.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub fn branches(&self) -> Result<Vec<BranchRecord>> {
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// The branch of that name, id or path, grown from this workspace.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find_branch(&self, name: &str) -> Result<BranchRecord> {
        let _ = name;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// Takes a branch away with everything in it.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it has changed since its last snapshot and `force` is not given; the provider's.
    pub fn remove_branch(&self, name: &str, force: bool) -> Result<BranchRemoved> {
        let _ = (name, force);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
