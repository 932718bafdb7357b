//! The facade from outside: a temporary home, a clock and ids that are fixed, the in-memory provider.

#![allow(clippy::unwrap_used, missing_docs)]

mod branches;
mod gc;
mod lab;
mod leases;
mod prune;
mod restores;
mod snapshots;
mod timeline;
mod together;
mod workspaces;
