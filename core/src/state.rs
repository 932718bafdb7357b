//! What the timelines of a workspace amount to.

use crate::record::SnapshotRecord;
use crate::timeline::{Event, TimelineFault};

/// All sessions' events in order, folded.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Everything that happened.
    pub(crate) events: Vec<Event>,
    /// The snapshots that are there, oldest first, with labels and pins as they are now.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// Lines that cannot be read.
    pub(crate) faults: Vec<TimelineFault>,
}
