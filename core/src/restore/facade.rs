//! The order of a restore: lock, safety snapshot, what an interrupted one left, plan, journal, timeline, changes, timeline. And of an undo.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;

use ah_plugin_api::{
    Capability, ChangedBelow, Durability, EntryKind, Error, ErrorKind, RelPath, Result, Snapshot, SnapshotRef,
};

use super::apply::{apply, lanes};
use super::at::{Found, Tree};
use super::below::{COPY_OUT, below_note};
use super::clean::clean;
use super::doors::{left_open, shut};
use super::journal::{Journal, Named, PartOfRewind, Unlocked};
use super::named::readable;
use super::plan::{Ground, Plan, Wish, plan};
use super::read_back::read_back;
use super::safety::Saved;
use super::scope::Scope;
use super::standing::sync_filesystem;
use super::told::{
    came_hidden, came_to_nothing, missing_notes, refusal, report, repository_notes, stopped, taken_back, wanted_back,
    was_removed,
};
use super::{Ignores, RestoreBegin, RestoreOptions, RestoreReport, UndoOptions};
use crate::background;
use crate::fsio;
use crate::ids::{self, SessionName};
use crate::lock::boot_id;
use crate::moments::FilesChanged;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::workspace::{Served, Workspace};

/// What restore and undo have in common.
pub(super) struct Job {
    pub(super) target: SnapshotRecord,
    pub(super) scope: Scope,
    pub(super) paths: Vec<RelPath>,
    pub(super) ignored: bool,
    pub(super) delete_ignored: bool,
    pub(super) exact_times: bool,
    pub(super) force: bool,
    pub(super) dry_run: bool,
    pub(super) undoes: Option<String>,
    /// The rewind that it is a part of.
    pub(super) rewind: Option<PartOfRewind>,
    /// Whether what it takes back came from a provider that captures ignored files, too.
    pub(super) beyond_policy: bool,
    /// Interrupted restores that this one takes over.
    pub(super) taken_over: Vec<Journal>,
    /// Whether an undo shall go back to the state before those, rather than to the one after.
    pub(super) finishes: bool,
    /// What came up before the work began.
    pub(super) notes: Vec<String>,
}

/// What a first look found out for a second one.
#[derive(Default)]
struct Seen {
    /// Ignored files that the safety snapshot is to hold as well.
    to_hold: Vec<RelPath>,
    /// What was said of what interrupted restores had left.
    cleared: Vec<String>,
}

/// The saved state until it is on the timeline: it is nobody's, and goes away again if nothing comes of it.
struct Unlisted<'a> {
    workspace: &'a Workspace,
    saver: &'a Served,
    safety: &'a Snapshot,
}

impl Drop for Unlisted<'_> {
    fn drop(&mut self) {
        let _ = self.workspace.withdraw(self.saver, self.safety);
    }
}

impl Workspace {
    /// Puts files back as they were in a snapshot; the present state is saved first.
    ///
    /// Finishes an interrupted restore of the same snapshot, if it is of all that this was of: an undo then takes back both parts, or the later one alone
    /// where something is changed by it that the interrupted one had not seen.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `Conflict` where something would be lost that the safety snapshot cannot keep, or where a file
    /// changed meanwhile; the provider's. Nothing has been changed then, but where the error says that the files were restored and
    /// the timeline could not be written.
    pub fn restore(&self, reference: &str, options: &RestoreOptions) -> Result<RestoreReport> {
        self.fence_all().map_err(stopped)?;
        self.look_for_meanwhile();
        self.forget_what_the_killed_saw();
        self.tell_what_is_kept()?;
        self.restore_behind_fence(reference, options, None).map_err(|error| wanted_back(&self.root, reference, error))
    }

    /// As [`Workspace::restore`], for who has waited for captures already.
    pub(crate) fn restore_behind_fence(
        &self,
        reference: &str,
        options: &RestoreOptions,
        rewind: Option<PartOfRewind>,
    ) -> Result<RestoreReport> {
        let (_lock, _stays) = (self.lock("restore").map_err(stopped)?, self.lock_stays().map_err(stopped)?);
        let target = self.resolve(reference)?;
        // Who names the top means everything.
        let paths = if options.paths.iter().any(RelPath::is_root) { &[][..] } else { &options.paths };
        self.reachable(paths, &target)?;
        let covers = |journal: &Journal| -> bool {
            // An undo puts ignored files back without being asked; it changed no others.
            let ignored = options.ignored || !journal.ignored || journal.undoes.is_some();
            let holds = |path: &RelPath| paths.iter().any(|top| path.starts_with(top));
            let all = paths.is_empty()
                || (!journal.paths.is_empty() && journal.paths.iter().all(holds))
                || (journal.undoes.is_some() && journal.touched().all(holds));
            ignored && all
        };
        let mut notes = Vec::new();
        let mut taken_over = self.interrupted_journals(&mut notes)?;
        taken_over.retain(covers);
        let finishes = taken_over.iter().any(|journal| journal.target.id == target.id);
        let scope = if paths.is_empty() { Scope::Everything } else { Scope::Below(paths.to_vec()) };
        self.put_back(&Job {
            target,
            scope,
            paths: paths.to_vec(),
            ignored: options.ignored,
            delete_ignored: false,
            exact_times: options.exact_times,
            force: options.force,
            dry_run: options.dry_run,
            undoes: None,
            rewind,
            beyond_policy: false,
            taken_over,
            finishes,
            notes,
        })
    }

    /// Takes the last restore (or undo) back: the one that began last of the session, or of all sessions without one. An
    /// interrupted one counts whatever its session; if it was an undo, it is taken to its end.
    ///
    /// # Errors
    /// `NotFound` if there was none; `FailedPrecondition` if a rewind came since that changed no files; otherwise as [`Workspace::restore`].
    pub fn undo(&self, options: &UndoOptions) -> Result<RestoreReport> {
        self.fence_all().map_err(stopped)?;
        self.forget_what_the_killed_saw();
        let (_lock, _stays) = (self.lock("restore").map_err(stopped)?, self.lock_stays().map_err(stopped)?);
        let mut notes = Vec::new();
        let mut interrupted = self.interrupted_journals(&mut notes)?;
        let events = self.state()?.events;
        // Whatever the session, as a tree that is half one state and half another is everybody's. But what a later one put in
        // place, and what was done since, must not be lost to it.
        let latest = |journal: &Journal| self.is_latest(&journal.restore, journal.began, &events);
        let (journal, taken_over, finishes) = match interrupted.pop().filter(latest) {
            Some(last) => match self.undone_by(&last.session, last.undoes.as_deref())? {
                // An undo is taken to its end.
                Some(of) => {
                    interrupted.retain(|journal| {
                        journal.restore == of.restore || journal.undoes.as_ref() == Some(&of.restore)
                    });
                    interrupted.push(last);
                    (of, interrupted, true)
                }
                None => {
                    // With those that it had taken over itself.
                    interrupted.retain(|journal| journal.back.id == last.back.id);
                    interrupted.push(last.clone());
                    (last, interrupted, false)
                }
            },
            None => (self.last_ended(&events)?, Vec::new(), false),
        };
        let state = self.state()?;
        let target = state.snapshot(&journal.back.id).cloned().ok_or_else(|| {
            if state.removed.contains(&journal.back.id) {
                return was_removed();
            }
            let message = format!("the snapshot {} that undo goes back to is not on the timeline", journal.back.id);
            Error::new(ErrorKind::NotFound, message)
                .with_hint("`ah agent fs gc` lists it again if it is there; then repeat it")
        })?;
        notes.push(taken_back(&journal, &events, self.engine.settings()));
        // With what those had changed that it took over.
        let all = || std::iter::once(&journal).chain(&taken_over);
        let touched = all().flat_map(Journal::touched).cloned().collect();
        // What gave files their former times took others from them.
        let exact_times = options.exact_times || all().any(|journal| journal.exact_times);
        let beyond_policy = journal.provider != target.provider
            && self.serve(&journal.provider).is_ok_and(|served| !served.can(Capability::AppliesPolicy));
        self.put_back(&Job {
            target,
            scope: Scope::Exactly(touched),
            paths: journal.paths,
            ignored: true,
            delete_ignored: true,
            exact_times,
            force: options.force,
            dry_run: options.dry_run,
            undoes: Some(journal.restore),
            rewind: None,
            beyond_policy,
            taken_over,
            finishes,
            notes,
        })
    }

    /// The journal of what an undo of that session takes back; none if it is no undo, or that journal is gone or damaged.
    pub(super) fn undone_by(&self, session: &SessionName, undoes: Option<&str>) -> Result<Option<Journal>> {
        let Some(of) = undoes else { return Ok(None) };
        match self.journals().of(session, of) {
            Ok(Some(journal)) => Ok(Some(journal)),
            Err(error) if error.kind != ErrorKind::DataLoss => Err(error),
            _ => self.journals().find_ended(of),
        }
    }

    /// The journal of the latest restore that came to its end.
    fn last_ended(&self, events: &[Event]) -> Result<Journal> {
        let (session, begin) = self.last_begun(events).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no restore to take back")
                .with_hint("`ah timeline` shows what happened")
        })?;
        // Who takes back a rewind does not mean what was before it.
        let of_begin =
            |event: &&Event| matches!(&event.body, EventBody::RestoreBegin(it) if it.restore == begin.restore);
        let begun = events.iter().rfind(of_begin).map_or(0, |event| event.seq);
        let changed_nothing = |event: &Event| matches!(&event.body, EventBody::Rewind(it) if it.snapshot.is_some() && it.restore.is_none());
        if events.iter().any(|event| event.seq > begun && self.session_counts(&event.session) && changed_nothing(event))
        {
            let message = "the last rewind changed no files: there is nothing of it to take back";
            let paths = self.named(&begin.paths);
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                "`ah agent fs restore {}{paths}` goes back to before the restore that was before it; `--dry-run` shows what that changes",
                begin.safety
            )));
        }
        if let Some(journal) = self.journals().of(session, &begin.restore)? {
            return Ok(journal);
        }
        let safety = &begin.safety;
        Err(match self.state()?.snapshot(safety) {
            Some(_) => Error::new(
                ErrorKind::NotFound,
                "the plan of the last restore is gone: nobody knows what it changed",
            )
            .with_hint(format!(
                "`ah agent fs restore {safety}` takes everything back to before it; `--dry-run` shows what that changes"
            )),
            None => was_removed(),
        })
    }

    fn put_back(&self, job: &Job) -> Result<RestoreReport> {
        let mut is_done = false;
        let outcome = self.put_back_now(job, None, &mut is_done);
        self.notice_restores_anew();
        outcome.map_err(|error| if is_done { error } else { stopped(self.say_what_takes_room(&job.target, error)) })
    }

    /// `seen`: that it is the second look. `is_done`: whether files were changed.
    fn put_back_now(&self, job: &Job, seen: Option<Seen>, is_done: &mut bool) -> Result<RestoreReport> {
        let cx = self.context();
        let served = self.serve(&job.target.provider)?;
        let (workspace, scratch, mut policy) = (self.open_dir()?, self.mounts_dir()?, self.policy()?);
        let (is_first, Seen { to_hold, mut cleared }) = (seen.is_none(), seen.unwrap_or_default());
        policy.include.extend(to_hold.iter().map(ah_rules::pattern_of));
        let keeps_to_policy = served.can(Capability::AppliesPolicy);
        let everything = keeps_to_policy && job.beyond_policy;
        let ignores = if keeps_to_policy { None } else { Some(Ignores::open(self.open_dir()?, &policy)?) };
        let shelf = self.shelf(&served, &scratch);
        let own_state = &policy.own_state;
        let ground = Ground { workspace: &workspace, shelf, own_state, ignores: ignores.as_ref() };

        let target_ref = SnapshotRef { snapshot: job.target.reference.clone() };
        let target = served.provider.stat(&served.place(), &target_ref, &cx);
        let target = target.map_err(|error| self.explain_lost(&job.target, error))?;
        // Until the safety snapshot is on the timeline, gc must not take it for an orphan.
        let making = self.lock_as("orphans", false)?;
        self.refuse_going()?;
        let Saved { snapshot: safety, other, note } = self.save_present(&served, &workspace, &policy, everything)?;
        let saver = other.as_ref().unwrap_or(&served);
        let safety_shelf = self.shelf(saver, &scratch);
        let unlisted = Unlisted { workspace: self, saver, safety: &safety };
        let wish = Wish {
            safety: &safety,
            safety_shelf: other.is_some().then_some(safety_shelf),
            target: &target,
            scope: job.scope.clone(),
            ignored: job.ignored,
            delete_ignored: job.delete_ignored,
            exact_times: job.exact_times,
            force: job.force,
        };
        let source = shelf.open(&target.reference, &cx)?;
        let mut notes = job.notes.clone();
        notes.extend(missing_notes(&target, job, &workspace));
        // Before the plan looks: a file that goes out of such a folder may have another name in the tree, and changes there by that.
        if !job.dry_run {
            for journal in &job.taken_over {
                // What is left in a folder of ours keeps nobody from restoring.
                match clean(&ground, journal, &cx) {
                    Ok(kept) => cleared.extend(kept.into_iter().map(|(path, aside)| {
                        format!("{path} was being changed when the restore was interrupted; that state is in {aside}")
                    })),
                    Err(error) => cleared.push(format!("the folder {} could not be cleared: {error}", journal.staging)),
                }
            }
            cleared.extend(self.clear_ended(&workspace, &scratch, &cx).1);
        }
        notes.extend(cleared.iter().cloned());
        let planned = plan(&ground, &wish, &source, &cx)
            .and_then(|plan| self.known_paths(job, &target, plan))
            .and_then(|mut plan| {
                let lost = read_back(&safety_shelf, &plan, &safety.reference, &cx)?;
                if job.force {
                    plan.overwritten.extend(lost);
                } else {
                    plan.forcible += lost.len();
                    plan.conflicts.extend(lost);
                }
                Ok(plan)
            });
        if is_first
            && let Ok(Plan { to_hold, .. }) = &planned
            && !to_hold.is_empty()
        {
            drop(making);
            let seen = Seen { to_hold: to_hold.clone(), cleared };
            // The snapshot goes when the next one is there, which is taken faster for it.
            return self.put_back_now(job, Some(seen), is_done);
        }
        let tree = Tree::new(workspace.as_fd())?;
        // What it is to be like by the target that is as it is now, and all else was so before.
        let stays = |path: &RelPath, now: &Found| {
            let asked = !path.is_root() && job.scope.holds(path);
            // Of one that cannot be read nobody knows its mode.
            let then = if asked { readable(source.entry(path, &cx))?.flatten() } else { None };
            Ok(then.is_some_and(|then| then.kind == EntryKind::Dir && then.mode == now.mode))
        };
        let open = if job.dry_run { Vec::new() } else { left_open(&tree, &job.taken_over, stays)? };
        let told = (job, planned.as_ref().ok());
        notes.extend(repository_notes(told, (&target, &served), &safety, (&workspace, &self.root)));
        let below = match &planned {
            Ok(plan) => self.changed_below(&job.scope, &safety, plan)?,
            Err(_) => Vec::new(),
        };
        let readers = planned.as_ref().map_or_else(|_| Ok(Vec::new()), |plan| self.readers_of(plan))?;
        if !readers.is_empty() {
            notes.push(format!(
                "these branches may read some of it here (files of more than 64 MiB, say, are not kept for them), and then show what is put back: {}",
                readers.join(", ")
            ));
        }
        let below_is_gone = !below.is_empty() && self.below_is_gone();
        notes.extend(below_note(&below, below_is_gone));
        let mut plan = match planned {
            Ok(mut plan) if job.dry_run => {
                plan.left.extend(plan.hidden.drain(..).map(|path| came_hidden(path, true)));
                return Ok(report(job, plan, notes, below.len(), &self.root));
            }
            Ok(plan) if !plan.conflicts.is_empty() => {
                let mut error = refusal(job, &plan, &self.root);
                error.causes.extend(cleared);
                return Err(error);
            }
            Ok(mut plan) if !plan.is_empty() => {
                plan.left_open = open;
                plan
            }
            Ok(plan) => {
                notes.extend(shut(tree, &open));
                plan
            }
            Err(mut error) => {
                error.causes.extend(cleared);
                return Err(error);
            }
        };
        if plan.is_empty() {
            // All of it had been done, or taken back, but for saying so, and perhaps for being on disk.
            if !job.taken_over.is_empty() {
                sync_filesystem(&workspace)?;
            }
            self.end_taken_over(job, "done")?;
            return Ok(report(job, plan, notes, below.len(), &self.root));
        }

        notes.extend(note);
        let session = self.writing_session();
        if let Some(ChangedBelow { total, paths }) = safety.changed_below.clone() {
            let body = EventBody::ChangedBelow { files: FilesChanged { total, paths } };
            self.append(&session, body, Durability::Durable)?;
        }
        let mut record = SnapshotRecord::of(&safety, &saver.name, SnapshotKind::Safety, &session);
        let line = EventBody::Snapshot { snapshot: Box::new(record.clone()) };
        std::mem::forget(unlisted);
        let listed = self.append(&session, line, Durability::Durable);
        if listed.is_err() && !self.may_be_told_of(&session, &safety.id) {
            drop(Unlisted { workspace: self, saver, safety: &safety });
        }
        record.seq = listed?.seq;
        drop(making);
        // The last: what the one before it had not seen, that may have saved.
        let finished = job.taken_over.iter().rfind(|journal| journal.target.id == job.target.id && job.finishes);
        let unseen = finished.map_or(0, |finished| finished.unseen(&job.taken_over, &plan));
        if let Some(finished) = finished.filter(|_| unseen > 0) {
            notes.push(format!(
                "{} not as the interrupted restore saw them: `ah agent fs undo` goes back to how they are now, `ah agent fs restore {}{}` to before both",
                text::count(unseen, "path is", "paths are"),
                finished.back.id,
                self.named(&finished.paths)
            ));
        }
        let mut journal = self.journal(job, &plan, &record, finished.filter(|_| unseen == 0))?;
        let begin = RestoreBegin {
            restore: journal.restore.clone(),
            target: job.target.id.clone(),
            safety: record.id.clone(),
            undoes: job.undoes.clone(),
            paths: job.paths.clone(),
            // One whose kind changes is two steps.
            changes: journal.touched().collect::<HashSet<_>>().len() as u64,
        };
        let begun = self.journals().begin(&journal);
        let begun = begun.and_then(|()| self.append(&session, EventBody::RestoreBegin(begin), Durability::Durable));
        if let Err(error) = begun {
            // It may be in place also where it could not be made durable. What stays is told as one that was interrupted.
            let forgotten = self.journals().forget(&journal);
            return Err(if forgotten.is_ok() { came_to_nothing(error) } else { error });
        }
        let counted = self.count_put_back();
        let applied = match counted.and_then(|()| apply(&ground, &plan, &journal, &source, job.exact_times, &cx)) {
            Ok(applied) => applied,
            Err(error) => {
                // Nothing has been changed; a state before this one may still be half-way.
                self.say_ended(&journal, "failed")?;
                self.journals().end(&journal.session, &journal.restore)?;
                let error = came_to_nothing(error);
                return Err(if below_is_gone { error.with_hint(COPY_OUT) } else { error });
            }
        };
        *is_done = true;
        // What came in between was half-way. If that cannot be written it has been counted once already.
        let _ = self.count_put_back();
        if !applied.undone.is_empty() {
            journal.leave(&applied.undone);
            if let Err(error) = self.journals().begin(&journal) {
                notes.push(format!(
                    "an undo would take back also what was not changed: that could not be noted ({error})"
                ));
            }
        }
        let outcome = match applied.failed.is_empty() && plan.beyond.is_empty() {
            true => "done",
            // There is nothing to take back, and a state before this one may still be half-way.
            false if applied.undone.len() == plan.steps().count() => "failed",
            false => "partial",
        };
        self.say_ended(&journal, outcome)
            .map_err(|e| e.context("the files were restored, but that could not be put on the timeline"))?;
        if outcome != "failed" {
            self.end_taken_over(job, "abandoned")?;
        } else if job.finishes && applied.failed.len() == applied.damaged + applied.passing + applied.waiting {
            // All else that they were to do is there by now; what stays for that, whoever names it takes away.
            sync_filesystem(&workspace)?;
            self.end_taken_over(job, "partial")?;
        }
        // Its journal stays open until the background has put everything on disk.
        background::after_restore(self, &record);
        notes.extend(applied.notes);
        let hidden = std::mem::take(&mut plan.hidden);
        plan.left.extend(self.come_out(hidden).into_iter().map(|path| came_hidden(path, false)));
        let mut report = report(job, plan, notes, below.len(), &self.root);
        report.restore = Some(journal.restore);
        report.safety = Some(record);
        let failed: HashSet<&RelPath> = applied.failed.iter().map(|failed| &failed.path).collect();
        report.changes.retain(|change| !failed.contains(&change.path));
        report.failed.extend(applied.failed);
        (report.bare, report.undoable) = (applied.bare, outcome != "failed");
        report.damaged += applied.damaged;
        report.waiting = applied.waiting;
        Ok(report)
    }

    /// How often files were put back here. A snapshot that is taken when that has grown shows nothing that was before.
    pub(crate) fn put_back_so_far(&self) -> u64 {
        fsio::count(&self.folder().join("put-back"))
    }

    fn count_put_back(&self) -> Result<()> {
        fsio::count_up(&self.folder().join("put-back"))
    }

    /// `finished`: the interrupted restore to the state before which an undo is to go back.
    fn journal(&self, job: &Job, plan: &Plan, safety: &SnapshotRecord, finished: Option<&Journal>) -> Result<Journal> {
        let settings = self.engine.settings();
        let named = |record: &SnapshotRecord| Named { id: record.id.clone(), reference: record.reference.clone() };
        let restore = ids::letters(&settings.ids);
        let back_paths = finished.iter().flat_map(|_| &job.taken_over).flat_map(Journal::touched);
        let back_paths: BTreeSet<RelPath> = back_paths.cloned().collect();
        Ok(Journal {
            version: 1,
            session: self.writing_session(),
            began: settings.clock.now(),
            boot: boot_id(),
            provider: job.target.provider.clone(),
            target: named(&job.target),
            safety: named(safety),
            back: finished.map_or_else(|| named(safety), |journal| journal.back.clone()),
            back_paths: back_paths.into_iter().collect(),
            undoes: job.undoes.clone(),
            rewind: job.rewind.clone(),
            paths: job.paths.clone(),
            ignored: job.ignored,
            exact_times: job.exact_times,
            force: job.force,
            staging: Journal::staging_of(&restore)?,
            lanes: lanes(),
            left: Vec::new(),
            unlocked: Unlocked::all_of(plan),
            steps: Journal::steps_of(plan),
            restore,
        })
    }
}
