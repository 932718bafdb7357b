//! What a Git tree cannot hold: exact permission bits, modification times, sizes, the `ignored` flag.
//!
//! A snapshot's `meta` runs parallel to its `tree`. Each directory has one *meta blob*, written here. Where the blobs
//! hang:
//!
//! - A directory **without** subdirectories is represented by its meta blob itself.
//! - A directory **with** subdirectories is represented by a tree: `m` ([`OWN`]) is its own meta blob, and `+<name>`
//!   ([`sub_name`]) represents the subdirectory `<name>`, one for each.
//!
//! So the root's representation is the snapshot's `meta` entry, and for a subdirectory the kind of the tree entry
//! `+<name>` (blob or tree) says which of the two it is. A directory that did not change has the same object again.
//!
//! # Meta blob, version 1
//!
//! | field | form |
//! |---|---|
//! | magic | `a h m 1` |
//! | bits of the directory | varint: `mode & 0o7777`, plus `0o10000` if ignored |
//! | mtime of the directory | zigzag varint seconds, `u32` little endian nanoseconds |
//! | n | varint: number of entries that are **not** directories |
//! | sizes | n varints: bytes of a file, or of a symlink's target |
//! | bits | runs of (varint length ≥ 1, varint bits as above) until n entries are covered |
//! | seconds | n zigzag varints: difference from the entry before (from 0 for the first) |
//! | nanoseconds | n × `u32` little endian |
//!
//! Names and kinds are not repeated: the n entries are those of the data tree that are not directories, in its order.
//! Columns rather than rows because like things compress well beside each other. Varints are LEB128, at most ten bytes.
//!
//! Not here: where the columns come from (`scan`), and who puts them together with the tree again (`tree`).

use ah_plugin_api::Timestamp;

use crate::leb128::{self, put};

/// Name of a directory's own meta blob in its meta tree.
pub(crate) const OWN: &[u8] = b"m";

/// Name that represents the subdirectory `name` in a meta tree.
pub(crate) fn sub_name(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 1);
    out.push(b'+');
    out.extend_from_slice(name);
    out
}

const MAGIC: &[u8; 4] = b"ahm1";
const IGNORED: u64 = 0o10000;
/// The least an entry takes: a size, a second, the nanoseconds. Bounds what a damaged count can make us allocate.
const LEAST: usize = 1 + 1 + 4;

/// A blob that is not the meta blob of anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged directory metadata: {0}")]
pub(crate) struct BadMeta(&'static str);

/// What is known of a directory beside its Git tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DirMeta {
    /// Permission bits of the directory itself.
    pub(crate) mode: u32,
    /// Modification time of the directory itself.
    pub(crate) mtime: Timestamp,
    /// Whether the directory itself is matched by an ignore rule (and captured all the same).
    pub(crate) ignored: bool,
    /// One for each entry of the data tree that is not a directory, in its order.
    pub(crate) files: Vec<FileMeta>,
}

/// What is known of a file or symlink beside its tree entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileMeta {
    /// Permission bits.
    pub(crate) mode: u32,
    /// Bytes of the file, or of the symlink's target.
    pub(crate) size: u64,
    /// Modification time.
    pub(crate) mtime: Timestamp,
    /// Whether it is matched by an ignore rule (and captured all the same).
    pub(crate) ignored: bool,
}

impl DirMeta {
    /// Appends the meta blob to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(32 + self.files.len() * 8);
        out.extend_from_slice(MAGIC);
        put(out, bits(self.mode, self.ignored));
        put(out, zigzag(self.mtime.secs));
        out.extend_from_slice(&self.mtime.nanos.to_le_bytes());
        put(out, self.files.len() as u64);
        for file in &self.files {
            put(out, file.size);
        }
        for run in self.files.chunk_by(|a, b| a.mode == b.mode && a.ignored == b.ignored) {
            put(out, run.len() as u64);
            put(out, bits(run[0].mode, run[0].ignored));
        }
        let mut before = 0_i64;
        for file in &self.files {
            put(out, zigzag(file.mtime.secs.wrapping_sub(before)));
            before = file.mtime.secs;
        }
        for file in &self.files {
            out.extend_from_slice(&file.mtime.nanos.to_le_bytes());
        }
    }

    /// Reads a meta blob. Allocates at most a small multiple of `bytes.len()`.
    ///
    /// # Errors
    /// Anything that [`DirMeta::encode`] could not have written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadMeta> {
        let mut from = Reader(bytes);
        if from.take(MAGIC.len())? != MAGIC {
            return Err(BadMeta("unknown format"));
        }
        let (mode, ignored) = from.bits()?;
        let mtime = Timestamp { secs: unzigzag(from.varint()?), nanos: from.nanos()? };
        let count = usize::try_from(from.varint()?).map_err(|_| BadMeta("too many entries"))?;
        if count > from.0.len() / LEAST {
            return Err(BadMeta("too many entries"));
        }
        let mut files = vec![FileMeta::default(); count];
        for file in &mut files {
            file.size = from.varint()?;
        }
        let mut rest = files.as_mut_slice();
        while !rest.is_empty() {
            let length = usize::try_from(from.varint()?).unwrap_or(usize::MAX);
            let (mode, ignored) = from.bits()?;
            let Some((run, after)) = (length > 0).then(|| rest.split_at_mut_checked(length)).flatten() else {
                return Err(BadMeta("a run of the wrong length"));
            };
            for file in run {
                (file.mode, file.ignored) = (mode, ignored);
            }
            rest = after;
        }
        let mut secs = 0_i64;
        for file in &mut files {
            secs = secs.wrapping_add(unzigzag(from.varint()?));
            file.mtime.secs = secs;
        }
        for file in &mut files {
            file.mtime.nanos = from.nanos()?;
        }
        if from.0.is_empty() { Ok(Self { mode, mtime, ignored, files }) } else { Err(BadMeta("bytes left over")) }
    }
}

fn bits(mode: u32, ignored: bool) -> u64 {
    u64::from(mode & 0o7777) | if ignored { IGNORED } else { 0 }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BadMeta> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(BadMeta("cut short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn varint(&mut self) -> Result<u64, BadMeta> {
        leb128::take(&mut self.0).map_err(|bad| match bad {
            leb128::Bad::CutShort => BadMeta("cut short"),
            leb128::Bad::TooLarge => BadMeta("a number that is too large"),
        })
    }

    fn bits(&mut self) -> Result<(u32, bool), BadMeta> {
        let value = self.varint()?;
        if value >= IGNORED * 2 {
            return Err(BadMeta("unknown permission bits"));
        }
        Ok(((value & 0o7777) as u32, value & IGNORED != 0))
    }

    fn nanos(&mut self) -> Result<u32, BadMeta> {
        let raw: [u8; 4] = self.take(4)?.try_into().map_err(|_| BadMeta("cut short"))?;
        let nanos = u32::from_le_bytes(raw);
        if nanos < 1_000_000_000 { Ok(nanos) } else { Err(BadMeta("nanoseconds beyond a second")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

    use super::{DirMeta, FileMeta};
    use ah_plugin_api::Timestamp;

    fn time() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
    }

    fn file() -> impl Strategy<Value = FileMeta> {
        (0..0o10000_u32, any::<u64>(), time(), any::<bool>()).prop_map(|(mode, size, mtime, ignored)| FileMeta {
            mode,
            size,
            mtime,
            ignored,
        })
    }

    fn dir() -> impl Strategy<Value = DirMeta> {
        (0..0o10000_u32, time(), any::<bool>(), proptest::collection::vec(file(), 0..40))
            .prop_map(|(mode, mtime, ignored, files)| DirMeta { mode, mtime, ignored, files })
    }

    fn encoded(dir: &DirMeta) -> Vec<u8> {
        let mut out = Vec::new();
        dir.encode(&mut out);
        out
    }

    proptest! {
        #[test]
        fn comes_back_as_it_was(dir in dir()) {
            prop_assert_eq!(DirMeta::decode(&encoded(&dir)), Ok(dir));
        }

        #[test]
        fn any_bytes_are_safe_and_bounded(tail in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [b"ahm1".as_slice(), &tail].concat();
            if let Ok(dir) = DirMeta::decode(&bytes) {
                prop_assert!(dir.files.len() * super::LEAST <= bytes.len());
            }
        }

        #[test]
        fn damage_is_never_a_panic(dir in dir(), at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<proptest::sample::Index>()) {
            let mut bytes = encoded(&dir);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = DirMeta::decode(&bytes);
            let cut = cut.index(bytes.len());
            prop_assert!(DirMeta::decode(&encoded(&dir)[..cut]).is_err());
        }
    }

    #[test]
    fn a_usual_directory_is_small() {
        let files = (0..100)
            .map(|i| FileMeta {
                mode: 0o644,
                size: 40 + i,
                mtime: Timestamp { secs: 1_700_000_000, nanos: 7 },
                ignored: false,
            })
            .collect();
        let dir = DirMeta { mode: 0o755, mtime: Timestamp::default(), ignored: false, files };
        assert!(encoded(&dir).len() < 700, "{}", encoded(&dir).len());
    }

    #[test]
    fn a_huge_count_allocates_nothing() {
        let mut bytes = b"ahm1\x00\x00\x00\x00\x00\x00".to_vec();
        bytes.extend_from_slice(&[0xff; 9]);
        bytes.push(1);
        assert!(DirMeta::decode(&bytes).is_err());
    }
}
