//! `ah timeline`: what happened here, in order.

use ah_core::{Event, EventBody, SnapshotKind, SnapshotRecord, TimelineFilter, TimelineReport};
use clap::Args;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

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
    let (root, workspace) = app.history()?;
    let filter = TimelineFilter { limit: args.limit, ..TimelineFilter::default() };
    let report = workspace.map_or_else(|| Ok(TimelineReport::default()), |workspace| workspace.timeline(&filter))?;
    if app.ui.json {
        app.answer(&root, &report)?;
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
    let plain = |name: &str, id: &str, what: String| (Cell::from(name), id.to_owned(), what);
    match &event.body {
        EventBody::Snapshot { snapshot } => {
            let name = match snapshot.kind {
                SnapshotKind::Safety => Cell::new("safety", Style::Dim),
                _ => Cell::new("snapshot", Style::Bold),
            };
            (name, snapshot.id.to_string(), label(snapshot))
        }
        EventBody::Recovered { snapshot } => plain("recovered", snapshot.id.as_str(), label(snapshot)),
        EventBody::Moment { id, kind, label, .. } => {
            plain(kind, id.as_str(), label.as_deref().unwrap_or_default().to_owned())
        }
        EventBody::Edit { snapshot, label, kept } => {
            let label = label.as_ref().map(|label| format!("label {label:?}"));
            let kept = kept.map(|kept| if kept { "kept" } else { "no longer kept" }.to_owned());
            let what: Vec<String> = label.into_iter().chain(kept).collect();
            plain("edit", snapshot.as_str(), what.join(", "))
        }
        EventBody::Remove { snapshots, by } => {
            let first = snapshots.first().map_or("", |id| id.as_str());
            let more = match snapshots.len() {
                0 | 1 => String::new(),
                several => format!(", with {} more", several - 1),
            };
            plain("remove", first, format!("by {by}{more}"))
        }
        EventBody::Branch { name, snapshot, path, .. } => {
            plain("branch", snapshot.as_str(), format!("{name} at {}", path.display()))
        }
        EventBody::BranchRemoved { name, .. } => plain("branch removed", "", name.clone()),
        EventBody::RestoreBegin(begin) => {
            let name = if begin.undoes.is_some() { "undo" } else { "restore" };
            let paths = text::count(begin.changes, "path", "paths");
            (Cell::new(name, Style::Changed), begin.target.to_string(), format!("{paths}, saved in {}", begin.safety))
        }
        EventBody::RestoreEnd(end) => plain("restore end", "", end.outcome.clone()),
        EventBody::Degraded { provider, reason, next } => (
            Cell::new("degraded", Style::Warning),
            String::new(),
            format!("{provider} failed, {next} took over: {reason}"),
        ),
        EventBody::Repaired { bytes } => {
            plain("repaired", "", format!("a torn last line of {bytes} bytes was cut off"))
        }
        EventBody::Workspace { change, from, to } => {
            plain("workspace", "", format!("{change}: {} -> {}", from.display(), to.display()))
        }
        EventBody::Other(fields) => {
            let name = fields.get("type").and_then(|name| name.as_str()).unwrap_or("unknown");
            (Cell::new(name, Style::Dim), String::new(), String::new())
        }
        _ => plain("unknown", "", String::new()),
    }
}

fn label(snapshot: &SnapshotRecord) -> String {
    snapshot.label.clone().unwrap_or_default()
}
