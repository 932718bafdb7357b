//! Finding out what is needed, and dropping the rest.
//!
//! What takes long is done without the store's lock, so that no snapshot waits for it: packs never change, and what was
//! published meanwhile is looked at again, under the lock, before anything is dropped. A lock of its own, `merge/lock`, keeps
//! two processes from doing the same work.
//!
//! Safety before space: as long as anything cannot be read or is missing, nothing is dropped, and no index is believed that was not
//! checked.

use std::collections::HashSet as StdSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, Reclaimed, Result, SnapshotId, text};
use gix::ObjectId;
use gix::hashtable::HashSet;
use gix::objs::{CommitRefIter, Kind, TreeRefIter};

use super::files::Doing;
use super::merge::Merge;
use super::pack::{Finished, Pack};
use super::refs::Doubt;
use super::{Store, damage, files, keep, lock, orphans, refs, sync};

const GARBAGE: &str = "garbage";
const WRITING: &str = "writing";
/// Packs that were not merged yet: more than this is due.
const FRESH: usize = 24;
/// So many of them are due when they make up a tenth of the whole.
const FEW: usize = 8;
/// A merged pack is merged again with what is at least this fraction of it.
const FACTOR: u64 = 10;
/// Packs whose objects are larger than this on average are merged among themselves, and seldom.
const BULKY: u64 = 256 << 10;

/// A note that something may have become garbage.
const NOTE: u8 = b'x';
/// Beside it: so small a part of the store may have.
const PART: u8 = b'X';
/// So many of them are all of it: a snapshot that is one of a hundred counts for something.
const PARTS: u64 = 256;
/// A sweep was given up here, as something is missing or damaged: unasked, none is made for what was noted before.
const GIVEN_UP: u8 = b'-';
/// One came to nothing here, as something could not be read at that moment.
const TRIED: u8 = b'~';
/// What so many of them in a row met does not pass.
const TRIES: usize = 8;

/// Bytes of notes there are at most, long before which a sweep is due.
const NOTES: usize = 1 << 20;

/// Notes that something may have become garbage: at the end of a file, where a crash tears nothing that was noted before.
pub(super) fn note_garbage(store: &Store) -> Result<()> {
    note(store, 0)
}

/// Notes that what a snapshot brought into the store is about to become garbage, as far as no other one needs it. The caller has the lock.
pub(super) fn note_removal(store: &Store, id: &SnapshotId) -> Result<()> {
    note(store, share(store, id).unwrap_or(0))
}

fn note(store: &Store, parts: usize) -> Result<()> {
    let mut notes = vec![NOTE];
    notes.resize(1 + parts, PART);
    put_notes(store, &notes)
}

fn put_notes(store: &Store, notes: &[u8]) -> Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    files::step()
        .and_then(|()| rustix::fs::openat(&store.folders.store, GARBAGE, flags, Mode::from_raw_mode(0o600)))
        .and_then(|file| files::write_all(file, notes))
        .doing(|| "note garbage in the store".to_owned())
}

/// How many [`PARTS`] of the store the pack has that a snapshot was written to; none once that was merged.
fn share(store: &Store, id: &SnapshotId) -> Option<usize> {
    let commit = refs::one(&store.folders, id).ok()??;
    let packs = store.packs();
    let (pack, _) = packs.find(&commit)?;
    let whole: u64 = packs.packs.iter().map(|pack| pack.size).sum();
    let is_its_own = files::exists(&store.folders.hints, &pack.name);
    is_its_own.then(|| usize::try_from(pack.size.saturating_mul(PARTS) / whole.max(1)).unwrap_or_default())
}

/// The notes. A file that is larger than they ever are is damaged, and as one full of them.
fn garbage(store: &Store) -> Result<Vec<u8>> {
    match files::read_file(&store.folders.store, GARBAGE, NOTES as u64) {
        Err(error) if error.kind == ErrorKind::DataLoss => Ok(vec![PART; NOTES]),
        read => read.map(Option::unwrap_or_default),
    }
}

/// Takes back the first `seen` bytes of notes; later ones stay. The caller has the lock.
fn settle_garbage(store: &Store, seen: usize) -> Result<()> {
    let now = garbage(store)?;
    match now.get(seen..) {
        Some(rest @ [_, ..]) => {
            let tmp = store.folders.tmp.as_fd();
            files::put(tmp, store.folders.store.as_fd(), GARBAGE, rest, 0o600, false)
        }
        _ => files::remove(&store.folders.store, GARBAGE).map(drop),
    }
}

/// Whether a sweep, which looks at all that the snapshots hold, is worth it unasked: of a quarter of the store, or where a quarter as many snapshots went as there
/// are, or sixteen; of few, as many.
fn is_due(notes: &[u8], snapshots: u64) -> bool {
    let notes = notes.rsplit(|note| *note == GIVEN_UP).next().unwrap_or_default();
    let count = |kind| notes.iter().filter(|note| **note == kind).count() as u64;
    let removed = count(NOTE);
    count(PART) >= PARTS / 4 || removed > 0 && removed >= snapshots / 4 && removed >= snapshots.min(16)
}

/// Notes that a pack is about to appear whose ref is not there yet. The caller has the lock.
pub(super) fn note_writing(store: &Store) -> Result<()> {
    match files::create_new(&store.folders.store, WRITING, 0o600) {
        Err(error) if error.kind == ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// The ref is there. Should this fail, a sweep will be made for nothing.
pub(super) fn forget_writing(store: &Store) {
    let _ = files::remove(&store.folders.store, WRITING);
}

/// Whether a writer was killed between its pack and its ref; then that pack is noted as garbage. The caller has the lock.
pub(super) fn find_unfinished(store: &Store) -> Result<()> {
    if files::open_file(&store.folders.store, WRITING)?.is_some() {
        note_garbage(store)?;
        files::remove(&store.folders.store, WRITING)?;
    }
    Ok(())
}

/// Adds all that a commit refers to, and the commit, to `live`, but for what is `known`; what is in either already is not
/// looked at again. Gives the list of kept objects, if the commit has one.
///
/// # Errors
/// `DataLoss` if a commit or tree cannot be read. Blobs are not looked at.
pub(super) fn mark(
    store: &Store,
    commit: ObjectId,
    known: &HashSet<ObjectId>,
    live: &mut HashSet<ObjectId>,
    cx: &Context<'_>,
) -> Result<Option<ObjectId>> {
    let mut data = Vec::new();
    let bad = |id: ObjectId| files::damaged(format!("object {id} of the store is not what it should be"));
    if store.read(&commit, &mut data, cx)? != Kind::Commit {
        return Err(bad(commit));
    }
    let root = CommitRefIter::from_bytes(&data, gix::hash::Kind::Sha1).tree_id().map_err(|_| bad(commit))?;
    live.insert(commit);
    let mut kept = None;
    let mut todo = vec![root];
    while let Some(tree) = todo.pop() {
        if tree != root && (known.contains(&tree) || !live.insert(tree)) {
            continue;
        }
        cx.check_cancelled()?;
        if store.read(&tree, &mut data, cx)? != Kind::Tree {
            return Err(bad(tree));
        }
        for entry in TreeRefIter::from_bytes(&data, gix::hash::Kind::Sha1) {
            let entry = entry.map_err(|_| bad(tree))?;
            if entry.mode.is_tree() {
                todo.push(entry.oid.to_owned());
            } else if !entry.mode.is_commit() && !known.contains(entry.oid) {
                live.insert(entry.oid.to_owned());
            }
            if tree == root && entry.filename == keep::KEPT.as_bytes() {
                kept = Some(entry.oid.to_owned());
            }
        }
    }
    if !known.contains(&root) {
        live.insert(root);
    }
    Ok(kept)
}

/// Whether everything that a commit refers to can be found. Trees are read, blobs looked up.
pub(super) fn is_whole(store: &Store, commit: ObjectId, cx: &Context<'_>) -> Result<bool> {
    let mut live = HashSet::default();
    match mark(store, commit, &HashSet::default(), &mut live, cx) {
        Ok(_) => Ok(missing(store, &live, cx)?.is_none()),
        Err(error) if error.kind == ErrorKind::DataLoss => Ok(false),
        Err(error) => Err(error),
    }
}

/// An object that is not there, if there is one. Looks them up; what is damaged is found when it is read.
fn missing(store: &Store, live: &HashSet<ObjectId>, cx: &Context<'_>) -> Result<Option<ObjectId>> {
    let mut data = Vec::new();
    for id in live {
        if store.look_for(id)? {
            continue;
        }
        // It may be whole in a damaged pack.
        match store.read(id, &mut data, cx) {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::DataLoss => return Ok(Some(*id)),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What all snapshots need.
struct Needed {
    commits: StdSet<ObjectId>,
    live: HashSet<ObjectId>,
    /// Lists of kept objects of the user's repositories.
    kept: StdSet<ObjectId>,
}

/// In doubt, everything may be needed.
fn needed(store: &Store, cx: &Context<'_>) -> Result<Result<Needed, Doubt>> {
    damage::mend_indexes(store, true, cx)?;
    let refs::All { mut snapshots, unreadable } = refs::all(&store.folders, cx)?;
    if let Some(doubt) = unreadable {
        cx.log(LogLevel::Warn, "a snapshot's ref cannot be read, so nothing is dropped");
        return Ok(Err(doubt));
    }
    // As they were written: then each is mostly a small step from the one before.
    let packs = store.packs();
    snapshots.sort_by_key(|(_, commit)| packs.find(commit).map(|(pack, at)| (std::cmp::Reverse(pack.size), at)));
    let mut out = Needed { commits: StdSet::new(), live: HashSet::default(), kept: StdSet::new() };
    for (done, (id, commit)) in snapshots.iter().enumerate() {
        cx.progress("looking", done as u64, Some(snapshots.len() as u64));
        if !out.commits.insert(*commit) {
            continue;
        }
        match mark(store, *commit, &HashSet::default(), &mut out.live, cx) {
            Ok(kept) => out.kept.extend(kept),
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                cx.log(LogLevel::Warn, &format!("snapshot {id} cannot be read, so nothing is dropped: {error}"));
                return Ok(Err(Doubt::of(&error)));
            }
        }
    }
    if let Some(object) = missing(store, &out.live, cx)? {
        let id = who_needs(store, &snapshots, object, cx)?.map_or("?", SnapshotId::as_str);
        let message = format!(
            "snapshot {id} lacks the object {object}, so nothing is dropped; `ah agent fs rm {id}` takes it away, and `ah agent fs gc` then gives space back"
        );
        cx.log(LogLevel::Warn, &message);
        return Ok(Err(Doubt::Damage));
    }
    Ok(Ok(out))
}

/// The first of the snapshots that refers to an object.
fn who_needs<'s>(
    store: &Store,
    snapshots: &'s [(SnapshotId, ObjectId)],
    object: ObjectId,
    cx: &Context<'_>,
) -> Result<Option<&'s SnapshotId>> {
    let mut seen = HashSet::default();
    for (id, commit) in snapshots {
        let mut new = HashSet::default();
        mark(store, *commit, &seen, &mut new, cx)?;
        if new.contains(&object) {
            return Ok(Some(id));
        }
        seen.extend(new);
    }
    Ok(None)
}

/// See [`Store::reclaim`].
pub(super) fn run(store: &Store, auto: bool, cx: &Context<'_>) -> Result<Reclaimed> {
    let merging = &store.folders.merge;
    let Some(_turn) = (if auto { lock::take_if_free(merging)? } else { Some(lock::take(merging, cx)?) }) else {
        return Ok(Reclaimed::default());
    };
    let mut out = Reclaimed::default();
    for name in files::names(merging)?.iter().filter(|name| *name != "lock") {
        files::remove(merging, name)?;
        out.actions.push("removed a pack that was not finished".into());
    }
    let notes = {
        let _guard = store.lock(cx)?;
        tidy(store)?;
        sync::pending(store)?;
        store.refresh()?;
        garbage(store)?
    };
    let snapshots = refs::all(&store.folders, cx)?.snapshots.len() as u64;
    let sweep = if auto { is_due(&notes, snapshots) } else { !notes.is_empty() };
    // Unasked, nobody looks again for these either, once that was given up.
    let orphans = if auto && notes.last() == Some(&GIVEN_UP) { Vec::new() } else { orphans::find(store)? };
    let sweep = sweep || !orphans.is_empty();
    let mut first = if sweep { Some(needed(store, cx)?) } else { None };
    match &first {
        Some(Ok(_)) => orphans::tidy(store, &orphans, true, &mut out, cx)?,
        Some(Err(Doubt::Damage)) => orphans::tidy(store, &orphans, false, &mut out, cx)?,
        // Whoever comes next can tell.
        Some(Err(Doubt::Passing)) | None => {}
    }
    // Whoever publishes meanwhile may need what this does not know of; then it is looked at once more.
    for _ in 0..3 {
        let looked = match first.take() {
            None if sweep => Some(needed(store, cx)?),
            looked => looked,
        };
        let needed = looked.as_ref().and_then(|looked| looked.as_ref().ok());
        let mut settled = true;
        for mut group in plan(store, auto, needed, cx)? {
            let mut replaced = replace(store, &group, needed, &mut out, cx);
            if replaced.as_ref().is_err_and(|error| error.kind == ErrorKind::DataLoss) {
                // Most of a damaged pack can be read: it is set aside. The others need not wait for it.
                group.leave_damaged(store, cx)?;
                damage::set_aside(store, &store.lock(cx)?)?;
                replaced = replace(store, &group, needed, &mut out, cx);
            }
            settled &= replaced?;
        }
        if !settled {
            continue;
        }
        if let Some(needed) = needed {
            let _guard = store.lock(cx)?;
            if fresh_needs(store, needed, cx)?.is_some() {
                keep::sweep(store, &needed.kept, &mut out, cx)?;
                settle_garbage(store, notes.len())?;
            }
        } else if let Some(Err(doubt)) = looked
            && notes.last() != Some(&GIVEN_UP)
        {
            let tried = notes.iter().rev().take_while(|note| **note == TRIED).count();
            let note = if doubt == Doubt::Passing && tried + 1 < TRIES { TRIED } else { GIVEN_UP };
            let _guard = store.lock(cx)?;
            // What was noted meanwhile was not looked at.
            if garbage(store)?.len() == notes.len() {
                put_notes(store, &[note])?;
            }
        }
        break;
    }
    Ok(out)
}

/// Removes hints of packs that are gone. The caller has the lock.
fn tidy(store: &Store) -> Result<()> {
    damage::tidy(store)?;
    let folders = &store.folders;
    let names: StdSet<String> = files::names(&folders.packs)?.into_iter().collect();
    for hint in files::names(&folders.hints)? {
        if !names.contains(&format!("{hint}.idx")) {
            files::remove(&folders.hints, &hint)?;
        }
    }
    Ok(())
}

/// Packs to be merged into one.
#[derive(Default)]
struct Group {
    packs: Vec<Arc<Pack>>,
    fresh: Vec<bool>,
}

impl Group {
    fn add(&mut self, pack: &Arc<Pack>, fresh: bool) {
        self.packs.push(Arc::clone(pack));
        self.fresh.push(fresh);
    }

    /// Leaves packs out that are not as they were written.
    fn leave_damaged(&mut self, store: &Store, cx: &Context<'_>) -> Result<()> {
        let mut sound = Vec::with_capacity(self.packs.len());
        for pack in &self.packs {
            match damage::examine(store, pack, cx) {
                Ok(look) => sound.push(look == damage::Look::Sound),
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    cx.log(LogLevel::Warn, &format!("it is left as it is: {error}"));
                    sound.push(false);
                }
            }
        }
        let (mut packs, mut fresh) = (sound.iter(), sound.iter());
        self.packs.retain(|_| packs.next() == Some(&true));
        self.fresh.retain(|_| fresh.next() == Some(&true));
        Ok(())
    }
}

/// Decides what is merged. Without `auto`, everything small into one.
///
/// With `auto`, cost is amortised: packs that were never merged go together once they are a tenth of the whole, or more than
/// [`FRESH`], and take a merged one along only if it is at most [`FACTOR`] times as large as what is merged anyway. So each byte is
/// written again a number of times that grows with the logarithm of the whole.
fn plan(store: &Store, auto: bool, needed: Option<&Needed>, cx: &Context<'_>) -> Result<Vec<Group>> {
    let hinted: StdSet<String> = files::names(&store.folders.hints)?.into_iter().collect();
    let packs = store.packs();
    let (mut groups, mut dead) = (Vec::new(), Group::default());
    for bulky in [false, true] {
        let mut class: Vec<_> =
            packs.packs.iter().filter(|pack| (pack.size / pack.index.count().max(1) > BULKY) == bulky).collect();
        let mut unneeded = Vec::new();
        if let Some(needed) = needed {
            let mut left = Vec::with_capacity(class.len());
            for pack in class {
                cx.check_cancelled()?;
                let (bytes, all) = dead_bytes(pack, &needed.live);
                if all {
                    dead.add(pack, false);
                } else {
                    unneeded.push(bytes);
                    left.push(pack);
                }
            }
            class = left;
        }
        let mut chosen: Vec<bool> = vec![false; class.len()];
        let fresh: Vec<bool> = class.iter().map(|pack| hinted.contains(&pack.name)).collect();
        let fresh_count = fresh.iter().filter(|fresh| **fresh).count();
        let size_of = |wanted: bool| -> u64 {
            class.iter().zip(&fresh).filter(|(_, fresh)| **fresh == wanted).map(|(pack, _)| pack.size).sum()
        };
        let many = fresh_count > FEW && !bulky && size_of(true) * FACTOR > size_of(false);
        if !auto && !bulky {
            chosen.fill(fresh_count > 0 || class.len() > 1);
        } else if many || fresh_count > FRESH || class.len() > 2 * FRESH || !auto && fresh_count > 1 {
            chosen.clone_from(&fresh);
            if class.len() > 2 * FRESH {
                chosen.fill(true);
            }
            let mut bytes: u64 = class.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(p, _)| p.size).sum();
            // The packs come largest first.
            for at in (0..class.len()).rev().filter(|at| !fresh[*at]) {
                if class[at].size / FACTOR > bytes {
                    break;
                }
                chosen[at] = true;
                bytes += class[at].size;
            }
        }
        let mut group = Group::default();
        for (at, pack) in class.into_iter().enumerate() {
            let worth = if auto { pack.size / 4 } else { pack.size / 20 };
            if chosen[at] || unneeded.get(at).is_some_and(|bytes| *bytes > worth) {
                group.add(pack, fresh[at]);
            }
        }
        if !group.packs.is_empty() {
            groups.push(group);
        }
    }
    if !dead.packs.is_empty() {
        // First: where the disk is full, there is room for the others then.
        groups.insert(0, dead);
    }
    Ok(groups)
}

/// Bytes of a pack that no snapshot needs, and whether that is all of it. All of it counts as needed if its index cannot be relied on.
fn dead_bytes(pack: &Pack, live: &HashSet<ObjectId>) -> (u64, bool) {
    let Ok(mut entries) = pack.index.entries() else { return (0, false) };
    entries.sort_unstable_by_key(|entry| entry.offset);
    let ends = entries.iter().skip(1).map(|entry| entry.offset).chain([pack.size]);
    let dead = entries.iter().zip(ends).filter(|(entry, _)| !live.contains(&entry.id));
    let sizes: Vec<u64> = dead.map(|(entry, end)| end.saturating_sub(entry.offset)).collect();
    (sizes.iter().sum(), sizes.len() == entries.len())
}

/// What was published since `needed` was found out, and what it needs beyond that. None if that cannot be told.
fn fresh_needs(store: &Store, needed: &Needed, cx: &Context<'_>) -> Result<Option<HashSet<ObjectId>>> {
    let mut live = HashSet::default();
    let all = refs::all(&store.folders, cx)?;
    if all.unreadable.is_some() {
        return Ok(None);
    }
    for (_, commit) in all.snapshots {
        if needed.commits.contains(&commit) {
            continue;
        }
        match mark(store, commit, &needed.live, &mut live, cx) {
            Ok(None) => {}
            // It may need kept objects that are unknown here. The next sweep will know.
            Ok(Some(kept)) if needed.kept.contains(&kept) => {}
            Ok(Some(_)) => return Ok(None),
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(live))
}

/// Writes one pack in place of several. Whether it could be done; if not, nothing changed.
fn replace(
    store: &Store,
    group: &Group,
    needed: Option<&Needed>,
    out: &mut Reclaimed,
    cx: &Context<'_>,
) -> Result<bool> {
    if group.packs.is_empty() {
        return Ok(true);
    }
    let before: u64 = group.packs.iter().map(|pack| pack.size + pack.index.count() * 28).sum();
    let (count, names): (usize, Vec<_>) = (group.packs.len(), group.packs.iter().map(|p| p.name.clone()).collect());
    let merge = Merge::new(store, &group.packs, &group.fresh, needed.map(|needed| &needed.live))?;
    let ids = merge.ids();
    let merged = merge.write(cx)?;
    let index = merged.as_ref().map(Finished::index);
    let has = |id: &ObjectId| match &index {
        Some(Ok(index)) => matches!(index.is_sound(), Ok(true)) && index.find(id).is_some(),
        Some(Err(_)) | None => false,
    };
    if let Some(lost) = ids.iter().find(|id| !has(id)) {
        let message = format!("object {lost} did not come into the pack that {count} were merged into: they stay");
        return Err(Error::new(ErrorKind::Internal, message));
    }
    let folders = &store.folders;
    let _guard = store.lock(cx)?;
    if let Some(needed) = needed {
        let Some(more) = fresh_needs(store, needed, cx)? else { return Ok(false) };
        store.refresh()?;
        let packs = store.packs();
        let has =
            |pack: &Pack, id: &ObjectId| pack.index.find(id).is_some() && matches!(pack.index.is_sound(), Ok(true));
        let stays = |id: &ObjectId| packs.packs.iter().any(|p| !names.contains(&p.name) && has(p, id));
        if !more.iter().all(stays) {
            return Ok(false);
        }
    }
    let mut after = 0;
    if let Some(merged) = &merged {
        after = merged.size;
        merged.install(folders.merge.as_fd(), &folders.packs)?;
        files::sync(&folders.packs, "git/objects/pack")?;
    }
    store.refresh()?;
    let gone: Vec<_> = names.iter().filter(|name| merged.as_ref().is_none_or(|m| m.name != **name)).cloned().collect();
    damage::unlist(store, &gone);
    // Git's own shortcuts, should a person have made them, would name what is gone.
    files::remove(&folders.packs, "multi-pack-index")?;
    files::remove(&folders.objects, "info/commit-graph")?;
    for name in names.iter().filter(|name| merged.as_ref().is_none_or(|merged| merged.name != **name)) {
        // The index first: readers go by it.
        for ending in [".idx", ".pack", ".rev", ".bitmap", ".mtimes"] {
            files::remove(&folders.packs, &format!("{name}{ending}"))?;
        }
        files::remove(&folders.hints, name)?;
    }
    if let Some(merged) = &merged {
        // Merging may have made the very same pack again.
        files::remove(&folders.hints, &merged.name)?;
    }
    store.refresh()?;
    out.bytes += before.saturating_sub(after);
    out.actions.push(match (count, merged) {
        (1, Some(_)) => "wrote a pack anew".into(),
        (n, None) => format!("removed {} that nothing needs", text::count(n, "pack", "packs")),
        (n, Some(_)) => format!("merged {n} packs into one"),
    });
    Ok(true)
}
