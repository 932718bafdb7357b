//! A library in a process of its own: it may crash, hang, abort or exit there as it likes.
//!
//! The process is this same program, started again with arguments that lead it to [`child_main`]; its standard input is the
//! socket over which calls come. [`check`] is the whole suite on such a library.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, ipc};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::report::{CaseReport, Report};
use crate::runner::{Options, run};
use crate::target::{Instance, Process, Target, Way};

/// What stands before the error that a child prints when it cannot load its library.
const FAULT: &str = "ah-conformance-fault: ";

/// The largest answer that is taken from a child, bytes: more than any case asks for, and small enough for what it may become in memory.
const LARGEST: u32 = 4 << 20;

/// How to start this program so that it ends up in [`child_main`]; the library's path is added as the last argument.
#[derive(Debug, Clone)]
pub struct ChildCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the library.
    pub args: Vec<OsString>,
}

/// Runs the suite on the library at `path`, in processes that `child` starts. Survives whatever the library does.
pub fn check(child: ChildCommand, path: &Path, options: &Options, each: &mut dyn FnMut(&CaseReport)) -> Report {
    let target: Arc<dyn Target> = Arc::new(ChildTarget::new(child, path, options.limit));
    run(&target, options, each)
}

/// Loads the library at `path` and serves it to the program at the other end of `socket`, until that goes away.
///
/// The caller does nothing before and nothing after but end with the status that comes back, by [`ah_host::leave`].
#[must_use]
pub fn child_main(path: &Path, socket: OwnedFd) -> u8 {
    let stream = UnixStream::from(socket);
    if let Ok(watched) = stream.try_clone() {
        std::thread::spawn(move || end_with_parent(&watched));
    }
    let served = match ah_host::load_file(path, &ah_host::Options::default()) {
        Ok(plugin) => ipc::serve(&stream, &*plugin.provider),
        Err(fault) => {
            let error = fault.to_error(path);
            // A line for the parent; if nobody reads it, there is nobody to tell.
            let text = serde_json::to_string(&error).unwrap_or_default();
            let _ = writeln!(std::io::stdout(), "\n{FAULT}{text}");
            return 3;
        }
    };
    match served {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}", crate::case::describe(&error));
            1
        }
    }
}

/// Ends this process some time after its parent is gone, even if the library hangs.
fn end_with_parent(socket: &UnixStream) {
    loop {
        // No events asked for: only the end of the other side is told.
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::empty())], PollTimeout::NONE) {
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
    }
    std::thread::sleep(Duration::from_secs(2));
    ah_host::leave(4)
}

/// A library as a target, with a process for each instance.
pub struct ChildTarget {
    child: ChildCommand,
    path: PathBuf,
    limit: Duration,
}

impl ChildTarget {
    /// The library at `path`. `limit` is for its answers, loading included.
    pub fn new(child: ChildCommand, path: impl Into<PathBuf>, limit: Duration) -> Self {
        Self { child, path: path.into(), limit }
    }
}

impl Target for ChildTarget {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn way(&self) -> Way {
        Way::Socket
    }

    fn open(&self) -> Result<Instance, Error> {
        let cannot = |what: &str, error: &std::io::Error| Error::from_io(format!("cannot {what}"), error);
        let (ours, theirs) = UnixStream::pair().map_err(|e| cannot("make a socket", &e))?;
        let mut child = Command::new(&self.child.program)
            .args(&self.child.args)
            .arg(&self.path)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that what the library may start goes with it.
            .process_group(0)
            .spawn()
            .map_err(|e| cannot(&format!("start {}", self.child.program.display()), &e))?;
        let tail = |pipe: Option<Box<dyn Read + Send>>| pipe.map(Tail::new);
        let stdout = tail(child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let stderr = tail(child.stderr.take().map(|pipe| Box::new(pipe) as _));
        let process = Arc::new(ChildProcess {
            id: child.id(),
            killed: AtomicBool::new(false),
            state: Mutex::new(State { child, stdout, stderr }),
        });
        // Twice the limit, so that the suite's own, which tells more, comes first.
        match ipc::connect_within(ours, self.name(), self.limit.saturating_mul(2), LARGEST) {
            Ok(provider) => Ok(Instance { provider: Arc::new(provider), process: Some(process) }),
            Err(error) => Err(process.why_not(error)),
        }
    }
}

struct ChildProcess {
    id: u32,
    killed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    child: Child,
    stdout: Option<Tail>,
    stderr: Option<Tail>,
}

impl ChildProcess {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it does not answer: what it printed about it, else how it ended, else what the socket says.
    fn why_not(&self, error: Error) -> Error {
        let Some(status) = self.ended_within(Duration::from_secs(1)) else {
            self.kill();
            return error;
        };
        let mut state = self.state();
        let printed = state.stdout.take().map(Tail::finish).unwrap_or_default();
        if let Some(told) = printed.lines().find_map(|line| serde_json::from_str(line.strip_prefix(FAULT)?).ok()) {
            return told;
        }
        let said = state.stderr.take().map(Tail::finish).unwrap_or_default();
        let message = format!("the process that loads the library ended: {}", fate(status, &said));
        Error::new(ErrorKind::Unavailable, message).with_cause(&error)
    }

    fn ended_within(&self, wait: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.state().child.try_wait() {
                return Some(status);
            }
            if start.elapsed() >= wait {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Process for ChildProcess {
    fn id(&self) -> u32 {
        self.id
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        let mut state = self.state();
        // Once reaped, the number may be somebody else's.
        if matches!(state.child.try_wait(), Ok(None)) {
            // A process's number is positive and fits.
            if let Ok(id) = i32::try_from(self.id) {
                let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
            }
            let _ = state.child.wait();
        }
    }

    fn fate(&self) -> Option<String> {
        if self.killed.load(Ordering::Relaxed) {
            return None;
        }
        let status = self.ended_within(Duration::from_millis(500))?;
        let said = self.state().stderr.take().map(Tail::finish).unwrap_or_default();
        Some(fate(status, &said))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn fate(status: ExitStatus, said: &str) -> String {
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = Signal::try_from(signal).map_or("unknown", Signal::as_str);
            format!("killed by signal {signal} ({name})")
        }
        (None, Some(code)) => format!("it exited with status {code}"),
        (None, None) => "in an unknown way".to_owned(),
    };
    match said.trim().lines().rev().take(3).collect::<Vec<_>>() {
        lines if lines.is_empty() => how,
        lines => format!("{how}; it wrote: {}", lines.into_iter().rev().collect::<Vec<_>>().join(" / ")),
    }
}

/// Reads a pipe to its end, and keeps the last of it.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Tail {
    const KEPT: usize = 8 << 10;

    fn new(mut pipe: Box<dyn Read + Send>) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let into = kept.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..n]);
                let over = kept.len().saturating_sub(Self::KEPT);
                kept.drain(..over);
            }
        });
        Self { kept, thread }
    }

    /// What there is, once the process has ended. Somebody else may hold the pipe open, so the wait is short.
    fn finish(self) -> String {
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(2));
        }
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}
