//! Paths at which something is that the safety snapshot does not hold, and the one to go back to does.

use ah_plugin_api::{Entry, EntryKind, OmitReason, RelPath, Result};

use super::{MADE_AFTER, OVERWRITTEN_IF_ASKED, Planner, Step};
use crate::restore::LeftAlone;
use crate::restore::at::Found;
use crate::restore::scope::by_rule;

impl Planner<'_> {
    /// Something is where the safety snapshot holds nothing.
    pub(super) fn taken(&mut self, path: &RelPath, after: &Entry, found: Found) -> Result<()> {
        let present = found.entry(path.file_name().unwrap_or_default());
        if found.kind == EntryKind::Dir && after.kind == EntryKind::Dir {
            return Ok(());
        }
        let reason = self.kept_by_safety.cover(path).map(|omission| omission.reason);
        let readable = reason != Some(OmitReason::Unreadable);
        if readable && found.kind == after.kind && self.on_disk_equals(path, &present, after)? {
            if found.mode == after.mode || found.kind == EntryKind::Symlink {
                return Ok(());
            }
            // Nothing is in the way that can stay as it is.
            if let Some(reason) = reason.filter(|reason| *reason != OmitReason::Ignored) {
                self.leave(
                    path,
                    format!("only its mode differs, and no snapshot holds the one that it has ({reason})"),
                );
                return Ok(());
            }
        }
        let (asked_for, ruled) = (self.asked_for(path, after), self.ruled_until_now(path, after));
        // What is not held for want of a rule can be, if that is asked for.
        let ignored = reason == Some(OmitReason::Ignored);
        let holdable = ignored && matches!(found.kind, EntryKind::File | EntryKind::Symlink);
        if holdable && (asked_for || ruled) {
            self.plan.to_hold.push(path.clone());
        }
        match reason {
            Some(OmitReason::GitDir | OmitReason::OwnState) => {}
            Some(_) if ignored && ruled && !asked_for && !holdable => {
                let reason = "an ignored directory or special file is there now: move it out of the way";
                self.plan.beyond.push(LeftAlone { path: path.clone(), reason: reason.to_owned() });
            }
            Some(_) if holdable && !asked_for && !ruled => self.leave(path, OVERWRITTEN_IF_ASKED),
            Some(reason) if by_rule(reason) && !asked_for && !holdable => {
                self.leave(path, format!("it is there and {reason}: only missing ones are brought back"));
            }
            _ if self.wish.force && found.kind != EntryKind::Dir && after.kind != EntryKind::Dir => {
                let why = match reason {
                    Some(reason) => format!("the snapshot of the present state does not hold it ({reason})"),
                    None => MADE_AFTER.to_owned(),
                };
                self.overwrite(path, why);
                let step = Step { path: path.clone(), before: None, after: Some(after.clone()), found: Some(found) };
                self.put(step);
            }
            Some(OmitReason::Unreadable) if self.refused_as_closed(path) => {}
            reason => {
                self.plan.forcible += usize::from(found.kind != EntryKind::Dir && after.kind != EntryKind::Dir);
                let why = match reason {
                    Some(reason) => format!(
                        "it would be overwritten, and the snapshot of the present state does not hold it ({reason})"
                    ),
                    None => MADE_AFTER.to_owned(),
                };
                self.conflict(path, why);
            }
        }
        Ok(())
    }
}
