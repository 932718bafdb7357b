//! What a restore in a branch that reads in another workspace cannot put back, since it was changed there.

use std::collections::{BTreeSet, HashSet};

use ah_plugin_api::{RelPath, Result, Snapshot};

use super::plan::Plan;
use super::scope::Scope;
use crate::branch;
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// So many are named.
const NAMED: usize = 5;

/// What is left to do in a branch whose workspace is gone.
pub(super) const COPY_OUT: &str = "the workspace that this branch reads in was deleted or replaced: copy out of the branch what is needed, as long as it is mounted";

impl Workspace {
    /// The paths that were changed in the workspace that this one reads in, as far as it was told, and that the plan neither puts back nor names.
    pub(super) fn changed_below(&self, scope: &Scope, safety: &Snapshot, plan: &Plan) -> Result<Vec<RelPath>> {
        let mut paths: BTreeSet<RelPath> = safety.changed_below.iter().flat_map(|below| below.paths.clone()).collect();
        for event in self.state()?.events {
            if let EventBody::ChangedBelow { files } = event.body {
                paths.extend(files.paths);
            }
        }
        let listed = plan.left.iter().chain(&plan.conflicts).chain(&plan.beyond).map(|left| &left.path);
        let known: HashSet<&RelPath> = plan.steps().map(|step| &step.path).chain(listed).collect();
        Ok(paths.into_iter().filter(|path| scope.holds(path) && !known.contains(path)).collect())
    }

    /// Whether the workspace that this one grew from is not where it was.
    pub(super) fn below_is_gone(&self) -> bool {
        let own = branch::of_workspace(self.engine.home(), self.record.branch.as_ref()).ok().flatten();
        let origin = own.and_then(|branch| self.engine.workspace_by_id(&branch.origin).ok().flatten());
        origin.is_some_and(|origin| origin.open_dir().is_err())
    }
}

/// The same for a person; none if there are none.
pub(super) fn below_note(paths: &[RelPath], gone: bool) -> Option<String> {
    let named: Vec<String> = paths.iter().take(NAMED).map(ToString::to_string).collect();
    if paths.is_empty() {
        return None;
    }
    let what = text::count(paths.len(), "path", "paths");
    let more = paths.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let end = if gone { format!("; {COPY_OUT}") } else { String::new() };
    let named = named.join(", ");
    Some(format!(
        "what was changed in the workspace that this branch reads in is not put back: {what}: {named}{more}{end}"
    ))
}
