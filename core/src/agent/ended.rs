//! Agents that went away without a word: their sessions end when somebody looks.

use ah_plugin_api::{Durability, Result};

use crate::ids::{SessionName, snapshot_id};
use crate::moments::{MomentKind, MomentRecord, Tools};
use crate::session::{self, SessionEnd, SessionRecord};
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// The reason of a session's end when the agent said nothing.
const VANISHED: &str = "vanished";

/// The reason when the agent took it up in another workspace.
const ELSEWHERE: &str = "elsewhere";

impl Workspace {
    /// The sessions, oldest first. Those whose agents are not there any more have ended by then.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn sessions(&self) -> Result<Vec<SessionRecord>> {
        // Whoever only reads, on a disk that is full or read-only, sees them as they are written.
        let _ = self.end_vanished();
        session::list(&self.folder())
    }

    /// Ends the sessions whose agents' processes are gone.
    pub(crate) fn end_vanished(&self) -> Result<()> {
        for record in session::list(&self.folder())? {
            let Some(agent) = record.agent.as_ref().filter(|_| record.ended.is_none()) else { continue };
            let known = self
                .engine
                .known(&agent.name, &agent.id)?
                .filter(|known| (&known.workspace, &known.session) == (&self.id, &record.name));
            let gone = known.and_then(|known| known.process).is_some_and(|process| !process.alive());
            if gone {
                self.end(&record)?;
            }
        }
        Ok(())
    }

    /// Ends a session that its agent has taken up in another workspace.
    pub(super) fn end_here(&self, session: &SessionName) -> Result<()> {
        let time = self.engine.settings().clock.now();
        Tools::of(&self.folder(), session).forget()?;
        let end = SessionEnd { time, reason: ELSEWHERE.to_owned() };
        self.change_session(session, |record| {
            record.ended.get_or_insert(end);
        })
    }

    fn end(&self, record: &SessionRecord) -> Result<()> {
        let settings = self.engine.settings();
        let time = settings.clock.now();
        let mut ends = false;
        self.change_session(&record.name, |record| {
            // Another process may have seen it, too.
            ends = record.ended.is_none();
            record.ended.get_or_insert(SessionEnd { time, reason: VANISHED.to_owned() });
        })?;
        if !ends {
            return Ok(());
        }
        Tools::of(&self.folder(), &record.name).forget()?;
        let moment = MomentRecord {
            label: Some(VANISHED.to_owned()),
            reason: Some("the agent was gone before".to_owned()),
            ..MomentRecord::new(snapshot_id(&settings.ids)?, MomentKind::SessionEnd)
        };
        self.append(&record.name, EventBody::Moment(Box::new(moment)), Durability::Instant).map(drop)
    }
}
