//! `ah agent fs exec`: run a command that sees a branch at the workspace's own path.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ah_agents::Agent;
use ah_core::exec::{alone, become_command};
use ah_core::{Access, BranchOptions, BranchRecord, ExecError, ExecOptions, Workspace};
use ah_plugin_api::{Error, ErrorKind};
use clap::Args;
use rustix::process::geteuid;

use crate::app::App;
use crate::commands::{branch, launch};
use crate::failure::{Failure, Outcome};
use crate::output::text;

/// Options of `ah agent fs exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
CMD and everything it starts see the branch where the workspace is; everybody else sees the workspace. What CMD asks of a server that runs outside is done outside; \
Codex's own in the background is not found from here. Run by another user than root, it knows this user and group alone: root's files look like nobody's, so that ssh ends at a file that /etc/ssh/ssh_config includes \
(GIT_SSH_COMMAND='ssh -F ~/.ssh/config' does without those), and su, sudo and chgrp to another group fail. Without BRANCH a \
new one is made from the present state; it goes when CMD has ended, unless `ah agent fs rm` would refuse to take it then: files were changed in it that are not ignored, say. Ends as CMD ends; 128 + N if signal N ended it, 127 if there is no CMD, 126 if it \
cannot be run. With --json, errors before CMD starts are JSON; afterwards stdout is CMD's.

Examples:
  ah agent fs exec retry -- make test
  ah agent fs exec -- sh -c 'rm -rf src; ls'")]
pub(crate) struct ExecArgs {
    /// The branch's name, id or path; also that of one which grew from a branch of this workspace.
    branch: Option<String>,
    /// Given by `ah` itself when it starts itself anew: the branch's path and the workspace's.
    #[arg(long, hide = true, num_args = 2, conflicts_with = "branch")]
    over: Vec<PathBuf>,
    /// Given with it: the branch goes when the command has ended.
    #[arg(long, hide = true, requires = "over")]
    once: bool,
    /// The command and its arguments.
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(app: &App, args: &ExecArgs) -> Outcome {
    let mut command = args.command.clone();
    if args.over.is_empty()
        && let Some(agent) = command.first().and_then(|program| Agent::of_program(program))
    {
        command.splice(1..1, ah_agents::launch::alone(agent).iter().map(OsString::from));
    }
    let options = |root: &Path| {
        let cwd = app.cwd.starts_with(root).then(|| app.cwd.clone());
        let once = args.once || args.over.is_empty() && args.branch.is_none();
        ExecOptions { command: command.clone(), cwd, once, apart: apart(app) }
    };
    if let [branch, root] = args.over.as_slice() {
        return Err(failed(become_command(branch, root, &options(root))));
    }
    // No branch is made for nothing.
    options(Path::new("/")).program()?;
    // Where there is no such branch here, it may be another workspace's.
    let elsewhere = |here: Option<&Workspace>, name: &str, error: Error| {
        let words = || args.command.iter().map(|word| format!(" {}", ah_core::text::shell(word))).collect::<String>();
        let again = |name: &str| format!("exec {name} --{}", words());
        app.engine()
            .ok()
            .and_then(|engine| engine.foreign_branch(here.map(Workspace::id), name, again))
            .unwrap_or(error)
    };
    let found = match &args.branch {
        Some(name) => app.workspace_with(&format!("there is no branch {name:?} here"), None),
        None => app.workspace(Access::Create),
    };
    let workspace = found.map_err(|error| match (&args.branch, error.kind) {
        (Some(name), ErrorKind::NotFound) => elsewhere(None, name, error),
        _ => error,
    })?;
    if let Some(name) = &args.branch
        && workspace.own_place().is_some()
        && let Some(own) = workspace.own_branch()?
        && (*name == own.name
            || name == own.id.as_str()
            || app.cwd.join(name).canonicalize().is_ok_and(|at| at == own.path))
    {
        // It is shown here already.
        return Err(launch::become_it(app, &command, &app.cwd));
    }
    // One of a branch's is shown here as well: its conversation may know its files here, where that branch was shown.
    let bough = args.branch.as_ref().map(|name| workspace.bough_of(name)).transpose()?.flatten();
    let origin = bough.as_ref().unwrap_or(&workspace);
    let branch = match &args.branch {
        Some(name) => origin.find_ready_branch(name).map_err(|error| match origin.find_branch(name) {
            Err(none) if none.kind == ErrorKind::NotFound => elsewhere(Some(&workspace), name, error),
            _ => error,
        })?,
        None => {
            let made = branch::make(app, &workspace, &BranchOptions { once: true, ..BranchOptions::default() })?;
            let (name, path, typed) = (&made.name, made.path.display(), ah_core::text::shell(made.name.as_ref()));
            app.ui.note(&format!(
                "branch {name} at {path}; it goes when the command ends, unless something in it was changed that is not ignored: then `ah agent fs rm {typed}` says what, and with --force takes it away"
            ));
            made
        }
    };
    if args.branch.is_some() {
        origin.hold_branch(&branch)?;
    } else {
        workspace.hold_branch_once(&branch)?;
    }
    Err(become_in(app, workspace.root(), &branch, &options(workspace.root())))
}

/// The folders by which what runs in a branch would find an agent's server that runs outside of it, or the other way round.
pub(crate) fn apart(app: &App) -> Vec<PathBuf> {
    // Without a home there is no agent's either.
    app.agents_home().map_or_else(|_| Vec::new(), |home| ah_agents::launch::meeting_places(&home, geteuid().as_raw()))
}

/// Becomes a command that sees `branch`, which is held, at the path `root`. Only if that cannot be is there anything to say.
pub(crate) fn become_in(app: &App, root: &Path, branch: &BranchRecord, options: &ExecOptions) -> Failure {
    app.tell_notices();
    let below = options.cwd.as_deref().and_then(|cwd| cwd.strip_prefix(root).ok());
    if let Some(below) = below.filter(|below| !branch.path.join(below).is_dir()) {
        let name = text::line(&branch.name);
        app.ui
            .note(&format!("{name} has no {}: the command runs in the nearest directory above it", text::path(below)));
    }
    if !alone() {
        return anew(app.ui.json, &branch.path, root, options).into();
    }
    failed(become_command(&branch.path, root, options))
}

/// Whether the kernel lets a directory be shown at another's path here; tried by showing `root` at its own.
pub(crate) fn can_show(root: &Path) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let mut attempt = Command::new(&program);
    attempt.args(["agent", "fs", "exec", "--over"]).args([root, root]).arg("--").arg(&program).arg("--version");
    attempt.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    attempt.status().is_ok_and(|status| status.success())
}

fn failed(error: ExecError) -> Failure {
    match error {
        ExecError::Place(error) => error.into(),
        ExecError::Command(error) => Failure::command(error),
    }
}

/// Starts this program anew in this process, to be rid of the threads of providers; gives why that failed.
fn anew(json: bool, branch: &Path, root: &Path, options: &ExecOptions) -> Error {
    let error = std::env::current_exe().map(|program| {
        let mut again = Command::new(program);
        if let Some(cwd) = &options.cwd {
            again.current_dir(cwd);
        }
        again.args(["agent", "fs", "exec", "--over"]).arg(branch).arg(root);
        again.args(options.once.then_some("--once"));
        again.args(json.then_some("--json")).arg("--").args(&options.command);
        again.exec()
    });
    let (Ok(error) | Err(error)) = error;
    Error::from_io("ah cannot start itself anew", &error).with_hint("name the branch: `ah agent fs exec BRANCH -- CMD`")
}
