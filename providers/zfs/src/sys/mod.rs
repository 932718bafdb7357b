//! The one place of this crate with `unsafe`: OpenZFS's libraries, loaded at run time, behind safe types.
//!
//! - [`Core`]: libzfs_core and libnvpair, the stable part: snapshots, clones, removal. Thread-safe by itself.
//! - [`Zfs`]: libzfs, for what that lacks: properties, listing, mounting, delegation. Not thread-safe, so behind a lock.
//! - [`NvList`], [`Value`]: the name-value lists that both take and give.
//!
//! Libraries are loaded when first needed, at most once, and never unloaded. Nothing here knows what the names mean (`names`,
//! `record`), nor what an error number amounts to for a caller (`failure`).
#![allow(unsafe_code, reason = "a C library is bound here; everything that leaves this module is safe")]

#[allow(warnings, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod bindings;
mod core;
mod dataset;
mod load;
mod nvlist;

pub(crate) use self::core::{Core, Failure};
pub(crate) use self::dataset::{Dataset, Kind, LibError, Number, OfPool, Text, Zfs, code};
pub(crate) use self::load::Missing;
pub(crate) use self::nvlist::{NvList, Value};
