//! The event log: one append-only file for each session, `sessions/<session>/timeline.jsonl`.
//!
//! - `event` is what can stand on it, `line` one event as text, `file` the file, `log` all of a workspace's files with their one order,
//!   `head` what the last events amount to.
//! - Not here: what the events amount to (`state`), and how a person names a point (`refs`).

mod event;
mod file;
mod head;
mod line;
mod log;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ah_plugin_api::{Result, SnapshotId};
use serde::Serialize;

use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind};
use crate::record::SnapshotKind;
use crate::state;
use crate::text::text_enum;
use crate::workspace::Workspace;

pub use event::{Event, EventBody, WorkspaceChange};
pub(crate) use head::{Head, HeadSnapshot};
pub(crate) use line::decode as decode_line;
pub(crate) use log::{Came, Log, is_unmoved};

/// Which events are asked for.
#[derive(Debug, Clone, Default)]
pub struct TimelineFilter {
    /// Those of one session; none: as [`crate::Settings::session`] says, else of all.
    pub session: Option<SessionName>,
    /// At most so many, the latest.
    pub limit: Option<usize>,
}

text_enum! {
    /// What is wrong with a timeline.
    pub enum FaultKind {
        /// A line cannot be read.
        Line = "line",
        /// Lines were lost from its end, and `gc` has not looked yet for what they listed.
        End = "end",
        /// All of it cannot be read.
        File = "file",
    }
}

/// What cannot be read of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimelineFault {
    /// The session it belongs to.
    pub session: SessionName,
    /// What is wrong.
    pub kind: FaultKind,
    /// Which line, from 1; where there are too few, the first that is not there.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// What to do about it, of a timeline of which nothing can be read.
    #[serde(skip)]
    pub way_out: Option<String>,
}

/// Events, and what could not be read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TimelineReport {
    /// In order.
    pub events: Vec<Event>,
    /// What cannot be read.
    pub faults: Vec<TimelineFault>,
    /// The moments among the events, each with what became of it.
    #[serde(skip)]
    pub moments: Vec<Moment>,
    /// Those of them that their session left behind by going back (`rewind`).
    #[serde(skip)]
    pub left: BTreeSet<SnapshotId>,
    /// The snapshots that were taken for branches which could not be made, and taken back, and those that another one made needless at once.
    #[serde(skip)]
    pub taken_back: BTreeSet<SnapshotId>,
}

/// A prompt, and the moments of what was done for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromptGroup {
    /// The session.
    pub session: SessionName,
    /// The prompt; none: what came before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Moment>,
    /// Whether the session left the prompt behind by going back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// What followed it in that session, until the next one.
    pub moments: Vec<Moment>,
}

impl TimelineReport {
    /// Whether an event left nothing: what was taken for a branch that could not be made, what an older snapshot serves for, or that this was taken back.
    #[must_use]
    pub fn came_to_nothing(&self, event: &Event) -> bool {
        is_only_of(&event.body, &self.taken_back)
    }

    /// The moments, by prompts, in the order in which these came.
    #[must_use]
    pub fn prompts(&self) -> Vec<PromptGroup> {
        let mut groups: Vec<PromptGroup> = Vec::new();
        let mut current: HashMap<&SessionName, usize> = HashMap::new();
        for moment in &self.moments {
            let prompt = (moment.record.kind == MomentKind::Prompt).then(|| moment.clone());
            let is_prompt = prompt.is_some();
            if is_prompt || !current.contains_key(&moment.session) {
                current.insert(&moment.session, groups.len());
                let left = is_prompt && self.left.contains(&moment.record.id);
                groups.push(PromptGroup { session: moment.session.clone(), prompt, left, moments: Vec::new() });
            }
            if let Some(&at) = current.get(&moment.session).filter(|_| !is_prompt) {
                groups[at].moments.push(moment.clone());
            }
        }
        groups
    }
}

impl Workspace {
    /// The events of the workspace, in order.
    ///
    /// # Errors
    /// `NotFound` for a session that is not there; if a timeline cannot be read at all. Damaged lines are in the report.
    pub fn timeline(&self, filter: &TimelineFilter) -> Result<TimelineReport> {
        let TimelineReport { mut events, mut faults, .. } = self.read_timelines()?;
        let session = self.reading_session(filter.session.as_ref())?;
        let (mut moments, left) = state::moments(&events);
        let taken_back = taken_back(&events);
        if let Some(session) = session {
            events.retain(|event| event.session == session);
            faults.retain(|fault| fault.session == session);
            moments.retain(|moment| moment.session == session);
        }
        if let Some(limit) = filter.limit {
            // What became of a moment is told with the moment.
            let counts = |event: &Event| {
                !matches!(event.body, EventBody::MomentUpdate(_)) && !is_only_of(&event.body, &taken_back)
            };
            let mut counting = events.iter().enumerate().rev().filter(|(_, event)| counts(event)).map(|(at, _)| at);
            let first = if limit == 0 { events.len() } else { counting.nth(limit - 1).unwrap_or(0) };
            events.drain(..first);
            let first = events.first().map_or(u64::MAX, |event| event.seq);
            moments.retain(|moment| moment.seq >= first);
        }
        Ok(TimelineReport { events, faults, moments, left, taken_back })
    }
}

/// The snapshots that came and went with the attempt to make a branch, and those for which an older one serves, as nothing had changed.
fn taken_back(events: &[Event]) -> BTreeSet<SnapshotId> {
    let mut back = BTreeMap::new();
    for event in events {
        if let EventBody::Remove { snapshots, by } = &event.body {
            let kind = match by.as_str() {
                "branch" => SnapshotKind::Branch,
                "capture" => SnapshotKind::Auto,
                _ => continue,
            };
            back.extend(snapshots.iter().map(|id| (id, kind)));
        }
    }
    for event in events {
        match &event.body {
            EventBody::Branch { snapshot, .. } => _ = back.remove(snapshot),
            EventBody::Snapshot { snapshot } if back.get(&snapshot.id).is_some_and(|kind| *kind != snapshot.kind) => {
                back.remove(&snapshot.id);
            }
            _ => {}
        }
    }
    back.into_keys().cloned().collect()
}

/// Whether an event tells of these snapshots, and of nothing else.
fn is_only_of(body: &EventBody, ids: &BTreeSet<SnapshotId>) -> bool {
    match body {
        EventBody::Snapshot { snapshot } => ids.contains(&snapshot.id),
        EventBody::Remove { snapshots, .. } => !snapshots.is_empty() && snapshots.iter().all(|id| ids.contains(id)),
        _ => false,
    }
}
