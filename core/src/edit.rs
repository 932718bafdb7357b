//! Relabelling and pinning.

use ah_plugin_api::Result;

use crate::record::SnapshotRecord;
use crate::workspace::Workspace;

/// What is to change.
#[derive(Debug, Clone, Default)]
pub struct EditOptions {
    /// The new label; empty: none.
    pub label: Option<String>,
    /// Pin it, or no longer.
    pub keep: Option<bool>,
}

impl Workspace {
    /// Changes a snapshot's label or pin; the answer is how it is now.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `InvalidArgument` if nothing is to change.
    pub fn edit(&self, reference: &str, options: &EditOptions) -> Result<SnapshotRecord> {
        let _ = (reference, options);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
