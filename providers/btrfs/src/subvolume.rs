//! The subvolume that contains a workspace, and what this process may do with subvolumes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use ah_plugin_api::{Dir, Error, ErrorKind, RelPath, Result};
use ah_provider_directory::{
    Mounts, climb, climb_by_other_mounts, failed, has_capability, in_first_user_namespace, is_known_here,
};
use rustix::fs::{Mode, OFlags, Statx};

use crate::sys;

/// capabilities(7)
const CAP_FOWNER: u32 = 3;
const CAP_SYS_ADMIN: u32 = 21;

/// The subvolume that contains a workspace.
#[derive(Debug)]
pub(crate) struct Subvolume {
    /// Its root, opened with `O_PATH`: not everybody may read it.
    pub(crate) root: OwnedFd,
    /// The root's attributes.
    pub(crate) stat: Statx,
    /// From the root to the workspace.
    pub(crate) rel: RelPath,
    /// The root's path, for people.
    pub(crate) path: PathBuf,
}

/// Whether something open is on a Btrfs.
pub(crate) fn is_btrfs(fd: impl AsFd) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "the type differs between machines")]
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type as i64 == i64::from(sys::SUPER_MAGIC))
}

/// Whether those are the attributes of a subvolume's root.
pub(crate) fn is_root(stat: &Statx) -> bool {
    stat.stx_ino == sys::ROOT_INODE
}

/// Whether those, on a Btrfs, are the attributes of the empty directory that stands in a snapshot where a subvolume was nested.
pub(crate) fn is_stub(stat: &Statx) -> bool {
    stat.stx_ino == sys::STUB_INODE
}

impl Subvolume {
    /// The one that contains `workspace`.
    ///
    /// # Errors
    /// `FailedPrecondition` if this is no Btrfs, or the subvolume's root cannot be reached.
    pub(crate) fn around(workspace: &Dir) -> Result<Self> {
        let shown = workspace.path().display();
        if !is_btrfs(workspace) {
            return Err(Error::new(ErrorKind::FailedPrecondition, format!("{shown} is not on a Btrfs filesystem")));
        }
        let climbed = match climb(workspace.as_fd(), is_root)? {
            None => climb_by_other_mounts(workspace.as_fd(), &Mounts::read()?, is_root)?,
            found => found,
        };
        let climbed = climbed.ok_or_else(|| {
            let message =
                format!("{shown} is on a mount of a part of a subvolume, whose root cannot be reached from there");
            Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("work at the path below the mounted subvolume itself")
        })?;
        let path = climbed.path();
        Ok(Self { root: climbed.root, stat: climbed.stat, rel: climbed.rel, path })
    }

    /// Opens its root so that it can be snapshotted.
    ///
    /// # Errors
    /// `PermissionDenied` if this user may not read it.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, c".", flags, Mode::empty())
            .map_err(|errno| failed(format!("cannot open the subvolume {}", self.path.display()), errno))
    }

    /// Whether this process may make snapshots of it: who owns its root, or may do as owners do.
    pub(crate) fn is_own(&self) -> bool {
        let owner = self.stat.stx_uid;
        rustix::process::geteuid().as_raw() == owner || (has_capability(CAP_FOWNER) && is_known_here(owner))
    }

    /// What a snapshot holds beyond the workspace, for a person.
    pub(crate) fn pins(&self) -> Option<String> {
        (!self.rel.is_root()).then(|| format!("the subvolume {}", self.path.display()))
    }
}

/// How subvolumes on the filesystem of what is open can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// By one call, read-only ones too.
    Root,
    /// By one call, once they are writable: the filesystem is mounted with `user_subvol_rm_allowed`.
    Owner,
    /// Only empty ones: file by file.
    Emptied,
}

impl Removal {
    /// For this process.
    pub(crate) fn on(fd: impl AsFd) -> Self {
        if is_privileged() {
            Self::Root
        } else if Mounts::read()
            .is_ok_and(|mounts| mounts.of(fd).is_some_and(|mount| mount.has_super_option("user_subvol_rm_allowed")))
        {
            Self::Owner
        } else {
            Self::Emptied
        }
    }
}

/// Whether this process may do as root does with subvolumes.
pub(crate) fn is_privileged() -> bool {
    has_capability(CAP_SYS_ADMIN) && in_first_user_namespace()
}
