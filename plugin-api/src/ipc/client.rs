//! The caller's end of a socket.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::frame::{self, Frame, FrameError, Kind};
use super::{CallOut, Cancel, Hello, Log, MAX_ANSWER, MAX_REQUEST, VERSION};
use crate::answers::shown;
use crate::context::{Context, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Description, ProviderName};
use crate::wire::{self, Caller, Op, Remote};

/// How often the caller's wish to stop is looked at.
const TICK: Duration = Duration::from_millis(20);

/// How long the other side may be silent once a call shall stop. The contract wants a look at that every 100 ms.
const GRACE: Duration = Duration::from_secs(3);

/// A [`Caller`] at the other end of a socket. Calls from several threads take turns.
pub struct Client {
    /// Names the other side in errors.
    what: String,
    /// How long the other side may be silent while a call runs.
    limit: Duration,
    /// The largest payload that is taken.
    largest: u32,
    turn: Mutex<Turn>,
    free: Condvar,
}

struct Turn {
    /// Gone once the connection has failed.
    stream: Option<UnixStream>,
    busy: bool,
    number: u64,
}

/// Says hello to the provider at the other end of `stream`.
///
/// `what` names it in errors, as in "*what* does not answer". While a call runs, it is given up after `limit` without a sign of life;
/// the connection is of no use then.
///
/// # Errors
/// `Unavailable` if nobody answers; `Unsupported` if the other side speaks another version of the protocol.
pub fn connect(stream: UnixStream, what: impl Into<String>, limit: Duration) -> Result<Remote<Client>> {
    connect_within(stream, what, limit, MAX_ANSWER)
}

/// As [`connect`], but takes no answer of more than `largest` bytes; [`MAX_ANSWER`] at most. What is read of it can take a hundred times that in memory.
///
/// # Errors
/// As there.
pub fn connect_within(
    stream: UnixStream,
    what: impl Into<String>,
    limit: Duration,
    largest: u32,
) -> Result<Remote<Client>> {
    let (client, description) = Client::open_within(stream, what.into(), None, limit, largest)?;
    Ok(Remote::new(client, description))
}

/// Asks the server at the other end of `stream` which providers it has. The connection is at its end then.
///
/// # Errors
/// As [`connect`].
pub fn offers(stream: &UnixStream, what: &str, limit: Duration) -> Result<Vec<Description>> {
    Ok(greet(stream, what, None, limit, MAX_ANSWER)?.offers)
}

fn greet(
    stream: &UnixStream,
    what: &str,
    provider: Option<&ProviderName>,
    limit: Duration,
    largest: u32,
) -> Result<Hello> {
    let context = |e: FrameError| Error::from(e).context(format!("cannot talk to {what}"));
    let hello = wire::encode(&Hello { provider: provider.cloned(), ..Hello::new() })?;
    // A failed write is no reason to stop: the other side may have said why it does not want to talk.
    let written = frame::write(stream.as_fd(), Kind::Hello, &hello, &[]);
    let answer = frame::read(stream.as_fd(), largest, Some(limit)).map_err(|e| context(written.err().unwrap_or(e)))?;
    let mut hello: Hello = match answer.kind {
        Kind::Hello => wire::decode(&answer.payload)?,
        Kind::Error => return Err(wire::decode::<Error>(&answer.payload)?),
        _ => return Err(Error::new(ErrorKind::Unavailable, format!("{what} does not speak this protocol"))),
    };
    if hello.version != VERSION {
        let message = format!("{what} speaks version {} of the protocol, this program {VERSION}", hello.version);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let undescribed = |error: Error| error.context(format!("{what} does not describe itself"));
    hello.description = hello.description.map(shown).transpose().map_err(undescribed)?;
    // One that cannot be shown is no reason to go without the others.
    hello.offers = hello.offers.into_iter().filter_map(|offer| shown(offer).ok()).collect();
    Ok(hello)
}

impl Client {
    /// Says hello to `provider`, one of several at the other end of `stream`, or to the only one; gives what it says of itself.
    /// `what` and `limit` as for [`connect`].
    ///
    /// # Errors
    /// As [`connect`]; `NotFound` if there is none of that name.
    pub fn open(
        stream: UnixStream,
        what: impl Into<String>,
        provider: Option<&ProviderName>,
        limit: Duration,
    ) -> Result<(Self, Description)> {
        Self::open_within(stream, what.into(), provider, limit, MAX_ANSWER)
    }

    fn open_within(
        stream: UnixStream,
        what: String,
        provider: Option<&ProviderName>,
        limit: Duration,
        largest: u32,
    ) -> Result<(Self, Description)> {
        let description = greet(&stream, &what, provider, limit, largest)?
            .description
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{what} does not say what it is")))?;
        let turn = Mutex::new(Turn { stream: Some(stream), busy: false, number: 0 });
        Ok((Self { what, limit, largest, turn, free: Condvar::new() }, description))
    }

    /// Whether a call can be made: the connection has not failed, and, as far as can be seen, nobody has closed it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let turn = self.lock();
        match &turn.stream {
            // Whoever is talking finds out.
            None => turn.busy,
            // Between calls the other side has nothing to say but its end.
            Some(stream) => {
                matches!(frame::ready(stream.as_fd(), PollFlags::POLLIN, Some(Duration::ZERO)), Ok(false))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this thread's turn.
    fn begin(&self, cx: &Context<'_>) -> Result<Ongoing<'_>> {
        // The other side may be in the middle of what cannot be stopped before it hears of it.
        cx.check_cancelled()?;
        let mut turn = self.lock();
        while turn.busy {
            turn = self.free.wait_timeout(turn, TICK).unwrap_or_else(PoisonError::into_inner).0;
            cx.check_cancelled()?;
        }
        let gone = || Error::new(ErrorKind::Unavailable, format!("the connection to {} has failed before", self.what));
        let stream = turn.stream.take().ok_or_else(gone)?;
        turn.busy = true;
        turn.number += 1;
        Ok(Ongoing { client: self, stream: Some(stream), number: turn.number, reusable: false })
    }

    /// The outcome of a call, or what broke the connection. None if that was closed before the call was whole at the other side.
    fn talk(
        &self,
        turn: &Ongoing<'_>,
        op: Op,
        call: &[u8],
        fds: &[BorrowedFd<'_>],
        limit: Duration,
        cx: &Context<'_>,
    ) -> Result<Option<Result<Vec<u8>>>, FrameError> {
        let observer = cx.observer();
        let socket = turn.stream.as_ref().map(AsFd::as_fd).ok_or(FrameError::Closed)?;
        // If the other side refuses the call it may have said why, and closed before it was read to the end.
        let written = frame::write(socket, Kind::Call, call, fds);
        if let Err(e) = written {
            return match frame::read(socket, self.largest, Some(TICK)) {
                Ok(Frame { kind: Kind::Error, payload, .. }) => Ok(Some(Err(failure(&payload)))),
                Ok(_) | Err(_) if matches!(e, FrameError::Closed) => Ok(None),
                Ok(_) | Err(_) => Err(e),
            };
        }
        let mut cancelled = false;
        // Time is counted in ticks, so that a program that was stopped (Ctrl-Z) does not blame the other side.
        let (mut silent, mut before) = (Duration::ZERO, Instant::now());
        loop {
            if !cancelled && observer.cancelled() {
                cancelled = true;
                let cancel = wire::encode(&Cancel { number: turn.number }).unwrap_or_default();
                frame::write(socket, Kind::Cancel, &cancel, &[])?;
            }
            if !frame::ready(socket, PollFlags::POLLIN, Some(TICK))? {
                let now = Instant::now();
                if cancelled || !wire::waits_for_reader(op, fds) {
                    silent += now.duration_since(before).min(2 * TICK);
                }
                before = now;
                if silent >= if cancelled { limit.min(GRACE) } else { limit } {
                    return Err(FrameError::Waited);
                }
                continue;
            }
            let frame = frame::read(socket, self.largest, None)?;
            (silent, before) = (Duration::ZERO, Instant::now());
            match frame.kind {
                Kind::Answer => return Ok(Some(Ok(frame.payload))),
                Kind::Error => return Ok(Some(Err(failure(&frame.payload)))),
                Kind::Progress => {
                    if let Ok(progress) = wire::decode::<Progress>(&frame.payload) {
                        observer.progress(&progress);
                    }
                }
                Kind::Log => {
                    if let Ok(Log { level, message }) = wire::decode(&frame.payload) {
                        observer.log(level, &message);
                    }
                }
                Kind::Alive | Kind::Unknown(_) => {}
                Kind::Hello | Kind::Call | Kind::Cancel => return Err(FrameError::Header),
            }
        }
    }
}

/// This thread's turn. It ends when this is dropped, also when an observer panics.
struct Ongoing<'a> {
    client: &'a Client,
    stream: Option<UnixStream>,
    number: u64,
    /// Whether nothing of this call is left in the connection, so that the next one can use it.
    reusable: bool,
}

impl Drop for Ongoing<'_> {
    fn drop(&mut self) {
        let stream = self.stream.take().filter(|_| self.reusable);
        let mut turn = self.client.lock();
        turn.stream = stream;
        turn.busy = false;
        self.client.free.notify_one();
    }
}

impl Client {
    /// As [`Caller::call`], with a limit for this call.
    ///
    /// # Errors
    /// As there.
    pub fn call_within(
        &self,
        limit: Duration,
        op: Op,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
        cx: &Context<'_>,
    ) -> Result<Vec<u8>> {
        let gone = || Error::new(ErrorKind::Unavailable, format!("{} ended before its operation {op}", self.what));
        self.call_if_open(limit, op, request, fds, cx)?.ok_or_else(gone)
    }

    /// As [`Client::call_within`]. None if the other side has closed the connection before it had the whole call: then nothing of it was done, and it
    /// can be made again by another connection.
    ///
    /// # Errors
    /// As [`Caller::call`].
    pub fn call_if_open(
        &self,
        limit: Duration,
        op: Op,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
        cx: &Context<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let mut turn = self.begin(cx)?;
        let call = match wire::encode(&CallOut { number: turn.number, op: op.as_str(), request }) {
            Ok(call) if frame::fits(&call, MAX_REQUEST).is_ok() => call,
            refused => {
                turn.reusable = true;
                refused?;
                let message = format!("the request is too large for {} (limit {MAX_REQUEST} bytes)", self.what);
                return Err(Error::new(ErrorKind::ResourceExhausted, message).with_hint("ask for fewer paths at once"));
            }
        };
        match self.talk(&turn, op, &call, fds, limit, cx) {
            Ok(Some(result)) => {
                turn.reusable = true;
                result.map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => {
                drop(turn);
                let what = &self.what;
                if matches!(error, FrameError::Waited) && cx.observer().cancelled() {
                    let cause = format!("{what} hangs: its operation {op} did not react");
                    return Err(Error { causes: vec![cause], ..Error::new(ErrorKind::Cancelled, "cancelled") });
                }
                let context = match error {
                    FrameError::Waited => {
                        let limit = limit.as_secs_f32();
                        format!("{what} hangs: its operation {op} gave no sign of life for {limit} s")
                    }
                    FrameError::Closed | FrameError::CutOff => format!("{what} ended during its operation {op}"),
                    FrameError::Paused
                    | FrameError::TooLarge { .. }
                    | FrameError::Descriptors
                    | FrameError::Header
                    | FrameError::Socket(_) => format!("the connection to {what} failed during its operation {op}"),
                };
                let too_large = matches!(error, FrameError::TooLarge { .. });
                let kind = if too_large { ErrorKind::ResourceExhausted } else { ErrorKind::Unavailable };
                Err(Error { kind, ..Error::from(error).context(context) })
            }
        }
    }
}

impl Caller for Client {
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>> {
        self.call_within(self.limit, op, request, fds, cx)
    }
}

fn failure(payload: &[u8]) -> Error {
    wire::decode(payload)
        .unwrap_or_else(|_| Error::new(ErrorKind::Internal, "the provider failed without a readable error"))
}
