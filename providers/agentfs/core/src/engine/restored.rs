//! A lower directory that was lost, and brought back by copying: it is told by what is known of the one that was there, and is taken for that from then on.
//!
//! Branches show the copies then. Snapshots do not know them for what they were, as their times of change are later than the base, and show of them nothing else under
//! their names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::engine::{Engine, Opening, Options, Remembered, hash_of_target, write_format};
use crate::error::Result;
use crate::lower::join;
use crate::read_lock;
use crate::rows::key::LineId;
use crate::types::Kind;

/// Has a store that is not open grow from another lower directory, if that holds what is known of the one from which a branch grew. Gives the paths at which it does
/// not: then all is as before. The root is one where nothing is known.
pub(crate) fn take_restored(directory: &Path, lower: &Path, branch: LineId) -> Result<Vec<Vec<u8>>> {
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::open(directory, lower, options, Opening::Restored)?;
    let base = read_lock(&engine.state).chain(branch)?.base;
    let mut others = Vec::new();
    let mut after = None;
    while let Some((path, row)) = engine.next_remembered(base, after.as_deref())? {
        // The first one is the root, if that is known.
        if after.is_none() && !path.is_empty() {
            break;
        }
        engine.compare_restored(base, &path, &Remembered::decode(&row)?, &mut others)?;
        after = Some(path);
    }
    if after.is_none() {
        others.push(Vec::new());
    }
    if others.is_empty() {
        write_format(directory, &engine.lower.identity())?;
    }
    Ok(others)
}

impl Engine {
    /// Adds what is other in a directory than it was when the base was taken: a name that came or went, a file or link that holds something else.
    fn compare_restored(&self, base: LineId, path: &[u8], then: &Remembered, others: &mut Vec<Vec<u8>>) -> Result<()> {
        let Some((_, names, _)) = self.look_in(path) else {
            others.push(path.to_vec());
            return Ok(());
        };
        let now: BTreeMap<_, _> = names.iter().map(|(name, _, kind)| (name.as_slice(), *kind)).collect();
        let was: BTreeMap<_, _> = then.names.iter().map(|(name, _, kind)| (name.as_slice(), *kind)).collect();
        others.extend(now.keys().filter(|name| !was.contains_key(*name)).map(|name| join(path, name)));
        for (name, kind) in was {
            let below = join(path, name);
            if now.get(name) != Some(&kind) || !self.holds_what_it_held(base, &below, kind, then)? {
                others.push(below);
            }
        }
        Ok(())
    }

    /// Whether a file or link holds what it held in that directory, as far as that is known. One that cannot be read does not.
    fn holds_what_it_held(&self, base: LineId, path: &[u8], kind: Kind, above: &Remembered) -> Result<bool> {
        let print = self.fingerprint(base, path)?.filter(|(_, of)| *of == (above.ino, above.birth));
        let Some((print, _)) = print else { return Ok(true) };
        Ok(match kind {
            Kind::Symlink => matches!(self.lower.target(path), Ok(Some(now)) if hash_of_target(&now) == print.hash),
            Kind::File => match self.lower.open_file(path) {
                Ok(Some(file)) => {
                    matches!(self.hash_of(&file), Ok(Some((now, hash))) if (now.size, hash) == (print.size, print.hash))
                }
                _ => false,
            },
            _ => false,
        })
    }
}
