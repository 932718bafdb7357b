//! The tree of a home, opened: by the directory that was branched, which may have been moved, or be gone.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ah_agentfs::{BranchId, BranchInfo, Options, SnapshotId as Number, SnapshotInfo, View as Tree, Workspace};
use ah_plugin_api::{Context, Dir, Error, ErrorKind, Reference, Result, SnapshotId, text};
use ah_provider_directory::{KeptMounts, failed};

use super::behind::Behind;
use super::convert::{converted, shelf_of_converted};
use super::mounted::Mounted;
use super::record::{PlaceLabel, SnapshotLabel};
use super::settle::{told, unsettled};
use super::standing::names_in;
use super::{Service, entered, fail, lock, lower, no_snapshot};
use crate::conversion::is_for_copy;
use crate::home::{self, Shelf, TREE};
use crate::lost;

/// Its tree.
pub(super) struct Open {
    pub(super) tree: Workspace,
    /// Whether the directory that was branched is not where it was: of that there is what was kept.
    pub(super) apart: bool,
    /// The directory that was branched, as it is written down.
    pub(super) lower: Mutex<Option<PathBuf>>,
    pub(super) known: Mutex<HashMap<(String, SnapshotId), Known>>,
    pub(super) mounted: Mutex<Mounted>,
    /// Held shared by who makes a branch or a view, until it is made or undone: what a caller who was killed meanwhile never heard of can be looked for by who
    /// has it alone.
    pub(super) making: RwLock<()>,
    /// The same for snapshots.
    pub(super) taking: RwLock<()>,
    pub(super) behind: Behind,
    /// Snapshots that a power cut may take.
    pub(super) volatile: Mutex<BTreeSet<Number>>,
}

/// A snapshot as the service knows it.
#[derive(Clone)]
pub(super) struct Known {
    /// None while it is being taken.
    pub(super) number: Option<Number>,
    pub(super) label: SnapshotLabel,
}

impl Open {
    pub(super) fn find(&self, shelf: &Shelf, reference: &Reference) -> Result<(Number, SnapshotLabel)> {
        let id = SnapshotId::new(reference.as_str()).map_err(|_| no_snapshot(reference))?;
        let known = lock(&self.known).get(&(shelf.key.clone(), id)).cloned();
        match known {
            Some(Known { number: Some(number), label }) => Ok((number, label)),
            _ => Err(no_snapshot(reference)),
        }
    }

    pub(super) fn view(&self, shelf: &Shelf, reference: &Reference) -> Result<Tree> {
        self.find(shelf, reference).and_then(|(number, _)| self.view_of(number))
    }

    pub(super) fn view_of(&self, number: Number) -> Result<Tree> {
        self.tree.view_of(number).map_err(|e| fail("cannot open the snapshot", &e))
    }

    /// Whether the snapshot is there that a view shows, and not another that has its number.
    pub(super) fn has(&self, view: &PlaceLabel, number: Number) -> bool {
        let shown = |known: &Known| known.number == Some(number) && view.is_of(number, &known.label);
        lock(&self.known).values().any(shown)
    }

    /// The snapshots of a shelf, by their ids, the oldest first.
    pub(super) fn ids(&self, shelf: &Shelf) -> Vec<String> {
        let known = lock(&self.known);
        let mut its: Vec<_> = known.iter().filter(|((key, id), _)| *key == shelf.key && !is_for_copy(id)).collect();
        its.sort_by_key(|(_, known)| known.number);
        its.into_iter().map(|((_, id), _)| id.to_string()).collect()
    }

    /// A store's shelf. That of a workspace which lies behind is known to the tree, too: older programs wrote no checksum.
    pub(super) fn shelf(&self, shelf: Shelf) -> Shelf {
        match shelf_of_converted(self.tree.branches()).filter(|_| shelf.home.is_none()) {
            Some(key) => Shelf { key, ..shelf },
            None => shelf,
        }
    }

    /// Whether it holds anything of a shelf, which is the right one then.
    pub(super) fn bears(&self, shelf: &Shelf) -> bool {
        shelves(&self.tree.branches(), &self.tree.snapshots()).contains(&shelf.key)
    }

    /// Whether it may as well be another directory's.
    pub(super) fn holds_nothing(&self) -> bool {
        lock(&self.mounted).is_empty() && self.tree.branches().is_empty() && self.tree.snapshots().is_empty()
    }

    pub(super) fn is_durable(&self, number: Number) -> bool {
        !lock(&self.volatile).contains(&number)
    }

    /// Takes everything to the disk, and what that snapshot reads below: it survives a power cut then, and so do all that had been taken before and read nothing else there.
    pub(super) fn sync(&self, number: Number) -> Result<()> {
        let before = lock(&self.volatile).clone();
        self.tree.persist_with_below(number).map_err(|e| {
            let error = fail("cannot put the snapshot on disk", &e);
            // Nobody may hear of this one: it is told by the next that is to be durable at once.
            let is_told = !matches!(e, ah_agentfs::Error::LostBelow);
            if is_told { error } else { error.with_hint("`ah -C . agent fs snapshot` in the branch says what to do") }
        })?;
        lock(&self.volatile).retain(|number| !(before.contains(number) && self.tree.below_is_on_disk(*number)));
        Ok(())
    }

    /// Takes a snapshot to the disk, without what it reads below: that of a branch's is there already, and for a base's who makes a branch does not wait: it comes behind it.
    pub(super) fn sync_alone(&self, number: Number) -> Result<()> {
        self.tree.persist().map_err(|e| fail("cannot put the snapshot on disk", &e))?;
        lock(&self.volatile).remove(&number);
        Ok(())
    }

    /// Takes what is below to the disk, as it was when the branch's base was taken.
    pub(super) fn take_below_to_disk(&self, branch: BranchId) -> Result<()> {
        self.tree.take_below_to_disk(branch).map_err(|e| fail("cannot put what is below on disk", &e))
    }
}

/// The keys of all shelves of which a tree holds something.
pub(super) fn shelves(branches: &[BranchInfo], snapshots: &[SnapshotInfo]) -> BTreeSet<String> {
    let snapshots = snapshots.iter().filter_map(|info| Some(SnapshotLabel::decode(&info.label)?.shelf));
    let branches = branches.iter().filter_map(|info| Some(PlaceLabel::decode(&info.label).ok()?.shelf));
    snapshots.chain(branches).collect()
}

/// Whether that is why a tree is not open.
fn is_opened_anew(closed: &Error) -> bool {
    closed.kind == ErrorKind::Unavailable
}

impl Service {
    /// Opens a home, and mounts what was mounted.
    ///
    /// # Errors
    /// Those of its tree: `Busy` if another process has it open, `DataLoss`. One that cannot be opened now (the directory that was branched is not where it was,
    /// the tree is of a newer version) is none: whoever needs it is told.
    pub fn open(home: Dir) -> Result<Self> {
        let path = home::path_of(&home)?;
        let service = Self {
            home,
            path,
            open: RwLock::new(None),
            closed: Mutex::new(None),
            opening: Mutex::new(()),
            mounts: KeptMounts::default(),
            untold: Mutex::default(),
            unsettled: AtomicBool::default(),
        };
        if let Some(original) = service.original() {
            let (home, original) = (service.path.display(), original.display());
            eprintln!("ah-agentfsd: nothing is mounted again: {home} is a copy of {original}");
        }
        // Nothing of this home is mounted yet. What stands beneath is seen by who says what is to be done.
        let views = if service.original().is_none() { service.places_of_views() } else { BTreeSet::new() };
        let stays = service.clear_strays(&Mounted::default(), &views);
        service.sweep();
        service.settle_first();
        let opened = service.open_if_it_can_be(&Context::quiet());
        if stays && service.current().is_none() {
            service.clear_strays(&Mounted::default(), &BTreeSet::new());
        }
        opened?;
        Ok(service)
    }

    /// Opens the tree of a home that has one and is not open: what is in the way of that may be gone by now. What is still, is noted.
    pub(super) fn open_if_it_can_be(&self, cx: &Context<'_>) -> Result<()> {
        let _opening = self.opens(cx)?;
        if self.current().is_none() && home::tree_gone(&self.home).is_some() {
            // That is what is said then.
            *lock(&self.closed) = None;
            return Ok(());
        }
        let Some(lower) = self.lower()?.or_else(|| self.lower_by_tree()) else {
            // Killed before it was written, or lost: who comes from that directory has it written.
            if self.current().is_none() {
                *lock(&self.closed) = self.path.join(TREE).exists().then(|| lower::lost(&self.home));
            }
            return Ok(());
        };
        match self.current() {
            // What lies behind a workspace is where it was again: it is not served without that any longer.
            Some(open) if self.is_back(&open, &lower) && self.lies_behind(&open)? => self.close(),
            Some(_) => return Ok(()),
            None => {}
        }
        let opened = match self.open_tree(&lower, false) {
            Err(error) if self.has_left(&lower) => {
                eprintln!("ah-agentfsd: {}; what was kept of it is shown", told(&error));
                self.open_tree(&lower, true)
            }
            opened => opened,
        };
        match opened {
            Ok(open) => {
                if !open.apart && lower::read(&self.home)?.as_ref() != Some(&lower) {
                    // On a disk that is full, the next one does.
                    let _ = lower::write(&self.home, &lower);
                }
                Ok(())
            }
            // What is lost of it is told to who needs it.
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::NotFound | ErrorKind::FailedPrecondition | ErrorKind::InvalidArgument
                ) =>
            {
                eprintln!("ah-agentfsd: {}", told(&error));
                *lock(&self.closed) = Some(error);
                Ok(())
            }
            Err(error) => {
                self.stays_closed(&error);
                Err(error)
            }
        }
    }

    /// Notes why a tree cannot be opened anew after it was closed for that.
    fn stays_closed(&self, error: &Error) {
        let mut closed = lock(&self.closed);
        if closed.as_ref().is_some_and(is_opened_anew) {
            *closed = Some(error.clone());
        }
    }

    /// The home that this one is a copy of, if that is there.
    pub(super) fn original(&self) -> Option<PathBuf> {
        home::original(&self.home, &self.path)
    }

    pub(super) fn current(&self) -> Option<Arc<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes everything that is mounted away, and what was changed to the disk. Whoever needs it waits until it is opened anew, or is told to repeat.
    pub(super) fn close(&self) {
        let closed = Error::new(ErrorKind::Unavailable, "the AgentFS tree is being opened anew").with_hint("repeat");
        *lock(&self.closed) = Some(closed);
        if let Some(open) = self.open.write().unwrap_or_else(PoisonError::into_inner).take() {
            // In this order: what is written until it is cut off, was answered.
            lock(&open.mounted).end();
            if let Err(error) = open.tree.sync() {
                eprintln!("ah-agentfsd: what was written last may not be on the disk: {error}");
            }
        }
    }

    /// Whether the directory that was branched is gone, or another is in its place.
    fn has_left(&self, lower: &Path) -> bool {
        lower::has_left(&self.path.join(TREE), lower)
    }

    /// Where the one that is written down was, if that is so.
    pub(super) fn lost_behind(&self) -> Result<Option<PathBuf>> {
        Ok(self.lower()?.filter(|lower| self.has_left(lower)))
    }

    /// Whether a directory is the one that was branched, which was not found where it was.
    pub(super) fn is_back(&self, open: &Open, path: &Path) -> bool {
        open.apart && matches!(Workspace::may_be_of(&self.path.join(TREE), path), Ok(true))
    }

    /// `apart`: without the directory that was branched.
    fn open_tree(&self, lower: &Path, apart: bool) -> Result<Arc<Open>> {
        let cannot = |e: &ah_agentfs::Error| {
            let error = fail(format!("cannot open the AgentFS tree of {}", lower.display()), e);
            match e.is_damage() {
                true => {
                    let home = text::shell(self.path.as_os_str());
                    let aside = lost::put_aside(&self.home).map_or_else(String::new, |aside| format!("; {aside}"));
                    error.with_hint(format!(
                        "what is damaged, and whether it can be mended, says `ah-agentfsd --fsck {home}`{aside}"
                    ))
                }
                false => error,
            }
        };
        let options = Options { without_lower: apart, ..Options::default() };
        let tree = Workspace::open(&self.path.join(TREE), lower, options).map_err(|e| cannot(&e))?;
        // What a killed service had promised, and a power cut not yet taken.
        tree.sync().map_err(|e| cannot(&e))?;
        let mut known = HashMap::new();
        for info in tree.snapshots() {
            if let Some(label) = SnapshotLabel::decode(&info.label) {
                let key = (label.shelf.clone(), label.id.clone());
                known.insert(key, Known { number: Some(info.id), label });
            }
        }
        let written = self.lower()?;
        let path = self.path.clone();
        let open = Arc::new_cyclic(|open| Open {
            tree,
            apart,
            lower: Mutex::new(written),
            known: Mutex::new(known),
            mounted: Mutex::default(),
            making: RwLock::default(),
            taking: RwLock::default(),
            volatile: Mutex::default(),
            behind: Behind::new(path, open.clone()),
        });
        if let Err(error) = self.settle_with(&open) {
            let said = unsettled(&error);
            eprintln!("ah-agentfsd: {said}");
            lock(&self.untold).push(said);
        }
        self.mount_again(&open);
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&open));
        *lock(&self.closed) = None;
        if let Some(lost) = self.lost_branch() {
            eprintln!("ah-agentfsd: {}", lost.told());
        }
        Ok(open)
    }

    /// Where the directory is that was branched.
    pub(super) fn lower(&self) -> Result<Option<PathBuf>> {
        lower::find(&self.home, &self.path.join(TREE))
    }

    /// The tree, of a store whose shelf is here.
    ///
    /// # Errors
    /// `NotFound` where nothing was ever kept, and only there.
    pub(super) fn need(&self, store: &Dir, cx: &Context<'_>) -> Result<(Arc<Open>, Shelf)> {
        self.kept(store, cx)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "this store of AgentFS holds nothing"))
    }

    /// The same; none where nothing was ever kept.
    pub(super) fn kept(&self, store: &Dir, cx: &Context<'_>) -> Result<Option<(Arc<Open>, Shelf)>> {
        let Some(shelf) = Shelf::of(store)? else { return Ok(None) };
        let home = shelf.home.clone().map_or_else(|| home::path_of(store), Ok)?;
        if home != self.path {
            return Err(home::moved(&home, &self.path));
        }
        if let Some(open) = self.current() {
            let shelf = open.shelf(shelf);
            return Ok(Some((open, shelf)));
        }
        if lock(&self.closed).as_ref().is_some_and(is_opened_anew) {
            drop(self.opens(cx)?);
        }
        let closed = lock(&self.closed).clone();
        // It may have been opened since it was looked at first.
        match (self.current(), closed) {
            (Some(open), _) => {
                let shelf = open.shelf(shelf);
                Ok(Some((open, shelf)))
            }
            (None, None) => home::tree_gone(&self.home).map_or(Ok(None), Err),
            (None, Some(closed)) => Err(self.away(closed)),
        }
    }

    /// What is said to who needs a tree that is not open. What they ask for is not known to be gone, whatever is.
    fn away(&self, closed: Error) -> Error {
        let kind = if closed.kind == ErrorKind::NotFound { ErrorKind::DataLoss } else { closed.kind };
        match closed.hint {
            Some(_) => Error { kind, ..closed },
            None => Error { kind, ..closed }.with_hint(format!("{} says more", self.path.join("log").display())),
        }
    }

    /// The tree for a snapshot of a plain directory: made if there never was one, and found again if the directory was moved.
    pub(super) fn for_lower(&self, workspace: &Dir, cx: &Context<'_>) -> Result<Arc<Open>> {
        let stat = rustix::fs::fstat(workspace).map_err(|errno| failed("cannot look at the workspace", errno))?;
        let path = home::path_of(workspace)?;
        let _opening = self.opens(cx)?;
        let is_its = |open: &Open| open.tree.is_lower(stat.st_dev, stat.st_ino);
        if self.current().is_some_and(|open| !is_its(&open) && (open.holds_nothing() || self.is_back(&open, &path))) {
            self.close();
        }
        let open = match self.current() {
            Some(open) => open,
            None => self.made_for(&path).inspect_err(|error| self.stays_closed(error))?,
        };
        if !is_its(&open) {
            return Err(lower::other_lower(&path));
        }
        self.write_lower(&open, path)?;
        Ok(open)
    }

    /// Waits for who opens it at this moment. Nobody else does then.
    pub(super) fn opens(&self, cx: &Context<'_>) -> Result<MutexGuard<'_, ()>> {
        entered(cx, || self.opening.try_lock())
    }

    /// The tree of a directory, which is not open: made if there never was one.
    fn made_for(&self, lower: &Path) -> Result<Arc<Open>> {
        if let Some(gone) = home::tree_gone(&self.home) {
            return Err(gone);
        }
        match Workspace::create(&self.path.join(TREE), lower) {
            Ok(()) | Err(ah_agentfs::Error::Exists) => {}
            Err(error) => return Err(fail(format!("cannot make an AgentFS tree of {}", lower.display()), &error)),
        }
        match self.open_tree(lower, false) {
            Err(error) if error.kind == ErrorKind::FailedPrecondition && self.begin_anew(lower)? => {
                self.open_tree(lower, false)
            }
            opened => opened,
        }
    }

    /// Writes down where the directory is that was branched.
    pub(super) fn write_lower(&self, open: &Open, path: PathBuf) -> Result<()> {
        let mut lower = lock(&open.lower);
        if lower.as_ref() != Some(&path) {
            lower::write(&self.home, &path)?;
            *lower = Some(path);
        }
        Ok(())
    }

    /// Why no branch can grow from a plain directory; none if one can, as far as is known here.
    pub(super) fn refuses(&self, workspace: &Dir, cx: &Context<'_>) -> Result<Option<Error>> {
        let stat = rustix::fs::fstat(workspace).map_err(|errno| failed("cannot look at the workspace", errno))?;
        let path = home::path_of(workspace)?;
        let _opening = self.opens(cx)?;
        let other = match self.current() {
            None if home::tree_gone(&self.home).is_some() => return Ok(home::tree_gone(&self.home)),
            Some(open) => {
                !open.tree.is_lower(stat.st_dev, stat.st_ino) && !open.holds_nothing() && !self.is_back(&open, &path)
            }
            None if !matches!(Workspace::may_be_of(&self.path.join(TREE), &path), Ok(false)) => false,
            None => {
                let tree = self.closed_tree()?;
                !tree.branches().is_empty() || !tree.snapshots().is_empty()
            }
        };
        if !other {
            return Ok(None);
        }
        let open = self.current();
        if open.as_ref().is_some_and(|open| converted(&open.tree).is_some()) {
            return Ok(Some(match self.lost_behind()? {
                Some(behind) => lower::in_place_of_what_is_lost(&path, &behind),
                None => lower::in_its_place(&path),
            }));
        }
        let behind = open.is_some_and(|open| self.lies_behind(&open).unwrap_or(false));
        Ok(Some(if behind { lower::was_behind(&path) } else { lower::other_lower(&path) }))
    }

    /// The tree, as if the directory that was branched were empty.
    pub(super) fn closed_tree(&self) -> Result<Workspace> {
        let options = Options { without_lower: true, background: false, ..Options::default() };
        Workspace::open(&self.path.join(TREE), &self.path, options)
            .map_err(|e| fail("cannot open the AgentFS tree", &e))
    }

    /// Has the tree, which is not open, grow from another directory than it was made for, if neither a branch nor a snapshot is in it. Gives whether.
    fn begin_anew(&self, lower: &Path) -> Result<bool> {
        let tree = self.closed_tree()?;
        if !tree.branches().is_empty() || !tree.snapshots().is_empty() {
            return Ok(false);
        }
        // None of them can be mounted any more, and none is.
        for view in names_in(&self.views()?)? {
            self.forget_view(&view)?;
        }
        tree.begin_anew(lower).map_err(|e| fail(format!("cannot make an AgentFS tree of {}", lower.display()), &e))?;
        Ok(true)
    }

    /// The branches, as references.
    pub(super) fn references(&self, tree: &Workspace) -> Result<Vec<Reference>> {
        let mark = |branch: &BranchInfo| PlaceLabel::decode(&branch.label).ok().and_then(|label| label.mark);
        tree.branches().iter().map(|branch| self.reference(branch.id, mark(branch).as_deref())).collect()
    }

    pub(super) fn reference(&self, branch: BranchId, mark: Option<&str>) -> Result<Reference> {
        Reference::new(self.shown(Some(branch)).reference(mark))
    }
}

#[cfg(test)]
mod tests;
