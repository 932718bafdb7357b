//! `ah session branch`: a new session from a moment, its files and its conversation as they were.

use ah_core::{Access, Error, ErrorKind, ExecOptions, SessionBranchOptions, SessionBranchReport, SessionName};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::commands::launch::{self, Launch};
use crate::commands::{branch, exec};
use crate::failure::{Exit, Outcome};

/// Options of `ah session branch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Makes a branch from the snapshot at or before REF, and the agent's conversation as it was there, under a new id; the \
session, its transcript and its files stay as they are. Prints the command that starts the agent in the branch, alone: at the \
path where the conversation knows its files if the kernel allows that, else in the branch's directory (it is warned of then, and --run refused without --elsewhere); recorded if the agent's hooks are not installed, so that it has moments all the same. If the snapshot cannot be used, the \
nearest that can be is named, and nothing is made (exit code 4).

Examples:
  ah session branch @prompt --name retry -m 'Use the existing parser'
  ah session branch @prompt{2} --name other --run
  eval \"$(ah session branch 10m-ago --name retry)\"")]
pub(crate) struct BranchArgs {
    /// The moment to start from.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
    /// The new session's name, and the branch's.
    #[arg(long)]
    name: String,
    /// What to tell the agent first.
    #[arg(short = 'm', long = "message", value_name = "INSTRUCTION", allow_hyphen_values = true)]
    instruction: Option<String>,
    /// Start the agent instead of printing the command.
    #[arg(long)]
    run: bool,
    /// With --run: start it also where its conversation knows its files at a path where it will not see them.
    #[arg(long, requires = "run")]
    elsewhere: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    session_branch: Answer<'a>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    report: &'a SessionBranchReport,
    launch: &'a Launch,
}

/// Makes it; prints or runs the command.
pub(crate) fn run(app: &App, args: &BranchArgs) -> Outcome {
    let name = SessionName::new(args.name.as_str())?;
    if args.instruction.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Error::new(ErrorKind::InvalidArgument, "the instruction is empty")
            .with_hint("leave -m out to start without one")
            .into());
    }
    let workspace = app.workspace(Access::Existing)?;
    let options = SessionBranchOptions {
        from: args.reference.clone(),
        name,
        instruction: args.instruction.clone(),
        form: launch::form(args.run),
        run: args.run,
        elsewhere: args.elsewhere,
        can_show: exec::can_show,
        agents: app.agents_home()?,
    };
    let report = workspace.session_branch(&options)?;
    let session = report.session.name.as_str();
    let agent = launch::command(app, session, &report.conversation);
    let launch = match &report.shown_at {
        Some(at) => {
            Launch::new(launch::in_branch(app, at, &report.conversation.cwd, &report.branch.name, &agent), None)
        }
        None => Launch::new(agent.clone(), Some(&report.conversation.cwd)),
    };
    if !app.ui.json {
        branch::tell(app, &report.branch);
        launch::tell(app, &report.from, &report.conversation);
        for note in &report.notes {
            app.ui.note(note);
        }
    }
    if args.run {
        app.ui.note(&format!("session {session} in {}", report.branch.path.display()));
        return Err(match &report.shown_at {
            Some(at) => {
                workspace.hold_branch(&report.branch)?;
                let command = launch::seated(at, &report.conversation.cwd, &agent);
                let run = ExecOptions { command, cwd: Some(at.clone()), once: false, apart: exec::apart(app) };
                exec::become_in(app, at, &report.branch, &run)
            }
            None => launch::become_it(app, &agent, &report.conversation.cwd),
        });
    }
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { session_branch: Answer { report: &report, launch: &launch } })?;
    } else {
        launch.print(app)?;
    }
    Ok(Exit::Done)
}
