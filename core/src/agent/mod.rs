//! Agents' own sessions: which session of ours each is, what follows from what an agent calls for, and what it may not do.
//!
//! - `known` finds the session of an agent's by the agent's id for it, wherever the agent is by now; `start` makes one.
//! - `hook` is what is done at each event, `seen` tells the same event called twice.
//! - `process` is the agent as a process; `ended` finds those that went away without a word.
//! - `unkept` is what no timeline could take.
//! - `late` looks again for a moment's place in the transcript, which agents write late; `meanwhile` gives moments to what was typed while the agent was at work.
//! - `guard` refuses what an agent shall not do in its own session.
//!
//! Not here: what an agent's events and files look like (`ah-agents`), and how a moment comes by its snapshot (`moments`).

mod ended;
mod guard;
mod hook;
mod known;
mod late;
mod meanwhile;
mod process;
mod seen;
mod start;
mod unkept;

pub use hook::{Called, HookContext};
pub use known::LastEvent;
pub(crate) use late::Late;
pub(crate) use process::own_and_above;
pub use unkept::UnkeptCall;
