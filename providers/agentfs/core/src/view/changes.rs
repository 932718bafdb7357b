//! What differs between two trees, told from the rows that were written between them: it costs what was written, not what is there.
//!
//! Two trees with one base differ only where a row was written in the epochs that one of them sees and the other does not. Each such row
//! names a directory and a name in it, or an inode. Where they are is found from below: an inode's row says in which directory it got its name, and one without a
//! row is where it was below. Only a directory that is another in the other tree is compared name by name.
//!
//! What somebody changed below meanwhile is no difference, since nobody wrote it here. Of a file that was changed below and here, what it was before is known no
//! more ([`Difference::lost`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::engine::LOWER;
use crate::error::{Error, Result};
use crate::lower::join;
use crate::read_lock;
use crate::rows::chunk::CHUNK;
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::{Entry, HERE, Inode, WHITEOUT};
use crate::types::{Attr, Ino, Kind, ROOT, Time};
use crate::view::{Places, View};

/// Rows that are looked at while others wait.
const STEP: usize = 128;
/// So deep below one another are directories that are told of.
const DEEPEST: usize = 512;

/// A path at which two trees differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// From the root, without a slash before it; empty: the root itself.
    pub path: Vec<u8>,
    /// What the first tree has there.
    pub before: Option<Attr>,
    /// What the second one has.
    pub after: Option<Attr>,
    /// Whether kind, contents or a link's target differ, and not only attributes. True of what only one has.
    pub contents: bool,
    /// The first tree's file was changed below since: it cannot be read, and of its attributes some are those of now.
    pub lost: bool,
}

/// How two trees differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differences {
    /// Those in presence, kind, permission bits, time of modification and contents, by path. Of a directory that only one of them has, all that is in it too.
    pub list: Vec<Difference>,
    /// Nothing was written at all that only one of them sees.
    pub untouched: bool,
}

/// Rows that only one of two trees sees, or each another version of.
#[derive(Default)]
struct Touched {
    any: bool,
    names: BTreeSet<(Ino, Vec<u8>)>,
    inodes: BTreeSet<Ino>,
    chunks: HashMap<Ino, BTreeSet<u64>>,
}

/// Why it is not told.
enum Stop {
    /// It cannot be told from the rows.
    Unknown,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Told<T> = std::result::Result<T, Stop>;

/// One of the trees.
struct Tree<'a> {
    view: &'a View,
    /// Where directories are; `None`: nowhere.
    paths: HashMap<Ino, Option<Vec<u8>>>,
    /// The names that rows say, by directory and inode.
    names: HashMap<Ino, HashMap<Ino, Vec<Vec<u8>>>>,
    /// All names of the inodes that were touched, once all rows were looked through.
    all_names: Option<Places>,
}

/// What each of the two trees has.
type Both<T> = [Option<T>; 2];

/// What a tree has at a name.
struct Found {
    attr: Attr,
    /// As its row has it, or as it is below.
    inode: Option<Inode>,
    /// It was changed below.
    lost: bool,
}

struct Comparison<'a> {
    trees: [Tree<'a>; 2],
    touched: Touched,
    /// Where inodes without a row are below.
    below: HashMap<Ino, Vec<u8>>,
    wanted: &'a dyn Fn(&[u8]) -> bool,
    found: BTreeMap<Vec<u8>, Difference>,
}

impl View {
    /// What differs from this tree to another. `wanted` says of a path whether it, or anything below it, is to be told.
    ///
    /// `None`: that cannot be told from what was written. The trees have not one base (or not one store), or a file was changed not all of whose names are known: one of
    /// those below that have several.
    ///
    /// Costs what was written that only one of them sees, and reading what differs perhaps.
    pub fn differences(&self, to: &Self, wanted: &dyn Fn(&[u8]) -> bool) -> Result<Option<Differences>> {
        if !Arc::ptr_eq(&self.engine, &to.engine) || self.base != to.base {
            return Ok(None);
        }
        let touched = self.touched(to)?;
        let untouched = !touched.any;
        let tree = |view| Tree {
            view,
            paths: HashMap::from([(ROOT, Some(Vec::new()))]),
            names: HashMap::new(),
            all_names: None,
        };
        let mut comparison = Comparison {
            trees: [tree(self), tree(to)],
            touched,
            below: HashMap::from([(ROOT, Vec::new())]),
            wanted,
            found: BTreeMap::new(),
        };
        match comparison.run() {
            Ok(()) => Ok(Some(Differences { list: comparison.found.into_values().collect(), untouched })),
            Err(Stop::Unknown) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// The lines that are seen, each with its last epoch.
    fn lines(&self) -> BTreeMap<LineId, Epoch> {
        let view = self.view();
        view.chain.lines().iter().copied().chain([(view.line, view.until)]).collect()
    }

    /// All rows that only one of two trees sees, and some more.
    fn touched(&self, to: &Self) -> Result<Touched> {
        let (mine, its) = (self.lines(), to.lines());
        let mut spans = Vec::new();
        for &line in mine.keys().chain(its.keys()).collect::<BTreeSet<_>>() {
            match (mine.get(&line), its.get(&line)) {
                (Some(one), Some(other)) if one == other => {}
                (Some(one), Some(other)) => spans.push((line, (one.min(other) + 1, *one.max(other)))),
                (Some(until), None) | (None, Some(until)) => spans.push((line, (0, *until))),
                (None, None) => {}
            }
        }
        let mut touched = Touched::default();
        for (line, epochs) in spans {
            let (in_memory, base) = {
                let state = read_lock(&self.engine.state);
                (state.layers.written(line, epochs)?, state.layers.base.clone())
            };
            in_memory.iter().for_each(|(stem, _)| touched.add(stem));
            let mut after: Option<Vec<u8>> = None;
            loop {
                let rows = base.written(line, epochs, after.as_deref(), STEP)?;
                let Some((last, _, _)) = rows.last() else { break };
                after = Some(last.clone());
                rows.iter().for_each(|(_, stem, _)| touched.add(stem));
            }
        }
        Ok(touched)
    }

    /// The names in a directory that rows say, and where they lead.
    fn named_here(&self, directory: Ino) -> Result<HashMap<Ino, Vec<Vec<u8>>>> {
        let rows = read_lock(&self.engine.state).all_seen(&key::stem(b'd', directory), self.view())?;
        let mut names: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
        for (stem, row) in rows {
            if let Some(Entry { ino, .. }) = Entry::decode(&row)? {
                names.entry(ino).or_default().push(key::name(&stem).to_vec());
            }
        }
        Ok(names)
    }

    /// The names of inodes that rows say. Costs all names that were ever written here, of all branches.
    fn all_names(&self, inodes: &BTreeSet<Ino>) -> Result<Places> {
        let mut stems = BTreeSet::new();
        let mut after = b"d".to_vec();
        'all: loop {
            let state = read_lock(&self.engine.state);
            for _ in 0..STEP {
                let Some((row, value)) = state.layers.next(b"d", &after)? else { break 'all };
                if Entry::decode(&value)?.is_some_and(|entry| inodes.contains(&entry.ino)) {
                    stems.insert(key::split(&row)?.0.to_vec());
                }
                after = row;
            }
        }
        let mut names = Places::new();
        for stem in stems {
            let row = self.seen(&stem)?;
            if let Some(Entry { ino, .. }) = row.map(|row| Entry::decode(&row)).transpose()?.flatten() {
                names.entry(ino).or_default().push((key::number(&stem), key::name(&stem).to_vec()));
            }
        }
        Ok(names)
    }

    fn row_of(&self, ino: Ino) -> Result<Option<Option<Inode>>> {
        self.seen(&key::inode(ino))?.map(|row| Inode::decode(&row)).transpose()
    }
}

impl Touched {
    fn add(&mut self, stem: &[u8]) {
        self.any = true;
        let number = key::number(stem);
        match stem.first() {
            Some(b'd') => drop(self.names.insert((number, key::name(stem).to_vec()))),
            Some(b'i') => drop(self.inodes.insert(number)),
            Some(b'c') => {
                self.inodes.insert(number);
                self.chunks.entry(number).or_default().insert(key::chunk_index(stem));
            }
            _ => {}
        }
    }
}

/// The path of the directory in which it is, and its name there; the root has none.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => Some((&path[..at], &path[at + 1..])),
        None => Some((&b""[..], path)).filter(|_| !path.is_empty()),
    }
}

impl Comparison<'_> {
    fn run(&mut self) -> Told<()> {
        self.drop_what_is_alike()?;
        self.learn_places_below()?;
        // In the order of paths, so that what is in a directory comes after it.
        let mut candidates: BTreeMap<Vec<u8>, (Ino, Vec<u8>)> = BTreeMap::new();
        let mut root = false;
        for (directory, name) in self.touched.names.clone() {
            if let Some(path) = self.path_in_both(directory)? {
                candidates.insert(join(&path, &name), (directory, name));
            }
        }
        for ino in self.touched.inodes.clone() {
            if ino == ROOT {
                root = true;
            } else if self.may_differ(ino)? {
                for tree in 0..2 {
                    for (directory, name) in self.names_of(tree, ino)? {
                        self.learn_by_name(tree, directory, ino)?;
                        if let Some(path) = self.path_in_both(directory)? {
                            candidates.insert(join(&path, &name), (directory, name));
                        }
                    }
                }
            }
        }
        if root && (self.wanted)(b"") {
            let attrs = [self.trees[0].view.getattr(ROOT)?, self.trees[1].view.getattr(ROOT)?];
            self.tell(b"", attrs.map(|attr| Some(Found { attr, inode: None, lost: false })), false);
        }
        let mut walked: BTreeSet<Vec<u8>> = BTreeSet::new();
        for (path, (directory, name)) in candidates {
            if !(self.wanted)(&path) || above(&path).any(|above| walked.contains(above)) {
                continue;
            }
            if self.compare(&path, [Some(directory); 2], &name, false)? {
                walked.insert(path);
            }
        }
        Ok(())
    }

    /// Names that lead to the same in both trees: what was written there was undone, or is seen by neither. And those that went with their directory: where a name is
    /// gone, its directory has a row, or is gone too.
    fn drop_what_is_alike(&mut self) -> Result<()> {
        for (directory, name) in std::mem::take(&mut self.touched.names) {
            let stem = key::entry(directory, &name);
            let mut went = false;
            let rows = [self.trees[0].view.seen(&stem)?, self.trees[1].view.seen(&stem)?];
            for (tree, row) in self.trees.iter().zip(&rows) {
                let gone = row.as_ref().is_some_and(|row| row.first() != Some(&HERE));
                went |= gone && tree.view.row_of(directory)?.is_none();
            }
            if rows[0] != rows[1] && !went {
                self.touched.names.insert((directory, name));
            }
        }
        Ok(())
    }

    /// Where inodes are below: rows say so of those that have one, and thereby of the directories that they were found in.
    fn learn_places_below(&mut self) -> Result<()> {
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
    fn learn_by_name(&mut self, tree: usize, directory: Ino, ino: Ino) -> Result<()> {
        let view = self.trees[tree].view;
        if view.row_of(directory)?.is_none()
            && let Some(Some(Inode { origin: Some(origin), .. })) = view.row_of(ino)?
            && let Some((place, _)) = split(&origin.path)
        {
            self.below.entry(directory).or_insert_with(|| place.to_vec());
        }
        Ok(())
    }

    /// Where a directory is, if that is the same place in both trees. Else it is in one that is another in the other tree, or that is not there, all the way up to a
    /// name that was written, and is compared with all that is in that.
    fn path_in_both(&mut self, ino: Ino) -> Told<Option<Vec<u8>>> {
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
                let (place, name) = split(&below).ok_or(Stop::Unknown)?;
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
                let below = view.below(parent)?;
                match below.map(|below| view.changed_names(parent, &below)).transpose()?.flatten() {
                    Some(_) => Ok(None),
                    None => Err(view.changed(name, "removed below, or replaced")),
                }
            }
            Ok(named) => Ok(Some(named.is_some_and(|named| named.ino == ino))),
            Err(error @ Error::DataLoss { .. }) => match view.removed(parent, name)? {
                Some((_, removed, _)) => Ok(Some(removed == ino)),
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
        let found = view.engine.lower.find(place)?.ok_or(Stop::Unknown)?;
        let number = view.number_of(&found)?;
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
    fn names_of(&mut self, tree: usize, ino: Ino) -> Told<Vec<(Ino, Vec<u8>)>> {
        let Some(Some(inode)) = self.trees[tree].view.row_of(ino)? else { return Ok(Vec::new()) };
        let count = if inode.kind == Kind::Directory { inode.nlink.min(1) } else { inode.nlink } as usize;
        let here = self.names_in(tree, inode.parent, ino)?;
        let mut names: Vec<_> = here.into_iter().map(|name| (inode.parent, name)).collect();
        if names.len() < count && inode.kind != Kind::Directory {
            let Self { trees, touched, .. } = self;
            let Tree { view, all_names, .. } = &mut trees[tree];
            let all = match all_names {
                Some(all) => all,
                None => all_names.insert(view.all_names(&touched.inodes)?),
            };
            names = all.get(&ino).cloned().unwrap_or_default();
        }
        if names.len() < count { Err(Stop::Unknown) } else { Ok(names) }
    }

    /// Whether an inode that both trees have may be another in them: its names apart.
    fn may_differ(&self, ino: Ino) -> Result<bool> {
        let below = self.below.get(&ino).map(Vec::as_slice);
        let inode = |tree: &Tree<'_>| -> Result<Option<Option<Inode>>> {
            if tree.view.row_of(ino)?.is_none() && below.is_none() {
                return Ok(None);
            }
            match tree.view.node_at(ino, below) {
                Ok(node) => Ok(Some(Some(node.inode))),
                Err(Error::DataLoss { .. }) => Ok(Some(None)),
                Err(Error::Stale | Error::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let (Some(before), Some(after)) = (inode(&self.trees[0])?, inode(&self.trees[1])?) else { return Ok(false) };
        let (Some(before), Some(after)) = (before, after) else { return Ok(true) };
        let seen = |inode: &Inode| (inode.kind, inode.mode, inode.mtime, inode.size, inode.lower_limit);
        Ok(self.touched.chunks.contains_key(&ino) || seen(&before) != seen(&after))
    }

    /// What a tree has at a name.
    fn find(&self, tree: usize, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
        let view = self.trees[tree].view;
        let named = match view.resolve(directory, name) {
            Ok(Some(named)) => named,
            Ok(None) | Err(Error::Stale) => return Ok(None),
            Err(error @ Error::DataLoss { .. }) => {
                let (path, ino, kind) = view.removed(directory, name)?.ok_or(error)?;
                view.know(ino, directory, Some(&path));
                let mut attr = unknown(ino, kind);
                let then = if kind == Kind::Directory { view.remembered(&path)? } else { None };
                if let Some(then) = &then {
                    attr = Attr { mode: then.mode, uid: then.uid, gid: then.gid, mtime: then.mtime, ..attr };
                }
                return Ok(Some(Found { attr, inode: None, lost: then.is_none() }));
            }
            Err(error) => return Err(error),
        };
        let found = match view.node_named(&named) {
            Ok(node) => Found { attr: view.attr(&node), inode: Some(node.inode), lost: false },
            Err(error @ Error::DataLoss { .. }) => {
                let Some((found, path)) = named.found.as_ref().zip(named.path.as_deref()) else { return Err(error) };
                Found { attr: found.inode(path).attr(named.ino), inode: None, lost: true }
            }
            Err(Error::Stale | Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        view.know(named.ino, directory, named.path.as_deref());
        Ok(Some(found))
    }

    /// Compares what the trees have at one name, and everything below it if `all`, or if that is another directory. Gives whether that was so.
    fn compare(&mut self, path: &[u8], directories: Both<Ino>, name: &[u8], all: bool) -> Told<bool> {
        let inside = self.compare_one(path, directories, name)?;
        if !all && inside[0] == inside[1] {
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
                let other = directories[1 - tree];
                if self.came_later(tree, directory, other, name)? {
                    found[tree] = None;
                }
                self.remember_lost(tree, directory, name, &mut found)?;
                self.refuse_unknown(tree, (directory, other, name), path, &mut found)?;
            }
        }
        let inside = found.each_ref().map(|found| {
            let attr = found.as_ref().map(|found| &found.attr);
            attr.filter(|attr| attr.kind == Kind::Directory).map(|attr| attr.ino)
        });
        let contents = match &found {
            [None, None] => return Ok(inside),
            [Some(before), Some(after)] => self.contents_differ(path, before, after)?,
            _ => true,
        };
        self.tell(path, found, contents);
        Ok(inside)
    }

    /// Whether what a snapshot has at a name was made below since: where the other tree wrote that name first, nothing was there.
    fn came_later(&self, tree: usize, directory: Ino, other: Option<Ino>, name: &[u8]) -> Result<bool> {
        let stem = key::entry(directory, name);
        let view = self.trees[tree].view;
        if !view.is_snapshot() || other != Some(directory) || view.seen(&stem)?.is_some() {
            return Ok(false);
        }
        let Some(row) = self.trees[1 - tree].view.seen(&stem)? else { return Ok(false) };
        if row.first() == Some(&WHITEOUT) || Entry::decode(&row)?.is_some_and(|entry| entry.hides) {
            return Ok(false);
        }
        // It may have been there, away for a while, and back.
        let Some(below) = view.below(directory)? else { return Ok(false) };
        Ok(view.engine.lower.find(&join(&below, name))?.is_some_and(|found| found.btime > view.base))
    }

    /// What one tree took over was there in the other, whatever became of it below.
    fn remember_lost(&self, tree: usize, directory: Ino, name: &[u8], found: &mut Both<Found>) -> Result<()> {
        let view = self.trees[tree].view;
        let Some(other) = &found[1 - tree] else { return Ok(()) };
        let Some(origin) = other.inode.as_ref().and_then(|inode| inode.origin.as_ref()) else { return Ok(()) };
        if other.attr.kind == Kind::Directory || found[tree].as_ref().is_some_and(|mine| !mine.lost) {
            return Ok(());
        }
        let is_its_place = view.seen(&key::entry(directory, name))?.is_none()
            && view.below(directory)?.is_some_and(|below| join(&below, name) == origin.path);
        if is_its_place {
            let attr = Attr { size: origin.size, mtime: origin.mtime, ..other.attr.clone() };
            found[tree] = Some(Found { attr, inode: None, lost: true });
        }
        Ok(())
    }

    /// Where what a snapshot had is not known, that is told, or refused if it was a directory: what the other tree found there and hid is lost. Nothing may be made or
    /// removed in its name.
    fn refuse_unknown(
        &self,
        tree: usize,
        (directory, other, name): (Ino, Option<Ino>, &[u8]),
        path: &[u8],
        found: &mut Both<Found>,
    ) -> Result<()> {
        let view = self.trees[tree].view;
        if let [Some(before), Some(after)] = found
            && (before.attr.kind, after.attr.kind) == (Kind::Directory, Kind::Directory)
            && (before.attr.ino, before.attr.btime) == (after.attr.ino, after.attr.btime)
        {
            (before.lost, after.lost) = (false, false);
        }
        if found[tree].as_ref().is_some_and(|found| found.lost && found.attr.kind == Kind::Directory) {
            return Err(view.changed(path, "removed or replaced below"));
        }
        let stem = key::entry(directory, name);
        if found[tree].is_some() || !view.is_snapshot() || other != Some(directory) || view.seen(&stem)?.is_some() {
            return Ok(());
        }
        let Some(row) = self.trees[1 - tree].view.seen(&stem)? else { return Ok(()) };
        let hidden = row.first() == Some(&WHITEOUT) || Entry::decode(&row)?.is_some_and(|entry| entry.hides);
        let Some(below) = view.below(directory)?.filter(|_| hidden) else { return Ok(()) };
        // If all names were written down, it was not among those that the base had. What came later a branch has shown.
        let unchanged = view.engine.lower.find(&below)?.is_some_and(|found| found.ctime <= view.base);
        let is_base = view.line == view.chain.base;
        if unchanged || is_base && view.changed_names(directory, &below)?.is_some() {
            return Ok(());
        }
        let _ = view.changed(path, "removed below");
        found[tree] = Some(Found { attr: unknown(0, Kind::File), inode: None, lost: true });
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
                        (
                            Ok(_) | Err(Error::DataLoss { .. } | Error::Stale),
                            Ok(_) | Err(Error::DataLoss { .. } | Error::Stale),
                        ) => return Ok(true),
                        (Err(error), _) | (_, Err(error)) => return Err(error),
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
        if before.attr.ino == after.attr.ino && limit(before) == limit(after) {
            return Ok(self.touched.chunks.get(&before.attr.ino).cloned().unwrap_or_default());
        }
        let mut chunks = BTreeSet::new();
        for (tree, found) in self.trees.iter().zip([before, after]) {
            chunks.extend(tree.view.chunks_from(found.attr.ino, 0)?);
            chunks.extend(0..limit(found).unwrap_or(found.attr.size).div_ceil(CHUNK));
        }
        Ok(chunks)
    }

    fn tell(&mut self, path: &[u8], found: Both<Found>, contents: bool) {
        let lost = found.iter().flatten().any(|found| found.lost);
        let [before, after] = found.map(|found| found.map(|found| found.attr));
        let seen = |attr: &Option<Attr>| attr.as_ref().map(|attr| (attr.mode, attr.mtime));
        if contents || seen(&before) != seen(&after) {
            self.found.insert(path.to_vec(), Difference { path: path.to_vec(), before, after, contents, lost });
        }
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

/// All paths above a path but the root's.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(split(path), |(place, _)| split(place)).map(|(place, _)| place)
}
