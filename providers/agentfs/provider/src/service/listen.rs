//! The service as a process: started once for a home, listening in it, and ending by itself.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{Dir, Error, ErrorKind, Result, ipc};
use ah_provider_directory::failed;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Service, mourner};
use crate::home;

/// With nothing mounted and nobody connected, it ends after that time.
const IDLE: Duration = Duration::from_secs(30);
/// A caller that asks for nothing for so long is hung up on: it calls again when it needs to.
const SILENT: Duration = Duration::from_secs(10);
/// So long a call may go on without a look at whether it shall stop, before it is taken for one that hangs.
const LONGEST: Duration = Duration::from_secs(600);
/// How often it is looked at whether it shall end.
const TICK: Duration = Duration::from_millis(500);
/// So long one that is about to end is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Providers are used to the stack of a main thread.
const STACK: usize = 8 << 20;
/// A log that is longer begins anew.
const LONGEST_LOG: u64 = 1 << 20;

/// Starts the service of a home as a process of its own, and waits until it listens. If it does not, the error is on stdout, in the
/// encoding of the contract.
///
/// # Errors
/// If it cannot be started at all.
pub fn start(home: &Path) -> Result<ExitCode> {
    home::own(home)?;
    let failed = |e: &std::io::Error| Error::from_io("cannot start the service of AgentFS", e);
    let log = home.join("log");
    let too_long = std::fs::symlink_metadata(&log).is_ok_and(|log| log.len() > LONGEST_LOG);
    let log = OpenOptions::new()
        .create(true)
        .append(!too_long)
        .write(true)
        .truncate(too_long)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(log)
        .map_err(|e| failed(&e))?;
    let mut child = Command::new(std::env::current_exe().map_err(|e| failed(&e))?)
        .arg("--serve")
        .arg(home)
        // Or each mount would begin with looking for it.
        .env("FUSERMOUNT_PATH", "fusermount3")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|e| failed(&e))?;
    let mut said = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_end(&mut said).map_err(|e| failed(&e))?;
    }
    if said.is_empty() && child.try_wait().map_err(|e| failed(&e))?.is_none_or(|status| status.success()) {
        return Ok(ExitCode::SUCCESS);
    }
    let _ = std::io::stdout().write_all(&said);
    Ok(ExitCode::FAILURE)
}

/// Is the service of a home, until it is not needed any more or told to end.
///
/// # Errors
/// Those of [`Service::open`]; `Unavailable` if it cannot listen.
pub fn run(home: &Path) -> Result<()> {
    let cannot = |e: std::io::Error| Error::from_io("the service of AgentFS cannot begin", &e);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(cannot)?;
    }
    // A terminal that is closed, or a group of processes that is killed, is not this one's.
    let _ = rustix::process::setsid();
    // Each branch takes some descriptors, each open file below one more.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let home = home::own(home)?;
    let Some(_alone) = alone(&home)? else { return Ok(()) };
    let service = Service::open(Dir::open(home.path())?)?;
    let listener = listen(&home)?;
    say_ready().map_err(|errno| failed("the service of AgentFS cannot begin", errno))?;
    mourner::start(home.path());
    serve(listener, &home, &service, &stop);
    service.close();
    Ok(())
}

/// The lock of the one service of a home; none if there is one that listens.
pub(super) fn alone(home: &Dir) -> Result<Option<std::os::fd::OwnedFd>> {
    let cannot = |errno| failed("cannot lock the home of AgentFS", errno);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(home, "service.lock", flags, Mode::RUSR | Mode::WUSR).map_err(cannot)?;
    let began = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        if UnixStream::connect(address(home)).is_ok() {
            return Ok(None);
        }
        if began.elapsed() >= PATIENCE {
            return Err(Error::new(ErrorKind::Busy, "another service of AgentFS has this home, and does not answer"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// By descriptor: a socket's path is at most 107 bytes long.
fn address(home: &Dir) -> String {
    format!("/proc/self/fd/{}/socket", home.as_fd().as_raw_fd())
}

fn listen(home: &Dir) -> Result<UnixListener> {
    // What a killed one left; the lock says that nobody listens there.
    let _ = rustix::fs::unlinkat(home, "socket", AtFlags::empty());
    UnixListener::bind(address(home)).map_err(|e| Error::from_io("the service of AgentFS cannot listen", &e))
}

/// Closes stdout, at which the one that started this waits.
fn say_ready() -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(null)
}

/// Answers who connects until it shall end, and who is left then.
fn serve(listener: UnixListener, home: &Dir, service: &Service, stop: &std::sync::atomic::AtomicBool) {
    let connections = AtomicUsize::new(0);
    // What waits for a disk is done all the same: nobody is to be told that it failed.
    let bounds = ipc::Bounds { idle: Some(SILENT), alive: Some(LONGEST), ..ipc::Bounds::default() };
    let mut needed = Instant::now();
    std::thread::scope(|scope| {
        let mut streams: Vec<std::sync::Weak<UnixStream>> = Vec::new();
        loop {
            let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            let mut polled = [PollFd::new(&listener, PollFlags::IN)];
            let ready = rustix::event::poll(&mut polled, Some(&tick)).unwrap_or(0) > 0;
            if stop.load(Ordering::Relaxed) || !service.is_there() {
                break;
            }
            let accepted = ready.then(|| listener.accept());
            if let Some(Err(_)) = accepted {
                // Out of descriptors, say: it stays ready.
                std::thread::sleep(TICK);
            }
            if let Some(Ok((stream, _))) = accepted {
                let stream = Arc::new(stream);
                streams.retain(|stream| stream.strong_count() > 0);
                streams.push(Arc::downgrade(&stream));
                connections.fetch_add(1, Ordering::Relaxed);
                let connections = &connections;
                let work = move || {
                    if is_mine(&stream) {
                        // What the client did against the protocol it has been told.
                        let _ = ipc::serve_within(&stream, service, bounds);
                    }
                    connections.fetch_sub(1, Ordering::Relaxed);
                };
                let thread = std::thread::Builder::new().name("connection".to_owned()).stack_size(STACK);
                if thread.spawn_scoped(scope, work).is_err() {
                    connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
            // In any case: a mount that nobody serves any more, since all its threads have panicked, is let go by that, and who waits for it is told.
            let is_idle = service.is_idle();
            if connections.load(Ordering::Relaxed) > 0 || !is_idle {
                needed = Instant::now();
            } else if needed.elapsed() >= IDLE {
                break;
            }
        }
        // Nobody finds it any more; who connected before is hung up on, and starts another, which waits for the lock.
        let _ = rustix::fs::unlinkat(home, "socket", AtFlags::empty());
        drop(listener);
        // Calls that run are cancelled, and their threads end.
        for stream in streams.iter().filter_map(std::sync::Weak::upgrade) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    });
}

fn is_mine(stream: &UnixStream) -> bool {
    nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials)
        .is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}
