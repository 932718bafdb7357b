//! `ah agent fs branches`: the list.

use ah_core::{Access, BranchRecord};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::time;

/// Options of `ah agent fs branches`.
#[derive(Debug, Args)]
#[command(after_help = "\
Remove one with `ah agent fs rm NAME`.

Examples:
  ah agent fs branches
  ah agent fs branches --json | jq -r '.branches[].path'")]
pub(crate) struct BranchesArgs {}

#[derive(Serialize)]
struct Shape<'a> {
    branches: &'a [BranchRecord],
}

/// Prints the list.
pub(crate) fn run(app: &App, _args: &BranchesArgs) -> Outcome {
    let (root, workspace) = app.history(Access::Reading)?;
    let branches = workspace.map_or_else(|| Ok(Vec::new()), |workspace| workspace.branches_looked_at())?;
    if app.ui.json {
        app.answer(&root, &Shape { branches: &branches })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["NAME", "SNAPSHOT", "MADE", "STATE", "PATH"]);
    for branch in &branches {
        table.row([
            Cell::new(&branch.name, Style::Bold),
            Cell::new(branch.snapshot.as_str(), Style::Id),
            Cell::from(time::relative(branch.created, app.now())),
            Cell::from(branch.state.as_str()),
            Cell::from(branch.path.to_string_lossy()),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    Ok(Exit::Done)
}
