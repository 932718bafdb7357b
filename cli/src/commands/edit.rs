//! `ah agent fs edit`: relabel, pin.

use ah_core::{Access, EditOptions};
use clap::{ArgGroup, Args};

use crate::app::App;
use crate::args::reference;
use crate::commands::snapshot::SnapshotShape;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs edit`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").args(["label", "keep", "no_keep"]).required(true).multiple(true), after_help = "\
Examples:
  ah agent fs edit @ -m 'tests pass'
  ah agent fs edit before --keep
  ah agent fs edit before --no-keep -m ''")]
pub(crate) struct EditArgs {
    /// The snapshot.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
    /// The new label; an empty one takes it away.
    #[arg(short = 'm', long = "message", value_name = "LABEL", allow_hyphen_values = true)]
    label: Option<String>,
    /// Pin it: neither `rm` nor `prune` takes it.
    #[arg(long)]
    keep: bool,
    /// Pin it no longer.
    #[arg(long, conflicts_with = "keep")]
    no_keep: bool,
}

/// Changes the snapshot's label or pin.
pub(crate) fn run(app: &App, args: &EditArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let keep = match (args.keep, args.no_keep) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let snapshot = workspace.edit(&args.reference, &EditOptions { label: args.label.clone(), keep })?;
    if app.ui.json {
        app.answer_of(true, workspace.root(), &SnapshotShape { snapshot: &snapshot })?;
    } else {
        app.ui.line(snapshot.id.as_str())?;
    }
    Ok(Exit::Done)
}
