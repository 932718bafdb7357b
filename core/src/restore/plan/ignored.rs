//! What ignore rules keep a restore from.

use std::collections::HashSet;

use ah_plugin_api::{Change, Entry, EntryKind, RelPath};

use super::{Planner, Wish};

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
}

fn below_any(path: &RelPath, dirs: &HashSet<RelPath>) -> bool {
    std::iter::successors(path.parent(), RelPath::parent).any(|dir| dirs.contains(&dir))
}
