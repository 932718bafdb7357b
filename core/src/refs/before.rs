//! Which snapshot shows the workspace as it was at a place on the timeline where none was taken.
//!
//! The last one before, or the one that all files were put back to since. REFs and retention ask here, both, so that what a REF means outside
//! of sessions and within the one it belongs to is not removed as if nobody could mean it.

use ah_plugin_api::SnapshotId;

use crate::record::SnapshotRecord;
use crate::rewind::is_undone;
use crate::timeline::{Event, EventBody};

/// What shows a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before<'a> {
    /// This one.
    Snapshot(&'a SnapshotRecord),
    /// This one did, and was removed: what is older shows what was put away by then.
    Removed(&'a SnapshotId),
    /// There is none.
    Nothing,
}

/// What was put back when, of a timeline.
pub(crate) struct PutBack<'a> {
    /// The events of restores, in order.
    events: Vec<&'a Event>,
    /// The snapshots that are there.
    snapshots: &'a [SnapshotRecord],
}

impl<'a> PutBack<'a> {
    /// Of a timeline's events, in order, and the snapshots that are there.
    pub(crate) fn of(events: &'a [Event], snapshots: &'a [SnapshotRecord]) -> Self {
        let is_of_restore =
            |event: &&Event| matches!(event.body, EventBody::RestoreBegin(_) | EventBody::RestoreEnd(_));
        Self { events: events.iter().filter(is_of_restore).collect(), snapshots }
    }

    /// What shows the workspace at the place `seq`, where `taken` is the last snapshot before it.
    pub(crate) fn before(&self, seq: u64, taken: Option<&'a SnapshotRecord>) -> Before<'a> {
        let events = &self.events[..self.events.partition_point(|event| event.seq < seq)];
        let since = taken.map_or(0, |taken| taken.seq);
        let since = &events[events.partition_point(|event| event.seq < since)..];
        let all = || events.iter().copied();
        let done = |restore: &str| {
            let ends = all().rev().find_map(|event| match &event.body {
                EventBody::RestoreEnd(end) if end.restore == restore => Some(end.outcome == "done"),
                _ => None,
            });
            ends.unwrap_or(false)
        };
        let put_back = since.iter().rev().find_map(|event| {
            let EventBody::RestoreBegin(begin) = &event.body else { return None };
            let whole = begin.undoes.is_none() && begin.paths.is_empty() && done(&begin.restore);
            (whole && !is_undone(all(), &begin.restore)).then_some(&begin.target)
        });
        match put_back {
            Some(id) => match self.snapshots.iter().find(|snapshot| snapshot.id == *id) {
                Some(target) => Before::Snapshot(target),
                None => Before::Removed(id),
            },
            None => taken.map_or(Before::Nothing, Before::Snapshot),
        }
    }
}
