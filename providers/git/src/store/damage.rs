//! Packs that are not what was written: set aside, so that nothing new rests on them, and read last.
//!
//! A pack is set aside by a new ending of its files, `.damaged`, by which neither git nor [`Store::contains`] knows them. So the next
//! snapshot writes again what it needs, and what is whole in such a pack can still be read. Nothing removes it: a person may
//! want it. What cannot be read at this moment (an error of the disk) is not damaged.
//!
//! The private index names objects without looking for them. `index-packs` lists the packs it rests on: as long as all of them
//! are there, its objects are. A list that does not fit costs a slower snapshot, never a wrong one.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};

use ah_plugin_api::{Context, Result};

use super::pack::{Bad, Pack};
use super::{Packs, Store, WriteGuard, files, lock};

/// What the names of both files end in once a pack is set aside.
pub(super) const ENDING: &str = ".damaged";
const LIST: &str = "index-packs";
/// More than the names of so many packs as merging ever leaves.
const LIST_LIMIT: u64 = 1 << 20;

/// What is known of packs in which something could not be read.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Numbers of those that were looked at.
    looked_at: HashSet<u32>,
    /// Names of those that are damaged.
    damaged: HashSet<String>,
}

/// Looks at packs in which something was found that is not what was written, and sets aside those that are damaged: at once where
/// nobody is writing, else when the lock is taken next. Until then this process does not count on them.
pub(super) fn suspect(store: &Store, faults: &[(Arc<Pack>, Bad)]) {
    let mut found = false;
    for (pack, why) in faults {
        // Nothing is said of a pack where what was read could not be handed on.
        let says_nothing = why.errno.is_some() || why.to_string().is_empty() || pack.name.ends_with(ENDING);
        if says_nothing || !suspects(store, |all| all.looked_at.insert(pack.number)) {
            continue;
        }
        if matches!(pack.is_sound(&Context::quiet()), Ok(false)) {
            note(store, &pack.name);
            found = true;
        }
    }
    if found
        && store.refresh().is_ok()
        && let Ok(Some(guard)) = lock::take_if_free(&store.folders.store)
    {
        // Where it cannot be done now, in a store that is only to be read for one, nothing is lost.
        let _ = set_aside(store, &guard);
    }
}

/// Notes that a pack is damaged.
pub(super) fn note(store: &Store, name: &str) {
    suspects(store, |all| all.damaged.insert(name.to_owned()));
}

/// Whether it was noted.
pub(super) fn is_noted(store: &Store, name: &str) -> bool {
    suspects(store, |all| all.damaged.contains(name))
}

fn suspects<T>(store: &Store, work: impl FnOnce(&mut Suspects) -> T) -> T {
    work(&mut store.suspects.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sets aside what was noted.
pub(super) fn set_aside(store: &Store, _guard: &WriteGuard) -> Result<()> {
    let names: Vec<String> = suspects(store, |all| all.damaged.iter().cloned().collect());
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
            // One that cannot even be opened is of no use.
            None => Pack::open_as(store.folders.packs.as_fd(), stem, ENDING, store.number()).ok().map(Arc::new),
        }
    };
    stems.filter_map(open).collect()
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
    store.refresh().is_ok() && listed(store).is_none_or(|list| is_covered(store, &list))
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
    let _ = files::put(store.folders.tmp.as_fd(), store.folders.store.as_fd(), LIST, list.as_bytes(), 0o600, false);
}
