//! The private index: what the last scan saw of each file. A cache, nothing else: any doubt about it, and it counts as
//! absent, which costs a full scan and changes no result.
//!
//! One flat file, `index` in the store, read whole. All numbers little endian.
//!
//! | part | size | what |
//! |---|---|---|
//! | header | [`HEADER`] | [`Header`], sealed by its own CRC-32, so that it can be rewritten alone |
//! | directories | [`DIR`] each | in preorder, children by name; the root is first |
//! | items | [`ITEM`] each | of each directory in turn, by name: captured files and symlinks, and what was omitted |
//! | nested | [`NESTED`] each | directories that have a `.git`, with the stamp of their repository's rules |
//! | names | | bytes that the records refer to |
//!
//! Everything but the header is sealed by a CRC-32 in the header, and every reference is checked once on loading, so that
//! reading afterwards cannot go wrong whatever the file held.
//!
//! The index belongs to a snapshot: it may be relied on to name objects that the store has only as long as that snapshot
//! exists ([`Header::snapshot`]); the caller asks.

mod patch;
mod read;
mod record;
mod write;

pub(crate) use patch::Patch;
pub(crate) use read::Index;
pub(crate) use record::{DIR_CAPTURED, DIR_CLASS, DIR_KEPT, DIR_MARKED, DIR_OMITS, DIR_THROUGH, DIR_TRACKED, Header};
pub(crate) use record::{ITEM_DIR, ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, ITEM_WRITTEN, ItemRecord, What};
pub(crate) use write::{NewDir, Writer};

/// Name of the file in the store.
pub(crate) const FILE: &str = "index";

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};
    use std::os::fd::AsFd;

    use super::{Header, ITEM_IGNORED, Index, ItemRecord, NewDir, What, Writer};
    use crate::scan::{Stat, null};

    fn header() -> Header {
        Header {
            started: ah_plugin_api::Timestamp { secs: 7, nanos: 9 },
            boot: 11,
            device: (8, 1),
            rules: [3; 20],
            user_index: [1, 2, 3, 4, 5, 6],
            user_index_blob: null(),
            snapshot: "abc".into(),
        }
    }

    fn sample() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut writer = Writer::default();
        let mut open = Vec::new();
        for (path, parent, end) in [("", 0, false), ("a", 0, false), ("a/b", 1, true), ("c", 0, true)] {
            let new = NewDir {
                path: path.as_bytes(),
                rule: b"rule",
                parent,
                flags: 1,
                entries: 5,
                stat: Stat::default(),
                tree: null(),
                meta: null(),
                meta_is_tree: true,
            };
            let at = writer.open(&new);
            for name in ["x", "y"] {
                let stat = Stat { size: 5, ..Stat::default() };
                let (name, detail) = (name.as_bytes(), &b"why"[..]);
                writer.item(&ItemRecord { name, detail, what: What::File, flags: ITEM_IGNORED, stat, id: null() });
            }
            open.push(at);
            if end {
                writer.close(at);
                open.pop();
                if path == "a/b" {
                    writer.nested(1, &[9; 20]);
                    writer.close(open.pop().unwrap());
                }
            }
        }
        writer.close(0);
        writer.write(fd.as_fd(), &header()).unwrap();
        std::fs::read(dir.path().join(super::FILE)).unwrap()
    }

    /// Seals whatever is in there, so that only the checks behind the seals are left.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let head = super::record::HEADER;
        if bytes.len() >= head {
            let body = crc32fast::hash(&bytes[head..]);
            bytes[12..16].copy_from_slice(&body.to_le_bytes());
            let seal = crc32fast::hash(&bytes[12..head]);
            bytes[8..12].copy_from_slice(&seal.to_le_bytes());
        }
        bytes
    }

    /// Uses everything that reading offers.
    fn use_all(index: &Index) {
        for at in 0..index.len() {
            let _ = (index.path(at), index.name(at), index.rule(at), index.children(at).count(), index.raw_names(at));
            assert_eq!(index.items(at).map(|item| item.name.len().min(1)).sum::<usize>(), index.items(at).len());
        }
        let _ = index.nested().count();
    }

    #[test]
    fn comes_back_as_it_was() {
        let index = Index::parse(sample()).unwrap();
        assert_eq!(index.header(), &header());
        assert_eq!((0..4).map(|at| index.path(at)).collect::<Vec<_>>(), [&b""[..], b"a", b"a/b", b"c"]);
        assert_eq!(index.children(0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(index.nested().collect::<Vec<_>>(), [(1, [9; 20])]);
        let item = index.item(2, 1).unwrap();
        assert_eq!((item.name, item.detail, item.stat.size), (&b"y"[..], &b"why"[..], 5));
        use_all(&index);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8), cut in any::<proptest::sample::Index>(), whole in any::<bool>()) {
            let mut bytes = sample();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Some(index) = Index::parse(sealed(bytes)) {
                use_all(&index);
            }
        }
    }
}
