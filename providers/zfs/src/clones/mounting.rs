//! Mounting clones and taking their mounts away.
//!
//! Not by libzfs, which mounts by the path in a dataset's property: whoever may change a component of that could have root mount
//! over `/etc`. Mounted is the directory that was made, by its descriptor.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Result};
use ah_provider_directory::{Mounts, failed};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::busy;
use crate::failure::of_library;
use crate::sys::{Kind, Number, Zfs};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How long a mount that was just taken away, by whomever, may take to be gone.
const PATIENCE: Duration = Duration::from_millis(500);

const PAUSE: Duration = Duration::from_millis(20);

/// Opens the directory `name`, which this process has made in `folder`, for [`mount`]; refuses one that somebody has put in its place.
pub(super) fn made(folder: impl AsFd, name: &std::ffi::OsStr) -> Result<OwnedFd> {
    let fail = |errno| failed("cannot open the clone's folder", errno);
    own(rustix::fs::openat(folder, name, DIRECTORY, Mode::empty()).map_err(fail)?)
}

fn own(dir: OwnedFd) -> Result<OwnedFd> {
    let stat = rustix::fs::fstat(&dir).map_err(|errno| failed("cannot look at the clone's folder", errno))?;
    // What is ours, and nobody else's to look into, is what we made; or else something of ours that nobody is harmed by.
    if stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0 {
        return Ok(dir);
    }
    Err(Error::new(ErrorKind::Conflict, "somebody has put another directory in place of the clone's")
        .with_hint("repeat"))
}

/// Mounts a dataset on an open directory, with what its properties say, but for set-uid and set-gid: those never count in a clone.
/// `point` is where that directory is, as the kernel is told for showing the clone's snapshots.
pub(super) fn mount(dataset: &CStr, dir: &OwnedFd, point: &Path) -> Result<()> {
    let shown = dataset.to_string_lossy();
    let mut flags = MountFlags::NOSUID;
    {
        let zfs = Zfs::get()?;
        let opened = zfs.open(dataset, Kind::Filesystem);
        let opened = opened.map_err(|error| of_library(format!("cannot mount {shown}"), &error))?;
        let opened = opened.ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{shown} is gone")))?;
        let is = |property| opened.number(property) != 0;
        flags.set(MountFlags::NODEV, !is(Number::Devices));
        flags.set(MountFlags::NOEXEC, !is(Number::Exec));
        flags.set(MountFlags::RDONLY, is(Number::ReadOnly));
        flags |= match (is(Number::Atime), is(Number::Relatime)) {
            (false, _) => MountFlags::NOATIME,
            (true, true) => MountFlags::RELATIME,
            (true, false) => MountFlags::STRICTATIME,
        };
    }
    // A comma would begin another option. Without this one the clone's own snapshots cannot be looked at, until it is mounted again.
    let told = Some(point.as_os_str().as_bytes()).filter(|point| !point.contains(&b','));
    let data = CString::new(told.map_or_else(Vec::new, |point| [b"mntpoint=", point].concat()))
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a path with a NUL in it"))?;
    rustix::mount::mount(dataset, format!("/proc/self/fd/{}", dir.as_raw_fd()), c"zfs", flags, data.as_c_str())
        .map_err(|errno| failed(format!("cannot mount {shown}"), errno))
}

/// Mounts a clone where it was, if that is still the directory that was made for it.
pub(super) fn mount_again(dataset: &CStr, point: &Path) -> Result<()> {
    let dir = rustix::fs::openat2(rustix::fs::CWD, point, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let dir = own(dir.map_err(|errno| failed(format!("cannot open {}", point.display()), errno))?)?;
    mount(dataset, &dir, point)
}

/// Whether somebody but root and the present user could have something else be at this path, so that it is not for mounting by path.
pub(super) fn others_may_change(folder: &Path) -> bool {
    let mine = |dir: &OwnedFd| {
        let own = rustix::process::geteuid().as_raw();
        // In a sticky directory, only what is one's own can be renamed.
        let closed = |mode: u32| mode & 0o022 == 0 || mode & 0o1000 != 0;
        rustix::fs::fstat(dir).is_ok_and(|stat| (stat.st_uid == 0 || stat.st_uid == own) && closed(stat.st_mode))
    };
    let Ok(mut at) = rustix::fs::open("/", DIRECTORY, Mode::empty()) else { return true };
    for component in folder.components().filter(|component| *component != std::path::Component::RootDir) {
        if !mine(&at) {
            return true;
        }
        match rustix::fs::openat(&at, component.as_os_str(), DIRECTORY, Mode::empty()) {
            Ok(below) => at = below,
            Err(_) => return true,
        }
    }
    !mine(&at)
}

/// Where this process sees a dataset or its snapshots mounted, the innermost first.
fn points(dataset: &str) -> Vec<PathBuf> {
    let snapshots = format!("{dataset}@");
    let is_it = |source: &[u8]| source == dataset.as_bytes() || source.starts_with(snapshots.as_bytes());
    let mounts = Mounts::read();
    let of_it = mounts.iter().filter(|mount| mount.kind == "zfs" && is_it(&mount.source));
    let mut points: Vec<PathBuf> = of_it.map(|mount| mount.point.clone()).collect();
    // The longest first: what is mounted inside goes before what it is mounted in.
    points.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    points
}

/// Whether a dataset is mounted where this process sees it.
pub(super) fn is_mounted(dataset: &str) -> bool {
    let mounts = Mounts::read();
    mounts.iter().any(|mount| mount.kind == "zfs" && mount.source == dataset.as_bytes())
}

/// Takes away all mounts of a dataset and of its snapshots that this process sees, the innermost first; `Busy` if one is in use, or if
/// it is mounted where this process cannot see it.
pub(super) fn unmount(dataset: &str) -> Result<()> {
    for point in points(dataset) {
        match rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::BUSY) => return Err(busy::error(&format!("{} is in use", point.display()), dataset)),
            Err(errno) => return Err(failed(format!("cannot unmount {}", point.display()), errno)),
        }
    }
    let Some(sign) = sign_of_mounts(dataset)? else { return Ok(()) };
    let began = Instant::now();
    while sign.exists() {
        if began.elapsed() >= PATIENCE {
            return Err(busy::error(&format!("the clone {dataset} is in use"), dataset));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// What is there as long as a dataset is mounted anywhere, in other mount namespaces too: the kernel's statistics of its mount.
/// Source: `dataset_kstats_create`, called by `zfsvfs_setup`. Where there are none, the kernel says in the end that it is busy.
fn sign_of_mounts(dataset: &str) -> Result<Option<PathBuf>> {
    let fail = |error| of_library(format!("cannot look at {dataset}"), &error);
    let zfs = Zfs::get()?;
    let Some(opened) = crate::find::open_dataset(&zfs, dataset).map_err(fail)? else { return Ok(None) };
    let pool = dataset.split('/').next().unwrap_or(dataset);
    Ok(Some(
        Path::new("/proc/spl/kstat/zfs").join(pool).join(format!("objset-0x{:x}", opened.number(Number::ObjsetId))),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_way_is_safe_if_nobody_else_may_write_on_it() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        let deep = top.join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        [&top.join("a"), &deep].into_iter().for_each(|path| set(path, 0o755));
        // What is above depends on the machine.
        let above = others_may_change(&top);
        assert_eq!(others_may_change(&deep), above);
        set(&top.join("a"), 0o777);
        assert!(others_may_change(&deep));
        set(&top.join("a"), 0o1777);
        assert_eq!(others_may_change(&deep), above);
        std::os::unix::fs::symlink("a", top.join("link")).unwrap();
        assert!(others_may_change(&top.join("link/b")) && others_may_change(&top.join("none")));
    }

    #[test]
    fn what_is_not_ones_own_is_not_mounted_on() {
        let temp = tempfile::tempdir().unwrap();
        let made = |mode| {
            std::fs::create_dir(temp.path().join("d")).unwrap();
            std::fs::set_permissions(temp.path().join("d"), PermissionsExt::from_mode(mode)).unwrap();
            let opened = super::made(std::fs::File::open(temp.path()).unwrap(), "d".as_ref()).map(drop);
            std::fs::remove_dir(temp.path().join("d")).unwrap();
            opened
        };
        assert!(made(0o700).is_ok());
        assert_eq!(made(0o755).unwrap_err().kind, ErrorKind::Conflict);
        std::os::unix::fs::symlink("/etc", temp.path().join("d")).unwrap();
        assert!(super::made(std::fs::File::open(temp.path()).unwrap(), "d".as_ref()).is_err());
    }
}
