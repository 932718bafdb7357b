//! What an agent shall not do in its own session: take away what the person would go back to. No wall, as an agent can do what its user
//! can; but nothing that it does by mistake.

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::fsio;
use crate::ids::SessionName;
use crate::session::{self, SessionRecord};

impl Engine {
    /// Refuses `what` inside an agent's own session, unless the user's configuration (`agent.may-remove`) allows it.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is refused.
    pub fn refuse_to_agents(&self, what: &str) -> Result<()> {
        let Some(own) = &self.settings().agent_session else { return Ok(()) };
        // A project's own file does not count: it is the agent that may have written it.
        if !self.holds(own, |record| record.agent.is_some() || record.was_agents)?
            || self.config(None)?.agent_may_remove()
        {
            return Ok(());
        }
        let message = format!("{what} is not done inside an agent's own session ({own})");
        Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("ask the person; in their own terminal `ah config set agent.may-remove true` allows it"))
    }

    /// Whether a session of that name, in whatever workspace, is an agent's.
    pub(super) fn is_an_agents(&self, session: &SessionName) -> Result<bool> {
        self.holds(session, |record| record.agent.is_some())
    }

    fn holds(&self, session: &SessionName, is_such: impl Fn(&SessionRecord) -> bool) -> Result<bool> {
        let workspaces = fsio::names(&self.home().join("workspaces"))?;
        // One whose record is lost must not hide the others.
        let load = |id: &String| session::load(&self.home().workspace(id), session).ok().flatten();
        Ok(workspaces.iter().filter_map(load).any(|record| is_such(&record)))
    }
}
