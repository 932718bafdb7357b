//! From two snapshots to a list of steps: the present state (the safety snapshot) and the one to go back to.
//!
//! Each difference between them is looked at on disk before anything is changed. It becomes a step, or is left alone (with the
//! reason), or stands in the way (a conflict; then nothing at all is done). What may be touched is in `scope.rs`, how steps are
//! carried out in `apply/`.

mod finish;
mod held;
mod ignored;
mod lost;
mod repositories;
mod taken;
pub(super) mod unreadable;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use ah_plugin_api::{
    Change, Changes, Context, DiffMethod, Dir, Entry, EntryKind, Error, ErrorKind, Lost, OmitReason, RelPath, Result,
    Snapshot,
};
use rustix::io::Errno;

use super::at::{Found, Tree};
use super::doors::LeftOpen;
use super::scope::{Omissions, Scope};
use super::{Ignores, LeftAlone};
use crate::diff::not_of_the_work;
use crate::walk::{self, Shelf, Source, same_contents};

/// What is said of a path that a snapshot has, since all was captured, and does not give to who restores it.
const UNREADABLE_THEN: &str = "what the snapshot holds of it you may not read";

const MADE_AFTER: &str = "it was made after the present state was saved";
const CHANGED_AFTER: &str = "it changed after the present state was saved";
pub(super) const MODE_AFTER: &str = "its mode was changed after the present state was saved";

/// What is said of what somebody else changes while a restore looks.
pub(super) const IN_USE: [&str; 3] = [MADE_AFTER, CHANGED_AFTER, MODE_AFTER];

/// What is said of a directory that is another's.
pub(super) const SHUT: &str = "you may not write to this directory";

/// What is said of a directory with something on it that is not the workspace's.
pub(super) const MOUNTED_NOW: &str = "something is mounted on it by now";
const SUBVOLUME_NOW: &str = "it is a subvolume of its own by now";
/// Where the kernel does not tell which of the two.
pub(super) const FOREIGN_NOW: &str = "something is mounted on it, or it is a subvolume of its own, by now";

const OVERWRITTEN_IF_ASKED: &str = "ignored: `--ignored` overwrites it";
const NEVER_MADE: &str = "special files cannot be made again";
const NOTHING_OF_IT: &str = "nothing of a special file is brought back";

/// Where a restore works.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) workspace: &'a Dir,
    pub(crate) shelf: Shelf<'a>,
    /// Directories of our own state inside the workspace.
    pub(crate) own_state: &'a [RelPath],
    /// For providers that capture ignored files and do not say which they are.
    pub(crate) ignores: Option<&'a Ignores>,
}

/// What is wanted.
pub(crate) struct Wish<'a> {
    pub(crate) safety: &'a Snapshot,
    /// Where that is, if not on the shelf of the ground: another provider took it.
    pub(crate) safety_shelf: Option<Shelf<'a>>,
    pub(crate) target: &'a Snapshot,
    pub(crate) scope: Scope,
    /// Overwrite ignored files, too.
    pub(crate) ignored: bool,
    /// Delete ignored files, too: only for what a restore itself has made.
    pub(crate) delete_ignored: bool,
    pub(crate) exact_times: bool,
    /// Replace files also where nothing holds what is lost. Directories are never lost so.
    pub(crate) force: bool,
}

/// One path that changes.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) path: RelPath,
    /// What the safety snapshot holds.
    pub(crate) before: Option<Entry>,
    /// What the target snapshot holds.
    pub(crate) after: Option<Entry>,
    /// What is on disk, looked at while planning.
    pub(crate) found: Option<Found>,
}

/// The steps, in the order of their lists.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Taken away to make room for another kind of thing at the same path, the deepest first.
    pub(crate) clear: Vec<Step>,
    /// Directories to be made, the topmost first.
    pub(crate) dirs: Vec<Step>,
    /// Files and symlinks to be put in place.
    pub(crate) puts: Vec<Step>,
    /// Those of `puts` whose contents are there already, under other names too that are not to be like this one.
    pub(crate) anew: HashSet<RelPath>,
    /// Taken away for good, the deepest first.
    pub(crate) removals: Vec<Step>,
    /// Mode or time alone, the deepest first.
    pub(crate) attributes: Vec<Step>,
    /// Directories that have to be made writable for a while, as they were found.
    pub(crate) unlock: Vec<(RelPath, Found)>,
    /// Directories that interrupted ones had left so: they are shut with those.
    pub(crate) left_open: Vec<LeftOpen>,
    /// Directories in which something changes, as they were found; only those that are there already.
    pub(crate) parents: Vec<(RelPath, Found)>,
    /// Left alone, and why.
    pub(crate) left: Vec<LeftAlone>,
    /// In the way, and why.
    pub(crate) conflicts: Vec<LeftAlone>,
    /// How many of these would not be in the way with `force`, and go no other way.
    pub(crate) forcible: usize,
    /// Ignored files that are replaced, and that a safety snapshot with rules of its own would hold if it was asked to.
    pub(crate) to_hold: Vec<RelPath>,
    /// What came since, no snapshot holds, and is ignored by rules that may go with this.
    pub(crate) hidden: Vec<RelPath>,
    /// Files that are lost with `force`, as nothing holds them, and why.
    pub(crate) overwritten: Vec<LeftAlone>,
    /// What an undo would have to take away and cannot even look at, and what the snapshot cannot give any more. It keeps nothing else from being done.
    pub(crate) beyond: Vec<LeftAlone>,
    /// How many of these the snapshot cannot give any more.
    pub(crate) lost: usize,
    /// How many of these are damaged in a snapshot.
    pub(crate) damaged: usize,
    /// How many of these could not be read, as the disk said, which may say something else the next time.
    pub(crate) passing: usize,
    /// How many of these should go, and no snapshot holds them.
    pub(crate) unheld: usize,
    /// Which of these are repositories that the snapshot holds.
    pub(crate) repositories: Vec<RelPath>,
}

impl Plan {
    /// All steps. A path whose kind changes is there twice.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.clear.iter().chain(&self.dirs).chain(&self.puts).chain(&self.removals).chain(&self.attributes)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps().next().is_none()
    }

    /// What changes, one for each path, in order.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let change = |step: &Step| {
            // What is lost by force is there, whether anything holds it or not.
            let there = || step.found.map(|found| found.entry(step.path.file_name().unwrap_or_default()));
            Change { path: step.path.clone(), before: step.before.clone().or_else(there), after: step.after.clone() }
        };
        let mut changes: Vec<Change> = self.steps().map(change).collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.dedup_by(|a, b| a.path == b.path);
        changes
    }
}

/// Finds out what is to be done. Changes nothing.
pub(crate) fn plan(ground: &Ground<'_>, wish: &Wish<'_>, target: &Source<'_>, cx: &Context<'_>) -> Result<Plan> {
    let tree = Tree::new(ground.workspace.as_fd())?;
    let differences = differences(ground, wish, cx).map_err(|error| unreadable::top_unread(tree, target, error, cx));
    let Changes { changes, lost, unread, .. } = differences?;
    let lost: HashMap<&RelPath, &Lost> = lost.iter().map(|lost| (&lost.path, lost)).collect();
    let mut planner = Planner {
        ground,
        wish,
        target,
        cx,
        safety: OnceCell::new(),
        tree,
        kept_by_safety: Omissions::of(wish.safety),
        kept_by_target: Omissions::of(wish.target),
        swapped: HashSet::new(),
        becoming: HashSet::new(),
        there: HashSet::new(),
        in_the_way: HashSet::new(),
        rules: changes
            .iter()
            .filter(|change| ignored::of_rules(change, wish))
            .filter_map(|change| change.path.parent())
            .collect(),
        plan: Plan::default(),
    };
    for (done, change) in changes.iter().enumerate() {
        if done.is_multiple_of(256) {
            cx.check_cancelled()?;
            cx.progress("planning", done as u64, Some(changes.len() as u64));
        }
        match lost.get(&change.path) {
            Some(lost) => planner.one_lost(change, lost.absent)?,
            None => planner.one(change)?,
        }
    }
    unread.iter().try_for_each(|path| planner.unread(path))?;
    planner.beyond_reach()?;
    planner.came_unheld()?;
    planner.came_hidden(&changes)?;
    planner.finish()
}

/// What differs from the present state to the one to go back to.
fn differences(ground: &Ground<'_>, wish: &Wish<'_>, cx: &Context<'_>) -> Result<Changes> {
    let (from, to, tops) = (&wish.safety.reference, &wish.target.reference, wish.scope.tops());
    match wish.safety_shelf {
        // Nothing that one provider says of contents means anything to another: both are read.
        Some(shelf) => {
            let present = shelf.strange().open(from, cx)?;
            walk::diff(&present, &ground.shelf.open(to, cx)?, &tops, wish.exact_times, &|_| false, cx)
        }
        None if wish.safety.tree.is_some() && wish.safety.tree == wish.target.tree && !wish.exact_times => {
            Ok(Changes {
                changes: Vec::new(),
                method: DiffMethod::Native,
                untouched: false,
                lost: Vec::new(),
                unread: Vec::new(),
            })
        }
        None => ground.shelf.diff(from, to, &tops, wish.exact_times, cx),
    }
}

/// What the disk says about a path of which the safety snapshot holds something.
enum Seen {
    /// It is still that.
    Same(Found),
    /// Nothing is there any more.
    Gone,
    /// It is what it shall become already, or it is in the way and listed as such.
    Done,
}

struct Planner<'a> {
    ground: &'a Ground<'a>,
    wish: &'a Wish<'a>,
    target: &'a Source<'a>,
    cx: &'a Context<'a>,
    /// Opened when contents have to be compared.
    safety: OnceCell<Source<'a>>,
    tree: Tree<'a>,
    kept_by_safety: Omissions<'a>,
    kept_by_target: Omissions<'a>,
    /// Directories that make room for something that is none.
    swapped: HashSet<RelPath>,
    /// Directories that will be made.
    becoming: HashSet<RelPath>,
    /// Directories that are known to be there.
    there: HashSet<RelPath>,
    /// What is told to be in the way.
    in_the_way: HashSet<RelPath>,
    /// Directories whose own ignore rules change.
    rules: HashSet<RelPath>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn one(&mut self, change: &Change) -> Result<()> {
        let path = &change.path;
        if not_of_the_work(path, self.ground.own_state) {
            self.untouched(change);
            return Ok(());
        }
        let makes_room = self.makes_room(path);
        if !makes_room && !self.wish.scope.holds(path) {
            return Ok(());
        }
        match (&change.before, &change.after) {
            (Some(before), None) => self.removed(path, before, makes_room),
            (None, Some(after)) => self.added(path, after),
            (Some(before), Some(after)) => self.changed(path, before, after),
            (None, None) => Ok(()),
        }
    }

    /// Whether `path` is in a directory that makes room for something else.
    fn makes_room(&self, path: &RelPath) -> bool {
        !self.swapped.is_empty()
            && std::iter::successors(path.parent(), RelPath::parent).any(|above| self.swapped.contains(&above))
    }

    fn removed(&mut self, path: &RelPath, before: &Entry, makes_room: bool) -> Result<()> {
        let ignored = self.ignored(path, before) && !self.wish.delete_ignored;
        let why = if before.kind == EntryKind::Special {
            Some("it is a special file, which could not be made again".to_owned())
        } else if ignored {
            Some(ignored::never_deleted(path).to_owned())
        } else {
            let omission = self.kept_by_target.cover(path).filter(|_| !makes_room);
            // What was there and ignored would be held: nothing was there.
            let made = |reason| self.wish.delete_ignored && reason == OmitReason::Ignored;
            omission
                .filter(|omission| !made(omission.reason))
                .map(|omission| format!("the snapshot left it out ({})", omission.reason))
        };
        if let Some(why) = why {
            if makes_room {
                self.conflict(path, why);
            } else {
                self.leave(path, why);
            }
            return Ok(());
        }
        let Seen::Same(found) = self.look(path, before, None)? else { return Ok(()) };
        let step = Step { path: path.clone(), before: Some(before.clone()), after: None, found: Some(found) };
        if makes_room { &mut self.plan.clear } else { &mut self.plan.removals }.push(step);
        Ok(())
    }

    fn added(&mut self, path: &RelPath, after: &Entry) -> Result<()> {
        if after.kind == EntryKind::Special {
            // A provider that does not capture it says of one that is there that it is not.
            match self.tree.stat(path) {
                Ok(Some(found)) if found.kind == EntryKind::Special => {}
                Ok(Some(_)) => self.leave(path, NEVER_MADE),
                _ => self.leave(path, format!("it is missing, and {NEVER_MADE}")),
            }
            return Ok(());
        }
        if self.target.is_unreadable(path, after.kind, self.cx)? {
            self.leave(path, UNREADABLE_THEN);
            return Ok(());
        }
        let parent = path.parent().unwrap_or_default();
        if !self.becoming.contains(&parent) {
            match self.tree.stat(path) {
                Ok(None) | Err(Errno::NOTDIR | Errno::LOOP) => {}
                Ok(Some(found)) => return self.taken(path, after, found),
                Err(error) => {
                    self.unseen(path, error);
                    return Ok(());
                }
            }
            if !self.way_to(path)? {
                return Ok(());
            }
        }
        self.make(Step { path: path.clone(), before: None, after: Some(after.clone()), found: None });
        Ok(())
    }

    fn changed(&mut self, path: &RelPath, before: &Entry, after: &Entry) -> Result<()> {
        let (was_dir, becomes_dir) = (before.kind == EntryKind::Dir, after.kind == EntryKind::Dir);
        if after.kind == EntryKind::Special {
            // Of one that is there, it may be the mode or the time that differs.
            self.leave(path, if before.kind == EntryKind::Special { NOTHING_OF_IT } else { NEVER_MADE });
            return Ok(());
        }
        if before.kind == EntryKind::Special {
            self.conflict(path, "it is a special file, which could not be made again");
            return Ok(());
        }
        // What is lost by it, the safety snapshot holds.
        let ignored = after.ignored || self.ignored(path, before) && !self.ruled_until_now(path, after);
        if !self.asked_for(path, after) && ignored {
            self.leave(
                path,
                match was_dir == becomes_dir {
                    true => OVERWRITTEN_IF_ASKED,
                    false => "ignored, and a directory on one side: nothing overwrites it",
                },
            );
            return Ok(());
        }
        if self.target.is_unreadable(path, after.kind, self.cx)? {
            self.leave(path, UNREADABLE_THEN);
            return Ok(());
        }
        let step = |found| Step { path: path.clone(), before: Some(before.clone()), after: Some(after.clone()), found };
        if was_dir && becomes_dir {
            return match self.tree.stat(path) {
                Ok(Some(found)) if found.kind == EntryKind::Dir => {
                    let mode_differs = found.mode != after.mode;
                    if mode_differs && found.mode != before.mode {
                        let why = self.told_wrong(path, before, &found);
                        self.conflict(path, why.unwrap_or_else(|| MODE_AFTER.to_owned()));
                    } else if mode_differs || (self.wish.exact_times && found.mtime != after.mtime) {
                        self.plan.attributes.push(step(Some(found)));
                    }
                    Ok(())
                }
                // Gone or replaced meanwhile, while nothing in it matters here: what does matter says so itself.
                _ => self.added(path, after),
            };
        }
        let found = match self.look(path, before, Some(after))? {
            Seen::Same(found) => found,
            // Nothing is lost by making it again.
            Seen::Gone => return self.added(path, after),
            Seen::Done => return Ok(()),
        };
        if self.same_contents(path, before, after)? {
            self.plan.attributes.push(step(Some(found)));
        } else if was_dir {
            self.swapped.insert(path.clone());
            self.plan.clear.push(step(Some(found)));
            self.put(step(None));
        } else if becomes_dir {
            self.becoming.insert(path.clone());
            self.plan.clear.push(step(Some(found)));
            self.plan.dirs.push(step(None));
        } else {
            self.put(step(Some(found)));
        }
        Ok(())
    }

    /// Looks whether the disk still has what the safety snapshot holds.
    fn look(&mut self, path: &RelPath, before: &Entry, after: Option<&Entry>) -> Result<Seen> {
        let found = match self.tree.stat(path) {
            Ok(None) => return Ok(Seen::Gone),
            Ok(Some(found)) => found,
            Err(error) => {
                self.unseen(path, error);
                return Ok(Seen::Done);
            }
        };
        // Whatever its attributes say: neither could it be compared, nor brought back by an undo.
        if matches!(found.kind, EntryKind::File | EntryKind::Dir) && self.tree.is_unreadable(path) {
            let why = self.unread_as("it stays as it is: you may not read it", path);
            if self.makes_room(path) {
                self.conflict(path, why);
            } else if after.is_none() && matches!(self.wish.scope, Scope::Exactly(_)) {
                self.beyond_looking(path);
            } else {
                self.leave(path, why);
            }
            return Ok(Seen::Done);
        }
        let doubt = found.may_be_touched_since(self.wish.safety.created);
        let still = found.is_still(before);
        if still && (found.kind == EntryKind::Dir || !doubt) {
            return Ok(Seen::Same(found));
        }
        // Its times alone may be others: a write that failed for want of room moves them in memory only.
        let alike = (found.kind, found.size, found.mode) == (before.kind, before.size, before.mode);
        if (still || alike && found.kind == EntryKind::File) && self.held(path, before)? {
            return Ok(Seen::Same(found));
        }
        let present = found.entry(path.file_name().unwrap_or_default());
        if let Some(after) = after.filter(|after| after.kind == found.kind && after.kind != EntryKind::Dir)
            && (found.mode == after.mode || found.kind == EntryKind::Symlink)
            && self.on_disk_equals(path, &present, after)?
        {
            return Ok(Seen::Done);
        }
        let not_given = self.not_given(path, before)?.or_else(|| self.told_wrong(path, before, &found));
        let is_given = not_given.is_none();
        let why = not_given.unwrap_or_else(|| CHANGED_AFTER.to_owned());
        if self.wish.force && found.kind != EntryKind::Dir && found.kind != EntryKind::Special {
            self.overwrite(path, why);
            return Ok(Seen::Same(found));
        }
        // What was there has no other copy then, and nobody else is at work on it.
        let forcible = is_given && found.kind != EntryKind::Dir && found.kind != EntryKind::Special;
        self.plan.forcible += usize::from(forcible);
        self.conflict(path, why);
        Ok(Seen::Done)
    }

    fn same_contents(&self, path: &RelPath, before: &Entry, after: &Entry) -> Result<bool> {
        if before.kind != after.kind || before.size != after.size {
            return Ok(false);
        }
        match (&before.content, &after.content) {
            (Some(before), Some(after)) => Ok(before == after),
            _ => match same_contents((self.safety()?, path, before), (self.target, path, after), self.cx) {
                // What cannot be read is put in place, or that fails.
                Err(error) if error.is_unreadable() => Ok(false),
                answer => answer,
            },
        }
    }

    fn safety(&self) -> Result<&Source<'a>> {
        if self.safety.get().is_none() {
            let shelf = self.wish.safety_shelf.map_or(self.ground.shelf, Shelf::strange);
            let source = shelf.open(&self.wish.safety.reference, self.cx)?;
            let _ = self.safety.set(source);
        }
        self.safety.get().ok_or_else(|| Error::new(ErrorKind::Internal, "the safety snapshot was not opened"))
    }

    /// Makes sure that the directories above `path` are there or will be made; else it is a conflict.
    fn way_to(&mut self, path: &RelPath) -> Result<bool> {
        let mut missing = Vec::new();
        let mut above = path.parent();
        while let Some(dir) = above {
            if dir.is_root() || self.there.contains(&dir) || self.becoming.contains(&dir) {
                break;
            }
            match self.tree.stat(&dir) {
                Ok(Some(found)) if found.kind == EntryKind::Dir => {
                    self.there.insert(dir);
                    break;
                }
                Ok(Some(_)) => {
                    // Once for all that goes below.
                    if !self.in_the_way.contains(&dir) {
                        // Who has named others can name this one; an undo is of what it is of.
                        let named = matches!(&self.wish.scope, Scope::Below(_)) && !self.wish.scope.holds(&dir);
                        let or = if named { "; restore that, too" } else { "" };
                        let why = format!("it is not a directory now, and has to be one for what goes below it{or}");
                        self.conflict(&dir, why);
                    }
                    return Ok(false);
                }
                Ok(None) | Err(Errno::NOTDIR | Errno::LOOP) => {
                    above = dir.parent();
                    missing.push(dir);
                }
                Err(error) => {
                    self.unseen(path, error);
                    return Ok(false);
                }
            }
        }
        for dir in missing.into_iter().rev() {
            let entry = self.target.entry(&dir, self.cx)?.filter(|entry| entry.kind == EntryKind::Dir);
            let entry =
                entry.ok_or_else(|| Error::new(ErrorKind::DataLoss, format!("the snapshot has no directory {dir}")))?;
            self.make(Step { path: dir, before: None, after: Some(entry), found: None });
        }
        Ok(true)
    }

    /// A file or symlink is to be put in place. Ignored ones are known by that, whoever says so.
    fn put(&mut self, mut step: Step) {
        if let Some(after) = &step.after {
            let ignored = self.ignored(&step.path, after);
            step.after = step.after.map(|after| Entry { ignored, ..after });
        }
        self.plan.puts.push(step);
    }

    fn make(&mut self, step: Step) {
        if step.after.as_ref().is_some_and(|after| after.kind == EntryKind::Dir) {
            // The way to something else may have made it already.
            if self.becoming.insert(step.path.clone()) {
                self.plan.dirs.push(step);
            }
        } else {
            self.put(step);
        }
    }

    fn leave(&mut self, path: &RelPath, reason: impl Into<String>) {
        self.plan.left.push(LeftAlone { path: path.clone(), reason: reason.into() });
    }

    fn overwrite(&mut self, path: &RelPath, reason: impl Into<String>) {
        if self.plan.overwritten.last().is_none_or(|last| last.path != *path) {
            self.plan.overwritten.push(LeftAlone { path: path.clone(), reason: reason.into() });
        }
    }

    /// What cannot be looked at is in the way; or, for all that is in it, what is no part of the workspace any more.
    fn unseen(&mut self, path: &RelPath, error: Errno) {
        let foreign = if error == Errno::XDEV { self.tree.foreign_above(path) } else { None };
        match foreign {
            Some((top, _)) if self.plan.conflicts.last().is_some_and(|last| last.path == top) => {}
            Some((top, found)) => {
                let what = match found.mounted {
                    Some(true) => MOUNTED_NOW,
                    Some(false) => SUBVOLUME_NOW,
                    None => FOREIGN_NOW,
                };
                self.conflict(&top, what);
            }
            None if self.refused_as_closed(path) => {}
            None => self.conflict(path, format!("it cannot be looked at ({error})")),
        }
    }

    fn conflict(&mut self, path: &RelPath, reason: impl Into<String>) {
        self.in_the_way.insert(path.clone());
        self.plan.conflicts.push(LeftAlone { path: path.clone(), reason: reason.into() });
    }
}
