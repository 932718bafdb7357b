//! What the command shows, carried to where it is seen and to the tape.

use std::borrow::Borrow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use rustix::pipe::PipeFlags;

use crate::tape::{Source, Tape};

/// So much is still recorded of what nobody can be shown any more: the most that a pipe holds.
const REST: usize = 1 << 20;

/// Something that is carried: never blocks where it comes from.
pub(super) struct Stream<'a, From> {
    /// Where it comes from.
    pub(super) from: From,
    /// Where it is seen.
    pub(super) to: BorrowedFd<'a>,
    /// What the tape calls it.
    pub(super) source: Source,
    /// Ready to be read once no more than what is there is to be carried.
    pub(super) stop: &'a OwnedFd,
}

/// Carries until nobody can write there any more, or until it is to stop and nothing is left. Calls `unseen` once if what is shown goes nowhere
/// any more, with the reason: whether it is recorded all the same. If not, what was written by then still is, and where it comes from is let go.
pub(super) fn carry<From: Borrow<OwnedFd>>(stream: Stream<'_, From>, tape: &Tape, unseen: &dyn Fn(Errno) -> bool) {
    let Stream { from, to, source, stop } = stream;
    let from = from.borrow();
    let mut buffer = vec![0; 64 << 10];
    let (mut stopping, mut seen) = (false, true);
    loop {
        match read(from, &mut buffer) {
            // The other side of a pty is closed.
            Ok(0) | Err(Errno::IO) => return,
            Ok(count) => {
                let shown = &buffer[..count];
                if seen && let Err(error) = write_all(to, shown) {
                    seen = false;
                    if !unseen(error) {
                        tape.output(source, shown);
                        return keep_rest(from, &mut buffer, |rest| tape.output(source, rest));
                    }
                }
                tape.output(source, shown);
            }
            Err(Errno::AGAIN) if stopping => return,
            Err(Errno::AGAIN) => stopping = wait(from, stop),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Keeps what is there to be read, and no more than [`REST`]: somebody may write without end.
fn keep_rest(from: &OwnedFd, buffer: &mut [u8], keep: impl Fn(&[u8])) {
    let mut kept = 0;
    while kept < REST
        && let Ok(count @ 1..) = read(from, &mut *buffer)
    {
        keep(&buffer[..count]);
        kept += count;
    }
}

/// A pipe for what the command writes; ours is the first side, which never blocks.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(&read)?;
    rustix::fs::fcntl_setfl(&read, flags | OFlags::NONBLOCK)?;
    Ok((read, write))
}

/// Leaves standard input to the command alone: whoever writes into that pipe must see when the command reads no more.
pub(super) fn leave_input() -> io::Result<()> {
    let _ = rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?);
    Ok(())
}

/// Makes an event readable.
pub(super) fn tell(event: &OwnedFd) {
    let _ = write(event, &1u64.to_ne_bytes());
}

/// Waits for something to read; true if it is to stop after that.
fn wait(from: &OwnedFd, stop: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    let _ = poll(&mut fds, None);
    !fds[1].revents().is_empty()
}

/// Writes all of it. A descriptor that somebody else made non-blocking is waited for.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(to.as_fd(), PollFlags::OUT)];
                let _ = poll(&mut fds, None);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
