//! The provider on real pools: what the conformance suite cannot know of, because only ZFS has it.
//!
//! Needs root and a kernel with ZFS, so every test is ignored here and run in the guest (`scripts/vm-test`, or
//! `scripts/vm-run --bin <this> -- <this> --include-ignored --test-threads 1 --skip delegation::with`: mounts in other namespaces hold those of all
//! tests, and what is skipped are parts that others start as a user). There, nothing else is.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod bad_input;
mod bench;
mod clones;
mod copies;
mod delegation;
mod diffs;
mod places;
mod promoted;
mod removal;
