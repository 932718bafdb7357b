//! What a policy keeps of what there is. Pure: nothing is looked up and nothing removed here.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{SnapshotId, Timestamp};

use crate::ids::SessionName;
use crate::prune::policy::Policy;
use crate::prune::prompts::Prompts;
use crate::prune::runs::ClockSet;
use crate::record::{SnapshotKind, SnapshotRecord};

/// Why a snapshot stays, whatever the policy says.
pub(super) type Protected = BTreeMap<SnapshotId, &'static str>;

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

/// Without `keep-pinning`, a snapshot that pins more than its workspace is kept by `keep-within` for one part in so many of its time.
const PINNING: i128 = 4;

/// So long the last snapshot of a session stays that nobody asked to remove.
const LAST_STAYS: i128 = 14 * DAY;

/// What a policy is applied to, and when.
pub(super) struct Given<'a> {
    /// The snapshots that are there, in the order of time.
    pub(super) snapshots: &'a [SnapshotRecord],
    pub(super) protected: &'a Protected,
    /// Which of them stand for a prompt, and which a person has marked.
    pub(super) prompts: &'a Prompts,
    /// Whether nobody has asked for it now: then what is a person's own stays, whatever the policy says.
    pub(super) unasked: bool,
    pub(super) now: Timestamp,
    /// How far the clock was set.
    pub(super) clock: ClockSet,
}

impl Given<'_> {
    /// Why a snapshot stays under any policy; none: the policy decides.
    pub(super) fn stays(&self, snapshot: &SnapshotRecord) -> Option<&'static str> {
        if let Some(reason) = self.wanted(snapshot) {
            return Some(reason);
        }
        // Not what holds the space of more than the workspace: nobody would find out why the disk runs full.
        let last = snapshot.pins.is_none() && self.prompts.last_of_session.contains(&snapshot.id);
        (self.unasked && last && self.age(snapshot) < LAST_STAYS).then_some("the last of its session")
    }

    /// Why a snapshot is needed or, unasked, a person's own.
    pub(super) fn wanted(&self, snapshot: &SnapshotRecord) -> Option<&'static str> {
        if let Some(reason) = self.protected.get(&snapshot.id) {
            return Some(*reason);
        }
        if snapshot.kept {
            return Some("pinned");
        }
        if !self.unasked {
            return None;
        }
        // What a newer version knows more about is not ours to remove.
        if matches!(snapshot.kind, SnapshotKind::Manual | SnapshotKind::Unknown) {
            return Some("taken by hand");
        }
        self.prompts.marked.contains(&snapshot.id).then_some("marked by hand")
    }

    /// Nanoseconds since it was taken; less than none if the clock was set back since: that is recent.
    fn age(&self, snapshot: &SnapshotRecord) -> i128 {
        self.clock.age(self.now, snapshot.seq, snapshot.time)
    }

    /// How long ago it was that somebody had reason to come back to it, in nanoseconds; none: it stands for no prompt. It may be older than the
    /// last prompt that it stands for.
    fn stands(&self, snapshot: &SnapshotRecord) -> Option<i128> {
        let age = self.age(snapshot);
        match self.prompts.keepers.get(&snapshot.id) {
            Some(Some((seq, time))) => Some(age.min(self.clock.age(self.now, *seq, *time))),
            Some(None) => Some(age),
            None => (snapshot.kind == SnapshotKind::Safety).then_some(age),
        }
    }

    /// The newest that counts: no policy takes all there is, as a clock that jumped ahead makes everything old.
    fn newest(&self) -> Option<usize> {
        self.snapshots.iter().rposition(SnapshotRecord::counts)
    }

    /// Those that `max-size` may take, the oldest first: only what is the newest, pinned, needed or, unasked, a person's own stays then.
    pub(super) fn may_give_way(&self) -> Vec<usize> {
        let newest = self.newest();
        let may = |at: &usize| Some(*at) != newest && self.stays(&self.snapshots[*at]).is_none();
        (0..self.snapshots.len()).filter(may).collect()
    }
}

/// Each snapshot with the reason for which it stays, or none; in the order given.
pub(super) fn plan(policy: &Policy, given: &Given<'_>) -> Vec<Option<String>> {
    let mut reasons: Vec<Option<String>> = vec![None; given.snapshots.len()];
    let mut keep = |at: usize, reason: &str| {
        reasons[at].get_or_insert_with(|| reason.to_owned());
    };
    // What holds the space of more than the workspace is kept for a shorter time.
    let quarter = policy.within.map(|within| within / PINNING);
    let within = |pins: bool| if pins { policy.pinning.or(quarter) } else { policy.within };
    let mut hours = Slots::new(policy.hourly, 3_600);
    let mut days = Slots::new(policy.daily, 86_400);
    let mut weeks = Slots::new(policy.weekly, 604_800);
    let (mut back, mut back_in) = (0u64, BTreeMap::<&SessionName, u64>::new());
    for (at, snapshot) in given.snapshots.iter().enumerate().rev() {
        if let Some(reason) = given.stays(snapshot) {
            keep(at, reason);
        }
        if !policy.keeps_by_rule() {
            keep(at, "no rule says otherwise");
        }
        let (age, pins) = (given.age(snapshot), snapshot.pins.is_some());
        if within(pins).is_some_and(|within| age <= within) {
            keep(at, if pins && policy.pinning.is_some() { "keep-pinning" } else { "keep-within" });
        }
        // What a restore saved is as good as a prompt: whoever comes back after a week-end may want it.
        let stands = given.stands(snapshot).filter(|_| !pins);
        if stands.zip(policy.prompts).is_some_and(|(since, prompts)| since <= prompts) {
            keep(at, "keep-prompts");
        }
        // What a person marked is theirs, whoever took it; the label that a branch gives its own base is no mark.
        let marked = given.prompts.marked.contains(&snapshot.id);
        if policy.labelled && (marked || snapshot.counts() && snapshot.label.is_some()) {
            keep(at, "keep-labelled");
        }
        if policy.manual && (marked || snapshot.kind == SnapshotKind::Manual) {
            keep(at, "keep-manual");
        }
        // What a restore or a branch took for itself must not take the place of what somebody took.
        if !snapshot.counts() {
            continue;
        }
        if policy.last.is_some_and(|last| back < last) {
            keep(at, "keep-last");
        }
        back += 1;
        let back_in = back_in.entry(&snapshot.session).or_default();
        if policy.last_of_session.is_some_and(|last| *back_in < last) {
            keep(at, "keep-last of its session");
        }
        *back_in += 1;
        for (slots, reason) in [(&mut hours, "keep-hourly"), (&mut days, "keep-daily"), (&mut weeks, "keep-weekly")] {
            if slots.take(snapshot.time) {
                keep(at, reason);
            }
        }
    }
    if let Some(newest) = given.newest() {
        keep(newest, "the newest");
    }
    reasons
}

/// What a policy does not keep, in the order given.
pub(super) fn going<'a>(policy: &Policy, given: &Given<'a>) -> Vec<&'a SnapshotRecord> {
    let reasons = plan(policy, given);
    given.snapshots.iter().zip(reasons).filter(|(_, reason)| reason.is_none()).map(|(going, _)| going).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::{Moment, MomentKind, MomentRecord};
    use crate::timeline::{Event, EventBody};
    use proptest::prelude::*;

    const NOW: i64 = 2_000_000_000;
    const HOURS: i64 = 3_600;

    fn id(number: usize) -> SnapshotId {
        let letters: String =
            (0..12).map(|at| char::from(b'k' + u8::try_from((number >> (at * 4)) & 15).unwrap())).collect();
        SnapshotId::new(letters).unwrap()
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    fn taken(number: usize, secs: i64, kind: SnapshotKind) -> SnapshotRecord {
        let json = serde_json::json!({
            "id": id(number), "session": "s", "seq": number, "time": "2026-01-01T00:00:00Z", "kind": kind,
            "provider": "git", "reference": "r", "durability": "durable",
        });
        SnapshotRecord { time: at(secs), ..serde_json::from_value(json).unwrap() }
    }

    fn prompt(seq: usize, session: &str, snapshot: Option<usize>) -> Moment {
        let record =
            MomentRecord { snapshot: snapshot.map(id), ..MomentRecord::new(id(seq + 1_000_000), MomentKind::Prompt) };
        Moment { seq: seq as u64, time: at(0), session: SessionName::new(session).unwrap(), record }
    }

    /// A person gives a snapshot a label.
    fn labelled(number: usize) -> Event {
        let body = EventBody::Edit { snapshot: id(number), label: Some("mine".to_owned()), kept: None };
        Event { seq: 1_000, time: at(0), session: SessionName::main(), body }
    }

    /// The numbers of those that stay.
    fn kept(policy: &str, snapshots: &[SnapshotRecord], moments: &[Moment]) -> Vec<u64> {
        kept_of(policy, snapshots, &Prompts::of(&[], moments, snapshots), true)
    }

    fn kept_of(policy: &str, snapshots: &[SnapshotRecord], prompts: &Prompts, unasked: bool) -> Vec<u64> {
        let protected = Protected::new();
        let given =
            Given { snapshots, protected: &protected, prompts, unasked, now: at(NOW), clock: ClockSet::default() };
        let reasons = plan(&Policy::parse(policy).unwrap(), &given);
        snapshots.iter().zip(reasons).filter(|(_, reason)| reason.is_some()).map(|(it, _)| it.seq).collect()
    }

    use crate::prune::DEFAULT;

    #[test]
    fn all_for_a_day_then_one_a_prompt_for_a_fortnight() {
        let (old, older) = (NOW - 30 * HOURS, NOW - 15 * 24 * HOURS);
        let auto = |number, secs| taken(number, secs, SnapshotKind::Auto);
        let snapshots = vec![
            // A prompt, with what its tools did, beyond a fortnight.
            auto(11, older),
            auto(12, older + 60),
            auto(13, older + 120),
            // Two prompts beyond a day. The second names the last of the first, as nothing had changed.
            auto(21, old),
            auto(22, old + 60),
            auto(23, old + 120),
            auto(31, old + 180),
            auto(32, old + 240),
            // Of today.
            auto(41, NOW - 60),
            auto(42, NOW - 50),
        ];
        let events = [
            prompt(10, "s", Some(11)),
            prompt(20, "s", Some(21)),
            prompt(30, "s", Some(23)),
            prompt(40, "s", Some(41)),
        ];
        assert_eq!(kept(DEFAULT, &snapshots, &events), [21, 23, 41, 42]);
        // A prompt that names none is stood for by the nearest before it.
        let events = [prompt(10, "s", None), prompt(20, "s", None), prompt(30, "s", None)];
        assert_eq!(kept(DEFAULT, &snapshots, &events), [23, 41, 42]);
    }

    #[test]
    fn what_stands_for_a_prompt_stays_as_long_as_that_one_is_young() {
        let of = |number, days: i64| taken(number, NOW - days * 24 * HOURS, SnapshotKind::Auto);
        let snapshots = [of(1, 41), of(2, 40), of(3, 39), of(4, 0)];
        let asked = |days: i64| Moment { time: at(NOW - days * 24 * HOURS), ..prompt(10, "s", Some(2)) };
        assert_eq!(kept(DEFAULT, &snapshots, &[asked(13)]), [2, 4]);
        assert_eq!(kept(DEFAULT, &snapshots, &[asked(15)]), [4]);
    }

    #[test]
    fn without_prompts_one_an_hour() {
        let hour = (NOW / HOURS - 40) * HOURS;
        let times = [hour, hour + 10, hour + 20, hour + HOURS, hour + HOURS + 1, NOW];
        let snapshots: Vec<_> =
            times.into_iter().enumerate().map(|(at, secs)| taken(at, secs, SnapshotKind::Auto)).collect();
        assert_eq!(kept(DEFAULT, &snapshots, &[]), [2, 4, 5]);
    }

    #[test]
    fn what_pins_more_than_the_workspace_stays_a_day() {
        let pins =
            |number, secs| SnapshotRecord { pins: Some("/".to_owned()), ..taken(number, secs, SnapshotKind::Auto) };
        let snapshots = [pins(1, NOW - 25 * HOURS), pins(2, NOW - 23 * HOURS), pins(3, NOW - 22 * HOURS)];
        let events = [prompt(0, "s", Some(1))];
        assert_eq!(kept(DEFAULT, &snapshots, &events), [2, 3]);
        // A quarter of a longer time, as ever.
        let snapshots = [pins(1, NOW - 43 * HOURS), pins(2, NOW - 41 * HOURS), pins(3, NOW)];
        assert_eq!(kept("keep-within=7d", &snapshots, &events), [2, 3]);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_nothing_old() {
        let snapshots: Vec<_> = (0..20)
            .map(|number| taken(number, NOW + 400 * 24 * HOURS + i64::try_from(number).unwrap(), SnapshotKind::Auto))
            .collect();
        assert_eq!(kept(DEFAULT, &snapshots, &[]).len(), 20);
    }

    #[test]
    fn so_many_of_each_session() {
        let of = |number, session: &str| SnapshotRecord {
            session: SessionName::new(session).unwrap(),
            ..taken(number, 0, SnapshotKind::Auto)
        };
        let snapshots = [of(1, "a"), of(2, "a"), of(3, "b"), of(4, "a"), of(5, "a")];
        assert_eq!(kept("keep-last=2/session", &snapshots, &[]), [3, 4, 5]);
        assert_eq!(kept("keep-last=2/session,keep-last=4", &snapshots, &[]), [2, 3, 4, 5]);
    }

    #[test]
    fn what_a_person_marked_stays_whoever_took_it() {
        let of = |number, kind| taken(number, NOW - 40 * 24 * HOURS, kind);
        // A branch names its base.
        let base = |number| SnapshotRecord { label: Some("branch b".to_owned()), ..of(number, SnapshotKind::Branch) };
        let snapshots = [
            of(1, SnapshotKind::Safety),
            of(2, SnapshotKind::Safety),
            base(3),
            base(4),
            of(5, SnapshotKind::Auto),
            of(6, SnapshotKind::Auto),
            of(7, SnapshotKind::Auto),
        ];
        let prompts = Prompts::of(&[1, 3, 5].map(labelled), &[], &snapshots);
        for policy in ["keep-labelled", "keep-manual", "keep-labelled,keep-manual"] {
            assert_eq!(kept_of(policy, &snapshots, &prompts, false), [1, 3, 5, 7], "{policy}");
        }
    }

    proptest! {
        /// Whatever the policy, the clock and the history: nobody loses what is theirs to something that runs by itself.
        #[test]
        fn what_nobody_asked_to_remove_stays(
            what in proptest::collection::vec((0i64..40 * 86_400, 0u8..4, 0u8..8, any::<bool>(), 0u8..3), 1..60),
            prompts in proptest::collection::vec((0usize..60, 0u8..3, proptest::option::of(0usize..60)), 0..12),
            rules in proptest::sample::subsequence(
                vec!["keep-last=3", "keep-last=2/session", "keep-within=2h", "keep-prompts=3d", "keep-hourly=2", "keep-daily=1", "keep-labelled", "keep-manual", "max-size=1B", "max-size=1B/session"],
                1..5,
            ),
            default in any::<bool>(),
            jump in -40i64 * 86_400..40 * 86_400,
        ) {
            let session = |number: u8| SessionName::new(format!("s{number}")).unwrap();
            let kinds = [SnapshotKind::Auto, SnapshotKind::Manual, SnapshotKind::Safety, SnapshotKind::Branch];
            let snapshots: Vec<SnapshotRecord> = what.iter().enumerate().map(|(at, (age, kind, rare, pins, of))| {
                let mut record = taken(at, NOW - age, kinds[usize::from(*kind)]);
                record.kept = *rare == 0;
                record.pins = pins.then(|| "/".to_owned());
                record.session = session(*of);
                record
            }).collect();
            let needed = |at: usize| what[at].2 == 1;
            let protected: Protected =
                (0..snapshots.len()).filter(|at| needed(*at)).map(|at| (id(at), "a branch or a view needs it")).collect();
            let moments: Vec<Moment> =
                prompts.iter().map(|(seq, of, named)| prompt(*seq, &format!("s{of}"), *named)).collect();
            let text = if default { DEFAULT.to_owned() } else { rules.join(",") };
            let now = at(NOW + jump);
            let marks = |at: &usize| what[*at].2 == 2;
            let edits: Vec<Event> = (0..snapshots.len()).filter(marks).map(labelled).collect();
            let known = Prompts::of(&edits, &moments, &snapshots);
            let given = Given { snapshots: &snapshots, protected: &protected, prompts: &known, unasked: true, now, clock: ClockSet::default() };
            let reasons = plan(&Policy::parse(&text).unwrap(), &given);
            let give_way = given.may_give_way();
            for (at, snapshot) in snapshots.iter().enumerate() {
                let last = !snapshots[at + 1..].iter().any(|later| later.counts() && later.session == snapshot.session);
                let theirs = snapshot.kind == SnapshotKind::Manual
                    || snapshot.kept
                    || needed(at)
                    || marks(&at)
                    || (snapshot.counts() && last && snapshot.pins.is_none() && now.secs - snapshot.time.secs < 14 * 86_400);
                if theirs {
                    prop_assert!(reasons[at].is_some() && !give_way.contains(&at), "{} goes: {:?}", at, snapshot);
                }
                // Nothing that looks as if it were taken today or later is old.
                if default && snapshot.time.secs > now.secs {
                    prop_assert!(reasons[at].is_some());
                }
            }
            // Who asks for it is spared what they marked by the rules that say so.
            let policy = Policy::parse(&text).unwrap();
            let by_hand = plan(&policy, &Given { unasked: false, ..given });
            for at in (0..snapshots.len()).filter(marks) {
                prop_assert!(by_hand[at].is_some() || !(policy.labelled || policy.manual), "{} goes", at);
            }
            if snapshots.iter().any(SnapshotRecord::counts) {
                prop_assert!(reasons.iter().any(Option::is_some), "everything goes");
            }
        }
    }
}
