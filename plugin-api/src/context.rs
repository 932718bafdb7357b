//! What runs beside an operation: progress, cancellation, log.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

open_enum! {
    /// How loud a log line is.
    pub enum LogLevel {
        /// For the developers of a provider.
        Debug = "debug",
        /// For the curious.
        Info = "info",
        /// The user should know.
        Warn = "warn",
    }
}

/// How far a long operation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done, one or two words for a person: `reading`, `writing files`.
    pub stage: String,
    /// Units done.
    pub done: u64,
    /// Units in all, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// The caller's side of a [`Context`]. Called from any thread; must return at once.
pub trait Observer: Sync {
    /// Takes note of progress.
    fn progress(&self, _progress: &Progress) {}

    /// Whether the operation shall stop. Once true, always true.
    fn cancelled(&self) -> bool {
        false
    }

    /// Takes note of a log line.
    fn log(&self, _level: LogLevel, _message: &str) {}
}

/// Watches nothing and cancels nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Observer for Quiet {}

/// Handed to every operation.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    observer: &'a dyn Observer,
}

impl<'a> Context<'a> {
    /// A context that reports to `observer`.
    #[must_use]
    pub fn new(observer: &'a dyn Observer) -> Self {
        Self { observer }
    }

    /// A context that nobody watches.
    #[must_use]
    pub fn quiet() -> Context<'static> {
        Context { observer: &Quiet }
    }

    /// Who watches.
    #[must_use]
    pub fn observer(&self) -> &'a dyn Observer {
        self.observer
    }

    /// Reports progress. Cheap enough for every few hundred files, not for every one.
    pub fn progress(&self, stage: &str, done: u64, total: Option<u64>) {
        self.observer.progress(&Progress { stage: stage.to_owned(), done, total });
    }

    /// Writes a log line.
    pub fn log(&self, level: LogLevel, message: &str) {
        self.observer.log(level, message);
    }

    /// Returns early when the caller wants the operation to stop. Providers call this at least every 100 ms of work.
    ///
    /// # Errors
    /// `Cancelled` if so.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.observer.cancelled() { Err(Error::new(ErrorKind::Cancelled, "cancelled")) } else { Ok(()) }
    }
}
