//! What differs between two trees, told from the rows that were written between them: it costs what was written, not what is there.
//!
//! Two trees with one base differ only where a row was written in the epochs that one of them sees and the other does not. Each such row
//! names a directory and a name in it, or an inode. Where they are is found from below: an inode's row says in which directory it got its name, and one without a
//! row is where it was below. Only a directory that is another in the other tree is compared name by name.
//!
//! - here: what was written, and which names are to be compared.
//! - `places`: where they are. `compare`: what is there.
//!
//! What somebody changed below meanwhile is no difference, since nobody wrote it here. Of a file that was changed below and here, what it was before is known no
//! more ([`Difference::lost`]).

mod compare;
mod places;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lower::{join, split};
use crate::read_lock;
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::{Entry, HERE, Inode};
use crate::types::{Attr, Ino, ROOT};
use crate::view::pinned::is_lost;
use crate::view::{Places, View};

/// Rows that are looked at while others wait.
const STEP: usize = 128;

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
    /// What one of the trees had was changed below since: it cannot be read, and of its attributes some are those of now, or not known.
    pub lost: bool,
    /// The snapshot of which something was lost certainly shows nothing here: what came below later, and the branch showed, it does not hold.
    pub absent: bool,
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
    /// Those of them that no row says, once they were looked for below.
    linked: Option<Places>,
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
    /// It came below later, and may have been seen.
    absent: bool,
}

struct Comparison<'a> {
    trees: [Tree<'a>; 2],
    touched: Touched,
    /// Where inodes without a row are below.
    below: HashMap<Ino, Vec<u8>>,
    wanted: &'a dyn Fn(&[u8]) -> bool,
    /// Where it is not known what there was: what is told in there was not found by its path.
    unknown: BTreeSet<Vec<u8>>,
    found: BTreeMap<Vec<u8>, Difference>,
}

impl View {
    /// Whether nothing was written that only one of the two trees sees, of one store and base: nothing at all was done in between, not even undone. Costs no look at
    /// what is there.
    pub fn is_untouched_until(&self, to: &Self) -> Result<bool> {
        Ok(Arc::ptr_eq(&self.engine, &to.engine) && self.base == to.base && !self.touched(to)?.any)
    }

    /// What differs from this tree to another. `wanted` says of a path whether it, or anything below it, is to be told.
    ///
    /// `None`: that cannot be told from what was written. The trees have not one base (or not one store).
    ///
    /// Costs what was written that only one of them sees, and reading what differs perhaps. If a file was changed that has several names below, not all of which were
    /// come by, a look at the names in all directories too.
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
            linked: None,
        };
        let mut comparison = Comparison {
            trees: [tree(self), tree(to)],
            touched,
            below: HashMap::from([(ROOT, Vec::new())]),
            wanted,
            unknown: BTreeSet::new(),
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
                // What was copied of the file below says nothing that it did not say.
                let index = Some(key::chunk_index(stem)).filter(|index| index & key::KEPT == 0);
                self.chunks.entry(number).or_default().extend(index);
            }
            _ => {}
        }
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
            self.tell(b"", attrs.map(|attr| Some(Found { attr, inode: None, lost: false, absent: false })), false);
        }
        let mut walked: BTreeSet<Vec<u8>> = BTreeSet::new();
        for (path, (directory, name)) in candidates {
            if !(self.wanted)(&path) || above(&path).any(|above| walked.contains(above)) {
                continue;
            }
            if self.compare(&path, [Some(directory); 2], &name)? {
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

    /// Whether an inode that both trees have may be another in them: its names apart.
    fn may_differ(&self, ino: Ino) -> Result<bool> {
        let below = self.below.get(&ino).map(Vec::as_slice);
        let inode = |tree: &Tree<'_>| -> Result<Option<Option<Inode>>> {
            if tree.view.row_of(ino)?.is_none() && below.is_none() {
                return Ok(None);
            }
            match tree.view.node_at(ino, below) {
                Ok(node) => Ok(Some(Some(node.inode))),
                Err(error) if is_lost(&error) => Ok(Some(None)),
                Err(Error::Stale | Error::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let (Some(before), Some(after)) = (inode(&self.trees[0])?, inode(&self.trees[1])?) else { return Ok(false) };
        let (Some(before), Some(after)) = (before, after) else { return Ok(true) };
        let seen =
            |inode: &Inode| (inode.kind, inode.mode, inode.mtime, inode.size, inode.lower_limit, inode.came_from());
        Ok(self.touched.chunks.contains_key(&ino) || seen(&before) != seen(&after))
    }
}

/// All paths above a path but the root's.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(split(path).0), |above| Some(split(above).0)).take_while(|above| !above.is_empty())
}
