//! Which moments of a session its line has left behind: those between the moment that was gone back to and the going back.
//!
//! `@prompt` passes over them, so that going back twice goes back further. A rewind of files alone that was taken back (`undo`)
//! left nothing behind.

use std::collections::BTreeSet;

use ah_plugin_api::SnapshotId;

use crate::moments::Moment;
use crate::timeline::{Event, EventBody};

/// The moments that sessions went back behind.
pub(crate) fn left_behind(events: &[Event], moments: &[Moment]) -> BTreeSet<SnapshotId> {
    let mut behind = BTreeSet::new();
    for event in events {
        let EventBody::Rewind(rewind) = &event.body else { continue };
        if rewind.method.is_none() && rewind.restore.as_deref().is_some_and(|restore| is_undone(events, restore)) {
            continue;
        }
        let left =
            |moment: &&Moment| moment.session == event.session && moment.seq >= rewind.to && moment.seq < event.seq;
        behind.extend(moments.iter().filter(left).map(|moment| moment.record.id.clone()));
    }
    behind
}

/// Whether a restore does not count any more: it was taken back, and that was not.
fn is_undone(events: &[Event], restore: &str) -> bool {
    let undone = events.iter().find_map(|event| match &event.body {
        EventBody::RestoreBegin(begin) if begin.undoes.as_deref() == Some(restore) => Some(begin.restore.as_str()),
        _ => None,
    });
    undone.is_some_and(|undo| !is_undone(events, undo))
}
