//! Results that several operations share, as the timeline keeps them and the command line prints them.

use std::collections::BTreeMap;

use ah_plugin_api::{
    Change, ContentId, Durability, Entry, EntryKind, Error, ErrorKind, Omission, OmitReason, ProviderName, Reference,
    RelPath, RepositoryState, Snapshot, SnapshotId, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::text::{self, text_enum};

text_enum! {
    /// Why a snapshot was taken.
    pub enum SnapshotKind {
        /// A person or a program asked for it.
        Manual = "manual",
        /// A hook or a recorder took it.
        Auto = "auto",
        /// Restore or undo took it before changing anything.
        Safety = "safety",
        /// It is what a branch grew from.
        Branch = "branch",
    }
}

/// A snapshot as the timeline knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its id, twelve letters from `k` to `z`.
    pub id: SnapshotId,
    /// The session on whose timeline it stands.
    #[serde(default = "SessionName::main")]
    pub session: SessionName,
    /// Its place in the order of all events of the workspace. One that `gc` listed again has the place at which it was taken: the event that has the
    /// same number, if there is one, came behind it.
    #[serde(default)]
    pub seq: u64,
    /// When it was taken.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// Why it was taken.
    pub kind: SnapshotKind,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether it is pinned: neither `rm` nor `prune` takes it.
    #[serde(default)]
    pub kept: bool,
    /// Who holds it.
    pub provider: ProviderName,
    /// The provider's name for it.
    pub reference: Reference,
    /// What it survived when it was taken.
    pub durability: Durability,
    /// Equal for snapshots of one provider with equal trees, modes and times included, and for no others; hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// Number of captured entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// How many things were left out; `show` lists them.
    #[serde(default)]
    pub omitted_total: u64,
    /// Where the user's repository stood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryState>,
    /// What it holds the space of beyond the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<String>,
    /// The snapshot before it, where that has the very same tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_to: Option<SnapshotId>,
    /// What the caller and the configuration (`labels`) put on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl SnapshotRecord {
    /// The record of what a provider has just made or listed.
    pub(crate) fn of(snapshot: &Snapshot, provider: &ProviderName, kind: SnapshotKind, session: &SessionName) -> Self {
        Self {
            id: snapshot.id.clone(),
            session: session.clone(),
            seq: 0,
            time: snapshot.created,
            kind,
            label: snapshot.label.clone(),
            kept: false,
            provider: provider.clone(),
            reference: snapshot.reference.clone(),
            durability: snapshot.durability,
            tree: snapshot.tree.as_ref().map(|ContentId(bytes)| text::hex(bytes)),
            entries: snapshot.entries,
            omitted_total: snapshot.omitted_total,
            repository: snapshot.repository.clone(),
            pins: snapshot.pins.clone(),
            equal_to: None,
            attributes: BTreeMap::new(),
        }
    }
}

impl SnapshotRecord {
    /// Whether `@`, `@{n}`, times and retention rules count it: somebody took it for its own sake, not a restore to be undone or
    /// a branch to grow from.
    #[must_use]
    pub fn counts(&self) -> bool {
        !matches!(self.kind, SnapshotKind::Safety | SnapshotKind::Branch)
    }

    /// Whether a REF that names it is its whole id or label, or counts from the latest: what only begins an id, or reads as a time, gives way to a
    /// branch's name.
    #[must_use]
    pub fn is_wholly(&self, reference: &str) -> bool {
        let is_id = reference.len() == self.id.as_str().len();
        is_id || self.label.as_deref() == Some(reference) || reference.starts_with('@')
    }

    /// The error of one that its provider does not have any more: somebody removed it by hand.
    pub(crate) fn lost(&self) -> Error {
        let Self { id, provider, .. } = self;
        let message = format!("the snapshot {id} is on the timeline, but {provider} does not have it any more");
        Error::new(ErrorKind::NotFound, message).with_hint(format!("`ah agent fs rm {id}` takes it off"))
    }
}

/// Something that a snapshot does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OmittedRecord {
    /// The topmost path that was left out.
    #[serde(with = "text::rel")]
    pub path: RelPath,
    /// Why.
    pub reason: OmitReason,
    /// More about it, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl From<Omission> for OmittedRecord {
    fn from(omission: Omission) -> Self {
        Self { path: omission.path, reason: omission.reason, detail: omission.detail }
    }
}

/// One file, directory or symlink, then or now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits, as a number.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// When its contents were last modified.
    #[serde(with = "text::time")]
    pub mtime: Timestamp,
    /// Identifies its contents among those of one provider; hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether an ignore rule matched it.
    #[serde(default)]
    pub ignored: bool,
}

impl EntryRecord {
    /// Whether `other`, of the same provider, is the same file or symlink unchanged.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let contents = match (&self.content, &other.content) {
            (Some(own), Some(others)) => own == others,
            _ => self.mtime == other.mtime,
        };
        (self.kind, self.mode, self.size) == (other.kind, other.mode, other.size) && contents
    }
}

impl From<&Entry> for EntryRecord {
    fn from(entry: &Entry) -> Self {
        Self {
            kind: entry.kind,
            mode: entry.mode,
            size: entry.size,
            mtime: entry.mtime,
            content: entry.content.as_ref().map(|ContentId(bytes)| text::hex(bytes)),
            ignored: entry.ignored,
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// Where.
    #[serde(with = "text::rel")]
    pub path: RelPath,
    /// What was there; none if added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<EntryRecord>,
    /// What is there; none if deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EntryRecord>,
}

impl From<&Change> for ChangeRecord {
    fn from(change: &Change) -> Self {
        Self {
            path: change.path.clone(),
            before: change.before.as_ref().map(EntryRecord::from),
            after: change.after.as_ref().map(EntryRecord::from),
        }
    }
}

/// One distinct version of a path over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRecord {
    /// The oldest snapshot that shows this version.
    pub snapshot: SnapshotId,
    /// When that was taken.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// The session it belongs to.
    pub session: SessionName,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The latest snapshot in a row that still shows it.
    pub last: SnapshotId,
    /// How many snapshots in a row show it.
    pub snapshots: u64,
    /// The path then; none: it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryRecord>,
}
