//! `ah agent fs exec`: run a command that sees a branch at the workspace's own path.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use ah_core::{Access, BranchOptions, ExecOptions};
use clap::Args;

use crate::app::App;
use crate::commands::branch;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
CMD and everything it starts see the branch where the workspace is; everybody else sees the workspace. Without BRANCH a \
new one is made from the present state. Ends as CMD ends; 128 + N if signal N ended it.

Examples:
  ah agent fs exec retry -- make test
  ah agent fs exec -- sh -c 'rm -rf src; ls'")]
pub(crate) struct ExecArgs {
    /// The branch's name, id or path.
    branch: Option<String>,
    /// The command and its arguments.
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(app: &App, args: &ExecArgs) -> Outcome {
    let workspace = app.workspace(if args.branch.is_some() { Access::Existing } else { Access::Create })?;
    let branch = match &args.branch {
        Some(name) => workspace.find_branch(name)?,
        None => {
            let made = branch::make(app, &workspace, &BranchOptions::default())?;
            app.ui.note(&format!("branch {} at {}", made.name, made.path.display()));
            made
        }
    };
    app.tell_notices();
    let cwd = app.cwd.starts_with(workspace.root()).then(|| app.cwd.clone());
    let options = ExecOptions { command: args.command.clone(), cwd, env: Vec::new() };
    Ok(exit(workspace.exec(&branch, &options)?))
}

fn exit(status: ExitStatus) -> Exit {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).and_then(|code| u8::try_from(code).ok());
    match code {
        Some(0) => Exit::Done,
        Some(code) => Exit::Code(code),
        None => Exit::Code(1),
    }
}
