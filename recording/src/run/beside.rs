//! Running a command that has a terminal and whose standard output leads elsewhere: it keeps the terminal, and the session and process group of
//! whoever started this, as in `COMMAND | …`. Only what goes to its standard output and error passes through here, by pipes.
//!
//! So keys, prompts, stopping and continuing are between the command, the terminal and the other commands of the pipeline; nothing of
//! that is seen here, or recorded.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use ah_plugin_api::Error;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGWINCH};

use super::pump::{Ending, Stream, carry, leave_input, output_pipe};
use super::signals::{PASSED_ON, Signals};
use super::{Ended, Run, RunError, Terminal, Unwritten};
use crate::tape::{Source, Tape};

pub(super) fn run(run: &Run, terminal: &Terminal, tape: &Tape) -> Result<Ended, RunError> {
    let place = |error: io::Error| {
        RunError::Place(
            Error::from_io("there are no pipes to record by", &error)
                .with_hint("`ulimit -n` shows how many files there may be"),
        )
    };
    let signals = Signals::of_neighbour().map_err(place)?;
    let (output, its_output) = output_pipe().map_err(place)?;
    let (errors, its_errors) = match terminal.errors_with_output {
        true => (None, its_output.try_clone().map_err(place)?),
        false => output_pipe().map(|(read, write)| (Some(read), write)).map_err(place)?,
    };
    let ending = Ending::of(1 + usize::from(errors.is_some())).map_err(place)?;
    let child = start(run, its_output, its_errors)?;
    if terminal.input.is_none() {
        leave_input().map_err(place)?;
    }
    let unwritten = Unwritten::default();
    let status = std::thread::scope(|scope| {
        let (ending, unwritten) = (&ending, &unwritten);
        // Closed as soon as nobody reads, or it can be written no more: then the command sees that, too.
        let pump = |from: OwnedFd, to, source| {
            let unseen = move |error| !unwritten.note(source, to, error) && error != Errno::PIPE;
            scope.spawn(move || carry(Stream { from, to, source, ending }, tape, &unseen));
        };
        pump(output, rustix::stdio::stdout(), Source::Terminal);
        if let Some(errors) = errors {
            pump(errors, rustix::stdio::stderr(), Source::Errors);
        }
        let (status, killed) = until_the_end(&signals, Pid::from_child(&child), terminal, tape);
        ending.finish(&signals, killed);
        status
    });
    Ok(unwritten.ended(status))
}

/// Starts the command. The other sides of the pipes are its alone afterwards.
fn start(run: &Run, its_output: OwnedFd, its_errors: OwnedFd) -> Result<Child, RunError> {
    let (program, arguments) = run
        .command
        .split_first()
        .ok_or_else(|| RunError::Command(Error::from_io("there is no command", &io::ErrorKind::InvalidInput.into())))?;
    let mut command = Command::new(program);
    command.args(arguments).envs(run.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::inherit()).stdout(its_output).stderr(its_errors);
    command
        .spawn()
        .map_err(|error| RunError::Command(Error::from_io(format!("cannot run {}", program.to_string_lossy()), &error)))
}

/// How the command ended, and whether a signal did that which came here, too, or to all of the job (Ctrl-C).
fn until_the_end(signals: &Signals, command: Pid, terminal: &Terminal, tape: &Tape) -> (u8, bool) {
    let mut told: BTreeSet<i32> = BTreeSet::new();
    let mut size = terminal.size();
    loop {
        let _ = poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], None);
        let came = signals.take();
        // One that is sent to all of a job comes together with the end that it makes.
        told.extend(came.iter().copied().filter(|signal| PASSED_ON.contains(signal)).chain(signals.take_terminals()));
        for &signal in &came {
            match signal {
                SIGCHLD => {
                    let Ok(Some((_, status))) = waitpid(Some(command), WaitOptions::NOHANG) else { continue };
                    if let Some(code) = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?)) {
                        return (u8::try_from(code).unwrap_or(1), told.iter().any(|signal| code == 128 + signal));
                    }
                }
                SIGWINCH => {
                    let now = terminal.size();
                    if now != std::mem::replace(&mut size, now) && now.0 > 0 && now.1 > 0 {
                        tape.resize(now.0, now.1);
                    }
                }
                SIGCONT => {}
                signal => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        let _ = kill_process(command, signal);
                    }
                }
            }
        }
    }
}
