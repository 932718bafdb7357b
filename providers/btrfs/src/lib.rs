//! Snapshots of Btrfs subvolumes, by the kernel's own calls.
//!
//! - [`BtrfsProvider`] is the way in: it implements the contract and holds no logic of its own.
//! - `subvolume` finds what contains a workspace and what this process may do; `probe` and `omitted` say what follows.
//! - `depot` is where snapshots are kept (`elsewhere`, if that is not in the store), `record` what travels with one, `shelf` takes and lists them, `removal` removes them.
//! - `convert` makes a subvolume of a directory.
//! - `diff` compares, by what the filesystem knows where this process may ask.
//! - `view` shows snapshots.
//! - `made` makes clones and finds them again, `remove` removes subvolumes, `reclaim` clears up.
//! - `sys` are the ioctls. No C library: a dozen calls of the kernel's stable interface are all that is needed, and libbtrfsutil
//!   works by paths where this works by descriptors.
//!
//! Not here: reading a tree and the mount table (`ah-provider-directory`), and exporting all this as a plugin (`plugin/`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod above;
mod convert;
mod depot;
mod diff;
mod elsewhere;
mod made;
mod omitted;
mod probe;
mod provider;
mod reclaim;
mod record;
mod removal;
mod remove;
mod shelf;
mod subvolume;
#[allow(unsafe_code)]
mod sys;
mod view;

pub use provider::BtrfsProvider;
