//! Moments: labelled points on a session's timeline, and the snapshots that belong to them.
//!
//! - `record` is what one is, `pending` those that wait for their snapshot, `unlisted` those that are not on the timeline yet, `capture` the worker that takes it and `pace` how often,
//!   `trying` what is left of one that a provider takes along, `answers` what it does when nobody waits any more.
//! - `tools` is what tells an exact snapshot from an inexact one, `fence` what keeps most of them exact.
//!
//! Not here: how a person names one (`refs`), and what agents call for (`agent`).

mod answers;
mod capture;
mod fence;
mod pace;
pub(crate) mod pending;
mod record;
mod tools;
mod trying;
pub(crate) mod unlisted;

use std::cell::RefCell;
use std::path::PathBuf;

use ah_agents::Agent;
use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotId};

use crate::agent::Late;
use crate::background;
use crate::ids::{SessionName, snapshot_id};
use crate::lock::boot_id;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::snapshot::{Behind, SnapshotOptions, check_label};
use crate::timeline::{Event, EventBody, Log};
use crate::workspace::Workspace;

use pending::{Pending, Waiting};
use unlisted::Left;

pub(crate) use capture::told;
pub(crate) use pace::Rules;
pub(crate) use record::conversation;
pub(crate) use tools::{Running, ToolId, Tools};
pub(crate) use trying::{Attempt, Trying};

pub use record::{
    FilesChanged, Moment, MomentKind, MomentRecord, MomentTool, MomentUpdate, RecordingPosition, TranscriptPosition,
};

/// What a REF names, with files and conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The snapshot at or before it.
    pub snapshot: SnapshotRecord,
    /// The moment that is meant, or that the snapshot belongs to; none: no session was going on.
    pub moment: Option<Moment>,
    /// Whether the snapshot shows the workspace exactly as it was at the moment; else it is the nearest one before it.
    pub exact: bool,
    /// Whether the REF names that moment itself, not the snapshot.
    pub named: bool,
}

/// What is to be said of a new moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMoment {
    /// What it marks.
    pub kind: MomentKind,
    /// Its label.
    pub label: Option<String>,
    /// The prompt; its beginning is kept.
    pub prompt: Option<String>,
    /// The agent's id of the prompt.
    pub prompt_id: Option<String>,
    /// Whether it is a prompt that was typed while the agent was at work.
    pub meanwhile: bool,
    /// Where the agent is at work, if that is outside of the workspace, or another work tree in it.
    pub elsewhere: Option<PathBuf>,
    /// Prompts that were typed while the agent was at work, and that this comes next to: what they changed is known when it has its snapshot.
    pub follows: Vec<SnapshotId>,
    /// The tool that ran.
    pub tool: Option<MomentTool>,
    /// The sub-agent whose tool it was.
    pub sub_agent: Option<String>,
    /// How far the conversation has come, by what is written of it now.
    pub transcript: Option<TranscriptPosition>,
    /// How far it had come at the call before: a tool's result, which comes late, lies behind that.
    pub before: Option<TranscriptPosition>,
    /// Whose conversation that is, so that lines which come late are caught up with.
    pub agent: Option<Agent>,
    /// How far the recording has come; none: as far as it is at this moment, if there is one.
    pub recording: Option<RecordingPosition>,
    /// With which status its command failed: the end of its label, however long that is.
    pub exit: Option<i32>,
    /// The agent's own checkpoint that holds the conversation as it is.
    pub checkpoint: Option<String>,
}

impl NewMoment {
    /// A moment of which nothing more is known.
    #[must_use]
    pub fn new(kind: MomentKind) -> Self {
        Self {
            kind,
            label: None,
            prompt: None,
            prompt_id: None,
            meanwhile: false,
            elsewhere: None,
            follows: Vec::new(),
            checkpoint: None,
            exit: None,
            tool: None,
            sub_agent: None,
            transcript: None,
            before: None,
            agent: None,
            recording: None,
        }
    }
}

/// So many characters of a prompt are kept.
pub(crate) const PROMPT: usize = 200;
/// So many characters of what a tool was asked for.
const ABOUT: usize = 200;
/// So many bytes of a label that a program made are kept.
const LABEL: usize = 200;

impl Workspace {
    /// Puts a moment on a session's timeline, and has its snapshot taken behind the caller's back. The cost is that of one line. Where somebody holds the
    /// timeline for too long, the moment is left beside it, and comes there with the next line, before it.
    ///
    /// # Errors
    /// If it cannot be written; then there is no moment. If the worker cannot be told of it; then it has no snapshot.
    pub fn add_moment(&self, session: &SessionName, new: NewMoment) -> Result<MomentRecord> {
        let (record, pending) = self.make_moment(session, new)?;
        let settings = self.engine.settings();
        let patience = settings.patience_left().saturating_sub(fence::LEAVE);
        let event = EventBody::Moment(Box::new(record.clone()));
        let log = Log { patience, ..self.log() };
        match self.append_to(&log, session, Durability::Instant, |_| vec![event.clone()]) {
            Ok(mut events) => {
                if let Some(Event { seq, time, .. }) = events.pop() {
                    let waiting = Waiting { seq, moment: record.id.clone(), session: session.clone() };
                    pending::add(&self.folder(), &waiting, &pending.since(time))?;
                }
                background::capture(self);
            }
            Err(error) if error.kind == ErrorKind::Busy => {
                let time = settings.clock.now();
                let waits = Pending { unlisted: Some(settings.clock.running_for()), ..pending.since(time) };
                let left = Left { event, waits: Some(waits) };
                self.leave_unlisted(record.id.clone(), session, time, &left)?;
            }
            Err(error) => return Err(error),
        }
        Ok(record)
    }

    /// Puts moments on a session's timeline for which no snapshot is taken, all at once: the files are those of the moment before them.
    pub(crate) fn add_moments_without_snapshot(
        &self,
        session: &SessionName,
        new: Vec<NewMoment>,
    ) -> Result<Vec<SnapshotId>> {
        let records = new.into_iter().map(|new| Ok(self.make_moment(session, new)?.0));
        let records = records.collect::<Result<Vec<MomentRecord>>>()?;
        let ids: Vec<SnapshotId> = records.iter().map(|record| record.id.clone()).collect();
        let events: Vec<EventBody> = records.into_iter().map(|record| EventBody::Moment(Box::new(record))).collect();
        let settings = self.engine.settings();
        let log = Log { patience: settings.patience_left().saturating_sub(fence::LEAVE), ..self.log() };
        match self.append_to(&log, session, Durability::Instant, |_| events.clone()) {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::Busy => {
                let time = settings.clock.now();
                for (id, event) in ids.iter().zip(events) {
                    self.leave_unlisted(id.clone(), session, time, &Left { event, waits: None })?;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(ids)
    }

    /// Puts a moment that a person asks for on the timeline of the session that is written to, and takes its snapshot. A snapshot that
    /// fails is told beside: the moment stays, with the reason; or with its snapshot, if all that failed is to bring its line to disk.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad label; if the timeline cannot be written.
    pub fn mark(&self, label: Option<String>) -> Result<(Moment, Option<Error>)> {
        check_label(label.as_deref())?;
        let session = self.writing_session();
        let new = NewMoment { label: label.clone(), ..NewMoment::new(MomentKind::Manual) };
        let (record, pending) = self.make_moment(&session, new)?;
        let Event { seq, time, .. } =
            self.append(&session, EventBody::Moment(Box::new(record.clone())), Durability::Instant)?;
        let waiting = Waiting { seq, moment: record.id.clone(), session: session.clone() };
        let mut moment = Moment { seq, time, session: session.clone(), record };
        let tools = Tools::of(&self.folder(), &session);
        let waits = [(waiting, pending)];
        let said = RefCell::new(Vec::new());
        let look = || self.overtaken(&tools, &waits).inspect(|updates| said.borrow_mut().clone_from(updates));
        let options = SnapshotOptions { label, kind: SnapshotKind::Manual, ..SnapshotOptions::default() };
        let behind = Behind { session: &session, look: &look, own: true, attempt: None };
        let error = match self.snapshot_behind(&options, behind) {
            Ok((listed, synced)) => {
                for update in said.take() {
                    moment.record.update(&MomentUpdate { snapshot: Some(listed.shown().id), ..update });
                }
                synced.err()
            }
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                moment.record.reason = Some(told(&error));
                let update = MomentUpdate::new(moment.record.id.clone());
                let update = MomentUpdate { reason: moment.record.reason.clone(), ..update };
                self.append(&session, EventBody::MomentUpdate(Box::new(update)), Durability::Durable)?;
                Some(error)
            }
        };
        Ok((moment, error))
    }

    /// A moment of just now, and what the worker has to know of it.
    fn make_moment(&self, session: &SessionName, new: NewMoment) -> Result<(MomentRecord, Pending)> {
        let tools = Tools::of(&self.folder(), session);
        // Who asks for one while a tool runs is that tool, mostly, and means just now.
        let beside = tools.running()?.filter(|_| new.kind != MomentKind::Manual).map(|running| running.told());
        let begun = tools.begun();
        let put_back = self.put_back_so_far();
        let NewMoment {
            kind,
            label,
            prompt,
            prompt_id,
            meanwhile,
            elsewhere,
            follows,
            tool,
            sub_agent,
            transcript,
            before,
            checkpoint,
            exit,
            agent,
            recording,
        } = new;
        let prompt: Option<String> = prompt.map(|prompt| prompt.chars().take(PROMPT).collect());
        let about = |text: String| Some(one_line(&text, ABOUT)).filter(|text| !text.is_empty());
        let tool = tool.map(|tool| MomentTool { about: tool.about.and_then(about), ..tool });
        let recording = recording.or_else(|| self.recording_now(session));
        let record = MomentRecord {
            label: label.map(|label| labelled(&label, exit)).filter(|label| !label.is_empty()),
            prompt,
            prompt_id: prompt_id.filter(|id| id.len() <= LABEL),
            meanwhile,
            elsewhere,
            tool,
            sub_agent,
            transcript,
            checkpoint: checkpoint.filter(|id| id.len() <= LABEL),
            recording,
            ..MomentRecord::new(snapshot_id(&self.engine.settings().ids)?, kind)
        };
        // What a sub-agent's tool gave is not in this file, so that the place by now is the one.
        let agent = agent.filter(|_| record.sub_agent.is_none());
        let late = agent.zip(record.transcript.clone()).map(|(agent, at)| Late {
            moment: record.id.clone(),
            agent,
            kind,
            time: self.engine.settings().clock.now(),
            from: match kind {
                // Its line may be there already, by some agents even before the call before.
                MomentKind::Prompt => None,
                MomentKind::Tool | MomentKind::ToolFailed => before.filter(|before| before.file == at.file),
                // What was written by then is not newer.
                _ => Some(at.clone()),
            },
            at,
            tool: record.tool.as_ref().and_then(|tool| tool.id.clone()),
            prompt: record.prompt.clone(),
            prompt_id: record.prompt_id.clone(),
            looks: 0,
        });
        Ok((record, Pending { kind, begun, put_back, boot: boot_id(), beside, unlisted: None, late, follows }))
    }

    /// The snapshot that a REF names, with the moment that is meant or that the snapshot belongs to.
    ///
    /// # Errors
    /// As [`Workspace::resolve`].
    pub fn point(&self, reference: &str) -> Result<Point> {
        self.point_in(&self.state()?, reference)
    }

    /// The moments of a session, or of all, oldest first.
    ///
    /// # Errors
    /// `NotFound` for a session that is not there; if a timeline cannot be read at all.
    pub fn moments(&self, session: Option<&SessionName>) -> Result<Vec<Moment>> {
        let session = self.reading_session(session)?;
        let mut moments = self.state()?.moments;
        moments.retain(|moment| session.as_ref().is_none_or(|session| *session == moment.session));
        Ok(moments)
    }
}

/// A label that a program made.
fn labelled(text: &str, exit: Option<i32>) -> String {
    let end = exit.map_or_else(String::new, |status| format!(" (exit {status})"));
    one_line(text, LABEL - end.len()) + &end
}

/// The command in the label of a shell's moment, which may tell how it ended.
pub(crate) fn command_of(label: &str) -> &str {
    let ended = || {
        let (command, status) = label.strip_suffix(')')?.rsplit_once(" (exit ")?;
        status.parse::<i32>().is_ok().then_some(command)
    };
    ended().unwrap_or(label)
}

/// A text as a label: one line, not too long.
fn one_line(text: &str, max: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(max).collect();
    text.trim().to_owned()
}
