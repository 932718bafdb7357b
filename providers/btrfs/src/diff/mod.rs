//! Differences between two snapshots, or a snapshot and the workspace.
//!
//! Both sides are walked side by side. Where this process may ask (`changed`), the filesystem says which inodes were written since the older
//! side was taken, and whatever holds none of those is not looked into: the cost grows with what changed. Where it may not, every entry is
//! looked at, but contents are read only of what its times leave open: a snapshot has the inodes of what it is a snapshot of, so one with
//! the same number and an old change time is the same.

mod changed;
mod side;

use std::cmp::Ordering;
use std::os::fd::OwnedFd;

use ah_plugin_api::{
    Change, Changes, Context, DiffMethod, DiffRequest, EntryKind, Place, RelPath, Result, Side as Asked,
};
use ah_provider_directory::{entry_of, failed};
use rustix::fs::Statx;

use changed::Changed;
use side::{Found, Side};

/// A file that was written less than so many seconds before the older side was taken may have been written after it within the same
/// tick of the clock.
const RECENT: i64 = 2;

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let open = |asked: &Asked| match asked {
        Asked::Snapshot(reference) => Side::snapshot(place.store, reference),
        Asked::Workspace => Side::workspace(place.need_workspace()?),
    };
    let (from, to) = (open(&request.from)?, open(&request.to)?);
    // Of two sides of one subvolume, the one that was taken first.
    let (older, newer) = if from.made_in <= to.made_in { (&from, &to) } else { (&to, &from) };
    let related = from.origin == to.origin;
    let changed = if related { Changed::since(newer, older.made_in)? } else { None };
    let method = if changed.is_some() { DiffMethod::Native } else { DiffMethod::Walk };
    let settled = related.then_some(older.made.0 - RECENT);
    let mut walk =
        Walk { from: &from, to: &to, changed, settled, times: request.times, cx, changes: Vec::new(), seen: 0 };
    let mut tops: Vec<RelPath> = request.paths.clone();
    if tops.is_empty() {
        tops.push(RelPath::root());
    }
    tops.sort();
    tops.dedup();
    for (at, top) in tops.iter().enumerate() {
        // One that lies below another was walked with it.
        if !tops[..at].iter().any(|above| top.starts_with(above)) {
            walk.top(top)?;
        }
    }
    let mut changes = walk.changes;
    changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(Changes { changes, method })
}

struct Walk<'a> {
    from: &'a Side,
    to: &'a Side,
    /// What the filesystem says was written since.
    changed: Option<Changed>,
    /// What was written before that second is equal if its number and times are; none: the sides have nothing to do with each other.
    settled: Option<i64>,
    times: bool,
    cx: &'a Context<'a>,
    changes: Vec<Change>,
    seen: u64,
}

/// An entry of a side, and the open directory that it is in.
type At<'d> = Option<(&'d OwnedFd, Found)>;

impl Walk<'_> {
    /// One of the paths asked for.
    fn top(&mut self, path: &RelPath) -> Result<()> {
        let (before, after) = (self.from.find(path)?, self.to.find(path)?);
        let at = |it: &'_ Option<(OwnedFd, Found)>| it.as_ref().map(|(_, found)| found.clone());
        let (a, b) = (at(&before), at(&after));
        self.pair(path, &before.as_ref().map(|(dir, _)| dir).zip(a), &after.as_ref().map(|(dir, _)| dir).zip(b))
    }

    fn pair(&mut self, path: &RelPath, before: &At<'_>, after: &At<'_>) -> Result<()> {
        self.seen += 1;
        if self.seen.is_multiple_of(512) {
            self.cx.check_cancelled()?;
            self.cx.progress("comparing", self.seen, None);
        }
        if let (Some((_, a)), Some((_, b))) = (before, after)
            && self.is_untouched(&a.stat, &b.stat)
        {
            return Ok(());
        }
        if !self.is_equal(path, before, after)? {
            // A name is the last part of the path, also of what was asked for by its path.
            let entry =
                |it: &At<'_>| it.as_ref().map(|(_, found)| entry_of(&found.stat, path.file_name().unwrap_or_default()));
            self.changes.push(Change { path: path.clone(), before: entry(before), after: entry(after) });
        }
        let list = |side: &Side, it: &At<'_>| match it {
            Some((dir, found)) if found.kind() == EntryKind::Dir => side.list(dir, &found.name, path).map(Some),
            _ => Ok(None),
        };
        let (before, after) = (list(self.from, before)?, list(self.to, after)?);
        if before.is_none() && after.is_none() {
            return Ok(());
        }
        let (mut a, mut b) =
            (before.iter().flat_map(|l| &l.entries).peekable(), after.iter().flat_map(|l| &l.entries).peekable());
        let dirs = (before.as_ref().map(|l| &l.dir), after.as_ref().map(|l| &l.dir));
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.name.cmp(&b.name),
            };
            let one = if order.is_le() { a.next() } else { None };
            let other = if order.is_ge() { b.next() } else { None };
            let Some(name) = one.or(other).map(|found| &found.name) else { return Ok(()) };
            let below = path.join(name)?;
            self.pair(&below, &dirs.0.zip(one.cloned()), &dirs.1.zip(other.cloned()))?;
        }
    }

    /// Whether nothing at all was written in it, or below it, since the older side was taken.
    fn is_untouched(&self, a: &Statx, b: &Statx) -> bool {
        a.stx_ino == b.stx_ino && self.changed.as_ref().is_some_and(|changed| !changed.holds(a.stx_ino))
    }

    fn is_equal(&self, path: &RelPath, before: &At<'_>, after: &At<'_>) -> Result<bool> {
        let (Some((a_dir, a)), Some((b_dir, b))) = (before, after) else {
            return Ok(before.is_none() && after.is_none());
        };
        let time = |stat: &Statx| (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        if a.kind() != b.kind() || a.stat.stx_mode != b.stat.stx_mode || (self.times && time(&a.stat) != time(&b.stat))
        {
            return Ok(false);
        }
        if !matches!(a.kind(), EntryKind::File | EntryKind::Symlink) {
            return Ok(true);
        }
        if a.stat.stx_size != b.stat.stx_size {
            return Ok(false);
        }
        let change = |stat: &Statx| (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        let same_look =
            a.stat.stx_ino == b.stat.stx_ino && change(&a.stat) == change(&b.stat) && time(&a.stat) == time(&b.stat);
        if same_look && self.settled.is_some_and(|settled| a.stat.stx_ctime.tv_sec < settled) {
            return Ok(true);
        }
        match side::same_contents((a_dir, a), (b_dir, b), self.cx) {
            // What may not be read: as its attributes say.
            Err(rustix::io::Errno::ACCESS) => Ok(same_look),
            Err(rustix::io::Errno::CANCELED) => self.cx.check_cancelled().map(|()| false),
            other => other.map_err(|errno| failed(format!("cannot compare {path}"), errno)),
        }
    }
}
