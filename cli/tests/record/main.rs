//! `ah agent record`, `replay` and `cast` with the real binary on real terminals: what goes through, what is written, what a crash leaves.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod files;
mod moments;
mod terminal;
mod through;
