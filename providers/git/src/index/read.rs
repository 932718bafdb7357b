//! Loading the index, and looking things up in it.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use super::record::{DIR, DirRecord, HEADER, Header, ITEM, ItemRecord, NESTED, Take, What};
use crate::scan::open_file;

/// A loaded index, all of whose references are known to be good.
#[derive(Debug)]
pub(crate) struct Index {
    header: Header,
    /// CRC-32 of the body, and the counts, as in the header.
    seal: (u32, [u32; 4]),
    bytes: Vec<u8>,
    dirs: usize,
    items: usize,
    nested: usize,
}

/// Larger files are no index of ours: some fifty million entries.
const LARGEST: u64 = 4 << 30;

impl Index {
    /// Loads the index of a store; none if there is none, or none that can be relied on.
    pub(crate) fn load(store: BorrowedFd<'_>) -> Option<Self> {
        let (fd, seen) = open_file(store, super::FILE).ok()?;
        if seen.stat.size > LARGEST {
            return None;
        }
        // Against seeing half of a patch; whoever patches does not wait for us, so it is never long. Where there are no
        // locks, nobody patches.
        let _ = rustix::fs::flock(&fd, rustix::fs::FlockOperation::LockShared);
        let mut bytes = Vec::with_capacity(usize::try_from(seen.stat.size).ok()? + 1);
        File::from(fd).take(LARGEST).read_to_end(&mut bytes).ok()?;
        Self::parse(bytes)
    }

    /// Checks everything that reading relies on.
    pub(crate) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let (header, body, counts) = Header::decode(&bytes)?;
        let [dirs, items, nested, names] = counts.map(|count| count as usize);
        let length = HEADER + dirs * DIR + items * ITEM + nested * NESTED + names;
        if bytes.len() != length || dirs == 0 || crc32fast::hash(&bytes[HEADER..]) != body {
            return None;
        }
        let this = Self { header, seal: (body, counts), bytes, dirs, items, nested };
        this.is_sound().then_some(this)
    }

    fn is_sound(&self) -> bool {
        let names = self.names().len();
        let mut items = 0;
        // The directories that the present one is in, each with its end.
        let mut above: Vec<(usize, usize)> = Vec::new();
        for at in 0..self.dirs {
            let dir = self.dir(at);
            let path_end = dir.path_at as usize + dir.path_len as usize + dir.rule_len as usize;
            let (parent, end) = (dir.parent as usize, dir.end as usize);
            while above.last().is_some_and(|&(_, end)| end <= at) {
                above.pop();
            }
            let nested = match above.last() {
                None => at == 0 && end == self.dirs,
                Some(&(innermost, outer_end)) => parent == innermost && end <= outer_end,
            };
            above.push((at, end));
            let in_turn = dir.items_at as usize == items;
            if path_end > names || dir.names_at as usize > names || end <= at || !nested || !in_turn {
                return false;
            }
            // A child's path is its parent's and one name; so a path never leaves the workspace.
            if at > 0 && !is_child(self.path(at), self.path(parent)) || at == 0 && dir.path_len != 0 {
                return false;
            }
            items += dir.items_len as usize;
            if items > self.items {
                return false;
            }
            let room = names - dir.names_at as usize;
            for raw in self.raw_items(at).chunks_exact(ITEM) {
                let mut take = Take(raw);
                let (name_at, name_len, detail_len) = (take.u32(), take.u32(), take.u32());
                let end = u64::from(name_at) + u64::from(name_len) + u64::from(detail_len);
                if end > room as u64 || name_len == 0 || What::of_number(take.bytes(1)[0]).is_none() {
                    return false;
                }
            }
        }
        let nested: Vec<usize> = self.nested().map(|(at, _)| at).collect();
        items == self.items && nested.is_sorted() && nested.last().is_none_or(|&last| last < self.dirs)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn seal(&self) -> (u32, [u32; 4]) {
        self.seal
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whoever changes anything may not touch what [`Index::parse`] checked.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The seal that the body should have.
    pub(super) fn body_seal(&self) -> u32 {
        crc32fast::hash(&self.bytes[HEADER..])
    }

    /// Number of directories. Number 0 is the root.
    pub(crate) fn len(&self) -> usize {
        self.dirs
    }

    /// Number of items in all directories.
    pub(crate) fn items_len(&self) -> usize {
        self.items
    }

    /// Directory number `at`.
    pub(crate) fn dir(&self, at: usize) -> DirRecord {
        let start = HEADER + at * DIR;
        let mut take = Take(&self.bytes[start..start + DIR]);
        let mut next = || take.u32();
        let (path_at, path_len, rule_len, end, parent) = (next(), next(), next(), next(), next());
        let (items_at, items_len, names_at, flags, entries) = (next(), next(), next(), next(), next());
        let (stat, tree, meta) = (take.stat(), take.id(), take.id());
        DirRecord {
            path_at,
            path_len,
            rule_len,
            end,
            parent,
            items_at,
            items_len,
            names_at,
            flags,
            entries,
            stat,
            tree,
            meta,
        }
    }

    /// Path of a directory below the root.
    pub(crate) fn path(&self, at: usize) -> &[u8] {
        let dir = self.dir(at);
        &self.names()[dir.path_at as usize..][..dir.path_len as usize]
    }

    /// Name of a directory in its parent; empty for the root.
    pub(crate) fn name(&self, at: usize) -> &[u8] {
        let path = self.path(at);
        path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
    }

    /// The rule that ignores a directory.
    pub(crate) fn rule(&self, at: usize) -> &[u8] {
        let dir = self.dir(at);
        &self.names()[dir.path_at as usize + dir.path_len as usize..][..dir.rule_len as usize]
    }

    /// Numbers of a directory's subdirectories, by name.
    pub(crate) fn children(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let end = self.dir(at).end as usize;
        let mut next = at + 1;
        std::iter::from_fn(move || {
            let child = (next < end).then_some(next)?;
            next = self.dir(child).end as usize;
            Some(child)
        })
    }

    /// The items of a directory, by name.
    pub(crate) fn items(&self, at: usize) -> impl ExactSizeIterator<Item = ItemRecord<'_>> + '_ {
        self.some_items(at, 0..usize::MAX)
    }

    /// Those items of a directory whose numbers are in `range`.
    pub(crate) fn some_items(
        &self,
        at: usize,
        range: std::ops::Range<usize>,
    ) -> impl ExactSizeIterator<Item = ItemRecord<'_>> + '_ {
        let names = &self.names()[self.dir(at).names_at as usize..];
        let raw = self.raw_items(at);
        let count = raw.len() / ITEM;
        let (start, end) = (range.start.min(count), range.end.min(count));
        raw[start * ITEM..end.max(start) * ITEM].chunks_exact(ITEM).map(move |raw| {
            let mut take = Take(raw);
            let (name_at, name_len, detail_len) = (take.u32() as usize, take.u32() as usize, take.u32() as usize);
            let (what, flags) = (take.bytes(1)[0], take.bytes(1)[0]);
            take.bytes(2);
            ItemRecord {
                name: &names[name_at..name_at + name_len],
                detail: &names[name_at + name_len..][..detail_len],
                what: What::of_number(what).unwrap_or(What::File),
                flags,
                stat: take.stat(),
                id: take.id(),
            }
        })
    }

    /// Item number `item` of a directory.
    pub(crate) fn item(&self, at: usize, item: usize) -> Option<ItemRecord<'_>> {
        self.some_items(at, item..item.saturating_add(1)).next()
    }

    /// Directories that have a `.git`, with the stamp of its say.
    pub(crate) fn nested(&self) -> impl Iterator<Item = (usize, [u8; 20])> + '_ {
        (0..self.nested).map(|at| self.raw_nested(at))
    }

    /// The stamp of a directory's `.git`; none if it has none.
    pub(crate) fn nested_of(&self, at: usize) -> Option<[u8; 20]> {
        let (mut low, mut high) = (0, self.nested);
        while low < high {
            let middle = low.midpoint(high);
            let (found, stamp) = self.raw_nested(middle);
            match found.cmp(&at) {
                std::cmp::Ordering::Equal => return Some(stamp),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The records of a directory's items, as they are in the file.
    pub(super) fn raw_items(&self, at: usize) -> &[u8] {
        let dir = self.dir(at);
        &self.bytes[HEADER + self.dirs * DIR + dir.items_at as usize * ITEM..][..dir.items_len as usize * ITEM]
    }

    /// The names of a directory's items, as they are in the file: up to where the next directory's begin.
    pub(super) fn raw_names(&self, at: usize) -> &[u8] {
        let start = self.dir(at).names_at as usize;
        let end = self
            .raw_items(at)
            .chunks_exact(ITEM)
            .map(|raw| {
                let mut take = Take(raw);
                take.u32() as usize + take.u32() as usize + take.u32() as usize
            })
            .max()
            .unwrap_or(0);
        &self.names()[start..start + end]
    }

    fn raw_nested(&self, at: usize) -> (usize, [u8; 20]) {
        let start = HEADER + self.dirs * DIR + self.items * ITEM + at * NESTED;
        let mut take = Take(&self.bytes[start..start + NESTED]);
        (take.u32() as usize, take.array())
    }

    fn names(&self) -> &[u8] {
        &self.bytes[HEADER + self.dirs * DIR + self.items * ITEM + self.nested * NESTED..]
    }
}

fn is_child(path: &[u8], parent: &[u8]) -> bool {
    let name = if parent.is_empty() {
        path
    } else {
        match path.strip_prefix(parent).and_then(|rest| rest.strip_prefix(b"/")) {
            Some(name) => name,
            None => return false,
        }
    };
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}
