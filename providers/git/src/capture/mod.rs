//! Turning a scan into a snapshot: trees, metadata, manifest, commit.
//!
//! [`snapshot`] writes one into the store, [`live`] makes the same trees in memory to compare a workspace with a snapshot.
//! Not here: finding what changed (`scan`), the format of the parts (`meta`, `manifest`), objects and packs (`store`).

mod build;
mod save;
mod sink;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::Arc;

use ah_plugin_api::{
    CapturePolicy, ContentId, Context, Dir, Durability, Error, ErrorKind, LogLevel, Omission, Reference,
    RepositoryState, Result, Snapshot, SnapshotId, SnapshotRequest,
};
use gix::objs::Kind;
use gix::{ObjectId, oid};

use crate::index::{Header, Index};
use crate::manifest::{self, Manifest};
use crate::scan::{self, Sink, null};
use crate::store::{Batch, KEPT, Kept, Store};
use ah_repository::Repository;
use build::Tree;
use sink::{Memory, Objects};

/// Captures the workspace into the store, as [`ah_plugin_api::Provider::snapshot`] promises.
///
/// Takes the store's lock for the whole time. The snapshot's reference is its id.
///
/// # Errors
/// `AlreadyExists` for a taken id, `FailedPrecondition` for too many entries, `Busy`, `Cancelled`, and what the store says.
pub(crate) fn snapshot(
    store: &Store,
    workspace: &Dir,
    request: &SnapshotRequest,
    cx: &Context<'_>,
) -> Result<Snapshot> {
    let guard = store.lock(cx)?;
    if store.snapshot(&request.id)?.is_some() {
        let message = format!("there is a snapshot {} already", request.id);
        return Err(Error::new(ErrorKind::AlreadyExists, message));
    }
    let (index, certain) = load_index(store);
    let batch = store.begin(&guard)?;
    let mut scan = scan::scan(workspace.as_fd(), &request.policy, index, store, certain, cx)?;
    scan::read_contents(workspace.as_fd(), &mut scan, &batch, cx)?;
    let tree = build::build(scan, &batch, cx)?;
    let root = tree.root();
    if root.entries > request.policy.max_entries {
        return Err(scan::too_many(request.policy.max_entries));
    }
    let former = tree.scan.index.as_ref().filter(|_| certain).map(Index::header);
    let repository = record_repository(store, &batch, workspace, former, &tree, cx)?;
    let omitted = tree.omitted();
    let state = repository.as_ref().map(|recorded| recorded.state.clone());
    let manifest = Manifest {
        version: manifest::VERSION,
        id: request.id.clone(),
        created: request.created,
        label: request.label.clone(),
        attributes: request.attributes.clone(),
        entries: root.entries,
        omitted_total: omitted.len() as u64,
        repository: state.clone(),
        index_written: repository.as_ref().and_then(|recorded| recorded.index).map(|_| tree.scan.user_index_written()),
    };
    let commit = write_commit(&batch, &tree, &manifest, &omitted, repository.as_ref())?;
    cx.check_cancelled()?;
    batch.publish(&request.id, commit, request.durability)?;

    let user_index_blob = repository.and_then(|recorded| recorded.index).unwrap_or_else(null);
    if save_index(store, tree, &request.id, user_index_blob, cx)
        && let Err(error) = store.index_written(&guard)
    {
        cx.log(LogLevel::Warn, &format!("the next snapshot takes longer: {error}"));
    }
    Ok(Snapshot {
        id: request.id.clone(),
        reference: Reference::new(request.id.as_str())?,
        created: request.created,
        label: request.label.clone(),
        attributes: request.attributes.clone(),
        durability: if store.is_durable(&request.id) { Durability::Durable } else { Durability::Instant },
        tree: Some(tree_id(&root.tree, &root.meta)),
        entries: Some(root.entries),
        omitted_total: manifest.omitted_total,
        omitted,
        repository: state,
        pins: None,
        changed_below: None,
    })
}

/// What [`Snapshot::tree`] is of a data tree and its metadata.
pub(crate) fn tree_id(tree: &oid, meta: &oid) -> ContentId {
    ContentId([tree.as_bytes(), meta.as_bytes()].concat())
}

/// The index, and whether the store has all that it names.
fn load_index(store: &Store) -> (Option<Index>, bool) {
    let index = Index::load(store.folder());
    let certain = index.as_ref().is_some_and(|index| {
        let id = SnapshotId::new(index.header().snapshot.as_str());
        id.is_ok_and(|id| matches!(store.snapshot(&id), Ok(Some(_)))) && store.index_holds()
    });
    (index, certain)
}

/// What was found of the user's repository.
struct Recorded {
    state: RepositoryState,
    index: Option<ObjectId>,
    kept: Option<ObjectId>,
    refs: Option<ObjectId>,
    progress: Option<ObjectId>,
}

fn record_repository(
    store: &Store,
    batch: &Batch<'_>,
    workspace: &Dir,
    former: Option<&Header>,
    tree: &Tree,
    cx: &Context<'_>,
) -> Result<Option<Recorded>> {
    let Some(repository) = Repository::of(workspace) else { return Ok(None) };
    let mut state = repository.state.clone();
    let same = former.filter(|former| {
        former.user_index == tree.scan.user_index && !former.user_index_blob.is_null() && tree.scan.user_index_settled()
    });
    let index = match same {
        Some(former) => Some(former.user_index_blob),
        None => {
            let replaces = former.map(|former| former.user_index_blob).filter(|id| !id.is_null());
            read_user_index(&repository, batch, replaces, cx)?
        }
    };
    let kept = match store.keep(batch, &repository, cx)? {
        Kept::List(id) => Some(id),
        Kept::Not(why) => {
            state.not_kept = Some(why);
            None
        }
    };
    state.first_commit = store.first_commit(&repository, cx)?;
    let refs = repository.refs.as_deref().filter(|_| kept.is_some());
    let refs = refs.map(|refs| batch.object(Kind::Blob, refs, None)).transpose()?;
    let mut progress = Vec::new();
    for (name, text) in &repository.progress() {
        progress.push((name.as_bytes(), "100644", batch.object(Kind::Blob, text, None)?));
    }
    let progress = (!progress.is_empty()).then(|| build::write_top(progress, batch)).transpose()?;
    Ok(Some(Recorded { state, index, kept, refs, progress }))
}

/// The user's index file as a blob; none if there is none that could be used.
fn read_user_index(
    repository: &Repository,
    batch: &Batch<'_>,
    replaces: Option<ObjectId>,
    cx: &Context<'_>,
) -> Result<Option<ObjectId>> {
    match repository.whole_index(batch.scratch_folder()) {
        Ok(Some(whole)) => return batch.object(Kind::Blob, &whole, replaces.as_deref()).map(Some),
        Ok(None) => {}
        // Recorded as it is, so that the clone says why it has none.
        Err(error) => cx.log(LogLevel::Warn, &format!("the repository's index is in the snapshot as it is: {error}")),
    }
    // Git puts a new file in place of the old one, so what was opened stays as it is; others may write into it.
    for _ in 0..3 {
        let (file, size) = match repository.index() {
            Ok(Some((_, size))) if size > ah_rules::LARGEST_INDEX => {
                cx.log(LogLevel::Warn, "the repository's index is not in the snapshot: it is too large");
                return Ok(None);
            }
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(None),
            Err(error) => {
                cx.log(LogLevel::Warn, &format!("the repository's index is not in the snapshot: {}", error.message));
                return Ok(None);
            }
        };
        match batch.blob_from(file.as_fd(), size, replaces.as_deref(), cx)? {
            Ok(Some(id)) => return Ok(Some(id)),
            Ok(None) => {}
            Err(errno) => {
                cx.log(LogLevel::Warn, &format!("the repository's index is not in the snapshot: {errno}"));
                return Ok(None);
            }
        }
    }
    Ok(None)
}

fn write_commit(
    batch: &Batch<'_>,
    tree: &Tree,
    manifest: &Manifest,
    omitted: &[Omission],
    repository: Option<&Recorded>,
) -> Result<ObjectId> {
    let root = tree.root();
    let internal =
        |error: serde_json::Error| Error::new(ErrorKind::Internal, "cannot write a manifest").with_cause(&error);
    let json = serde_json::to_vec(manifest).map_err(internal)?;
    let manifest_id = batch.object(Kind::Blob, &json, None)?;
    let mut entries = vec![
        (manifest::TREE, "40000", root.tree),
        (manifest::META, if root.meta_is_tree { "40000" } else { "100644" }, root.meta),
        (manifest::MANIFEST, "100644", manifest_id),
    ];
    if !omitted.is_empty() {
        let mut lines = Vec::new();
        for omission in omitted {
            serde_json::to_writer(&mut lines, omission).map_err(internal)?;
            lines.push(b'\n');
        }
        entries.push((manifest::OMITTED, "100644", batch.object(Kind::Blob, &lines, None)?));
    }
    if let Some(recorded) = repository {
        entries.extend(recorded.index.map(|id| (manifest::INDEX, "100644", id)));
        entries.extend(recorded.kept.map(|id| (KEPT.as_bytes(), "100644", id)));
        entries.extend(recorded.refs.map(|id| (manifest::REFS, "100644", id)));
        entries.extend(recorded.progress.map(|id| (manifest::PROGRESS, "40000", id)));
    }
    let top = build::write_top(entries, batch)?;
    let secs = manifest.created.secs;
    let message = manifest.label.as_deref().unwrap_or(manifest.id.as_str());
    let commit = format!(
        "tree {top}\nauthor ah <ah@localhost> {secs} +0000\ncommitter ah <ah@localhost> {secs} +0000\n\n{message}\n"
    );
    batch.object(Kind::Commit, commit.as_bytes(), None)
}

/// Saves what the scan saw for the next one. That may fail: then the next one sees for itself. Whether it was saved.
fn save_index(store: &Store, mut tree: Tree, id: &SnapshotId, user_index_blob: ObjectId, cx: &Context<'_>) -> bool {
    let scan = &tree.scan;
    let header = Header {
        started: scan.started,
        boot: scan.boot,
        device: scan.device,
        rules: scan.rules.fingerprint(),
        user_index: scan.user_index,
        user_index_blob,
        snapshot: id.as_str().to_owned(),
    };
    let result = tree.save_index(store.folder(), &header);
    if let Err(error) = result {
        cx.log(LogLevel::Warn, &format!("cannot save the index, the next snapshot takes longer: {error}"));
    }
    result.is_ok()
}

/// A workspace as it is now, in the form of a snapshot that nobody keeps.
///
/// `tree` and `meta` are what a snapshot taken now would have, so what is not captured now is not in them. Directories that did not change since the last
/// snapshot are objects of the store, all others are in `objects`; contents of files that changed are in neither (only
/// their ids are known). So a reader asks [`Live::get`] first, then the store.
#[derive(Debug)]
pub(crate) struct Live {
    /// The data tree.
    pub(crate) tree: ObjectId,
    /// The metadata beside it: a blob or a tree, see [`crate::meta`].
    pub(crate) meta: ObjectId,
    objects: Objects,
}

impl Live {
    /// A tree or meta object that the store need not have.
    pub(crate) fn get(&self, id: &oid) -> Option<(Kind, Arc<[u8]>)> {
        self.objects.get(id).cloned()
    }
}

/// Looks at the workspace as it is now: at the cost of a scan, reading only files that changed since the private index was
/// written. Writes nothing, anywhere, and takes no lock.
///
/// # Errors
/// Those of [`snapshot`], but for the store's lock.
pub(crate) fn live(store: &Store, workspace: &Dir, policy: &CapturePolicy, cx: &Context<'_>) -> Result<Live> {
    let (index, certain) = load_index(store);
    let mut memory = Memory::default();
    let mut scan = scan::scan(workspace.as_fd(), policy, index, store, certain, cx)?;
    scan::read_contents(workspace.as_fd(), &mut scan, &memory, cx)?;
    memory.keep_blobs();
    let tree = build::build(scan, &memory as &dyn Sink, cx)?;
    let root = tree.root();
    if root.entries > policy.max_entries {
        return Err(scan::too_many(policy.max_entries));
    }
    Ok(Live { tree: root.tree, meta: root.meta, objects: memory.into_objects() })
}
