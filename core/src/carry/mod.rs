//! Taking along into a branch what work needs and no snapshot holds: `node_modules`, `.venv`, `target`.
//!
//! `find.rs` says which ignored paths of the present workspace the branch lacks, `copy.rs` brings them, `times.rs` then makes the
//! times of sources fit the build output that came along. What is carried is the present state, also into a branch from the past: it
//! is output and downloads, which the next build or install brings up to date.

mod copy;
mod find;
#[cfg(test)]
mod tests;
mod times;

use ah_plugin_api::{DiffRequest, Dir, OmitReason, RelPath, Result, Side};
use serde::{Deserialize, Serialize};

use crate::record::{OmittedRecord, SnapshotRecord};
use crate::text::{self, text_enum};
use crate::workspace::{Served, Workspace};

text_enum! {
    /// Whether ignored files come along.
    pub enum Carry {
        /// By reflink, else copied up to a limit, else listed.
        Auto = "auto",
        /// Not at all.
        None = "none",
    }
}

/// What is to be carried.
#[derive(Debug, Clone)]
pub struct CarryOptions {
    /// Copy at most so many bytes where reflinks cannot be had.
    pub limit: u64,
}

/// What came along.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarryReport {
    /// Topmost paths that came along.
    #[serde(with = "text::rels")]
    pub carried: Vec<RelPath>,
    /// Paths that did not, and why.
    pub left: Vec<OmittedRecord>,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes shared by reflink.
    pub shared: u64,
}

impl CarryReport {
    fn leave(&mut self, path: &RelPath, reason: OmitReason, detail: impl Into<String>) {
        self.left.push(OmittedRecord { path: path.clone(), reason, detail: Some(detail.into()) });
    }
}

impl Workspace {
    /// Takes ignored files from `workspace` to `branch`, which was grown from `origin`. Never overwrites anything there; what
    /// is equal to the workspace gets its times if build output came along. None if there was nothing to take.
    ///
    /// # Errors
    /// `Cancelled`, `ResourceExhausted`; what one path's trouble is stands in the report.
    pub(crate) fn bring_along(
        &self,
        served: &Served,
        origin: &SnapshotRecord,
        workspace: &Dir,
        branch: &Dir,
        options: &CarryOptions,
    ) -> Result<Option<CarryReport>> {
        let (cx, policy) = (self.context(), self.policy()?);
        let missing = find::missing(workspace, branch, &policy, &cx)?;
        if missing.is_empty() {
            return Ok(None);
        }
        let mut report = CarryReport::default();
        copy::copy(workspace, branch, &missing, options.limit, &policy.own_state, &mut report, &cx)?;
        if !report.carried.is_empty() {
            let request = DiffRequest {
                from: Side::Snapshot(origin.reference.clone()),
                to: Side::Workspace,
                paths: Vec::new(),
                times: true,
                policy,
            };
            let changes = self.changes(served, &request)?;
            times::fit(workspace, branch, &changes.changes, self.engine.settings().clock.now(), &cx)?;
        }
        Ok(Some(report))
    }
}
