//! `ah agent fs release`: give views back.

use std::path::PathBuf;

use ah_core::{Access, LeaseRecord, Release};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs release`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the path of each directory that was given back.

Examples:
  ah agent fs release \"$view\"
  ah agent fs release --all")]
pub(crate) struct ReleaseArgs {
    /// The directory that `seek` printed.
    #[arg(required_unless_present = "all")]
    path: Option<PathBuf>,
    /// Every directory that shows a snapshot of this workspace.
    #[arg(long, conflicts_with = "path")]
    all: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    released: &'a [LeaseRecord],
}

/// Gives views back.
pub(crate) fn run(app: &App, args: &ReleaseArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let which = args.path.as_ref().map_or(Release::All, |path| Release::Path(app.cwd.join(path)));
    let released = workspace.release(&which)?;
    if app.ui.json {
        app.answer(workspace.root(), &Shape { released: &released })?;
        return Ok(Exit::Done);
    }
    for lease in &released {
        app.ui.path(&lease.path)?;
    }
    Ok(Exit::Done)
}
