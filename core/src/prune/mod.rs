//! Retention: removing snapshots by rule. The rules as text are in `policy`, what they keep in `plan`.

mod plan;
mod policy;

use ah_plugin_api::{Capability, Error, ErrorKind, ReclaimRequest, Result, UsageRequest};
use serde::Serialize;

use crate::record::SnapshotRecord;
use crate::state::State;
use crate::workspace::Workspace;

use plan::Protected;
pub(crate) use policy::Policy;

/// What can be said about a prune.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// The policy, `keep-last=50,keep-within=7d`; none: the configured one.
    pub policy: Option<String>,
    /// Say what would be removed, and do nothing.
    pub dry_run: bool,
}

/// What is done with one snapshot.
#[derive(Debug, Clone, Serialize)]
pub struct PruneVerdict {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotRecord,
    /// Whether it stays.
    pub stays: bool,
    /// Why: the rule that keeps it, or that none does.
    pub reason: String,
}

/// What a prune did.
#[derive(Debug, Clone, Serialize)]
pub struct PruneReport {
    /// The policy, written out.
    pub policy: String,
    /// Whether that is only what would be done.
    pub dry_run: bool,
    /// Each snapshot, oldest first.
    pub verdicts: Vec<PruneVerdict>,
    /// How many were (or would be) removed.
    pub removed: u64,
    /// Bytes given back, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Workspace {
    /// Applies a retention policy. Never removes what is pinned, what the last restore's undo needs, nor what a branch or a lease
    /// needs.
    ///
    /// # Errors
    /// `InvalidArgument` for a policy that is not one, or none; the provider's.
    pub fn prune(&self, options: &PruneOptions) -> Result<PruneReport> {
        let config = self.config()?;
        let text = options.policy.as_deref().or(config.prune_policy()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "no retention policy was given")
                .with_hint("ah agent fs prune keep-last=50,keep-within=7d --dry-run")
        })?;
        let policy = Policy::parse(text)?;
        let state = self.state()?;
        let protected = self.protected(&state)?;
        let reasons = plan::plan(&policy, &state.snapshots, &protected, self.engine.settings().clock.now());
        let mut verdicts: Vec<PruneVerdict> = state
            .snapshots
            .into_iter()
            .zip(reasons)
            .map(|(snapshot, reason)| PruneVerdict {
                snapshot,
                stays: reason.is_some(),
                reason: reason.unwrap_or_else(|| "no rule keeps it".to_owned()),
            })
            .collect();
        let before = self.stored_bytes();
        let going: Vec<SnapshotRecord> =
            verdicts.iter().filter(|verdict| !verdict.stays).map(|verdict| verdict.snapshot.clone()).collect();
        if !options.dry_run && !going.is_empty() {
            self.remove_all(&going, "prune")?;
        }
        if let Some(max) = policy.max_size {
            self.shrink(max, options.dry_run, &mut verdicts, &protected)?;
        }
        let removed = verdicts.iter().filter(|verdict| !verdict.stays).count();
        let mut bytes = None;
        if !options.dry_run && removed > 0 {
            self.reclaim_all()?;
            bytes = before.zip(self.stored_bytes()).map(|(before, after)| before.saturating_sub(after));
        }
        Ok(PruneReport {
            policy: policy.to_string(),
            dry_run: options.dry_run,
            verdicts,
            removed: removed as u64,
            bytes,
        })
    }

    /// What stays whatever the policy says.
    fn protected(&self, state: &State) -> Result<Protected> {
        let mut protected = Protected::new();
        for id in self.needed(&state.events)?.into_keys() {
            protected.insert(id, "a view, or a restore that has not come to its end, needs it");
        }
        for branch in self.branches()? {
            protected.insert(branch.snapshot, "a branch grew from it");
        }
        for id in self.restores_need(&state.events)?.into_keys() {
            protected.entry(id).or_insert("undo of the last restore needs it");
        }
        Ok(protected)
    }

    /// Takes the oldest until no more than `max` bytes are stored.
    fn shrink(&self, max: u64, dry_run: bool, verdicts: &mut [PruneVerdict], protected: &Protected) -> Result<()> {
        let Some(mut total) = self.stored_bytes() else {
            return Err(Error::new(ErrorKind::Unsupported, "max-size needs a provider that says how much it stores")
                .with_hint("use keep-last or keep-within"));
        };
        let newest = verdicts.iter().rposition(|verdict| verdict.snapshot.counts());
        while total > max {
            // A batch whose own bytes make up what is too much, at least one; shared bytes are seen when they are given back.
            let (mut over, mut batch) = (total - max, Vec::new());
            for (at, verdict) in verdicts.iter_mut().enumerate() {
                if over == 0
                    || Some(at) == newest
                    || !verdict.stays
                    || !plan::may_give_way(&verdict.snapshot, protected)
                {
                    continue;
                }
                over = over.saturating_sub(self.own_bytes(&verdict.snapshot).max(1));
                verdict.stays = false;
                "max-size".clone_into(&mut verdict.reason);
                batch.push(verdict.snapshot.clone());
                if batch.len() >= 64 {
                    break;
                }
            }
            if batch.is_empty() || dry_run {
                return Ok(());
            }
            self.remove_all(&batch, "prune")?;
            self.reclaim_all()?;
            total = self.stored_bytes().unwrap_or(0);
        }
        Ok(())
    }

    fn own_bytes(&self, snapshot: &SnapshotRecord) -> u64 {
        let ask = || -> Result<Option<u64>> {
            let served = self.serve(&snapshot.provider)?;
            let request = UsageRequest { snapshot: Some(snapshot.reference.clone()) };
            Ok(served.provider.usage(&served.place(), &request, &self.context())?.exclusive)
        };
        ask().ok().flatten().unwrap_or(0)
    }

    /// Bytes in all stores of this workspace; none if a provider does not say.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        let mut total = 0u64;
        for name in self.stores().ok()? {
            let served = self.serve(&name).ok()?;
            if !served.can(Capability::Usage) {
                return None;
            }
            let request = UsageRequest { snapshot: None };
            total += served.provider.usage(&served.place(), &request, &self.context()).ok()?.total;
        }
        Some(total)
    }

    fn reclaim_all(&self) -> Result<()> {
        for name in self.stores()? {
            let served = self.serve(&name)?;
            let mounts = self.mounts_dir()?;
            let place = served.place().with_target(&mounts);
            served.provider.reclaim(&place, &ReclaimRequest::default(), &self.context())?;
        }
        Ok(())
    }
}
