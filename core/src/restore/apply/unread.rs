//! What of the snapshot cannot be read, and what stays as it is for that.
//!
//! One file that is damaged keeps none of the others from coming back. But a snapshot that is away looks, file by file, like one in which all is damaged, and who took
//! away then what came since would leave neither the old nor the new. So it is asked for again before anything changes; and where none of what was to come could be
//! read, or the disk said no, which may pass, nothing is taken away.

use std::collections::{HashMap, HashSet};

use ah_plugin_api::{EntryKind, Error, ErrorKind, Place, RelPath, Result, SnapshotRef};

use super::{Staging, Work, locked};
use crate::restore::plan::Step;

/// What is said of what would have to go while that cannot be told.
const IN_DOUBT: &str = "it stays as it is, as long as what the snapshot holds cannot be read";
const FOR_ITS_PLACE: &str = "it stays as it is: what is to be in the place of its directory cannot be read";
const FOR_ALL_BELOW: &str = "it stays as it is: nothing that is to be in it can be read";

/// What came of reading the snapshot.
#[derive(Default)]
pub(super) struct Unread {
    /// What cannot be read.
    pub(super) paths: HashSet<RelPath>,
    /// Whether it was the system that said so of one of them, which may say something else the next time.
    may_pass: bool,
    /// Whether nobody can tell that the snapshot is there, so that what is to go stays.
    in_doubt: bool,
}

/// Why what was to make room stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    InDoubt,
    Unread(&'static str),
}

/// The topmost paths of what was to make room and stays.
pub(super) struct Kept<'p>(HashMap<&'p RelPath, Why>);

impl Kept<'_> {
    fn why(&self, path: &RelPath) -> Option<(bool, Why)> {
        if self.0.is_empty() {
            return None;
        }
        let mut above = std::iter::successors(Some(path.clone()), RelPath::parent);
        above.find_map(|above| self.0.get(&above).map(|why| (above == *path, *why)))
    }
}

impl<'a> Work<'a> {
    pub(super) fn cannot_read(&self, path: &RelPath, error: &Error) {
        let why = error.causes.first().map_or_else(|| error.to_string(), ToString::to_string);
        let why = format!("it stays as it is: what the snapshot holds of it cannot be read ({why})");
        let may_pass = error.is_of_the_disk();
        self.left_for(may_pass, path, why);
        let mut unread = locked(&self.unread);
        unread.paths.insert(path.clone());
        unread.may_pass |= may_pass;
    }

    /// Looks whether the snapshot is there, where something of it cannot be read.
    ///
    /// # Errors
    /// If it is not, or nothing can be written in the workspace any more, which may be what was met.
    pub(super) fn look_again(&self, staging: &Staging) -> Result<()> {
        let mut unread = locked(&self.unread);
        // Of a directory that cannot be read nothing was to be.
        unread.may_pass |= self.plan.passing > 0;
        if unread.paths.is_empty() && self.plan.damaged + self.plan.passing == 0 {
            return Ok(());
        }
        if unread.may_pass {
            staging.can_write()?;
        }
        let ask = SnapshotRef { snapshot: self.reference.clone() };
        let is_there = self.shelf.provider.stat(&Place::new(self.shelf.store), &ask, self.cx);
        is_there.map_err(|error| away(error, "the snapshot cannot be read"))?;
        let size = |step: &Step| step.after.as_ref().map_or(0, |after| after.size);
        let was_read = |step: &&Step| size(step) > 0 && !unread.paths.contains(&step.path);
        let witness = self.plan.puts.iter().filter(was_read).min_by_key(|step| size(step));
        if let Some(step) = witness {
            let read = self.target.contents(&step.path, size(step), Some(&self.shelf), self.cx);
            read.map_err(|error| away(error, "the snapshot cannot be read any more"))?;
        }
        unread.in_doubt = unread.may_pass || witness.is_none();
        Ok(())
    }

    /// What was to make room and stays: for what cannot be read itself, for a directory of which nothing can be, or as long as the snapshot may be away.
    pub(super) fn kept(&self, unread: &Unread) -> Kept<'a> {
        if unread.paths.is_empty() && !unread.in_doubt {
            return Kept(HashMap::new());
        }
        let why = |step: &Step| {
            // What is below such a path has nothing in its own place.
            let becomes_dir = step.after.as_ref()?.kind == EntryKind::Dir;
            let mut puts = self.plan.puts.iter().filter(|put| put.path.starts_with(&step.path)).peekable();
            let none = puts.peek().is_some() && puts.all(|put| unread.paths.contains(&put.path));
            let of_it = Why::Unread(if becomes_dir { FOR_ALL_BELOW } else { FOR_ITS_PLACE });
            if none { Some(of_it) } else { unread.in_doubt.then_some(Why::InDoubt) }
        };
        Kept(self.plan.clear.iter().filter_map(|step| Some((&step.path, why(step)?))).collect())
    }

    /// Whether what was to make room stays.
    pub(super) fn stays(&self, kept: &Kept<'_>, unread: &Unread, path: &RelPath) -> bool {
        let Some((_, why)) = kept.why(path) else { return false };
        // It is told as such.
        if unread.paths.contains(path) {
            locked(&self.outcome).undone.push(path.clone());
        } else {
            self.tell(unread, path, why);
        }
        true
    }

    /// Whether there is no place for what was to come, as what is there stays.
    pub(super) fn has_no_place(&self, kept: &Kept<'_>, unread: &Unread, path: &RelPath) -> bool {
        match kept.why(path) {
            _ if unread.paths.contains(path) => true,
            None => false,
            // What stays there was told.
            Some((true, _)) => {
                locked(&self.outcome).undone.push(path.clone());
                true
            }
            Some((false, why)) => {
                self.tell(unread, path, why);
                true
            }
        }
    }

    /// Whether what is to go stays.
    pub(super) fn does_not_go(&self, unread: &Unread, path: &RelPath) -> bool {
        if unread.in_doubt {
            self.tell(unread, path, Why::InDoubt);
        }
        unread.in_doubt
    }

    fn tell(&self, unread: &Unread, path: &RelPath, why: Why) {
        match why {
            Why::InDoubt => {
                self.left_undone(path, IN_DOUBT);
                locked(&self.outcome).waiting += 1;
            }
            Why::Unread(why) => self.left_for(unread.may_pass, path, why),
        }
    }

    /// As [`Work::left_undone`], of a step that waits for what cannot be read.
    fn left_for(&self, may_pass: bool, path: &RelPath, reason: impl Into<String>) {
        self.left_undone(path, reason);
        let mut outcome = locked(&self.outcome);
        *if may_pass { &mut outcome.passing } else { &mut outcome.damaged } += 1;
    }
}

/// An error that is not of one path.
fn away(mut error: Error, what: &str) -> Error {
    if error.kind != ErrorKind::Cancelled {
        error.hint.get_or_insert_with(|| {
            "repeat it once the snapshot can be read again; `ah agent fs snapshots` lists the others".to_owned()
        });
    }
    error.context(what)
}

/// Why a path cannot be read from the snapshot; `DataLoss` also where the system says so in its own words.
pub(super) fn unread(path: &RelPath, mut error: Error) -> Error {
    // Nothing is wrong with the snapshot.
    if error.kind == ErrorKind::Cancelled {
        return error;
    }
    if error.is_of_the_disk() {
        error.kind = ErrorKind::DataLoss;
    }
    error.context(format!("cannot read {path} from the snapshot"))
}
