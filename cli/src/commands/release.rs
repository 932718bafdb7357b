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
    let released = match &args.path {
        // A view is found wherever one stands.
        Some(path) => app.engine()?.release(&Release::Path(app.cwd.join(path)))?,
        None => app.workspace(Access::Existing)?.release(&Release::All)?,
    };
    if app.ui.json {
        app.ui.json(&Shape { released: &released })?;
        return Ok(Exit::Done);
    }
    for lease in &released {
        app.ui.path(&lease.path)?;
    }
    Ok(Exit::Done)
}
