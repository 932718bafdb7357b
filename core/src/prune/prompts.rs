//! Which snapshots stand for a prompt: what a timeline says about who wanted what. Pure.
//!
//! For each prompt one snapshot stands, the one that `@prompt` and a rewind to it need: the one that its moment names, else the nearest
//! before it of its session, else the first after it. Where a session has no prompt yet (a recorded shell, say), the last of each hour
//! stands for it. The last of each session is told apart: what the last prompt came to is in no later prompt's.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::SnapshotId;

use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind};
use crate::record::SnapshotRecord;
use crate::timeline::{Event, EventBody};

const HOUR: i64 = 3_600;

/// What is known of snapshots beside their records.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    /// One for each prompt, or for each hour without one.
    pub(super) keepers: BTreeSet<SnapshotId>,
    /// The last of each session.
    pub(super) last_of_session: BTreeSet<SnapshotId>,
    /// Those that a person gave a label, or put a moment on.
    pub(super) marked: BTreeSet<SnapshotId>,
}

/// One prompt.
struct Prompt<'a> {
    seq: u64,
    snapshot: Option<&'a SnapshotId>,
}

impl Prompts {
    /// Those of a timeline's events and moments, and of the snapshots that are there, each in the order of their places.
    pub(super) fn of(events: &[Event], moments: &[Moment], snapshots: &[SnapshotRecord]) -> Self {
        let mut this = Self::default();
        let there: BTreeSet<&SnapshotId> = snapshots.iter().map(|snapshot| &snapshot.id).collect();
        let mut sessions: BTreeMap<&SessionName, Vec<&SnapshotRecord>> = BTreeMap::new();
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.counts()) {
            sessions.entry(&snapshot.session).or_default().push(snapshot);
        }
        for own in sessions.values() {
            this.last_of_session.extend(own.last().map(|snapshot| snapshot.id.clone()));
        }
        let mut prompts: BTreeMap<&SessionName, Vec<Prompt<'_>>> = BTreeMap::new();
        for Moment { seq, session, record, .. } in moments {
            let snapshot = record.snapshot.as_ref().filter(|id| there.contains(id));
            match record.kind {
                MomentKind::Prompt => {
                    // Of an inexact one REFs mean the one before.
                    let snapshot = record.exact().filter(|id| there.contains(id));
                    prompts.entry(session).or_default().push(Prompt { seq: *seq, snapshot });
                }
                MomentKind::Manual => this.marked.extend(snapshot.cloned()),
                _ => {}
            }
        }
        let mut labelled = BTreeSet::new();
        for event in events {
            if let EventBody::Edit { snapshot, label: Some(label), .. } = &event.body {
                if label.is_empty() {
                    labelled.remove(snapshot);
                } else {
                    labelled.insert(snapshot.clone());
                }
            }
        }
        this.marked.extend(labelled);
        for (session, own) in &sessions {
            let prompts = prompts.get(session).map_or(&[][..], Vec::as_slice);
            this.keepers.extend(stand_for(prompts, own));
            let first = prompts.first().map_or(u64::MAX, |prompt| prompt.seq);
            let mut hours = BTreeMap::new();
            for snapshot in own.iter().take_while(|snapshot| snapshot.seq <= first) {
                hours.insert(snapshot.time.secs.div_euclid(HOUR), &snapshot.id);
            }
            this.keepers.extend(hours.into_values().cloned());
        }
        // A prompt may name a snapshot of another session, where nothing had changed since.
        for prompt in prompts.values().flatten() {
            this.keepers.extend(prompt.snapshot.cloned());
        }
        this.keepers.extend(this.last_of_session.iter().cloned());
        this
    }
}

/// For each prompt that names none, the snapshot of its session that stands for it.
fn stand_for(prompts: &[Prompt<'_>], own: &[&SnapshotRecord]) -> Vec<SnapshotId> {
    let unnamed = prompts.iter().filter(|prompt| prompt.snapshot.is_none());
    let stands = unnamed.filter_map(|prompt| {
        let after = own.partition_point(|snapshot| snapshot.seq <= prompt.seq);
        let at = after.checked_sub(1).unwrap_or(after);
        own.get(at).map(|snapshot| snapshot.id.clone())
    });
    stands.collect()
}
