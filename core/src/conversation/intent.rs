//! What is written down before a conversation is made anew, so that what a killed process left of it is found.
//!
//! `workspaces/<id>/conversations/<agent's session id>.json`, in the workspace that the command ran in. It is there from before the
//! first byte of the copy until the session that it belongs to bears the new id. Then it goes. Where its maker died in
//! between, `gc` takes the copy away again, unless somebody has gone on with it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::Result;
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::Holder;
use crate::session;
use crate::text;
use crate::versioned::{Doc, Versioned};
use crate::workspace::Workspace;

const FOLDER: &str = "conversations";

/// A conversation that is being made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The agent's new session id; made here, so it can be a file's name.
    pub(crate) id: String,
    /// Who makes it.
    pub(crate) maker: Holder,
    /// The workspace and the session that will bear it.
    pub(crate) workspace: WorkspaceId,
    pub(crate) session: SessionName,
    /// What comes to lie in the agent's home; written down before it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<Made>,
}

/// A file in the agent's home.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Made {
    #[serde(with = "text::abs")]
    pub(crate) path: PathBuf,
    /// Its length. A longer one has been gone on with; an empty one only took the name.
    pub(crate) bytes: u64,
}

impl Made {
    /// What it is called until it is whole, where it cannot be moved in as it is.
    pub(crate) fn unfinished(&self) -> PathBuf {
        let mut name = std::ffi::OsString::from(".ah-");
        name.push(self.path.file_name().unwrap_or_default());
        self.path.with_file_name(name)
    }
}

impl Versioned for Intent {
    const VERSION: u64 = 1;
}

impl Intent {
    fn path(&self, workspace: &Workspace) -> PathBuf {
        workspace.folder().join(FOLDER).join(format!("{}.json", self.id))
    }

    /// Writes it down.
    pub(crate) fn save(&self, workspace: &Workspace) -> Result<()> {
        fsio::make_dir(&workspace.folder().join(FOLDER))?;
        Doc::new(self.clone()).save_plain(&self.path(workspace))
    }

    /// The session bears the conversation now.
    pub(crate) fn forget(&self, workspace: &Workspace) -> Result<()> {
        fsio::remove_file(&self.path(workspace))
    }

    /// Takes away what there is of the conversation.
    pub(crate) fn take_back(&self, workspace: &Workspace) -> Result<()> {
        for made in &self.files {
            fsio::remove_file(&made.unfinished())?;
            let ours = |size: u64| size == made.bytes || size == 0;
            if std::fs::symlink_metadata(&made.path).is_ok_and(|found| found.is_file() && ours(found.size())) {
                fsio::remove_file(&made.path)?;
            }
            // What was made for it; nothing that holds anything goes so.
            for above in made.path.ancestors().skip(1).take(2) {
                if std::fs::remove_dir(above).is_err() {
                    break;
                }
            }
        }
        let session = workspace.engine.home().workspace(self.workspace.as_str()).join("sessions");
        let session = session.join(self.session.as_str());
        fsio::remove_tree(&staging(&session, &self.id))?;
        fsio::remove_file(&untrimmed(&session, &self.id))?;
        self.forget(workspace)
    }

    /// Whether the session that it was made for has it.
    pub(crate) fn is_borne(&self, workspace: &Workspace) -> Result<bool> {
        let Some(own) = workspace.engine.workspace_by_id(&self.workspace)? else { return Ok(false) };
        let record = session::load(&own.folder(), &self.session)?;
        Ok(record.and_then(|record| record.agent).is_some_and(|agent| agent.id == self.id))
    }
}

/// Where the copy of the whole transcript lies that a conversation was cut from.
pub(crate) fn untrimmed(session: &Path, id: &str) -> PathBuf {
    session.join(format!("untrimmed-{id}.jsonl"))
}

/// Whether a file in a session's folder is such a copy.
pub(crate) fn is_untrimmed(name: &str) -> bool {
    name.starts_with("untrimmed-") && name.ends_with(".jsonl")
}

/// Where a conversation is made before it is moved into the agent's home.
pub(crate) fn staging(session: &Path, id: &str) -> PathBuf {
    session.join(format!("staging-{id}"))
}

impl Workspace {
    /// Finishes or takes back conversations whose makers were killed; a sentence for each that was taken back.
    pub(crate) fn finish_conversations(&self) -> Result<Vec<String>> {
        let folder = self.folder().join(FOLDER);
        let mut done = Vec::new();
        for name in fsio::names(&folder)? {
            if fsio::is_temp(&name) || !name.ends_with(".json") {
                continue;
            }
            let Some(doc) = Doc::<Intent>::load(&folder.join(&name))? else { continue };
            let intent = doc.value;
            if intent.maker.alive() {
                continue;
            }
            if intent.is_borne(self)? {
                let session = self.engine.home().workspace(intent.workspace.as_str()).join("sessions");
                fsio::remove_tree(&staging(&session.join(intent.session.as_str()), &intent.id))?;
                intent.forget(self)?;
                continue;
            }
            intent.take_back(self)?;
            done.push(format!("took away the conversation {}, which was being made by a killed process", intent.id));
        }
        Ok(done)
    }
}
