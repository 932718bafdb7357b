//! Keys. A *versioned* row has one for each (line, epoch) that wrote it: `stem ++ line ++ epoch`, so that all versions of a
//! row lie together, those of one line in the order in which they were written. Others have their stem alone.
//!
//! | first byte | rest of the stem | value |
//! |---|---|---|
//! | `d` | directory, name, NUL | versioned: what the name leads to |
//! | `i` | inode | versioned: its attributes |
//! | `c` | inode, chunk | versioned: where the chunk's blocks are |
//! | `c` | inode, 2^63 + chunk | versioned: where the chunk's blocks are that the file below had and that were copied behind the branch |
//! | `x` | inode, name, NUL | versioned: an extended attribute |
//! | `y` | block | blocks from there on that are lost: they were given back to the disk before a damaged log was cut, or their segment ended before them |
//! | `b` | line of a base, path below | the names that were in that directory |
//! | `f` | block | blocks from there on that nothing refers to any more, not given back to the disk yet |
//! | `g` | segment | how many of its blocks are in use |
//! | `h` | line of a base, path below, NUL, name | what files in that directory held, from that name on: their fingerprints |
//! | `j` | line of a base | its branches show what is pinned as it was |
//! | `j` | line of a base, inode below | how many names a file had whose fingerprint was taken, if more than one |
//! | `j` | line of a base, 0 | the disk has what was below when it was taken: in which boot that was written down, zeros if fingerprints are older |
//! | `j` | line of a base, 2^64 - 1 | the disk did not take something below since it was taken, and nobody was told: 1 |
//! | `k` | line, epoch | a point that was deleted, whose rows are not cleared up yet |
//! | `l` | line | the line |
//! | `m` | name | a counter; `pins`: how far pins are believed, see `pinning`; `cut`: a damaged log was cut, and what that lost was not looked at yet |
//! | `n` | device, inode below, birth | the number of an inode below whose own does not do |
//! | `o` | line, inode | an inode without a name that something still holds open |
//! | `p` | line of a base | there may be pins that were made behind it, and that no fingerprint names |
//! | `q` | line, inode | a file that was taken over and is not copied yet: the epoch in which that was |
//! | `s` | snapshot | the snapshot |
//!
//! Numbers are big-endian. Names hold no NUL, so that no stem is the beginning of another.

use crate::error::{Error, Result};
use crate::types::Ino;

/// The line of descent of a branch: its rows are those written through its pen.
pub(crate) type LineId = u32;
/// A span of a line between two snapshots. Unique among all lines, and growing.
pub(crate) type Epoch = u64;

/// What follows the stem of a versioned row.
pub(crate) const VERSION: usize = 12;

/// A stem of one number.
pub(crate) fn stem(kind: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + VERSION);
    key.push(kind);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(crate) fn entry(parent: Ino, name: &[u8]) -> Vec<u8> {
    named(b'd', parent, name)
}

pub(crate) fn inode(ino: Ino) -> Vec<u8> {
    stem(b'i', ino)
}

pub(crate) fn chunk(ino: Ino, index: u64) -> Vec<u8> {
    let mut key = stem(b'c', ino);
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// Set in the index of a chunk as the file below had it.
pub(crate) const KEPT: u64 = 1 << 63;

/// The key of what was copied of a chunk of the file below.
pub(crate) fn kept(ino: Ino, index: u64) -> Vec<u8> {
    chunk(ino, KEPT | index)
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    named(b'x', ino, name)
}

fn named(kind: u8, ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + name.len() + VERSION);
    key.push(kind);
    key.extend_from_slice(&ino.to_be_bytes());
    key.extend_from_slice(name);
    key.push(0);
    key
}

/// The key of a line's own record, or of something else that is a line's.
pub(crate) fn of_line(kind: u8, line: LineId, number: Option<u64>) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&line.to_be_bytes());
    if let Some(number) = number {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

pub(crate) fn counter(name: &str) -> Vec<u8> {
    let mut key = vec![b'm'];
    key.extend_from_slice(name.as_bytes());
    key
}

/// The key of one version.
pub(crate) fn versioned(stem: &[u8], line: LineId, epoch: Epoch) -> Vec<u8> {
    let mut key = Vec::with_capacity(stem.len() + VERSION);
    key.extend_from_slice(stem);
    key.extend_from_slice(&line.to_be_bytes());
    key.extend_from_slice(&epoch.to_be_bytes());
    key
}

/// Whether rows of this kind are versioned.
pub(crate) fn is_versioned(key: &[u8]) -> bool {
    matches!(key.first(), Some(b'd' | b'i' | b'c' | b'x'))
}

/// Takes a versioned key apart.
pub(crate) fn split(key: &[u8]) -> Result<(&[u8], LineId, Epoch)> {
    let at =
        key.len().checked_sub(VERSION).filter(|&at| at >= 9).ok_or_else(|| Error::corrupt("a key is too short"))?;
    let (stem, version) = key.split_at(at);
    let (line, epoch) = version.split_at(4);
    Ok((stem, be32(line), be64(epoch)))
}

/// The inode that a versioned row belongs to (of an entry: the directory), or the number that any other key begins with.
pub(crate) fn number(stem: &[u8]) -> u64 {
    be64(stem.get(1..9).unwrap_or_default())
}

/// The name in the stem of an entry or an attribute.
pub(crate) fn name(stem: &[u8]) -> &[u8] {
    stem.get(9..stem.len().saturating_sub(1)).unwrap_or_default()
}

/// The index of a chunk's stem.
pub(crate) fn chunk_index(stem: &[u8]) -> u64 {
    be64(stem.get(9..17).unwrap_or_default())
}

/// The line, and the number behind it, of a key of `of_line`.
pub(crate) fn line_and_number(key: &[u8]) -> Result<(LineId, u64)> {
    match (key.get(1..5), key.get(5..13)) {
        (Some(line), Some(number)) if key.len() == 13 => Ok((be32(line), be64(number))),
        _ => Err(Error::corrupt("a key is too short")),
    }
}

/// Bytes as a number; bytes that are missing count as zero.
pub(crate) fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Bytes as a number.
pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}
