//! The one place of this crate with `unsafe`: running something in a child process that may crash, something as this one ends, and ending this one at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid};

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It came to its end.
    Finished,
    /// A signal ended the process.
    Signal(Signal),
    /// It ended the process itself.
    Exit(i32),
    /// It was stopped after the limit.
    TimedOut,
}

/// Runs `work` in a copy of this process, for at most `limit`.
///
/// The copy has only the calling thread. `work` must not depend on locks that another thread may have held, which is why this is done before
/// threads are started; should it block all the same, the limit ends it. It reads and writes no terminal, leaves no core file, and
/// ends with its parent. Processes that it started are killed when it is over, but for those that left its process group.
pub(crate) fn in_child(limit: Duration, work: impl FnOnce()) -> io::Result<Ending> {
    let (mut said, mut says) = io::pipe()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let parent = nix::unistd::getpid();
    // SAFETY: the child runs `work` and `_exit`s without returning from here. glibc keeps its allocator usable in the
    // child of a process with threads; other locks are the caller's matter, as said above.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => {
            drop(said);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                prepare(parent, &null);
                work();
                let _ = says.write_all(b".");
            }));
            // SAFETY: ends the process at once; neither this program's nor the library's exit handlers run.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(says);
            let finished = wait_readable(&said, limit) && said.read(&mut [0]).is_ok_and(|read| read == 1);
            // Also when it has finished: threads that the library started may be running in it, and processes beside it.
            let timed_out = !finished && !ended(child);
            let _ = killpg(child, Signal::SIGKILL);
            // It may have left the group itself.
            let _ = kill(child, Signal::SIGKILL);
            let status = wait(child);
            Ok(match status {
                _ if finished => Ending::Finished,
                _ if timed_out => Ending::TimedOut,
                Some(WaitStatus::Signaled(_, signal, _)) => Ending::Signal(signal),
                Some(WaitStatus::Exited(_, code)) => Ending::Exit(code),
                // Somebody else of this process waits for all children; how it ended is lost.
                _ => Ending::Exit(-1),
            })
        }
    }
}

/// Ends this process at once, with `text` on stderr: neither its exit handlers run nor those of libraries.
pub(crate) fn end(text: &str, code: u8) -> ! {
    // Not by way of the standard library's stderr, whose lock another thread may have. Who has closed it hears nothing.
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    exit(code)
}

/// Ends this process at once and without a word, as [`end`] does.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: ends the process at once.
    unsafe { nix::libc::_exit(code.into()) }
}

fn prepare(parent: Pid, null: &File) {
    use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // By which what it starts is found.
    let _ = rustix::process::setpgid(None, None);
    // A limit on core files would not keep the crash from a handler that the system pipes core files to.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = rustix::stdio::dup2_stdin(null);
    let _ = rustix::stdio::dup2_stdout(null);
    let _ = rustix::stdio::dup2_stderr(null);
    // The parent may have ended before its death signal was asked for.
    if nix::unistd::getppid() != parent {
        std::process::abort();
    }
}

/// Has `handler` run when this process ends by `exit`, or as `main` returns. If the system has no room for it, it does not run.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler is a function of this program, which is there until the process is gone, and takes and gives nothing.
    let _ = unsafe { nix::libc::atexit(handler) };
}

/// Waits until `fd` has something to say, or is closed on the other side.
fn wait_readable(fd: &impl AsFd, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// Whether the child has ended, or is ending; it is not waited for yet.
fn ended(child: Pid) -> bool {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    // The pipe is closed a little before the process can be waited for.
    for _ in 0..100 {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(child), flags) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(_) => return true,
        }
    }
    false
}

fn wait(child: Pid) -> Option<WaitStatus> {
    loop {
        match waitpid(child, None) {
            Err(nix::errno::Errno::EINTR) => {}
            status => return status.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_is_told_from_the_others() {
        let limit = Duration::from_secs(20);
        assert_eq!(in_child(limit, || {}).unwrap(), Ending::Finished);
        assert_eq!(in_child(limit, || std::process::abort()).unwrap(), Ending::Signal(Signal::SIGABRT));
        assert_eq!(in_child(limit, || std::process::exit(7)).unwrap(), Ending::Exit(7));
        let forever = || std::thread::sleep(Duration::from_secs(3600));
        assert_eq!(in_child(Duration::from_millis(50), forever).unwrap(), Ending::TimedOut);
    }

    #[test]
    fn what_the_child_started_ends_with_it() {
        let sleeper = |out: &io::PipeWriter| {
            let started = std::process::Command::new("sleep").arg("60").stdout(out.try_clone().unwrap()).spawn();
            std::mem::forget(started.unwrap());
        };
        let forever = || std::thread::sleep(Duration::from_secs(3600));
        let endings: [(u64, &dyn Fn(), Ending); 4] = [
            (20_000, &|| {}, Ending::Finished),
            (20_000, &|| std::process::abort(), Ending::Signal(Signal::SIGABRT)),
            (20_000, &|| std::process::exit(7), Ending::Exit(7)),
            (500, &forever, Ending::TimedOut),
        ];
        for (limit, then, ending) in endings {
            let (from, out) = io::pipe().unwrap();
            let work = || {
                sleeper(&out);
                then();
            };
            assert_eq!(in_child(Duration::from_millis(limit), work).unwrap(), ending);
            drop(out);
            assert!(wait_readable(&from, Duration::from_secs(20)), "{ending:?}: nobody has it open any more");
        }
    }

    #[test]
    fn a_panic_ends_the_child_only() {
        assert_eq!(in_child(Duration::from_secs(20), || panic!("here")).unwrap(), Ending::Exit(0));
    }
}
