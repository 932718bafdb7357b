//! From a path to its workspace.
//!
//! Upwards from the path, the first directory counts that is registered or the top of a Git work tree. A registered one is known
//!
//! 1. by identity (device, inode, time of birth), also at another path: a branch that `exec` shows at the workspace's path, or a
//!    workspace that was moved; it has moved if its old path does not lead to it any more;
//! 2. else by path: the directory was deleted and made anew (or its filesystem mounted anew), and its timeline goes on. One that was moved and
//!    replaced by a copy looks the same; `adopt` puts that right.
//!
//! A work tree counts for what is below it only if no stranger can have put its `.git` there: in a directory that many may write to (`/tmp`,
//! a shared one) anybody can, and with it comes what is captured, what is ignored and what is restored. As with Git, `.git` and its
//! directory must be the user's own, root's, or, by `sudo`, those of the user who became root; beside these those of whom the directory
//! belongs to that was asked for: so root, in a user's directory, finds that user's repository. Who names the top itself means it, and
//! once it is registered it is found from below, too.
//!
//! A copy has neither, so it is new; and so is a second clone, as nothing of a repository's contents counts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::home::Home;
use crate::registry::{Identity, Index, WorkspaceRecord};
use crate::seek::LeaseFile;
use crate::text;

/// What a path leads to.
#[derive(Debug)]
pub(crate) enum Found {
    /// A registered workspace, as it was registered.
    Same(WorkspaceRecord),
    /// A registered workspace seen at another path on purpose (`exec`); nothing is to be written down.
    Elsewhere(WorkspaceRecord),
    /// A registered workspace that was moved here.
    Moved(WorkspaceRecord),
    /// A registered workspace whose directory is another one now.
    MadeAnew(WorkspaceRecord),
    /// The same directory under another device number.
    Renumbered(WorkspaceRecord),
    /// Nothing that is registered; this would be it.
    New,
}

impl Found {
    /// The registered workspace, if it is one.
    pub(crate) fn record(&self) -> Option<&WorkspaceRecord> {
        match self {
            Self::Same(record)
            | Self::Elsewhere(record)
            | Self::Moved(record)
            | Self::MadeAnew(record)
            | Self::Renumbered(record) => Some(record),
            Self::New => None,
        }
    }
}

/// Finds workspaces.
pub(crate) struct Finder<'a> {
    pub(crate) home: &'a Home,
    pub(crate) index: &'a Index,
    /// Views, each under its lease.
    pub(crate) views: &'a [LeaseFile],
    /// The user's home directory.
    pub(crate) user_home: Option<&'a Path>,
    /// Who became root by `sudo`.
    pub(crate) sudo_user: Option<u32>,
    /// Told of each work tree that was passed over, and of the workspace that would be in its place.
    pub(crate) passed_over: &'a dyn Fn(&Strange, &Path),
}

/// The top of a work tree that is a stranger's.
#[derive(Debug)]
pub(crate) struct Strange {
    pub(crate) top: PathBuf,
    pub(crate) owner: u32,
}

impl Finder<'_> {
    /// The root, its identity, and what it is. `path` is canonical and a directory.
    pub(crate) fn find(&self, path: &Path) -> Result<(PathBuf, Identity, Found)> {
        self.refuse_own_places(path)?;
        let mut strangers = Vec::new();
        let found = self.find_upwards(path, &mut strangers)?;
        if matches!(found.2, Found::New) {
            strangers.iter().for_each(|strange| (self.passed_over)(strange, &found.0));
        }
        Ok(found)
    }

    fn find_upwards(&self, path: &Path, strangers: &mut Vec<Strange>) -> Result<(PathBuf, Identity, Found)> {
        let mut nearest_git = None;
        for dir in path.ancestors() {
            let Some(identity) = Identity::of_path(dir) else { continue };
            if let Some(found) = self.registered(dir, &identity) {
                // A Git work tree that lies deeper than what is registered is a workspace of its own.
                if let Some((git, identity)) = nearest_git {
                    return Ok((git, identity, Found::New));
                }
                return Ok((dir.to_owned(), identity, found));
            }
            if nearest_git.is_some() || std::fs::symlink_metadata(dir.join(".git")).is_err() {
                continue;
            }
            // Who keeps their home directory in Git does not mean all of it in each directory below.
            if dir != path && too_much(dir, self.user_home) {
                continue;
            }
            match self.stranger(dir, path).filter(|_| dir != path) {
                Some(owner) => strangers.push(Strange { top: dir.to_owned(), owner }),
                None => nearest_git = Some((dir.to_owned(), identity)),
            }
        }
        // What lies in `branches/` and in no branch is what a killed process left of one.
        if path.starts_with(self.home.path()) {
            return Err(inside_home(path));
        }
        match nearest_git {
            Some((git, identity)) => Ok((git, identity, Found::New)),
            None => {
                let identity = Identity::of_path(path).ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, format!("{} cannot be looked at", path.display()))
                })?;
                Ok((path.to_owned(), identity, Found::New))
            }
        }
    }

    /// Whose the work tree at `top` is, seen from `path` in it, if that is nobody who decides for this user.
    fn stranger(&self, top: &Path, path: &Path) -> Option<u32> {
        let owner = |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| found.uid());
        let me = rustix::process::geteuid();
        let own = [Some(me.as_raw()), Some(0), self.sudo_user.filter(|_| me.is_root()), owner(path)];
        let owners = [owner(top), owner(&top.join(".git"))];
        owners.into_iter().flatten().find(|owner| !own.contains(&Some(*owner)))
    }

    fn registered(&self, dir: &Path, identity: &Identity) -> Option<Found> {
        let all = || self.index.workspaces.iter();
        let mut alike: Vec<&WorkspaceRecord> = all().filter(|record| record.identity.same(identity)).collect();
        // Without a time of birth an inode that was used again could look alike: the one of this path comes first.
        alike.sort_by_key(|record| !record.is_at(dir));
        if let Some(record) = alike.first() {
            if record.is_at(dir) {
                return Some(Found::Same((*record).clone()));
            }
            return match Identity::of_path(&record.path) {
                Some(there) if there.same(identity) && !record.displaced => Some(Found::Elsewhere((*record).clone())),
                _ => Some(Found::Moved((*record).clone())),
            };
        }
        // A folder above it was renamed, and what is mounted there has another number since: its root's inode is nobody else's.
        let is_it = |record: &&WorkspaceRecord| {
            record.mounted_by.is_some() && record.path != dir && record.identity.same_but_for_device(identity)
        };
        if let Some(record) = all().find(is_it) {
            return Some(Found::Moved(record.clone()));
        }
        let record = all().find(|record| record.is_at(dir))?;
        if record.identity.same_but_for_device(identity) {
            return Some(Found::Renumbered(record.clone()));
        }
        Some(Found::MadeAnew(record.clone()))
    }

    fn refuse_own_places(&self, path: &Path) -> Result<()> {
        let lies_behind =
            |record: &&WorkspaceRecord| record.place_behind().is_some_and(|behind| path.starts_with(behind));
        if let Some(workspace) = self.index.workspaces.iter().find(lies_behind) {
            let (path, root) = (path.display(), workspace.path.display());
            let message = format!("{path} lies behind {root}, or did: nothing is to be done there");
            let hint = format!("cd {}", text::shell(workspace.path.as_os_str()));
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        }
        let mounts = self.home.join("mounts");
        let around = self.views.iter().find(|lease| lease.is_around(path));
        if around.is_some() || path.starts_with(&mounts) {
            let shown = around.and_then(|lease| lease.shown.as_ref()).map_or(path, |shown| &shown.path);
            let message = match path == shown {
                true => format!("{} is a read-only view", path.display()),
                false => format!("{} is inside the read-only view {}", path.display(), shown.display()),
            };
            let hint = match around.and_then(|lease| self.index.by_id(&lease.workspace)) {
                Some(workspace) => format!("cd {}", text::shell(workspace.path.as_os_str())),
                None => "go to the workspace itself".to_owned(),
            };
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        }
        let branches = self.home.join("branches");
        let in_branch = path.strip_prefix(&branches).is_ok_and(|rest| rest.components().next().is_some());
        if path.starts_with(self.home.path()) && !in_branch { Err(inside_home(path)) } else { Ok(()) }
    }
}

fn inside_home(path: &Path) -> Error {
    let message = format!("{} is inside AH_HOME, which is not captured", path.display());
    Error::new(ErrorKind::FailedPrecondition, message).with_hint("work in another directory (`-C DIR`)")
}

/// Directories that are the system's, and nobody's work as a whole. What is in them may be.
const SYSTEM: [&str; 21] = [
    "/", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt",
    "/opt", "/run", "/sbin", "/srv", "/tmp", "/usr", "/var", "/var/tmp",
];

/// Whether a directory, given by its canonical path, holds the user's whole home directory, or the system. Some of the system's are links
/// to others: `/bin` to `/usr/bin`, mostly.
pub(crate) fn too_much(dir: &Path, user_home: Option<&Path>) -> bool {
    let is_the_systems = || SYSTEM.iter().any(|system| std::fs::canonicalize(system).is_ok_and(|there| there == dir));
    SYSTEM.iter().any(|system| dir == Path::new(system))
        || user_home.is_some_and(|home| home.starts_with(dir))
        || is_the_systems()
}

/// Whether what is in a directory are no files but answers of the kernel: `/proc`, `/sys` and their like. To read one may do
/// something, and what it says may be another process's secret.
///
/// The numbers are those of `linux/magic.h`.
pub(crate) fn is_the_kernels(dir: &Path) -> bool {
    const PROC: u32 = 0x9fa0;
    const SYSFS: u32 = 0x6265_6572;
    const CGROUP: u32 = 0x0027_e0eb;
    const CGROUP2: u32 = 0x6367_7270;
    const DEBUGFS: u32 = 0x6462_6720;
    const TRACEFS: u32 = 0x7472_6163;
    const SECURITYFS: u32 = 0x7363_6673;
    const CONFIGFS: u32 = 0x6265_6570;
    const SELINUX: u32 = 0xf97c_ff8c;
    const BPF: u32 = 0xcafe_4a11;
    const EFIVARFS: u32 = 0xde5e_81e4;
    const PSTORE: u32 = 0x6165_676c;
    const DEVPTS: u32 = 0x1cd1;
    const OF_THE_KERNEL: [u32; 13] =
        [PROC, SYSFS, CGROUP, CGROUP2, DEBUGFS, TRACEFS, SECURITYFS, CONFIGFS, SELINUX, BPF, EFIVARFS, PSTORE, DEVPTS];
    // The type that the kernel's interface has for these numbers differs from machine to machine; they have 32 bits.
    rustix::fs::statfs(dir).is_ok_and(|stat| OF_THE_KERNEL.contains(&(stat.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::{SYSTEM, too_much};
    use std::path::Path;

    #[test]
    fn what_is_the_systems_is_too_much_itself_and_the_documentation_says_so() {
        for directory in ["/etc", "/tmp", "/var/tmp", "/mnt", "/media", "/dev/shm", "/usr", "/home"].map(Path::new) {
            assert!(too_much(directory, None), "{}", directory.display());
            assert!(!too_much(&directory.join("mine"), None), "{}", directory.display());
        }
        // However they are named, where they are links.
        for directory in SYSTEM.iter().filter_map(|directory| std::fs::canonicalize(directory).ok()) {
            assert!(too_much(&directory, None), "{}", directory.display());
        }
        let told = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SEMANTICS.md")).unwrap();
        let told = told.lines().find(|line| line.contains("the system's own directories (")).unwrap();
        let is_told = |directory: &&str| {
            let directory = if directory.starts_with("/lib") { "/lib…" } else { directory };
            told.contains(&format!("`{directory}`"))
        };
        assert_eq!(SYSTEM.iter().filter(|directory| !is_told(directory)).collect::<Vec<_>>(), [&""; 0]);
    }
}
