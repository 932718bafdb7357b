//! What this user may not read or look into, directories that are damaged in a snapshot, and what of an undo the safety snapshot does not hold: left as it is, and said.
//!
//! Not here: how it is found in the walk of all differences (`mod.rs`).

use std::collections::HashSet;

use ah_plugin_api::{Context, EntryKind, Error, OmitReason, RelPath, Result};

use super::Planner;
use crate::diff::not_of_the_work;
use crate::restore::LeftAlone;
use crate::restore::at::Tree;
use crate::restore::scope::Scope;
use crate::walk::{Source, Trouble};

/// What is said of what its owner can open: then nothing of it is lost.
pub(in crate::restore) const CLOSED: &str = "it is yours, and closed to you as well";

impl Planner<'_> {
    /// Whether this user can open what keeps them from a path: that is in the way then, once for all that is in it.
    pub(super) fn refused_as_closed(&mut self, path: &RelPath) -> bool {
        let Some(top) = self.tree.closed_above(path) else { return false };
        if !self.in_the_way.contains(&top) {
            self.conflict(&top, CLOSED);
        }
        true
    }

    /// Why a path that this user may not read is left as it is, and what to do where it is theirs.
    pub(super) fn unread_as(&self, reason: &str, path: &RelPath) -> String {
        match self.tree.closed_above(path) {
            Some(_) => format!("{reason}; it is yours, and `chmod -R u+rwX` opens it"),
            None => reason.to_owned(),
        }
    }

    /// A path of which nobody told what differs at it or below it. An undo that leaves something of what it is for is not complete.
    pub(super) fn unread(&mut self, path: &RelPath) -> Result<()> {
        let told = |left: &LeftAlone| left.path == *path;
        if let Some((trouble, said)) = self.trouble(path)? {
            let concerns = match &self.wish.scope {
                Scope::Exactly(paths) => paths.iter().any(|touched| touched.starts_with(path)),
                Scope::Below(paths) => paths.iter().any(|top| path.starts_with(top) || top.starts_with(path)),
                Scope::Everything => true,
            };
            if self.makes_room(path) {
                self.conflict(path, format!("it would have to go, and {said}"));
            } else if concerns && !not_of_the_work(path, self.ground.own_state) {
                let reason = format!("it stays as it is, with all that is in it: it {said}");
                self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
                *if trouble.may_pass() { &mut self.plan.passing } else { &mut self.plan.damaged } += 1;
            }
            return Ok(());
        }
        if let Scope::Exactly(paths) = &self.wish.scope {
            // What is to be put back in it may lie anywhere below.
            if !self.plan.beyond.iter().any(told) && paths.iter().any(|touched| touched.starts_with(path)) {
                let reason = self.unread_as("what is in it stays as it is: you may not look into it", path);
                self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
            }
            return Ok(());
        }
        if self.wish.scope.holds(path)
            && !not_of_the_work(path, self.ground.own_state)
            && !self.plan.left.iter().chain(&self.plan.conflicts).any(told)
        {
            let reason = "what is in it stays as it is: you may not look into it, now or in a snapshot";
            self.leave(path, self.unread_as(reason, path));
        }
        Ok(())
    }

    /// Why nobody told what differs at a path or below it, and how that is said; none where this user may not look into it.
    fn trouble(&self, path: &RelPath) -> Result<Option<(Trouble, String)>> {
        let trouble = Trouble::at(path, [self.target, self.safety()?], self.cx)?;
        let of = |side: usize| if side == 0 { "the snapshot" } else { "the snapshot of the present state" };
        let said = match &trouble {
            Trouble::Shut => return Ok(None),
            Trouble::Unreadable(side, error) if error.is_of_the_disk() => {
                format!("cannot be read in {} ({error})", of(*side))
            }
            Trouble::Unreadable(side, _) => format!("is damaged in {}", of(*side)),
            Trouble::Passed => "could not be read a moment ago".to_owned(),
        };
        Ok(Some((trouble, said)))
    }

    /// Whether the snapshot holds nothing at a path; false where it lies in a directory that cannot be read, which was told.
    fn was_missing(&self, path: &RelPath) -> Result<bool> {
        match self.target.entry(path, self.cx) {
            Err(error) if error.is_unreadable() => Ok(false),
            then => Ok(then?.is_none()),
        }
    }

    /// Paths of an undo that should go, and that the safety snapshot left out: no diff shows them, and they stay as they are.
    pub(super) fn beyond_reach(&mut self) -> Result<()> {
        let Scope::Exactly(paths) = &self.wish.scope else { return Ok(()) };
        let left_out = |path| {
            let reason = self.kept_by_safety.cover(path)?.reason;
            let stays = match reason {
                OmitReason::GitDir | OmitReason::OwnState => false,
                OmitReason::Unreadable => self.tree.is_unreadable(path),
                _ => matches!(self.tree.stat(path), Ok(Some(found)) if found.kind != EntryKind::Dir),
            };
            stays.then_some((path, reason))
        };
        let mut beyond: Vec<(&RelPath, OmitReason)> = paths.iter().filter_map(left_out).collect();
        beyond.sort_by_key(|(path, _)| *path);
        beyond.dedup_by(|(below, _), (above, _)| below.starts_with(above));
        for (path, reason) in beyond {
            if !self.was_missing(path)? || self.plan.steps().any(|step| step.path == *path) {
                continue;
            }
            if reason == OmitReason::Unreadable {
                self.beyond_looking(path);
            } else {
                if reason == OmitReason::Ignored {
                    self.plan.to_hold.push(path.clone());
                }
                let reason = format!("it should go, and the snapshot of the present state does not hold it ({reason})");
                self.plan.unheld += 1;
                self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
            }
        }
        Ok(())
    }

    /// What came since and no snapshot holds, for another reason than that it is ignored: no diff shows it, and it stays.
    pub(super) fn came_unheld(&mut self) -> Result<()> {
        if matches!(self.wish.scope, Scope::Exactly(_)) {
            return Ok(());
        }
        let told = self.plan.left.iter().chain(&self.plan.conflicts).map(|left| left.path.clone());
        let told: HashSet<RelPath> = told.collect();
        for omission in &self.wish.safety.omitted {
            let (path, reason) = (&omission.path, omission.reason);
            let ours = matches!(reason, OmitReason::GitDir | OmitReason::OwnState);
            if ours
                || reason == OmitReason::Ignored
                || !self.wish.scope.holds(path)
                || self.kept_by_target.cover(path).is_some()
            {
                continue;
            }
            if !told.contains(path) && self.was_missing(path)? {
                self.leave(path, format!("it came since, and no snapshot holds it ({reason})"));
            }
        }
        Ok(())
    }

    /// What an undo would have to take away.
    pub(super) fn beyond_looking(&mut self, path: &RelPath) {
        let reason = self.unread_as("it should go, and you may not look into it", path);
        self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
    }
}

/// An error of comparing, where it is that the directory at the top of the snapshot cannot be read. With Git no path leads anywhere then; elsewhere one that is named may.
pub(super) fn top_unread(tree: Tree<'_>, target: &Source<'_>, error: Error, cx: &Context<'_>) -> Error {
    let top = RelPath::root();
    if !error.is_unreadable() || !target.children(&top, cx).is_err_and(|error| error.is_unreadable()) {
        return error;
    }
    let is_given = |name: Vec<u8>| top.join(&name).is_ok_and(|path| matches!(target.entry(&path, cx), Ok(Some(_))));
    let (message, hint) = if tree.names(&top).unwrap_or_default().into_iter().any(is_given) {
        (
            "the directory at the top of the snapshot cannot be read",
            "name what to restore after `--`; `ah agent fs snapshots` lists other snapshots",
        )
    } else {
        (
            "nothing of the snapshot can be read, as the directory at its top cannot",
            "`ah agent fs snapshots` lists the others",
        )
    };
    let mut error = error.context(message);
    error.hint.get_or_insert_with(|| hint.to_owned());
    error
}
