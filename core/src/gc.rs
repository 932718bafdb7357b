//! Reclaiming what crashes left, and background work.

use ah_plugin_api::Result;
use serde::Serialize;

use crate::workspace::Workspace;

/// What can be said about a gc.
#[derive(Debug, Clone, Default)]
pub struct GcOptions {
    /// Only what is due and cheap: the background work after a snapshot.
    pub auto: bool,
}

/// What a gc did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GcReport {
    /// One sentence for each thing that was finished or undone.
    pub actions: Vec<String>,
    /// What could not be done, one sentence each.
    pub failures: Vec<String>,
    /// Bytes given back.
    pub bytes: u64,
}

impl Workspace {
    /// Brings timeline and providers' stores into agreement, finishes or undoes what crashes left, gives space back. Safe at any
    /// time, beside any other process.
    ///
    /// # Errors
    /// Only if nothing could be done at all; the rest is in the report.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport> {
        let _ = options;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
