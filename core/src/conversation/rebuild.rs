//! The best way that an agent has to take a conversation up at a moment: its transcript, cut there; else the prompts so far.

use std::path::{Path, PathBuf};

use ah_agents::Agent;
use ah_agents::launch::{self, Form, Invocation, Resume};
use ah_agents::transcript::{Position, new_session_id, prompts, words};
use ah_plugin_api::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use crate::conversation::intent::{Intent, untrimmed};
use crate::conversation::place::{Seat, keep_untrimmed, put};
use crate::conversation::{ConversationReport, Start};
use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Holder;
use crate::moments::{self, Moment, MomentKind, PROMPT};
use crate::open::absolute;
use crate::rewind::{Rewind, prompts_before};
use crate::session::{self, AgentSession, Provenance, ResumeMethod};
use crate::state::State;
use crate::workspace::Workspace;

/// Who takes the conversation up, and how.
pub(crate) struct Bearer<'a> {
    /// The workspace that the session belongs to.
    pub(crate) workspace: &'a Workspace,
    /// The session.
    pub(crate) session: &'a SessionName,
    /// Where the agent will run.
    pub(crate) seat: Seat<'a>,
    /// What it is told first.
    pub(crate) instruction: Option<&'a str>,
    /// With a person at the terminal, or without.
    pub(crate) form: Form,
    /// The command that does it again, where the session was there before.
    pub(crate) again: Option<String>,
}

/// A conversation that is there, and that no session bears yet.
pub(crate) struct Rebuilt {
    pub(crate) report: ConversationReport,
    intent: Option<Intent>,
    details: Map<String, Value>,
}

impl Rebuilt {
    /// The session bears it: it is gc's no more.
    pub(crate) fn keep(&self, workspace: &Workspace) -> Result<()> {
        self.intent.as_ref().map_or(Ok(()), |intent| intent.forget(workspace))
    }

    /// Writes down what the timeline is to say, should this process not come to it.
    pub(crate) fn announce(&self, workspace: &Workspace, rewind: &Rewind) -> Result<()> {
        let Some(intent) = &self.intent else { return Ok(()) };
        Intent { rewind: Some(Box::new(rewind.clone())), ..intent.clone() }.save(workspace)
    }

    /// The conversation's files, where they lie.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.intent.iter().flat_map(|intent| &intent.files).map(|made| absolute(&made.path))
    }

    /// It is not wanted after all, and the session that was to bear it goes. What cannot be taken away now, `gc` takes away.
    pub(crate) fn discard(&self, workspace: &Workspace) {
        if let Some(intent) = &self.intent {
            let _ = intent.take_back(workspace);
        }
    }

    /// As [`Rebuilt::discard`], where the session stays: one that bears it and cannot be given another any more keeps it.
    pub(crate) fn take_back(&self, workspace: &Workspace) {
        if let Some(intent) = &self.intent {
            let borne = intent.is_borne(workspace).unwrap_or(true);
            let _ = if borne { intent.forget(workspace) } else { intent.take_back(workspace) };
        }
    }

    /// Whether the agent is told nothing of what was said.
    fn begins_anew(&self) -> bool {
        self.report.method == ResumeMethod::Replay && self.report.replayed == 0
    }

    /// The agent's session, as the session's record has it; none where only the agent can say its id.
    pub(crate) fn agent_session(&self) -> Option<AgentSession> {
        let ConversationReport { agent, agent_session, transcript, cwd, .. } = &self.report;
        let (name, transcript, start) = (agent.clone(), transcript.clone(), cwd.clone());
        agent_session.clone().map(|id| AgentSession { name, id, transcript, start })
    }

    /// Where it comes from, for the session's record.
    pub(crate) fn provenance(&self, start: &Start) -> Provenance {
        Provenance {
            from_session_id: start.moment.session.clone(),
            from_ts: start.moment.time,
            fs_snapshot_id: start.snapshot.id.clone(),
            method: self.report.method,
            agent_details: self.details.clone(),
        }
    }
}

/// What the transcript gives.
enum Found {
    /// It can be cut there.
    Cut(Position),
    /// Nothing had been said by then.
    Empty,
    /// It cannot be cut there, and why.
    Not(Error),
}

impl Workspace {
    /// Makes the conversation as it was at `start`. If this fails nothing of it is left.
    pub(crate) fn rebuild(&self, state: &State, start: &Start, bearer: &Bearer<'_>) -> Result<Rebuilt> {
        let mut made = self.take_up(state, start, bearer)?;
        made.report.known_at = bearer.seat.elsewhere.filter(|_| !made.begins_anew()).map(Path::to_owned);
        made.report.notes.extend(bearer.seat.remembered_since(start.agent()?.0, start.moment.time));
        Ok(made)
    }

    fn take_up(&self, state: &State, start: &Start, bearer: &Bearer<'_>) -> Result<Rebuilt> {
        let (agent, source) = start.agent()?;
        let mut details = Map::new();
        details.insert("agent".to_owned(), source.name.clone().into());
        details.insert("fromAgentSessionId".to_owned(), source.id.clone().into());
        details.insert("momentId".to_owned(), start.moment.record.id.as_str().into());
        if let Some(checkpoint) = &start.moment.record.checkpoint {
            details.insert("checkpointId".to_owned(), checkpoint.as_str().into());
            let command = launch::checkpoint(agent, checkpoint, bearer.instruction, bearer.form)?;
            let made = afresh(bearer, agent, command, (0, Vec::new()), details);
            return Ok(Rebuilt {
                report: ConversationReport { method: ResumeMethod::Checkpoint, ..made.report },
                ..made
            });
        }
        let file = start.transcript.as_deref();
        let is_prompt = start.moment.record.kind == MomentKind::Prompt;
        let why = match find(state, start, agent, file)? {
            Found::Empty => {
                let notes = vec![format!("nothing had been said by then: {} starts anew", agent.title())];
                let command = launch::fresh(agent, bearer.instruction, bearer.form)?;
                return Ok(afresh(bearer, agent, command, (0, notes), details));
            }
            Found::Cut(position) => match self.cut(agent, (&position, is_prompt), bearer, details.clone()) {
                Err(error) if may_be_replayed(&error) => error,
                made => {
                    return made.map(|mut made| {
                        made.report.notes.extend(start.behind_its_end(state));
                        made
                    });
                }
            },
            Found::Not(error) => error,
        };
        let said = said(state, start, agent, file);
        let mut notes = vec![format!("{}; what is known of the conversation are its prompts", why.message)];
        if said.is_empty() {
            notes.push("no prompt of it is known either".to_owned());
        }
        details.insert("prompts".to_owned(), said.len().into());
        let command = launch::replay(agent, &said, bearer.instruction, bearer.form)?;
        Ok(afresh(bearer, agent, command, (said.len() as u64, notes), details))
    }

    /// A copy of the transcript up to `position`, which may be a prompt's.
    fn cut(
        &self,
        agent: Agent,
        (position, is_prompt): (&Position, bool),
        bearer: &Bearer<'_>,
        mut details: Map<String, Value>,
    ) -> Result<Rebuilt> {
        let settings = self.engine.settings();
        let mut random = [0; 16];
        random[..8].copy_from_slice(&settings.ids.next().to_be_bytes());
        random[8..].copy_from_slice(&settings.ids.next().to_be_bytes());
        let id = new_session_id(agent, random, settings.clock.now());
        let resume = Resume { session_id: &id, instruction: bearer.instruction, form: bearer.form, fork: false };
        let Invocation { argv: command, env: _ } = launch::resume(agent, &resume)?;
        let mut intent = Intent {
            id: id.clone(),
            maker: Holder::me(),
            workspace: bearer.workspace.id.clone(),
            session: bearer.session.clone(),
            again: bearer.again.clone(),
            rewind: None,
            files: Vec::new(),
        };
        intent.save(self)?;
        let folder = session::folder(&bearer.workspace.folder(), bearer.session);
        let kept = untrimmed(&folder, &id);
        let made = fsio::make_dir(&folder)
            .and_then(|_| put(agent, (position, is_prompt), &bearer.seat, (self, &mut intent, &folder)));
        let trimmed = made.inspect_err(|_| drop(intent.take_back(self)))?;
        let mut notes = trimmed.notes;
        // The conversation goes on without it.
        let untrimmed = match keep_untrimmed(&position.file, &kept) {
            Ok(()) => Some(kept),
            Err(error) => {
                notes.push(format!("{}; the conversation is there without it", moments::told(&error)));
                None
            }
        };
        let told = |path: &Path| Value::from(path.to_string_lossy());
        details.extend([
            ("agentSessionId".to_owned(), id.clone().into()),
            ("fromTranscript".to_owned(), told(&position.file)),
            ("line".to_owned(), position.line.into()),
            ("offset".to_owned(), position.offset.into()),
            ("transcript".to_owned(), told(&trimmed.file)),
        ]);
        details.extend(untrimmed.as_deref().map(|kept| ("untrimmed".to_owned(), told(kept))));
        if let Some(uuid) = &position.uuid {
            details.insert("uuid".to_owned(), uuid.clone().into());
        }
        let report = ConversationReport {
            agent: agent.name().to_owned(),
            method: ResumeMethod::Resume,
            agent_session: Some(id),
            transcript: Some(trimmed.file),
            untrimmed,
            lines: trimmed.lines,
            dropped: trimmed.dropped,
            replayed: 0,
            cwd: bearer.seat.cwd.to_owned(),
            known_at: None,
            command,
            notes,
        };
        Ok(Rebuilt { report, intent: Some(intent), details })
    }
}

/// A fresh conversation.
fn afresh(
    bearer: &Bearer<'_>,
    agent: Agent,
    command: Invocation,
    (replayed, notes): (u64, Vec<String>),
    details: Map<String, Value>,
) -> Rebuilt {
    let report = ConversationReport {
        agent: agent.name().to_owned(),
        method: ResumeMethod::Replay,
        agent_session: None,
        transcript: None,
        untrimmed: None,
        lines: 0,
        dropped: 0,
        replayed,
        cwd: bearer.seat.cwd.to_owned(),
        known_at: None,
        command: command.argv,
        notes,
    };
    Rebuilt { report, intent: None, details }
}

/// Looks at the transcript. Only what concerns more than the transcript is an error.
fn find(state: &State, start: &Start, agent: Agent, file: Option<&Path>) -> Result<Found> {
    let not = |why: &str| Ok(Found::Not(Error::new(ErrorKind::NotFound, why)));
    let Some(file) = file else { return not("it was not written down where the transcript is") };
    let look = || -> Result<Found> {
        let position = start.position(state, agent, file)?;
        let before = prompts_before(&state.events, &state.moments, &start.moment);
        let first = prompts(agent, file, None)?.told(told_of(&before)).next().transpose()?;
        if first.is_some_and(|first| first.position.offset <= position.offset) {
            return Ok(Found::Cut(position));
        }
        match before.first() {
            None => Ok(Found::Empty),
            Some(_) => not("the transcript does not hold the prompts that there were"),
        }
    };
    match look() {
        Err(error) if may_be_replayed(&error) => Ok(Found::Not(error)),
        other => other,
    }
}

/// What hooks told of prompts: ids, and what was typed.
fn told_of(prompts: &[&Moment]) -> Vec<(String, String)> {
    prompts
        .iter()
        .filter_map(|prompt| Some((prompt.record.prompt_id.clone()?, prompt.record.prompt.clone()?)))
        .collect()
}

/// Whether an error is about the transcript alone.
fn may_be_replayed(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Unsupported | ErrorKind::DataLoss)
}

/// The prompts until then: those that the timeline knows, whole where the transcript has them, and what came before the first of them there. Places in
/// the transcript count only where the timeline knows of no prompt: it may have been rewritten since.
fn said(state: &State, start: &Start, agent: Agent, file: Option<&Path>) -> Vec<String> {
    let before = prompts_before(&state.events, &state.moments, &start.moment);
    let persons = before.iter().filter(|moment| moment.record.is_persons_prompt());
    let known: Vec<&String> = persons.filter_map(|moment| moment.record.prompt.as_ref()).collect();
    let read = |file: &Path| prompts(agent, file, None)?.told(told_of(&before)).collect::<Result<Vec<_>>>();
    let mut all = file.and_then(|file| read(file).ok()).unwrap_or_default();
    all.retain(|prompt| !prompt.by_agent);
    if known.is_empty() {
        let until = start.moment.record.transcript.as_ref().filter(|until| file.is_some_and(|file| until.is_in(file)));
        let until = until.map_or(0, |until| until.offset);
        return all.into_iter().filter(|prompt| prompt.position.offset <= until).map(|prompt| prompt.text).collect();
    }
    let mut whole: Vec<String> = all.into_iter().map(|prompt| prompt.text).collect();
    let (mut said, mut before) = (Vec::new(), None);
    for beginning in known {
        let place = whole.iter().position(|text| begins_so(text, beginning));
        let Some(place) = place else {
            said.push(beginning.clone());
            continue;
        };
        let passed: Vec<String> = whole.drain(..=place).collect();
        let (it, earlier) = passed.split_last().map_or((None, &[][..]), |(it, earlier)| (Some(it), earlier));
        before.get_or_insert_with(|| earlier.to_vec());
        said.extend(it.cloned());
    }
    before.unwrap_or_default().into_iter().chain(said).collect()
}

/// Whether a prompt is the one whose beginning the timeline has.
fn begins_so(text: &str, beginning: &str) -> bool {
    let (text, begins) = (words(text), words(beginning));
    text == begins || beginning.chars().count() >= PROMPT && text.starts_with(&begins)
}

impl Start {
    /// Whether nothing had been said by then, so that the agent will know nothing of any file.
    pub(crate) fn begins_anew(&self, state: &State) -> bool {
        let file = self.transcript.as_deref();
        let found = self.agent().and_then(|(agent, _)| find(state, self, agent, file));
        self.moment.record.checkpoint.is_none() && matches!(found, Ok(Found::Empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::{MomentRecord, TranscriptPosition};
    use crate::timeline::{Event, EventBody, TimelineReport};
    use ah_plugin_api::{SnapshotId, Timestamp};

    /// A real session: a prompt that has another one scheduled, and a minute later that one, in lines 13 to 16, with its answer behind it.
    const SCHEDULED: &str = include_str!("../../../agents/fixtures/claude/scheduled.jsonl");

    /// After `/clear` what is scheduled goes on in a conversation in which nobody has said anything.
    #[test]
    fn a_conversation_that_a_scheduled_prompt_began_is_cut_behind_it_and_says_nothing_in_a_persons_name() {
        let begun = SCHEDULED.split_inclusive('\n').skip(12).collect::<String>();
        let typed = SCHEDULED.lines().nth(4).unwrap().replace("54a099f1-5512-4f7f-87f8-ac6ccb5deb91", "mine");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{begun}{typed}\n")).unwrap();
        let place = |line, offset| TranscriptPosition { file: file.path().to_owned(), line, offset, uuid: None };
        let prompt = |name: &str, id: &str, text: &str, at: TranscriptPosition| {
            let mut record = MomentRecord::new(SnapshotId::new(name).unwrap(), MomentKind::Prompt);
            (record.prompt_id, record.prompt) = (Some(id.to_owned()), Some(text.to_owned()));
            record.transcript = Some(at);
            record
        };
        let mut scheduled =
            prompt("kkkkkkkkkkkk", "153648db-9bf6-4d52-9e72-5a0552375ded", "check the build", place(0, 0));
        scheduled.by_agent = true;
        let (lines, bytes) = (begun.lines().count() as u64, begun.len() as u64);
        let mine = prompt("llllllllllll", "mine", "One", place(lines, bytes));
        let event = |(seq, record)| {
            let (time, body) = (Timestamp { secs: 0, nanos: 0 }, EventBody::Moment(Box::new(record)));
            Event { seq, time, session: SessionName::main(), body }
        };
        let events = [(1, scheduled), (2, mine)].map(event).to_vec();
        let state = State::of(TimelineReport { events, ..TimelineReport::default() });
        let snapshot = serde_json::json!({
            "id": "zzzzzzzzzzzz", "session": "main", "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": "auto",
            "provider": "git", "reference": "r", "durability": "durable",
        });
        let start = Start {
            moment: state.moments[1].clone(),
            snapshot: serde_json::from_value(snapshot).unwrap(),
            agent: None,
            known_at: None,
            transcript: Some(file.path().to_owned()),
            notes: Vec::new(),
        };
        assert_eq!(said(&state, &start, Agent::Claude, Some(file.path())), [] as [String; 0]);
        match find(&state, &start, Agent::Claude, Some(file.path())).unwrap() {
            Found::Cut(at) => assert_eq!((at.line, at.offset), (lines, bytes)),
            Found::Empty => panic!("something had been said"),
            Found::Not(error) => panic!("{error}"),
        }
    }
}
