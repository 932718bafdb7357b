//! Which branches may read in this workspace what a restore changes here: they show of that what is put back, unless it was kept for them, which only their
//! provider knows.

use std::os::fd::AsFd;

use ah_plugin_api::{Dir, EntryKind, Result};

use super::at::{Found, LastDir, Tree, stat_anew};
use super::plan::{Plan, Step};
use crate::attend::Standing;
use crate::branch::BranchFile;
use crate::workspace::Workspace;

/// So many paths are looked at in each branch; of more it is not worth knowing.
const LOOKED_AT: usize = 2000;

/// Of a file larger than this a branch may have written a part and read the rest here. Bytes.
const IN_PARTS: u64 = 1 << 20;

impl Workspace {
    /// The branches that may read here what a plan changes, by name. One that shows something else at a path, or nothing, has that of its own, or it was kept
    /// for it; what it shows as it is here, it may read here. Cost: a look at each path in each branch, until one is found.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub(super) fn readers_of(&self, plan: &Plan) -> Result<Vec<String>> {
        if plan.is_empty() {
            return Ok(Vec::new());
        }
        let mut readers = self.branches_reading_here()?;
        readers.retain(|branch| may_read(branch, plan));
        Ok(readers.into_iter().map(|branch| branch.record.name).collect())
    }
}

/// Where that cannot be told it may.
fn may_read(branch: &BranchFile, plan: &Plan) -> bool {
    let there = || plan.steps().filter_map(|step: &Step| Some((&step.path, step.found?)));
    // Who looks into one that does not answer waits for it.
    if branch.standing() != Standing::There || there().nth(LOOKED_AT).is_some() {
        return true;
    }
    let Ok(top) = Dir::open(&branch.record.path) else { return true };
    let Ok(tree) = Tree::new(top.as_fd()) else { return true };
    let mut dirs = LastDir::new(tree);
    there().any(|(path, here)| match dirs.parent(path).and_then(|(dir, name)| stat_anew(dir, name)) {
        Ok(there) => there.is_some_and(|there| may_be_it(&there, &here)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => false,
        Err(_) => true,
    })
}

/// Whether what a branch shows may be what is here, or have a part of it.
fn may_be_it(there: &Found, here: &Found) -> bool {
    if there.kind != here.kind {
        return false;
    }
    match here.kind {
        // Of these every branch shows what was there; what is in them is looked at by itself.
        EntryKind::Dir => false,
        EntryKind::File if there.size.max(here.size) > IN_PARTS => true,
        _ => (there.size, there.mtime, there.mode) == (here.size, here.mtime, here.mode),
    }
}
