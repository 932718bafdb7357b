//! Differences between two snapshots, or a snapshot and the workspace.
//!
//! A directory that is the same object on both sides is not looked into, so the cost grows with what differs. The
//! workspace's side is what a snapshot taken now would hold: what would be omitted is not there. A directory that is damaged, or that the disk does not give, is told as one that cannot be
//! looked into.

use std::sync::Arc;

use ah_plugin_api::{
    Change, Changes, Context, DiffMethod, DiffRequest, Dir, Entry, Error, ErrorKind, RelPath, Result, Side,
};

use crate::capture::{self, Live};
use crate::paths::Part;
use crate::store::Store;
use crate::tree::{self, Directory, Item, Listing, Reader, What};

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(store: &Store, workspace: Option<&Dir>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let live: Option<Live> = if [&request.from, &request.to].contains(&&Side::Workspace) {
        let workspace = workspace
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "a diff with the workspace needs the workspace"))?;
        Some(capture::live(store, workspace, &request.policy, cx)?)
    } else {
        None
    };
    let root = |side: &Side| match (side, &live) {
        (Side::Snapshot(reference), _) => tree::open(store, reference, cx).map(|head| head.root),
        (Side::Workspace, Some(live)) => Ok(Directory { tree: live.tree, meta: live.meta }),
        (Side::Workspace, None) => Err(Error::new(ErrorKind::Internal, "the workspace was not looked at")),
    };
    let (from, to) = (root(&request.from)?, root(&request.to)?);
    let reader = match &live {
        Some(live) => Reader::with_live(store, live, cx),
        None => Reader::new(store, cx),
    };
    let mut walk = Walk { reader, times: request.times, todo: Vec::new(), changes: Vec::new(), unread: Vec::new() };
    let part = Part::of(&request.paths);
    walk.todo.push(Pair { before: Some(from), after: Some(to), path: RelPath::root(), part });
    while let Some(pair) = walk.todo.pop() {
        cx.check_cancelled()?;
        walk.pair(pair)?;
    }
    let (mut changes, mut unread) = (walk.changes, walk.unread);
    changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    unread.sort_unstable();
    Ok(Changes { changes, method: DiffMethod::Native, untouched: false, lost: Vec::new(), unread })
}

struct Walk<'a> {
    reader: Reader<'a>,
    times: bool,
    todo: Vec<Pair>,
    changes: Vec<Change>,
    unread: Vec<RelPath>,
}

/// A directory that is on one side or on both.
struct Pair {
    before: Option<Directory>,
    after: Option<Directory>,
    path: RelPath,
    part: Part,
}

impl Walk<'_> {
    fn pair(&mut self, pair: Pair) -> Result<()> {
        let Pair { before, after, path, part } = pair;
        if before == after {
            return Ok(());
        }
        let both = self.look(before).and_then(|before| Ok((before, self.look(after)?)));
        let (before, after) = match both {
            Err(error) if error.is_unreadable() && !path.is_root() => {
                self.unread.push(path);
                return Ok(());
            }
            both => both?,
        };
        if part.is_whole() {
            self.own(&path, before.as_deref(), after.as_deref());
        }
        let (before, after) = (sorted(before.as_deref()), sorted(after.as_deref()));
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(a), Some(b)) => a.name.cmp(&b.name),
            };
            let a = order.is_le().then(|| before.next()).flatten();
            let b = order.is_ge().then(|| after.next()).flatten();
            let (before, after) = (a.map(|item| item.what), b.map(|item| item.what));
            if before == after {
                continue;
            }
            let Some(name) = a.or(b).map(|item| item.name.as_slice()) else { return Ok(()) };
            if let Some(part) = part.enter(name) {
                self.entry(&path.join(name)?, name, before, after, part)?;
            }
        }
    }

    /// What is in a directory. Whoever asks for differences is likely to ask for the files next, so it is kept.
    fn look(&mut self, directory: Option<Directory>) -> Result<Option<Arc<Listing>>> {
        directory.map(|directory| self.reader.known(&directory)).transpose()
    }

    /// The change of a directory that is on both sides: other permission bits. Its time says only that entries came and went,
    /// so it never counts.
    fn own(&mut self, path: &RelPath, before: Option<&Listing>, after: Option<&Listing>) {
        if let (Some(a), Some(b)) = (before, after)
            && a.own.mode != b.own.mode
        {
            let entry = |listing: &Listing| Some(tree::dir_entry(path.file_name().unwrap_or_default(), &listing.own));
            self.changes.push(Change { path: path.clone(), before: entry(a), after: entry(b) });
        }
    }

    /// Everything else: what is on one side only, or no directory on one of them.
    fn entry(
        &mut self,
        path: &RelPath,
        name: &[u8],
        before: Option<What>,
        after: Option<What>,
        part: Part,
    ) -> Result<()> {
        let directory = |what: Option<What>| match what {
            Some(What::Dir(directory)) => Some(directory),
            _ => None,
        };
        let (dir_before, dir_after) = (directory(before), directory(after));
        if part.is_whole() && !(dir_before.is_some() && dir_after.is_some()) {
            // Nothing goes, and nothing makes room, for a directory of which nobody knows what is in it.
            match self.look(dir_before.or(dir_after)) {
                Err(error) if error.is_unreadable() => {
                    self.unread.push(path.clone());
                    return Ok(());
                }
                looked => drop(looked?),
            }
            let mut entry = |what: Option<What>| what.map(|what| self.reader.entry(name, &what)).transpose();
            let (before, after) = (entry(before)?, entry(after)?);
            if differs(before.as_ref(), after.as_ref(), self.times) {
                self.changes.push(Change { path: path.clone(), before, after });
            }
        }
        if dir_before.is_some() || dir_after.is_some() {
            self.todo.push(Pair { before: dir_before, after: dir_after, path: path.clone(), part });
        }
        Ok(())
    }
}

fn differs(before: Option<&Entry>, after: Option<&Entry>, times: bool) -> bool {
    let (Some(a), Some(b)) = (before, after) else { return true };
    a.kind != b.kind || a.mode != b.mode || a.content != b.content || (times && a.mtime != b.mtime)
}

fn sorted(listing: Option<&Listing>) -> Vec<&Item> {
    let mut items: Vec<&Item> = listing.iter().flat_map(|listing| &listing.items).collect();
    // Git orders a directory as if its name ended in a slash, so one name may stand at two places.
    items.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    items
}
