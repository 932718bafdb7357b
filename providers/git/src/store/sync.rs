//! What is not yet known to be on disk, and what to believe after a power cut.
//!
//! An `instant` snapshot is published without waiting for the disk. Before its pack and its ref appear, an empty file in
//! `unsynced/` says so: `pack-<checksum>@<boot>`, `ref-<id>@<boot>`, `keep-<random>@<boot>`. [`pending`] waits for the disk and
//! removes them. A marker of another boot than this one means that the machine stopped in between: what it names is looked at
//! once, and dropped if it did not survive. A `durable` snapshot waits for everything before it, since it builds on it.

use std::os::fd::AsFd;

use ah_plugin_api::{Context, ErrorKind, LogLevel, Result, SnapshotId};

use super::files::{self, Doing};
use super::{Store, WriteGuard, damage, keep, reclaim, refs};

/// Identifies the time since the machine was started; the same for all if the system does not tell.
fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    if id.is_empty() { "0".to_owned() } else { id }
}

/// The same as a number; 0 if the system does not tell.
pub(crate) fn boot_number() -> u64 {
    u64::from_str_radix(&boot(), 16).unwrap_or_default()
}

/// Notes that `what` (`pack-…`, `ref-…`, `keep-…`) is about to appear without waiting for the disk; gives the marker's name.
pub(super) fn mark(store: &Store, what: &str) -> Result<String> {
    let name = format!("{what}@{}", boot());
    match files::create_new(&store.folders.unsynced, &name, 0o600) {
        // Left by a snapshot of the same id that was destroyed before it was synced, or by one that was killed.
        Err(error) if error.kind == ErrorKind::AlreadyExists => Ok(name),
        made => made.map(|_| name),
    }
}

/// Whether a snapshot's ref is marked, in this boot or another: after a power cut nobody has looked at it yet. If that cannot be
/// told, it is.
pub(super) fn is_marked(store: &Store, id: &SnapshotId) -> bool {
    !markers(store).is_ok_and(|all| all.iter().all(|(what, ..)| what.strip_prefix("ref-") != Some(id.as_str())))
}

/// Whether there are markers of another boot than this one.
pub(super) fn needs_recovery(store: &Store) -> Result<bool> {
    let boot = boot();
    Ok(markers(store)?.iter().any(|(_, of, _)| *of != boot))
}

fn markers(store: &Store) -> Result<Vec<(String, String, String)>> {
    let mut out = Vec::new();
    for name in files::names(&store.folders.unsynced)? {
        if let Some((what, of)) = name.split_once('@') {
            out.push((what.to_owned(), of.to_owned(), name.clone()));
        }
    }
    Ok(out)
}

/// Whether there is anything to wait for.
pub(super) fn is_due(store: &Store) -> Result<bool> {
    Ok(!markers(store)?.is_empty())
}

/// Waits until everything that is marked is on disk. The caller has the lock.
pub(super) fn pending(store: &Store) -> Result<()> {
    let markers = markers(store)?;
    if markers.is_empty() {
        return Ok(());
    }
    let folders = &store.folders;
    let named = |prefix: &'static str| markers.iter().filter_map(move |(what, ..)| what.strip_prefix(prefix));
    for pack in named("pack-") {
        for ending in ["pack", "idx"] {
            // It may have been merged into another one by now, which is on disk.
            let name = format!("pack-{pack}.{ending}");
            if let Some((file, _)) = files::open_file(&folders.packs, &name)? {
                files::sync(&file, &name)?;
            }
        }
    }
    if named("pack-").next().is_some() {
        files::sync(&folders.packs, "git/objects/pack")?;
    }
    for (_, _, name) in markers.iter().filter(|(what, ..)| what.starts_with("keep-")) {
        keep::sync(store, name)?;
    }
    if named("ref-").next().is_some() {
        refs::sync(folders, named("ref-"))?;
    }
    for (_, _, name) in &markers {
        files::remove(&folders.unsynced, name)?;
    }
    Ok(())
}

/// After a power cut: drops what did not survive. The caller has the lock.
///
/// # Errors
/// Where something cannot be read at this moment. Then nothing of it is dropped, and the markers stay.
pub(super) fn recover(store: &Store, guard: &WriteGuard, cx: &Context<'_>) -> Result<()> {
    let boot = boot();
    let markers: Vec<_> = markers(store)?.into_iter().filter(|(_, of, _)| *of != boot).collect();
    if markers.is_empty() {
        return Ok(());
    }
    store.refresh()?;
    let folders = &store.folders;
    for (what, ..) in &markers {
        while what.starts_with("pack-") && !survived(store, what, cx)? {
            files::remove(&folders.packs, &format!("{what}.idx"))?;
            files::remove(&folders.packs, &format!("{what}.pack"))?;
            // Who met it before this could be done has set it aside, for one bad read perhaps.
            if !damage::take_back(store, what)? {
                break;
            }
        }
    }
    store.refresh()?;
    // No snapshot goes because an index does not find what it needs.
    damage::mend_all(store, cx)?;
    damage::put_indexes(store, guard)?;
    for (what, ..) in &markers {
        let Some(id) = what.strip_prefix("ref-").and_then(|id| SnapshotId::new(id).ok()) else { continue };
        let whole = match refs::one(folders, &id) {
            Ok(None) => continue,
            Ok(Some(commit)) => reclaim::is_whole(store, commit, cx)?,
            Err(error) if error.kind == ErrorKind::DataLoss => false,
            Err(error) => return Err(error),
        };
        if !whole {
            cx.log(LogLevel::Warn, &format!("snapshot {id} was not yet on disk when the machine stopped; it is gone"));
            refs::remove(folders, &id)?;
            reclaim::note_garbage(store)?;
        }
    }
    if markers.iter().any(|(what, ..)| what.starts_with("keep-")) {
        keep::recover(store)?;
    }
    files::sync(&folders.packs, "git/objects/pack")?;
    for (_, _, name) in &markers {
        files::remove(&folders.unsynced, name)?;
    }
    Ok(())
}

/// Whether a pack is, to the last bit, what was written. Its index has no say in that: of a pack that came to the disk, and whose index did
/// not, nothing is lost.
fn survived(store: &Store, name: &str, cx: &Context<'_>) -> Result<bool> {
    let packs = store.packs();
    if let Some(pack) = packs.packs.iter().chain(&packs.aside).find(|pack| pack.name == name)
        && pack.is_sound(cx)?
    {
        return Ok(true);
    }
    match packs.bad.iter().find(|(bad, _)| bad == name).and_then(|(_, why)| why.errno) {
        Some(errno) => Err(errno).doing(|| format!("read {name}.pack of the store")),
        None => damage::is_mended(store, name, cx),
    }
}

/// Removes what a killed writer left in `tmp`, and the half of a pack that it had put in place. The caller has the lock, so
/// nobody else is writing there.
pub(super) fn tidy(store: &Store) -> Result<()> {
    let folders = &store.folders;
    for name in files::names(&folders.tmp)? {
        if let Some(pack) = name.strip_suffix(".idx").filter(|name| name.starts_with("pack-")) {
            let index = rustix::fs::accessat(
                folders.packs.as_fd(),
                format!("{pack}.idx"),
                rustix::fs::Access::EXISTS,
                rustix::fs::AtFlags::empty(),
            );
            match index {
                Ok(()) => {}
                Err(rustix::io::Errno::NOENT) => {
                    files::remove(&folders.packs, &format!("{pack}.pack"))?;
                }
                Err(errno) => return Err(errno).doing(|| "look for an index of the store".to_owned()),
            }
        }
        files::remove(&folders.tmp, &name)?;
    }
    Ok(())
}
