//! What ignore rules keep a restore from, and what comes out from under them.

use std::collections::HashSet;

use ah_plugin_api::{Change, Entry, EntryKind, OmitReason, RelPath, Result};

use super::{Planner, Wish};
use crate::diff::not_of_the_work;
use crate::restore::scope::Scope;

const RULES: &[u8] = b".gitignore";

/// Whether a change is one of ignore rules that is to be made.
pub(super) fn of_rules(change: &Change, wish: &Wish<'_>) -> bool {
    change.path.file_name() == Some(RULES) && wish.scope.holds(&change.path)
}

/// Why an ignored path that came since stays.
pub(super) fn never_deleted(path: &RelPath) -> &'static str {
    match path.file_name() == Some(RULES) {
        true => "it is ignored, and ignored files are never deleted; its rules hold until you remove it",
        false => "it is ignored, and ignored files are never deleted",
    }
}

impl Planner<'_> {
    /// Whether an ignored file may be overwritten: all are asked for, or it is named itself.
    pub(super) fn asked_for(&self, path: &RelPath, after: &Entry) -> bool {
        self.wish.ignored || (after.kind != EntryKind::Dir && self.wish.scope.names(path))
    }

    /// Whether a path that was not ignored then is it by a rule that is taken back, too. Unknown where nobody says what was ignored then.
    pub(super) fn ruled_until_now(&self, path: &RelPath, after: &Entry) -> bool {
        !after.ignored && self.ground.ignores.is_none() && below_any(path, &self.rules)
    }

    pub(super) fn ignored(&self, path: &RelPath, entry: &Entry) -> bool {
        entry.ignored || self.ground.ignores.is_some_and(|ignores| ignores.ignored(path, entry.kind == EntryKind::Dir))
    }

    /// What came since and is ignored, where rules go that may be those which ignore it: no diff shows it, and it stays.
    pub(super) fn came_hidden(&mut self, changes: &[Change]) -> Result<()> {
        if self.rules.is_empty() || matches!(self.wish.scope, Scope::Exactly(_)) {
            return Ok(());
        }
        let stays: HashSet<&RelPath> = self.plan.left.iter().map(|left| &left.path).collect();
        let going: HashSet<RelPath> =
            self.rules.iter().filter(|dir| dir.join(RULES).is_ok_and(|path| !stays.contains(&path))).cloned().collect();
        let came_back = changes.iter().filter(|change| change.before.is_none()).map(|change| &change.path);
        let held: HashSet<&RelPath> = came_back.collect();
        let ignored = self.wish.safety.omitted.iter().filter(|omission| omission.reason == OmitReason::Ignored);
        let mut look: Vec<RelPath> = ignored
            .map(|omission| omission.path.clone())
            .filter(|path| self.wish.scope.holds(path) && below_any(path, &going))
            .collect();
        while let Some(path) = look.pop() {
            if not_of_the_work(&path, self.ground.own_state) || self.kept_by_target.cover(&path).is_some() {
                continue;
            }
            if !held.contains(&path) {
                self.plan.hidden.push(path);
            } else if let Ok(names) = self.tree.names(&path) {
                for name in names {
                    look.push(path.join(&name)?);
                }
            }
        }
        self.plan.hidden.sort();
        Ok(())
    }
}

fn below_any(path: &RelPath, dirs: &HashSet<RelPath>) -> bool {
    std::iter::successors(path.parent(), RelPath::parent).any(|dir| dirs.contains(&dir))
}
