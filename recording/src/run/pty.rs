//! The pty: a terminal that is ours on one side and the command's on the other.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use super::Terminal;
use crate::input::Echo;

/// Both sides.
pub(super) struct Pty {
    /// Ours; never blocks.
    pub(super) ours: OwnedFd,
    /// The command's.
    pub(super) theirs: OwnedFd,
}

/// Makes a pty like `terminal`.
pub(super) fn open(terminal: &Terminal) -> io::Result<Pty> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    // Without a path: `/dev/pts` of a container may be another one.
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    let mut modes = match terminal.modes() {
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
    Ok(Pty { ours, theirs })
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
