//! The one place of this crate with `unsafe`: asking the kernel for a lease.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Whether somebody else has a file open, maps it or runs it, whoever and wherever they are: a write lease is to be had only by who has
/// it alone, and is given back at once. `EACCES` for another user's file without `CAP_LEASE`; `EINVAL` where there are none.
pub(crate) fn is_open_elsewhere(file: impl AsFd) -> Result<bool, Errno> {
    use linux_raw_sys::general::{F_SETLEASE, F_SETSIG};
    let call = |command: u32, argument: libc::c_int| {
        // SAFETY: these commands of fcntl(2) take an integer; the descriptor is borrowed until after the call.
        match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command.cast_signed(), argument) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    };
    // Whoever opens it in that moment waits, and the kernel says so by a signal: one that does nothing unless somebody asks for it.
    call(F_SETSIG, libc::SIGURG)?;
    match call(F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => call(F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(Errno::AGAIN | Errno::BUSY | Errno::TXTBSY) => Ok(true),
        Err(errno) => Err(errno),
    }
}
