//! The head of a snapshot: what its commit's tree holds, and the manifest in it.
//!
//! A snapshot is a commit without parents. Its tree has these entries:
//!
//! | name | what |
//! |---|---|
//! | `tree` | the captured data, a plain Git tree |
//! | `meta` | modes, times, sizes beside it ([`crate::meta`]) |
//! | `manifest` | blob: [`Manifest`] as JSON |
//! | `omitted` | blob: one [`ah_plugin_api::Omission`] in JSON a line; only if something was omitted |
//! | `index` | blob: the user's index file; only if the workspace was a repository |
//! | `refs` | blob: its refs ([`ah_repository::refs`]); likewise, and only if its objects are kept |
//! | `kept` | blob: the list of kept objects of the repository ([`crate::store::KEPT`]) |
//!
//! Written by `capture`, read by `tree`. Unknown fields of the manifest are ignored, a higher version is refused.

use std::collections::BTreeMap;

use ah_plugin_api::{RepositoryState, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

/// The version of the manifest that this code writes, and the highest that it reads.
pub(crate) const VERSION: u32 = 1;

/// Entry of a snapshot's tree: the captured data.
pub(crate) const TREE: &[u8] = b"tree";
/// Entry of a snapshot's tree: modes, times, sizes.
pub(crate) const META: &[u8] = b"meta";
/// Entry of a snapshot's tree: the manifest.
pub(crate) const MANIFEST: &[u8] = b"manifest";
/// Entry of a snapshot's tree: what was omitted.
pub(crate) const OMITTED: &[u8] = b"omitted";
/// Entry of a snapshot's tree: the user's index file.
pub(crate) const INDEX: &[u8] = b"index";
/// Entry of a snapshot's tree: the user's refs.
pub(crate) const REFS: &[u8] = b"refs";
/// Entry of a snapshot's tree: the tree of the files of a merge that was in progress, or the like.
pub(crate) const PROGRESS: &[u8] = b"progress";

/// What is known of a snapshot as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// As the caller gave it.
    pub(crate) id: SnapshotId,
    /// As the caller gave it.
    pub(crate) created: Timestamp,
    /// As the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// As the caller gave them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<String, String>,
    /// Captured entries, directories included, the root not.
    pub(crate) entries: u64,
    /// Lines of `omitted`.
    #[serde(default)]
    pub(crate) omitted_total: u64,
    /// Where the user's repository stood; none if the workspace was not the top of a work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repository: Option<RepositoryState>,
    /// When the user's index file was last written. A file of the workspace with that time or a later one may have changed
    /// without the index showing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) index_written: Option<Timestamp>,
}
