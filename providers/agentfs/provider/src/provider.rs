//! The contract, as `ah` calls it: what can be said from here is, the rest is the service's.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use ah_plugin_api::wire::Remote;
use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, ConvertRequest, Converted, Description, DestroyRequest, DiffRequest,
    Dir, Done, Entry, Error, ErrorKind, ListRequest, LookupRequest, Mode, MountRequest, Place, Probe, ProbeRequest,
    Provider, ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Result, Snapshot, SnapshotRef,
    SnapshotRequest, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::back::back;
use crate::conversion::{refuse_held, refuse_what_stays};
use crate::home::{self, Shelf, Shown, TREE, path_of};
use crate::probe;
use crate::reach::{Reach, elsewhere, is_asleep};

/// Branches of any directory, kept mounted by a service.
pub struct AgentFsProvider {
    service: Remote<Reach>,
}

impl Default for AgentFsProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl AgentFsProvider {
    /// A provider. Its service is the program `ah-agentfsd` beside the one that runs.
    #[must_use]
    pub fn new() -> Self {
        Self { service: Remote::new(Reach::default(), description()) }
    }
}

pub(crate) fn description() -> Description {
    let capabilities = BTreeSet::from([
        Capability::Clone,
        Capability::Diff,
        Capability::DiffOfClones,
        Capability::ReadWithoutMount,
        Capability::ExactViewModes,
        Capability::Owners,
        Capability::HardLinks,
        Capability::SparseFiles,
        Capability::SpecialFiles,
        Capability::RepositoryClones,
        Capability::Convert,
        Capability::Usage,
    ]);
    // The name is a valid one; a test looks at it.
    let name = ProviderName::new("agentfs").unwrap_or_else(|_| unreachable!("a fixed, valid name"));
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Description { name, version, rank: Some(200), filesystems: BTreeSet::new(), capabilities }
}

/// Makes the store the workspace's, or finds that it is.
fn shelve(place: &Place<'_>) -> Result<Shelf> {
    let shown = Shown::around(place.need_workspace()?)?;
    let own = path_of(place.store)?;
    // The workspace that lies behind has its snapshots in the home itself.
    let home = shown.as_ref().map(|(shown, _)| shown.home.as_path()).filter(|home| *home != own);
    Shelf::make(place.store, home)
}

/// Whether what the service has mounted can be seen from here: this process may be in another mount namespace. A folder that was just made for it is on
/// another device then than the one that it was made in. Asks the kernel for what it has, and not the service once more.
fn is_seen(target: &Dir, path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let device = |dir: BorrowedFd<'_>, name: &OsStr, more: AtFlags| {
        let stat = rustix::fs::statx(dir, name, flags | more, StatxFlags::TYPE)?;
        Ok::<_, Errno>((stat.stx_dev_major, stat.stx_dev_minor))
    };
    let around = device(target.as_fd(), OsStr::new(""), AtFlags::EMPTY_PATH);
    let there = device(target.as_fd(), path.file_name().unwrap_or_default(), AtFlags::empty());
    matches!((around, there), (Ok(around), Ok(there)) if around != there)
}

/// Whether what is kept in a store grew from another directory than the workspace, or is gone.
fn may_be_refused(store: &Dir, workspace: &Dir) -> bool {
    if home::tree_gone(store).is_some() {
        return true;
    }
    let paths = path_of(store).and_then(|store| Ok((store, path_of(workspace)?)));
    paths.is_ok_and(|(store, lower)| matches!(ah_agentfs::Workspace::may_be_of(&store.join(TREE), &lower), Ok(false)))
}

/// What is said of a mount of a store's service that this process does not see.
fn unseen(store: &Dir) -> Error {
    home_of(store).ok().as_ref().and_then(elsewhere).unwrap_or_else(within_exec)
}

/// The home in which a store is kept.
fn home_of(store: &Dir) -> Result<Dir> {
    match Shelf::of(store)?.and_then(|shelf| shelf.home) {
        Some(home) => Dir::open(home),
        None => Dir::open(path_of(store)?),
    }
}

fn within_exec() -> Error {
    let message = "it was mounted, and that does not reach this command, which is in a mount namespace of its own, as within `ah agent fs exec`";
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(
        "do it outside, in another shell; or let mounts come in, outside, before the command of `ah agent fs exec` is started: sudo mount --make-rshared /",
    )
}

impl Provider for AgentFsProvider {
    fn describe(&self) -> Description {
        description()
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        let workspace = place.need_workspace()?;
        if request.thorough
            && let Some((shown, true)) = Shown::around(workspace)?
            && let Ok(home) = Dir::open(shown.home)
            && let Ok(probe) = self.service.probe(&Place::new(&home).with_workspace(workspace), request, cx)
        {
            return Ok(probe);
        }
        let probe = probe::probe(workspace, place.store, request)?;
        // Who asks for it by name and mode is told by the call itself. The service knows whether anything is left of what is kept.
        let promises = probe.usable && request.mode.is_none() && !probe.modes.contains(&Mode::InPlace);
        match promises && may_be_refused(place.store, workspace) {
            true => self.service.probe(place, request, cx),
            false => Ok(probe),
        }
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        cx.check_cancelled()?;
        if Shelf::of(place.store)?.is_none() {
            shelve(place)?;
        }
        // The service looks whether the store is the workspace's. Where it is not, that is to be said, whatever became of the service.
        self.service.snapshot(place, request, cx).or_else(|error| shelve(place).and(Err(error)))
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        self.service.sync(place, request, cx)
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        self.service.list(place, request, cx)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        self.service.stat(place, request, cx)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        let DestroyRequest::Clone(reference) = request else { return self.service.destroy(place, request, cx) };
        // By the home that it names: the store of who removes it may know nothing of it.
        let Some((Shown { home, .. }, _)) = Shown::referred(reference.as_str()) else {
            // What a later version may have written is not said to be removed.
            if reference.as_str().starts_with("agentfs:") {
                let message = format!("{} is no branch that this version of AgentFS can read", reference.as_str());
                return Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("remove it with the version of ah that made it"));
            }
            return Ok(Done {});
        };
        match Dir::open(&home) {
            Ok(home) => self.service.destroy(&Place::new(&home), request, cx),
            Err(error) if error.kind == ErrorKind::NotFound && !home::was_at(place.store, &home) => Ok(Done {}),
            Err(error) if error.kind == ErrorKind::NotFound => Err(home::moved(&home, &path_of(place.store)?)),
            Err(error) => Err(error),
        }
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let view = self.service.mount(place, request, cx)?;
        if is_seen(place.need_target()?, &view.path) {
            return Ok(view);
        }
        self.service.unmount(place, &UnmountRequest { view: view.reference, unused: false }, cx)?;
        Err(unseen(place.store))
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        self.service.unmount(place, request, cx)
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let clone = self.service.clone_snapshot(place, request, cx)?;
        if is_seen(place.need_target()?, &clone.path) {
            return Ok(clone);
        }
        self.service.destroy(place, &DestroyRequest::Clone(clone.reference), cx)?;
        Err(unseen(place.store))
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        self.service.diff(place, request, cx)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        self.service.read_dir(place, request, cx)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        self.service.read(place, request, cx)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        self.service.lookup(place, request, cx)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        let Some(shelf) = Shelf::of(place.store)? else { return Ok(Usage { bytes: Some(0) }) };
        // Of the whole, this is asked of store after store: no service is started, and no branch mounted, for it.
        if request.snapshots.is_empty() {
            let home = shelf.home.map(Dir::open).transpose()?;
            if is_asleep(home.as_ref().unwrap_or(place.store)) {
                return Ok(Usage { bytes: None });
            }
        }
        self.service.usage(place, request, cx)
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        let reclaimed = self.service.reclaim(place, request, cx)?;
        // Who comes by to have something mounted, with the workspace, is told why it is not to be seen. Others have their answer: what is held, say.
        let mounts = request.auto && place.workspace.is_some();
        match home_of(place.store).ok().as_ref().and_then(elsewhere).filter(|_| mounts) {
            Some(error) => Err(error),
            None => Ok(reclaimed),
        }
    }

    fn convert(&self, place: &Place<'_>, request: &ConvertRequest, cx: &Context<'_>) -> Result<Converted> {
        if request.back {
            return back(&self.service, place.store, cx);
        }
        let workspace = place.need_workspace()?;
        let at = path_of(workspace)?;
        match Shown::around(workspace)? {
            Some((_, true)) => {
                let notes = vec![format!("{} is in AgentFS already", at.display())];
                return Ok(Converted { changed: false, mounted: true, notes });
            }
            Some(_) => {
                return Err(Error::new(ErrorKind::FailedPrecondition, "it is within a branch or view of AgentFS"));
            }
            None => {}
        }
        if let Some((message, remedy)) = probe::refusal(workspace, place.store) {
            let error = Error::new(ErrorKind::FailedPrecondition, message);
            return Err(remedy.into_iter().fold(error, Error::with_hint));
        }
        // From here it is known who has called.
        refuse_held(workspace, cx)?;
        let linked = refuse_what_stays(workspace, cx)?;
        shelve(place)?;
        // Before anything is done: it could be undone only from where it is seen.
        if !self.service.caller().shares_mounts(place.store, cx)? {
            return Err(unseen(place.store));
        }
        let mut converted = self.service.convert(place, request, cx)?;
        converted.notes.extend(linked);
        Ok(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_itself() {
        assert_eq!(AgentFsProvider::new().describe().name.as_str(), "agentfs");
    }
}
