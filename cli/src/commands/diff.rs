//! `ah agent fs diff`: what differs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;

use ah_core::{
    Access, ChangeRecord, DiffOptions, DiffReport, DiffSide, EntryKind, EntryRecord, FromRecord, Workspace, text,
};
use ah_plugin_api::{Dir, Error, ErrorKind, RelPath, Result};
use clap::Args;
use serde::Serialize;

use crate::app::App;
use crate::args::{path, reference};
use crate::commands::launch;
use crate::contents;
use crate::failure::{Exit, Failure, Outcome};
use crate::hint;
use crate::output::style::Painter;
use crate::output::{changes, patch, stat};

/// Options of `ah agent fs diff`.
#[derive(Debug, Args)]
#[command(after_help = "\
From the first REF to the second, or to the workspace as it is now. Without REF, from the snapshot that a branch grew from, and from the \
latest where this is no branch. Ignored directories are compared only if they \
are named, and a snapshot holds them. The letters of --name-status: A added, D deleted, \
M modified, P permissions alone, T another type. A patch can be given to `git apply`, or `git apply --3way` where other work came home before (if that is committed, and what the patch begins from was, too); \
files that are not text are only named in it, and stay as they are, as do permissions but for whether a file can be executed, those of what is new where they close it to somebody. \
What cannot be compared as it is damaged, or the disk does not give it, is named, and the command ends with 1.

Examples:
  ah agent fs diff @
  ah agent fs diff @{1} @ --stat
  ah agent fs diff before --patch -- src | less -R
  ah agent fs exec b -- ah agent fs diff --patch | git apply    # brings home what was done in the branch b")]
pub(crate) struct DiffArgs {
    /// The older side; left out: what this branch grew from, or the latest.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    from: Option<String>,
    /// The newer side; left out: the workspace as it is now.
    #[arg(value_name = "REF", value_parser = reference, allow_hyphen_values = true)]
    to: Option<String>,
    /// One line a path, with a letter that says what happened to it; the default.
    #[arg(long, group = "form")]
    name_status: bool,
    /// How many lines came and went, path by path.
    #[arg(long, group = "form")]
    stat: bool,
    /// The whole difference as a unified diff.
    #[arg(short, long, group = "form")]
    patch: bool,
    /// Count a file as different also when only its modification time is.
    #[arg(long)]
    times: bool,
    /// Only these paths and what is below them.
    #[arg(value_name = "PATH", value_parser = path(), last = true)]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct Shape<'a> {
    diff: &'a DiffReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    stat: Option<Vec<stat::FileStat>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
}

/// Prints the differences.
pub(crate) fn run(app: &App, args: &DiffArgs) -> Outcome {
    let workspace = app.workspace(Access::Reading)?;
    show(app, args, &workspace).map_err(|failure| match (failure, workspace.own_place()) {
        (Failure::Failed(error), Some(place)) if error.kind == ErrorKind::FailedPrecondition && args.to.is_none() => {
            let arguments: Vec<OsString> = std::env::args_os().collect();
            hint::outside(place, workspace.root(), &app.cwd, &arguments, error).into()
        }
        (failure, _) => failure,
    })
}

fn show(app: &App, args: &DiffArgs, workspace: &Workspace) -> Outcome {
    let options = DiffOptions { paths: app.paths(workspace, &args.paths)?, times: args.times };
    // It looks for what was typed meanwhile, which `@prompt` then means.
    let prompts: Vec<_> = args.from.iter().chain(&args.to).filter_map(|name| workspace.prompt_meant(name)).collect();
    let grown_from = if args.from.is_none() { workspace.grown_from()? } else { None };
    let (then, report) = match grown_from {
        Some((origin, snapshot)) => {
            let report = workspace.diff_since(&origin, snapshot, &options)?;
            (Some(origin), report)
        }
        None => {
            let from = args.from.as_deref().unwrap_or("@");
            let report = workspace.diff(from, args.to.as_deref(), &options);
            (None, report.map_err(|error| meant(app, workspace, args, error))?)
        }
    };
    // One that was given between the two looks is not what was compared.
    let is_compared = |prompt: &&FromRecord| {
        [&report.from, &report.to]
            .iter()
            .any(|side| matches!(side, DiffSide::Snapshot(record) if record.id == prompt.snapshot))
    };
    prompts.iter().filter(is_compared).for_each(|prompt| launch::tell_from(app, prompt));
    let (then, root) = (then.as_ref().unwrap_or(workspace), Dir::open(workspace.root()));
    let sides =
        Sides { then, now: workspace, report: &report, root, lost: RefCell::default(), unread: RefCell::default() };
    let closed = report.unreadable.iter().map(|path| format!("{path} (unreadable)"));
    let damaged = report.damaged.iter().map(|path| format!("{path} (damaged, or not given by the disk)"));
    app.ui.some("not compared", closed.chain(damaged).collect::<Vec<_>>().into_iter());
    app.ui.some("may have been there", report.omitted.iter().map(|path| format!("{path} (the snapshot left it out)")));
    if let Some(first) = report.ignored.first() {
        let more = report.ignored.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        app.ui.note(&format!("not compared, as it is ignored: {first}{more}; named after `--`, it is"));
    }
    if app.ui.json {
        let stat = args.stat.then(|| sides.stat(&report.changes)).transpose()?;
        let patch = args.patch.then(|| sides.patch(&report.changes)).transpose()?;
        if let Some(error) = sides.lost.take() {
            return Err(error.into());
        }
        app.answer(workspace.root(), &Shape { diff: &report, stat, patch })?;
    } else if args.patch {
        let mut left_out = Vec::new();
        for change in &report.changes {
            let (before, after) = sides.versions(change)?;
            if patch::is_left_out(before.as_ref(), after.as_ref()) {
                left_out.push(change.path.to_string());
            }
            app.ui
                .stdout(|out| patch::write(out, app.ui.out, change.path.as_bytes(), before.as_ref(), after.as_ref()))?;
        }
        app.ui.some("not text, so not in the patch", left_out.into_iter());
        left_out_of_patch(app, &report.changes);
    } else if args.stat {
        let files = sides.stat(&report.changes)?;
        app.ui.stdout(|out| stat::write(out, app.ui.out, &files))?;
    } else {
        app.ui.stdout(|out| changes::write(out, app.ui.out, &report.changes))?;
    }
    let mut is_all_known = true;
    for path in options.paths.iter().filter(|path| sides.knows_nothing_of(path)) {
        app.ui.note(&format!("{path} is on neither side"));
        is_all_known = false;
    }
    let knows = |path: &RelPath| !sides.knows_nothing_of(path);
    if !is_all_known && let Some(hint) = hint::paths_from_here(app, workspace, &args.paths, knows) {
        app.ui.note(&hint);
    }
    for path in sides.unread.take() {
        app.ui.note(&format!("not shown: {path} (unreadable)"));
    }
    // Everything else was shown by then, and does not look whole.
    let exit = if report.damaged.is_empty() { Exit::Done } else { Exit::Code(1) };
    sides.lost.into_inner().map_or(Ok(exit), |error| Err(error.into()))
}

/// Names what no patch has a place for, but for what is not text.
fn left_out_of_patch(app: &App, changes: &[ChangeRecord]) {
    let paths = |is_it: &dyn Fn(&ChangeRecord) -> bool| -> Vec<String> {
        changes.iter().filter(|change| is_it(change)).map(|change| change.path.to_string()).collect()
    };
    let is_special = |change: &ChangeRecord| {
        [&change.before, &change.after].into_iter().flatten().any(|entry| entry.kind == EntryKind::Special)
    };
    app.ui.some("a special file, so not in the patch", paths(&is_special).into_iter());
    let umask = umask();
    let has_other_mode = |change: &ChangeRecord| {
        change.after.as_ref().is_some_and(|after| patch::lacks_mode(change.before.as_ref(), after, umask))
    };
    app.ui.some("permissions, so not in the patch", paths(&has_other_mode).into_iter());
    let is_directory = |entry: &EntryRecord| entry.kind == EntryKind::Dir;
    let is_new = |change: &ChangeRecord| {
        change.after.as_ref().is_some_and(is_directory) && !change.before.as_ref().is_some_and(is_directory)
    };
    let is_empty = |directory: &ChangeRecord| {
        !changes.iter().any(|change| change.path != directory.path && change.path.starts_with(&directory.path))
    };
    app.ui.some(
        "an empty directory, so not in the patch",
        paths(&|change| is_new(change) && is_empty(change)).into_iter(),
    );
}

/// The permissions that new files are made without; asked of the kernel this way, it stays as it is. Where it cannot be told, the usual.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    octal.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}

/// A file's name where a REF goes is a path that `--` was forgotten before.
fn meant(app: &App, workspace: &Workspace, args: &DiffArgs, error: Error) -> Error {
    let names: Vec<&String> = args.from.iter().chain(&args.to).collect();
    match names.iter().position(|name| hint::names_nothing(workspace, name)) {
        Some(at) if error.kind == ErrorKind::NotFound && app.cwd.join(names[at]).symlink_metadata().is_ok() => {
            let (references, paths) = names.split_at(at);
            let paths = paths.iter().map(|name| name.as_str()).map(OsString::from).chain(args.paths.iter().cloned());
            let words = references.iter().map(|name| text::shell(name.as_ref()));
            let words: Vec<String> =
                words.chain(["--".to_owned()]).chain(paths.map(|path| text::shell(&path))).collect();
            error.with_hint(format!("paths go after `--`: `ah agent fs diff {}`", words.join(" ")))
        }
        _ => error,
    }
}

/// Where contents come from.
struct Sides<'a> {
    /// Whose the snapshots are.
    then: &'a Workspace,
    now: &'a Workspace,
    report: &'a DiffReport,
    /// The workspace's directory. Two snapshots are compared without it, too: what should be mounted there may not be.
    root: Result<Dir>,
    /// Why contents could not be read that are damaged, or not what was captured any more: one of them.
    lost: RefCell<Option<Error>>,
    /// What differs, and may not be read by this user.
    unread: RefCell<BTreeSet<RelPath>>,
}

impl Sides<'_> {
    /// Whether a path that was asked for is nowhere.
    fn knows_nothing_of(&self, path: &RelPath) -> bool {
        let lacks = |side: &DiffSide| match side {
            DiffSide::Snapshot(snapshot) => self.then.has(snapshot, path) == Some(false),
            DiffSide::Workspace => !self.now.is_there(path),
        };
        !self.report.changes.iter().any(|change| change.path.starts_with(path))
            && lacks(&self.report.to)
            && lacks(&self.report.from)
    }

    /// Both sides of a change, with their contents as far as they are files or symlinks and not too large.
    fn versions(&self, change: &ChangeRecord) -> Result<(Option<patch::Version>, Option<patch::Version>)> {
        let before = self.version(&self.report.from, change, change.before.as_ref())?;
        let after = self.version(&self.report.to, change, change.after.as_ref())?;
        Ok((before, after))
    }

    fn version(
        &self,
        side: &DiffSide,
        change: &ChangeRecord,
        entry: Option<&EntryRecord>,
    ) -> Result<Option<patch::Version>> {
        let Some(entry) = entry.filter(|entry| matches!(entry.kind, EntryKind::File | EntryKind::Symlink)) else {
            return Ok(None);
        };
        if entry.size > patch::MAX_TEXT {
            return Ok(Some(patch::Version { kind: entry.kind, mode: entry.mode, size: entry.size, content: None }));
        }
        let content = match side {
            DiffSide::Snapshot(snapshot) => {
                contents::then(self.then, snapshot, &change.path).map(|(_, content)| content)
            }
            DiffSide::Workspace => {
                self.root.as_ref().map_err(Clone::clone).and_then(|root| contents::now(root, &change.path, entry.kind))
            }
        };
        let content = match content {
            Ok(content) => Some(content),
            Err(error) if error.kind == ErrorKind::PermissionDenied => {
                self.unread.borrow_mut().insert(change.path.clone());
                None
            }
            // It had the path; what cannot be found any more was lost, too.
            Err(error)
                if matches!(side, DiffSide::Snapshot(_))
                    && matches!(error.kind, ErrorKind::DataLoss | ErrorKind::NotFound) =>
            {
                let error = error.context(format!("{} differs, and what it was cannot be shown", change.path));
                self.lost.borrow_mut().get_or_insert(error);
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Some(patch::Version { kind: entry.kind, mode: entry.mode, size: entry.size, content }))
    }

    fn stat(&self, changes: &[ChangeRecord]) -> Result<Vec<stat::FileStat>> {
        let file = |change: &ChangeRecord| {
            let (before, after) = self.versions(change)?;
            Ok(stat::FileStat::of(change, before.as_ref(), after.as_ref()))
        };
        changes.iter().map(file).collect()
    }

    fn patch(&self, changes: &[ChangeRecord]) -> Result<String> {
        let mut out = Vec::new();
        for change in changes {
            let (before, after) = self.versions(change)?;
            // Writing to memory cannot fail.
            let _ = patch::write(&mut out, Painter::plain(), change.path.as_bytes(), before.as_ref(), after.as_ref());
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}
