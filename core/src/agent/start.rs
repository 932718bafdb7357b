//! A session for an agent's own.

use std::path::Path;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::agent::known::{self, Known};
use crate::engine::{Access, Engine};
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
        // Who makes another agent's session is waited for once in sixteen times.
        let _own = self.lock_agents(&format!("agents-{}.lock", &text::digest(id)[..1]))?;
        self.all_known()?;
        if let Some(found) = known()? {
            return Ok(found);
        }
        let workspace = self.workspace(start, Access::Create)?;
        if let Some((there, session)) = self.known_session(agent, id, None)? {
            // It goes on here, whatever becomes of what it was there.
            let _ = there.end_here(&session);
        }
        let transcript = transcript.map(Path::to_owned);
        let own = AgentSession { name: agent.to_owned(), id: id.to_owned(), transcript, start: start.to_owned() };
        let is_it =
            |record: &SessionRecord| record.agent.as_ref().is_some_and(|own| (&*own.name, &*own.id) == (agent, id));
        let process = process.cloned().flatten();
        let remember = |session: &SessionName| {
            let (workspace, session) = (workspace.id().clone(), session.clone());
            self.remember(agent, id, &Known { workspace, session, process: process.clone() })
        };
        let had = session::list(&workspace.folder())?.into_iter().find(is_it).map(|record| record.name);
        let session = match had {
            Some(had) => remember(&had).map(|()| had)?,
            None => match workspace.take_recorded(&own, &remember)? {
                Some(recorded) => recorded,
                None => workspace.make_session(&own, &remember)?,
            },
        };
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
        if !session::is_there(&workspace.folder(), &known.session) {
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
    /// Makes the session of the recorder in which the agent runs the agent's, if that is no other agent's yet.
    fn take_recorded(
        &self,
        agent: &AgentSession,
        remember: &dyn Fn(&SessionName) -> Result<()>,
    ) -> Result<Option<SessionName>> {
        let settings = self.engine.settings();
        // `main` is everybody's.
        let recorded = settings.agent_session.as_ref().filter(|recorded| **recorded != SessionName::main());
        let Some(recorded) = recorded else { return Ok(None) };
        let folder = self.folder();
        let _all = self.engine.lock_agents(known::LOCK)?;
        // It went back to where the agent starts anew, and waits for that. Other workspaces' may bear its name.
        let waits = session::load(&folder, recorded)?.is_some_and(|own| own.was_agents && own.agent.is_none());
        if !waits && self.engine.is_an_agents(recorded)? {
            return Ok(None);
        }
        let _lock = self.lock_session(recorded)?;
        let all = self.engine.marker();
        // A kill between the lines below leaves them to be looked through.
        all.not_so()?;
        match session::is_made(&folder, recorded) {
            true => session::change(&folder, recorded, |record| record.agent = Some(agent.clone()))?,
            false => session::make(&folder, self.record_for(recorded, agent))?,
        }
        remember(recorded)?;
        all.so();
        Ok(Some(recorded.clone()))
    }

    /// The record of a session that begins as the agent's.
    fn record_for(&self, session: &SessionName, agent: &AgentSession) -> SessionRecord {
        let now = self.engine.settings().clock.now();
        SessionRecord { agent: Some(agent.clone()), ..SessionRecord::new(session.clone(), now) }
    }

    /// Makes the session. Others' that are made meanwhile are not waited for.
    fn make_session(&self, agent: &AgentSession, remember: &dyn Fn(&SessionName) -> Result<()>) -> Result<SessionName> {
        let now = self.engine.settings().clock.now();
        let folder = self.folder();
        let taken = |name: &SessionName| session::folder(&folder, name).exists();
        let date: String = text::format_time(now).chars().take(10).filter(|c| *c != '-').collect();
        let name = |n: u32| {
            SessionName::new(format!("{}-{date}-{n}", agent.name))
                .map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{:?} is no agent's name", agent.name)))
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
            let settings = self.engine.settings();
            if let Some(lock) = session::claim(&folder, &name, settings.patience_left(), &*settings.observer)? {
                // Before it is there: a kill in between leaves what leads to none, rather than a session that no hook finds.
                let made = remember(&name).and_then(|()| session::make(&folder, self.record_for(&name, agent)));
                return match made {
                    Ok(()) => Ok(name),
                    Err(error) => {
                        self.engine.forget_unmade(self.id(), &name);
                        session::give_up(&session::folder(&folder, &name), &lock);
                        Err(error)
                    }
                };
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
        session::lock(&folder, session, settings.patience_left(), &*settings.observer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use ah_plugin_api::{Error, ErrorKind};

    use crate::agent::known::Known;
    use crate::engine::{Access, Engine};
    use crate::gc::GcOptions;
    use crate::ids::SessionName;
    use crate::providers::{ProviderSet, ProviderSource};
    use crate::session::{self, AgentSession};
    use crate::settings::Settings;
    use crate::workspace::Workspace;

    fn workspace(top: &Path) -> Workspace {
        let root = top.join("ws");
        std::fs::create_dir(&root).unwrap();
        let settings = Settings::new(top.join("home"), ProviderSource::Given(ProviderSet::of(Vec::new())));
        Engine::open(settings).unwrap().workspace(&root, Access::Create).unwrap()
    }

    fn agent(id: &str) -> AgentSession {
        AgentSession { name: "claude".into(), id: id.into(), transcript: None, start: "/".into() }
    }

    fn gc(workspace: &Workspace) {
        let report = workspace.gc(&GcOptions::default()).unwrap();
        assert_eq!(report.failures, [""; 0]);
    }

    #[test]
    fn a_session_that_is_being_made_is_nobody_elses() {
        let top = tempfile::tempdir().unwrap();
        let workspace = workspace(top.path());
        let other = RefCell::new(None);
        let beside = |_: &SessionName| {
            gc(&workspace);
            *other.borrow_mut() = Some(workspace.make_session(&agent("b"), &|_| Ok(()))?);
            Ok(())
        };
        let name = workspace.make_session(&agent("a"), &beside).unwrap();
        let other = other.take().unwrap();
        assert_ne!(name, other);
        let whose = |name| session::load(&workspace.folder(), name).unwrap().unwrap().agent.unwrap().id;
        assert_eq!((whose(&name), whose(&other)), ("a".into(), "b".into()));
    }

    #[test]
    fn a_session_that_came_to_nothing_is_not_listed_and_goes() {
        let top = tempfile::tempdir().unwrap();
        let workspace = workspace(top.path());
        let left = || session::names(&workspace.folder()).unwrap();
        let engine = &workspace.engine;
        let fails = |session: &SessionName| {
            let known = Known { workspace: workspace.id().clone(), session: session.clone(), process: None };
            engine.remember("claude", "a", &known).unwrap();
            Err(Error::new(ErrorKind::Internal, "broken"))
        };
        workspace.make_session(&agent("a"), &fails).unwrap_err();
        // Nothing leads to it: its name may be another's next.
        assert_eq!((left(), engine.known("claude", "a").unwrap()), (vec![], None));
        // As a kill leaves it.
        let name = SessionName::new("claude-1").unwrap();
        drop(workspace.lock_session(&name).unwrap());
        assert_eq!((left(), workspace.sessions().unwrap()), (vec![name], Vec::new()));
        gc(&workspace);
        assert_eq!(left(), []);
    }
}
