//! What can stand on a timeline.

use std::path::PathBuf;

use ah_plugin_api::{ProviderName, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{BranchId, SessionName};
use crate::moments::{FilesChanged, MomentRecord, MomentUpdate};
use crate::record::SnapshotRecord;
use crate::restore::{RestoreBegin, RestoreEnd};
use crate::rewind::Rewind;
use crate::session_branch::SessionBranched;
use crate::text::{self, text_enum};

text_enum! {
    /// What became of a workspace's directory.
    pub enum WorkspaceChange {
        /// It was found at another path.
        Moved = "moved",
        /// Another directory is at the same path: it was deleted and made again, or moved and replaced.
        MadeAnew = "made-anew",
        /// A person said that it is the one that was at another path.
        Adopted = "adopted",
        /// `convert` put another directory with the same contents in its place.
        Converted = "converted",
        /// `convert --back` put a plain directory with the same contents in its place.
        ConvertedBack = "converted-back",
    }
}

/// One event, with its place in the order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Its place in the order of all events of the workspace.
    pub seq: u64,
    /// When, by the clock of the machine; the order is `seq`'s.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// The session it belongs to.
    pub session: SessionName,
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened. The set is open: what this version does not know is kept as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EventBody {
    /// A snapshot was taken. It is a moment, too.
    Snapshot {
        /// The snapshot.
        snapshot: Box<SnapshotRecord>,
    },
    /// A complete snapshot that the timeline did not know, as its maker was killed, was found again.
    Recovered {
        /// The snapshot.
        snapshot: Box<SnapshotRecord>,
        /// The last event before it was taken: its place in the order is behind that one, and not where it was found. Absent: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
    /// A labelled point. What becomes of it, its snapshot above all, stands in later lines.
    Moment(Box<MomentRecord>),
    /// What became of a moment.
    MomentUpdate(Box<MomentUpdate>),
    /// An agent called, and something of ours could not be done. The agent heard nothing of it.
    HookFailed {
        /// The agent.
        agent: String,
        /// What it called for.
        event: String,
        /// What could not be done, and why.
        reason: String,
    },
    /// A snapshot was relabelled, pinned or let go.
    Edit {
        /// Which.
        snapshot: SnapshotId,
        /// The new label, empty: none; absent: as it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        /// Whether it is pinned; absent: as it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<bool>,
    },
    /// Snapshots are removed; comes before they are.
    Remove {
        /// Which.
        snapshots: Vec<SnapshotId>,
        /// By what: `rm`, `prune`.
        by: String,
    },
    /// A branch was made.
    Branch {
        /// Its id.
        branch: BranchId,
        /// Its name.
        name: String,
        /// The snapshot it grew from.
        snapshot: SnapshotId,
        /// Where it is.
        #[serde(with = "text::abs")]
        path: PathBuf,
    },
    /// A branch was taken away.
    BranchRemoved {
        /// Its id.
        branch: BranchId,
        /// Its name.
        name: String,
    },
    /// A session branch was made.
    SessionBranch(Box<SessionBranched>),
    /// The session went back to one of its moments.
    Rewind(Box<Rewind>),
    /// A restore or undo begins.
    RestoreBegin(RestoreBegin),
    /// A restore or undo came to its end.
    RestoreEnd(RestoreEnd),
    /// The provider of choice failed, and another took over.
    Degraded {
        /// Who failed.
        provider: ProviderName,
        /// What it said.
        reason: String,
        /// Who took over.
        next: ProviderName,
    },
    /// Of a branch that reads in the workspace what was not changed in it: somebody changed files there. The branch shows them as they are now, its
    /// snapshots do not: they hold what was there, or nothing that could be read.
    ChangedBelow {
        /// What was heard of since the snapshot before.
        #[serde(flatten)]
        files: FilesChanged,
    },
    /// Automatic snapshots are paused: the disk has less room than shall stay free, and pruning did not help.
    CapturePaused {
        /// Bytes that are free.
        free: u64,
        /// Bytes that the filesystem has.
        total: u64,
    },
    /// They go on.
    CaptureResumed {},
    /// A torn last line was cut off; it is kept beside the timeline, in `timeline.torn`.
    Repaired {
        /// How many bytes.
        bytes: u64,
    },
    /// The end of this session's timeline was lost, or all of it put aside unread: it was written, and was not there any more when this was. What a lost line pinned does not look so.
    LinesLost {
        /// The number of the last line that was lost; of what was put aside, the last that was given.
        last: u64,
    },
    /// `gc` has listed again what the providers still have of that, and pinned what may have been.
    LinesSought {},
    /// The workspace's directory is another one now, or elsewhere.
    Workspace {
        /// What became of it.
        change: WorkspaceChange,
        /// Where it was.
        #[serde(with = "text::abs")]
        from: PathBuf,
        /// Where it is.
        #[serde(with = "text::abs")]
        to: PathBuf,
    },
    /// An event of a newer version, as it stands in the file.
    #[serde(untagged)]
    Other(Map<String, Value>),
}

impl EventBody {
    /// The types that this version knows. One of these that reads as [`EventBody::Other`] is damaged.
    pub(crate) const KNOWN: &[&str] = &[
        "snapshot",
        "recovered",
        "moment",
        "moment-update",
        "hook-failed",
        "edit",
        "remove",
        "branch",
        "branch-removed",
        "session-branch",
        "rewind",
        "restore-begin",
        "restore-end",
        "degraded",
        "changed-below",
        "capture-paused",
        "capture-resumed",
        "repaired",
        "lines-lost",
        "lines-sought",
        "workspace",
    ];
}
