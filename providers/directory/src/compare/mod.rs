//! Differences between two directories of one filesystem, walked side by side.
//!
//! Where the filesystem says what was written, whatever holds none of that is not looked into: the cost grows with what changed. Where it
//! does not, every entry is looked at, but contents are read only of what its times leave open: a snapshot has the inodes of what it is a
//! snapshot of, so one with the same number and an old change time is the same.

mod side;

use std::cmp::Ordering;
use std::os::fd::OwnedFd;

use ah_plugin_api::{Change, Context, EntryKind, ErrorKind, RelPath, Result};
use rustix::fs::Statx;

use crate::{entry_of, failed};
use side::Found;
pub use side::Side;

/// Whether anything of what both sides have at a path, with the same inode, may differ, at it or below it.
pub type Touched<'a> = dyn Fn(&RelPath, u64) -> bool + 'a;

/// What of two sides is compared, and what is known beforehand.
pub struct Comparison<'a> {
    /// The older side, as asked for.
    pub from: &'a Side,
    /// The newer side.
    pub to: &'a Side,
    /// What the filesystem says was written; none: anything may have been.
    pub touched: Option<&'a Touched<'a>>,
    /// What was written before that second is equal if its inode and times are; none: the sides' inodes have nothing to do with each other.
    pub settled: Option<i64>,
    /// Whether a file that differs in its modification time alone is a difference.
    pub times: bool,
}

impl Comparison<'_> {
    /// The differences at `paths` and below them (everywhere, if there are none), ordered by path bytes; and the directories that may not be
    /// looked into on one side, of whose contents nothing is told, with those of `paths` that are in such.
    ///
    /// # Errors
    /// Those of the filesystem; `Cancelled`.
    pub fn run(&self, paths: &[RelPath], cx: &Context<'_>) -> Result<(Vec<Change>, Vec<RelPath>)> {
        let mut walk = Walk { of: self, cx, changes: Vec::new(), unread: Vec::new(), seen: 0 };
        let mut tops: Vec<RelPath> = paths.to_vec();
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
        walk.changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok((walk.changes, walk.unread))
    }
}

struct Walk<'a> {
    of: &'a Comparison<'a>,
    cx: &'a Context<'a>,
    changes: Vec<Change>,
    unread: Vec<RelPath>,
    seen: u64,
}

/// An entry of a side, and the open directory that it is in.
type At<'d> = Option<(&'d OwnedFd, Found)>;

impl Walk<'_> {
    /// One of the paths asked for.
    fn top(&mut self, path: &RelPath) -> Result<()> {
        let both = self.of.from.find(path).and_then(|before| Ok((before, self.of.to.find(path)?)));
        let (before, after) = match both {
            // It lies in a directory that may not be looked into.
            Err(error) if error.kind == ErrorKind::PermissionDenied => {
                self.unread.push(path.clone());
                return Ok(());
            }
            both => both?,
        };
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
            && self.is_untouched(path, &a.stat, &b.stat)
        {
            return Ok(());
        }
        if !self.is_equal(path, before, after)? {
            // A name is the last part of the path, also of what was asked for by its path.
            let entry =
                |it: &At<'_>| it.as_ref().map(|(_, found)| entry_of(&found.stat, path.file_name().unwrap_or_default()));
            self.changes.push(Change { path: path.clone(), before: entry(before), after: entry(after) });
        }
        let directory = |it: &'_ At<'_>| it.as_ref().is_some_and(|(_, found)| found.kind() == EntryKind::Dir);
        let (was_directory, is_directory) = (directory(before), directory(after));
        let list = |side: &Side, it: &At<'_>| match it {
            Some((dir, found)) if found.kind() == EntryKind::Dir => side.list(dir, &found.name, path),
            _ => Ok(None),
        };
        let (before, after) = (list(self.of.from, before)?, list(self.of.to, after)?);
        // What may not be looked into on one side is not known to differ from the other.
        if before.is_some() != was_directory || after.is_some() != is_directory {
            self.unread.push(path.clone());
            return Ok(());
        }
        if !(was_directory || is_directory) {
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

    /// Whether nothing at all was written in it, or below it, between the two sides.
    fn is_untouched(&self, path: &RelPath, a: &Statx, b: &Statx) -> bool {
        a.stx_ino == b.stx_ino && self.of.touched.is_some_and(|touched| !touched(path, a.stx_ino))
    }

    fn is_equal(&self, path: &RelPath, before: &At<'_>, after: &At<'_>) -> Result<bool> {
        let (Some((a_dir, a)), Some((b_dir, b))) = (before, after) else {
            return Ok(before.is_none() && after.is_none());
        };
        let time = |stat: &Statx| (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        if a.kind() != b.kind()
            || a.stat.stx_mode != b.stat.stx_mode
            || (self.of.times && time(&a.stat) != time(&b.stat))
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
        if same_look && self.of.settled.is_some_and(|settled| a.stat.stx_ctime.tv_sec < settled) {
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
