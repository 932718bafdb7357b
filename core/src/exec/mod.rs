//! Running a command that sees a branch at the workspace's own path.
//!
//! This process itself goes into a mount namespace of its own, puts the branch over the workspace there, and becomes the command:
//! no child, so that terminal, process group, signals, descriptors and exit status are the caller's without any work, and
//! everything that the command starts sees the same. Nobody else sees anything of it. The kernel's part is in `namespace.rs`.
//!
//! An ordinary user needs a user namespace for that, in which only this user and its group are known: programs that change to another user
//! (`sudo`) do not work there, nor those that want a file to be root's (`ssh`, of what the system's configuration includes). Root needs none.

mod namespace;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::{Dir, Error, ErrorKind, Result};

use crate::text;

pub use program::{cannot_run, look_for};

/// What is to be run, and how.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The directory to run it in, as seen outside; none: the workspace's root. One that the branch does not have becomes the
    /// nearest above that it has.
    pub cwd: Option<PathBuf>,
    /// Whether the branch goes when the command has ended: then no advice may lead there.
    pub once: bool,
    /// Folders that are empty for the command and what it starts, and that nobody else sees what they put there. One that is not there is made, for this user
    /// alone; one that cannot be, or is somebody else's, is left as it is.
    pub apart: Vec<PathBuf>,
}

impl ExecOptions {
    /// The program, and its arguments.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub fn program(&self) -> Result<(&OsString, &[OsString])> {
        self.command.split_first().filter(|(program, _)| !program.is_empty()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "there is no command to run: its name is empty")
                .with_hint("in a script, a variable that should hold it may not be set")
        })
    }
}

/// Why a process did not become a command.
#[derive(Debug)]
pub enum ExecError {
    /// The branch could not be shown.
    Place(Error),
    /// It is shown, and the command there cannot be run: `NotFound` if there is none of that name.
    Command(Error),
}

/// Whether this process has no other thread: the kernel lets only such a one into a user namespace. Providers may have
/// started some; then the program starts itself anew (`exec`) and calls [`become_command`] before it loads any.
#[must_use]
pub fn alone() -> bool {
    // Without /proc the attempt itself tells.
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() < 2)
}

/// Becomes a command that sees `branch` at the path `workspace`; gives why it could not. Needs a process that is [`alone`].
///
/// `FailedPrecondition` if the kernel does not allow it, or the workspace's path is gone. After most of them this process is in another namespace: there is nothing left to do but to end.
#[must_use]
pub fn become_command(branch: &Path, workspace: &Path, options: &ExecOptions) -> ExecError {
    let (program, arguments) = match options.program() {
        Ok(command) => command,
        Err(error) => return ExecError::Place(error),
    };
    let cwd = match enter(branch, workspace, options) {
        Ok(cwd) => cwd,
        Err(error) => return ExecError::Place(error),
    };
    let mut command = Command::new(program);
    command.args(arguments).env("PWD", &cwd);
    let failed = cannot_run(program, &command.exec());
    let hint = match failed.kind {
        _ if failed.hint.is_some() => None,
        ErrorKind::NotFound => {
            Some("what is there to run can differ in the branch: `ls` as the command shows it".to_owned())
        }
        ErrorKind::PermissionDenied => {
            Some(format!("`ls -l {}` as the command shows whether it can be run", text::shell(program)))
        }
        _ => None,
    };
    ExecError::Command(match hint {
        Some(hint) => failed.with_hint(hint),
        None => failed,
    })
}

/// Puts the branch over the workspace, for this process and what it becomes; gives the directory it is in then.
fn enter(branch: &Path, workspace: &Path, options: &ExecOptions) -> Result<PathBuf> {
    let shown = branch.display();
    let way_out = match options.once {
        true => "or make a branch that stays, and work in it: ah agent fs branch".to_owned(),
        false => format!("or work in the branch itself: cd {}", text::shell(branch.as_os_str())),
    };
    let over = Dir::open(branch).map_err(|e| e.context(format!("the branch at {shown} cannot be opened")))?;
    let under = Dir::open(workspace).map_err(|e| match e.kind {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::FailedPrecondition, format!("there is nothing at {} any more", workspace.display()))
                .with_hint(format!("mkdir -p {}; {way_out}", text::shell(workspace.as_os_str())))
        }
        _ => e,
    })?;
    namespace::put_over(&over, &under, &way_out)?;
    options.apart.iter().try_for_each(|folder| namespace::keep_apart(folder, &way_out))?;
    let below = options.cwd.as_deref().and_then(|cwd| cwd.strip_prefix(workspace).ok()).unwrap_or(Path::new(""));
    for below in below.ancestors() {
        let cwd = if below == Path::new("") { workspace.to_owned() } else { workspace.join(below) };
        if std::env::set_current_dir(&cwd).is_ok() {
            return Ok(cwd);
        }
    }
    Err(Error::new(ErrorKind::Internal, format!("the branch does not show at {}", workspace.display())))
}
