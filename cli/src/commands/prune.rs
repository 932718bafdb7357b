//! `ah agent fs prune`: removal by rule.

use ah_core::{Access, Error, PruneOptions, PruneReport};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

/// Options of `ah agent fs prune`.
#[derive(Debug, Args)]
#[command(after_help = "\
POLICY is a list of rules, each of which keeps snapshots; what none keeps is removed: keep-last=N, keep-within=7d, \
keep-hourly=N, keep-daily=N, keep-weekly=N, keep-labelled, keep-manual, keep-prompts=14d (one for each prompt of an agent), \
keep-pinning=24h (those that hold the space of more than the workspace; else a quarter of keep-within). \
Beside these, max-size=5G removes the oldest until no more is used. keep-last=N/session and max-size=1G/session are meant \
for each session. Only your own snapshots are counted, the newest of which always stays; what restores and \
branches took for themselves goes when nothing needs it and no rule keeps it. Pinned snapshots, and those that an undo, a branch or a view \
needs, always stay. Without POLICY and --recordings the configured ones (`prune.policy`, `prune.recordings`) apply, which run by themselves as well, at most once an hour behind \
snapshots; then what you took, labelled or pinned always stays. Prints the verdict on each snapshot and what goes, before \
anything does.

Examples:
  ah agent fs prune keep-last=50,keep-within=7d --dry-run
  ah agent fs prune keep-last=20
  ah agent fs prune --recordings keep-within=30d --dry-run")]
pub(crate) struct PruneArgs {
    /// The rules, separated by commas.
    policy: Option<String>,
    /// The rules for recordings of terminals: keep-last, keep-within and max-size, also of each session. Without POLICY snapshots are left
    /// alone then. Without these rules the configured ones (`prune.recordings`) apply if there is no POLICY, and recordings are left alone if
    /// there is one.
    #[arg(long, value_name = "POLICY")]
    recordings: Option<String>,
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
    let (root, workspace) = app.history(Access::Existing)?;
    let Some(workspace) = workspace else {
        let policy = args.policy.clone().unwrap_or_default();
        let none = PruneReport { policy, dry_run: args.dry_run, ..PruneReport::default() };
        if app.ui.json {
            app.answer(&root, &Shape { prune: &none })?;
        }
        return Ok(Exit::Done);
    };
    let options =
        PruneOptions { policy: args.policy.clone(), recordings: args.recordings.clone(), dry_run: args.dry_run };
    let mut explained = Ok(());
    let report = workspace.prune(&options, &mut |report| {
        if app.ui.json {
            return Ok(());
        }
        match explain(app, report) {
            Err(Failure::Output(error, _)) if !report.dry_run => {
                let message = "nothing was removed, as the list of what goes was not read to its end";
                Err(Error::from_io(message, &error).with_hint("`--dry-run` shows it without removing anything"))
            }
            told => {
                explained = told;
                Ok(())
            }
        }
    })?;
    explained?;
    if app.ui.json {
        app.answer_of(!report.dry_run, &root, &Shape { prune: &report })?;
    } else if !report.dry_run && report.removed > 0 {
        let freed = report.bytes.map(|bytes| format!(", {} given back", text::size(bytes))).unwrap_or_default();
        let removed = text::count(report.removed, "snapshot", "snapshots");
        app.ui.note(&format!("{removed} removed by {}{freed}", report.policy));
    }
    Ok(Exit::Done)
}

/// Says what goes, before it does.
fn explain(app: &App, report: &PruneReport) -> Result<(), Failure> {
    if !report.policy.is_empty() {
        explain_snapshots(app, report)?;
    }
    let would = if report.dry_run { "would be removed" } else { "to be removed" };
    let Some(policy) = report.recordings_policy.as_ref().filter(|_| !report.recordings.is_empty()) else {
        return Ok(());
    };
    let mut table = Table::new(&["VERDICT", "RECORDING", "ENDED", "SIZE", "REASON"]);
    for verdict in report.recordings.iter().rev() {
        table.row([
            if verdict.stays { Cell::new("keep", Style::Added) } else { Cell::new("remove", Style::Deleted) },
            Cell::new(&format!("{} {}", verdict.session, verdict.number), Style::Id),
            Cell::from(time::relative(verdict.time, app.now())),
            Cell::from(text::size(verdict.bytes)),
            Cell::from(&verdict.reason),
        ]);
    }
    app.ui.stdout(|out| table.write(out, app.ui.out))?;
    let going = report.recordings.iter().filter(|verdict| !verdict.stays);
    let (count, bytes) = going.fold((0, 0), |(count, bytes), verdict| (count + 1, bytes + verdict.bytes));
    let going = text::count(count, "recording", "recordings");
    app.ui.note(&format!("{going} {would} by {policy}; frees {}", text::size(bytes)));
    Ok(())
}

fn explain_snapshots(app: &App, report: &PruneReport) -> Result<(), Failure> {
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
    let would = if report.dry_run { "would be removed" } else { "to be removed" };
    let frees = report.frees.map(|bytes| format!("; frees about {}", text::size(bytes))).unwrap_or_default();
    let going = text::count(report.removed, "snapshot", "snapshots");
    app.ui.note(&format!("{going} {would} by {}{frees}", report.policy));
    Ok(())
}
