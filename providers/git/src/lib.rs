//! Snapshots of any directory in a private Git object store.
//!
//! - [`GitProvider`] is the way in: it implements the contract and holds no logic of its own.
//! - Capture: `scan` finds what changed against the private `index`, `capture` builds trees and `meta`.
//! - Store: `store` holds objects, packs and refs, and puts them in order.
//! - Reading: `manifest` is a snapshot's head, `tree` reads it, `read` looks into it, `diff` compares.
//! - Writing out: `view` shows a snapshot read-only, `clone` makes a writable copy; both by `checkout` (with `share` where
//!   the filesystem can) and `made`, which records what was made, finds it again and takes it away.
//!
//! Not here: ignore rules (`ah-rules`), the user's repository (`ah-repository`), and exporting all this as a plugin (`plugin/`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod capture;
mod checkout;
mod clone;
mod diff;
mod index;
mod leb128;
mod made;
mod manifest;
mod meta;
mod paths;
mod probe;
mod provider;
mod read;
mod scan;
mod share;
mod store;
#[allow(unsafe_code)]
mod sys;
mod tree;
mod view;

pub use provider::GitProvider;
