//! Where what is shown goes, written so that nobody who reads there slowly, or not at all, keeps whoever writes from hearing of anything else.
//!
//! Who writes waits until there is room, beside whatever else may come, and then writes a piece. A pipe that says it has room takes a piece at once. A terminal may say so and
//! take less, and keep who writes waiting; not so where it is opened without that, which has to be done anew: the opening that is there is everybody's who shares it,
//! the user's shell for one. Where it cannot be (the terminal is another user's, as after `su`), or would not be the same terminal, the pieces are so small that a pty takes them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Dev, Mode, OFlags, major, minor};
use rustix::io::Errno;

/// So much is written at once: what a pipe takes that has room at all.
const PIECE: usize = 4 << 10;
/// So much a pty takes that has room at all, with returns before newlines; the kernel gives it 256 bytes at a time.
const SMALL_PIECE: usize = 128;

/// A descriptor to write to.
#[derive(Debug)]
pub(crate) struct Outlet<'a> {
    fd: BorrowedFd<'a>,
    /// The same terminal, which this process alone has opened so.
    own: Option<OwnedFd>,
    piece: usize,
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(fd: BorrowedFd<'a>) -> Self {
        if !rustix::termios::isatty(fd) {
            return Self { fd, own: None, piece: PIECE };
        }
        match open_again(fd) {
            Ok(own) => Self { fd, own: Some(own), piece: PIECE },
            Err(_) => Self::shared(fd),
        }
    }

    /// A terminal that is written to as everybody does.
    fn shared(fd: BorrowedFd<'a>) -> Self {
        Self { fd, own: None, piece: SMALL_PIECE }
    }

    /// What tells when there is room.
    pub(crate) fn room(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.as_fd(), PollFlags::OUT)
    }

    /// Writes a piece of `bytes`, once there is room; gives how much, which is nothing if there is none after all.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match rustix::io::write(self, &bytes[..bytes.len().min(self.piece)]) {
            Ok(0) if !bytes.is_empty() => Err(Errno::IO),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            written => written,
        }
    }
}

impl AsFd for Outlet<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_ref().map_or(self.fd, AsFd::as_fd)
    }
}

fn open_again(terminal: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    if is_another_each_time(rustix::fs::fstat(terminal)?.st_rdev) {
        return Err(Errno::NXIO);
    }
    // Not by its name: `/dev/pts` of a container may be another one.
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let access = rustix::fs::fcntl_getfl(terminal)? & OFlags::RWMODE;
    rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether opening that device gives the terminal that it stands for just then: `/dev/tty`, `/dev/console`, `/dev/ptmx` (a new pty each time) and `/dev/tty0`.
fn is_another_each_time(device: Dev) -> bool {
    matches!((major(device), minor(device)), (5, 0..=2) | (4, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{Timespec, poll};
    use rustix::pty::OpenptFlags;

    /// Writes until there is no more room.
    fn fill(outlet: &Outlet<'_>) -> usize {
        let mut written = 0;
        while poll(&mut [outlet.room()], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0 {
            written += outlet.write(&[b'\n'; PIECE + 1]).unwrap();
        }
        written
    }

    #[test]
    fn who_does_not_read_keeps_nobody_waiting() {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let outlets = [
            (&theirs, Outlet::new(theirs.as_fd())),
            (&theirs, Outlet::shared(theirs.as_fd())),
            (&writer, Outlet::new(writer.as_fd())),
        ];
        for (fd, outlet) in outlets {
            assert!(fill(&outlet) > PIECE);
            rustix::termios::tcflush(&theirs, rustix::termios::QueueSelector::OFlush).unwrap();
            // Whoever shares it has it as it was.
            assert!(!rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK));
        }
    }
}
