//! This process's part while the command runs: keys to the pty, signals to the command, and how it all ends.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use rustix::termios::Termios;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGWINCH};

use super::pty::{self, Pty};
use super::pump::{Ending, Stream, carry, leave_input, output_pipe, tell};
use super::signals::Signals;
use super::terminal::Raw;
use super::word::{Modes, Word};
use super::{Ended, Run, RunError, Terminal, Unwritten};
use crate::input::Echo;
use crate::keys::Keys;
use crate::sys;
use crate::tape::{Source, Tape};

/// So much typed input may wait for the command to read it.
const TYPED_AHEAD: usize = 64 << 10;
/// How often a job in the background looks whether it is in the foreground again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub(super) fn run(run: &Run, terminal: &Terminal, tape: &Tape, moment: &dyn Fn()) -> Result<Ended, RunError> {
    let place = |error: io::Error| {
        RunError::Place(
            Error::from_io("there is no pty to record on", &error)
                .with_hint("`ls -l /dev/ptmx; cat /proc/sys/kernel/pty/nr` shows whether there are any"),
        )
    };
    let signals = Signals::of_relay().map_err(place)?;
    let pty = pty::open(terminal).map_err(place)?;
    let (errors, its_errors) = match terminal.errors_with_output {
        true => (None, None),
        false => output_pipe().map(|(read, write)| (Some(read), Some(write))).map_err(place)?,
    };
    let Pty { ours, theirs, usual } = pty;
    let ours = Arc::new(ours);
    let (report, child) = start(run, terminal, theirs, its_errors)?;
    let ending = Ending::of(1 + usize::from(errors.is_some())).map_err(place)?;
    let unread = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| place(e.into()))?;
    let unwritable = AtomicBool::new(false);
    let mut relay = Relay {
        terminal,
        raw: None,
        usual,
        ours: Some(Arc::clone(&ours)),
        report,
        signals,
        tape,
        monitor: Pid::from_child(&child),
        input: run.input,
        keys: Keys::default(),
        typed: Vec::new(),
        passed_on: BTreeSet::new(),
        reading: terminal.input.is_some(),
        size: terminal.size(),
        unread: &unread,
        unwritable: &unwritable,
        moment,
    };
    relay.take_terminal();
    let unwritten = Unwritten::default();
    let status = std::thread::scope(|scope| {
        let (unread, unwritable, unwritten) = (&unread, &unwritable, &unwritten);
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let shown = Stream { from: ours, to: stdout, source: Source::Terminal, ending: &ending };
        let unseen = move |error| {
            let lost = unwritten.note(Source::Terminal, stdout, error);
            unwritable.store(lost, Ordering::Release);
            if lost || error == Errno::PIPE {
                tell(unread);
            }
            !lost
        };
        scope.spawn(move || carry(shown, tape, &unseen));
        if let Some(errors) = errors {
            let said = Stream { from: errors, to: stderr, source: Source::Errors, ending: &ending };
            scope.spawn(move || carry(said, tape, &|error| !unwritten.note(Source::Errors, stderr, error)));
        }
        let status = relay.until_the_end();
        ending.finish(&relay.signals, relay.passed_on.contains(&(i32::from(status) - 128)));
        status
    });
    Ok(unwritten.ended(status))
}

/// Starts the monitor, which starts the command. The other side of the pty is its alone afterwards.
fn start(
    run: &Run,
    terminal: &Terminal,
    theirs: OwnedFd,
    its_errors: Option<OwnedFd>,
) -> Result<(OwnedFd, Child), RunError> {
    let place = |error: io::Error| {
        RunError::Place(
            Error::from_io("the process that watches over the command cannot be started", &error)
                .with_hint("`ulimit -u` and `ulimit -n` show how many processes and files there may be"),
        )
    };
    let (report, its_report) = UnixStream::pair().map_err(place)?;
    let (report, its_report) = (OwnedFd::from(report), OwnedFd::from(its_report));
    // What the monitor inherits under their numbers.
    let report_number = its_report.as_raw_fd().to_string();
    let mut inherited = vec![its_report];
    let mut number = |fd: Option<&OwnedFd>| -> io::Result<String> {
        let Some(fd) = fd else { return Ok("-".to_owned()) };
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3)?;
        let number = copy.as_raw_fd().to_string();
        inherited.push(copy);
        Ok(number)
    };
    let outer = number(terminal.input.as_ref()).map_err(place)?;
    let file = number(run.file.as_ref()).map_err(place)?;
    let (program, arguments) = run.monitor.split_first().ok_or_else(|| {
        RunError::Place(Error::new(ErrorKind::Internal, "nobody said which program watches over the command"))
    })?;
    let mut command = Command::new(program);
    command.args(arguments).arg(report_number).arg(outer).arg(file).args(&run.command);
    sys::hand_over(&mut command, inherited);
    command.envs(run.env.iter().map(|(name, value)| (name, value)));
    let copy = || theirs.try_clone().map(Stdio::from).map_err(place);
    command.stdin(if terminal.input.is_some() { copy()? } else { Stdio::inherit() });
    command.stdout(copy()?);
    command.stderr(match its_errors {
        Some(errors) => Stdio::from(errors),
        None => copy()?,
    });
    let mut child = command.spawn().map_err(place)?;
    drop((command, theirs));
    if terminal.input.is_none() {
        leave_input().map_err(place)?;
    }
    match read_report(&report) {
        Some(0) => Ok((report, child)),
        errno => {
            let _ = child.wait();
            let name = run.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let Some(errno) = errno else {
                let message = "the process that watches over the command ended at once";
                return Err(RunError::Place(Error::new(ErrorKind::Internal, message)));
            };
            let error = Error::from_io(format!("cannot run {name}"), &io::Error::from_raw_os_error(errno));
            Err(RunError::Command(error))
        }
    }
}

/// The monitor's word on the command: 0, or why it cannot be run. None if it had none.
fn read_report(report: &OwnedFd) -> Option<i32> {
    let mut bytes = [0; 4];
    loop {
        match rustix::io::read(report, &mut bytes) {
            Ok(4) => return Some(i32::from_le_bytes(bytes)),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

struct Relay<'a> {
    terminal: &'a Terminal,
    /// The terminal's modes are taken away.
    raw: Option<Raw<'a>>,
    /// The pty's modes, as long as this job never had the terminal.
    usual: Option<Termios>,
    /// Our side of the pty, until it is hung up.
    ours: Option<Arc<OwnedFd>>,
    /// Open as long as this is: by it the monitor sees that this process is there, and is told what it has to know where it is gone.
    report: OwnedFd,
    signals: Signals,
    tape: &'a Tape,
    monitor: Pid,
    input: bool,
    keys: Keys,
    /// What goes to the command as soon as it reads.
    typed: Vec<u8>,
    /// The signals that were passed on to the command.
    passed_on: BTreeSet<i32>,
    /// Whether keys still come.
    reading: bool,
    size: (u16, u16),
    /// Readable once what the command shows goes nowhere.
    unread: &'a OwnedFd,
    /// Whether that is because it cannot be written, though somebody is there.
    unwritable: &'a AtomicBool,
    moment: &'a dyn Fn(),
}

impl Relay<'_> {
    fn until_the_end(&mut self) -> u8 {
        loop {
            let foreground = self.raw.is_some() || !self.reading || self.take_terminal();
            let wants_keys = self.reading && foreground && self.typed.len() < TYPED_AHEAD;
            let (keys, typed, unread);
            {
                let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(self.unread, PollFlags::IN)];
                let pty = if self.typed.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                // That the other side was closed is the pump's to see; asking for nothing would wake this all the time.
                let at = self.ours.as_deref().filter(|_| !pty.is_empty()).map(|ours| {
                    fds.push(PollFd::new(ours, pty));
                    fds.len() - 1
                });
                if let Some(input) = self.terminal.input.as_ref().filter(|_| wants_keys) {
                    fds.push(PollFd::new(input, PollFlags::IN));
                }
                let input = fds.len() - 1;
                let _ = poll(&mut fds, self.patience(foreground).as_ref());
                unread = !fds[1].revents().is_empty();
                typed = at.is_some_and(|at| !fds[at].revents().is_empty());
                keys = wants_keys && !fds[input].revents().is_empty();
            }
            if unread {
                let _ = rustix::io::read(self.unread, &mut [0; 8]);
                match self.unwritable.load(Ordering::Acquire) {
                    true => self.hang_up(),
                    // What a command gets whose output nobody reads.
                    false => drop(kill_process(self.monitor, Signal::PIPE)),
                }
            }
            if keys {
                self.read_keys();
            }
            self.keys.give_up(Instant::now(), &mut self.typed);
            if keys || typed || !self.typed.is_empty() {
                self.hand_over();
            }
            if let Some(status) = self.see_signals() {
                return status;
            }
        }
    }

    fn patience(&self, foreground: bool) -> Option<Timespec> {
        let left = match self.keys.deadline() {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None if !foreground => LOOK_AGAIN,
            None => return None,
        };
        Timespec::try_from(left).ok()
    }

    /// From now on the command's writing fails, as it would without this.
    fn hang_up(&mut self) {
        // Before it is so: else the monitor takes it for this process's end.
        Word::HangsUp.say(&self.report);
        self.ours = None;
    }

    /// Takes the terminal's modes away, if it is there to be taken.
    fn take_terminal(&mut self) -> bool {
        if self.raw.is_none()
            && self.terminal.in_foreground()
            && let Some(input) = &self.terminal.input
        {
            if let Some((usual, ours)) = self.usual.take().zip(self.ours.as_deref()) {
                // The terminal may be gone.
                let _ = pty::catch_up(ours, &usual, self.terminal);
            }
            if let Some(modes) = self.terminal.modes() {
                Word::Takes(Modes::of(&modes)).say(&self.report);
            }
            self.raw = Raw::new(input).ok();
        }
        self.terminal.in_foreground()
    }

    fn read_keys(&mut self) {
        let Some(input) = &self.terminal.input else { return };
        let mut buffer = [0; 4096];
        match rustix::io::read(input, &mut buffer) {
            Ok(0) | Err(Errno::IO) => self.reading = false,
            Ok(count) => {
                let before = self.typed.len();
                let moments = self.keys.push(&buffer[..count], Instant::now(), &mut self.typed);
                if self.input && self.typed.len() > before {
                    let echo = self.ours.as_deref().map_or(Echo::Hidden, pty::echo);
                    self.tape.input(&self.typed[before..], echo);
                }
                (0..moments).for_each(|_| (self.moment)());
            }
            // Nothing there after all, or a job in the background.
            Err(_) => {}
        }
    }

    /// Gives the command what was typed, as far as it takes it.
    fn hand_over(&mut self) {
        while !self.typed.is_empty() {
            let written = self.ours.as_deref().map_or(Err(Errno::IO), |ours| rustix::io::write(ours, &self.typed));
            match written {
                Ok(count) => drop(self.typed.drain(..count)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // Nobody is left to read it.
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Does what signals ask for; how the command ended, if it did.
    fn see_signals(&mut self) -> Option<u8> {
        for signal in self.signals.take() {
            match signal {
                SIGCHLD => {
                    let found = waitpid(Some(self.monitor), WaitOptions::NOHANG | WaitOptions::UNTRACED);
                    let Ok(Some((_, status))) = found else { continue };
                    if let Some(code) = status.exit_status() {
                        return Some(u8::try_from(code).unwrap_or(1));
                    }
                    if let Some(signal) = status.terminating_signal() {
                        return Some(u8::try_from(128 + signal).unwrap_or(1));
                    }
                    if status.stopped() {
                        self.stop();
                    }
                }
                SIGWINCH => self.resize(),
                SIGCONT => self.come_back(),
                signal => {
                    self.passed_on.insert(signal);
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        let _ = kill_process(self.monitor, signal);
                    }
                }
            }
        }
        None
    }

    fn resize(&mut self) {
        let size = self.terminal.winsize();
        if let Some(ours) = &self.ours {
            let _ = pty::resize(ours, size);
        }
        let (cols, rows) = (size.ws_col, size.ws_row);
        if (cols, rows) != self.size {
            self.size = (cols, rows);
            if cols > 0 && rows > 0 {
                self.tape.resize(cols, rows);
            }
        }
    }

    /// The command was stopped, by Ctrl-Z for instance: this is its whole job, so it stops as well.
    fn stop(&mut self) {
        // What it showed last is on its way.
        std::thread::sleep(Duration::from_millis(10));
        if let Some(raw) = &self.raw {
            raw.pause();
            Word::Leaves.say(&self.report);
        }
        // Returns when the user's shell continues the job; at once where no shell is there that could.
        let _ = kill_process_group(rustix::process::getpgrp(), Signal::TSTP);
        self.come_back();
        let _ = kill_process(self.monitor, Signal::CONT);
    }

    /// Continued, in the foreground or not.
    fn come_back(&mut self) {
        if self.terminal.in_foreground() {
            match &self.raw {
                Some(raw) => {
                    Word::Takes(Modes::of(raw.saved())).say(&self.report);
                    let _ = raw.again();
                }
                None => drop(self.take_terminal()),
            }
        } else if let Some(raw) = self.raw.take() {
            // Another job has the terminal: its modes are not ours to change until this one is back.
            raw.forget();
            Word::Leaves.say(&self.report);
        }
        self.resize();
    }
}
