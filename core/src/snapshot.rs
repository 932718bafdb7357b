//! Taking a snapshot.

use std::collections::BTreeMap;

use ah_plugin_api::{Durability, Result};

use crate::record::{SnapshotKind, SnapshotRecord};
use crate::workspace::Workspace;

/// What can be said about a snapshot to be taken.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// A label for people and REFs.
    pub label: Option<String>,
    /// Why it is taken.
    pub kind: SnapshotKind,
    /// What it must survive when the call returns; none: `durable` by hand, `instant` when automatic.
    pub durability: Option<Durability>,
    /// Pin it.
    pub keep: bool,
    /// Capture even more entries than the guard allows.
    pub force: bool,
    /// Put on the snapshot as they are.
    pub attributes: BTreeMap<String, String>,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            label: None,
            kind: SnapshotKind::Manual,
            durability: None,
            keep: false,
            force: false,
            attributes: BTreeMap::new(),
        }
    }
}

impl Workspace {
    /// Captures the workspace and puts it on the timeline.
    ///
    /// `equal_to` of the answer names the snapshot before it if nothing has changed since. When the provider of choice fails, an
    /// automatic snapshot is taken with the next one, with an event; by hand, the error's hint offers it.
    ///
    /// # Errors
    /// `Unavailable` if no provider can serve; `FailedPrecondition` if there are too many entries; `ResourceExhausted`; the
    /// provider's.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<SnapshotRecord> {
        let _ = options;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
