//! What is written down before a conversation is made anew, so that what a killed process left of it is found.
//!
//! `workspaces/<id>/conversations/<agent's session id>.json`, in the workspace that the command ran in. It is there from before the
//! first byte of the copy until the session that it belongs to bears the new id. Then it goes. Where its maker died in
//! between, `gc` takes the copy away again, unless somebody has gone on with it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Error, Result};
use serde::{Deserialize, Serialize};

use crate::branch::{self, BranchRecord, BranchState};
use crate::fsio;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::{Holder, Lock};
use crate::notice::{Notice, NoticeKind};
use crate::rewind::Rewind;
use crate::session;
use crate::text;
use crate::timeline::EventBody;
use crate::versioned::{self, Doc, Versioned};
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
    /// The command that makes it again; none: what there was before it is not there without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<String>,
    /// What the session's timeline is to say once it bears the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rewind: Option<Box<Rewind>>,
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

    /// Whether the session that it was made for has it, or had it and went on to another.
    pub(crate) fn is_borne(&self, workspace: &Workspace) -> Result<bool> {
        let Some(own) = workspace.engine.workspace_by_id(&self.workspace)? else { return Ok(false) };
        let record = session::load(&own.folder(), &self.session)?;
        let has = record.and_then(|record| record.agent).is_some_and(|agent| agent.id == self.id);
        Ok(has || own.state()?.events.iter().any(|event| self.is_told_by(&event.body)))
    }

    fn is_told_by(&self, event: &EventBody) -> bool {
        let (new, left) = match event {
            EventBody::Rewind(rewind) => (&rewind.agent_session, rewind.left.as_ref()),
            EventBody::SessionBranch(branch) => (&branch.agent_session, None),
            _ => return false,
        };
        new.as_ref() == Some(&self.id) || left.is_some_and(|left| left.id == self.id)
    }

    /// Says on the timeline what its maker did not come to say, of a conversation that the session bears.
    fn tell(&self, workspace: &Workspace) -> Result<Option<String>> {
        let Some(rewind) = &self.rewind else { return Ok(None) };
        if workspace.state()?.events.iter().any(|event| self.is_told_by(&event.body)) {
            return Ok(None);
        }
        workspace.append(&self.session, EventBody::Rewind(rewind.clone()), Durability::Durable)?;
        Ok(Some(format!("wrote down that the session {} went back to {}, as it had", self.session, rewind.moment)))
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
    /// As [`Workspace::finish_conversations`], before another one is made, if nobody else does at this moment. What cannot be done, `gc` says.
    pub(crate) fn finish_conversations_first(&self) {
        // A copy of the state names what is its original's.
        if self.engine.home().original().is_some() {
            return;
        }
        let Ok(Some(_lock)) = Lock::try_take(&self.folder().join("gc.lock"), true) else { return };
        for done in self.finish_conversations().unwrap_or_default().0 {
            self.engine.notify(Notice::new(NoticeKind::Other, done));
        }
    }

    /// Finishes or takes back conversations whose makers were killed; a sentence for each of which there is something to say, and what went wrong with others.
    pub(crate) fn finish_conversations(&self) -> Result<(Vec<String>, Vec<Error>)> {
        let (intents, mut failed) = versioned::load_all::<Intent>(&self.folder().join(FOLDER))?;
        let mut done = Vec::new();
        for intent in intents.into_iter().filter(|intent| !intent.maker.alive()) {
            match self.finish_conversation(&intent) {
                Ok(said) => done.extend(said),
                Err(error) => failed.push(error),
            }
        }
        Ok((done, failed))
    }

    fn finish_conversation(&self, intent: &Intent) -> Result<Option<String>> {
        // A branch that is not ready comes to nothing, or is made ready, by `gc`, and the conversation with it.
        let is_it = |branch: &BranchRecord| branch.workspace.as_ref() == Some(&intent.workspace);
        if branch::all(self.engine.home())?
            .iter()
            .any(|file| is_it(&file.record) && file.record.state == BranchState::Making)
        {
            return Ok(None);
        }
        if intent.is_borne(self)? {
            let session = self.engine.home().workspace(intent.workspace.as_str()).join("sessions");
            fsio::remove_tree(&staging(&session.join(intent.session.as_str()), &intent.id))?;
            let said = intent.tell(self)?;
            return intent.forget(self).map(|()| said);
        }
        intent.take_back(self)?;
        // A session that was there before goes on as it was, whatever became of its files.
        let whole = match &intent.again {
            Some(again) => format!(": {} has the one that it had, `{again}` cuts it", intent.session),
            None => String::new(),
        };
        Ok(Some(format!("took away the conversation {}, which was being made by a killed process{whole}", intent.id)))
    }
}
