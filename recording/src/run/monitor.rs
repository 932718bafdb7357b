//! The process that leads the pty's session and runs the command in it.
//!
//! It does next to nothing: it hands signals on, stops when the command stops, and ends as the command ends. Should the process that records be killed, it gives the user's
//! terminal its modes back and takes a torn last line off the recording; the command gets the SIGHUP that a closed terminal gives.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP};

use super::signals::Signals;
use super::terminal::is_same;
use super::word::{Modes, Word};
use crate::sys;

/// The end of a recording that is looked through for its last whole line; an event is far shorter.
const LOOK_BACK: usize = 1 << 20;

/// Runs the command that the arguments name, after the numbers of three descriptors (`run/relay.rs`). Gives the exit status for
/// this process, which is to end with it at once. To be called first thing in a process that was started for it.
#[must_use]
pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let mut arguments = arguments;
    let mut descriptor = || {
        let number = arguments.next()?.to_str()?.parse().ok()?;
        sys::adopt(number)
    };
    let (report, outer, file) = (descriptor(), descriptor(), descriptor());
    let Some(report) = report else { return 2 };
    let begun = begin(&arguments.collect::<Vec<_>>());
    let errno = match &begun {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()),
    };
    let _ = rustix::io::write(&report, &errno.to_le_bytes());
    let Ok((signals, command, pty)) = begun else { return 127 };
    // What the command reads and writes is its alone.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
    Monitor {
        signals,
        command,
        pty,
        report,
        outer,
        taken: None,
        file: file.map(File::from),
        tidied: false,
        hung_up: false,
        expects_hangup: false,
    }
    .until_the_end()
}

fn begin(words: &[OsString]) -> io::Result<(Signals, Pid, OwnedFd)> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let signals = Signals::of_monitor()?;
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdout())?;
    let mut command = Command::new(program);
    command.args(arguments);
    let pty = rustix::stdio::stdout().try_clone_to_owned()?;
    sys::take_terminal(&mut command, pty.try_clone()?);
    let child = command.spawn()?;
    Ok((signals, Pid::from_child(&child), pty))
}

struct Monitor {
    signals: Signals,
    command: Pid,
    /// The command's side of the pty, hung up once the process that records is gone, or has said that it does that.
    pty: OwnedFd,
    /// By it the process that records says what it does; broken once that is gone.
    report: OwnedFd,
    /// Whether that has said so.
    hung_up: bool,
    /// Whether the hangup that the kernel makes of it is still to come: it is not the command's.
    expects_hangup: bool,
    /// The user's terminal.
    outer: Option<OwnedFd>,
    /// What was taken away of its modes.
    taken: Option<Modes>,
    file: Option<File>,
    tidied: bool,
}

impl Monitor {
    fn until_the_end(mut self) -> u8 {
        loop {
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            if !self.tidied {
                // Told by no signal where somebody had hangups ignored.
                fds.push(PollFd::new(&self.report, PollFlags::IN));
            }
            let _ = poll(&mut fds, None);
            let signals = self.signals.take();
            // Before the command's end is seen: the hangup that ends it comes to it and to this at once.
            self.tidy_if_left_alone();
            for signal in signals {
                match signal {
                    SIGCHLD => {
                        if let Some(status) = self.look() {
                            self.tidy_if_left_alone();
                            return status;
                        }
                    }
                    SIGCONT => self.send(Signal::CONT),
                    SIGHUP if self.expected_hangup() => {}
                    signal => Signal::from_named_raw(signal).into_iter().for_each(|signal| self.send(signal)),
                }
            }
        }
    }

    fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.command, signal);
    }

    fn look(&self) -> Option<u8> {
        let (_, status) = waitpid(Some(self.command), WaitOptions::NOHANG | WaitOptions::UNTRACED).ok()??;
        if let Some(code) = status.exit_status() {
            return Some(u8::try_from(code & 0xff).unwrap_or(1));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(u8::try_from(128 + signal).unwrap_or(1));
        }
        if status.stopped() {
            // The one signal that stops a session's leader. Whoever records sees it, and continues this when its job goes on.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            self.send(Signal::CONT);
        }
        None
    }

    /// Whether the process that records is gone. Of one that was killed the kernel closes one descriptor after the other: either may be first.
    fn left_alone(&mut self) -> bool {
        let [gone, hung_up] = [&self.report, &self.pty]
            .map(|fd| events(fd, PollFlags::empty()).intersects(PollFlags::ERR | PollFlags::HUP));
        // Said before.
        self.hear();
        gone || hung_up && !self.hung_up
    }

    /// Takes note of what the process that records has said by now.
    fn hear(&mut self) {
        while events(&self.report, PollFlags::IN).contains(PollFlags::IN)
            && let Some(word) = Word::hear(&self.report)
        {
            match word {
                // It goes on then.
                Word::HangsUp => (self.hung_up, self.expects_hangup) = (true, true),
                Word::Takes(modes) => self.taken = Some(modes),
                Word::Leaves => self.taken = None,
            }
        }
    }

    /// Whether this is the hangup that the kernel makes of a pty that is hung up by who goes on.
    fn expected_hangup(&mut self) -> bool {
        self.hear();
        std::mem::take(&mut self.expects_hangup)
    }

    /// Does once what the process that records cannot do any more.
    fn tidy_if_left_alone(&mut self) {
        if self.tidied || !self.left_alone() {
            return;
        }
        self.tidied = true;
        if self.hung_up {
            // The kernel has made one already, and makes no other.
            self.send(Signal::HUP);
        }
        if let Some((outer, modes)) = self.outer.take().zip(self.taken)
            && let Ok(now) = tcgetattr(outer.as_fd())
        {
            let saved = modes.given_to(&now);
            let mut raw = saved.clone();
            raw.make_raw();
            // Only what was done is undone: the user's shell may have set modes of its own by now.
            if is_same(&now, &raw) {
                let _ = tcsetattr(outer.as_fd(), OptionalActions::Now, &saved);
            }
        }
        if let Some(file) = self.file.take() {
            let _ = cut_torn(&file);
        }
    }
}

/// What there is now of `events` and of what is always told.
fn events(fd: &OwnedFd, events: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd, events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).map_or(PollFlags::empty(), |_| fds[0].revents())
}

/// Cuts a line off that has no end.
fn cut_torn(file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(LOOK_BACK as u64);
    let mut end = vec![0; usize::try_from(length - start).unwrap_or(0)];
    file.read_exact_at(&mut end, start)?;
    match memchr::memrchr(b'\n', &end) {
        Some(last) if last + 1 < end.len() => file.set_len(start + last as u64 + 1),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Terminal, pty};
    use std::io::Write;

    #[test]
    fn a_command_that_a_hangup_ends_is_not_faster_than_the_terminals_modes() {
        let open = || pty::open(&Terminal::of_process()).unwrap();
        let (outer, inner) = (open(), open());
        let saved = tcgetattr(&outer.theirs).unwrap();
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(&outer.theirs, OptionalActions::Now, &raw).unwrap();
        let (recorder, report) = std::os::unix::net::UnixStream::pair().unwrap();
        let recorder = OwnedFd::from(recorder);
        Word::Takes(Modes::of(&saved)).say(&recorder);
        let monitor = Monitor {
            hung_up: false,
            expects_hangup: false,
            signals: Signals::of_monitor().unwrap(),
            command: Pid::from_child(&Command::new("true").spawn().unwrap()),
            pty: inner.theirs,
            report: report.into(),
            outer: Some(outer.theirs.try_clone().unwrap()),
            taken: None,
            file: None,
            tidied: false,
        };
        // What the kernel closes first, when the process that records is killed; the command has ended by now, or soon.
        drop(inner.ours);
        assert_eq!(monitor.until_the_end(), 0);
        drop(recorder);
        assert_eq!(tcgetattr(&outer.theirs).unwrap().local_modes, saved.local_modes);
    }

    #[test]
    fn a_pty_that_is_hung_up_with_a_word_before_is_not_the_recorders_end() {
        let inner = pty::open(&Terminal::of_process()).unwrap();
        let (recorder, report) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut monitor = Monitor {
            hung_up: false,
            expects_hangup: false,
            signals: Signals::of_monitor().unwrap(),
            command: rustix::process::getpid(),
            pty: inner.theirs,
            report: report.into(),
            outer: None,
            taken: None,
            file: None,
            tidied: false,
        };
        let recorder = OwnedFd::from(recorder);
        Word::HangsUp.say(&recorder);
        drop(inner.ours);
        assert!(!monitor.left_alone() && monitor.expects_hangup);
        drop(recorder);
        assert!(monitor.left_alone());
    }

    #[test]
    fn only_a_line_without_an_end_is_cut_off() {
        for (before, after) in [("a\nb\nc", "a\nb\n"), ("a\nb\n", "a\nb\n"), ("abc", "abc"), ("", "")] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(before.as_bytes()).unwrap();
            cut_torn(file.as_file()).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), after);
        }
    }
}
