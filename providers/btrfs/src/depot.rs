//! Where the snapshots of a store are: on the workspace's filesystem, in a subvolume of their own.
//!
//! ```text
//! <store>/depot                      the depot, a subvolume, if the store is on the workspace's filesystem
//! <store>/elsewhere                  else: where it is (`elsewhere.rs`)
//! <store>/view-<hash>                a symlink for each view for which the depot's disk had no room (`view.rs`)
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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use ah_plugin_api::text::shell;
use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::{failed, look};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::elsewhere::{self, Note};
use crate::subvolume::{is_btrfs, is_stub};
use crate::sys;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// So often one is looked for that others take away.
const ATTEMPTS: u32 = 100;

/// What may be in a depot.
pub(crate) const FOLDERS: [&str; 4] = ["snapshots", "trash", "made", "clones"];

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
    /// `FailedPrecondition` if it is on a filesystem that is not there, or stayed behind when a snapshot came to the place of what is around it.
    pub(crate) fn find(store: &Dir) -> Result<Option<Self>> {
        match open(store.as_fd(), "depot") {
            Ok(dir) => {
                let path = store.path().join("depot");
                if stands_for_another(dir.as_fd()) {
                    return Err(left_behind(&path));
                }
                return Ok(Some(Self { dir, path, elsewhere: false }));
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("cannot open the folder of snapshots", errno)),
        }
        let Some(mut note) = Note::read(store)? else { return Ok(None) };
        loop {
            let error = match note.open(store) {
                Ok(dir) => return Ok(Some(Self { dir, path: note.path(), elsewhere: true })),
                Err(error) => error,
            };
            // Taken away between the two looks?
            match Note::read(store)? {
                None => return Ok(None),
                Some(now) if now == note && now.is_void() => return Ok(None),
                Some(now) if now == note => return Err(error),
                Some(now) => note = now,
            }
        }
    }

    /// The depot of a store, made if need be on the filesystem of the subvolume root `source`, which contains `workspace`. As long as this
    /// one is open, nobody takes it away.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no place for it, or it is on another filesystem and not empty; `PermissionDenied`; `ResourceExhausted`.
    pub(crate) fn make(store: &Dir, source: BorrowedFd<'_>, workspace: &Dir) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let Some(depot) = Self::find(store)? else {
                if is_here(store, source) {
                    make_subvolume(store.as_fd(), "depot")
                        .map_err(|e| failed("cannot make a place for snapshots", e))?;
                } else {
                    elsewhere::make(store, workspace)?;
                }
                continue;
            };
            if !depot.is_on_filesystem_of(source) {
                // What is there stays to be used from there; only an empty one makes room for one over here.
                if depot.remove_empty(store) {
                    continue;
                }
                return Err(depot.on_another(workspace.path()));
            }
            if !depot.elsewhere {
                return Ok(depot);
            }
            elsewhere::hold(depot.dir.as_fd())?;
            // Before it was held, it may have been taken away as an empty one.
            let same = |now: Self| now.path == depot.path && identity(&now.dir) == identity(&depot.dir);
            if Self::find(store)?.is_some_and(same) {
                return Ok(depot);
            }
        }
        let message = "the place for snapshots is taken away again and again while it is made";
        Err(Error::new(ErrorKind::Busy, message).with_hint("repeat"))
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

    /// Whether snapshots of what `source` is on can be in it.
    pub(crate) fn is_on_filesystem_of(&self, source: impl AsFd) -> bool {
        matches!((sys::filesystem(&self.dir), sys::filesystem(source)), (Ok(a), Ok(b)) if a == b)
    }

    /// Whether it would be taken away where it is in the way.
    pub(crate) fn is_empty(&self) -> bool {
        elsewhere::is_empty(self.dir.as_fd())
    }

    /// The error where it is on another filesystem than the workspace.
    pub(crate) fn on_another(&self, workspace: &Path) -> Error {
        let message = format!(
            "{} is on another filesystem than the snapshots that were taken of this workspace before, in {}",
            workspace.display(),
            self.path.display()
        );
        Error::new(ErrorKind::FailedPrecondition, message).with_hint(
            "mount the former filesystem there again; or, to go on with this one, remove those snapshots (ah agent fs \
             snapshots, ah agent fs rm) and branches, then: ah agent fs gc",
        )
    }

    /// Takes an empty depot away, wherever it is; whether it is gone.
    fn remove_empty(&self, store: &Dir) -> bool {
        if self.elsewhere {
            return elsewhere::remove_if_empty(store, self.dir.as_fd(), &self.path);
        }
        // An empty subvolume goes as an empty directory does.
        elsewhere::is_emptied(self.dir.as_fd())
            && matches!(rustix::fs::unlinkat(store, "depot", AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
    }

    /// Commits, and has the kernel begin to give back the space of what was removed.
    pub(crate) fn give_back(&self) {
        let _ = sys::give_back(&self.dir);
    }

    /// Whether this user may put something into it.
    pub(crate) fn is_writable(&self) -> Result<(), Errno> {
        rustix::fs::accessat(&self.dir, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
    }

    /// Takes an empty depot away that is not in its store.
    pub(crate) fn remove_if_empty(&self, store: &Dir) -> bool {
        self.elsewhere && elsewhere::remove_if_empty(store, self.dir.as_fd(), &self.path)
    }
}

/// Whether a depot can be in the store itself.
pub(crate) fn is_here(store: &Dir, source: BorrowedFd<'_>) -> bool {
    is_btrfs(store) && matches!((sys::filesystem(store), sys::filesystem(source)), (Ok(a), Ok(b)) if a == b)
}

/// Opens a directory in an open one.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// Whether that is no depot, but what a snapshot of the subvolume around one has in its place.
pub(crate) fn stands_for_another(dir: BorrowedFd<'_>) -> bool {
    is_btrfs(dir) && look(dir, b"").is_ok_and(|stat| is_stub(&stat))
}

/// How a depot comes back that is not in the snapshot which came to the place of the subvolume around it. By what can do nothing but rename: `mv` copies where
/// two mounts of the filesystem are in between, as where the place is one by itself, and snapshots are none any more then.
pub(crate) fn how_to_bring(path: &Path) -> String {
    format!(
        "move it here from the subvolume that was in this place before, without mv, which may copy it: perl -e 'rename $ARGV[0], $ARGV[1] or die $!' OLD {} \
         (on \"Invalid cross-device link\" with both paths as they are in one mount of the whole filesystem: mount -o subvolid=5 DEVICE FOLDER)",
        shell(path.as_os_str())
    )
}

fn left_behind(path: &Path) -> Error {
    let message = format!(
        "the snapshots of this workspace are not in {}: a snapshot of what is around it has come to this place, and stands for it with an empty directory",
        path.display()
    );
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
        "{}; or, if they are lost for good, forget them: rmdir {}",
        how_to_bring(path),
        shell(path.as_os_str())
    ))
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
