//! What an agent shall not do in its own session: take away what the person would go back to. No wall, as an agent can do what its user
//! can; but nothing that it does by mistake.

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::ids::SessionName;
use crate::registry::Index;
use crate::session::SessionRecord;

impl Engine {
    /// Refuses `what` inside an agent's own session, unless the user's configuration (`agent.may-remove`) allows it.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is refused.
    pub fn refuse_to_agents(&self, what: &str) -> Result<()> {
        let Some(own) = &self.settings().agent_session else { return Ok(()) };
        // A project's own file does not count: it is the agent that may have written it.
        if !self.holds(|record| record.name == *own && (record.agent.is_some() || record.was_agents))?
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
        self.holds(|record| record.name == *session && record.agent.is_some())
    }

    fn holds(&self, is_such: impl Fn(&SessionRecord) -> bool) -> Result<bool> {
        let (index, _) = Index::load(self.home())?;
        Ok(index.workspaces.iter().flat_map(|workspace| &workspace.sessions).any(is_such))
    }
}
