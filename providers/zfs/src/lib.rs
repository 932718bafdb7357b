//! Snapshots of ZFS datasets: taken in one ioctl, seen below `.zfs/snapshot`, grown into clones.
//!
//! The workspace is a dataset's root or any directory inside one. Everything that is known of a snapshot are user properties of the
//! snapshot itself (`record`), and its name says whose it is (`names`); what others made is never touched.
//!
//! OpenZFS's libraries are loaded at run time (`sys`), so that this builds and loads on machines without them, and says what is
//! missing (`probe`). Nothing is done by running programs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod busy;
mod clones;
mod delegation;
mod diff;
mod failure;
mod find;
mod lineage;
mod locate;
mod names;
mod probe;
mod provider;
mod reclaim;
mod record;
mod remove;
mod store;
mod sys;
mod take;
mod usage;
mod view;

pub use provider::ZfsProvider;
