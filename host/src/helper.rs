//! The providers that the privileged helper (`ahd`) offers on its socket, each as a provider like any other.
//!
//! What they make is kept by the helper, in a store of its own for each store here. Which one, says a random token in a file of the
//! store here, [`TOKEN_FILE`], made with the first snapshot. The file, opened by the caller, is what goes to the helper in place of the
//! store's directory: so the helper opens nothing by name in a place of the caller's.
//!
//! A connection is made when it is needed, and again when the helper has closed it. Of all providers that were loaded together only those have one by
//! which somebody calls, and the one that was used last. That a socket is not there costs one system call. A helper that
//! has too much to do, for this user or for all, refuses connections at once: it is asked again for as long as its caller has [`Patience`].
//!
//! Not here: what the helper lets whom do (`ahd`), what travels on the socket (`ah_plugin_api::ipc`).

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ah_plugin_api::ipc::{self, Client};
use ah_plugin_api::wire::{self, Caller, Op, Remote};
use ah_plugin_api::{
    Context, Description, Done, Error, ErrorKind, Provider, ProviderName, Reclaimed, Result, Snapshot,
};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::trust;

/// Where the helper listens.
pub const SOCKET: &str = "/run/ahd/ahd.sock";
/// The file in a store that holds the token.
pub const TOKEN_FILE: &str = "ahd-token";
/// The length of a token, all of it of `a-z` and `0-9`.
pub const TOKEN_LENGTH: usize = 26;

/// How long the helper may take to say what it has.
const HELLO: Duration = Duration::from_secs(2);
/// How long it may take to say whether it can serve.
const PROBE: Duration = Duration::from_secs(5);
/// How often a call is begun anew when the helper closes the connection before it has heard all of it.
const REDIALS: u32 = 3;
/// How soon one that refuses a connection is asked again, and how soon at the latest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Where a helper is, and how far it is trusted.
#[derive(Debug, Clone)]
pub struct Helper {
    /// Its socket.
    pub socket: PathBuf,
    /// Whether the user named the socket. Else the way to it must be root's.
    pub named: bool,
    /// A call that gives no sign of life for so long is given up.
    pub limit: Duration,
}

/// How long a helper is waited for that has too much to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Patience {
    /// So long for each connection.
    pub each: Duration,
    /// And no longer than until then.
    pub until: Option<Instant>,
}

impl Patience {
    /// Makes a connection, again and again while it is refused.
    fn wait<T>(self, cx: &Context<'_>, connect: impl Fn() -> Result<T>) -> Result<T> {
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let refused = match connect() {
                Err(error) if error.kind == ErrorKind::ResourceExhausted => error,
                outcome => return outcome,
            };
            cx.check_cancelled()?;
            let each = self.each.saturating_sub(began.elapsed());
            let left = self.until.map_or(each, |until| each.min(until.saturating_duration_since(Instant::now())));
            if left.is_zero() {
                return Err(refused);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// The helper's providers; empty if there is no helper. One that refuses connections is not waited for.
///
/// # Errors
/// `PermissionDenied` if there is one that is not to be trusted; `ResourceExhausted` if it has too much to do; `Unavailable` if it does not answer.
pub fn load(helper: &Helper) -> Result<Vec<(Description, Arc<dyn Provider>)>> {
    load_patiently(helper, Patience::default(), &Context::quiet())
}

/// As [`load`], but waits for one that refuses connections, here and whenever its providers need one.
///
/// # Errors
/// As there; `Cancelled`.
pub fn load_patiently(
    helper: &Helper,
    patience: Patience,
    cx: &Context<'_>,
) -> Result<Vec<(Description, Arc<dyn Provider>)>> {
    let ask = || match dial(helper)? {
        Some(stream) => ipc::offers(&stream, &what(helper), HELLO),
        None => Ok(Vec::new()),
    };
    let offers = patience.wait(cx, ask)?;
    let slots: Arc<[Slot]> = offers.iter().map(|_| Slot::default()).collect();
    let provider = |(own, description): (usize, Description)| {
        let link =
            Link { helper: helper.clone(), patience, name: description.name.clone(), own, slots: Arc::clone(&slots) };
        let provider: Arc<dyn Provider> = Arc::new(Remote::new(link, description.clone()));
        (description, provider)
    };
    Ok(offers.into_iter().enumerate().map(provider).collect())
}

fn what(helper: &Helper) -> String {
    format!("the helper ahd ({})", helper.socket.display())
}

/// Connects; none if nobody listens.
fn dial(helper: &Helper) -> Result<Option<UnixStream>> {
    let path = &helper.socket;
    let cannot = |e: Errno| Error::from_io(format!("cannot talk to the helper at {}", path.display()), &e.into());
    let address = SocketAddrUnix::new(path).map_err(cannot)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(cannot)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Ok(None),
        Err(Errno::AGAIN) => {
            return Err(Error::new(ErrorKind::ResourceExhausted, format!("{} has too much to do", what(helper)))
                .with_hint("wait a little, then repeat"));
        }
        Err(e) => return Err(cannot(e)),
    }
    // Not by rustix: the process number of a peer that is outside this one's namespace is 0, which it does not expect.
    let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)
        .map_err(|e| Error::from_io("cannot find out who the helper is", &e.into()))?;
    let untrusted = |why: String| {
        Error::new(ErrorKind::PermissionDenied, format!("{} is not to be trusted: {why}", what(helper)))
            .with_hint("the helper belongs to root: `systemctl status ahd.socket`; AH_HELPER_SOCKET= goes without it")
    };
    if !trust::is_root(peer.uid()) {
        return Err(untrusted(format!("it runs as user {}", peer.uid())));
    }
    // By its peer it is root's. This is for who could have another program of root's listen there.
    if !helper.named {
        trust::roots_own(path).map_err(|e| untrusted(e.to_string()))?;
    }
    Ok(Some(UnixStream::from(socket)))
}

/// The connection of a provider, if there is one. Whoever calls by it holds it as well.
type Slot = Mutex<Option<Arc<Client>>>;

/// One of the helper's providers, connected when it is needed.
struct Link {
    helper: Helper,
    patience: Patience,
    name: ProviderName,
    /// Which of `slots` is its own.
    own: usize,
    /// Those of all that were loaded together.
    slots: Arc<[Slot]>,
}

impl Link {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.slots[self.own].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connections of the others by which nobody calls: they count as well, and one that waits for its own would wait for those.
    fn close_idle(&self) {
        for (_, other) in self.slots.iter().enumerate().filter(|(number, _)| *number != self.own) {
            // Who has it locked is just connecting.
            if let Ok(mut slot) = other.try_lock()
                && slot.as_ref().is_some_and(|client| Arc::strong_count(client) == 1)
            {
                *slot = None;
            }
        }
    }

    fn client(&self, cx: &Context<'_>) -> Result<Arc<Client>> {
        let mut slot = self.slot();
        if let Some(client) = slot.as_ref().filter(|client| client.is_open()) {
            return Ok(Arc::clone(client));
        }
        let what = what(&self.helper);
        let gone = || {
            Error::new(ErrorKind::Unavailable, format!("{what} is not there any more"))
                .with_hint("systemctl restart ahd.socket")
        };
        let connect = || {
            // Each time: another may have made its call meanwhile.
            self.close_idle();
            let stream = dial(&self.helper)?.ok_or_else(gone)?;
            Client::open(stream, what.as_str(), Some(&self.name), HELLO.max(PROBE))
        };
        let (client, _) = self.patience.wait(cx, connect)?;
        let client = Arc::new(client);
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }

    fn forget(&self, gone: &Arc<Client>) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|client| Arc::ptr_eq(client, gone)) {
            *slot = None;
        }
    }
}

impl Caller for Link {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        let store = *fds.first().ok_or_else(|| Error::new(ErrorKind::Internal, "a call without a store"))?;
        let token = match token(store)? {
            Some(token) => Some(token),
            None => match op {
                Op::Snapshot => Some(make_token(store)?),
                // It is asked before anything is to be written.
                Op::Probe => None,
                // There was never a snapshot in this store.
                Op::List => return wire::encode(&Vec::<Snapshot>::new()),
                Op::Destroy | Op::Unmount => return wire::encode(&Done {}),
                Op::Reclaim => return wire::encode(&Reclaimed::default()),
                _ => return Err(Error::new(ErrorKind::NotFound, "this store of the helper's holds nothing")),
            },
        };
        let mut with_token = fds.to_vec();
        if let Some(token) = &token {
            with_token[0] = token.as_fd();
        }
        let limit = if op == Op::Probe { PROBE.min(self.helper.limit) } else { self.helper.limit };
        for _ in 0..REDIALS {
            let client = self.client(cx)?;
            // A helper that is being restarted had not heard all of it, so nothing of it was done.
            if let Some(answer) = client.call_if_open(limit, op, request, &with_token, cx)? {
                return Ok(answer);
            }
            self.forget(&client);
        }
        let message = format!("{} closes every connection", what(&self.helper));
        Err(Error::new(ErrorKind::Unavailable, message).with_hint("journalctl -u ahd"))
    }
}

/// The store's token file, opened and found to be good; none if there is none.
fn token(store: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let failed = |e: std::io::Error| Error::from_io(format!("cannot read {TOKEN_FILE} in the store"), &e);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(store, TOKEN_FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => std::fs::File::from(opened.map_err(|e| failed(e.into()))?),
    };
    let mut text = Vec::new();
    (&file).take(TOKEN_LENGTH as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    let good = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if text.len() != TOKEN_LENGTH || !text.iter().all(good) {
        return Err(Error::new(ErrorKind::DataLoss, format!("{TOKEN_FILE} in the store is damaged")));
    }
    Ok(Some(file.into()))
}

/// Makes the token, whole and on disk or not at all; of two that do it at once, one's counts.
fn make_token(store: BorrowedFd<'_>) -> Result<OwnedFd> {
    let failed = |e: Errno| Error::from_io(format!("cannot write {TOKEN_FILE} into the store"), &e.into());
    let text = random_text().map_err(failed)?;
    // Not one without a name: Btrfs (Linux 6.1) syncs nothing of it, and after a power cut it is empty, for all that its folder was synced.
    let name = format!(".{TOKEN_FILE}.{}", String::from_utf8_lossy(&text));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(store, &name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let linked =
        write_whole(&file, &text).and_then(|()| rustix::fs::linkat(store, &name, store, TOKEN_FILE, AtFlags::empty()));
    let _ = rustix::fs::unlinkat(store, &name, AtFlags::empty());
    match linked {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    // Without the token what the helper keeps could not be found again.
    rustix::fs::fsync(store).map_err(failed)?;
    token(store)?.ok_or_else(|| failed(Errno::NOENT))
}

fn write_whole(file: &OwnedFd, text: &[u8]) -> std::result::Result<(), Errno> {
    let written = rustix::io::write(file, text)?;
    if written != text.len() {
        return Err(Errno::NOSPC);
    }
    rustix::fs::fsync(file)
}

fn random_text() -> std::result::Result<Vec<u8>, Errno> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0_u8; TOKEN_LENGTH];
    getrandom::fill(&mut bytes).map_err(|_| Errno::IO)?;
    Ok(bytes.iter().map(|byte| LETTERS[usize::from(byte % 32)]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(token(store.as_fd()).unwrap().is_none());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| make_token(store.as_fd()).unwrap());
            }
        });
        let text = std::fs::read(dir.path().join(TOKEN_FILE)).unwrap();
        assert_eq!(text.len(), TOKEN_LENGTH);
        make_token(store.as_fd()).unwrap();
        assert_eq!(std::fs::read(dir.path().join(TOKEN_FILE)).unwrap(), text);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        for bad in [&text[1..], b"", b"../../../../../../../../../"] {
            std::fs::write(dir.path().join(TOKEN_FILE), bad).unwrap();
            assert_eq!(token(store.as_fd()).unwrap_err().kind, ErrorKind::DataLoss);
        }
        std::fs::remove_file(dir.path().join(TOKEN_FILE)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join(TOKEN_FILE)).unwrap();
        token(store.as_fd()).unwrap_err();
    }

    #[test]
    fn no_helper_is_no_error_and_a_stranger_is_not_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("ahd.sock");
        let helper = Helper { socket: socket.clone(), named: true, limit: HELLO };
        assert!(load(&helper).unwrap().is_empty());
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        if !rustix::process::geteuid().is_root() {
            assert_eq!(load(&helper).err().unwrap().kind, ErrorKind::PermissionDenied);
            return;
        }
        // The way to it is not root's alone: /tmp is everybody's.
        let unnamed = Helper { named: false, ..helper.clone() };
        assert_eq!(load(&unnamed).err().unwrap().kind, ErrorKind::PermissionDenied);
        let began = std::time::Instant::now();
        assert_eq!(load(&helper).err().unwrap().kind, ErrorKind::Unavailable, "it says nothing");
        assert!(began.elapsed() < 3 * HELLO);
        drop(listener);
        // A process that another test begins has the listener as well until it runs its program.
        let ended = std::time::Instant::now() + Duration::from_secs(10);
        while load(&helper).is_err() && std::time::Instant::now() < ended {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(load(&helper).unwrap().is_empty());
    }
}
