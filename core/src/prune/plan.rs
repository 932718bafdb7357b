//! What a policy keeps of what there is. Pure: nothing is looked up and nothing removed here.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{SnapshotId, Timestamp};

use crate::prune::policy::Policy;
use crate::record::{SnapshotKind, SnapshotRecord};

/// Why a snapshot stays, whatever the policy says.
pub(super) type Protected = BTreeMap<SnapshotId, &'static str>;

/// A snapshot that pins more than its workspace is kept by `keep-within` for one part in so many of its time.
const PINNING: i128 = 4;

/// Each snapshot with the reason for which it stays, or none; in the order given, which is the order of time.
pub(super) fn plan(
    policy: &Policy,
    snapshots: &[SnapshotRecord],
    protected: &Protected,
    now: Timestamp,
) -> Vec<Option<String>> {
    let mut reasons: Vec<Option<String>> = vec![None; snapshots.len()];
    let mut keep = |at: usize, reason: &str| {
        reasons[at].get_or_insert_with(|| reason.to_owned());
    };
    // What holds the space of more than the workspace is kept for a shorter time.
    let since = |pins: bool| policy.within.map(|within| nanos(now) - if pins { within / PINNING } else { within });
    let mut hours = Slots::new(policy.hourly, 3_600);
    let mut days = Slots::new(policy.daily, 86_400);
    let mut weeks = Slots::new(policy.weekly, 604_800);
    let mut back = 0u64;
    for (at, snapshot) in snapshots.iter().enumerate().rev() {
        if let Some(reason) = protected.get(&snapshot.id) {
            keep(at, reason);
        }
        if snapshot.kept {
            keep(at, "pinned");
        }
        if !policy.keeps_by_rule() {
            keep(at, "no rule says otherwise");
        }
        // A time in the future, after the clock was set back, is recent.
        if since(snapshot.pins.is_some()).is_some_and(|since| nanos(snapshot.time) >= since) {
            keep(at, "keep-within");
        }
        // What a restore or a branch took for itself must not take the place of what somebody took.
        if !snapshot.counts() {
            continue;
        }
        if policy.last.is_some_and(|last| back < last) {
            keep(at, "keep-last");
        }
        back += 1;
        for (slots, reason) in [(&mut hours, "keep-hourly"), (&mut days, "keep-daily"), (&mut weeks, "keep-weekly")] {
            if slots.take(snapshot.time) {
                keep(at, reason);
            }
        }
        if policy.labelled && snapshot.label.is_some() {
            keep(at, "keep-labelled");
        }
        if policy.manual && snapshot.kind == SnapshotKind::Manual {
            keep(at, "keep-manual");
        }
    }
    // No policy takes all there is: a clock that jumped ahead makes everything old.
    if let Some(newest) = snapshots.iter().rposition(SnapshotRecord::counts) {
        keep(newest, "the newest");
    }
    reasons
}

/// Whether `max-size` may take a snapshot: only what is pinned or needed stays then.
pub(super) fn may_give_way(snapshot: &SnapshotRecord, protected: &Protected) -> bool {
    !snapshot.kept && !protected.contains_key(&snapshot.id)
}

/// Stretches of time of which the latest snapshot stays.
struct Slots {
    left: u64,
    seconds: i64,
    seen: BTreeSet<i64>,
}

impl Slots {
    fn new(count: Option<u64>, seconds: i64) -> Self {
        Self { left: count.unwrap_or(0), seconds, seen: BTreeSet::new() }
    }

    fn take(&mut self, time: Timestamp) -> bool {
        if self.left == 0 || !self.seen.insert(time.secs.div_euclid(self.seconds)) {
            return false;
        }
        self.left -= 1;
        true
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}
