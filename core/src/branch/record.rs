//! What is written down of a branch: `branches/<id>.json`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ProviderName, Reference, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::attend::answers;
use crate::branch::repository::RepositoryMark;
use crate::carry::CarryReport;
use crate::fsio;
use crate::home::Home;
use crate::ids::{BranchId, WorkspaceId};
use crate::lock::Holder;
use crate::mounts;
use crate::registry::{self, Identity};
use crate::text::{self, text_enum};
use crate::versioned::{self, Doc, Versioned};

text_enum! {
    /// How far a branch is.
    pub enum BranchState {
        /// It is being made, or was when its maker died; then `gc` takes it away.
        Making = "making",
        /// It can be worked in.
        Ready = "ready",
        /// It is being taken away.
        Removing = "removing",
        /// It could be worked in, if it were mounted. So it is told, and never written down.
        NotMounted = "not-mounted",
        /// There is nothing at its place. So it is told, and never written down.
        Gone = "gone",
    }
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchRecord {
    /// Its id.
    pub id: BranchId,
    /// Its name, unique in `$AH_HOME`.
    pub name: String,
    /// How far it is.
    pub state: BranchState,
    /// Where it is.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// The workspace it grew from.
    pub origin: WorkspaceId,
    /// Where that is, as far as is known; in the file, as of when that was written.
    #[serde(with = "text::abs")]
    pub origin_path: PathBuf,
    /// The snapshot it grew from.
    pub snapshot: SnapshotId,
    /// The workspace that it is itself; none before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// Who made it.
    pub provider: ProviderName,
    /// The provider's name for it; none before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// When.
    #[serde(with = "text::time")]
    pub created: Timestamp,
    /// What a person should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What came along from the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<CarryReport>,
}

impl BranchRecord {
    /// Where the workspace that it grew from is now, as far as is known.
    pub(crate) fn origin_now(&self, home: &Home) -> PathBuf {
        let known = registry::load(home, self.origin.as_str()).ok().flatten();
        known.map_or_else(|| self.origin_path.clone(), |doc| doc.value.path)
    }
}

/// A branch as it is written down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BranchFile {
    #[serde(flatten)]
    pub(crate) record: BranchRecord,
    /// Who makes it, or takes it away.
    pub(crate) maker: Holder,
    /// The folder in which the provider made it.
    #[serde(with = "text::abs")]
    pub(crate) target: PathBuf,
    /// What its repository named when it was made; none: it was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repository: Option<RepositoryMark>,
    /// Whether its directory is a mount point that the provider made, or lies below one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mounted: bool,
    /// That mount point, where it is not its directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::abs_option")]
    pub(crate) mounted_at: Option<PathBuf>,
    /// Whether it was made for one command, and is to go when that has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) once: bool,
    /// Where it was made: the path in the file, whatever became of it since, but where all of `$AH_HOME` was moved.
    #[serde(skip)]
    pub(crate) made_at: PathBuf,
}

impl Versioned for BranchFile {
    const VERSION: u64 = 1;
}

impl BranchFile {
    /// How far it is, as it is told: by what is there now.
    pub(crate) fn state_told(&self) -> BranchState {
        let missing = |error: std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        match self.record.state {
            BranchState::Ready if self.is_lost() => BranchState::NotMounted,
            BranchState::Ready if std::fs::symlink_metadata(&self.record.path).is_err_and(missing) => BranchState::Gone,
            state => state,
        }
    }

    /// What was made for it in the folder that it was asked for in; None if it is elsewhere. In the folder of all branches that is more than the
    /// branch, where more had to be cloned; around one that somebody wanted elsewhere may be anything.
    pub(super) fn made(&self, branches: &Path) -> Option<PathBuf> {
        let target = self.target_as_told()?;
        if self.target != branches {
            return Some(self.made_at.clone());
        }
        Some(target.join(self.made_at.strip_prefix(&target).ok()?.components().next()?))
    }

    /// The folder that it was asked for in, as the path where it was made begins; None if it is elsewhere.
    fn target_as_told(&self) -> Option<PathBuf> {
        let is_above = |target: &PathBuf| self.made_at.starts_with(target);
        // A provider may have told its path without the symlinks that lead there.
        let plain = || std::fs::canonicalize(&self.target).ok();
        Some(self.target.clone()).filter(is_above).or_else(plain).filter(is_above)
    }

    /// Its directory, and those above it that were made with it, which a provider makes where it captures more than the workspace.
    fn levels(&self) -> Vec<&Path> {
        let target = self.target_as_told().filter(|target| *target != self.made_at);
        match target {
            Some(target) => self.made_at.ancestors().take_while(|dir| *dir != target).collect(),
            None => vec![&self.made_at],
        }
    }

    /// The topmost directory that was made for it, all of which goes with it.
    pub(super) fn made_whole(&self) -> &Path {
        self.levels().last().copied().unwrap_or(&self.made_at)
    }

    /// Its mount point, if it is mounted; else its directory.
    pub(crate) fn point(&self) -> &Path {
        self.mounted_at.as_deref().unwrap_or(&self.made_at)
    }

    /// Notes where the provider that has just made it has mounted it, if it has.
    pub(super) fn note_mount(&mut self) {
        let point = self.levels().into_iter().find(|dir| mounts::at(dir).0 > 0).map(Path::to_owned);
        self.mounted = point.is_some();
        self.mounted_at = point.filter(|point| *point != self.made_at);
    }

    /// The same where the file notes no mount, as one that an older version wrote, which knew of no mount point above the directory. Where nothing is mounted now, a
    /// mount point is a plain directory with nothing in it: what else is made above a branch is not empty, or a filesystem of its own.
    fn note_mount_of_older(&mut self) {
        if self.mounted || self.record.reference.is_none() {
            return;
        }
        let made = self.made_whole();
        if made == self.made_at {
            return;
        }
        let is_empty_point = || {
            let device =
                |dir: &Path| std::fs::symlink_metadata(dir).ok().filter(std::fs::Metadata::is_dir).map(|at| at.dev());
            answers(made)
                && device(made).is_some_and(|dev| made.parent().and_then(device) == Some(dev))
                && std::fs::read_dir(made).is_ok_and(|mut there| there.next().is_none())
        };
        if mounts::at(made).0 > 0 || is_empty_point() {
            self.mounted_at = Some(made.to_owned());
            self.mounted = true;
        }
    }

    /// With an `$AH_HOME` that was moved, what is in it was; not what a provider mounted there. A copy of the branch is another directory.
    fn come_along(&mut self, home: &Home, identity: &Identity) {
        let (branches, origin) = (Path::new("branches"), Path::new("workspaces").join(self.record.origin.as_str()));
        let parts = [branches.join(&self.record.name), origin];
        let here = parts.iter().find_map(|part| home.brought_along(&self.made_at, part));
        let is_it = |here: &PathBuf| Identity::of_path(here).is_some_and(|there| identity.same_but_for_device(&there));
        let Some(here) = here.filter(|here| !self.mounted && is_it(here)) else { return };
        if self.made_at.starts_with(&self.target) {
            self.target = home.brought_along(&self.target, branches).unwrap_or_else(|| self.target.clone());
        }
        self.record.path.clone_from(&here);
        self.made_at = here;
    }

    /// Whether it was left half made, or half taken away, by a process that has ended. The process may have come to its end, and written that down, after
    /// this was read: what is there once it is found dead is the last of it.
    pub(crate) fn is_left_unfinished(&self, home: &Home) -> Result<bool> {
        let open = |file: &Self| matches!(file.record.state, BranchState::Making | BranchState::Removing);
        if !open(self) || self.maker.alive() { Ok(false) } else { self.is_as_it_was_read(home) }
    }

    /// Whether the record says the same still of how far it is, and who is at it.
    pub(crate) fn is_as_it_was_read(&self, home: &Home) -> Result<bool> {
        let last = Self::load(home, &self.record.id)?;
        Ok(last.is_some_and(|last| last.record.state == self.record.state && last.maker == self.maker))
    }

    fn path(home: &Home, id: &BranchId) -> PathBuf {
        Self::path_in(home.path(), id)
    }

    /// Where what is known of a branch is, in the `$AH_HOME` at `home`.
    pub(super) fn path_in(home: &Path, id: &BranchId) -> PathBuf {
        home.join("branches").join(format!("{id}.json"))
    }

    /// What is on record of a branch; none if it is not there any more.
    pub(super) fn load(home: &Home, id: &BranchId) -> Result<Option<Self>> {
        Ok(Doc::load(&Self::path(home, id))?.map(|doc| doc.value))
    }

    pub(crate) fn save(&self, home: &Home) -> Result<()> {
        fsio::make_dir(&home.join("branches"))?;
        let path = Self::path(home, &self.record.id);
        let mut doc = Doc::load(&path)?.unwrap_or_else(|| Doc::new(self.clone()));
        doc.value = self.clone();
        doc.value.record.path.clone_from(&self.made_at);
        if self.record.state == BranchState::Ready {
            return doc.save_new(&path);
        }
        // Of one that is in the making there is no backup: read instead of a damaged record, it would have a finished branch taken away. Nor of one that is
        // being taken away: by that it could be worked in.
        doc.save_plain(&path)?;
        Doc::<Self>::forget_backup(&path)
    }

    pub(crate) fn forget(&self, home: &Home) -> Result<()> {
        let path = Self::path(home, &self.record.id);
        // The backup first: without its file nobody takes it away.
        Doc::<Self>::forget_backup(&path)?;
        fsio::remove_file(&path)
    }
}

/// The branch that a workspace is, as `id` says; none if it is none, or nothing is on record of it.
pub(crate) fn of_workspace(home: &Home, id: Option<&BranchId>) -> Result<Option<BranchRecord>> {
    let Some(id) = id else { return Ok(None) };
    Ok(all(home)?.into_iter().map(|file| file.record).find(|branch| branch.id == *id))
}

/// Whether nothing at all is on record of a branch, damaged or not.
pub(crate) fn has_left_nothing(home: &Home, id: &BranchId) -> bool {
    let path = BranchFile::path(home, id);
    let is_gone =
        |path: &Path| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    is_gone(&path) && is_gone(&fsio::suffixed(&path, "bak1"))
}

/// All branches of all workspaces that can be read, oldest first, each where it is now, and why others cannot.
pub(crate) fn read_all(home: &Home) -> Result<(Vec<BranchFile>, Vec<Error>)> {
    let (mut branches, unreadable) = versioned::load_all::<BranchFile>(&home.join("branches"))?;
    for branch in &mut branches {
        branch.record.origin_path = branch.record.origin_now(home);
        branch.made_at.clone_from(&branch.record.path);
        branch.note_mount_of_older();
        // A person may have moved it; then its own workspace knows where it is.
        if let Some(workspace) = &branch.record.workspace
            && let Ok(Some(own)) = registry::load(home, workspace.as_str())
        {
            branch.record.path = own.value.path;
            branch.come_along(home, &own.value.identity);
        }
    }
    branches.sort_by(|a, b| (a.record.created, &a.record.id).cmp(&(b.record.created, &b.record.id)));
    Ok((branches, unreadable))
}

/// As [`read_all`]. A file that cannot be read is passed over here; `gc` reports it.
pub(crate) fn all(home: &Home) -> Result<Vec<BranchFile>> {
    Ok(read_all(home)?.0)
}
