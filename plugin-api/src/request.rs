//! What is asked of a provider. Each type is one operation's message, the same in process, across the ABI and on the
//! socket: named fields, unknown ones ignored, new ones optional.
//!
//! A new field is ignored by who does not know it, so it may only be one without which the answer is right as well. What changes the
//! meaning of a request needs a new operation, or a capability without which it is not asked: the ABI's minor version counts operations and
//! callbacks only. A new value, where one of several has to be given, reads as `Unsupported`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::path::{FileName, RelPath};
use crate::types::{Durability, Mode, Reference, SnapshotId, Timestamp};

/// What of a workspace is captured. Applied by providers with [`crate::Capability::AppliesPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapturePolicy {
    /// Contents of the user's global ignore file, in `.gitignore` syntax; the weakest of the ignore rules.
    #[serde(with = "serde_bytes")]
    pub global_ignore: Vec<u8>,
    /// Patterns in `.gitignore` syntax for ignored things that are captured all the same, up to `max_file_size`.
    pub include: Vec<String>,
    /// Patterns in `.gitignore` syntax for things that are left out although they are not ignored.
    pub exclude: Vec<String>,
    /// Larger files are left out, bytes.
    pub max_file_size: u64,
    /// Ignored files outside ignored directories are captured up to this size, bytes; 0 captures none.
    pub max_ignored_size: u64,
    /// More entries than this are refused with `FailedPrecondition`.
    pub max_entries: u64,
    /// Directories of `ah`'s own state inside the workspace; left out as [`crate::OmitReason::OwnState`].
    pub own_state: Vec<RelPath>,
}

impl Default for CapturePolicy {
    fn default() -> Self {
        Self {
            global_ignore: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            max_file_size: 256 << 20,
            max_ignored_size: 1 << 20,
            max_entries: 1_000_000,
            own_state: Vec::new(),
        }
    }
}

/// Asks whether the provider can serve a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ProbeRequest {
    /// The mode of work wanted; none: any.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// For a person to read: the reason may take its time, and say more of how the workspace stands.
    #[serde(default)]
    pub thorough: bool,
}

/// Asks for a snapshot of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// The id it shall bear.
    pub id: SnapshotId,
    /// The time it shall bear.
    pub created: Timestamp,
    /// The label it shall bear.
    #[serde(default)]
    pub label: Option<String>,
    /// Kept with the snapshot and given back as they are.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// What it must survive when the call returns.
    pub durability: Durability,
    /// What is captured.
    #[serde(default)]
    pub policy: CapturePolicy,
}

/// Asks for all snapshots of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ListRequest {
    /// Whether those that can be looked for do, where others cannot. Who does not know of this answers as without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// Names one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRef {
    /// The provider's reference to it.
    pub snapshot: Reference,
}

/// Names what is to be destroyed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestroyRequest {
    /// A snapshot, by its reference.
    Snapshot(Reference),
    /// A clone, by its reference.
    Clone(Reference),
}

/// Asks for a read-only view, at `name` in the place's target directory if the provider needs a place for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// The snapshot to show.
    pub snapshot: Reference,
    /// The name to create in the target directory; must not exist.
    pub name: FileName,
    /// Show at least these paths and what is below them; empty: everything.
    #[serde(default)]
    pub paths: Vec<RelPath>,
}

/// Asks for a view to be taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountRequest {
    /// The view's reference, from [`crate::View`].
    pub view: Reference,
    /// Whether nobody uses it any more, for sure: it was reached by a mount of the asker's alone, which the kernel has let go. Who does not
    /// know of this looks for those who use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unused: bool,
}

/// Asks for a writable copy, at `name` in the place's target directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneRequest {
    /// The snapshot to grow from.
    pub snapshot: Reference,
    /// The name to create in the target directory; must not exist.
    pub name: FileName,
}

/// One side of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// A snapshot.
    Snapshot(Reference),
    /// The workspace as it is now.
    Workspace,
}

/// Asks for the differences between two sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffRequest {
    /// The older side.
    pub from: Side,
    /// The newer side.
    pub to: Side,
    /// Only these paths and what is below them; empty: everything.
    #[serde(default)]
    pub paths: Vec<RelPath>,
    /// Whether a file that differs in its modification time alone is a difference.
    #[serde(default)]
    pub times: bool,
    /// What of the workspace counts, where a side is the workspace.
    #[serde(default)]
    pub policy: CapturePolicy,
}

/// Asks for the entries of a directory in a snapshot, ordered by name bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDirRequest {
    /// The snapshot.
    pub snapshot: Reference,
    /// The directory.
    pub path: RelPath,
}

/// Asks for a file's contents, or a symlink's target, written to the place's output descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    /// The snapshot.
    pub snapshot: Reference,
    /// The file.
    pub path: RelPath,
}

/// Asks for one path's entry in each of several snapshots, none where it is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupRequest {
    /// The snapshots.
    pub snapshots: Vec<Reference>,
    /// The path.
    pub path: RelPath,
}

/// Asks for space in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct UsageRequest {
    /// Snapshots, taken together: what is not there holds nothing. None: the whole store.
    #[serde(default)]
    pub snapshots: Vec<Reference>,
}

/// Asks the provider to finish or undo what a crash left, and to put its store in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ReclaimRequest {
    /// Only what is due and cheap; for the background work after a snapshot.
    #[serde(default)]
    pub auto: bool,
    /// Names in the place's target of views and clones that are to go although they are whole: their caller was killed before it could
    /// write down the reference that it was given. Names of anything else that is there do nothing.
    #[serde(default)]
    pub forgotten: Vec<FileName>,
}

/// Asks for the workspace to become a unit that the provider can capture by itself, or a plain directory again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ConvertRequest {
    /// Whether what was mounted in its place is to go, and a plain directory with the same in it to be there again.
    #[serde(default)]
    pub back: bool,
}

/// An answer without contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Done {}
