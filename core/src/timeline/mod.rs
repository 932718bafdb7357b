//! The event log: one append-only file for each session, `sessions/<session>/timeline.jsonl`.
//!
//! - `event` is what can stand on it, `line` one event as text, `file` the file, `log` all of a workspace's files with their one order.
//! - Not here: what the events amount to (`state`), and how a person names a point (`refs`).

mod event;
mod file;
mod line;
mod log;

use ah_plugin_api::Result;
use serde::Serialize;

use crate::ids::SessionName;
use crate::workspace::Workspace;

pub use event::{Event, EventBody, WorkspaceChange};
pub(crate) use log::{Head, Log};

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
    /// `NotFound` for a session that is not there; if a timeline cannot be read at all. Damaged lines are in the report.
    pub fn timeline(&self, filter: &TimelineFilter) -> Result<TimelineReport> {
        let state = self.state()?;
        let session = self.reading_session(filter.session.as_ref())?;
        let mut events = state.events;
        let mut faults = state.faults;
        if let Some(session) = session {
            events.retain(|event| event.session == session);
            faults.retain(|fault| fault.session == session);
        }
        if let Some(limit) = filter.limit {
            events.drain(..events.len().saturating_sub(limit));
        }
        Ok(TimelineReport { events, faults })
    }
}
