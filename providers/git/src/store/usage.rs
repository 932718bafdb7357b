//! How much space is in use.

use ah_plugin_api::{Context, Error, ErrorKind, Result, SnapshotId};

use super::Store;

/// Bytes on disk.
pub(super) fn disk(_store: &Store) -> Result<u64> {
    Ok(0)
}

/// Bytes of one snapshot.
pub(super) fn snapshot(_store: &Store, id: &SnapshotId, _cx: &Context<'_>) -> Result<(u64, u64)> {
    Err(Error::new(ErrorKind::NotFound, format!("there is no snapshot {id}")))
}
