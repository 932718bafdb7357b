//! Writing one snapshot's objects into a pack.
//!
//! Hashing and compressing happen in the threads that call, side by side; only the bytes that come out go through a lock.
//! Large files go through a pack of their own, so that one of them does not hold up everything else, and so that merging
//! small objects never has to carry them along.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ah_plugin_api::{Context, Durability, Error, ErrorKind, Result, SnapshotId};
use gix::hashtable::HashSet;
use gix::objs::Kind;
use gix::{ObjectId, oid};

use super::blob::{Taken, each_piece, hash_file};
use super::files;
use super::pack::{Deflater, Finished, PackWriter, header};
use super::{Store, WriteGuard, refs, sync};

/// Files up to this size are read whole; larger ones are streamed. Two threads hold two of them, and what they become.
const WHOLE: u64 = 4 << 20;
/// Speed counts while the user waits; merging packs compresses again.
const LEVEL: u32 = 1;

/// The objects of one snapshot on their way into a pack. `Sync`: several threads may write at once.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    store: &'a Store,
    guard: &'a WriteGuard,
    small: Mutex<Growing<'a>>,
    large: Mutex<Option<PackWriter<'a>>>,
    workers: Mutex<Vec<Worker>>,
}

#[derive(Debug)]
struct Growing<'a> {
    writer: Option<PackWriter<'a>>,
    /// What was or is being written, so that equal contents are compressed once.
    seen: HashSet<ObjectId>,
    /// New object, the object it replaces.
    replaced: Vec<(ObjectId, ObjectId)>,
}

/// What one thread works with.
#[derive(Debug)]
struct Worker {
    deflater: Deflater,
    buffer: Vec<u8>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Batch<'a> {
    pub(super) fn new(store: &'a Store, guard: &'a WriteGuard) -> Result<Self> {
        store.refresh()?;
        Ok(Self {
            store,
            guard,
            small: Mutex::new(Growing { writer: None, seen: HashSet::default(), replaced: Vec::new() }),
            large: Mutex::new(None),
            workers: Mutex::default(),
        })
    }

    /// See [`Store::scratch_folder`].
    pub(crate) fn scratch_folder(&self) -> BorrowedFd<'_> {
        self.store.scratch_folder(self.guard)
    }

    fn with_worker<T>(&self, work: impl FnOnce(&mut Worker) -> T) -> T {
        let worker = locked(&self.workers).pop();
        let mut worker = worker.unwrap_or_else(|| Worker { deflater: Deflater::new(LEVEL), buffer: Vec::new() });
        let out = work(&mut worker);
        locked(&self.workers).push(worker);
        out
    }

    /// Adds an object unless the store has it. `replaces` is the object that stood in its place before (the same path's former
    /// content), for delta packing later; a wrong one costs space and nothing else.
    ///
    /// May be read back with [`Store::read`] only after `publish`.
    pub(crate) fn object(&self, kind: Kind, data: &[u8], replaces: Option<&oid>) -> Result<ObjectId> {
        let id = super::hash(kind, data);
        if self.claim(id) {
            self.with_worker(|worker| self.add(id, kind, data, replaces, &mut worker.deflater))?;
        }
        Ok(id)
    }

    /// Whether the object is new. The second to ask gets a no, though the first may not be done yet.
    fn claim(&self, id: ObjectId) -> bool {
        !self.store.has_packed(&id) && locked(&self.small).seen.insert(id)
    }

    fn add(
        &self,
        id: ObjectId,
        kind: Kind,
        data: &[u8],
        replaces: Option<&oid>,
        deflater: &mut Deflater,
    ) -> Result<()> {
        let head = header(kind, data.len() as u64);
        let body = deflater.whole(data)?;
        let mut small = locked(&self.small);
        if small.writer.is_none() {
            small.writer = Some(PackWriter::new(self.store.folders.tmp.as_fd())?);
        }
        if let Some(writer) = &mut small.writer {
            writer.append(id, &[&head, body])?;
        }
        if let Some(replaces) = replaces.filter(|replaces| **replaces != *id) {
            small.replaced.push((id, replaces.to_owned()));
        }
        Ok(())
    }

    /// Adds the contents of `file` (read with `pread` from 0; its offset stays), with bounded memory.
    ///
    /// If it had more or fewer than `size` bytes, it changed meanwhile, and nothing is added. The caller compares its
    /// attributes before and after for changes that keep the size.
    ///
    /// # Errors
    /// Of writing: those of the store; `Cancelled`. Of reading the file: not an error but an answer.
    pub(crate) fn blob_from(
        &self,
        file: BorrowedFd<'_>,
        size: u64,
        replaces: Option<&oid>,
        cx: &Context<'_>,
    ) -> Result<Taken> {
        if size > WHOLE {
            return self.stream(file, size, replaces, cx);
        }
        self.with_worker(|worker| {
            // One byte more than there should be: the same call that reads all tells that there is no more.
            let want = size as usize + 1;
            if worker.buffer.len() < want {
                worker.buffer.resize(want.next_power_of_two(), 0);
            }
            let read = match files::pread_full(file, &mut worker.buffer[..want], 0) {
                Ok(read) if read as u64 == size => read,
                Ok(_) => return Ok(Ok(None)),
                Err(errno) => return Ok(Err(errno)),
            };
            let data = &worker.buffer[..read];
            let id = super::hash(Kind::Blob, data);
            if self.claim(id) {
                self.add(id, Kind::Blob, data, replaces, &mut worker.deflater)?;
            }
            Ok(Ok(Some(id)))
        })
    }

    /// Reads twice: once for the id, which may show that there is nothing to do, once to write.
    fn stream(&self, file: BorrowedFd<'_>, size: u64, replaces: Option<&oid>, cx: &Context<'_>) -> Result<Taken> {
        let id = match hash_file(file, size, cx)? {
            Ok(Some(id)) => id,
            other => return Ok(other),
        };
        if self.store.has_packed(&id) {
            return Ok(Ok(Some(id)));
        }
        let mut large = locked(&self.large);
        // Under this lock, so that a second one of equal content waits and then finds the first.
        if !locked(&self.small).seen.insert(id) {
            return Ok(Ok(Some(id)));
        }
        let writer = match &mut *large {
            Some(writer) => writer,
            none => none.insert(PackWriter::new(self.store.folders.tmp.as_fd())?),
        };
        writer.open_entry();
        let written = writer.piece(&header(Kind::Blob, size)).and_then(|()| {
            self.with_worker(|worker| {
                worker.deflater.begin();
                each_piece(file, size, cx, |data, last| worker.deflater.piece(data, last, |out| writer.piece(out)))
            })
        });
        if written.as_ref().is_ok_and(|second| *second == Ok(Some(id))) {
            writer.close(id);
            locked(&self.small).replaced.extend(replaces.map(|replaces| (id, replaces.to_owned())));
            return Ok(Ok(Some(id)));
        }
        locked(&self.small).seen.remove(&id);
        writer.abandon()?;
        // Other contents the second time: it changed.
        written.map(|second| second.map(|_| None))
    }

    /// Writes the pack, then the ref that makes the snapshot exist.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a snapshot of that id. After any error there is no new snapshot.
    pub(crate) fn publish(self, id: &SnapshotId, commit: ObjectId, durability: Durability) -> Result<()> {
        let store = self.store;
        let folders = &store.folders;
        // Whatever a newer caller may call it: what is not known to be less is durable.
        let durable = durability != Durability::Instant;
        if refs::one(folders, id)?.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {id} already")));
        }
        let small = self.small.into_inner().unwrap_or_else(PoisonError::into_inner);
        let large = self.large.into_inner().unwrap_or_else(PoisonError::into_inner);
        if durable {
            // What this snapshot shares with earlier ones must be there after a power cut too.
            sync::pending(store)?;
        }
        let tmp = folders.tmp.as_fd();
        let mut packs: Vec<Finished> = Vec::with_capacity(2);
        for writer in [small.writer, large].into_iter().flatten() {
            if writer.count() > 0 {
                packs.push(writer.finish(durable)?);
            }
        }
        if !packs.is_empty() {
            let mut hints = Vec::with_capacity(small.replaced.len() * 40);
            for (new, old) in &small.replaced {
                hints.extend_from_slice(new.as_slice());
                hints.extend_from_slice(old.as_slice());
            }
            // An empty file says something too: that this pack was never merged.
            for pack in &packs {
                files::put(tmp, folders.hints.as_fd(), &pack.name, &hints, 0o600, false)?;
            }
            super::reclaim::note_writing(store)?;
        }
        for pack in &packs {
            if !durable {
                sync::mark(store, &pack.name)?;
            }
            pack.install(tmp, &folders.packs)?;
        }
        if durable && !packs.is_empty() {
            files::sync(&folders.packs, "git/objects/pack")?;
        }
        if !durable {
            sync::mark(store, &format!("ref-{id}"))?;
        }
        refs::write(folders, id, commit, durable)?;
        super::reclaim::forget_writing(store);
        Ok(())
    }
}
