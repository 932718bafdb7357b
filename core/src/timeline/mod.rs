//! The event log of a session.

use std::collections::BTreeMap;

use ah_plugin_api::{Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::SessionName;
use crate::record::SnapshotRecord;
use crate::restore::{RestoreBegin, RestoreEnd};
use crate::text;
use crate::workspace::Workspace;

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
    Snapshot(Box<SnapshotRecord>),
    /// Snapshots are removed; comes before they are.
    Remove {
        /// Which.
        snapshots: Vec<SnapshotId>,
        /// By whom: `rm`, `prune`.
        by: String,
    },
    /// A restore or undo begins.
    RestoreBegin(RestoreBegin),
    /// A restore or undo came to its end.
    RestoreEnd(RestoreEnd),
    /// An event of a newer version.
    #[serde(untagged)]
    Other(BTreeMap<String, serde_json::Value>),
}

/// Which events are asked for.
#[derive(Debug, Clone, Default)]
pub struct TimelineFilter {
    /// Those of one session; none: as [`crate::Settings::session`] says, else of all.
    pub session: Option<SessionName>,
    /// At most so many, the latest.
    pub limit: Option<usize>,
}

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimelineFault {
    /// The session it belongs to.
    pub session: SessionName,
    /// Which line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// Events, and what could not be read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TimelineReport {
    /// In order.
    pub events: Vec<Event>,
    /// Lines that cannot be read.
    pub faults: Vec<TimelineFault>,
}

impl Workspace {
    /// The events of the workspace, in order.
    ///
    /// # Errors
    /// If a timeline cannot be read at all; damaged lines are in the report.
    pub fn timeline(&self, filter: &TimelineFilter) -> Result<TimelineReport> {
        let _ = filter;
        Err(ah_plugin_api::Error::new(ah_plugin_api::ErrorKind::Unsupported, "not written yet"))
    }
}
