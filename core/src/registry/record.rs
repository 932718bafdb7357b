//! `workspaces/<id>/workspace.json`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{BEHIND, Error, ErrorKind, ProviderName, Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::attend::is_place;
use crate::home::Home;
use crate::ids::{BranchId, WorkspaceId};
use crate::mounts;
use crate::registry::Identity;
use crate::text;
use crate::versioned::{Doc, Versioned};

/// How many directories a workspace remembers that it once was: one that is made anew by each build would fill its record.
const MAX_FORMER: usize = 8;

/// A workspace as it is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkspaceRecord {
    /// Random; never changes.
    pub(crate) id: WorkspaceId,
    /// Where it was last seen, canonical.
    #[serde(with = "text::abs")]
    pub(crate) path: PathBuf,
    /// What its directory is known by.
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// What it was known by before another directory was found at its path, the latest last: that one may have been moved away, not
    /// deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) former: Vec<Identity>,
    /// Whether its path is another one's since, which was moved there: nothing at that path is this one's any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) displaced: bool,
    /// When it was registered.
    #[serde(with = "text::time")]
    pub(crate) created: Timestamp,
    /// The branch that it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<BranchId>,
    /// The provider that mounts its directory, if one does: `convert` says so before it is asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mounted_by: Option<ProviderName>,
    /// What the directory is known by that the provider reads then. None if none does, or it is not known: `convert` writes it down before the provider is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lies_behind: Option<Identity>,
    /// The first twelve digits of its repository's first commit: the same in every clone, to group workspaces by. Never a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_commit: Option<String>,
}

impl WorkspaceRecord {
    /// Whether a provider mounts its directory, if only once its process is started again. `convert` writes down that one does before that is
    /// so: killed then, or with a provider that mounts nothing, there is nothing mounted, nothing behind it and nothing that stands in for it.
    pub(crate) fn is_mounted(&self) -> bool {
        let is_behind = |path: PathBuf| path.symlink_metadata().is_ok_and(|there| there.is_dir());
        self.mounted_by.is_some()
            && (self.place_behind().is_some_and(is_behind) || mounts::at(&self.path).0 > 0 || is_place(&self.path))
    }

    /// The directory that a provider reads which mounts the workspace in its place; none if none does.
    pub(crate) fn behind(&self) -> Option<PathBuf> {
        self.mounted_by.as_ref()?;
        self.place_behind()
    }

    /// Whether that is gone.
    pub(crate) fn has_lost_behind(&self) -> bool {
        let is_gone =
            |path: PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        self.behind().is_some_and(is_gone)
    }

    /// Whether the workspace shows only what was written since: that is gone, or another directory is in its place, be it a copy of it.
    pub(crate) fn lacks_behind(&self) -> bool {
        let is_other = |known: &Identity| {
            let there = self.behind().and_then(|path| Identity::of_path(&path));
            there.is_some_and(|there| !known.same_but_for_device(&there))
        };
        self.has_lost_behind() || self.lies_behind.as_ref().is_some_and(is_other)
    }

    /// A provider mounts its directory from now on, or none does any more.
    pub(crate) fn mount(&mut self, by: Option<ProviderName>) {
        self.lies_behind = self.lies_behind.filter(|_| by.is_some());
        self.mounted_by = by;
    }

    /// Where that is, or was, or would be: it stays for snapshots that read it when the workspace is a plain directory again.
    pub(crate) fn place_behind(&self) -> Option<PathBuf> {
        let name = [BEHIND.as_bytes(), self.path.file_name()?.as_bytes()].concat();
        Some(self.path.with_file_name(OsStr::from_bytes(&name)))
    }

    /// Whether it is the one at that path, or the last that was.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        !self.displaced && self.path == *path
    }

    /// It is there now.
    pub(crate) fn relocate(&mut self, root: &Path, identity: Identity) {
        root.clone_into(&mut self.path);
        self.identity = identity;
        self.former.clear();
        self.displaced = false;
    }

    /// Another directory is at its path.
    pub(crate) fn replace(&mut self, identity: Identity) {
        self.former.push(std::mem::replace(&mut self.identity, identity));
        let surplus = self.former.len().saturating_sub(MAX_FORMER);
        self.former.drain(..surplus);
    }

    /// Whether this directory was it, until another one was found at its path.
    pub(crate) fn was(&self, identity: &Identity) -> bool {
        self.former.iter().any(|former| former.same(identity))
    }

    /// Whether its directory is a mount that a process has to keep, perhaps.
    pub(crate) fn may_be_mounted(&self) -> bool {
        self.branch.is_some() || self.mounted_by.is_some()
    }
}

impl Versioned for WorkspaceRecord {
    const VERSION: u64 = 1;
}

/// Reads a workspace's record, or its newest backup where that is lost, damaged, something else or another one's; none if its folder has none (its maker was
/// killed, or `gc` is at it).
pub(crate) fn load(home: &Home, id: &str) -> Result<Option<Doc<WorkspaceRecord>>> {
    let path = home.workspace(id).join("workspace.json");
    let is_own = |doc: &Doc<WorkspaceRecord>| doc.value.id.as_str() == id;
    let error = match Doc::load(&path)? {
        Some(doc) if is_own(&doc) => return Ok(Some(doc)),
        Some(_) => Some(Error::new(ErrorKind::DataLoss, format!("{} is of another workspace", path.display()))),
        None => None,
    };
    match (Doc::newest_backup(&path)?.filter(is_own), error) {
        (Some(doc), _) => Ok(Some(doc)),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

/// Writes a new workspace's record.
pub(crate) fn save_new(home: &Home, record: &WorkspaceRecord) -> Result<()> {
    Doc::new(record.clone()).save_new(&home.workspace(record.id.as_str()).join("workspace.json"))
}

/// Writes a workspace's record.
pub(crate) fn save(home: &Home, doc: &Doc<WorkspaceRecord>) -> Result<()> {
    doc.save(&home.workspace(doc.value.id.as_str()).join("workspace.json"))
}
