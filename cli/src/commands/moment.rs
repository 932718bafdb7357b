//! `ah moment`: marks a point.

use ah_core::{Access, Moment};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};

/// Options of `ah moment`.
#[derive(Debug, Args)]
#[command(after_help = "\
A moment is a point on the session's timeline, with the snapshot of the workspace there; its id and its label are REFs. If the snapshot \
fails the moment stays, with the reason.

Examples:
  ah moment -m 'tests pass'
  ah moment --session main")]
pub(crate) struct MomentArgs {
    /// What to call it.
    #[arg(short = 'm', long = "message", value_name = "LABEL", allow_hyphen_values = true)]
    label: Option<String>,
}

/// The JSON of a moment.
#[derive(Serialize)]
struct Shape<'a> {
    moment: &'a Moment,
}

/// Marks the point, prints its id.
pub(crate) fn run(app: &App, args: &MomentArgs) -> Outcome {
    let workspace = app.workspace(Access::Create)?;
    let (moment, failed) = workspace.mark(args.label.clone())?;
    if let Some(error) = failed {
        let what = match &moment.record.snapshot {
            Some(_) => "the moment may not survive a power cut",
            None => "the moment has no snapshot",
        };
        let message = format!("{what}: {error}");
        app.ui.warning(&message, error.hint.as_deref().or(Some("ah agent fs snapshot")));
    }
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { moment: &moment })?;
    } else {
        app.ui.line(moment.record.id.as_str())?;
    }
    Ok(Exit::Done)
}
