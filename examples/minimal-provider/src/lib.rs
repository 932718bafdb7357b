//! A minimal snapshot provider: a snapshot is a copy of the workspace, with reflinks where the filesystem has them.
//!
//! The store looks like this, and nothing else is kept anywhere:
//!
//! ```text
//! lock                       held shared by whoever makes something, exclusively by `reclaim`
//! tmp/<unique>/              a snapshot being made, or one being removed
//! snapshots/<id>/            a snapshot; it exists if and only if this directory does
//!     tree/                  what was captured
//!     snapshot.json          everything else that is known of it
//! made/<reference>           a view or a clone in a target folder; contains its name, and once it is whole which directory it is
//! ```

mod store;
mod tree;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::PathBuf;

use ah_plugin_api::{
    Capability, CloneRequest, Context, Description, DestroyRequest, Done, Durability, Error, ErrorKind, FileName,
    ListRequest, Mode, MountRequest, Place, Probe, ProbeRequest, Provider, ProviderName, ReclaimRequest, Reclaimed,
    Reference, RelPath, Result, Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest, View, WritableClone,
};

use store::{Lock, Store};
use tree::Copier;

ah_plugin_api::export_provider!(Minimal);

/// The provider. It has no state of its own: everything is in the store, so that any process can go on with it.
struct Minimal;

impl Provider for Minimal {
    fn describe(&self) -> Description {
        Description {
            name: ProviderName::new("minimal").expect("a valid name"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: None,
            filesystems: BTreeSet::new(),
            capabilities: BTreeSet::from([Capability::Clone]),
        }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        place.need_workspace()?;
        let usable = request.mode.is_none_or(|mode| mode == Mode::InPlace);
        Ok(Probe {
            usable,
            reason: if usable { "any directory can be copied" } else { "it works in place only" }.to_owned(),
            remedy: None,
            modes: BTreeSet::from([Mode::InPlace]),
            can_delete: true,
            convertible: None,
        })
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        let workspace = place.need_workspace()?;
        let store = Store::open(place.store)?;
        let _lock = store.lock(Lock::Shared, cx)?;
        if store.has(&request.id)? {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {} already", request.id)));
        }
        store.in_tmp(|tmp| {
            let mut copier = Copier::of_workspace(workspace.as_fd(), place.store.as_fd(), cx)?;
            copier.run(workspace.as_fd(), tmp, b"tree")?;
            let snapshot = Snapshot {
                id: request.id.clone(),
                reference: Reference::new(request.id.as_str())?,
                created: request.created,
                label: request.label.clone(),
                attributes: request.attributes.clone(),
                durability: request.durability,
                tree: None,
                entries: Some(copier.entries),
                omitted_total: copier.omitted.len() as u64,
                omitted: copier.omitted,
                repository: None,
                pins: None,
                changed_below: None,
            };
            store.write(tmp, &snapshot)?;
            Ok(snapshot)
        })
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Done> {
        let store = Store::open(place.store)?;
        let snapshot = store.read(&request.snapshot)?;
        if snapshot.durability != Durability::Durable {
            let dir = store.snapshot(&request.snapshot)?;
            store.write(dir.as_fd(), &Snapshot { durability: Durability::Durable, ..snapshot })?;
        }
        Ok(Done {})
    }

    fn list(&self, place: &Place<'_>, _request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let mut list = Store::open(place.store)?.read_all(cx)?;
        list.sort_by_key(|snapshot| snapshot.created);
        list.iter_mut().for_each(|snapshot| snapshot.omitted.clear());
        Ok(list)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Snapshot> {
        Store::open(place.store)?.read(&request.snapshot)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        match request {
            DestroyRequest::Snapshot(reference) => {
                let store = Store::open(place.store)?;
                let _lock = store.lock(Lock::Shared, cx)?;
                store.remove(reference)?;
            }
            DestroyRequest::Clone(reference) => take_away(place, "clone", reference)?,
        }
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        let made = make(place, "view", &request.snapshot, &request.name, &request.paths, cx)?;
        Ok(View { path: made.0, reference: made.1, read_only_mount: false })
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, _cx: &Context<'_>) -> Result<Done> {
        take_away(place, "view", &request.view)?;
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let made = make(place, "clone", &request.snapshot, &request.name, &[], cx)?;
        Ok(WritableClone { path: made.0, reference: made.1, notes: Vec::new() })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        let store = Store::open(place.store)?;
        // Whoever makes something holds the lock. If it cannot be had, what is in `tmp` may be theirs.
        let _lock = match store.lock(Lock::Exclusive, cx) {
            Err(error) if error.kind == ErrorKind::Busy => return Ok(Reclaimed::default()),
            lock => lock?,
        };
        let actions = store.clear(place.target, &request.forgotten, cx)?;
        Ok(Reclaimed { actions, ..Reclaimed::default() })
    }
}

/// Makes a copy of a snapshot called `name` in the target folder: a view or a clone.
fn make(
    place: &Place<'_>,
    kind: &str,
    snapshot: &Reference,
    name: &FileName,
    paths: &[RelPath],
    cx: &Context<'_>,
) -> Result<(PathBuf, Reference)> {
    let target = place.need_target()?;
    let store = Store::open(place.store)?;
    let _lock = store.lock(Lock::Shared, cx)?;
    let from = tree::open_dir(store.snapshot(snapshot)?.as_fd(), b"tree")?;
    for path in paths {
        tree::find(from.as_fd(), path)?;
    }
    tree::must_not_exist(target.as_fd(), name.as_bytes())?;
    // The record comes first: should this process end in the middle, `reclaim` finds the half by it.
    let (reference, half) = store.record(kind, name)?;
    let mut copier = Copier::of_snapshot(kind == "view", cx);
    let made = copier
        .run(from.as_fd(), target.as_fd(), half.as_bytes())
        .and_then(|()| store.record_whole(&reference, target, &half))
        .and_then(|()| tree::rename(target.as_fd(), half.as_bytes(), target.as_fd(), name.as_bytes()));
    if let Err(error) = made {
        // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
        let _ = tree::remove(target.as_fd(), half.as_bytes()).and_then(|()| store.forget(&reference));
        return Err(error);
    }
    Ok((target.path().join(name.as_os_str()), reference))
}

/// Removes what [`make`] made.
fn take_away(place: &Place<'_>, kind: &str, reference: &Reference) -> Result<()> {
    let target = place.need_target()?;
    let store = Store::open(place.store)?;
    // A reference comes from outside; one that `record` cannot have made must not become a path.
    let ours = |rest: &str| rest.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if reference.as_str().strip_prefix(kind).is_some_and(ours) {
        store.take_away(target, reference)?;
    }
    Ok(())
}
