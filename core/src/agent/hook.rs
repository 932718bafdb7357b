//! What is done when an agent calls.
//!
//! | event | what is done |
//! |---|---|
//! | session start | the session is made, or taken up again; a moment |
//! | prompt | waits for the fence; no tool of the turn before runs any more; a moment |
//! | before a tool | one that may write is noted, so that a kill of this call loses it not; waits for the fence; from then on it runs |
//! | after a tool | it runs no more, nor does another one that has its result in the transcript: it was refused; one whose command goes on runs as long as that does; a moment |
//! | answer | no tool of the turn runs any more; a moment |
//! | session end | a moment; the session has ended |
//!
//! An answer and an end of a conversation that was left when the session went back are moments only. What a person typed while the agent was at work, for which it calls nobody, has
//! its moments before the next one of a call (`meanwhile`).
//!
//! A call costs a few small files, and where tools run side by side a look at what was added to the transcript meanwhile, whatever the workspace and its history are like: nothing here looks at either. All snapshots are taken behind it (`moments/capture`). What fails is told on the timeline, or in `$AH_HOME/logs` where there is none; the agent never
//! hears of it.

use std::path::{Path, PathBuf};

use ah_agents::hook::{HookEvent, HookKind, ToolCall};
use ah_agents::transcript;
use ah_plugin_api::{Durability, Error, ErrorKind, Result};

use crate::agent::known::LastEvent;
use crate::agent::unkept::UnkeptCall;
use crate::agent::{process, seen};
use crate::engine::{Access, Engine};
use crate::ids::{SessionName, snapshot_id};
use crate::lock::Holder;
use crate::moments::unlisted::Left;
use crate::moments::{MomentKind, MomentTool, NewMoment, Running, ToolId, Tools, told};
use crate::session::{self, SessionEnd};
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// What is known of a call beside the event.
#[derive(Debug, Clone, Copy, Default)]
pub struct HookContext<'a> {
    /// The process that started the hook.
    pub caller: Option<u32>,
    /// The directory in which the session started, where the agent tells; else the event's counts, the first time.
    pub start: Option<&'a Path>,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// The session of ours that the agent's is.
    pub session: SessionName,
    /// Where its workspace is.
    pub workspace: PathBuf,
}

impl Engine {
    /// Does what an event asks for; none if it asks for nothing.
    ///
    /// # Errors
    /// If no session can be found or made, or nothing can be written; [`Engine::hook_failed`] tells of it.
    pub fn hook(&self, event: &HookEvent, context: &HookContext<'_>) -> Result<Option<Called>> {
        if matches!(event.kind, HookKind::Other(_)) {
            return Ok(None);
        }
        let process = context.caller.and_then(process::agent_above);
        let start = context.start.unwrap_or(&event.cwd);
        if event.kind == HookKind::SessionStart {
            // One that was moved is found where it is now, and its place written down; any other error comes up below.
            let _ = self.workspace(start, Access::Existing);
        }
        let transcript = event.transcript.as_deref();
        // After a compaction the same process goes on, wherever it is by then.
        let begins = event.kind == HookKind::SessionStart && event.reason.as_deref() != Some("compact");
        let own = process.as_ref().map(|process| process::of_session(event.agent, process));
        let (workspace, session) =
            self.session_of(event.agent.name(), &event.session_id, transcript, start, own.as_ref(), begins)?;
        let call = Call { workspace: &workspace, session: &session, event, start: context.start, process };
        call.answer()?;
        let time = self.settings().clock.now();
        let last = LastEvent { time, event: name_of(&event.kind).to_owned(), session: session.clone() };
        self.note_event(event.agent.name(), &last);
        Ok(Some(Called { session: session.clone(), workspace: workspace.root().to_owned() }))
    }

    /// Tells that a call could not be served: on the timeline of the agent's session, or, if that could not be made as others were at work, of the
    /// workspace; else in `logs/hooks.log`, with the directory in which that session started, where it is known. Never fails; where nothing can be written
    /// nothing is.
    pub fn hook_failed(&self, agent: &str, event: Option<&HookEvent>, start: Option<&Path>, error: &Error) {
        let time = self.settings().clock.now();
        let name = event.map_or_else(|| "an event".to_owned(), |event| name_of(&event.kind).to_owned());
        let start = start.or_else(|| event.map(|event| event.cwd.as_path()));
        let is_busy = |error: &Error| error.kind == ErrorKind::Busy;
        let on_timeline = || -> Option<()> {
            let (workspace, session) = match self.known(agent, &event?.session_id).ok()? {
                Some(known) => (self.workspace_by_id(&known.workspace).ok()??, known.session),
                None if is_busy(error) => (self.registered(start?)?, SessionName::main()),
                None => return None,
            };
            let event = EventBody::HookFailed { agent: agent.to_owned(), event: name.clone(), reason: told(error) };
            // Who has waited for another process in vain does not wait for it again.
            let append = || workspace.append(&session, event.clone(), Durability::Instant);
            let appended = (!is_busy(error)).then(|| self.home().with_hooks_reserve(append));
            match appended {
                Some(Ok(_)) => Some(()),
                Some(Err(error)) if !is_busy(&error) => None,
                _ => {
                    let id = snapshot_id(&self.settings().ids).ok()?;
                    workspace.leave_unlisted(id, &session, time, &Left { event, waits: None }).ok()
                }
            }
        };
        if on_timeline().is_none() {
            self.log_unkept(&UnkeptCall {
                time,
                agent: agent.to_owned(),
                event: name,
                reason: told(error),
                directory: start.map(|start| match is_busy(error) {
                    true => start.to_owned(),
                    false => self.root_of(start).unwrap_or_else(|_| start.to_owned()),
                }),
            });
        }
    }

    /// The registered workspace of a directory, wherever that is shown.
    pub(super) fn registered(&self, directory: &Path) -> Option<Workspace> {
        let (root, _, found) = self.find(directory).ok()?;
        Some(self.handle(found.record()?.clone(), root))
    }
}

/// An event's name for people.
fn name_of(kind: &HookKind) -> &str {
    match kind {
        HookKind::SessionStart => "session start",
        HookKind::SessionEnd => "session end",
        HookKind::Prompt => "prompt",
        HookKind::BeforeTool => "before a tool",
        HookKind::AfterTool { .. } => "after a tool",
        HookKind::Stop => "answer",
        HookKind::SubagentStop => "sub-agent's answer",
        HookKind::Other(name) => name,
    }
}

/// One call, its session known.
struct Call<'a> {
    workspace: &'a Workspace,
    session: &'a SessionName,
    event: &'a HookEvent,
    start: Option<&'a Path>,
    process: Option<Holder>,
}

impl Call<'_> {
    fn answer(&self) -> Result<()> {
        let event = self.event;
        let begins = self.begins();
        if let Some((call, running)) = &begins {
            // Before the wait, in which this may be killed.
            self.tools().ask(call, running.clone())?;
        }
        // Each of two calls for one event holds the agent up by itself.
        match &event.kind {
            // It may write over what another session's tool has just written.
            HookKind::BeforeTool if begins.is_some() => drop(self.workspace.fence_those_there()?),
            HookKind::Prompt | HookKind::BeforeTool => drop(self.workspace.fence(self.session)?),
            _ => {}
        }
        match event.id() {
            Some(id) => {
                // A model's server may number its calls anew in each answer.
                let turn = event.prompt_id.as_deref().unwrap_or_default();
                let event = format!("{} {turn} {id}", name_of(&event.kind));
                seen::once(self.workspace, self.session, &event, || self.act(begins.as_ref()))
            }
            None => self.act(begins.as_ref()),
        }
    }

    fn tools(&self) -> Tools {
        Tools::of(&self.workspace.folder(), self.session)
    }

    /// The tool that is about to begin, if it may write.
    fn begins(&self) -> Option<(ToolId<'_>, Running)> {
        let event = self.event;
        let tool = event.tool.as_ref().filter(|_| event.kind == HookKind::BeforeTool)?;
        let running = Running {
            name: tool.name.clone(),
            sub_agent: event.subagent.as_ref().map(|sub| sub.id.clone()),
            since: Holder::me().start,
            written: self.own_transcript().map(|file| std::fs::metadata(file).map_or(0, |file| file.len())),
            ..Running::default()
        };
        ah_agents::tools::may_write(event.agent, &tool.name).then(|| (call_of(tool), running))
    }

    fn act(&self, begins: Option<&(ToolId<'_>, Running)>) -> Result<()> {
        let event = self.event;
        let tools = self.tools();
        match &event.kind {
            HookKind::SessionStart => {
                // After a compaction the same process goes on.
                if event.reason.as_deref() != Some("compact") {
                    tools.forget()?;
                }
                self.taken_up()?;
                self.moment(MomentKind::SessionStart)
            }
            HookKind::Prompt => {
                self.by_results(&tools)?;
                // Agents do not tell of a tool that was interrupted.
                tools.turn_over(ah_agents::tools::end_with_turn(event.agent))?;
                if self.was_left() {
                    self.taken_up()?;
                }
                self.moment(MomentKind::Prompt)
            }
            HookKind::BeforeTool => begins.map_or(Ok(()), |(call, running)| tools.begin(call, running)),
            HookKind::AfterTool { failed } => {
                if let Some(tool) = &event.tool {
                    tools.end(&call_of(tool), &tool.name, self.left_running(&tools, tool))?;
                }
                self.by_results(&tools)?;
                if let Some(id) = &event.launched {
                    tools.goes_on(id)?;
                }
                self.moment(if *failed { MomentKind::ToolFailed } else { MomentKind::Tool })
            }
            // The tools that run are those of the conversation that goes on.
            HookKind::Stop if self.was_left() => self.moment(MomentKind::Stop),
            HookKind::SessionEnd if self.was_left() => self.moment(MomentKind::SessionEnd),
            HookKind::Stop => {
                if let Some(all) = &event.going_on {
                    tools.only_go_on(all)?;
                }
                self.by_results(&tools)?;
                tools.turn_over(ah_agents::tools::end_with_turn(event.agent))?;
                self.moment(MomentKind::Stop)
            }
            HookKind::SubagentStop => event.subagent.as_ref().map_or(Ok(()), |sub| tools.sub_agent_over(&sub.id)),
            HookKind::SessionEnd => {
                tools.forget()?;
                self.moment(MomentKind::SessionEnd)?;
                let reason = event.reason.clone().unwrap_or_else(|| "ended".to_owned());
                let time = self.workspace.engine().settings().clock.now();
                self.workspace.change_session(self.session, |record| record.ended = Some(SessionEnd { time, reason }))
            }
            HookKind::Other(_) => Ok(()),
        }
    }

    /// Whether the session went back since, and this conversation was left.
    fn was_left(&self) -> bool {
        // A record that is damaged keeps nothing from being told.
        let record = session::load(&self.workspace.folder(), self.session).ok().flatten();
        record.and_then(|record| record.agent).is_some_and(|agent| agent.id != self.event.session_id)
    }

    /// The session goes on, or begins, with this conversation: it may be one that was left when it went back.
    fn taken_up(&self) -> Result<()> {
        let (id, transcript) = (&self.event.session_id, &self.event.transcript);
        self.workspace.change_session(self.session, |record| {
            record.ended = None;
            if let Some(agent) = &mut record.agent
                && (agent.id != *id || transcript.is_some())
            {
                agent.id.clone_from(id);
                agent.transcript.clone_from(transcript);
            }
        })
    }

    /// The transcript of the session's conversation: where the event of a sub-agent does not name it, what the session has.
    fn transcript(&self) -> Option<PathBuf> {
        let event = self.event;
        let noted = || session::load(&self.workspace.folder(), self.session).ok()??.agent;
        let known = || noted().filter(|agent| agent.id == event.session_id)?.transcript;
        event.transcript.clone().or_else(|| event.subagent.as_ref().and_then(|_| known()))
    }

    /// The transcript of the agent, or of the sub-agent, that calls.
    fn own_transcript(&self) -> Option<&Path> {
        match &self.event.subagent {
            Some(sub) => sub.transcript.as_deref(),
            None => self.event.transcript.as_deref(),
        }
    }

    /// Forgets tools that have a result though nobody said that they ended: they were refused, by a person or another hook. Of one whose command goes on
    /// though the agent does, too, its processes are what runs.
    fn by_results(&self, tools: &Tools) -> Result<()> {
        let event = self.event;
        let call = event.tool.as_ref().map(call_of);
        let sub_agent = event.subagent.as_ref().map(|sub| sub.id.as_str());
        let Some((file, since)) = self.own_transcript().zip(tools.beside(call.as_ref(), sub_agent)?) else {
            return Ok(());
        };
        // One that cannot be read says nothing of any.
        let results = transcript::results(event.agent, file, since).unwrap_or_default();
        tools.have_results(&results.ended)?;
        // Where its processes cannot be told, the call counts as running.
        let Some(agent) = &self.process else { return Ok(()) };
        let left = |since| process::begun_since(agent, since);
        results.going_on.iter().try_for_each(|id| tools.command_goes_on(id, left))
    }

    /// What a tool left running in the background, as far as it can be known: the agent says that it does, and has children that it
    /// had not when the tool began.
    fn left_running(&self, tools: &Tools, tool: &ToolCall) -> Vec<Holder> {
        let since = self.event.background.then(|| tools.since(&call_of(tool))).flatten();
        let found = self.process.as_ref().zip(since).map(|(agent, since)| process::begun_since(agent, since));
        found.unwrap_or_default()
    }

    /// Where the agent is at work now, if that is not the workspace as such: a directory outside, or a work tree inside that has its own Git. Where it started
    /// it is at work in the workspace.
    fn elsewhere(&self) -> Option<PathBuf> {
        let (cwd, workspace) = (&*self.event.cwd, self.workspace);
        if Some(cwd) == self.start || cwd == workspace.root() || cwd == workspace.own_path() {
            return None;
        }
        let is_inside = |at: &Path| at.starts_with(workspace.root()) || at.starts_with(workspace.own_path());
        // It may be named through a link.
        let at = if is_inside(cwd) { cwd.to_owned() } else { cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned()) };
        if !is_inside(&at) {
            return Some(cwd.to_owned());
        }
        let below = at.ancestors().take_while(|at| *at != workspace.root() && *at != workspace.own_path());
        let mut below = below.take_while(|at| Some(*at) != self.start);
        below.find(|at| at.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
    }

    fn moment(&self, kind: MomentKind) -> Result<()> {
        let event = self.event;
        let tool = event.tool.as_ref().map(|tool| MomentTool {
            name: tool.name.clone(),
            id: tool.id.clone(),
            about: tool.about.clone(),
        });
        let label = event.reason.clone().filter(|_| kind == MomentKind::SessionStart || kind == MomentKind::SessionEnd);
        let mut now = self.workspace.position_now(self.session, event.agent, self.transcript().as_deref());
        let typed = now.as_mut().map(|now| std::mem::take(&mut now.meanwhile));
        let given = self.workspace.meanwhile(self.session, typed.unwrap_or_default());
        // Behind that: a call beside this one that sees them no more finds them there. Those that have no moment yet are seen again.
        if let Some(now) = now.as_ref().filter(|_| given.is_some()) {
            let anew = kind == MomentKind::SessionStart && event.reason.as_deref() != Some("compact");
            self.workspace.note_position(self.session, now, anew);
        }
        let (transcript, before) = now.map_or_else(Default::default, |now| (Some(now.position), now.before));
        let new = NewMoment {
            label,
            prompt: event.prompt.clone().filter(|_| kind == MomentKind::Prompt),
            prompt_id: event.prompt_id.clone().filter(|_| kind == MomentKind::Prompt),
            tool,
            sub_agent: event.subagent.as_ref().map(|sub| sub.id.clone()),
            transcript,
            before,
            follows: given.unwrap_or_default(),
            checkpoint: event.checkpoint.clone(),
            recording: None,
            elsewhere: self.elsewhere(),
            agent: Some(event.agent),
            ..NewMoment::new(kind)
        };
        self.workspace.add_moment(self.session, new).map(drop)
    }
}

/// What a tool's call is known by.
fn call_of(tool: &ToolCall) -> ToolId<'_> {
    tool.id.as_deref().map_or(ToolId::Name(&tool.name), ToolId::Call)
}
