//! Differences between two snapshots, or a snapshot and the workspace. Comparing by walking is in `walk`.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

use ah_plugin_api::{
    Capability, Change, Changes, DiffMethod, DiffRequest, Dir, Entry, EntryKind, Error, ErrorKind, RelPath, Result,
    Side, SnapshotRef,
};
use serde::Serialize;

use crate::branch;
use crate::record::{ChangeRecord, SnapshotRecord};
use crate::restore::at::{Found, Tree};
use crate::restore::{Ignores, Omissions};
use crate::text;
use crate::walk::{self, Source, Trouble};
use crate::workspace::{Served, Workspace};

/// What can be said about a diff.
#[derive(Debug, Clone, Default)]
pub struct DiffOptions {
    /// Only these paths and what is below them; empty: everything.
    pub paths: Vec<RelPath>,
    /// Whether a file that differs in its modification time alone is a difference.
    pub times: bool,
}

/// One side of a diff.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiffSide {
    /// A snapshot.
    Snapshot(Box<SnapshotRecord>),
    /// The workspace as it is now.
    Workspace,
}

/// The differences.
#[derive(Debug, Clone, Serialize)]
pub struct DiffReport {
    /// The older side.
    pub from: DiffSide,
    /// The newer side.
    pub to: DiffSide,
    /// How they were found.
    pub method: DiffMethod,
    /// One for each path that differs, ordered by path bytes.
    pub changes: Vec<ChangeRecord>,
    /// Paths that this user may not read on one side, and so are not compared.
    #[serde(with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<RelPath>,
    /// Paths that are damaged on one side, or that the disk did not give, and so are not compared.
    #[serde(with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<RelPath>,
    /// Ignored paths, the topmost of each, that a snapshot among these holds and that were not asked for by name: they are not compared.
    #[serde(with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<RelPath>,
    /// What the older snapshot left out and is captured by now, the topmost of each: it is among the changes as added, and may have been there.
    #[serde(with = "text::rels", skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<RelPath>,
}

/// Differences, as they are told.
struct Told {
    changes: Changes,
    /// The topmost ignored paths of which none are told.
    ignored: BTreeSet<RelPath>,
}

impl Workspace {
    /// What differs from `from` to `to` (none: the workspace as it is now).
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; the provider's.
    pub fn diff(&self, from: &str, to: Option<&str>, options: &DiffOptions) -> Result<DiffReport> {
        self.tell_what_is_kept()?;
        let state = self.state()?;
        let from = self.resolve_and_tell(&state, from)?;
        let to = to.map(|to| self.resolve_and_tell(&state, to)).transpose()?;
        let told = match &to {
            Some(to) if to.provider != from.provider => self.changes_across(&from, to, options),
            to => self
                .serve(&from.provider)
                .and_then(|served| self.compared(&served, &self.diff_request(&from, to.as_ref(), options)?)),
        };
        let told = told.map_err(|mut error| {
            for side in std::iter::once(&from).chain(&to) {
                error = self.explain_lost(side, error);
            }
            error
        })?;
        let omitted = self.added_by_capture(&from, &told.changes.changes)?;
        let served = self.serve(&from.provider)?;
        self.diff_report(&served, (from, to), told, omitted, options)
    }

    /// What `from` left out, of what was added since.
    fn added_by_capture(&self, from: &SnapshotRecord, changes: &[Change]) -> Result<Vec<RelPath>> {
        let added = || changes.iter().filter(|change| change.before.is_none()).map(|change| &change.path);
        let served = self.serve(&from.provider)?;
        if added().next().is_none() || !served.can(Capability::AppliesPolicy) {
            return Ok(Vec::new());
        }
        let request = SnapshotRef { snapshot: from.reference.clone() };
        let then = served.provider.stat(&served.place(), &request, &self.context())?;
        let omissions = Omissions::of(&then);
        let tops: BTreeSet<&RelPath> =
            added().filter_map(|path| omissions.cover(path)).map(|omission| &omission.path).collect();
        Ok(tops.into_iter().cloned().collect())
    }

    /// Differences between snapshots of two providers, by walking. What one of them left out is none: nobody can tell.
    fn changes_across(&self, from: &SnapshotRecord, to: &SnapshotRecord, options: &DiffOptions) -> Result<Told> {
        let (cx, scratch, policy) = (self.context(), self.mounts_dir()?, self.policy()?);
        let (older, newer) = (self.serve(&from.provider)?, self.serve(&to.provider)?);
        let captured = |served: &Served, record: &SnapshotRecord| {
            served.provider.stat(&served.place(), &SnapshotRef { snapshot: record.reference.clone() }, &cx)
        };
        let (before, after) = (captured(&older, from)?, captured(&newer, to)?);
        let left_out = [Omissions::of(&before), Omissions::of(&after)];
        let pass_over = |path: &RelPath| {
            not_of_the_work(path, &policy.own_state) || left_out.iter().any(|side| side.cover(path).is_some())
        };
        // Nothing that one provider says of contents means anything to another: both are read.
        let [older, newer] = [&older, &newer].map(|served| self.shelf(served, &scratch).strange());
        let (before, after) = (older.open(&from.reference, &cx)?, newer.open(&to.reference, &cx)?);
        let changes = walk::diff(&before, &after, &options.paths, options.times, &pass_over, &cx)?;
        // Without the workspace there are no rules.
        let ignores = self.open_dir().ok().map(|dir| Ignores::open(dir, &policy)).transpose()?;
        Ok(LeavesOut::new(&policy.own_state, ignores, &options.paths).told(changes))
    }

    fn diff_request(
        &self,
        from: &SnapshotRecord,
        to: Option<&SnapshotRecord>,
        options: &DiffOptions,
    ) -> Result<DiffRequest> {
        Ok(DiffRequest {
            from: Side::Snapshot(from.reference.clone()),
            to: to.map_or(Side::Workspace, |to| Side::Snapshot(to.reference.clone())),
            paths: options.paths.clone(),
            times: options.times,
            policy: self.policy()?,
        })
    }

    /// `served`: who holds `from`.
    fn diff_report(
        &self,
        served: &Served,
        (from, to): (SnapshotRecord, Option<SnapshotRecord>),
        told: Told,
        omitted: Vec<RelPath>,
        options: &DiffOptions,
    ) -> Result<DiffReport> {
        let mut changes = told.changes;
        let mut unreadable = match to {
            None => self.look_at_missing(served, &from, &mut changes.changes, options.times)?,
            Some(_) => Vec::new(),
        };
        let mut damaged = self.damaged(served, (&from, to.as_ref()), &changes.unread)?;
        changes.unread.retain(|path| !damaged.contains(path));
        damaged.sort();
        unreadable.append(&mut changes.unread);
        unreadable.sort();
        unreadable.dedup();
        Ok(DiffReport {
            from: DiffSide::Snapshot(Box::new(from)),
            to: to.map_or(DiffSide::Workspace, |to| DiffSide::Snapshot(Box::new(to))),
            method: changes.method,
            changes: changes.changes.iter().map(ChangeRecord::from).collect(),
            unreadable,
            damaged,
            ignored: told.ignored.into_iter().collect(),
            omitted,
        })
    }

    /// Which of what was not compared something else keeps from that than that this user may not look into it.
    fn damaged(
        &self,
        served: &Served,
        (from, to): (&SnapshotRecord, Option<&SnapshotRecord>),
        unread: &[RelPath],
    ) -> Result<Vec<RelPath>> {
        if unread.is_empty() {
            return Ok(Vec::new());
        }
        let (scratch, cx) = (self.mounts_dir()?, self.context());
        let newer = to.map(|to| self.serve(&to.provider)).transpose()?;
        let dir = if to.is_none() { Some(self.open_dir()?) } else { None };
        let from = self.shelf(served, &scratch).open(&from.reference, &cx)?;
        let to = match (to.zip(newer.as_ref()), &dir) {
            (Some((to, newer)), _) => self.shelf(newer, &scratch).open(&to.reference, &cx)?,
            (None, Some(root)) => Source::Directory { root, skip: &|_, _, _| false },
            (None, None) => return Err(Error::new(ErrorKind::Internal, "a diff without the workspace it needs")),
        };
        let mut damaged = Vec::new();
        for path in unread {
            if !matches!(Trouble::at(path, [&from, &to], &cx)?, Trouble::Shut) {
                damaged.push(path.clone());
            }
        }
        Ok(damaged)
    }

    /// The workspace that this one grew from as a branch, with the snapshot that it grew from; none if this is no branch.
    ///
    /// # Errors
    /// `NotFound` if one of them is gone.
    pub fn grown_from(&self) -> Result<Option<(Self, SnapshotRecord)>> {
        let Some(id) = &self.record.branch else { return Ok(None) };
        let own = self.state()?.snapshots.iter().any(SnapshotRecord::counts);
        let hint = match own {
            true => "ah agent fs diff @",
            false => "`ah agent fs snapshot`, and from then on `ah agent fs diff @`",
        };
        let gone = |what: String| Error::new(ErrorKind::NotFound, what).with_hint(hint);
        let branch = branch::of_workspace(self.engine.home(), Some(id))?;
        let branch = branch.ok_or_else(|| gone(format!("nothing is on record of the branch {id}")))?;
        let origin = self.engine.workspace_by_id(&branch.origin)?;
        let snapshot = origin.as_ref().map(Self::state).transpose()?;
        let snapshot = snapshot.and_then(|state| state.snapshot(&branch.snapshot).cloned());
        match origin.zip(snapshot) {
            Some(grown_from) => Ok(Some(grown_from)),
            None => Err(gone(format!("the snapshot {} that the branch grew from is gone", branch.snapshot))),
        }
    }

    /// What differs in this branch from the snapshot of `origin` that it grew from.
    ///
    /// # Errors
    /// The provider's.
    pub fn diff_since(&self, origin: &Self, from: SnapshotRecord, options: &DiffOptions) -> Result<DiffReport> {
        let served = origin.serve(&from.provider)?;
        let request = self.diff_request(&from, None, options)?;
        let told = self.told_since_growth(&served, &request);
        let told = told.map_err(|error| origin.explain_lost(&from, error))?;
        let omitted = origin.added_by_capture(&from, &told.changes.changes)?;
        self.diff_report(&served, (from, None), told, omitted, options)
    }

    /// Looks again for what seems to be gone since `from`, which `served` holds, and is only not captured any more: too large, ignored by now.
    /// Takes out, and gives, what this user may not look at.
    pub(crate) fn look_at_missing(
        &self,
        served: &Served,
        from: &SnapshotRecord,
        changes: &mut Vec<Change>,
        times: bool,
    ) -> Result<Vec<RelPath>> {
        let (dir, scratch, cx) = (self.open_dir()?, self.mounts_dir()?, self.context());
        let tree = Tree::new(dir.as_fd())?;
        let disk = Source::Directory { root: &dir, skip: &|_, _, _| false };
        let snapshot = OnceCell::new();
        let same = |path: &RelPath, then: &Entry, now: &Found| {
            let alike = now.kind == EntryKind::Symlink || now.mode == then.mode;
            if now.kind == EntryKind::Dir || !alike || now.size != then.size || times && now.mtime != then.mtime {
                return Ok(now.is_still(then));
            }
            // Equal times may have been set, and other ones be all that differs: else its contents tell.
            if now.is_still(then) && !now.may_be_touched_since(from.time) {
                return Ok(true);
            }
            if snapshot.get().is_none() {
                let shelf = self.shelf(served, &scratch);
                let _ = snapshot.set(shelf.open(&from.reference, &cx)?);
            }
            let snapshot = snapshot.get().ok_or_else(|| Error::new(ErrorKind::Internal, "no snapshot was opened"))?;
            match walk::same_contents((snapshot, path, then), (&disk, path, &now.entry(&then.name)), &cx) {
                Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
                // What cannot be read on one side, or went at this moment: as its attributes say.
                Err(_) => Ok(now.is_still(then)),
                answer => answer,
            }
        };
        let mut unreadable = Vec::new();
        for Change { path, before, after } in std::mem::take(changes) {
            let now = match (&before, &after) {
                (Some(_), None) if tree.is_unreadable(&path) => {
                    unreadable.push(path);
                    continue;
                }
                (Some(then), None) => tree.stat(&path).ok().flatten().filter(|now| {
                    // What has become a pipe, a socket or a device no snapshot holds either.
                    [then.kind, EntryKind::Special].contains(&now.kind) && now.mounted != Some(true)
                }),
                _ => None,
            };
            let after = match before.as_ref().zip(now) {
                Some((then, now)) if now.kind == then.kind && same(&path, then, &now)? => continue,
                Some((then, now)) => Some(now.entry(&then.name)),
                None => after,
            };
            changes.push(Change { path, before, after });
        }
        Ok(unreadable)
    }

    /// As [`Workspace::changes`], without what is left out of comparisons with the workspace, as it is now: what is ignored differs in two
    /// snapshots no more than in one and the workspace, whoever captured it, but where it is named. Where the workspace is gone, so are its rules.
    pub(crate) fn told_changes(&self, served: &Served, request: &DiffRequest) -> Result<Changes> {
        self.compared(served, request).map(|told| told.changes)
    }

    fn compared(&self, served: &Served, request: &DiffRequest) -> Result<Told> {
        let with_workspace = request.from == Side::Workspace || request.to == Side::Workspace;
        let told = self.told_here(served, request)?;
        if !with_workspace && !served.can(Capability::AppliesPolicy) && self.open_dir().is_ok() {
            return Ok(self.leaves_out(served, request, true)?.told(told.changes));
        }
        Ok(told)
    }

    /// Differences by the provider's own knowledge where it has one, else by walking both sides.
    pub(crate) fn changes(&self, served: &Served, request: &DiffRequest) -> Result<Changes> {
        self.told_here(served, request).map(|told| told.changes)
    }

    fn told_here(&self, served: &Served, request: &DiffRequest) -> Result<Told> {
        let with_workspace = request.from == Side::Workspace || request.to == Side::Workspace;
        let dir = with_workspace.then(|| self.open_dir()).transpose()?;
        self.told(served, request, dir.as_ref(), Capability::Diff)
    }

    /// The same from a snapshot of another workspace, served by `served`, to this one, which grew from it as a branch.
    pub(crate) fn changes_since_growth(&self, served: &Served, request: &DiffRequest) -> Result<Changes> {
        self.told_since_growth(served, request).map(|told| told.changes)
    }

    fn told_since_growth(&self, served: &Served, request: &DiffRequest) -> Result<Told> {
        self.told(served, request, Some(&self.open_dir()?), Capability::DiffOfClones)
    }

    /// Differences by the knowledge of a provider that has it, if it can tell them, else by walking.
    fn told(&self, served: &Served, request: &DiffRequest, dir: Option<&Dir>, needs: Capability) -> Result<Told> {
        let mut place = served.place();
        if let Some(dir) = dir {
            place = place.with_workspace(dir);
        }
        if served.can(needs) {
            match served.provider.diff(&place, request, &self.context()) {
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                // Who captures everything tells everything.
                Ok(answer) if !served.can(Capability::AppliesPolicy) => {
                    return Ok(self.leaves_out(served, request, dir.is_some())?.told(answer));
                }
                answer => {
                    let mut changes = answer?;
                    // What has become a workspace of its own since was captured, perhaps, and is no difference either.
                    changes.changes.retain(|change| !not_of_the_work(&change.path, &request.policy.own_state));
                    return Ok(Told { changes, ignored: BTreeSet::new() });
                }
            }
        }
        self.walked(served, request, dir)
    }

    /// Differences by walking. What is left out of snapshots now, and a provider may have captured all the same, is no difference;
    /// ignored files that are captured by policy are.
    fn walked(&self, served: &Served, request: &DiffRequest, dir: Option<&Dir>) -> Result<Told> {
        let cx = self.context();
        let scratch = self.mounts_dir()?;
        let shelf = self.shelf(served, &scratch);
        let leaves_out = self.leaves_out(served, request, dir.is_some())?;
        let skip = |path: &RelPath, kind: EntryKind, size: u64| leaves_out.skips(path, kind, size);
        let source = |side: &Side| match (side, dir) {
            (Side::Snapshot(snapshot), _) => shelf.open(snapshot, &cx),
            (Side::Workspace, Some(root)) => Ok(Source::Directory { root, skip: &skip }),
            (Side::Workspace, None) => Err(Error::new(ErrorKind::Internal, "a diff without the workspace it needs")),
        };
        // Never told, so never looked at: what a repository is made of can be most of a tree.
        let pass_over = |path: &RelPath| not_of_the_work(path, leaves_out.own_state);
        let (from, to) = (source(&request.from)?, source(&request.to)?);
        let changes = walk::diff(&from, &to, &request.paths, request.times, &pass_over, &cx)?;
        Ok(leaves_out.told(changes))
    }

    fn leaves_out<'a>(&self, served: &Served, request: &'a DiffRequest, with_workspace: bool) -> Result<LeavesOut<'a>> {
        let ignores = with_workspace.then(|| Ignores::open(self.open_dir()?, &request.policy)).transpose()?;
        // What a snapshot leaves out cannot be compared with it, whoever asks.
        let asked = if served.can(Capability::AppliesPolicy) { &[][..] } else { &request.paths };
        Ok(LeavesOut::new(&request.policy.own_state, ignores, asked))
    }
}

/// Whether `path` is part of a repository or of what `ah` keeps, a restore's included, or below: neither compared nor restored, whoever captured it.
pub(crate) fn not_of_the_work(path: &RelPath, own_state: &[RelPath]) -> bool {
    path.components().any(|name| name == b".git")
        || path.components().next().is_some_and(ah_rules::is_staging)
        || own_state.iter().any(|own| path.starts_with(own))
}

/// What is no difference, whoever captured it.
struct LeavesOut<'a> {
    own_state: &'a [RelPath],
    /// None: no side is the workspace, whose rules they are.
    ignores: Option<Ignores>,
    /// What is ignored and was asked for by name.
    named: Vec<RelPath>,
}

impl<'a> LeavesOut<'a> {
    fn new(own_state: &'a [RelPath], ignores: Option<Ignores>, asked: &[RelPath]) -> Self {
        // Whatever it is or was, and however large.
        let is_ignored = |path: &&RelPath| {
            let kinds = [(EntryKind::Dir, 0), (EntryKind::File, u64::MAX)];
            ignores.as_ref().is_some_and(|by| kinds.iter().any(|&(kind, size)| by.left_out(path, kind, size)))
        };
        let named = asked.iter().filter(is_ignored).cloned().collect();
        Self { own_state, ignores, named }
    }

    fn skips(&self, path: &RelPath, kind: EntryKind, size: u64) -> bool {
        not_of_the_work(path, self.own_state)
            || self.ignores.as_ref().is_some_and(|ignores| ignores.left_out(path, kind, size))
                && !self.named.iter().any(|named| path.starts_with(named))
    }

    /// What is left of `changes`.
    fn told(&self, mut changes: Changes) -> Told {
        let mut ignored = BTreeSet::new();
        let mut last: Option<RelPath> = None;
        changes.changes.retain(|Change { path, before, after }| {
            // One that was captured then and would not be now, or the other way round, is told.
            let is_told = [before, after].into_iter().flatten().any(|it| !self.skips(path, it.kind, it.size));
            if !is_told
                && !not_of_the_work(path, self.own_state)
                && last.as_ref().is_none_or(|last| !path.starts_with(last))
            {
                let top = self.top_of(path);
                last = Some(top.clone());
                ignored.insert(top);
            }
            is_told
        });
        Told { changes, ignored }
    }

    /// The topmost directory around a path that is left out, or itself.
    fn top_of(&self, path: &RelPath) -> RelPath {
        let above = std::iter::successors(path.parent(), RelPath::parent);
        above.filter(|dir| self.skips(dir, EntryKind::Dir, 0)).last().unwrap_or_else(|| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_and_our_own_are_not_of_the_work() {
        for out in [".git", ".git/config", "sub/.git", "sub/.git/HEAD", ".ah-restore-kkkkzzzzkkkk/0/1", "state/x"] {
            assert!(not_of_the_work(&RelPath::new(out).unwrap(), &[RelPath::new("state").unwrap()]), "{out}");
        }
        for within in
            [".gitignore", "git", "statement", "x.git/y", ".github/w", ".ah-restore-notes", ".ah-restore-kkkkzzzzkkkkk"]
        {
            assert!(!not_of_the_work(&RelPath::new(within).unwrap(), &[RelPath::new("state").unwrap()]), "{within}");
        }
    }
}
