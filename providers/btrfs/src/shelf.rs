//! The snapshots of a depot: taking, listing, opening. Removing is in `removal`.
//!
//! A snapshot is a folder with a record and, in it, `tree`. The folder comes first; the call that makes `tree` commits both. Whoever
//! makes a snapshot holds its folder's lock, so that `reclaim` does not take a folder without a tree for a leftover.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ah_plugin_api::text::shell;
use ah_plugin_api::{
    Context, Dir, Error, ErrorKind, LogLevel, Reference, Result, Snapshot, SnapshotId, SnapshotRequest,
};
use ah_provider_directory::{Tree, Views, failed, look, names};
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::depot::Depot;
use crate::omitted::{omitted, swap_files};
use crate::record::Record;
use crate::subvolume::{Subvolume, is_btrfs, is_root};
use crate::sys;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a snapshot's folder holds.
pub(crate) const TREE: &str = "tree";

/// An open snapshot.
pub(crate) struct Shown {
    pub(crate) record: Record,
    /// The root of the read-only subvolume.
    pub(crate) root: OwnedFd,
}

impl Shown {
    /// The workspace's directory in it.
    ///
    /// # Errors
    /// `DataLoss` if it is not there.
    pub(crate) fn top(&self) -> Result<OwnedFd> {
        let rel = &self.record.rel;
        ah_provider_directory::open_beneath(self.root.as_fd(), rel.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|errno| failed(format!("cannot open {rel} in the snapshot {}", self.record.id), errno))
    }

    /// For reading.
    ///
    /// # Errors
    /// As [`Self::top`].
    pub(crate) fn tree(&self) -> Result<Tree> {
        let hidden = self.record.omitted.iter().map(|omission| omission.path.clone());
        Ok(Tree::new(self.top()?).hiding(hidden).without_stubs(|stat| stat.stx_ino == sys::STUB_INODE))
    }
}

/// The error of a reference that names nothing.
pub(crate) fn no_snapshot(reference: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}"))
}

/// Answers [`ah_plugin_api::Provider::snapshot`].
pub(crate) fn take(store: &Dir, workspace: &Dir, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
    cx.check_cancelled()?;
    let source = Subvolume::around(workspace)?;
    let root = source.open()?;
    let origin = sys::info(&root)
        .map_err(|errno| failed(format!("cannot look at the subvolume {}", source.path.display()), errno))?
        .uuid;
    let omitted = omitted(workspace, &source, store)?;
    let depot = Depot::make(store, root.as_fd(), workspace)?;
    let snapshots = depot.made_folder("snapshots")?;
    let folder = claim(snapshots.as_fd(), &request.id, cx)?;
    let record = Record::new(request, (workspace, &source), origin, omitted);
    let made = record.write(folder.as_fd()).and_then(|()| {
        sys::snapshot(&root, &folder, TREE.as_bytes(), true).map_err(|errno| refused(&source, &request.id, errno))
    });
    if let Err(error) = made {
        // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
        let _ = rustix::fs::unlinkat(&snapshots, request.id.as_str(), AtFlags::REMOVEDIR);
        return Err(error);
    }
    record.snapshot(true)
}

fn refused(source: &Subvolume, id: &SnapshotId, errno: Errno) -> Error {
    let path = source.path.display();
    match errno {
        Errno::EXIST => Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {id} already")),
        Errno::PERM => failed(format!("the subvolume {path} belongs to somebody else"), errno)
            .with_hint("ah agent fs convert makes a subvolume of your own of the workspace"),
        Errno::TXTBSY => {
            let file = swap_files(source).first().map_or_else(String::new, |file| format!(" ({})", file.display()));
            Error::new(
                ErrorKind::FailedPrecondition,
                format!("the subvolume {path} holds a swap file that is in use{file}"),
            )
            .with_hint("swap to a file in a subvolume of its own")
        }
        errno => failed(format!("cannot take a snapshot of the subvolume {path}"), errno),
    }
}

/// A folder for a new snapshot, locked until it is closed.
fn claim(snapshots: BorrowedFd<'_>, id: &SnapshotId, cx: &Context<'_>) -> Result<OwnedFd> {
    let fail = |errno| failed("cannot make a place for the snapshot", errno);
    let taken = || Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {id} already"));
    for _ in 0..200 {
        cx.check_cancelled()?;
        match rustix::fs::mkdirat(snapshots, id.as_str(), Mode::RWXU) {
            // What a killed process left of it is taken over.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let folder = match rustix::fs::openat(snapshots, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(fail(errno)),
        };
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Err(errno) => return Err(fail(errno)),
        }
        if has_tree(folder.as_fd())? {
            return Err(taken());
        }
        // Before it was locked, `reclaim` may have taken it for a leftover.
        let (ours, there) = (look(&folder, b"").map_err(fail)?, look(snapshots, id.as_str().as_bytes()));
        if there.is_ok_and(|there| (there.stx_ino, there.stx_btime.tv_nsec) == (ours.stx_ino, ours.stx_btime.tv_nsec)) {
            return Ok(folder);
        }
    }
    Err(Error::new(ErrorKind::Busy, format!("another process is making the snapshot {id}")))
}

/// Whether there is a subvolume; else there is none, or a directory, as in what `cp` makes of a depot, and `mv` to another subvolume or filesystem.
pub(crate) fn has_tree(folder: BorrowedFd<'_>) -> Result<bool> {
    match look(folder, TREE.as_bytes()) {
        Ok(stat) => Ok(is_root(&stat) && is_btrfs(folder)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(failed("cannot look at a snapshot", errno)),
    }
}

/// The snapshots of an open depot.
pub(crate) struct Shelf {
    pub(crate) depot: Depot,
    pub(crate) snapshots: OwnedFd,
}

impl Shelf {
    /// Those of a store; none if nothing was ever taken.
    pub(crate) fn open(store: &Dir) -> Result<Option<Self>> {
        let Some(depot) = Depot::find(store)? else { return Ok(None) };
        Ok(depot.folder("snapshots")?.map(|snapshots| Self { depot, snapshots }))
    }

    /// The one of that reference in a store.
    ///
    /// # Errors
    /// `NotFound`; `DataLoss`.
    pub(crate) fn find(store: &Dir, reference: &Reference) -> Result<(Self, Shown)> {
        let shelf = Self::open(store)?.ok_or_else(|| no_snapshot(reference))?;
        let shown = shelf.get(reference)?;
        Ok((shelf, shown))
    }

    /// The depot.
    pub(crate) fn depot(&self) -> &Depot {
        &self.depot
    }

    /// The one of that reference.
    ///
    /// # Errors
    /// `NotFound`; `DataLoss`.
    pub(crate) fn get(&self, reference: &Reference) -> Result<Shown> {
        // A reference comes from outside; one that is no id must not become a path.
        let id = SnapshotId::new(reference.as_str()).map_err(|_| no_snapshot(reference))?;
        self.read(&id)?.ok_or_else(|| no_snapshot(reference))
    }

    fn read(&self, id: &SnapshotId) -> Result<Option<Shown>> {
        let fail = |errno| failed(format!("cannot open the snapshot {id}"), errno);
        let folder = match rustix::fs::openat(&self.snapshots, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = match rustix::fs::openat(&folder, TREE, flags, Mode::empty()) {
            Ok(root) => root,
            // In the making, or removed behind our back.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        // Without one, its removal has begun.
        match Record::read(folder.as_fd(), id) {
            Ok(Some(record)) => match self.as_captured(folder.as_fd(), id) {
                Err(_) if self.is_going(folder.as_fd(), id) => Ok(None),
                checked => checked.map(|()| Some(Shown { record, root })),
            },
            Ok(None) => Ok(None),
            // What it is a snapshot of cannot be told any more; that is there.
            Err(error) if error.kind == ErrorKind::DataLoss => {
                let tree = self.depot.path().join("snapshots").join(id.as_str()).join(TREE);
                Err(error.with_hint(format!("its files are still in {}", tree.display())))
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses what somebody can have changed since it was taken. Two looks; the filesystem is asked only where they do not tell.
    fn as_captured(&self, folder: BorrowedFd<'_>, id: &SnapshotId) -> Result<()> {
        let tree = self.depot.path().join("snapshots").join(id.as_str()).join(TREE);
        if !has_tree(folder)? {
            let message =
                format!("of the snapshot {id} there is only a copy of its files, which may have been changed since");
            return Err(Error::new(ErrorKind::DataLoss, message).with_hint(format!(
                "the snapshot itself did not come along: cp, a backup, and mv to another subvolume or filesystem, copy files; they are in {}",
                tree.display()
            )));
        }
        // In a read-only subvolume that comes before any question of modes, for root too; but not before that of whom a mount shows as nobody.
        let writable = match rustix::fs::accessat(folder, TREE, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => {
                let root = rustix::fs::openat(folder, TREE, DIRECTORY, Mode::empty());
                root.and_then(sys::is_read_only) == Ok(false)
            }
            looked => looked.is_ok(),
        };
        if !writable {
            return Ok(());
        }
        let message = format!("the snapshot {id} was made writable by hand, so it may not be what was captured");
        Err(Error::new(ErrorKind::DataLoss, message).with_hint(format!(
            "if nothing in it was changed: btrfs property set -ts {} ro true",
            shell(tree.as_os_str())
        )))
    }

    /// Whether a snapshot is removed at this moment.
    fn is_going(&self, folder: BorrowedFd<'_>, id: &SnapshotId) -> bool {
        let known = |stat: rustix::fs::Statx| (stat.stx_ino, stat.stx_btime.tv_nsec);
        let (ours, there) = (look(folder, b"").map(known), look(&self.snapshots, id.as_str().as_bytes()).map(known));
        let tree = look(folder, TREE.as_bytes());
        ours != there || tree.is_err_and(|errno| errno == Errno::NOENT) || matches!(Record::read(folder, id), Ok(None))
    }

    /// All of them, oldest first, as `list` shows them.
    pub(crate) fn list(&self, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let names = names(self.snapshots.as_fd()).map_err(|errno| failed("cannot list the snapshots", errno))?;
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            cx.check_cancelled()?;
            let Some(id) = String::from_utf8(name).ok().and_then(|name| SnapshotId::new(name).ok()) else { continue };
            match self.read(&id) {
                Ok(Some(shown)) => all.push(shown.record.snapshot(false)?),
                Ok(None) => {}
                Err(error) => cx.log(LogLevel::Warn, &format!("the snapshot {id} cannot be read: {error}")),
            }
        }
        all.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(all)
    }

    /// Where the directory of a snapshot is that shows the workspace.
    pub(crate) fn path(&self, record: &Record) -> std::path::PathBuf {
        let mut path = self.depot.path().join("snapshots").join(record.id.as_str()).join(TREE);
        if !record.rel.is_root() {
            path.push(record.rel.as_path());
        }
        path
    }

    /// The records of views.
    pub(crate) fn views(&self) -> Result<Views> {
        self.depot.made_folder("made").map(Views::new)
    }

    pub(crate) fn is_viewed(&self, id: &SnapshotId) -> Result<bool> {
        match self.depot.folder("made")? {
            Some(made) => Ok(Views::new(made).of(id)? > 0),
            None => Ok(false),
        }
    }
}
