//! AgentFS: a copy-on-write filesystem in user space with instant, durable snapshots and branches.
//!
//! This is its core, a library without a host: FUSE, FSKit, WinFsp or a C program drive it in terms of inodes through [`View`].
//! What is promised and how it lies on disk is written down in `docs/agentfs.md`.
//!
//! - [`Workspace`] is the way in: a lower directory, which is never written, and a store; its branches and snapshots.
//! - [`View`] is a tree: the pen of a branch, or a snapshot.
//! - `state` says which version of a row is seen from where, `engine` what reaches the disk and when, `store` how it lies there,
//!   `rows` what is kept; `lower` reads the lower directory; `platform` is what differs between systems.
//!
//! **The idea.** There are no layers and no copies of trees. A branch is a *line*; what its pen writes are rows that bear the line and its
//! present *epoch*. A snapshot is a name for a line's epoch, and the pen goes on in the next. A branch is a new line that begins
//! at an epoch of another. What is seen of a row is its newest version at or before one's own epoch, else what the line above saw where this
//! one began, at last what is in the lower directory. So a snapshot costs a row, however large the tree and however many there
//! are, and looking something up costs the nesting of branches, not the number of snapshots.
//!
//! Not here: mounting, permissions, the provider contract.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod engine;
mod error;
mod lower;
mod platform;
mod rows;
mod state;
mod store;
mod types;
mod view;
mod workspace;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use engine::{Options, Report, Restored};
pub use error::{Error, Result};
pub use types::{Allocate, Attr, DirEntry, Ino, Kind, Owner, ROOT, Rename, Seek, SetAttr, SetTime, StatFs, Time};
pub use view::{Difference, Differences, SetXattr, View, Whole};
pub use workspace::{BranchId, BranchInfo, Class, SnapshotId, SnapshotInfo, Workspace};

/// Locks whatever a thread that panicked left: every change here is whole before the lock is let go, or is an error.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
