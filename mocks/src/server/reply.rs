//! What is sent back, as data: the form in which it is recorded, one exchange a line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request with its reply, a line of a recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// The request's path, without its query.
    pub path: String,
    /// The request's body.
    pub request: Value,
    /// What was sent back.
    pub reply: Reply,
}

/// A reply.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers beside those that every reply has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// What follows.
    pub body: Body,
}

/// A reply's body.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// One JSON document.
    Whole(Value),
    /// Server-sent events.
    Stream {
        /// Each event's text, as it goes over the wire.
        events: Vec<String>,
        /// Milliseconds before each.
        #[serde(default)]
        pace_ms: u64,
        /// How it ends.
        end: End,
    },
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// As it should.
    Whole,
    /// The connection breaks.
    Broken,
    /// Nothing more comes, and the connection stays.
    Stalled,
}

impl Reply {
    /// A JSON document with a status.
    #[must_use]
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, headers: BTreeMap::new(), body: Body::Whole(body) }
    }
}

/// A server-sent event's text.
#[must_use]
pub fn event(name: Option<&str>, data: &Value) -> String {
    name.map_or_else(|| format!("data: {data}\n\n"), |name| format!("event: {name}\ndata: {data}\n\n"))
}

/// Text in the pieces that a stream brings it in: about a word each, together exactly the text.
#[must_use]
pub fn pieces(text: &str) -> Vec<&str> {
    if text.is_empty() { vec![""] } else { text.split_inclusive(' ').collect() }
}
