//! Which snapshots stand for a prompt: what a timeline says about who wanted what. Pure.
//!
//! For each prompt that a person typed the snapshot stands that `@prompt` and a rewind to it mean: the one that its moment names, else the nearest before it, or what
//! all files were put back to since (`refs::before`), else the first after it. The nearest of its session is meant in that session, and the
//! nearest of any by who is in none. Where a session has no prompt yet (a recorded shell, say), the last of each hour
//! stands for it. The last of each session is told apart: what the last prompt came to is in no later prompt's.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{SnapshotId, Timestamp};

use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind};
use crate::record::SnapshotRecord;
use crate::refs::{Before, PutBack};
use crate::timeline::{Event, EventBody};

const HOUR: i64 = 3_600;

/// What is known of snapshots beside their records.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    /// Those that stand for a prompt, or for an hour without one; with the place and the time of the last prompt that each stands for.
    pub(super) keepers: BTreeMap<SnapshotId, Option<(u64, Timestamp)>>,
    /// The last of each session.
    pub(super) last_of_session: BTreeSet<SnapshotId>,
    /// Those that a person gave a label, or put a moment on.
    pub(super) marked: BTreeSet<SnapshotId>,
}

impl Prompts {
    /// Those of a timeline's events and moments, and of the snapshots that are there, each in the order of their places.
    pub(super) fn of(events: &[Event], moments: &[Moment], snapshots: &[SnapshotRecord]) -> Self {
        let mut this = Self::default();
        let there: BTreeSet<&SnapshotId> = snapshots.iter().map(|snapshot| &snapshot.id).collect();
        let mut sessions: BTreeMap<&SessionName, Vec<&SnapshotRecord>> = BTreeMap::new();
        let counting: Vec<&SnapshotRecord> = snapshots.iter().filter(|snapshot| snapshot.counts()).collect();
        for &snapshot in &counting {
            sessions.entry(&snapshot.session).or_default().push(snapshot);
        }
        for own in sessions.values() {
            this.last_of_session.extend(own.last().map(|snapshot| snapshot.id.clone()));
        }
        let put_back = PutBack::of(events, snapshots);
        let mut first_prompts: BTreeMap<&SessionName, u64> = BTreeMap::new();
        for Moment { seq, time, session, record } in moments {
            match record.kind {
                MomentKind::Prompt if record.is_persons_prompt() => {
                    first_prompts.entry(session).or_insert(*seq);
                    let by = Some((*seq, *time));
                    // Of an inexact one REFs mean the one before. One that is named may be of another session, where nothing had changed since.
                    if let Some(named) = record.exact().filter(|id| there.contains(id)) {
                        this.keep(named, by);
                        continue;
                    }
                    let own = sessions.get(session).map_or(&[][..], Vec::as_slice);
                    let later = own.get(own.partition_point(|snapshot| snapshot.seq <= *seq));
                    for view in [own, &counting] {
                        let before = view.partition_point(|snapshot| snapshot.seq <= *seq).checked_sub(1);
                        let stands = match put_back.before(*seq, before.map(|at| view[at])) {
                            Before::Snapshot(snapshot) => Some(snapshot),
                            Before::Removed(_) | Before::Nothing => later.copied(),
                        };
                        stands.into_iter().for_each(|snapshot| this.keep(&snapshot.id, by));
                    }
                }
                MomentKind::Manual => {
                    this.marked.extend(record.snapshot.as_ref().filter(|id| there.contains(id)).cloned());
                }
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
            let first = first_prompts.get(session).copied().unwrap_or(u64::MAX);
            let mut hours = BTreeMap::new();
            for snapshot in own.iter().take_while(|snapshot| snapshot.seq <= first) {
                hours.insert(snapshot.time.secs.div_euclid(HOUR), &snapshot.id);
            }
            hours.into_values().chain(own.last().map(|last| &last.id)).for_each(|id| this.keep(id, None));
        }
        this
    }

    fn keep(&mut self, id: &SnapshotId, by: Option<(u64, Timestamp)>) {
        let known = self.keepers.entry(id.clone()).or_default();
        *known = (*known).max(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::MomentRecord;
    use crate::record::SnapshotKind;
    use crate::refs::Resolver;
    use crate::restore::{RestoreBegin, RestoreEnd};
    use crate::state::State;
    use crate::text::format_time;
    use crate::timeline::TimelineReport;
    use proptest::prelude::*;

    fn id(number: usize) -> SnapshotId {
        let letter = |at: usize| char::from(b'k' + u8::try_from((number >> (at * 4)) & 15).unwrap());
        SnapshotId::new((0..12).map(letter).collect::<String>()).unwrap()
    }

    fn session(number: u8) -> SessionName {
        SessionName::new(format!("s{number}")).unwrap()
    }

    /// A timeline to be.
    #[derive(Default)]
    struct Story(Vec<Event>);

    impl Story {
        fn tell(&mut self, of: u8, body: EventBody) {
            let seq = self.0.len();
            let time = Timestamp { secs: i64::try_from(seq).unwrap() * 60, nanos: 0 };
            self.0.push(Event { seq: seq as u64, time, session: session(of), body });
        }

        fn snapshot(&mut self, of: u8, kind: SnapshotKind) -> SnapshotId {
            let (number, id) = (self.0.len(), id(self.0.len()));
            let json = serde_json::json!({
                "id": id, "session": session(of), "seq": number, "time": "2026-01-01T00:00:00Z", "kind": kind,
                "provider": "git", "reference": "r", "durability": "durable",
            });
            self.tell(of, EventBody::Snapshot { snapshot: Box::new(serde_json::from_value(json).unwrap()) });
            id
        }

        fn prompt(&mut self, of: u8, by_agent: bool) {
            let mut record = MomentRecord::new(id(self.0.len()), MomentKind::Prompt);
            record.by_agent = by_agent;
            self.tell(of, EventBody::Moment(Box::new(record)));
        }

        /// All files, if `whole`, are put back; gives the safety snapshot.
        fn restore(&mut self, of: u8, target: SnapshotId, whole: bool) -> SnapshotId {
            let safety = self.snapshot(of, SnapshotKind::Safety);
            let restore = self.0.len().to_string();
            let paths = if whole { Vec::new() } else { vec![ah_plugin_api::RelPath::new("a").unwrap()] };
            let (name, safe) = (restore.clone(), safety.clone());
            let begin = RestoreBegin { restore: name, target, safety: safe, undoes: None, paths, changes: 1 };
            self.tell(of, EventBody::RestoreBegin(begin));
            self.tell(of, EventBody::RestoreEnd(RestoreEnd { restore, outcome: "done".to_owned(), left: 0 }));
            safety
        }

        fn state(&self) -> State {
            State::of(TimelineReport { events: self.0.clone(), ..TimelineReport::default() })
        }
    }

    fn keepers(state: &State) -> Prompts {
        Prompts::of(&state.events, &state.moments, &state.snapshots)
    }

    /// What each prompt means, to who is in no session, and in its own.
    fn meant(state: &State) -> Vec<Option<SnapshotId>> {
        let prompts = state.moments.iter().filter(|moment| moment.record.is_persons_prompt());
        let both = prompts.flat_map(|moment| [None, Some(&moment.session)].map(|own| (moment.record.id.as_str(), own)));
        let means = |(name, own)| {
            let (local, named) = (|_: &str| None, format_time);
            let now = Timestamp { secs: 1_000_000, nanos: 0 };
            let resolver = Resolver { state, only: None, own, began: None, now, local, named };
            resolver.resolve(name).ok().map(|snapshot| snapshot.id)
        };
        both.map(means).collect()
    }

    #[test]
    fn for_a_prompt_after_all_was_put_back_stands_what_it_was_put_back_to() {
        let mut story = Story::default();
        story.prompt(0, false);
        let first = story.snapshot(0, SnapshotKind::Auto);
        let good = story.snapshot(0, SnapshotKind::Auto);
        story.snapshot(0, SnapshotKind::Auto);
        story.restore(0, good.clone(), true);
        story.prompt(0, false);
        let own = story.snapshot(0, SnapshotKind::Auto);
        // Somebody else's is the nearest to who is in no session.
        let others = story.snapshot(1, SnapshotKind::Auto);
        story.prompt(0, false);
        let last = story.snapshot(1, SnapshotKind::Auto);
        let kept: BTreeSet<SnapshotId> = keepers(&story.state()).keepers.into_keys().collect();
        assert_eq!(kept, BTreeSet::from([first, good, own, others, last]));
    }

    /// Scheduled every few minutes they would keep a snapshot each.
    #[test]
    fn for_a_prompt_that_nobody_typed_no_snapshot_stands() {
        let mut story = Story::default();
        let first = story.snapshot(0, SnapshotKind::Auto);
        story.prompt(0, false);
        story.snapshot(0, SnapshotKind::Auto);
        story.prompt(0, true);
        let last = story.snapshot(0, SnapshotKind::Auto);
        let kept: BTreeSet<SnapshotId> = keepers(&story.state()).keepers.into_keys().collect();
        assert_eq!(kept, BTreeSet::from([first, last]));
    }

    proptest! {
        #[test]
        fn what_stands_for_prompts_is_what_they_mean(
            steps in proptest::collection::vec((0u8..6, 0u8..2, any::<proptest::sample::Index>()), 1..40),
        ) {
            let (mut story, mut taken) = (Story::default(), Vec::new());
            for (step, of, which) in steps {
                match step {
                    0 | 1 => taken.push(story.snapshot(of, SnapshotKind::Auto)),
                    2 => story.prompt(of, false),
                    5 => story.prompt(of, true),
                    _ if taken.is_empty() => {}
                    _ => {
                        let target: SnapshotId = which.get(&taken).clone();
                        taken.push(story.restore(of, target, step == 3));
                    }
                }
            }
            let state = story.state();
            let (before, keepers) = (meant(&state), keepers(&state).keepers);
            let gone = taken.into_iter().filter(|id| !keepers.contains_key(id)).collect();
            story.tell(0, EventBody::Remove { snapshots: gone, by: "retention".to_owned() });
            prop_assert_eq!(before, meant(&story.state()));
        }
    }
}
