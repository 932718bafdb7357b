//! A workspace of which nothing is kept yet. A command that is refused takes back that its directory became one: else what lies below would
//! belong to it from then on, and be captured with it.
//!
//! The folder of a new workspace has a file `new` until the first line of a timeline is written. Whoever opens the workspace meanwhile holds that file
//! shared for as long as they work in it; who takes the workspace back holds the file alone, with the registry locked. So nobody loses what
//! they have found, and who comes too late looks again.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use ah_plugin_api::Result;

use crate::engine::Engine;
use crate::fsio;
use crate::lock::Lock;
use crate::moments::unlisted;
use crate::registry::{Index, WorkspaceRecord};
use crate::session;
use crate::workspace::Workspace;

const NEW: &str = "new";

fn file(folder: &Path) -> PathBuf {
    folder.join(NEW)
}

/// Whether that is the name of the file in a workspace's folder that says so: with nothing beside it, its maker was killed.
pub(crate) fn is_mark(name: &str) -> bool {
    name == NEW
}

/// Says of the folder of a workspace that is being registered that nothing is kept of it.
pub(crate) fn mark(folder: &Path) {
    Lock::prepare(&file(folder));
}

impl Engine {
    /// The handle of a registered workspace that somebody is to work in; none if it has just been taken back, or is at this moment.
    pub(crate) fn opened(&self, record: WorkspaceRecord, root: PathBuf) -> Option<Workspace> {
        let mut workspace = self.handle(record, root);
        let folder = workspace.folder();
        let file = file(&folder);
        match Lock::of_there(&file, false) {
            // Between the two looks something may have been written down, or it may have been taken back.
            Ok(Some(lock)) => workspace.fresh = Some(lock).filter(|_| is_there_at_all(&file)),
            Ok(None) if is_there_at_all(&file) => return None,
            // What cannot be held is not needed by who only reads.
            Ok(None) | Err(_) => {}
        }
        folder.is_dir().then_some(workspace)
    }

    /// Takes back that directories became workspaces by this engine, after what they became it for was refused: of those of which nothing was
    /// kept, and in which nobody works. Handles of them are to be dropped before.
    ///
    /// # Errors
    /// If that cannot be done; then they are workspaces still.
    pub fn take_back_new(&self) -> Result<()> {
        let made = std::mem::take(&mut *self.inner.made.lock().unwrap_or_else(PoisonError::into_inner));
        made.iter().try_for_each(|id| {
            let _registry = self.lock_registry()?;
            match self.workspace_by_id(id)? {
                Some(workspace) => self.take_back(workspace),
                None => Ok(()),
            }
        })
    }

    /// The registry is locked.
    fn take_back(&self, mut workspace: Workspace) -> Result<()> {
        let folder = workspace.folder();
        if !is_there_at_all(&file(&folder)) {
            return Ok(());
        }
        let Some(_alone) = Lock::of_there(&file(&folder), true)? else { return Ok(()) };
        // Who found it by its id holds nothing but this, while they write something down.
        workspace.timeline = Some(workspace.lock("timeline")?);
        let is_kept = !workspace.state()?.events.is_empty() || !unlisted::all(&folder)?.is_empty();
        if is_kept || !session::names(&folder)?.is_empty() {
            return Ok(());
        }
        let aside = self.give_up(&workspace)?;
        Index::refresh(self.home())?;
        // What cannot be removed now, gc removes.
        let _ = fsio::remove_tree(&aside);
        Ok(())
    }
}

impl Workspace {
    /// Something is written down of it: it stays.
    pub(crate) fn settle(&self) {
        let _ = fsio::remove_file(&file(&self.folder()));
    }
}

fn is_there_at_all(file: &Path) -> bool {
    file.symlink_metadata().is_ok()
}
