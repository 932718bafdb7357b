//! How results look. One module a matter; none of them knows a command.
//!
//! - [`style`]: colour, or none. [`text`]: bytes and words made safe for a terminal. [`json`]: so is JSON.
//! - [`time`]: times and spans for people. [`size`]: bytes for people.
//! - [`changes`]: lists of differences. [`table`]: columns. [`patch`]: unified diffs. [`stat`]: how large they are. [`progress`]: bars, and the way Ctrl-C reaches an operation.
//! - [`Ui`]: where all of it goes.

pub(crate) mod changes;
pub(crate) mod json;
pub(crate) mod patch;
pub(crate) mod progress;
pub(crate) mod stat;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;

use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::ProgressBar;
use serde::Serialize;

use crate::args::Globals;
use crate::env::Env;
use crate::failure::Failure;
use crate::hint;
use crate::output::style::{Painter, Style};

/// Where output goes, and in which form.
#[derive(Debug, Clone)]
pub(crate) struct Ui {
    /// JSON is wanted.
    pub(crate) json: bool,
    /// No notes, warnings or progress.
    pub(crate) quiet: bool,
    /// Paints what goes to stdout.
    pub(crate) out: Painter,
    /// Paints what goes to stderr.
    pub(crate) err: Painter,
    /// Whether stdout is a terminal.
    stdout_terminal: bool,
    /// Whether stderr is a terminal, so that progress may be shown.
    pub(crate) stderr_terminal: bool,
    /// Where `-C` went.
    directory: Option<PathBuf>,
    /// The progress bar, while there is one; it goes before anything is printed.
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Ui {
    /// The form that the options ask for.
    pub(crate) fn new(globals: &Globals, env: &Env) -> Self {
        Self {
            json: globals.json,
            quiet: globals.quiet,
            out: Painter::stdout(globals.color, env),
            err: Painter::stderr(globals.color, env),
            stdout_terminal: env.stdout_terminal,
            stderr_terminal: env.stderr_terminal,
            directory: globals.directory.clone(),
            bar: Arc::default(),
        }
    }

    /// Whether stdout is a terminal.
    pub(crate) fn stdout_terminal(&self) -> bool {
        self.stdout_terminal
    }

    /// stdout, buffered; what is written goes out at the end of `write`.
    pub(crate) fn stdout(
        &self,
        write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.clear();
        let mut out = BufWriter::new(io::stdout().lock());
        write(&mut out).and_then(|()| out.flush()).map_err(Failure::output)
    }

    /// The answer of a command that did something, one line, alone on stdout.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        self.stdout(|out| writeln!(out, "{text}")).map_err(|failure| failure.of_answer(text))
    }

    /// The same of a path, as [`Ui::paths`] writes it.
    pub(crate) fn path(&self, path: &Path) -> Result<(), Failure> {
        self.paths_of_act(&[path])
    }

    /// The same of several, of a command that did something: where they cannot be written, all are told.
    pub(crate) fn paths_of_act(&self, paths: &[&Path]) -> Result<(), Failure> {
        let all = || paths.iter().map(|path| text::path(path)).collect::<Vec<_>>().join(", ");
        self.paths(paths).map_err(|failure| failure.of_answer(&all()))
    }

    /// Paths, or ids, a line each, byte for byte; on a terminal as they can be shown there.
    pub(crate) fn paths(&self, paths: &[&Path]) -> Result<(), Failure> {
        use std::os::unix::ffi::OsStrExt;
        self.stdout(|out| {
            paths.iter().try_for_each(|path| match self.stdout_terminal {
                true => writeln!(out, "{}", text::path(path)),
                false => out.write_all(path.as_os_str().as_bytes()).and_then(|()| out.write_all(b"\n")),
            })
        })
    }

    /// One JSON document on one line.
    pub(crate) fn json<T: Serialize>(&self, shape: &T) -> Result<(), Failure> {
        self.stdout(|out| {
            json::write(out, shape)?;
            out.write_all(b"\n")
        })
    }

    /// The same of a command that did something.
    pub(crate) fn json_of_act<T: Serialize>(&self, shape: &T) -> Result<(), Failure> {
        let mut document = Vec::new();
        json::write(&mut document, shape).map_err(Failure::output)?;
        self.line(&String::from_utf8_lossy(&document))
    }

    /// A warning, and what to do about it.
    pub(crate) fn warning(&self, message: &str, hint: Option<&str>) {
        let mut shown = format!("{} {}", self.err.paint("warning:", Style::Warning), text::line(message));
        if let Some(hint) = hint {
            shown.push_str(&format!("\n{} {}", self.err.paint("hint:", Style::Hint), text::line(&self.in_place(hint))));
        }
        self.to_stderr(&shown);
    }

    /// A text with `-C` in its commands, where this one has it.
    pub(crate) fn in_place(&self, text: &str) -> String {
        hint::in_place(self.directory.as_deref(), text)
    }

    /// Something that is good to know beside the result.
    pub(crate) fn note(&self, message: &str) {
        self.to_stderr(&self.err.paint(&text::line(&self.in_place(message)), Style::Dim));
    }

    /// A few of many paths beside the result; `--json` has them all.
    pub(crate) fn some(&self, what: &str, paths: impl ExactSizeIterator<Item = String>) {
        const SHOWN: usize = 10;
        let more = paths.len().saturating_sub(SHOWN);
        for path in paths.take(SHOWN) {
            self.note(&format!("{what}: {path}"));
        }
        if more > 0 {
            self.note(&format!("{what}: and {more} more; --json lists them all"));
        }
    }

    /// Shows on a terminal what is being done, until the next thing is.
    pub(crate) fn passing(&self, what: &str) {
        if self.quiet || self.json || !self.stderr_terminal {
            return;
        }
        let mut held = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_with(ProgressBar::new_spinner).set_message(what.to_owned());
        held.as_ref().inspect(|bar| bar.tick());
    }

    fn clear(&self) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }

    fn to_stderr(&self, shown: &str) {
        if !self.quiet {
            self.clear();
            // Nobody is left to tell when stderr is closed.
            let _ = writeln!(io::stderr().lock(), "{shown}");
        }
    }
}
