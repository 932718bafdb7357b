//! `prune.max-size`: the stores in `$AH_HOME` together take no more than they may. Behind snapshots, with the hourly run.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{ProviderName, Result};

use crate::lock::Lock;
use crate::prune::NOTICED;
use crate::prune::size::fewest;
use crate::record::SnapshotRecord;
use crate::registry::Index;
use crate::workspace::Workspace;

/// Snapshots in one store that may go for want of room, the oldest first.
struct Store<'a> {
    workspace: &'a Workspace,
    name: ProviderName,
    candidates: Vec<SnapshotRecord>,
    /// What they all hold.
    held: u64,
}

impl Workspace {
    /// Takes the oldest of all workspaces until the stores in `$AH_HOME` take no more than they may; gives how many. What may not go leaves the
    /// others half of that, however much it is.
    pub(super) fn shrink_all(&self) -> Result<usize> {
        // What holds for all is no single project's to say.
        let max = self.max_stored(&self.engine.config(None)?)?;
        let known = Index::load(self.engine.home())?.0.workspaces.into_iter();
        let everyone: Vec<Self> = known
            .map(|record| {
                let root = record.path.clone();
                self.engine.handle(record, root)
            })
            .collect();
        // One that cannot be asked now does not keep the others from being asked.
        let stored = |workspace: &Self| workspace.stored_at_home().unwrap_or_default();
        let total = || everyone.iter().map(|workspace| stored(workspace).0).sum::<u64>();
        if total() <= max {
            return Ok(0);
        }
        // Two at once would each take what one of them is to.
        let Some(_lock) = Lock::try_take(&self.engine.home().join("room.lock"), true)? else { return Ok(0) };
        let mut stores: Vec<Store<'_>> =
            everyone.iter().flat_map(|workspace| workspace.may_go(&stored(workspace).1).unwrap_or_default()).collect();
        let wanted = |stores: &[Store<'_>]| {
            let (total, held) = (total(), stores.iter().map(|store| store.held).sum());
            total.saturating_sub(max.max(total.saturating_sub(held).saturating_add(max / 2)))
        };
        if wanted(&stores) == 0 {
            return Ok(0);
        }
        // Nothing goes for what has gone already, nor where it would not come back.
        stores.retain(|store| store.workspace.reclaim_store(&store.name).is_ok());
        let wanted = wanted(&stores);
        let mut removed = 0;
        for (store, number) in choose(&stores, wanted) {
            let going: BTreeSet<_> = store.candidates[..number].iter().map(|snapshot| &snapshot.id).collect();
            // Since they were looked for, somebody may have come to need one. Nobody else's newer ones go in their stead.
            let outcome = store.workspace.remove_free(|given| {
                let may = given.may_give_way().into_iter().map(|at| &given.snapshots[at]);
                may.filter(|snapshot| going.contains(&snapshot.id)).collect()
            });
            if let Ok(Some(count)) = outcome {
                removed += count;
                let _ = store.workspace.reclaim_store(&store.name);
            }
        }
        Ok(removed)
    }

    /// What of this workspace may go for want of room: of the stores of these providers that say what it holds.
    fn may_go(&self, known: &BTreeSet<ProviderName>) -> Result<Vec<Store<'_>>> {
        let may: Vec<SnapshotRecord> = self.with_given(|given| {
            given.may_give_way().into_iter().map(|at| given.snapshots[at].clone()).collect::<Vec<_>>()
        })?;
        let of = |name: &ProviderName| {
            let candidates: Vec<_> = may.iter().filter(|snapshot| snapshot.provider == *name).cloned().collect();
            let held = self.frees(&candidates.iter().collect::<Vec<_>>())?;
            Some(Store { workspace: self, name: name.clone(), candidates, held })
        };
        Ok(known.iter().filter_map(of).collect())
    }
}

/// How many of the oldest of each store go, for `wanted` bytes to have gone. What is hardly noticed stays: no small workspace is emptied for a
/// large one.
fn choose<'s, 'w>(stores: &'s [Store<'w>], wanted: u64) -> Vec<(&'s Store<'w>, usize)> {
    let mut oldest: Vec<_> = stores
        .iter()
        .enumerate()
        .flat_map(|(at, store)| store.candidates.iter().map(move |snapshot| (snapshot.time, at, snapshot.seq)))
        .collect();
    oldest.sort_unstable();
    let of = |number: usize, at: usize| oldest[..number].iter().filter(|one| one.1 == at).count();
    // Most steps of the search change nothing about most stores.
    let mut asked: BTreeMap<(usize, usize), Option<u64>> = BTreeMap::new();
    let mut held = |number: usize, at: usize| {
        let (number, store) = (of(number, at), &stores[at]);
        *asked
            .entry((at, number))
            .or_insert_with(|| store.workspace.frees(&store.candidates[..number].iter().collect::<Vec<_>>()))
    };
    // Who does not say it any more has nothing taken.
    let number = fewest(oldest.len(), wanted, |number| (0..stores.len()).map(|at| held(number, at)).sum()).unwrap_or(0);
    let mut parts: Vec<(u64, usize)> = (0..stores.len()).map(|at| (held(number, at).unwrap_or(0), at)).collect();
    parts.sort_unstable();
    let mut spared = 0;
    parts.retain(|(bytes, _)| {
        spared += bytes;
        spared > wanted / NOTICED
    });
    parts.into_iter().map(|(_, at)| (&stores[at], of(number, at))).collect()
}
