//! Mounting and unmounting: as root by the system call, else by `fusermount3`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ah_agentfs::{Ino, ROOT, View};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};

use crate::aside::Aside;
use crate::host::{Host, LARGEST};
use crate::opens::{Opens, Passthrough, Told};
use crate::watch::{self, Tree, Watch};

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
    /// `fusermount3` asks who this is.
    #[error(
        "user {0} has no name on this system, and fusermount3 mounts for those only that have one: add an entry to /etc/passwd"
    )]
    NoName(u32),
    /// Nothing is mounted over what somebody could miss.
    #[error("{} is not an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// Somebody works in it.
    #[error("{} is in use: leave it, or close the files that are open there", .0.display())]
    Busy(PathBuf),
    /// Something else is in the way.
    #[error("something else is mounted over {}", .0.display())]
    Covered(PathBuf),
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
    /// The directory in which it is, only to be named.
    above: Option<OwnedFd>,
    device: (u32, u32),
    /// Its number among mounts, where the kernel tells (Linux 5.8).
    number: Option<u64>,
    /// `None` once it was waited for.
    session: Option<BackgroundSession>,
    /// Gone when the tree is given back: when the last of the threads that serve it has ended.
    shown: Weak<()>,
    told: Arc<Told>,
}

/// By what a mount is known from outside, and how it is served.
#[derive(Debug, Clone)]
pub struct Face {
    /// What the mount table names as its source: letters, digits, `/ . _ - : # %` only.
    pub source: String,
    /// What `stat` shows as the root's inode number. Others have those of the tree.
    pub root: Ino,
    /// Whether large files are passed through where that can be: who reads one reads the file below, or a pin, without a message here, but opening any file is one. Only root can have it, on
    /// Linux 6.9 or newer; else, and where what is below lies on a filesystem that is itself laid over others, all is as without. While somebody has such a file open, it cannot be
    /// opened to be written, nor cut (`ETXTBSY`).
    pub passthrough: bool,
}

impl Default for Face {
    fn default() -> Self {
        Self { source: "agentfs".into(), root: ROOT, passthrough: false }
    }
}

impl Mount {
    /// Shows a tree at an empty directory: read-only if it is a snapshot; to all users if root mounts it, else to this one
    /// only; without devices and set-id bits. It is mounted by path: where others may rename directories above, they decide where that is.
    pub fn new(view: View, at: &Path) -> Result<Self> {
        let failed = |source| Error::Io { what: "mount at", at: at.to_owned(), source };
        if std::fs::read_dir(at).map_err(failed)?.next().is_some() {
            return Err(Error::NotEmpty(at.to_owned()));
        }
        Self::with_face(view, at, &Face::default(), || true)
    }

    /// As [`Mount::new`], known by `face`, and at a directory of which the caller knows what is in it. Whether that may be hidden, `is_empty` is asked when nobody
    /// comes to what is beneath by its path any more, and who comes to the mount waits still: if it may not, they are told an error, and nothing of theirs is done.
    pub fn with_face(view: View, at: &Path, face: &Face, is_empty: impl FnOnce() -> bool) -> Result<Self> {
        let failed = |source| Error::Io { what: "mount at", at: at.to_owned(), source };
        let at = at.canonicalize().map_err(failed)?;
        available()?;
        let writable = !view.is_snapshot();
        let served = Served::begin(face, writable, |host, mut config| {
            config.mount_options = vec![
                MountOption::FSName(face.source.clone()),
                MountOption::Subtype("agentfs".into()),
                MountOption::DefaultPermissions,
                MountOption::NoSuid,
                MountOption::NoDev,
                if writable { MountOption::RW } else { MountOption::RO },
            ];
            let session = Session::new(host, &at, &config)?;
            // Nothing that was asked of it is read before it is served. Dropped, the kernel answers.
            if !is_empty() {
                let _ = unmount(&at, true);
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            Ok(session)
        });
        let served = served.map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => Error::NotEmpty(at.clone()),
            _ => failed(error),
        })?;
        let there = There::look(rustix::fs::CWD, &at, AtFlags::empty()).map_err(failed);
        let mut mount = served.show(view, at);
        (mount.device, mount.number) = there.map(|there| (there.device, there.mount))?;
        read_ahead(mount.device);
        Ok(mount)
    }

    /// The number of the device that its files are on.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Where it is.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Whether large files are passed through.
    pub fn passthrough(&self) -> Passthrough {
        self.told.is()
    }

    /// How often a file was opened that was passed through.
    pub fn passed_through(&self) -> u64 {
        self.told.count()
    }

    /// Unmounts it, and waits until the tree is given back. [`Error::Busy`] if somebody works there, [`Error::Covered`] if something else is mounted
    /// over it: then it goes on.
    pub fn unmount(&mut self) -> Result<()> {
        self.unmount_within(Duration::MAX).map(drop)
    }

    /// Whether it is mounted still: others may unmount it. If not, what is at its place is somebody else's. Where the system had no thread for the last of those
    /// that serve it, the others do.
    pub fn serves(&self) -> bool {
        self.shown.strong_count() > 0
    }

    /// As [`Mount::unmount`], but waits at most so long until the tree is given back, which another mount namespace may keep from happening. Gives whether it
    /// was.
    pub fn unmount_within(&mut self, patience: Duration) -> Result<bool> {
        if self.serves() {
            if self.is_covered() {
                return Err(Error::Covered(self.at.clone()));
            }
            unmount(&self.place(), false)?;
        }
        Ok(self.gone_within(patience))
    }

    /// Waits at most so long until it is unmounted everywhere and the tree is given back. Gives whether it was.
    pub fn gone_within(&self, patience: Duration) -> bool {
        let began = Instant::now();
        while self.serves() {
            if began.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Takes it away from its place, unless something else is mounted over it. Who has something open there goes on with it until they close it, or this
    /// process ends.
    pub fn detach(&mut self) {
        if self.serves() && !self.is_covered() {
            let _ = unmount(&self.place(), true);
        }
    }

    /// Whether what is mounted at its place is another: somebody has put that over this one, or there when they had taken this away.
    fn is_covered(&self) -> bool {
        let there = There::look(rustix::fs::CWD, &self.place(), AtFlags::empty());
        there.is_ok_and(|there| there.is_top && there.mount.is_some() && there.mount != self.number)
    }

    /// Where it is now: a directory above may have been renamed.
    fn place(&self) -> PathBuf {
        let above = self
            .above
            .as_ref()
            .and_then(|above| std::fs::read_link(format!("/proc/self/fd/{}", above.as_raw_fd())).ok());
        above.zip(self.at.file_name()).map_or_else(|| self.at.clone(), |(above, name)| above.join(name))
    }

    /// Waits until somebody else unmounts it.
    pub fn wait(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let served = session.join();
        self.gone_within(Duration::MAX);
        served.map_err(|source| Error::Io { what: "serve", at: self.at.clone(), source })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.detach();
        if self.serves() && self.is_covered() {
            // Left to itself, it would unmount what is at that path.
            std::mem::forget(self.session.take());
        }
    }
}

/// All that takes time of a mount, made ready: the filesystem, whose kernel's side has been greeted, with the threads that serve it. It is nowhere yet and shows no tree. Dropped,
/// it is gone.
pub struct Spare {
    mount: OwnedFd,
    there: There,
    served: Served,
}

impl Spare {
    /// One for a branch. Only root can have it, on Linux 5.2 or newer.
    pub fn new(face: &Face) -> Result<Self> {
        let failed = |source| Error::Io { what: "make a mount ready for", at: PathBuf::from(&face.source), source };
        let mut mount = None;
        let served = Served::begin(face, true, |host, config| {
            let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
            let filesystem = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
            let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(&filesystem, key, value);
            set("source", &face.source)?;
            set("fd", &device.as_raw_fd().to_string())?;
            set("rootmode", "40000")?;
            set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
            set("group_id", &rustix::process::getegid().as_raw().to_string())?;
            for flag in ["default_permissions", "allow_other"] {
                rustix::mount::fsconfig_set_flag(&filesystem, flag)?;
            }
            rustix::mount::fsconfig_create(&filesystem)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
            mount = Some(rustix::mount::fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?);
            Session::from_fd(host, device.into(), config.acl, config)
        });
        let served = served.map_err(failed)?;
        let mount = mount.ok_or_else(|| failed(io::ErrorKind::Other.into()))?;
        let there = There::look(&mount, Path::new(""), AtFlags::EMPTY_PATH).map_err(failed)?;
        read_ahead(there.device);
        Ok(Self { mount, there, served })
    }

    /// Puts it at an empty directory that the caller has just made, to be given its tree at once.
    pub fn place(self, at: &Path) -> Result<Placed> {
        let failed = |source| Error::Io { what: "mount at", at: at.to_owned(), source };
        let at = at.canonicalize().map_err(failed)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&self.mount, "", rustix::fs::CWD, &at, flags)
            .map_err(|errno| failed(errno.into()))?;
        Ok(Placed { at, there: self.there, served: self.served })
    }
}

/// A mount in its place, of which whoever comes by waits for the tree.
pub struct Placed {
    at: PathBuf,
    there: There,
    served: Served,
}

impl Placed {
    /// The mount, with its tree.
    pub fn show(self, view: View) -> Mount {
        let mut mount = self.served.show(view, self.at);
        (mount.device, mount.number) = (self.there.device, self.there.mount);
        mount
    }
}

/// What serves a mount.
struct Served {
    tree: Arc<Tree>,
    session: BackgroundSession,
    told: Arc<Told>,
}

impl Served {
    /// `start` mounts, and greets the kernel.
    fn begin(
        face: &Face,
        writable: bool,
        start: impl FnOnce(Host, Config) -> io::Result<Session<Host>>,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
        // Some wait for the disk while others answer.
        config.n_threads = Some(threads());
        config.clone_fd = true;
        let (aside, asked) = channel();
        let watch = if writable { Watch::new().ok().map(Arc::new) } else { None };
        let (end, until) = UnixStream::pair()?;
        let (tree, heard) = (Arc::new(Tree::new()), watch.as_ref().map(Arc::downgrade));
        let told = Arc::new(OnceLock::new());
        let opens = face.passthrough.then(|| Arc::new(Opens::default()));
        let passes = opens.as_ref().map(|opens| Arc::clone(&opens.told)).unwrap_or_default();
        let host = Host::new(Arc::clone(&tree), watch.zip(Some(end)), face.root, aside, Arc::clone(&told), opens);
        let session = start(host, config)?;
        let _ = told.set(session.notifier());
        if let Some(watch) = heard {
            let (seen, kernel) = (Arc::downgrade(&tree), session.notifier());
            let listen = move || watch::listen(&watch, &until, &seen, &kernel);
            std::thread::Builder::new().name("watch".into()).spawn(listen)?;
        }
        let (kernel, shown) = (session.notifier(), Arc::downgrade(&tree));
        // Ends with the host.
        std::thread::Builder::new().name("aside".into()).spawn(move || {
            for aside in asked {
                let Some(tree) = shown.upgrade() else { break };
                Aside::act(aside, &tree, &kernel);
            }
        })?;
        Ok(Self { tree, session: session.spawn()?, told: passes })
    }

    fn show(self, view: View, at: PathBuf) -> Mount {
        let shows = Arc::new(());
        let shown = Arc::downgrade(&shows);
        // Nobody else gives it one.
        let _ = self.tree.set((view, shows));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = at.parent().and_then(|above| rustix::fs::open(above, flags, Mode::empty()).ok());
        Mount { at, above, device: (0, 0), number: None, session: Some(self.session), shown, told: self.told }
    }
}

/// So many serve a mount.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| cores.get().clamp(4, 16))
}

/// What is at a place.
struct There {
    device: (u32, u32),
    /// The number of the mount that it is on, where the kernel tells (Linux 5.8).
    mount: Option<u64>,
    /// Whether it is what is mounted there.
    is_top: bool,
}

impl There {
    /// By what the kernel has: no message to who serves it.
    fn look(dir: impl AsFd, path: &Path, flags: AtFlags) -> io::Result<Self> {
        let flags = flags | AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statx(dir, path, flags, StatxFlags::TYPE | StatxFlags::MNT_ID)?;
        let told = StatxFlags::from_bits_retain(stat.stx_mask);
        Ok(Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            mount: told.contains(StatxFlags::MNT_ID).then_some(stat.stx_mnt_id),
            is_top: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }
}

/// Has the kernel read further ahead of who reads a file from front to back than a filesystem may ask for by itself: as far as one message goes. Only root can;
/// where it cannot be, reading is slower.
fn read_ahead((major, minor): (u32, u32)) {
    let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (LARGEST >> 10).to_string());
}

/// Whether this user can mount here; if not, the error names what is missing.
pub fn available() -> Result<()> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(Error::NotPermitted),
        // ENXIO, ENODEV: the node is there, and nothing behind it.
        Err(_) => return Err(Error::NoDevice),
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if !fusermount().arg("-V").output().is_ok_and(|output| output.status.success()) {
        return Err(Error::NoFusermount);
    }
    let me = nix::unistd::getuid();
    // Whoever cannot look that up is not refused for it.
    match nix::unistd::User::from_uid(me) {
        Ok(None) => Err(Error::NoName(me.as_raw())),
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ah_agentfs::{Options, Workspace};

    /// A view of a branch of a directory with a file `a`, and a place for it. None: skipped.
    fn scene() -> Option<(tempfile::TempDir, View, PathBuf)> {
        if !rustix::process::geteuid().is_root() || available().is_err() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root and /dev/fuse");
            println!("skipped: needs root and /dev/fuse");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        let [lower, store, at] = ["lower", "store", "at"].map(|name| temp.path().join(name));
        for directory in [&lower, &at] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(lower.join("a"), "lower").unwrap();
        Workspace::create(&store, &lower).unwrap();
        let workspace = Workspace::open(&store, &lower, Options::default()).unwrap();
        let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
        Some((temp, workspace.view(branch).unwrap(), at))
    }

    #[test]
    fn who_comes_before_it_is_known_to_be_empty_writes_nothing() {
        let Some((_temp, view, at)) = scene() else { return };
        let mut writes = None;
        let refused = Mount::with_face(view, &at, &Face::default(), || {
            let file = at.join("new");
            let writer = std::thread::spawn(move || std::fs::write(file, "new"));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!writer.is_finished());
            writes = Some(writer);
            false
        });
        assert!(matches!(refused, Err(Error::NotEmpty(_))), "{refused:?}");
        writes.unwrap().join().unwrap().unwrap_err();
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    }

    #[test]
    fn what_some_of_its_threads_serve_is_served() {
        let Some((_temp, view, at)) = scene() else { return };
        let mut mount = Mount::new(view, &at).unwrap();
        // As when the system has no thread for the last of them: who waits for all has ended.
        let none = std::thread::spawn(|| Err(io::ErrorKind::WouldBlock.into()));
        while !none.is_finished() {
            std::thread::yield_now();
        }
        mount.session.as_mut().unwrap().guard = none;
        assert!(mount.serves());
        assert_eq!(std::fs::read_to_string(at.join("a")).unwrap(), "lower");
        let gone = mount.unmount_within(Duration::from_secs(20));
        assert!(gone.unwrap() && !mount.serves());
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    }
    #[test]
    fn who_asks_a_mount_whose_threads_have_all_panicked_is_told_that_it_is_gone() {
        let Some((_temp, view, at)) = scene() else { return };
        let mount = Mount::new(view, &at).unwrap();
        // Each takes one of them along; the kernel remembers nothing of it, and who asked is told.
        for _ in 0..threads() {
            let told = std::fs::metadata(at.join("panics")).unwrap_err();
            assert_eq!(told.raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
        assert!(mount.gone_within(Duration::from_secs(60)));
        let waits = at.clone();
        let waits = std::thread::spawn(move || std::fs::metadata(waits.join("other")));
        drop(mount);
        waits.join().unwrap().unwrap_err();
        clear_dead(&at).unwrap();
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    }
}
