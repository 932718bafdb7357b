//! The socket, and a thread for each connection.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ah_plugin_api::ipc::{self, Bounds};
use ah_plugin_api::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::accounts;
use crate::audit::What;
use crate::closing::Closers;
use crate::keeper::{Keeper, STACK};
use crate::peer::Peer;
use crate::policy::Session;
use crate::state::is_dying;

/// How long a client may take to say what it wants, and between two calls; and how much it may say: more than label, attributes and rules ever are.
const BOUNDS: Bounds =
    Bounds { hello: Duration::from_secs(5), idle: Some(Duration::from_secs(600)), largest: 256 << 10, alive: None };
/// A pause when the system has nothing to give: descriptors, memory.
const BREATH: Duration = Duration::from_millis(100);
/// So often it is tried to connect to a socket at which too many wait, a breath apart.
const ATTEMPTS: u32 = 10;

/// Listens at `path`, which everybody may connect to.
pub(crate) fn bind(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    let failed = |what: &str, e: &std::io::Error| Error::from_io(format!("cannot {what} {shown}"), e);
    let folder = path.parent().filter(|folder| folder.is_absolute()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("{shown} is not an absolute path of a socket"))
    })?;
    match std::fs::DirBuilder::new().mode(0o755).create(folder) {
        Ok(()) => std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("open the folder of", &e))?,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(failed("make the folder of", &e)),
    }
    ah_host::roots_own(folder).map_err(|untrusted| {
        Error::new(ErrorKind::PermissionDenied, format!("{shown} is no place for root's socket: {untrusted}"))
    })?;
    match std::fs::symlink_metadata(path) {
        Ok(at) if at.file_type().is_socket() => {
            if is_listened_at(path) {
                return Err(Error::new(ErrorKind::Busy, format!("another program listens at {shown}")));
            }
            std::fs::remove_file(path).map_err(|e| failed("replace", &e))?;
        }
        Ok(_) => return Err(Error::new(ErrorKind::AlreadyExists, format!("{shown} is no socket"))),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(|e| failed("listen at", &e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(|e| failed("open", &e))?;
    Ok(listener)
}

/// Whether a program is there that accepts connections.
///
/// A process that was killed keeps its socket until its last thread has ended, and one that a user has had wait in a directory of theirs may never end:
/// whoever connects waits for ever. Who does not even take what waits to be accepted is no other.
fn is_listened_at(path: &Path) -> bool {
    let connect = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(UnixStream::from(socket))
    };
    for _ in 0..ATTEMPTS {
        match connect() {
            // Of who listens, since nobody has accepted.
            Ok(stream) => return !Peer::of(&stream).is_ok_and(|who| u32::try_from(who.pid).is_ok_and(is_dying)),
            Err(Errno::AGAIN) => std::thread::sleep(BREATH),
            Err(_) => return false,
        }
    }
    false
}

/// Takes over a socket that this program was started with.
pub(crate) fn adopt(fd: OwnedFd) -> Result<UnixListener> {
    let right = sockopt::socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && sockopt::socket_type(&fd).is_ok_and(|kind| kind == SocketType::STREAM)
        && sockopt::socket_acceptconn(fd.as_fd()).unwrap_or(false);
    if !right {
        return Err(Error::new(ErrorKind::InvalidArgument, "what this was started with is no listening Unix socket"));
    }
    let listener = UnixListener::from(fd);
    listener.set_nonblocking(false).map_err(|e| Error::from_io("cannot use the socket", &e))?;
    Ok(listener)
}

/// Serves whoever connects, for ever.
pub(crate) fn serve(listener: &UnixListener, keeper: &Arc<Keeper>) -> ! {
    let closers = Arc::default();
    loop {
        match listener.accept() {
            Ok((stream, _)) => welcome(stream, keeper, &closers),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            // A client that is gone already, or want of descriptors: others may have better luck later.
            Err(_) => std::thread::sleep(BREATH),
        }
    }
}

/// Starts a connection's thread, or says why not. Never waits, and so closes no stream.
fn welcome(stream: UnixStream, keeper: &Arc<Keeper>, closers: &Arc<Closers>) {
    let Ok(peer) = Peer::of(&stream) else { return closers.close(None, stream) };
    let account = Some(accounts::of(peer.uid));
    let turn_away = |stream: UnixStream, error: &Error| {
        ipc::turn_away(&stream, error);
        closers.close(account, stream);
    };
    let limits = keeper.config.limits;
    // Connecting counts as a call, so that connections come no faster than calls, and lines in the log neither. One that is refused for want of
    // room does not: who waits for room asks again and again, and is to have calls left then.
    let allowed = keeper.meter.connect(peer.uid, limits.connections).and_then(|connected| {
        keeper.meter.call(peer.uid, limits.calls_per_minute).map_err(|refused| refused.error)?;
        Ok(connected)
    });
    let connected = match allowed {
        Ok(connected) => connected,
        Err(error) => return turn_away(stream, &error),
    };
    let shared = Arc::clone(keeper);
    // The stream is handed over once there is a thread: one that is not started drops what was to be its own.
    let (hand_over, handed) = mpsc::channel();
    let work = move || {
        // Ends after the stream, which can take long to be closed.
        let _connected = connected;
        if let Ok(stream) = handed.recv() {
            converse(&stream, &shared, &peer);
        }
    };
    match std::thread::Builder::new().name("connection".to_owned()).stack_size(STACK).spawn(work) {
        Ok(_) => drop(hand_over.send(stream)),
        Err(e) => turn_away(stream, &Error::from_io("the helper ahd cannot start a thread", &e)),
    }
}

fn converse(stream: &UnixStream, keeper: &Keeper, peer: &Peer) {
    keeper.settle_for(peer.uid);
    if let Err(error) = ipc::serve_one_of(stream, &Session { keeper, peer }, BOUNDS) {
        keeper.audit.note(peer, &What { op: "connection", ..What::default() }, Err(&error));
    }
}
