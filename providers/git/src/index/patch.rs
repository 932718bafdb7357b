//! Changing records of the index where it stands, when names and directories are the same as before: a few pages written
//! instead of all of it.
//!
//! A reader might see half of it, so readers and patchers take turns by a lock on the file itself. A patcher that is killed
//! halfway leaves an index whose seals are broken: it counts as absent.

use std::os::fd::BorrowedFd;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::record::{
    DIR, DIR_MARKED, DIR_META_TREE, DIR_OMITS, HEADER, Header, ITEM, ITEM_IGNORED, ITEM_TRACKED, ItemRecord, Put, What,
};
use super::write::NewDir;
use super::{FILE, Index};
use crate::store::pwrite_all;

/// Changes to an index, to be written together.
#[derive(Debug, Default)]
pub(crate) struct Patch {
    /// Where in the file, and what.
    changes: Vec<(usize, Vec<u8>)>,
}

impl Patch {
    /// Changes all items of a directory to `items`, and the directory's own record to `dir`. False, with nothing to be used of the
    /// patch, if that is not possible without moving anything.
    pub(crate) fn dir<'a>(
        &mut self,
        index: &Index,
        at: usize,
        dir: &NewDir<'_>,
        items: Option<impl ExactSizeIterator<Item = ItemRecord<'a>>>,
    ) -> bool {
        let record = index.dir(at);
        let mut flags = record.flags & (DIR_MARKED | DIR_OMITS);
        if let Some(items) = items {
            if items.len() != record.items_len as usize {
                return false;
            }
            flags = 0;
            let start = HEADER + index.len() * DIR + record.items_at as usize * ITEM;
            for (number, (item, old)) in items.zip(index.items(at)).enumerate() {
                flags |= item_flags(&item);
                if item == old {
                    continue;
                }
                if item.name != old.name || item.detail != old.detail {
                    return false;
                }
                let mut bytes = Vec::with_capacity(ITEM - 12);
                item_tail(&mut bytes, &item);
                self.changes.push((start + number * ITEM + 12, bytes));
            }
        }
        if dir.rule != index.rule(at) {
            return false;
        }
        let Ok(entries) = u32::try_from(dir.entries) else { return false };
        let flags = flags | dir_flags(dir);
        let mut bytes = Vec::with_capacity(DIR - 32);
        Put(&mut bytes).u32(flags).u32(entries).stat(&dir.stat).id(&dir.tree).id(&dir.meta);
        self.changes.push((HEADER + at * DIR + 32, bytes));
        true
    }

    /// Whether writing everything anew would cost little more.
    pub(crate) fn is_large(&self, index: &Index) -> bool {
        self.changes.len() > 64 + index.items_len() / 8
    }

    /// Writes the changes and the new header.
    ///
    /// # Errors
    /// Of the system; `AGAIN` if a reader is at it. The file may be left with broken seals.
    pub(crate) fn write(mut self, store: BorrowedFd<'_>, index: &mut Index, header: &Header) -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(store, FILE, flags, Mode::empty())?;
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        // What is on disk must be what was read, or the offsets mean something else.
        let mut on_disk = [0; HEADER];
        if rustix::io::pread(&fd, &mut on_disk, 0)? != HEADER || on_disk[..] != index.bytes()[..HEADER] {
            return Err(Errno::STALE);
        }
        for (at, bytes) in &self.changes {
            index.bytes_mut()[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        let sealed = header.encode(index.body_seal(), index.seal().1).ok_or(Errno::OVERFLOW)?;
        self.changes.sort_unstable_by_key(|(at, _)| *at);
        // Near changes go together: a system call costs more than a few bytes written twice.
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for (at, bytes) in &self.changes {
            let end = at + bytes.len();
            match spans.last_mut() {
                Some(span) if *at <= span.1 + 512 => span.1 = end,
                _ => spans.push((*at, end)),
            }
        }
        for (start, end) in spans {
            pwrite_all(&fd, &index.bytes()[start..end], start as u64)?;
        }
        pwrite_all(&fd, &sealed, 0)
    }
}

/// What an item says about its directory.
pub(super) fn item_flags(item: &ItemRecord<'_>) -> u32 {
    let marked = item.flags & (ITEM_IGNORED | ITEM_TRACKED) != 0
        || item.what == What::Omitted(ah_plugin_api::OmitReason::Ignored);
    let omits = matches!(item.what, What::Omitted(_));
    (u32::from(marked) * DIR_MARKED) | (u32::from(omits) * DIR_OMITS)
}

/// A directory's flags, those apart that only its items can say.
pub(super) fn dir_flags(dir: &NewDir<'_>) -> u32 {
    let flags = dir.flags & !(DIR_META_TREE | DIR_MARKED | DIR_OMITS);
    flags | (u32::from(dir.meta_is_tree) * DIR_META_TREE)
}

/// An item's record after the place of its name.
pub(super) fn item_tail(out: &mut Vec<u8>, item: &ItemRecord<'_>) {
    Put(out).bytes(&[item.what.number(), item.flags, 0, 0]).stat(&item.stat).id(&item.id);
}
