//! The records of the index and their bytes.

use ah_plugin_api::{OmitReason, Timestamp};
use gix::ObjectId;

use crate::scan::Stat;

pub(super) const MAGIC: &[u8; 8] = b"ahindex3";
/// Bytes of the header.
pub(super) const HEADER: usize = 320;
/// Bytes of a directory's record.
pub(super) const DIR: usize = 124;
/// Bytes of an item's record.
pub(super) const ITEM: usize = 80;
/// Bytes of a nested repository's record.
pub(super) const NESTED: usize = 24;

/// The directory is captured. Without it, it is only looked at, since something below it might be captured one day.
pub(crate) const DIR_CAPTURED: u32 = 1;
/// Ignored, captured whole because the policy includes it.
pub(crate) const DIR_KEPT: u32 = 2;
/// Ignored, and looked through for what is captured all the same.
pub(crate) const DIR_THROUGH: u32 = 4;
/// The directory's meta object is a tree.
pub(crate) const DIR_META_TREE: u32 = 8;
/// Some item of it is matched by an ignore rule: what the user's index has matters here.
pub(crate) const DIR_MARKED: u32 = 16;
/// Some item of it is omitted.
pub(crate) const DIR_OMITS: u32 = 32;
/// Matched by an ignore rule, but in the user's index itself: a submodule.
pub(crate) const DIR_TRACKED: u32 = 64;
/// What the rules said of the directory.
pub(crate) const DIR_CLASS: u32 = DIR_KEPT | DIR_THROUGH | DIR_TRACKED;

/// Captured although ignored.
pub(crate) const ITEM_IGNORED: u8 = 1;
/// Matched by an ignore rule, but in the user's index.
pub(crate) const ITEM_TRACKED: u8 = 2;
/// Omitted, and its own attributes have to do with it: it must be looked at each time.
pub(crate) const ITEM_RECHECK: u8 = 4;
/// Omitted, and it is a directory.
pub(crate) const ITEM_DIR: u8 = 8;
/// Somebody may have been writing to it when it was read, so that it can have changed without new times.
pub(crate) const ITEM_WRITTEN: u8 = 16;

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A captured file.
    File,
    /// A captured symlink.
    Symlink,
    /// Not captured.
    Omitted(OmitReason),
}

/// What is known of the scan as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// When the scan began, by the clock that gives files their times.
    pub(crate) started: Timestamp,
    /// The boot in which the scan was, [`crate::store::boot_number`].
    pub(crate) boot: u64,
    /// Device of the workspace's root.
    pub(crate) device: (u32, u32),
    /// [`ah_rules::Rules::fingerprint`].
    pub(crate) rules: [u8; 20],
    /// [`ah_rules::Rules::index_stamp`].
    pub(crate) user_index: [i64; 6],
    /// The blob that holds the user's index file of that stamp; null if none.
    pub(crate) user_index_blob: ObjectId,
    /// The id of the snapshot that needs all objects named here.
    pub(crate) snapshot: String,
}

/// A directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirRecord {
    pub(super) path_at: u32,
    pub(super) path_len: u32,
    /// Text of the rule that ignores it, after the path.
    pub(super) rule_len: u32,
    /// Number of the first directory that is not below it.
    pub(crate) end: u32,
    pub(crate) parent: u32,
    pub(crate) items_at: u32,
    pub(crate) items_len: u32,
    /// Where the names of its items begin.
    pub(super) names_at: u32,
    pub(crate) flags: u32,
    /// Captured entries at any depth below it.
    pub(crate) entries: u32,
    pub(crate) stat: Stat,
    pub(crate) tree: ObjectId,
    pub(crate) meta: ObjectId,
}

impl DirRecord {
    pub(crate) fn meta_is_tree(&self) -> bool {
        self.flags & DIR_META_TREE != 0
    }
}

/// A file, a symlink, or something omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemRecord<'a> {
    pub(crate) name: &'a [u8],
    /// Why it was omitted, more exactly.
    pub(crate) detail: &'a [u8],
    pub(crate) what: What,
    pub(crate) flags: u8,
    pub(crate) stat: Stat,
    /// The contents; null for what is omitted.
    pub(crate) id: ObjectId,
}

/// Appends fields.
pub(super) struct Put<'a>(pub(super) &'a mut Vec<u8>);

impl Put<'_> {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn id(&mut self, id: &ObjectId) -> &mut Self {
        self.bytes(id.as_slice())
    }

    /// 44 bytes.
    pub(super) fn stat(&mut self, stat: &Stat) -> &mut Self {
        self.u64(stat.ino).u64(stat.size).i64(stat.mtime.secs).i64(stat.ctime.secs);
        self.u32(stat.mtime.nanos).u32(stat.ctime.nanos).u32(stat.mode)
    }
}

/// Takes fields from a record that is known to be long enough: every record is a slice of its exact size.
pub(super) struct Take<'a>(pub(super) &'a [u8]);

impl<'a> Take<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N));
        out
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(super) fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.array())
    }

    pub(super) fn id(&mut self) -> ObjectId {
        ObjectId::from_bytes_or_panic(self.bytes(20))
    }

    pub(super) fn stat(&mut self) -> Stat {
        let (ino, size, mtime, ctime) = (self.u64(), self.u64(), self.i64(), self.i64());
        let mtime = Timestamp { secs: mtime, nanos: self.u32() };
        let ctime = Timestamp { secs: ctime, nanos: self.u32() };
        Stat { mode: self.u32(), ino, size, mtime, ctime }
    }
}

/// Reasons by their number in the index; [`OmitReason`] is an open set, so its own order may not be relied on.
const REASONS: [OmitReason; 10] = [
    OmitReason::Ignored,
    OmitReason::Excluded,
    OmitReason::TooLarge,
    OmitReason::Changing,
    OmitReason::SpecialFile,
    OmitReason::GitDir,
    OmitReason::OtherFilesystem,
    OmitReason::Unreadable,
    OmitReason::OwnState,
    OmitReason::TooDeep,
];

impl What {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::File => 0,
            Self::Symlink => 1,
            Self::Omitted(reason) => {
                2 + REASONS.iter().position(|&known| known == reason).unwrap_or(REASONS.len()) as u8
            }
        }
    }

    pub(super) fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::File),
            1 => Some(Self::Symlink),
            _ => Some(Self::Omitted(*REASONS.get(usize::from(number) - 2)?)),
        }
    }
}

impl Header {
    /// The sealed header. `body` is the CRC-32 of the rest, `counts` are directories, items, nested, and bytes of names.
    pub(super) fn encode(&self, body: u32, counts: [u32; 4]) -> Option<Vec<u8>> {
        let snapshot = self.snapshot.as_bytes();
        let mut out = Vec::with_capacity(HEADER);
        let mut put = Put(&mut out);
        put.bytes(MAGIC).u32(0).u32(body);
        counts.iter().for_each(|&count| {
            put.u32(count);
        });
        put.i64(self.started.secs).u32(self.started.nanos).u64(self.boot).u32(self.device.0).u32(self.device.1);
        put.bytes(&self.rules).id(&self.user_index_blob);
        self.user_index.iter().for_each(|&field| {
            put.i64(field);
        });
        put.u32(u32::try_from(snapshot.len()).ok()?).bytes(snapshot);
        if out.len() > HEADER {
            return None;
        }
        out.resize(HEADER, 0);
        let seal = crc32fast::hash(&out[12..]);
        out[8..12].copy_from_slice(&seal.to_le_bytes());
        Some(out)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, u32, [u32; 4])> {
        let bytes = bytes.get(..HEADER)?;
        let mut take = Take(bytes);
        let (magic, seal) = (take.bytes(8), take.u32());
        if magic != MAGIC || seal != crc32fast::hash(&bytes[12..]) {
            return None;
        }
        let body = take.u32();
        let counts = [take.u32(), take.u32(), take.u32(), take.u32()];
        let started = Timestamp { secs: take.i64(), nanos: take.u32() };
        let boot = take.u64();
        let device = (take.u32(), take.u32());
        let (rules, user_index_blob) = (take.array(), take.id());
        let user_index = [take.i64(), take.i64(), take.i64(), take.i64(), take.i64(), take.i64()];
        let length = take.u32() as usize;
        let snapshot = String::from_utf8(take.0.get(..length)?.to_vec()).ok()?;
        Some((Self { started, boot, device, rules, user_index, user_index_blob, snapshot }, body, counts))
    }
}
