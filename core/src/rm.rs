//! Removing snapshots by name. By rule: `prune/`.
//!
//! First the timeline says that they are removed, then the provider removes them: what a killed process leaves, `gc` removes, and the hourly run behind snapshots. Providers
//! may only put them aside; the background's process gives their space back. No lock is held meanwhile.
//!
//! Only on a disk that has no room for that line the provider comes first ([`Workspace::take_off`]), and `stays` is held until that is said.

use std::collections::{BTreeMap, BTreeSet};

use ah_plugin_api::{
    Context, DestroyRequest, Durability, Error, ErrorKind, ProviderName, Reference, Result, Snapshot, SnapshotId,
    SnapshotRef,
};
use serde::Serialize;

use crate::background;
use crate::branch::BranchRecord;
use crate::home::lacks_room;
use crate::ids::BranchId;
use crate::record::SnapshotRecord;
use crate::seek;
use crate::snapshot::{Shown, same_reference};
use crate::state::State;
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::versioned;
use crate::workspace::{Served, Workspace};

/// What can be said about a removal.
#[derive(Debug, Clone, Default)]
pub struct RmOptions {
    /// Say what would be removed, and do nothing.
    pub dry_run: bool,
    /// Also what a branch grew from, with which that is compared before it is removed.
    pub force: bool,
    /// Branches that are removed as well, and so need nothing.
    pub branches: Vec<BranchId>,
}

/// What was removed.
#[derive(Debug, Clone, Serialize)]
pub struct RmReport {
    /// The snapshots.
    pub removed: Vec<SnapshotRecord>,
    /// Whether that is only what would be removed.
    pub dry_run: bool,
}

impl Workspace {
    /// Removes snapshots. All are checked before the first of them goes. What a provider cannot remove is off the timeline all the same; on a disk without room for that line, what has gone
    /// may be on it still. The error says so.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `InvalidArgument` for what a program printed; `Busy` if a branch is being made from one; `FailedPrecondition` if a moment has no snapshot that shows it, inside an agent's own session, in a copy of an `$AH_HOME` that is there, if one is pinned, is needed by a restore that is running, was interrupted or is not on disk or, without
    /// `force`, by a branch, or is shown by a lease; `DataLoss` if it cannot be read what needs it, or what else is listed; the provider's.
    pub fn rm(&self, references: &[String], options: &RmOptions) -> Result<RmReport> {
        if !options.dry_run {
            self.engine.refuse_to_agents("`rm`")?;
            self.engine.home().may_remove("`rm`")?;
            self.forget_what_the_killed_saw();
        }
        // A power cut now would interrupt a restore that is in place, so what that needs stays until it is on disk. Where it
        // cannot be brought there, it is refused below.
        let _ = self.settle_restores();
        let stays = if options.dry_run { None } else { Some(self.lock("stays")?) };
        let state = self.state()?;
        state.whole()?;
        let mut removed = self.resolve_own_in(&state, references)?;
        let mut seen = BTreeSet::new();
        removed.retain(|record| seen.insert(record.id.clone()));
        let needed = self.needed(&state.events)?;
        let branches = if options.force { Vec::new() } else { self.branches_for_certain()? };
        let made = if options.force { self.branches_being_made()? } else { Vec::new() };
        for record in &removed {
            if record.kept {
                return Err(Error::new(ErrorKind::FailedPrecondition, format!("the snapshot {} is pinned", record.id))
                    .with_hint(format!("ah agent fs edit {} --no-keep", record.id)));
            }
            if let Some(need) = needed.get(&record.id) {
                return Err(need.refusal(&record.id));
            }
            if let Some(branch) = made.iter().find(|branch| branch.snapshot == record.id) {
                let message = format!("the branch {} is being made from the snapshot {}", branch.name, record.id);
                return Err(Error::new(ErrorKind::Busy, message).with_hint("wait for it to end, then repeat"));
            }
            let grown = |branch: &&BranchRecord| branch.snapshot == record.id && !options.branches.contains(&branch.id);
            if let Some(branch) = branches.iter().find(grown) {
                let message = format!("the branch {} grew from the snapshot {}", branch.name, record.id);
                let name = self.typed(branch);
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "ah agent fs rm {} {name} removes both, with `--force` the snapshot alone",
                    record.id
                )));
            }
        }
        if !options.dry_run && !removed.is_empty() {
            self.take_off(&removed, "rm")?;
            drop(stays);
            self.destroy_all(&removed)?;
        }
        Ok(RmReport { removed, dry_run: options.dry_run })
    }

    /// Removes snapshots, and branches with everything in them. All is checked before the first of them goes. What REFs mean is found out once, by
    /// then: to take a branch away may take long, and by its end another snapshot is the latest, or five minutes old.
    ///
    /// # Errors
    /// As [`Workspace::rm`] and [`Workspace::remove_branch`].
    pub fn rm_with_branches(
        &self,
        references: &[String],
        branches: &[BranchRecord],
        options: &RmOptions,
    ) -> Result<RmReport> {
        let mut options = options.clone();
        options.branches.extend(branches.iter().map(|branch| branch.id.clone()));
        let snapshots = |references: &[String], dry_run| {
            if references.is_empty() {
                return Ok(RmReport { removed: Vec::new(), dry_run });
            }
            self.rm(references, &RmOptions { dry_run, ..options.clone() })
        };
        let checked = snapshots(references, true)?;
        // Branches go first: a branch is compared with the snapshot it grew from. One alone is compared when it goes, and not twice.
        let alone = branches.len() == 1 && references.is_empty() && !options.dry_run;
        for branch in branches.iter().filter(|_| !alone) {
            self.may_remove_branch(branch.id.as_str(), options.force)?;
        }
        if options.dry_run {
            return Ok(checked);
        }
        for branch in branches {
            self.remove_branch(branch.id.as_str(), options.force)?;
        }
        let ids: Vec<String> = checked.removed.iter().map(|snapshot| snapshot.id.to_string()).collect();
        let report = snapshots(&ids, false)?;
        for branch in branches {
            self.give_up_base_of(branch)?;
        }
        Ok(report)
    }

    /// What views, and running and interrupted restores need.
    ///
    /// # Errors
    /// If the record of one cannot be read: then nobody knows what it needs.
    pub(crate) fn needed(&self, events: &[Event]) -> Result<BTreeMap<SnapshotId, Need>> {
        let mut needed = BTreeMap::new();
        let open = self.restores_need(events)?.into_iter().filter(|(_, open)| *open);
        needed.extend(open.map(|(id, _)| (id, Need::Restore)));
        for lease in versioned::whole(seek::read_all(self.engine.home())?)? {
            if lease.workspace == self.id && !lease.is_stale() {
                let path = lease.shown.map_or_else(String::new, |shown| shown.path.display().to_string());
                needed.insert(lease.snapshot, Need::Lease(path));
            }
        }
        Ok(needed)
    }

    /// Takes snapshots off the timeline: from then on nobody finds them.
    pub(crate) fn say_removed(&self, snapshots: &[SnapshotRecord], by: &str) -> Result<()> {
        let ids = snapshots.iter().map(|snapshot| snapshot.id.clone()).collect();
        let body = EventBody::Remove { snapshots: ids, by: by.to_owned() };
        let (session, home) = (self.writing_session(), self.engine.home());
        home.with_reserve(|| self.append(&session, body.clone(), Durability::Durable))?;
        Ok(())
    }

    /// As [`Workspace::say_removed`], for what somebody asked for to free a full disk. Where `$AH_HOME` is part of what is captured, the snapshots hold the reserve, and giving that up
    /// made no room: then the providers remove them first. Whoever is killed in between leaves snapshots that `gc` and `rm` find gone. `stays` is held, so nobody comes to need one.
    pub(crate) fn take_off(&self, snapshots: &[SnapshotRecord], by: &str) -> Result<()> {
        match self.say_removed(snapshots, by) {
            Err(error) if lacks_room(&error) => self.remove_first(snapshots, by),
            said => said,
        }
    }

    /// Removes one after the other until there is room to say so. What one provider cannot do keeps no other from it; once it is said, it is tried again. Who stops it
    /// keeps those that have not gone.
    fn remove_first(&self, snapshots: &[SnapshotRecord], by: &str) -> Result<()> {
        let say = || self.say_removed(snapshots, by);
        let going: BTreeSet<SnapshotId> = snapshots.iter().map(|snapshot| snapshot.id.clone()).collect();
        self.log().name_none_of(&going)?;
        // Those that go keep none of each other, as once it is said.
        let mut listed = State::of(self.read_log(None)?).snapshots;
        listed.retain(|other| !going.contains(&other.id));
        let (mut gone, mut failed, mut aside) = (Vec::new(), None, BTreeSet::new());
        let reclaim = |aside: &mut BTreeSet<&ProviderName>| {
            std::mem::take(aside).into_iter().for_each(|name| drop(self.reclaim_store(name)));
        };
        for snapshot in snapshots {
            let outcome = (self.context().check_cancelled())
                .and_then(|()| self.serve(&snapshot.provider))
                .and_then(|served| self.destroy(&served, &snapshot.id, &snapshot.reference, &listed, &self.context()));
            if let Err(error) = outcome {
                if error.kind == ErrorKind::Cancelled {
                    let said = gone.is_empty() || self.say_removed(&gone, by).is_ok();
                    return Err(if said { error } else { unsaid(error, &gone, failed) });
                }
                let SnapshotRecord { id, provider, .. } = snapshot;
                let what = format!("the disk is full, and {provider} could not remove the snapshot {id}");
                failed.get_or_insert(error.context(what));
                continue;
            }
            gone.push(snapshot.clone());
            aside.insert(&snapshot.provider);
            let mut said = say();
            // They may have been put aside only. To look through a store takes long, so that is done seldom.
            if said.as_ref().is_err_and(lacks_room) && gone.len().is_power_of_two() {
                reclaim(&mut aside);
                said = say();
            }
            match said {
                Err(error) if lacks_room(&error) => {}
                said => return said.map_err(|error| unsaid(error, &gone, failed)),
            }
        }
        if gone.is_empty() {
            return failed.map_or(Ok(()), Err);
        }
        reclaim(&mut aside);
        let said = self.engine.home().once_there_is_room(self.engine.settings(), say);
        said.map_err(|error| unsaid(error, &gone, failed))
    }

    /// Has the providers remove what is off the timeline.
    pub(crate) fn destroy_all(&self, snapshots: &[SnapshotRecord]) -> Result<()> {
        let outcome = self.destroy_each(snapshots);
        background::after_removal(self);
        outcome
    }

    /// The same, and what the providers put aside stays there.
    pub(crate) fn destroy_each(&self, snapshots: &[SnapshotRecord]) -> Result<()> {
        let mut first_error = None;
        let mut serving: Option<Served> = None;
        let state = State::of(self.read_log(None)?);
        let listed = state.whole()?;
        for snapshot in snapshots {
            let served = serving.take().filter(|served| served.name == snapshot.provider);
            let served = served.map_or_else(|| self.serve(&snapshot.provider), Ok);
            let outcome = served.and_then(|served| {
                let served = &*serving.insert(served);
                let (id, reference) = (&snapshot.id, &snapshot.reference);
                let cx = self.context();
                self.engine.home().with_reserve(|| self.destroy(served, id, reference, listed, &cx))
            });
            if let Err(error) = outcome {
                first_error.get_or_insert(error.context(format!(
                    "{} is off the timeline, but {} could not remove it yet; gc tries again",
                    snapshot.id, snapshot.provider
                )));
            }
        }
        first_error.map_or(Ok(()), |error| Err(error.with_hint("ah agent fs gc")))
    }

    /// Removes one of which nothing is on the timeline any more, unless the provider finds by its reference one that is `listed`.
    pub(crate) fn destroy(
        &self,
        served: &Served,
        id: &SnapshotId,
        reference: &Reference,
        listed: &[SnapshotRecord],
        cx: &Context<'_>,
    ) -> Result<()> {
        refuse_shared(&served.name, id, reference, listed)?;
        served.provider.destroy(&served.place(), &DestroyRequest::Snapshot(reference.clone()), cx)?;
        // A mark that stays, as on a full disk it may, is taken away by who finds nothing to be made durable.
        let _ = background::forget_unsynced(self, id);
        Ok(())
    }

    /// Takes back a snapshot that was never listed, unless the provider finds by its reference one that is. Also for who is stopped. What stays,
    /// gc finds.
    pub(crate) fn withdraw(&self, served: &Served, snapshot: &Snapshot) -> Result<()> {
        let state = State::of(self.read_log(None)?);
        self.destroy(served, &snapshot.id, &snapshot.reference, state.whole()?, &Context::quiet())
    }

    /// Takes back one in whose place `other` serves. Behind an agent the timeline, which may be long, is not read: the provider is asked which one it
    /// finds by the reference.
    pub(crate) fn withdraw_for(
        &self,
        other: &Shown,
        served: &Served,
        id: &SnapshotId,
        reference: &Reference,
    ) -> Result<()> {
        let (cx, request) = (Context::quiet(), SnapshotRef { snapshot: reference.clone() });
        let found = match other.provider == served.name && other.reference == *reference {
            true => other.id.clone(),
            false => served.provider.stat(&served.place(), &request, &cx)?.id,
        };
        if found != *id {
            return Err(same_reference(&served.name, id, &found));
        }
        self.destroy(served, id, reference, &[], &cx)
    }
}

/// Refuses to remove a snapshot by a reference by which its provider finds another one, too, that is on the timeline.
pub(crate) fn refuse_shared(
    provider: &ProviderName,
    id: &SnapshotId,
    reference: &Reference,
    listed: &[SnapshotRecord],
) -> Result<()> {
    let is_shared =
        |other: &&SnapshotRecord| other.provider == *provider && other.reference == *reference && other.id != *id;
    listed.iter().find(is_shared).map_or(Ok(()), |other| Err(same_reference(provider, id, &other.id)))
}

/// Why those that have `gone` are on the timeline still, and what `failed` meanwhile.
fn unsaid(error: Error, gone: &[SnapshotRecord], failed: Option<Error>) -> Error {
    let gone = text::count(gone.len(), "snapshot is", "snapshots are");
    let mut error = error.context(format!("{gone} removed, and could not be taken off the timeline yet"));
    error.causes.extend(failed.into_iter().flat_map(|failed| std::iter::once(failed.message).chain(failed.causes)));
    error
}

/// Why a snapshot cannot go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// A view at that path shows it.
    Lease(String),
    /// A restore that is running, was interrupted, or may not be on disk, goes on to it, or back to it.
    Restore,
}

impl Need {
    fn refusal(&self, id: &SnapshotId) -> Error {
        match self {
            Self::Lease(path) if path.is_empty() => {
                Error::new(ErrorKind::Busy, format!("a view of the snapshot {id} is being made"))
            }
            Self::Lease(path) => {
                Error::new(ErrorKind::FailedPrecondition, format!("the view {path} shows the snapshot {id}"))
                    .with_hint(format!("ah agent fs release {path}"))
            }
            Self::Restore => Error::new(
                ErrorKind::FailedPrecondition,
                format!("a restore that has not come to its end needs the snapshot {id}"),
            )
            .with_hint("`ah agent fs gc` ends one that is done; of one that was interrupted, `ah agent fs status` says what to do"),
        }
    }
}
