//! What a person types while the agent is at work, which Claude Code reads between two of its tools, and calls no hook for. It is seen in what the
//! transcript has more than at the call before, which is read at each call that makes a moment anyway; its moment comes before that of the call. Who goes back
//! while a tool runs looks, too: what the tool works at may have been typed.
//!
//! In the session's folder, `meanwhile` is the last one that was to have its moment: of two calls at once each may see the same, and one may be killed on the
//! way. Of those behind it nobody has told yet; of the others the timeline says whether anybody has.

use std::time::Duration;

use ah_agents::transcript::Prompt;
use ah_plugin_api::{Durability, SnapshotId};

use crate::fsio;
use crate::ids::SessionName;
use crate::lock::Lock;
use crate::moments::{MomentKind, NewMoment, TranscriptPosition, unlisted};
use crate::session;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

/// So long another call is waited for that gives them their moments: the moment of this call is worth more.
const WAIT: Duration = Duration::from_millis(100);

impl Workspace {
    /// Gives their moments to what was typed since the last calls of the agents that are at work, as far as that can be. Their next calls see it again, since
    /// their tools' moments follow it.
    pub(crate) fn look_for_meanwhile(&self) {
        for record in session::list(&self.folder()).unwrap_or_default() {
            let Some(agent) = record.agent.filter(|_| record.ended.is_none()) else { continue };
            let Ok(name) = agent.name.parse() else { continue };
            if let Some(now) = self.position_now(&record.name, name, agent.transcript.as_deref()) {
                self.meanwhile(&record.name, now.meanwhile);
            }
        }
    }

    /// Gives these their moments; those that it gave. None: it could not, and the next call is to see them.
    pub(super) fn meanwhile(&self, session: &SessionName, typed: Vec<Prompt>) -> Option<Vec<SnapshotId>> {
        if typed.is_empty() {
            return Some(Vec::new());
        }
        let folder = session::folder(&self.folder(), session);
        let settings = self.engine.settings();
        let patience = settings.patience_left().min(WAIT);
        let _lock = Lock::take(&folder.join("meanwhile.lock"), true, patience, &*settings.observer).ok()?;
        let file = folder.join("meanwhile");
        let bytes = fsio::read(&file).ok().flatten();
        let last: Option<TranscriptPosition> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_behind = |prompt: &Prompt| {
            last.as_ref().is_some_and(|last| last.is_in(&prompt.before.file) && last.offset < prompt.before.offset)
        };
        let told = if typed.iter().all(is_behind) { Vec::new() } else { self.told_meanwhile(session)? };
        let (mut given, mut new) = (Vec::new(), Vec::new());
        for prompt in typed {
            let at = &prompt.before;
            match told.iter().find(|(told, _)| told.is_in(&at.file) && told.offset == at.offset) {
                Some((_, moment)) => given.push(moment.clone()),
                None => new.push(moment_of(prompt)),
            }
        }
        if let Some(last) = new.last().and_then(|last| last.transcript.as_ref()) {
            let _ = fsio::replace(&file, &serde_json::to_vec(last).unwrap_or_default(), Durability::Instant);
            given.extend(self.add_moments_without_snapshot(session, new).ok()?);
        }
        Some(given)
    }

    /// Those that have their moments, with where they were typed.
    fn told_meanwhile(&self, session: &SessionName) -> Option<Vec<(TranscriptPosition, SnapshotId)>> {
        let folder = self.folder();
        // In this order: what waits to be put on the timeline may be put there now.
        let mut unlisted = unlisted::all(&folder).ok()?;
        unlisted.retain(|unlisted| unlisted.session == *session);
        let unlisted = unlisted.iter().filter_map(|unlisted| Some(unlisted.read(&folder).ok()??.event));
        let unlisted: Vec<EventBody> = unlisted.collect();
        let listed = self.read_log(Some(session)).ok()?.events;
        let told = listed.into_iter().map(|event| event.body).chain(unlisted).filter_map(|event| match event {
            EventBody::Moment(moment) if moment.meanwhile => Some((moment.transcript?, moment.id)),
            _ => None,
        });
        Some(told.collect())
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
