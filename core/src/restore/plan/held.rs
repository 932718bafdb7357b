//! What the snapshots hold of a file, against what is on disk: by its contents, where attributes do not tell.

use ah_plugin_api::wire::DEFECT;
use ah_plugin_api::{Entry, EntryKind, ErrorKind, RelPath, Result};

use super::Planner;
use crate::restore::at::Found;
use crate::restore::read_back::cannot_give_back;
use crate::walk::{Source, same_contents};

/// What was last touched so long before a snapshot was that before it, whosever clock stamps it. Nanoseconds.
const LONG: i128 = 60_000_000_000;

/// What is said of what is on disk instead of what was saved, and was there before.
const NOT_ON_DISK: &str = "it is not what was saved: the disk has lost that, or something was mounted over it";

impl Planner<'_> {
    /// Whether the safety snapshot holds the very bytes that are on disk.
    pub(super) fn held(&self, path: &RelPath, before: &Entry) -> Result<bool> {
        let disk = Source::Directory { root: self.ground.workspace, skip: &|_, _, _| false };
        let present = Entry { content: None, ..before.clone() };
        unreadable_is_different(same_contents((&disk, path, &present), (self.safety()?, path, before), self.cx))
    }

    pub(super) fn on_disk_equals(&self, path: &RelPath, present: &Entry, after: &Entry) -> Result<bool> {
        let disk = Source::Directory { root: self.ground.workspace, skip: &|_, _, _| false };
        unreadable_is_different(same_contents((&disk, path, present), (self.target, path, after), self.cx))
    }

    /// Why the safety snapshot does not give what it told of, whatever is on disk. None: it does.
    pub(super) fn not_given(&self, path: &RelPath, before: &Entry) -> Result<Option<String>> {
        if !matches!(before.kind, EntryKind::File | EntryKind::Symlink) {
            return Ok(None);
        }
        let safety = self.safety()?;
        match safety.contents(path, before.size, safety.shelf(), self.cx) {
            Ok(_) => Ok(None),
            Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
            Err(error) => Ok(Some(cannot_give_back(&error))),
        }
    }

    /// What is said where something is not what its provider told of it in the safety snapshot, though nothing was done to it since, nor was a directory above it replaced. None: somebody may
    /// have changed it.
    pub(super) fn told_wrong(&self, path: &RelPath, before: &Entry, found: &Found) -> Option<String> {
        let long_before = self.wish.safety.created.as_nanos() - LONG;
        let is_old = |found: &Found| found.ctime.max(found.mtime).as_nanos() < long_before;
        let mut above = std::iter::successors(path.parent(), RelPath::parent);
        if !is_old(found) || !above.all(|dir| matches!(self.tree.stat(&dir), Ok(Some(dir)) if is_old(&dir))) {
            return None;
        }
        // What was written to it and never came to the disk is gone with its time, and what a mount put over it has its own.
        if found.mtime != before.mtime {
            return Some(NOT_ON_DISK.to_owned());
        }
        let name = self.wish.safety_shelf.unwrap_or(self.ground.shelf).provider.describe().name;
        Some(format!("the provider {name} told of it what it was not, when the present state was saved: {DEFECT}"))
    }
}

/// What cannot be read cannot be held either.
fn unreadable_is_different(answer: Result<bool>) -> Result<bool> {
    match answer {
        Err(error)
            if error.is_unreadable()
                || matches!(
                    error.kind,
                    ErrorKind::PermissionDenied | ErrorKind::NotFound | ErrorKind::InvalidArgument
                ) =>
        {
            Ok(false)
        }
        other => other,
    }
}
