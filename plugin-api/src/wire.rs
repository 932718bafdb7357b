//! The contract as messages: one encoding (CBOR) and one dispatch for both adapters.
//!
//! [`serve`] turns a message into a call of a [`Provider`]; [`Remote`] turns a call into a message for a [`Caller`]. The adapters in
//! `abi` and `ipc` only carry what these two produce; a new operation is added here, in the trait and in the ABI table.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::answers::{Asked, Brief, cut_error};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::place::{Dir, Place};
use crate::provider::Provider;
use crate::request as rq;
use crate::types as ty;
use crate::types::ProviderName;

/// Declares the operations once: the enumeration, the dispatch and the caller's side.
macro_rules! operations {
    ($($variant:ident $method:ident ($request:ty) -> $response:ty;)+) => {
        open_enum! {
            /// The operations of the contract, `describe` apart.
            pub enum Op {
                $(
                    #[doc = concat!("[`Provider::", stringify!($method), "`]")]
                    $variant = stringify!($method),
                )+
            }
        }

        fn dispatch(
            provider: &dyn Provider, op: Op, place: &Place<'_>, request: &[u8], cx: &Context<'_>,
        ) -> Result<Vec<u8>> {
            match op {
                $(Op::$variant => {
                    let request: Request<$request> = decode(request).map_err(not_known)?;
                    encode(&provider.$method(place, &request.request, cx)?)
                })+
                Op::Unknown => Err(Error::new(ErrorKind::Unsupported, "this provider does not know that operation")),
            }
        }

        impl<C: Caller> Provider for Remote<C> {
            fn describe(&self) -> ty::Description {
                self.description.clone()
            }

            $(fn $method(&self, place: &Place<'_>, request: &$request, cx: &Context<'_>) -> Result<$response> {
                self.call(Op::$variant, place, request, cx)
            })+
        }
    };
}

operations! {
    Probe probe(rq::ProbeRequest) -> ty::Probe;
    Snapshot snapshot(rq::SnapshotRequest) -> ty::Snapshot;
    Sync sync(rq::SnapshotRef) -> rq::Done;
    List list(rq::ListRequest) -> Vec<ty::Snapshot>;
    Stat stat(rq::SnapshotRef) -> ty::Snapshot;
    Destroy destroy(rq::DestroyRequest) -> rq::Done;
    Mount mount(rq::MountRequest) -> ty::View;
    Unmount unmount(rq::UnmountRequest) -> rq::Done;
    Clone clone_snapshot(rq::CloneRequest) -> ty::WritableClone;
    Diff diff(rq::DiffRequest) -> ty::Changes;
    ReadDir read_dir(rq::ReadDirRequest) -> Vec<ty::Entry>;
    Read read(rq::ReadRequest) -> ty::Entry;
    Lookup lookup(rq::LookupRequest) -> Vec<Option<ty::Entry>>;
    Usage usage(rq::UsageRequest) -> ty::Usage;
    Reclaim reclaim(rq::ReclaimRequest) -> ty::Reclaimed;
    Convert convert(rq::ConvertRequest) -> ty::Converted;
}

/// The paths of a place; the descriptors travel beside the message, in this order, one for each that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Paths {
    #[serde(with = "crate::path::abs")]
    store: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace: Option<AbsPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<AbsPath>,
    #[serde(default)]
    output: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct AbsPath(#[serde(with = "crate::path::abs")] PathBuf);

#[derive(Deserialize)]
struct Request<R> {
    request: R,
}

#[derive(Serialize)]
struct RequestOut<'a, R> {
    paths: Paths,
    request: &'a R,
}

/// What every message has, whatever is asked.
#[derive(Deserialize)]
struct Any {
    paths: Paths,
    #[serde(rename = "request")]
    _request: IgnoredAny,
}

/// A message that is one asks what this version has no words for: the caller takes a longer way, as for an operation that is missing.
fn not_known(error: Error) -> Error {
    Error { kind: ErrorKind::Unsupported, ..error }.context("this provider does not know what is asked of it")
}

/// Encodes a message.
///
/// # Errors
/// `Internal`; only a defect can make this fail.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    ciborium::into_writer(value, &mut bytes)
        .map_err(|e| Error::new(ErrorKind::Internal, "a message cannot be encoded").with_cause(&e))?;
    Ok(bytes)
}

/// Decodes a message; unknown fields are ignored.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    ciborium::from_reader(bytes)
        .map_err(|e| Error::new(ErrorKind::InvalidArgument, "a message cannot be read").with_cause(&e))
}

/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 4;

/// Answers one message: decodes it, calls the provider, encodes its answer. A panic comes back as `Internal`.
///
/// # Errors
/// What the provider answers; `InvalidArgument` for what is no message, and for descriptors that do not fit; `Unsupported` for a request that only a newer
/// version can read.
pub fn serve(provider: &dyn Provider, op: Op, request: &[u8], fds: Vec<OwnedFd>, cx: &Context<'_>) -> Result<Vec<u8>> {
    guard(|| {
        let Any { paths, .. } = decode(request)?;
        let mut fds = fds.into_iter();
        let missing = || Error::new(ErrorKind::InvalidArgument, "a message came without one of its descriptors");
        let store = Dir::from_fd(fds.next().ok_or_else(missing)?, paths.store);
        let mut dir = |path: Option<AbsPath>| -> Result<Option<Dir>> {
            path.map(|path| Ok(Dir::from_fd(fds.next().ok_or_else(missing)?, path.0))).transpose()
        };
        let workspace = dir(paths.workspace)?;
        let target = dir(paths.target)?;
        let output = if paths.output { Some(fds.next().ok_or_else(missing)?) } else { None };
        if fds.next().is_some() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a message came with too many descriptors"));
        }
        let place = Place {
            store: &store,
            workspace: workspace.as_ref(),
            target: target.as_ref(),
            output: output.as_ref().map(AsFd::as_fd),
        };
        dispatch(provider, op, &place, request, cx)
    })
}

/// Runs `call`, turning a panic into `Internal`.
///
/// # Errors
/// What `call` returns.
pub fn guard<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        // Dropping a payload may panic again; it is a few bytes once.
        std::mem::forget(panic);
        Err(Error::new(ErrorKind::Internal, format!("it panicked: {text}")).with_hint(DEFECT))
    })
}

/// An error that says nothing of what the caller did, with whose it is in front. One that came by way of the same provider's service bears that already.
fn of_provider(name: &ProviderName, mut error: Error) -> Error {
    let whose = format!("the provider {name}");
    if !error.message.starts_with(&whose) {
        error.message = format!("{whose}: {}", error.message);
    }
    error
}

/// Carries messages to a provider somewhere else.
pub trait Caller: Send + Sync {
    /// Sends one message with its descriptors and waits for the answer.
    ///
    /// # Errors
    /// What the other side answers, or `Unavailable` if it cannot be reached.
    fn call(&self, op: Op, request: &[u8], fds: &[BorrowedFd<'_>], cx: &Context<'_>) -> Result<Vec<u8>>;
}

/// The hint beside what a provider should never have answered.
pub const DEFECT: &str = "this is a defect of the provider; please report it";

/// Whether a call with these descriptors can only wait at present, for who reads its output: there is no room for more in it. A silence is
/// not the provider's then.
#[must_use]
pub fn waits_for_reader(op: Op, fds: &[BorrowedFd<'_>]) -> bool {
    // The output is the last one.
    let Some(output) = fds.last().filter(|_| op == Op::Read) else { return false };
    matches!(poll(&mut [PollFd::new(*output, PollFlags::POLLOUT)], PollTimeout::ZERO), Ok(0))
}

/// A provider on the other side of a [`Caller`].
pub struct Remote<C> {
    caller: C,
    description: ty::Description,
}

impl<C: Caller> Remote<C> {
    /// A provider that says of itself what `description` says.
    pub fn new(caller: C, description: ty::Description) -> Self {
        Self { caller, description }
    }

    /// The way over which it is called.
    pub fn caller(&self) -> &C {
        &self.caller
    }

    fn call<Q: Serialize + Asked<A>, A: DeserializeOwned>(
        &self,
        op: Op,
        place: &Place<'_>,
        request: &Q,
        cx: &Context<'_>,
    ) -> Result<A> {
        let path = |dir: Option<&Dir>| dir.map(|dir| AbsPath(dir.path().to_owned()));
        let paths = Paths {
            store: place.store.path().to_owned(),
            workspace: path(place.workspace),
            target: path(place.target),
            output: place.output.is_some(),
        };
        let mut fds = vec![place.store.as_fd()];
        fds.extend(place.workspace.map(AsFd::as_fd));
        fds.extend(place.target.map(AsFd::as_fd));
        fds.extend(place.output);
        let (call, brief) = (encode(&RequestOut { paths, request })?, Brief(cx.observer()));
        let name = &self.description.name;
        let answer = self.caller.call(op, &call, &fds, &Context::new(&brief)).map_err(|error| {
            let error = cut_error(error);
            match error.kind {
                // Callers take it for the user's wish, and stop as well.
                ErrorKind::Cancelled if !cx.observer().cancelled() => Error { kind: ErrorKind::Internal, ..error }
                    .context(format!("the provider {name} stopped its operation {op}, which nobody wanted"))
                    .with_hint(DEFECT),
                ErrorKind::Internal | ErrorKind::Unknown => of_provider(name, error),
                _ => error,
            }
        })?;
        let mut answer: A = decode(&answer).map_err(|e| {
            Error { kind: ErrorKind::Internal, ..e }
                .context(format!("the provider {name} gave an answer that cannot be read"))
        })?;
        match request.wrong(place, &mut answer) {
            None => Ok(answer),
            Some(what) => {
                Err(Error::new(ErrorKind::Internal, format!("the provider {name} answered with {what}"))
                    .with_hint(DEFECT))
            }
        }
    }
}
