//! Packs that are not what was written: set aside, so that nothing new rests on them, and read last.
//!
//! A pack is set aside by a new ending of its files, `.damaged`, by which neither git nor [`Store::contains`] knows them. So the next
//! snapshot writes again what it needs, and what is whole in such a pack can still be read. Nothing removes it, as a person may
//! want it, unless a power cut came before it was known to be on disk and tore it (`sync.rs`). What cannot be read at this moment (an error of the disk) is not damaged.
//!
//! A pack of which only the index is damaged gets a new one instead: everything is still there. Until that could be written it serves from
//! memory. An index is believed unchecked where it finds something, since what is read is checked. That it does not find something is believed, and packs go, only once
//! its checksum was looked at.
//!
//! The private index names objects without looking for them. `index-packs` lists the packs it rests on: as long as all of them
//! are there, its objects are, unless one was missed. A list that does not fit costs a slower snapshot, never a wrong one.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};

use ah_plugin_api::{Context, ErrorKind, LogLevel, Result};

use super::files::Doing;
use super::pack::{Bad, Pack, remake};
use super::{Packs, Store, WriteGuard, files, lock};

/// What the names of both files end in once a pack is set aside.
pub(super) const ENDING: &str = ".damaged";
const LIST: &str = "index-packs";
/// More than the names of so many packs as merging ever leaves.
const LIST_LIMIT: u64 = 1 << 20;
/// What the list says once something was missed that no pack has. No pack is called that.
const MISSED: &str = "missed\n";

/// What is known of packs in which something could not be read.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Numbers of those that were looked at.
    looked_at: HashSet<u32>,
    /// Names of those that could not be opened and were looked at.
    unopened: HashSet<String>,
    /// Names of those that are damaged, with a new index where that is all that is.
    damaged: HashMap<String, Option<Vec<u8>>>,
    /// Whether an object was missed that no pack has.
    missed: bool,
}

/// What came of looking at a whole pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Sound,
    /// Its index was damaged, and was made anew.
    Mended,
    Damaged,
}

/// Looks at packs in which something was found that is not what was written, and sets aside those that are damaged: at once where
/// nobody is writing, else when the lock is taken next. Until then this process does not count on them. Whether something can be
/// found now that could not.
///
/// # Errors
/// `Cancelled`: then they are looked at the next time.
pub(super) fn suspect(store: &Store, faults: &[(Arc<Pack>, Bad)], cx: &Context<'_>) -> Result<bool> {
    // Nothing is said of a pack where what was read could not be handed on.
    let says_something = |why: &Bad| why.errno.is_none() && !why.to_string().is_empty();
    let packs: Vec<_> = faults.iter().filter(|(_, why)| says_something(why)).map(|(pack, _)| pack).collect();
    let looks = examine_new(store, packs, cx)?;
    Ok(settle_if(store, &looks))
}

fn examine_new<'p>(
    store: &Store,
    packs: impl IntoIterator<Item = &'p Arc<Pack>>,
    cx: &Context<'_>,
) -> Result<Vec<Look>> {
    // One that was set aside, or is to be, was looked at.
    let is_new = |pack: &Pack| {
        !pack.name.ends_with(ENDING)
            && !is_noted(store, &pack.name)
            && suspects(store, |all| all.looked_at.insert(pack.number))
    };
    let mut looks = Vec::new();
    for pack in packs.into_iter().filter(|pack| is_new(pack)) {
        match examine(store, pack, cx) {
            Err(error) if error.kind == ErrorKind::Cancelled => {
                suspects(store, |all| all.looked_at.remove(&pack.number));
                return Err(error);
            }
            look => looks.extend(look.ok()),
        }
    }
    Ok(looks)
}

fn settle_if(store: &Store, looks: &[Look]) -> bool {
    if looks.iter().any(|look| *look != Look::Sound) {
        settle(store);
    }
    // An index serves also before it can be written.
    looks.contains(&Look::Mended)
}

/// Looks at the indexes, those of packs that could not be opened among them, and makes anew what is damaged: with `all` at every
/// one of them, which reads them whole, else at those of which that is known. Whether something can be found now that could not.
///
/// # Errors
/// As [`suspect`].
pub(super) fn mend_indexes(store: &Store, all: bool, cx: &Context<'_>) -> Result<bool> {
    let packs = store.packs();
    let damaged =
        |pack: &&Arc<Pack>| pack.index.is_known_damaged() || all && matches!(pack.index.is_sound(), Ok(false));
    let mut looks = examine_new(store, packs.packs.iter().chain(&packs.aside).filter(damaged), cx)?;
    for (name, _) in packs.bad.iter().filter(|(_, why)| why.errno.is_none()) {
        // Read once: afterwards it can be opened, or is set aside.
        if files::exists(&store.folders.packs, &format!("{name}.pack"))
            && !is_noted(store, name)
            && suspects(store, |all| all.unopened.insert(name.clone()))
        {
            match remake(store.folders.packs.as_fd(), name, store.number(), cx) {
                Ok(index) => {
                    looks.push(if index.is_some() { Look::Mended } else { Look::Damaged });
                    note(store, name, index, cx);
                }
                Err(error) if error.kind == ErrorKind::Cancelled => {
                    suspects(store, |all| all.unopened.remove(name));
                    return Err(error);
                }
                Err(_) => {}
            }
        }
    }
    Ok(settle_if(store, &looks))
}

/// The same of all of them, for who goes by what can be found then.
///
/// # Errors
/// If one cannot be read at this moment, which says nothing about what is in it; `Cancelled`.
pub(super) fn mend_all(store: &Store, cx: &Context<'_>) -> Result<()> {
    let packs = store.packs();
    for pack in packs.packs.iter().chain(&packs.aside) {
        if !pack.name.ends_with(ENDING)
            && !is_noted(store, &pack.name)
            && !pack.index.is_sound().doing(|| format!("read {}.idx of the store", pack.name))?
        {
            examine(store, pack, cx)?;
        }
    }
    for (name, why) in &packs.bad {
        if let Some(errno) = why.errno {
            return Err(errno).doing(|| format!("read {name}.pack of the store"));
        }
        if files::exists(&store.folders.packs, &format!("{name}.pack")) && !is_noted(store, name) {
            let index = remake(store.folders.packs.as_fd(), name, store.number(), cx)?;
            note(store, name, index, cx);
        }
    }
    Ok(())
}

/// Reads a whole pack and its index, and notes it if they are not what was written, or the index not what it should be.
///
/// # Errors
/// If it cannot be read at this moment, which says nothing about it; `Cancelled`.
pub(super) fn examine(store: &Store, pack: &Pack, cx: &Context<'_>) -> Result<Look> {
    let index = remake(store.folders.packs.as_fd(), &pack.name, store.number(), cx)?;
    let look = match &index {
        Some(index) => {
            // A right checksum says only that nothing happened to the index since it was written; but now all of it was read.
            pack.index.is_sound().doing(|| format!("read {}.idx of the store", pack.name))?;
            if pack.index.is(index) {
                return Ok(Look::Sound);
            }
            Look::Mended
        }
        None if pack.is_sound(cx)? => return Ok(Look::Sound),
        None => Look::Damaged,
    };
    note(store, &pack.name, index, cx);
    Ok(look)
}

/// Makes the index of a pack anew, whatever that is like now, to be put in place with what else was noted. Whether that can be done: if not,
/// the pack is not what was written.
///
/// # Errors
/// Those of [`examine`].
pub(super) fn is_mended(store: &Store, name: &str, cx: &Context<'_>) -> Result<bool> {
    let index = remake(store.folders.packs.as_fd(), name, store.number(), cx)?;
    let mended = index.is_some();
    if mended {
        note(store, name, index, cx);
    }
    Ok(mended)
}

/// Notes that a pack is damaged, or only its index, which is to be `index`.
fn note(store: &Store, name: &str, index: Option<Vec<u8>>, cx: &Context<'_>) {
    let what = match &index {
        Some(_) => format!("the index of {name}.pack of the store was damaged; it is made anew, and nothing is lost"),
        None => format!(
            "{name}.pack of the store is damaged; it is set aside, and the next snapshot captures everything again"
        ),
    };
    cx.log(LogLevel::Warn, &what);
    suspects(store, |all| all.damaged.insert(name.to_owned(), index));
}

/// Whether it was noted.
pub(super) fn is_noted(store: &Store, name: &str) -> bool {
    suspects(store, |all| all.damaged.contains_key(name))
}

/// Notes that an object was looked for that no pack has, though something names it: the next snapshot looks for all that the
/// private index names.
pub(super) fn missed(store: &Store) {
    suspects(store, |all| all.missed = true);
    settle(store);
}

/// Puts in order what was noted, if nobody is writing. In a store that is only to be read for one it cannot be, and nothing is lost.
fn settle(store: &Store) {
    if store.refresh().is_ok()
        && let Ok(Some(guard)) = lock::take_if_free(&store.folders.store)
    {
        let _ = set_aside(store, &guard);
    }
}

fn suspects<T>(store: &Store, work: impl FnOnce(&mut Suspects) -> T) -> T {
    work(&mut store.suspects.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Writes the indexes that were made anew.
pub(super) fn put_indexes(store: &Store, _guard: &WriteGuard) -> Result<()> {
    let noted = |all: &mut Suspects| -> Vec<(String, Vec<u8>)> {
        all.damaged.iter().filter_map(|(name, index)| Some((name.clone(), index.clone()?))).collect()
    };
    let (folders, indexes) = (&store.folders, suspects(store, noted));
    for (name, index) in &indexes {
        // It may have been merged into another one, or set aside by somebody.
        if files::exists(&folders.packs, &format!("{name}.pack")) {
            files::put(folders.tmp.as_fd(), folders.packs.as_fd(), &format!("{name}.idx"), index, 0o444, true)?;
            files::sync(&folders.packs, "git/objects/pack")?;
        }
    }
    if indexes.is_empty() {
        return Ok(());
    }
    // As long as they are noted, they are not kept as they were opened before.
    store.refresh()?;
    suspects(store, |all| indexes.iter().for_each(|(name, _)| drop(all.damaged.remove(name))));
    store.refresh()
}

/// Sets aside what was noted, and writes down what was missed.
pub(super) fn set_aside(store: &Store, guard: &WriteGuard) -> Result<()> {
    if suspects(store, |all| all.missed) {
        if listed(store).is_none_or(|list| list != MISSED.as_bytes()) {
            put_list(store, MISSED)?;
        }
        suspects(store, |all| all.missed = false);
    }
    put_indexes(store, guard)?;
    let names: Vec<String> = suspects(store, |all| all.damaged.keys().cloned().collect());
    if names.is_empty() {
        return Ok(());
    }
    let packs = &store.folders.packs;
    for name in &names {
        if files::exists(packs, &format!("{name}.idx")) {
            // The pack first: without an index beside it, it would count as garbage.
            for ending in [".pack", ".idx"] {
                let from = format!("{name}{ending}");
                files::rename(packs, &from, packs, &format!("{from}{ENDING}"))?;
            }
        }
        suspects(store, |all| all.damaged.remove(name));
    }
    store.refresh()
}

/// Gives a pack that was set aside its name again, for who looks at all of it. Whether there was one. The caller has the lock.
pub(super) fn take_back(store: &Store, name: &str) -> Result<bool> {
    let packs = &store.folders.packs;
    let is_there = files::exists(packs, &format!("{name}.pack{ENDING}"));
    // The index first: killed in between, it is set aside again, see `tidy`.
    for ending in [".idx", ".pack"] {
        let to = format!("{name}{ending}");
        let from = format!("{to}{ENDING}");
        if is_there && files::exists(packs, &from) {
            files::rename(packs, &from, packs, &to)?;
        }
    }
    if is_there {
        store.refresh()?;
    }
    Ok(is_there)
}

/// Finishes what was killed between the two files of a pack. The caller has the lock.
pub(super) fn tidy(store: &Store) -> Result<()> {
    let packs = &store.folders.packs;
    let names: HashSet<String> = files::names(packs)?.into_iter().collect();
    for name in names.iter().filter_map(|name| name.strip_suffix(ENDING)?.strip_suffix(".pack")) {
        let index = format!("{name}.idx");
        if names.contains(&index) && !names.contains(&format!("{name}.pack")) {
            files::rename(packs, &index, packs, &format!("{index}{ENDING}"))?;
        }
    }
    Ok(())
}

/// The packs that were set aside, to be read last.
pub(super) fn open_aside(store: &Store, names: &[String], known: &Packs) -> Vec<Arc<Pack>> {
    let stems = names.iter().filter_map(|name| name.strip_suffix(ENDING)?.strip_suffix(".idx"));
    let open = |stem: &str| {
        let name = format!("{stem}{ENDING}");
        match known.aside.iter().find(|pack| pack.name == name) {
            Some(pack) => Some(Arc::clone(pack)),
            // One that cannot even be opened is of no use, see `not_opened`.
            None => Pack::open_as(store.folders.packs.as_fd(), stem, ENDING, store.number()).ok().map(Arc::new),
        }
    };
    stems.filter_map(open).collect()
}

/// The packs whose indexes were made anew and are not in their places yet, with these.
pub(super) fn open_mended(store: &Store, known: &Packs) -> Vec<Arc<Pack>> {
    let open = |(name, index): (&String, &Vec<u8>)| match known
        .aside
        .iter()
        .find(|pack| pack.name == *name && pack.index.is(index))
    {
        Some(pack) => Some(Arc::clone(pack)),
        None => {
            let packs = store.folders.packs.as_fd();
            Pack::open_with(packs, name, index.clone(), store.number()).ok().map(Arc::new)
        }
    };
    suspects(store, |all| {
        all.damaged.iter().filter_map(|(name, index)| Some((name, index.as_ref()?))).filter_map(open).collect()
    })
}

/// Those that were set aside and cannot be opened, for a person: what is missing may have been there.
pub(super) fn not_opened(store: &Store) -> Vec<String> {
    let (packs, names) = (store.packs(), files::names(&store.folders.packs).unwrap_or_default());
    let open: HashSet<&str> = packs.aside.iter().filter_map(|pack| pack.name.strip_suffix(ENDING)).collect();
    let stems = names.iter().filter_map(|name| name.strip_suffix(ENDING)?.strip_suffix(".pack"));
    let shut = stems.filter(|stem| !open.contains(stem));
    shut.map(|stem| format!("{stem}.pack was damaged, was set aside, and cannot be opened")).collect()
}

fn listed(store: &Store) -> Option<Vec<u8>> {
    files::read_file(&store.folders.store, LIST, LIST_LIMIT).ok().flatten()
}

fn is_covered(store: &Store, list: &[u8]) -> bool {
    let packs = store.packs();
    let there: HashSet<&[u8]> = packs.packs.iter().map(|pack| pack.name.as_bytes()).collect();
    list.split(|&byte| byte == b'\n').filter(|name| !name.is_empty()).all(|name| there.contains(name))
}

/// Whether all packs are there that the private index rests on, so that the store has the objects which it names.
pub(super) fn index_holds(store: &Store) -> bool {
    !suspects(store, |all| all.missed)
        && store.refresh().is_ok()
        && listed(store).is_none_or(|list| is_covered(store, &list))
}

/// Lists the packs that are there, for the private index that was just written. The caller has the lock.
pub(super) fn list_packs(store: &Store) -> Result<()> {
    store.refresh()?;
    let mut names: Vec<String> = store.packs().packs.iter().map(|pack| format!("{}\n", pack.name)).collect();
    names.sort_unstable();
    let list = names.concat();
    if listed(store).is_some_and(|before| before == list.as_bytes()) {
        return Ok(());
    }
    put_list(store, &list)
}

fn put_list(store: &Store, list: &str) -> Result<()> {
    files::put(store.folders.tmp.as_fd(), store.folders.store.as_fd(), LIST, list.as_bytes(), 0o600, false)
}

/// Takes note that packs are about to go, all of whose objects that anything needs are in others. The caller has the lock. Should it
/// fail, on a full disk for one, the next snapshot takes longer.
pub(super) fn unlist(store: &Store, gone: &[String]) {
    if !listed(store).is_some_and(|list| is_covered(store, &list)) {
        return;
    }
    let packs = store.packs();
    let stays = packs.packs.iter().map(|pack| &pack.name).filter(|name| !gone.contains(name));
    let list: String = stays.map(|name| format!("{name}\n")).collect();
    let _ = put_list(store, &list);
}
