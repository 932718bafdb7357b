//! The contract, implemented: each method opens the store and hands over to the module that does the work.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, Description, DestroyRequest, DiffRequest, Dir, Done, Durability, Entry,
    Error, ErrorKind, ListRequest, LogLevel, LookupRequest, MountRequest, Place, Probe, ProbeRequest, Provider,
    ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, Result, Snapshot, SnapshotId,
    SnapshotRef, SnapshotRequest, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

use crate::made::{self, Identity, Kind, MountId, mounts};
use crate::store::Store;
use crate::tree::{self, Head};
use crate::{capture, clone, diff, probe, read, view};

/// Snapshots of any directory in a private Git object store.
#[derive(Default)]
pub struct GitProvider {
    /// The stores in use, the latest last, with the mount they were reached by: it may be read-only where another is not.
    open: Mutex<Vec<(Identity, MountId, Arc<Store>)>>,
}

/// Stores kept open: a process works on one workspace, rarely on a few.
const OPEN_AT_MOST: usize = 8;

impl GitProvider {
    /// A provider. Opens nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn store(&self, dir: &Dir) -> Result<Arc<Store>> {
        let (identity, mount) = (Identity::of(dir)?, MountId::of(dir)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., store)) = open.iter().find(|(known, by, _)| known.is(&identity) && *by == mount) {
            return Ok(Arc::clone(store));
        }
        let store = Store::open(dir)?;
        if open.len() >= OPEN_AT_MOST {
            open.remove(0);
        }
        open.push((identity, mount, Arc::clone(&store)));
        Ok(store)
    }
}

impl fmt::Debug for GitProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitProvider").finish_non_exhaustive()
    }
}

/// The snapshot as the caller knows it, without what was omitted.
fn snapshot_of(store: &Store, head: &Head) -> Result<Snapshot> {
    let manifest = &head.manifest;
    let durable = store.is_durable(&manifest.id);
    Ok(Snapshot {
        id: manifest.id.clone(),
        reference: Reference::new(manifest.id.as_str())?,
        created: manifest.created,
        label: manifest.label.clone(),
        attributes: manifest.attributes.clone(),
        durability: if durable { Durability::Durable } else { Durability::Instant },
        tree: Some(head.content()),
        entries: Some(manifest.entries),
        omitted_total: manifest.omitted_total,
        omitted: Vec::new(),
        repository: manifest.repository.clone(),
        pins: None,
        changed_below: None,
    })
}

impl Provider for GitProvider {
    fn describe(&self) -> Description {
        let mut capabilities = BTreeSet::from([
            Capability::Clone,
            Capability::Diff,
            Capability::Usage,
            Capability::ReadWithoutMount,
            Capability::AppliesPolicy,
            Capability::RepositoryClones,
            Capability::FindsDamage,
        ]);
        if mounts::allowed() {
            capabilities.insert(Capability::ExactViewModes);
        }
        // The name is a valid one; a test looks at it.
        let name = ProviderName::new("git").unwrap_or_else(|_| unreachable!("a fixed, valid name"));
        Description {
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: Some(100),
            filesystems: BTreeSet::new(),
            capabilities,
        }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        Ok(probe::probe(place.need_workspace()?, place.store, request))
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let workspace = place.need_workspace()?;
        capture::snapshot(&*self.store(place.store)?, workspace, request, cx)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        let store = self.store(place.store)?;
        let head = tree::open(&store, &request.snapshot, cx)?;
        if !store.is_durable(&head.manifest.id) {
            store.sync(cx)?;
            // After a power cut, this finds out whether it survived.
            tree::open(&store, &request.snapshot, cx)?;
        }
        Ok(Done {})
    }

    fn list(&self, place: &Place<'_>, _request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let store = self.store(place.store)?;
        let mut snapshots = Vec::new();
        for (id, commit) in store.snapshots(cx)? {
            cx.check_cancelled()?;
            match tree::head(&store, &id, &commit, cx).and_then(|head| snapshot_of(&store, &head)) {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
                // Taken away by another process since the refs were read.
                Err(_) if store.snapshot(&id).is_ok_and(|found| found.is_none()) => {}
                Err(error) => cx.log(LogLevel::Warn, &format!("the snapshot {id} cannot be read: {error}")),
            }
        }
        snapshots.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(snapshots)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        let store = self.store(place.store)?;
        let head = tree::open(&store, &request.snapshot, cx)?;
        let mut snapshot = snapshot_of(&store, &head)?;
        snapshot.omitted = head.omitted(&store, cx)?;
        Ok(snapshot)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        match request {
            DestroyRequest::Snapshot(reference) => {
                let store = self.store(place.store)?;
                if let Ok(id) = SnapshotId::new(reference.as_str())
                    // A damaged ref is there too: it can be taken away.
                    && !matches!(store.snapshot(&id), Ok(None))
                {
                    store.remove_snapshot(&store.lock(cx)?, &id)?;
                }
            }
            DestroyRequest::Clone(reference) => {
                made::take_away(place.store, place.target, Kind::Clone, reference, cx)?;
            }
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let target = place.need_target()?;
        view::mount(&*self.store(place.store)?, place, target, request, cx)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        made::take_away(place.store, place.target, Kind::View, &request.view, cx)?;
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let target = place.need_target()?;
        clone::clone_snapshot(&*self.store(place.store)?, place, target, request, cx)
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        diff::diff(&*self.store(place.store)?, place.workspace, request, cx)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        read::read_dir(&*self.store(place.store)?, request, cx)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        read::read(&*self.store(place.store)?, request, place.need_output()?, cx)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        read::lookup(&*self.store(place.store)?, request, cx)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        let store = self.store(place.store)?;
        if request.snapshots.is_empty() {
            return Ok(Usage { bytes: Some(store.disk_usage()?) });
        }
        let ids = request.snapshots.iter().filter_map(|reference| SnapshotId::new(reference.as_str()).ok()).collect();
        Ok(Usage { bytes: store.usage_of(&ids, cx)? })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        let actions = made::reclaim(place.store, place.target, &request.forgotten, cx)?;
        let store = self.store(place.store)?;
        let mut reclaimed = store.reclaim(request.auto, cx)?;
        reclaimed.actions.splice(0..0, actions);
        Ok(reclaimed)
    }
}

/// The error of a path that a snapshot does not have.
pub(crate) fn no_such_path(path: &ah_plugin_api::RelPath) -> Error {
    Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}"))
}
