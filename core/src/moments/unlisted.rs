//! Events that could not be put on a timeline when they happened, as somebody held it for longer than an agent may be held up: one small file for each,
//! in the folder `pending/` of the workspace, beside the moments that wait for their snapshots.
//!
//! Whoever writes to any timeline of the workspace puts these there first, under the same lock (`timeline/log`), then the moments among them into `pending/`
//! as any other, and takes the file away: so each has the place that it would have had, before all that came since, and its own time. Killed in
//! between, the next one finds the line, and goes on behind it.
//!
//! Names are `unlisted.<after>.<nth>.<seconds>.<nanoseconds>.<id>.<session>`, in their order: the last event of the workspace by then, as far as was known,
//! which one it is of those that wait, and when it happened. The clock, which may be set meanwhile, says nothing of their order but of those that came at once.
//! Older ones lack `<nth>`, and come first.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Error, ErrorKind, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::background;
use crate::fsio;
use crate::ids::SessionName;
use crate::moments::pending::{self, Pending};
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// An event that is not on its timeline yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// Of a moment, its own.
    pub(crate) id: SnapshotId,
    pub(crate) session: SessionName,
    /// When it happened.
    pub(crate) time: Timestamp,
    /// Its line, if it is there, comes after this one.
    pub(crate) after: u64,
    /// One more than those had that waited by then.
    nth: u64,
}

/// What was left of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) event: EventBody,
    /// Of a moment: what the worker has to know of it.
    #[serde(default)]
    pub(crate) waits: Option<Pending>,
}

impl Unlisted {
    pub(super) fn name(&self) -> String {
        let Timestamp { secs, nanos } = self.time;
        let Self { id, session, after, nth, .. } = self;
        format!("unlisted.{after:020}.{nth:020}.{:020}.{nanos:09}.{id}.{session}", secs.max(0))
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let (after, rest) = name.strip_prefix("unlisted.")?.split_once('.')?;
        let of = |nth: &str, rest: &str| {
            let mut parts = rest.splitn(4, '.');
            let mut next = || parts.next();
            let (secs, nanos) = (next()?.parse().ok()?, next()?.parse().ok()?);
            let (id, session) = (SnapshotId::new(next()?).ok()?, SessionName::new(next()?).ok()?);
            let (after, nth) = (after.parse().ok()?, nth.parse().ok()?);
            Some(Self { id, session, time: Timestamp { secs, nanos }, after, nth })
        };
        rest.split_once('.').and_then(|(nth, rest)| of(nth, rest)).or_else(|| of("0", rest))
    }

    fn file(&self, workspace: &Path) -> PathBuf {
        pending::folder(workspace).join(self.name())
    }

    /// What was left of it; none if it is on the timeline by now. Of what cannot be read, that is what the timeline says.
    pub(crate) fn read(&self, workspace: &Path) -> Result<Option<Left>> {
        let Some(bytes) = fsio::read(&self.file(workspace))? else { return Ok(None) };
        let unknown = |_| {
            let (agent, event) = ("ah".to_owned(), "an event".to_owned());
            let reason = "somebody held the timeline, and what was left of it beside cannot be read".to_owned();
            Left { event: EventBody::HookFailed { agent, event, reason }, waits: None }
        };
        Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(unknown)))
    }

    /// It is on the timeline.
    pub(crate) fn listed(&self, workspace: &Path) -> Result<()> {
        fsio::remove_file(&self.file(workspace))
    }
}

/// All of them in a workspace, in their order.
pub(crate) fn all(workspace: &Path) -> Result<Vec<Unlisted>> {
    let names = fsio::names(&pending::folder(workspace))?;
    let mut all: Vec<Unlisted> = names.iter().filter_map(|name| Unlisted::parse(name)).collect();
    all.sort_by_key(|unlisted| (unlisted.after, unlisted.nth, unlisted.time));
    Ok(all)
}

impl Workspace {
    /// Leaves an event to whoever comes to the timeline next, and has somebody come.
    pub(crate) fn leave_unlisted(
        &self,
        id: SnapshotId,
        session: &SessionName,
        time: Timestamp,
        left: &Left,
    ) -> Result<()> {
        let folder = self.folder();
        // In this order: where others are listed meanwhile, the next one has a later `after`, whichever it is of those that wait then.
        let after = self.log().last_seq();
        let nth = all(&folder)?.iter().map(|unlisted| unlisted.nth).max().unwrap_or(0).saturating_add(1);
        let unlisted = Unlisted { id, session: session.clone(), time, after, nth };
        fsio::make_dir(&pending::folder(&folder))?;
        let bytes = serde_json::to_vec(left)
            .map_err(|e| Error::new(ErrorKind::Internal, "an event cannot be left").with_cause(&e))?;
        fsio::replace(&unlisted.file(&folder), &bytes, Durability::Instant)?;
        self.settle();
        background::capture(self);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Unlisted;
    use crate::ids::SessionName;
    use ah_plugin_api::{SnapshotId, Timestamp};

    #[test]
    fn names_are_read_back_and_are_in_order() {
        let of = |after, nth, secs, nanos| Unlisted {
            id: SnapshotId::new("kkkkmmmmpppp").unwrap(),
            session: SessionName::new("claude-2026.11-1").unwrap(),
            time: Timestamp { secs, nanos },
            after,
            nth,
        };
        let ordered = [of(9, 8, 7, 5), of(10, 2, 3, 20), of(10, 2, 3, 100), of(10, 10, 1, 1), of(10, 10, 20, 1)];
        for unlisted in &ordered {
            assert_eq!(Unlisted::parse(&unlisted.name()).as_ref(), Some(unlisted));
        }
        assert!(ordered.map(|unlisted| unlisted.name()).is_sorted());
        let older = Unlisted::parse("unlisted.10.3.20.kkkkmmmmpppp.claude-2026.11-1").unwrap();
        assert_eq!(older, of(10, 0, 3, 20));
        for other in
            ["", "unlisted.", "unlisted.1.2.3", "unlisted.1.2.3.4", "1.kkkkmmmmpppp.main", ".unlisted.1.tmp-5-0"]
        {
            assert_eq!(Unlisted::parse(other), None);
        }
    }
}
