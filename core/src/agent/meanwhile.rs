//! What a person types while the agent is at work, which Claude Code reads between two of its tools, and calls no hook for. It is seen in what the
//! transcript has more than at the call before, which is read at each call anyway; its moment comes before that of the call.
//!
//! In the session's folder, `meanwhile` is the last one that has its moment: of two calls at once each may see the same.

use std::time::Duration;

use ah_agents::transcript::Prompt;
use ah_plugin_api::{Durability, SnapshotId};

use crate::agent::hook::Call;
use crate::fsio;
use crate::lock::Lock;
use crate::moments::{MomentKind, NewMoment, TranscriptPosition};
use crate::session;

/// So long another call is waited for that gives them their moments: the moment of this call is worth more.
const WAIT: Duration = Duration::from_millis(100);

impl Call<'_> {
    /// Gives these their moments; those that it gave. None: it could not, and the next call is to see them.
    pub(super) fn meanwhile(&self, typed: Vec<Prompt>) -> Option<Vec<SnapshotId>> {
        let mut given = Vec::new();
        if typed.is_empty() {
            return Some(given);
        }
        let folder = session::folder(&self.workspace.folder(), self.session);
        let settings = self.workspace.engine.settings();
        let patience = settings.patience_left().min(WAIT);
        let _lock = Lock::take(&folder.join("meanwhile.lock"), true, patience, &*settings.observer).ok()?;
        let file = folder.join("meanwhile");
        let bytes = fsio::read(&file).ok().flatten();
        let last: Option<TranscriptPosition> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_new = |prompt: &Prompt| {
            let same = last.as_ref().filter(|last| last.file == prompt.before.file);
            same.is_none_or(|last| last.offset < prompt.before.offset)
        };
        let new: Vec<NewMoment> = typed.into_iter().filter(is_new).map(moment_of).collect();
        if let Some(last) = new.last().and_then(|last| last.transcript.clone()) {
            given = self.workspace.add_moments_without_snapshot(self.session, new).ok()?;
            let _ = fsio::replace(&file, &serde_json::to_vec(&last).unwrap_or_default(), Durability::Instant);
        }
        Some(given)
    }
}

fn moment_of(prompt: Prompt) -> NewMoment {
    NewMoment {
        prompt: Some(prompt.text),
        transcript: Some(prompt.before.into()),
        meanwhile: true,
        ..NewMoment::new(MomentKind::Prompt)
    }
}
