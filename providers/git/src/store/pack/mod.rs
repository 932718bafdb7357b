//! Pack files: the form in which objects lie on disk, both ways.
//!
//! Source of the forms: `gitformat-pack(5)`. A pack is a header (`PACK`, version 2, number of objects), the entries, and the
//! SHA-1 of all that. An entry is a kind and a size in 4 + 7 + 7 … bits, for deltas where the base is, then a zlib stream.
//!
//! - `bad`: what can be wrong; `entry`: kinds and numbers; `index`: the `.idx` file; `read`: a pack on disk; `remake`: an index that
//!   was damaged; `write`: a pack in the making.
//!
//! Not here: which packs there are (`super`), which objects go together (`super::merge`).

mod bad;
mod entry;
mod index;
mod read;
mod remake;
mod write;

pub(super) use bad::Bad;
pub(super) use entry::{Body, Entry};
pub(super) use index::Index;
pub(super) use read::{Bases, Pack, Scratch};
pub(super) use remake::remake;
pub(super) use write::{Deflater, Finished, PackWriter, header};

/// Bytes before the first entry.
pub(super) const HEADER: u64 = 12;
/// Bytes after the last entry.
pub(super) const TRAILER: u64 = 20;
