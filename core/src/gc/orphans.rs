//! Timeline and providers' stores brought into agreement.

use std::collections::BTreeSet;

use ah_plugin_api::{
    DestroyRequest, Durability, Error, ErrorKind, ListRequest, ProviderName, Result, Snapshot, SnapshotId, SnapshotRef,
};

use crate::background;
use crate::gc::GcReport;
use crate::ids::SessionName;
use crate::lock::{Lock, PATIENCE};
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::Workspace;

impl Workspace {
    /// Makes instant snapshots survive a power cut: those marked, also while it is at work, or with a full gc all that are not
    /// durable.
    pub(super) fn make_durable(&self, auto: bool, report: &mut GcReport) -> Result<()> {
        let _lock = Lock::take(&self.sync_lock(), true, PATIENCE, &*self.engine.settings().observer)?;
        let mut auto = auto;
        loop {
            let marked = background::unsynced_ids(self)?;
            if auto && marked.is_empty() {
                return Ok(());
            }
            if auto {
                self.make_marked_durable(&marked, report)?;
            } else {
                self.make_these_durable(&marked, auto, report)?;
            }
            auto = true;
        }
    }

    /// Those that were marked, by what their marks say: the timeline, which may be long, is not looked at.
    fn make_marked_durable(&self, marked: &[SnapshotId], report: &mut GcReport) -> Result<()> {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for id in marked {
            match background::unsynced_mark(self, id) {
                Some(mark) => known.push((id, mark)),
                None => unknown.push(id.clone()),
            }
        }
        let mut synced = 0;
        for (_, mark) in &known {
            let served = self.serve(&mark.provider)?;
            let request = SnapshotRef { snapshot: mark.reference.clone() };
            match served.provider.sync(&served.place(), &request, &self.context()) {
                Ok(_) => synced += 1,
                // It was removed since; or reconciling says that it is gone.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if !known.is_empty() {
            self.log().sync()?;
        }
        for (id, _) in known {
            background::forget_unsynced(self, id)?;
        }
        if synced > 0 {
            report.did(format!("made {} durable", text::count(synced, "snapshot", "snapshots")));
        }
        if unknown.is_empty() { Ok(()) } else { self.make_these_durable(&unknown, true, report) }
    }

    fn make_these_durable(&self, marked: &[SnapshotId], auto: bool, report: &mut GcReport) -> Result<()> {
        let state = self.state()?;
        let mut synced = 0u64;
        for snapshot in &state.snapshots {
            let marked = marked.contains(&snapshot.id);
            if !marked && (auto || snapshot.durability != Durability::Instant) {
                continue;
            }
            let served = self.serve(&snapshot.provider)?;
            let request = SnapshotRef { snapshot: snapshot.reference.clone() };
            let already = !marked
                && served
                    .provider
                    .stat(&served.place(), &request, &self.context())
                    .is_ok_and(|s| s.durability == Durability::Durable);
            if already {
                continue;
            }
            match served.provider.sync(&served.place(), &request, &self.context()) {
                Ok(_) => synced += 1,
                // Reconciling says that it is gone.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.log().sync()?;
        for id in marked {
            background::forget_unsynced(self, id)?;
        }
        if synced > 0 {
            report.did(format!("made {} durable", text::count(synced, "snapshot", "snapshots")));
        }
        Ok(())
    }

    /// Lists again complete snapshots that the timeline does not know, removes those that it says are removed, and reports those
    /// that it knows and the provider has lost or cannot read.
    pub(super) fn reconcile(&self, name: &ProviderName, report: &mut GcReport) -> Result<()> {
        // Alone: nobody is between making a snapshot and listing it.
        let lock = self.lock("orphans")?;
        let served = self.serve(name)?;
        let held = served.provider.list(&served.place(), &ListRequest {}, &self.context());
        let held = held.map_err(|error| match error.kind {
            ErrorKind::Cancelled => error,
            _ => error.context("its snapshots cannot be looked for now, and none is taken off the timeline"),
        })?;
        let state = self.state()?;
        let mut known: BTreeSet<&SnapshotId> = BTreeSet::new();
        for event in &state.events {
            if let EventBody::Snapshot { snapshot } | EventBody::Recovered { snapshot } = &event.body {
                known.insert(&snapshot.id);
            }
        }
        let mine = |snapshot: &&Snapshot| {
            snapshot.attributes.get("workspace").is_none_or(|workspace| *workspace == self.id.as_str())
        };
        for snapshot in held.iter().filter(mine) {
            if !state.removed.contains(&snapshot.id) && !known.contains(&snapshot.id) {
                self.list_again(snapshot, name)?;
                report.did(format!("listed the snapshot {}, which had been taken and was on no timeline", snapshot.id));
            }
        }
        // What is said to be removed stays so: nobody need wait for that.
        drop(lock);
        for snapshot in held.iter().filter(mine).filter(|snapshot| state.removed.contains(&snapshot.id)) {
            let request = DestroyRequest::Snapshot(snapshot.reference.clone());
            let outcome = served.provider.destroy(&served.place(), &request, &self.context());
            if outcome.is_ok() {
                report.did(format!("removed the snapshot {}, whose removal had begun and not ended", snapshot.id));
            }
            report.note(&format!("removing the snapshot {}", snapshot.id), outcome.map(drop))?;
        }
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
        Ok(())
    }

    fn list_again(&self, snapshot: &Snapshot, provider: &ProviderName) -> Result<()> {
        let attribute = |key: &str| snapshot.attributes.get(key).cloned();
        let session =
            attribute("session").and_then(|name| SessionName::new(name).ok()).unwrap_or_else(SessionName::main);
        let kind = attribute("kind").map_or(SnapshotKind::Auto, |kind| SnapshotKind::from_text(&kind));
        let mut record = SnapshotRecord::of(snapshot, provider, kind, &session);
        record.kept = attribute("kept").is_some_and(|kept| kept == "true");
        let labels = snapshot.attributes.iter();
        let labels = labels.filter_map(|(key, value)| Some((key.strip_prefix("label.")?.to_owned(), value.clone())));
        record.attributes = labels.collect();
        self.append(&session, EventBody::Recovered { snapshot: Box::new(record) }, Durability::Durable)?;
        Ok(())
    }
}
