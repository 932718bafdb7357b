//! Views: a snapshot is shown where it is. What is made is a record that says so, and nobody removes a snapshot that has one.

use std::os::fd::OwnedFd;

use ah_plugin_api::{Dir, Error, ErrorKind, MountRequest, Reference, Result, UnmountRequest, View};
use ah_provider_directory::{Mounts, Views, refuse_if_used};
use rustix::io::Errno;

use crate::shelf::{Shelf, no_snapshot};

/// Answers [`ah_plugin_api::Provider::mount`].
pub(crate) fn make(store: &Dir, target: &Dir, request: &MountRequest) -> Result<View> {
    let (shelf, shown) = Shelf::find(store, &request.snapshot)?;
    if !request.paths.is_empty() {
        let tree = shown.tree()?;
        for path in &request.paths {
            if tree.entry(path)?.is_none() {
                return Err(Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}")));
            }
        }
    }
    let _held = shelf.hold(&shown.record.id)?;
    let reference = match shelf.views.add(target, &request.name, &shown.record.id) {
        // Nobody can remove the snapshot, so nobody has to know of the view, which can be written down nowhere: its disk fell ill, say.
        Err(error) if error.errno == Some(Errno::ROFS.raw_os_error()) && is_read_only(&shown.root)? => {
            Views::reference(target, &request.name)?
        }
        reference => reference?,
    };
    // Removed before it was held? Whoever removes it holds it alone.
    if let Err(error) = shelf.get(&request.snapshot) {
        shelf.views.remove(&reference)?;
        return Err(if error.kind == ErrorKind::NotFound { no_snapshot(&request.snapshot) } else { error });
    }
    Ok(View { path: shelf.path(&shown.record), reference, read_only_mount: true })
}

/// Whether nothing on the filesystem can be changed, by whichever mount of it.
fn is_read_only(root: &OwnedFd) -> Result<bool> {
    Ok(Mounts::read()?.of(root).is_some_and(|mount| mount.has_super_option("ro")))
}

/// Answers [`ah_plugin_api::Provider::unmount`]. What is left of other views of the snapshot goes on showing it, so only with the last one it
/// matters who looks.
pub(crate) fn take_away(store: &Dir, request: &UnmountRequest) -> Result<()> {
    let (views, view) = (Views::in_folder(store)?, &request.view);
    if !request.unused
        && let Some(id) = views.snapshot(view)
        && views.of(&id)? == 1
        && let Ok((_, shown)) = Shelf::find(store, &Reference::new(id.as_str())?)
    {
        refuse_if_used(&shown.root)?;
    }
    views.remove(view)
}
