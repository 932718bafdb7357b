//! Views of snapshots, and the leases under which they are held.
//!
//! A lease is a file, `leases/<id>.json`; its view is in `mounts/`, under the id of the lease that first asked for it. The file
//! comes before the view and goes after it, so that a killed process leaves a file without a view, which `gc` takes away, never a view without a
//! file. Leases of one whole snapshot share one view where that is a
//! read-only mount.

mod lease;

use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Error, ErrorKind, FileName, MountRequest, ProviderName, Reference, RelPath, Result, SnapshotId, Timestamp,
    UnmountRequest,
};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::ids::{LeaseId, WorkspaceId, letters};
use crate::lock::{Holder, Lock, PATIENCE, boot_id};
use crate::mounts;
use crate::record::SnapshotRecord;
use crate::text;
use crate::view;
use crate::workspace::Workspace;

pub(crate) use lease::{LeaseFile, Shown, all, read_all, view_paths};

/// What can be said about a seek.
#[derive(Debug, Clone, Default)]
pub struct SeekOptions {
    /// Show at least these paths and what is below them; empty: everything.
    pub paths: Vec<RelPath>,
    /// Give it back by itself when this process has ended; for views that a program uses itself.
    pub while_process_lives: bool,
}

/// A view that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Its id.
    pub id: LeaseId,
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The snapshot that it shows.
    pub snapshot: SnapshotId,
    /// Where the view is.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// Whether it is read-only for root too.
    pub read_only_mount: bool,
    /// The paths it was asked for; empty: everything.
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPath>,
    /// Whether another lease's view is shown.
    #[serde(default)]
    pub shared: bool,
    /// Since when.
    #[serde(with = "text::time")]
    pub created: Timestamp,
    /// Who holds the snapshot.
    pub provider: ProviderName,
    /// The provider's name for the view.
    pub view: Reference,
}

/// Which views are given back.
#[derive(Debug, Clone)]
pub enum Release {
    /// The one at this path, or around it.
    Path(PathBuf),
    /// The lease of this id.
    Id(LeaseId),
    /// All of this workspace.
    All,
}

impl Workspace {
    /// Shows a snapshot at a path, read-only, until it is released.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `NotFound` if one of the paths was not there; the provider's.
    pub fn seek(&self, reference: &str, options: &SeekOptions) -> Result<LeaseRecord> {
        let stays = self.lock_stays()?;
        let snapshot = &self.resolve(reference)?;
        let home = self.engine.home();
        let mut lease = LeaseFile {
            id: LeaseId::new(letters(&self.engine.settings().ids))?,
            workspace: self.id.clone(),
            snapshot: snapshot.id.clone(),
            provider: snapshot.provider.clone(),
            paths: options.paths.clone(),
            created: self.engine.settings().clock.now(),
            maker: Holder::me(),
            bound: options.while_process_lives,
            shared: false,
            shown: None,
        };
        {
            let _lock = self.engine.lock_leases()?;
            if options.paths.is_empty()
                && let Some(other) = all(home)?.into_iter().find(|other| other.shows_all_of(&self.id, &snapshot.id))
            {
                lease.shown = other.shown;
                lease.shared = true;
            }
            lease.save(home)?;
        }
        // From here on the lease says that the snapshot is needed; to show it may take long.
        drop(stays);
        if lease.shown.is_none() {
            match self.mount(snapshot, &lease) {
                Ok(shown) => lease.shown = Some(shown),
                Err(error) => {
                    // The provider left nothing behind that its own reclaim does not find.
                    lease.remove(home)?;
                    return Err(error);
                }
            }
            let _lock = self.engine.lock_leases()?;
            lease.save(home)?;
        }
        lease.record().ok_or_else(|| Error::new(ErrorKind::Internal, "a view was made without a path"))
    }

    fn mount(&self, snapshot: &SnapshotRecord, lease: &LeaseFile) -> Result<Shown> {
        let served = self.serve(&snapshot.provider)?;
        let mounts = self.mounts_dir()?;
        let request = MountRequest {
            snapshot: snapshot.reference.clone(),
            name: FileName::new(lease.id.as_str())?,
            paths: lease.paths.clone(),
        };
        let place = served.place().with_target(&mounts);
        let view = view::mount(&*served.provider, &place, &request, &self.root, &self.context())
            .map_err(|error| self.explain_lost(snapshot, error))?;
        let mounted = mounts::at(&view.path).0 > 0;
        Ok(Shown {
            path: view.path,
            view: view.reference,
            read_only_mount: view.read_only_mount,
            boot: boot_id(),
            mounted,
        })
    }

    /// Gives views back; answers which. A view goes when its last lease does. Of several, one that cannot be given back keeps none
    /// of the others.
    ///
    /// # Errors
    /// `NotFound` if there is none such; `Busy` while a process uses the view; of all, `DataLoss` if it cannot be read which view one is.
    pub fn release(&self, which: &Release) -> Result<Vec<LeaseRecord>> {
        match which {
            Release::All => self.engine.release_of(which, Some(&self.id)),
            // A view is found wherever one stands.
            Release::Path(_) | Release::Id(_) => self.engine.release(which),
        }
    }

    /// All leases of this workspace, oldest first.
    ///
    /// # Errors
    /// If the folder of leases cannot be read.
    pub fn leases(&self) -> Result<Vec<LeaseRecord>> {
        let all = all(self.engine.home())?.into_iter().filter(|lease| lease.workspace == self.id);
        Ok(all.filter_map(|lease| lease.record()).collect())
    }
}

impl Engine {
    /// Gives views back, whichever workspace they are of; [`Release::All`] those of all workspaces.
    ///
    /// # Errors
    /// `NotFound` if there is none such; `Busy` while a process uses the view; of all, `DataLoss` if it cannot be read which view one is.
    pub fn release(&self, which: &Release) -> Result<Vec<LeaseRecord>> {
        self.release_of(which, None)
    }

    /// The workspace of which a view is shown at or around `path`; none if no view is.
    ///
    /// # Errors
    /// If the folder of leases cannot be read.
    pub fn workspace_of_view(&self, path: &Path) -> Result<Option<Workspace>> {
        let there = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match all(self.home())?.into_iter().find(|lease| lease.is_around(&there)) {
            Some(lease) => self.workspace_by_id(&lease.workspace),
            None => Ok(None),
        }
    }

    fn release_of(&self, which: &Release, workspace: Option<&WorkspaceId>) -> Result<Vec<LeaseRecord>> {
        let _lock = self.lock_leases()?;
        let (mut settled, mut unreadable) = read_all(self.home())?;
        settled.retain(|lease| lease.is_settled() && workspace.is_none_or(|id| lease.workspace == *id));
        let settled = settled.into_iter();
        let (chosen, named): (Vec<LeaseFile>, String) = match which {
            Release::All => (settled.collect(), String::new()),
            Release::Id(id) => (settled.filter(|lease| lease.id == *id).collect(), id.to_string()),
            Release::Path(path) => {
                let there = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                // Of several leases of one view a person gives back their own first, the oldest.
                let mut around: Vec<LeaseFile> = settled.filter(|lease| lease.is_around(&there)).collect();
                around.sort_by_key(|lease| (lease.bound, lease.created));
                around.truncate(1);
                (around, path.display().to_string())
            }
        };
        if chosen.is_empty() && !matches!(which, Release::All) {
            return Err(Error::new(ErrorKind::NotFound, format!("{named} is no view that is held"))
                .with_hint("`ah agent fs status` lists the views of a workspace"));
        }
        if !matches!(which, Release::All) {
            unreadable.clear();
        }
        let all = chosen.len() + unreadable.len();
        let (mut released, mut first_error) = (Vec::new(), unreadable.into_iter().next());
        for lease in &chosen {
            match self.give_back(lease) {
                Ok(record) => released.push(record),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        match first_error {
            None => Ok(released),
            Some(error) if all == 1 => Err(error),
            Some(error) => Err(error.context(format!("{} of {all} views were given back", released.len()))),
        }
    }

    pub(crate) fn leases_lock(&self) -> PathBuf {
        self.home().join("leases.lock")
    }

    pub(crate) fn views_lock(&self) -> PathBuf {
        self.home().join("views.lock")
    }

    pub(crate) fn lock_leases(&self) -> Result<Lock> {
        Lock::take(&self.leases_lock(), true, PATIENCE, &*self.settings().observer)
    }

    /// Takes a lease away, and its view if nobody else holds it. The leases are locked.
    pub(crate) fn give_back(&self, lease: &LeaseFile) -> Result<LeaseRecord> {
        let record = lease.record();
        if let Some(shown) = self.view_of_it_alone(lease)? {
            self.unmount(lease, shown)?;
        }
        lease.remove(self.home())?;
        record.ok_or_else(|| Error::new(ErrorKind::Internal, "a lease without a view was released"))
    }

    /// The same of one that nobody holds, with `views` locked and not the leases, so that nobody waits for a provider that takes long. Nobody comes to share the view meanwhile: that
    /// is only done with one that somebody holds. Who gives it back by hand meanwhile has done what was wanted.
    pub(crate) fn give_back_stale(&self, lease: &LeaseFile, _views: &Lock) -> Result<()> {
        let home = self.home();
        let alone = {
            let _lock = self.lock_leases()?;
            let alone = self.view_of_it_alone(lease)?;
            if alone.is_none() {
                return lease.remove(home);
            }
            alone
        };
        let outcome = alone.map_or(Ok(()), |shown| self.unmount(lease, shown));
        let _lock = self.lock_leases()?;
        if !lease.is_on_record(home) {
            return Ok(());
        }
        outcome?;
        lease.remove(home)
    }

    /// The view of a lease, if it is there, goes with that and is shown by no other. The leases are locked.
    fn view_of_it_alone<'a>(&self, lease: &'a LeaseFile) -> Result<Option<&'a Shown>> {
        let Some(shown) = &lease.shown else { return Ok(None) };
        let same_view = |other: &LeaseFile| {
            other.id != lease.id && other.shown.as_ref().is_some_and(|o| o.view == shown.view && o.path == shown.path)
        };
        // What a copy has only the record of is the original's view.
        let of_original = |original: &Path| LeaseFile::path_in(original, &lease.id).exists();
        let is_ours = !self.home().original().is_some_and(of_original);
        Ok((is_ours && !all(self.home())?.iter().any(same_view)).then_some(shown))
    }

    fn unmount(&self, lease: &LeaseFile, shown: &Shown) -> Result<()> {
        let Some(workspace) = self.workspace_by_id(&lease.workspace)? else {
            // Its workspace's state is gone, and with it whoever knew the view.
            if !is_there(&shown.path) {
                return Ok(());
            }
            return crate::gc::remove_view_folder(&shown.path, self.home());
        };
        let served = workspace.serve(&lease.provider)?;
        let mounts = workspace.mounts_dir()?;
        let request = UnmountRequest { view: shown.view.clone(), unused: false };
        served
            .provider
            .unmount(&served.place().with_target(&mounts), &request, &workspace.context())
            .map(|_| ())
            .map_err(|error| {
                if error.kind == ErrorKind::Busy && error.hint.is_none() {
                    let hint = format!("leave {} (also with other shells), then repeat", shown.path.display());
                    return error.with_hint(hint);
                }
                error
            })
    }
}

/// Whether a path is a mount point or anything else that is there.
pub(crate) fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
