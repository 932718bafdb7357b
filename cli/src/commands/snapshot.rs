//! `ah agent fs snapshot`: capture the workspace.

use std::path::Path;

use ah_core::{Access, Durability, OmitReason, OmittedRecord, RelPath, SnapshotOptions, SnapshotRecord};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::failure::{Exit, Outcome};
use crate::output::text;

/// Options of `ah agent fs snapshot`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the snapshot's id, alone. What was left out, and why, `ah agent fs show` lists.

Examples:
  ah agent fs snapshot
  ah agent fs snapshot -m 'before the refactoring'
  before=$(ah agent fs snapshot --keep -m release)")]
pub(crate) struct SnapshotArgs {
    /// A label to find it by.
    #[arg(short = 'm', long = "message", value_name = "LABEL", allow_hyphen_values = true)]
    label: Option<String>,
    /// Pin it: neither `rm` nor `prune` takes it.
    #[arg(long)]
    keep: bool,
    /// Return before it is safe from a power cut; a background process makes it so within a second.
    #[arg(long)]
    instant: bool,
    /// Capture also a home directory, `/`, or more files than the guard allows.
    #[arg(long)]
    force: bool,
}

/// The JSON of one snapshot.
#[derive(Serialize)]
pub(crate) struct SnapshotShape<'a> {
    /// The snapshot.
    pub(crate) snapshot: &'a SnapshotRecord,
}

/// Names what was left out though nobody asked for that; `inside`: workspaces of their own, which a provider mounts.
fn unasked(root: &Path, omitted: &[OmittedRecord], inside: &[RelPath]) -> Option<String> {
    const NAMED: usize = 3;
    let asked = |omitted: &OmittedRecord| match omitted.reason {
        // The first two are the person's own rules; the other is never captured.
        OmitReason::Ignored | OmitReason::Excluded | OmitReason::OwnState => true,
        // Of a file, as submodules and worktrees have, the repository is elsewhere.
        OmitReason::GitDir => !root.join(omitted.path.as_path()).is_dir(),
        _ => false,
    };
    let others = omitted.iter().filter(|omitted| !asked(omitted) && !inside.contains(&omitted.path));
    let mut parts: Vec<String> = inside.iter().map(|path| format!("{path} (a workspace of its own)")).collect();
    parts.extend(others.map(|omitted| format!("{} ({})", omitted.path, omitted.reason)));
    let more = parts.len().saturating_sub(NAMED);
    parts.truncate(NAMED);
    parts.extend((more > 0).then(|| format!("and {more} more")));
    (!parts.is_empty()).then(|| format!("left out: {}", parts.join(", ")))
}

/// Takes the snapshot, prints its id.
pub(crate) fn run(app: &App, args: &SnapshotArgs) -> Outcome {
    let workspace = app.workspace(if args.force { Access::CreateForced } else { Access::Create })?;
    let options = SnapshotOptions {
        label: args.label.clone(),
        keep: args.keep,
        force: args.force,
        durability: Some(if args.instant { Durability::Instant } else { Durability::Durable }),
        ..SnapshotOptions::default()
    };
    let (snapshot, omitted) = workspace.snapshot_and_omitted(&options)?;
    if app.ui.json {
        app.answer_of(true, workspace.root(), &SnapshotShape { snapshot: &snapshot })?;
        return Ok(Exit::Done);
    }
    let told = app.ui.line(snapshot.id.as_str());
    if let Some(equal) = &snapshot.equal_to {
        app.ui.note(&format!("nothing has changed since {equal}"));
    }
    if let Some(pins) = &snapshot.pins {
        app.ui.note(&format!("it also holds the space of {}; see `ah agent fs status`", text::line(pins)));
    }
    if let Some(line) = unasked(workspace.root(), &omitted, &workspace.mounted_inside()?) {
        app.ui.note(&format!("{line}; `ah agent fs show {}` lists them", snapshot.id));
    }
    if let Some(reason) = snapshot.repository.as_ref().and_then(|repository| repository.not_kept.as_ref()) {
        app.ui.warning(&format!("the repository's objects are not kept with it: {}", text::line(reason)), None);
    }
    Exit::Done.after(told)
}
