//! The contract, implemented: each method opens what it needs and hands over to the module that does the work.

use std::collections::BTreeSet;

use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, ConvertRequest, Converted, Description, DestroyRequest, DiffRequest,
    Done, Entry, Error, ErrorKind, ListRequest, LookupRequest, MountRequest, Place, Probe, ProbeRequest, Provider,
    ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Result, Snapshot, SnapshotRef,
    SnapshotRequest, UnmountRequest, View, WritableClone,
};

use crate::shelf::{self, Shelf, no_snapshot};
use crate::{convert, diff, made, probe, reclaim, view};

/// Snapshots of Btrfs subvolumes. Keeps nothing in memory: any process can go on with a store.
#[derive(Debug, Default, Clone, Copy)]
pub struct BtrfsProvider;

impl BtrfsProvider {
    /// A provider.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Provider for BtrfsProvider {
    fn describe(&self) -> Description {
        let capabilities = BTreeSet::from([
            Capability::AlwaysDurable,
            Capability::Clone,
            Capability::Convert,
            Capability::Diff,
            Capability::RepositoryClones,
            Capability::ReadWithoutMount,
            Capability::ExactViewModes,
            Capability::Owners,
            Capability::Xattrs,
            Capability::HardLinks,
            Capability::SparseFiles,
            Capability::SpecialFiles,
        ]);
        // The name is a valid one; a test looks at it.
        let name = ProviderName::new("btrfs").unwrap_or_else(|_| unreachable!("a fixed, valid name"));
        let filesystems = BTreeSet::from([crate::sys::SUPER_MAGIC]);
        Description { name, version: env!("CARGO_PKG_VERSION").to_owned(), rank: Some(300), filesystems, capabilities }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        Ok(probe::probe(place.need_workspace()?, place.store, request))
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        shelf::take(place.store, place.need_workspace()?, request, cx)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Done> {
        Shelf::find(place.store, &request.snapshot)?;
        Ok(Done {})
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        match Shelf::open(place.store) {
            // All are in one place, and that is not there.
            Err(error) if request.partial && error.kind == ErrorKind::FailedPrecondition => Ok(Vec::new()),
            shelf => shelf?.map_or_else(|| Ok(Vec::new()), |shelf| shelf.list(cx)),
        }
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Snapshot> {
        Shelf::find(place.store, &request.snapshot)?.1.record.snapshot(true)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        match request {
            DestroyRequest::Snapshot(reference) => {
                if let Some(shelf) = Shelf::open(place.store)? {
                    shelf.remove(reference, cx)?;
                }
            }
            DestroyRequest::Clone(reference) => made::destroy(place.store, place.need_target()?, reference, cx)?,
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, _cx: &Context<'_>) -> Result<View> {
        view::make(place.store, place.need_target()?, request)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, _cx: &Context<'_>) -> Result<Done> {
        view::take_away(place.store, request)?;
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        made::make(place, request, cx)
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        diff::diff(place, request, cx)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, _cx: &Context<'_>) -> Result<Vec<Entry>> {
        Shelf::find(place.store, &request.snapshot)?.1.tree()?.read_dir(&request.path)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        let output = place.need_output()?;
        Shelf::find(place.store, &request.snapshot)?.1.tree()?.read(&request.path, output, cx)
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let Some(first) = request.snapshots.first() else { return Ok(Vec::new()) };
        let shelf = Shelf::open(place.store)?.ok_or_else(|| no_snapshot(first))?;
        let mut answers = Vec::with_capacity(request.snapshots.len());
        for snapshot in &request.snapshots {
            cx.check_cancelled()?;
            answers.push(shelf.get(snapshot)?.tree()?.entry(&request.path)?);
        }
        Ok(answers)
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        reclaim::reclaim(place, request, cx)
    }

    fn convert(&self, place: &Place<'_>, request: &ConvertRequest, cx: &Context<'_>) -> Result<Converted> {
        if request.back {
            let message = "a subvolume is not behind AgentFS: there is nothing to take back";
            return Err(Error::new(ErrorKind::FailedPrecondition, message));
        }
        convert::convert(place.store, place.need_workspace()?, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_itself() {
        assert_eq!(BtrfsProvider::new().describe().name.as_str(), "btrfs");
    }
}
