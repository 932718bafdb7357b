//! Removing snapshots.
//!
//! What is removed goes into the trash by one rename, tree and all, and `reclaim` empties that. On a disk that is too full for a rename it goes where
//! it is. Where that is more than one call, its record is struck first: a snapshot without one is none, and `reclaim` goes on with it.
//!
//! Whoever is about to show a snapshot holds its folder locked, shared, until that is written down ([`Shelf::hold`]); whoever removes it, alone. So
//! what is shown does not go, and what goes is not shown any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ah_plugin_api::{Context, Error, ErrorKind, Reference, Result, SnapshotId};
use ah_provider_directory::{failed, look, names};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::depot::{open, unique};
use crate::elsewhere::lock_within;
use crate::record::Record;
use crate::shelf::{Shelf, TREE, has_tree};
use crate::view::Recorded;
use crate::{remove, sys};
use remove::Mounted;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Longer than it takes to write a view down.
const PATIENCE: Duration = Duration::from_secs(2);

impl Shelf {
    /// Keeps a snapshot from being removed, until this is closed.
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

    /// Removes a snapshot: from now on it is not listed. Its space comes back behind.
    ///
    /// # Errors
    /// `Busy` if it is shown, and on a full disk if something of it is mounted; `ResourceExhausted` if there is no room even to write down that it goes.
    pub(crate) fn remove(&self, reference: &Reference, cx: &Context<'_>) -> Result<()> {
        let Ok(id) = SnapshotId::new(reference.as_str()) else { return Ok(()) };
        let Some(folder) = self.hold_alone(&id)? else { return Ok(()) };
        #[cfg(test)]
        tests::between(tests::Step::Looked);
        self.put_away(&id, &folder, cx)
    }

    /// The same of one whose folder is open and locked, and that nobody shows.
    fn put_away(&self, id: &SnapshotId, folder: &OwnedFd, cx: &Context<'_>) -> Result<()> {
        let fail = |errno| failed(format!("cannot remove the snapshot {id}"), errno);
        let trash = match self.depot.made_folder("trash") {
            Err(error) if error.kind == ErrorKind::ResourceExhausted => {
                return self.remove_in_place(id, folder, &Mounted::default(), cx);
            }
            trash => trash?,
        };
        let name = format!("{id}.{}", unique()?);
        match rustix::fs::renameat(&self.snapshots, id.as_str(), &trash, &name) {
            // No more than that: removing a subvolume waits for each snapshot that somebody takes at that moment.
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return self.remove_in_place(id, folder, &Mounted::default(), cx),
            Err(errno) => return Err(fail(errno)),
        }
        #[cfg(test)]
        tests::between(tests::Step::Moved);
        Ok(())
    }

    /// The folder of a snapshot that nobody shows, open and locked; none if there is no such snapshot.
    fn hold_alone(&self, id: &SnapshotId) -> Result<Option<OwnedFd>> {
        let fail = |errno| failed(format!("cannot remove the snapshot {id}"), errno);
        let busy = |why: &str| Error::new(ErrorKind::Busy, format!("the snapshot {id} {why}"));
        let folder = match open(self.snapshots.as_fd(), id.as_str()) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        // In the making, it is not there yet; what is left of one, `reclaim` takes away.
        match look(&folder, TREE.as_bytes()) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        }
        if !lock_within(folder.as_fd(), PATIENCE) {
            return Err(busy("is about to be shown").with_hint("repeat"));
        }
        // Before it was locked, somebody else may have removed it.
        let ours = look(&folder, b"").map_err(fail)?;
        let there = look(&self.snapshots, id.as_str().as_bytes());
        if !there.is_ok_and(|there| (there.stx_ino, there.stx_btime.tv_nsec) == (ours.stx_ino, ours.stx_btime.tv_nsec))
        {
            return Ok(None);
        }
        if Recorded::of(self)?.count(id)? > 0 { Err(busy("is shown by a view")) } else { Ok(Some(folder)) }
    }

    /// Where there is to be no trash: on a disk that is too full for a rename, as what frees it has to work there, and of a snapshot that nobody knows of yet.
    /// The folder is locked, or nobody else's.
    pub(crate) fn remove_in_place(
        &self,
        id: &SnapshotId,
        folder: &OwnedFd,
        mounted: &Mounted,
        cx: &Context<'_>,
    ) -> Result<()> {
        mounted.refuse(folder.as_fd(), TREE.as_bytes(), cx)?;
        // By one call it is there whole, or it is not. Else it is not whole from the first step on, and who ends in the middle leaves that.
        if !matches!(sys::destroy(folder, TREE.as_bytes()), Ok(()) | Err(Errno::NOENT)) {
            Record::strike(folder.as_fd()).map_err(|errno| {
                let mut error =
                    failed(format!("there is no room even to write down that the snapshot {id} goes"), errno);
                // A quota has advice of its own.
                if errno == Errno::NOSPC {
                    error.hint = Some("make some: remove a file elsewhere on that filesystem, then repeat".to_owned());
                }
                error
            })?;
            tree(folder.as_fd(), mounted, cx)?;
        }
        remove::entry(self.snapshots.as_fd(), id.as_str().as_bytes(), cx)
    }

    /// Goes on with removals that were cut short where the snapshot was; answers how many were finished here. The others are in the trash now.
    pub(crate) fn finish_removals(&self, mounted: &Mounted, cx: &Context<'_>) -> Result<usize> {
        let fail = |errno| failed("cannot look for snapshots whose removal was cut short", errno);
        let mut count = 0;
        for id in ids(self.snapshots.as_fd()).map_err(fail)? {
            cx.check_cancelled()?;
            let Ok(folder) = open(self.snapshots.as_fd(), id.as_str()) else { continue };
            if !Record::is_struck(folder.as_fd())
                || rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err()
            {
                continue;
            }
            let name = format!("{id}.{}", unique()?);
            let moved = self.depot.made_folder("trash").is_ok_and(|trash| {
                matches!(rustix::fs::renameat(&self.snapshots, id.as_str(), &trash, &name), Ok(()) | Err(Errno::NOENT))
            });
            if !moved {
                self.remove_in_place(&id, &folder, mounted, cx)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Takes a folder in the trash away, with its tree.
pub(crate) fn discard(trash: BorrowedFd<'_>, name: &[u8], mounted: &Mounted, cx: &Context<'_>) -> Result<()> {
    let fail = |errno| failed("cannot clear the trash", errno);
    let folder = match rustix::fs::openat(trash, name, DIRECTORY, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fail(errno)),
    };
    tree(folder.as_fd(), mounted, cx)?;
    drop(folder);
    remove::entry(trash, name, cx)
}

/// Takes a tree away; what is there of a copied depot is a directory.
fn tree(folder: BorrowedFd<'_>, mounted: &Mounted, cx: &Context<'_>) -> Result<()> {
    if has_tree(folder)? {
        mounted.refuse(folder, TREE.as_bytes(), cx)?;
        remove::subvolume(folder, TREE.as_bytes(), cx)
    } else {
        remove::entry(folder, TREE.as_bytes(), cx)
    }
}

/// Takes away what is left of snapshots that were never finished, or were removed behind our back; answers how many.
pub(crate) fn clear_unfinished(snapshots: BorrowedFd<'_>, cx: &Context<'_>) -> Result<usize> {
    let fail = |errno| failed("cannot look for unfinished snapshots", errno);
    let mut count = 0;
    for id in ids(snapshots).map_err(fail)? {
        cx.check_cancelled()?;
        let Ok(folder) = open(snapshots, id.as_str()) else { continue };
        if has_tree(folder.as_fd())? || rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        // Finished between the two looks, perhaps; a folder with something in it does not go.
        if rustix::fs::unlinkat(snapshots, id.as_str(), AtFlags::REMOVEDIR).is_ok() {
            count += 1;
        }
    }
    Ok(count)
}

/// The names in the folder of snapshots that are ids.
fn ids(snapshots: BorrowedFd<'_>) -> Result<impl Iterator<Item = SnapshotId>, Errno> {
    let id = |name| String::from_utf8(name).ok().and_then(|name| SnapshotId::new(name).ok());
    Ok(names(snapshots)?.into_iter().filter_map(id))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use ah_plugin_api::{Dir, Durability, FileName, MountRequest, SnapshotRequest, Timestamp, UnmountRequest, View};
    use ah_test_disks::Disk;

    use super::*;
    use crate::view;

    /// Where others may come in between.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Step {
        Looked,
        Moved,
    }

    type Hook = Box<dyn FnMut(Step)>;

    thread_local! {
        static BETWEEN: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    pub(super) fn between(step: Step) {
        BETWEEN.with_borrow_mut(|hook| hook.iter_mut().for_each(|hook| hook(step)));
    }

    struct Bench {
        store: Dir,
        target: Dir,
        shelf: Shelf,
        id: SnapshotId,
        request: MountRequest,
        _disk: Disk,
    }

    /// A disk with a snapshot.
    fn bench() -> Option<Bench> {
        let disk = Disk::new("btrfs", 300, "")?;
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
        let taken = crate::shelf::take(&store, &work, &request, &Context::quiet()).unwrap();
        let shelf = Shelf::open(&store).unwrap().unwrap();
        let request = MountRequest { snapshot: taken.reference, name: FileName::new("v").unwrap(), paths: Vec::new() };
        Some(Bench { store, target, shelf, id, request, _disk: disk })
    }

    #[test]
    fn what_is_about_to_be_shown_when_it_is_removed_is_shown_or_gone() {
        let Some(Bench { store, target, shelf, id, request, _disk }) = bench() else { return };
        let reference = Reference::new(id.as_str()).unwrap();
        let show = {
            let (store, target) = (store.path().to_owned(), target.path().to_owned());
            move || view::make(&Dir::open(&store).unwrap(), &Dir::open(&target).unwrap(), &request)
        };
        let (shown, answer) = mpsc::channel::<Result<View>>();
        let depot = store.path().to_owned();
        BETWEEN.set(Some(Box::new(move |step| {
            if step == Step::Looked {
                // It is shown now, unless that waits.
                let (show, shown) = (show.clone(), shown.clone());
                std::thread::spawn(move || shown.send(show()));
                std::thread::sleep(Duration::from_millis(300));
            } else {
                // Somebody gives its space back.
                let shelf = Shelf::open(&Dir::open(&depot).unwrap()).unwrap().unwrap();
                let trash = shelf.depot.folder("trash").unwrap().unwrap();
                for name in names(trash.as_fd()).unwrap() {
                    discard(trash.as_fd(), &name, &Mounted::default(), &Context::quiet()).unwrap();
                }
            }
        })));
        let removed = shelf.remove(&reference, &Context::quiet());
        BETWEEN.set(None);
        let shown = answer.recv().unwrap();
        match (removed, shown) {
            (Ok(()), Err(error)) => assert_eq!(error.kind, ErrorKind::NotFound),
            (Err(error), Ok(view)) => assert!(error.kind == ErrorKind::Busy && view.path.exists(), "{error:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_removed_where_it_is_is_shown_to_nobody() {
        let Some(Bench { store, target, shelf, id, request, _disk }) = bench() else { return };
        let reference = Reference::new(id.as_str()).unwrap();
        // As where there is no room for more.
        let remove_in_place = |shelf: &Shelf| match shelf.hold_alone(&id)? {
            Some(folder) => shelf.remove_in_place(&id, &folder, &Mounted::default(), &Context::quiet()),
            None => Ok(()),
        };
        // Shown between the first look and the second.
        let shown = view::make(&store, &target, &request).unwrap();
        assert_eq!(remove_in_place(&shelf).unwrap_err().kind, ErrorKind::Busy);
        assert!(shown.path.exists());
        view::take_away(&store, &UnmountRequest { view: shown.reference, unused: false }).unwrap();
        // While somebody is about to show it, it is waited for; who comes later finds none.
        let held = shelf.hold(&id).unwrap();
        let (removed, done) = mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| removed.send(remove_in_place(&shelf)).unwrap());
            assert!(done.recv_timeout(Duration::from_millis(200)).is_err());
            assert!(shelf.get(&reference).is_ok());
            drop(held);
            done.recv().unwrap().unwrap();
        });
        assert_eq!(view::make(&store, &target, &request).unwrap_err().kind, ErrorKind::NotFound);
    }
}
