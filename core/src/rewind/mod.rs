//! Going back in place: files, conversation or both, in the same directory and the same session.
//!
//! The conversation is made anew first (`conversation/`), as a copy that nobody knows of yet; then the files are restored, which
//! may be refused; then the session goes on with the copy, and its timeline says so. Killed before that, the files are as `undo` can
//! take them back, and `gc` takes the copy away. The conversation that there was stays where it is, under its own id.
//!
//! `line.rs`: what the session goes on from, and what it has left behind by that.

mod line;

use std::path::{Path, PathBuf};

use ah_agents::Home;
use ah_agents::launch::{self, Form};
use ah_plugin_api::{Durability, Error, ErrorKind, RelPath, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::conversation::{Bearer, ConversationReport, FromRecord, Rebuilt, Seat, Start};
use crate::ids::SessionName;
use crate::lock::Holder;
use crate::moments::{Moment, MomentKind};
use crate::open::absolute;
use crate::restore::{PartOfRewind, RestoreOptions, RestoreReport};
use crate::session::{self, AgentSession, ResumeMethod};
use crate::state::State;
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

pub(crate) use line::{With, is_undone, left_behind, prompts_before, up_from};

/// What is said about going back.
#[derive(Debug, Clone)]
pub struct RewindOptions {
    /// The REF to go back to.
    pub to: String,
    /// Whether files are restored.
    pub files: bool,
    /// Whether the conversation is cut.
    pub conversation: bool,
    /// Whether the agent is to be started at once: refused while the one that there was still runs, or where its conversation knows its files elsewhere than it
    /// will see them.
    pub run: bool,
    /// Whether it is started there, too.
    pub elsewhere: bool,
    /// Where agents keep their things.
    pub agents: Home,
}

/// What going back did.
#[derive(Debug, Clone, Serialize)]
pub struct RewindReport {
    /// The session.
    pub session: SessionName,
    /// The moment it is at now.
    pub from: FromRecord,
    /// What became of the files; none: they stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreReport>,
    /// The conversation as it goes on; none: it stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationReport>,
    /// What a person should know of the choice.
    pub notes: Vec<String>,
}

/// Event: a session went back to one of its moments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    /// The moment.
    pub moment: SnapshotId,
    /// Its place in the order.
    pub to: u64,
    /// The snapshot that the files are those of; none: they stayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// The restore that brought them back; none if nothing differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
    /// How the conversation was taken up; none: it stayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<ResumeMethod>,
    /// The agent's id of it from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session: Option<String>,
    /// The agent's file of that, where it was made: who goes on with another conversation is known by its file.
    #[serde(with = "text::abs_option", default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<PathBuf>,
    /// The agent's session until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<AgentSession>,
}

/// A prompt that can be gone back behind.
#[derive(Debug, Clone, Serialize)]
pub struct PromptRecord {
    /// Its moment: a REF.
    pub moment: SnapshotId,
    /// The session.
    pub session: SessionName,
    /// When.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// Its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Workspace {
    /// Goes back to a moment.
    ///
    /// # Errors
    /// As [`Workspace::restore`] and [`Workspace::session_branch`]; `FailedPrecondition` where the agent is to be started and still runs. Whatever the error, the conversation is
    /// what it was (where it was to begin anew, its prompts may count as left until it is gone on with); where files were restored by then, the error says so, and what takes
    /// them back.
    pub fn rewind(&self, options: &RewindOptions) -> Result<RewindReport> {
        self.finish_conversations_first();
        self.fence_all()?;
        self.look_for_meanwhile();
        let with = if options.conversation { With::Conversation } else { With::Files };
        let state = self.state()?.gone_back_with(with);
        let only = match (options.files, options.conversation) {
            (true, false) => " --files",
            (false, true) => " --conversation",
            _ => "",
        };
        let again = |reference: &str| format!("ah agent rewind {reference}{only}");
        let start = self.start_from(&state, &options.to, with, again)?;
        if options.files {
            self.usable(&start.snapshot).map_err(|error| self.offer(&state, &start.snapshot, &error, again))?;
        }
        // Before the session goes on, which then has not ended.
        let running = self.still_running(&state, &start).filter(|_| options.conversation);
        if let Some(agent) = running.as_ref().filter(|_| options.run) {
            let message = format!("the agent still runs (process {}): two would work in the same files", agent.pid);
            let hint = format!("end process {} first, or leave `--run` away", agent.pid);
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        }
        let rebuilt = match options.conversation {
            true => {
                let run = if options.run { " --run" } else { "" };
                let elsewhere = self.is_seated_here(&start, &format!("{}{run}", again(&options.to)))?;
                if options.run && !options.elsewhere {
                    self.refuse_elsewhere(&state, &start, elsewhere.as_deref())?;
                }
                Some(self.cut_in_place(&state, &start, options, elsewhere.as_deref(), again)?)
            }
            false => None,
        };
        let take_back = || rebuilt.iter().for_each(|rebuilt| rebuilt.take_back(self));
        if let Some(rebuilt) = rebuilt.as_ref().filter(|_| options.files) {
            self.refuse_to_restore_over(rebuilt, &start).inspect_err(|_| take_back())?;
        }
        let restore = match options.files {
            true => {
                let rewind = PartOfRewind { moment: start.moment.record.id.clone(), files_only: rebuilt.is_none() };
                let (snapshot, options) = (start.snapshot.id.as_str(), RestoreOptions::default());
                let restored = self.restore_behind_fence(snapshot, &options, Some(rewind));
                Some(restored.inspect_err(|_| take_back())?)
            }
            false => None,
        };
        let restored = restore.as_ref().filter(|report| report.undoable);
        let event = Rewind {
            moment: start.moment.record.id.clone(),
            to: start.moment.seq,
            snapshot: options.files.then(|| start.snapshot.id.clone()),
            restore: restored.and_then(|report| report.restore.clone()),
            method: rebuilt.as_ref().map(|rebuilt| rebuilt.report.method),
            agent_session: rebuilt.as_ref().and_then(|rebuilt| rebuilt.report.agent_session.clone()),
            transcript: rebuilt.as_ref().and_then(|rebuilt| rebuilt.report.transcript.clone()),
            left: start.agent.clone().filter(|_| rebuilt.is_some()),
        };
        let session = start.moment.session.clone();
        let said = self.go_on(&session, rebuilt.as_ref(), &event);
        said.inspect_err(|_| take_back()).map_err(|error| match restored {
            Some(_) => error
                .context("the files were restored, but the session could not be written")
                .with_hint("ah agent fs undo"),
            None => error,
        })?;
        if let Some(rebuilt) = &rebuilt {
            // All is done; if that cannot be said, gc finds that it is.
            let _ = rebuilt.keep(self);
        }
        let mut notes = start.notes.clone();
        if let Some(agent) = running.filter(Holder::alive) {
            notes.push(format!(
                "the agent still runs (process {}), with the whole conversation: end it before another one is started",
                agent.pid
            ));
        }
        let others = if options.files { self.others_since(&state, &start.moment) } else { Vec::new() };
        if !others.is_empty() {
            notes.push(format!(
                "what others did since has gone back as well, and their agents do not know: {}",
                others.iter().map(SessionName::as_str).collect::<Vec<_>>().join(", ")
            ));
        }
        let elsewhere = if options.files { elsewhere_since(&state, &start.moment) } else { Vec::new() };
        if !elsewhere.is_empty() {
            notes.push(format!(
                "since then the agent was at work in {}, too: what is not among the workspace's captured files stays there as it is",
                elsewhere.join(", ")
            ));
        }
        let from = start.record();
        let conversation = rebuilt.map(|rebuilt| rebuilt.report);
        Ok(RewindReport { session, from, restore, conversation, notes })
    }

    /// An agent that goes on with one of the conversations that the session has had: the process that called last for it.
    fn still_running(&self, state: &State, start: &Start) -> Option<Holder> {
        let of_it = state.events.iter().rev().filter(|event| event.session == start.moment.session);
        let left = of_it.filter_map(|event| match &event.body {
            EventBody::Rewind(rewind) => rewind.left.as_ref(),
            _ => None,
        });
        let known = |agent: &AgentSession| self.engine.known(&agent.name, &agent.id).ok()??.process;
        // One that said that it ended may go on with others.
        let record = session::load(&self.folder(), &start.moment.session).ok().flatten();
        let ended = record.is_some_and(|record| record.ended.is_some());
        start.agent.iter().filter(|_| !ended).chain(left).filter_map(known).find(Holder::alive)
    }

    /// The other sessions whose agents have not ended, as far as is known, and have done something since the moment.
    fn others_since(&self, state: &State, moment: &Moment) -> Vec<SessionName> {
        let records = session::list(&self.folder()).unwrap_or_default().into_iter();
        let process = |agent: &AgentSession| self.engine.known(&agent.name, &agent.id).ok()??.process;
        let lives = |agent: &AgentSession| process(agent).is_none_or(|process| process.alive());
        let goes_on = records.filter(|record| record.ended.is_none() && record.agent.as_ref().is_some_and(lives));
        let does = |kind| kind != MomentKind::SessionStart && kind != MomentKind::SessionEnd;
        let later = |name: &SessionName| {
            state.moments.iter().any(|at| at.session == *name && at.seq > moment.seq && does(at.record.kind))
        };
        goes_on.map(|record| record.name).filter(|name| *name != moment.session && later(name)).collect()
    }

    /// `elsewhere`: where the conversation knows its files, if they are not there.
    fn cut_in_place(
        &self,
        state: &State,
        start: &Start,
        options: &RewindOptions,
        elsewhere: Option<&Path>,
        again: impl Fn(&str) -> String,
    ) -> Result<Rebuilt> {
        let (agent, source) = start.agent()?;
        launch::program(agent, &options.agents).map_err(|error| {
            let install = error.hint.clone().unwrap_or_default();
            error.with_hint(format!("{install}; or go back with the files alone: `--files`"))
        })?;
        // By its id: the REF may mean another one by then.
        let again = again(start.moment.record.id.as_str());
        // What is gone may come back with the files.
        let comes_back = |below: &Path| options.files && self.holds_dir(&start.snapshot, below).unwrap_or(false);
        let cwd =
            self.seat_below(&self.root, &source.start, |below| self.root.join(below).is_dir() || comes_back(below))?;
        self.rebuild(
            state,
            start,
            &Bearer {
                workspace: self,
                session: &start.moment.session,
                seat: Seat { home: &options.agents, cwd: &cwd, shown: None, elsewhere },
                instruction: None,
                form: Form::Interactive,
                again: Some(again),
            },
        )
    }

    /// Refuses where the agent keeps its conversations in the workspace, and the restore would take away the one that was just made, or change the one
    /// that there was.
    fn refuse_to_restore_over(&self, rebuilt: &Rebuilt, start: &Start) -> Result<()> {
        let files = rebuilt.files().chain(start.transcript.as_deref().map(absolute));
        let own: Vec<PathBuf> = files.filter(|file| file.starts_with(&self.root)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let look = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
        let would = self.restore_behind_fence(start.snapshot.id.as_str(), &look, None)?;
        let of_it = |path: &&RelPath| own.contains(&self.root.join(path.as_path()));
        let Some(own) = would.changes.iter().map(|change| &change.path).find(of_it) else { return Ok(()) };
        let folder = own.parent().unwrap_or(RelPath::root());
        let message = format!(
            "the agent keeps its conversations among the workspace's files, in {folder}: going back would take one away, or a part of it"
        );
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "have it ignored (`echo /{folder}/ >> .gitignore`), or leave the files as they are: `--conversation`"
        )))
    }

    /// Lets the session go on from there. If that fails its record is what it was.
    fn go_on(&self, session: &SessionName, rebuilt: Option<&Rebuilt>, event: &Rewind) -> Result<()> {
        let before = session::load(&self.folder(), session)?;
        let tell = || self.append(session, EventBody::Rewind(Box::new(event.clone())), Durability::Durable).map(drop);
        let write = || {
            let Some(rebuilt) = rebuilt else { return tell() };
            rebuilt.announce(self, event)?;
            // Without an id yet the session is free for the one that the agent gives itself. What it had is then on its line alone, which
            // therefore comes first.
            let agent = rebuilt.agent_session();
            let is_free = agent.is_none();
            if is_free {
                tell()?;
            }
            self.engine.make_known(&self.id, session, agent.as_ref());
            self.change_session(session, |record| {
                record.was_agents = true;
                record.agent = agent;
                record.known_at.clone_from(&rebuilt.report.known_at);
                record.ended = None;
            })?;
            if is_free { Ok(()) } else { tell() }
        };
        let written = write();
        if let (Err(_), Some(before)) = (&written, before) {
            // A write may fail after the file was replaced.
            let _ = self.change_session(session, |record| *record = before);
        }
        written
    }

    /// The agent's session that a session had before it went back to its beginning, from where the agent begins anew and has no id yet.
    ///
    /// # Errors
    /// If the timeline cannot be read.
    pub fn left_agent(&self, session: &SessionName) -> Result<Option<AgentSession>> {
        let state = self.state()?;
        let of_it = state.events.iter().rev().filter(|event| event.session == *session);
        let mut left = of_it.filter_map(|event| match &event.body {
            EventBody::Rewind(rewind) => rewind.left.clone(),
            _ => None,
        });
        Ok(left.next())
    }

    /// The prompts that can be gone back behind, with the conversation or with files alone, the newest first.
    ///
    /// # Errors
    /// If the timeline cannot be read.
    pub fn prompts(&self, conversation: bool, most: usize) -> Result<Vec<PromptRecord>> {
        self.look_for_meanwhile();
        let with = if conversation { With::Conversation } else { With::Files };
        let state = self.state()?.gone_back_with(with);
        let settings = self.engine.settings();
        let own = settings.session.as_ref().or(settings.agent_session.as_ref());
        let prompts = state.moments.iter().rev().filter(|moment| {
            moment.record.is_persons_prompt()
                && own.is_none_or(|own| *own == moment.session)
                && !state.rewound.contains(&moment.record.id)
        });
        let record = |moment: &crate::moments::Moment| PromptRecord {
            moment: moment.record.id.clone(),
            session: moment.session.clone(),
            time: moment.time,
            text: moment.record.prompt.clone(),
        };
        Ok(prompts.take(most).map(record).collect())
    }
}

/// Where else than in the workspace a session's agent was at work from a moment on.
fn elsewhere_since(state: &State, moment: &Moment) -> Vec<String> {
    let since = state.moments.iter().filter(|at| at.session == moment.session && at.seq >= moment.seq);
    let mut all: Vec<String> = Vec::new();
    for at in since.filter_map(|at| at.record.elsewhere.as_ref()) {
        let at = at.display().to_string();
        if !all.contains(&at) {
            all.push(at);
        }
    }
    all
}
