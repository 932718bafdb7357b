//! The pty: a terminal that is ours on one side and the command's on the other.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use super::Terminal;
use super::terminal::is_same;
use crate::input::Echo;

/// Both sides.
pub(super) struct Pty {
    /// Ours; never blocks.
    pub(super) ours: OwnedFd,
    /// The command's.
    pub(super) theirs: OwnedFd,
    /// Its modes, if they are the usual ones because another job has the terminal.
    pub(super) usual: Option<Termios>,
}

/// Makes a pty like `terminal`. While another job has that, its modes are the ones that this job wants, a shell's line editor for instance; then it is
/// one like any new terminal, until [`catch_up`].
pub(super) fn open(terminal: &Terminal) -> io::Result<Pty> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    // Without a path: `/dev/pts` of a container may be another one.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    let foreground = terminal.in_foreground();
    let mut modes = match terminal.modes().filter(|_| foreground) {
        Some(modes) => modes,
        None => tcgetattr(&theirs)?,
    };
    if !terminal.shows_output() {
        // What reads a pipe or a file wants the bytes that were written.
        modes.output_modes.remove(OutputModes::ONLCR);
    }
    tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    resize(&ours, terminal.winsize())?;
    let flags = rustix::fs::fcntl_getfl(&ours)?;
    rustix::fs::fcntl_setfl(&ours, flags | OFlags::NONBLOCK)?;
    let usual = if foreground { None } else { Some(tcgetattr(&theirs)?) };
    Ok(Pty { ours, theirs, usual })
}

/// Gives a pty that has the `usual` modes those of the terminal, which is this job's now; but if the command has changed them by now, they are as it wants them.
pub(super) fn catch_up(ours: &OwnedFd, usual: &Termios, terminal: &Terminal) -> io::Result<()> {
    match terminal.modes() {
        Some(modes) if is_same(&tcgetattr(ours)?, usual) => Ok(tcsetattr(ours, OptionalActions::Now, &modes)?),
        _ => Ok(()),
    }
}

/// Gives it a size.
pub(super) fn resize(ours: &OwnedFd, size: Winsize) -> io::Result<()> {
    Ok(tcsetwinsize(ours, size)?)
}

/// What it does at present with what is typed. In doubt, it hides it.
pub(super) fn echo(ours: &OwnedFd) -> Echo {
    match tcgetattr(ours).map(|modes| modes.local_modes) {
        Ok(modes) if modes.contains(LocalModes::ECHO) => Echo::Shown,
        Ok(modes) if !modes.contains(LocalModes::ICANON) => Echo::Program,
        _ => Echo::Hidden,
    }
}
