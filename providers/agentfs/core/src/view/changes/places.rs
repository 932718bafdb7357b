//! Where directories and files are, found from below.

use super::{Comparison, Stop, Told, Tree};
use crate::engine::LOWER;
use crate::error::{Error, Result};
use crate::lower::{join, split};
use crate::rows::key;
use crate::rows::value::{Entry, Inode};
use crate::types::{Ino, Kind, ROOT};
use crate::view::Places;
use crate::view::pinned::is_lost;

/// So deep below one another are directories that are told of.
const DEEPEST: usize = 512;

impl Comparison<'_> {
    /// Where inodes are below: rows say so of those that have one, and thereby of the directories that they were found in.
    pub(super) fn learn_places_below(&mut self) -> Result<()> {
        for ino in self.touched.inodes.clone() {
            self.learn(ino)?;
        }
        for (directory, name) in self.touched.names.clone() {
            self.learn(directory)?;
            for tree in 0..2 {
                let row = self.trees[tree].view.seen(&key::entry(directory, &name))?;
                if let Some(entry) = row.map(|row| Entry::decode(&row)).transpose()?.flatten() {
                    self.learn(entry.ino)?;
                    self.learn_by_name(tree, directory, entry.ino)?;
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, ino: Ino) -> Result<()> {
        for tree in &self.trees {
            if let Some(Some(Inode { origin: Some(origin), .. })) = tree.view.row_of(ino)? {
                self.below.insert(ino, origin.path);
            }
        }
        Ok(())
    }

    /// A directory without a row is where it was below, and so is what rows say to be in it: that was found there.
    pub(super) fn learn_by_name(&mut self, tree: usize, directory: Ino, ino: Ino) -> Result<()> {
        let view = self.trees[tree].view;
        if view.row_of(directory)?.is_none()
            && let Some(Some(Inode { origin: Some(origin), .. })) = view.row_of(ino)?
        {
            self.below.entry(directory).or_insert_with(|| split(&origin.path).0.to_vec());
        }
        Ok(())
    }

    /// Where a directory is, if that is the same place in both trees. Else it is in one that is another in the other tree, or that is not there, all the way up to a
    /// name that was written, and is compared with all that is in that.
    pub(super) fn path_in_both(&mut self, ino: Ino) -> Told<Option<Vec<u8>>> {
        for tree in &self.trees {
            // Removed, and perhaps open still.
            if tree.view.row_of(ino)?.is_some_and(|inode| inode.is_none_or(|inode| inode.nlink == 0)) {
                return Ok(None);
            }
        }
        let (one, other) = (self.path(0, ino, 0)?, self.path(1, ino, 0)?);
        Ok(one.filter(|one| other.as_ref() == Some(one)))
    }

    /// Where a directory is in a tree; `None`: nowhere. `depth`: how many below it are waiting for that.
    fn path(&mut self, tree: usize, ino: Ino, depth: usize) -> Told<Option<Vec<u8>>> {
        if depth > DEEPEST {
            return Err(Stop::Unknown);
        }
        if let Some(path) = self.trees[tree].paths.get(&ino) {
            return Ok(path.clone());
        }
        let view = self.trees[tree].view;
        let path = match view.row_of(ino)? {
            Some(None) => None,
            Some(Some(inode)) if inode.nlink == 0 => None,
            Some(Some(inode)) => {
                self.learn(ino)?;
                self.learn_by_name(tree, inode.parent, ino)?;
                let names = self.names_in(tree, inode.parent, ino)?;
                let [name] = names.as_slice() else { return Err(Stop::Unknown) };
                self.path(tree, inode.parent, depth + 1)?.map(|above| join(&above, name))
            }
            // One of ours that this tree never had.
            None if ino < LOWER && !self.below.contains_key(&ino) => None,
            None => {
                let Some(below) = self.below.get(&ino).cloned() else { return Err(Stop::Unknown) };
                let (place, name) = split(&below);
                let parent = self.number_below(tree, place)?;
                // Known there from now on, as if the host had come through it.
                view.know(parent, ROOT, Some(place));
                // With what is above it an empty directory is removed without a row of its own.
                let gone = matches!(view.row_of(parent)?, Some(None));
                match if gone { None } else { self.is_named_below(tree, parent, name, ino)? } {
                    None => None,
                    Some(true) => {
                        view.know(ino, parent, Some(&below));
                        self.path(tree, parent, depth + 1)?.map(|above| join(&above, name))
                    }
                    // It was empty when it was removed, else it would have a row.
                    Some(false)
                        if view.seen(&key::entry(parent, name))?.is_some()
                            && self.number_below(tree, &below)? == ino =>
                    {
                        None
                    }
                    Some(false) => return Err(Stop::Unknown),
                }
            }
        };
        self.trees[tree].paths.insert(ino, path.clone());
        Ok(path)
    }

    /// Whether a directory without a row is at that name, or was before it was removed below; `None`: there was nothing.
    fn is_named_below(&self, tree: usize, parent: Ino, name: &[u8], ino: Ino) -> Result<Option<bool>> {
        let view = self.trees[tree].view;
        match view.resolve(parent, name) {
            Ok(None) if view.is_snapshot() && view.seen(&key::entry(parent, name))?.is_none() => {
                let below = view.below(parent)?.unwrap_or_default();
                match view.changed_names(parent, &below)? {
                    Some(_) => Ok(None),
                    // It may have been there: what is asked for in it is lost.
                    None => Ok(Some(true)),
                }
            }
            Ok(Some(named)) if named.ino != ino && view.is_snapshot() => {
                // It may be one that came in its place.
                Ok(Some(matches!(view.node_named(&named), Err(error) if is_lost(&error))))
            }
            Ok(named) => Ok(Some(named.is_some_and(|named| named.ino == ino))),
            Err(error) if is_lost(&error) => match view.lost(parent, name)? {
                Some((_, lost, _)) => Ok(Some(lost == ino)),
                None if view.is_snapshot() => Ok(Some(true)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The number of what is at a place below.
    fn number_below(&mut self, tree: usize, place: &[u8]) -> Told<Ino> {
        if place.is_empty() {
            return Ok(ROOT);
        }
        let view = self.trees[tree].view;
        let found = view.reach(place)?;
        let number = match view.other_place_then(place, found.as_ref())? {
            Some(number) => number,
            None => {
                let later = found.as_ref().is_none_or(|found| found.btime > view.base);
                // The one that the other tree found there. Of what was in it nothing is known, if it was another.
                let known = self.below.iter().find(|(_, path)| later && view.is_snapshot() && *path == place);
                match known {
                    Some((&known, _)) => known,
                    None => view.number_of(&found.ok_or(Stop::Unknown)?, place)?,
                }
            }
        };
        self.below.entry(number).or_insert_with(|| place.to_vec());
        Ok(number)
    }

    /// The names by which rows lead from a directory to an inode.
    fn names_in(&mut self, tree: usize, directory: Ino, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let Tree { view, names, .. } = &mut self.trees[tree];
        if let std::collections::hash_map::Entry::Vacant(place) = names.entry(directory) {
            place.insert(view.named_here(directory)?);
        }
        Ok(names.get(&directory).and_then(|names| names.get(&ino)).cloned().unwrap_or_default())
    }

    /// All names of an inode that has a row in a tree. One that has none is where it was below, and where the other tree has it.
    pub(super) fn names_of(&mut self, tree: usize, ino: Ino) -> Told<Vec<(Ino, Vec<u8>)>> {
        let Some(Some(inode)) = self.trees[tree].view.row_of(ino)? else { return Ok(Vec::new()) };
        let count = if inode.kind == Kind::Directory { inode.nlink.min(1) } else { inode.nlink } as usize;
        let here = self.names_in(tree, inode.parent, ino)?;
        let mut names: Vec<_> = here.into_iter().map(|name| (inode.parent, name)).collect();
        if names.len() < count && inode.kind != Kind::Directory {
            let Self { trees, touched, .. } = &mut *self;
            let Tree { view, all_names, .. } = &mut trees[tree];
            let all = match all_names {
                Some(all) => all,
                None => all_names.insert(view.all_names(&touched.inodes)?),
            };
            names = all.get(&ino).cloned().unwrap_or_default();
            if names.len() < count && inode.origin.is_some() {
                names.extend(self.linked(tree, ino)?);
                // Those that are missing still lie outside of the workspace.
                return Ok(names);
            }
        }
        if names.len() < count { Err(Stop::Unknown) } else { Ok(names) }
    }

    /// The names that no row says of a file that has several below. Only going through all that there is below tells them.
    fn linked(&mut self, tree: usize, ino: Ino) -> Result<Vec<(Ino, Vec<u8>)>> {
        let linked = match self.trees[tree].linked.take() {
            Some(linked) => linked,
            None => self.find_linked(tree)?,
        };
        Ok(self.trees[tree].linked.insert(linked).get(&ino).cloned().unwrap_or_default())
    }

    /// Goes through all directories by names alone: no file is looked at.
    fn find_linked(&mut self, tree: usize) -> Result<Places> {
        let view = self.trees[tree].view;
        let (mut linked, mut waiting) = (Places::new(), vec![ROOT]);
        while let Some(directory) = waiting.pop() {
            let names = match view.names_in(directory, None) {
                Ok(names) => names,
                // What was removed below shows no names in the other tree, and so no difference.
                Err(Error::Stale | Error::NotFound) => continue,
                Err(error) if is_lost(&error) => continue,
                Err(error) => return Err(error),
            };
            let below = view.below(directory)?;
            for (name, entry) in names {
                if entry.kind == Kind::Directory {
                    match view.resolve(directory, &name) {
                        Ok(Some(named)) => {
                            view.know(named.ino, directory, named.path.as_deref());
                            if let Some(path) = named.path {
                                self.below.entry(named.ino).or_insert(path);
                            }
                            waiting.push(named.ino);
                        }
                        Ok(None) | Err(Error::Stale | Error::NotFound) => {}
                        Err(error) if is_lost(&error) => {}
                        Err(error) => return Err(error),
                    }
                } else if below.is_some()
                    && self.touched.inodes.contains(&entry.ino)
                    && view.seen(&key::entry(directory, &name))?.is_none()
                {
                    linked.entry(entry.ino).or_default().push((directory, name));
                }
            }
        }
        Ok(linked)
    }
}
