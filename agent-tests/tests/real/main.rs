//! The real agents, and the mock one, around the real `ah`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apart;
mod branches;
mod compaction;
mod conversations;
mod meanwhile;
mod opencode;
mod rewind;
mod terminal;
mod timeline;
