//! The store: objects, packs, refs, and keeping them in order.
//!
//! One folder, given as an open directory. In it:
//!
//! | name | what |
//! |---|---|
//! | `format` | `{"version":1}`, checked when the store is opened |
//! | `lock` | held (`flock`) by whoever writes; readers need no lock |
//! | `index-packs` | names of the packs that `index` rests on, see [`damage`] |
//! | `git/` | a bare repository that stock git can read: `objects/`, `refs/ah/snapshots/<id>` |
//! | `hints/` | one file for each pack that was not merged yet: which object replaced which; may be lost without harm |
//! | `tmp/` | what is being written; emptied by the next writer |
//! | `unsynced/` | empty files that name what is not yet known to be on disk, see [`sync`] |
//! | `garbage` | one byte for each thing that may have left garbage, and for a sweep that came to nothing or was given up; gone after one that did not |
//! | `writing` | there while a pack may be in place whose ref is not yet |
//! | `merge/` | packs that are being put together; emptied by the next who does that. `merge/lock`: held by whoever does; made with the store |
//! | `keep/` | links to (else copies of) objects of the user's repository, see [`keep`] |
//! | `index` | what each file of the workspace looked like when it was last read; see `crate::index` |
//! | `views/` | one record for each view and clone that was made; see `crate::made` |
//!
//! A snapshot exists if and only if its ref exists. Everything it needs is written before the ref is, and removed only after
//! the ref is gone, so that a process killed at any point leaves either a whole snapshot or garbage that
//! [`Store::reclaim`] finds.
//!
//! Writing: [`batch`]. Formats: [`pack`], [`delta`], [`loose`], [`refs`], [`layout`]. Order: [`reclaim`], [`orphans`], [`merge`], [`usage`].
//! Not here: what the objects mean (`capture`, `tree`).

mod batch;
mod blob;
mod damage;
mod delta;
mod files;
mod keep;
mod layout;
mod lock;
mod loose;
mod merge;
mod orphans;
mod pack;
mod reclaim;
mod refs;
mod sync;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ah_plugin_api::{Context, Dir, Error, ErrorKind, Reclaimed, Result, SnapshotId};
use gix::objs::Kind;
use gix::{ObjectId, oid};
use sha1::{Digest, Sha1};

pub(crate) use batch::Batch;
pub(crate) use blob::{Taken, hash_file};
pub(crate) use files::{pwrite_all, write_all};
pub(crate) use keep::{KEPT, Kept, Objects};
pub(crate) use lock::WriteGuard;
pub(crate) use sync::boot_number;

use crate::tree::Known;
use ah_repository::Repository;
use files::Doing;
use layout::Folders;
use pack::{Bad, Bases, Pack, Scratch};

/// How often the packs are looked at again that others merge meanwhile.
const LOOKS: usize = 8;

/// A store. Cheap to keep open; safe to use from many threads, and beside other processes that use the same folder.
#[derive(Debug)]
pub(crate) struct Store {
    folders: Folders,
    packs: RwLock<Arc<Packs>>,
    numbers: AtomicU32,
    scratches: Mutex<Vec<Scratch>>,
    bases: Bases,
    suspects: Mutex<damage::Suspects>,
    /// What those who look for paths in snapshots have seen.
    pub(crate) known: Known,
}

/// The packs that were there at the last look.
#[derive(Debug, Default)]
struct Packs {
    /// The largest first: most objects are there.
    packs: Vec<Arc<Pack>>,
    /// What is damaged: read last, counted on never.
    aside: Vec<Arc<Pack>>,
    /// What could not be opened, and why.
    bad: Vec<(String, Bad)>,
}

impl Packs {
    fn find(&self, id: &oid) -> Option<(&Arc<Pack>, u64)> {
        self.packs.iter().find_map(|pack| Some((pack, pack.index.find(id)?)))
    }
}

/// What an object's hash begins with.
fn object_header(kind: Kind, size: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(format!(" {size}\0").as_bytes());
    out
}

/// The id that an object has or would have.
pub(crate) fn hash(kind: Kind, data: &[u8]) -> ObjectId {
    let mut hash = Sha1::new();
    hash.update(object_header(kind, data.len() as u64));
    hash.update(data);
    ObjectId::Sha1(hash.finalize().into())
}

impl Store {
    /// Opens the store in `dir`, and lays it out if the folder is empty.
    ///
    /// # Errors
    /// `FailedPrecondition` if a newer version of the program made it, `DataLoss` if it is damaged beyond reading.
    pub(crate) fn open(dir: &Dir) -> Result<Arc<Self>> {
        let folders = layout::open(dir.as_fd())
            .map_err(|error| error.context(format!("cannot open the store {}", dir.path().display())))?;
        let store = Self {
            folders,
            packs: RwLock::default(),
            numbers: AtomicU32::new(0),
            scratches: Mutex::default(),
            bases: Bases::default(),
            suspects: Mutex::default(),
            known: Known::default(),
        };
        store.refresh()?;
        // What a power cut took must not be shown. Where this cannot be done now (somebody else is at it, a disk that cannot be
        // written), the next writer does it, or says why not; until then, what is in doubt counts as `instant`.
        if sync::needs_recovery(&store)?
            && let Ok(Some(guard)) = lock::take_if_free(&store.folders.store)
        {
            let _ = sync::recover(&store, &guard, &Context::quiet());
        }
        Ok(Arc::new(store))
    }

    /// Why the store in `dir` cannot be used by this program, if it was made by another version. Changes nothing.
    pub(crate) fn refusal(dir: &Dir) -> Option<Error> {
        layout::version(dir.as_fd()).err().filter(|error| error.kind == ErrorKind::FailedPrecondition)
    }

    /// The store's folder, for the private index beside the objects.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folders.store.as_fd()
    }

    /// Takes the store for writing. Waits up to 30 s for another process, then cleans up after one that was killed.
    ///
    /// # Errors
    /// `Busy` after that time, `Cancelled`.
    pub(crate) fn lock(&self, cx: &Context<'_>) -> Result<WriteGuard> {
        // Before, so that nobody waits while a pack is read.
        damage::mend_indexes(self, false, cx)?;
        let guard = lock::take(&self.folders.store, cx)?;
        reclaim::find_unfinished(self)?;
        sync::tidy(self)?;
        sync::recover(self, &guard, cx)?;
        // If that fails, this process still does not count on them.
        let _ = damage::set_aside(self, &guard);
        Ok(guard)
    }

    /// A folder for what is needed for a moment; the next writer empties it. Only for who has the lock.
    pub(crate) fn scratch_folder(&self, _guard: &WriteGuard) -> BorrowedFd<'_> {
        self.folders.tmp.as_fd()
    }

    fn packs(&self) -> Arc<Packs> {
        Arc::clone(&self.packs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number for one more pack.
    fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks which packs there are now.
    fn refresh(&self) -> Result<()> {
        for _ in 0..LOOKS {
            let names = files::names(&self.folders.packs)?;
            let present: HashSet<&str> = names.iter().filter_map(|name| name.strip_suffix(".idx")).collect();
            files::listed();
            let mut slot = self.packs.write().unwrap_or_else(PoisonError::into_inner);
            // One that was noted stays open until it is put in order.
            let noted = slot.aside.iter().filter(|pack| damage::is_noted(self, &pack.name));
            let open = slot.packs.iter().chain(noted).filter(|pack| present.contains(&*pack.name));
            let mut packs: Vec<_> = open.cloned().collect();
            let known: HashSet<String> = packs.iter().map(|pack| pack.name.clone()).collect();
            let mut bad = Vec::new();
            for name in present.into_iter().filter(|name| !known.contains(*name)) {
                match Pack::open(self.folders.packs.as_fd(), name, self.number()) {
                    Ok(pack) => packs.push(Arc::new(pack)),
                    Err(why) => bad.push((name.to_owned(), why)),
                }
            }
            packs.sort_by_key(|pack| std::cmp::Reverse(pack.size));
            let mut aside = damage::open_aside(self, &names, &slot);
            let damaged = |pack: &Pack| pack.index.is_known_damaged() || damage::is_noted(self, &pack.name);
            aside.extend(packs.extract_if(.., |pack| damaged(pack)));
            for pack in damage::open_mended(self, &slot) {
                aside.retain(|other| other.name != pack.name);
                bad.retain(|(name, _)| *name != pack.name);
                aside.push(pack);
            }
            // Merged into another one since the names were read, which is not among them.
            let merged = bad.iter().any(|(name, _)| !files::exists(&self.folders.packs, &format!("{name}.idx")));
            *slot = Arc::new(Packs { packs, aside, bad });
            if !merged {
                break;
            }
        }
        Ok(())
    }

    fn with_scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let pool = || self.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = pool().pop();
        let mut scratch = scratch.unwrap_or_default();
        let out = work(&mut scratch);
        pool().push(scratch);
        out
    }

    /// Calls `get` with every place that may have the object, until it likes one; looks for new packs in between, and for damaged indexes
    /// at last.
    fn search<T>(
        &self,
        id: &oid,
        cx: &Context<'_>,
        mut get: impl FnMut(&Pack, u64) -> Result<T, Bad>,
    ) -> Result<Option<T>> {
        let mut faults = Vec::new();
        let mut tried = HashSet::new();
        for look in 0..3 {
            match look {
                0 => {}
                1 => self.refresh()?,
                _ => {
                    let mended = damage::suspect(self, &faults, cx)?;
                    if !damage::mend_indexes(self, true, cx)? && !mended {
                        break;
                    }
                }
            }
            let packs = self.packs();
            for pack in packs.packs.iter().chain(&packs.aside) {
                let Some(at) = pack.index.find(id) else { continue };
                if !tried.insert(pack.number) {
                    continue;
                }
                match get(pack, at) {
                    Ok(out) => {
                        // Whoever stops here has what they asked for.
                        let _ = damage::suspect(self, &faults, cx);
                        return Ok(Some(out));
                    }
                    Err(why) => faults.push((Arc::clone(pack), why)),
                }
            }
        }
        let name = |pack: &Pack| pack.name.strip_suffix(damage::ENDING).unwrap_or(&pack.name).to_owned();
        let mut faults: Vec<_> = faults.into_iter().map(|(pack, why)| (name(&pack), why)).collect();
        faults.extend(self.unreadable());
        if faults.is_empty() {
            return Ok(None);
        }
        let causes = faults.iter().map(|(name, why)| format!("{name}.pack: {why}")).collect();
        // What cannot be read at this moment is not lost: nobody may conclude that from this error.
        let mut error = match faults.iter().find_map(|(_, why)| why.errno) {
            Some(errno) => Error::from_io(format!("object {id} of the store cannot be read"), &errno.into()),
            None => files::damaged(format!("object {id} of the store is damaged or missing")),
        };
        error.causes = causes;
        Err(error)
    }

    /// Packs that may have objects which were not found.
    fn unreadable(&self) -> Vec<(String, Bad)> {
        let packs = self.packs();
        let trouble = packs.packs.iter().filter_map(|pack| Some((pack.name.clone(), pack.index.trouble()?.into())));
        packs.bad.iter().cloned().chain(trouble).collect()
    }

    /// Reads an object whole into `out` (cleared first). Its hash is checked. Where it is damaged or missing, packs are looked at whole.
    ///
    /// # Errors
    /// `DataLoss` if it is missing or damaged, with the pack's name as a cause. `Cancelled`. `out` may hold anything then.
    pub(crate) fn read(&self, id: &oid, out: &mut Vec<u8>, cx: &Context<'_>) -> Result<Kind> {
        let found = self.with_scratch(|scratch| {
            self.search(id, cx, |pack, at| {
                let kind = pack.read((at, u64::MAX), scratch, &self.bases, out)?;
                if *hash(kind, out) == *id {
                    Ok(kind)
                } else {
                    Err(format!("another object lies at offset {at}").into())
                }
            })
        });
        match found {
            Ok(Some(kind)) => Ok(kind),
            Ok(None) => self.read_loose(id, out)?.ok_or_else(|| self.missing(id)),
            // A loose one may stand in for a damaged one.
            Err(error) => self.read_loose(id, out).ok().flatten().ok_or(error),
        }
    }

    /// Everything that is read is named by something of the store's, so what is not there is damage as well.
    fn missing(&self, id: &oid) -> Error {
        damage::missed(self);
        let mut error = files::damaged(format!("object {id} of the store is missing"));
        error.causes = damage::not_opened(self);
        error
    }

    fn read_loose(&self, id: &oid, out: &mut Vec<u8>) -> Result<Option<Kind>> {
        match loose::read(self.folders.objects.as_fd(), id, loose::LIMIT, out)? {
            Some(kind) if *hash(kind, out) == *id => Ok(Some(kind)),
            Some(_) => Err(files::damaged(format!("the loose object {id} of the store is damaged"))),
            None => Ok(None),
        }
    }

    /// Writes an object's data to `out`, with bounded memory however large it is. Gives the number of bytes.
    ///
    /// # Errors
    /// `DataLoss` if it is missing or damaged; wrong bytes may have been written then. `Cancelled`. Errors of writing as the
    /// system says.
    pub(crate) fn read_to(&self, id: &oid, out: BorrowedFd<'_>, cx: &Context<'_>) -> Result<u64> {
        // An error of `out` is not one of the store: no other copy is tried then.
        let mut failed = None;
        let mut started = false;
        let streamed = self.with_scratch(|scratch| {
            self.search(id, cx, |pack, at| {
                if started {
                    return Err("not tried: part of another copy was written".into());
                }
                let mut sum = Sha1::new();
                let (hashed, failed, started) = (&mut sum, &mut failed, &mut started);
                let streamed = pack.stream(at, scratch, |kind, size| {
                    hashed.update(object_header(kind, size));
                    move |data: &[u8]| {
                        hashed.update(data);
                        *started = *started || !data.is_empty();
                        let written = cx
                            .check_cancelled()
                            .and_then(|()| files::write_all(out, data).doing(|| "write out an object".to_owned()));
                        written.map_err(|error| {
                            *failed = Some(error);
                            "".into()
                        })
                    }
                })?;
                match streamed {
                    Some((_, size)) if sum.finalize()[..] == *id.as_bytes() => Ok(Some(size)),
                    Some(_) => Err(format!("another object lies at offset {at}").into()),
                    None => Ok(None),
                }
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        match streamed {
            Ok(Some(Some(size))) => Ok(size),
            Err(error) if started || error.kind == ErrorKind::Cancelled => Err(error),
            // A delta (never of a large object), loose, or damaged.
            _ => {
                let mut data = Vec::new();
                self.read(id, &mut data, cx)?;
                files::write_all(out, &data).doing(|| "write out an object".to_owned())?;
                Ok(data.len() as u64)
            }
        }
    }

    /// Whether the store has an object, as far as its indexes tell.
    pub(crate) fn contains(&self, id: &oid) -> bool {
        self.look_for(id).unwrap_or(false)
    }

    /// Like [`Store::contains`], but an error where that cannot be told at this moment.
    fn look_for(&self, id: &oid) -> Result<bool> {
        if self.has_packed(id) {
            return Ok(true);
        }
        self.refresh()?;
        if self.has_packed(id) {
            return Ok(true);
        }
        match self.read_loose(id, &mut Vec::new()) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => {}
            Err(error) if error.kind == ErrorKind::DataLoss => {}
            Err(error) => return Err(error),
        }
        match self.unreadable().into_iter().find_map(|(_, why)| why.errno) {
            Some(errno) => Err(errno).doing(|| format!("look for the object {id} of the store")),
            None => Ok(false),
        }
    }

    fn has_packed(&self, id: &oid) -> bool {
        self.packs().find(id).is_some()
    }

    /// Whether the objects are there that the private index names, as far as the packs tell that it rests on.
    pub(crate) fn index_holds(&self) -> bool {
        damage::index_holds(self)
    }

    /// Notes that the private index was just written, and rests on the packs that are there now.
    pub(crate) fn index_written(&self, _guard: &WriteGuard) -> Result<()> {
        damage::list_packs(self)
    }

    /// Begins to write one snapshot's objects. Dropping the batch without publishing leaves nothing that counts.
    pub(crate) fn begin<'a>(&'a self, guard: &'a WriteGuard) -> Result<Batch<'a>> {
        Batch::new(self, guard)
    }

    /// All snapshots with their commits, ordered by id. A damaged ref is left out and logged.
    pub(crate) fn snapshots(&self, cx: &Context<'_>) -> Result<Vec<(SnapshotId, ObjectId)>> {
        refs::all(&self.folders, cx).map(|all| all.snapshots)
    }

    /// The commit of one snapshot; none if there is no such snapshot.
    ///
    /// # Errors
    /// `DataLoss` if its ref is damaged.
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Result<Option<ObjectId>> {
        refs::one(&self.folders, id)
    }

    /// Takes a snapshot away, for good even after a power cut; space comes back in [`Store::reclaim`]. Whether there was one.
    pub(crate) fn remove_snapshot(&self, _guard: &WriteGuard, id: &SnapshotId) -> Result<bool> {
        reclaim::note_removal(self, id)?;
        refs::remove(&self.folders, id)
    }

    /// Whether a snapshot is known to survive a power cut.
    pub(crate) fn is_durable(&self, id: &SnapshotId) -> bool {
        !sync::is_marked(self, id)
    }

    /// Makes all that was published so far survive a power cut. Takes the lock if there is anything to do.
    ///
    /// # Errors
    /// `Busy`, `Cancelled`, and those of the disk.
    pub(crate) fn sync(&self, cx: &Context<'_>) -> Result<()> {
        if !sync::is_due(self)? {
            return Ok(());
        }
        let _guard = self.lock(cx)?;
        sync::pending(self)
    }

    /// Finishes or undoes what crashes left, drops what no snapshot needs, merges packs. With `auto` only what is due.
    ///
    /// Must be called without the lock: it takes it itself, and never for long.
    pub(crate) fn reclaim(&self, auto: bool, cx: &Context<'_>) -> Result<Reclaimed> {
        reclaim::run(self, auto, cx)
    }

    /// Bytes on disk of the whole store; of kept objects, those that nobody else holds.
    pub(crate) fn disk_usage(&self) -> Result<u64> {
        usage::disk(self)
    }

    /// Compressed bytes of what these snapshots refer to and no other; none if that cannot be told. Looks at every snapshot.
    pub(crate) fn usage_of(&self, ids: &BTreeSet<SnapshotId>, cx: &Context<'_>) -> Result<Option<u64>> {
        usage::snapshots(self, ids, cx)
    }

    /// Keeps what the user's repository has now: links its packs and loose objects, and writes the list of them as a blob
    /// of the batch, to be put into the snapshot's tree under the name [`KEPT`]. Costs a few stats when the repository's
    /// HEAD, index and refs are as they were the last time.
    ///
    /// Never fails for what the repository is like; that is [`Kept::Not`].
    pub(crate) fn keep(&self, batch: &Batch<'_>, repository: &Repository, cx: &Context<'_>) -> Result<Kept> {
        keep::keep(self, batch, repository, cx)
    }

    /// The root commit that first parents lead to from the HEAD of the user's repository. Walks there once, then remembers. None in
    /// a shallow repository, without a commit, or where an object cannot be read.
    ///
    /// # Errors
    /// `Cancelled`, and those of noting it.
    pub(crate) fn first_commit(&self, repository: &Repository, cx: &Context<'_>) -> Result<Option<String>> {
        keep::first_commit(self, repository, cx)
    }

    /// Fills `objects` (the open, empty `objects` folder of a new repository) with what the list `kept` names. Gives what belongs
    /// into the repository's `shallow` file, if its history is cut off.
    ///
    /// # Errors
    /// `DataLoss` if something on the list is gone.
    pub(crate) fn populate(&self, kept: &oid, objects: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Option<Vec<u8>>> {
        keep::populate(self, kept, objects, cx)
    }
}
