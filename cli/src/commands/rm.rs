//! `ah agent fs rm`: snapshots and branches, by name.

use ah_core::{Access, BranchRecord, RmOptions, RmReport, SnapshotRecord, Workspace};
use ah_plugin_api::{Error, ErrorKind, Result};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::failure::{Exit, Outcome};

/// Options of `ah agent fs rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Removes snapshots, and branches with everything in them; prints the id or the path of each. If one of the names is wrong, \
or names something that is pinned or in use, nothing is removed. So it is if a branch holds what is nowhere else: \
files that differ from the snapshot it grew from and from the workspace, but for ignored ones such as build output, snapshots of its own, commits and references that the workspace's repository does not have; or if branches grew from it. Where the workspace \
itself was deleted, name it with -C.

Examples:
  ah agent fs rm @{3}
  ah agent fs rm --dry-run before 'tests pass'
  ah agent fs rm retry")]
pub(crate) struct RmArgs {
    /// Snapshots, and branches by name, id or path.
    #[arg(value_name = "REF|BRANCH", value_parser = reference, required = true)]
    names: Vec<String>,
    /// Say what would be removed, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove a branch also if it holds what is nowhere else and is not ignored, or its directory is not where it was made; a snapshot also if a
    /// branch grew from it.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    rm: &'a RmReport,
    branches: &'a [BranchRecord],
}

/// Removes.
pub(crate) fn run(app: &App, args: &RmArgs) -> Outcome {
    let foreign = |name: &String| app.engine().ok().and_then(|engine| engine.foreign_branch(name));
    let workspace = app.workspace(Access::Existing).map_err(|error| match error.kind {
        ErrorKind::NotFound => args.names.iter().find_map(foreign).unwrap_or(error),
        _ => error,
    })?;
    let (branches, references) = sort(&workspace, &args.names, foreign)?;
    let options = RmOptions { dry_run: args.dry_run, force: args.force, ..RmOptions::default() };
    let report = workspace.rm_with_branches(&references, &branches, &options)?;
    if app.ui.json {
        app.answer(workspace.root(), &Shape { rm: &report, branches: &branches })?;
        return Ok(Exit::Done);
    }
    for snapshot in &report.removed {
        app.ui.line(snapshot.id.as_str())?;
    }
    if !args.dry_run && !report.removed.is_empty() {
        app.ui.note("the space comes back by and by; all of it now with `ah agent fs gc`");
    }
    for branch in &branches {
        app.ui.path(&branch.path)?;
    }
    Ok(Exit::Done)
}

/// Whether that is a whole id or label, or the latest.
fn is_whole(name: &str, snapshot: &SnapshotRecord) -> bool {
    name.len() == snapshot.id.as_str().len() || snapshot.label.as_deref() == Some(name) || name.starts_with('@')
}

/// Branches and REFs apart.
fn sort(
    workspace: &Workspace,
    names: &[String],
    foreign: impl Fn(&String) -> Option<Error>,
) -> Result<(Vec<BranchRecord>, Vec<String>)> {
    let (mut branches, mut references) = (Vec::new(), Vec::new());
    let found = workspace.find_branch_each(names)?.into_iter().zip(workspace.resolve_each(names)?);
    for (name, found) in names.iter().zip(found) {
        match found {
            // What only begins an id, or reads as a time, gives way to a name.
            (Some(branch), Ok(snapshot)) if is_whole(name, &snapshot) => {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is a branch and a snapshot"))
                    .with_hint(format!(
                        "ah agent fs rm {} removes the branch, {} the snapshot",
                        branch.id, snapshot.id
                    )));
            }
            (Some(branch), _) => branches.push(branch),
            (None, Ok(_)) => references.push(name.clone()),
            (None, Err(error)) if error.kind == ErrorKind::NotFound => {
                let what_is =
                    || error.with_hint("`ah agent fs snapshots` and `ah agent fs branches` list what there is");
                return Err(foreign(name).unwrap_or_else(what_is));
            }
            (None, Err(error)) => return Err(error),
        }
    }
    Ok((branches, references))
}
