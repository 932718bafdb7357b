//! What providers share whose snapshots are directories: a filesystem made them, and shows them by itself.
//!
//! - [`Tree`] reads such a directory for `read_dir`, `read` and `lookup`, and never leaves it.
//! - [`Comparison`] finds what differs between two of them, for `diff`.
//! - [`climb`] finds the root that a workspace lies below, and the path between the two, from descriptors;
//!   [`climb_by_other_mounts`] where only a part of it is mounted there.
//! - [`Mounts`] is the mount table: what is mounted inside a workspace is not in its snapshots. [`unmount`] takes away one of it, and
//!   nothing else that its path may lead to; [`would_unmount`] asks whether that would do.
//! - [`Views`] remembers which snapshots are shown, where a view is no mount that would say so itself; [`refuse_if_used`] asks whether
//!   somebody is in one.
//! - [`Process`] says what each process uses, for whoever is told that something is in use.
//! - [`Copier`] makes a copy of a directory that shares its data, [`remove_contents`] removes one, [`State`] notices that one was changed, [`holders`] refuses one that is in use,
//!   [`Way`] goes down into one, however deep.
//! - [`unescape`] reads paths where not every byte may stand.
//! - [`failed`] turns an error of the operating system into one of the contract, [`look`] asks for an entry's attributes.
//!
//! Not here: making snapshots, and anything that only one filesystem has.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod beneath;
mod climb;
mod compare;
mod copy;
mod entry;
pub mod holders;
#[allow(unsafe_code)]
mod lease;
mod mounts;
mod percent;
mod processes;
mod remove;
mod state;
mod tree;
mod unmount;
mod views;
mod way;

pub use beneath::open_beneath;
pub use climb::{Climbed, climb, climb_by_other_mounts, path_of};
pub use compare::{Comparison, Side, Touched};
pub use copy::{Copier, TICK, changed};
pub use entry::{MASK, entry_of, failed, look, mount_of, names};
pub use mounts::{KeptMounts, Mount, Mounts, boot_id, has_capability, in_first_user_namespace, is_known_here};
pub use percent::unescape;
pub use processes::{How, Process, Use};
pub use remove::{Plain, Special, open_to_remove, open_up, remove_contents, remove_entry, set_mode};
pub use state::State;
pub use tree::{Tree, is_new_file};
pub use unmount::{Unmount, open_plain, unmount, would_unmount};
pub use views::{Views, refuse_if_used};
pub use way::Way;
