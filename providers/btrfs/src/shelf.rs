//! The snapshots of a depot: taking, listing, opening, removing.
//!
//! A snapshot is a folder with a record and, in it, `tree`. The folder comes first; the call that makes `tree` commits both. Whoever
//! makes a snapshot holds its folder's lock, so that `reclaim` does not take a folder without a tree for a leftover. What is removed
//! goes by one rename, tree and all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ah_plugin_api::{
    Context, Dir, Error, ErrorKind, LogLevel, Reference, Result, Snapshot, SnapshotId, SnapshotRequest,
};
use ah_provider_directory::{Tree, Views, failed, look, names};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::depot::{Depot, unique};
use crate::omitted::{omitted, swap_files};
use crate::record::Record;
use crate::remove;
use crate::subvolume::{Subvolume, is_root};
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

fn has_tree(folder: BorrowedFd<'_>) -> Result<bool> {
    match look(folder, TREE.as_bytes()) {
        Ok(stat) => Ok(is_root(&stat)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(failed("cannot look at a snapshot", errno)),
    }
}

/// The snapshots of an open depot.
pub(crate) struct Shelf {
    depot: Depot,
    snapshots: OwnedFd,
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
        Ok(Some(Shown { record: Record::read(folder.as_fd(), id)?, root }))
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

    fn is_viewed(&self, id: &SnapshotId) -> Result<bool> {
        match self.depot.folder("made")? {
            Some(made) => Ok(Views::new(made).of(id)? > 0),
            None => Ok(false),
        }
    }

    /// Removes a snapshot: from now on it is not listed. Its space comes back behind.
    ///
    /// # Errors
    /// `Busy` if it is shown.
    pub(crate) fn remove(&self, reference: &Reference, cx: &Context<'_>) -> Result<()> {
        let Ok(id) = SnapshotId::new(reference.as_str()) else { return Ok(()) };
        let fail = |errno| failed(format!("cannot remove the snapshot {id}"), errno);
        let busy = || Error::new(ErrorKind::Busy, format!("the snapshot {id} is shown by a view"));
        match look(&self.snapshots, format!("{id}/{TREE}").as_bytes()) {
            Ok(_) => {}
            // In the making, it is not there yet; what is left of one, `reclaim` takes away.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(fail(errno)),
        }
        if self.is_viewed(&id)? {
            return Err(busy());
        }
        let trash = match self.depot.made_folder("trash") {
            Err(error) if error.kind == ErrorKind::ResourceExhausted => return self.remove_in_place(&id, cx),
            trash => trash?,
        };
        let name = format!("{id}.{}", unique()?);
        match rustix::fs::renameat(&self.snapshots, id.as_str(), &trash, &name) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT) => return self.remove_in_place(&id, cx),
            Err(errno) => return Err(fail(errno)),
        }
        // Whoever shows a snapshot writes that down, then looks if it is there: one of the two sees the other.
        if self.is_viewed(&id)? {
            let back = rustix::fs::renameat_with(&trash, &name, &self.snapshots, id.as_str(), RenameFlags::NOREPLACE);
            return back.map_err(fail).and(Err(busy()));
        }
        // No more than that: removing a subvolume waits for each snapshot that somebody takes at that moment.
        Ok(())
    }
}

impl Shelf {
    /// Keeps a snapshot from being removed where it is, until this is closed.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn hold(&self, id: &SnapshotId) -> Result<OwnedFd> {
        let fail = |errno| match errno {
            Errno::NOENT => Error::new(ErrorKind::NotFound, format!("there is no snapshot {id}")),
            errno => failed(format!("cannot open the snapshot {id}"), errno),
        };
        let folder = rustix::fs::openat(&self.snapshots, id.as_str(), DIRECTORY, Mode::empty()).map_err(fail)?;
        retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockShared)).map_err(fail)?;
        Ok(folder)
    }

    /// On a disk that is too full for a rename: what frees it has to work there. Nobody can look whether it is still there meanwhile, so
    /// whoever is about to show it is waited for instead, or waits.
    fn remove_in_place(&self, id: &SnapshotId, cx: &Context<'_>) -> Result<()> {
        let fail = |errno| failed(format!("cannot remove the snapshot {id}"), errno);
        let folder = match rustix::fs::openat(&self.snapshots, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(fail(errno)),
        };
        retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockExclusive)).map_err(fail)?;
        if self.is_viewed(id)? {
            return Err(Error::new(ErrorKind::Busy, format!("the snapshot {id} is shown by a view")));
        }
        discard(self.snapshots.as_fd(), id.as_str().as_bytes(), cx)
    }
}

/// Takes a folder in the trash away, with its tree.
pub(crate) fn discard(trash: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
    let fail = |errno| failed("cannot clear the trash", errno);
    let folder = match rustix::fs::openat(trash, name, DIRECTORY, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fail(errno)),
    };
    remove::subvolume(folder.as_fd(), TREE.as_bytes(), cx)?;
    drop(folder);
    remove::entry(trash, name, cx)
}

/// Takes away what is left of snapshots that were never finished, or were removed behind our back; answers how many.
pub(crate) fn clear_unfinished(snapshots: BorrowedFd<'_>, cx: &Context<'_>) -> Result<usize> {
    let fail = |errno| failed("cannot look for unfinished snapshots", errno);
    let mut count = 0;
    for name in names(snapshots).map_err(fail)? {
        cx.check_cancelled()?;
        if !String::from_utf8(name.clone()).is_ok_and(|name| SnapshotId::new(name).is_ok()) {
            continue;
        }
        let Ok(folder) = rustix::fs::openat(snapshots, name.as_slice(), DIRECTORY, Mode::empty()) else { continue };
        if has_tree(folder.as_fd())? || rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        // Finished between the two looks, perhaps; a folder with something in it does not go.
        if rustix::fs::unlinkat(snapshots, name.as_slice(), AtFlags::REMOVEDIR).is_ok() {
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use ah_plugin_api::{Durability, FileName, MountRequest, Timestamp, UnmountRequest};
    use ah_test_disks::Disk;

    use super::*;
    use crate::view;

    #[test]
    fn what_is_removed_where_it_is_is_shown_to_nobody() {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let dir = |name: &str| {
            std::fs::create_dir(disk.at().join(name)).unwrap();
            Dir::open(disk.at().join(name)).unwrap()
        };
        let (work, store, target) = (dir("work"), dir("store"), dir("target"));
        let id = SnapshotId::new("a").unwrap();
        let request = SnapshotRequest {
            id: id.clone(),
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: Default::default(),
        };
        let cx = Context::quiet();
        let taken = take(&store, &work, &request, &cx).unwrap();
        let shelf = Shelf::open(&store).unwrap().unwrap();
        let request =
            MountRequest { snapshot: taken.reference.clone(), name: FileName::new("v").unwrap(), paths: Vec::new() };
        // Shown between the first look and the second.
        let shown = view::make(&store, &target, &request).unwrap();
        assert_eq!(shelf.remove_in_place(&id, &cx).unwrap_err().kind, ErrorKind::Busy);
        assert!(shown.path.exists());
        view::take_away(&store, &UnmountRequest { view: shown.reference }.view).unwrap();
        // While somebody is about to show it, it is waited for; who comes later finds none.
        let held = shelf.hold(&id).unwrap();
        let (removed, done) = mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| removed.send(shelf.remove_in_place(&id, &Context::quiet())).unwrap());
            assert!(done.recv_timeout(Duration::from_millis(200)).is_err());
            assert!(shelf.get(&taken.reference).is_ok());
            drop(held);
            done.recv().unwrap().unwrap();
        });
        assert_eq!(view::make(&store, &target, &request).unwrap_err().kind, ErrorKind::NotFound);
    }
}
