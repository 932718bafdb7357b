//! What a provider says that is well formed, and not so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use ah_conformance::MemoryProvider;
use ah_plugin_api::{
    Changes, ContentId, Context, Lost, Place, Provider, RelPath, Result, SnapshotRef, Usage, UsageRequest,
};

use super::{Fault, walk};

/// What the trees of a provider with that fault are told apart by; none where it does not tell.
pub(super) fn tree(fault: Fault, at: &Path) -> Option<ContentId> {
    if !matches!(
        fault,
        Fault::TreesAreWhole
            | Fault::TreesLackModes
            | Fault::TreesLackTimes
            | Fault::TreesLackTargets
            | Fault::TreesLackEmptyDirectories
            | Fault::TreesLackWhatDirectoriesAre
    ) {
        return None;
    }
    let mut all = walk(at);
    all.sort();
    let mut hasher = DefaultHasher::new();
    for path in all {
        let meta = path.symlink_metadata().unwrap();
        let is_empty = meta.is_dir() && std::fs::read_dir(&path).unwrap().next().is_none();
        if is_empty && fault == Fault::TreesLackEmptyDirectories {
            continue;
        }
        path.hash(&mut hasher);
        if meta.is_dir() && fault == Fault::TreesLackWhatDirectoriesAre {
            continue;
        }
        if fault != Fault::TreesLackModes {
            meta.permissions().mode().hash(&mut hasher);
        }
        if fault != Fault::TreesLackTimes {
            (meta.mtime(), meta.mtime_nsec()).hash(&mut hasher);
        }
        if meta.is_symlink() && fault != Fault::TreesLackTargets {
            std::fs::read_link(&path).unwrap().hash(&mut hasher);
        }
        if meta.is_file() {
            std::fs::read(&path).unwrap().hash(&mut hasher);
        }
    }
    Some(ContentId(hasher.finish().to_be_bytes().to_vec()))
}

/// Makes of true changes what a provider with that fault tells.
pub(super) fn tell(fault: Fault, told: &mut Changes) {
    match fault {
        Fault::DiffGoesByAttributes => told.changes.retain(|change| {
            let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
            let of = |entry: &ah_plugin_api::Entry| (entry.kind, entry.mode, entry.size, entry.mtime);
            of(before) != of(after)
        }),
        Fault::DiffLosesAll => {
            told.lost = told.changes.iter().map(|change| Lost { path: change.path.clone(), absent: false }).collect();
        }
        Fault::DiffReadsNothing => told.unread = vec![RelPath::root()],
        Fault::RepositoryIsUntouched => {
            let git = RelPath::new(".git").unwrap();
            told.untouched |=
                !told.changes.is_empty() && told.changes.iter().all(|change| change.path.starts_with(&git));
        }
        _ => {}
    }
}

/// What a provider with that fault says is in use.
pub(super) fn usage(
    fault: Fault,
    inner: &MemoryProvider,
    place: &Place<'_>,
    request: &UsageRequest,
    cx: &Context<'_>,
) -> Result<Usage> {
    let mut request = request.clone();
    let is_there = |snapshot: &ah_plugin_api::Reference| {
        inner.stat(place, &SnapshotRef { snapshot: snapshot.clone() }, cx).is_ok()
    };
    match fault {
        Fault::UsageIsTheSameForAny if request.snapshots.iter().any(is_there) => {
            return Ok(Usage { bytes: Some(1 << 20) });
        }
        Fault::UsageIsOfTheFirst => request.snapshots.truncate(1),
        _ => {}
    }
    inner.usage(place, &request, cx)
}
