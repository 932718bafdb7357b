//! What became of the workspace, and of a restore in it, when the power went: it is as it was or as it was to be, or `status` tells of one that
//! was interrupted, whose files are each one or the other, and which can be finished and taken back as that says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::lab::{Lab, text};
use super::tree::{self, Tree};
use super::verify::listed;
use crate::record::Present;

/// A restore, the undo that took it back, and one more of either may all not be on disk yet.
const AT_ONCE: usize = 3;

/// Finishes what was interrupted, or takes it back; how many, and the workspace then. `now`: as it was found. Snapshots that come are `shown`.
pub(super) fn settle(lab: &mut Lab, mut now: Tree, shown: &mut BTreeMap<String, Tree>) -> Result<(usize, Tree)> {
    let mut present = lab.book.workspace.clone();
    for count in 0..=AT_ONCE {
        let Some(interrupted) = interrupted(lab)? else {
            if let Some(present) = present {
                ended(&present, &now)?;
            }
            return Ok((count, now));
        };
        let of = |role: &str| -> Result<&Tree> {
            let id = text(&interrupted, role)?;
            shown.get(id).with_context(|| format!("{role} of what was interrupted is not listed: {interrupted}"))
        };
        let (target, safety) = (of("/target")?.clone(), of("/safety")?.clone());
        // One before that, whose end was not on disk yet, where the last had not begun.
        let is_last = present.as_ref().is_some_and(|present| present.before == safety.digest());
        match present.take() {
            Some(_) if is_last => each_is_of(&now, &[&target, &safety]).context("amid a restore")?,
            Some(present) => ended(&present, &now)?,
            None => {}
        }
        let (way, goal) = if lab.random.below(2) == 0 { ("/finish", &target) } else { ("/back", &safety) };
        let before = now.clone();
        for command in text(&interrupted, way)?.split(" && ") {
            now = follow(lab, command, &now, shown).with_context(|| format!("{command}, as {interrupted} says"))?;
        }
        // What its user has changed since, and what another restore did, stays.
        let allowed: &[&Tree] = if is_last { &[goal] } else { &[goal, &before] };
        each_is_of(&now, allowed).with_context(|| format!("{way} of what was interrupted: {interrupted}"))?;
    }
    bail!("more restores are interrupted than were begun at once")
}

fn interrupted(lab: &Lab) -> Result<Option<Value>> {
    Ok(lab.ah(&["status"])?.pointer("/status/interrupted").cloned())
}

/// Nothing is told of: then it is all of one or all of the other, and of one that was reported as done it is that.
fn ended(present: &Present, now: &Tree) -> Result<()> {
    let now = now.digest().plain;
    ensure!(
        now == present.after.plain || (!present.done && now == present.before.plain),
        "the workspace is not what it was, and no restore says that it was interrupted"
    );
    Ok(())
}

/// Each path is as one of these trees has it.
fn each_is_of(now: &Tree, allowed: &[&Tree]) -> Result<()> {
    let others: Vec<PathBuf> = now.unlike_all(allowed);
    ensure!(others.is_empty(), "these are as they never were: {others:?}");
    Ok(())
}

/// Runs a command that was told; what it saved first is what was there. Gives the workspace after it.
fn follow(lab: &Lab, command: &str, before: &Tree, shown: &mut BTreeMap<String, Tree>) -> Result<Tree> {
    let words = command.strip_prefix("ah agent fs ").context("that is no command of ours")?;
    lab.ah(&words.split(' ').collect::<Vec<_>>())?;
    let new: Vec<String> = listed(lab)?.into_keys().filter(|id| !shown.contains_key(id)).collect();
    if !new.is_empty() {
        for (id, tree) in lab.views(new.iter())? {
            ensure!(tree.digest() == before.digest(), "the safety snapshot {id} is not what was there");
            shown.insert(id, tree);
        }
        lab.ah(&["release", "--all"])?;
    }
    Ok(tree::of(&lab.workspace())?)
}
