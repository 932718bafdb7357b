//! What a killed restore left in its staging folder: files that were made and not yet put in place, and files that were taken
//! away. Nothing is removed here that some snapshot does not hold.

use std::collections::HashSet;
use std::os::fd::AsFd;

use ah_plugin_api::{Context, RelPath, Result};

use super::apply::sweep;
use super::at::{self, Found, Tree};
use super::journal::{Journal, JournalStep};
use super::plan::Ground;
use crate::record::EntryRecord;
use crate::walk::{Source, read_all};

/// Removes the staging folder of a killed restore. Gives what had to stay: the last instant's work of somebody else, with
/// the path it belongs to.
pub(crate) fn clean(ground: &Ground<'_>, journal: &Journal, cx: &Context<'_>) -> Result<Vec<(RelPath, RelPath)>> {
    let tree = Tree::new(ground.workspace.as_fd())?;
    if matches!(tree.stat(&journal.staging), Ok(None)) {
        return Ok(Vec::new());
    }
    let target = ground.shelf.open(&journal.target.reference, cx);
    let (mut kept, mut slots) = (Vec::new(), HashSet::new());
    for step in &journal.steps {
        let Some(slot) = step.slot else { continue };
        let name = slot.to_string();
        let lane = journal.staging.join((slot % journal.lanes.max(1)).to_string().as_bytes())?;
        let Ok(dir) = tree.dir(&lane) else { continue };
        let Ok(Some(found)) = at::stat(dir.as_fd(), name.as_bytes()) else { continue };
        let held = step.before.as_ref().is_some_and(|before| is_still(&found, before))
            || target.as_ref().is_ok_and(|target| made_for(&tree, &lane.join(name.as_bytes()), step, target, cx));
        if !held {
            slots.insert(slot);
            kept.push((step.path.clone(), lane.join(name.as_bytes())?));
        }
    }
    sweep(tree, &journal.staging, &slots);
    Ok(kept)
}

/// Whether a file that was taken away is the one that the safety snapshot holds.
fn is_still(found: &Found, before: &EntryRecord) -> bool {
    found.kind == before.kind && found.size == before.size && found.mtime == before.mtime
}

/// Whether a file was being made for this step: it is the beginning of what the target snapshot holds.
fn made_for(tree: &Tree<'_>, at: &Result<RelPath>, step: &JournalStep, target: &Source<'_>, cx: &Context<'_>) -> bool {
    let (Ok(at), Some(after)) = (at, &step.after) else { return false };
    if after.kind == ah_plugin_api::EntryKind::Symlink {
        let Ok(dir) = tree.dir(&at.parent().unwrap_or_default()) else { return false };
        let link = at::read_link(dir.as_fd(), at.file_name().unwrap_or_default());
        return link.is_ok_and(|link| target.link_target(&step.path, cx).is_ok_and(|wanted| wanted == link));
    }
    let Ok(file) = tree.file(at) else { return false };
    let Ok(memory) = rustix::fs::memfd_create("ah-compare", rustix::fs::MemfdFlags::CLOEXEC) else { return false };
    // Whole contents in memory, once, for the file or two that a kill caught half-made.
    let (Ok(()), Ok(made)) = (target.read(&step.path, memory.as_fd(), cx), read_all(file.as_fd())) else {
        return false;
    };
    read_all(memory.as_fd()).is_ok_and(|wanted| wanted.starts_with(&made))
}
