//! `ah agent fs prune`: removal by rule.

use ah_core::{PruneOptions, PruneReport};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{size, text, time};

/// Options of `ah agent fs prune`.
#[derive(Debug, Args)]
#[command(after_help = "\
POLICY is a list of rules, each of which keeps snapshots; what none keeps is removed: keep-last=N, keep-within=7d, \
keep-hourly=N, keep-daily=N, keep-weekly=N, keep-labelled, keep-manual. Beside these, max-size=5G removes the oldest \
until no more is used. Only your own snapshots are counted, the newest of which always stays; what restores and \
branches took for themselves goes when nothing needs it. Pinned snapshots, and those that an undo, a branch or a view \
needs, always stay. Without POLICY the configured one (`prune.policy`) applies. Prints the verdict on each snapshot.

Examples:
  ah agent fs prune keep-last=50,keep-within=7d --dry-run
  ah agent fs prune keep-last=20")]
pub(crate) struct PruneArgs {
    /// The rules, separated by commas.
    policy: Option<String>,
    /// Say what would be removed, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    prune: &'a PruneReport,
}

/// Applies the policy.
pub(crate) fn run(app: &App, args: &PruneArgs) -> Outcome {
    let (root, workspace) = app.history()?;
    let Some(workspace) = workspace else {
        let policy = args.policy.clone().unwrap_or_default();
        let none = PruneReport { policy, dry_run: args.dry_run, verdicts: Vec::new(), removed: 0, bytes: None };
        if app.ui.json {
            app.answer(&root, &Shape { prune: &none })?;
        }
        return Ok(Exit::Done);
    };
    let report = workspace.prune(&PruneOptions { policy: args.policy.clone(), dry_run: args.dry_run })?;
    if app.ui.json {
        app.answer(&root, &Shape { prune: &report })?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["VERDICT", "ID", "TAKEN", "REASON", "LABEL"]);
    for verdict in report.verdicts.iter().rev() {
        let snapshot = &verdict.snapshot;
        table.row([
            if verdict.stays { Cell::new("keep", Style::Added) } else { Cell::new("remove", Style::Deleted) },
            Cell::new(snapshot.id.as_str(), Style::Id),
            Cell::from(time::relative(snapshot.time, app.now())),
            Cell::from(&verdict.reason),
            Cell::from(snapshot.label.as_deref().unwrap_or_default()),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    let done = if report.dry_run { "would be removed" } else { "removed" };
    let freed = report.bytes.map(|bytes| format!(", {} given back", size::human(bytes))).unwrap_or_default();
    app.ui.note(&format!(
        "{} {done} by {}{freed}",
        text::count(report.removed, "snapshot", "snapshots"),
        report.policy
    ));
    Ok(Exit::Done)
}
