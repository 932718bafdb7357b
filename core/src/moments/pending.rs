//! Moments that wait for their snapshot: one small file for each, in the workspace's folder `pending/`.
//!
//! Whoever adds a moment leaves it here and starts a worker (`capture`); the worker takes it away when the timeline says what became of it.
//! A worker that was killed leaves its moments to the next one. Names are `<seq>.<moment>.<session>`, so that a look at the folder tells
//! whether a session waits. Those that are not on the timeline yet are beside them (`unlisted`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::agent::Late;
use crate::fsio;
use crate::ids::SessionName;
use crate::moments::MomentKind;
use crate::moments::unlisted::Unlisted;
use crate::workspace::Workspace;

/// What the worker has to know of a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(super) kind: MomentKind,
    /// How many of the session's tools had begun by then.
    pub(super) begun: u64,
    /// How often files had been put back by then.
    #[serde(default)]
    pub(super) put_back: u64,
    /// The run of the machine.
    #[serde(default)]
    pub(super) boot: String,
    /// Why no snapshot can be exact: what else ran by then.
    #[serde(default)]
    pub(super) beside: Option<String>,
    /// Of one that was left beside its timeline: how long the machine had run by then, in seconds.
    #[serde(default)]
    pub(super) unlisted: Option<i64>,
    /// Its place in the transcript, to be looked for again.
    #[serde(default)]
    pub(super) late: Option<Late>,
    /// Prompts right before it that have its session's files as they were before.
    #[serde(default)]
    pub(super) follows: Vec<SnapshotId>,
}

impl Pending {
    /// With the time that it bears on the timeline.
    pub(super) fn since(mut self, time: Timestamp) -> Self {
        if let Some(late) = &mut self.late {
            late.time = time;
        }
        self
    }
}

/// After so long the worker has failed, and will again.
const STALE: Duration = Duration::from_secs(10);

/// A moment that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) seq: u64,
    pub(crate) moment: SnapshotId,
    pub(crate) session: SessionName,
}

/// One that may not be on the timeline yet.
pub(super) struct There {
    pub(super) moment: SnapshotId,
    pub(super) session: SessionName,
    name: String,
}

impl Waiting {
    fn name(&self) -> String {
        format!("{}.{}.{}", self.seq, self.moment, self.session)
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '.');
        let (seq, moment, session) = (parts.next()?, parts.next()?, parts.next()?);
        let (moment, session) = (SnapshotId::new(moment).ok()?, SessionName::new(session).ok()?);
        Some(Self { seq: seq.parse().ok()?, moment, session })
    }
}

/// The folder in that of a workspace.
pub(super) fn folder(workspace: &Path) -> PathBuf {
    workspace.join("pending")
}

/// Leaves a moment of the workspace with that folder for the worker.
pub(crate) fn add(workspace: &Path, waiting: &Waiting, pending: &Pending) -> Result<()> {
    let folder = folder(workspace);
    fsio::make_dir(&folder)?;
    let bytes = serde_json::to_vec(pending)
        .map_err(|e| Error::new(ErrorKind::Internal, "a moment that waits cannot be written").with_cause(&e))?;
    fsio::replace(&folder.join(waiting.name()), &bytes, Durability::Instant)
}

/// The moments that wait, oldest first. Others' temporary files are none.
pub(super) fn all(workspace: &Workspace) -> Result<Vec<Waiting>> {
    let mut all: Vec<Waiting> =
        fsio::names(&folder(&workspace.folder()))?.iter().filter_map(|name| Waiting::parse(name)).collect();
    all.sort_by_key(|waiting| waiting.seq);
    Ok(all)
}

/// The same with those that are not on the timeline yet, in no order.
pub(super) fn all_there(workspace: &Workspace) -> Result<Vec<There>> {
    let there = |name: String| {
        let listed = Waiting::parse(&name).map(|waiting| (waiting.moment, waiting.session));
        let (moment, session) =
            listed.or_else(|| Unlisted::parse(&name).map(|unlisted| (unlisted.id, unlisted.session)))?;
        Some(There { moment, session, name })
    };
    // In one look: one that comes on the timeline meanwhile goes under the one name when it is there under the other.
    Ok(fsio::names(&folder(&workspace.folder()))?.into_iter().filter_map(there).collect())
}

/// Whether a moment has waited for longer than anybody should; never if the clock says otherwise.
pub(super) fn is_stale(workspace: &Workspace, there: &There) -> bool {
    let since = std::fs::metadata(folder(&workspace.folder()).join(&there.name)).and_then(|at| at.modified());
    since.is_ok_and(|since| since.elapsed().is_ok_and(|age| age > STALE))
}

/// What was left of a moment; none if it is settled by now. What cannot be read counts as overtaken.
pub(super) fn read(workspace: &Workspace, waiting: &Waiting) -> Result<Option<Pending>> {
    let Some(bytes) = fsio::read(&folder(&workspace.folder()).join(waiting.name()))? else { return Ok(None) };
    let unknown = Pending {
        kind: MomentKind::Unknown,
        begun: u64::MAX,
        put_back: u64::MAX,
        boot: String::new(),
        beside: None,
        unlisted: None,
        late: None,
        follows: Vec::new(),
    };
    Ok(Some(serde_json::from_slice(&bytes).unwrap_or(unknown)))
}

/// A moment waits no longer.
pub(super) fn settled(workspace: &Workspace, waiting: &Waiting) -> Result<()> {
    fsio::remove_file(&folder(&workspace.folder()).join(waiting.name()))
}

#[cfg(test)]
mod tests {
    use super::Waiting;
    use crate::ids::SessionName;
    use ah_plugin_api::SnapshotId;

    #[test]
    fn names_are_read_back() {
        let session = SessionName::new("claude-2026.11-1").unwrap();
        let waiting = Waiting { seq: 7, moment: SnapshotId::new("kkkkmmmmpppp").unwrap(), session };
        assert_eq!(Waiting::parse(&waiting.name()), Some(waiting));
        for odd in [".7.kkkkmmmmpppp.main.tmp-1.2-0", "7", "x.kkkk.main", "7.kkkkmmmmpppp", "7..main", "hurry"] {
            assert_eq!(Waiting::parse(odd), None, "{odd}");
        }
    }
}
