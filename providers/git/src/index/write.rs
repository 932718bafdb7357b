//! Writing the index: a new file in place of the old one, or only the header.

use std::os::fd::BorrowedFd;

use ah_plugin_api::OmitReason;
use gix::ObjectId;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::record::{
    DIR_MARKED, DIR_META_TREE, DIR_OMITS, Header, ITEM_IGNORED, ITEM_TRACKED, ItemRecord, Put, What,
};
use super::{FILE, Index};
use crate::scan::Stat;

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
        // What only the items can say is said by them.
        let flags = dir.flags & !(DIR_META_TREE | DIR_MARKED | DIR_OMITS);
        let flags = flags | if dir.meta_is_tree { DIR_META_TREE } else { 0 };
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
        let mut put = Put(&mut self.items);
        put.u32(name_at).u32(name_len).u32(detail_len).bytes(&[item.what.number(), item.flags, 0, 0]);
        put.stat(&item.stat).id(&item.id);
        self.counts[1] += 1;
        let marked = item.flags & (ITEM_IGNORED | ITEM_TRACKED) != 0 || item.what == What::Omitted(OmitReason::Ignored);
        let omits = matches!(item.what, What::Omitted(_));
        self.add_items(1, if marked { DIR_MARKED } else { 0 } | if omits { DIR_OMITS } else { 0 });
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

    /// The whole file; none if it does not fit the format (more than four billion of something).
    pub(crate) fn finish(mut self, header: &Header) -> Option<Vec<u8>> {
        let [dirs, items, nested] = self.counts.map(|count| self.small(count));
        let names = self.small(self.names.len());
        if self.overflow {
            return None;
        }
        let mut crc = crc32fast::Hasher::new();
        let parts = [&self.dirs, &self.items, &self.nested, &self.names];
        parts.iter().for_each(|part| crc.update(part));
        let mut out = header.encode(crc.finalize(), [dirs, items, nested, names])?;
        out.reserve_exact(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        Some(out)
    }
}

/// Puts `bytes` in place of the store's index. Not made durable: a damaged index is found out by its seals.
pub(crate) fn replace(store: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let temporary = "index.new";
    // The store's lock is held, so whatever bears the name is what a killed process left.
    let _ = rustix::fs::unlinkat(store, temporary, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(store, temporary, flags, Mode::RUSR | Mode::WUSR)?;
    let result = write_all(&fd, bytes).and_then(|()| rustix::fs::renameat(store, temporary, store, FILE));
    if result.is_err() {
        let _ = rustix::fs::unlinkat(store, temporary, AtFlags::empty());
    }
    result
}

/// Writes a new header over the old one: the body stays as it is.
pub(crate) fn rewrite_header(store: BorrowedFd<'_>, index: &Index, header: &Header) -> Result<(), Errno> {
    let (body, counts) = index.seal();
    let Some(bytes) = header.encode(body, counts) else { return Ok(()) };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(store, FILE, flags, Mode::empty())?;
    rustix::io::pwrite(&fd, &bytes, 0).map(|_| ())
}

fn write_all(fd: &rustix::fd::OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
