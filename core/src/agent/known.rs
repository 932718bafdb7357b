//! Which session of ours an agent's session is: `$AH_HOME/agents/<agent>/<key>.json`, one small file for each.
//!
//! A cache: the sessions' own records say the same. `agents/all` says that every one has its file here; without it the records are looked through
//! once.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use ah_plugin_api::{Durability, Result, Timestamp};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use crate::engine::Engine;
use crate::fsio;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::{Holder, Lock};
use crate::session::{self, AgentSession};
use crate::text;

/// Held while it is found out, or changes, whether all are known; and while a recorder's session becomes an agent's.
pub(super) const LOCK: &str = "agents.lock";

/// An agent's session that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) workspace: WorkspaceId,
    pub(crate) session: SessionName,
    /// The agent's process, as far as it was found, and serves that session alone.
    #[serde(default)]
    pub(crate) process: Option<Holder>,
}

/// The last event that an agent called for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEvent {
    /// When.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// What it was.
    pub event: String,
    /// The session of ours.
    pub session: SessionName,
}

impl Engine {
    /// The last event that an agent called for; none: it never did, as far as is known.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn last_event(&self, agent: &str) -> Result<Option<LastEvent>> {
        let bytes = fsio::read(&self.agents_folder().join(agent).join("last"))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Notes an event as the last one; nothing depends on it.
    pub(super) fn note_event(&self, agent: &str, last: &LastEvent) {
        let file = self.agents_folder().join(agent).join("last");
        let _ = fsio::replace(&file, &serde_json::to_vec(last).unwrap_or_default(), Durability::Instant);
    }

    /// A folder for copies of agents' settings as they were before hooks were put into them.
    #[must_use]
    pub fn settings_backups(&self) -> PathBuf {
        self.home().join("backups")
    }

    pub(super) fn agents_folder(&self) -> PathBuf {
        self.home().join("agents")
    }

    fn known_file(&self, agent: &str, id: &str) -> PathBuf {
        self.agents_folder().join(agent).join(format!("{}.json", key(id)))
    }

    /// What is known of an agent's session.
    pub(crate) fn known(&self, agent: &str, id: &str) -> Result<Option<Known>> {
        let bytes = fsio::read(&self.known_file(agent, id))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Takes one of the locks of agents' sessions.
    pub(super) fn lock_agents(&self, name: &str) -> Result<Lock> {
        let settings = self.settings();
        Lock::take(&self.home().join(name), true, settings.patience_left(), &*settings.observer)
    }

    /// Sees to it that every session of an agent has its file.
    pub(super) fn all_known(&self) -> Result<()> {
        let all = self.marker();
        if all.0.exists() {
            return Ok(());
        }
        let _lock = self.lock_agents(LOCK)?;
        for id in fsio::names(&self.home().join("workspaces"))? {
            let Ok(workspace) = WorkspaceId::new(&id) else { continue };
            for record in session::list(&self.home().workspace(&id))? {
                if let Some(agent) = &record.agent
                    && self.known(&agent.name, &agent.id)?.is_none()
                {
                    let known = Known { workspace: workspace.clone(), session: record.name, process: None };
                    self.remember(&agent.name, &agent.id, &known)?;
                }
            }
        }
        all.so();
        Ok(())
    }

    pub(super) fn marker(&self) -> AllKnown {
        AllKnown(self.agents_folder().join("all"))
    }

    /// Lets the agent's hooks find a session by the id that the agent will have for it. Comes before the session's record bears that id: a kill in
    /// between leaves a file for an id that nobody has, rather than a session that none of them finds.
    pub(crate) fn make_known(&self, workspace: &WorkspaceId, session: &SessionName, agent: Option<&AgentSession>) {
        let Some(agent) = agent else { return };
        let known = Known { workspace: workspace.clone(), session: session.clone(), process: None };
        if self.remember(&agent.name, &agent.id, &known).is_err() {
            let _ = self.marker().not_so();
        }
    }

    /// Takes away what is known of the sessions of a workspace that goes. What stays leads to none, and is passed over.
    pub(crate) fn forget_sessions_of(&self, workspace: &WorkspaceId) {
        self.forget_known(|known| known.workspace == *workspace);
    }

    /// Takes away what leads to a session that came to nothing, before its name is another's. Whoever calls holds the session's lock.
    pub(crate) fn forget_unmade(&self, workspace: &WorkspaceId, session: &SessionName) {
        self.forget_known(|known| known.workspace == *workspace && known.session == *session);
    }

    fn forget_known(&self, goes: impl Fn(&Known) -> bool) {
        let folder = self.agents_folder();
        for agent in fsio::names(&folder).unwrap_or_default() {
            let folder = folder.join(agent);
            for name in fsio::names(&folder).unwrap_or_default() {
                let file = folder.join(name);
                let known = fsio::read(&file).ok().flatten().and_then(|it| serde_json::from_slice::<Known>(&it).ok());
                if known.is_some_and(|known| goes(&known)) {
                    let _ = fsio::remove_file(&file);
                }
            }
        }
    }

    pub(crate) fn remember(&self, agent: &str, id: &str, known: &Known) -> Result<()> {
        let file = self.known_file(agent, id);
        fsio::make_dir(&self.agents_folder().join(agent))?;
        fsio::replace(&file, &serde_json::to_vec(known).unwrap_or_default(), Durability::Instant)
    }
}

/// The folder that says that every session of an agent is known. A folder, as all else there is, for whoever goes through them.
pub(super) struct AllKnown(PathBuf);

impl AllKnown {
    /// From here on, if this process is killed, it is not so.
    pub(super) fn not_so(&self) -> Result<()> {
        match std::fs::remove_dir(&self.0) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fsio::failed("remove", &self.0, &e)),
            _ => Ok(()),
        }
    }

    /// If that cannot be written they are looked through once more.
    pub(super) fn so(&self) {
        let _ = self.0.parent().map(fsio::make_dir);
        let _ = DirBuilder::new().mode(fsio::DIR_MODE).create(&self.0);
    }
}

/// The agent chooses its ids: only one that is surely a plain name is used as one.
fn key(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if !id.is_empty() && id.len() <= 80 && id.bytes().all(plain) {
        return id.to_owned();
    }
    format!("sha1.{}", text::hex(&Sha1::digest(id.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn no_id_leads_out_of_the_folder() {
        assert_eq!(key("2f1c-9"), "2f1c-9");
        for odd in ["", "..", "a/b", "a.json", "\0", "ä", &"x".repeat(500)] {
            let key = key(odd);
            assert!(key.starts_with("sha1.") && key.len() == 45, "{odd:?}: {key}");
        }
    }
}
