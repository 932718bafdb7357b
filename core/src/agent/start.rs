//! A session for an agent's own.

use std::path::Path;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::agent::known::Known;
use crate::engine::{Access, Engine};
use crate::fsio;
use crate::ids::SessionName;
use crate::lock::{Holder, Lock};
use crate::session::{self, AgentSession, SessionRecord};
use crate::text;
use crate::workspace::Workspace;

impl Engine {
    /// The workspace and session of an agent's session, made if it is not known yet; `begins`: or if the agent takes it up now, and in another
    /// workspace. `process`: whose end is the agent's; none if it cannot be told now, and what was known stays; none in it if there is no such.
    pub(super) fn session_of(
        &self,
        agent: &str,
        id: &str,
        transcript: Option<&Path>,
        start: &Path,
        process: Option<&Option<Holder>>,
        begins: bool,
    ) -> Result<(Workspace, SessionName)> {
        let is_known = begins && self.known(agent, id)?.is_some();
        let here = is_known.then(|| self.workspace(start, Access::Create).ok()).flatten();
        let known = || -> Result<Option<(Workspace, SessionName)>> {
            let found = self.known_session(agent, id, process)?;
            Ok(found.filter(|(there, _)| here.as_ref().is_none_or(|here| here.id() == there.id())))
        };
        if let Some(found) = known()? {
            return Ok(found);
        }
        let lock = self.home().join("agents.lock");
        let _lock = Lock::take(&lock, true, self.settings().patience_left(), &*self.settings().observer)?;
        let all = self.all_known()?;
        if let Some(found) = known()? {
            return Ok(found);
        }
        // A kill between the two lines below leaves them to be looked through.
        all.not_so()?;
        let workspace = self.workspace(start, Access::Create)?;
        if let Some((there, session)) = self.known_session(agent, id, None)? {
            // It goes on here, whatever becomes of what it was there.
            let _ = there.end_here(&session);
        }
        let transcript = transcript.map(Path::to_owned);
        let own = AgentSession { name: agent.to_owned(), id: id.to_owned(), transcript, start: start.to_owned() };
        let is_it =
            |record: &SessionRecord| record.agent.as_ref().is_some_and(|own| (&*own.name, &*own.id) == (agent, id));
        let had = session::list(&workspace.folder())?.into_iter().find(is_it).map(|record| record.name);
        let recorded = self.settings().agent_session.clone();
        let session = had.map_or_else(|| workspace.make_session(own, recorded), Ok)?;
        let process = process.cloned().flatten();
        self.remember(agent, id, &Known { workspace: workspace.id().clone(), session: session.clone(), process })?;
        all.so();
        Ok((workspace, session))
    }

    fn known_session(
        &self,
        agent: &str,
        id: &str,
        process: Option<&Option<Holder>>,
    ) -> Result<Option<(Workspace, SessionName)>> {
        let Some(mut known) = self.known(agent, id)? else { return Ok(None) };
        let Some(workspace) = self.workspace_by_id(&known.workspace)? else { return Ok(None) };
        if !session::folder(&workspace.folder(), &known.session).is_dir() {
            return Ok(None);
        }
        if let Some(process) = process.filter(|process| known.process != **process) {
            known.process.clone_from(process);
            self.remember(agent, id, &known)?;
        }
        Ok(Some((workspace, known.session)))
    }
}

impl Workspace {
    /// Makes the session, or makes `recorded` (that of the recorder in which the agent runs) its, if that is no other agent's yet.
    fn make_session(&self, agent: AgentSession, recorded: Option<SessionName>) -> Result<SessionName> {
        let now = self.engine.settings().clock.now();
        let of_agent =
            |name: &SessionName, agent| SessionRecord { agent: Some(agent), ..SessionRecord::new(name.clone(), now) };
        let folder = self.folder();
        if let Some(recorded) = recorded {
            // It went back to where the agent starts anew, and waits for that. Other workspaces' may bear its name.
            let waits = session::load(&folder, &recorded)?.is_some_and(|own| own.was_agents && own.agent.is_none());
            // `main` is everybody's.
            if recorded != SessionName::main() && (waits || !self.engine.is_an_agents(&recorded)?) {
                let _lock = self.lock_session(&recorded)?;
                match session::is_made(&folder, &recorded) {
                    true => session::change(&folder, &recorded, |record| record.agent = Some(agent))?,
                    false => session::make(&folder, of_agent(&recorded, agent))?,
                }
                return Ok(recorded);
            }
        }
        let taken = |name: &SessionName| session::folder(&folder, name).exists();
        let date: String = text::format_time(now).chars().take(10).filter(|c| *c != '-').collect();
        let called = agent.name.clone();
        let name = |n: u32| {
            SessionName::new(format!("{called}-{date}-{n}"))
                .map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{called:?} is no agent's name")))
        };
        loop {
            // A few looks find one that is free, however many there are; mostly the first that is.
            let mut free = 1;
            while taken(&name(free)?) {
                free *= 2;
            }
            let mut below = free / 2;
            while free - below > 1 {
                let middle = below.midpoint(free);
                *if taken(&name(middle)?) { &mut below } else { &mut free } = middle;
            }
            let name = name(free)?;
            let _lock = self.lock_session(&name)?;
            // Somebody may have made it meanwhile, by that name.
            if !session::is_made(&folder, &name) {
                session::make(&folder, of_agent(&name, agent))?;
                return Ok(name);
            }
        }
    }

    /// Changes a session's record.
    pub(crate) fn change_session(&self, session: &SessionName, change: impl FnOnce(&mut SessionRecord)) -> Result<()> {
        let folder = self.folder();
        if !session::folder(&folder, session).is_dir() {
            return Ok(());
        }
        let _lock = self.lock_session(session)?;
        session::change(&folder, session, change)
    }

    fn lock_session(&self, session: &SessionName) -> Result<Lock> {
        let (folder, settings) = (self.folder(), self.engine.settings());
        fsio::make_dir(&session::folder(&folder, session))?;
        session::lock(&folder, session, settings.patience_left(), &*settings.observer)
    }
}
