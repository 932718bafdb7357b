//! What the service has mounted, where that does not reach this process: it is in another mount namespace, that of `ah agent fs exec` above all, and mounts come
//! in there by themselves only if they are shared outside. Root brings them in.
//!
//! A thread goes where the service is and takes a copy of a mount, which is nowhere yet; here it is put at the same path. It shows the same filesystem, and
//! ends with the namespace at the latest. Not here: what an ordinary user can do, who may neither go there nor take such a copy.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::{Mount, Mounts, failed};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::home::Shown;
use crate::reach;

/// The mount namespace of a home's service, which is not this process's.
pub(crate) struct Elsewhere {
    home: PathBuf,
    namespace: File,
    /// What the service has mounted of this home.
    mounts: Vec<Mount>,
}

impl Elsewhere {
    /// That of the service of a home; none if it does not run, is in the same namespace, or may not be looked at.
    pub(crate) fn of(home: PathBuf) -> Option<Self> {
        // While it is connected, nobody else gets its number.
        let (_connected, pid) = reach::who_listens(&Dir::open(&home).ok()?).ok().flatten()?;
        let namespace = File::open(format!("/proc/{pid}/ns/mnt")).ok()?;
        if namespace.metadata().ok()?.ino() == std::fs::metadata("/proc/self/ns/mnt").ok()?.ino() {
            return None;
        }
        let table = Mounts::parse(&std::fs::read(format!("/proc/{pid}/mountinfo")).ok()?);
        let mounts = table.iter().filter(|mount| is_of(mount, &home)).cloned().collect();
        Some(Self { home, namespace, mounts })
    }

    /// Where the home is.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Shows here what is mounted there and not here, as far as that can be: where something else is mounted here, or the folder is not
    /// to be seen, nothing is.
    pub(crate) fn bring_in(&self) {
        let here = Mounts::read();
        for there in &self.mounts {
            let mut at: Vec<&Mount> = here.iter().filter(|mount| mount.point == there.point).collect();
            if at.iter().any(|mount| mount.device == there.device) {
                continue;
            }
            // That of a service which is gone.
            if at.len() == 1 && at.iter().all(|mount| mount.source == there.source) {
                let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                if rustix::mount::unmount(&there.point, flags).is_ok() {
                    at.clear();
                }
            }
            if at.is_empty() {
                // Who wanted it looks whether it is there.
                let _ = self.show(there);
            }
        }
    }

    fn show(&self, mount: &Mount) -> rustix::io::Result<()> {
        let at = open(&mount.point)?;
        let copy = self.copy(mount)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(copy, "", at, "", flags)
    }

    /// A copy of a mount that is there.
    fn copy(&self, mount: &Mount) -> rustix::io::Result<OwnedFd> {
        let take = || {
            // From then on the directories it is in are this thread's alone.
            unshare(CloneFlags::CLONE_FS).map_err(as_errno)?;
            setns(&self.namespace, CloneFlags::CLONE_NEWNS).map_err(as_errno)?;
            let flags =
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
            rustix::mount::open_tree(open(&mount.point)?, "", flags)
        };
        let taken = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, take);
            thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
        })?;
        // What was at that path may have become other meanwhile.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&taken, "", flags, StatxFlags::TYPE)?;
        match format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor) == mount.device {
            true => Ok(taken),
            false => Err(Errno::STALE),
        }
    }

    /// Takes away here what is mounted there as `source`, before the service takes it away there: it could not let it go as long as it is here.
    ///
    /// # Errors
    /// `Busy` if somebody works in it here.
    pub(crate) fn let_go(&self, source: &[u8]) -> Result<()> {
        self.mounts.iter().filter(|there| there.source == source).try_for_each(Self::let_go_of)
    }

    /// As [`Elsewhere::let_go`], what is mounted at a path.
    ///
    /// # Errors
    /// `Busy` if somebody works in it here.
    pub(crate) fn let_go_at(&self, point: &Path) -> Result<()> {
        self.mounts.iter().filter(|there| there.point == point).try_for_each(Self::let_go_of)
    }

    fn let_go_of(there: &Mount) -> Result<()> {
        let point = there.point.display();
        if !Mounts::read().iter().any(|mount| mount.point == there.point && mount.device == there.device) {
            return Ok(());
        }
        match rustix::mount::unmount(&there.point, UnmountFlags::NOFOLLOW) {
            // Who unmounted it meanwhile wanted the same; who may not leaves it to the service.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => Ok(()),
            Err(Errno::BUSY) => Err(Error::new(
                ErrorKind::Busy,
                format!("{point} is in use: leave it, or close the files that are open there"),
            )),
            Err(errno) => Err(failed(format!("cannot unmount {point}"), errno)),
        }
    }
}

fn is_of(mount: &Mount, home: &Path) -> bool {
    Shown::parse(&mount.source).is_some_and(|shown| shown.home == home)
}

/// The mount point at a path of the table, in which no symlink is.
fn open(point: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, point, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn as_errno(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}
