//! Retention: removing snapshots by rule, when somebody asks for it.
//!
//! - `policy`: the rules as text. `plan`: what they keep. `prompts`: which snapshot stands for which prompt.
//! - `size`: `max-size`. `room`: what our stores may take, and pausing on a disk that runs full. `shrink`: taking no more than that.
//! - `unasked`: what runs by itself, behind snapshots; it never takes what is a person's own. `runs`: when it last did, and clocks that were set.

mod plan;
mod policy;
mod prompts;
mod room;
mod runs;
mod shrink;
mod size;
mod unasked;

use std::collections::HashMap;

use ah_plugin_api::{Error, ErrorKind, ProviderName, Result, Timestamp};
use serde::Serialize;

use crate::gc::GcReport;
use crate::record::SnapshotRecord;
use crate::recording::RecordingVerdict;
use crate::state::State;
use crate::timeline::{FaultKind, TimelineFault};
use crate::workspace::Workspace;

use plan::{Given, Protected};
use prompts::Prompts;

pub(crate) use policy::{DEFAULT, DEFAULT_RECORDINGS, Policy};
pub(crate) use runs::{ClockSet, clock_set, is_due};
pub(crate) use unasked::{Free, WAIT};

/// What frees less than one part in so many of what is wanted is not worth its going.
const NOTICED: u64 = 100;

/// What can be said about a prune.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// The policy, `keep-last=50,keep-within=7d`; none: the configured one if `recordings` is none, too, else snapshots are left alone.
    pub policy: Option<String>,
    /// The policy for recordings; none: the configured one if `policy` is none, too, else they are left alone.
    pub recordings: Option<String>,
    /// Say what would be removed, and do nothing.
    pub dry_run: bool,
}

/// What is done with one snapshot.
#[derive(Debug, Clone, Serialize)]
pub struct PruneVerdict {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: SnapshotRecord,
    /// Whether it stays.
    pub stays: bool,
    /// Why: the rule that keeps it, or that none does.
    pub reason: String,
}

/// What a prune did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PruneReport {
    /// The policy, written out; empty: snapshots are left alone.
    pub policy: String,
    /// Whether that is only what would be done.
    pub dry_run: bool,
    /// Each snapshot, oldest first.
    pub verdicts: Vec<PruneVerdict>,
    /// How many were (or would be) removed.
    pub removed: u64,
    /// The policy for recordings, written out; none: they are left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recordings_policy: Option<String>,
    /// Each recording, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recordings: Vec<RecordingVerdict>,
    /// Bytes that go with what is removed, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frees: Option<u64>,
    /// Bytes given back, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Workspace {
    /// Applies a retention policy. Never removes what is pinned, what the last restore's undo needs, nor what a branch or a lease
    /// needs. `explain` hears what would be removed before it is, and nothing is if it fails. What it takes its time for is looked at again.
    ///
    /// # Errors
    /// What `explain` gives; `InvalidArgument` for a policy that is not one, and for one session alone; `FailedPrecondition` inside an agent's own session, in a copy of an `$AH_HOME` that is there, and beside lines of the timeline that cannot be read;
    /// `DataLoss` if it cannot be read what a view, a branch or a restore needs; the provider's.
    pub fn prune(
        &self,
        options: &PruneOptions,
        explain: &mut dyn FnMut(&PruneReport) -> Result<()>,
    ) -> Result<PruneReport> {
        if !options.dry_run {
            self.engine.refuse_to_agents("`prune`")?;
            self.engine.home().may_remove("`prune`")?;
        }
        if let Some(session) = &self.engine.settings().session {
            let message = format!("`prune` judges all sessions, and not {session} alone");
            return Err(Error::new(ErrorKind::InvalidArgument, message)
                .with_hint("leave `--session` out; `keep-last=N/session` keeps so many of each"));
        }
        let config = self.config()?;
        if let (None, Some(recordings)) = (&options.policy, &options.recordings) {
            let mut report = PruneReport { dry_run: options.dry_run, ..PruneReport::default() };
            self.judge_recordings(recordings, &mut report)?;
            explain(&report)?;
            if !options.dry_run {
                self.remove_recordings(&report.recordings)?;
            }
            return Ok(report);
        }
        let policy = Policy::parse(options.policy.as_deref().unwrap_or_else(|| config.prune_policy()))?;
        // As for `rm`: what is not on disk yet keeps what it needs.
        let _ = self.settle_restores();
        let state = self.state()?;
        if let Some(gap) = state.gap.as_ref().filter(|_| !options.dry_run) {
            return Err(self.may_be_pinned(gap));
        }
        let (protected, prompts) =
            (self.protected(&state)?, Prompts::of(&state.events, &state.moments, &state.snapshots));
        let now = self.engine.settings().clock.now();
        let snapshots = &state.snapshots;
        let given = Given {
            snapshots,
            protected: &protected,
            prompts: &prompts,
            unasked: false,
            now,
            clock: runs::clock_set(self),
        };
        let verdict = |(snapshot, reason): (&SnapshotRecord, Option<String>)| PruneVerdict {
            snapshot: snapshot.clone(),
            stays: reason.is_some(),
            reason: reason.unwrap_or_else(|| "no rule keeps it".to_owned()),
        };
        let verdicts = snapshots.iter().zip(plan::plan(&policy, &given)).map(verdict).collect();
        let mut report = PruneReport {
            policy: policy.to_string(),
            dry_run: options.dry_run,
            verdicts,
            removed: 0,
            recordings_policy: None,
            recordings: Vec::new(),
            frees: None,
            bytes: None,
        };
        let recordings = match (&options.recordings, &options.policy) {
            (Some(text), _) => Some(text.as_str()),
            (None, None) => Some(config.recordings_policy()),
            (None, Some(_)) => None,
        };
        if let Some(recordings) = recordings {
            self.judge_recordings(recordings, &mut report)?;
        }
        let planned: Vec<bool> = report.verdicts.iter().map(|verdict| !verdict.stays).collect();
        if policy.limits_size() && !options.dry_run {
            // Nothing goes for what has gone already. On a full disk that may fail; then what goes comes first.
            let _ = self.reclaim_all();
        }
        let before = self.stored_bytes();
        self.take_too_much(&policy, &given, &mut report.verdicts)?;
        let going: Vec<usize> = (0..snapshots.len()).filter(|at| !report.verdicts[*at].stays).collect();
        report.removed = going.len() as u64;
        report.frees =
            self.frees(&going.iter().map(|at| &snapshots[*at]).collect::<Vec<_>>()).filter(|_| !going.is_empty());
        explain(&report)?;
        if options.dry_run {
            return Ok(report);
        }
        let mut reclaimed = Ok(());
        if !going.is_empty() {
            let records = {
                let _stays = self.lock("stays")?;
                let records = self.still_go(&policy, now, going, &planned, &mut report.verdicts)?;
                self.take_off(&records, "prune")?;
                records
            };
            report.removed = records.len() as u64;
            self.destroy_all(&records)?;
            reclaimed = self.reclaim_all();
            report.bytes = before.zip(self.stored_bytes()).map(|(before, after)| before.saturating_sub(after));
        }
        self.remove_recordings(&report.recordings)?;
        reclaimed.map(|()| report)
    }

    /// Those of `going` that may go as things are now: meanwhile one may have been labelled, pinned, or come to be needed. `planned` says which go by what the
    /// policy keeps; the others go by its size. What stays is told in `verdicts`.
    fn still_go(
        &self,
        policy: &Policy,
        now: Timestamp,
        going: Vec<usize>,
        planned: &[bool],
        verdicts: &mut [PruneVerdict],
    ) -> Result<Vec<SnapshotRecord>> {
        let state = self.state()?;
        if let Some(gap) = &state.gap {
            return Err(self.may_be_pinned(gap));
        }
        let (protected, prompts) =
            (self.protected(&state)?, Prompts::of(&state.events, &state.moments, &state.snapshots));
        let given = Given {
            snapshots: &state.snapshots,
            protected: &protected,
            prompts: &prompts,
            unasked: false,
            now,
            clock: runs::clock_set(self),
        };
        let (reasons, may_give_way) = (plan::plan(policy, &given), given.may_give_way());
        let places: HashMap<_, _> = state.snapshots.iter().enumerate().map(|(at, it)| (&it.id, at)).collect();
        let mut records = Vec::new();
        for at in going {
            let verdict = &mut verdicts[at];
            // Another one may have removed it.
            let Some(&place) = places.get(&verdict.snapshot.id) else { continue };
            let stays = match planned[at] {
                true => reasons[place].clone(),
                false if may_give_way.contains(&place) => None,
                false => Some(given.stays(&state.snapshots[place]).unwrap_or("the newest").to_owned()),
            };
            match stays {
                Some(reason) => (verdict.stays, verdict.reason) = (true, reason),
                None => records.push(state.snapshots[place].clone()),
            }
        }
        Ok(records)
    }

    /// Why nothing can be chosen by a policy.
    fn may_be_pinned(&self, gap: &TimelineFault) -> Error {
        let TimelineFault { session, line, reason, kind, way_out } = gap;
        let file = self.folder().join("sessions").join(session.as_str()).join("timeline.jsonl");
        let what = match kind {
            FaultKind::File => format!("the timeline of session {session} cannot be read"),
            FaultKind::End => format!("line {line} of session {session} is not there any more"),
            FaultKind::Line | FaultKind::Unknown => format!("line {line} of session {session} cannot be read"),
        };
        let message = format!("{what}, and may have pinned something: {reason}");
        let file = ah_plugin_api::text::shell(file.as_os_str());
        let error = Error::new(ErrorKind::FailedPrecondition, message);
        let way_out = match kind {
            FaultKind::End => "to pin all that it may have been: ah agent fs gc".to_owned(),
            FaultKind::File => return Error { hint: way_out.clone(), ..error },
            // It stays there as a blank one: that it is the last, say, and gone, would be a loss again.
            FaultKind::Line | FaultKind::Unknown => format!("to do without that line: sed -i {line}x {file}"),
        };
        error.with_hint(format!("`ah agent fs rm ID` removes single ones; {way_out}"))
    }

    fn judge_recordings(&self, policy: &str, report: &mut PruneReport) -> Result<()> {
        let policy = Policy::parse_for_recordings(policy)?;
        report.recordings = self.recording_verdicts(&policy)?;
        report.recordings_policy = Some(policy.to_string());
        Ok(())
    }

    /// What stays whatever the policy says.
    fn protected(&self, state: &State) -> Result<Protected> {
        let mut protected = Protected::new();
        for id in self.needed(&state.events)?.into_keys() {
            protected.insert(id, "a view, or a restore that has not come to its end, needs it");
        }
        for branch in self.branches_for_certain()? {
            protected.insert(branch.snapshot, "a branch grew from it");
        }
        for id in self.restores_need(&state.events)?.into_keys() {
            protected.entry(id).or_insert("undo of the last restore needs it");
        }
        Ok(protected)
    }

    /// Has each store give back what was removed. What one cannot do keeps no other from it; the first error is told.
    pub(crate) fn reclaim_all(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.stores()?.iter().map(|name| self.reclaim_store(name)).collect();
        outcomes.into_iter().collect()
    }

    pub(crate) fn reclaim_store(&self, name: &ProviderName) -> Result<()> {
        if self.engine.home().original().is_some() {
            return Ok(());
        }
        self.reclaim_in(&self.serve(name)?, &self.mounts_dir()?, false, &mut GcReport::default()).map(drop)
    }
}
