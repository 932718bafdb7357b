//! What is said of a restore: its report, why it is refused, and what it does not bring back.

use std::os::fd::AsFd;
use std::path::Path;

use ah_plugin_api::{Change, Dir, Error, ErrorKind, Omission, OmitReason, RelPath, Snapshot};

use super::at::Tree;
use super::facade::Job;
use super::journal::Journal;
use super::plan::Plan;
use super::scope::{Omissions, by_rule};
use super::standing::began_at;
use super::{LeftAlone, RestoreReport, copies_out, way_out};
use crate::open::no_more;
use crate::record::{ChangeRecord, SnapshotKind};
use crate::seek::is_there;
use crate::settings::Settings;
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::workspace::Served;
use crate::wrecked::{Submodule, Wreck, holds_repositories, leads_nowhere};

/// So many conflicts are named in an error; a dry run lists all.
const NAMED: usize = 20;

/// So many things that cannot come back are named.
const MISSING_NAMED: usize = 5;

/// Why an undo has nothing to go back to.
pub(super) fn was_removed() -> Error {
    Error::new(ErrorKind::NotFound, "the snapshot that undo would go back to was removed")
        .with_hint("`ah agent fs snapshots` lists those that are there")
}

pub(super) fn report(job: &Job, plan: Plan, notes: Vec<String>, below: usize, root: &Path) -> RestoreReport {
    let copy_out = |path: &RelPath| copies_out(root, &job.target.id, path, &root.join(path.as_path()));
    RestoreReport {
        restore: None,
        target: job.target.clone(),
        safety: None,
        dry_run: job.dry_run,
        changes: plan.changes().iter().map(|change: &Change| ChangeRecord::from(change)).collect(),
        left: plan.left,
        conflicts: plan.conflicts,
        overwritten: plan.overwritten,
        failed: plan.beyond,
        lost: plan.lost,
        unheld: plan.unheld,
        bare: 0,
        damaged: plan.damaged,
        waiting: 0,
        undoable: false,
        copy_out: plan.repositories.iter().map(copy_out).collect(),
        below,
        notes,
    }
}

pub(super) fn refusal(job: &Job, plan: &Plan, root: &Path) -> Error {
    let conflicts = &plan.conflicts;
    let count = conflicts.len();
    let stand = text::count(count, "path stands", "paths stand");
    let mut error = Error::new(ErrorKind::Conflict, format!("{stand} in the way, so nothing was changed"));
    error.causes =
        conflicts.iter().take(NAMED).map(|conflict| format!("{}: {}", conflict.path, conflict.reason)).collect();
    if count > NAMED {
        error.causes.push(format!("… and {} more", count - NAMED));
    }
    let force = if plan.forcible == count { ", or lose them: `--force`" } else { "" };
    // An undo is of all that was restored. Who has named these wants them, and no others. What is opened comes back with all else.
    let is_named = |conflict: &LeftAlone| job.paths.contains(&conflict.path);
    let is_all = job.undoes.is_some() || conflicts.iter().all(LeftAlone::is_closed);
    let paths = match is_all || conflicts.iter().all(is_named) {
        true => "",
        false if job.paths.is_empty() => ", or name the paths to restore after `--`",
        false => ", or name others after `--`",
    };
    error.with_hint(format!("{}{paths}{force}; `--dry-run` lists everything", way_out(root, conflicts, job.force)))
}

/// Which restore an undo takes back: it may not be the one that comes to mind. One that changed nothing is none, and much may have come since.
pub(super) fn taken_back(journal: &Journal, events: &[Event], settings: &Settings) -> String {
    let (began, now) = ((settings.named_time)(journal.began), settings.clock.now());
    let what = match journal.undoes.is_some() {
        true => format!("this takes back the undo of {began}"),
        false => format!("this takes back the restore of {}, of {began}", journal.target.id),
    };
    let since = &events[began_at(&journal.restore, journal.began, events)..];
    let is_somebodys = |event: &&Event| matches!(&event.body, EventBody::Snapshot { snapshot } if snapshot.kind != SnapshotKind::Safety);
    match since.iter().filter(is_somebodys).count() {
        0 => what,
        count => {
            let (came, age) =
                (text::count(count, "snapshot", "snapshots"), age(now.secs.saturating_sub(journal.began.secs)));
            format!("{what}, {age} ago; {came} came since")
        }
    }
}

/// So many seconds, for people; a clock that was set back makes none.
fn age(secs: i64) -> String {
    let (count, one, many) = match secs {
        ..60 => (secs.max(0), "second", "seconds"),
        60..3_600 => (secs / 60, "minute", "minutes"),
        3_600..86_400 => (secs / 3_600, "hour", "hours"),
        _ => (secs / 86_400, "day", "days"),
    };
    text::count(usize::try_from(count).unwrap_or(usize::MAX), one, many)
}

/// What came before the first change: who stops it is not to think that something is half done.
pub(super) fn stopped(error: Error) -> Error {
    if error.kind != ErrorKind::Cancelled {
        return error;
    }
    let mut said = Error::new(ErrorKind::Cancelled, "stopped before it changed anything: all files are as they were");
    // That it was cancelled is no cause of its own. What could not be cleared away again is.
    said.causes = error.causes.into_iter().filter(|cause| cause != "cancelled").collect();
    said.hint = error.hint;
    said
}

/// What failed when all had been looked at, and before the first change.
pub(super) fn came_to_nothing(error: Error) -> Error {
    error.context("the restore came to nothing before it changed anything")
}

/// What is to be said where the workspace's directory is not there into which somebody wants a snapshot back.
pub(super) fn wanted_back(root: &Path, reference: &str, error: Error) -> Error {
    if error.kind == ErrorKind::NotFound && !is_there(root) { no_more(root, reference) } else { error }
}

/// What the snapshot does not hold, and nobody has any more, cannot come back: whoever expects it should hear so. What an ignore rule
/// left out comes last: mostly it can be made again.
pub(super) fn missing_notes(target: &Snapshot, job: &Job, workspace: &Dir) -> Vec<String> {
    let Ok(tree) = Tree::new(workspace.as_fd()) else { return Vec::new() };
    let gone = |path: &RelPath| matches!(tree.stat(path), Ok(None));
    let omissions = Omissions::of(target);
    let below = target.omitted.iter().filter(|omission| job.scope.holds(&omission.path));
    let mut missing: Vec<(&RelPath, OmitReason)> = below.map(|omission| (&omission.path, omission.reason)).collect();
    // Somebody may ask for what is in a directory that was left out.
    let named = job.paths.iter().filter(|path| !missing.iter().any(|(known, _)| known == path));
    let named: Vec<_> = named.filter_map(|path| Some((path, omissions.cover(path)?.reason))).collect();
    missing.extend(named);
    missing.retain(|(path, _)| gone(path));
    missing.sort_by_key(|(_, reason)| by_rule(*reason));
    let note =
        |(path, reason): &(&RelPath, OmitReason)| format!("not in the snapshot and missing now: {path} ({reason})");
    let mut notes: Vec<String> = missing.iter().take(MISSING_NAMED).map(note).collect();
    let more = missing.len() - notes.len();
    if more > 0 {
        notes.push(format!(
            "not in the snapshot and missing now: {more} more; `ah agent fs show {}` lists them",
            target.id
        ));
    }
    notes
}

/// What came since and no snapshot holds, as rules ignored it that are not there any more, or, if it is `to_be`, may not be.
pub(super) fn came_hidden(path: RelPath, to_be: bool) -> LeftAlone {
    let reason = match to_be {
        true => "it came since, and no snapshot holds it: it is ignored until ignore rules above it change with this",
        false => "it came since, and no snapshot holds it: it was ignored until now",
    };
    LeftAlone { path, reason: reason.to_owned() }
}

/// Restore does not touch repositories; whoever expects it to bring one back, or to move HEAD, should hear so. What the plan has of them is told with that.
pub(super) fn repository_notes(
    (job, plan): (&Job, Option<&Plan>),
    (target, served): (&Snapshot, &Served),
    safety: &Snapshot,
    (workspace, root): (&Dir, &Path),
) -> Vec<String> {
    let mut notes = head_note((target, served), safety, (workspace, root));
    if Wreck::of(workspace).is_none() {
        let told = |path: &RelPath| {
            plan.is_some_and(|plan| plan.repositories.iter().any(|it| it.parent().as_ref() == Some(path)))
        };
        let broken = Submodule::broken(workspace).into_iter();
        let untold = broken.filter(|submodule| job.scope.holds(&submodule.path) && !told(&submodule.path));
        let note = |it: Submodule| format!("{}; restore leaves repositories alone: {}", it.told(), it.way_back(root));
        notes.extend(untold.map(note));
    }
    notes.extend(nested_note((target, job), (workspace, root)));
    notes
}

/// Of those inside that the snapshot does not hold and whose `.git` is a file that leads to none. Of submodules more is said.
fn nested_note((target, job): (&Snapshot, &Job), (workspace, root): (&Dir, &Path)) -> Option<String> {
    let tree = Tree::new(workspace.as_fd()).ok()?;
    let is_left_out = |omission: &&Omission| omission.reason == OmitReason::GitDir && job.scope.holds(&omission.path);
    let nested = target.omitted.iter().filter(is_left_out).filter_map(|omission| omission.path.parent());
    let nested: Vec<RelPath> = nested.filter(|path| !path.is_root() && leads_nowhere(tree, path)).collect();
    // For these alone the list of submodules is read.
    let submodules = if nested.is_empty() { Vec::new() } else { Submodule::broken(workspace) };
    let mut untold = nested.iter().filter(|path| submodules.iter().all(|submodule| submodule.path != **path));
    let first = untold.next()?;
    let place = text::shell(root.join(first.as_path()).as_os_str());
    let (lead, more) = match untold.count() {
        0 => ("leads", String::new()),
        more => ("lead", format!(" and {more} more")),
    };
    Some(format!(
        "{first}/.git{more} {lead} to no repository; the snapshot does not hold that, and restore leaves repositories alone: `git worktree repair` in the one of which it is a linked work tree has it lead there again, `echo gitdir: DIRECTORY > {place}/.git` to any other"
    ))
}

/// Of that at the top.
fn head_note(
    (target, served): (&Snapshot, &Served),
    safety: &Snapshot,
    (workspace, root): (&Dir, &Path),
) -> Vec<String> {
    let Some(then) = &target.repository else { return Vec::new() };
    if let Some(wreck) = Wreck::of(workspace) {
        let told = format!("{}; restore leaves repositories alone", wreck.told());
        // That moment's may have been none either.
        return match wreck == Wreck::Gone || then.head.is_some() {
            true => {
                vec![format!("{told}: {}", wreck.way_back((workspace, root), &target.id, holds_repositories(served)))]
            }
            false => vec![told],
        };
    }
    // Not every way to a provider tells of repositories.
    let Some(now) = &safety.repository else { return Vec::new() };
    if (&then.head, then.branch_name()) == (&now.head, now.branch_name()) {
        return Vec::new();
    }
    let name = |state: &ah_plugin_api::RepositoryState| {
        let short = |head: &String| head.chars().take(10).collect::<String>();
        let head = state.head.as_ref().map_or_else(|| "no commit".to_owned(), short);
        match state.branch_name() {
            Some(branch) => {
                format!(
                    "{head} on {}",
                    ah_plugin_api::text::path(branch.strip_prefix(b"refs/heads/").unwrap_or(&branch))
                )
            }
            None => format!("{head}, detached"),
        }
    };
    vec![format!("HEAD was {} at that moment and is {} now; restore leaves it where it is", name(then), name(now))]
}
