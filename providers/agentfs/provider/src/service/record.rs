//! What travels with a snapshot or a branch, as its label in the tree: so it is there exactly when that is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_agentfs::SnapshotId as Number;
use ah_plugin_api::{
    Dir, Durability, Error, ErrorKind, Omission, Reference, RepositoryState, Result, Snapshot, SnapshotId,
    SnapshotRequest, Timestamp, wire,
};
use ah_repository::Repository;
use serde::{Deserialize, Serialize};

use crate::home;

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
    /// Of a branch: random, and in its reference, so that nobody who has that of another takes this one for it, whatever its number. Older programs wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<String>,
    /// Of a view: the snapshot that it shows, by its number in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shows: Option<u64>,
    /// Of a view: the same by its id, on the shelf. Older programs wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
    /// Whether it is in place of the workspace itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) converted: bool,
}

impl PlaceLabel {
    /// That of a branch.
    pub(super) fn new(shelf: &str, at: &Path) -> Result<Self> {
        Ok(Self { mark: Some(home::random()?), ..Self::unmarked(shelf, at) })
    }

    /// That of the branch in place of a workspace.
    pub(super) fn of_workspace(shelf: &str, at: &Path) -> Result<Self> {
        Ok(Self { converted: true, ..Self::new(shelf, at)? })
    }

    /// That of a view of a snapshot on the same shelf.
    pub(super) fn of_view(shelf: &str, at: &Path, number: Number, snapshot: &SnapshotId) -> Self {
        Self { shows: Some(number.0), snapshot: Some(snapshot.clone()), ..Self::unmarked(shelf, at) }
    }

    fn unmarked(shelf: &str, at: &Path) -> Self {
        let at = at.as_os_str().as_bytes().to_vec();
        Self { shelf: shelf.to_owned(), at, mark: None, shows: None, snapshot: None, converted: false }
    }

    /// Of a view: the number of the snapshot that it shows.
    pub(super) fn number(&self) -> Option<Number> {
        self.shows.map(Number)
    }

    /// Whether it is a view's of this snapshot.
    pub(super) fn is_of(&self, number: Number, of: &SnapshotLabel) -> bool {
        let is_it = |id: &SnapshotId| *id == of.id && self.shelf == of.shelf;
        self.number() == Some(number) && self.snapshot.as_ref().is_none_or(is_it)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_of_the_snapshot_that_it_was_made_of_and_an_older_one_of_the_one_with_its_number() {
        let of = |shelf: &str, id: &str| SnapshotLabel {
            shelf: shelf.to_owned(),
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp { secs: 1, nanos: 2 },
            label: None,
            attributes: BTreeMap::new(),
            repository: None,
            omitted: Vec::new(),
        };
        let (one, at) = (of("shelf", "one"), Path::new("/at"));
        let view = PlaceLabel::of_view("shelf", at, Number(7), &one.id);
        let older = PlaceLabel { snapshot: None, ..view.clone() };
        for (view, is_it) in [(view, false), (older, true)] {
            let view = PlaceLabel::decode(&view.encode().unwrap()).unwrap();
            assert!(view.is_of(Number(7), &one) && !view.is_of(Number(8), &one));
            assert_eq!(view.is_of(Number(7), &of("shelf", "other")), is_it);
            assert_eq!(view.is_of(Number(7), &of("other", "one")), is_it);
        }
    }
}
