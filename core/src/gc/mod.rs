//! Reclaiming what crashes left, and background work.
//!
//! - `orphans`: timeline and providers' stores brought into agreement; instant snapshots made durable.
//! - `leftovers`: leases, views, branches and files that nobody holds any more.
//!
//! Each step stands alone: what one cannot do is reported, and the next is done. An interrupted restore is not gc's: a person decides.

mod leftovers;
mod orphans;

use std::time::{Duration, Instant};

use ah_plugin_api::{Dir, Error, ErrorKind, ProviderName, ReclaimRequest, Result};
use serde::Serialize;

use crate::fsio;
use crate::lock::Lock;
use crate::status::MissingWorkspace;
use crate::text;
use crate::workspace::Workspace;

pub(crate) use leftovers::remove_view_folder;

/// A provider that always finds something is not asked for ever.
const MAX_TURNS: u32 = 10_000;

/// Nor as often if it says the same each time, at once. What takes long may be done in many alike steps; what is left of it, the next run goes on with.
const MAX_ALIKE: u32 = 100;

/// So many sentences are kept of all turns.
const MAX_TOLD: usize = 1_000;

/// Who waits for a lock looks every 50 ms whether it is free.
const BETWEEN_TURNS: Duration = Duration::from_millis(60);

/// What can be said about a gc.
#[derive(Debug, Clone, Default)]
pub struct GcOptions {
    /// Only what is due and cheap: the background work after a snapshot.
    pub auto: bool,
}

/// What a gc did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GcReport {
    /// One sentence for each thing that was finished or undone, or that a person has to see to first.
    pub actions: Vec<String>,
    /// What could not be done, one sentence each.
    pub failures: Vec<String>,
    /// Bytes given back.
    pub bytes: u64,
    /// Other workspaces whose directories are not where they were; their snapshots stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingWorkspace>,
}

impl GcReport {
    pub(crate) fn did(&mut self, what: impl Into<String>) {
        self.actions.push(what.into());
    }

    /// As [`Self::did`], of so many of what is called so, one and several; of none nothing is said.
    pub(crate) fn did_remove(&mut self, removed: u64, [one, many]: [&str; 2], why: &str) {
        if removed > 0 {
            self.did(format!("removed {}{why}", text::count(removed, one, many)));
        }
    }

    /// Takes note of what went wrong with some of many, such as records that cannot be read.
    fn tell(&mut self, errors: &[Error]) {
        let hint = |error: &Error| error.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
        self.failures.extend(errors.iter().map(|error| with_causes(error) + &hint(error)));
    }

    /// Takes note of a step's failure; only a wish to stop stops everything.
    pub(crate) fn note(&mut self, what: &str, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
            Err(error) => {
                self.failures.push(format!("{what}: {}", with_causes(&error)));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn with_causes(error: &Error) -> String {
    error.causes.iter().fold(error.message.clone(), |text, cause| format!("{text}: {cause}"))
}

impl Workspace {
    /// Brings timeline and providers' stores into agreement, finishes or undoes what crashes left, gives space back. Safe at any
    /// time, beside any other process.
    ///
    /// # Errors
    /// Only if nothing could be done at all, `FailedPrecondition` in a copy of an `$AH_HOME` that is there; the rest is in the report.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport> {
        let mut report = GcReport::default();
        // Before the lock, which another one may hold for long.
        let synced = self.make_durable(options.auto, &mut report);
        report.note("making snapshots durable", synced)?;
        let settled = self.settle_restores();
        report.note("making restored files durable", settled)?;
        if options.auto {
            let pruned = self.prune_if_due(&mut report);
            report.note("applying the retention policy", pruned)?;
            if self.engine.home().original().is_none() {
                self.reclaim_in_turns(&mut report)?;
            }
            return Ok(report);
        }
        self.engine.home().may_remove("`gc`")?;
        // What a killed worker left.
        let outcome = self.settle_moments(self.engine.settings().patience).map(drop);
        report.note("taking the snapshots that moments wait for", outcome)?;
        let outcome = self.settle_unheard_moments();
        report.note("saying why moments have no snapshots", outcome)?;
        let outcome = self.end_vanished();
        report.note("ending sessions whose agents are gone", outcome)?;
        let _lock = self.lock("gc")?;
        let outcome = self.give_back_stale_leases(&mut report);
        report.note("giving back stale views", outcome)?;
        let outcome = self.all_known().and_then(|all| {
            let patience = self.engine.settings().patience_left();
            self.forget_dead_views(&all, patience, &mut report)
        });
        report.note("looking for views that nobody holds", outcome)?;
        let outcome = self.finish_branches(&mut report);
        report.note("finishing branches", outcome)?;
        let outcome = self.finish_branches_made_once(&mut report);
        report.note("taking away branches of commands that have ended", outcome)?;
        // After the branches: a session that was to bear one may have gone with its branch.
        let outcome = self.finish_conversations().map(|(done, failed)| {
            report.actions.extend(done);
            report.tell(&failed);
        });
        report.note("finishing conversations", outcome)?;
        let outcome = self.note_lost_lines();
        report.note("noting which lines of timelines are lost", outcome)?;
        let mut all_asked = true;
        for name in self.stores()? {
            let outcome = self.reconcile(&name, &mut report);
            all_asked &= matches!(outcome, Ok(true));
            report.note(&format!("reconciling with {name}"), outcome.map(drop))?;
            let outcome = self.reclaim(&name, false, &mut report).map(|stays| report.actions.extend(stays));
            report.note(&format!("reclaiming in {name}"), outcome)?;
        }
        let outcome = self.pin_behind_lost_lines(&mut report);
        report.note("pinning what lost lines may have pinned", outcome)?;
        // After all were asked: a snapshot that is only not on the timeline is listed again by then.
        let outcome = self.tidy_restores(all_asked).map(|(done, failures)| {
            report.actions.extend(done);
            report.failures.extend(failures);
        });
        report.note("clearing up after restores", outcome)?;
        let outcome = self.compress_closed(&mut report);
        report.note("compressing recordings", outcome)?;
        let outcome = self.reclaim_missing(&mut report);
        report.note("reclaiming of workspaces that are not there", outcome)?;
        let outcome = self.sweep(&mut report);
        report.note("sweeping", outcome)?;
        self.engine.home().keep_reserve();
        Ok(report)
    }

    /// Compresses the recordings that nobody makes any more.
    pub(crate) fn compress_closed(&self, report: &mut GcReport) -> Result<()> {
        let compressed = self.compress_recordings()?;
        if compressed > 0 {
            report.did(format!("compressed {}", text::count(compressed, "recording", "recordings")));
        }
        Ok(())
    }

    /// Lets providers do what is due, as long as they find something: one call does only a little of what takes long, and between two
    /// whoever asks for a `gc` by hand comes in.
    fn reclaim_in_turns(&self, report: &mut GcReport) -> Result<()> {
        let path = self.folder().join("gc.lock");
        let (mut former, mut alike) = (Vec::new(), 0);
        for _ in 0..MAX_TURNS {
            // Another one is at it, and finds what is due now; what comes later starts its own.
            let Some(lock) = Lock::try_take(&path, true)? else { return Ok(()) };
            let (before, began) = (report.actions.len(), Instant::now());
            for name in self.stores()? {
                let outcome = self.reclaim(&name, true, report).map(drop);
                report.note(&format!("reclaiming in {name}"), outcome)?;
            }
            drop(lock);
            let done = report.actions.split_off(before);
            // What takes its time is done.
            alike = if done == former && began.elapsed() < BETWEEN_TURNS { alike + 1 } else { 0 };
            if done.is_empty() || alike == MAX_ALIKE {
                // Not while another one may be at it, who gave it up for that.
                self.engine.home().keep_reserve();
                return Ok(());
            }
            if done != former {
                report.actions.extend(done.iter().take(MAX_TOLD.saturating_sub(before)).cloned());
            }
            former = done;
            std::thread::sleep(BETWEEN_TURNS);
        }
        Ok(())
    }

    /// Lets providers reclaim what other workspaces need no more whose directories are not there: no `gc` is run in those.
    fn reclaim_missing(&self, report: &mut GcReport) -> Result<()> {
        for record in self.engine.missing()? {
            let path = record.path.clone();
            let workspace = self.engine.handle(record, path);
            if workspace.holds_something() {
                report.missing.push(MissingWorkspace::of(&workspace));
            }
            // That was done already.
            if workspace.id == self.id {
                continue;
            }
            for name in workspace.stores()? {
                let outcome = workspace.reclaim(&name, false, report).map(|stays| report.actions.extend(stays));
                report.note(&format!("reclaiming in {name} of {}", workspace.root().display()), outcome)?;
            }
        }
        Ok(())
    }

    /// The providers that have a store here.
    pub(crate) fn stores(&self) -> Result<Vec<ProviderName>> {
        let names = fsio::names(&self.folder().join("providers"))?;
        Ok(names.into_iter().filter_map(|name| ProviderName::new(name).ok()).collect())
    }

    /// Lets a provider finish or undo what crashes left, in its store and in each folder where it makes things; what has to stay until a person has seen to it.
    pub(crate) fn reclaim(&self, name: &ProviderName, auto: bool, report: &mut GcReport) -> Result<Vec<String>> {
        let served = self.serve(name)?;
        let mut targets = vec![self.mounts_dir()?];
        if !auto {
            // Where no branch was ever made, nothing is left of one; and on a full disk no folder can be made.
            match Dir::open(self.engine.home().join("branches")) {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                opened => targets.push(opened?),
            }
        }
        let mut stays = Vec::new();
        for target in &targets {
            // The last one says what stays of all.
            stays = self.reclaim_in(&served, target, auto, report)?;
        }
        Ok(stays)
    }

    /// The same, in one folder.
    pub(crate) fn reclaim_in(
        &self,
        served: &crate::workspace::Served,
        target: &Dir,
        auto: bool,
        report: &mut GcReport,
    ) -> Result<Vec<String>> {
        let dir = self.dir_that_answers();
        let place = served.place().with_target(target);
        let place = dir.as_ref().map_or(place, |dir| place.with_workspace(dir));
        let request = ReclaimRequest { auto, ..ReclaimRequest::default() };
        let home = self.engine.home();
        let reclaimed = home.with_reserve(|| served.provider.reclaim(&place, &request, &self.context()))?;
        report.actions.extend(reclaimed.actions);
        report.bytes = report.bytes.saturating_add(reclaimed.bytes);
        Ok(reclaimed.stays)
    }
}
