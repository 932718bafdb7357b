//! The mock agent: plays a scenario as Claude Code would, without a model.
//!
//! It takes the prompts, does what the scenario's tool calls say, calls the hooks that the user configured for Claude Code, keeps a
//! transcript where Claude Code keeps it and in its form, and can be resumed from one, whole or cut. What it does not have: a
//! screen of its own, permissions, a model.
//!
//! | module | what it is for |
//! |---|---|
//! | [`start`] | what it is told at the start, and which session that means |
//! | `play` | the steps of a scenario, one after the other |
//! | `tools` | what a tool call does |
//! | `hooks` | the settings that Claude Code reads, and running the commands in them |
//! | `transcript` | lines in Claude Code's form, in time or late |
//! | `checkpoint` | states of its own, restored by id |
//! | `checks` | what must be so of files and of what `ah` says |

mod checkpoint;
mod checks;
mod hooks;
mod play;
pub mod start;
mod tools;
mod transcript;

pub use play::run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ctrl-C, as a flag: it interrupts what is being done, not the agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let flag = Self::default();
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&flag.0))?;
        Ok(flag)
    }

    /// Whether it came; and forgets it.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    /// Whether it came.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits so long, or until it comes; whether it came.
    pub(crate) fn wait(&self, long: Duration) -> bool {
        let until = Instant::now() + long;
        while !self.came() && Instant::now() < until {
            std::thread::sleep((until - Instant::now()).min(Duration::from_millis(5)));
        }
        self.came()
    }
}
