//! The service of one home: its tree open, its branches and views mounted, the contract answered.
//!
//! - [`Service`] implements the contract; `listen` is its socket, and when it ends.
//! - `opened` opens the tree and finds snapshots in it, `lower` the directory that was branched; `standing` is what should be mounted, `mounted` what is, `stand_in` what is
//!   in a branch's place while it is not.
//! - `behind` does what nobody waits for: it takes a new branch to the disk, and makes the mount of the next one.
//! - `convert` puts a workspace itself behind AgentFS, and back; `settle` finishes or undoes what was cut short of that.
//! - `git` gives a new branch its own copies of what Git changes in place.
//! - `diff` asks the tree what changed; `below` tells what somebody changed in the directory that was branched.
//! - `fsck` checks the tree of a home that is not served.
//! - `passthrough` says whether large files are passed through in what is mounted.
//! - `mourner` is a process that sees to it that a killed service comes to its end.
//! - `order` finishes or undoes what killed callers left, and gives space back.
//! - `record` is what travels with snapshots and branches, `tree` reads snapshots by paths, `usage` says what they hold.
//!
//! **After a kill**, or the machine's: what is in the tree says which branches there are and where; files in `views` say it of views. They are
//! mounted again when the service starts, before it answers anybody.

mod behind;
mod below;
mod convert;
mod diff;
mod fsck;
mod git;
mod listen;
mod lower;
mod mounted;
mod mourner;
mod opened;
mod order;
mod passthrough;
mod record;
mod settle;
mod stand_in;
mod standing;
mod tree;
mod usage;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};
use std::time::Duration;

use ah_agentfs::{Class, SnapshotId as Number};
use ah_plugin_api::{
    Changes, CloneRequest, Context, ConvertRequest, Converted, Description, DestroyRequest, DiffRequest, Dir, Done,
    Durability, Entry, Error, ErrorKind, ListRequest, LogLevel, LookupRequest, Mode, MountRequest, Place, Probe,
    ProbeRequest, Provider, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, Result, Snapshot,
    SnapshotRef, SnapshotRequest, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};
use ah_provider_directory::KeptMounts;

use crate::conversion::is_for_copy;
use crate::home::{self, Shelf, Shown};
use mounted::{What, make_folder, remove_folder};
use opened::{Known, Open};
use record::{PlaceLabel, SnapshotLabel};
use standing::Grown;

pub use fsck::fsck;
pub use listen::{run, start};
pub use mourner::mourn;
pub use passthrough::passthrough;
pub(crate) use stand_in::{clear_place, stands_in};

/// So often it is tried to remove a snapshot that is read at that moment.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
const TICK: Duration = Duration::from_millis(1);

/// A home that is served.
pub struct Service {
    home: Dir,
    path: PathBuf,
    /// None until the first snapshot.
    open: RwLock<Option<Arc<Open>>>,
    /// Why it is not open, if it should be: the directory that was branched is not where it was, say.
    closed: Mutex<Option<Error>>,
    /// Held by who opens it: that can be done once at a time.
    opening: Mutex<()>,
    mounts: KeptMounts,
    /// What was found and done when nobody could be told: the next caller is.
    untold: Mutex<Vec<String>>,
    /// Whether a conversion was cut short that could not be settled yet.
    unsettled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nobody is in it.
fn alone<'a>(busy: &'a RwLock<()>, cx: &Context<'_>) -> Result<RwLockWriteGuard<'a, ()>> {
    entered(cx, || busy.try_write())
}

/// Is one of those in it, once nobody is alone in it any more.
fn beside<'a>(busy: &'a RwLock<()>, cx: &Context<'_>) -> Result<RwLockReadGuard<'a, ()>> {
    entered(cx, || busy.try_read())
}

/// Tries to enter until it can be done, or the caller stops.
fn entered<G>(cx: &Context<'_>, attempt: impl Fn() -> TryLockResult<G>) -> Result<G> {
    loop {
        match attempt() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(guard)) => return Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        cx.check_cancelled()?;
        std::thread::sleep(TICK);
    }
}

/// Waits until those who take a snapshot now are done, however many come after them.
fn after_all(open: &Arc<Open>, cx: &Context<'_>) -> Result<()> {
    if !matches!(open.taking.try_write(), Err(TryLockError::WouldBlock)) {
        return Ok(());
    }
    // Who waits so lets nobody in before, and cannot be called back: it is left to itself where the caller stops.
    let waits = Arc::clone(open);
    let Ok(waiter) = std::thread::Builder::new().spawn(move || drop(waits.taking.write())) else {
        return alone(&open.taking, cx).map(drop);
    };
    while !waiter.is_finished() {
        cx.check_cancelled()?;
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// The tree's error in the contract's words.
fn fail(message: impl Into<String>, error: &ah_agentfs::Error) -> Error {
    use ah_agentfs::Error as Tree;
    let kind = match error {
        Tree::NotFound | Tree::NoAttribute | Tree::Stale => ErrorKind::NotFound,
        Tree::Exists => ErrorKind::AlreadyExists,
        Tree::NoSpace => ErrorKind::ResourceExhausted,
        Tree::DataLoss { .. } | Tree::LostBelow | Tree::Corrupt(_) => ErrorKind::DataLoss,
        Tree::Busy(_) => ErrorKind::Busy,
        Tree::ReadOnly | Tree::NewerFormat { .. } | Tree::OtherLower => ErrorKind::FailedPrecondition,
        Tree::NotPermitted => ErrorKind::PermissionDenied,
        Tree::Unsupported => ErrorKind::Unsupported,
        Tree::Io { source, .. } | Tree::Below { source, .. } => ErrorKind::of_io(source),
        _ => ErrorKind::InvalidArgument,
    };
    let mut failed = Error::new(kind, message).with_cause(error);
    if let Tree::Io { source, .. } | Tree::Below { source, .. } = error {
        failed.errno = source.raw_os_error();
    }
    match error {
        Tree::DataLoss { .. } => failed.with_hint(
            "it was changed or removed in the directory that was branched; what it was, a snapshot of that directory may have: `ah -C . agent fs versions PATH` there",
        ),
        Tree::LostBelow => failed.with_hint(
            "what it was is not known (`dmesg` may say); a branch that is made now can have durable snapshots, and this one once its service, `ah-agentfsd`, was ended (SIGTERM) and the next command has started it again",
        ),
        _ => failed,
    }
}

fn no_snapshot(reference: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}"))
}

impl Service {
    /// Whether nothing is mounted, nor being mounted: who mounts may wait for somebody else's filesystem, and the caller does not.
    fn is_idle(&self) -> bool {
        self.current().is_none_or(|open| {
            let mut mounted = match open.mounted.try_lock() {
                Ok(mounted) => mounted,
                Err(TryLockError::Poisoned(mounted)) => mounted.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            mounted.look();
            mounted.is_empty()
        })
    }

    /// Whether the home is still there, at the path by which it is known, with its tree.
    fn is_there(&self) -> bool {
        let there = rustix::fs::fstat(&self.home).is_ok_and(|stat| stat.st_nlink > 0)
            && (self.current().is_none() || home::tree_gone(&self.home).is_none());
        there && home::path_of(&self.home).is_ok_and(|path| path == self.path)
    }
}

impl Provider for Service {
    fn describe(&self) -> Description {
        crate::provider::description()
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        let workspace = place.need_workspace()?;
        let mut probe = crate::probe::probe(workspace, place.store, request)?;
        if probe.usable
            && !probe.modes.contains(&Mode::InPlace)
            && let Some(Error { message, hint, .. }) = self.refuses(workspace, cx)?
        {
            return Ok(crate::probe::unusable(&message, hint));
        }
        if request.thorough
            && let Some(open) = self.current()
        {
            let branch = lock(&open.mounted).branch_at(&self.path, workspace)?;
            let is_behind = branch.is_some_and(|branch| convert::is_converted(&open.tree, branch));
            if branch.is_some() {
                // The home is the store of the one, and was asked with for the other.
                probe.reason = if is_behind { crate::probe::BEHIND } else { crate::probe::BRANCH }.to_owned();
            }
            if branch.is_some() && open.apart {
                probe.reason.push_str(&below::gone(lock(&open.lower).as_deref(), is_behind, &self.path));
            } else if branch.is_some_and(|branch| open.tree.is_keeping(branch)) {
                probe.reason.push_str("; what it shows of the workspace is still being kept for it: let that rest");
            }
            if is_behind && self.was_cut_short(&open)? {
                probe.reason.push_str(settle::UNDONE_LATER);
            }
            // Without what is below, all of that is other.
            let lower = lock(&open.lower).clone();
            let changed = branch
                .filter(|_| !open.apart)
                .and_then(|branch| below::changed(open.tree.changed_below(branch).ok()?, lower.as_deref()));
            let changed_paths = changed.as_ref().map_or(&[][..], |changed| &changed.paths);
            let not_kept = branch.filter(|_| !open.apart).and_then(|branch| open.tree.not_kept(branch).ok());
            let not_kept = below::not_kept(not_kept.unwrap_or_default(), changed_paths);
            let said = changed.as_ref().map(|changed| below::sentence(changed, is_behind));
            for said in [not_kept, said].into_iter().flatten() {
                probe.reason = format!("{}; {said}", probe.reason);
            }
        }
        Ok(probe)
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        cx.check_cancelled()?;
        let workspace = place.need_workspace()?;
        let shelf =
            Shelf::of(place.store)?.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "a store without a shelf"))?;
        let here = match self.current() {
            Some(open) => {
                lock(&open.mounted).branch_at(&self.path, workspace)?.map(|branch| (Arc::clone(&open), branch))
            }
            None => None,
        };
        let (shelf, open, branch) = match here {
            // The workspace that lies behind has its snapshots in the home itself.
            Some((open, branch)) if shelf.home.is_none() && convert::is_converted(&open.tree, branch) => {
                (open.shelf(shelf), open, Some(branch))
            }
            Some((open, branch)) => (shelf.fits(Some(&self.path))?, open, Some(branch)),
            None if Shown::around(workspace)?.is_none() => (shelf.fits(None)?, self.for_lower(workspace, cx)?, None),
            None => {
                let none = "only a branch as a whole is captured, and this is none of this home's";
                let closed = lock(&self.closed).clone();
                return Err(closed.unwrap_or_else(|| Error::new(ErrorKind::FailedPrecondition, none)));
            }
        };
        if open.apart && branch.is_some_and(|branch| convert::is_converted(&open.tree, branch)) {
            let lacks = below::gone(lock(&open.lower).as_deref(), true, &self.path);
            cx.log(LogLevel::Warn, &format!("the snapshot is of what the workspace shows now{lacks}"));
        }
        let durable = request.durability != Durability::Instant;
        if let Some(branch) = branch.filter(|_| durable) {
            // As long as that takes, nobody waits for this snapshot: it is not begun yet.
            open.take_below_to_disk(branch)?;
        }
        let _taking = beside(&open.taking, cx)?;
        // The caller may be gone by now.
        cx.check_cancelled()?;
        let label = SnapshotLabel::new(&shelf.key, request, workspace, self.mounts.below(workspace));
        let bytes = label.encode()?;
        let key = (shelf.key, request.id.clone());
        {
            let mut known = lock(&open.known);
            if known.contains_key(&key) {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!("there is a snapshot {} already", request.id),
                ));
            }
            known.insert(key.clone(), Known { number: None, label: label.clone() });
        }
        let cannot = |e: &ah_agentfs::Error| fail("cannot take a snapshot", e);
        let taken = match branch {
            Some(branch) => open.tree.snapshot(branch, &bytes, Class::Instant).map_err(|e| cannot(&e)),
            None => open.tree.base(&bytes).map_err(|e| cannot(&e)),
        };
        let kept = taken.and_then(|number| {
            lock(&open.volatile).insert(number);
            let on_disk = if durable { open.sync_alone(number) } else { Ok(()) };
            on_disk.inspect_err(|_| drop(open.tree.delete_snapshot(number))).map(|()| number)
        });
        let mut known = lock(&open.known);
        match kept {
            Ok(number) => {
                known.insert(key, Known { number: Some(number), label: label.clone() });
                drop(known);
                if branch.is_none() {
                    // A branch is what that is taken for.
                    open.behind.begin(None);
                }
                let mut snapshot = label.snapshot(open.is_durable(number), true)?;
                let lower = lock(&open.lower).clone();
                snapshot.changed_below = branch.and_then(|branch| {
                    below::changed(open.tree.newly_changed_below(branch, number).ok()?, lower.as_deref())
                });
                Ok(snapshot)
            }
            Err(error) => {
                known.remove(&key);
                Err(error)
            }
        }
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        let (open, shelf) = self.need(place.store, cx)?;
        let (number, _) = open.find(&shelf, &request.snapshot)?;
        if !open.is_durable(number) || !open.tree.below_is_on_disk(number) {
            open.sync(number)?;
        }
        Ok(Done {})
    }

    fn list(&self, place: &Place<'_>, _request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let Some((open, shelf)) = self.kept(place.store, cx)? else { return Ok(Vec::new()) };
        // What a killed caller had begun is there or not by then.
        after_all(&open, cx)?;
        // What a copy is compared with is nobody's.
        let is_somebodys = |(_, label): &(Number, SnapshotLabel)| !is_for_copy(&label.id);
        let known = lock(&open.known);
        let mine = known.iter().filter(|((key, _), _)| *key == shelf.key);
        let mut found: Vec<(Number, SnapshotLabel)> =
            mine.filter_map(|(_, known)| Some((known.number?, known.label.clone()))).filter(is_somebodys).collect();
        drop(known);
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(number, label)| label.snapshot(open.is_durable(number), false)).collect()
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        let (open, shelf) = self.need(place.store, cx)?;
        let (number, label) = open.find(&shelf, &request.snapshot)?;
        label.snapshot(open.is_durable(number), true)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        let Some((open, shelf)) = self.kept(place.store, cx)? else { return Ok(Done {}) };
        match request {
            DestroyRequest::Snapshot(reference) => {
                let (number, label) = match open.find(&shelf, reference) {
                    Err(error) if error.kind == ErrorKind::NotFound => return Ok(Done {}),
                    other => other?,
                };
                for attempt in 0.. {
                    match open.tree.delete_snapshot(number) {
                        Ok(()) | Err(ah_agentfs::Error::NotFound) => break,
                        // Somebody may be reading it at this moment.
                        Err(ah_agentfs::Error::Busy(_)) if attempt < ATTEMPTS && !self.is_shown(number, &label)? => {
                            cx.check_cancelled()?;
                            std::thread::sleep(PAUSE);
                        }
                        Err(error) => return Err(fail(format!("cannot remove the snapshot {reference}"), &error)),
                    }
                }
                lock(&open.known).remove(&(shelf.key, label.id));
            }
            DestroyRequest::Clone(reference) => {
                let (branch, mark) = self.branch_of(reference)?;
                let found = open.tree.branches().into_iter().find(|info| info.id == branch);
                let label = found.map(|info| PlaceLabel::decode(&info.label)).transpose()?;
                match label.filter(|label| label.mark.as_deref() == mark) {
                    Some(label) if label.converted => self.write_off(&open, branch, &label.at(), cx)?,
                    Some(label) => Self::remove_branch(&open, branch, &label.at(), cx)?,
                    // It may have been removed by a call that failed before that was on the disk.
                    None => Self::settle_removal(&open)?,
                }
            }
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let (open, shelf) = self.need(place.store, cx)?;
        let _making = beside(&open.making, cx)?;
        let target = place.need_target()?;
        let (number, of) = open.find(&shelf, &request.snapshot)?;
        let view = open.view_of(number)?;
        for path in &request.paths {
            if tree::entry(&view, path)?.is_none() {
                return Err(Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}")));
            }
        }
        // Locked until it is known: whoever mounts again what should be mounted must not find it half-way.
        let mut mounted = lock(&open.mounted);
        let at = make_folder(target, &request.name)?;
        let name = home::random()?;
        let label = PlaceLabel::of_view(&shelf.key, &at, number, &of.id);
        let made = self
            .views()
            .and_then(|views| home::write(&views, &name, &label.encode()?, false))
            .and_then(|_| mounted::Place::mount(view, &at, &self.shown(None)));
        match made {
            Ok(place) => {
                mounted.insert(What::View(name.clone()), place);
                drop(mounted);
                // Nobody is there any more who would give it back.
                if let Err(cancelled) = cx.check_cancelled() {
                    self.unmount_view(&open, &name, &label)?;
                    return Err(cancelled);
                }
                let path = target.path().join(request.name.as_os_str());
                Ok(View { path, reference: Reference::new(name)?, read_only_mount: true })
            }
            Err(error) => {
                let _ = self.forget_view(&name);
                remove_folder(&at);
                Err(error)
            }
        }
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        let Some((open, shelf)) = self.kept(place.store, cx)? else { return Ok(Done {}) };
        let name = request.view.as_str();
        if let Some(label) = self.view_label(name)?.filter(|label| label.shelf == shelf.key) {
            self.unmount_view(&open, name, &label)?;
        }
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        cx.check_cancelled()?;
        let (open, shelf) = self.need(place.store, cx)?;
        let _making = beside(&open.making, cx)?;
        let target = place.need_target()?;
        let (number, label) = open.find(&shelf, &request.snapshot)?;
        let cannot = |e: &ah_agentfs::Error| fail("cannot make a branch", e);
        let Grown { at, branch, reference, beneath, has_git } =
            self.grow(&open, &shelf, number, target, &request.name)?;
        let furnish = || {
            let top = Dir::open(&at)?;
            let notes = ah_repository::own(&top, place.workspace, label.repository.as_ref(), cx)?;
            git::take_over(&top, cx)?;
            open.tree.flush().map_err(|e| cannot(&e))?;
            Ok(notes)
        };
        let made = if has_git { furnish() } else { Ok(Vec::new()) };
        let made = made
            // Nobody is there any more who would work in it.
            .and_then(|notes| cx.check_cancelled().map(|()| notes));
        match made {
            Ok(mut notes) => {
                if !self.lies_behind(&open)? {
                    notes.extend(lock(&open.lower).as_deref().map(below::caution));
                }
                let path = target.path().join(request.name.as_os_str());
                open.behind.begin(beneath);
                Ok(WritableClone { path, reference, notes })
            }
            Err(error) => {
                Self::discard_branch(&open, branch, &at, cx);
                Err(error)
            }
        }
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        self.differences(place, request, cx)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        let (open, shelf) = self.need(place.store, cx)?;
        tree::read_dir(&open.view(&shelf, &request.snapshot)?, &request.path, cx)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        let (open, shelf) = self.need(place.store, cx)?;
        tree::read(&open.view(&shelf, &request.snapshot)?, &request.path, place.need_output()?, cx)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let (open, shelf) = self.need(place.store, cx)?;
        let mut answers = Vec::with_capacity(request.snapshots.len());
        for snapshot in &request.snapshots {
            cx.check_cancelled()?;
            answers.push(tree::entry(&open.view(&shelf, snapshot)?, &request.path)?);
        }
        Ok(answers)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        Ok(Usage { bytes: Some(self.held(place, &request.snapshots, cx)?) })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        let unsettled = self.settle_again(cx)?;
        let reclaimed = self.put_in_order(place, request, cx);
        for said in std::mem::take(&mut *lock(&self.untold)) {
            cx.log(LogLevel::Warn, &said);
        }
        // Who gives something back asks for no mount.
        let mounts = request.auto && request.forgotten.is_empty();
        let told = self.tell_unsettled(unsettled, mounts, cx);
        reclaimed.and_then(|reclaimed| told.and_then(|()| self.tell_lost(request, cx)).map(|()| reclaimed))
    }

    fn convert(&self, place: &Place<'_>, request: &ConvertRequest, cx: &Context<'_>) -> Result<Converted> {
        if request.back {
            return self.take_back(&self.need(place.store, cx)?.0, cx);
        }
        let shelf = Shelf::of(place.store)?
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "a store without a shelf"))?
            .fits(None)?;
        self.put_behind(place.need_workspace()?, &shelf, cx)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_the_disk_says_is_passed_on() {
        let source = rustix::io::Errno::IO.into();
        let error = super::fail("cannot read", &ah_agentfs::Error::Io { what: "read", source });
        assert_eq!(error.errno, Some(rustix::io::Errno::IO.raw_os_error()));
    }
}
