//! `ah session …`: the sessions of this workspace.

use ah_core::SessionRecord;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::time;

/// `ah session …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// List the sessions.
    List(ListArgs),
}

/// Options of `ah session list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ah session list
  ah session list --json")]
pub(crate) struct ListArgs {}

#[derive(Serialize)]
struct Shape<'a> {
    sessions: &'a [SessionRecord],
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &Session) -> Outcome {
    match command {
        Session::List(_) => list(app),
    }
}

fn list(app: &App) -> Outcome {
    let status = app.engine()?.status(&app.cwd)?;
    if app.ui.json {
        app.answer(&status.root, &Shape { sessions: &status.sessions })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["SESSION", "BEGAN"]);
    for session in &status.sessions {
        let began = time::relative(session.created, app.now());
        table.row([Cell::new(session.name.as_str(), Style::Bold), Cell::from(began)]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    Ok(Exit::Done)
}
