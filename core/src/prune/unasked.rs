//! Retention that nobody asked for: at most once an hour, and once after each start of the machine, in the background's process behind a snapshot; and at once where an automatic
//! capture finds the disk too full.
//!
//! It takes no snapshot of a workspace whose timeline has lines that cannot be read. It never takes what is a person's own (taken by hand, labelled, pinned), what a branch, a view or an undo needs, the newest, or for 14 days the
//! last of a session, whatever the policy says. What goes is decided, and taken off the timeline, while nobody can pin, label or come to
//! need a snapshot (the lock `stays`); the providers remove it afterwards. A clock that was set back makes nothing old, nor one that goes ahead while the machine runs
//! (`runs`).

use std::collections::BTreeSet;
use std::time::Duration;

use ah_plugin_api::{Capability, ErrorKind, Result, SnapshotId};

use crate::config::Config;
use crate::gc::GcReport;
use crate::lock::Lock;
use crate::prune::plan::{self, Given};
use crate::prune::prompts::Prompts;
use crate::prune::room::{AGAIN, Lacking};
use crate::prune::size::fewest;
use crate::prune::{NOTICED, Policy, runs};
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::state::State;
use crate::timeline::TimelineReport;
use crate::workspace::Workspace;

/// Filesystems give back what they were told to remove in their own time; what more must go is looked at after so many seconds.
const SETTLED: i64 = 300;

/// On a disk that is too full, this is what stays of `keep-within`, in nanoseconds.
const TIGHT: i128 = 3_600 * 1_000_000_000;

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

impl Workspace {
    /// Does what is due, each step as far as it can, whatever became of the others. Behind a snapshot: nobody waits for it.
    pub(crate) fn prune_if_due(&self, report: &mut GcReport) -> Result<()> {
        let Some(_lock) = Lock::try_take(&self.folder().join("prune.lock"), true)? else { return Ok(()) };
        if !runs::is_due(self) {
            return Ok(());
        }
        // First, so that whatever becomes of this run the next one is an hour away.
        runs::begin(self)?;
        let outcome = self.finish_removals(report);
        report.note("finishing removals", outcome)?;
        let outcome = self.finish_branches_made_once(report);
        report.note("taking away branches of commands that have ended", outcome)?;
        let config = self.config()?;
        let not_kept = " that the retention policy does not keep";
        let outcome = self.prune_unasked(&config).map(|removed| {
            report.did_remove(removed.unwrap_or(0) as u64, ["automatic snapshot", "automatic snapshots"], not_kept);
        });
        report.note("applying the retention policy to snapshots", outcome)?;
        // What undoes a restore is of use as long as what it goes back to is there.
        let outcome = self.forget_plans_if_free(report);
        report.note("clearing up after restores", outcome)?;
        // Before sizes are judged: what is compressed pushes less out.
        let outcome = self.compress_closed(report);
        report.note("compressing recordings", outcome)?;
        let outcome = self.prune_recordings(&config, false).map(|removed| {
            report.did_remove(removed, ["recording", "recordings"], not_kept);
        });
        report.note("applying the retention policy to recordings", outcome)?;
        let outcome = self.shrink_all().map(|removed| {
            let why = ", as the stores took more than they may";
            report.did_remove(removed as u64, ["automatic snapshot", "automatic snapshots"], why);
        });
        report.note("having the stores take no more than they may", outcome)
    }

    /// Makes room where `lacking` says that there is too little: of recordings first, then of snapshots. Of what policies keep for its
    /// youth alone as much goes as it takes, and nothing of the last hour. Gives the seconds after which it is worth another try: 0 if somebody else is at
    /// it, or about to need a snapshot.
    pub(super) fn prune_for_room(&self, config: &Config, lacking: impl Fn() -> Option<Lacking>) -> Result<i64> {
        let Some(_lock) = Lock::try_take(&self.folder().join("prune.lock"), true)? else { return Ok(0) };
        // What cannot be done of that is no reason to leave snapshots.
        let _ = self.prune_recordings(config, true);
        if lacking().is_none() {
            return Ok(AGAIN);
        }
        let Some(removed) = self.prune_unasked(config)? else { return Ok(0) };
        let given = self.reclaim_all();
        let Some(still) = lacking() else { return Ok(AGAIN) };
        if removed > 0 {
            return Ok(SETTLED);
        }
        // More would be taken off the timeline for nothing, as long as there is no room to give it back.
        if given.is_err_and(|error| error.kind == ErrorKind::ResourceExhausted) {
            return Ok(AGAIN);
        }
        let tried = self.prune_young(config, still)?.is_some();
        let _ = self.reclaim_all();
        Ok(if tried { AGAIN } else { 0 })
    }

    /// Removes recordings that their policy does not keep; gives how many.
    fn prune_recordings(&self, config: &Config, tight: bool) -> Result<u64> {
        let policy = Policy::parse_for_recordings(config.recordings_policy())?;
        let policy = if tight { policy.tightened(TIGHT) } else { policy };
        // What of these cannot go is no reason to leave the others.
        let untrimmed = self.remove_untrimmed(&policy);
        if let Err(error) = &untrimmed
            && error.kind == ErrorKind::Cancelled
        {
            return untrimmed.map(|()| 0);
        }
        let (removed, _) = self.remove_recordings(&self.recording_verdicts(&policy)?)?;
        untrimmed.map(|()| removed)
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
        // Where the workspace lies, and where `AH_HOME` does.
        let (mut chosen, mut wanted) = (BTreeSet::new(), [lacking.workspace, lacking.home]);
        for name in self.stores()? {
            let Ok(served) = self.serve(&name) else { continue };
            let wanted = &mut wanted[usize::from(lacking.same || served.keeps_in_store())];
            let own: Vec<_> = young.iter().filter(|snapshot| snapshot.provider == name).collect();
            let number = match self.frees(&own) {
                _ if *wanted == 0 => 0,
                Some(all) if all <= *wanted / NOTICED => 0,
                Some(_) => fewest(own.len(), *wanted, |number| self.frees(&own[..number])).unwrap_or(0),
                // What cannot be told at present may be what does not come back at present.
                None if served.can(Capability::Usage) => 0,
                None => own.len(),
            };
            // What one store gives need not be given by another.
            *wanted = wanted.saturating_sub(self.frees(&own[..number]).unwrap_or(0));
            chosen.extend(own[..number].iter().map(|snapshot| snapshot.id.clone()));
        }
        self.remove_free(|given| {
            let mut going = plan::going(&policy, given);
            going.retain(|snapshot| chosen.contains(&snapshot.id));
            going
        })
    }

    /// Removes those that `choose` takes of what is there; gives how many. None if somebody is about to need one: the next run sees to it.
    pub(super) fn remove_free(
        &self,
        choose: impl for<'a> FnOnce(&'a Given<'a>) -> Vec<&'a SnapshotRecord>,
    ) -> Result<Option<usize>> {
        let going: Vec<SnapshotRecord> = {
            let Some(_stays) = self.decide(WAIT)? else { return Ok(None) };
            let going = self.with_given(|given| choose(given).into_iter().cloned().collect::<Vec<_>>())?;
            if going.is_empty() {
                return Ok(Some(0));
            }
            // On a disk without room for that nobody waits here for what providers give back.
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
        let may = |state: &State| state.gap.is_none() && asked.other.is_none_or(|other| !state.removed.contains(other));
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
        if !self.engine.home().claim() {
            return Ok(None);
        }
        match Lock::take(&self.folder().join("stays.lock"), true, wait, &*self.engine.settings().observer) {
            Err(error) if error.kind == ErrorKind::Busy => Ok(None),
            taken => taken.map(Some),
        }
    }

    /// What there is, for who decides without being asked; nothing as long as it is not known whose some of that is.
    pub(super) fn with_given<T: Default>(&self, ask: impl FnOnce(&Given<'_>) -> T) -> Result<T> {
        let state = self.state()?;
        if state.gap.is_some() { Ok(T::default()) } else { self.given_of(&state, ask) }
    }

    fn given_of<T>(&self, state: &State, ask: impl FnOnce(&Given<'_>) -> T) -> Result<T> {
        let (protected, prompts) =
            (self.protected(state)?, Prompts::of(&state.events, &state.moments, &state.snapshots));
        let (snapshots, now) = (&state.snapshots, self.engine.settings().clock.now());
        let clock = runs::clock_set(self);
        Ok(ask(&Given { snapshots, protected: &protected, prompts: &prompts, unasked: true, now, clock }))
    }
}
