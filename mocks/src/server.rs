//! The mock model server: answers agents from a scenario or from a recording, checks what they ask, and reports.
//!
//! | module | what it is for |
//! |---|---|
//! | `http` | listening on loopback, reading requests, sending replies with their timing and their faults |
//! | [`api`] | which service a request is for, and what its parts are called there |
//! | `anthropic`, `responses`, `chat` | an answer in that service's form, whole and as a stream |
//! | [`reply`] | what is sent, as data: so it can be recorded and replayed |
//! | [`report`] | what was asked, and what of it was wrong |
//! | `answers` | from request to reply: the scenario's answer, its faults, the recording's |

mod answers;
mod anthropic;
pub mod api;
mod chat;
mod http;
pub mod reply;
pub mod report;
mod responses;

use std::path::PathBuf;

use anyhow::Result;

use crate::scenario::Scenario;

/// What the server is to do.
#[derive(Debug)]
pub struct Options {
    /// What it answers from.
    pub source: Source,
    /// The port on 127.0.0.1; 0 for any that is free.
    pub port: u16,
    /// Where the report goes, after each request anew.
    pub report: Option<PathBuf>,
    /// Where each request and reply is appended.
    pub record: Option<PathBuf>,
    /// Whether an answer that nobody asked for is a fault.
    pub all: bool,
}

/// What is answered from.
#[derive(Debug)]
pub enum Source {
    /// A scenario.
    Scenario(Box<Scenario>),
    /// A recording of an earlier run.
    Recording(PathBuf),
}

/// Serves until SIGTERM or SIGINT; then whether all was as it should be.
///
/// # Errors
/// The scenario or recording is unusable, or the port is taken.
pub fn serve(options: &Options, ready: impl FnOnce(std::net::SocketAddr)) -> Result<bool> {
    let answers = answers::Answers::new(options)?;
    http::run(options.port, answers, ready)
}
