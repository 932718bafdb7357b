//! What providers say of paths whose contents one of the snapshots has lost.

use ah_plugin_api::{Change, EntryKind, ErrorKind, RelPath, Result};

use super::Planner;
use crate::diff::not_of_the_work;
use crate::restore::LeftAlone;

const CHANGED_BELOW: &str = "it was changed below, and the snapshot of the present state does not hold it";

impl Planner<'_> {
    /// A change of which one side is not known any more: nothing is put in place that is not what the snapshot held, and nothing is lost that the
    /// safety snapshot does not hold.
    pub(super) fn one_lost(&mut self, change: &Change, absent: bool) -> Result<()> {
        let path = &change.path;
        if not_of_the_work(path, self.ground.own_state) {
            self.untouched(change);
            return Ok(());
        }
        if !self.makes_room(path) && !self.wish.scope.holds(path) {
            return Ok(());
        }
        let then = match self.target.entry(path, self.cx) {
            Err(error) if error.kind == ErrorKind::DataLoss => {
                self.beyond(path);
                return Ok(());
            }
            then => then?,
        };
        match (then, &change.after) {
            (None, Some(_)) if absent => self.one(&Change { after: None, ..change.clone() }),
            (None, Some(_)) => {
                self.beyond(path);
                Ok(())
            }
            // It is the present state that nobody could give back.
            (then, _) if self.wish.force => {
                let steps = self.plan.steps().count();
                self.one(&Change { after: then, ..change.clone() })?;
                if self.plan.steps().count() > steps {
                    self.overwrite(path, CHANGED_BELOW);
                }
                Ok(())
            }
            _ => {
                self.plan.forcible += usize::from(change.before.as_ref().is_some_and(|it| it.kind != EntryKind::Dir));
                self.conflict(path, CHANGED_BELOW);
                Ok(())
            }
        }
    }

    fn beyond(&mut self, path: &RelPath) {
        let reason = "it stays as it is: what the snapshot held was changed below since (DataLoss)".to_owned();
        self.plan.beyond.push(LeftAlone { path: path.clone(), reason });
        self.plan.lost += 1;
    }
}
