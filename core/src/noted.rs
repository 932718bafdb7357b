//! What is written down of a workspace: what its directory is known by, who mounts it, its repository.

use ah_plugin_api::{ProviderName, Result};

use crate::engine::Engine;
use crate::ids::WorkspaceId;
use crate::open::removed;
use crate::registry::{self, Identity, Index, WorkspaceRecord};

impl Engine {
    /// Writes down a workspace's repository by its first commit.
    pub(crate) fn note_first_commit(&self, id: &WorkspaceId, first: &str) -> Result<()> {
        let _lock = self.lock_registry()?;
        self.rewrite(id, |record| record.first_commit = Some(first.to_owned())).map(drop)
    }

    /// Writes down that another directory is in a workspace's place.
    pub(crate) fn note_identity(&self, id: &WorkspaceId, identity: Identity) -> Result<()> {
        let _lock = self.lock_registry()?;
        self.rewrite(id, |record| record.identity = identity).map(drop)
    }

    /// Writes down which provider mounts a workspace's directory, or is about to.
    pub(crate) fn note_mounted(&self, id: &WorkspaceId, by: Option<ProviderName>) -> Result<()> {
        let _lock = self.lock_registry()?;
        self.rewrite(id, |record| record.mount(by)).map(drop)
    }

    /// The same with what the directory is known by that lies behind it from then on, at once.
    pub(crate) fn note_mounting(
        &self,
        id: &WorkspaceId,
        by: Option<ProviderName>,
        behind: Option<Identity>,
    ) -> Result<()> {
        let _lock = self.lock_registry()?;
        let change = |record: &mut WorkspaceRecord| {
            record.mount(by);
            record.lies_behind = behind;
        };
        self.rewrite(id, change).map(drop)
    }

    /// Writes down what the directory is known by that lies behind a workspace.
    pub(crate) fn note_behind(&self, id: &WorkspaceId, identity: Option<Identity>) -> Result<()> {
        let _lock = self.lock_registry()?;
        self.rewrite(id, |record| record.lies_behind = identity).map(drop)
    }

    pub(crate) fn rewrite(
        &self,
        id: &WorkspaceId,
        change: impl FnOnce(&mut WorkspaceRecord),
    ) -> Result<WorkspaceRecord> {
        let Some(mut doc) = registry::load(self.home(), id.as_str())? else {
            return Err(removed());
        };
        change(&mut doc.value);
        registry::save(self.home(), &doc)?;
        Index::refresh(self.home())?;
        Ok(doc.value)
    }
}
