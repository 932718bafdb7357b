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
use ah_provider_directory::{Tree, Views, failed, look, names, open_beneath};
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::depot::{Depot, identity};
use crate::omitted::{omitted, swap_files};
use crate::record::Record;
use crate::remove::Mounted;
use crate::subvolume::{Subvolume, is_btrfs, is_root, is_stub};
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
        open_beneath(self.root.as_fd(), rel.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|errno| failed(format!("cannot open {rel} in the snapshot {}", self.record.id), errno))
    }

    /// For reading.
    ///
    /// # Errors
    /// As [`Self::top`].
    pub(crate) fn tree(&self) -> Result<Tree> {
        let hidden = self.record.omitted.iter().map(|omission| omission.path.clone());
        Ok(Tree::new(self.top()?).hiding(hidden).without_stubs(is_stub))
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
    let omitted = omitted(workspace, &source, store, cx)?;
    let depot = Depot::make(store, root.as_fd(), workspace)?;
    let record = Record::new(request, (workspace, &source), origin, omitted);
    let taken = fill(store, &depot, workspace, (&source, &root), &record, cx);
    if taken.is_err() {
        // The first one of all: with the store, which may go now, nobody would know of the place for it.
        depot.remove_if_empty(store);
    }
    taken.and_then(|()| record.snapshot(true))
}

/// Takes the snapshot of that record.
fn fill(
    store: &Dir,
    depot: &Depot,
    workspace: &Dir,
    (source, root): (&Subvolume, &OwnedFd),
    record: &Record,
    cx: &Context<'_>,
) -> Result<()> {
    let snapshots = depot.made_folder("snapshots")?;
    let folder = claim(snapshots.as_fd(), &record.id, cx)?;
    let made = record.write(folder.as_fd()).and_then(|()| {
        #[cfg(test)]
        tests::before_it_is_taken();
        sys::snapshot(root, &folder, TREE.as_bytes(), true).map_err(|errno| refused(source, &record.id, errno))
    });
    if let Err(error) = made {
        // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
        let _ = rustix::fs::unlinkat(&snapshots, record.id.as_str(), AtFlags::REMOVEDIR);
        return Err(error);
    }
    if let Err(error) = check_shows(folder.as_fd(), record, workspace) {
        // Not into the trash, which would be there for nobody where this is the first one of all. Should that fail too, the error at hand is the one to tell.
        if let Ok(Some(shelf)) = Shelf::open(store) {
            let _ = shelf.remove_in_place(&record.id, &folder, &Mounted::default(), cx);
        }
        return Err(error);
    }
    Ok(())
}

/// That a new snapshot has the workspace where its record says, and not what came to its place before the snapshot was taken, which can be seconds: what was
/// written has to be on disk first. Inodes of a snapshot are those of what it was taken of.
fn check_shows(folder: BorrowedFd<'_>, record: &Record, workspace: &Dir) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let shown = rustix::fs::openat(folder, TREE, flags, Mode::empty())
        .and_then(|root| open_beneath(root.as_fd(), record.rel.as_bytes(), flags))
        .and_then(identity);
    match (shown, identity(workspace)) {
        (Ok(shown), Ok(own)) if shown == own => Ok(()),
        (Ok(_), Ok(_)) | (Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP), _) => {
            let message = format!("{} was moved while a snapshot of it was taken", workspace.path().display());
            Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat"))
        }
        (Err(errno), _) | (_, Err(errno)) => Err(failed("cannot look at the new snapshot", errno)),
    }
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
    /// The records of views for which there was no room in the depot.
    pub(crate) aside: Views,
}

impl Shelf {
    /// Those of a store; none if nothing was ever taken.
    pub(crate) fn open(store: &Dir) -> Result<Option<Self>> {
        let Some(depot) = Depot::find(store)? else { return Ok(None) };
        let Some(snapshots) = depot.folder("snapshots")? else { return Ok(None) };
        Ok(Some(Self { depot, snapshots, aside: Views::in_folder(store)? }))
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
        // In a read-only subvolume that comes before any question of modes, for root too; but not before those of what is immutable and of whom a mount shows as nobody.
        let writable = match rustix::fs::accessat(folder, TREE, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS | Errno::PERM) => {
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
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use ah_plugin_api::{Durability, Timestamp};
    use ah_test_disks::Disk;

    use super::*;

    thread_local! {
        /// What somebody else does just before a snapshot is taken.
        static THEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn before_it_is_taken() {
        if let Some(then) = THEN.take() {
            then();
        }
    }

    #[test]
    fn what_came_to_the_workspaces_place_is_not_taken_for_it() {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let path = |name: &str| disk.at().join(name);
        fs::create_dir(path("store")).unwrap();
        fs::create_dir(path("work")).unwrap();
        fs::write(path("work/mine"), "x").unwrap();
        let (store, work) = (Dir::open(path("store")).unwrap(), Dir::open(path("work")).unwrap());
        let request = SnapshotRequest {
            id: SnapshotId::new("a").unwrap(),
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: Default::default(),
        };
        let (here, away) = (path("work"), path("away"));
        let elsewhere = tempfile::tempdir().unwrap();
        let stores = [&store, &Dir::open(elsewhere.path()).unwrap()];
        let puts: [fn(&Path); 3] = [|_| {}, |here| fs::create_dir(here).unwrap(), |here| fs::write(here, "").unwrap()];
        for (store, put) in stores.into_iter().flat_map(|store| puts.map(|put| (store, put))) {
            let (from, to) = (here.clone(), away.clone());
            THEN.set(Some(Box::new(move || {
                fs::rename(&from, to).unwrap();
                put(&from);
            })));
            let refused = take(store, &work, &request, &Context::quiet()).unwrap_err();
            assert!(refused.kind == ErrorKind::Conflict && refused.hint.as_deref() == Some("repeat"), "{refused:?}");
            // With a store that is elsewhere, nobody would know of what is left.
            assert!(Shelf::open(store).unwrap().is_none_or(|shelf| shelf.list(&Context::quiet()).unwrap().is_empty()));
            assert!(!path(".ah-snapshots").exists());
            let _ = fs::remove_file(&here);
            let _ = fs::remove_dir(&here);
            fs::rename(&away, &here).unwrap();
        }
        // Moved before, it is where it is.
        fs::rename(&here, &away).unwrap();
        let taken = take(&store, &work, &request, &Context::quiet()).unwrap();
        let (_, shown) = Shelf::find(&store, &taken.reference).unwrap();
        assert_eq!(names(shown.top().unwrap().as_fd()).unwrap(), [b"mine"]);
    }
}
