//! What this provider makes in target folders, views and clones, and how it is found and taken away again.
//!
//! Each thing has a record in the store's `views/` folder, a small file of JSON lines that is only ever appended to. A step is
//! recorded before it is taken, where a crash after it must be found, so a process killed anywhere leaves a record from
//! which `reclaim` undoes or finishes. Whoever works on a thing holds a `flock` on its record; a record that is not
//! held and says neither `ready` nor nothing at all is what a crash left.
//!
//! The reference that the caller gets is the record's name. Nothing is ever removed but a directory whose [`Identity`]
//! the record holds, so that a stranger's directory in the place of ours, or a copy of ours, is left alone.
//!
//! Not here: what is in a view or clone (`view`, `clone`, `checkout`).

mod build;
mod holders;
mod identity;
pub(crate) mod mounts;
mod record;
mod remove;
mod undo;

pub(crate) use build::Build;
pub(crate) use identity::{Identity, MountId};
pub(crate) use record::Kind;
pub(crate) use undo::{reclaim, take_away};
