//! Renaming. What moves keeps its inode; a directory of the lower one moves as a whole, by one row that says where it is below.

use crate::error::{Error, Result};
use crate::lock;
use crate::platform;
use crate::rows::key;
use crate::rows::value::Entry;
use crate::types::{Ino, Kind, ROOT, Rename};
use crate::view::{Named, View, check_name};

impl View {
    /// Renames `name` in `parent` to `new_name` in `new_parent`, in one step. A directory can take the place of an empty directory
    /// only, and cannot go into itself.
    pub fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], how: Rename) -> Result<()> {
        let pen = self.writable()?;
        check_name(new_name)?;
        let _ops = lock(&pen.ops);
        let source = self.resolve(parent, name)?.ok_or(Error::NotFound)?;
        let target = self.resolve(new_parent, new_name)?;
        match (&target, how) {
            (Some(_), Rename::NoReplace) => return Err(Error::Exists),
            (None, Rename::Exchange) => return Err(Error::NotFound),
            (Some(target), Rename::Exchange) => {
                if target.kind == Kind::Directory && self.is_within(parent, target.ino) {
                    return Err(Error::Invalid("a directory cannot go into itself"));
                }
            }
            (Some(target), Rename::Replace) => self.check_replace(&source, target, (parent, new_parent))?,
            (None, _) => {}
        }
        if source.kind == Kind::Directory && self.is_within(new_parent, source.ino) {
            return Err(Error::Invalid("a directory cannot go into itself"));
        }
        if target.as_ref().is_some_and(|target| target.ino == source.ino) {
            // Two names of one file, or the same name: nothing happens.
            return Ok(());
        }
        self.exchange_or_move((parent, name, source), (new_parent, new_name, target), how)
    }

    fn exchange_or_move(
        &self,
        (parent, name, source): (Ino, &[u8], Named),
        (new_parent, new_name, target): (Ino, &[u8], Option<Named>),
        how: Rename,
    ) -> Result<()> {
        let now = platform::now();
        let mut moved = self.node_to_change(source.ino, source.path.as_deref())?;
        (moved.inode.ctime, moved.inode.parent) = (now, new_parent);
        let mut other = match &target {
            Some(target) => Some(self.node_to_change(target.ino, target.path.as_deref())?),
            None => None,
        };
        let exchange = how == Rename::Exchange;
        if let Some(other) = other.as_mut().filter(|_| !exchange) {
            self.count_name(other, new_parent, new_name)?;
        }
        let is_directory = |named: &Named| i32::from(named.kind == Kind::Directory);
        let (leaves, goes) = (is_directory(&source), target.as_ref().map_or(0, is_directory));
        let mut from = self.directory(parent)?;
        let mut to = if new_parent == parent { None } else { Some(self.directory(new_parent)?) };
        match &mut to {
            Some(to) => {
                from.touch(now, if exchange { goes } else { 0 } - leaves);
                to.touch(now, leaves - goes);
            }
            None => from.touch(now, if exchange { 0 } else { -goes }),
        }
        let hidden = self.hidden(parent, name, &source)?;
        let hides = self.hides(new_parent, new_name, target.as_ref())?;
        let new_place = Entry { ino: source.ino, kind: source.kind, hides };
        let hides = self.hides(parent, name, Some(&source))?;
        let old_place =
            target.as_ref().filter(|_| exchange).map(|named| Entry { ino: named.ino, kind: named.kind, hides });
        self.change(|state, view| {
            let row = old_place.map_or(hidden, Entry::encode);
            state.write(&key::entry(parent, name), row, view)?;
            state.write(&key::entry(new_parent, new_name), new_place.encode(), view)?;
            // The names come first, so that the rows below do not take the old ones over.
            self.put(state, view, &moved)?;
            self.put(state, view, &from)?;
            to.iter().try_for_each(|to| self.put(state, view, to))?;
            match other.take() {
                Some(mut other) if exchange => {
                    (other.inode.ctime, other.inode.parent) = (now, parent);
                    self.put(state, view, &other)
                }
                Some(other) => self.lose_name(state, view, other, now),
                None => Ok(()),
            }
        })?;
        let mut known = lock(&self.known);
        if let Some(known) = known.get_mut(&source.ino) {
            known.parent = new_parent;
        }
        if let Some(known) = old_place.and_then(|entry| known.get_mut(&entry.ino)) {
            known.parent = parent;
        }
        Ok(())
    }

    fn check_replace(&self, source: &Named, target: &Named, parents: (Ino, Ino)) -> Result<()> {
        match (source.kind == Kind::Directory, target.kind == Kind::Directory) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if source.ino != target.ino => {
                // One that the source is in is not empty.
                if self.is_within(parents.0, target.ino) || !self.is_empty(target)? {
                    return Err(Error::NotEmpty);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether `ino` is `directory` or somewhere in it, by the directories that the host came through.
    fn is_within(&self, mut ino: Ino, directory: Ino) -> bool {
        let known = lock(&self.known);
        // No tree is deeper than there are inodes known.
        for _ in 0..=known.len() {
            if ino == directory {
                return true;
            }
            match known.get(&ino) {
                Some(known) if ino != ROOT => ino = known.parent,
                _ => return false,
            }
        }
        false
    }
}
