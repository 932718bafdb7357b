//! The store: objects, packs, refs, and keeping them in order.
//!
//! One folder, given as an open directory. In it:
//!
//! | name | what |
//! |---|---|
//! | `format` | `{"version":1}`, checked when the store is opened |
//! | `lock` | held (`flock`) by whoever writes; readers need no lock |
//! | `git/` | a bare repository that stock git can read: `objects/`, `refs/ah/snapshots/<id>` |
//! | `hints/` | beside each pack: which object replaced which, for delta packing; may be lost without harm |
//! | `unsynced/` | empty files that name what is not yet known to be on disk |
//! | `sweep` | one byte for each thing that may have left garbage; gone after a full reclaim |
//! | `keep/` | links to (else copies of) objects of the user's repository |
//!
//! A snapshot exists if and only if its ref exists. Everything it needs is written before the ref is, and removed only after
//! the ref is gone, so that a process killed at any point leaves either a whole snapshot or garbage that
//! [`Store::reclaim`] finds.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, Durability, Error, ErrorKind, Reclaimed, Result, SnapshotId};
use gix::objs::Kind;
use gix::{ObjectId, oid};

use crate::repository::Repository;

/// A store. Cheap to keep open; safe to use from many threads, and beside other processes that use the same folder.
#[derive(Debug)]
pub(crate) struct Store {}

/// The exclusive right to write to a store; given back when dropped.
#[derive(Debug)]
pub(crate) struct WriteGuard {}

fn unready<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Internal, "not written yet"))
}

impl Store {
    /// Opens the store in `dir`, and lays it out if the folder is empty.
    ///
    /// # Errors
    /// `FailedPrecondition` if a newer version of the program made it, `DataLoss` if it is damaged beyond reading.
    pub(crate) fn open(_dir: &Dir) -> Result<Arc<Self>> {
        unready()
    }

    /// Takes the store for writing. Waits up to 30 s for another process.
    ///
    /// # Errors
    /// `Busy` after that time, `Cancelled`.
    pub(crate) fn lock(&self, _cx: &Context<'_>) -> Result<WriteGuard> {
        unready()
    }

    /// Reads an object whole into `out` (cleared first). Its hash is checked.
    ///
    /// # Errors
    /// `DataLoss` if it is missing or damaged, with the pack's name. `out` may hold anything then.
    pub(crate) fn read(&self, _id: &oid, _out: &mut Vec<u8>) -> Result<Kind> {
        unready()
    }

    /// Writes an object's data to `out`, with bounded memory however large it is. Gives the number of bytes.
    ///
    /// Its hash is checked on the way: on `DataLoss` wrong bytes may have been written.
    pub(crate) fn read_to(&self, _id: &oid, _out: BorrowedFd<'_>) -> Result<u64> {
        unready()
    }

    /// Kind and size of an object, without reading it whole.
    pub(crate) fn header(&self, _id: &oid) -> Result<(Kind, u64)> {
        unready()
    }

    /// Whether the store has an object. Damage counts as not having it.
    pub(crate) fn contains(&self, _id: &oid) -> bool {
        false
    }

    /// Where an object lies: a key to sort by, so that reading many objects in that order reads packs front to back.
    /// Objects that are not there sort last.
    pub(crate) fn location(&self, _id: &oid) -> (u32, u64) {
        (0, 0)
    }

    /// Begins to write one snapshot's objects. Dropping the batch without publishing leaves nothing that counts.
    pub(crate) fn begin<'a>(&'a self, _guard: &'a WriteGuard) -> Result<Batch<'a>> {
        unready()
    }

    /// All snapshots with their commits, ordered by id. A damaged ref is left out and logged.
    pub(crate) fn snapshots(&self, _cx: &Context<'_>) -> Result<Vec<(SnapshotId, ObjectId)>> {
        unready()
    }

    /// The commit of one snapshot; none if there is no such snapshot.
    ///
    /// # Errors
    /// `DataLoss` if its ref is damaged.
    pub(crate) fn snapshot(&self, _id: &SnapshotId) -> Result<Option<ObjectId>> {
        unready()
    }

    /// Takes a snapshot away, for good even after a power cut; space comes back in [`Store::reclaim`]. Whether there was one.
    pub(crate) fn remove_snapshot(&self, _guard: &WriteGuard, _id: &SnapshotId) -> Result<bool> {
        unready()
    }

    /// Whether a snapshot is known to survive a power cut.
    pub(crate) fn is_durable(&self, _id: &SnapshotId) -> bool {
        true
    }

    /// Makes all that was published so far survive a power cut. Needs no lock.
    pub(crate) fn sync(&self) -> Result<()> {
        unready()
    }

    /// Finishes or undoes what crashes left, drops what no snapshot needs, merges packs. With `auto` only what is due.
    pub(crate) fn reclaim(&self, _guard: &WriteGuard, _auto: bool, _cx: &Context<'_>) -> Result<Reclaimed> {
        unready()
    }

    /// Bytes on disk of the whole store, the kept objects that nobody else holds included.
    pub(crate) fn disk_usage(&self) -> Result<u64> {
        unready()
    }

    /// Bytes of all that one snapshot refers to, and of what it alone refers to, both compressed.
    pub(crate) fn snapshot_usage(&self, _id: &SnapshotId, _cx: &Context<'_>) -> Result<(u64, u64)> {
        unready()
    }

    /// Keeps what the user's repository has now: links its packs and loose objects, and writes the list of them as a blob
    /// of the batch, to be put into the snapshot's tree under the name [`KEPT`]. Costs a few stats when the repository's
    /// HEAD, index and refs are as they were the last time.
    ///
    /// Never fails for what the repository is like; that is [`Kept::Not`].
    pub(crate) fn keep(&self, _batch: &Batch<'_>, _repository: &Repository, _cx: &Context<'_>) -> Result<Kept> {
        unready()
    }

    /// Fills `objects` (the open, empty `objects` folder of a new repository) with what the list `kept` names.
    ///
    /// # Errors
    /// `DataLoss` if something on the list is gone.
    pub(crate) fn populate(&self, _kept: &oid, _objects: BorrowedFd<'_>, _cx: &Context<'_>) -> Result<Populated> {
        unready()
    }
}

/// Name of the list of kept objects in a snapshot's tree. The sweep looks for it there.
pub(crate) const KEPT: &str = "kept";

/// What became of the objects of the user's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// They are kept; the blob lists them.
    List(ObjectId),
    /// They are not kept; why, for a person.
    Not(String),
}

/// How the objects folder of a clone was filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Populated {
    /// Files that share their data with the store (hard links, reflinks).
    pub(crate) shared: u64,
    /// Files that had to be copied.
    pub(crate) copied: u64,
}

/// The objects of one snapshot on their way into a pack. `Sync`: several threads may write at once.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    _store: &'a Store,
}

impl Batch<'_> {
    /// Adds an object unless the store has it. `replaces` is the object that stood in its place before (the same path's former
    /// content), for delta packing later; a wrong one costs space and nothing else.
    ///
    /// May be read back with [`Store::read`] only after `publish`.
    pub(crate) fn object(&self, _kind: Kind, _data: &[u8], _replaces: Option<&oid>) -> Result<ObjectId> {
        unready()
    }

    /// Adds the contents of `file` (read with `pread` from 0; its offset stays), with bounded memory.
    ///
    /// None if it had more or fewer than `size` bytes: it changed meanwhile, nothing is added. The caller compares its
    /// attributes before and after for changes that keep the size.
    pub(crate) fn blob_from(
        &self,
        _file: BorrowedFd<'_>,
        _size: u64,
        _replaces: Option<&oid>,
    ) -> Result<Option<ObjectId>> {
        unready()
    }

    /// Writes the pack, then the ref that makes the snapshot exist.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a snapshot of that id. After any error there is no new snapshot.
    pub(crate) fn publish(self, _id: &SnapshotId, _commit: ObjectId, _durability: Durability) -> Result<()> {
        unready()
    }
}

/// The id that an object has or would have.
pub(crate) fn hash(_kind: Kind, _data: &[u8]) -> ObjectId {
    ObjectId::null(gix::hash::Kind::Sha1)
}
