//! Retention that nobody asked for: at most once an hour, in the background's process behind a snapshot; and at once where an automatic
//! capture finds the disk too full.
//!
//! It takes nothing of a workspace whose timeline has lines that cannot be read. It never takes what is a person's own (taken by hand, labelled, pinned), what a branch, a view or an undo needs, the newest, or for 14 days the
//! last of a session, whatever the policy says. What goes is decided, and taken off the timeline, while nobody can pin, label or come to
//! need a snapshot (the lock `stays`); the providers remove it afterwards. A clock that was set back makes nothing old; one that was ahead costs at most one run
//! more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ah_plugin_api::{Durability, ErrorKind, ProviderName, Result, SnapshotId, Timestamp};

use crate::config::Config;
use crate::fsio;
use crate::gc::GcReport;
use crate::lock::Lock;
use crate::prune::Policy;
use crate::prune::plan::{self, Given};
use crate::prune::prompts::Prompts;
use crate::prune::room::Lacking;
use crate::prune::size::fewest;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::registry::Index;
use crate::state::State;
use crate::text::count;
use crate::timeline::TimelineReport;
use crate::workspace::Workspace;

/// The shortest time between two runs, in seconds.
const EVERY: i64 = 3_600;

/// On a disk that is too full, this is what stays of `keep-within`, in nanoseconds.
const TIGHT: i128 = 3_600 * 1_000_000_000;

/// What frees less than one part in so many of what is wanted is not worth it.
const NOTICED: u64 = 100;

/// Whether the background has a run to do. A look at one small file.
pub(crate) fn is_due(workspace: &Workspace) -> bool {
    let now = workspace.engine.settings().clock.now();
    match last_run(workspace) {
        // After the clock was set back, the next run sets it right.
        Some(last) => !(0..EVERY).contains(&(now.secs - last)),
        // There is nothing to prune yet: the first hour begins here.
        None => {
            let _ = note_run(workspace, now);
            false
        }
    }
}

fn file(workspace: &Workspace) -> PathBuf {
    workspace.folder().join("pruned")
}

fn last_run(workspace: &Workspace) -> Option<i64> {
    let bytes = fsio::read(&file(workspace)).ok().flatten()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

fn note_run(workspace: &Workspace, now: Timestamp) -> Result<()> {
    fsio::replace(&file(workspace), format!("{}\n", now.secs).as_bytes(), Durability::Instant)
}

/// Who is about to need a snapshot is waited for no longer.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// Whether a snapshot may go that was taken for something that is over.
pub(crate) struct Free<'a> {
    pub(crate) id: &'a SnapshotId,
    /// What it still has to be.
    pub(crate) kind: SnapshotKind,
    /// The one that is to serve instead.
    pub(crate) other: Option<&'a SnapshotId>,
    /// An event that is older than the snapshot, and by which that other one was there: nothing before it is looked at.
    pub(crate) since: u64,
}

/// A snapshot of some workspace that may go for want of room.
struct Candidate {
    time: Timestamp,
    workspace: usize,
    snapshot: SnapshotRecord,
}

impl Workspace {
    /// Does what is due. Behind a snapshot: nobody waits for it.
    pub(crate) fn prune_if_due(&self, report: &mut GcReport) -> Result<()> {
        let Some(_lock) = Lock::try_take(&self.folder().join("prune.lock"), true)? else { return Ok(()) };
        if !is_due(self) {
            return Ok(());
        }
        // First, so that whatever becomes of this run the next one is an hour away.
        note_run(self, self.engine.settings().clock.now())?;
        let config = self.config()?;
        let removed = self.prune_unasked(&config)?.unwrap_or(0);
        if removed > 0 {
            report.did(format!(
                "removed {} that the retention policy does not keep",
                count(removed, "automatic snapshot", "automatic snapshots")
            ));
        }
        self.compress_closed(report)?;
        let removed = self.prune_recordings(&config, false)?;
        if removed > 0 {
            report.did(format!(
                "removed {} that the retention policy does not keep",
                count(removed, "recording", "recordings")
            ));
        }
        let removed = self.shrink_all()?;
        if removed > 0 {
            report.did(format!(
                "removed {}, as the stores took more than they may",
                count(removed, "automatic snapshot", "automatic snapshots")
            ));
        }
        Ok(())
    }

    /// Makes room where `lacking` says that there is too little: of recordings first, then of snapshots. Of what policies keep for its
    /// youth alone as much goes as it takes, and nothing of the last hour. False if somebody else is at it, or about to need a snapshot.
    pub(super) fn prune_for_room(&self, config: &Config, lacking: impl Fn() -> Option<Lacking>) -> Result<bool> {
        let Some(_lock) = Lock::try_take(&self.folder().join("prune.lock"), true)? else { return Ok(false) };
        // What cannot be done of that is no reason to leave snapshots.
        let _ = self.prune_recordings(config, true);
        let mut tried = true;
        if lacking().is_some() {
            tried = self.prune_unasked(config)?.is_some();
            self.reclaim_all()?;
        }
        if let Some(lacking) = lacking() {
            tried &= self.prune_young(config, lacking)?.is_some();
            self.reclaim_all()?;
        }
        Ok(tried)
    }

    /// Removes recordings that their policy does not keep; gives how many.
    fn prune_recordings(&self, config: &Config, tight: bool) -> Result<u64> {
        let policy = Policy::parse_for_recordings(config.recordings_policy())?;
        let policy = if tight { policy.tightened(TIGHT) } else { policy };
        self.remove_untrimmed(&policy)?;
        let (removed, _) = self.remove_recordings(&self.recording_verdicts(&policy)?)?;
        Ok(removed)
    }

    /// Removes what the policy does not keep and nobody would miss; gives how many, as [`Self::remove_free`].
    fn prune_unasked(&self, config: &Config) -> Result<Option<usize>> {
        let policy = Policy::parse(config.prune_policy())?;
        self.remove_free(|given| plan::going(&policy, given))
    }

    /// Removes of what the policy keeps for its youth alone, and is older than an hour, the oldest, until what is lacking is there; gives how
    /// many, as [`Self::remove_free`]. Where nobody says what that takes, all of it; where it would hardly be noticed, nothing.
    fn prune_young(&self, config: &Config, lacking: Lacking) -> Result<Option<usize>> {
        let policy = Policy::parse(config.prune_policy())?.tightened(TIGHT);
        let young = self.with_given(|given| plan::going(&policy, given).into_iter().cloned().collect::<Vec<_>>())?;
        let mut chosen = BTreeSet::new();
        for name in self.stores()? {
            let Ok(served) = self.serve(&name) else { continue };
            let wanted = if served.keeps_in_store() { lacking.home } else { lacking.workspace };
            let own: Vec<_> = young.iter().filter(|snapshot| snapshot.provider == name).collect();
            let number = match self.frees(&own) {
                Some(all) if all < wanted / NOTICED => 0,
                // One that says it of all says it of some.
                Some(_) => fewest(own.len(), wanted, |number| self.frees(&own[..number])).unwrap_or(0),
                None if wanted == 0 => 0,
                None => own.len(),
            };
            chosen.extend(own[..number].iter().map(|snapshot| snapshot.id.clone()));
        }
        self.remove_free(|given| {
            let mut going = plan::going(&policy, given);
            going.retain(|snapshot| chosen.contains(&snapshot.id));
            going
        })
    }

    /// Removes those that `choose` takes of what is there; gives how many. None if somebody is about to need one: the next run sees to it.
    fn remove_free(
        &self,
        choose: impl for<'a> FnOnce(&'a Given<'a>) -> Vec<&'a SnapshotRecord>,
    ) -> Result<Option<usize>> {
        let going: Vec<SnapshotRecord> = {
            let Some(_stays) = self.decide(WAIT)? else { return Ok(None) };
            let going = self.with_given(|given| choose(given).into_iter().cloned().collect::<Vec<_>>())?;
            if going.is_empty() {
                return Ok(Some(0));
            }
            self.say_removed(&going, "retention")?;
            going
        };
        self.destroy_all(&going)?;
        Ok(Some(going.len()))
    }

    /// Takes a snapshot off the timeline, by `say`, if it still is of that kind, nobody's own and not needed, and the other is there.
    /// Whether that is so; then its provider is to remove it.
    pub(crate) fn give_up_if_free(
        &self,
        asked: &Free<'_>,
        wait: Duration,
        say: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let Some(_stays) = self.decide(wait)? else { return Ok(false) };
        let state = match asked.since {
            0 => Some(self.state()?),
            since => {
                let events = self.log().read_since(since)?;
                events.map(|events| State::of(TimelineReport { events, ..TimelineReport::default() }))
            }
        };
        let may = |state: &State| !state.gaps && asked.other.is_none_or(|other| !state.removed.contains(other));
        let Some(state) = state.filter(may) else {
            return Ok(false);
        };
        let free = self.given_of(&state, |given| {
            let own = given.snapshots.iter().find(|snapshot| snapshot.id == *asked.id);
            own.is_some_and(|own| own.kind == asked.kind && given.wanted(own).is_none())
        })?;
        if free {
            say()?;
        }
        Ok(free)
    }

    /// Until it is dropped nobody pins, labels or comes to need a snapshot; none if somebody is still at it after
    /// `wait`.
    fn decide(&self, wait: Duration) -> Result<Option<Lock>> {
        match Lock::take(&self.folder().join("stays.lock"), true, wait, &*self.engine.settings().observer) {
            Err(error) if error.kind == ErrorKind::Busy => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// What there is, for who decides without being asked; nothing as long as it is not known whose some of that is.
    fn with_given<T: Default>(&self, ask: impl FnOnce(&Given<'_>) -> T) -> Result<T> {
        let state = self.state()?;
        if state.gaps { Ok(T::default()) } else { self.given_of(&state, ask) }
    }

    fn given_of<T>(&self, state: &State, ask: impl FnOnce(&Given<'_>) -> T) -> Result<T> {
        let (protected, prompts) =
            (self.protected(state)?, Prompts::of(&state.events, &state.moments, &state.snapshots));
        let (snapshots, now) = (&state.snapshots, self.engine.settings().clock.now());
        Ok(ask(&Given { snapshots, protected: &protected, prompts: &prompts, unasked: true, now }))
    }

    /// Takes the oldest of all workspaces until the stores in `$AH_HOME` take no more than they may; gives how many. What may not go leaves the
    /// others half of that, however much it is.
    fn shrink_all(&self) -> Result<usize> {
        // What holds for all is no single project's to say.
        let max = self.max_stored(&self.engine.config(None)?)?;
        let known = Index::load(self.engine.home())?.0.workspaces.into_iter();
        let everyone: Vec<Self> = known
            .map(|record| {
                let root = record.path.clone();
                self.engine.handle(record, root)
            })
            .collect();
        // One that cannot be asked now does not keep the others from being asked.
        let stored = |workspace: &Self| workspace.stored_at_home().unwrap_or_default();
        let total = || everyone.iter().map(|workspace| stored(workspace).0).sum::<u64>();
        if total() <= max {
            return Ok(0);
        }
        // Nothing goes for what has gone already.
        for workspace in &everyone {
            let _ = workspace.reclaim_all();
        }
        let total = total();
        if total <= max {
            return Ok(0);
        }
        let mut candidates = Vec::new();
        for (at, workspace) in everyone.iter().enumerate() {
            candidates.extend(workspace.may_go(at, &stored(workspace).1).unwrap_or_default());
        }
        candidates.sort_by_key(|one| (one.time, one.workspace, one.snapshot.seq));
        let of = |number: usize, at: usize| {
            let own = candidates[..number].iter().filter(|one| one.workspace == at);
            own.map(|one| &one.snapshot).collect::<Vec<_>>()
        };
        // Most steps of the search change nothing about most workspaces.
        let mut asked: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut held = |number: usize, at: usize| {
            let own = of(number, at);
            *asked.entry((at, own.len())).or_insert_with(|| everyone[at].frees(&own).unwrap_or(0))
        };
        let mut frees = |number| (0..everyone.len()).map(|at| held(number, at)).sum::<u64>();
        let stays = total.saturating_sub(frees(candidates.len()));
        let wanted = total - max.max(stays.saturating_add(max / 2)).min(total);
        let number = fewest(candidates.len(), wanted, |number| Some(frees(number))).unwrap_or(0);
        let mut removed = 0;
        for (at, workspace) in everyone.iter().enumerate() {
            // A small one is not emptied for a large one.
            if held(number, at) <= wanted / NOTICED {
                continue;
            }
            let going: BTreeSet<_> = of(number, at).into_iter().map(|snapshot| snapshot.id.clone()).collect();
            // Since they were looked for, somebody may have come to need one.
            let outcome = workspace.remove_free(|given| {
                let may = given.may_give_way().into_iter().map(|at| &given.snapshots[at]);
                may.filter(|snapshot| going.contains(&snapshot.id)).collect()
            });
            // Nobody else's newer ones go in the stead of what stays.
            if let Ok(Some(count)) = outcome {
                removed += count;
                workspace.reclaim_all()?;
            }
        }
        Ok(removed)
    }

    /// What of this workspace may go for want of room, and frees some: of the providers that say what they store in `$AH_HOME`.
    fn may_go(&self, at: usize, known: &BTreeSet<ProviderName>) -> Result<Vec<Candidate>> {
        self.with_given(|given| {
            let going = given.may_give_way().into_iter().map(|at| &given.snapshots[at]);
            let going = going.filter(|snapshot| known.contains(&snapshot.provider));
            going.map(|snapshot| Candidate { time: snapshot.time, workspace: at, snapshot: snapshot.clone() }).collect()
        })
    }
}
