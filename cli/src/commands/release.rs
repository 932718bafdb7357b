//! `ah agent fs release`: give views back.

use std::path::{Path, PathBuf};

use ah_core::{Access, ErrorKind, LeaseRecord, Release, text};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::commands::status::views;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs release`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the path of each directory that was given back. One that `seek` printed more than once is there until it was given back as often, or by --all.

Examples:
  ah agent fs release \"$view\"
  ah agent fs release --all")]
#[group(required = true, multiple = false)]
pub(crate) struct ReleaseArgs {
    /// The directory that `seek` printed.
    path: Option<PathBuf>,
    /// Every directory that shows a snapshot of this workspace.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    released: &'a [LeaseRecord],
}

/// Gives views back.
pub(crate) fn run(app: &App, args: &ReleaseArgs) -> Outcome {
    let engine = app.engine()?;
    // Who stands in a view means the workspace that it is a view of; and this process must not be what keeps it busy.
    let inside = engine.workspace_of_view(&app.cwd)?;
    if let Some(workspace) = &inside {
        let _ = std::env::set_current_dir(workspace.root());
    }
    let released = match (&args.path, &inside) {
        // A view is found wherever one stands.
        (Some(path), _) => engine.release(&Release::Path(app.cwd.join(path))),
        (None, Some(workspace)) => workspace.release(&Release::All),
        (None, None) => app
            .history(Access::Existing)?
            .1
            .map_or_else(|| Ok(Vec::new()), |workspace| workspace.release(&Release::All)),
    };
    let released = released.map_err(|error| match inside {
        Some(workspace) if error.kind == ErrorKind::Busy => {
            let root = text::shell(workspace.root().as_os_str());
            error.with_hint(format!("leave the view first: `cd {root}`; then repeat it there"))
        }
        _ => error,
    })?;
    if app.ui.json {
        app.ui.json_of_act(&Shape { released: &released })?;
        return Ok(Exit::Done);
    }
    let paths: Vec<&Path> = views(&released).map(|lease| lease.path.as_path()).collect();
    app.ui.paths_of_act(&paths)?;
    Ok(Exit::Done)
}
