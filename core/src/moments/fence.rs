//! The fence: before an agent goes on, the snapshots of what it did must be taken, or they would show what it does next.
//!
//! A worker that waits for more moments to come is hurried on. One that was killed is replaced. What takes longer than the agent may be
//! held up is not waited for: the snapshot will say of itself that it is inexact.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ah_plugin_api::{Durability, Error, Result, SnapshotId};

use crate::background;
use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Lock;
use crate::moments::pending::{self, There};
use crate::session;
use crate::workspace::Workspace;

/// An agent is held up no longer than this.
const LIMIT: Duration = Duration::from_secs(2);
/// So long before the end of a call (`Settings::deadline`) it is given up, as what the call is for is still to be written down.
const REST: Duration = Duration::from_millis(250);
/// So long before that end a timeline that somebody holds is waited for no more, and the moment left beside it: another call for the same event waits for this one.
pub(super) const LEAVE: Duration = Duration::from_millis(125);
/// A worker is at work so soon after it was started; if none is, it was killed.
const START: Duration = Duration::from_millis(250);

impl Workspace {
    /// Waits until no moment of that session waits for its snapshot, two seconds at most; false if one still does.
    ///
    /// # Errors
    /// If it cannot be seen what waits.
    pub fn fence(&self, session: &SessionName) -> Result<bool> {
        self.fence_for(|waiting| waiting.session == *session)
    }

    /// The same for the moments of all sessions that wait by now, before a tool may write. Not for those that come meanwhile: other sessions go
    /// on, and would hold this one up for as long as they do.
    ///
    /// # Errors
    /// If it cannot be seen what waits.
    pub(crate) fn fence_those_there(&self) -> Result<bool> {
        let there: BTreeSet<SnapshotId> = pending::all_there(self)?.into_iter().map(|waiting| waiting.moment).collect();
        self.fence_for(|waiting| there.contains(&waiting.moment))
    }

    /// The same for all sessions, before files are put back, or a moment is gone back to. What still waits afterwards says so of its
    /// snapshot.
    pub(crate) fn fence_all(&self) -> Result<()> {
        // Where nobody could be hurried on, whoever adds moments takes their snapshots.
        if self.engine.settings().capturer.is_some() {
            self.fence_for(|_| true)?;
        }
        Ok(())
    }

    fn fence_for(&self, of: impl Fn(&There) -> bool) -> Result<bool> {
        let since = Instant::now();
        let left = self.engine.settings().deadline.map(|end| end.saturating_duration_since(since).saturating_sub(REST));
        let limit = left.map_or(LIMIT, |left| left.min(LIMIT));
        let all: Vec<There> = pending::all_there(self)?.into_iter().filter(&of).collect();
        if all.is_empty() {
            return Ok(true);
        }
        // Something keeps failing for these: nobody is held up for it each time.
        let (stale, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(|waiting| pending::is_stale(self, waiting));
        if !stale.is_empty() {
            background::capture(self);
        }
        if waiting.is_empty() {
            return Ok(false);
        }
        let counts = |waiting: &There| of(waiting) && !stale.iter().any(|stale| stale.moment == waiting.moment);
        let waits = || Ok::<_, Error>(pending::all_there(self)?.into_iter().filter(counts).collect::<Vec<_>>());
        for waiting in &waiting {
            // If that cannot be said the worker only takes a little longer.
            let _ = fsio::replace(&hurry(self, &waiting.session), b"", Durability::Instant);
        }
        let mut pause = Duration::from_millis(1);
        let mut last_start = since;
        loop {
            std::thread::sleep(pause);
            if waits()?.is_empty() {
                return Ok(stale.is_empty());
            }
            if since.elapsed() >= limit {
                return Ok(false);
            }
            if last_start.elapsed() >= START && matches!(Lock::try_take(&self.capture_lock(), false), Ok(Some(_))) {
                background::capture(self);
                last_start = Instant::now();
            }
            pause = (pause * 2).min(Duration::from_millis(4));
        }
    }

    /// Held by the worker that takes the snapshots of moments.
    pub(super) fn capture_lock(&self) -> PathBuf {
        self.folder().join("capture.lock")
    }
}

/// There while an agent waits.
fn hurry(workspace: &Workspace, session: &SessionName) -> PathBuf {
    session::folder(&workspace.folder(), session).join("hurry")
}

/// Whether an agent waits.
pub(super) fn is_hurried(workspace: &Workspace, session: &SessionName) -> bool {
    hurry(workspace, session).exists()
}

/// What was waited for is done.
pub(super) fn calm(workspace: &Workspace, session: &SessionName) {
    let _ = fsio::remove_file(&hurry(workspace, session));
}
