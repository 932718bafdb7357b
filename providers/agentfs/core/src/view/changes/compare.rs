//! What the trees have at a name, compared; and what is said of a snapshot of which that is not known.

use std::collections::BTreeSet;

use super::{Both, Comparison, Difference, Found, Told, above};
use crate::error::{Error, Result};
use crate::lower::{join, split};
use crate::rows::chunk::CHUNK;
use crate::rows::key;
use crate::rows::value::{Entry, Inode, WHITEOUT, hides_what_was_there};
use crate::types::{Attr, Ino, Kind, Time};
use crate::view::pinned::is_lost;

/// A name: the directory in one tree, what is at its path in the other, the name itself.
type Name<'a> = (Ino, Option<Ino>, &'a [u8]);

impl Comparison<'_> {
    /// What a tree has at a name.
    fn find(&self, tree: usize, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
        let view = self.trees[tree].view;
        let named = match view.resolve(directory, name) {
            Ok(Some(named)) => named,
            Ok(None) | Err(Error::Stale) => return Ok(None),
            Err(error) if is_lost(&error) => {
                let (path, ino, kind) = match view.lost(directory, name)? {
                    Some(lost) => lost,
                    // Which names there were is not known.
                    None if view.is_snapshot() => {
                        return Ok(Some(Found {
                            attr: unknown(0, Kind::File),
                            inode: None,
                            lost: true,
                            absent: false,
                        }));
                    }
                    None => return Err(error),
                };
                view.know(ino, directory, Some(&path));
                let mut attr = unknown(ino, kind);
                let then = if kind == Kind::Directory { view.then_of(ino, &path)? } else { None };
                if let Some(then) = &then {
                    attr = Attr { mode: then.mode, uid: then.uid, gid: then.gid, mtime: then.mtime, ..attr };
                }
                return Ok(Some(Found { attr, inode: None, lost: then.is_none(), absent: false }));
            }
            Err(error) => return Err(error),
        };
        let found = match view.node_named(&named) {
            Ok(node) => Found { attr: view.attr(&node), inode: Some(node.inode), lost: false, absent: false },
            Err(error) if is_lost(&error) => {
                let Some((found, path)) = named.found.as_ref().zip(named.path.as_deref()) else { return Err(error) };
                Found { attr: found.inode(path).attr(named.ino), inode: None, lost: true, absent: false }
            }
            Err(Error::Stale | Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        view.know(named.ino, directory, named.path.as_deref());
        Ok(Some(found))
    }

    /// Compares what the trees have at one name, and everything below it if that is another directory. Gives whether it is.
    pub(super) fn compare(&mut self, path: &[u8], directories: Both<Ino>, name: &[u8]) -> Told<bool> {
        let inside = self.compare_one(path, directories, name)?;
        if inside[0] == inside[1] {
            return Ok(false);
        }
        let mut waiting = vec![(path.to_vec(), inside)];
        while let Some((path, directories)) = waiting.pop() {
            let mut names = BTreeSet::new();
            for (tree, directory) in self.trees.iter().zip(directories) {
                if let Some(directory) = directory {
                    match tree.view.names_in(directory, None) {
                        Ok(there) => names.extend(there.into_keys()),
                        // Removed meanwhile.
                        Err(Error::Stale | Error::NotFound) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            for name in names {
                let path = join(&path, &name);
                if (self.wanted)(&path) {
                    let inside = self.compare_one(&path, directories, &name)?;
                    waiting.extend((inside != [None, None]).then_some((path, inside)));
                }
            }
        }
        Ok(true)
    }

    /// Compares what the trees have at one name in these directories. Gives the directories there.
    fn compare_one(&mut self, path: &[u8], directories: Both<Ino>, name: &[u8]) -> Told<Both<Ino>> {
        let mut found = [None, None];
        for (tree, directory) in directories.into_iter().enumerate() {
            if let Some(directory) = directory {
                found[tree] = self.find(tree, directory, name)?;
            }
        }
        for tree in [0, 1] {
            if let Some(directory) = directories[tree] {
                let place = (directory, directories[1 - tree], name);
                if self.came_later(tree, place, found[tree].as_ref())? {
                    found[tree] = None;
                }
                self.remember_lost(tree, directory, name, &mut found)?;
                self.tell_unknown(tree, place, &mut found)?;
            }
        }
        // What the other tree took over there is of the kind that was there; of its attributes no more is known.
        for tree in [0, 1] {
            let other = found[1 - tree].as_ref().filter(|it| it.inode.as_ref().is_some_and(|it| it.origin.is_some()));
            let attr = other.map(|other| Attr { ino: 0, ..other.attr.clone() });
            if let (Some(mine), Some(attr)) = (found[tree].as_mut().filter(|mine| mine.attr.ino == 0), attr) {
                mine.attr = attr;
            }
        }
        let inside = found.each_ref().map(|found| {
            let attr = found.as_ref().map(|found| &found.attr);
            attr.filter(|attr| attr.kind == Kind::Directory).map(|attr| attr.ino)
        });
        // Where it is not known what was in one, what is in the other was neither made nor removed.
        let inside = if found.iter().flatten().any(Found::is_unknown) { [None, None] } else { inside };
        let contents = match &found {
            [None, None] => return Ok(inside),
            [Some(before), Some(after)] => self.contents_differ(path, before, after)?,
            _ => true,
        };
        self.tell(path, found, contents);
        Ok(inside)
    }

    /// Where a snapshot has no row of a name in a directory, and the other tree has one: where the name is below, and whether that was, or may have been, there when
    /// the other wrote it first.
    fn written_by_other(&self, tree: usize, (directory, other, name): Name<'_>) -> Result<Option<(Vec<u8>, bool)>> {
        let stem = key::entry(directory, name);
        let view = self.trees[tree].view;
        if !view.is_snapshot() || other != Some(directory) || view.seen(&stem)?.is_some() {
            return Ok(None);
        }
        let Some(row) = self.trees[1 - tree].view.seen(&stem)? else { return Ok(None) };
        let hides = match row.first() {
            Some(&WHITEOUT) => hides_what_was_there(&row),
            _ => Entry::decode(&row)?.is_some_and(|entry| entry.hides),
        };
        Ok(view.below(directory)?.map(|below| (join(&below, name), hides)))
    }

    /// Whether what a snapshot finds at a name was made below since: where the other tree wrote that name first, nothing was there.
    fn came_later(&self, tree: usize, name: Name<'_>, found: Option<&Found>) -> Result<bool> {
        // It may have been there, away for a while, and back.
        let later = found.is_some_and(|found| found.attr.btime > self.trees[tree].view.base);
        Ok(later && matches!(self.written_by_other(tree, name)?, Some((_, false))))
    }

    /// What one tree took over was there in the other, whatever became of it below.
    fn remember_lost(&self, tree: usize, directory: Ino, name: &[u8], found: &mut Both<Found>) -> Result<()> {
        let view = self.trees[tree].view;
        let Some(other) = &found[1 - tree] else { return Ok(()) };
        let Some(origin) = other.inode.as_ref().and_then(|inode| inode.origin.as_ref()) else { return Ok(()) };
        if other.attr.kind == Kind::Directory || found[tree].as_ref().is_some_and(|mine| !mine.lost) {
            return Ok(());
        }
        let Some(below) = view.below(directory)? else { return Ok(()) };
        if view.seen(&key::entry(directory, name))?.is_none() && join(&below, name) == origin.path {
            let attr = Attr { size: origin.size, mtime: origin.mtime, ..other.attr.clone() };
            let absent = found[tree].is_none() && view.changed_names(directory, &below)?.is_some();
            found[tree] = Some(Found { attr, inode: None, lost: true, absent });
        }
        Ok(())
    }

    /// Where what a snapshot had is not known, that is told: what the other tree found there and hid is lost. Nothing may be made or removed in its name.
    fn tell_unknown(&self, tree: usize, name: Name<'_>, found: &mut Both<Found>) -> Result<()> {
        let view = self.trees[tree].view;
        if let [Some(before), Some(after)] = found
            && (before.attr.kind, after.attr.kind) == (Kind::Directory, Kind::Directory)
            && (before.attr.ino, before.attr.btime) == (after.attr.ino, after.attr.btime)
        {
            (before.lost, after.lost) = (false, false);
        }
        if found[tree].is_some() {
            return Ok(());
        }
        let Some((place, true)) = self.written_by_other(tree, name)? else { return Ok(()) };
        // If all names were written down, it was not among those that the base had. What came later a branch has shown.
        let below = split(&place).0;
        let unchanged = view.reach(below)?.is_some_and(|found| found.ctime <= view.base);
        let is_base = view.line == view.chain.base;
        let absent = view.changed_names(name.0, below)?.is_some();
        if unchanged || is_base && absent {
            return Ok(());
        }
        let _ = view.changed(&place, "removed below");
        found[tree] = Some(Found { attr: unknown(0, Kind::File), inode: None, lost: true, absent });
        Ok(())
    }

    fn contents_differ(&self, path: &[u8], before: &Found, after: &Found) -> Result<bool> {
        let (one, other) = (&before.attr, &after.attr);
        if one.kind != other.kind {
            return Ok(true);
        }
        if before.lost || after.lost {
            // The same file below in both is none that anybody wrote here.
            return Ok(one.ino != other.ino || before.lost != after.lost);
        }
        match one.kind {
            Kind::File if one.size != other.size => Ok(true),
            Kind::File => {
                for chunk in self.chunks(before, after)? {
                    // Who asked may not want it any more.
                    if !(self.wanted)(path) {
                        return Ok(true);
                    }
                    let read = |tree: usize, ino| self.trees[tree].view.read(ino, chunk * CHUNK, CHUNK as usize);
                    match (read(0, one.ino), read(1, other.ino)) {
                        (Ok(one), Ok(other)) if one == other => {}
                        // What cannot be read on one side was changed below, and is not what is on the other.
                        (Err(error), _) | (_, Err(error)) if !is_lost(&error) && !matches!(error, Error::Stale) => {
                            return Err(error);
                        }
                        _ => return Ok(true),
                    }
                }
                Ok(false)
            }
            Kind::Symlink => {
                let target = |tree: usize, ino| self.trees[tree].view.readlink(ino).ok();
                let (one, other) = (target(0, one.ino), target(1, other.ino));
                Ok(one.is_none() || one != other)
            }
            _ => Ok(false),
        }
    }

    /// The chunks in which two files of one size may differ. In all others there are zeros, or what is below the same inode.
    fn chunks(&self, before: &Found, after: &Found) -> Result<BTreeSet<u64>> {
        // Where what is below does not count any more, no chunk need say that.
        let limit = |found: &Found| found.inode.as_ref().map(|inode| inode.lower_limit);
        let origin = |found: &Found| found.inode.as_ref().and_then(Inode::came_from);
        // What was changed below before one of them took it over is another there.
        let is_one = before.attr.ino == after.attr.ino && origin(before) == origin(after);
        if is_one && limit(before) == limit(after) {
            return Ok(self.touched.chunks.get(&before.attr.ino).cloned().unwrap_or_default());
        }
        let mut chunks = BTreeSet::new();
        for (tree, found) in self.trees.iter().zip([before, after]) {
            chunks.extend(tree.view.chunks_from(found.attr.ino, 0)?);
            chunks.extend(0..limit(found).unwrap_or(found.attr.size).div_ceil(CHUNK));
        }
        Ok(chunks)
    }

    pub(super) fn tell(&mut self, path: &[u8], found: Both<Found>, contents: bool) {
        let is_within = above(path).any(|above| self.unknown.contains(above));
        let lost = is_within || found.iter().flatten().any(|found| found.lost);
        if found.iter().flatten().any(Found::is_unknown) {
            self.unknown.insert(path.to_vec());
        }
        let contents = contents || is_within;
        let absent = found.iter().flatten().any(|found| found.absent);
        let [before, after] = found.map(|found| found.map(|found| found.attr));
        let seen = |attr: &Option<Attr>| attr.as_ref().map(|attr| (attr.mode, attr.mtime));
        if contents || seen(&before) != seen(&after) {
            self.found.insert(path.to_vec(), Difference { path: path.to_vec(), before, after, contents, lost, absent });
        }
    }
}

impl Found {
    /// Whether nobody knows what was in it, or what it was.
    fn is_unknown(&self) -> bool {
        self.lost && (self.attr.kind == Kind::Directory || self.attr.ino == 0)
    }
}

/// Of what was removed below no more is known.
fn unknown(ino: Ino, kind: Kind) -> Attr {
    let time = Time::default();
    Attr {
        ino,
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}
