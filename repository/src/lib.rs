//! The user's Git repository: read without trusting it, and made anew for a clone without touching theirs.
//!
//! [`Repository`] is what a workspace's repository looks like from outside: HEAD, branch, refs, where its objects are. [`own`] makes
//! the copy of a work tree that a filesystem cloned stand on its own. [`mod@write`], [`refs`] and [`progress`] are what a `.git` is
//! made of.
//!
//! Not here: finding the git directory and its ignore rules (`ah-rules`); keeping objects for a snapshot (a provider's).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod marks;
mod objects;
mod own;
mod owner;
pub mod progress;
pub mod refs;
mod repository;
mod split;
#[cfg(test)]
mod testing;
pub mod write;

use config::config;
pub use own::own;
pub use owner::as_owner;
pub use repository::Repository;

use std::os::fd::BorrowedFd;

/// Whether the filesystem of a new `.git`, with `refs` in it, takes upper case for lower, as Git itself finds out.
#[must_use]
pub(crate) fn ignores_case(git: BorrowedFd<'_>) -> bool {
    rustix::fs::statat(git, "rEfS", rustix::fs::AtFlags::empty()).is_ok()
}
