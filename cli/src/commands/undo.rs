//! `ah agent fs undo`: take the latest restore back.

use ah_core::{Access, UndoOptions};
use clap::Args;

use crate::app::App;
use crate::commands::restore::{self, How, tell};
use crate::failure::Outcome;

/// Options of `ah agent fs undo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Puts the paths that the latest restore touched back to its safety snapshot. It saves the present state first too, and \
prints that snapshot's id, alone; so a second undo takes the first one back. \
An undo that was interrupted is finished by the same command.

Examples:
  ah agent fs undo
  ah agent fs undo --dry-run")]
pub(crate) struct UndoArgs {
    /// Print what would be done, in the form of `diff --name-status`, and do nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    how: How,
}

/// Takes it back.
pub(crate) fn run(app: &App, args: &UndoArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let options = UndoOptions { dry_run: args.dry_run, exact_times: args.how.exact_times(), force: args.how.force };
    let report = workspace.undo(&options)?;
    let outcome = tell(app, &workspace, &report, args.how.force);
    if !app.ui.json && !report.dry_run {
        restore::undone(app, &report);
    }
    outcome
}
