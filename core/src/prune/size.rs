//! `max-size`: how much is stored, and the oldest that go until it is little enough.

use std::collections::BTreeMap;

use ah_plugin_api::{Capability, Error, ErrorKind, Result, UsageRequest};

use crate::ids::SessionName;
use crate::prune::plan::Given;
use crate::prune::{Policy, PruneVerdict};
use crate::record::SnapshotRecord;
use crate::workspace::{Served, Workspace};

/// So many go at once: what they share is seen when it is given back.
pub(super) const BATCH: usize = 64;

/// So many snapshots are asked for their size to explain what a removal frees: a provider may have to look at all it has for each.
const EXPLAINED: usize = 32;

impl Workspace {
    /// Marks as going what the size rules of a policy take next, beside what is gone or going.
    ///
    /// # Errors
    /// `Unsupported` if there is a rule and a provider does not say how much it stores.
    pub(super) fn take_too_much(
        &self,
        policy: &Policy,
        given: &Given<'_>,
        verdicts: &mut [PruneVerdict],
        gone: &[bool],
    ) -> Result<()> {
        if !policy.limits_size() {
            return Ok(());
        }
        let nobody_knows = || {
            Error::new(ErrorKind::Unsupported, "max-size needs a provider that says how much it stores")
                .with_hint("use keep-last or keep-within")
        };
        let stored = self.stored_bytes().ok_or_else(nobody_knows)?;
        if let Some(max) = policy.max_size_of_session {
            let mut sessions: BTreeMap<&SessionName, u64> = BTreeMap::new();
            let sizes: Vec<u64> = given
                .snapshots
                .iter()
                .zip(&*verdicts)
                .map(|(snapshot, verdict)| if verdict.stays { self.own_bytes(snapshot) } else { 0 })
                .collect();
            for (snapshot, size) in given.snapshots.iter().zip(&sizes) {
                *sessions.entry(&snapshot.session).or_default() += size;
            }
            for at in given.may_give_way() {
                let total = sessions.entry(&given.snapshots[at].session).or_default();
                if *total > max && verdicts[at].stays {
                    *total -= sizes[at];
                    take(&mut verdicts[at], "max-size of its session");
                }
            }
        }
        let Some(max) = policy.max_size else { return Ok(()) };
        let going = given.snapshots.iter().zip(&*verdicts).zip(gone);
        let going: u64 = going
            .filter(|((_, verdict), gone)| !verdict.stays && !**gone)
            .map(|((snapshot, _), _)| self.own_bytes(snapshot))
            .sum();
        let mut over = stored.saturating_sub(going).saturating_sub(max);
        for at in given.may_give_way().into_iter().filter(|at| verdicts[*at].stays).take(BATCH).collect::<Vec<_>>() {
            if over == 0 {
                break;
            }
            // At least one goes.
            over = over.saturating_sub(self.own_bytes(&given.snapshots[at]).max(1));
            take(&mut verdicts[at], "max-size");
        }
        Ok(())
    }

    /// Bytes that go with what does not stay, at least; none if nothing goes, or a provider does not say.
    pub(super) fn frees(&self, verdicts: &[PruneVerdict]) -> Option<u64> {
        let going = verdicts.iter().filter(|verdict| !verdict.stays).take(EXPLAINED);
        let sizes: Option<Vec<u64>> = going.map(|verdict| self.exclusive(&verdict.snapshot)).collect();
        sizes.filter(|sizes| !sizes.is_empty()).map(|sizes| sizes.into_iter().sum())
    }

    /// What removing a snapshot alone would free; 0 if nobody knows.
    pub(super) fn own_bytes(&self, snapshot: &SnapshotRecord) -> u64 {
        self.exclusive(snapshot).unwrap_or(0)
    }

    fn exclusive(&self, snapshot: &SnapshotRecord) -> Option<u64> {
        let served = self.serve(&snapshot.provider).ok()?;
        let request = UsageRequest { snapshot: Some(snapshot.reference.clone()) };
        served.provider.usage(&served.place(), &request, &self.context()).ok()?.exclusive
    }

    /// Bytes in all stores of this workspace; none if a provider that captures it does not say. One that grows branches alone holds nothing that rules
    /// about sizes could take.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        let mut served: Vec<Served> =
            self.stores().ok()?.iter().map(|name| self.serve(name)).collect::<Result<_>>().ok()?;
        served.retain(|served| served.can(Capability::Usage) || self.can_capture(served).is_ok());
        served.iter().map(|served| self.stored_in(served)).sum()
    }

    /// Bytes in the stores of this workspace whose providers say.
    pub(super) fn known_bytes(&self) -> Result<u64> {
        let served = self.stores()?.into_iter().filter_map(|name| self.serve(&name).ok());
        Ok(served.filter_map(|served| self.stored_in(&served)).sum())
    }

    fn stored_in(&self, served: &Served) -> Option<u64> {
        if !served.can(Capability::Usage) {
            return None;
        }
        let request = UsageRequest { snapshot: None };
        Some(served.provider.usage(&served.place(), &request, &self.context()).ok()?.total)
    }
}

fn take(verdict: &mut PruneVerdict, why: &str) {
    verdict.stays = false;
    why.clone_into(&mut verdict.reason);
}
