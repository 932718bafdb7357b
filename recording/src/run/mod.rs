//! Running a command on a pty of its own, between the user's terminal and a tape, so that neither notices.
//!
//! Three parts: this process (`relay.rs`) carries keys to the pty and signals to the command; a thread of it (`pump.rs`) carries
//! what is shown to standard output and to the tape; a small process of its own (`monitor.rs`) leads the pty's session, runs the command in it,
//! and stays when this process is killed, to give the terminal its modes back. The monitor is there for job control, too: a
//! command whose parent is outside of its session cannot be stopped by Ctrl-Z.
//!
//! What goes through unchanged: every byte in both directions, the terminal's size (one of 0 × 0 as well), signals, stopping and
//! continuing, and how the command ends (128 + N for signal N). Standard input that is no terminal is the command's own, and the
//! pty has no part in it. Standard error that leads elsewhere than standard output goes there, and is recorded as well. Where that cannot take
//! what the command writes (its disk is full), the command can write no more either: the pipe is closed, or the pty hung up.
//!
//! Where there is a terminal, but standard output leads elsewhere (`… | tee log`, `x=$(…)`), there is no pty (`beside.rs`): others write to that terminal
//! and read from it, and the command asks for passwords there. Where there is no terminal at all, standard output is the pty, which
//! adds no returns to newlines.

mod beside;
pub mod monitor;
mod pty;
mod pump;
mod relay;
mod signals;
mod terminal;
mod word;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ah_plugin_api::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub(crate) use signals::Signals;
pub(crate) use terminal::Raw;
pub use terminal::Terminal;

use crate::tape::{Source, Tape};

/// What is to be run.
#[derive(Debug, Default)]
pub struct Run {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Variables that it finds beside the ones of this process.
    pub env: Vec<(OsString, OsString)>,
    /// A program and arguments that call [`monitor::main`] with the arguments that are added.
    pub monitor: Vec<OsString>,
    /// Whether what is typed is recorded too (see [`crate::input`]).
    pub input: bool,
    /// The tape's file, open for reading too: should this process be killed, the monitor takes a torn last line off it.
    pub file: Option<OwnedFd>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status as a shell would have it: 128 + N for signal N.
    pub status: u8,
    /// Where not all that it wrote could go, and why; none where nobody read it any more, which the command is told as it would be without this.
    pub unwritten: Option<(Source, io::Error)>,
    /// Whether that is because somebody who sent a signal wanted it to be over, and nobody read, on standard error neither: what this process has to say would be waited for.
    pub unheard: bool,
}

/// What first kept output from going where it leads to.
#[derive(Debug, Default)]
struct Unwritten {
    first: OnceLock<(Source, Errno)>,
    given_up: AtomicBool,
}

impl Unwritten {
    /// Takes note of it; false if somebody who read there is gone, and that is all.
    fn note(&self, source: Source, to: BorrowedFd<'_>, error: Errno) -> bool {
        let gone = error == Errno::PIPE || error == Errno::IO && to.is_terminal();
        if !gone {
            let _ = self.first.set((source, error));
        }
        self.given_up.fetch_or(error == Errno::CANCELED, Ordering::AcqRel);
        !gone
    }

    fn ended(self, status: u8) -> Ended {
        let error = |error| match error {
            Errno::CANCELED => io::Error::new(io::ErrorKind::TimedOut, "nobody took it"),
            error => error.into(),
        };
        let unwritten = self.first.into_inner().map(|(source, errno)| (source, error(errno)));
        Ended { status, unwritten, unheard: self.given_up.into_inner() && !errors_are_taken() }
    }
}

/// Whether standard error takes words at once.
fn errors_are_taken() -> bool {
    let mut fds = [PollFd::from_borrowed_fd(rustix::stdio::stderr(), PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Why a command did not run.
#[derive(Debug)]
pub enum RunError {
    /// There is no terminal for it to run on.
    Place(Error),
    /// It cannot be run: `NotFound` if there is none of that name.
    Command(Error),
}

impl Run {
    /// Runs the command to its end, with `terminal` around it and everything on `tape`; calls `moment` for each moment key, where keys
    /// are seen.
    /// Signals that the process gets meanwhile are the command's; they have their handlers of before afterwards only if they had
    /// the default ones. To be called once, from the main thread.
    ///
    /// # Errors
    /// See [`RunError`]; what was begun is undone then.
    pub fn run(&self, terminal: &Terminal, tape: &Tape, moment: &dyn Fn()) -> Result<Ended, RunError> {
        if terminal.is_beside_output() {
            return beside::run(self, terminal, tape);
        }
        relay::run(self, terminal, tape, moment)
    }
}
