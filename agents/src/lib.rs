//! What `ah` knows of coding agents: how they call hooks, where their settings lie, how their transcripts are written, and how they
//! are started again.
//!
//! ```text
//! let event = hook::read(Agent::Claude, &mut stdin)?;                   // what the agent said, in bounded memory
//! let now   = transcript::position_now(event.agent, file, None)?;       // as far as it is written
//! let then  = transcript::catch_up(event.agent, file, &Sought::of(&event, time), &since)?;  // …and found afterwards
//! let copy  = transcript::trim(Agent::Claude, file, &position, &Destination { home: &home, cwd: branch }, &new_id, true)?;
//! let argv  = launch::resume(Agent::Claude, &Resume { session_id: &copy.session_id, .. })?;
//! ```
//!
//! # Model
//!
//! - An [`Agent`] is one of four programs. Every module is a set of functions that take the agent; what is particular to one of them
//!   stands in that module's file of its name. What an agent's format does not allow is `Unsupported`, with a hint.
//! - A [`transcript::Position`] is a place between two lines of a transcript. All else about a conversation's time is derived from it.
//! - The environment comes in as a [`Home`]: nothing here reads variables, the clock, or random numbers, and nothing prints.
//! - Transcripts that exist are only ever read. Settings are changed by [`settings`] alone.
//!
//! What each agent does is described in `docs/agents/`, with the version that it was looked at in.
//!
//! Not here: when a moment is taken and what it remembers (`core`), the commands (`cli`), running the agent on a terminal
//! (`ah-recording`), and stand-ins for agents in tests (`ah-mocks`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
pub mod files;
mod halves;
pub mod hook;
pub mod launch;
pub mod settings;
pub mod tools;
pub mod transcript;

pub use agent::{Agent, Home};
