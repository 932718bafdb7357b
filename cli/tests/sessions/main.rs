//! Session branches and rewinding, end to end: a conversation is played with its hooks and its transcript, as the agents write them
//! (docs/agents), and a stand-in for the agent's program, a small script, says how it was started and what it found. The real agents are
//! tested in `agent-tests`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod branch;
mod odd;
mod play;
mod rewind;
mod seat;
#[path = "../support/mod.rs"]
mod support;
