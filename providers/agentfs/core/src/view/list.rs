//! Directories: the names of our own over those below.

use std::collections::BTreeMap;

use crate::engine::LOWER;
use crate::error::{Error, Result};
use crate::lower::Listed;
use crate::read_lock;
use crate::rows::key;
use crate::rows::value::Entry;
use crate::types::{DirEntry, Ino, Kind};
use crate::view::View;

impl View {
    /// All names in a directory, without `.` and `..`, by rising cookie. A cookie depends on the name alone (3 or more, below
    /// 2^63), so that a host that goes on behind one in a later list misses nothing that was there all the time and shows nothing
    /// twice, whatever came and went in between. Costs the directory.
    pub fn list(&self, directory: Ino) -> Result<Vec<DirEntry>> {
        if self.node(directory)?.inode.kind != Kind::Directory {
            return Err(Error::NotDirectory);
        }
        let names = self.names_in(directory, None)?;
        let mut entries: Vec<_> = names
            .into_iter()
            .map(|(name, Entry { ino, kind, .. })| DirEntry { cookie: cookie(&name), ino, kind, name })
            .collect();
        entries.sort_unstable_by(|one, other| (one.cookie, &one.name).cmp(&(other.cookie, &other.name)));
        let mut last = 2;
        for entry in &mut entries {
            entry.cookie = entry.cookie.max(last + 1);
            last = entry.cookie;
        }
        Ok(entries)
    }

    /// The names and what they lead to. `path`: where it is below, if the host does not know the directory.
    pub(super) fn names_in(&self, directory: Ino, path: Option<&[u8]>) -> Result<BTreeMap<Vec<u8>, Entry>> {
        let below = match path {
            Some(path) if self.seen(&key::inode(directory))?.is_none() => Some(path.to_vec()),
            _ => self.below(directory)?,
        };
        let mut names = BTreeMap::new();
        if let Some(below) = below {
            let names_then = || Ok(self.then_of(directory, &below)?.map(|then| then.names.clone()));
            for (name, ino, kind) in self.or_then(self.names_below(directory, &below), names_then)? {
                names.insert(name, Entry { ino: LOWER | (ino & (LOWER - 1)), kind, hides: true });
            }
        }
        let rows = read_lock(&self.engine.state).all_seen(&key::stem(b'd', directory), self.view())?;
        for (stem, row) in rows {
            let name = key::name(&stem);
            match Entry::decode(&row)? {
                Some(entry) => names.insert(name.to_vec(), entry),
                None => names.remove(name),
            };
        }
        Ok(names)
    }

    fn names_below(&self, directory: Ino, below: &[u8]) -> Result<Vec<Listed>> {
        let listed = self.engine.lower.list(below)?;
        self.judge_directory(directory, below)?;
        if self.is_isolated()
            && let Some(names) = self.isolated_names(directory, below, &listed)?
        {
            return Ok(names);
        }
        self.hear_of_names(below, &listed)?;
        if self.at.is_none() {
            return Ok(listed);
        }
        // What came there later is not shown, and what went is a name still.
        Ok(self.changed_names(directory, below)?.map_or(listed, |remembered| remembered.names.clone()))
    }
}

/// FNV-1a with its bits mixed, as 63 bits.
fn cookie(name: &[u8]) -> u64 {
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1
}
