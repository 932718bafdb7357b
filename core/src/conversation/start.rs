//! What a REF means for a conversation: a moment, the snapshot that shows it, and the place in the transcript.

use std::path::{Path, PathBuf};

use ah_agents::Agent;
use ah_agents::hook::HookKind;
use ah_agents::transcript::{Caught, Position, Sought, catch_up, place_now};
use ah_plugin_api::{Error, ErrorKind, Result, SnapshotId};

use crate::conversation::FromRecord;
use crate::ids::SessionName;
use crate::moments::{Moment, MomentKind, TranscriptPosition};
use crate::record::SnapshotRecord;
use crate::rewind::{With, up_from};
use crate::session::{self, AgentSession};
use crate::state::State;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// Where to start from.
pub(crate) struct Start {
    /// The moment at which the conversation ends.
    pub(crate) moment: Moment,
    /// The snapshot of the files.
    pub(crate) snapshot: SnapshotRecord,
    /// Whose conversation it is; none: nobody's.
    pub(crate) agent: Option<AgentSession>,
    /// Where it knows its files from before it was seated where it started, or was taken up; none: only there.
    pub(crate) known_at: Option<PathBuf>,
    /// The transcript that the moment is in, where it is now; none: it was not written down where that is.
    pub(crate) transcript: Option<PathBuf>,
    /// What a person should know of the choice.
    pub(crate) notes: Vec<String>,
}

impl Workspace {
    /// Which prompt a REF names, as `@prompt` does, also one that was typed just now, while the agent is at work; none if it names anything else.
    #[must_use]
    pub fn prompt_meant(&self, reference: &str) -> Option<FromRecord> {
        self.look_for_meanwhile();
        let point = self.point_in(&self.state().ok()?, reference).ok()?;
        let moment = point.moment.filter(|moment| point.named && moment.record.kind == MomentKind::Prompt)?;
        Some(FromRecord::of(&moment, &point.snapshot.id))
    }

    /// What `reference` means to who goes back `with` that. `hint` is a command that takes another REF.
    pub(crate) fn start_from(
        &self,
        state: &State,
        reference: &str,
        with: With,
        hint: impl Fn(&str) -> String,
    ) -> Result<Start> {
        let point = self.point_in(state, reference)?;
        let Some(named) = point.moment else {
            let message = format!("{reference} is the snapshot {}, and no moment of an agent", point.snapshot.id);
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                "`ah agent fs branch {}` starts from the files alone; `ah timeline` shows the moments",
                point.snapshot.id
            )));
        };
        if let Some(lost) = state.lost_snapshot(&named) {
            let gone =
                Error::new(ErrorKind::NotFound, format!("the snapshot {lost} of {} was removed", named.record.id));
            return Err(self.offer(state, &point.snapshot, &gone, hint));
        }
        let mut notes = Vec::new();
        let (moment, snapshot) = if point.exact || named.record.snapshot.as_ref() == Some(&point.snapshot.id) {
            (named, point.snapshot)
        } else {
            // Files and conversation go together: what the agent says it has done must be there. Not what was gone back behind by then.
            let why = named.record.reason.clone().unwrap_or_else(|| "none was taken".to_owned());
            let shown = |moment: &Moment| Some((moment.clone(), state.snapshot(moment.record.exact()?)?.clone()));
            let line = up_from(&state.events, &state.moments, &named, with);
            let of_it = |moment: &Moment| moment.record.exact() == Some(&point.snapshot.id);
            let before = match line.iter().find(|moment| of_it(moment)) {
                Some(moment) => shown(moment),
                // It was left.
                None if state.moments.iter().any(|moment| moment.session == named.session && of_it(moment)) => {
                    line.into_iter().find_map(shown)
                }
                None => None,
            };
            let (also, id) = (before.is_some(), named.record.id.clone());
            let (moment, snapshot) = before.unwrap_or((named, point.snapshot));
            // By the name that it is called by where it is told what the session is from.
            let (what, of) = match also {
                true => ("files and conversation", moment.record.id.as_str()),
                false => ("files", snapshot.id.as_str()),
            };
            notes.push(format!(
                "{id} has no snapshot that shows exactly that moment ({why}); {what} are those of {of} before it"
            ));
            (moment, snapshot)
        };
        let record = session::load(&self.folder(), &moment.session)?;
        let (agent, known_at) = record.map_or((None, None), |record| (record.agent, record.known_at));
        let agent = agent.or_else(|| left(state, &moment.session));
        let name: Option<Agent> = agent.as_ref().and_then(|agent| agent.name.parse().ok());
        let transcript = transcript(state, &moment, agent.as_ref())
            .map(|file| name.map_or_else(|| file.clone(), |name| place_now(name, &file)));
        Ok(Start { moment, snapshot, agent, known_at, transcript, notes })
    }
}

impl FromRecord {
    fn of(moment: &Moment, snapshot: &SnapshotId) -> Self {
        Self {
            session: moment.session.clone(),
            moment: moment.record.id.clone(),
            time: moment.time,
            prompt: moment.record.prompt.clone(),
            snapshot: snapshot.clone(),
            inexact: moment.record.exact() != Some(snapshot),
        }
    }
}

impl Start {
    /// As it is told.
    pub(crate) fn record(&self) -> FromRecord {
        FromRecord::of(&self.moment, &self.snapshot.id)
    }

    /// The agent and its session, or why there is no conversation to take up.
    pub(crate) fn agent(&self) -> Result<(Agent, &AgentSession)> {
        let Some(session) = &self.agent else {
            let message = format!("no agent's conversation belongs to {}", self.moment.record.id);
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                "`ah agent fs branch {0}` and `ah agent fs restore {0}` take the files alone; `ah agent hooks install claude` keeps \
                 conversations from now on",
                self.snapshot.id
            )));
        };
        Ok((session.name.parse()?, session))
    }

    /// What is to be said where the conversation was over by the moment: a person's or a shell's, in a session whose agent had ended, or begun another
    /// conversation.
    pub(crate) fn behind_its_end(&self, state: &State) -> Option<String> {
        let moment = &self.moment;
        let before =
            state.events.iter().rev().filter(|event| event.session == moment.session && event.seq < moment.seq);
        let over = before.into_iter().find_map(|event| match &event.body {
            EventBody::Moment(of) if !matches!(of.kind, MomentKind::Manual | MomentKind::Shell) => {
                Some(of.kind == MomentKind::SessionEnd)
            }
            EventBody::Rewind(rewind) => rewind.method.map(|_| false),
            _ => None,
        });
        let own = moment.record.transcript.is_some();
        (!own && over == Some(true))
            .then(|| format!("the conversation of {} was over by then: it is as it ended", moment.session))
    }

    /// A place that was found by the times of lines, but none behind a prompt that was given later: clocks go back. Of one that was typed while the agent was at
    /// work it is told late, and not known whether it was given later: its line alone tells, and those beside it.
    fn before_later_prompts(&self, state: &State, end: Position) -> Position {
        let (session, seq) = (&self.moment.session, self.moment.seq);
        let later = state.moments.iter().filter(|other| other.session == *session && other.seq > seq);
        let given = later.filter(|other| other.record.kind == MomentKind::Prompt && !other.record.meanwhile);
        let places = given.filter_map(|other| other.record.transcript.as_ref()).filter(|place| place.is_in(&end.file));
        match places.min_by_key(|place| place.offset).filter(|place| place.offset < end.offset) {
            Some(place) => position(place, &end.file),
            None => end,
        }
    }

    /// The place at which the conversation ends. What the agent wrote late is looked for once more.
    pub(crate) fn position(&self, state: &State, agent: Agent, file: &Path) -> Result<Position> {
        let moment = &self.moment.record;
        let known = moment.transcript.as_ref().map(|known| position(known, file));
        // Read where it stands.
        if let Some(known) = known.clone().filter(|_| moment.meanwhile) {
            return Ok(known);
        }
        let earlier = state
            .moments
            .iter()
            .rev()
            .filter(|other| other.session == self.moment.session && other.seq < self.moment.seq);
        let earlier = earlier.filter_map(|other| other.record.transcript.as_ref()).find(|other| other.is_in(file));
        // What is known lies before what came late, but behind a tool's result where that was found already.
        let by_tool = matches!(moment.kind, MomentKind::Tool | MomentKind::ToolFailed);
        let since = known.clone().filter(|_| !by_tool).or_else(|| earlier.map(|earlier| position(earlier, file)));
        let since = since.unwrap_or_else(|| Position::start(file));
        let kind = match moment.kind {
            // What a sub-agent's tool gave is not in this file.
            _ if moment.sub_agent.is_some() => HookKind::Other("sub-agent".to_owned()),
            MomentKind::Prompt => HookKind::Prompt,
            MomentKind::Tool => HookKind::AfterTool { failed: false },
            MomentKind::ToolFailed => HookKind::AfterTool { failed: true },
            MomentKind::Stop => HookKind::Stop,
            MomentKind::SessionStart => HookKind::SessionStart,
            MomentKind::SessionEnd => HookKind::SessionEnd,
            kind => HookKind::Other(kind.as_str().to_owned()),
        };
        let sought = Sought {
            kind: &kind,
            tool_id: moment.tool.as_ref().and_then(|tool| tool.id.as_deref()),
            prompt_id: moment.prompt_id.as_deref(),
            prompt: moment.prompt.as_deref(),
            time: self.moment.time,
            written: known.as_ref().map_or(0, |known| known.offset),
        };
        match (catch_up(agent, &sought, &since)?, known) {
            (Caught::SoFar(_), Some(known)) if by_tool => Ok(known),
            (found, _) if by_tool || moment.kind == MomentKind::Prompt => Ok(found.into_position()),
            (found, _) => Ok(self.before_later_prompts(state, found.into_position())),
        }
    }
}

/// The transcript that a moment is in, where it was then. One without a place of its own is a person's or a shell's: what the session had then counts, not what it has
/// now. That may be a copy by which it went back since, and which does not hold what had been said by the moment.
fn transcript(state: &State, moment: &Moment, agent: Option<&AgentSession>) -> Option<PathBuf> {
    if let Some(own) = &moment.record.transcript {
        return Some(own.file.clone());
    }
    let changes = state.events.iter().filter(|event| event.session == moment.session).filter_map(|event| {
        let EventBody::Rewind(rewind) = &event.body else { return None };
        rewind.method.is_some().then_some((event.seq, rewind))
    });
    let since = changes.clone().map(|(seq, _)| seq).filter(|seq| *seq < moment.seq).max();
    let near = |other: &&Moment| {
        other.session == moment.session && other.seq < moment.seq && since.is_none_or(|since| other.seq > since)
    };
    let mut before = state.moments.iter().rev().filter(near).filter_map(|other| other.record.transcript.as_ref());
    if let Some(before) = before.next() {
        return Some(before.file.clone());
    }
    match changes.into_iter().find(|(seq, _)| *seq > moment.seq) {
        Some((_, next)) => next.left.as_ref()?.transcript.clone(),
        None => agent?.transcript.clone(),
    }
}

/// A place in a transcript that is `file` by now.
fn position(from: &TranscriptPosition, file: &Path) -> Position {
    Position { file: file.to_owned(), line: from.line, offset: from.offset, uuid: from.uuid.clone() }
}

/// The agent's session that a session last went back from; one that is to begin anew has none for a while.
fn left(state: &State, session: &SessionName) -> Option<AgentSession> {
    state.events.iter().rev().filter(|event| event.session == *session).find_map(|event| match &event.body {
        EventBody::Rewind(rewind) => rewind.left.clone(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::MomentRecord;
    use crate::timeline::{Event, TimelineReport};
    use ah_plugin_api::Timestamp;

    /// A real session: a prompt, and in line 10 another one, which was typed while a tool ran, and read behind its result, at 18.836. At 18.980 it wants another
    /// tool, which has its result at 19.219.
    const MEANWHILE: &str = include_str!("../../../agents/fixtures/claude/meanwhile.jsonl");

    #[test]
    fn a_moment_made_while_a_tool_works_at_what_was_typed_meanwhile_is_cut_behind_that() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), MEANWHILE).unwrap();
        let lines: Vec<&str> = MEANWHILE.split_inclusive('\n').collect();
        let place = |line: usize| TranscriptPosition {
            file: file.path().to_owned(),
            line: line as u64,
            offset: lines[..line].concat().len() as u64,
            uuid: None,
        };
        let second = Timestamp { secs: 1_796_109_738, nanos: 0 };
        let time_of = |millis: u32| Timestamp { nanos: millis * 1_000_000, ..second };
        let id = |name: &str| SnapshotId::new(name).unwrap();
        let typed = |meanwhile| {
            let mut typed = MomentRecord::new(id("mmmmmmmmmmmm"), MomentKind::Prompt);
            (typed.meanwhile, typed.transcript) = (meanwhile, Some(place(9)));
            typed
        };
        let mut tool = MomentRecord::new(id("kkkkkkkkkkkk"), MomentKind::Tool);
        tool.transcript = Some(place(6));
        let snapshot = serde_json::json!({
            "id": "zzzzzzzzzzzz", "session": "main", "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": "auto",
            "provider": "git", "reference": "r", "durability": "durable",
        });
        let cut_at = |millis, later: MomentRecord| {
            let asked = MomentRecord::new(id("llllllllllll"), MomentKind::Manual);
            let event = |(seq, record)| {
                let (time, body) = (time_of(millis), EventBody::Moment(Box::new(record)));
                Event { seq, time, session: SessionName::main(), body }
            };
            let events = [(1, tool.clone()), (2, asked), (3, later)].map(event).to_vec();
            let state = State::of(TimelineReport { events, ..TimelineReport::default() });
            let start = Start {
                moment: state.moments[1].clone(),
                snapshot: serde_json::from_value(snapshot.clone()).unwrap(),
                agent: None,
                known_at: None,
                transcript: Some(file.path().to_owned()),
                notes: Vec::new(),
            };
            start.position(&state, Agent::Claude, file.path()).unwrap().line
        };
        assert_eq!(cut_at(990, typed(true)), 11);
        assert_eq!(cut_at(900, typed(true)), 10);
        // What nobody had read by then is dated as it was typed, but stands behind what is newer. The queue's own lines belong to what comes.
        assert_eq!(cut_at(100, typed(true)), 6);
        // A clock that was set back.
        assert_eq!(cut_at(990, typed(false)), 9);
    }
}
