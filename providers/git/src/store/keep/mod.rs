//! Keeping the objects of the user's repository, so that a clone of a snapshot is a repository too, whatever became of theirs.
//!
//! A hard link to a pack or a loose object costs nothing and survives their `git gc`, `rebase` and `rm -rf .git`: Git never
//! changes such a file, it only unlinks it. A clone gets reflinks where the file system can, since somebody may write into its files all the
//! same; else hard links too. All packs and loose objects are linked, not only those that HEAD and index reach:
//! finding out which these are would cost more than the links.
//!
//! `keep/packs/` and `keep/loose/xx/` hold the links of all snapshots. Which of them a snapshot needs is a [`List`] in its tree,
//! one blob for all snapshots between two changes of the repository. `keep/state` remembers the last list and what the
//! repository looked like then; it is a cache. So is `keep/first`, see [`first`].

mod first;
mod link;
mod list;
mod objects;
mod repair;
#[cfg(test)]
mod tests;
mod unsynced;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use ah_plugin_api::{Context, Error, ErrorKind, Reclaimed, Result, text};
use gix::objs::Kind;
use gix::{ObjectId, oid};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::files::{self, Doing};
use super::{Batch, Store, reclaim};
use ah_repository::Repository;
pub(super) use first::first_commit;
use link::{Linker, Way};
use list::List;
pub(crate) use objects::Objects;
use unsynced::Unsynced;
pub(super) use unsynced::{recover, sync};

/// Name of the list of kept objects in a snapshot's tree. The sweep looks for it there.
pub(crate) const KEPT: &str = "kept";

/// More than this is not copied where links cannot be had, bytes.
const COPY_LIMIT: u64 = 2 << 30;
/// How often a repository that changes while it is looked at is looked at again.
const ATTEMPTS: usize = 4;
/// What was written this short a time ago may be written again without looking different, nanoseconds.
const TICK: u128 = 50_000_000;
const PACKS: &str = "packs";
const LOOSE: &str = "loose";
const STATE: &str = "state";

/// What became of the objects of the user's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// They are kept; the blob lists them.
    List(ObjectId),
    /// They are not kept; why, for a person.
    Not(String),
}

/// What the repository looked like when it was last kept.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    stamp: String,
    list: String,
}

/// What changes whenever HEAD, the recorded refs or the index name something new, and when objects come or are put right; none if that
/// cannot be told.
fn stamp(repository: &Repository) -> Option<String> {
    use std::fmt::Write;
    let refs = super::hash(Kind::Blob, repository.refs.as_deref().unwrap_or_default());
    let mut out = format!("{:?} {:?} {refs}", repository.state.head, repository.shallow);
    let mut times = Vec::new();
    let mut folders = String::new();
    for dir in &repository.objects {
        let stat = rustix::fs::fstat(dir).ok()?;
        write!(out, " {}:{}", stat.st_dev, stat.st_ino).ok()?;
        let mut names = files::names(dir).ok()?;
        names.retain(|name| name == "pack" || is_hex(name, 2));
        names.sort_unstable();
        for name in names {
            let stat = rustix::fs::statat(dir, &name, AtFlags::empty()).ok()?;
            times.push((stat.st_mtime, stat.st_mtime_nsec));
            writeln!(folders, "{name} {}.{}", stat.st_mtime, stat.st_mtime_nsec).ok()?;
        }
    }
    write!(out, " {}", super::hash(Kind::Blob, folders.as_bytes())).ok()?;
    if let Some((index, _)) = repository.index().ok()? {
        let stat = rustix::fs::fstat(&index).ok()?;
        let (secs, nanos) = (stat.st_ctime, stat.st_ctime_nsec);
        times.push((secs, nanos));
        write!(out, " {} {} {}.{secs}.{nanos}", stat.st_ino, stat.st_size, stat.st_mtime).ok()?;
    }
    if let Some((secs, nanos)) = times.into_iter().max() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let changed = u128::try_from(secs).ok()? * 1_000_000_000 + u128::from(nanos);
        if changed + TICK > now {
            return None;
        }
    }
    Some(out)
}

fn state(store: &Store) -> Option<State> {
    serde_json::from_slice(&files::read_file(&store.folders.keep, STATE, 1 << 20).ok()??).ok()
}

/// See [`Store::keep`].
pub(super) fn keep(store: &Store, batch: &Batch<'_>, repository: &Repository, cx: &Context<'_>) -> Result<Kept> {
    if let Some(why) = &repository.state.not_kept {
        return Ok(Kept::Not(why.clone()));
    }
    let stamp = stamp(repository);
    let last = state(store);
    let last_list = last.as_ref().and_then(|last| ObjectId::from_hex(last.list.as_bytes()).ok());
    if let (Some(last), Some(list)) = (&last, last_list) {
        // The list is one of the store only if the snapshot it was made for was published and is still there.
        if Some(&last.stamp) == stamp.as_ref() && store.has_packed(&list) {
            return Ok(Kept::List(list));
        }
    }
    let list = match collect(store, repository, cx) {
        Ok(Ok(list)) => list,
        Ok(Err(why)) => return Ok(Kept::Not(why)),
        Err(error) if matches!(error.kind, ErrorKind::Cancelled | ErrorKind::ResourceExhausted) => return Err(error),
        Err(error) => {
            let why =
                error.causes.first().map_or_else(|| error.message.clone(), |why| format!("{}: {why}", error.message));
            return Ok(Kept::Not(why));
        }
    };
    let id = batch.object(Kind::Blob, &list.encode(), last_list.as_deref())?;
    if let Some(stamp) = stamp {
        let state = State { stamp, list: id.to_string() };
        let text = serde_json::to_vec(&state)
            .map_err(|e| Error::new(ErrorKind::Internal, "cannot write what was kept").with_cause(&e))?;
        files::put(store.folders.tmp.as_fd(), store.folders.keep.as_fd(), STATE, &text, 0o600, false)?;
    }
    Ok(Kept::List(id))
}

/// Links everything; or says why it cannot be.
fn collect(store: &Store, repository: &Repository, cx: &Context<'_>) -> Result<Result<List, String>> {
    for name in [PACKS, LOOSE] {
        files::make_dir(&store.folders.keep, name)?;
    }
    let mut linker = Linker::keeping(Unsynced::new(store), COPY_LIMIT, cx);
    let collected = collect_with(&mut linker, store, repository, cx);
    let unsynced = linker.unsynced();
    match (&collected, unsynced) {
        (Ok(Ok(_)), Some(unsynced)) => unsynced.finish()?,
        // No snapshot will need what was linked so far.
        (_, Some(unsynced)) if unsynced.began() => reclaim::note_garbage(store)?,
        _ => {}
    }
    collected
}

fn collect_with(
    linker: &mut Linker<'_>,
    store: &Store,
    repository: &Repository,
    cx: &Context<'_>,
) -> Result<Result<List, String>> {
    let packs = files::open_dir(&store.folders.keep, PACKS)?;
    let loose = files::open_dir(&store.folders.keep, LOOSE)?;
    for _ in 0..ATTEMPTS {
        let mut list = List { shallow: repository.shallow.clone(), ..List::default() };
        let mut vanished = false;
        // Objects move from loose files into packs, never the other way while they are needed. So in this order none is
        // missed when somebody packs meanwhile.
        for dir in &repository.objects {
            cx.check_cancelled()?;
            match keep_loose(dir, &loose, &mut list, linker, cx)? {
                Outcome::Done => {}
                Outcome::Vanished => vanished = true,
                Outcome::Not(why) => return Ok(Err(why)),
            }
        }
        for dir in &repository.objects {
            match keep_packs(dir, &packs, &mut list, linker, cx)? {
                Outcome::Done => {}
                Outcome::Vanished => vanished = true,
                Outcome::Not(why) => return Ok(Err(why)),
            }
        }
        if !vanished {
            return Ok(Ok(list));
        }
    }
    Ok(Err("its objects changed all the time while they were read".into()))
}

enum Outcome {
    Done,
    /// Something was there when it was listed, and then was not: look again.
    Vanished,
    Not(String),
}

/// The names in a directory of theirs, as [`listing`] gives them; none if there is no such directory.
fn their_names(dir: &OwnedFd, name: &str) -> Result<Option<(OwnedFd, Names)>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let sub = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(sub) => sub,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(errno).doing(|| format!("open objects/{name} of the repository")),
    };
    let names = listing(&sub).doing(|| format!("list objects/{name} of the repository"))?;
    Ok(Some((sub, names)))
}

/// Names with what tells their files apart: device (that of the directory) and inode.
type Names = HashMap<String, (u64, u64)>;

/// The names in a directory, without a look at each; those that are not UTF-8 are left out.
fn listing(dir: &OwnedFd) -> rustix::io::Result<Names> {
    let device = rustix::fs::fstat(dir)?.st_dev;
    let mut out = Names::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        out.extend(entry.file_name().to_str().ok().map(|name| (name.to_owned(), (device, entry.ino()))));
    }
    Ok(out)
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn keep_loose(
    objects: &OwnedFd,
    keep: &OwnedFd,
    list: &mut List,
    linker: &mut Linker<'_>,
    cx: &Context<'_>,
) -> Result<Outcome> {
    let Some((_, folders)) = their_names(objects, ".")? else { return Ok(Outcome::Done) };
    for folder in folders.keys().filter(|name| is_hex(name, 2)) {
        cx.check_cancelled()?;
        let Some((theirs, names)) = their_names(objects, folder)? else { continue };
        let names: Vec<_> = names.into_iter().filter(|(name, _)| is_hex(name, 38)).collect();
        if names.is_empty() {
            continue;
        }
        files::make_dir(keep, folder)?;
        let ours = files::open_dir(keep, folder)?;
        let present = listing(&ours).doing(|| format!("list {LOOSE}/{folder} of the store"))?;
        for (name, inode) in names {
            let Ok(id) = ObjectId::from_hex(format!("{folder}{name}").as_bytes()) else { continue };
            let there = present.get(&name);
            if !list.loose.insert(id) || there == Some(&inode) {
                continue;
            }
            let inside = format!("{LOOSE}/{folder}");
            let way = match there {
                Some(_) => repair::loose(linker, &theirs, &ours, (&name, &id), &inside, cx)?,
                None => linker.link(&theirs, &name, &ours, &name, &inside)?,
            };
            match way {
                Way::Done => {}
                Way::Gone => return Ok(Outcome::Vanished),
                Way::Special => {
                    list.loose.remove(&id);
                }
                Way::TooMuch => return Ok(Outcome::Not(too_much())),
            }
        }
    }
    Ok(Outcome::Done)
}

fn too_much() -> String {
    format!("it is on another filesystem than the store, and has more than {} GiB of objects", COPY_LIMIT >> 30)
}

fn keep_packs(
    objects: &OwnedFd,
    keep: &OwnedFd,
    list: &mut List,
    linker: &mut Linker<'_>,
    cx: &Context<'_>,
) -> Result<Outcome> {
    let Some((theirs, names)) = their_names(objects, "pack")? else { return Ok(Outcome::Done) };
    let present = listing(keep).doing(|| format!("list {PACKS} of the store"))?;
    for (name, inode) in &names {
        let Some(stem) = name.strip_suffix(".idx").filter(|stem| list::is_pack_name(stem)) else { continue };
        cx.check_cancelled()?;
        if names.contains_key(&format!("{stem}.promisor")) {
            return Ok(Outcome::Not("it is a partial clone: not all of its objects are there".into()));
        }
        // One that is borrowed as well is looked at once.
        if list.packs.contains_key(stem) {
            continue;
        }
        let pack = format!("{stem}.pack");
        let ours = present.contains_key(&pack) && present.contains_key(name);
        if ours && (present.get(&pack) != names.get(&pack) || present.get(name) != Some(inode)) {
            match repair::pack(linker, &theirs, keep, stem, cx)? {
                Way::Gone => return Ok(Outcome::Vanished),
                Way::TooMuch => return Ok(Outcome::Not(too_much())),
                Way::Done | Way::Special => {}
            }
        }
        let looked = rustix::fs::statat(if ours { keep } else { &theirs }, &pack, AtFlags::SYMLINK_NOFOLLOW);
        let size = match looked {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat.st_size.cast_unsigned(),
            Ok(_) => continue,
            Err(Errno::NOENT) => return Ok(Outcome::Vanished),
            Err(errno) => return Err(errno).doing(|| format!("look at {pack} of the repository")),
        };
        for file in [&pack, name].into_iter().filter(|_| !ours) {
            if present.contains_key(file) {
                // Half of what a keeper that was killed was about to link.
                files::remove(keep, file)?;
            }
            match linker.link(&theirs, file, keep, file, PACKS)? {
                Way::Done => {}
                Way::Gone => return Ok(Outcome::Vanished),
                Way::Special => return Ok(Outcome::Not(format!("its {file} is empty, or not a regular file"))),
                Way::TooMuch => return Ok(Outcome::Not(too_much())),
            }
        }
        list.packs.insert(stem.to_owned(), size);
    }
    Ok(Outcome::Done)
}

/// See [`Store::populate`].
pub(super) fn populate(
    store: &Store,
    kept: &oid,
    objects: BorrowedFd<'_>,
    cx: &Context<'_>,
) -> Result<Option<Vec<u8>>> {
    let list = read_list(store, kept, cx)?;
    for name in ["info", "pack"] {
        files::make_dir(objects, name)?;
    }
    let mut linker = Linker::filling(cx);
    let gone = |name: &str| files::damaged(format!("{name}, kept from the user's repository, is gone or damaged"));
    let check = |way: Way, name: &str| match way {
        Way::Done => Ok(()),
        Way::Gone | Way::Special | Way::TooMuch => Err(gone(name)),
    };
    if !list.packs.is_empty() {
        let ours = files::open_dir(&store.folders.keep, PACKS)?;
        let theirs = files::open_dir(objects, "pack")?;
        for stem in list.packs.keys() {
            cx.check_cancelled()?;
            let pack = format!("{stem}.pack");
            if !repair::is_pair(&ours, stem)? {
                return Err(gone(&pack));
            }
            for file in [pack, format!("{stem}.idx")] {
                check(linker.link(&ours, &file, &theirs, &file, "")?, &file)?;
            }
        }
    }
    let mut folder: Option<(String, OwnedFd, OwnedFd)> = None;
    for (done, id) in list.loose.iter().enumerate() {
        if done % 256 == 0 {
            cx.check_cancelled()?;
        }
        let hex = id.to_string();
        let (first, rest) = hex.split_at(2);
        if folder.as_ref().is_none_or(|(name, ..)| name != first) {
            files::make_dir(objects, first)?;
            let ours = files::open_dir(&store.folders.keep, &format!("{LOOSE}/{first}")).map_err(|_| gone(&hex))?;
            folder = Some((first.to_owned(), ours, files::open_dir(objects, first)?));
        }
        if let Some((_, ours, theirs)) = &folder {
            check(linker.link(ours, rest, theirs, rest, "")?, &hex)?;
        }
    }
    let mut shallow = Vec::new();
    list.shallow.iter().for_each(|id| shallow.extend_from_slice(format!("{id}\n").as_bytes()));
    Ok((!shallow.is_empty()).then_some(shallow))
}

fn read_list(store: &Store, kept: &oid, cx: &Context<'_>) -> Result<List> {
    let mut data = Vec::new();
    store.read(kept, &mut data, cx)?;
    List::decode(&data).ok_or_else(|| files::damaged(format!("the list {kept} of kept objects is damaged")))
}

/// Removes what is on none of the lists `kept`. The caller has the lock.
pub(super) fn sweep(store: &Store, kept: &HashSet<ObjectId>, out: &mut Reclaimed, cx: &Context<'_>) -> Result<()> {
    let keep = &store.folders.keep;
    let mut needed = List::default();
    for id in kept {
        // A list that cannot be read may name anything: then nothing is removed.
        let Ok(list) = read_list(store, id, cx) else { return Ok(()) };
        needed.packs.extend(list.packs);
        needed.loose.extend(list.loose);
    }
    files::remove(keep, STATE)?;
    let mut removed = 0_u64;
    let mut remove = |dir: &OwnedFd, name: &str, out: &mut Reclaimed| -> Result<()> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        if let Ok(stat) = stat {
            out.bytes += if stat.st_nlink == 1 { stat.st_blocks.cast_unsigned() * 512 } else { 0 };
        }
        removed += 1;
        files::remove(dir, name).map(drop)
    };
    if let Ok(packs) = files::open_dir(keep, PACKS) {
        for name in files::names(&packs)? {
            if name.rsplit_once('.').is_none_or(|(stem, _)| !needed.packs.contains_key(stem)) {
                remove(&packs, &name, out)?;
            }
        }
    }
    if let Ok(loose) = files::open_dir(keep, LOOSE) {
        for folder in files::names(&loose)? {
            let dir = files::open_dir(&loose, &folder)?;
            for name in files::names(&dir)? {
                let id = ObjectId::from_hex(format!("{folder}{name}").as_bytes());
                if !id.is_ok_and(|id| needed.loose.contains(&id)) {
                    remove(&dir, &name, out)?;
                }
            }
        }
    }
    if removed > 0 {
        out.actions.push(format!("gave up {} kept from the user's repository", text::count(removed, "file", "files")));
    }
    Ok(())
}
