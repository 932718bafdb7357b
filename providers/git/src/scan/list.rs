//! Listing one directory and deciding on each of its entries.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ah_plugin_api::{EntryKind, OmitReason, Result};
use ah_rules::{Class, DirRules, Present};
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::stat::{Seen, Stat, stat_at};
use super::{Env, Item};
use crate::index::{ITEM_DIR, ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, Index, ItemRecord, What};

/// Directories of a longer path, in bytes, are left out: twice what the system takes at once. Each is opened by its path, and the index has the
/// whole of it, so that the cost of a chain of directories without end would be the square of its length, and more.
const LONGEST: usize = 8192;

/// The names in a directory, ordered, with what `getdents` says of their types.
pub(super) type Names = Vec<(Box<[u8]>, FileType)>;

/// Reads the names of an open directory.
pub(super) fn names(dir: BorrowedFd<'_>) -> Result<Names, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut out = Names::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            out.push((name.into(), entry.file_type()));
        }
    }
    out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    // Some filesystems repeat a name while a directory changes.
    out.dedup_by(|a, b| a.0 == b.0);
    Ok(out)
}

/// What the rules may want to read in a directory of these names.
pub(super) fn present(names: &Names) -> Present {
    let has = |name: &[u8]| names.binary_search_by(|(other, _)| (**other).cmp(name)).is_ok();
    Present { git: has(b".git"), gitignore: has(b".gitignore") }
}

/// A subdirectory that is to be looked into.
#[derive(Debug)]
pub(super) struct FoundDir {
    pub(super) name: Box<[u8]>,
    pub(super) class: Class,
    /// Its number in the index.
    pub(super) old: Option<usize>,
}

/// Decides on every entry of an open directory. `old` is its number in the index.
pub(super) fn decide(
    env: &Env<'_>,
    dir: BorrowedFd<'_>,
    names: Names,
    rules: &DirRules,
    old: Option<usize>,
) -> (Vec<Item>, Vec<FoundDir>) {
    let mut items = Vec::with_capacity(names.len());
    let mut dirs = Vec::new();
    let known = env.index.zip(old);
    let mut old_items = known.map(|(index, at)| index.items(at).peekable());
    let mut old_dirs =
        known.map(|(index, at)| index.children(at).map(move |child| (index.name(child), child)).peekable());
    for (name, file_type) in names {
        let old_item = old_items.as_mut().and_then(|items| advance(items, &name, |item: &ItemRecord<'_>| item.name));
        let old_dir = old_dirs.as_mut().and_then(|dirs| advance(dirs, &name, |dir: &(&[u8], usize)| dir.0));
        let seen = match file_type {
            FileType::Directory => None,
            _ => match stat_at(dir, &*name) {
                Ok(seen) => Some(seen),
                // What is gone again was never there.
                Err(Errno::NOENT) => continue,
                // It is there: a directory that may be listed and not entered, say.
                Err(error) => {
                    items.push(unseen(rules, name, file_type, error));
                    continue;
                }
            },
        };
        match decide_one(env, rules, name, seen.as_ref(), old_item.as_ref()) {
            Decision::Item(item) => items.push(item),
            Decision::Dir(name, class) => dirs.push(FoundDir { name, class, old: old_dir.map(|(_, at)| at) }),
        }
    }
    (items, dirs)
}

/// An entry that is no directory, as far as is known, and cannot be looked at.
fn unseen(rules: &DirRules, name: Box<[u8]>, file_type: FileType, error: Errno) -> Item {
    let kind = match file_type {
        FileType::Symlink => EntryKind::Symlink,
        FileType::RegularFile | FileType::Unknown => EntryKind::File,
        _ => EntryKind::Special,
    };
    let mut item = Item::nothing(name, Stat::default());
    match rules.classify(&item.name, kind, 0) {
        Class::Omitted { reason, detail, .. } => item.omit(reason, detail.unwrap_or_default(), ITEM_RECHECK),
        _ => item.omit(OmitReason::Unreadable, std::io::Error::from(error).to_string(), ITEM_RECHECK),
    }
    item
}

/// Skips what comes before `name` in an ordered sequence, and takes what bears it.
fn advance<T, I: Iterator<Item = T>>(
    from: &mut std::iter::Peekable<I>,
    name: &[u8],
    name_of: impl Fn(&T) -> &[u8],
) -> Option<T> {
    while from.next_if(|next| name_of(next) < name).is_some() {}
    from.next_if(|next| name_of(next) == name)
}

/// What becomes of an entry.
pub(super) enum Decision {
    Item(Item),
    Dir(Box<[u8]>, Class),
}

/// Decides on one entry. `seen` is none for a directory that was not looked at.
pub(super) fn decide_one(
    env: &Env<'_>,
    rules: &DirRules,
    name: Box<[u8]>,
    seen: Option<&Seen>,
    old: Option<&ItemRecord<'_>>,
) -> Decision {
    let stat = seen.map(|seen| seen.stat).unwrap_or_default();
    let kind = match seen.map_or(FileType::Directory, |seen| seen.stat.file_type()) {
        FileType::Directory => EntryKind::Dir,
        FileType::RegularFile => EntryKind::File,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Special,
    };
    let mut item = Item::nothing(name, stat);
    item.former = old.filter(|old| matches!(old.what, What::File | What::Symlink)).map(|old| old.id);
    let dir_flag = if kind == EntryKind::Dir { ITEM_DIR } else { 0 };
    let class = rules.classify(&item.name, kind, stat.size);
    let flags = match class {
        Class::Omitted { reason, detail, by_size } => {
            // A rule file that is left out still rules: its changes must be seen.
            let watch = by_size || *item.name == *b".gitignore";
            item.omit(reason, detail.unwrap_or_default(), dir_flag | if watch { ITEM_RECHECK } else { 0 });
            return Decision::Item(item);
        }
        class if kind == EntryKind::Dir => match seen.filter(|seen| seen.mount || seen.device != env.device) {
            Some(_) => {
                item.omit(OmitReason::OtherFilesystem, "", ITEM_DIR | ITEM_RECHECK);
                return Decision::Item(item);
            }
            None if rules.path().len() + item.name.len() > LONGEST => {
                // Whatever its attributes are: so it is asked again only if its parent is.
                item.omit(OmitReason::TooDeep, format!("its path has more than {LONGEST} bytes"), ITEM_DIR);
                return Decision::Item(item);
            }
            None => return Decision::Dir(item.name, class),
        },
        Class::Kept => ITEM_IGNORED,
        Class::Tracked => ITEM_TRACKED,
        Class::Captured | Class::Through { .. } => 0,
    };
    if seen.is_some_and(|seen| seen.mount) {
        item.omit(OmitReason::OtherFilesystem, "", ITEM_RECHECK);
        return Decision::Item(item);
    }
    item.flags = flags;
    item.what = if kind == EntryKind::Symlink { What::Symlink } else { What::File };
    item.pending = true;
    if let Some(old) = old
        && old.what == item.what
        && env.settled(old, &stat)
        && env.doubted.is_none_or(|store| store.contains(&old.id))
    {
        item.id = old.id;
        item.pending = false;
    }
    Decision::Item(item)
}

/// Whether what rules over a directory's subtree differs between the index and now: its `.gitignore`, its `.git`.
pub(super) fn rules_changed(env: &Env<'_>, index: &Index, at: usize, items: &[Item]) -> bool {
    let find = |name: &[u8]| items.iter().find(|item| *item.name == *name);
    let (mut had_ignore, mut had_git) = (None, false);
    for item in index.items(at) {
        match item.name {
            b".gitignore" => had_ignore = Some(item),
            b".git" => had_git = true,
            _ => {}
        }
    }
    let ignore_differs = match (had_ignore, find(b".gitignore")) {
        (None, None) => false,
        (Some(before), Some(now)) => !env.same_rules(&before, &now.stat),
        (Some(_), None) | (None, Some(_)) => true,
    };
    // The root's own `.git` is part of the rules' fingerprint.
    ignore_differs || (at != 0 && had_git != find(b".git").is_some())
}

/// The rules, if something of the directory is still to be read.
pub(super) fn rules_if_pending(items: &[Item], rules: &Arc<DirRules>) -> Option<Arc<DirRules>> {
    items.iter().any(|item| item.pending).then(|| Arc::clone(rules))
}
