//! From a workspace up to the root of what contains it, by descriptors.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind, RelPath, Result};
use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::{Mounts, failed, look, names, open_beneath};

/// Where a climb ended.
#[derive(Debug)]
pub struct Climbed {
    /// The root, opened with `O_PATH`.
    pub root: OwnedFd,
    /// Its attributes.
    pub stat: Statx,
    /// From the root to where the climb began.
    pub rel: RelPath,
}

impl Climbed {
    /// The root's path, for people and for answers.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(self.root.as_fd())
    }
}

/// The path of what is open, for people and for answers; `?` where that is not to be had.
#[must_use]
pub fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    link.map_or_else(|_| PathBuf::from("?"), |path| PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// As [`climb`], where that ends at another mount: a part of what is mounted elsewhere too is mounted there, by a bind mount, say. Goes
/// on from where the other mounts of the filesystem have it.
///
/// # Errors
/// As [`climb`].
pub fn climb_by_other_mounts(
    from: BorrowedFd<'_>,
    mounts: &Mounts,
    mut is_root: impl FnMut(&Statx) -> bool,
) -> Result<Option<Climbed>> {
    let fail = |errno| failed("cannot look at the directories above the workspace", errno);
    let Some(own) = mounts.of(from) else { return Ok(None) };
    // Within the mount, by names that are looked at below.
    let path = path_of(from);
    let Ok(inside) = path.strip_prefix(&own.point) else { return Ok(None) };
    let start = look(from, b"").map_err(fail)?;
    let key = |stat: &Statx| (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor);
    for other in mounts.iter().filter(|other| other.id != own.id && other.device == own.device) {
        // What lies above the mounted directory, and its name there.
        let Ok(below) = own.root.strip_prefix(&other.root) else { continue };
        let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { continue };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(above) = rustix::fs::open(other.point.join(above), flags, Mode::empty()) else { continue };
        let Some(mut climbed) = climb(above.as_fd(), &mut is_root)? else { continue };
        let tail = if inside.as_os_str().is_empty() { PathBuf::from(name) } else { PathBuf::from(name).join(inside) };
        // Something may be mounted over the name there: this mount, as like as not. What counts is that it is the same directory.
        if !look(&above, tail.as_os_str().as_encoded_bytes()).is_ok_and(|there| key(&there) == key(&start)) {
            continue;
        }
        let rel = climbed.rel.as_path().join(&tail).into_os_string().into_vec();
        if let Ok(rel) = RelPath::new(rel) {
            climbed.rel = rel;
            return Ok(Some(climbed));
        }
    }
    Ok(None)
}

/// Goes up from `from` to the first directory of which `is_root` says that it is one, `from` itself perhaps. None if another mount
/// is reached before: what contains `from` cannot be reached by its path.
///
/// # Errors
/// `PermissionDenied` if a directory on the way may not be passed; `Conflict` if somebody renames on the way, again and again.
pub fn climb(from: BorrowedFd<'_>, mut is_root: impl FnMut(&Statx) -> bool) -> Result<Option<Climbed>> {
    let fail = |errno| failed("cannot look at the directories above the workspace", errno);
    let start = look(from, b"").map_err(fail)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for _ in 0..3 {
        let mut at = rustix::fs::openat(from, c".", flags, Mode::empty()).map_err(fail)?;
        let mut stat = start;
        // From the bottom up.
        let mut below: Vec<(u64, u32, u32)> = Vec::new();
        let found = loop {
            if is_root(&stat) {
                break true;
            }
            let up = rustix::fs::openat(&at, c"..", flags, Mode::empty()).map_err(fail)?;
            let above = look(&up, b"").map_err(fail)?;
            let same = (above.stx_ino, above.stx_dev_major, above.stx_dev_minor)
                == (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor);
            if same || above.stx_mnt_id != stat.stx_mnt_id {
                break false;
            }
            below.push((stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor));
            (at, stat) = (up, above);
        };
        if !found {
            return Ok(None);
        }
        if let Some(rel) = rel(at.as_fd(), from, &start, &below).map_err(fail)? {
            return Ok(Some(Climbed { root: at, stat, rel }));
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the directories above the workspace are being renamed").with_hint("repeat"))
}

/// The path from `root` down to what is `below.len()` levels under it; none if it is not there any more.
fn rel(
    root: BorrowedFd<'_>,
    from: BorrowedFd<'_>,
    start: &Statx,
    below: &[(u64, u32, u32)],
) -> Result<Option<RelPath>, Errno> {
    let is_start = |path: &[u8]| -> Result<bool, Errno> {
        match open_beneath(root, path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(fd) => {
                let there = look(&fd, b"")?;
                Ok((there.stx_ino, there.stx_dev_major, there.stx_dev_minor)
                    == (start.stx_ino, start.stx_dev_major, start.stx_dev_minor))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    };
    if below.is_empty() {
        return Ok(Some(RelPath::root()));
    }
    // The kernel's own idea of the path has the names; that they lead there is looked at.
    let path = path_of(from).into_os_string().into_vec();
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
    let tail = parts.len().checked_sub(below.len()).map(|at| parts[at..].join(&b'/'));
    if let Some(tail) = tail
        && is_start(&tail)?
    {
        return Ok(RelPath::new(tail).ok());
    }
    // Without /proc, or where that path is not to be had: by looking for each directory in the one above.
    let mut at = rustix::fs::openat(root, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut rel = RelPath::root();
    for wanted in below.iter().rev() {
        let mut found = None;
        for name in names(at.as_fd())? {
            let Ok(stat) = look(&at, &name) else { continue };
            if (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor) == *wanted {
                found = Some(name);
                break;
            }
        }
        let Some(name) = found else { return Ok(None) };
        at = match open_beneath(at.as_fd(), &name, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        match rel.join(&name) {
            Ok(longer) => rel = longer,
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(rel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_way_and_stops_at_other_mounts() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("a b/\u{e9}/c");
        std::fs::create_dir_all(&deep).unwrap();
        let root = look(std::fs::File::open(temp.path()).unwrap(), b"").unwrap();
        let from = std::fs::File::open(&deep).unwrap();
        let climbed = climb(from.as_fd(), |stat| stat.stx_ino == root.stx_ino).unwrap().unwrap();
        assert_eq!(climbed.rel, RelPath::new("a b/\u{e9}/c").unwrap());
        assert_eq!(climbed.path(), temp.path().canonicalize().unwrap());
        // Renamed since it was opened.
        std::fs::rename(temp.path().join("a b"), temp.path().join("moved")).unwrap();
        let climbed = climb(from.as_fd(), |stat| stat.stx_ino == root.stx_ino).unwrap().unwrap();
        assert_eq!(climbed.rel, RelPath::new("moved/\u{e9}/c").unwrap());
        let itself = climb(from.as_fd(), |_| true).unwrap().unwrap();
        assert!(itself.rel.is_root());
        assert!(climb(from.as_fd(), |_| false).unwrap().is_none());
    }

    #[test]
    fn finds_the_names_without_the_kernels_path_too() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("x/y")).unwrap();
        let key = |path: &str| {
            let stat = look(std::fs::File::open(temp.path().join(path)).unwrap(), b"").unwrap();
            (stat, (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor))
        };
        let root = std::fs::File::open(temp.path()).unwrap();
        // What is open elsewhere has another path, so that the names have to be looked for.
        let elsewhere = std::fs::File::open("/").unwrap();
        let below = [key("x/y").1, key("x").1];
        let found = rel(root.as_fd(), elsewhere.as_fd(), &key("x/y").0, &below).unwrap();
        assert_eq!(found, Some(RelPath::new("x/y").unwrap()));
    }
}
