//! What restores leave that came to their end: folders in the workspace that could not be removed then, and journals that no
//! undo can need any more. Interrupted restores are not touched: a person decides about those.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::AsFd;

use ah_plugin_api::{Context, Dir, RelPath, Result, SnapshotId};

use super::at::Tree;
use super::clean::clean;
use super::journal::{Journals, OpenJournal};
use super::plan::Ground;
use super::scope::STAGING_PREFIX;
use crate::timeline::{Event, EventBody};
use crate::walk::Shelf;
use crate::workspace::Workspace;

impl Workspace {
    /// Clears up after restores that have ended; gives a sentence for each thing it did.
    pub(crate) fn tidy_restores(&self) -> Result<Vec<String>> {
        let _lock = self.lock("restore")?;
        let journals = self.journals();
        let mut done = Vec::new();
        if let Ok(workspace) = self.open_dir() {
            let scratch = self.mounts_dir()?;
            for folder in self.clear_ended(&workspace, &scratch, &journals, &self.context())? {
                done.push(format!("removed {folder}, which a restore had left in the workspace"));
            }
        }
        let there: HashSet<String> =
            self.state()?.snapshots.into_iter().map(|record| record.id.as_str().to_owned()).collect();
        let count = journals.forget_ended(|journal| there.contains(journal.back.id.as_str()))?;
        if count > 0 {
            done.push(format!("removed {count} plans of restores whose snapshots are gone"));
        }
        Ok(done)
    }

    /// Snapshots that restores need: true for those of interrupted ones, false for those that the undo of each session's last one goes
    /// back to.
    pub(crate) fn restores_need(&self, events: &[Event]) -> Result<BTreeMap<SnapshotId, bool>> {
        let journals = self.journals();
        let mut needed = BTreeMap::new();
        let mut ended = HashSet::new();
        let mut sessions = HashSet::new();
        for event in events.iter().rev() {
            if let EventBody::RestoreEnd(end) = &event.body
                && end.outcome != "abandoned"
            {
                ended.insert(&end.restore);
            }
            if let EventBody::RestoreBegin(begin) = &event.body
                && !sessions.contains(&event.session)
            {
                // An abandoned one is not the last: undo passes over it.
                if ended.contains(&begin.restore) {
                    sessions.insert(&event.session);
                }
                needed.insert(begin.safety.clone(), false);
                if let Ok(journal) = journals.ended_one(&event.session, &begin.restore) {
                    needed.insert(journal.back.id, false);
                }
            }
        }
        for OpenJournal { journal, .. } in journals.interrupted()? {
            needed.extend([journal.target, journal.safety, journal.back].map(|snapshot| (snapshot.id, true)));
        }
        Ok(needed)
    }

    /// Removes the staging folders of restores that have ended. Needs the restore lock: then none of them is in use.
    pub(super) fn clear_ended(
        &self,
        workspace: &Dir,
        scratch: &Dir,
        journals: &Journals,
        cx: &Context<'_>,
    ) -> Result<Vec<RelPath>> {
        let tree = Tree::new(workspace.as_fd())?;
        let mut cleared = Vec::new();
        for name in tree.names(&RelPath::root()).unwrap_or_default() {
            let Some(restore) =
                name.strip_prefix(STAGING_PREFIX.as_bytes()).and_then(|id| std::str::from_utf8(id).ok())
            else {
                continue;
            };
            // One that nobody here knows belongs to another home, or to the person.
            let Some(journal) = journals.find_ended(restore)? else { continue };
            let served = self.serve(&journal.provider)?;
            let shelf = Shelf { provider: &*served.provider, store: &served.store, scratch };
            clean(&Ground { workspace, shelf, own_state: &[], ignores: None }, &journal, cx)?;
            if matches!(tree.stat(&journal.staging), Ok(None)) {
                cleared.push(journal.staging);
            }
        }
        Ok(cleared)
    }
}
