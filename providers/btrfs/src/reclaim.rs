//! Finishing what removals began, undoing what crashes left.

use ah_plugin_api::text::count as counted;
use ah_plugin_api::{Context, Error, ErrorKind, Place, ReclaimRequest, Reclaimed, Reference, Result};
use ah_provider_directory::{failed, names};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::depot::Depot;
use crate::remove::Mounted;
use crate::shelf::Shelf;
use crate::view::Recorded;
use crate::{convert, elsewhere, made, removal};

/// How long the background empties the trash without coming up for air.
const TURN: Duration = Duration::from_millis(250);

/// The shortest time between two removals: in the background, and where somebody waits for it.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(2));

/// Answers [`ah_plugin_api::Provider::reclaim`].
pub(crate) fn reclaim(place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
    // What cannot be finished now keeps nothing else; it is told in the end.
    let converted = convert::reclaim(place, cx);
    let mut actions = converted.as_ref().map(|converted| converted.actions.clone()).unwrap_or_default();
    if !request.auto {
        let count = elsewhere::clear(place.store)?;
        if count > 0 {
            actions.push(format!(
                "took away what was left of {}",
                counted(count, "unfinished folder of snapshots", "unfinished folders of snapshots")
            ));
        }
    }
    let mounted = Mounted::default();
    let Some(depot) = Depot::find(place.store)? else {
        return converted.map(|converted| Reclaimed { actions, ..converted });
    };
    if let Some(target) = place.target {
        if let Some(shelf) = Shelf::open(place.store)? {
            let count = Recorded::of(&shelf)?.forget(target, &request.forgotten)?;
            if count > 0 {
                actions.push(format!("forgot {} that nobody asked for any more", counted(count, "view", "views")));
            }
        }
        actions.extend(made::reclaim(&depot, target, &request.forgotten, &mounted, cx)?);
    }
    if let Some(snapshots) = depot.folder("snapshots")? {
        let count = removal::clear_unfinished(snapshots.as_fd(), cx)?;
        if count > 0 {
            actions.push(format!(
                "took away what was left of {}",
                counted(count, "unfinished snapshot", "unfinished snapshots")
            ));
        }
    }
    let mut failed = None;
    if let Some(shelf) = Shelf::open(place.store)? {
        match shelf.finish_removals(&mounted, cx) {
            Ok(0) => {}
            Ok(count) => actions.push(format!("finished the removal of {}", counted(count, "snapshot", "snapshots"))),
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(trash) = depot.folder("trash")? {
        let (count, error) = empty(trash.as_fd(), request.auto, &mounted, cx)?;
        if count > 0 {
            actions.push(format!(
                "gave back the space of {}",
                counted(count, "removed snapshot or clone", "removed snapshots and clones")
            ));
        }
        failed = failed.or(error);
    }
    if !request.auto {
        // By itself the kernel begins within half a minute to give back what was removed, which is long on a full disk; also what was removed
        // by others, without the trash.
        depot.give_back();
    }
    if let Some(error) = failed.filter(|_| actions.is_empty() || !request.auto) {
        return Err(error);
    }
    if !request.auto && depot.remove_if_empty(place.store) {
        actions.push("took away the empty folder of snapshots".to_owned());
    }
    let held = held(&depot)?;
    converted.map(|converted| Reclaimed { actions, held, ..converted })
}

/// The clones that lie in the depot, whether anything is written down of them or not.
fn held(depot: &Depot) -> Result<Vec<Reference>> {
    let Some(clones) = depot.folder("clones")? else { return Ok(Vec::new()) };
    let names = names(clones.as_fd()).map_err(|errno| failed("cannot look for clones", errno))?;
    names.iter().map(|name| Reference::new(String::from_utf8_lossy(name))).collect()
}

/// Removes what is in the trash; with `auto` only as much as a short time allows. How many, and the first error: what cannot be removed
/// keeps none of the others.
///
/// Whoever takes a snapshot meanwhile waits for one removal at most: the kernel does one or the other. And each commit has to carry what
/// was removed before it, so there are pauses as long as the work between them.
fn empty(trash: BorrowedFd<'_>, auto: bool, mounted: &Mounted, cx: &Context<'_>) -> Result<(u64, Option<Error>)> {
    let names = names(trash).map_err(|errno| failed("cannot look into the trash", errno))?;
    let total = names.len() as u64;
    let pause = if auto { PAUSES.0 } else { PAUSES.1 };
    let (began, mut count, mut first_error) = (Instant::now(), 0, None);
    for (done, name) in (0..).zip(&names) {
        cx.progress("removing", done, Some(total));
        cx.check_cancelled()?;
        let one = Instant::now();
        match removal::discard(trash, name, mounted, cx) {
            Ok(()) => count += 1,
            Err(error) => drop(first_error.get_or_insert(error)),
        }
        if auto && began.elapsed() >= TURN {
            break;
        }
        if done + 1 < total {
            std::thread::sleep(one.elapsed().clamp(pause, 10 * pause));
        }
    }
    Ok((count, first_error))
}
