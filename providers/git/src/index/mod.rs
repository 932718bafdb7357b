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
pub(crate) use record::{DIR_CAPTURED, DIR_KEPT, DIR_MARKED, DIR_OMITS, DIR_THROUGH, Header};
pub(crate) use record::{ITEM_DIR, ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, ItemRecord, What};
pub(crate) use write::{NewDir, Writer};

/// Name of the file in the store.
pub(crate) const FILE: &str = "index";
