//! The space that snapshots hold.

use std::collections::BTreeSet;

use ah_plugin_api::{Context, Place, Reference, Result};

use super::{Service, fail, lock};

impl Service {
    /// Bytes that removing these snapshots of a store would free, or all of it. Pins, and what keeps names and attributes, are not counted.
    pub(super) fn held(&self, place: &Place<'_>, snapshots: &[Reference], cx: &Context<'_>) -> Result<u64> {
        let Some((open, shelf)) = self.kept(place.store, cx)? else { return Ok(0) };
        let asked: BTreeSet<&str> = snapshots.iter().map(Reference::as_str).collect();
        let is_asked = |id: &str| asked.is_empty() || asked.contains(id);
        let numbers: Vec<_> = {
            let known = lock(&open.known);
            let asked = known.iter().filter(|((of, id), _)| *of == shelf.key && is_asked(id.as_str()));
            asked.filter_map(|(_, known)| known.number).collect()
        };
        open.tree.usage(&numbers).map_err(|e| fail("cannot find out what snapshots hold", &e))
    }
}
