//! Looking at what there is: `snapshots`, `show`.

use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotRef};
use serde::Serialize;

use crate::ids::{BranchId, LeaseId, SessionName};
use crate::record::{OmittedRecord, SnapshotKind, SnapshotRecord};
use crate::workspace::Workspace;

/// Which snapshots are asked for.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Those of one session; none: as [`crate::Settings::session`] says, else of all.
    pub session: Option<SessionName>,
    /// Only those of these kinds; empty: all.
    pub kinds: Vec<SnapshotKind>,
    /// At most so many, the latest.
    pub limit: Option<usize>,
}

/// Everything that is known of a snapshot.
#[derive(Debug, Clone, Serialize)]
pub struct SnapshotDetails {
    /// What the timeline knows.
    #[serde(flatten)]
    pub record: SnapshotRecord,
    /// What it survives by now.
    pub durability_now: Durability,
    /// What was left out, and why.
    pub omitted: Vec<OmittedRecord>,
    /// Bytes that removing it alone would free, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_bytes: Option<u64>,
    /// Leases that show it.
    pub leases: Vec<LeaseId>,
    /// Branches that grew from it.
    pub branches: Vec<BranchId>,
}

impl Workspace {
    /// The snapshots, oldest first.
    ///
    /// # Errors
    /// `NotFound` for a session that is not there; if a timeline cannot be read at all. Damaged lines are a notice.
    pub fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRecord>> {
        let session = self.reading_session(filter.session.as_ref())?;
        let mut snapshots = self.state()?.snapshots;
        snapshots.retain(|snapshot| {
            session.as_ref().is_none_or(|session| *session == snapshot.session)
                && (filter.kinds.is_empty() || filter.kinds.contains(&snapshot.kind))
        });
        if let Some(limit) = filter.limit {
            snapshots.drain(..snapshots.len().saturating_sub(limit));
        }
        Ok(snapshots)
    }

    /// What is said where something of a snapshot was not found: if its provider does not have the snapshot itself any more, that, and what to do.
    pub(crate) fn explain_lost(&self, snapshot: &SnapshotRecord, error: Error) -> Error {
        let lost = || {
            let served = self.serve(&snapshot.provider)?;
            let request = SnapshotRef { snapshot: snapshot.reference.clone() };
            served.provider.stat(&served.place(), &request, &self.context())
        };
        if error.kind == ErrorKind::NotFound && lost().is_err_and(|error| error.kind == ErrorKind::NotFound) {
            return snapshot.lost();
        }
        error
    }

    /// Everything about one snapshot.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; the provider's.
    pub fn show(&self, reference: &str) -> Result<SnapshotDetails> {
        let record = self.resolve_in(&self.state()?, reference)?;
        let served = self.serve(&record.provider)?;
        let request = SnapshotRef { snapshot: record.reference.clone() };
        let stat = served.provider.stat(&served.place(), &request, &self.context());
        let snapshot = stat.map_err(|error| self.explain_lost(&record, error))?;
        let exclusive_bytes = self.frees(&[&record]);
        let leases = self.leases()?.into_iter().filter(|lease| lease.snapshot == record.id);
        let branches = self.branches()?.into_iter().filter(|branch| branch.snapshot == record.id);
        Ok(SnapshotDetails {
            durability_now: snapshot.durability,
            omitted: snapshot.omitted.into_iter().map(OmittedRecord::from).collect(),
            exclusive_bytes,
            leases: leases.map(|lease| lease.id).collect(),
            branches: branches.map(|branch| branch.id).collect(),
            record,
        })
    }
}
