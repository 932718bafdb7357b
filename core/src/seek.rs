//! Views of snapshots, and the leases under which they are held.

use std::path::PathBuf;

use ah_plugin_api::{ProviderName, Reference, RelPath, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::{LeaseId, WorkspaceId};
use crate::text;
use crate::workspace::Workspace;

/// What can be said about a seek.
#[derive(Debug, Clone, Default)]
pub struct SeekOptions {
    /// Show at least these paths and what is below them; empty: everything.
    pub paths: Vec<RelPath>,
    /// Give it back by itself when this process has ended; for views that a program uses itself.
    pub while_process_lives: bool,
}

/// A view that somebody holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Its id.
    pub id: LeaseId,
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The snapshot that it shows.
    pub snapshot: SnapshotId,
    /// Where the view is.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// Whether it is read-only for root too.
    pub read_only_mount: bool,
    /// The paths it was asked for; empty: everything.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPath>,
    /// Whether another lease's view is shown.
    #[serde(default)]
    pub shared: bool,
    /// Since when.
    #[serde(with = "text::time")]
    pub created: Timestamp,
    /// Who holds the snapshot.
    pub provider: ProviderName,
    /// The provider's name for the view.
    pub view: Reference,
}

/// Which views are given back.
#[derive(Debug, Clone)]
pub enum Release {
    /// The one at this path, or around it.
    Path(PathBuf),
    /// The lease of this id.
    Id(LeaseId),
    /// All of this workspace.
    All,
}

impl Workspace {
    /// Shows a snapshot at a path, read-only, until it is released.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `NotFound` if one of the paths was not there; the provider's.
    pub fn seek(&self, reference: &str, options: &SeekOptions) -> Result<LeaseRecord> {
        let _ = (reference, options);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// Gives views back; answers which. A view goes when its last lease does.
    ///
    /// # Errors
    /// `NotFound` if there is none such; `Busy` while a process uses the view.
    pub fn release(&self, which: &Release) -> Result<Vec<LeaseRecord>> {
        let _ = which;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// All leases of this workspace, oldest first.
    ///
    /// # Errors
    /// If the folder of leases cannot be read.
    pub fn leases(&self) -> Result<Vec<LeaseRecord>> {
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
