//! One file, then: its contents in a snapshot, and its versions over time.

use std::os::fd::BorrowedFd;

use ah_plugin_api::{RelPath, Result};

use crate::record::{EntryRecord, SnapshotRecord, VersionRecord};
use crate::workspace::Workspace;

impl Workspace {
    /// Writes a file's contents (or a symlink's target) as of a snapshot to `out`.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `NotFound` if the path was not there; `InvalidArgument` for a directory.
    pub fn cat(&self, reference: &str, path: &RelPath, out: BorrowedFd<'_>) -> Result<EntryRecord> {
        self.cat_from(&self.resolve(reference)?, path, out)
    }

    /// As [`Workspace::cat`], from a snapshot that was resolved before.
    ///
    /// # Errors
    /// `NotFound` if the path was not there; `InvalidArgument` for a directory; the provider's.
    pub fn cat_from(&self, snapshot: &SnapshotRecord, path: &RelPath, out: BorrowedFd<'_>) -> Result<EntryRecord> {
        let _ = (snapshot, path, out);
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }

    /// The distinct versions of a path over all snapshots, oldest first; times when it was not there included, but for those
    /// before it first was.
    ///
    /// # Errors
    /// `NotFound` if no snapshot has the path.
    pub fn versions(&self, path: &RelPath) -> Result<Vec<VersionRecord>> {
        let _ = path;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
