//! Views: a snapshot is shown where it is. What is made is a record that says so, and nobody removes a snapshot that has one.

use std::time::{Duration, Instant};

use ah_plugin_api::{Dir, Error, ErrorKind, MountRequest, Reference, Result, View};
use ah_provider_directory::{How, Process, Use, Views, look};

use crate::depot::Depot;
use crate::shelf::{Shelf, no_snapshot};

/// How long it waits for those who are about to leave.
const PATIENCE: Duration = Duration::from_millis(500);

const PAUSE: Duration = Duration::from_millis(20);

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
    let views = shelf.views()?;
    let _held = shelf.hold(&shown.record.id)?;
    let reference = views.add(target, &request.name, &shown.record.id)?;
    // Removed meanwhile? Whoever removes looks at the views after that.
    if let Err(error) = shelf.get(&request.snapshot) {
        views.remove(&reference)?;
        return Err(if error.kind == ErrorKind::NotFound { no_snapshot(&request.snapshot) } else { error });
    }
    Ok(View { path: shelf.path(&shown.record), reference, read_only_mount: true })
}

/// Answers [`ah_plugin_api::Provider::unmount`]. What is left of other views of the snapshot goes on showing it, so only with the last one it
/// matters who looks.
pub(crate) fn take_away(store: &Dir, view: &Reference) -> Result<()> {
    let Some(depot) = Depot::find(store)? else { return Ok(()) };
    let Some(made) = depot.folder("made")? else { return Ok(()) };
    let views = Views::new(made);
    if let Some(id) = views.snapshot(view)
        && views.of(&id)? == 1
        && let Ok((_, shown)) = Shelf::find(store, &Reference::new(id.as_str())?)
    {
        refuse_if_used(&shown.root)?;
    }
    views.remove(view)
}

/// `Busy` if another process uses something in that snapshot. Each has a device number of its own, by whichever path it is looked at.
fn refuse_if_used(root: &impl std::os::fd::AsFd) -> Result<()> {
    let Ok(root) = look(root, b"") else { return Ok(()) };
    let inside = |used: &Use| {
        let device = |stat: rustix::fs::Statx| (stat.stx_dev_major, stat.stx_dev_minor);
        used.how != How::Maps && used.stat().is_some_and(|stat| device(stat) == device(root))
    };
    let began = Instant::now();
    loop {
        let holder = Process::others().find_map(|process| process.uses(inside).map(|used| (process, used)));
        let Some((process, used)) = holder else { return Ok(()) };
        if began.elapsed() >= PATIENCE {
            let message = format!("the view is in use by process {process}: {used}");
            return Err(
                Error::new(ErrorKind::Busy, message).with_hint(format!("end it, then repeat: kill {}", process.pid))
            );
        }
        std::thread::sleep(PAUSE);
    }
}
