//! The user's index, made to fit a clone: the same entries and flags, with the attributes of the clone's files.
//!
//! Git believes that a file is unchanged when its attributes are those in the index. In the clone inode and times of change are
//! others, so without this Git would read every file again, and where a filter stands between the file and its blob (line
//! ends, LFS) it could find a difference that is none. An entry that was not in step with its file when the snapshot was taken gets
//! attributes that no file has, and Git looks for itself. In step is one whose blob is the file's contents, or, of another length, may be what a filter makes
//! of them: time and size decide then. In the workspace Git asks the time of change, too, which a snapshot does not hold.
//!
//! The entries are patched where they lie: nothing that this code does not know is lost but caches.

use std::os::fd::{BorrowedFd, OwnedFd};

use ah_plugin_api::{Result, Timestamp};
use gix::ObjectId;
use rustix::fs::{AtFlags, Statx, StatxFlags};
use sha1::{Digest, Sha1};

use crate::meta::FileMeta;
use crate::store::Objects;
use crate::tree::{Directory, Listing, Reader, What};

/// An index that this code cannot take apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadIndex {
    /// Not an index, or damaged.
    #[error("it is damaged")]
    Damaged,
    /// It needs a second file, which a snapshot does not hold.
    #[error("it is a split index")]
    Split,
    /// An unknown version, or an unknown extension that must be understood.
    #[error("its format is not known")]
    Unknown,
}

/// What is known of the captured files and of those in the clone.
pub(super) struct Files<'a> {
    /// Reads the snapshot.
    pub(super) reader: Reader<'a>,
    /// The snapshot's root.
    pub(super) root: Directory,
    /// The clone's root, all files in place.
    pub(super) clone: BorrowedFd<'a>,
    /// The clone's objects folder, filled.
    pub(super) objects: &'a [OwnedFd],
    /// When the user's index file was last written; none if that is not known.
    pub(super) written: Option<Timestamp>,
}

const HEADER: usize = 12;
const HASH: usize = 20;
/// Up to and including the flags; then come extended flags, if any, and the name.
const ENTRY: usize = 62;

/// Patches the index file `data`.
pub(super) fn adapt(mut data: Vec<u8>, files: &mut Files<'_>) -> Result<Result<Vec<u8>, BadIndex>> {
    let (version, count) = match header(&data) {
        Ok(found) => found,
        Err(bad) => return Ok(Err(bad)),
    };
    let mut at = HEADER;
    let mut name = Vec::new();
    let mut walk = Walk { objects: Objects::open(files.objects), files, stack: Vec::new() };
    for _ in 0..count {
        let Some(entry) = next_entry(&data, at, version, &mut name) else { return Ok(Err(BadIndex::Damaged)) };
        // Conflicts (other stages), submodules and sparse directories have no file to be in step with.
        let is_file = matches!(entry.mode >> 12, 0o10 | 0o12);
        let new = if is_file && entry.stage == 0 { walk.attributes(&name, &entry)? } else { None };
        let fields = new.as_ref().map_or([0; 9], fields);
        // ctime, mtime, dev, ino; the mode stays; uid, gid, size.
        for (field, value) in [0, 4, 8, 12, 16, 20, 28, 32, 36].into_iter().zip(fields) {
            data[at + field..at + field + 4].copy_from_slice(&value.to_be_bytes());
        }
        at = entry.end;
    }
    Ok(extensions(&data, at).map(|kept| {
        data.truncate(at);
        data.extend_from_slice(&kept);
        let hash = Sha1::digest(&data);
        data.extend_from_slice(&hash);
        data
    }))
}

fn header(data: &[u8]) -> Result<(u32, u32), BadIndex> {
    let number = |at: usize| data.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    if !data.starts_with(b"DIRC") || data.len() < HEADER + HASH {
        return Err(BadIndex::Damaged);
    }
    match (number(4), number(8)) {
        (Some(version @ 2..=4), Some(count)) => Ok((version, count)),
        (Some(_), Some(_)) => Err(BadIndex::Unknown),
        _ => Err(BadIndex::Damaged),
    }
}

struct Raw {
    mtime: (u32, u32),
    mode: u32,
    size: u32,
    id: ObjectId,
    stage: u8,
    end: usize,
}

fn next_entry(data: &[u8], at: usize, version: u32, name: &mut Vec<u8>) -> Option<Raw> {
    let entry = data.get(at..data.len().checked_sub(HASH)?)?;
    let fixed = entry.get(..ENTRY)?;
    let number = |at: usize| Some(u32::from_be_bytes(fixed.get(at..at + 4)?.try_into().ok()?));
    let flags = u16::from_be_bytes(fixed.get(60..62)?.try_into().ok()?);
    let from = if version >= 3 && flags & 0x4000 != 0 { ENTRY + 2 } else { ENTRY };
    let mut rest = entry.get(from..)?;
    if version == 4 {
        let (strip, used) = varint(rest)?;
        name.truncate(name.len().checked_sub(strip)?);
        rest = rest.get(used..)?;
    } else {
        name.clear();
    }
    let length = rest.iter().position(|&b| b == 0)?;
    name.extend_from_slice(&rest[..length]);
    let end = entry.len() - rest.len() + length + 1;
    // Older versions pad to eight bytes, with at least one NUL.
    let end = if version == 4 { end } else { end.next_multiple_of(8) };
    Some(Raw {
        mtime: (number(8)?, number(12)?),
        mode: number(24)?,
        size: number(36)?,
        id: ObjectId::try_from(fixed.get(40..60)?).ok()?,
        stage: (flags >> 12 & 3) as u8,
        end: (at + end <= data.len() - HASH).then_some(at + end)?,
    })
}

/// The offset encoding of packs, which version 4 uses for the bytes to strip from the name before.
fn varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (at, &byte) in bytes.iter().take(8).enumerate() {
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
        if byte < 0x80 {
            return Some((value, at + 1));
        }
        value += 1;
    }
    None
}

/// The extensions that are kept: facts, and the cache of trees, which depends on entries alone.
fn extensions(data: &[u8], from: usize) -> Result<Vec<u8>, BadIndex> {
    let mut rest = data.get(from..data.len() - HASH).ok_or(BadIndex::Damaged)?;
    let mut kept = Vec::new();
    while !rest.is_empty() {
        let size = rest.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes).ok_or(BadIndex::Damaged)?;
        let (extension, after) = rest.split_at_checked(8 + size as usize).ok_or(BadIndex::Damaged)?;
        match &extension[..4] {
            b"TREE" | b"REUC" | b"sdir" => kept.extend_from_slice(extension),
            b"link" if extension.get(8..28).is_some_and(|base| base.iter().any(|&b| b != 0)) => {
                return Err(BadIndex::Split);
            }
            b"link" => {}
            // Those whose name begins with a capital may be dropped.
            [b'A'..=b'Z', ..] => {}
            _ => return Err(BadIndex::Unknown),
        }
        rest = after;
    }
    Ok(kept)
}

fn fields(stat: &Statx) -> [u32; 9] {
    // The index keeps the lower 32 bits of everything.
    [
        stat.stx_ctime.tv_sec as u32,
        stat.stx_ctime.tv_nsec,
        stat.stx_mtime.tv_sec as u32,
        stat.stx_mtime.tv_nsec,
        rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor) as u32,
        stat.stx_ino as u32,
        stat.stx_uid,
        stat.stx_gid,
        stat.stx_size as u32,
    ]
}

/// Goes through the snapshot in the order of the index, so that each directory is read once.
struct Walk<'w, 'a> {
    files: &'w mut Files<'a>,
    objects: Objects<'a>,
    /// The directories above the last entry: the length of each one's path, and its entries.
    stack: Vec<(Vec<u8>, Listing)>,
}

impl Walk<'_, '_> {
    /// The attributes of the clone's file, if entry and captured file were in step.
    fn attributes(&mut self, path: &[u8], entry: &Raw) -> Result<Option<Statx>> {
        let Some((id, meta)) = self.find(path)? else { return Ok(None) };
        let same_contents = id == entry.id;
        // Without looking at contents, as Git does: same time and size, and not written in the very moment of the index.
        let same_attributes = !same_contents
            && entry.mtime == (meta.mtime.secs as u32, meta.mtime.nanos)
            && entry.size == meta.size as u32
            && self.files.written.is_some_and(|written| written > meta.mtime);
        // A filter that changes no length is not believed: Git looks for itself then.
        let filtered = same_attributes && self.objects.size(&entry.id).is_some_and(|size| size != meta.size);
        if !same_contents && !filtered {
            return Ok(None);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::statx(self.files.clone, path, flags, StatxFlags::BASIC_STATS).ok())
    }

    fn find(&mut self, path: &[u8]) -> Result<Option<(ObjectId, FileMeta)>> {
        let (dir, name) = match path.iter().rposition(|&b| b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        let covers = |at: &[u8]| {
            at.is_empty() || dir.strip_prefix(at).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        };
        while self.stack.last().is_some_and(|(at, _)| !covers(at)) {
            self.stack.pop();
        }
        if self.stack.is_empty() {
            let root = self.list(&self.files.root.clone())?;
            self.stack.push((Vec::new(), root));
        }
        while let Some((at, listing)) = self.stack.last() {
            if at.len() == dir.len() {
                break;
            }
            let from = if at.is_empty() { 0 } else { at.len() + 1 };
            let to = dir[from..].iter().position(|&b| b == b'/').map_or(dir.len(), |end| from + end);
            let Some(What::Dir(next)) = pick(listing, &dir[from..to]) else { return Ok(None) };
            let below = self.list(&next)?;
            self.stack.push((dir[..to].to_vec(), below));
        }
        let found = self.stack.last().and_then(|(_, listing)| pick(listing, name));
        Ok(match found {
            Some(What::File(id, meta) | What::Symlink(id, meta)) => Some((id, meta)),
            _ => None,
        })
    }

    fn list(&mut self, directory: &Directory) -> Result<Listing> {
        let mut listing = self.files.reader.list(directory)?;
        listing.items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }
}

fn pick(listing: &Listing, name: &[u8]) -> Option<What> {
    let at = listing.items.binary_search_by(|item| item.name.as_slice().cmp(name)).ok()?;
    Some(listing.items[at].what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{BadIndex, extensions, header, next_entry, varint};

    #[test]
    fn strips_are_read_as_git_writes_them() {
        assert_eq!(varint(&[5]), Some((5, 1)));
        assert_eq!(varint(&[0x80, 0]), Some((128, 2)));
        assert_eq!(varint(&[0x80]), None);
    }

    #[test]
    fn a_split_index_is_told_apart() {
        let mut data = vec![0; 12];
        data.extend_from_slice(b"link\0\0\0\x14");
        data.extend_from_slice(&[7; 20]);
        data.extend_from_slice(&[0; 20]);
        assert_eq!(extensions(&data, 12), Err(BadIndex::Split));
        data[20..40].fill(0);
        assert_eq!(extensions(&data, 12), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(data in proptest::collection::vec(any::<u8>(), 0..400), version in 2..5_u32, at in 0..400_usize) {
            let _ = header(&data);
            let mut name = b"some/name".to_vec();
            if let Some(entry) = next_entry(&data, at, version, &mut name) {
                prop_assert!(entry.end > at && entry.end + 20 <= data.len());
            }
            if data.len() >= 32 {
                let _ = extensions(&data, at.min(data.len() - 20));
            }
        }
    }
}
