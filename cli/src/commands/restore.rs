//! `ah agent fs restore`: put files back. What it may touch is decided in core.

use std::ffi::OsString;

use ah_core::{Access, ChangeRecord, LeftAlone, RestoreOptions, RestoreReport, Workspace, way_out};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::app::App;
use crate::args::{path, reference};
use crate::commands::launch;
use crate::failure::{Exit, Outcome};
use crate::hint;
use crate::output::changes;
use crate::output::changes::Letter;

/// Options of `ah agent fs restore`.
#[derive(Debug, Args)]
#[command(after_help = "\
Saves the present state first and prints that safety snapshot's id, alone; `ah agent fs undo` takes the restore back. \
Prints nothing if nothing differs. Equal files are left untouched. Ignored files come back when they are missing, are \
overwritten only with --ignored or when they are named themselves, and are never deleted; nor is anything that the snapshot left out. \
What is put back has the owner, extended attributes, access list and holes that it had, as far as the snapshot's provider \
keeps them (git none of these, agentfs no access lists) and you may give them; hard links, flags and capabilities never \
come back, nor set-id bits if root restores. SEMANTICS.md (installed in share/doc/ah/docs) has it all under \"What comes back by what\". \
Refuses, with exit code 4, where it would destroy what the safety snapshot cannot keep; ends with it where paths are left as they \
are that could not be changed, or that are damaged in the snapshot: these are named.

Examples:
  ah agent fs restore @ --dry-run
  ah agent fs restore before
  ah agent fs restore 10m-ago -- src Cargo.toml")]
pub(crate) struct RestoreArgs {
    /// The snapshot.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: String,
    /// Print what would be done, in the form of `diff --name-status`, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Overwrite ignored files too.
    #[arg(long)]
    ignored: bool,
    #[command(flatten)]
    how: How,
    /// Only these paths and what is below them.
    #[arg(value_name = "PATH", value_parser = path(), last = true)]
    paths: Vec<OsString>,
}

/// What `restore` and `undo` have in common.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Modification times of what is put back: touch (now, so that build tools see the change) or exact (as captured).
    #[arg(long, value_name = "TIMES", value_enum, default_value_t = Times::Touch, hide_possible_values = true)]
    times: Times,
    /// Go on also where files are lost that the safety snapshot cannot keep; not whole directories, and not what stands in the place of one: those you move away first.
    #[arg(long)]
    pub(crate) force: bool,
}

impl How {
    /// Whether captured times are wanted.
    pub(crate) fn exact_times(&self) -> bool {
        self.times == Times::Exact
    }
}

/// Which times files get that are put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Times {
    /// The present time.
    Touch,
    /// The captured one.
    Exact,
}

#[derive(Serialize)]
struct Shape<'a> {
    restore: &'a RestoreReport,
}

/// Puts files back.
pub(crate) fn run(app: &App, args: &RestoreArgs) -> Outcome {
    let workspace = app.workspace(Access::Existing)?;
    let options = RestoreOptions {
        paths: app.paths(&workspace, &args.paths)?,
        dry_run: args.dry_run,
        ignored: args.ignored,
        exact_times: args.how.exact_times(),
        force: args.how.force,
    };
    // By what there is before it: a restore may change what `@prompt` means.
    let prompt = workspace.prompt_meant(&args.reference);
    let report = workspace
        .restore(&args.reference, &options)
        .map_err(|error| hint::reference_first(app, &workspace, "restore", &args.reference, error))
        .map_err(|error| hint::no_pattern(&workspace, &args.reference, &args.paths, error))
        .map_err(|error| hint::from_top(app, &workspace, &args.reference, &args.paths, true, error))?;
    if let Some(prompt) = prompt.filter(|prompt| prompt.snapshot == report.target.id) {
        launch::tell_from(app, &prompt);
    }
    let outcome = tell(app, &workspace, &report, args.how.force);
    if !app.ui.json && !report.dry_run {
        deleted(app, &report);
    }
    outcome
}

/// Tells what a restore or an undo did, or would do; `forced`: asked for so.
pub(crate) fn tell(app: &App, workspace: &Workspace, report: &RestoreReport, forced: bool) -> Outcome {
    // With force, what can be lost is not among them.
    let refused = !report.conflicts.is_empty();
    let incomplete = (report.dry_run && refused) || !report.failed.is_empty();
    let exit = if incomplete { Exit::Code(4) } else { Exit::Done };
    if app.ui.json {
        return exit.after(app.answer_of(!report.dry_run, workspace.root(), &Shape { restore: report }));
    }
    let told = match &report.safety {
        _ if report.dry_run => app.ui.stdout(|out| changes::write(out, app.ui.out, &report.changes)),
        Some(safety) => app.ui.line(safety.id.as_str()),
        None => Ok(()),
    };
    // Also where that could not be written: it is done.
    aside(app, workspace, report, refused, forced);
    exit.after(told)
}

/// What there is to say beside the result; `refused`: of what would be, `forced` or not.
pub(crate) fn aside(app: &App, workspace: &Workspace, report: &RestoreReport, refused: bool, forced: bool) {
    let target = &report.target;
    let name = target.label.as_ref().map_or_else(|| target.id.to_string(), |label| format!("{} ({label})", target.id));
    let done = if report.dry_run { "would restore" } else { "restored" };
    match report.changes.is_empty() {
        // Nothing would be done, however much differs.
        _ if report.dry_run && refused => {}
        true if !report.failed.is_empty() => {}
        true if report.left.is_empty() && report.below > 0 => {
            app.ui.note(&format!("nothing that was changed in the branch itself differs from {name}"));
        }
        true if report.left.is_empty() => app.ui.note(&format!("everything is as in {name} already")),
        true => app.ui.note(&format!("what differs from {name} is left alone")),
        false => app.ui.note(&format!("{done} {name}: {}", changes::summary(&report.changes))),
    }
    list(app, "left alone", &report.left);
    list(app, "in the way", &report.conflicts);
    list(app, if report.dry_run { "would be lost for good" } else { "lost for good" }, &report.overwritten);
    list(app, "could not be changed", &report.failed);
    let of_hooks = |change: &&ChangeRecord| change.path.as_path().ends_with(".claude/settings.local.json");
    if let Some(settings) = report.changes.iter().find(of_hooks) {
        app.ui.note(&format!(
            "{} is among them: `ah agent hooks status` shows whether the project's hooks are installed",
            settings.path
        ));
    }
    for note in &report.notes {
        app.ui.note(note);
    }
    if report.dry_run && refused {
        let mut hint = way_out(workspace.root(), &report.conflicts, forced);
        if !forced && !report.conflicts.iter().any(LeftAlone::is_closed) {
            hint.push_str("; `--dry-run --force` shows whether they can be lost instead");
        }
        app.ui.warning("this restore would be refused", Some(&hint));
    } else if !report.failed.is_empty() {
        let mut hints = Vec::new();
        let otherwise = report.lost + report.unheld + report.bare + report.damaged + report.waiting;
        if report.failed.len() > otherwise + report.copy_out.len() {
            hints.push(format!("put right what is named (make writable what may not be written to, and room on a full disk); then `ah agent fs restore {} -- PATH` brings each of them back", target.id));
        }
        if report.unheld > 0 {
            hints.push("what should go and nothing holds, `rm` takes away".to_owned());
        }
        if report.bare > 0 {
            hints.push(format!("what owner and attributes it had, `ah agent fs seek {}` shows", report.target.id));
        }
        if report.waiting > 0 {
            hints.push(format!("what should go and stays, `ah agent fs restore {} -- PATH` takes away", target.id));
        }
        if report.damaged > 0 {
            hints.push(
                "of what is damaged another snapshot may hold a version: `ah agent fs versions PATH` lists them"
                    .to_owned(),
            );
        }
        if report.lost > 0 {
            let of = if hints.is_empty() && report.copy_out.is_empty() { "" } else { "of what was changed below: " };
            hints.push(format!("{of}what the snapshot held of it is not kept; a snapshot of the workspace that the branch grew from may have it: `ah -C . agent fs versions PATH` there"));
        }
        if let Some(first) = report.copy_out.first() {
            let others = if report.copy_out.len() > 1 { ", and the others alike" } else { "" };
            hints.push(format!("`{first}` brings the repository back{others}"));
        }
        app.ui.warning("the restore is not complete", Some(&hints.join("; ")));
        if let Some(safety) = report.safety.as_ref().filter(|_| report.undoable) {
            app.ui.note(&format!(
                "`ah agent fs undo` takes back what was changed, as long as no other restore came; then `ah agent fs restore {}` goes back to before this one",
                safety.id
            ));
        }
    } else if report.safety.is_some() {
        app.ui.note(match report.overwritten.is_empty() {
            true => "`ah agent fs undo` takes it back",
            false => "`ah agent fs undo` takes the rest back",
        });
    }
}

/// Which files an undo put back, and which went: nobody asked for them by name.
pub(crate) fn undone(app: &App, report: &RestoreReport) {
    let stay = report.changes.iter().filter(|change| Letter::of(change) != Letter::Deleted);
    let stay: Vec<_> = stay.map(|change| change.path.to_string()).collect();
    app.ui.some("put back", stay.into_iter());
    deleted(app, report);
}

/// Which files went: nobody asked for them by name.
pub(crate) fn deleted(app: &App, report: &RestoreReport) {
    let gone: Vec<_> = report.changes.iter().filter(|change| Letter::of(change) == Letter::Deleted).collect();
    app.ui.some("deleted", gone.iter().map(|change| change.path.to_string()));
}

fn list(app: &App, what: &str, paths: &[LeftAlone]) {
    app.ui.some(what, paths.iter().map(|left| format!("{} ({})", left.path, left.reason)));
}
