//! What travels with a snapshot or a branch, as its label in the tree: so it is there exactly when that is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Dir, Durability, Error, ErrorKind, Omission, Reference, RepositoryState, Result, Snapshot, SnapshotId,
    SnapshotRequest, Timestamp, wire,
};
use ah_repository::Repository;
use serde::{Deserialize, Serialize};

/// A snapshot's. New fields are optional; unknown ones are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotLabel {
    /// The key of the shelf that it is on.
    pub(super) shelf: String,
    pub(super) id: SnapshotId,
    created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    /// Where the repository stood whose work tree the workspace is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) repository: Option<RepositoryState>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) omitted: Vec<Omission>,
}

impl SnapshotLabel {
    pub(super) fn new(shelf: &str, request: &SnapshotRequest, workspace: &Dir, omitted: Vec<Omission>) -> Self {
        Self {
            shelf: shelf.to_owned(),
            id: request.id.clone(),
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            repository: Repository::standing(workspace),
            omitted,
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        wire::decode(bytes).ok()
    }

    /// As the contract puts it; `full` with what was omitted.
    pub(super) fn snapshot(self, durable: bool, full: bool) -> Result<Snapshot> {
        Ok(Snapshot {
            reference: Reference::new(self.id.as_str())?,
            id: self.id,
            created: self.created,
            label: self.label,
            attributes: self.attributes,
            durability: if durable { Durability::Durable } else { Durability::Instant },
            tree: None,
            entries: None,
            omitted_total: self.omitted.len() as u64,
            omitted: if full { self.omitted } else { Vec::new() },
            repository: self.repository,
            pins: None,
            changed_below: None,
        })
    }
}

/// A branch's, and a view's in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlaceLabel {
    /// The key of the shelf of the store that it was asked for with.
    pub(super) shelf: String,
    /// Where it is mounted.
    #[serde(with = "serde_bytes")]
    at: Vec<u8>,
    /// Of a view: the snapshot that it shows, by its number in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shows: Option<u64>,
    /// Whether it is in place of the workspace itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) converted: bool,
}

impl PlaceLabel {
    pub(super) fn new(shelf: &str, at: &Path, shows: Option<u64>) -> Self {
        Self { shelf: shelf.to_owned(), at: at.as_os_str().as_bytes().to_vec(), shows, converted: false }
    }

    /// That of the branch in place of a workspace.
    pub(super) fn of_workspace(shelf: &str, at: &Path) -> Self {
        Self { converted: true, ..Self::new(shelf, at, None) }
    }

    pub(super) fn at(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.at.clone()))
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self)
    }

    /// # Errors
    /// `DataLoss` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let label: Self = wire::decode(bytes).map_err(|e| Error { kind: ErrorKind::DataLoss, ..e })?;
        match label.at().is_absolute() {
            true => Ok(label),
            false => Err(Error::new(ErrorKind::DataLoss, "a record of what is mounted is damaged")),
        }
    }
}
