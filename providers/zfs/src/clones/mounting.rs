//! Mounting clones and taking their mounts away.
//!
//! Not by libzfs, which mounts by the path in a dataset's property: whoever may change a component of that could have root mount
//! over `/etc`. Mounted is the directory that was made, by its descriptor.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{Error, ErrorKind, Result};
use ah_provider_directory::{Mount, Mounts, Unmount, failed, open_plain};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::busy;
use crate::failure::of_library;
use crate::sys::{Kind, Number, Zfs};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How long a mount that was just taken away, by whomever, may take to be gone.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long taking away all mounts may take.
const LONGEST: Duration = Duration::from_secs(60);

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
    // By this path OpenZFS 2.1 has root mount a snapshot of it for whoever looks there, and follows symlinks. A comma would begin another option.
    // Without it the clone's own snapshots cannot be looked at, until it is mounted again.
    let safe = !point.parent().is_none_or(others_may_change);
    let told = Some(point.as_os_str().as_bytes()).filter(|point| safe && !point.contains(&b','));
    let data = CString::new(told.map_or_else(Vec::new, |point| [b"mntpoint=", point].concat()))
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a path with a NUL in it"))?;
    rustix::mount::mount(dataset, format!("/proc/self/fd/{}", dir.as_raw_fd()), c"zfs", flags, data.as_c_str())
        .map_err(|errno| failed(format!("cannot mount {shown}"), errno))
}

/// Mounts a clone where it was, if that is still the directory that was made for it.
pub(super) fn mount_again(dataset: &CStr, point: &Path) -> Result<()> {
    let dir = open_plain(point).map_err(|errno| failed(format!("cannot open {}", point.display()), errno))?;
    mount(dataset, &own(dir)?, point)
}

/// Removes the directory that a clone was mounted on; one that is not empty, or not there, is none of ours any more. Nor is what a
/// symlink on the way leads to: whoever owns a part of the way could name any empty directory by it.
pub(super) fn remove_point(point: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (point.parent(), point.file_name()) else { return Ok(()) };
    let removed = open_plain(folder).and_then(|folder| remove_dir_for_good(folder, name));
    match removed {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY | Errno::LOOP) => {
            Ok(())
        }
        Err(errno) => Err(failed(format!("cannot remove {}", point.display()), errno)),
    }
}

/// Whether somebody but root and the present user could have something else be at this path, so that it is not for mounting by path.
pub(crate) fn others_may_change(folder: &Path) -> bool {
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

/// The mounts of a dataset and its snapshots in a table, in the order in which they can be taken away.
fn mounts_of(dataset: &str, mounts: &Mounts) -> Vec<Mount> {
    let snapshots = format!("{dataset}@");
    let is_it = |source: &[u8]| source == dataset.as_bytes() || source.starts_with(snapshots.as_bytes());
    innermost_first(mounts, |mount| mount.kind == "zfs" && is_it(&mount.source))
}

/// By how many mounts each is mounted on, not by paths: what is mounted right over another one has the same.
fn innermost_first(mounts: &Mounts, is_it: impl Fn(&Mount) -> bool) -> Vec<Mount> {
    let depth = |mount: &Mount| {
        let above = |mount: &&Mount| mounts.iter().find(|above| above.id == mount.parent && above.id != mount.id);
        std::iter::successors(Some(mount), above).take(mounts.iter().count()).count()
    };
    let mut found: Vec<(usize, &Mount)> =
        mounts.iter().filter(|mount| is_it(mount)).map(|mount| (depth(mount), mount)).collect();
    found.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    found.into_iter().map(|(_, mount)| mount.clone()).collect()
}

/// Whether a dataset is mounted where this process sees it.
pub(super) fn is_mounted(dataset: &str) -> Result<bool> {
    let is_it = |mount: &Mount| mount.kind == "zfs" && mount.source == dataset.as_bytes();
    Ok(Mounts::read()?.iter().any(is_it))
}

/// `Busy` if [`unmount`] could not take away all of it, as far as that can be known before a part of it is gone: what comes back later is
/// not what was there, for whoever had looked into it meanwhile. What cannot be seen (other users' namespaces, for one who is not root
/// of all) is found out by `unmount`.
pub(super) fn refuse_if_in_use(dataset: &str) -> Result<()> {
    let table = Mounts::read()?;
    let mounts = mounts_of(dataset, &table);
    let is_ours = |mount: &Mount| mounts.iter().any(|ours| ours.id == mount.id);
    let mut bearing = Vec::new();
    for mount in &mounts {
        let shown = mount.point.display();
        let mut inside = table.iter().filter(|inside| inside.parent == mount.id && inside.id != mount.id).peekable();
        if inside.peek().is_none() {
            match ah_provider_directory::would_unmount(mount) {
                Ok(Unmount::Done | Unmount::Elsewhere) => continue,
                Ok(Unmount::InUse) => return Err(busy::error(&format!("{shown} is in use"), dataset)),
                Err(errno) => return Err(failed(format!("cannot look whether {shown} is in use"), errno)),
            }
        }
        if let Some(other) = inside.find(|inside| !is_ours(inside)) {
            let other = other.point.display();
            return Err(Error::new(ErrorKind::Busy, format!("something is mounted in {shown}, at {other}"))
                .with_hint(format!("umount {other}, then repeat")));
        }
        bearing.push(mount.point.clone());
    }
    // Of a mount that bears others the kernel says nothing.
    if !bearing.is_empty() && busy::is_used(&bearing) {
        return Err(busy::error(&format!("the clone {dataset} is in use"), dataset));
    }
    busy::refuse_what_stays(dataset, &table)
}

/// Takes away all mounts of a dataset and of its snapshots that this process sees, the innermost first; `Busy` if one is in use, or if
/// it is mounted where this process cannot see it.
pub(super) fn unmount(dataset: &str) -> Result<()> {
    let first = Instant::now();
    let mut began = first;
    // The table is read anew for each: where a mount is can change, by whoever owns a directory above it.
    while let Some(mount) = mounts_of(dataset, &Mounts::read()?).into_iter().next() {
        let shown = mount.point.display();
        match ah_provider_directory::unmount(&mount) {
            // Whoever looks into its snapshots all the time has the kernel mount them as fast as they go.
            Ok(Unmount::Done) if first.elapsed() < LONGEST => began = Instant::now(),
            Ok(Unmount::Done | Unmount::InUse) => return Err(busy::error(&format!("{shown} is in use"), dataset)),
            Ok(Unmount::Elsewhere) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Ok(Unmount::Elsewhere) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("something else is mounted over {shown}, or it is being moved"),
                )
                .with_hint(format!("see what findmnt says of {shown}, then repeat")));
            }
            Err(errno) => return Err(failed(format!("cannot unmount {shown}"), errno)),
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

    #[test]
    fn no_directory_goes_that_a_symlink_leads_to() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("theirs/fork")).unwrap();
        std::os::unix::fs::symlink("theirs", top.join("link")).unwrap();
        remove_point(&top.join("link/fork")).unwrap();
        assert!(top.join("theirs/fork").exists());
        remove_point(&top.join("theirs/fork")).unwrap();
        assert!(!top.join("theirs/fork").exists());
        remove_point(&top.join("none/fork")).unwrap();
    }

    #[test]
    fn what_is_mounted_over_another_goes_first() {
        let table = b"20 1 0:1 / / rw - ext4 /dev/a rw\n30 20 0:2 / /long/path rw - zfs c rw\n31 30 0:2 / /long/path rw - zfs c rw\n\
            32 31 0:3 / /long/path/.zfs/snapshot/s ro - zfs c@s ro\n33 20 0:3 / /a/much/longer/path/of/a/view ro - zfs c@s ro\n";
        let order = innermost_first(&Mounts::parse(table), |mount| mount.kind == "zfs");
        assert_eq!(order.iter().map(|mount| mount.id).collect::<Vec<_>>(), [32, 31, 30, 33]);
    }
}
