//! Branches by AgentFS: what grows at once from a plain directory, is worked in, gone back in, lost and found again.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod below;
mod convert;
mod given_up;
mod lost;
mod removal;
mod restored;
mod service;
#[path = "../support/mod.rs"]
mod support;
mod work;
