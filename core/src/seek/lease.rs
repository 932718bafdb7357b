//! The file of a lease.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ProviderName, Reference, RelPath, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::home::Home;
use crate::ids::{LeaseId, WorkspaceId};
use crate::lock::{Holder, boot_id};
use crate::mounts;
use crate::seek::LeaseRecord;
use crate::text;
use crate::versioned::{self, Doc, Versioned};

/// A lease as it is written down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeaseFile {
    pub(crate) id: LeaseId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) snapshot: SnapshotId,
    pub(crate) provider: ProviderName,
    #[serde(default, with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub(crate) paths: Vec<RelPath>,
    #[serde(with = "text::time")]
    pub(crate) created: Timestamp,
    /// Who asked for it.
    pub(crate) maker: Holder,
    /// Whether it ends with that process.
    #[serde(default)]
    pub(crate) bound: bool,
    /// Whether it shows another lease's view.
    #[serde(default)]
    pub(crate) shared: bool,
    /// The view; none: it is being made, or was when its maker died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shown: Option<Shown>,
}

/// A view that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    #[serde(with = "text::abs")]
    pub(crate) path: PathBuf,
    pub(crate) view: Reference,
    pub(crate) read_only_mount: bool,
    /// The run of the machine in which it was made: a mount does not outlive it.
    pub(crate) boot: String,
    /// Whether it is a mount of its own at `path`: where nothing is mounted there, as outside of the mount namespace in which it was made, is no view.
    #[serde(default)]
    pub(crate) mounted: bool,
}

impl Versioned for LeaseFile {
    const VERSION: u64 = 1;
}

impl Shown {
    /// Whether it still shows what it showed. What was deleted from under its mount, as a subvolume of Btrfs can be, looks empty, and is on no device.
    pub(crate) fn stands(&self) -> bool {
        let shows = || std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.dev() != 0);
        (!self.read_only_mount || self.boot == boot_id()) && shows()
    }

    /// Whether this process sees it there: another mount namespace may have it alone, or somebody has unmounted it.
    fn is_seen(&self) -> bool {
        !self.mounted || mounts::at(&self.path).0 > 0
    }
}

impl LeaseFile {
    fn path(home: &Home, id: &LeaseId) -> PathBuf {
        Self::path_in(home.path(), id)
    }

    /// Where what is known of a lease is, in the `$AH_HOME` at `home`.
    pub(super) fn path_in(home: &Path, id: &LeaseId) -> PathBuf {
        home.join("leases").join(format!("{id}.json"))
    }

    pub(crate) fn save(&self, home: &Home) -> Result<()> {
        fsio::make_dir(&home.join("leases"))?;
        // Written at most twice and gone soon: no backups.
        Doc::new(self.clone()).save_plain(&Self::path(home, &self.id))
    }

    pub(crate) fn remove(&self, home: &Home) -> Result<()> {
        fsio::remove_file(&Self::path(home, &self.id))
    }

    /// Whether nobody has given it back since it was read.
    pub(crate) fn is_on_record(&self, home: &Home) -> bool {
        Self::path(home, &self.id).exists()
    }

    /// Whether `path` is its view or lies in it.
    pub(crate) fn is_around(&self, path: &Path) -> bool {
        self.shown.as_ref().is_some_and(|shown| path.starts_with(&shown.path))
    }

    /// Whether it has a view, or its maker died before it had.
    pub(crate) fn is_settled(&self) -> bool {
        self.shown.is_some()
    }

    /// Whether nobody holds it any more.
    pub(crate) fn is_stale(&self) -> bool {
        match &self.shown {
            None => !self.maker.alive(),
            Some(shown) => (self.bound && !self.maker.alive()) || !shown.stands(),
        }
    }

    /// Whether its view can be shared by another lease of the whole snapshot. Not one that is protected by modes alone: its
    /// holder may have changed something in it. Nor one that nobody holds, which may be just being taken away; of a holder that is not seen from here, others may see that.
    pub(crate) fn shows_all_of(&self, workspace: &WorkspaceId, snapshot: &SnapshotId) -> bool {
        self.workspace == *workspace
            && self.snapshot == *snapshot
            && self.paths.is_empty()
            && !self.is_stale()
            && (!self.bound || self.maker.is_seen_alive())
            && self.shown.as_ref().is_some_and(|shown| shown.read_only_mount && shown.stands() && shown.is_seen())
    }

    /// What others are told of it, once it has a view.
    pub(crate) fn record(&self) -> Option<LeaseRecord> {
        let shown = self.shown.clone()?;
        Some(LeaseRecord {
            id: self.id.clone(),
            workspace: self.workspace.clone(),
            snapshot: self.snapshot.clone(),
            path: shown.path,
            read_only_mount: shown.read_only_mount,
            paths: self.paths.clone(),
            shared: self.shared,
            created: self.created,
            provider: self.provider.clone(),
            view: shown.view,
        })
    }
}

/// All leases that can be read, oldest first, each with its view where that is now, and why others cannot.
pub(crate) fn read_all(home: &Home) -> Result<(Vec<LeaseFile>, Vec<Error>)> {
    let (mut leases, unreadable) = versioned::load_all::<LeaseFile>(&home.join("leases"))?;
    for lease in &mut leases {
        let store = Path::new("workspaces").join(lease.workspace.as_str());
        let Some(shown) = &mut lease.shown else { continue };
        let parts = [Path::new("mounts"), &store];
        shown.path =
            parts.iter().find_map(|part| home.brought_along(&shown.path, part)).unwrap_or_else(|| shown.path.clone());
    }
    leases.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    Ok((leases, unreadable))
}

/// All leases, oldest first. A file that cannot be read is passed over here; `gc` reports it.
pub(crate) fn all(home: &Home) -> Result<Vec<LeaseFile>> {
    Ok(read_all(home)?.0)
}

/// Where views are.
pub(crate) fn view_paths(home: &Home) -> Result<Vec<PathBuf>> {
    Ok(all(home)?.into_iter().filter_map(|lease| lease.shown).map(|shown| shown.path).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_view_from_under_which_its_subvolume_was_deleted_does_not_stand() {
        let Some(disk) = ah_test_disks::Disk::new("btrfs", 300, "") else { return };
        let (tree, at) = (disk.at().join("tree"), disk.at().join("view"));
        let run = |program: &str, args: &[&str], paths: &[&Path]| {
            assert!(Command::new(program).args(args).args(paths).status().unwrap().success());
        };
        run("btrfs", &["-q", "subvolume", "create"], &[&tree]);
        std::fs::write(tree.join("f"), "x").unwrap();
        std::fs::create_dir(&at).unwrap();
        run("mount", &["--bind"], &[&tree, &at]);
        let shown = Shown {
            path: at.clone(),
            view: Reference::new("view").unwrap(),
            read_only_mount: true,
            boot: boot_id(),
            mounted: true,
        };
        let stood = shown.stands();
        run("btrfs", &["-q", "subvolume", "delete"], &[&tree]);
        let stands = shown.stands();
        ah_test_disks::unmount(&at);
        assert_eq!((stood, stands), (true, false));
    }
}
