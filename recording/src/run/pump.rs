//! What the command shows, carried to where it is seen and to the tape.

use std::borrow::Borrow;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use rustix::pipe::PipeFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::signals::Signals;
use crate::outlet::Outlet;
use crate::tape::{Source, Tape};

/// So much is still there when a command has ended, or can be shown to nobody any more: the most that a pipe holds.
const REST: usize = 1 << 20;

/// So long after the last byte that somebody took the next one is waited for, where a signal has ended the command.
const PATIENCE: Duration = Duration::from_secs(3);

/// What those who carry a command's output are told when it has ended.
#[derive(Debug)]
pub(super) struct Ending {
    /// Readable once no more than what is there is to be carried.
    stop: OwnedFd,
    /// The same, to look at without a call.
    stopping: AtomicBool,
    /// Readable once nobody is waited for any more who does not read it.
    give_up: OwnedFd,
    /// Readable once all of it is carried.
    over: OwnedFd,
    /// So many still carry.
    carrying: AtomicUsize,
    /// When somebody took something last.
    taken: Mutex<Instant>,
}

impl Ending {
    /// For so many streams.
    pub(super) fn of(streams: usize) -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC);
        Ok(Self {
            stop: event()?,
            stopping: AtomicBool::new(false),
            give_up: event()?,
            over: event()?,
            carrying: AtomicUsize::new(streams),
            taken: Mutex::new(Instant::now()),
        })
    }

    /// Has all carried that is there, and waits for that; one who reads slowly gets it all. Not without end where nobody reads it, a terminal that is frozen for instance: if
    /// a signal has `killed` the command, whoever sent that wants it to be over, and so does who sends one now.
    pub(super) fn finish(&self, signals: &Signals, killed: bool) {
        self.stopping.store(true, Ordering::Release);
        tell(&self.stop);
        self.note_taken();
        loop {
            let left = killed.then(|| PATIENCE.saturating_sub(self.untaken_for()));
            let mut fds = [PollFd::new(&self.over, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let _ = poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref());
            if !fds[0].revents().is_empty() {
                return;
            }
            let came = [signals.take(), signals.take_terminals()].concat();
            let asked = came.iter().any(|signal| [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(signal));
            if asked || left.is_some_and(|left| left.is_zero()) {
                return tell(&self.give_up);
            }
        }
    }

    fn note_taken(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn untaken_for(&self) -> Duration {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// Tells that one carries no more, when it is dropped.
struct Carrying<'a>(&'a Ending);

impl Drop for Carrying<'_> {
    fn drop(&mut self) {
        if self.0.carrying.fetch_sub(1, Ordering::AcqRel) == 1 {
            tell(&self.0.over);
        }
    }
}

/// Something that is carried: never blocks where it comes from.
pub(super) struct Stream<'a, From> {
    /// Where it comes from.
    pub(super) from: From,
    /// Where it is seen.
    pub(super) to: BorrowedFd<'a>,
    /// What the tape calls it.
    pub(super) source: Source,
    /// How it ends.
    pub(super) ending: &'a Ending,
}

/// Carries until nobody can write there any more, or until it is to stop and nothing is left of what was there then. Calls `unseen` once if what is shown goes nowhere
/// any more, with the reason (`CANCELED`: it was given up): whether it is recorded all the same. If not, what was written by then still is, and where it comes from is let go.
pub(super) fn carry<From: Borrow<OwnedFd>>(stream: Stream<'_, From>, tape: &Tape, unseen: &dyn Fn(Errno) -> bool) {
    let Stream { from, to, source, ending } = stream;
    let _carrying = Carrying(ending);
    let (from, to) = (from.borrow(), Outlet::new(to));
    let mut buffer = vec![0; 64 << 10];
    let (mut rest, mut seen) = (REST, true);
    loop {
        // In this order: what was there when it was to stop is read.
        let stopping = ending.stopping.load(Ordering::Acquire);
        match read(from, &mut buffer) {
            // The other side of a pty is closed.
            Ok(0) | Err(Errno::IO) => return,
            Ok(count) => {
                let shown = &buffer[..count];
                if seen && let Err(error) = write_all(&to, shown, ending) {
                    seen = false;
                    if !unseen(error) {
                        tape.output(source, shown);
                        return keep_rest(from, &mut buffer, |rest| tape.output(source, rest));
                    }
                }
                tape.output(source, shown);
                // What the command has left behind may write without end.
                rest -= if stopping { count.min(rest) } else { 0 };
                if rest == 0 {
                    return;
                }
            }
            Err(Errno::AGAIN) if stopping => return,
            Err(Errno::AGAIN) => wait(from, &ending.stop),
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

/// Waits for something to read, or until it is to stop.
fn wait(from: &OwnedFd, stop: &OwnedFd) {
    let _ = poll(&mut [PollFd::new(from, PollFlags::IN), PollFd::new(stop, PollFlags::IN)], None);
}

/// Writes all of it, as it is taken; `CANCELED` where that is given up and there is no room.
fn write_all(to: &Outlet<'_>, mut bytes: &[u8], ending: &Ending) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let mut fds = [to.room(), PollFd::new(&ending.give_up, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        let [room, given_up] = fds.map(|fd| !fd.revents().is_empty());
        let taken = if room { to.write(bytes)? } else { 0 };
        if taken > 0 {
            ending.note_taken();
            bytes = &bytes[taken..];
        } else if given_up {
            return Err(Errno::CANCELED);
        }
    }
    Ok(())
}
