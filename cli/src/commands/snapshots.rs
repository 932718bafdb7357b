//! `ah agent fs snapshots`: the list.

use ah_core::{Access, SnapshotFilter, SnapshotKind, SnapshotRecord};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::time;

/// Options of `ah agent fs snapshots`.
#[derive(Debug, Args)]
#[command(after_help = "\
The newest is first. REF is what names a snapshot shortest; `@` passes over safety snapshots.

Examples:
  ah agent fs snapshots
  ah agent fs snapshots -n 5
  ah agent fs snapshots --json | jq -r '.snapshots[].id'")]
pub(crate) struct SnapshotsArgs {
    /// At most N, the newest.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Shape<'a> {
    snapshots: &'a [SnapshotRecord],
}

/// Prints the list.
pub(crate) fn run(app: &App, args: &SnapshotsArgs) -> Outcome {
    let (root, workspace) = app.history(Access::Reading)?;
    let filter = SnapshotFilter { limit: args.limit, ..SnapshotFilter::default() };
    let is_known = workspace.is_some();
    let mut snapshots = workspace.map_or_else(|| Ok(Vec::new()), |workspace| workspace.snapshots(&filter))?;
    snapshots.reverse();
    if app.ui.json {
        app.answer(&root, &Shape { snapshots: &snapshots })?;
        return Ok(Exit::Done);
    }
    if is_known && snapshots.is_empty() {
        app.tell_none(args.limit)?;
    }
    app.ui.stdout(|out| table(&snapshots, app).write(out, app.ui.out))?;
    Ok(Exit::Done)
}

fn table(snapshots: &[SnapshotRecord], app: &App) -> Table {
    let now = app.now();
    let mut table = Table::new(&["ID", "REF", "TAKEN", "SESSION", "KIND", "LABEL"]);
    let mut back = 0;
    for snapshot in snapshots {
        let reference = match (snapshot.counts(), back) {
            (false, _) => String::new(),
            (true, 0) => "@".to_owned(),
            (true, back) => format!("@{{{back}}}"),
        };
        back += usize::from(snapshot.counts());
        let kind = if snapshot.kept { format!("{}, kept", snapshot.kind) } else { snapshot.kind.to_string() };
        let style = if snapshot.kind == SnapshotKind::Safety { Style::Dim } else { Style::Id };
        table.row([
            Cell::new(snapshot.id.as_str(), style),
            Cell::from(reference),
            Cell::from(time::relative(snapshot.time, now)),
            Cell::from(snapshot.session.as_str()),
            Cell::from(kind),
            Cell::from(snapshot.label.as_deref().unwrap_or_default()),
        ]);
    }
    table
}
