//! A session branch: a new session from a moment, in a branch of its own, with the files and the conversation as they were.
//!
//! The order of steps: what can be refused is refused; the branch is written down as `making` and made (`branch/`); in it the
//! conversation is made anew (`conversation/`), and the session with where it comes from; then the branch is ready, and the
//! timelines of both sessions say so. Until it is ready, whatever a killed process left of all this, `gc` takes away.
//!
//! The new session belongs to the branch, which is a workspace of its own, and bears the branch's name. `ah session list` shows both.

use std::path::{Path, PathBuf};

use ah_agents::Home;
use ah_agents::launch::{self, Form};
use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::branch::{self, BranchRecord};
use crate::conversation::{Bearer, ConversationReport, FromRecord, Rebuilt, Seat, Start, is_about_the_snapshot};
use crate::engine::Access;
use crate::ids::{BranchId, SessionName};
use crate::moments::told;
use crate::rewind::With;
use crate::session::{self, ResumeMethod, SessionRecord};
use crate::state::State;
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// What is said about a session branch to be made.
#[derive(Debug, Clone)]
pub struct SessionBranchOptions {
    /// The REF to start from.
    pub from: String,
    /// The new session's name, and the branch's.
    pub name: SessionName,
    /// What to tell the agent first.
    pub instruction: Option<String>,
    /// With a person at the terminal, or without.
    pub form: Form,
    /// Whether the agent is to be started at once: refused where its conversation knows its files elsewhere than it will see them.
    pub run: bool,
    /// Whether it is started there, too.
    pub elsewhere: bool,
    /// Whether a branch can be shown in place of a directory; else the agent will run in the branch's own.
    pub can_show: fn(&Path) -> bool,
    /// Where agents keep their things.
    pub agents: Home,
}

/// A session branch that was made.
#[derive(Debug, Clone, Serialize)]
pub struct SessionBranchReport {
    /// The new session.
    pub session: SessionRecord,
    /// Its files.
    pub branch: BranchRecord,
    /// Where it comes from.
    pub from: FromRecord,
    /// Its conversation.
    pub conversation: ConversationReport,
    /// The path at which the agent is to see the branch, by `exec`; none: it is to run in the branch's directory.
    #[serde(skip)]
    pub shown_at: Option<PathBuf>,
    /// What a person should know of the choice.
    pub notes: Vec<String>,
}

/// Event: a session branch was made. It stands on the timelines of both sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionBranched {
    /// The new session, and its branch, by name.
    pub name: String,
    /// The branch that it belongs to.
    pub branch: BranchId,
    /// The session that it grew from.
    pub from: SessionName,
    /// The moment in that.
    pub moment: SnapshotId,
    /// The snapshot that the files came from.
    pub snapshot: SnapshotId,
    /// How the conversation was taken up.
    pub method: ResumeMethod,
    /// The agent's id of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session: Option<String>,
}

impl Workspace {
    /// Makes a session branch.
    ///
    /// # Errors
    /// As [`Workspace::resolve`] and [`Workspace::branch`]; `FailedPrecondition` if no agent's conversation belongs to the moment, or
    /// if its snapshot cannot be used, with the nearest that can be in the hint; `NotFound` if the agent is not installed. Whatever
    /// the error, nothing has been made. What can fail once it is made is a note of the report.
    pub fn session_branch(&self, options: &SessionBranchOptions) -> Result<SessionBranchReport> {
        self.finish_conversations_first();
        self.fence_all()?;
        self.look_for_meanwhile();
        self.free_name(options.name.as_str());
        let stays = self.lock_stays()?;
        let state = self.state()?.gone_back_with(With::Conversation);
        if options.name == SessionName::main() {
            let message = "`main` is the name of every workspace's own session";
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("choose another one for --name"));
        }
        let again = |reference: &str| format!("ah session branch {reference} --name {}", options.name);
        let start = self.start_from(&state, &options.from, With::Conversation, again)?;
        let (agent, _) = start.agent()?;
        let knows = start.knows(&state)?;
        let known_at = self.known_at(knows)?;
        // What grew from here is shown there as well as here.
        let shown_at = Some(known_at.as_deref().unwrap_or(&self.root)).filter(|at| (options.can_show)(at));
        let unseen = match &known_at {
            Some(at) => shown_at.is_none().then_some(at.as_path()),
            None => Some(knows),
        };
        if options.run && !options.elsewhere {
            self.refuse_elsewhere(&state, &start, unseen)?;
        }
        let before = start.known_at.as_deref().filter(|at| shown_at.is_none_or(|shown| !at.starts_with(shown)));
        let elsewhere = unseen.or(before);
        launch::program(agent, &options.agents)?;
        // An instruction that cannot be given is refused before anything is made.
        launch::fresh(agent, options.instruction.as_deref(), options.form)?;
        self.may_branch_as(options.name.as_str())?;
        if self.related_sessions()?.iter().any(|listed| listed.record.name == options.name) {
            let message = format!("there is a session {} already", options.name);
            return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint("choose another one for --name"));
        }
        let snapshot = start.snapshot.clone();
        self.usable(&snapshot).map_err(|error| self.offer(&state, &snapshot, &error, again))?;
        let (mut begun, mut made) = (false, None);
        let branch = self.furnished_branch(options.name.as_str(), (&snapshot, stays), |branch, own| {
            begun = true;
            made = Some(self.furnish(&state, &start, options, (branch, own), (shown_at, elsewhere))?);
            Ok(())
        });
        let branch = branch.map_err(|error| {
            if let Some((_, rebuilt)) = &made {
                Rebuilt::discard(rebuilt, self);
            }
            match begun || !is_about_the_snapshot(&error) {
                true if begun => error,
                true => self.outside(options, error),
                false => self.offer(&state, &snapshot, &error, again),
            }
        })?;
        let Some((session, rebuilt)) = made else {
            return Err(Error::new(ErrorKind::Internal, "a branch was not furnished"));
        };
        let (from, mut notes) = (start.record(), start.notes.clone());
        // If it cannot be said that this is done, gc finds that it is.
        let _ = rebuilt.keep(self);
        let body = branched(&start, &rebuilt, &branch);
        if let Err(error) = self.append(&start.moment.session, body, Durability::Durable) {
            notes.push(format!("the timeline of {} does not tell of it: {}", start.moment.session, told(&error)));
        }
        let shown_at = shown_at.map(Path::to_owned);
        Ok(SessionBranchReport { session, branch, from, conversation: rebuilt.report, shown_at, notes })
    }

    /// An error of making a branch in a namespace of `exec`, which what others mount need not reach: outside of it can be done, as what is printed shows it again.
    /// What its own hint says comes first: it may be the same there.
    fn outside(&self, options: &SessionBranchOptions, error: Error) -> Error {
        let Some(place) = self.own_place().filter(|_| error.kind == ErrorKind::FailedPrecondition) else {
            return error;
        };
        let first = error.hint.as_deref().map_or_else(String::new, |hint| format!("{hint}; "));
        let (there, from) = (text::shell(place.as_os_str()), text::shell(options.from.as_ref()));
        let told = options.instruction.as_ref().map(|told| format!(" -m {}", text::shell(told.as_ref())));
        let run = [(options.run, " --run"), (options.elsewhere, " --elsewhere")];
        let run: String = run.into_iter().filter_map(|(is_so, word)| is_so.then_some(word)).collect();
        let again = format!("session branch {from} --name {}{}{run}", options.name, told.unwrap_or_default());
        error.with_hint(format!("{first}outside of `exec` it is `ah -C {there} {again}`"))
    }

    /// Makes the conversation and the session, in a branch that is being made.
    fn furnish(
        &self,
        state: &State,
        start: &Start,
        options: &SessionBranchOptions,
        (branch, own): (&BranchRecord, &Self),
        (shown_at, elsewhere): (Option<&Path>, Option<&Path>),
    ) -> Result<(SessionRecord, Rebuilt)> {
        let cwd = self.seat_below(shown_at.unwrap_or(&branch.path), &start.agent()?.1.start, |below| {
            branch.path.join(below).is_dir()
        })?;
        let bearer = Bearer {
            workspace: own,
            session: &options.name,
            seat: Seat {
                home: &options.agents,
                cwd: &cwd,
                shown: shown_at.map(|at| (at, branch.path.as_path())),
                elsewhere,
            },
            instruction: options.instruction.as_deref(),
            form: options.form,
            again: None,
        };
        let rebuilt = self.rebuild(state, start, &bearer)?;
        let mut session = SessionRecord::new(options.name.clone(), self.engine.settings().clock.now());
        session.agent = rebuilt.agent_session();
        session.provenance = Some(rebuilt.provenance(start));
        session.known_at.clone_from(&rebuilt.report.known_at);
        self.engine.make_known(&own.id, &options.name, session.agent.as_ref());
        let written = session::make(&own.folder(), session.clone());
        let said = written
            .and_then(|()| own.append(&options.name, branched(start, &rebuilt, branch), Durability::Durable).map(drop));
        said.inspect_err(|_| rebuilt.discard(self))?;
        Ok((session, rebuilt))
    }
}

/// What both timelines say.
fn branched(start: &Start, rebuilt: &Rebuilt, branch: &BranchRecord) -> EventBody {
    EventBody::SessionBranch(Box::new(SessionBranched {
        name: branch.name.clone(),
        branch: branch.id.clone(),
        from: start.moment.session.clone(),
        moment: start.moment.record.id.clone(),
        snapshot: start.snapshot.id.clone(),
        method: rebuilt.report.method,
        agent_session: rebuilt.report.agent_session.clone(),
    }))
}

/// A session in a list of those that belong together.
#[derive(Debug, Clone, Serialize)]
pub struct ListedSession {
    /// The session.
    #[serde(flatten)]
    pub record: SessionRecord,
    /// The branch that it belongs to, by name; none: it is this workspace's, or the origin's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Its workspace, where that is another one.
    #[serde(with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
}

impl Workspace {
    /// The workspace that a session lives in, where that is one of [`Workspace::related_sessions`]; else this one.
    ///
    /// # Errors
    /// If the folders of workspaces or branches cannot be read, or that one cannot be opened.
    pub fn where_lives(self, session: &SessionName) -> Result<Self> {
        if *session == SessionName::main() || session::names(&self.folder())?.contains(session) {
            return Ok(self);
        }
        let related = self.related_sessions()?.into_iter().find(|listed| listed.record.name == *session);
        match related.and_then(|listed| listed.workspace) {
            Some(path) => self.engine.workspace(&path, Access::Existing),
            None => Ok(self),
        }
    }

    /// The sessions of this workspace, oldest first, with the session branches that grew from it, however far; and in a branch the
    /// sessions that its own grew from.
    ///
    /// # Errors
    /// If the folders of workspaces or branches cannot be read.
    pub fn related_sessions(&self) -> Result<Vec<ListedSession>> {
        let home = self.engine.home();
        let own = self.sessions()?;
        let branches: Vec<BranchRecord> = branch::all(home)?.into_iter().map(|file| file.record).collect();
        let mut listed: Vec<ListedSession> = Vec::new();
        let above = branches.iter().find(|branch| branch.workspace.as_ref() == Some(&self.id));
        if let Some(above) = above {
            let from: Vec<&SessionName> =
                own.iter().filter_map(|record| Some(&record.provenance.as_ref()?.from_session_id)).collect();
            let theirs = session::list(&home.workspace(above.origin.as_str()))?;
            let theirs = theirs.into_iter().filter(|record| from.contains(&&record.name));
            listed.extend(theirs.map(|record| ListedSession {
                record,
                branch: branches.iter().find(|b| b.workspace.as_ref() == Some(&above.origin)).map(|b| b.name.clone()),
                workspace: Some(above.origin_now(home)),
            }));
        }
        listed.extend(own.into_iter().map(|record| ListedSession { record, branch: None, workspace: None }));
        let mut origins = vec![self.id.clone()];
        let mut at = 0;
        while let Some(origin) = origins.get(at).cloned() {
            at += 1;
            for branch in branches.iter().filter(|branch| branch.origin == origin) {
                let Some(id) = &branch.workspace else { continue };
                // None can have grown from itself, however damaged the records.
                if origins.contains(id) {
                    continue;
                }
                origins.push(id.clone());
                let theirs = session::list(&home.workspace(id.as_str()))?;
                let theirs = theirs.into_iter().filter(|record| record.provenance.is_some());
                listed.extend(theirs.map(|record| ListedSession {
                    record,
                    branch: Some(branch.name.clone()),
                    workspace: Some(branch.path.clone()),
                }));
            }
        }
        Ok(listed)
    }
}
