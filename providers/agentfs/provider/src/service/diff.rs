//! Differences, as the tree itself tells them.

use std::cell::{Cell, RefCell};

use ah_agentfs::{Attr, View};
use ah_plugin_api::{
    Change, Changes, Context, DiffMethod, DiffRequest, Dir, Entry, Error, ErrorKind, LogLevel, Lost, Place, RelPath,
    Result, Side,
};

use super::opened::Open;
use super::{Service, fail, lock, tree};

/// So many paths are looked at between two signs of how far it is.
const BETWEEN: u64 = 256;

impl Service {
    /// Answers [`ah_plugin_api::Provider::diff`]. The workspace may be a branch that grew from the snapshot, whoever's store that is in.
    pub(super) fn differences(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        cx.check_cancelled()?;
        let sides = [&request.from, &request.to];
        let workspace = if sides.contains(&&Side::Workspace) { Some(place.need_workspace()?) } else { None };
        let (open, shelf) = self.need(place.store, cx)?;
        let [from, to] = sides.map(|side| match (side, workspace) {
            (Side::Snapshot(snapshot), _) => open.view(&shelf, snapshot),
            (Side::Workspace, Some(workspace)) => self.look(&open, workspace),
            (Side::Workspace, None) => Err(Error::new(ErrorKind::Internal, "a diff without the workspace it needs")),
        });
        let (from, to) = (from?, to?);
        let (cancelled, seen) = (RefCell::new(None), Cell::new(0_u64));
        let wanted = |path: &[u8]| {
            seen.set(seen.get() + 1);
            if seen.get().is_multiple_of(BETWEEN) {
                cx.progress("comparing", seen.get(), None);
            }
            if cancelled.borrow().is_none()
                && let Err(error) = cx.check_cancelled()
            {
                *cancelled.borrow_mut() = Some(error);
            }
            cancelled.borrow().is_none() && is_wanted(&request.paths, path)
        };
        let told = from.differences(&to, &wanted).map_err(|e| fail("cannot tell what changed", &e))?;
        if let Some(cancelled) = cancelled.into_inner() {
            return Err(cancelled);
        }
        let unknown = || Error::new(ErrorKind::Unsupported, "what changed cannot be told from what was written");
        let told = told.ok_or_else(unknown)?;
        let mut changes = Vec::with_capacity(told.list.len());
        let mut lost = Vec::new();
        for found in told.list {
            let path = RelPath::new(found.path)?;
            if !request.paths.is_empty() && !request.paths.iter().any(|top| path.starts_with(top)) {
                continue;
            }
            if found.lost {
                lost.push(Lost { path: path.clone(), absent: found.absent });
            }
            let entry =
                |attr: Option<Attr>| attr.map(|attr| tree::entry_of(&attr, path.file_name().unwrap_or_default()));
            let (before, after) = (entry(found.before), entry(found.after));
            let seen = |entry: &Option<Entry>| entry.as_ref().map(|entry| (entry.kind, entry.mode));
            let times = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.mtime);
            if found.contents || seen(&before) != seen(&after) || request.times && times(&before) != times(&after) {
                changes.push(Change { path, before, after });
            }
        }
        lost.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(message) = notice(&lost) {
            cx.log(LogLevel::Warn, &message);
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Changes { changes, method: DiffMethod::Native, untouched: told.untouched, lost, unread: Vec::new() })
    }

    /// The branch that is mounted at a directory, as it is now.
    fn look(&self, open: &Open, workspace: &Dir) -> Result<View> {
        let branch = lock(&open.mounted).branch_at(&self.path, workspace)?;
        let none = || Error::new(ErrorKind::Unsupported, "the workspace is no branch of this home of AgentFS");
        open.tree.look(branch.ok_or_else(none)?).map_err(|e| fail("cannot look at the branch", &e))
    }
}

/// What a person is told of what is not known; none of what a repository is made of, which is not compared.
fn notice(lost: &[Lost]) -> Option<String> {
    let mut told = lost.iter().map(|lost| &lost.path).filter(|path| path.components().all(|name| name != b".git"));
    let first = told.next()?;
    let (more, they) = match told.count() {
        0 => (String::new(), "was changed below AgentFS and in a branch: what it was"),
        more => (format!(" and {more} more"), "were changed below AgentFS and in a branch: what they were"),
    };
    Some(format!("{first}{more} {they} before is not known"))
}

/// Whether a path, or anything in it, was asked for.
fn is_wanted(asked: &[RelPath], path: &[u8]) -> bool {
    let within = |inner: &[u8], outer: &[u8]| {
        outer.is_empty() || inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    asked.is_empty() || asked.iter().any(|top| within(path, top.as_bytes()) || within(top.as_bytes(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_told_once_and_counted() {
        let lost = |paths: &[&str]| {
            let lost = paths.iter().map(|path| Lost { path: RelPath::new(*path).unwrap(), absent: false });
            notice(&lost.collect::<Vec<_>>())
        };
        assert_eq!(lost(&[".git/index", "sub/.git/HEAD"]), None);
        let one = lost(&[".git/index", "a", "sub/.git/HEAD"]).unwrap();
        assert_eq!(one, "a was changed below AgentFS and in a branch: what it was before is not known");
        let several = lost(&["a", "b", "c"]).unwrap();
        assert!(several.starts_with("a and 2 more were changed") && several.ends_with("they were before is not known"));
    }
}
