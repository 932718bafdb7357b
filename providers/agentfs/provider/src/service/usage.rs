//! The space that snapshots hold.

use std::collections::BTreeSet;

use ah_plugin_api::{ErrorKind, Place, Reference, Result};

use super::{Service, fail, lock};

impl Service {
    /// Bytes that removing these snapshots would free; without any, what all that is the store's own takes. Pins, and what keeps names and attributes, are not
    /// counted.
    pub(super) fn held(&self, place: &Place<'_>, snapshots: &[Reference]) -> Result<u64> {
        let (open, shelf) = match self.need(place.store) {
            Err(error) if error.kind == ErrorKind::NotFound && lock(&self.closed).is_none() => return Ok(0),
            other => other?,
        };
        let numbers = |wanted: &dyn Fn(&str, &str) -> bool| -> Vec<_> {
            let known = lock(&open.known);
            let wanted = known.iter().filter(|((shelf, id), _)| wanted(shelf, id.as_str()));
            wanted.filter_map(|(_, known)| known.number).collect()
        };
        let asked: BTreeSet<&str> = snapshots.iter().map(Reference::as_str).collect();
        let is_own = |of: &str| of == shelf.key;
        let (all, numbers) = if !asked.is_empty() {
            (None, numbers(&|of, id| is_own(of) && asked.contains(id)))
        } else if shelf.home.is_some() {
            (None, numbers(&|of, _| is_own(of)))
        } else {
            // What snapshots in branches hold is counted with those.
            (Some(open.tree.used()), numbers(&|of, _| !is_own(of)))
        };
        let held = open.tree.usage(&numbers).map_err(|e| fail("cannot find out what snapshots hold", &e))?;
        Ok(all.map_or(held, |all| all.saturating_sub(held)))
    }
}
