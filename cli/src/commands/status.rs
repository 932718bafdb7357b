//! `ah agent fs status`: which provider serves, and why not another one.

use std::collections::HashSet;
use std::path::PathBuf;

use ah_core::{Candidate, LeaseRecord, MissingWorkspace, NoticeKind, Status, convert_command};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::commands::hooks;
use crate::failure::{Exit, Failure, Outcome};
use crate::itself;
use crate::login;
use crate::output::style::Style;
use crate::output::table::{Cell, Table};
use crate::output::{text, time};

/// Options of `ah agent fs status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the views that are held, each provider's verdict on the workspace, and libraries that were not loaded: `*` captures it, \
`b` is the one by which new branches of the present grow, `+` could serve, `-` cannot. Of a directory that is too much for a workspace it says that alone. \
Ends with 5 if no provider can serve. Changes nothing.

Examples:
  ah agent fs status
  ah agent fs status ~/project --json")]
pub(crate) struct StatusArgs {
    /// A directory in the workspace; the current one if left out.
    path: Option<PathBuf>,
}

#[derive(Serialize)]
struct Shape<'a> {
    status: &'a Status,
}

/// Prints the verdicts.
pub(crate) fn run(app: &App, args: &StatusArgs) -> Outcome {
    let path = args.path.as_ref().map_or_else(|| app.cwd.clone(), |path| app.cwd.join(path));
    let status = app.engine()?.status(&path)?;
    hooks::tell_gone(app, &status.root);
    login::tell_gone(app, &status);
    exit(&status).after(if app.ui.json {
        app.answer(&status.root, &Shape { status: &status })
    } else {
        app.answer_tells(NoticeKind::Plugin);
        app.answer_tells(NoticeKind::CaptureStopped);
        write(app, &status)
    })
}

/// 5 if no provider can serve.
pub(crate) fn exit(status: &Status) -> Exit {
    if status.provider.is_some() || status.branch_provider.is_some() { Exit::Done } else { Exit::Code(5) }
}

/// What is said in place of a provider where `snapshot` is refused: whatever could serve, nothing is captured there.
pub(crate) const TOO_MUCH: &str = "too much to be captured as one workspace";

/// Whether what there is becomes no workspace, and none was made of it by force.
pub(crate) fn is_no_workspace(app: &App, status: &Status) -> Result<bool, Failure> {
    Ok(status.workspace.is_none() && app.engine()?.is_too_much(&status.root))
}

fn write(app: &App, status: &Status) -> Result<(), Failure> {
    if is_no_workspace(app, status)? {
        app.ui.stdout(|out| {
            use std::io::Write;
            let heading = app.ui.out.paint("workspace", Style::Dim);
            writeln!(out, "{heading} none: {} is {TOO_MUCH}: go into a project", text::path(&status.root))
        })?;
    } else {
        write_verdicts(app, status)?;
    }
    if let Some(first) = status.missing.first() {
        let (path, more) = (text::path(&first.path), status.missing.len() - 1);
        let others = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        // Where another one came to its place, that would take away that one's.
        let away = match status.missing.iter().any(|workspace| workspace.displaced) {
            true => "and what takes away what is needed no more",
            false => "`ah -C DIR agent fs rm --all --force` takes away what is needed no more",
        };
        app.ui.note(&format!(
            "the workspace {path}{others} is not there; its snapshots are kept: `ah agent fs gc` says more, {away}"
        ));
    }
    Ok(())
}

fn write_verdicts(app: &App, status: &Status) -> Result<(), Failure> {
    let painter = app.ui.out;
    app.ui.stdout(|out| {
        use std::io::Write;
        writeln!(out, "{} {}", painter.paint("workspace", Style::Dim), text::path(&status.root))?;
        let provider = match &status.provider {
            Some(name) => painter.paint(name.as_str(), Style::Bold),
            None if status.branch_provider.is_some() => painter.paint("none captures it where it is", Style::Warning),
            None => painter.paint("none can serve", Style::Error),
        };
        writeln!(out, "{}  {provider}", painter.paint("provider", Style::Dim))?;
        if let Some(grows) = status.branch_provider.as_ref().filter(|grows| Some(*grows) != status.provider.as_ref()) {
            let grows = painter.paint(grows.as_str(), Style::Bold);
            writeln!(out, "{}  grow by {grows}", painter.paint("branches", Style::Dim))?;
        }
        if let Some(degraded) = &status.degraded {
            writeln!(out, "{}  {}", painter.paint("degraded", Style::Warning), text::line(degraded))?;
        }
        if let Some(stopped) = &status.stopped {
            writeln!(out, "{}   {}", painter.paint("stopped", Style::Warning), text::line(stopped))?;
        }
        if status.paused {
            let what = "automatic snapshots, as the disk has too little room; `ah agent fs prune --dry-run` shows what is kept";
            writeln!(out, "{}    {what}", painter.paint("paused", Style::Warning))?;
        }
        if let Some(latest) = &status.latest {
            let when = time::relative(latest.time, app.now());
            writeln!(
                out,
                "{} {}, the latest {} {when}",
                painter.paint("snapshots", Style::Dim),
                status.snapshots,
                painter.paint(latest.id.as_str(), Style::Id),
            )?;
        }
        let mut views = views(&status.leases).peekable();
        if views.peek().is_some() {
            let heading = painter.paint("views", Style::Dim);
            writeln!(out, "{heading}     `ah agent fs release PATH` gives one back")?;
        }
        for view in views {
            let paths = text::count(view.paths.len() as u64, "path", "paths");
            let part = if view.paths.is_empty() { String::new() } else { format!(", {paths} of it") };
            writeln!(out, "  {} ({}{part})", text::path(&view.path), painter.paint(view.snapshot.as_str(), Style::Id))?;
        }
        writeln!(out)?;
        verdicts(&status.candidates).write(out, painter)?;
        for candidate in &status.candidates {
            if let (_, Some(rest)) = parts(&candidate.reason) {
                writeln!(out, "{}: {}", candidate.name, text::line(rest))?;
            }
        }
        for plugin in &status.refused {
            let reason = text::line(&plugin.reason);
            writeln!(out, "{} {}: {reason}", painter.paint("not loaded", Style::Warning), text::path(&plugin.path))?;
        }
        Ok(())
    })?;
    if status.candidates.is_empty() {
        let places = app.engine()?.looked_in(&status.root)?;
        let places: Vec<String> = places.iter().map(|path| text::path(path)).collect();
        app.ui.note(&format!("no provider was found; looked in {}", places.join(", ")));
        if itself::program().is_ok() {
            app.ui.note("`scripts/install` puts them there; `--provider-path DIR` names another folder");
        }
    }
    let remedies = status.candidates.iter().filter(|candidate| !candidate.usable);
    for (name, remedy) in remedies.filter_map(|candidate| Some((&candidate.name, candidate.remedy.as_ref()?))) {
        app.ui.note(&format!("{name}: {remedy}"));
    }
    // Nobody is advised to do that with what is hardly a workspace.
    let is_too_much = app.engine()?.is_too_much(&status.root);
    for candidate in status.candidates.iter().filter(|_| !is_too_much) {
        if let Some(why) = &candidate.convertible {
            let command = convert_command(&status.root);
            app.ui.note(&format!("{}: {}: `{command}`", candidate.name, text::line(why)));
        }
    }
    for (path, remedy) in status.refused.iter().filter_map(|plugin| Some((&plugin.path, plugin.remedy.as_ref()?))) {
        app.ui.note(&format!("{}: {remedy}", text::path(path)));
    }
    Ok(())
}

/// Each view once, by whichever lease it is held first.
pub(crate) fn views(leases: &[LeaseRecord]) -> impl Iterator<Item = &LeaseRecord> {
    let mut seen = HashSet::new();
    leases.iter().filter(move |lease| seen.insert(&lease.path))
}

/// Names workspaces whose directories are not there: nobody else does, and their snapshots take room.
pub(crate) fn tell_missing(app: &App, missing: &[MissingWorkspace]) {
    for workspace in missing {
        let (path, typed) = (text::path(&workspace.path), ah_core::text::shell(workspace.path.as_os_str()));
        if workspace.displaced {
            app.ui.note(&format!(
                "the workspace that was at {path} before another one was moved there is not there; its snapshots are kept: `ah -C . agent fs adopt {id}` where it is now, or in a new directory, takes them up; if nothing of it is needed any more, in a new directory: `ah -C . agent fs adopt {id} && ah -C . agent fs rm --all --force`",
                id = workspace.id
            ));
            continue;
        }
        app.ui.note(&format!(
            "the workspace {path} is not there; its snapshots are kept: `ah -C {typed} agent fs snapshots`, and `branches`. If it was moved: `ah -C . agent fs adopt {typed}` in its new place; if nothing of it is needed any more: `ah -C {typed} agent fs rm --all`"
        ));
    }
}

/// A verdict that fits into a row, and what more is said, if that is long.
fn parts(reason: &str) -> (&str, Option<&str>) {
    const LONG: usize = 100;
    match reason.split_once("; ").filter(|_| reason.len() > LONG) {
        Some((verdict, rest)) => (verdict, Some(rest)),
        None => (reason, None),
    }
}

/// A table of verdicts.
pub(crate) fn verdicts(candidates: &[Candidate]) -> Table {
    let mut table = Table::new(&["", "PROVIDER", "RANK", "VERSION", "VERDICT"]);
    for candidate in candidates {
        let (mark, style) = match (candidate.chosen, candidate.usable) {
            (true, _) => ("*", Style::Added),
            (false, _) if candidate.branches => ("b", Style::Added),
            (false, true) => ("+", Style::Added),
            (false, false) => ("-", Style::Deleted),
        };
        let rank = candidate.rank.map_or_else(|| "by name".to_owned(), |rank| rank.to_string());
        table.row([
            Cell::new(mark, style),
            Cell::new(candidate.name.as_str(), Style::Bold),
            Cell::from(rank),
            Cell::from(&candidate.version),
            Cell::from(parts(&candidate.reason).0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_verdict_is_told_below_the_table() {
        assert_eq!(parts("short; and sweet"), ("short; and sweet", None));
        let rest = "more, ".repeat(20) + "; and more";
        assert_eq!(parts(&format!("a branch; {rest}")), ("a branch", Some(rest.as_str())));
        let long = "x".repeat(200);
        assert_eq!(parts(&long), (long.as_str(), None));
    }
}
