//! `ah agent fs gc`: what crashes and removals left.

use ah_core::{GcOptions, GcReport};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::commands::status::tell_missing;
use crate::failure::{Exit, Outcome};
use crate::output::{size, text};

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
    let (root, workspace) = app.history()?;
    let options = GcOptions { auto: args.auto };
    let report = workspace.map_or_else(|| Ok(GcReport::default()), |workspace| workspace.gc(&options))?;
    if app.ui.json {
        app.answer(&root, &Shape { gc: &report })?;
    } else {
        app.ui.stdout(|out| {
            use std::io::Write;
            report.actions.iter().try_for_each(|action| writeln!(out, "{}", text::line(action)))
        })?;
        for failure in &report.failures {
            app.ui.warning(failure, None);
        }
        tell_missing(app, &report.missing);
        if report.bytes > 0 {
            app.ui.note(&format!("{} given back", size::human(report.bytes)));
        }
    }
    Ok(if report.failures.is_empty() { Exit::Done } else { Exit::Code(1) })
}
