//! The terminal around the command: its size, and its modes, which are given back whatever happens.

use std::io::{self, IsTerminal};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

/// What this process's standard input, output and error lead to.
#[derive(Debug)]
pub struct Terminal {
    /// Standard input, if it is a terminal.
    pub(super) input: Option<OwnedFd>,
    /// Whether standard output is a terminal.
    pub(super) output: bool,
    /// Whether standard error leads where standard output does, or both lead to a terminal.
    pub(super) errors_with_output: bool,
    /// Whether there is a terminal, and standard output leads elsewhere.
    beside_output: bool,
    /// The one whose size counts.
    sized: Option<OwnedFd>,
}

impl Terminal {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().ok();
        let input = if stdin.is_terminal() { copy(rustix::stdio::stdin()) } else { None };
        let sized = if input.is_some() {
            copy(rustix::stdio::stdin())
        } else if stdout.is_terminal() {
            copy(rustix::stdio::stdout())
        } else if stderr.is_terminal() {
            copy(rustix::stdio::stderr())
        } else {
            None
        };
        let same = || {
            let of = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|it| (it.st_dev, it.st_ino));
            let (out, err) = (of(rustix::stdio::stdout()), of(rustix::stdio::stderr()));
            // One that is closed leads nowhere.
            err.is_none() || out == err
        };
        let (output, errors) = (stdout.is_terminal(), stderr.is_terminal());
        let beside_output = !output && (input.is_some() || errors);
        Self { input, output, errors_with_output: output && errors || same(), beside_output, sized }
    }

    /// Whether there is a terminal and standard output leads elsewhere: then the command keeps the terminal, and nothing is seen of what goes on there.
    #[must_use]
    pub fn is_beside_output(&self) -> bool {
        self.beside_output
    }

    /// Its size in columns and rows; 80 × 24 where there is no terminal, and 0 × 0 where the terminal says so.
    #[must_use]
    pub fn size(&self) -> (u16, u16) {
        let size = self.winsize();
        (size.ws_col, size.ws_row)
    }

    pub(super) fn winsize(&self) -> Winsize {
        let size = self.sized.as_ref().and_then(|fd| tcgetwinsize(fd).ok());
        size.unwrap_or(Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })
    }

    /// Whether standard output is a terminal: if not, the pty adds no returns to newlines.
    #[must_use]
    pub fn shows_output(&self) -> bool {
        self.output
    }

    pub(super) fn modes(&self) -> Option<Termios> {
        self.input.as_ref().and_then(|fd| tcgetattr(fd).ok())
    }

    /// Whether keys come to this process, and not to another job of the user's shell.
    pub(super) fn in_foreground(&self) -> bool {
        let Some(input) = &self.input else { return true };
        is_ours(input)
    }
}

/// Whether no other job has the terminal. One that is not this session's has no jobs to ask about.
pub(super) fn is_ours(terminal: &OwnedFd) -> bool {
    tcgetpgrp(terminal).map_or(true, |group| group == rustix::process::getpgrp())
}

/// Whether these are the same modes.
pub(super) fn is_same(one: &Termios, other: &Termios) -> bool {
    let modes = |of: &Termios| (of.input_modes, of.output_modes, of.control_modes, of.local_modes);
    modes(one) == modes(other)
}

/// The terminal without modes of its own, until this is dropped: keys come one by one, and unchanged.
pub(crate) struct Raw<'a> {
    fd: &'a OwnedFd,
    saved: Termios,
    raw: Termios,
}

impl<'a> Raw<'a> {
    /// Takes them away.
    pub(crate) fn new(fd: &'a OwnedFd) -> io::Result<Self> {
        let saved = tcgetattr(fd)?;
        let mut raw = saved.clone();
        raw.make_raw();
        let this = Self { fd, saved, raw };
        this.again()?;
        Ok(this)
    }

    /// Takes them away again, after somebody else had the terminal.
    pub(crate) fn again(&self) -> io::Result<()> {
        Ok(tcsetattr(self.fd, OptionalActions::Now, &self.raw)?)
    }

    /// What was taken away.
    pub(super) fn saved(&self) -> &Termios {
        &self.saved
    }

    /// Leaves the terminal as it is now: it is another job's.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }

    /// Gives them back for a while.
    pub(crate) fn pause(&self) {
        // The terminal may be gone.
        let _ = tcsetattr(self.fd, OptionalActions::Now, &self.saved);
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // A job in the background would be stopped for it, and the user's shell has given the terminal to another one.
        if is_ours(self.fd) {
            self.pause();
        }
    }
}
