//! `max-size`: how much is stored, and the oldest that go until it is little enough.
//!
//! What snapshots hold is asked of their provider for all of them together: what two of them share is nobody's alone. So what goes is known
//! before anything does.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{Capability, Error, ErrorKind, ProviderName, Reference, Result, UsageRequest};

use crate::ids::SessionName;
use crate::prune::plan::Given;
use crate::prune::{Policy, PruneVerdict};
use crate::record::SnapshotRecord;
use crate::workspace::{Served, Workspace};

impl Workspace {
    /// Marks as going what the size rules of a policy take beside what goes already.
    ///
    /// # Errors
    /// If there is a rule: `Unsupported` where a provider does not say how much it stores, `Unavailable` where that cannot be told at present.
    pub(super) fn take_too_much(
        &self,
        policy: &Policy,
        given: &Given<'_>,
        verdicts: &mut [PruneVerdict],
    ) -> Result<()> {
        let nobody_knows = || self.nobody_knows();
        let may_give_way = given.may_give_way();
        let mut take = |chosen: &BTreeSet<usize>, max: Max, why: &str| -> Result<()> {
            let going: Vec<&SnapshotRecord> = given
                .snapshots
                .iter()
                .zip(&*verdicts)
                .filter(|(_, it)| !it.stays)
                .map(|(snapshot, _)| snapshot)
                .collect();
            let with = |more: &mut dyn Iterator<Item = usize>| {
                let all: Vec<_> = going.iter().copied().chain(more.map(|at| &given.snapshots[at])).collect();
                self.frees(&all)
            };
            let may: Vec<usize> =
                may_give_way.iter().copied().filter(|at| verdicts[*at].stays && chosen.contains(at)).collect();
            // Before the whole: of a store that is asked for its snapshots, that is known then.
            let held = with(&mut chosen.iter().copied());
            // What is to have gone then, with what goes already.
            let wanted = match max {
                Max::Stored(max) => self.stored_bytes().map(|stored| stored.saturating_sub(max)),
                Max::Held(max) => held.map(|held| held.saturating_sub(max)),
            };
            let wanted = wanted.ok_or_else(nobody_knows)?;
            let number = fewest(may.len(), wanted, |number| with(&mut may[..number].iter().copied()));
            for at in &may[..number.ok_or_else(nobody_knows)?] {
                verdicts[*at].stays = false;
                why.clone_into(&mut verdicts[*at].reason);
            }
            Ok(())
        };
        if let Some(max) = policy.max_size_of_session {
            let mut sessions: BTreeMap<&SessionName, BTreeSet<usize>> = BTreeMap::new();
            for (at, snapshot) in given.snapshots.iter().enumerate() {
                sessions.entry(&snapshot.session).or_default().insert(at);
            }
            for own in sessions.values() {
                take(own, Max::Held(max), "max-size of its session")?;
            }
        }
        if let Some(max) = policy.max_size {
            take(&(0..given.snapshots.len()).collect(), Max::Stored(max), "max-size")?;
        }
        Ok(())
    }

    /// Why a size cannot be told.
    fn nobody_knows(&self) -> Error {
        let served = self.stores().unwrap_or_default().into_iter().filter_map(|name| self.serve(&name).ok());
        let silent =
            served.into_iter().find(|served| !served.can(Capability::Usage) && self.can_capture(served).is_ok());
        if silent.is_some() {
            return Error::new(ErrorKind::Unsupported, "max-size needs a provider that says how much it stores")
                .with_hint("use keep-last or keep-within");
        }
        Error::new(
            ErrorKind::Unavailable,
            "how much is stored cannot be told at present: a store cannot be read, or its provider does not answer",
        )
        .with_hint("ah agent fs gc")
    }

    /// Bytes that removing these snapshots of this workspace, and no others, would free; none if a provider does not say.
    pub(crate) fn frees(&self, snapshots: &[&SnapshotRecord]) -> Option<u64> {
        let mut stores: BTreeMap<&ProviderName, Vec<Reference>> = BTreeMap::new();
        for snapshot in snapshots {
            stores.entry(&snapshot.provider).or_default().push(snapshot.reference.clone());
        }
        let freed = stores.into_iter().map(|(name, snapshots)| {
            let served = self.serve(name).ok()?;
            let request = UsageRequest { snapshots };
            served.provider.usage(&served.place(), &request, &self.context()).ok()?.bytes
        });
        freed.sum()
    }

    /// Bytes in all stores of this workspace; none if a provider that captures it does not say. What one does not know at present is not counted.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        let mut served: Vec<Served> =
            self.stores().ok()?.iter().map(|name| self.serve(name)).collect::<Result<_>>().ok()?;
        served.retain(|served| served.can(Capability::Usage) || self.can_capture(served).is_ok());
        served.iter().map(|served| Some(self.stored_in(served)?.unwrap_or(0))).sum()
    }

    /// Bytes that this workspace takes in `AH_HOME`, as far as providers say, and the names of those.
    pub(super) fn stored_at_home(&self) -> Result<(u64, BTreeSet<ProviderName>)> {
        let served = self.stores()?.into_iter().filter_map(|name| self.serve(&name).ok());
        let known = served.filter(Served::keeps_in_store).filter_map(|it| Some((self.stored_in(&it)??, it.name)));
        let (bytes, names): (Vec<u64>, _) = known.unzip();
        Ok((bytes.into_iter().sum(), names))
    }

    /// Bytes in one store, if that is known at present; none if its provider does not say.
    fn stored_in(&self, served: &Served) -> Option<Option<u64>> {
        if !served.can(Capability::Usage) {
            return None;
        }
        Some(served.provider.usage(&served.place(), &UsageRequest::default(), &self.context()).ok()?.bytes)
    }
}

/// What there may be at most, bytes.
#[derive(Clone, Copy)]
enum Max {
    /// In the stores.
    Stored(u64),
    /// By the chosen ones alone.
    Held(u64),
}

/// How many of `all` have to go for `wanted` bytes to have gone: the first so many, and all where that does not do. None if nobody knows what the
/// first so many hold.
pub(super) fn fewest(all: usize, wanted: u64, mut frees: impl FnMut(usize) -> Option<u64>) -> Option<usize> {
    // What goes in any case may do.
    if wanted == 0 || frees(0)? >= wanted {
        return Some(0);
    }
    let (mut too_few, mut enough) = (0, all);
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        if frees(middle)? >= wanted {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    Some(enough)
}

#[cfg(test)]
mod tests {
    use super::fewest;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_many_as_it_takes(sizes in proptest::collection::vec(0u64..5, 0..40), wanted in 0u64..80) {
            let frees = |number: usize| sizes[..number].iter().sum::<u64>();
            let expected = (0..=sizes.len()).find(|number| frees(*number) >= wanted).unwrap_or(sizes.len());
            let mut asked = 0;
            let found = fewest(sizes.len(), wanted, |number| { asked += 1; Some(frees(number)) });
            prop_assert_eq!(found, Some(expected));
            prop_assert!(asked <= 7);
        }
    }

    #[test]
    fn who_does_not_know_says_so() {
        assert_eq!(fewest(3, 1, |number| (number == 0).then_some(0)), None);
        assert_eq!(fewest(0, 1, |_| Some(0)), Some(0));
    }
}
