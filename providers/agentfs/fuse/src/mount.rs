//! Mounting and unmounting: as root by the system call, else by `fusermount3`.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ah_agentfs::View;
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::host::Host;

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be mounted or unmounted, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no FUSE, or the container does not show it.
    #[error("there is no /dev/fuse here: load the module (`modprobe fuse`), or give the container that device")]
    NoDevice,
    /// `/dev/fuse` is there, and this user may not open it.
    #[error(
        "/dev/fuse may not be opened by this user: `chmod 0666 /dev/fuse`, as distributions have it, or join its group"
    )]
    NotPermitted,
    /// Ordinary users mount by it.
    #[error("fusermount3 is not installed, by which users mount: install the package fuse3")]
    NoFusermount,
    /// Nothing is mounted over what somebody could miss.
    #[error("{} is not an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// Somebody works in it.
    #[error("{} is in use: leave it, or close the files that are open there", .0.display())]
    Busy(PathBuf),
    /// The system said no.
    #[error("cannot {what} {}", at.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// Where.
        at: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A tree, mounted. Dropping it takes it out of the namespace at once; who has files open there keeps them until they are closed,
/// or this process ends.
///
/// ```no_run
/// use std::path::Path;
/// use ah_agentfs::{Options, Workspace};
/// use ah_agentfs_fuse::Mount;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let workspace = Workspace::open(Path::new("/var/tmp/store"), Path::new("/home/me/project"), Options::default())?;
/// let branch = workspace.branches()[0].id;
/// let mut mount = Mount::new(workspace.view(branch)?, Path::new("/home/me/branch"))?;
/// // … work in /home/me/branch …
/// mount.unmount()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    /// `None` once it has ended.
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Shows a tree at an empty directory: read-only if it is a snapshot; to all users if root mounts it, else to this one
    /// only; without devices and set-id bits.
    pub fn new(view: View, at: &Path) -> Result<Self> {
        let failed = |source| Error::Io { what: "mount at", at: at.to_owned(), source };
        let root = rustix::process::geteuid().is_root();
        // The path may be gone under us: what is mounted is what was looked at, or nothing.
        let at = at.canonicalize().map_err(failed)?;
        if std::fs::read_dir(&at).map_err(failed)?.next().is_some() {
            return Err(Error::NotEmpty(at));
        }
        look_for_fuse(root)?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("agentfs".into()),
            MountOption::Subtype("agentfs".into()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
            if view.is_snapshot() { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = if root { SessionACL::All } else { SessionACL::Owner };
        // Some wait for the disk while others answer.
        config.n_threads = Some(std::thread::available_parallelism().map_or(4, |cores| cores.get().clamp(4, 16)));
        config.clone_fd = true;
        let session = fuser::spawn_mount(Host::new(view), &at, &config).map_err(failed)?;
        Ok(Self { at, session: Some(session) })
    }

    /// Where it is.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Unmounts it, and waits until the tree is given back. [`Error::Busy`] if somebody works there: then it goes on.
    pub fn unmount(&mut self) -> Result<()> {
        if self.session.is_some() {
            unmount(&self.at, false)?;
        }
        self.wait()
    }

    /// Waits until somebody else unmounts it.
    pub fn wait(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        session.join().map_err(|source| Error::Io { what: "serve", at: self.at.clone(), source })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.as_ref().is_some_and(|session| !session.guard.is_finished()) {
            let _ = unmount(&self.at, true);
        }
    }
}

/// Whether FUSE is to be had, so that what is missing has a name.
fn look_for_fuse(root: bool) -> Result<()> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(Error::NotPermitted),
        // ENXIO, ENODEV: the node is there, and nothing behind it.
        Err(_) => return Err(Error::NoDevice),
    }
    if root || fusermount().arg("-V").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(Error::NoFusermount)
}

fn fusermount() -> Command {
    let mut command = Command::new("fusermount3");
    command.stdin(Stdio::null());
    command
}

/// Unmounts what is at a path; lazily, if somebody may have files open there.
fn unmount(at: &Path, lazily: bool) -> Result<()> {
    let failed = |source| Error::Io { what: "unmount", at: at.to_owned(), source };
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    match rustix::mount::unmount(at, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => return Err(Error::Busy(at.to_owned())),
        // Only root may; but what fusermount3 has mounted for a user it unmounts for them.
        Err(Errno::PERM) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    let output = fusermount().arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(at).output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") { Err(Error::Busy(at.to_owned())) } else { Err(failed(io::Error::other(said))) }
}
