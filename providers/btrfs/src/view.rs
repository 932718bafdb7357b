//! Views: a snapshot is shown where it is. What is made is a record that says so, and nobody removes a snapshot that has one.

use std::os::fd::OwnedFd;

use ah_plugin_api::{
    Dir, Error, ErrorKind, FileName, MountRequest, Reference, Result, SnapshotId, UnmountRequest, View,
};
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
    let (name, id) = (&request.name, &shown.record.id);
    let added = shelf.depot.made_folder("made").map(Views::new).and_then(|made| made.add(target, name, id));
    let said = |error: &Error| error.errno.map(Errno::from_raw_os_error);
    let reference = match added {
        Err(error) if matches!(said(&error), Some(Errno::NOSPC | Errno::DQUOT)) => shelf.aside.add(target, name, id)?,
        // Nobody can remove the snapshot, so nobody has to know of the view, which can be written down nowhere: its disk fell ill, say.
        Err(error) if said(&error) == Some(Errno::ROFS) && is_read_only(&shown.root)? => {
            Views::reference(target, name)?
        }
        reference => reference?,
    };
    // Removed before it was held? Whoever removes it holds it alone.
    if let Err(error) = shelf.get(&request.snapshot) {
        Recorded::of(&shelf)?.remove(&reference)?;
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
    let (Some(shelf), view) = (Shelf::open(store)?, &request.view) else { return Ok(()) };
    let views = Recorded::of(&shelf)?;
    if !request.unused
        && let Some(id) = views.snapshot(view)
        && views.count(&id)? == 1
        && let Ok((_, shown)) = Shelf::find(store, &Reference::new(id.as_str())?)
    {
        refuse_if_used(&shown.root)?;
    }
    views.remove(view)
}

/// The records of views that there are: in the depot, where whoever has a store that leads there sees them, and those for which that had no room.
pub(crate) struct Recorded<'a> {
    made: Option<Views>,
    aside: &'a Views,
}

impl<'a> Recorded<'a> {
    pub(crate) fn of(shelf: &'a Shelf) -> Result<Self> {
        Ok(Self { made: shelf.depot.folder("made")?.map(Views::new), aside: &shelf.aside })
    }

    /// How many show that snapshot.
    pub(crate) fn count(&self, id: &SnapshotId) -> Result<usize> {
        self.all().try_fold(0, |count, views| Ok(count + views.of(id)?))
    }

    /// Forgets those that nobody asked for any more, and says how many.
    pub(crate) fn forget(&self, target: &Dir, forgotten: &[FileName]) -> Result<usize> {
        self.all().try_fold(0, |count, views| Ok(count + views.forget(target, forgotten)?))
    }

    fn snapshot(&self, view: &Reference) -> Option<SnapshotId> {
        self.all().find_map(|views| views.snapshot(view))
    }

    fn remove(&self, view: &Reference) -> Result<()> {
        self.all().try_for_each(|views| views.remove(view))
    }

    fn all(&self) -> impl Iterator<Item = &Views> {
        self.made.iter().chain([self.aside])
    }
}
