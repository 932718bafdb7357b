//! Views, and reading without one: the kernel shows every snapshot at `.zfs/snapshot/<name>` of its dataset's root, whether that
//! directory is listed or not, and nobody can write there.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ah_plugin_api::text::shell;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, MountRequest, Reference, Result, UnmountRequest, View};
use ah_provider_directory::{Tree, refuse_if_used};

use crate::find::{self, Found};
use crate::locate;
use crate::store::Store;
use crate::sys::{Text, Zfs};

/// Opens what a snapshot has of the workspace; its path too, for answers.
pub(crate) fn open(found: &Found) -> Result<(Tree, PathBuf)> {
    let (dir, path) = directory(found)?;
    let omitted = found.record.snapshot.omitted.iter().map(|omission| omission.path.clone());
    Ok((Tree::new(dir).hiding(omitted), path))
}

/// Opens the directory of a snapshot that is the workspace's.
pub(crate) fn directory(found: &Found) -> Result<(OwnedFd, PathBuf)> {
    let Some(mounted) = locate::dataset(&found.dataset)? else { return Err(not_mounted(&found.dataset)) };
    mounted.must_show_snapshots()?;
    mounted.open_snapshot(&found.full, &found.record.rel)
}

/// Why a dataset is not mounted, and what would help.
fn not_mounted(dataset: &str) -> Error {
    if let Some(error) = without_key(dataset) {
        return error;
    }
    let word = shell(dataset.as_ref());
    let hint = match property(dataset, Text::Mountpoint).as_deref() {
        Some(b"legacy") => format!("its mountpoint is legacy: mount -t zfs {word} DIR"),
        Some(b"none") => format!("it has no mountpoint: zfs set mountpoint=DIR {word}"),
        _ => format!("zfs mount {word}"),
    };
    let message = format!("the dataset {dataset} is not mounted, so its snapshots are not to be seen");
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint)
}

/// The error for an encrypted dataset whose key is not loaded; none for any other.
pub(crate) fn without_key(dataset: &str) -> Option<Error> {
    let message = format!("the key of the dataset {dataset} is not loaded");
    let word = shell(dataset.as_ref());
    let hint = format!("zfs load-key {word} && zfs mount {word}");
    let locked = property(dataset, Text::KeyStatus).as_deref() == Some(b"unavailable");
    locked.then(|| Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint))
}

fn property(dataset: &str, text: Text) -> Option<Vec<u8>> {
    let zfs = Zfs::get().ok()?;
    find::open_dataset(&zfs, dataset).ok()??.text(text)
}

/// Answers [`ah_plugin_api::Provider::mount`]: nothing is mounted by us; that the view is there is written down, so that its snapshot is
/// not destroyed under it.
pub(crate) fn mount(store: &Store<'_>, target: &Dir, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
    // Who destroys it looks for views first, and nobody adds one from there on.
    let _lock = store.lock_views(false, cx)?;
    let found = find::snapshot(store, &request.snapshot)?;
    let (tree, path) = open(&found)?;
    for wanted in &request.paths {
        if tree.entry(wanted)?.is_none() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{wanted} is not in the snapshot {}", request.snapshot),
            ));
        }
    }
    let reference = store.views()?.add(target, &request.name, &found.record.snapshot.id)?;
    Ok(View { path, reference, read_only_mount: true })
}

/// Answers [`ah_plugin_api::Provider::unmount`]. What is left of other views of the snapshot goes on showing it, so only with the last one
/// it matters who looks.
pub(crate) fn unmount(store: &Store<'_>, request: &UnmountRequest) -> Result<()> {
    let (views, view) = (store.views()?, &request.view);
    if !request.unused
        && let Some(id) = views.snapshot(view)
        && views.of(&id)? == 1
        && let Ok(found) = find::snapshot(store, &Reference::new(id.as_str())?)
        && let Ok((dir, _)) = directory(&found)
    {
        refuse_if_used(&dir)?;
    }
    views.remove(view)
}
