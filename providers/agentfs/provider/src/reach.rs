//! The way to a store's service: found, or started, and talked to.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ah_plugin_api::ipc::Client;
use ah_plugin_api::wire::{self, Caller};
use ah_plugin_api::{Context, Dir, Done, Error, ErrorKind, Op, Reclaimed, Result, Snapshot};

use ah_provider_directory::{Mount, Mounts};
use rustix::process::Pid;

use crate::home::{self, Shelf, Shown, path_of};

/// How long the service may be silent during a call: it says every second that it is alive.
const SILENCE: Duration = Duration::from_secs(60);
/// How long it may take until it greets who connects.
const GREETING: Duration = Duration::from_secs(10);
/// How long one that starts may take until it answers.
const STARTING: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);
const WHAT: &str = "the service of AgentFS";
const PROGRAM: &str = "ah-agentfsd";

/// The services that were talked to, by their homes.
#[derive(Default)]
pub(crate) struct Reach {
    clients: Mutex<HashMap<PathBuf, Arc<Client>>>,
}

impl Caller for Reach {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let store = *fds.first().ok_or_else(|| Error::new(ErrorKind::Internal, "a call without a store"))?;
        let store = store.try_clone_to_owned().map_err(|e| Error::from_io("cannot use the store", &e))?;
        let path = path_of(&store)?;
        let store = Dir::from_fd(store, path);
        let Some(shelf) = Shelf::of(&store)? else {
            // Nothing was ever kept here.
            return match op {
                Op::List => wire::encode(&Vec::<Snapshot>::new()),
                Op::Destroy | Op::Unmount => wire::encode(&Done {}),
                Op::Reclaim => wire::encode(&Reclaimed::default()),
                _ => Err(Error::new(ErrorKind::NotFound, "this store of AgentFS holds nothing")),
            };
        };
        let home = shelf.home.unwrap_or_else(|| store.path().to_owned());
        loop {
            let client = self.client(&home, cx)?;
            // One that has ended meanwhile, before it had heard all of this, has not begun with it.
            if let Some(answer) = client.call_if_open(SILENCE, op, request, fds, cx)? {
                return Ok(answer);
            }
            self.forget(&home, &client);
        }
    }
}

impl Reach {
    fn forget(&self, home: &Path, gone: &Arc<Client>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.get(home).is_some_and(|client| Arc::ptr_eq(client, gone)) {
            clients.remove(home);
        }
    }

    /// Whether what the service of a home mounts is seen by this process: both are in one mount namespace, as far as can be told.
    pub(crate) fn shares_mounts(&self, home: &Dir, cx: &Context<'_>) -> Result<bool> {
        self.client(&path_of(home)?, cx)?;
        let Some((_, pid)) = peer_of(home)? else { return Ok(true) };
        Ok(namespace_of(pid).is_none_or(|theirs| namespace_of("self").is_some_and(|own| own == theirs)))
    }

    fn client(&self, home: &Path, cx: &Context<'_>) -> Result<Arc<Client>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(home).filter(|client| client.is_open()) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(connect(home, cx)?);
        clients.insert(home.to_owned(), Arc::clone(&client));
        Ok(client)
    }
}

/// Talks to the service of a home, which is started if it is not there.
fn connect(home: &Path, cx: &Context<'_>) -> Result<Client> {
    let missing = |e: Error| match e.kind {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::DataLoss, format!("what AgentFS kept at {} is not there any more", home.display()))
        }
        _ => e,
    };
    let dir = home::own(home).map_err(missing)?;
    let began = Instant::now();
    loop {
        cx.check_cancelled()?;
        match dial(&dir) {
            // One that is about to end hangs up: then it is started anew.
            Ok(Some(client)) => return Ok(client),
            Ok(None) => match start(home, cx) {
                // The last one takes what it has to the disk still.
                Err(error) if error.kind == ErrorKind::Busy && began.elapsed() < STARTING => {}
                started => started?,
            },
            Err(error) if error.kind != ErrorKind::Unavailable || began.elapsed() >= STARTING => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
        if began.elapsed() >= STARTING {
            return Err(Error::new(ErrorKind::Unavailable, format!("{WHAT} does not start"))
                .with_hint(format!("{} says more", home.join("log").display())));
        }
    }
}

/// Whether no service of a home listens.
pub(crate) fn is_asleep(home: &Dir) -> bool {
    matches!(peer_of(home), Ok(None))
}

/// Which mount namespace a process is in, where that may be known.
fn namespace_of(process: impl Display) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// What is to be said where the service of a home runs in a mount namespace that neither this process is in nor any from which it came: it was started within one
/// of its own, and what it mounts is seen there alone. Starts none.
pub(crate) fn elsewhere(home: &Dir) -> Option<Error> {
    let (_, pid) = peer_of(home).ok()??;
    let theirs = namespace_of(pid)?;
    let mut process = rustix::process::getpid();
    loop {
        if namespace_of(process.as_raw_nonzero()).is_some_and(|its| its == theirs) {
            return None;
        }
        match parent_of(process) {
            Some(parent) => process = parent,
            None => break,
        }
    }
    let message =
        format!("{WHAT}, process {pid}, runs in another mount namespace, and what it mounts is seen there alone");
    Some(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
        "end what works there (a command of `ah agent fs exec`, a container), then kill -TERM {pid}, and repeat: nothing is lost"
    )))
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // Behind the name, which may hold anything; the state is before it.
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?)
}

/// A connection to who listens, and their process; none if nobody does.
fn peer_of(home: &Dir) -> Result<Option<(UnixStream, i32)>> {
    // By descriptor: a socket's path is at most 107 bytes long.
    let address = format!("/proc/self/fd/{}/socket", home.as_fd().as_raw_fd());
    let stream = match UnixStream::connect(address) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(e) => return Err(Error::from_io(format!("cannot talk to {WHAT}"), &e)),
    };
    let peer = nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::PeerCredentials)
        .map_err(|e| Error::from_io(format!("cannot find out who {WHAT} is"), &e.into()))?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("{WHAT} runs as user {}", peer.uid())));
    }
    Ok(Some((stream, peer.pid())))
}

/// None if nobody listens.
fn dial(home: &Dir) -> Result<Option<Client>> {
    let Some((stream, pid)) = peer_of(home)? else { return Ok(None) };
    if is_stopped(pid) {
        let message = format!("{WHAT}, process {pid}, is stopped, and whoever looks into its branches waits for it");
        return Err(Error::new(ErrorKind::Busy, message).with_hint(format!("let it go on: kill -CONT {pid}")));
    }
    if is_dying(pid) {
        cut(&connections(&path_of(home)?), pid);
        return Err(Error::new(ErrorKind::Unavailable, format!("{WHAT}, process {pid}, was killed and does not end")));
    }
    let began = Instant::now();
    match Client::open(stream, WHAT, None, GREETING) {
        Ok((client, _)) => Ok(Some(client)),
        Err(_) if began.elapsed() >= GREETING => {
            let message =
                format!("{WHAT}, process {pid}, does not answer, and whoever looks into its branches waits for it");
            Err(Error::new(ErrorKind::Busy, message)
                .with_hint(format!("repeat it; or end that, and the next command starts another: kill -KILL {pid}")))
        }
        Err(error) if error.kind == ErrorKind::Unsupported => {
            Err(error.with_hint(format!("end the service, which is of another version: kill -TERM {pid}; then repeat")))
        }
        Err(error) => Err(error),
    }
}

/// Whether a process was stopped by a signal. Who traces it stops it for moments, and lets it go on.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Whether a process was killed, and a thread of it goes on: it waits for a filesystem that the process itself served, and could wait for ever.
pub(crate) fn is_dying(pid: i32) -> bool {
    let has_ended = |thread: &Path| {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
        // Behind the name, which may hold anything.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    };
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    process.join("stat").exists()
        && has_ended(&process)
        && threads.map(|thread| thread.path()).any(|it| !has_ended(&it))
}

/// The connections of what a home's service has mounted, each as the file that cuts it, where the system lets that be done. They stay these
/// connections', also when another has the number, and when nothing is mounted any more but somebody still waits in there.
pub(crate) fn connections(home: &Path) -> Vec<File> {
    let Ok(mounts) = Mounts::read() else { return Vec::new() };
    let its = |mount: &&Mount| Shown::parse(&mount.source).is_some_and(|shown| shown.home == home);
    let open = |mount: &Mount| {
        let minor = mount.device.rsplit(':').next().unwrap_or_default();
        File::options().write(true).open(format!("/sys/fs/fuse/connections/{minor}/abort")).ok()
    };
    mounts.iter().filter(its).filter_map(open).collect()
}

/// Cuts a dying service's connections: who waits for it, goes on. One that follows begins only when this has ended.
pub(crate) fn cut<'a>(connections: impl IntoIterator<Item = &'a File>, service: i32) {
    if is_dying(service) {
        for mut connection in connections {
            let _ = connection.write_all(b"1");
        }
    }
}

/// The program that the service is.
///
/// # Errors
/// `Unavailable` if it is not installed.
pub(crate) fn service_program() -> Result<PathBuf> {
    let here = std::env::current_exe().map_err(|e| Error::from_io("cannot find out which program this is", &e))?;
    let folder = here.parent().unwrap_or(Path::new("/"));
    let mut places = vec![folder.join(PROGRAM)];
    // A test's program lies one folder deeper than what is built.
    if folder.ends_with("deps") {
        places.extend(folder.parent().map(|above| above.join(PROGRAM)));
    }
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, format!("its service, {PROGRAM}, is not in {}", folder.display()))
            .with_hint("install it beside ah")
    })
}

/// `fuser` has a buffer of 16 MiB for each thread of each mount, of which little is ever used. Left to itself, glibc takes them from its own
/// heaps once one was given back, where each is written to as a whole and none is given back again. Source: `mallopt(3)`, which says of
/// the first that it moves; bytes.
const MALLOC: &str = "glibc.malloc.mmap_threshold=8388608:glibc.malloc.trim_threshold=16777216";

/// Starts the service, and waits until it listens or says why it does not.
fn start(home: &Path, cx: &Context<'_>) -> Result<()> {
    let failed = |e: &std::io::Error| Error::from_io(format!("cannot start {WHAT}"), e);
    let mut command = Command::new(service_program()?);
    command.arg("--start").arg(home).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // For fusermount3.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()));
    command.env("GLIBC_TUNABLES", MALLOC);
    // It lives on behind whoever called: no lock of theirs is for it to hold.
    ah_plugin_api::sys::work_behind(&mut command);
    let mut child = command.spawn().map_err(|e| failed(&e))?;
    let began = Instant::now();
    // What it says fits into a pipe.
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| failed(&e))? {
            break status;
        }
        let waited = if began.elapsed() >= STARTING {
            Err(Error::new(ErrorKind::Unavailable, format!("{WHAT} does not come to an answer"))
                .with_hint(format!("{} says more", home.join("log").display())))
        } else {
            cx.check_cancelled()
        };
        if let Err(error) = waited {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_end(&mut said).map_err(|e| failed(&e))?;
    }
    Err(wire::decode::<Error>(&said).unwrap_or_else(|_| {
        Error::new(ErrorKind::Unavailable, format!("{WHAT} ended at its start ({status})"))
            .with_hint(format!("{} says more", home.join("log").display()))
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn of_a_service_of_another_version_the_hint_names_its_process_and_no_others() {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("socket")).unwrap();
        let serves = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            // A frame of kind 1, Hello: `{"version": 2}` in CBOR.
            stream.write_all(b"\x0a\0\0\0\x01\0\0\0\xa1\x67version\x02").unwrap();
        });
        let error = dial(&Dir::open(home.path()).unwrap()).err().unwrap();
        serves.join().unwrap();
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        let ends = format!("kill -TERM {};", std::process::id());
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(&ends) && !hint.contains("pkill")), "{error:?}");
    }
}
