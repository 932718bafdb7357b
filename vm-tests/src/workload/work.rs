//! Works until the power goes: snapshot, branch, restore, undo, rm, and commits of the user, each said to the host before and after.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::lab::{Lab, printed, text};
use super::{repository, tree};
use crate::kinds::Git;
use crate::record::{Digest, Report};

/// Snapshots and branches that are kept; of more, one is removed.
const SNAPSHOTS: usize = 10;
const BRANCHES: usize = 3;

pub(super) fn until_cut(lab: &mut Lab) -> Result<()> {
    if lab.book.repository.is_none() {
        repository::commit(lab)?;
    }
    loop {
        match lab.random.below(11) {
            0..4 => snapshot(lab)?,
            4..6 => restore(lab)?,
            6 if lab.book.branches.len() < BRANCHES => branch(lab)?,
            6 | 7 => remove_branch(lab)?,
            8 => repository::commit(lab)?,
            _ => remove(lab)?,
        }
        repository::untouched(lab)?;
        while lab.book.snapshots.len() > SNAPSHOTS {
            remove(lab)?;
        }
    }
}

/// One of them, or none if there is none.
fn some<T: Clone>(lab: &mut Lab, of: &[T]) -> Option<T> {
    let count = u64::try_from(of.len()).ok().filter(|count| *count > 0)?;
    of.get(usize::try_from(lab.random.below(count)).ok()?).cloned()
}

fn a_snapshot(lab: &mut Lab) -> Option<String> {
    let ids: Vec<_> = lab.book.snapshots.keys().cloned().collect();
    some(lab, &ids)
}

fn snapshot(lab: &mut Lab) -> Result<()> {
    lab.change()?;
    let digest = tree::digest(&lab.workspace())?;
    let label = format!("label-{}", lab.random.number());
    lab.say(Report::Snapshot { label: Some(label.clone()), digest: digest.clone() })?;
    let answer = lab.ah(&["snapshot", "-m", &label])?;
    let id = text(&answer, "/snapshot/id")?.to_owned();
    anyhow::ensure!(
        text(&answer, "/snapshot/durability")? == "durable",
        "a person's snapshot is not durable: {answer}"
    );
    lab.say(Report::SnapshotDone { id, digest })
}

fn restore(lab: &mut Lab) -> Result<()> {
    let Some(id) = a_snapshot(lab) else { return Ok(()) };
    lab.change()?;
    // What its user has written is at stake where snapshots are taken; here it is what `ah` makes of it.
    printed(Command::new("sync").arg("-f").arg(lab.workspace()))?;
    let before = tree::digest(&lab.workspace())?;
    let wanted = lab.book.snapshots[&id].clone();
    let after = put_back(lab, &["restore", &id], &before, &wanted)?;
    if lab.random.below(2) == 0 {
        put_back(lab, &["undo"], &after, &before)?;
    }
    Ok(())
}

/// Gives the workspace as it is then.
fn put_back(lab: &mut Lab, command: &[&str], before: &Digest, wanted: &Digest) -> Result<Digest> {
    lab.say(Report::Snapshot { label: None, digest: before.clone() })?;
    lab.say(Report::PutBack { before: before.clone(), after: wanted.clone() })?;
    let answer = lab.ah(command)?;
    let safety = text(&answer, "/restore/safety/id")?.to_owned();
    lab.say(Report::PutBackDone)?;
    lab.say(Report::SnapshotDone { id: safety, digest: before.clone() })?;
    let after = tree::digest(&lab.workspace())?;
    anyhow::ensure!(after.plain == wanted.plain, "{} ended well, and left something else", command.join(" "));
    Ok(after)
}

fn remove(lab: &mut Lab) -> Result<()> {
    let Some(id) = a_snapshot(lab) else { return Ok(()) };
    lab.say(Report::Remove { id: id.clone() })?;
    lab.ah(&["rm", "--force", &id])?;
    lab.say(Report::RemoveDone { id })
}

fn branch(lab: &mut Lab) -> Result<()> {
    let Some(id) = a_snapshot(lab) else { return Ok(()) };
    let name = format!("branch-{}", lab.random.below(1 << 40));
    let (digest, head) = (lab.book.snapshots[&id].clone(), lab.book.heads.get(&id).cloned());
    lab.say(Report::Branch { name: name.clone(), digest: digest.clone(), head: head.clone() })?;
    let answer = lab.ah(&["branch", &id, "--name", &name])?;
    let path = text(&answer, "/branch/path")?;
    let made = tree::digest(path.as_ref()).with_context(|| path.to_owned())?;
    anyhow::ensure!(made.linked == digest.linked, "branch {name} differs from the snapshot {id}");
    if lab.kind.git != Git::No {
        repository::closed(path.as_ref()).with_context(|| format!("the repository of branch {name}"))?;
        let found = repository::check_branch(lab, path.as_ref());
        let found = found.with_context(|| format!("the repository of branch {name}"))?;
        anyhow::ensure!(head.is_none_or(|head| head == found), "branch {name} is at {found}, unlike the snapshot {id}");
    }
    lab.say(Report::BranchDone { name })
}

fn remove_branch(lab: &mut Lab) -> Result<()> {
    let names: Vec<_> = lab.book.branches.keys().cloned().collect();
    let Some(name) = some(lab, &names) else { return Ok(()) };
    lab.say(Report::RemoveBranch { name: name.clone() })?;
    lab.ah(&["rm", "--force", &name])?;
    lab.say(Report::RemoveBranchDone { name })
}
