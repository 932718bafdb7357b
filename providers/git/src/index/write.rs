//! Writing the index: a new file in place of the old one, or only the header.

use std::os::fd::BorrowedFd;

use gix::ObjectId;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::patch::{dir_flags, item_flags, item_tail};
use super::record::{DIR_MARKED, DIR_OMITS, Header, ItemRecord, Put};
use super::{FILE, Index};
use crate::scan::Stat;
use crate::store::pwrite_all;

/// What a directory's record is made of, its items apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewDir<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) rule: &'a [u8],
    pub(crate) parent: usize,
    pub(crate) flags: u32,
    pub(crate) entries: u64,
    pub(crate) stat: Stat,
    pub(crate) tree: ObjectId,
    pub(crate) meta: ObjectId,
    pub(crate) meta_is_tree: bool,
}

/// Puts an index together, directory by directory in preorder.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    dirs: Vec<u8>,
    items: Vec<u8>,
    nested: Vec<u8>,
    names: Vec<u8>,
    counts: [usize; 3],
    /// Where the names of the directory that is being written begin.
    names_at: usize,
    /// Something outgrew the format.
    overflow: bool,
}

const ITEMS_LEN_AT: usize = 24;
const END_AT: usize = 12;
const FLAGS_AT: usize = 32;

impl Writer {
    /// Makes room for about as many records.
    pub(crate) fn with_capacity(dirs: usize, items: usize) -> Self {
        Self {
            dirs: Vec::with_capacity(dirs * super::record::DIR),
            items: Vec::with_capacity(items * super::record::ITEM),
            names: Vec::with_capacity(items * 16 + dirs * 48),
            ..Self::default()
        }
    }

    fn small(&mut self, value: usize) -> u32 {
        u32::try_from(value).unwrap_or_else(|_| {
            self.overflow = true;
            0
        })
    }

    /// Begins a directory; gives its number, which [`Writer::close`] wants back.
    pub(crate) fn open(&mut self, dir: &NewDir<'_>) -> usize {
        let at = self.counts[0];
        let (path_at, path_len, rule_len) =
            (self.small(self.names.len()), self.small(dir.path.len()), self.small(dir.rule.len()));
        self.names.extend_from_slice(dir.path);
        self.names.extend_from_slice(dir.rule);
        self.names_at = self.names.len();
        let (parent, items_at, names_at) =
            (self.small(dir.parent), self.small(self.counts[1]), self.small(self.names_at));
        let flags = dir_flags(dir);
        let entries = self.small(usize::try_from(dir.entries).unwrap_or(usize::MAX));
        let mut put = Put(&mut self.dirs);
        put.u32(path_at).u32(path_len).u32(rule_len).u32(0).u32(parent);
        put.u32(items_at).u32(0).u32(names_at).u32(flags).u32(entries);
        put.stat(&dir.stat).id(&dir.tree).id(&dir.meta);
        self.counts[0] += 1;
        at
    }

    /// Adds an item to the directory that was opened last.
    pub(crate) fn item(&mut self, item: &ItemRecord<'_>) {
        let name_at = self.small(self.names.len() - self.names_at);
        let (name_len, detail_len) = (self.small(item.name.len()), self.small(item.detail.len()));
        self.names.extend_from_slice(item.name);
        self.names.extend_from_slice(item.detail);
        Put(&mut self.items).u32(name_at).u32(name_len).u32(detail_len);
        item_tail(&mut self.items, item);
        self.counts[1] += 1;
        self.add_items(1, item_flags(item));
    }

    /// Adds all items of a directory of another index to the directory that was opened last, which has none yet.
    pub(crate) fn copy_items(&mut self, from: &Index, at: usize) {
        let raw = from.raw_items(at);
        let count = raw.len() / super::record::ITEM;
        self.items.extend_from_slice(raw);
        self.names.extend_from_slice(from.raw_names(at));
        self.counts[1] += count;
        self.add_items(count, from.dir(at).flags & (DIR_MARKED | DIR_OMITS));
    }

    fn add_items(&mut self, more: usize, flags: u32) {
        let dir = (self.counts[0] - 1) * super::record::DIR;
        let mut change = |field: usize, with: &dyn Fn(u32) -> u32| {
            let bytes = &mut self.dirs[dir + field..dir + field + 4];
            let before = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes.copy_from_slice(&with(before).to_le_bytes());
        };
        change(ITEMS_LEN_AT, &|before| before + more as u32);
        change(FLAGS_AT, &|before| before | flags);
    }

    /// Says that directory `at` has a `.git` with this say.
    pub(crate) fn nested(&mut self, at: usize, stamp: &[u8; 20]) {
        let at = self.small(at);
        Put(&mut self.nested).u32(at).bytes(stamp);
        self.counts[2] += 1;
    }

    /// Ends directory `at`, all of whose subdirectories have been written.
    pub(crate) fn close(&mut self, at: usize) {
        let end = self.small(self.counts[0]);
        let field = at * super::record::DIR + END_AT;
        self.dirs[field..field + 4].copy_from_slice(&end.to_le_bytes());
    }

    /// Puts it in place of the store's index. Not made durable: a damaged index is found out by its seals.
    ///
    /// # Errors
    /// Of the system; `OVERFLOW` if it does not fit the format (more than four billion of something).
    pub(crate) fn write(mut self, store: BorrowedFd<'_>, header: &Header) -> Result<(), Errno> {
        let [dirs, items, nested] = self.counts.map(|count| self.small(count));
        let names = self.small(self.names.len());
        if self.overflow {
            return Err(Errno::OVERFLOW);
        }
        let mut crc = crc32fast::Hasher::new();
        let parts = [&self.dirs, &self.items, &self.nested, &self.names];
        parts.iter().for_each(|part| crc.update(part));
        let header = header.encode(crc.finalize(), [dirs, items, nested, names]).ok_or(Errno::OVERFLOW)?;
        let temporary = "index.new";
        // The store's lock is held, so whatever bears the name is what a killed process left.
        let _ = rustix::fs::unlinkat(store, temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(store, temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let mut at = 0;
        let mut result = Ok(());
        for part in std::iter::once(&header).chain(parts) {
            result = result.and_then(|()| pwrite_all(&fd, part, at));
            at += part.len() as u64;
        }
        let result = result.and_then(|()| take_place(store, temporary));
        let _ = rustix::fs::unlinkat(store, temporary, AtFlags::empty());
        result
    }
}

/// Puts the new file in the old one's place. By exchange, because replacing a file makes ext4 write the new one out at once,
/// which nobody needs here; the old one, under the new one's name then, is removed by the caller.
fn take_place(store: BorrowedFd<'_>, temporary: &str) -> Result<(), Errno> {
    match rustix::fs::renameat_with(store, temporary, store, FILE, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There is no old one, or the filesystem cannot exchange.
        Err(_) => rustix::fs::renameat(store, temporary, store, FILE),
    }
}
