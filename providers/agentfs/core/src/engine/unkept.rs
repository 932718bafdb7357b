//! What is below and was not kept behind a base: its branches read it there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::fingerprints::{Fingerprints, row_from};
use super::remembered::Remembered;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::join;
use crate::rows::key::LineId;
use crate::types::Kind;
use crate::{lock, read_lock};

/// So many paths are found of a base.
const MOST: usize = 1000;

/// By base, where no more is being kept.
pub(super) type Unkept = HashMap<LineId, Arc<[Vec<u8>]>>;

impl Engine {
    /// Paths of files, and of repositories' stores of objects, the first 1000. Costs looking for all pins of a base, the first time.
    pub(crate) fn not_kept(&self, base: LineId) -> Result<Arc<[Vec<u8>]>> {
        if let Some(known) = lock(&self.not_kept).get(&base) {
            return Ok(known.clone());
        }
        let mut paths: Vec<_> = self.stores(base)?.into_iter().map(|(store, _)| store).collect();
        let mut next = self.next_remembered(base, None)?;
        while let Some((above, row)) = next.filter(|_| paths.len() < MOST) {
            if self.is_stopped() {
                return Err(Error::Busy("the store is being closed"));
            }
            let kept = self.kept_in(base, &above)?;
            let names = Remembered::decode(&row)?.names.into_iter();
            let files = names.filter(|(_, _, kind)| matches!(kind, Kind::File)).map(|(name, ..)| name);
            paths.extend(files.filter(|name| !kept.contains(name)).map(|name| join(&above, &name)));
            next = self.next_remembered(base, Some(&above))?;
        }
        paths.truncate(MOST);
        let paths: Arc<[_]> = paths.into();
        lock(&self.not_kept).insert(base, paths.clone());
        Ok(paths)
    }

    /// The files of a directory that are pinned, by name.
    fn kept_in(&self, base: LineId, directory: &[u8]) -> Result<HashSet<Vec<u8>>> {
        let rows = read_lock(&self.state).layers.prefix(&row_from(base, directory, b""))?;
        let mut kept = HashSet::new();
        for (_, row) in rows {
            let files = Fingerprints::decode(&row)?.into_files();
            kept.extend(
                files.filter(|file| self.pins.is_there(Kind::File, &file.hash, file.size)).map(|file| file.name),
            );
        }
        Ok(kept)
    }
}
