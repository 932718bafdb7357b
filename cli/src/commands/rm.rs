//! `ah agent fs rm`: snapshots and branches, by name; or all that is kept of the workspace.

use std::path::Path;

use ah_core::text;
use ah_core::{Access, BranchRecord, Forgotten, Kept, RmOptions, RmReport, SnapshotRecord, Workspace, WrittenOff};
use ah_plugin_api::{Error, ErrorKind, Result};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::time;

/// Options of `ah agent fs rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Removes snapshots, and branches with everything in them; prints the id or the path of each. If one of the names is wrong, \
or names something that is pinned or in use, nothing is removed. So it is if a branch holds what is nowhere else: \
files in it that differ from the snapshot it grew from and from the workspace, but for ignored ones such as build output, snapshots of its own, commits and references that the workspace's repository does not have (perhaps, where its own is broken or gone); or if branches grew from it. Files that were only deleted in it hold nothing back. \
While a command of `exec` runs in it, it is removed by --force neither. Where the workspace \
itself was deleted, name it with -C.

With --all and --force the workspace is none any more: its snapshots go, pinned ones too, its moments, sessions and recordings, and no command finds it again. \
Its files are left alone. What is in a directory below it is on its own then, or belongs to a workspace further up. \
Refused also with --force while branches grew from it, views of it are held, something in it is recorded, or it is behind AgentFS. \
If the .ah-behind-NAME of that was lost, it says how what can be read still comes to be plain files in its place; what AgentFS keeps goes then with the rest.

Examples:
  ah agent fs rm @{3}
  ah agent fs rm --dry-run before 'tests pass'
  ah agent fs rm retry
  ah agent fs rm --all                     # what is kept of this workspace, and with --force all of it
  ah -C old-project agent fs rm --all --force")]
pub(crate) struct RmArgs {
    /// Snapshots, and branches by name, id or path.
    #[arg(value_name = "REF|BRANCH", value_parser = reference, required_unless_present = "all")]
    names: Vec<String>,
    /// Remove all that is kept of the workspace, also of one whose directory is gone (`-C`); without --force say what that is, and do nothing.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Say what would be removed, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove a branch also if it holds what is nowhere else and is not ignored, or its directory is not where it was made; a snapshot also if a
    /// branch grew from it. What a command of `exec` runs in stays.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Shape<'a> {
    rm: &'a RmReport,
    branches: &'a [BranchRecord],
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<&'a Kept>,
}

/// Removes.
pub(crate) fn run(app: &App, args: &RmArgs) -> Outcome {
    if args.all {
        return run_all(app, args);
    }
    let force = if args.force { "--force " } else { "" };
    let foreign = |here: Option<&Workspace>, name: &String| {
        app.engine().ok()?.foreign_branch(here.map(Workspace::id), name, |name| format!("rm {force}{name}"))
    };
    let absent = format!("there is nothing here called {}", args.names.join(", "));
    let workspace = app.workspace_with(&absent, None).map_err(|error| match error.kind {
        ErrorKind::NotFound => args.names.iter().find_map(|name| foreign(None, name)).unwrap_or(error),
        _ => error,
    })?;
    let (branches, references) = sort(&workspace, &args.names, force, |name| foreign(Some(&workspace), name))?;
    let options = RmOptions { dry_run: args.dry_run, force: args.force, ..RmOptions::default() };
    let report = workspace.rm_with_branches(&references, &branches, &options)?;
    if app.ui.json {
        app.answer_of(!args.dry_run, workspace.root(), &Shape { rm: &report, branches: &branches, all: None })?;
        return Ok(Exit::Done);
    }
    let snapshots = report.removed.iter().map(|snapshot| Path::new(snapshot.id.as_str()));
    let lines: Vec<&Path> = snapshots.chain(branches.iter().map(|branch| branch.path.as_path())).collect();
    tell(app, !args.dry_run, &lines)?;
    if !args.dry_run && !report.removed.is_empty() {
        app.ui.note("the space comes back by and by; all of it now with `ah agent fs gc`");
    }
    Ok(Exit::Done)
}

/// Removes all that is kept of the workspace, or says what that is.
fn run_all(app: &App, args: &RmArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let (root, acts) = (workspace.root(), args.force && !args.dry_run);
    if !args.dry_run {
        app.engine()?.refuse_to_agents("`rm`")?;
    }
    let Forgotten { snapshots, kept, written_off } = if acts { workspace.forget()? } else { workspace.to_forget()? };
    let mut what = in_words(app, &snapshots, &kept);
    what.extend(written_off.map(|WrittenOff { provider, behind }| {
        let first = if acts { "" } else { "; if it is elsewhere, bring it back first" };
        format!(
            "what {provider} keeps of what was written here since `convert`: what lay behind is not at {} any more{first}",
            behind.display()
        )
    }));
    if !args.force && !args.dry_run {
        let message =
            format!("all that is kept of {} would go for good, and it would be no workspace any more", root.display());
        let mut error = Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("if that is meant: `ah agent fs rm --all --force`; its files are left alone");
        match app.ui.json {
            true => error.causes = what,
            false => what.iter().for_each(|line| app.ui.note(&format!("would go: {line}"))),
        }
        return Err(error.into());
    }
    if app.ui.json {
        let report = RmReport { removed: snapshots, dry_run: args.dry_run };
        app.answer_of(acts, root, &Shape { rm: &report, branches: &[], all: Some(&kept) })?;
        return Ok(Exit::Done);
    }
    what.iter().for_each(|line| app.ui.note(line));
    tell(app, acts, &[root])?;
    Ok(Exit::Done)
}

/// Prints what is gone, or would go; where that cannot be written, all that is gone is told all the same.
fn tell(app: &App, acted: bool, lines: &[&Path]) -> Result<(), Failure> {
    if acted { app.ui.paths_of_act(lines) } else { app.ui.paths(lines) }
}

/// What is kept of a workspace, a line for each kind.
fn in_words(app: &App, snapshots: &[SnapshotRecord], kept: &Kept) -> Vec<String> {
    let mut lines = vec![text::count(snapshots.len(), "snapshot", "snapshots")];
    let times = || snapshots.iter().map(|snapshot| snapshot.time);
    if let (Some(oldest), Some(newest)) = (times().min(), times().max()) {
        let (oldest, newest) = (time::both(oldest, app.now()), time::both(newest, app.now()));
        lines[0].push_str(&match snapshots.len() {
            1 => format!(", of {newest}"),
            _ => format!(", the oldest of {oldest}, the newest of {newest}"),
        });
    }
    match snapshots.iter().filter(|snapshot| snapshot.kept).count() {
        0 => {}
        pinned => lines.push(format!("{pinned} of them pinned")),
    }
    lines.push(format!(
        "{} in {}",
        text::count(kept.moments, "moment", "moments"),
        text::count(kept.sessions, "session", "sessions")
    ));
    if kept.recordings > 0 {
        lines.push(text::count(kept.recordings, "recording", "recordings"));
    }
    lines
}

/// Branches and REFs apart, of `rm` with that flag or none.
fn sort(
    workspace: &Workspace,
    names: &[String],
    force: &str,
    foreign: impl Fn(&String) -> Option<Error>,
) -> Result<(Vec<BranchRecord>, Vec<String>)> {
    let (mut branches, mut references) = (Vec::new(), Vec::new());
    let found = workspace.find_branch_each(names)?.into_iter().zip(workspace.resolve_each(names)?);
    for (name, found) in names.iter().zip(found) {
        match found {
            // What only begins an id, or reads as a time, gives way to a name.
            (Some(branch), Ok(snapshot)) if snapshot.is_wholly(name) => {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is a branch and a snapshot"))
                    .with_hint(format!(
                        "ah agent fs rm {force}{} removes the branch, {} the snapshot",
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
