//! How much space is in use.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Context, Result, SnapshotId};
use gix::ObjectId;
use gix::hashtable::HashSet;
use rustix::fs::{AtFlags, FileType};

use super::files::{self, Doing};
use super::{Store, reclaim, refs};

/// Folders of the store are not deeper than this.
const DEEPEST: usize = 8;

/// What an object takes in the index of its pack.
const INDEXED: u64 = 28;

/// What a ref takes: a block of the disk, as most have them.
const REF: u64 = 4096;

/// Bytes that the store occupies on disk. Files that someone else holds too (links to the user's objects) cost nothing.
pub(super) fn disk(store: &Store) -> Result<u64> {
    let mut total = 0;
    let mut todo: Vec<(OwnedFd, usize)> = vec![(files::open_dir(&store.folders.store, ".")?, 0)];
    while let Some((dir, depth)) = todo.pop() {
        let mut below = Vec::new();
        files::each_name(&dir, |name, _| below.push(name.to_owned()))
            .doing(|| "list a directory of the store".to_owned())?;
        for name in below {
            // What vanishes meanwhile takes no space.
            let Ok(stat) = rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_dir || stat.st_nlink == 1 {
                total += stat.st_blocks.cast_unsigned() * 512;
            }
            if is_dir
                && depth < DEEPEST
                && let Some(sub) = name.to_str().ok().and_then(|name| files::open_dir(dir.as_fd(), name).ok())
            {
                todo.push((sub, depth + 1));
            }
        }
    }
    Ok(total)
}

/// Compressed bytes of what nothing but some snapshots refers to: what would come back if they were removed. Objects that are stored as a
/// difference count as much as that difference. Those that are not there refer to nothing.
///
/// Nothing would come back as long as any snapshot cannot be read (see [`reclaim`]): then nobody knows.
pub(super) fn snapshots(store: &Store, ids: &BTreeSet<SnapshotId>, cx: &Context<'_>) -> Result<Option<u64>> {
    let none = HashSet::default();
    let (mut own, mut others) = (HashSet::default(), HashSet::default());
    let all = refs::all(&store.folders, cx)?;
    if all.unreadable.is_some() {
        return Ok(None);
    }
    let mut refs = 0;
    for (id, commit) in all.snapshots {
        let asked = ids.contains(&id);
        refs += u64::from(asked);
        let marked = reclaim::mark(store, commit, &none, if asked { &mut own } else { &mut others }, cx);
        if marked.is_err() {
            cx.check_cancelled()?;
            return Ok(None);
        }
    }
    own.retain(|id| !others.contains(id));
    Ok(sizes(store, &own).map(|sizes| refs * REF + sizes.values().map(|size| size + INDEXED).sum::<u64>()))
}

/// None if an index cannot be relied on.
fn sizes(store: &Store, wanted: &HashSet<ObjectId>) -> Option<HashMap<ObjectId, u64>> {
    let mut out = HashMap::with_capacity(wanted.len());
    for pack in &store.packs().packs {
        let mut entries = pack.index.entries().ok()?;
        entries.sort_unstable_by_key(|entry| entry.offset);
        let ends = entries.iter().skip(1).map(|entry| entry.offset).chain([pack.end()]);
        for (entry, end) in entries.iter().zip(ends).filter(|(entry, _)| wanted.contains(&entry.id)) {
            out.entry(entry.id).or_insert(end.saturating_sub(entry.offset));
        }
    }
    Some(out)
}
