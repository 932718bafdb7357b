//! Hooks as agents call them: the real `ah hook`, with events on stdin, and what stands on the timeline afterwards.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod apart;
mod bad;
mod codex;
mod given;
mod held;
mod kills;
mod rules;
mod sessions;
