//! The snapshot that was taken for a branch, once that is gone: whether it goes too.

use std::cell::Cell;
use std::os::fd::AsFd;

use ah_plugin_api::{Entry, EntryKind, Error, ErrorKind, Reference, RelPath, Result, SnapshotId, Timestamp};
use rustix::io::Errno;

use crate::branch::BranchRecord;
use crate::diff::not_of_the_work;
use crate::notice::{Notice, NoticeKind};
use crate::prune;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::restore::Ignores;
use crate::restore::at::{self, Found, Tree, io};
use crate::text;
use crate::timeline::EventBody;
use crate::walk::{self, Shelf, Source};
use crate::workspace::Workspace;

/// So many files are looked at between two signs of how far it is.
const BETWEEN: u64 = 512;

impl Workspace {
    /// Removes the snapshot that a branch grew from which is gone, if it is no point of this workspace to go back to, nothing else needs it, and
    /// the workspace still has what it holds. A notice says why it stays.
    ///
    /// # Errors
    /// The provider's; prune finds what is left then.
    pub fn give_up_base_of(&self, branch: &BranchRecord) -> Result<()> {
        let is_base = || {
            let served = self.serve(&branch.provider)?;
            Ok::<_, Error>(self.open_dir().is_ok() && self.can_capture(&served).is_err())
        };
        if branch.origin == self.id && is_base()? { self.give_up_base_if_as_it_was(&branch.snapshot) } else { Ok(()) }
    }

    /// As [`Workspace::give_up_base_of`], of a branch that nobody was ever given: what was taken for it alone was to be no point to go back to.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn give_up_base_of_unmade(&self, base: &SnapshotId) -> Result<()> {
        let grew = |body: &EventBody| matches!(body, EventBody::Branch { snapshot, .. } if snapshot == base);
        if self.state()?.events.iter().any(|event| grew(&event.body)) { Ok(()) } else { self.give_up_base(base) }
    }

    /// As [`Workspace::give_up_base_of`], whoever took it.
    pub(super) fn give_up_base_if_as_it_was(&self, base: &SnapshotId) -> Result<()> {
        let Some(taken) = self.state()?.snapshot(base).cloned() else { return Ok(()) };
        // What stays anyway need not be looked through.
        if !self.give_up_if_free(&free(base), prune::WAIT, || Ok(()))? {
            return Ok(());
        }
        let why = match self.held_alone(&taken) {
            Ok(None) => return self.give_up_base(base),
            Ok(Some(path)) => format!("it may be all that has {path} as it was then"),
            // Nobody is to hear later that it was looked for too late.
            Err(error) => format!("it cannot be compared with the workspace: {error}"),
        };
        let message = format!("the snapshot {base}, which the branch grew from, stays: {why}");
        let root = text::shell(self.root.as_os_str());
        self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(format!(
            "ah -C {root} agent fs show {base}; the retention policy removes it in time, `ah -C {root} agent fs rm {base}` now"
        )));
        Ok(())
    }

    /// Removes the snapshot that was taken for a branch which is gone, unless anything else needs it.
    fn give_up_base(&self, base: &SnapshotId) -> Result<()> {
        let state = self.state()?;
        let Some(taken) = state.snapshot(base).map(std::slice::from_ref) else { return Ok(()) };
        let say = || self.take_off(taken, "branch");
        match self.give_up_if_free(&free(base), prune::WAIT, say)? {
            true => self.destroy_all(taken),
            false => Ok(()),
        }
    }

    /// The first file or link of a snapshot that the workspace does not have as it was captured, but for what is ignored or part of a repository.
    ///
    /// One that has its size and time of modification, and was not touched since, is as it was. Costs a listing of each directory.
    fn held_alone(&self, snapshot: &SnapshotRecord) -> Result<Option<RelPath>> {
        let (dir, policy, scratch) = (self.open_dir()?, self.policy()?, self.mounts_dir()?);
        let ignores = |policy: &_| Ignores::open(self.open_dir()?, policy);
        let served = self.serve(&snapshot.provider)?;
        let cx = self.context();
        let shelf = self.shelf(&served, &scratch);
        let before = shelf.open(&snapshot.reference, &cx)?;
        let none = |_: &RelPath, _: EntryKind, _: u64| false;
        let comparison = Comparison {
            now: Source::Directory { root: &dir, skip: &none },
            tree: Tree::new(dir.as_fd())?,
            ignores: self.policies_of_loss(self)?.iter().map(ignores).collect::<Result<_>>()?,
            own_state: &policy.own_state,
            taken: snapshot.time,
            seen: Cell::new(0),
            shelf,
            snapshot: &snapshot.reference,
            before,
            cx: &cx,
        };
        comparison.missing_in(&RelPath::root())
    }
}

/// A base that nothing else needs.
fn free(base: &SnapshotId) -> prune::Free<'_> {
    prune::Free { id: base, kind: SnapshotKind::Branch, other: None, since: 0 }
}

/// A snapshot and the workspace that it was taken of.
struct Comparison<'a> {
    shelf: Shelf<'a>,
    snapshot: &'a Reference,
    before: Source<'a>,
    now: Source<'a>,
    /// The workspace's.
    tree: Tree<'a>,
    /// What is no reason to stay is left out by all.
    ignores: Vec<Ignores>,
    own_state: &'a [RelPath],
    /// When the snapshot was taken. What was touched since is read.
    taken: Timestamp,
    /// How many files were looked at.
    seen: Cell<u64>,
    cx: &'a ah_plugin_api::Context<'a>,
}

impl Comparison<'_> {
    /// The first path in a directory of the snapshot that is missing in the workspace, or another there.
    fn missing_in(&self, at: &RelPath) -> Result<Option<RelPath>> {
        self.cx.check_cancelled()?;
        let dir = match self.tree.dir(at) {
            Ok(dir) => Some(dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(error) => return Err(io(format!("cannot look into {at}"), error)),
        };
        for entry in self.held_in(at)? {
            let path = at.join(&entry.name)?;
            let left_out = |ignores: &Ignores| ignores.left_out(&path, entry.kind, entry.size);
            if not_of_the_work(&path, self.own_state) || self.ignores.iter().all(left_out) {
                continue;
            }
            let found = match entry.kind {
                EntryKind::Dir => self.missing_in(&path)?,
                EntryKind::File | EntryKind::Symlink => {
                    let there = dir.as_ref().map_or(Ok(None), |dir| at::stat(dir.as_fd(), &entry.name));
                    let there = there.map_err(|error| io(format!("cannot look at {path}"), error))?;
                    let is_there = there.map_or(Ok(false), |there| self.is_as_it_was(&path, &entry, &there))?;
                    (!is_there).then_some(path)
                }
                // Nothing is in it.
                EntryKind::Special => None,
                _ => Some(path),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The entries of a directory of the snapshot, without those that it has lost: what it cannot give, it is not kept for.
    fn held_in(&self, at: &RelPath) -> Result<Vec<Entry>> {
        match self.before.children(at, self.cx) {
            Err(error) if error.kind == ErrorKind::DataLoss => {}
            listed => return listed,
        }
        // Only a view gives their names still.
        let (view, mut held) = (self.shelf.show(self.snapshot, self.cx)?, Vec::new());
        let names = view.tree()?.map_or(Ok(Vec::new()), |tree| tree.names(at));
        for name in names.map_err(|error| io(format!("cannot list {at}"), error))? {
            match self.before.entry(&at.join(&name)?, self.cx) {
                Err(error) if error.kind == ErrorKind::DataLoss => {}
                entry => held.extend(entry?),
            }
        }
        Ok(held)
    }

    fn is_as_it_was(&self, path: &RelPath, entry: &Entry, there: &Found) -> Result<bool> {
        self.seen.set(self.seen.get() + 1);
        if self.seen.get().is_multiple_of(BETWEEN) {
            self.cx.check_cancelled()?;
            self.cx.progress("comparing", self.seen.get(), None);
        }
        let told = (there.kind, there.size, there.mtime) == (entry.kind, entry.size, entry.mtime);
        if told && !there.may_be_touched_since(self.taken) {
            return Ok(true);
        }
        let there = there.entry(&entry.name);
        match walk::same_contents((&self.before, path, entry), (&self.now, path, &there), self.cx) {
            Err(error) if error.kind == ErrorKind::DataLoss => Ok(true),
            answer => answer,
        }
    }
}
