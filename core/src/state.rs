//! What the timelines of a workspace amount to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ah_plugin_api::{Error, ErrorKind, Result, SnapshotId};

use crate::ids::SessionName;
use crate::moments::{Moment, MomentRecord};
use crate::record::SnapshotRecord;
use crate::rewind::{With, left_behind};
use crate::timeline::{Event, EventBody, FaultKind, TimelineFault, TimelineReport};

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
    /// The sessions of which nothing could be read: what they list is not among the snapshots.
    pub(crate) unread: Vec<TimelineFault>,
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
        for (at, event) in report.events.iter().enumerate() {
            let (snapshot, found_at) = match &event.body {
                EventBody::Snapshot { snapshot } => (snapshot, None),
                EventBody::Recovered { snapshot, after } => {
                    (snapshot, Some(place(&report.events[..=at], snapshot, *after)))
                }
                _ => continue,
            };
            // A snapshot is listed twice if gc recovered it while its maker was only slow; the first line counts.
            if removed.contains(&snapshot.id) || !seen.insert(&snapshot.id) {
                continue;
            }
            let mut snapshot = (**snapshot).clone();
            snapshot.seq = found_at.unwrap_or(snapshot.seq);
            if let Some((label, kept)) = edits.get(&snapshot.id) {
                if let Some(label) = label {
                    snapshot.label = Some((*label).clone()).filter(|label| !label.is_empty());
                }
                snapshot.kept = kept.unwrap_or(snapshot.kept);
            }
            // One that has the place of another event was taken before it.
            snapshots.push(((snapshot.seq, found_at.is_none(), found_at.map(|_| snapshot.time)), snapshot));
        }
        snapshots.sort_by_key(|(place, _)| *place);
        let snapshots = snapshots.into_iter().map(|(_, snapshot)| snapshot).collect();
        drop(seen);
        let (moments, rewound) = moments_of(&report.events, &removed);
        let unread = report.faults.iter().filter(|fault| fault.kind == FaultKind::File).cloned().collect();
        let gap = report.faults.into_iter().next();
        Self { snapshots, moments, rewound, removed, gap, unread, events: report.events }
    }

    /// The snapshots that are there, for who must not miss any.
    ///
    /// # Errors
    /// `DataLoss` if nothing of a session's timeline could be read.
    pub(crate) fn whole(&self) -> Result<&[SnapshotRecord]> {
        let Some(fault) = self.unread.first() else { return Ok(&self.snapshots) };
        let TimelineFault { session, reason, way_out, .. } = fault;
        let message = format!("nobody knows which snapshots the session {session} has: {reason}");
        Err(Error { hint: way_out.clone(), ..Error::new(ErrorKind::DataLoss, message) })
    }

    /// With `rewound` by what went back with this alone.
    pub(crate) fn gone_back_with(mut self, with: With) -> Self {
        self.rewound = left_behind(&self.events, &self.moments, with);
        self
    }

    /// The snapshot that a moment had, if that was removed.
    pub(crate) fn lost_snapshot(&self, moment: &Moment) -> Option<SnapshotId> {
        // The one that it has its files from.
        let moment = match moment.record.meanwhile {
            true => {
                let own = self.moments.iter().position(|other| other.record.id == moment.record.id)?;
                let before = self.moments[..own].iter().rev().filter(|other| other.session == moment.session);
                of_before(before, &moment.record)?
            }
            false => moment,
        };
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

/// The place of a snapshot that gc listed again, with the last of these events: before what came when it had been taken, or `@` would mean
/// an old state, and what is newer would go by rule. Who made it said which event was the last by then; where that was not yet said, times tell.
fn place(events: &[Event], snapshot: &SnapshotRecord, after: Option<u64>) -> u64 {
    let found = events.last().map_or(0, |event| event.seq);
    let by_time = || events.iter().rev().take_while(|event| event.time > snapshot.time).last().map(|event| event.seq);
    after.map(|after| after.saturating_add(1)).or_else(by_time).unwrap_or(found).min(found)
}

/// Of the moments of a session, backwards, the one that a prompt typed meanwhile has its files from. The agent may have written the prompt down when it had done more
/// already: what has its place in the transcript behind the prompt's came after it, though it was told first.
fn of_before<'a>(mut before: impl Iterator<Item = &'a Moment>, prompt: &MomentRecord) -> Option<&'a Moment> {
    let came_after = |moment: &Moment| {
        let places = moment.record.transcript.as_ref().zip(prompt.transcript.as_ref());
        places.is_some_and(|(one, prompt)| one.is_in(&prompt.file) && one.offset > prompt.offset)
    };
    before.find(|moment| has_own_files(&moment.record) && !came_after(moment))
}

/// Whether it is an agent's, and its files are not those of another moment.
fn has_own_files(moment: &MomentRecord) -> bool {
    moment.is_an_agents() && !moment.meanwhile
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
    let mut agents: HashMap<SessionName, Vec<usize>> = HashMap::new();
    for at in 0..moments.len() {
        let (before, rest) = moments.split_at_mut(at);
        let Moment { session, record, .. } = &mut rest[0];
        if record.meanwhile
            && let Some(own) = agents.get(session)
            && let Some(of) = of_before(own.iter().rev().map(|&at| &before[at]), record)
        {
            let MomentRecord { snapshot, inexact, reason, .. } = of.record.clone();
            (record.snapshot, record.inexact, record.reason) = (snapshot, inexact, reason);
        }
        if has_own_files(record) {
            agents.entry(session.clone()).or_default().push(at);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use ah_plugin_api::Timestamp;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    /// Each has its files from the one before.
    #[test]
    fn what_a_long_row_of_prompts_typed_meanwhile_has_lost_is_that_of_the_moment_before_them_all() {
        let event = |seq: u64, body: serde_json::Value| {
            let body = serde_json::from_value(body).unwrap();
            Event { seq, time: at(1), session: SessionName::main(), body }
        };
        let id = |number: u32| {
            let letters = (0..12).map(|place| char::from(b'k' + (number >> place & 1) as u8));
            letters.collect::<String>()
        };
        let tool = serde_json::json!({ "type": "moment", "id": id(0), "kind": "tool", "snapshot": "zzzzzzzzzzzz" });
        let mut events = vec![event(1, tool)];
        let mut number = 1;
        events.extend((2..4000).map(|seq| {
            number += 1;
            let prompt = serde_json::json!({ "type": "moment", "id": id(number), "kind": "prompt", "meanwhile": true });
            event(seq, prompt)
        }));
        let there = State::of(TimelineReport { events: events.clone(), ..TimelineReport::default() });
        let last = there.moments.last().unwrap();
        assert_eq!(
            (last.record.snapshot.as_ref().map(SnapshotId::as_str), there.lost_snapshot(last)),
            (Some("zzzzzzzzzzzz"), None)
        );
        let removed = serde_json::json!({ "type": "remove", "snapshots": ["zzzzzzzzzzzz"], "by": "rm" });
        events.push(event(4000, removed));
        let gone = State::of(TimelineReport { events, ..TimelineReport::default() });
        let lost = std::thread::Builder::new().stack_size(256 << 10);
        let lost = lost.spawn(move || gone.lost_snapshot(gone.moments.last().unwrap())).unwrap().join().unwrap();
        assert_eq!(lost.as_ref().map(SnapshotId::as_str), Some("zzzzzzzzzzzz"));
    }

    /// Claude Code writes its transcript a tenth of a second late, and a quick model has asked for the next tool by then.
    #[test]
    fn a_prompt_that_was_written_down_late_has_its_files_from_before_what_came_after_it() {
        let event = |seq: u64, id: &str, more: serde_json::Value| {
            let mut body = serde_json::json!({ "type": "moment", "id": id, "kind": "tool" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let body = serde_json::from_value(body).unwrap();
            Event { seq, time: at(1), session: SessionName::main(), body }
        };
        let place = |file: &str, offset: u64| serde_json::json!({ "file": file, "line": 1, "offset": offset });
        let tool = |file: &str, offset, snapshot: &str| serde_json::json!({ "transcript": place(file, offset), "snapshot": snapshot });
        let typed = serde_json::json!({ "kind": "prompt", "meanwhile": true, "transcript": place("/t", 10) });
        let of = |before: [serde_json::Value; 3]| {
            let mut events: Vec<Event> = before
                .into_iter()
                .zip(1..)
                .map(|(more, seq)| event(seq, ["kkkkkkkkkkkk", "llllllllllll", "mmmmmmmmmmmm"][seq as usize - 1], more))
                .collect();
            events.push(event(4, "nnnnnnnnnnnn", typed.clone()));
            let there = State::of(TimelineReport { events: events.clone(), ..TimelineReport::default() });
            let snapshot = there.moments[3].record.snapshot.clone().unwrap();
            let removed = serde_json::json!({ "type": "remove", "snapshots": [snapshot], "by": "rm" });
            events.push(Event { seq: 5, body: serde_json::from_value(removed).unwrap(), ..events[0].clone() });
            let gone = State::of(TimelineReport { events, ..TimelineReport::default() });
            assert_eq!(gone.lost_snapshot(&gone.moments[3]), Some(snapshot.clone()));
            snapshot.to_string()
        };
        assert_eq!(
            of([tool("/t", 10, "xxxxxxxxxxxx"), tool("/t", 20, "yyyyyyyyyyyy"), tool("/t", 30, "zzzzzzzzzzzz")]),
            "xxxxxxxxxxxx"
        );
        // So too where it was moved since.
        assert_eq!(
            of([
                tool("/t", 10, "xxxxxxxxxxxx"),
                tool("/moved/t", 20, "yyyyyyyyyyyy"),
                tool("/moved/t", 30, "zzzzzzzzzzzz")
            ]),
            "xxxxxxxxxxxx"
        );
        // Of another file the places say nothing.
        assert_eq!(
            of([tool("/t", 10, "xxxxxxxxxxxx"), tool("/t", 20, "yyyyyyyyyyyy"), tool("/u", 30, "zzzzzzzzzzzz")]),
            "zzzzzzzzzzzz"
        );
    }

    /// Both are told at the call of the third tool, behind the second.
    #[test]
    fn of_two_prompts_that_were_written_down_late_each_has_its_files_from_the_tool_before_it() {
        let event = |(seq, id, kind, offset, snapshot): (u64, &str, &str, u64, Option<&str>)| {
            let place = serde_json::json!({ "file": "/t", "line": 1, "offset": offset });
            let body = serde_json::json!({
                "type": "moment", "id": id, "kind": kind, "meanwhile": kind == "prompt", "transcript": place, "snapshot": snapshot,
            });
            Event { seq, time: at(1), session: SessionName::main(), body: serde_json::from_value(body).unwrap() }
        };
        let (one, two) = ("xxxxxxxxxxxx", "yyyyyyyyyyyy");
        let told = [
            (1, "kkkkkkkkkkkk", "tool", 10, Some(one)),
            (2, "llllllllllll", "tool", 30, Some(two)),
            (3, "mmmmmmmmmmmm", "prompt", 20, None),
            (4, "nnnnnnnnnnnn", "prompt", 40, None),
        ];
        let mut events: Vec<Event> = told.into_iter().map(event).collect();
        let there = State::of(TimelineReport { events: events.clone(), ..TimelineReport::default() });
        let snapshots = there.moments[2..].iter().map(|moment| moment.record.snapshot.as_ref().map(SnapshotId::as_str));
        assert_eq!(snapshots.collect::<Vec<_>>(), [Some(one), Some(two)]);
        let removed = serde_json::json!({ "type": "remove", "snapshots": [one, two], "by": "rm" });
        events.push(Event { seq: 5, body: serde_json::from_value(removed).unwrap(), ..events[0].clone() });
        let gone = State::of(TimelineReport { events, ..TimelineReport::default() });
        let lost = gone.moments[2..].iter().map(|moment| gone.lost_snapshot(moment).unwrap().to_string());
        assert_eq!(lost.collect::<Vec<_>>(), [one, two]);
    }

    #[test]
    fn a_snapshot_that_was_found_again_has_the_place_at_which_it_was_taken() {
        let line = |seq: u64, secs: i64, id: &str, taken: i64, after: Option<u64>, kind: &str| {
            let snapshot = serde_json::json!({
                "id": id, "kind": "manual", "provider": "git", "reference": "r", "durability": "durable",
                "seq": seq, "time": text::format_time(at(taken)),
            });
            let body = serde_json::json!({ "type": kind, "snapshot": snapshot, "after": after });
            let body = serde_json::from_value(body).unwrap();
            Event { seq, time: at(secs), session: SessionName::main(), body }
        };
        let (one, two, three, four) = ("kkkkkkkkkkkk", "llllllllllll", "mmmmmmmmmmmm", "nnnnnnnnnnnn");
        let snapshot = |seq, second, id| line(seq, second, id, second, None, "snapshot");
        let ids = |events: Vec<Event>| {
            let state = State::of(TimelineReport { events, ..TimelineReport::default() });
            state.snapshots.into_iter().map(|it| (it.id.to_string(), it.seq)).collect::<Vec<_>>()
        };
        let want = |all: &[(&str, u64)]| all.iter().map(|(id, seq)| ((*id).to_owned(), *seq)).collect::<Vec<_>>();
        // By what it says itself, whatever the clock did since.
        let found = line(5, 9, two, 40, Some(1), "recovered");
        let events = vec![snapshot(1, 10, one), snapshot(2, 5, three), snapshot(3, 6, four), found];
        assert_eq!(ids(events), want(&[(one, 1), (two, 2), (three, 2), (four, 3)]));
        // By time, as it was written formerly.
        let found = |after| line(5, 50, two, 20, after, "recovered");
        let before = || vec![snapshot(1, 10, one), snapshot(3, 30, three), snapshot(4, 40, four)];
        assert_eq!(ids([before(), vec![found(None)]].concat()), want(&[(one, 1), (two, 3), (three, 3), (four, 4)]));
        // Behind where it was found it cannot be.
        assert_eq!(ids([before(), vec![found(Some(u64::MAX))]].concat()).last(), want(&[(two, 5)]).first());
        // Two of one place, in the order of their times.
        let again = line(6, 50, "oooooooooooo", 15, Some(2), "recovered");
        let order = ids([before(), vec![found(Some(2)), again]].concat());
        assert_eq!(order[1..3], want(&[("oooooooooooo", 3), (two, 3)]));
    }
}
