//! What a killed restore left in its staging folder: files that were made and not yet put in place, and files that were taken
//! away. Nothing is removed here that some snapshot does not hold.

use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Context, RelPath, Result};

use super::apply::Staging;
use super::at::{self, Found, Tree};
use super::journal::{Journal, JournalStep};
use super::plan::Ground;
use crate::record::EntryRecord;
use crate::walk::{Source, read_all};

/// Removes the staging folder of a killed restore. Gives what had to stay: the last instant's work of somebody else, with
/// the path it belongs to.
pub(crate) fn clean(ground: &Ground<'_>, journal: &Journal, cx: &Context<'_>) -> Result<Vec<(RelPath, RelPath)>> {
    let tree = Tree::new(ground.workspace.as_fd())?;
    // There is none, or something else is in its place.
    let Ok(staging) = Staging::found(tree, &journal.staging, journal.lanes) else { return Ok(Vec::new()) };
    let target = ground.shelf.open(&journal.target.reference, cx);
    let (mut kept, mut held) = (Vec::new(), Vec::new());
    for step in &journal.steps {
        let Some((slot, (dir, name))) = step.slot.and_then(|slot| Some((slot, staging.slot(slot)?))) else { continue };
        let place = (dir, name.as_bytes());
        let Ok(Some(found)) = at::stat(place.0, place.1) else { continue };
        if step.before.as_ref().is_some_and(|before| is_still(&found, before))
            || target.as_ref().is_ok_and(|target| made_for(place, step, target, cx))
        {
            held.push(slot);
        } else {
            let lane = journal.staging.join((slot % journal.lanes.max(1)).to_string().as_bytes())?;
            kept.push((step.path.clone(), lane.join(name.as_bytes())?));
        }
    }
    staging.sweep(held.into_iter());
    Ok(kept)
}

/// Whether a file that was taken away is the one that the safety snapshot holds.
fn is_still(found: &Found, before: &EntryRecord) -> bool {
    found.kind == before.kind && found.size == before.size && found.mtime == before.mtime
}

/// Whether a file was being made for this step: it is the beginning of what the target snapshot holds.
fn made_for(at: (BorrowedFd<'_>, &[u8]), step: &JournalStep, target: &Source<'_>, cx: &Context<'_>) -> bool {
    let Some(after) = &step.after else { return false };
    if after.kind == ah_plugin_api::EntryKind::Symlink {
        let link = at::read_link(at.0, at.1);
        return link.is_ok_and(|link| target.link_target(&step.path, cx).is_ok_and(|wanted| wanted == link));
    }
    let Ok(file) = at::open_file(at.0, at.1) else { return false };
    let Ok(memory) = rustix::fs::memfd_create("ah-compare", rustix::fs::MemfdFlags::CLOEXEC) else { return false };
    // Whole contents in memory, once, for the file or two that a kill caught half-made.
    let (Ok(()), Ok(made)) = (target.read(&step.path, memory.as_fd(), cx), read_all(file.as_fd())) else {
        return false;
    };
    read_all(memory.as_fd()).is_ok_and(|wanted| wanted.starts_with(&made))
}
