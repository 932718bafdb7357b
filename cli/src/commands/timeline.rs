//! `ah timeline`: what happened here, in order.

use ah_core::{Access, Event, EventBody, SnapshotKind, TimelineFilter, TimelineReport};
use clap::Args;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::time;

/// Options of `ah timeline`.
#[derive(Debug, Args)]
#[command(after_help = "\
The latest is last. With --session only that session's.

Examples:
  ah timeline
  ah timeline -n 20 --session main
  ah timeline --json | jq '.events[]'")]
pub(crate) struct TimelineArgs {
    /// At most N, the latest.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

/// Prints the events.
pub(crate) fn run(app: &App, args: &TimelineArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let report = workspace.timeline(&TimelineFilter { limit: args.limit, ..TimelineFilter::default() })?;
    if app.ui.json {
        app.answer(workspace.root(), &report)?;
        return Ok(Exit::Done);
    }
    app.ui.stdout(|out| table(&report, app).write(out, app.ui.out))?;
    for fault in &report.faults {
        let message = format!("session {}, line {} cannot be read: {}", fault.session, fault.line, fault.reason);
        app.ui.warning(&message, Some("`ah agent fs gc` puts back what the providers still know"));
    }
    Ok(Exit::Done)
}

fn table(report: &TimelineReport, app: &App) -> Table {
    let now = app.now();
    let mut table = Table::new(&["WHEN", "SESSION", "EVENT", "ID", "WHAT"]);
    for event in &report.events {
        let (name, id, what) = row(event);
        table.row([
            Cell::from(time::relative(event.time, now)),
            Cell::from(event.session.as_str()),
            name,
            Cell::new(&id, Style::Id),
            Cell::from(what),
        ]);
    }
    table
}

/// An event's name, the id that it is about, and the rest for a person.
fn row(event: &Event) -> (Cell, String, String) {
    match &event.body {
        EventBody::Snapshot(snapshot) => {
            let label = snapshot.label.clone().unwrap_or_default();
            let name = match snapshot.kind {
                SnapshotKind::Safety => Cell::new("safety", Style::Dim),
                _ => Cell::new("snapshot", Style::Bold),
            };
            (name, snapshot.id.to_string(), label)
        }
        EventBody::Remove { snapshots, by } => {
            let ids: Vec<&str> = snapshots.iter().map(ah_core::SnapshotId::as_str).collect();
            (Cell::from("remove"), ids.first().copied().unwrap_or_default().to_owned(), format!("by {by}"))
        }
        EventBody::Other(fields) => {
            let name = fields.get("type").and_then(|name| name.as_str()).unwrap_or("unknown");
            (Cell::new(name, Style::Dim), String::new(), String::new())
        }
        _ => (Cell::new("unknown", Style::Dim), String::new(), String::new()),
    }
}
