//! `ah agent fs gc`: what crashes and removals left.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ah_core::{Access, Error, GcOptions, GcReport};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::commands::status::tell_missing;
use crate::failure::{Exit, Outcome};
use crate::itself;
use crate::output::text;

/// Options of `ah agent fs gc`.
#[derive(Debug, Args)]
#[command(after_help = "\
Finishes or undoes what crashes left, and gives space back. Safe at any time, beside anything. \
Prints one line for each thing that was done; ends with 1 if something could not be.

Examples:
  ah agent fs gc
  ah agent fs gc --json")]
pub(crate) struct GcArgs {
    /// Only what is due and cheap; started by other commands in the background.
    #[arg(long, hide = true)]
    auto: bool,
    /// A branch to take away when the command has ended that runs in it; started by `exec`.
    #[arg(long, hide = true, value_name = "BRANCH", requires = "auto")]
    after_command: Option<String>,
    /// Said by the process that `--after-command` starts to be nobody's child.
    #[arg(long, hide = true, requires = "after_command")]
    detached: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    gc: &'a GcReport,
}

/// Reclaims.
pub(crate) fn run(app: &App, args: &GcArgs) -> Outcome {
    if args.auto {
        app.work_in_background();
    }
    if args.after_command.is_some() && !args.detached {
        return detach();
    }
    let (root, workspace) = app.history(Access::Existing)?;
    if let (Some(branch), Some(workspace)) = (&args.after_command, &workspace) {
        // Until then the command that is to run has not begun.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        workspace.remove_branch_when_done(branch)?;
        return Ok(Exit::Done);
    }
    let options = GcOptions { auto: args.auto };
    let report = workspace.map_or_else(|| Ok(GcReport::default()), |workspace| workspace.gc(&options))?;
    let exit = if report.failures.is_empty() { Exit::Done } else { Exit::Code(1) };
    if app.ui.json {
        return exit.after(app.answer_of(true, &root, &Shape { gc: &report }));
    }
    let lines: Vec<_> = report.actions.iter().map(|action| text::line(action)).collect();
    let told = app.ui.stdout(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")));
    // Also where that could not be written: it is done.
    for failure in &report.failures {
        app.ui.warning(failure, None);
    }
    tell_missing(app, &report.missing);
    if report.bytes > 0 {
        app.ui.note(&format!("{} given back", text::size(report.bytes)));
    }
    exit.after(told.map_err(|failure| failure.of_answer(&lines.join("; "))))
}

/// Starts this very command once more, and ends.
fn detach() -> Outcome {
    let failed = |e: std::io::Error| Error::from_io("ah cannot start itself anew", &e);
    let program = itself::program()?;
    let mut again = Command::new(program);
    again.args(std::env::args_os().skip(1)).arg("--detached").process_group(0);
    again.spawn().map(drop).map_err(failed)?;
    Ok(Exit::Done)
}
