//! Directories that an interrupted restore had made writable for a while: what finishes it, or takes it back, gives them the mode that they had.
//!
//! By its journal, not by a snapshot: they may be outside of what the restore was asked for, and those that were taken since show them open.

use ah_plugin_api::{EntryKind, RelPath, Result};
use rustix::io::Errno;

use super::apply::set_mode;
use super::at::{Found, Tree};
use super::journal::Journal;

/// What an owner needs in a directory to change names in it.
pub(super) const OPEN: u32 = 0o700;

/// A directory that was left open, as it is but for its mode: that is the former one.
pub(crate) type LeftOpen = (RelPath, Found);

/// Those of interrupted restores. `stays`: whether one is meant to have the mode that it has now.
pub(super) fn left_open(
    tree: &Tree<'_>,
    interrupted: &[Journal],
    stays: impl Fn(&RelPath, &Found) -> Result<bool>,
) -> Result<Vec<LeftOpen>> {
    let me = rustix::process::geteuid();
    let mut open: Vec<LeftOpen> = Vec::new();
    // The latest first: somebody may have changed it since the one before.
    for was in interrupted.iter().rev().flat_map(|journal| &journal.unlocked) {
        let Ok(Some(found)) = tree.stat(&was.path) else { continue };
        let is_as_opened = found.kind == EntryKind::Dir && found.mode == was.mode | OPEN && found.mode != was.mode;
        let may_shut = me.is_root() || found.uid == me.as_raw();
        if is_as_opened && may_shut && open.iter().all(|(path, _)| *path != was.path) && !stays(&was.path, &found)? {
            open.push((was.path.clone(), Found { mode: was.mode, ..found }));
        }
    }
    Ok(open)
}

/// Shuts them now, where nothing else is to be done. Gives a sentence for each that cannot be.
pub(super) fn shut(tree: Tree<'_>, open: &[LeftOpen]) -> Vec<String> {
    // The deepest first: one above it may be closed to its owner.
    let shut = |(path, was): &LeftOpen| match set_mode(tree, path, was.mode, &Found { mode: was.mode | OPEN, ..*was }) {
        Ok(_) | Err(Errno::NOENT) => None,
        Err(error) => Some(format!(
            "{path} was opened by the interrupted restore, and stays so: its mode could not be set ({error})"
        )),
    };
    let mut open: Vec<&LeftOpen> = open.iter().collect();
    open.sort_by(|(a, _), (b, _)| b.cmp(a));
    open.into_iter().filter_map(shut).collect()
}
