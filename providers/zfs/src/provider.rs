//! The provider itself: which module answers what.

use std::collections::BTreeSet;

use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, Description, DestroyRequest, DiffRequest, Done, Entry, ListRequest,
    LookupRequest, MountRequest, Place, Probe, ProbeRequest, Provider, ProviderName, ReadDirRequest, ReadRequest,
    ReclaimRequest, Reclaimed, Result, Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest, Usage, UsageRequest,
    View, WritableClone,
};

use crate::store::Store;
use crate::{clones, diff, find, probe, reclaim, remove, take, usage, view};

/// Snapshots by ZFS.
///
/// It has no state of its own: everything is in ZFS and in the store, so that any process can go on with it. The libraries are
/// loaded when something first needs them.
#[derive(Debug, Default)]
pub struct ZfsProvider(());

impl ZfsProvider {
    /// The provider. No I/O.
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

impl Provider for ZfsProvider {
    fn describe(&self) -> Description {
        let mut capabilities = BTreeSet::from([
            Capability::PointInTime,
            Capability::AlwaysDurable,
            Capability::Diff,
            Capability::Usage,
            Capability::ReadWithoutMount,
            Capability::ExactViewModes,
            Capability::Owners,
            Capability::Xattrs,
            Capability::HardLinks,
            Capability::SparseFiles,
            Capability::SpecialFiles,
            Capability::FindsDamage,
        ]);
        // Nobody else can mount them.
        if clones::allowed() {
            capabilities.extend([Capability::Clone, Capability::RepositoryClones]);
        }
        Description {
            name: ProviderName::new("zfs").unwrap_or_else(|_| unreachable!("a valid name")),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: Some(400),
            filesystems: BTreeSet::from([crate::locate::SUPER_MAGIC]),
            capabilities,
        }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        probe::probe(place.need_workspace()?, request)
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        take::snapshot(place.need_workspace()?, &Store::new(place.store), request, cx)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Done> {
        // It has been on disk since it was taken.
        find::snapshot(&Store::new(place.store), &request.snapshot)?;
        Ok(Done {})
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        find::list(&Store::new(place.store), request.partial, cx)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Snapshot> {
        Ok(find::snapshot(&Store::new(place.store), &request.snapshot)?.record.snapshot)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        let store = Store::new(place.store);
        match request {
            DestroyRequest::Snapshot(reference) => remove::snapshot(&store, reference, cx)?,
            DestroyRequest::Clone(reference) => clones::remove(&store, reference, cx)?,
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        view::mount(&Store::new(place.store), place.need_target()?, request, cx)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, _cx: &Context<'_>) -> Result<Done> {
        place.need_target()?;
        view::unmount(&Store::new(place.store), request)?;
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        clones::make(place, request, cx)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, _cx: &Context<'_>) -> Result<Vec<Entry>> {
        let found = find::snapshot(&Store::new(place.store), &request.snapshot)?;
        view::open(&found)?.0.read_dir(&request.path)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        let output = place.need_output()?;
        let found = find::snapshot(&Store::new(place.store), &request.snapshot)?;
        view::open(&found)?.0.read(&request.path, output, cx)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, _cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let store = Store::new(place.store);
        let each = |snapshot| view::open(&find::snapshot(&store, snapshot)?)?.0.entry(&request.path);
        request.snapshots.iter().map(each).collect()
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        diff::diff(place, request, cx)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, _cx: &Context<'_>) -> Result<Usage> {
        usage::usage(&Store::new(place.store), &request.snapshots)
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        reclaim::reclaim(place, request, cx)
    }
}
