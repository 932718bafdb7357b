//! What the timelines of a workspace amount to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ah_plugin_api::SnapshotId;

use crate::moments::Moment;
use crate::record::SnapshotRecord;
use crate::rewind::{With, left_behind};
use crate::timeline::{Event, EventBody, TimelineFault, TimelineReport};

/// All sessions' events in order, folded.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Everything that happened, in order.
    pub(crate) events: Vec<Event>,
    /// The snapshots that are there, oldest first, with labels and pins as they are now.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// The moments, oldest first, with what became of each.
    pub(crate) moments: Vec<Moment>,
    /// Those of them that their sessions went back behind.
    pub(crate) rewound: BTreeSet<SnapshotId>,
    /// The snapshots that were removed, or were to be.
    pub(crate) removed: BTreeSet<SnapshotId>,
    /// The first line that could not be read: of what is there, something may be labelled, pinned or needed that does not look so.
    pub(crate) gap: Option<TimelineFault>,
}

impl State {
    /// Folds events, which are in order.
    pub(crate) fn of(report: TimelineReport) -> Self {
        let removed = removed(&report.events);
        let mut edits: BTreeMap<&SnapshotId, (Option<&String>, Option<bool>)> = BTreeMap::new();
        for event in &report.events {
            if let EventBody::Edit { snapshot, label, kept } = &event.body {
                let edit = edits.entry(snapshot).or_default();
                edit.0 = label.as_ref().or(edit.0);
                edit.1 = kept.or(edit.1);
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
        let (moments, rewound) = moments_of(&report.events, &removed);
        Self { snapshots, moments, rewound, removed, gap: report.faults.into_iter().next(), events: report.events }
    }

    /// With `rewound` by what went back with this alone.
    pub(crate) fn gone_back_with(mut self, with: With) -> Self {
        self.rewound = left_behind(&self.events, &self.moments, with);
        self
    }

    /// The snapshot that a moment had, if that was removed.
    pub(crate) fn lost_snapshot(&self, moment: &Moment) -> Option<SnapshotId> {
        if moment.record.snapshot.is_some() {
            return None;
        }
        let said = self.events.iter().rev().find_map(|event| match &event.body {
            EventBody::MomentUpdate(update) if update.moment == moment.record.id => update.snapshot.clone(),
            EventBody::Moment(record) if record.id == moment.record.id => record.snapshot.clone(),
            _ => None,
        });
        said.filter(|snapshot| self.removed.contains(snapshot))
    }

    /// The snapshot of that id, if it is there.
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Option<&SnapshotRecord> {
        self.snapshots.iter().find(|snapshot| snapshot.id == *id)
    }
}

/// The moments of events, which are in order, and those of them that their sessions went back behind.
pub(crate) fn moments(events: &[Event]) -> (Vec<Moment>, BTreeSet<SnapshotId>) {
    moments_of(events, &removed(events))
}

fn removed(events: &[Event]) -> BTreeSet<SnapshotId> {
    let removed = events.iter().filter_map(|event| match &event.body {
        EventBody::Remove { snapshots, .. } => Some(snapshots),
        _ => None,
    });
    removed.flatten().cloned().collect()
}

fn moments_of(events: &[Event], removed: &BTreeSet<SnapshotId>) -> (Vec<Moment>, BTreeSet<SnapshotId>) {
    let mut moments: Vec<Moment> = Vec::new();
    let mut places: HashMap<&SnapshotId, usize> = HashMap::new();
    for event in events {
        match &event.body {
            EventBody::Moment(record) => {
                places.insert(&record.id, moments.len());
                let (session, record) = (event.session.clone(), (**record).clone());
                moments.push(Moment { seq: event.seq, time: event.time, session, record });
            }
            EventBody::MomentUpdate(update) => {
                if let Some(&at) = places.get(&update.moment) {
                    moments[at].record.update(update);
                }
            }
            _ => {}
        }
    }
    for Moment { record, .. } in &mut moments {
        if record.snapshot.as_ref().is_some_and(|snapshot| removed.contains(snapshot)) {
            record.snapshot = None;
            record.inexact = false;
            record.reason = Some("its snapshot was removed".to_owned());
        }
    }
    let left = left_behind(events, &moments, With::Any);
    (moments, left)
}
