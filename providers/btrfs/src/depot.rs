//! Where the snapshots of a store are: on the workspace's filesystem, in a subvolume of their own.
//!
//! ```text
//! <store>/depot                      the depot, a subvolume, if the store is on the workspace's filesystem
//! <store>/elsewhere                  else: where it is, one line: key, blank, path of the folder of depots
//! <above>/.ah-snapshots/<key>        … a folder in a subvolume, in the highest directory above the workspace that this user may
//!                                    write to
//!
//! <depot>/snapshots/<id>/            bears the snapshot's record (`record.rs`)
//! <depot>/snapshots/<id>/tree        the snapshot itself, read-only; it exists if and only if this does
//! <depot>/trash/<unique>/tree        what is removed and waits for `reclaim`
//! <depot>/made/                      a symlink for each view and clone (`ah_provider_directory::Views`, `made.rs`)
//! <depot>/clones/<unique>/           clones whose target folder is on another filesystem
//! ```
//!
//! A subvolume, because what is in one is in no snapshot of what contains it: neither the next snapshot of a whole home, nor
//! somebody else's backup.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::{failed, look};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::subvolume::{is_btrfs, is_root};
use crate::sys;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder of depots, where they cannot be in their stores.
pub(crate) const ABOVE: &str = ".ah-snapshots";

/// An open depot.
#[derive(Debug)]
pub(crate) struct Depot {
    dir: OwnedFd,
    path: PathBuf,
    elsewhere: bool,
}

impl Depot {
    /// The depot of a store, none if there has never been one.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is on a filesystem that is not there.
    pub(crate) fn find(store: &Dir) -> Result<Option<Self>> {
        match open(store.as_fd(), "depot") {
            Ok(dir) => return Ok(Some(Self { dir, path: store.path().join("depot"), elsewhere: false })),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("cannot open the folder of snapshots", errno)),
        }
        let Some((key, above)) = read_elsewhere(store)? else { return Ok(None) };
        let path = above.join(&key);
        let gone = |why: String| {
            Error::new(
                ErrorKind::FailedPrecondition,
                format!("the snapshots in {} cannot be reached: {why}", path.display()),
            )
            .with_hint("mount that filesystem where it was when they were taken")
        };
        let folder = Dir::open(&above).map_err(|error| gone(error.causes.join(": ")))?;
        check_own(folder.as_fd(), &above).map_err(|error| gone(error.message))?;
        let dir = open(folder.as_fd(), &key).map_err(|errno| gone(std::io::Error::from(errno).to_string()))?;
        Ok(Some(Self { dir, path, elsewhere: true }))
    }

    /// The depot of a store, made if need be on the filesystem of the subvolume root `source`, which contains `workspace`.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no place for it; `PermissionDenied`; `ResourceExhausted`.
    pub(crate) fn make(store: &Dir, source: BorrowedFd<'_>, workspace: &Dir) -> Result<Self> {
        if let Some(depot) = Self::find(store)? {
            return Ok(depot);
        }
        if is_here(store, source) {
            make_subvolume(store.as_fd(), "depot").map_err(|e| failed("cannot make a place for snapshots", e))?;
        } else {
            make_elsewhere(store, workspace)?;
        }
        Self::find(store)?.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, "the place for snapshots was taken away while it was made")
                .with_hint("repeat")
        })
    }

    /// Its path, for answers.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// One of its folders, none if nothing has been put in it yet.
    pub(crate) fn folder(&self, name: &str) -> Result<Option<OwnedFd>> {
        match open(self.dir.as_fd(), name) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("cannot open the folder of snapshots", errno)),
        }
    }

    /// One of its folders, made if need be.
    pub(crate) fn made_folder(&self, name: &str) -> Result<OwnedFd> {
        let fail = |errno| failed("cannot make a place for snapshots", errno);
        match open(self.dir.as_fd(), name) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&self.dir, name, Mode::RWXU) {
                    // Somebody else may use it for the first time, too.
                    Ok(()) | Err(Errno::EXIST) => open(self.dir.as_fd(), name).map_err(fail),
                    Err(errno) => Err(fail(errno)),
                }
            }
            other => other.map_err(fail),
        }
    }

    /// Takes an empty depot away that is not in its store, and the folder of depots if it was the last: nobody else would.
    pub(crate) fn remove_if_empty(&self, store: &Dir) -> bool {
        if !self.elsewhere {
            return false;
        }
        for name in ["snapshots", "trash", "made", "clones"] {
            match rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(_) => return false,
            }
        }
        let (Some(above), Some(key)) = (self.path.parent(), self.path.file_name()) else { return false };
        let Ok(folder) = Dir::open(above) else { return false };
        if rustix::fs::unlinkat(&folder, key, AtFlags::REMOVEDIR).is_err() {
            return false;
        }
        let _ = rustix::fs::unlinkat(store, "elsewhere", AtFlags::empty());
        drop(folder);
        // An empty subvolume goes as an empty directory does; one that still has depots does not.
        let _ = rustix::fs::rmdir(above);
        true
    }
}

/// Whether a depot can be in the store itself.
pub(crate) fn is_here(store: &Dir, source: BorrowedFd<'_>) -> bool {
    is_btrfs(store) && matches!((sys::filesystem(store), sys::filesystem(source)), (Ok(a), Ok(b)) if a == b)
}

fn open(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// Makes a subvolume that nobody else can look into, unless one is there.
fn make_subvolume(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match sys::create(parent, name.as_bytes()) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    // It was made with what the umask leaves; nothing is in it before this.
    rustix::fs::fchmod(open(parent, name)?, Mode::RWXU)
}

/// That a folder of depots is this user's, and closed to all others.
fn check_own(folder: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let stat = look(folder, b"").map_err(|errno| failed("cannot look at the folder of snapshots", errno))?;
    let own = stat.stx_uid == rustix::process::geteuid().as_raw() && is_root(&stat) && stat.stx_mode & 0o077 == 0;
    if own {
        return Ok(());
    }
    let message = format!("{} is not a subvolume that only this user can look into", path.display());
    Err(Error::new(ErrorKind::FailedPrecondition, message))
}

fn read_elsewhere(store: &Dir) -> Result<Option<(String, PathBuf)>> {
    let fail = |errno| failed("cannot read where the snapshots are", errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(store, "elsewhere", flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .take(8192)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::from_io("cannot read where the snapshots are", &e))?;
    let damaged = || Error::new(ErrorKind::DataLoss, "the store's note of where its snapshots are is damaged");
    let line = bytes.strip_suffix(b"\n").ok_or_else(damaged)?;
    let (key, path) = line.split_at_checked(32).ok_or_else(damaged)?;
    let path = path.strip_prefix(b" ").filter(|path| path.starts_with(b"/")).ok_or_else(damaged)?;
    if !key.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b)) {
        return Err(damaged());
    }
    let key = String::from_utf8_lossy(key).into_owned();
    Ok(Some((key, PathBuf::from(OsString::from_vec(path.to_owned())))))
}

/// What tells an open directory from any other: an inode number is used again, but not with the same birth time.
pub(crate) fn identity(dir: impl AsFd) -> Result<String, Errno> {
    let stat = look(dir, b"")?;
    Ok(format!("{:x}.{:x}.{:x}", stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}

/// 128 random bits in hex.
pub(crate) fn unique() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Unavailable, format!("the system has no random numbers: {e}")))?;
    Ok(hex(&bytes))
}

/// In hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The highest directory above the workspace, on its mount, that this user may write to; in it, the folder of depots is made, or
/// would be.
pub(crate) fn place_above(workspace: &Dir) -> Result<OwnedFd> {
    candidates(workspace)?.into_iter().next_back().ok_or_else(|| nowhere(workspace))
}

fn nowhere(workspace: &Dir) -> Error {
    let message = format!(
        "there is no place for snapshots on the filesystem of {}: no directory above it that you may write to",
        workspace.path().display()
    );
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint("set AH_HOME to a folder of yours on that filesystem, or let the administrator set up `ahd`")
}

/// The directories above the workspace that come into question, the lowest first.
fn candidates(workspace: &Dir) -> Result<Vec<OwnedFd>> {
    let fail = |errno| failed("cannot look at the directories above the workspace", errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = Vec::new();
    let mut stat = look(workspace, b"").map_err(fail)?;
    let mut at = rustix::fs::openat(workspace, c".", flags, Mode::empty()).map_err(fail)?;
    loop {
        let up = rustix::fs::openat(&at, c"..", flags, Mode::empty()).map_err(fail)?;
        let above = look(&up, b"").map_err(fail)?;
        let key = |s: &rustix::fs::Statx| (s.stx_ino, s.stx_dev_major, s.stx_dev_minor);
        if key(&above) == key(&stat) || above.stx_mnt_id != stat.stx_mnt_id {
            return Ok(found);
        }
        let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if rustix::fs::accessat(&up, c".", wanted, AtFlags::EACCESS).is_ok() {
            found.push(up.try_clone().map_err(|e| Error::from_io("cannot look at the directories above", &e))?);
        }
        (at, stat) = (up, above);
    }
}

fn make_elsewhere(store: &Dir, workspace: &Dir) -> Result<()> {
    let mut trouble = nowhere(workspace);
    for place in candidates(workspace)?.into_iter().rev() {
        match make_in(store, place.as_fd()) {
            Ok(()) => return Ok(()),
            // Somebody else's is there, in a directory that several may write to.
            Err(error) if error.kind == ErrorKind::FailedPrecondition => trouble = error,
            Err(error) => return Err(error),
        }
    }
    Err(trouble)
}

fn make_in(store: &Dir, place: BorrowedFd<'_>) -> Result<()> {
    use std::os::fd::AsRawFd;
    let fail = |errno| failed("cannot make a place for snapshots", errno);
    let place = open(place, ".").map_err(fail)?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))
        .map_err(|e| Error::from_io("cannot find the path of the place for snapshots", &e))?
        .join(ABOVE);
    match sys::create(&place, ABOVE.as_bytes()) {
        Ok(()) => rustix::fs::fchmod(open(place.as_fd(), ABOVE).map_err(fail)?, Mode::RWXU).map_err(fail)?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let folder = match open(place.as_fd(), ABOVE) {
        Ok(folder) => folder,
        // A file, a symlink, or somebody else's.
        Err(errno @ (Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)) => {
            let why = std::io::Error::from(errno);
            return Err(Error::new(ErrorKind::FailedPrecondition, format!("{} is in the way: {why}", path.display())));
        }
        Err(errno) => return Err(fail(errno)),
    };
    check_own(folder.as_fd(), &path)?;
    let key = unique()?;
    rustix::fs::mkdirat(&folder, &key, Mode::RWXU).map_err(fail)?;
    // The depot must be on disk before the note of it is, and the note before the first snapshot.
    rustix::fs::syncfs(&folder).map_err(fail)?;
    let line = [key.as_bytes(), b" ", path.as_os_str().as_bytes(), b"\n"].concat();
    match write_note(store, &key, &line) {
        // Somebody else was first: theirs holds.
        Ok(false) => rustix::fs::unlinkat(&folder, &key, AtFlags::REMOVEDIR).map_err(fail),
        Ok(true) => Ok(()),
        Err(error) => {
            let _ = rustix::fs::unlinkat(&folder, &key, AtFlags::REMOVEDIR);
            Err(error)
        }
    }
}

/// Whether it was written: false if there is one.
fn write_note(store: &Dir, key: &str, line: &[u8]) -> Result<bool> {
    let fail = |e: &std::io::Error| Error::from_io("cannot write down where the snapshots are", e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let name = format!("elsewhere.{key}");
    let file = rustix::fs::openat(store, &name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail(&e.into()))?;
    let mut file = std::fs::File::from(file);
    let written =
        file.write_all(line).and_then(|()| file.sync_all()).map_err(|e| fail(&e)).and_then(
            |()| match rustix::fs::linkat(store, &name, store, "elsewhere", AtFlags::empty()) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(errno) => Err(fail(&errno.into())),
            },
        );
    let _ = rustix::fs::unlinkat(store, &name, AtFlags::empty());
    if matches!(written, Ok(true)) {
        rustix::fs::fsync(store).map_err(|e| fail(&e.into()))?;
    }
    written
}
