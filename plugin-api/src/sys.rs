//! What programs of ours start without: a system call that no crate in use wraps. With [`crate::abi`] the only place of this crate with `unsafe`.

#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;

/// Has `command` inherit no descriptor but the standard three. What goes on working behind its caller would otherwise hold what that was
/// given by its own caller to hold: the locks by which `exec` says that a command runs in a branch, for instance. Kernels before 5.11 cannot
/// do that; there it inherits what it always did.
pub fn inherit_standard_only(command: &mut Command) {
    // SAFETY: what runs between fork and exec is one system call on numbers. It closes nothing, which leaves what the standard library
    // itself holds open until exec.
    unsafe {
        command.pre_exec(|| {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_a_process_was_given_is_not_handed_on() {
        let file = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("test -e /proc/self/fd/{}", file.as_raw_fd())]);
        assert!(shell.status().unwrap().success());
        inherit_standard_only(&mut shell);
        assert_eq!(shell.status().unwrap().code(), Some(1));
    }
}
