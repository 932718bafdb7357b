//! Carrying a plan out.
//!
//! 1. *Stage*: every file and symlink that is to appear is made, whole, in a folder of ours at the top of the workspace, and two
//!    empty ones are exchanged there. A full disk, a snapshot that is away or a wish to stop end the restore here, with nothing changed. What
//!    is damaged in the snapshot is left out, with what would have to make room for it (`unread.rs`).
//! 2. *Commit*: only renames, `mkdir`, `rmdir`, `chmod`. A file that is replaced is exchanged with the new one in one step, so
//!    that the old one, now in our folder, can be looked at: if someone wrote to it in the last instant, it goes back.
//!    What one path fails with is reported; the others go on, since stopping half-way would help nobody.
//! 3. *Finish*: our folder goes, modes and times of directories are set, the deepest first.
//!
//! A kill at any point leaves a tree in which each path is either as before or as wanted, and a journal that says which paths
//! these are. `clean.rs` removes what is left in our folder then.

mod attributes;
mod commit;
mod stage;
mod staging;
mod unread;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ah_plugin_api::{Capability, Context, EntryKind, Error, ErrorKind, Reference, RelPath, Result, Timestamp};
use rustix::io::Errno;

use self::attributes::{Said, Shown};
pub(super) use self::staging::Staging;
use self::unread::Unread;
use super::LeftAlone;
use super::at::{self, Found, Tree, io};
use super::doors::OPEN;
use super::journal::Journal;
use super::plan::{Ground, MODE_AFTER, Plan, Step};
use crate::crash;
use crate::walk::{Shelf, Source};

/// What is said of what somebody else changes while a restore puts things in place.
const CHANGED: &str = "it was changed in the last instant, and is left as it is";

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Paths that could not be changed, or not wholly, and why.
    pub(crate) failed: Vec<LeftAlone>,
    /// How many of them came back without their owner or attributes.
    pub(crate) bare: usize,
    /// How many of them stay as they are, as what the snapshot holds in their place is damaged.
    pub(crate) damaged: usize,
    /// Likewise, as the system could not read it: it may the next time.
    pub(crate) passing: usize,
    /// How many should go and stay, as nobody can tell whether the snapshot is there.
    pub(crate) waiting: usize,
    /// The path of each step that was not carried out at all.
    pub(crate) undone: Vec<RelPath>,
    /// Anything a person should know.
    pub(crate) notes: Vec<String>,
}

/// How many threads make files, and subfolders the staging folder has: one for each, so that they do not wait for each other.
pub(crate) fn lanes() -> u64 {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 4) as u64)
}

/// Does what the plan says. `journal` was made of it and is on disk.
///
/// # Errors
/// Whatever happens before the first change; then nothing has been changed.
pub(crate) fn apply(
    ground: &Ground<'_>,
    plan: &Plan,
    journal: &Journal,
    target: &Source<'_>,
    exact_times: bool,
    cx: &Context<'_>,
) -> Result<Applied> {
    let tree = Tree::new(ground.workspace.as_fd())?;
    let slots: Vec<Option<u64>> = journal.steps.iter().map(|step| step.slot).collect();
    let (outcome, said, made, has_proc) = (Mutex::default(), Mutex::default(), Mutex::default(), OnceLock::new());
    let can = |kept| ground.shelf.can(kept);
    let (owners, lists) = (can(Capability::Owners), can(Capability::Xattrs));
    let wanted = (owners || lists) && !(plan.dirs.is_empty() && plan.puts.is_empty());
    let mounted = match target {
        Source::Snapshot { .. } if wanted => ground.shelf.show(&journal.target.reference, cx).map(Some),
        _ => Ok(None),
    };
    let view = mounted.as_ref().map_or(None, Option::as_ref).or((wanted && target.is_view()).then_some(target));
    let (shelf, reference, unread) = (ground.shelf, &journal.target.reference, Mutex::default());
    let work = Work {
        tree,
        plan,
        target,
        shelf,
        reference,
        view,
        owners,
        lists,
        exact_times,
        cx,
        outcome,
        unread,
        said,
        made,
        has_proc,
    };
    let staged =
        work.unlock().and_then(|()| Staging::make(tree, &journal.staging, journal.lanes)).and_then(|staging| {
            // What only goes gives room.
            let room = || if plan.puts.is_empty() { Ok(()) } else { staging.has_room() };
            match work.stage(&staging, &slots).and_then(|()| room()).and_then(|()| staging.begin()) {
                Ok(()) => Ok(staging),
                Err(mut error) => {
                    if !staging.sweep(slots.iter().copied().flatten()) {
                        error.causes.push(left_behind(journal));
                    }
                    Err(error)
                }
            }
        });
    let staging = match staged {
        Ok(staging) => staging,
        Err(mut error) => {
            // What was to be said of files that are not there now does not matter; what stays behind does.
            std::mem::take(&mut *locked(&work.outcome));
            work.finish(false);
            let Applied { failed, .. } = work.outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
            error.causes.extend(failed.into_iter().map(|LeftAlone { path, reason }| format!("{path}: {reason}")));
            return Err(error);
        }
    };
    let kept = work.commit(&staging, &slots);
    let swept = staging.sweep(slots.iter().copied().flatten().filter(|slot| !kept.contains(slot)));
    if !kept.is_empty() {
        work.note(format!(
            "the folder {} holds the only copy of what was put aside: take it out before you remove the folder",
            journal.staging
        ));
    } else if !swept {
        work.note(left_behind(journal));
    }
    work.finish(true);
    work.say_whose();
    work.tell_said(mounted.as_ref().err());
    Ok(work.outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn left_behind(journal: &Journal) -> String {
    format!("the folder {} could not be removed; it is no longer needed", journal.staging)
}

struct Work<'a> {
    tree: Tree<'a>,
    plan: &'a Plan,
    target: &'a Source<'a>,
    /// Where that is, and which snapshot it is of.
    shelf: Shelf<'a>,
    reference: &'a Reference,
    /// Shows what the contract's entries do not tell, where the provider keeps any of that.
    view: Option<&'a Source<'a>>,
    /// Whether it shows owners, and access lists.
    owners: bool,
    lists: bool,
    exact_times: bool,
    cx: &'a Context<'a>,
    outcome: Mutex<Applied>,
    unread: Mutex<Unread>,
    said: Mutex<Said>,
    /// The directories that were made.
    made: Mutex<HashMap<RelPath, Found>>,
    has_proc: OnceLock<bool>,
}

impl Work<'_> {
    fn fail(&self, path: &RelPath, reason: impl Into<String>) {
        let failed = LeftAlone { path: path.clone(), reason: reason.into() };
        locked(&self.outcome).failed.push(failed);
    }

    /// As [`Work::fail`], of a step that has changed nothing.
    fn left_undone(&self, path: &RelPath, reason: impl Into<String>) {
        self.fail(path, reason);
        locked(&self.outcome).undone.push(path.clone());
    }

    /// As [`Work::fail`], of what is there but for its owner or attributes: those are no difference that doing it again would find.
    fn came_bare(&self, path: &RelPath, reason: impl Into<String>) {
        self.fail(path, reason);
        locked(&self.outcome).bare += 1;
    }

    fn note(&self, note: String) {
        locked(&self.outcome).notes.push(note);
    }

    /// The mode that what a step makes may get. A file gets the set-id bits only if it has them already and keeps its contents: a program of
    /// one user's making must not run as another, or as root. One that is made anew gets them if it is told in the snapshot to be its maker's own
    /// ([`Shown::is_own`]); a directory unless it may be another's then than it was. `made`: what is shown of what is made anew.
    fn allowed_mode(&self, step: &Step, mode: u32, made: Option<&Shown>) -> u32 {
        let set_id = mode & 0o6000;
        let is_dir = step.after.as_ref().is_some_and(|after| after.kind == EntryKind::Dir);
        let told = self.owners && self.view.is_some();
        let may_have = if is_dir { told || step.found.is_some() } else { made.is_some_and(Shown::is_own) };
        if set_id == 0 || may_have {
            return mode;
        }
        let has = step.found.filter(|_| made.is_none()).map_or(0, |found| found.mode & 0o6000);
        if set_id & !has != 0 {
            self.note(format!("{} comes back without its set-id bits: `chmod` gives them, if it is yours", step.path));
        }
        mode & !(set_id & !has)
    }

    /// Makes directories writable whose owner took that from himself.
    fn unlock(&self) -> Result<()> {
        for (path, was) in &self.plan.unlock {
            let fail = |e| io(format!("cannot make the directory {path} writable"), e);
            crash::point("restore-unlock").map_err(|e| Error::from_io("cannot change a mode", &e))?;
            if !set_mode(self.tree, path, was.mode | OPEN, was).map_err(fail)? {
                return Err(Error::new(ErrorKind::Conflict, format!("{path}: {MODE_AFTER}")));
            }
        }
        Ok(())
    }

    /// Sets modes and times of directories and of files of which nothing else changes, the deepest first. After a failed
    /// start only what the start itself has changed is set back.
    fn finish(&self, changed: bool) {
        let mut last: HashMap<&RelPath, Last> = HashMap::new();
        let named = self.named_in();
        let gone: HashSet<&RelPath> = if changed {
            self.plan.clear.iter().chain(&self.plan.removals).map(|step| &step.path).collect()
        } else {
            HashSet::new()
        };
        for (path, was) in self.plan.parents.iter().filter(|(path, _)| !gone.contains(path)) {
            // Exchanging files in it, or our folder, touches a directory's time though no name has come or gone.
            if !changed || self.exact_times || !named.contains(path) {
                last.entry(path).or_insert(Last::of(*was)).mtime = Some(was.mtime);
            }
        }
        let is_dir =
            |path| self.tree.stat(path).is_ok_and(|found| found.is_some_and(|found| found.kind == EntryKind::Dir));
        // One that was to go and could not is locked again.
        let open = self.plan.unlock.iter().chain(&self.plan.left_open);
        for (path, was) in open.filter(|(path, _)| !gone.contains(path) || is_dir(path)) {
            let slot = last.entry(path).or_insert(Last::of(*was));
            slot.mode = Some(was.mode);
            slot.of.mode = was.mode | OPEN;
        }
        if changed {
            let failed: HashSet<RelPath> = {
                let outcome = locked(&self.outcome);
                outcome.failed.iter().map(|failed| failed.path.clone()).collect()
            };
            // A directory that could not be made as it was stays closed to others.
            let dirs = self.plan.dirs.iter().filter(|step| !failed.contains(&step.path));
            let made = locked(&self.made);
            let made = dirs.map(|step| (step, made.get(&step.path).copied(), false));
            for (step, of, alone) in made.chain(self.plan.attributes.iter().map(|step| (step, step.found, true))) {
                let Some((after, of)) = step.after.as_ref().zip(of) else { continue };
                let slot = last.entry(&step.path).or_insert(Last::of(of));
                slot.mode = (after.kind != EntryKind::Symlink).then(|| self.allowed_mode(step, after.mode, None));
                slot.alone = alone;
                if self.exact_times {
                    slot.mtime = Some(after.mtime);
                }
            }
        }
        let mut last: Vec<_> = last.into_iter().collect();
        last.sort_by(|a, b| b.0.cmp(a.0));
        for (path, this) in last {
            let Last { of, mode, mtime, alone } = this;
            let moded = crash::point("restore-attributes")
                .map_err(|_| Errno::IO)
                .and_then(|()| Ok(!this.is_touched(self.tree, path)?))
                .and_then(|still| Ok(still && mode.map_or(Ok(true), |mode| set_mode(self.tree, path, mode, &of))?));
            let timed = moded.and_then(|still| {
                mtime.filter(|_| still).map_or(Ok(()), |mtime| set_time(self.tree, path, mtime, &of))
            });
            let failed = |error: Errno| match error {
                Errno::STALE => "something else was put in its place".to_owned(),
                Errno::NOENT => "it was taken away in the last instant".to_owned(),
                error => format!("its attributes could not be set ({error})"),
            };
            match timed {
                Ok(()) if moded == Ok(true) => {}
                Ok(()) if alone => self.left_undone(path, CHANGED),
                Ok(()) => self.fail(path, CHANGED),
                // A directory that was taken away has no attributes left to set.
                Err(Errno::NOENT) if !alone => {}
                // Nor has what stands in place of one in which something changed.
                Err(Errno::STALE) if mode.is_none() && !alone => {}
                // That was all there was to do.
                Err(error) if alone && (moded.is_err() || mode.is_none()) => {
                    self.left_undone(path, failed(error));
                }
                Err(error) => self.fail(path, failed(error)),
            }
        }
    }

    /// What was missing is root's when root brings it back and the snapshot does not tell whose it was ([`Work::owner`]). In somebody
    /// else's directory they should hear so.
    fn say_whose(&self) {
        if self.view.is_some() && self.owners || !rustix::process::geteuid().is_root() {
            return;
        }
        let made = self.plan.dirs.iter().chain(&self.plan.puts).filter(|step| step.found.is_none());
        let owner = |path: &RelPath| self.tree.stat(path).ok().flatten().map(|found| found.uid);
        let mut above: HashMap<RelPath, bool> = HashMap::new();
        let mut in_theirs = |path: &RelPath| {
            path.parent()
                .is_some_and(|dir| *above.entry(dir).or_insert_with_key(|dir| owner(dir).is_some_and(|uid| uid != 0)))
        };
        // What is in a directory that came back is root's with it.
        let mut paths = made.map(|step| &step.path).filter(|path| in_theirs(path) && owner(path) == Some(0));
        let Some(first) = paths.next() else { return };
        let others = paths.count();
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        self.note(format!(
            "{first}{more} had been missing and came back as root's, in another user's directory: give it to its owner with `chown`"
        ));
    }

    /// Directories in which a name comes or goes.
    fn named_in(&self) -> HashSet<RelPath> {
        let plan = self.plan;
        let new = plan.puts.iter().filter(|step| step.found.is_none());
        let named = plan.clear.iter().chain(&plan.dirs).chain(&plan.removals).chain(new);
        named.filter_map(|step| step.path.parent()).collect()
    }
}

/// What is set last.
struct Last {
    /// Of what: as it was found, or made.
    of: Found,
    mode: Option<u32>,
    mtime: Option<Timestamp>,
    /// Whether that is all that is done to it.
    alone: bool,
}

impl Last {
    fn of(of: Found) -> Self {
        Self { of, mode: None, mtime: None, alone: false }
    }

    /// Whether somebody has changed what only gets these, and not to what it gets. Of a directory nobody can tell: its times are those of what is
    /// in it.
    fn is_touched(&self, tree: Tree<'_>, path: &RelPath) -> Result<bool, Errno> {
        if !self.alone || self.of.kind == EntryKind::Dir {
            return Ok(false);
        }
        let now = tree.stat(path)?.ok_or(Errno::NOENT)?;
        // Under another of its names it may have been done already.
        let is_done =
            self.mode.is_none_or(|mode| mode == now.mode) && self.mtime.is_none_or(|mtime| mtime == now.mtime);
        Ok(is_it(&now, &self.of) && !is_done && !now.untouched_since(&self.of))
    }
}

/// Whether it is still the one that was found: what somebody has put in its place meanwhile gets neither mode nor time.
fn is_it(now: &Found, was: &Found) -> bool {
    (now.dev, now.ino, now.kind, now.uid) == (was.dev, was.ino, was.kind, was.uid)
}

/// Gives it that mode, if it is the one that was found; `ESTALE` if not. False if somebody has given it another one since.
pub(super) fn set_mode(tree: Tree<'_>, path: &RelPath, mode: u32, of: &Found) -> Result<bool, Errno> {
    // The system takes this one away from what is of a group that its owner is not in.
    const SET_GROUP_ID: u32 = 0o2000;
    let parent = tree.dir(&path.parent().unwrap_or_default())?;
    let name = path.file_name().unwrap_or(b".");
    match at::stat(parent.as_fd(), name)? {
        Some(found) if found.mode == mode && is_it(&found, of) => Ok(true),
        Some(found) if (found.mode ^ of.mode) & !SET_GROUP_ID != 0 && is_it(&found, of) => Ok(false),
        Some(_) => at::chmod(parent.as_fd(), name, mode, |now| is_it(now, of)).map(|()| true),
        None => Err(Errno::NOENT),
    }
}

fn set_time(tree: Tree<'_>, path: &RelPath, mtime: Timestamp, of: &Found) -> Result<(), Errno> {
    let parent = tree.dir(&path.parent().unwrap_or_default())?;
    let name = path.file_name().unwrap_or(b".");
    match at::stat(parent.as_fd(), name)? {
        Some(found) if is_it(&found, of) => at::set_mtime(parent.as_fd(), name, mtime),
        Some(_) => Err(Errno::STALE),
        None => Err(Errno::NOENT),
    }
}

/// What is behind a lock that a panic may have poisoned.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `each` on all items on some threads. After the first error no more are begun.
pub(crate) fn on_threads<T: Sync>(threads: u64, items: &[T], each: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    const CHUNK: usize = 8;
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let from = next.fetch_add(CHUNK, Ordering::Relaxed);
            let Some(rest) = items.get(from..) else { return };
            for item in rest.iter().take(CHUNK) {
                if let Err(error) = each(item) {
                    next.store(items.len(), Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
            if rest.is_empty() {
                return;
            }
        }
    };
    if items.len() <= CHUNK {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
    }
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A step with its slot.
#[derive(Clone, Copy)]
struct Slotted<'a> {
    step: &'a Step,
    slot: Option<u64>,
}
