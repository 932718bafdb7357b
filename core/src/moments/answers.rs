//! What the worker finds out when nobody waits any more: whether a snapshot was for nothing, and which files a prompt's work changed.
//!
//! Where snapshots have no tree to tell equal ones by, the last two of a session are compared; if nothing differs the older one serves, and
//! the newer one is removed. The session's folder keeps the last one's name in `last`: a cache.
//!
//! The prompt's snapshot is compared with that of the answer, or of what came instead of one. The session's folder keeps the
//! last prompt's in `prompt`: a cache, without which the timeline says nothing of the files of that one prompt. Only where the
//! provider finds differences by itself; anywhere else `ah agent fs diff` does when somebody asks.

use std::path::PathBuf;
use std::time::Duration;

use ah_plugin_api::{
    Capability, CapturePolicy, DiffRequest, Durability, EntryKind, RepositoryState, Result, Side, SnapshotId,
};
use serde::{Deserialize, Serialize};

use crate::background;
use crate::fsio;
use crate::ids::SessionName;
use crate::moments::capture::Taken;
use crate::moments::pending::{Pending, Waiting};
use crate::moments::{FilesChanged, MomentKind, MomentUpdate};
use crate::prune::Free;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::session;
use crate::snapshot::{Listed, Shown};
use crate::timeline::{EventBody, is_unmoved};
use crate::workspace::Workspace;

/// So many names are kept.
const NAMES: usize = 20;

/// The last prompt, while its files are not known.
#[derive(Serialize, Deserialize)]
struct LastPrompt {
    moment: SnapshotId,
    shown: Shown,
}

/// A session's last automatic snapshot.
#[derive(Serialize, Deserialize)]
struct LastShown {
    shown: Shown,
    /// The event by which it was there still.
    #[serde(default)]
    seen: u64,
    #[serde(default)]
    repository: Option<RepositoryState>,
}

impl Workspace {
    /// After moments of a session have got their snapshot. What fails here is left as it is: it is nothing that anybody relies on.
    pub(super) fn after_capture(&self, session: &SessionName, moments: &[(Waiting, Pending)], taken: &Taken) {
        let shown = match &taken.listed {
            Listed::New(record) if record.tree.is_none() => {
                self.spared(session, &taken.said, record).unwrap_or_else(|| taken.listed.shown())
            }
            listed => listed.shown(),
        };
        for (waiting, left) in moments {
            for prompt in &left.follows {
                let _ = self.begin_meanwhile(session, prompt);
            }
            let ends = matches!(left.kind, MomentKind::Prompt | MomentKind::Stop | MomentKind::SessionEnd);
            if ends && let Some(last) = self.last_prompt(session) {
                let _ = self.tell_files(session, &last, &shown);
                let _ = fsio::remove_file(&self.prompt_file(session));
            }
            if left.kind == MomentKind::Prompt {
                let last = LastPrompt { moment: waiting.moment.clone(), shown: shown.clone() };
                self.note_prompt(session, &last);
            }
        }
    }

    /// A prompt that was typed while the agent was at work: what was done until then was for the one before.
    fn begin_meanwhile(&self, session: &SessionName, prompt: &SnapshotId) -> Result<()> {
        let state = self.state()?;
        let moment = state.moments.iter().find(|moment| moment.record.id == *prompt);
        let last = self.last_prompt(session);
        // Of two calls beside each other each comes next to it.
        let has_begun = last.as_ref().is_some_and(|last| last.moment == *prompt);
        if has_begun || moment.is_some_and(|moment| moment.record.files.is_some()) {
            return Ok(());
        }
        let exact = moment.and_then(|moment| state.snapshot(moment.record.exact()?));
        let Some(SnapshotRecord { id, provider, reference, .. }) = exact else {
            // What was done for the one before is known no more, and what is done from now on is not for it.
            return fsio::remove_file(&self.prompt_file(session));
        };
        let shown = Shown { id: id.clone(), provider: provider.clone(), reference: reference.clone() };
        if let Some(last) = last {
            self.tell_files(session, &last, &shown)?;
        }
        self.note_prompt(session, &LastPrompt { moment: prompt.clone(), shown });
        Ok(())
    }

    fn note_prompt(&self, session: &SessionName, last: &LastPrompt) {
        let bytes = serde_json::to_vec(last).unwrap_or_default();
        let _ = fsio::replace(&self.prompt_file(session), &bytes, Durability::Instant);
    }

    /// The session's last snapshot, if nothing has changed since; the new one is removed then.
    fn spared(&self, session: &SessionName, said: &[MomentUpdate], new: &SnapshotRecord) -> Option<Shown> {
        let file = session::folder(&self.folder(), session).join("last");
        let bytes = fsio::read(&file).ok().flatten();
        let last: Option<LastShown> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let now = Shown { id: new.id.clone(), provider: new.provider.clone(), reference: new.reference.clone() };
        let note = |last: &LastShown| {
            let _ = fsio::replace(&file, &serde_json::to_vec(last).unwrap_or_default(), Durability::Instant);
        };
        let automatic = new.kind == SnapshotKind::Auto && !new.kept;
        if let Some(last) =
            last.filter(|last| automatic && is_unmoved(last.repository.as_ref(), new.repository.as_ref()))
            && self.is_same(&last.shown, &now).unwrap_or(false)
            && self.spare(session, said, new, &last).unwrap_or(false)
        {
            let last = LastShown { seen: new.seq, ..last };
            note(&last);
            return Some(last.shown);
        }
        note(&LastShown { shown: now, seen: new.seq, repository: new.repository.clone() });
        None
    }

    fn is_same(&self, from: &Shown, to: &Shown) -> Result<bool> {
        let served = self.serve(&from.provider)?;
        if from.provider != to.provider || !served.can(Capability::Diff) {
            return Ok(false);
        }
        let found = self.changes(&served, &request(from, to, true))?;
        // Who captures everything captures more than what is told as a change.
        let told_none = found.changes.is_empty() && found.unread.is_empty();
        Ok(found.untouched || told_none && served.can(Capability::AppliesPolicy))
    }

    /// Lets the older snapshot serve what the newer one serves, and removes that, unless somebody else wants it by now; whether it did.
    fn spare(
        &self,
        session: &SessionName,
        said: &[MomentUpdate],
        new: &SnapshotRecord,
        older: &LastShown,
    ) -> Result<bool> {
        let theirs = |said: &MomentUpdate| {
            let update = MomentUpdate { snapshot: Some(older.shown.id.clone()), ..said.clone() };
            EventBody::MomentUpdate(Box::new(update))
        };
        let mut events: Vec<EventBody> = said.iter().map(theirs).collect();
        events.push(EventBody::Remove { snapshots: vec![new.id.clone()], by: "capture".to_owned() });
        let say = || self.append_with(session, Durability::Instant, |_| events).map(drop);
        // Other captures wait meanwhile; one snapshot more is no harm.
        let asked = Free { id: &new.id, kind: SnapshotKind::Auto, other: Some(&older.shown.id), since: older.seen };
        if !self.give_up_if_free(&asked, Duration::ZERO, say)? {
            return Ok(false);
        }
        // What is left of it if that fails, gc removes.
        if let Ok(served) = self.serve(&new.provider) {
            let _ = self.withdraw_for(&older.shown, &served, &new.id, &new.reference);
        }
        let _ = background::forget_unsynced(self, &new.id);
        Ok(true)
    }

    fn tell_files(&self, session: &SessionName, prompt: &LastPrompt, now: &Shown) -> Result<()> {
        let Some(files) = self.files_between(&prompt.shown, now)? else { return Ok(()) };
        let update = MomentUpdate { files: Some(files), ..MomentUpdate::new(prompt.moment.clone()) };
        self.append(session, EventBody::MomentUpdate(Box::new(update)), Durability::Instant).map(drop)
    }

    /// The files that differ; none if the provider does not find that out by itself.
    fn files_between(&self, from: &Shown, to: &Shown) -> Result<Option<FilesChanged>> {
        if from.id == to.id {
            return Ok(Some(FilesChanged { total: 0, paths: Vec::new() }));
        }
        let served = self.serve(&from.provider)?;
        if from.provider != to.provider || !served.can(Capability::Diff) {
            return Ok(None);
        }
        let request = DiffRequest { policy: self.policy()?, ..request(from, to, false) };
        let told = self.told_changes(&served, &request)?;
        // All that differs may be in what was not looked into.
        if told.changes.is_empty() && !told.unread.is_empty() {
            return Ok(None);
        }
        let is_dir = |entry: &Option<ah_plugin_api::Entry>| entry.as_ref().is_none_or(|e| e.kind == EntryKind::Dir);
        let files = told.changes.into_iter().filter(|change| !(is_dir(&change.before) && is_dir(&change.after)));
        let paths: Vec<_> = files.map(|change| change.path).collect();
        Ok(Some(FilesChanged { total: paths.len() as u64, paths: paths.into_iter().take(NAMES).collect() }))
    }

    fn last_prompt(&self, session: &SessionName) -> Option<LastPrompt> {
        let bytes = fsio::read(&self.prompt_file(session)).ok().flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn prompt_file(&self, session: &SessionName) -> PathBuf {
        session::folder(&self.folder(), session).join("prompt")
    }
}

fn request(from: &Shown, to: &Shown, times: bool) -> DiffRequest {
    DiffRequest {
        from: Side::Snapshot(from.reference.clone()),
        to: Side::Snapshot(to.reference.clone()),
        paths: Vec::new(),
        times,
        policy: CapturePolicy::default(),
    }
}
