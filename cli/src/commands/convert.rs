//! `ah agent fs convert`: the workspace as a unit that its filesystem can snapshot by itself.

use ah_core::{Access, ConvertReport, ErrorKind};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::text;

/// Options of `ah agent fs convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
On Btrfs it makes the workspace's directory a subvolume: snapshots then cost milliseconds, hold nothing else, and need no root. \
Contents, owners, permissions and times stay; nothing is copied but names, as files share their data. \
`ah agent fs status` says where it is worthwhile. Mount the filesystem with user_subvol_rm_allowed first: without it only root \
can remove such snapshots, and another provider goes on serving. Refused while a program has something in it open, a shell that stands in it \
included: go outside, and name it with -C.

Examples:
  ah -C ~/project agent fs convert")]
pub(crate) struct ConvertArgs {}

#[derive(Serialize)]
struct Shape<'a> {
    convert: &'a ConvertReport,
}

/// Converts; prints the workspace's path.
pub(crate) fn run(app: &App, _args: &ConvertArgs) -> Outcome {
    let too_much =
        || app.engine().is_ok_and(|engine| engine.root_of(&app.cwd).is_ok_and(|root| engine.is_too_much(&root)));
    let workspace = app.workspace(Access::Create).map_err(|error| match error.kind {
        ErrorKind::FailedPrecondition if too_much() => {
            error.with_hint("name a project's directory: ah -C DIR agent fs convert")
        }
        _ => error,
    })?;
    let report = workspace.convert()?;
    if app.ui.json {
        app.answer(workspace.root(), &Shape { convert: &report })?;
        return Ok(Exit::Done);
    }
    app.ui.path(workspace.root())?;
    if !report.changed {
        app.ui.note(&format!("it was a unit of its own already, says {}", report.provider));
    }
    for note in &report.notes {
        app.ui.note(&text::line(note));
    }
    Ok(Exit::Done)
}
