//! `ah agent fs adopt`: after a move that was not noticed.

use std::path::PathBuf;

use ah_core::{NoticeKind, WorkspaceId};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs adopt`.
#[derive(Debug, Args)]
#[command(after_help = "\
A workspace that was moved on one filesystem is found by itself. This is for one that was copied to another and deleted.

Examples:
  ah agent fs adopt /mnt/old/project
  ah -C ~/project agent fs adopt ~/old-project")]
pub(crate) struct AdoptArgs {
    /// Where the workspace was; or its id, which `ah agent fs gc` names where another one was moved to that place.
    #[arg(value_name = "OLDPATH")]
    old_path: PathBuf,
}

#[derive(Serialize)]
struct Shape<'a> {
    id: &'a WorkspaceId,
}

/// Takes the history over.
pub(crate) fn run(app: &App, args: &AdoptArgs) -> Outcome {
    let workspace = app.engine()?.adopt(&app.cwd, &app.cwd.join(&args.old_path))?;
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { id: workspace.id() })?;
    } else {
        // That it was elsewhere is what was asked for.
        app.answer_tells(NoticeKind::WorkspaceMoved);
        app.ui.path(workspace.root())?;
    }
    Ok(Exit::Done)
}
