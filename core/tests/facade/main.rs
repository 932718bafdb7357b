//! The facade from outside: a temporary home, a clock and ids that are fixed, the in-memory provider.

#![allow(clippy::unwrap_used, missing_docs)]

mod at_work;
mod below;
mod branches;
mod clock;
mod conversations;
mod cuts;
mod forget;
mod fresh;
mod gc;
mod held;
mod helper;
mod index;
mod lab;
mod leases;
mod moments;
mod moved;
mod needed;
mod owners;
mod prune;
mod restores;
mod snapshots;
mod swept;
mod talk;
mod timeline;
mod together;
mod unread;
mod untrue;
mod workspaces;
