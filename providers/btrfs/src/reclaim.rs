//! Finishing what removals began, undoing what crashes left.

use ah_plugin_api::{Context, Place, ReclaimRequest, Reclaimed, Result};
use ah_provider_directory::{Views, failed, names};
use std::os::fd::AsFd;

use crate::depot::Depot;
use crate::{convert, made, shelf};

/// Answers [`ah_plugin_api::Provider::reclaim`].
pub(crate) fn reclaim(place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
    // What cannot be finished now keeps nothing else; it is told in the end.
    let converted = convert::reclaim(place.store, cx);
    let mut actions = converted.as_ref().ok().cloned().unwrap_or_default();
    let Some(depot) = Depot::find(place.store)? else {
        return converted.map(|actions| Reclaimed { actions, bytes: 0 });
    };
    if let Some(target) = place.target {
        if let Some(made) = depot.folder("made")? {
            let count = Views::new(made).forget(target, &request.forgotten)?;
            if count > 0 {
                actions.push(format!("forgot {count} views that nobody asked for any more"));
            }
        }
        actions.extend(made::reclaim(&depot, target, &request.forgotten, cx)?);
    }
    if let Some(snapshots) = depot.folder("snapshots")? {
        let count = shelf::clear_unfinished(snapshots.as_fd(), cx)?;
        if count > 0 {
            actions.push(format!("took away what was left of {count} snapshots that were not finished"));
        }
    }
    if let Some(trash) = depot.folder("trash")? {
        let names = names(trash.as_fd()).map_err(|errno| failed("cannot look into the trash", errno))?;
        let total = names.len() as u64;
        let mut first_error = None;
        for (done, name) in (0..).zip(&names) {
            cx.progress("removing", done, Some(total));
            cx.check_cancelled()?;
            // One that cannot be removed keeps none of the others.
            match shelf::discard(trash.as_fd(), name, cx) {
                Ok(()) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        if total > 0 {
            actions.push(format!("gave back the space of {total} removed snapshots and clones"));
        }
    }
    if !request.auto && depot.remove_if_empty(place.store) {
        actions.push("took away the empty folder of snapshots".to_owned());
    }
    converted.map(|_| Reclaimed { actions, bytes: 0 })
}
