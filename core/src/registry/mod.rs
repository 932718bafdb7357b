//! Which directories are workspaces, and how one is found again.
//!
//! - `record` is `workspaces/<id>/workspace.json`, the truth; `index` is `index.json`, a cache of all of them.
//! - `identity` tells whether a directory is the one that it was; `find` goes from a path to its workspace.

mod find;
mod identity;
mod index;
mod record;

pub(crate) use find::{Finder, Found, Strange, is_the_kernels, too_much};
pub(crate) use identity::Identity;
pub(crate) use index::Index;
pub(crate) use record::{WorkspaceRecord, load, save, save_new};
