//! Repositories that the snapshot holds and that are gone or none any more: no restore brings one back, and none says that all is back without one.
//!
//! Why they are not put back, though nothing would be overwritten: a restore that is killed half-way is finished by looking at what differs, and
//! what differs in a `.git` is never looked at; and an undo would have to take away what has been committed to it since.

use ah_plugin_api::{Change, EntryKind, RelPath};
use rustix::io::Errno;

use super::Planner;
use crate::diff::not_of_the_work;
use crate::restore::LeftAlone;
use crate::wrecked::leads_nowhere;

impl Planner<'_> {
    /// A difference in what is never touched. Of a repository that is there nothing is said, whatever differs in it; without its HEAD it is none, and
    /// a file that leads to none is none either.
    pub(super) fn untouched(&mut self, change: &Change) {
        let headless = change.path.file_name() == Some(b"HEAD");
        let path = &if headless { change.path.parent().unwrap_or_default() } else { change.path.clone() };
        let above = path.parent().unwrap_or_default();
        // Of the workspace's own who restores says more, if the snapshot tells of one.
        let told = above.is_root() && self.wish.target.repository.is_some();
        if path.file_name() != Some(b".git")
            || told
            || !self.wish.scope.holds(path)
            || not_of_the_work(&above, self.ground.own_state)
        {
            return;
        }
        let is_file = change.after.as_ref().is_some_and(|after| after.kind == EntryKind::File);
        let is = match &change.before {
            Some(_) if !headless && is_file && leads_nowhere(self.tree, &above) => "leads to no repository any more",
            None if headless && !self.is_gone(path) && self.is_gone(&change.path) => "has no HEAD",
            None if !headless && self.is_gone(path) => "is missing",
            _ => return,
        };
        let reason = format!("it {is}, and repositories are left alone: the snapshot holds it");
        self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
        self.plan.repositories.push(path.clone());
    }

    fn is_gone(&self, path: &RelPath) -> bool {
        matches!(self.tree.stat(path), Ok(None) | Err(Errno::NOTDIR | Errno::LOOP))
    }
}
