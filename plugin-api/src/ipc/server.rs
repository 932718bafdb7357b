//! The provider's end of a socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frame::{self, Frame, FrameError, Kind};
use super::{CallIn, Cancel, Hello, Log, MAX_ANSWER, MAX_REQUEST, PAUSE, VERSION};
use crate::context::{Context, LogLevel, Observer, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Provider;
use crate::types::{Description, ProviderName};
use crate::wire::{self, Op};

/// How often a running call that gives no other sign says that it is alive.
const ALIVE: Duration = Duration::from_secs(1);
/// Longer log lines are cut.
const MAX_LOG: usize = 4096;
/// So much of what a client says is heard each time it is looked, lest who says more and more keeps the call from going on.
const AT_ONCE: u32 = 16;
/// More than that during one call is an offence: there is nothing to say but that it shall stop.
const DURING_A_CALL: u32 = 1024;

/// How long a server waits for its clients, and how much it takes from them.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For the first word.
    pub hello: Duration,
    /// For the next call, while none runs; none: for ever. A call that comes at the last moment is answered, or whoever makes it is told that it
    /// was not sent.
    pub idle: Option<Duration>,
    /// The largest payload, bytes; [`MAX_REQUEST`] at most. What is read of it can take forty times that in memory.
    pub largest: u32,
    /// For how long a client is told that its call goes on while the call does not look whether it shall stop, and was not asked to; none: not at all. For what
    /// waits for a disk.
    pub alive: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { hello: PAUSE, idle: None, largest: MAX_REQUEST, alive: None }
    }
}

/// What a server of several providers has.
pub trait Offered {
    /// All of them.
    fn offers(&self) -> Vec<Description>;

    /// The one of that name.
    ///
    /// # Errors
    /// `NotFound`, or why this client cannot have it.
    fn choose(&self, name: &ProviderName) -> Result<Box<dyn Provider + '_>>;

    /// Whether a call of the chosen provider is served; asked of each, before anything in it is looked at.
    ///
    /// # Errors
    /// What is answered instead.
    fn admit(&self, _provider: &ProviderName, _op: Op) -> Result<()> {
        Ok(())
    }
}

/// Whether a call is served.
type Admit<'a> = &'a dyn Fn(Op) -> Result<()>;

/// Serves `provider` to the client at the other end of `stream` until it goes away.
///
/// Calls run on the calling thread, one after the other. If the client goes away during a call, the call is cancelled.
///
/// # Errors
/// What the client did that is against the protocol. That it went away is none.
pub fn serve(stream: &UnixStream, provider: &dyn Provider) -> Result<()> {
    serve_within(stream, provider, Bounds::default())
}

/// As [`serve`], but waits only so long.
///
/// # Errors
/// As there.
pub fn serve_within(stream: &UnixStream, provider: &dyn Provider, bounds: Bounds) -> Result<()> {
    let socket = stream.as_fd();
    let greeted = hear_hello(socket, bounds).and_then(|hello| match hello {
        Some(_) => describe(socket, provider).map(Some),
        None => Ok(None),
    });
    match greeted {
        Ok(Some(())) => converse(socket, provider, &|_| Ok(()), bounds),
        Ok(None) => Ok(()),
        Err(error) => refuse(socket, error),
    }
}

/// Serves the one of several providers that the client names, or tells it which there are; else as [`serve`].
///
/// # Errors
/// As there.
pub fn serve_one_of(stream: &UnixStream, offered: &dyn Offered, bounds: Bounds) -> Result<()> {
    let socket = stream.as_fd();
    let chosen = hear_hello(socket, bounds).and_then(|hello| match hello {
        None => Ok(None),
        Some(Hello { provider: None, .. }) => {
            let offers = wire::guard(|| Ok(offered.offers()))?;
            let answer = wire::encode(&Hello { offers, ..Hello::new() })?;
            frame::write(socket, Kind::Hello, &answer, &[])?;
            Ok(None)
        }
        Some(Hello { provider: Some(name), .. }) => {
            let provider = offered.choose(&name)?;
            describe(socket, &*provider)?;
            Ok(Some((name, provider)))
        }
    });
    match chosen {
        Ok(Some((name, provider))) => converse(socket, &*provider, &|op| offered.admit(&name, op), bounds),
        Ok(None) => Ok(()),
        Err(error) => refuse(socket, error),
    }
}

/// Answers calls until the client goes away. One thread does it all, but for the signs of life that were asked for: while a call runs, whoever asks whether
/// it shall stop, or gives such a sign, looks what the client has said meanwhile.
fn converse(socket: BorrowedFd<'_>, provider: &dyn Provider, admit: Admit<'_>, bounds: Bounds) -> Result<()> {
    let connection = Connection {
        socket,
        largest: bounds.largest,
        writing: Mutex::new(false),
        listening: Mutex::new(()),
        heard: AtomicU32::new(0),
        unsaid: AtomicU32::new(0),
        began: Instant::now(),
        last_write: AtomicU64::new(0),
        last_look: AtomicU64::new(0),
        gone: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        offence: Mutex::new(None),
        number: AtomicU64::new(0),
        cancelled: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        // Closed at the end, also when this panics.
        let (_open, ended) = channel();
        if let Some(longest) = bounds.alive {
            let connection = &connection;
            // Where the user has no thread to spare: without.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || connection.live_until(&ended, longest));
        }
        answer_calls(&connection, provider, admit, bounds)
    })
}

fn answer_calls(connection: &Connection<'_>, provider: &dyn Provider, admit: Admit<'_>, bounds: Bounds) -> Result<()> {
    let socket = connection.socket;
    while !connection.gone.load(Ordering::Relaxed) {
        let idle = bounds.idle.filter(|_| !connection.closing.load(Ordering::Relaxed));
        let Frame { kind, payload, fds } = match frame::read(socket, bounds.largest, idle) {
            Err(FrameError::Waited) => {
                // What has been sent is read still, and nothing can be sent from now on.
                connection.closing.store(true, Ordering::Relaxed);
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
                continue;
            }
            Err(FrameError::Closed | FrameError::CutOff | FrameError::Socket(_)) => break,
            Err(error) => return refuse(socket, error.into()),
            Ok(frame) => frame,
        };
        let heard = match kind {
            Kind::Call => wire::decode::<CallIn>(&payload).map(Some),
            kind => connection.hear(kind, &payload).map(|()| None),
        };
        match heard {
            Ok(None) => {}
            Ok(Some(call)) if connection.answer(provider, admit, &call, fds).is_err() => break,
            Ok(Some(_)) => {}
            Err(error) => return refuse(socket, error),
        }
    }
    let offence = connection.offence.lock().unwrap_or_else(PoisonError::into_inner).take();
    offence.map_or(Ok(()), |error| refuse(socket, error))
}

/// None if the client went away without a word.
fn hear_hello(socket: BorrowedFd<'_>, bounds: Bounds) -> Result<Option<Hello>> {
    let first = match frame::read(socket, bounds.largest, Some(bounds.hello)) {
        Err(FrameError::Closed) => return Ok(None),
        other => other?,
    };
    let hello: Hello = match first.kind {
        Kind::Hello => wire::decode(&first.payload)?,
        _ => return Err(Error::new(ErrorKind::InvalidArgument, "a client must say hello first")),
    };
    if hello.version != VERSION {
        let message = format!("this server speaks version {VERSION} of the protocol, the client {}", hello.version);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(Some(hello))
}

fn describe(socket: BorrowedFd<'_>, provider: &dyn Provider) -> Result<()> {
    let description = Some(wire::guard(|| Ok(provider.describe()))?);
    let answer = wire::encode(&Hello { description, ..Hello::new() })?;
    Ok(frame::write(socket, Kind::Hello, &answer, &[])?)
}

/// Tells a client why it is not served at all. Never waits.
pub fn turn_away(stream: &UnixStream, error: &Error) {
    if let Ok(payload) = wire::encode(error) {
        let _ = frame::try_write(stream.as_fd(), Kind::Error, &payload);
    }
}

/// Tells the client why the connection ends.
fn refuse(socket: BorrowedFd<'_>, error: Error) -> Result<()> {
    if let Ok(payload) = wire::encode(&error) {
        let _ = frame::try_write(socket, Kind::Error, &payload);
    }
    Err(error)
}

struct Connection<'a> {
    socket: BorrowedFd<'a>,
    /// The largest payload that is taken.
    largest: u32,
    /// Held while a frame is written. Whether a call runs: before its answer, that is.
    writing: Mutex<bool>,
    /// Held while it is looked what the client says during a call.
    listening: Mutex<()>,
    /// Frames that came since the call began.
    heard: AtomicU32,
    /// Lines of the call's log that were left out.
    unsaid: AtomicU32,
    began: Instant,
    /// Milliseconds after `began`.
    last_write: AtomicU64,
    /// When the call began, or last looked whether it shall stop; the same.
    last_look: AtomicU64,
    /// The client went away, or broke the protocol.
    gone: AtomicBool,
    /// Nothing is heard of it any more, since it was silent for too long.
    closing: AtomicBool,
    offence: Mutex<Option<Error>>,
    /// The last call's.
    number: AtomicU64,
    /// Calls up to this number shall stop.
    cancelled: AtomicU64,
}

impl Connection<'_> {
    /// What a client says that is no call.
    fn hear(&self, kind: Kind, payload: &[u8]) -> Result<()> {
        match kind {
            Kind::Cancel => {
                let Cancel { number } = wire::decode(payload)?;
                self.cancelled.fetch_max(number, Ordering::Relaxed);
                Ok(())
            }
            Kind::Unknown(_) => Ok(()),
            Kind::Call => Err(Error::new(ErrorKind::InvalidArgument, "one call after the other")),
            Kind::Hello | Kind::Progress | Kind::Log | Kind::Alive | Kind::Answer | Kind::Error => {
                Err(Error::new(ErrorKind::InvalidArgument, "a client does not say that"))
            }
        }
    }

    /// Takes note of what the client has said since its call began, so many frames at most. Never waits.
    fn listen(&self, most: u32) {
        let Ok(_alone) = self.listening.try_lock() else { return };
        for _ in 0..most {
            if self.gone.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed) {
                return;
            }
            let heard = match frame::next(self.socket) {
                Ok(None) => return,
                Ok(Some(_)) => frame::read(self.socket, self.largest, None),
                Err(error) => Err(error),
            };
            let offence = match heard {
                Ok(_) if self.heard.fetch_add(1, Ordering::Relaxed) >= DURING_A_CALL => {
                    Some(Error::new(ErrorKind::InvalidArgument, "too much was said during one call"))
                }
                Ok(Frame { kind, payload, .. }) => self.hear(kind, &payload).err(),
                Err(FrameError::Closed | FrameError::CutOff | FrameError::Socket(_)) => {
                    self.gone.store(true, Ordering::Relaxed);
                    return;
                }
                Err(error) => Some(error.into()),
            };
            if let Some(offence) = offence {
                *self.offence.lock().unwrap_or_else(PoisonError::into_inner) = Some(offence);
                self.gone.store(true, Ordering::Relaxed);
            }
        }
    }

    fn answer(
        &self,
        provider: &dyn Provider,
        admit: Admit<'_>,
        call: &CallIn,
        fds: Vec<OwnedFd>,
    ) -> Result<(), FrameError> {
        self.heard.store(0, Ordering::Relaxed);
        self.unsaid.store(0, Ordering::Relaxed);
        self.number.store(call.number, Ordering::Relaxed);
        self.looks();
        *self.writing() = true;
        let observer = CallObserver { connection: self, number: call.number };
        let op = Op::from_text(&call.op);
        let result = wire::guard(|| admit(op))
            .and_then(|()| wire::serve(provider, op, &call.request, fds, &Context::new(&observer)));
        let result = result.and_then(|answer| match frame::fits(&answer, MAX_ANSWER) {
            Ok(_) => Ok(answer),
            Err(e) => Err(Error::from(e).context(format!("the answer to {op} is too large"))),
        });
        // It may call again as soon as it has the answer, and not before.
        self.listen(DURING_A_CALL + 1);
        let mut runs = self.writing();
        *runs = false;
        let unsaid = self.unsaid.load(Ordering::Relaxed);
        if unsaid > 0 {
            let message =
                format!("{} of the log left out", crate::text::count(u64::from(unsaid), "line was", "lines were"));
            let payload = wire::encode(&Log { level: LogLevel::Warn, message }).unwrap_or_default();
            frame::write(self.socket, Kind::Log, &payload, &[])?;
        }
        match result {
            Ok(answer) => frame::write(self.socket, Kind::Answer, &answer, &[]),
            Err(error) => frame::write(self.socket, Kind::Error, &wire::encode(&error).unwrap_or_default(), &[]),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn writing(&self) -> MutexGuard<'_, bool> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something while a call runs, if it can be said at once.
    fn say(&self, kind: Kind, payload: &[u8]) {
        self.last_write.store(self.now(), Ordering::Relaxed);
        let Ok(runs) = self.writing.try_lock() else { return };
        // Behind the answer nothing is said.
        if *runs && frame::try_write(self.socket, kind, payload).is_err() {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Says that a call goes on, if nothing else was said for so long.
    fn say_alive(&self) {
        let silent = self.now().saturating_sub(self.last_write.load(Ordering::Relaxed));
        if u128::from(silent) >= ALIVE.as_millis() {
            self.say(Kind::Alive, &[]);
        }
    }

    fn looks(&self) {
        self.last_look.store(self.now(), Ordering::Relaxed);
    }

    /// Says so of each call until the connection ends: for so long after it last looked whether it shall stop, and until it shall.
    fn live_until(&self, ended: &Receiver<()>, longest: Duration) {
        while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) {
            {
                let runs = self.writing();
                // Not between two calls: what comes then is the next one.
                if *runs {
                    self.listen(AT_ONCE);
                }
            }
            let shall_stop = self.cancelled.load(Ordering::Relaxed) >= self.number.load(Ordering::Relaxed);
            let since = self.now().saturating_sub(self.last_look.load(Ordering::Relaxed));
            if !shall_stop && u128::from(since) < longest.as_millis() {
                self.say_alive();
            }
        }
    }
}

/// Passes on what a running call reports.
struct CallObserver<'a> {
    connection: &'a Connection<'a>,
    number: u64,
}

impl Observer for CallObserver<'_> {
    fn progress(&self, progress: &Progress) {
        self.connection.looks();
        if let Ok(payload) = wire::encode(progress) {
            self.connection.say(Kind::Progress, &payload);
        }
    }

    fn cancelled(&self) -> bool {
        let connection = self.connection;
        connection.looks();
        connection.say_alive();
        connection.listen(AT_ONCE);
        connection.gone.load(Ordering::Relaxed) || connection.cancelled.load(Ordering::Relaxed) >= self.number
    }

    /// Never waits: whoever logs may hold what others need. A line that a slow client has no room for is left out, and counted.
    fn log(&self, level: LogLevel, message: &str) {
        let connection = self.connection;
        if connection.gone.load(Ordering::Relaxed) {
            return;
        }
        let end = (0..=message.len().min(MAX_LOG)).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
        let message = message[..end].to_owned();
        if let Ok(payload) = wire::encode(&Log { level, message }) {
            let _writing = connection.writing();
            match frame::try_write(connection.socket, Kind::Log, &payload) {
                Ok(true) => {}
                Ok(false) => {
                    connection.unsaid.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => connection.gone.store(true, Ordering::Relaxed),
            }
        }
    }
}
