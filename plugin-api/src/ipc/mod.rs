//! The contract over a Unix stream socket, for providers in another process.
//!
//! - [`connect`] gives a provider that lives at the other end of a socket; [`serve`] is that other end.
//! - [`offers`] asks a server of several providers what it has, [`Client::open`] is a connection to one of them; [`serve_one_of`] is
//!   that server's side.
//! - `frame` is what goes over the socket, `client` and `server` are who says what when.
//!
//! Not here: making sockets and processes, and deciding who may ask for what (`ahd`).
//!
//! # Protocol, version [`VERSION`]
//!
//! Everything is a frame: four bytes of payload length (little endian), one byte of kind, one byte for the number of descriptors
//! that come with it, two bytes of zero; then the payload, CBOR. Descriptors are attached (`SCM_RIGHTS`) to the frame's first byte.
//!
//! | kind | from | payload | meaning |
//! |---|---|---|---|
//! | 1 Hello | both | `{version, description?, provider?, offers?}` | first frame of each side; the server's describes the provider |
//! | 2 Call | client | `{number, op, request}` | one operation; the next one only after its answer |
//! | 3 Cancel | client | `{number}` | the call shall stop; it is answered all the same |
//! | 4 Progress | server | [`crate::Progress`] | while a call runs; may be left out when the client is slow |
//! | 5 Log | server | `{level, message}` | while a call runs; left out when the client is slow, and counted before the answer |
//! | 6 Alive | server | nothing | while a call runs and looks whether it shall stop, about once a second; or, for as long as the server likes, while it does not, unless it was told to stop |
//! | 7 Answer | server | of the operation | the call is done |
//! | 8 Error | server | [`crate::Error`] | the call failed; or, followed by the end, the client broke the protocol |
//!
//! A client may name the `provider` that it wants. A server of several that is not told which answers with its `offers`, no
//! description, and the end. A server of one serves that one, whatever is named.
//!
//! Kinds that are unknown are passed over, as are unknown fields. Either side ends the connection by closing it; a call that
//! runs is then cancelled.
//!
//! # Limits
//!
//! How long the other side may be silent during a call is the client's matter; while nobody reads the output of a `read`, it may.
//!
//! A frame beyond [`MAX_REQUEST`] (to the server) or [`MAX_ANSWER`] (to the client; either side may take less), or with more than
//! [`crate::wire::MAX_FDS`] descriptors, is refused before anything is allocated for it. A frame that has begun must go on:
//! a pause of [`PAUSE`] in the middle of one ends the connection. A client that says more than a thousand frames while a call of its runs
//! breaks the protocol. Nothing here raises SIGPIPE or passes descriptors on to child processes.

mod client;
mod frame;
mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{Description, ProviderName};

pub use client::{Client, connect, connect_within, offers};
pub use server::{Bounds, Offered, serve, serve_one_of, serve_within, turn_away};

/// The version of the protocol. A side that hears of another one ends the connection.
pub const VERSION: u32 = 1;
/// The largest payload of a frame to the server, bytes.
pub const MAX_REQUEST: u32 = 4 << 20;
/// The largest payload of a frame to the client, bytes.
pub const MAX_ANSWER: u32 = 256 << 20;
/// The longest pause in the middle of a frame.
pub const PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<Description>,
    /// The client's: whom it wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider: Option<ProviderName>,
    /// The server's: whom it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    offers: Vec<Description>,
}

impl Hello {
    fn new() -> Self {
        Self { version: VERSION, description: None, provider: None, offers: Vec::new() }
    }
}

#[derive(Serialize)]
struct CallOut<'a> {
    number: u64,
    op: &'a str,
    #[serde(with = "serde_bytes")]
    request: &'a [u8],
}

#[derive(Deserialize)]
struct CallIn {
    number: u64,
    op: String,
    #[serde(with = "serde_bytes")]
    request: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Cancel {
    number: u64,
}

#[derive(Serialize, Deserialize)]
struct Log {
    level: crate::LogLevel,
    message: String,
}
