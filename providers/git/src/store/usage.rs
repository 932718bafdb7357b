//! How much space is in use.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{Context, Error, ErrorKind, Result, SnapshotId};
use gix::ObjectId;
use gix::hashtable::HashSet;
use rustix::fs::{AtFlags, FileType};

use super::files::{self, Doing};
use super::{Store, reclaim, refs};

/// Folders of the store are not deeper than this.
const DEEPEST: usize = 8;

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

/// Compressed bytes of all that a snapshot refers to, and of what no other snapshot refers to. Objects that are stored as a
/// difference count as much as that difference.
pub(super) fn snapshot(store: &Store, id: &SnapshotId, cx: &Context<'_>) -> Result<(u64, u64)> {
    let not_found = || Error::new(ErrorKind::NotFound, format!("there is no snapshot {id}"));
    let commit = refs::one(&store.folders, id)?.ok_or_else(not_found)?;
    let none = HashSet::default();
    let mut own = HashSet::default();
    reclaim::mark(store, commit, &none, &mut own, cx)?;
    let mut others = HashSet::default();
    for (other, commit) in refs::all(&store.folders, cx)?.snapshots {
        // A damaged one has no claim that could be told.
        if other != *id && reclaim::mark(store, commit, &none, &mut others, cx).is_err() {
            cx.check_cancelled()?;
        }
    }
    let sizes = sizes(store, &own);
    let size = |id: &ObjectId| sizes.get(id).copied().unwrap_or(0);
    Ok((own.iter().map(size).sum(), own.iter().filter(|id| !others.contains(*id)).map(size).sum()))
}

fn sizes(store: &Store, wanted: &HashSet<ObjectId>) -> HashMap<ObjectId, u64> {
    let mut out = HashMap::with_capacity(wanted.len());
    for pack in &store.packs().packs {
        let mut entries = pack.index.entries().unwrap_or_default();
        entries.sort_unstable_by_key(|entry| entry.offset);
        let ends = entries.iter().skip(1).map(|entry| entry.offset).chain([pack.end()]);
        for (entry, end) in entries.iter().zip(ends).filter(|(entry, _)| wanted.contains(&entry.id)) {
            out.entry(entry.id).or_insert(end.saturating_sub(entry.offset));
        }
    }
    out
}
