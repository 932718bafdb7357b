//! What restores leave that came to their end: folders in the workspace that could not be removed then, and journals that no
//! undo can need any more. Interrupted restores are not touched: a person decides about those.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;

use ah_plugin_api::{Context, Dir, RelPath, Result, SnapshotId};

use super::at::Tree;
use super::clean::clean;
use super::plan::Ground;
use super::scope::STAGING_PREFIX;
use super::standing::Outcomes;
use crate::gc::GcReport;
use crate::lock::Lock;
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::workspace::Workspace;

impl Workspace {
    /// Clears up after restores that have ended; gives a sentence for each thing it did, and for each that it could not do. `all_asked`: whether
    /// each provider said which snapshots it has, and those are listed, so that those which are not on the timeline are gone.
    pub(crate) fn tidy_restores(&self, all_asked: bool) -> Result<(Vec<String>, Vec<String>)> {
        let _lock = self.lock("restore")?;
        let (mut done, mut failures) = (Vec::new(), Vec::new());
        if let Ok(workspace) = self.open_dir() {
            let (cleared, failed) = self.clear_ended(&workspace, &self.mounts_dir()?, &self.context());
            let left = |folder| format!("removed {folder}, which a restore had left in the workspace");
            done.extend(cleared.into_iter().map(left));
            failures = failed;
        }
        done.extend(self.forget_plans(all_asked)?);
        Ok((done, failures))
    }

    /// What of that is due behind snapshots, unless somebody restores just now.
    pub(crate) fn forget_plans_if_free(&self, report: &mut GcReport) -> Result<()> {
        let Some(_lock) = Lock::try_take(&self.folder().join("restore.lock"), true)? else { return Ok(()) };
        self.forget_plans(false)?.into_iter().for_each(|done| report.did(done));
        Ok(())
    }

    /// Removes the journals whose snapshots are gone, and says how many: all that are not on the timeline if `all_asked` and all of that can be read, else those that were
    /// taken off it. One whose folder is left in the workspace stays: it says what that is. Needs the restore lock.
    fn forget_plans(&self, all_asked: bool) -> Result<Option<String>> {
        let state = self.state()?;
        let there: HashSet<&SnapshotId> = state.snapshots.iter().map(|record| &record.id).collect();
        let all_known = all_asked && state.unread.is_empty();
        let keep = |id: &SnapshotId| if all_known { there.contains(id) } else { !state.removed.contains(id) };
        let is_left = |restore: &str| self.root().join(format!("{STAGING_PREFIX}{restore}")).symlink_metadata().is_ok();
        let count = self.journals().forget_ended(|journal| keep(&journal.back.id) || is_left(&journal.restore))?;
        let plans = || text::count(count, "plan of a restore", "plans of restores");
        Ok((count > 0).then(|| format!("removed {} whose snapshots are gone", plans())))
    }

    /// Snapshots that restores need: true for those of running and interrupted ones, and of those in place that may not be on disk; false
    /// for those that the undo of each session's last one goes back to.
    ///
    /// # Errors
    /// If the record of a restore cannot be read: then nobody knows what it needs.
    pub(crate) fn restores_need(&self, events: &[Event]) -> Result<BTreeMap<SnapshotId, bool>> {
        let journals = self.journals();
        let outcomes = Outcomes::of(events);
        let mut needed = BTreeMap::new();
        let mut sessions = HashSet::new();
        for event in events.iter().rev() {
            if let EventBody::RestoreBegin(begin) = &event.body
                && outcomes.undoable(&begin.restore)
                && sessions.insert(&event.session)
            {
                needed.insert(begin.safety.clone(), false);
                if let Ok(Some(journal)) = journals.of(&event.session, &begin.restore) {
                    needed.insert(journal.back.id, false);
                }
            }
        }
        let (open, unreadable) = journals.open()?;
        if let Some((_, error)) = unreadable.into_iter().next() {
            return Err(error);
        }
        for journal in open.into_iter().filter(|journal| outcomes.is_open(journal)) {
            needed.extend([journal.target, journal.safety, journal.back].map(|snapshot| (snapshot.id, true)));
        }
        Ok(needed)
    }

    /// Removes the staging folders of restores that have ended, and says which could not be. Needs the restore lock: then none of
    /// them is in use.
    pub(super) fn clear_ended(&self, workspace: &Dir, scratch: &Dir, cx: &Context<'_>) -> (Vec<RelPath>, Vec<String>) {
        let (mut cleared, mut failed) = (Vec::new(), Vec::new());
        let names = Tree::new(workspace.as_fd()).ok().and_then(|tree| tree.names(&RelPath::root()).ok());
        for name in names.unwrap_or_default() {
            let Some(restore) =
                name.strip_prefix(STAGING_PREFIX.as_bytes()).and_then(|id| std::str::from_utf8(id).ok())
            else {
                continue;
            };
            match self.clear(restore, workspace, scratch, cx) {
                Ok(folder) => cleared.extend(folder),
                Err(error) => failed.push(format!(
                    "the folder {STAGING_PREFIX}{restore}, which a restore had left, could not be cleared: {error}"
                )),
            }
        }
        (cleared, failed)
    }

    /// Removes the staging folder of a restore, if that has ended; gives it if it is gone then.
    fn clear(&self, restore: &str, workspace: &Dir, scratch: &Dir, cx: &Context<'_>) -> Result<Option<RelPath>> {
        // One that nobody here knows belongs to another home, or to the person.
        let Some(journal) = self.journals().find_ended(restore)? else { return Ok(None) };
        let served = self.serve(&journal.provider)?;
        let shelf = self.shelf(&served, scratch);
        clean(&Ground { workspace, shelf, own_state: &[], ignores: None }, &journal, cx)?;
        let gone = matches!(Tree::new(workspace.as_fd())?.stat(&journal.staging), Ok(None));
        Ok(gone.then_some(journal.staging))
    }
}
