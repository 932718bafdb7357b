//! Recordings of a terminal: a command run on a pty with everything passed through, asciicast files written so that a crash
//! costs nothing that was shown, read back, and played.
//!
//! - [`cast`] is the file format: events, a writer's [`cast::Encoder`], a streaming [`cast::Reader`]. [`ttyrec`] is the other one.
//! - [`tape`] puts what a terminal shows into such a file while it runs, in bounded memory. [`utf8`], [`osc133`] and [`input`] are
//!   what it looks through on the way: broken UTF-8, a shell's marks, secrets that are typed.
//! - [`run`] runs a command on a pty of its own between the user's terminal and a tape.
//! - [`play`] shows a recording in the terminal.
//!
//! Not here: workspaces, sessions, moments. Whoever runs a recording is told of a shell's marks and of the moment key by
//! [`tape::Listener`] and [`run::Run`], and puts markers into it by [`tape::Tape::mark`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cast;
pub mod input;
pub mod keys;
pub mod osc133;
mod outlet;
pub mod play;
pub mod run;
mod sys;
pub mod tape;
pub mod ttyrec;
pub mod utf8;
