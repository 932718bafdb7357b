//! Signals as something to wait for beside descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::{SigId, low_level};

use crate::sys;

/// The signals that are passed on to the command.
pub(super) const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM];

/// Whether each of some signals came.
type Flags = Vec<(i32, Arc<AtomicBool>)>;

/// Listens for signals until it is dropped.
pub(crate) struct Signals {
    woken: UnixStream,
    wake: UnixStream,
    flags: Flags,
    /// Those of a terminal, where the command gets them too.
    terminals: Flags,
    registered: Vec<SigId>,
}

impl Signals {
    /// Those that this process passes on, and those that it needs itself. One that is only passed on stays ignored if whoever started this had it ignore it.
    pub(super) fn of_relay() -> io::Result<Self> {
        Self::listen([SIGCHLD, SIGWINCH, SIGCONT].into_iter().chain(PASSED_ON))
    }

    /// As [`Signals::of_relay`], for who shares its process group with the command: what a terminal sends to all of that is heard apart.
    pub(super) fn of_neighbour() -> io::Result<Self> {
        let terminals = [SIGHUP, SIGINT, SIGQUIT];
        let mut this = Self::listen(
            [SIGCHLD, SIGWINCH, SIGCONT].into_iter().chain(PASSED_ON).filter(|signal| !terminals.contains(signal)),
        )?;
        let sent = this.add(&terminals, sys::flag_if_sent)?;
        this.flags.extend(sent);
        this.terminals = this.add(&terminals, sys::flag_if_terminals)?;
        Ok(this)
    }

    /// Those of the monitor; the relay sends it a SIGPIPE as well, when nobody reads any more.
    pub(super) fn of_monitor() -> io::Result<Self> {
        Self::listen([SIGCHLD, SIGCONT, SIGPIPE].into_iter().chain(PASSED_ON))
    }

    /// Those that end a replay.
    pub(crate) fn of_player() -> io::Result<Self> {
        Self::listen([SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter())
    }

    fn listen(signals: impl Iterator<Item = i32>) -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut this = Self { woken, wake, flags: Vec::new(), terminals: Vec::new(), registered: Vec::new() };
        this.flags = this.add(&signals.collect::<Vec<_>>(), signal_hook::flag::register)?;
        Ok(this)
    }

    fn add(
        &mut self,
        signals: &[i32],
        register: impl Fn(i32, Arc<AtomicBool>) -> io::Result<SigId>,
    ) -> io::Result<Flags> {
        let (ignored, mut flags) = (ignored(), Flags::new());
        // Of a child's end nobody hears who ignores that signal, and nobody could ask how it ended.
        let heard = |signal: &i32| !PASSED_ON.contains(signal) || ignored & (1 << (signal - 1)) == 0;
        for &signal in signals.iter().filter(|signal| heard(signal)) {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: whoever is woken finds the flag.
            self.registered.push(register(signal, Arc::clone(&flag))?);
            self.registered.push(low_level::pipe::register(signal, self.wake.try_clone()?)?);
            flags.push((signal, flag));
        }
        Ok(flags)
    }

    /// The signals that came since the last call, but for [`Signals::take_terminals`].
    pub(crate) fn take(&self) -> Vec<i32> {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
        taken(&self.flags)
    }

    /// Those that a terminal sent since the last call, to the command as well. To be called after [`Signals::take`].
    pub(super) fn take_terminals(&self) -> Vec<i32> {
        taken(&self.terminals)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

fn taken(flags: &Flags) -> Vec<i32> {
    flags.iter().filter(|(_, flag)| flag.swap(false, Ordering::AcqRel)).map(|(signal, _)| *signal).collect()
}

/// The signals that this process was started to ignore, as a bit each; none where `/proc` is missing.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
