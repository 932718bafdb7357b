//! Timeline and providers' stores brought into agreement.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{
    Durability, Error, ErrorKind, ListRequest, ProviderName, Reference, Result, Snapshot, SnapshotId, SnapshotRef,
};

use crate::background;
use crate::gc::GcReport;
use crate::ids::SessionName;
use crate::lock::{Lock, PATIENCE};
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::rm::refuse_shared;
use crate::state::State;
use crate::text;
use crate::timeline::{Event, EventBody, FaultKind};
use crate::workspace::{Served, Workspace};

/// Snapshots that could not be made durable now, each with the reason.
type Failed = BTreeMap<SnapshotId, Error>;

/// Whether it was made durable. One that could not be, as its provider is not there, say, keeps no other from it.
fn settle(id: &SnapshotId, outcome: Result<bool>, failed: &mut Failed) -> Result<bool> {
    match outcome {
        Err(error) if error.kind != ErrorKind::Cancelled => {
            failed.insert(id.clone(), error);
            Ok(false)
        }
        outcome => outcome,
    }
}

/// The snapshot that an event lists.
fn listed(event: &Event) -> Option<&SnapshotId> {
    match &event.body {
        EventBody::Snapshot { snapshot } | EventBody::Recovered { snapshot, .. } => Some(&snapshot.id),
        _ => None,
    }
}

/// The session that a snapshot was taken in, as its provider was told.
fn session_of(snapshot: &Snapshot) -> SessionName {
    let name = snapshot.attributes.get("session").cloned();
    name.and_then(|name| SessionName::new(name).ok()).unwrap_or_else(SessionName::main)
}

/// The last event that says that lines before it were lost: one of those may have pinned any snapshot from before.
fn lines_lost(state: &State) -> Option<u64> {
    let lost = |event: &Event| matches!(event.body, EventBody::LinesLost { .. }).then_some(event.seq);
    state.events.iter().rev().find_map(lost)
}

impl Workspace {
    /// Has the timelines say themselves that their ends were lost: what is listed again behind that is known to be from before.
    pub(super) fn note_lost_lines(&self) -> Result<()> {
        let faults = self.read_log(None)?.faults;
        for fault in faults.iter().filter(|fault| fault.kind == FaultKind::End) {
            self.append_with(&fault.session, Durability::Durable, |_| Vec::new())?;
        }
        Ok(())
    }

    /// Pins what lost lines may have pinned, once what they listed is listed again as far as it is there. From then on things take their usual course.
    pub(super) fn pin_behind_lost_lines(&self, report: &mut GcReport) -> Result<()> {
        let _stays = self.lock_stays()?;
        let state = self.state()?;
        let sought = |event: &Event| matches!(event.body, EventBody::LinesSought {});
        let sought = state.events.iter().rev().find(|event| sought(event)).map(|event| event.seq);
        let Some(lost) = lines_lost(&state).filter(|lost| sought.is_none_or(|sought| sought < *lost)) else {
            return Ok(());
        };
        // One that says that this was done, or let go what was pinned by it, may be among those that cannot be read.
        state.whole()?;
        let unpinned = state.snapshots.iter().filter(|snapshot| !snapshot.kept && snapshot.seq <= lost);
        let pin = |snapshot: &SnapshotRecord| EventBody::Edit {
            snapshot: snapshot.id.clone(),
            label: None,
            kept: Some(true),
        };
        let mut bodies: Vec<EventBody> = unpinned.map(pin).collect();
        // Those of which the lines were lost were pinned as they were listed again.
        let again: BTreeSet<&SnapshotId> =
            state.events.iter().filter(|event| event.seq > lost).filter_map(listed).collect();
        let is_pinned_again = |it: &&SnapshotRecord| it.kept && it.seq <= lost && again.contains(&it.id);
        let pinned = bodies.len() + state.snapshots.iter().filter(is_pinned_again).count();
        let pinned = text::count(pinned, "snapshot is", "snapshots are");
        bodies.push(EventBody::LinesSought {});
        self.append_with(&self.writing_session(), Durability::Durable, |_| bodies)?;
        report.did(format!(
            "the end of a timeline was lost: {pinned} pinned that may have been; `ah agent fs edit ID --no-keep` lets one go"
        ));
        Ok(())
    }

    /// Makes instant snapshots survive a power cut: those marked, also while it is at work, or with a full gc all that are not
    /// durable.
    pub(super) fn make_durable(&self, auto: bool, report: &mut GcReport) -> Result<()> {
        let _lock = Lock::take(&self.sync_lock(), true, PATIENCE, &*self.engine.settings().observer)?;
        let (mut auto, mut failed) = (auto, Failed::new());
        loop {
            let mut marked = background::unsynced_ids(self)?;
            marked.retain(|id| !failed.contains_key(id));
            if auto && marked.is_empty() {
                return failed.into_values().next().map_or(Ok(()), Err);
            }
            if auto {
                self.make_marked_durable(&marked, &mut failed, report)?;
            } else {
                self.make_these_durable(&marked, auto, &mut failed, report)?;
            }
            auto = true;
        }
    }

    /// Those that were marked, by what their marks say: the timeline, which may be long, is not looked at.
    fn make_marked_durable(&self, marked: &[SnapshotId], failed: &mut Failed, report: &mut GcReport) -> Result<()> {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for id in marked {
            match background::unsynced_mark(self, id) {
                Some(mark) => known.push((id, mark)),
                None => unknown.push(id.clone()),
            }
        }
        let mut synced = Vec::new();
        for (id, mark) in &known {
            let outcome = self.serve(&mark.provider).and_then(|served| self.make_durable_in(&served, &mark.reference));
            if settle(id, outcome, failed)? {
                synced.push(*id);
            }
        }
        let unsynced = if known.is_empty() { BTreeMap::new() } else { self.log().sync()? };
        for (id, mark) in &known {
            if let Some(error) = unsynced.get(&mark.session) {
                failed.entry((*id).clone()).or_insert_with(|| error.clone());
            }
        }
        self.are_durable(known.iter().map(|(id, _)| *id), &synced, failed, report)?;
        if unknown.is_empty() { Ok(()) } else { self.make_these_durable(&unknown, true, failed, report) }
    }

    fn make_these_durable(
        &self,
        marked: &[SnapshotId],
        auto: bool,
        failed: &mut Failed,
        report: &mut GcReport,
    ) -> Result<()> {
        let state = self.state()?;
        let mut synced = Vec::new();
        for snapshot in &state.snapshots {
            let marked = marked.contains(&snapshot.id);
            if !marked && (auto || snapshot.durability != Durability::Instant) {
                continue;
            }
            let outcome = self.serve(&snapshot.provider).and_then(|served| {
                let request = SnapshotRef { snapshot: snapshot.reference.clone() };
                let stat = || served.provider.stat(&served.place(), &request, &self.context());
                let already = !marked && stat().is_ok_and(|stat| stat.durability == Durability::Durable);
                if already { Ok(false) } else { self.make_durable_in(&served, &snapshot.reference) }
            });
            if settle(&snapshot.id, outcome, failed)? {
                synced.push(&snapshot.id);
            }
        }
        let unsynced = self.log().sync()?;
        for id in marked.iter().chain(synced.iter().copied()) {
            let error = match state.snapshot(id) {
                Some(snapshot) => unsynced.get(&snapshot.session).cloned(),
                // Its line may be where nobody can read.
                None => state.whole().err(),
            };
            if let Some(error) = error {
                failed.entry(id.clone()).or_insert(error);
            }
        }
        self.are_durable(marked.iter(), &synced, failed, report)?;
        // What else stands on those is no snapshot's business.
        unsynced.into_values().next().filter(|_| !auto).map_or(Ok(()), Err)
    }

    /// Whether there was such a snapshot: it may have been removed since, or reconciling says that it is gone.
    fn make_durable_in(&self, served: &Served, reference: &Reference) -> Result<bool> {
        let request = SnapshotRef { snapshot: reference.clone() };
        match served.provider.sync(&served.place(), &request, &self.context()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes away the marks of those that did not fail; `synced` had not been durable.
    fn are_durable<'a>(
        &self,
        ids: impl Iterator<Item = &'a SnapshotId>,
        synced: &[&SnapshotId],
        failed: &Failed,
        report: &mut GcReport,
    ) -> Result<()> {
        for id in ids.filter(|id| !failed.contains_key(*id)) {
            background::forget_unsynced(self, id)?;
        }
        let synced = synced.iter().filter(|id| !failed.contains_key(**id)).count();
        if synced > 0 {
            report.did(format!("made {} durable", text::count(synced, "snapshot", "snapshots")));
        }
        Ok(())
    }

    /// Lists again complete snapshots that the timeline does not know, removes those that it says are removed, and reports those
    /// that it knows and the provider has lost or cannot read. Gives whether what is on no timeline now is not there.
    pub(super) fn reconcile(&self, name: &ProviderName, report: &mut GcReport) -> Result<bool> {
        // Alone: nobody is between making a snapshot and listing it.
        let lock = self.lock("orphans")?;
        let served = self.serve(name)?;
        let held = served.provider.list(&served.place(), &ListRequest::default(), &self.context());
        let held = held.map_err(|error| match error.kind {
            ErrorKind::Cancelled => error,
            _ => error.context("its snapshots cannot be looked for now, and none is taken off the timeline"),
        })?;
        let state = self.state()?;
        let mut all_listed = true;
        for snapshot in self.unlisted(&held, &state) {
            // Its line may be there.
            if state.unread.iter().any(|fault| fault.session == session_of(snapshot)) {
                all_listed = false;
                continue;
            }
            let listed = refuse_shared(name, &snapshot.id, &snapshot.reference, &state.snapshots)
                .and_then(|()| self.list_again(snapshot, name, lines_lost(&state)));
            match listed {
                Ok(()) => report
                    .did(format!("listed the snapshot {}, which had been taken and was on no timeline", snapshot.id)),
                Err(error) => {
                    all_listed = false;
                    report.note(&format!("listing the snapshot {} again", snapshot.id), Err(error))?;
                }
            }
        }
        // What is said to be removed stays so: nobody need wait for that.
        drop(lock);
        self.finish_removals_in(&served, &held, &state, report)?;
        let held: BTreeSet<&SnapshotId> = held.iter().map(|snapshot| &snapshot.id).collect();
        let missing = state.snapshots.iter().filter(|snapshot| snapshot.provider == *name);
        for snapshot in missing.filter(|snapshot| !held.contains(&snapshot.id)) {
            // A list passes over what it cannot read. Nobody is to be told to give up what is only damaged.
            let request = SnapshotRef { snapshot: snapshot.reference.clone() };
            let id = &snapshot.id;
            match served.provider.stat(&served.place(), &request, &self.context()) {
                Ok(_) => {}
                Err(error) if error.kind == ErrorKind::NotFound => {
                    let Error { message, hint, .. } = snapshot.lost();
                    report.failures.push(format!("{message}; {}", hint.unwrap_or_default()));
                }
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    let hint = error.hint.as_deref().map_or_else(String::new, |hint| format!("; {hint}"));
                    let what =
                        if error.kind == ErrorKind::DataLoss { "damaged" } else { "there, but cannot be looked at" };
                    report.failures.push(format!("the snapshot {id} is {what}: {error}{hint}"));
                }
            }
        }
        Ok(all_listed)
    }

    /// Removes what the timeline says is removed and the providers still have: whoever said so was killed before they had done it.
    pub(crate) fn finish_removals(&self, report: &mut GcReport) -> Result<()> {
        if !self.engine.home().claim() {
            return Ok(());
        }
        let state = self.state()?;
        for name in self.stores()? {
            let served = self.serve(&name)?;
            let held = served.provider.list(&served.place(), &ListRequest::default(), &self.context())?;
            self.finish_removals_in(&served, &held, &state, report)?;
        }
        Ok(())
    }

    fn finish_removals_in(
        &self,
        served: &Served,
        held: &[Snapshot],
        state: &State,
        report: &mut GcReport,
    ) -> Result<()> {
        let said = |snapshot: &&Snapshot| self.is_mine(snapshot) && state.removed.contains(&snapshot.id);
        for snapshot in held.iter().filter(said) {
            let Snapshot { id, reference, .. } = snapshot;
            let removed = |listed| self.destroy(served, id, reference, listed, &self.context());
            let outcome = state.whole().and_then(removed);
            if outcome.is_ok() {
                report.did(format!("removed the snapshot {}, whose removal had begun and not ended", snapshot.id));
            }
            report.note(&format!("removing the snapshot {}", snapshot.id), outcome)?;
        }
        Ok(())
    }

    /// Those of a provider's snapshots that the timeline neither lists nor says to be removed.
    fn unlisted<'a>(&self, held: &'a [Snapshot], state: &State) -> Vec<&'a Snapshot> {
        let known: BTreeSet<&SnapshotId> = state.events.iter().filter_map(listed).collect();
        let is_new = |id: &SnapshotId| !state.removed.contains(id) && !known.contains(id);
        held.iter().filter(|snapshot| self.is_mine(snapshot) && is_new(&snapshot.id)).collect()
    }

    pub(crate) fn is_mine(&self, snapshot: &Snapshot) -> bool {
        snapshot.attributes.get("workspace").is_none_or(|workspace| *workspace == self.id.as_str())
    }

    /// The snapshots there are of the workspace, a few words for each kind: also those that it does not list, as their maker was killed or their line is
    /// damaged. Whoever calls holds `orphans` alone, so that none is being taken.
    ///
    /// # Errors
    /// The provider's, if one cannot be asked.
    pub(crate) fn snapshots_held(&self, _alone: &Lock) -> Result<Vec<String>> {
        let state = self.state()?;
        let mut held = Vec::new();
        let mut say = |count: usize, one: &str, many: &str| {
            if count > 0 {
                held.push(text::count(count, one, many));
            }
        };
        say(state.snapshots.len(), "snapshot of its own", "snapshots of its own");
        let mut unlisted = 0;
        for name in self.stores()? {
            let served = self.serve(&name)?;
            let all = served.provider.list(&served.place(), &ListRequest::default(), &self.context())?;
            unlisted += self.unlisted(&all, &state).len();
        }
        say(unlisted, "snapshot that no timeline lists", "snapshots that no timeline lists");
        Ok(held)
    }

    /// `lost`: the last event that says that lines before it were lost.
    fn list_again(&self, snapshot: &Snapshot, provider: &ProviderName, lost: Option<u64>) -> Result<()> {
        let attribute = |key: &str| snapshot.attributes.get(key).cloned();
        let session = session_of(snapshot);
        let kind = attribute("kind").map_or(SnapshotKind::Auto, |kind| SnapshotKind::from_text(&kind));
        let mut record = SnapshotRecord::of(snapshot, provider, kind, &session);
        let after: Option<u64> = attribute("after").and_then(|after| after.parse().ok());
        let may_be_pinned = lost.is_some_and(|lost| after.is_none_or(|after| after < lost));
        record.kept = may_be_pinned || attribute("kept").is_some_and(|kept| kept == "true");
        let labels = snapshot.attributes.iter();
        let labels = labels.filter_map(|(key, value)| Some((key.strip_prefix("label.")?.to_owned(), value.clone())));
        record.attributes = labels.collect();
        self.append(&session, EventBody::Recovered { snapshot: Box::new(record), after }, Durability::Durable)?;
        Ok(())
    }
}
