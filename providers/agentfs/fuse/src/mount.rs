//! Mounting and unmounting: as root by the system call, else by `fusermount3`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ah_agentfs::{Ino, ROOT, View};
use fuser::{BackgroundSession, Config, INodeNo, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::host::Host;
use crate::watch::{self, Watch};

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
    /// Ends with the session; the tree is given back when both have.
    watcher: Option<JoinHandle<()>>,
}

/// By what a mount is known from outside.
#[derive(Debug, Clone)]
pub struct Face {
    /// What the mount table names as its source: letters, digits, `/ . _ - : # %` only.
    pub source: String,
    /// What `stat` shows as the root's inode number. Others have those of the tree.
    pub root: Ino,
}

impl Default for Face {
    fn default() -> Self {
        Self { source: "agentfs".into(), root: ROOT }
    }
}

impl Mount {
    /// Shows a tree at an empty directory: read-only if it is a snapshot; to all users if root mounts it, else to this one
    /// only; without devices and set-id bits. It is mounted by path: where others may rename directories above, they decide where that is.
    pub fn new(view: View, at: &Path) -> Result<Self> {
        Self::with_face(view, at, &Face::default())
    }

    /// As [`Mount::new`], known by `face`.
    pub fn with_face(view: View, at: &Path, face: &Face) -> Result<Self> {
        let failed = |source| Error::Io { what: "mount at", at: at.to_owned(), source };
        let root = rustix::process::geteuid().is_root();
        let at = at.canonicalize().map_err(failed)?;
        if std::fs::read_dir(&at).map_err(failed)?.next().is_some() {
            return Err(Error::NotEmpty(at));
        }
        available()?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(face.source.clone()),
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
        let (stale, replaced) = std::sync::mpsc::channel();
        let watch = if view.is_snapshot() { None } else { Watch::new().ok() };
        let (view, watch) = (Arc::new(view), watch.map(Arc::new));
        let (end, until) = UnixStream::pair().map_err(failed)?;
        let (seen, heard) = (Arc::downgrade(&view), watch.as_ref().map(Arc::downgrade));
        let session =
            Session::new(Host::new(view, watch.zip(Some(end)), face.root, stale), &at, &config).map_err(failed)?;
        let watcher = match heard {
            Some(watch) => {
                let kernel = session.notifier();
                let listen = move || watch::listen(&watch, &until, &seen, &kernel);
                Some(std::thread::Builder::new().name("watch".into()).spawn(listen).map_err(failed)?)
            }
            None => None,
        };
        let kernel = session.notifier();
        // In a thread of its own: the kernel may wait for an answer before it takes this. Ends with the host.
        let teller = std::thread::Builder::new().name("stale".into()).spawn(move || {
            for ino in replaced {
                // Attributes only; opening looks at them. What it does not know any more needs nothing.
                let _ = kernel.inval_inode(INodeNo(ino), -1, 0);
            }
        });
        teller.map_err(failed)?;
        let session = session.spawn().map_err(failed)?;
        Ok(Self { at, session: Some(session), watcher })
    }

    /// Where it is.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Unmounts it, and waits until the tree is given back. [`Error::Busy`] if somebody works there: then it goes on.
    pub fn unmount(&mut self) -> Result<()> {
        self.unmount_within(Duration::MAX).map(drop)
    }

    /// Whether it is mounted still: others may unmount it. If not, what is at its place is somebody else's.
    pub fn serves(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// As [`Mount::unmount`], but waits at most so long until the tree is given back, which another mount namespace may keep from happening. Gives whether it
    /// was.
    pub fn unmount_within(&mut self, patience: Duration) -> Result<bool> {
        if self.serves() {
            unmount(&self.at, false)?;
        }
        self.gone_within(patience)
    }

    /// Waits at most so long until it is unmounted everywhere and the tree is given back. Gives whether it was.
    pub fn gone_within(&mut self, patience: Duration) -> Result<bool> {
        let began = Instant::now();
        while self.serves() {
            if began.elapsed() >= patience {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait().map(|()| true)
    }

    /// Takes it away from its place. Who has something open there goes on with it until they close it, or this process ends.
    pub fn detach(&mut self) {
        if self.serves() {
            let _ = unmount(&self.at, true);
        }
    }

    /// Waits until somebody else unmounts it.
    pub fn wait(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let served = session.join();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        served.map_err(|source| Error::Io { what: "serve", at: self.at.clone(), source })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Whether this user can mount here; if not, the error names what is missing.
pub fn available() -> Result<()> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(Error::NotPermitted),
        // ENXIO, ENODEV: the node is there, and nothing behind it.
        Err(_) => return Err(Error::NoDevice),
    }
    let root = rustix::process::geteuid().is_root();
    if root || fusermount().arg("-V").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(Error::NoFusermount)
}

/// Takes a mount away whose process is gone, so that nobody who comes by gets `ENOTCONN` any more. Gives whether there was one.
pub fn clear_dead(at: &Path) -> Result<bool> {
    let mut found = false;
    // Attributes may still come from the kernel's memory. One may lie over another, but not many.
    for _ in 0..8 {
        match rustix::fs::statfs(at) {
            // Aborted: it ends at this moment.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => unmount(at, true)?,
            _ => return Ok(found),
        }
        found = true;
    }
    Ok(found)
}

fn fusermount() -> Command {
    let mut command = Command::new("fusermount3");
    command.stdin(Stdio::null());
    command
}

/// Unmounts what is at a path; lazily, if somebody may have files open there.
fn unmount(at: &Path, lazily: bool) -> Result<()> {
    let failed = |source| Error::Io { what: "unmount", at: at.to_owned(), source };
    let flags = if lazily { UnmountFlags::DETACH | UnmountFlags::NOFOLLOW } else { UnmountFlags::NOFOLLOW };
    match rustix::mount::unmount(at, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => return Err(Error::Busy(at.to_owned())),
        // Nothing is mounted there any more.
        Err(Errno::INVAL) => return Ok(()),
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
