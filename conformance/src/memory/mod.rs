//! A provider that keeps everything in memory: the contract at its simplest, to compare others with.
//!
//! Nothing here is clever, so that it can be believed. It captures by reading everything, and shows by writing everything.
//! It breaks one promise, and says so where the suite asks: nothing survives the process.

mod compare;
mod materialise;
mod node;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, Description, DestroyRequest, DiffMethod, DiffRequest, Dir, Done,
    Durability, Entry, Error, ErrorKind, FileName, ListRequest, LookupRequest, Mode, MountRequest, Place, Probe,
    ProbeRequest, Provider, ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, Result,
    Side, Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

use materialise::{Wanted, materialise, remove};
use node::{Data, Node, capture};

/// The in-memory provider. Clones of it share their stores.
#[derive(Debug, Clone, Default)]
pub struct MemoryProvider {
    stores: Arc<Mutex<HashMap<u64, Store>>>,
}

/// What belongs to one store folder, which itself holds nothing but a number.
#[derive(Debug, Default)]
struct Store {
    /// In the order in which they were taken.
    snapshots: Vec<Kept>,
    views: BTreeMap<Reference, Made>,
    clones: BTreeMap<Reference, Made>,
}

/// A view or clone.
#[derive(Debug, Clone)]
struct Made {
    name: FileName,
    /// Device and inode: something else may bear its name some day.
    identity: (u64, u64),
}

#[derive(Debug, Clone)]
struct Kept {
    snapshot: Snapshot,
    tree: Arc<Node>,
}

impl MemoryProvider {
    /// Runs `work` on the store that the place names.
    fn with_store<T>(&self, place: &Place<'_>, work: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let mut stores: MutexGuard<'_, _> = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number_of(place.store).map_err(|e| Error::from_io("cannot use the store's folder", &e.into()))?;
        work(stores.entry(number).or_default())
    }

    fn kept(&self, place: &Place<'_>, reference: &Reference) -> Result<Kept> {
        self.with_store(place, |store| {
            let kept = store.snapshots.iter().find(|kept| kept.snapshot.reference == *reference);
            kept.cloned().ok_or_else(|| not_found(format!("there is no snapshot {reference}")))
        })
    }

    fn side(&self, place: &Place<'_>, side: &Side, cx: &Context<'_>) -> Result<Arc<Node>> {
        match side {
            Side::Snapshot(reference) => Ok(self.kept(place, reference)?.tree),
            Side::Workspace => Ok(Arc::new(capture(place.need_workspace()?.as_fd(), cx)?.0)),
        }
    }

    fn make(
        &self,
        place: &Place<'_>,
        kind: &str,
        from: &Reference,
        name: &FileName,
        wanted: &Wanted<'_>,
        cx: &Context<'_>,
    ) -> Result<(Reference, Made)> {
        let target = place.need_target()?;
        let kept = self.kept(place, from)?;
        for path in wanted.paths {
            if kept.tree.at(path).is_none() {
                return Err(not_found(format!("{path} is not in the snapshot {from}")));
            }
        }
        materialise(&kept.tree, target.as_fd(), name.as_bytes(), wanted, cx)?;
        // Hexadecimal, because a name may be any bytes and a reference may not.
        let hex: String = name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let identity = identity(target, name).map_err(|e| Error::from_io("cannot look at what was made", &e.into()))?;
        Ok((Reference::new(format!("{kind}:{hex}"))?, Made { name: name.clone(), identity }))
    }
}

/// The number in a store's folder, written on first use. Device and inode would not do: a folder that is made after another
/// one was removed often gets the inode of that.
fn number_of(store: &Dir) -> Result<u64, rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags, openat};
    const NAME: &std::ffi::CStr = c"memory";
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(store, NAME, flags | OFlags::RDONLY, Mode::empty()) {
        Ok(file) => {
            let mut bytes = [0; 8];
            let n = rustix::io::read(&file, &mut bytes)?;
            // Damaged: a store without anything in it.
            Ok(if n == bytes.len() { u64::from_le_bytes(bytes) } else { 0 })
        }
        Err(rustix::io::Errno::NOENT) => {
            let flags = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let file = openat(store, NAME, flags, Mode::RUSR | Mode::WUSR)?;
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            rustix::io::write(&file, &number.to_le_bytes())?;
            Ok(number)
        }
        Err(errno) => Err(errno),
    }
}

fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message)
}

fn path_in(target: &Dir, name: &FileName) -> std::path::PathBuf {
    target.path().join(name.as_os_str())
}

fn identity(target: &Dir, name: &FileName) -> Result<(u64, u64), rustix::io::Errno> {
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statat(target, name.as_bytes(), flags).map(|stat| (stat.st_dev, stat.st_ino))
}

/// What was made is removed; what else bears its name by now stays.
fn take_away(place: &Place<'_>, made: &Made) -> Result<()> {
    let target = place.need_target()?;
    if identity(target, &made.name) != Ok(made.identity) {
        return Ok(());
    }
    remove(target.as_fd(), made.name.as_bytes())
        .map_err(|e| Error::from_io(format!("cannot remove {}", made.name), &e.into()))
}

impl Provider for MemoryProvider {
    fn describe(&self) -> Description {
        Description {
            name: ProviderName::new("memory").unwrap_or_else(|_| unreachable!("a fixed, valid name")),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: None,
            filesystems: BTreeSet::new(),
            capabilities: BTreeSet::from([
                Capability::Clone,
                Capability::Diff,
                Capability::Usage,
                Capability::ReadWithoutMount,
            ]),
        }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        place.need_workspace()?;
        let usable = request.mode.is_none_or(|mode| mode == Mode::InPlace);
        let reason = if usable { "memory takes any directory" } else { "only in-place work is served" };
        let modes = BTreeSet::from([Mode::InPlace]);
        Ok(Probe { usable, reason: reason.to_owned(), remedy: None, modes, can_delete: true, convertible: None })
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let taken = |store: &Store| store.snapshots.iter().any(|kept| kept.snapshot.id == request.id);
        let exists = || Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {} already", request.id));
        if self.with_store(place, |store| Ok(taken(store)))? {
            return Err(exists());
        }
        let (tree, omitted) = capture(place.need_workspace()?.as_fd(), cx)?;
        let snapshot = Snapshot {
            id: request.id.clone(),
            reference: Reference::new(request.id.as_str())?,
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            durability: request.durability,
            tree: None,
            entries: Some(tree.count()),
            omitted_total: omitted.len() as u64,
            omitted,
            repository: None,
            pins: None,
            changed_below: None,
        };
        self.with_store(place, |store| {
            // Somebody may have been quicker with the same id.
            if taken(store) {
                return Err(exists());
            }
            store.snapshots.push(Kept { snapshot: snapshot.clone(), tree: Arc::new(tree) });
            Ok(snapshot)
        })
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Done> {
        self.with_store(place, |store| {
            let kept = store.snapshots.iter_mut().find(|kept| kept.snapshot.reference == request.snapshot);
            let kept = kept.ok_or_else(|| not_found(format!("there is no snapshot {}", request.snapshot)))?;
            kept.snapshot.durability = Durability::Durable;
            Ok(Done {})
        })
    }

    fn list(&self, place: &Place<'_>, _request: &ListRequest, _cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        self.with_store(place, |store| {
            let snapshots = store.snapshots.iter().map(|kept| kept.snapshot.clone());
            Ok(snapshots.map(|snapshot| Snapshot { omitted: Vec::new(), ..snapshot }).collect())
        })
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Snapshot> {
        Ok(self.kept(place, &request.snapshot)?.snapshot)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, _cx: &Context<'_>) -> Result<Done> {
        match request {
            DestroyRequest::Snapshot(reference) => self.with_store(place, |store| {
                store.snapshots.retain(|kept| kept.snapshot.reference != *reference);
                Ok(Done {})
            }),
            DestroyRequest::Clone(reference) => {
                if let Some(made) = self.with_store(place, |store| Ok(store.clones.remove(reference)))? {
                    take_away(place, &made)?;
                }
                Ok(Done {})
            }
        }
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let wanted = Wanted { paths: &request.paths, read_only: true };
        let (reference, made) = self.make(place, "view", &request.snapshot, &request.name, &wanted, cx)?;
        self.with_store(place, |store| Ok(store.views.insert(reference.clone(), made)))?;
        let path = path_in(place.need_target()?, &request.name);
        Ok(View { path, reference, read_only_mount: false })
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, _cx: &Context<'_>) -> Result<Done> {
        place.need_target()?;
        if let Some(made) = self.with_store(place, |store| Ok(store.views.remove(&request.view)))? {
            take_away(place, &made)?;
        }
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let wanted = Wanted { paths: &[], read_only: false };
        let (reference, made) = self.make(place, "clone", &request.snapshot, &request.name, &wanted, cx)?;
        self.with_store(place, |store| Ok(store.clones.insert(reference.clone(), made)))?;
        let path = path_in(place.need_target()?, &request.name);
        Ok(WritableClone { path, reference, notes: Vec::new() })
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        let (from, to) = (self.side(place, &request.from, cx)?, self.side(place, &request.to, cx)?);
        let changes = compare::compare(&from, &to, &request.paths, request.times)?;
        // There is nothing that it keeps and does not compare.
        let untouched = changes.is_empty() && request.times && request.paths.is_empty();
        Ok(Changes { changes, method: DiffMethod::Native, untouched, lost: Vec::new(), unread: Vec::new() })
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, _cx: &Context<'_>) -> Result<Vec<Entry>> {
        let kept = self.kept(place, &request.snapshot)?;
        match kept.tree.at(&request.path).map(|node| &node.data) {
            Some(Data::Dir(children)) => Ok(children.iter().map(|(name, node)| node.entry(name)).collect()),
            Some(_) => Err(Error::new(ErrorKind::InvalidArgument, format!("{} is not a directory", request.path))),
            None => Err(not_found(format!("{} is not in the snapshot", request.path))),
        }
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, _cx: &Context<'_>) -> Result<Entry> {
        let output = place.need_output()?;
        let kept = self.kept(place, &request.snapshot)?;
        let Some(node) = kept.tree.at(&request.path) else {
            return Err(not_found(format!("{} is not in the snapshot", request.path)));
        };
        match &node.data {
            Data::Dir(_) => Err(Error::new(ErrorKind::InvalidArgument, format!("{} is a directory", request.path))),
            Data::File(bytes) | Data::Symlink(bytes) => {
                write_all(output, bytes)?;
                Ok(node.entry(request.path.file_name().unwrap_or_default()))
            }
        }
    }

    fn lookup(&self, place: &Place<'_>, request: &LookupRequest, _cx: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let look = |reference: &Reference| {
            let kept = self.kept(place, reference)?;
            let name = request.path.file_name().unwrap_or_default();
            Ok(kept.tree.at(&request.path).map(|node| node.entry(name)))
        };
        request.snapshots.iter().map(look).collect()
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, _cx: &Context<'_>) -> Result<Usage> {
        if !request.snapshots.is_empty() {
            let wanted: BTreeSet<&Reference> = request.snapshots.iter().collect();
            let kept = wanted.into_iter().filter_map(|reference| self.kept(place, reference).ok());
            return Ok(Usage { bytes: Some(kept.map(|kept| kept.tree.bytes()).sum()) });
        }
        let bytes = self.with_store(place, |store| Ok(store.snapshots.iter().map(|kept| kept.tree.bytes()).sum()))?;
        Ok(Usage { bytes: Some(bytes) })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        // What fails here is undone on the spot, and memory has no crashes to clear up after but its callers'.
        cx.check_cancelled()?;
        let mut actions = Vec::new();
        for name in &request.forgotten {
            let ours = self.with_store(place, |store| {
                let mut ours = Vec::new();
                for all in [&mut store.views, &mut store.clones] {
                    ours.extend(all.values().filter(|made| made.name == *name).cloned());
                    all.retain(|_, made| made.name != *name);
                }
                Ok(ours)
            })?;
            for made in ours {
                take_away(place, &made)?;
                actions.push(format!("removed {name}, which was forgotten"));
            }
        }
        Ok(Reclaimed { actions, ..Reclaimed::default() })
    }
}

fn write_all(output: std::os::fd::BorrowedFd<'_>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_io("cannot write to the output", &errno.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ah_plugin_api::RelPath;

    use super::*;

    #[test]
    fn the_root_is_a_directory_of_its_own() {
        let node = Node { mode: 0o755, mtime: Default::default(), data: Data::Dir(BTreeMap::new()) };
        assert!(node.at(&RelPath::root()).is_some());
        assert_eq!(node.count(), 0);
    }
}
