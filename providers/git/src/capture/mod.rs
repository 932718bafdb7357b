//! Turning a scan into a snapshot: trees, metadata, manifest, commit.
//!
//! [`snapshot`] writes one into the store, [`live`] makes the same trees in memory to compare a workspace with a snapshot.
//! Not here: finding what changed (`scan`), the format of the parts (`meta`, `manifest`), objects and packs (`store`).

use std::collections::HashMap;
use std::sync::Arc;

use ah_plugin_api::{CapturePolicy, Context, Dir, Error, ErrorKind, Omission, Result, Snapshot, SnapshotRequest};
use gix::objs::Kind;
use gix::{ObjectId, oid};

use crate::store::Store;

/// Captures the workspace into the store, as [`ah_plugin_api::Provider::snapshot`] promises.
///
/// Takes the store's lock for the whole time. The snapshot's reference is its id.
///
/// # Errors
/// `AlreadyExists` for a taken id, `FailedPrecondition` for too many entries, `Busy`, `Cancelled`, and what the store says.
pub(crate) fn snapshot(
    _store: &Store,
    _workspace: &Dir,
    _request: &SnapshotRequest,
    _cx: &Context<'_>,
) -> Result<Snapshot> {
    Err(Error::new(ErrorKind::Internal, "not written yet"))
}

/// A workspace as it is now, in the form of a snapshot that nobody keeps.
///
/// `tree` and `meta` are what a snapshot taken now would have. Directories that did not change since the last
/// snapshot are objects of the store, all others are in `objects`; contents of files that changed are in neither (only
/// their ids are known). So a reader asks [`Live::get`] first, then the store.
#[derive(Debug)]
pub(crate) struct Live {
    /// The data tree.
    pub(crate) tree: ObjectId,
    /// The metadata beside it: a blob or a tree, see [`crate::meta`].
    pub(crate) meta: ObjectId,
    /// Whether `meta` is a tree (there are subdirectories) or a blob.
    pub(crate) meta_is_tree: bool,
    /// What is not captured, and why; ordered by path.
    pub(crate) omitted: Vec<Omission>,
    /// Captured entries, the root not counted.
    pub(crate) entries: u64,
    objects: HashMap<ObjectId, (Kind, Arc<[u8]>)>,
}

impl Live {
    /// A tree or meta object that the store need not have.
    pub(crate) fn get(&self, id: &oid) -> Option<(Kind, Arc<[u8]>)> {
        self.objects.get(id).cloned()
    }
}

/// Looks at the workspace as it is now: at the cost of a scan, reading only files that changed since the private index was
/// written. Writes nothing, anywhere, and takes no lock.
///
/// # Errors
/// Those of [`snapshot`], but for the store's lock.
pub(crate) fn live(_store: &Store, _workspace: &Dir, _policy: &CapturePolicy, _cx: &Context<'_>) -> Result<Live> {
    Err(Error::new(ErrorKind::Internal, "not written yet"))
}
