//! How a command ends: exit codes, and errors for people and for programs. What went wrong is the contract's
//! [`Error`] in every case; its kind alone decides the exit code.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind};
use clap::error::{ContextKind, ContextValue};
use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, StatxFlags};
use serde::Serialize;

use crate::args::Globals;
use crate::env::Env;
use crate::hint;
use crate::output::style::{Painter, Style};
use crate::output::{json, text};

/// What a command comes to.
pub(crate) type Outcome = Result<Exit, Failure>;

/// How a command that did not fail ends the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// Done, and the answer is no: a report with failures in it, a command run by `exec` that failed.
    Code(u8),
}

impl Exit {
    /// After a result that was told, or could not be: how the command ends is the same.
    pub(crate) fn after(self, told: Result<(), Failure>) -> Outcome {
        match told {
            Err(Failure::Output(error, _)) => Err(Failure::Output(error, self)),
            Err(Failure::Answer(error, answer, _)) => Err(Failure::Answer(error, answer, self)),
            told => told.map(|()| self),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Code(code) => code,
        }
    }
}

/// Why a command stops.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command failed.
    Failed(Error),
    /// The command that was to be run cannot be; the exit code is what shells have for that.
    Command(Error, u8),
    /// stdout could not be written to; with how the command ends else. A pipe that was closed is not an error: who reads has seen enough.
    Output(io::Error, Exit),
    /// So it was with the answer of a command that has done its work; with the answer.
    Answer(io::Error, String, Exit),
}

impl Failure {
    /// stdout could not be written to.
    pub(crate) fn output(error: io::Error) -> Self {
        Self::Output(error, Exit::Done)
    }

    /// What was to be written is the answer: the work is done, and whoever does not see that would do it again.
    pub(crate) fn of_answer(self, answer: &str) -> Self {
        match self {
            Self::Output(error, exit) => Self::Answer(error, answer.to_owned(), exit),
            other => other,
        }
    }

    /// A command that cannot be run ends this as it ends a shell.
    pub(crate) fn command(error: Error) -> Self {
        let code = if error.kind == ErrorKind::NotFound { 127 } else { 126 };
        Self::Command(error, code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// `{"error": …}` on stdout.
#[derive(Serialize)]
struct ErrorShape<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    kind: &'a str,
    message: &'a str,
    hint: Option<&'a str>,
    causes: &'a [String],
}

/// Tells how a command ended.
pub(crate) struct Report<'a> {
    json: bool,
    /// The command line, looked at only when something fails.
    arguments: &'a [OsString],
    /// Where `-C` went.
    directory: Option<PathBuf>,
    /// The state's folder.
    state: Option<PathBuf>,
    /// Whether an agent's sandbox may keep us from writing there.
    in_codex: bool,
    painter: Painter,
}

impl<'a> Report<'a> {
    /// A report in the form that the options ask for.
    pub(crate) fn new(globals: &Globals, env: &Env, arguments: &'a [OsString]) -> Self {
        Self {
            json: globals.json,
            arguments,
            directory: globals.directory.clone(),
            state: env.state(),
            in_codex: env.in_codex,
            painter: Painter::stderr(globals.color, env),
        }
    }

    /// Tells, and gives the process's exit code. Nothing is held back then: the process may end at once.
    pub(crate) fn finish(&self, outcome: Outcome) -> u8 {
        let written = |exit: Exit| exit.after(io::stdout().lock().flush().map_err(Failure::output));
        match outcome.and_then(written) {
            Ok(exit) => exit.code(),
            Err(Failure::Output(error, exit) | Failure::Answer(error, _, exit))
                if error.kind() == io::ErrorKind::BrokenPipe =>
            {
                exit.code()
            }
            Err(Failure::Output(error, exit)) => self.no_output("cannot write to standard output", &error, exit),
            Err(Failure::Answer(error, answer, exit)) => {
                let done = if exit == Exit::Done { "it is done" } else { "not all of it is done" };
                let message = format!("{done}, but the answer cannot be written to standard output: {answer}");
                self.no_output(&message, &error, exit)
            }
            Err(Failure::Failed(error)) => {
                let code = exit_code(error.kind);
                self.failed(error, code)
            }
            Err(Failure::Command(error, code)) => self.failed(error, code),
        }
    }

    /// Where standard output leads is not ours: removing snapshots would free nothing there.
    fn no_output(&self, message: &str, error: &io::Error, exit: Exit) -> u8 {
        self.to_stderr(&Error::from_io(message, error).with_hint("give it another place to go, or make room there"));
        exit.code().max(1)
    }

    fn failed(&self, mut error: Error, code: u8) -> u8 {
        let hint = self.in_sandbox(&error).or_else(|| self.own_door(&error)).or_else(|| error.hint.take());
        let hint = hint.or_else(|| self.read_only(&error)).or_else(|| self.usual_hint(&error));
        error.hint = hint.map(|hint| hint::in_place(self.directory.as_deref(), &hint));
        if !(self.json && is_told(&error)) {
            self.to_stderr(&error);
        }
        code
    }

    /// What helps where the agent's own sandbox forbids writing.
    fn in_sandbox(&self, error: &Error) -> Option<String> {
        let state = self.state.as_ref().filter(|_| self.in_codex)?;
        let may_be_it =
            error.errno.is_some() || matches!(error.kind, ErrorKind::Unavailable | ErrorKind::PermissionDenied);
        // Some sandboxes let permission bits look as ever: only trying tells.
        let probe = state.join(format!(".sandbox.tmp-{}", std::process::id()));
        if !may_be_it || std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)).is_ok() {
            return None;
        }
        let state = ah_core::text::shell(state.as_os_str());
        Some(format!("Codex's sandbox forbids it; a person allows it with `codex --add-dir {state}`"))
    }

    /// What helps where a directory is closed to whom it belongs to: the one that the command is about, or one above it.
    fn own_door(&self, error: &Error) -> Option<String> {
        let here = std::env::current_dir().ok().filter(|_| error.kind == ErrorKind::PermissionDenied)?;
        // Where `-C` has led to already, there is nothing of that name below it.
        let here = self.directory.as_ref().map_or_else(|| here.clone(), |directory| here.join(directory));
        let me = rustix::process::geteuid().as_raw();
        let is_closed = |directory: &Path| {
            // Whoever goes through one need not read it.
            let needed = if directory == here { 0o500 } else { 0o100 };
            std::fs::metadata(directory).is_ok_and(|at| at.is_dir() && at.uid() == me && at.mode() & needed != needed)
        };
        let closed = here.ancestors().find(|directory| is_closed(directory))?;
        let (closed, whole) = (ah_core::text::shell(closed.as_os_str()), hint::line_of(self.arguments));
        Some(format!("it is yours, and closed to you as well: `chmod u+rwx {closed}`, then repeat `{whole}`"))
    }

    /// What helps on a disk that is read-only, as one is after an error of its own.
    fn read_only(&self, error: &Error) -> Option<String> {
        const EROFS: i32 = 30;
        if error.errno != Some(EROFS) {
            return None;
        }
        let mount = self.state.as_deref().and_then(read_only_mount);
        let mount = mount.map_or_else(|| "MOUNTPOINT".to_owned(), |mount| ah_core::text::shell(mount.as_os_str()));
        // A copy would do for one provider only: it holds no filesystem's own snapshots.
        Some(format!(
            "what was captured can be looked at all the same: `ah agent fs cat`, `diff`, `show`; to go on, make the disk writable again \
             (`mount -o remount,rw {mount}`), or set AH_HOME to an empty folder on another one"
        ))
    }

    /// What helps with most errors of a kind, where whoever made this one knew nothing better.
    fn usual_hint(&self, error: &Error) -> Option<String> {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const EFBIG: i32 = 27;
        let whole = hint::line_of(self.arguments);
        Some(match error.kind {
            ErrorKind::InvalidArgument => format!("{} --help", hint::command_named(self.arguments)),
            ErrorKind::NotFound => return None,
            ErrorKind::AlreadyExists => "choose another name".to_owned(),
            ErrorKind::PermissionDenied => "`id` and `ls -ld` show who may: what is yours, `chmod u+rwX PATH` opens; else repeat it as the owner".to_owned(),
            ErrorKind::FailedPrecondition | ErrorKind::Unsupported => "ah agent fs status".to_owned(),
            ErrorKind::Conflict | ErrorKind::Busy => format!("wait a moment, then repeat `{whole}`"),
            ErrorKind::ResourceExhausted if matches!(error.errno, Some(ENFILE | EMFILE)) => {
                format!("too many files are open: `ulimit -n` shows how many may be, `ulimit -n 4096` lets there be more; then repeat `{whole}`")
            }
            ErrorKind::ResourceExhausted => {
                "free some space: `df -h` shows which disk is full (`df -i`: which takes no more files), `quota -s` which quota is used up, `ah agent fs prune keep-last=20 --dry-run` which snapshots can go, `ah agent fs branches` which branches; `ah agent fs gc` gives back what was removed before".to_owned()
            },
            ErrorKind::Unavailable => "ah agent fs providers".to_owned(),
            ErrorKind::DataLoss if hint::command_named(self.arguments).ends_with(" restore") => {
                "`ah agent fs seek SNAPSHOT -- PATH` shows the paths of this one that you name; `ah agent fs snapshots` lists the others".to_owned()
            }
            ErrorKind::DataLoss => {
                "`ah agent fs restore SNAPSHOT` brings back all of this one that can be read and names the rest, `ah agent fs seek SNAPSHOT -- PATH` shows the paths that you name; `ah agent fs snapshots` lists the others".to_owned()
            }
            ErrorKind::Cancelled => format!("`ah` shows how things stand; `{whole}` starts again"),
            _ if error.errno == Some(EFBIG) => {
                "the filesystem there holds no file of that size: make it smaller, then repeat it".to_owned()
            }
            _ => "`ah agent fs gc` puts things in order; then repeat it".to_owned(),
        })
    }

    fn to_stderr(&self, error: &Error) {
        let mut shown = format!("{} {}\n", self.painter.paint("error:", Style::Error), text::line(&error.message));
        for cause in &error.causes {
            shown.push_str(&format!("  {} {}\n", self.painter.paint("caused by:", Style::Dim), text::line(cause)));
        }
        if let Some(hint) = &error.hint {
            shown.push_str(&format!("{} {}\n", self.painter.paint("hint:", Style::Hint), text::line(hint)));
        }
        // Nobody is left to tell when stderr is closed too.
        let _ = io::stderr().lock().write_all(shown.as_bytes());
    }
}

/// Tells an error as JSON; false if it cannot be written. Nobody waits for it behind a pipe that was closed.
fn is_told(error: &Error) -> bool {
    to_stdout(error).map_or_else(|why| why.kind() == io::ErrorKind::BrokenPipe, |()| true)
}

fn to_stdout(error: &Error) -> io::Result<()> {
    let Error { kind, message, hint, causes, errno: _ } = error;
    let body = ErrorBody { kind: kind.as_str(), message, hint: hint.as_deref(), causes };
    let mut shown = Vec::new();
    json::write(&mut shown, &ErrorShape { error: body })?;
    shown.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&shown)?;
    stdout.flush()
}

/// The exit code that stands for a kind of error.
fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidArgument => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::FailedPrecondition | ErrorKind::Busy => 4,
        ErrorKind::Unavailable | ErrorKind::Unsupported => ah_host::EXIT_UNAVAILABLE,
        ErrorKind::Cancelled => 130,
        ErrorKind::PermissionDenied | ErrorKind::ResourceExhausted | ErrorKind::DataLoss | ErrorKind::Internal => 1,
        // Kinds are an open set: one that this side does not know says no more than that it failed.
        _ => 1,
    }
}

/// Tells what is wrong with a command line, or prints the help that was asked for.
pub(crate) fn usage(mut error: clap::Error, arguments: &[OsString], colour: bool) -> u8 {
    if !error.use_stderr() {
        // Help and version, asked for.
        let _ = error.print();
        return 0;
    }
    // That `--` before it makes a mistyped option a value is no help: a REF is none that begins so, and `exec` would run it.
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().starts_with("to pass "));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    let meant = hint::meant(&error, arguments);
    // Nor is what nobody types a help, nor what only sounds like it where it is known what was meant.
    if let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) {
        names.retain(|name| meant.is_none() && !name.starts_with("__"));
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    let hint = meant.unwrap_or_else(|| format!("{} --help", hint::command_named(arguments)));
    // The options could not be read, so whether JSON is wanted has to be seen from the words themselves.
    if arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json") {
        let rendered = error.render().to_string();
        // The first paragraph; some errors name the arguments on lines of their own.
        let first = rendered.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
        let message = first.strip_prefix("error: ").unwrap_or("a command is missing");
        if is_told(&Error::new(ErrorKind::InvalidArgument, message).with_hint(&hint)) {
            return 2;
        }
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // `ah agent fs`: the help is the answer, and there was no command to run.
        let _ = error.print();
    } else {
        let rendered = if colour { error.render().ansi().to_string() } else { error.render().to_string() };
        let told = rendered.lines().take_while(|line| !line.starts_with("For more information"));
        let told = told.collect::<Vec<_>>().join("\n");
        let _ = writeln!(io::stderr().lock(), "{}\nhint: {hint}", told.trim_end());
    }
    2
}

/// The mount point of the filesystem that `path` is on, or will be, if that is read-only.
fn read_only_mount(path: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find_map(|above| std::fs::canonicalize(above).ok())?;
    if !rustix::fs::statvfs(&there).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return None;
    }
    // What is mounted in a folder may have the number of the disk above it. None: the kernel does not tell.
    let mount = |path: &Path| {
        let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID).then_some(stat.stx_mnt_id)
    };
    let its = mount(&there)?;
    there.ancestors().take_while(|above| mount(above) == Some(its)).last().map(Path::to_owned)
}
