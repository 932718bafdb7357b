//! What ignore rules keep a restore from.

use ah_plugin_api::{Change, Entry, EntryKind, RelPath};

use super::{Planner, Wish};

/// Whether a change is one of ignore rules that is to be made.
pub(super) fn of_rules(change: &Change, wish: &Wish<'_>) -> bool {
    change.path.file_name() == Some(b".gitignore") && wish.scope.holds(&change.path)
}

impl Planner<'_> {
    /// Whether an ignored file may be overwritten: all are asked for, or it is named itself.
    pub(super) fn asked_for(&self, path: &RelPath, after: &Entry) -> bool {
        self.wish.ignored || (after.kind != EntryKind::Dir && self.wish.scope.names(path))
    }

    /// Whether a path that was not ignored then is it by a rule that is taken back, too. Unknown where nobody says what was ignored then.
    pub(super) fn ruled_until_now(&self, path: &RelPath, after: &Entry) -> bool {
        let mut above = std::iter::successors(path.parent(), RelPath::parent);
        !after.ignored && self.ground.ignores.is_none() && above.any(|dir| self.rules.contains(&dir))
    }

    pub(super) fn ignored(&self, path: &RelPath, entry: &Entry) -> bool {
        entry.ignored || self.ground.ignores.is_some_and(|ignores| ignores.ignored(path, entry.kind == EntryKind::Dir))
    }
}
