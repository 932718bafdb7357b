//! A tree as a host sees it: the pen of a branch, or a snapshot.
//!
//! - here: how an inode is found, and how long it is known.
//! - `names`: looking up, making and removing names; `rename`; `list`: directories.
//! - `changes`: what differs between two trees; `below`: what somebody changed below a branch, as it is told.
//! - `judge`: whether what is found below is what was there; `attrs`: attributes, extended ones too; `content`: reading and seeking; `kept`: what was copied of files below; `same`: those that hold what they held; `pinned`: what a snapshot shows of those that do not; `isolated`: what a branch does; `whole`: files that a host may have read without asking here;
//!   `edit`: all changes of contents; `recent`: what was found out of directories below last.
//!
//! An inode that was never changed has no row: it is the file below, found by the path under which it was looked up, which is
//! kept until the host forgets it.

mod attrs;
mod below;
mod changes;
mod content;
mod edit;
mod isolated;
mod judge;
mod kept;
mod list;
mod names;
mod pinned;
mod recent;
mod rename;
mod same;
mod whole;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex};

pub use attrs::SetXattr;
pub use changes::{Difference, Differences};
pub use whole::Whole;

use crate::engine::{Engine, Held, Pen, Remembered};
use crate::error::{Error, Result};
use crate::lower::{Found, join, split};
use crate::platform;
use crate::rows::key::{self, Epoch, LineId};
use crate::rows::value::{Entry, Inode};
use crate::state::{self, Chain, State};
use crate::types::{Attr, Ino, Kind, ROOT, Time};
use crate::view::isolated::Loose;
use crate::view::recent::Recent;
use crate::{lock, read_lock};

/// A tree that a host shows. All calls can be made from any number of threads at once.
///
/// **Inodes.** [`View::lookup`], [`View::create`] and the like give an inode's number and count that it is known; as many counts
/// are to be given back by [`View::forget`]. A number is good for as long as it is counted; [`ROOT`] always is. A file without a name
/// lives until it is forgotten.
///
/// **Permissions** are for the host to check: here they are kept, not judged.
///
/// **Snapshots** answer every change with [`Error::ReadOnly`].
pub struct View {
    engine: Arc<Engine>,
    line: LineId,
    /// `None`: the branch as it is now.
    at: Option<Epoch>,
    held: Held,
    chain: Chain,
    base: Time,
    pen: Option<Arc<Pen>>,
    /// Whether the base says that branches show what is pinned as it was.
    isolates: bool,
    /// Whether this tree shows what is pinned as it was: snapshots always do.
    keeps: bool,
    /// Whether a power cut may have left what is below older than is written down of it.
    doubts: bool,
    /// Whether it is of a branch, of which it is told what is changed below.
    tells: bool,
    known: Mutex<HashMap<Ino, Known>>,
    /// Where inodes were known before they were found at another name: other links of theirs, or the filesystem below used the number again.
    former: Mutex<Places>,
    /// What was written down behind the base of the directories that were asked for last.
    then: Mutex<Recent<Arc<Remembered>>>,
    /// What of that is not pinned, of those in which something came later.
    loose: Mutex<Recent<Loose>>,
    open: Mutex<VecDeque<(Ino, Arc<File>)>>,
}

/// Directories and names, by the inode that they lead to.
type Places = HashMap<Ino, Vec<(Ino, Vec<u8>)>>;

/// What is kept of an inode that the host knows: about 60 bytes, and its path if it is below.
struct Known {
    count: u64,
    /// The directory in which it was seen last.
    parent: Ino,
    /// Where it is below, if its row does not say.
    path: Option<Box<[u8]>>,
    /// It lost its last name, and goes when it is forgotten.
    orphan: bool,
    /// It never had a name, and may be given one.
    linkable: bool,
    /// It had no row when it lost its last name. Should it get one, that goes when it is forgotten.
    unlinked: bool,
}

/// An inode, and whether it has a row.
struct Node {
    ino: Ino,
    inode: Inode,
    has_row: bool,
}

/// What a name leads to.
struct Named {
    ino: Ino,
    kind: Kind,
    /// Where below, if the name is the lower directory's own.
    path: Option<Vec<u8>>,
    /// What was found there, if nothing of it was ever changed.
    found: Option<Found>,
}

impl Known {
    /// The directory and the name, if that is below.
    fn place(&self) -> Option<(Ino, Vec<u8>)> {
        let path = self.path.as_deref()?;
        Some((self.parent, split(path).1.to_vec()))
    }
}

impl View {
    /// `of`: what of the line is shown, and is held for as long.
    pub(crate) fn new(engine: Arc<Engine>, line: LineId, of: Held) -> Result<Self> {
        // Held first: what is there after that stays.
        engine.hold(line, of)?;
        let at = match of {
            Held::At(epoch) => Some(epoch),
            Held::Pen | Held::Look => None,
        };
        let look = || {
            let pen = if of == Held::Pen { Some(engine.pen(line)?) } else { None };
            let state = read_lock(&engine.state);
            let there = |of: &&state::Line| at.map_or(of.pen, |epoch| of.points.contains_key(&epoch));
            let of = state.lines.get(&line).filter(there).ok_or(Error::NotFound)?;
            Ok((pen, state.chain(line)?, of.base, of.pen))
        };
        let (pen, chain, base, tells) = look().inspect_err(|_| engine.release(line, of))?;
        let isolates = engine.isolates(chain.base).inspect_err(|_| engine.release(line, of))?;
        let doubts = engine.is_doubted(chain.base);
        Ok(Self {
            engine,
            line,
            at,
            held: of,
            chain,
            base,
            pen,
            isolates,
            keeps: at.is_some() || isolates,
            doubts,
            tells,
            known: Mutex::default(),
            former: Mutex::default(),
            then: Mutex::default(),
            loose: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Whether this is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.at.is_some()
    }

    /// Gives back `count` of the counts by which an inode is known. A file without a name goes with the last one.
    pub fn forget(&self, ino: Ino, count: u64) {
        let gone = {
            let mut known = lock(&self.known);
            let Some(entry) = known.get_mut(&ino) else { return };
            entry.count = entry.count.saturating_sub(count);
            if entry.count > 0 {
                return;
            }
            known.remove(&ino)
        };
        lock(&self.open).retain(|(of, _)| *of != ino);
        lock(&self.former).remove(&ino);
        if gone.is_some_and(|known| self.goes(ino, &known)) {
            self.engine.drop_orphan(self.line, &self.chain, ino);
        }
    }

    /// Whether there are rows of an inode that go when it is forgotten.
    fn goes(&self, ino: Ino, known: &Known) -> bool {
        known.orphan || known.unlinked && !matches!(self.seen(&key::inode(ino)), Ok(None))
    }

    fn view(&self) -> state::View<'_> {
        state::View { line: self.line, until: self.at.unwrap_or(Epoch::MAX), chain: &self.chain }
    }

    fn seen(&self, stem: &[u8]) -> Result<Option<Arc<[u8]>>> {
        read_lock(&self.engine.state).seen(stem, self.view())
    }

    /// The pen, or an error for a snapshot.
    fn writable(&self) -> Result<&Pen> {
        self.pen.as_deref().ok_or(Error::ReadOnly)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State, state::View<'_>) -> Result<T>) -> Result<T> {
        self.engine.change(self.line, &self.chain, change)
    }

    /// Counts that the host knows an inode.
    fn know(&self, ino: Ino, parent: Ino, path: Option<&[u8]>) {
        if ino == ROOT {
            return;
        }
        let mut known = lock(&self.known);
        let entry = known.entry(ino).or_insert_with(|| Known {
            count: 0,
            parent,
            path: None,
            orphan: false,
            linkable: false,
            unlinked: false,
        });
        entry.count += 1;
        let former = entry.place().filter(|_| path.is_some_and(|path| entry.path.as_deref() != Some(path)));
        entry.parent = parent;
        if let Some(path) = path {
            entry.path = Some(path.into());
        }
        drop(known);
        if let Some(former) = former {
            let mut all = lock(&self.former);
            let places = all.entry(ino).or_default();
            if !places.contains(&former) {
                places.push(former);
            }
        }
    }

    fn is_known(&self, ino: Ino) -> bool {
        lock(&self.known).contains_key(&ino)
    }

    /// Where an inode without a row is below.
    fn path_of(&self, ino: Ino) -> Result<Vec<u8>> {
        if ino == ROOT {
            return Ok(Vec::new());
        }
        let known = lock(&self.known);
        known.get(&ino).and_then(|known| known.path.as_deref()).map(<[u8]>::to_vec).ok_or(Error::Stale)
    }

    /// Under which name it was found, if it is below and has one still.
    fn place_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        lock(&self.known).get(&ino).filter(|known| !known.unlinked).and_then(Known::place)
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        self.node_at(ino, None)
    }

    /// An inode, by its row or else as it is below.
    fn node_at(&self, ino: Ino, path: Option<&[u8]>) -> Result<Node> {
        if let Some(row) = self.seen(&key::inode(ino))? {
            let inode = Inode::decode(&row)?.ok_or(Error::Stale)?;
            return Ok(Node { ino, inode, has_row: true });
        }
        let path = path.map_or_else(|| self.path_of(ino), |path| Ok(path.to_vec()))?;
        let mut node = self.or_then(self.node_below(ino, &path), || self.node_then(ino, &path))?;
        if lock(&self.known).get(&ino).is_some_and(|known| known.unlinked) {
            node.inode.nlink = 0;
        }
        Ok(node)
    }

    fn node_below(&self, ino: Ino, path: &[u8]) -> Result<Node> {
        let found = self.engine.lower.find(path)?;
        if self.is_isolated()
            && !self.is_unchanged(ino, found.as_ref(), path)?
            && let Some(then) = self.node_then(ino, path)?
        {
            return Ok(then);
        }
        let Some(found) = found else { return Err(self.gone(path, "removed below")) };
        let found = self.as_then(found, path)?;
        self.node_of(ino, &found, path)
    }

    /// An inode without a row, as it was found below.
    fn node_of(&self, ino: Ino, found: &Found, path: &[u8]) -> Result<Node> {
        if ino != ROOT
            && self.engine.number_of(found.device, found.ino, found.btime, ino < crate::engine::LOWER)? != ino
        {
            return Err(self.gone(path, "replaced below"));
        }
        let mut inode = found.inode(path);
        if let Some(then) = self.judge(found, path)? {
            (inode.mode, inode.uid, inode.gid, inode.mtime) = (then.mode, then.uid, then.gid, then.mtime);
            inode.ctime = self.base;
            // Some filesystems count no directories.
            if found.nlink > 1 {
                let directories = then.names.iter().filter(|(_, _, kind)| *kind == Kind::Directory).count();
                inode.nlink = u32::try_from(directories).unwrap_or(u32::MAX).saturating_add(2);
            }
        }
        if found.kind == Kind::Symlink {
            inode.target = self.target_of(found, path)?;
        }
        Ok(Node { ino, inode, has_row: false })
    }

    /// The inode that a name leads to.
    fn node_named(&self, named: &Named) -> Result<Node> {
        match (&named.found, &named.path) {
            (Some(found), Some(path)) => self.node_of(named.ino, found, path),
            (_, path) => self.node_at(named.ino, path.as_deref()),
        }
    }

    /// Takes over the directories above an inode that is about to get a row: what is this tree's own stays at its path, whatever becomes
    /// of them below.
    fn take_over_above(&self, ino: Ino) -> Result<()> {
        let mut above = Vec::new();
        let mut at = ino;
        while self.seen(&key::inode(at))?.is_none() {
            let parent = lock(&self.known).get(&at).map(|known| known.parent);
            // One that the host has forgotten, since it holds the file by another name, cannot be asked for any more, and needs no row.
            if at != ino && parent.is_some() {
                above.push(at);
            }
            match parent {
                Some(parent) if parent != ROOT && parent != 0 && !above.contains(&parent) => at = parent,
                _ => break,
            }
        }
        for directory in above.into_iter().rev() {
            let node = self.node(directory)?;
            self.change(|state, view| match state.seen(&key::inode(directory), view)? {
                Some(_) => Ok(()),
                None => self.put(state, view, &node),
            })?;
        }
        Ok(())
    }

    /// An inode that is about to get a row. What is noted of the file below then must not be older than its last change: a change
    /// within the same tick of the clock would look the same.
    fn node_to_change(&self, ino: Ino, path: Option<&[u8]>) -> Result<Node> {
        self.take_over_above(ino)?;
        for _ in 0..3 {
            let node = self.node_at(ino, path)?;
            let Some(origin) = node.inode.origin.as_ref().filter(|origin| !node.has_row && origin.ctime > self.base)
            else {
                return Ok(node);
            };
            if node.inode.kind != Kind::File {
                return Ok(node);
            }
            platform::settle(origin.ctime);
            let path = origin.path.clone();
            if self.engine.lower.find(&path)?.is_some_and(|found| found.is(origin)) {
                return Ok(node);
            }
        }
        Err(Error::Busy("the file below keeps changing"))
    }

    /// Writes an inode's row. The first one also takes over the name under which it was found, so that it stays at that name
    /// whatever happens below.
    fn put(&self, state: &mut State, view: state::View<'_>, node: &Node) -> Result<()> {
        if node.has_row || node.ino == ROOT {
            return state.write(&key::inode(node.ino), node.inode.encode(), view);
        }
        // Of who is known nothing is changed: that would not be undone with the rows.
        let place = match lock(&self.known).get(&node.ino) {
            Some(known) if known.unlinked => {
                state.layers.put(&key::of_line(b'o', view.line, Some(node.ino)), Vec::new());
                None
            }
            known => known.and_then(Known::place),
        };
        let mut inode = node.inode.clone();
        if let Some((parent, _)) = &place {
            inode.parent = if inode.parent == 0 { *parent } else { inode.parent };
            // Of several names below, it is this one that it keeps.
            let known = lock(&self.known).get(&node.ino).and_then(|known| known.path.clone());
            if let (Some(origin), Some(path)) = (&mut inode.origin, known) {
                origin.path = path.into_vec();
            }
        }
        state.write(&key::inode(node.ino), inode.encode(), view)?;
        self.want_copy(state, view, node);
        if let Some((parent, name)) = place {
            let stem = key::entry(parent, &name);
            if state.seen(&stem, view)?.is_none() {
                state.write(&stem, Entry { ino: node.ino, kind: node.inode.kind, hides: true }.encode(), view)?;
            }
        }
        Ok(())
    }

    /// The directory below that shines through a directory; `None`: none does.
    fn below(&self, directory: Ino) -> Result<Option<Vec<u8>>> {
        match self.seen(&key::inode(directory))? {
            Some(row) => {
                let inode = Inode::decode(&row)?.ok_or(Error::Stale)?;
                if inode.kind != Kind::Directory {
                    return Err(Error::NotDirectory);
                }
                Ok(inode.origin.map(|origin| origin.path))
            }
            None => self.path_of(directory).map(Some),
        }
    }

    /// Opens the directory below that shines through a directory; `None`: none does.
    pub fn open_below(&self, directory: Ino) -> Result<Option<File>> {
        let Some(path) = self.below(directory)? else { return Ok(None) };
        let judged = self.at.map_or(Ok(()), |_| self.judge_directory(directory, &path));
        match judged.and_then(|()| self.engine.lower.open_file(&path)) {
            // What is shown is what was there.
            Err(error) if self.keeps && pinned::is_lost(&error) => Ok(None),
            opened => opened,
        }
    }

    /// What a name leads to that is the lower directory's: none of this tree's own rows says anything of it. `None`: the name is this tree's own. `Some(None)`: nothing is there below,
    /// or a file of which this tree has changed something.
    pub fn shining_through(&self, directory: Ino, name: &[u8]) -> Result<Option<Option<Ino>>> {
        if self.seen(&key::entry(directory, name))?.is_some() {
            return Ok(None);
        }
        let named = self.resolve(directory, name)?;
        Ok(Some(named.filter(|named| named.found.is_some()).map(|named| named.ino)))
    }

    /// The names below under which the host knows something in these directories.
    pub fn known_below(&self, directories: &HashSet<Ino>) -> Vec<(Ino, Vec<u8>)> {
        let known = lock(&self.known);
        let mut names: Vec<_> =
            known.values().filter(|known| directories.contains(&known.parent)).filter_map(Known::place).collect();
        drop(known);
        let former = lock(&self.former);
        names.extend(former.values().flatten().filter(|(directory, _)| directories.contains(directory)).cloned());
        names
    }

    /// Whether the host knows an inode under a name below.
    pub fn is_known_as(&self, ino: Ino, directory: Ino, name: &[u8]) -> bool {
        self.place_of(ino).is_some_and(|(parent, known)| parent == directory && known == name)
    }

    /// What a name leads to; `None`: nothing.
    fn resolve(&self, parent: Ino, name: &[u8]) -> Result<Option<Named>> {
        check_name(name)?;
        if let Some(row) = self.seen(&key::entry(parent, name))? {
            let entry = Entry::decode(&row)?;
            return Ok(entry.map(|Entry { ino, kind, .. }| Named { ino, kind, path: None, found: None }));
        }
        let Some(below) = self.below(parent)? else { return Ok(None) };
        let path = join(&below, name);
        if self.is_isolated()
            && let Some(then) = self.isolated_name(parent, &below, &path)?
        {
            return Ok(then);
        }
        match self.resolve_below(parent, &below, &path) {
            Err(error) if self.at.is_some() && pinned::is_lost(&error) => {
                self.named_then(parent, &below, &path)?.ok_or(error)
            }
            // Another than then is only shown if that is not kept.
            Ok(Some(named)) if self.is_lost(&named, &path)? => {
                Ok(self.named_then(parent, &below, &path)?.unwrap_or(Some(named)))
            }
            answer => answer,
        }
    }

    /// Whether a snapshot has lost what it had where that was found.
    fn is_lost(&self, named: &Named, path: &[u8]) -> Result<bool> {
        let Some(found) = named.found.as_ref().filter(|_| self.at.is_some()) else { return Ok(false) };
        match self.judge(found, path) {
            Ok(_) => Ok(false),
            Err(Error::DataLoss { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn resolve_below(&self, parent: Ino, below: &[u8], path: &[u8]) -> Result<Option<Named>> {
        let name = split(path).1;
        let found = self.engine.lower.find(path)?;
        self.judge_directory(parent, below)?;
        match (self.changed_names(parent, below)?.map(|remembered| remembered.get(name).is_some()), &found) {
            (Some(true), None) => return Err(self.changed(path, "removed below")),
            // It came later.
            (Some(false), Some(_)) => return Ok(None),
            _ => {}
        }
        let Some(found) = found else {
            if self.changed_for_branch(below)?.is_some_and(|then| then.get(name).is_some()) {
                self.note_changed(path);
            }
            return Ok(None);
        };
        let is_changed = self.is_later(&found, path)?;
        let found = self.as_then(found, path)?;
        let ino = self.number_of(&found, path)?;
        let row = self.seen(&key::inode(ino))?;
        if let Some(Inode { origin: Some(origin), .. }) = row.as_deref().map(Inode::decode).transpose()?.flatten()
            && is_changed
            && !self.had_both_names(&found, path, &origin.path)?
        {
            return Err(self.changed(path, "moved or given another name below"));
        }
        let kind = found.kind;
        Ok(Some(Named { ino, kind, path: Some(path.to_vec()), found: Some(found).filter(|_| row.is_none()) }))
    }

    /// The number of what is found below at a path, by a name that this tree has no row of.
    fn number_of(&self, found: &Found, path: &[u8]) -> Result<Ino> {
        // It may have the number of one that is shown still.
        let came = self.is_isolated() && self.came_later(found, path)?;
        let ino = self.engine.number_of(found.device, found.ino, found.btime, came)?;
        let row = self.seen(&key::inode(ino))?;
        let reused = match row.as_deref().map(Inode::decode).transpose()? {
            // One that lost its last name here cannot have another.
            Some(None) => true,
            // What is taken over stays where it was, and is not found again where the one below was moved to.
            Some(Some(Inode { origin: Some(origin), .. })) => {
                // A file may have had other names that went since: in a snapshot always, else as far as that was written down.
                let is_moved = origin.path != path
                    && (found.kind == Kind::Directory
                        || found.nlink == 1 && self.at.is_none() && !self.had_name(found, path)?);
                origin.btime != found.btime || is_moved
            }
            _ => false,
        };
        // The filesystem below used the number again for another file.
        if reused { self.engine.number_of(found.device, found.ino, found.btime, true) } else { Ok(ino) }
    }

    fn attr(&self, node: &Node) -> Attr {
        node.inode.attr(node.ino)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let known = std::mem::take(&mut *lock(&self.known));
        for (ino, _) in known.into_iter().filter(|(ino, known)| self.goes(*ino, known)) {
            self.engine.drop_orphan(self.line, &self.chain, ino);
        }
        self.engine.release(self.line, self.held);
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid("not a name")),
        _ if name.len() > 255 => Err(Error::NameTooLong),
        _ if name.iter().any(|&byte| byte == 0 || byte == b'/') => Err(Error::Invalid("not a name")),
        _ => Ok(()),
    }
}
