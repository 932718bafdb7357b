//! `ah agent fs branch`: a writable copy to go on working in.

use std::path::PathBuf;

use ah_core::{Access, BranchOptions, BranchRecord, Carry, Error, ErrorKind, Workspace, text as words};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::app::App;
use crate::args::reference;
use crate::failure::{Exit, Outcome};
use crate::output::text;

/// Options of `ah agent fs branch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the path of the copy, alone. It is a workspace of its own, and a repository of its own if the origin is one; the \
origin never changes. Without REF it starts from the present state; where that grows by agentfs (`ah agent fs status` says), it is there \
at once, and what it shows is kept for it in its first seconds; `--mode worktree` makes a copy.

Examples:
  ah agent fs branch @{1} --name retry
  ah agent fs branch --at ../experiment
  ah agent fs branch --mode worktree
  cd \"$(ah agent fs branch before)\"")]
pub(crate) struct BranchArgs {
    /// The snapshot to start from; left out: the present state.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    reference: Option<String>,
    /// The branch's name; left out: the last part of --at, or one that is made up.
    #[arg(long)]
    name: Option<String>,
    /// Where to make it: a path that is not there yet.
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// Whether ignored files that work needs (node_modules, .venv, target) come along: auto or none.
    #[arg(long, value_name = "WHICH", value_enum, hide_possible_values = true)]
    carry: Option<CarryArg>,
}

/// Whether ignored files come along.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum CarryArg {
    /// By reflink, else copied up to a limit, else listed.
    Auto,
    /// Not at all.
    None,
}

#[derive(Serialize)]
struct Shape<'a> {
    branch: &'a BranchRecord,
}

/// Makes the branch, prints its path.
pub(crate) fn run(app: &App, args: &BranchArgs) -> Outcome {
    let access = if args.reference.is_some() { Access::Existing } else { Access::Create };
    let workspace = app.workspace(access).map_err(|error| perhaps_a_name(None, args, error))?;
    let options = BranchOptions {
        from: args.reference.clone(),
        name: args.name.clone(),
        at: args.at.as_ref().map(|path| app.cwd.join(path)),
        carry: args.carry.map(|carry| match carry {
            CarryArg::Auto => Carry::Auto,
            CarryArg::None => Carry::None,
        }),
        once: false,
    };
    let branch = make(app, &workspace, &options).map_err(|error| perhaps_a_name(Some(&workspace), args, error))?;
    if app.ui.json {
        app.answer_of(true, workspace.root(), &Shape { branch: &branch })?;
    } else {
        app.ui.path(&branch.path)?;
    }
    Ok(Exit::Done)
}

/// What names no snapshot may have been meant as the branch's name, as with Git. Other forms of a REF than labels and ids begin with no letter.
fn perhaps_a_name(workspace: Option<&Workspace>, args: &BranchArgs, mut error: Error) -> Error {
    let is_name = |name: &&String| args.name.is_none() && name.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_none = |workspace: &Workspace, name: &str| {
        workspace.resolve(name).is_err_and(|error| error.kind == ErrorKind::NotFound)
    };
    let names_nothing = |name: &str| workspace.is_none_or(|workspace| is_none(workspace, name));
    match args.reference.as_ref().filter(is_name) {
        Some(name) if error.kind == ErrorKind::NotFound && names_nothing(name) => {
            let first = error.hint.take().map_or_else(String::new, |hint| format!("{hint}; "));
            let typed = words::shell(name.as_ref());
            error.with_hint(format!("{first}to call a branch so: `ah agent fs branch --name {typed}`"))
        }
        _ => error,
    }
}

/// Makes a branch, and tells what a person should know of it.
pub(crate) fn make(app: &App, workspace: &Workspace, options: &BranchOptions) -> ah_core::Result<BranchRecord> {
    let branch = workspace.branch(options)?;
    if !app.ui.json {
        tell(app, &branch);
    }
    Ok(branch)
}

/// What a person should know of a branch.
pub(crate) fn tell(app: &App, branch: &BranchRecord) {
    for note in &branch.notes {
        app.ui.note(note);
    }
    if let Some(carried) = &branch.carried {
        if !carried.carried.is_empty() {
            let paths = text::count(carried.carried.len() as u64, "ignored path", "ignored paths");
            let (copied, shared) = (text::size(carried.copied), text::size(carried.shared));
            app.ui.note(&format!("{paths} came along ({shared} shared, {copied} copied)"));
        }
        for left in &carried.left {
            let why = left.detail.as_deref().unwrap_or(left.reason.as_str());
            app.ui.note(&format!("left behind: {} ({why})", left.path));
        }
    }
}
