//! What needs `unsafe`: a descriptor that was inherited by number, and what runs between fork and exec, or in a signal's handler.
//!
//! - [`adopt`] takes a descriptor that the process was started with, once, under the number it was told.
//! - [`hand_over`] lets a new process have descriptors that no other one gets, whatever is started at the same time.
//! - [`take_terminal`] makes a new process the foreground of its terminal before its program runs.
//! - [`flag_if_sent`] and [`flag_if_terminals`] hear of a signal that a process sends, or a terminal.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::SigId;

/// Takes over the descriptor of that number, and closes it for programs that this one starts. `None` if none is open under it,
/// or if it is one of the standard ones. Call it once for each, before anything else is opened.
pub(crate) fn adopt(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: it is borrowed only for the question whether it is open at all.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(open, rustix::io::FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, was inherited under this number for this process alone to use, and is taken once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lets `command` have these descriptors under the numbers that they have here. In this process they stay closed for programs: another
/// thread may start one at any time, the worker that takes snapshots for instance, which must hold neither a lock nor a terminal.
pub(crate) fn hand_over(command: &mut Command, descriptors: Vec<OwnedFd>) {
    // SAFETY: what runs between fork and exec makes system calls only, fcntl on descriptors that the closure keeps open.
    unsafe {
        command.pre_exec(move || {
            for descriptor in &descriptors {
                rustix::io::fcntl_setfd(descriptor.as_fd(), rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// Has `command` run in a process group of its own, which is the foreground of the terminal that is its standard output's.
pub(crate) fn take_terminal(command: &mut Command, terminal: OwnedFd) {
    command.process_group(0);
    // SAFETY: what runs between fork and exec makes system calls only: sigprocmask, getpid and an ioctl, on values made before.
    unsafe {
        command.pre_exec(move || {
            // Whoever is not the foreground yet and makes itself that is stopped by this signal, unless it is blocked.
            let mut blocked = SigSet::empty();
            blocked.add(Signal::SIGTTOU);
            blocked.thread_block().map_err(io::Error::from)?;
            let done = rustix::termios::tcsetpgrp(&terminal, rustix::process::getpid());
            blocked.thread_unblock().map_err(io::Error::from)?;
            done.map_err(io::Error::from)
        });
    }
}

/// Sets `flag` whenever a process sends that signal, and not when a terminal does (Ctrl-C, a line that is hung up).
pub(crate) fn flag_if_sent(signal: i32, flag: Arc<AtomicBool>) -> io::Result<SigId> {
    flag_if(false, signal, flag)
}

/// Sets `flag` whenever a terminal sends that signal, and not when a process does.
pub(crate) fn flag_if_terminals(signal: i32, flag: Arc<AtomicBool>) -> io::Result<SigId> {
    flag_if(true, signal, flag)
}

/// A terminal's have `SI_KERNEL` as their origin (`isig` and `tty_signal_session_leader` in the kernel).
fn flag_if(terminals: bool, signal: i32, flag: Arc<AtomicBool>) -> io::Result<SigId> {
    // SAFETY: what runs in the handler looks at a number and sets a flag.
    unsafe {
        signal_hook_registry::register_sigaction(signal, move |info| {
            if (info.si_code == nix::libc::SI_KERNEL) == terminals {
                flag.store(true, Ordering::Release);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_handed_over_is_for_that_process_alone() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let test = format!("test -e /proc/self/fd/{}", file.as_raw_fd());
        let copy = rustix::io::fcntl_dupfd_cloexec(&file, 3).unwrap();
        let theirs = format!("test -e /proc/self/fd/{}", copy.as_raw_fd());
        let shell = |test: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", test]);
            shell
        };
        let mut given = shell(&theirs);
        hand_over(&mut given, vec![copy]);
        assert!(given.status().unwrap().success());
        // Neither before nor after, for anything that is started beside it.
        assert!(!shell(&theirs).status().unwrap().success() && !shell(&test).status().unwrap().success());
    }
}
