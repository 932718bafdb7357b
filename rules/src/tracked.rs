//! The paths that the user's index has.
//!
//! An own reader, because only the paths are wanted: it skips everything else, takes SHA-1 and SHA-256 indexes alike and
//! allocates no more than the file is large. Format: `Documentation/gitformat-index.txt` of Git, versions 2 to 4.

use std::os::fd::BorrowedFd;

use bstr::ByteSlice;
use rustix::fs::Stat;

use crate::open::{self, Links};

/// What tells one state of an index file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexStamp {
    /// Inode, size, mtime and ctime; all zero if there is no index.
    pub fields: [i64; 6],
}

impl IndexStamp {
    fn of(stat: &Stat) -> Self {
        let (mtime, ctime) = (stat.st_mtime_nsec as i64, stat.st_ctime_nsec as i64);
        Self { fields: [stat.st_ino.cast_signed(), stat.st_size, stat.st_mtime, mtime, stat.st_ctime, ctime] }
    }

    /// The stamp of the index in a git directory.
    pub(crate) fn read(git_dir: BorrowedFd<'_>) -> Self {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(git_dir, c"index", flags).map(|stat| Self::of(&stat)).unwrap_or_default()
    }
}

/// The paths of an index, sorted.
#[derive(Debug, Default)]
pub struct Tracked {
    bytes: Vec<u8>,
    /// End of each path in `bytes`.
    ends: Vec<usize>,
}

/// Larger index files are not read: some five million entries.
pub const LARGEST_INDEX: u64 = 512 << 20;

impl Tracked {
    /// Reads the index of a git directory. One that is missing or damaged has no paths.
    pub(crate) fn read(git_dir: BorrowedFd<'_>) -> Self {
        let Some(main) = open::read(git_dir, c"index", Links::Refuse, LARGEST_INDEX) else {
            return Self::default();
        };
        let Some((mut paths, shared)) = parse(&main) else {
            return Self::default();
        };
        // A split index: most entries are in a second file. Those that the first deletes still count here, which
        // at worst captures a file that is ignored.
        if let Some(name) = shared
            && let Some(base) = open::read(git_dir, format!("sharedindex.{name}"), Links::Refuse, LARGEST_INDEX)
            && let Some((more, _)) = parse(&base)
        {
            paths.extend(more);
        }
        Self::of_paths(paths)
    }

    fn of_paths(mut paths: Vec<Vec<u8>>) -> Self {
        if !paths.is_sorted() {
            paths.sort();
        }
        paths.dedup();
        let mut this = Self { bytes: Vec::new(), ends: Vec::with_capacity(paths.len()) };
        for path in paths.iter().filter(|path| !path.is_empty()) {
            this.bytes.extend_from_slice(path);
            this.ends.push(this.bytes.len());
        }
        this
    }

    fn path(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    /// Position of the first path that is not below `wanted` in order.
    fn lower_bound(&self, wanted: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.path(middle) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether the index has this path itself (a file, or a submodule).
    #[must_use]
    pub fn contains(&self, path: &[u8]) -> bool {
        let at = self.lower_bound(path);
        at < self.ends.len() && self.path(at) == path
    }

    /// Whether the index has anything below this directory. `dir` ends with a slash, or is empty.
    #[must_use]
    pub fn has_below(&self, dir: &[u8]) -> bool {
        let at = self.lower_bound(dir);
        at < self.ends.len() && self.path(at).starts_with(dir)
    }

    /// How many paths there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The paths of an index file, and the hex name of the shared index it rests on.
type Parsed = (Vec<Vec<u8>>, Option<String>);

/// Where in an index of SHA-1 the entries end and the extensions begin. None if these bytes are no index with paths that can be; what
/// others make of one that is not may take all memory there is.
#[must_use]
pub fn end_of_entries(bytes: &[u8]) -> Option<usize> {
    parse_entries(bytes, 20).map(|(_, end)| end)
}

/// Tries both hash lengths: nothing in the file says which it is, but a wrong one runs into nonsense at once.
fn parse(bytes: &[u8]) -> Option<Parsed> {
    parse_with(bytes, 20).or_else(|| parse_with(bytes, 32))
}

fn parse_with(bytes: &[u8], hash: usize) -> Option<Parsed> {
    let (paths, end) = parse_entries(bytes, hash)?;
    Some((paths, shared_index(&bytes[end..bytes.len() - hash], hash)))
}

/// The paths, and where the entries end.
fn parse_entries(bytes: &[u8], hash: usize) -> Option<(Vec<Vec<u8>>, usize)> {
    let body = bytes.get(..bytes.len().checked_sub(hash)?)?;
    let header = body.get(..12)?;
    let version = be32(&header[4..8]);
    if &header[..4] != b"DIRC" || !(2..=4).contains(&version) {
        return None;
    }
    let count = be32(&header[8..12]) as usize;
    let least = 40 + hash + 2;
    let mut paths: Vec<Vec<u8>> = Vec::with_capacity(count.min(body.len() / least));
    let mut room = body.len().saturating_mul(8).saturating_add(1 << 16);
    let mut at = 12;
    for _ in 0..count {
        let flags = be16(body.get(at + 40 + hash..at + least)?);
        let extended = version >= 3 && flags & 0x4000 != 0;
        let start = at + least + if extended { 2 } else { 0 };
        if version == 4 {
            let (strip, used) = offset_varint(body.get(start..)?)?;
            let rest = body.get(start + used..)?;
            let length = rest.find_byte(0)?;
            let before = paths.last().map_or(&[][..], Vec::as_slice);
            let mut path = before.get(..before.len().checked_sub(strip)?)?.to_vec();
            path.extend_from_slice(&rest[..length]);
            // Prefixes may make the whole quadratic in the file's size; real paths are not, each of which has 62 bytes beside it.
            room = room.checked_sub(path.len())?;
            paths.push(path);
            at = start + used + length + 1;
        } else {
            let rest = body.get(start..)?;
            let length = rest.find_byte(0)?;
            if flags & 0xfff < 0xfff && usize::from(flags & 0xfff) != length {
                return None;
            }
            paths.push(rest[..length].to_vec());
            // Padded with 1 to 8 NULs to a multiple of eight.
            at += (start - at + length + 8) & !7;
        }
        if at > body.len() {
            return None;
        }
    }
    Some((paths, at))
}

/// Looks for the `link` extension among the extensions.
fn shared_index(mut extensions: &[u8], hash: usize) -> Option<String> {
    while let Some((head, rest)) = extensions.split_at_checked(8) {
        let (data, after) = rest.split_at_checked(be32(&head[4..8]) as usize)?;
        if &head[..4] == b"link" {
            let id = data.get(..hash)?;
            return id.iter().any(|&byte| byte != 0).then(|| id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        extensions = after;
    }
    None
}

/// Git's offset encoding: each continuation adds one.
fn offset_varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (at, &byte) in bytes.iter().enumerate().take(5) {
        value = (value << 7) | usize::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
        value += 1;
    }
    None
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn be16(bytes: &[u8]) -> u16 {
    bytes.iter().take(2).fold(0, |value, &byte| value << 8 | u16::from(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{Tracked, parse};

    #[test]
    fn looks_up_files_and_directories() {
        let paths = ["a", "b-c/x", "b/c", "b/d/e"].map(|path| path.as_bytes().to_vec());
        let tracked = Tracked::of_paths(paths.to_vec());
        assert!(tracked.contains(b"a") && tracked.contains(b"b/d/e") && !tracked.contains(b"b"));
        assert!(tracked.has_below(b"b/") && tracked.has_below(b"b/d/") && !tracked.has_below(b"a/"));
        assert!(tracked.has_below(b"") && !Tracked::default().has_below(b""));
    }

    #[test]
    fn prefixes_make_no_more_of_a_file_than_paths_are() {
        // Of version 4: the first path is all written out, each other one is that with a letter more.
        let index = |first: usize, count: u32| {
            let entry = |strip: u8, path: &str| [&[0; 62][..], &[strip], path.as_bytes(), &[0]].concat();
            let more = (1..count).map(|_| entry(0, "x"));
            let head = [b"DIRC\0\0\0\x04".as_slice(), &count.to_be_bytes(), &entry(0, &"d/".repeat(first))].concat();
            [head, more.collect::<Vec<_>>().concat(), vec![0; 20]].concat()
        };
        assert_eq!(parse(&index(100, 100)).unwrap().0.len(), 100);
        assert!(parse(&index(2_000, 1_000)).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(version in 2_u8..5, count in 0_u8..9, tail in proptest::collection::vec(any::<u8>(), 0..400)) {
            let bytes = [b"DIRC\0\0\0".as_slice(), &[version, 0, 0, 0, count], &tail].concat();
            if let Some((paths, _)) = parse(&bytes) {
                prop_assert!(paths.len() <= usize::from(count));
            }
        }
    }
}
