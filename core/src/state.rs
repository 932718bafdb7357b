//! What the timelines of a workspace amount to.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::SnapshotId;

use crate::record::SnapshotRecord;
use crate::timeline::{Event, EventBody, TimelineFault, TimelineReport};

/// All sessions' events in order, folded.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Everything that happened, in order.
    pub(crate) events: Vec<Event>,
    /// The snapshots that are there, oldest first, with labels and pins as they are now.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// The snapshots that were removed, or were to be.
    pub(crate) removed: BTreeSet<SnapshotId>,
    /// Lines that cannot be read.
    pub(crate) faults: Vec<TimelineFault>,
}

impl State {
    /// Folds events, which are in order.
    pub(crate) fn of(report: TimelineReport) -> Self {
        let mut removed = BTreeSet::new();
        let mut edits: BTreeMap<&SnapshotId, (Option<&String>, Option<bool>)> = BTreeMap::new();
        for event in &report.events {
            match &event.body {
                EventBody::Remove { snapshots, .. } => removed.extend(snapshots.iter().cloned()),
                EventBody::Edit { snapshot, label, kept } => {
                    let edit = edits.entry(snapshot).or_default();
                    edit.0 = label.as_ref().or(edit.0);
                    edit.1 = kept.or(edit.1);
                }
                _ => {}
            }
        }
        let mut seen = BTreeSet::new();
        let mut snapshots = Vec::new();
        for event in &report.events {
            let (EventBody::Snapshot { snapshot } | EventBody::Recovered { snapshot }) = &event.body else { continue };
            // A snapshot is listed twice if gc recovered it while its maker was only slow; the first line counts.
            if removed.contains(&snapshot.id) || !seen.insert(&snapshot.id) {
                continue;
            }
            let mut snapshot = (**snapshot).clone();
            if let Some((label, kept)) = edits.get(&snapshot.id) {
                if let Some(label) = label {
                    snapshot.label = Some((*label).clone()).filter(|label| !label.is_empty());
                }
                snapshot.kept = kept.unwrap_or(snapshot.kept);
            }
            snapshots.push(snapshot);
        }
        drop(seen);
        Self { snapshots, removed, faults: report.faults, events: report.events }
    }

    /// The snapshot of that id, if it is there.
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Option<&SnapshotRecord> {
        self.snapshots.iter().find(|snapshot| snapshot.id == *id)
    }
}
