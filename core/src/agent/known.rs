//! Which session of ours an agent's session is: `$AH_HOME/agents/<agent>/<key>.json`, one small file for each.
//!
//! A cache: the sessions' own records say the same, and where it is lost they are looked through once.

use std::path::PathBuf;

use ah_plugin_api::{Durability, Result, Timestamp};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use crate::engine::Engine;
use crate::fsio;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::Holder;
use crate::registry::Index;
use crate::text;

/// An agent's session that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) workspace: WorkspaceId,
    pub(crate) session: SessionName,
    /// The agent's process, as far as it was found.
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
        if let Some(known) = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Ok(Some(known));
        }
        let (index, _) = Index::load(self.home())?;
        let found = index.workspaces.iter().find_map(|workspace| {
            let is_it =
                |agent_session: &crate::session::AgentSession| agent_session.name == agent && agent_session.id == id;
            let session = workspace.sessions.iter().find(|session| session.agent.as_ref().is_some_and(is_it))?;
            Some(Known { workspace: workspace.record.id.clone(), session: session.name.clone(), process: None })
        });
        Ok(found)
    }

    pub(crate) fn remember(&self, agent: &str, id: &str, known: &Known) -> Result<()> {
        let file = self.known_file(agent, id);
        fsio::make_dir(&self.agents_folder().join(agent))?;
        fsio::replace(&file, &serde_json::to_vec(known).unwrap_or_default(), Durability::Instant)
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
