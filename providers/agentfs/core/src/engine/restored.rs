//! A lower directory that was lost, and brought back by copying: it is told by what is known of the one that was there, and is taken for that from then on.
//!
//! Branches show the copies then. Snapshots, also those that are taken later, do not know them for what they were, as their times of change are later than the base, and
//! show of them nothing but their names.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::engine::{Engine, Opening, Options, Remembered, hash_of_target, write_format};
use crate::error::{Error, Result};
use crate::lower::{Found, join};
use crate::read_lock;
use crate::rows::key::LineId;
use crate::types::Kind;

/// What a comparison found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The paths at which the directory does not hold what is known, or at which too little is known: the root (empty) where nothing is, and directories whose names
    /// were not written down. If there is one, all is as before.
    pub others: Vec<Vec<u8>>,
    /// How many files and links have the names that are known, while what they held is not known.
    pub by_name: u64,
    /// The first of these.
    pub named: Vec<Vec<u8>>,
    /// What was compared by more than its name.
    compared: u64,
}

/// So many files that were compared by name only are told.
const NAMED: usize = 3;

/// Has a store that is not open grow from another lower directory, if that holds what is known of the one from which a branch grew.
pub(crate) fn take_restored(directory: &Path, lower: &Path, branch: LineId) -> Result<Restored> {
    let there = std::fs::symlink_metadata(lower).map_err(Error::io("looking at the lower directory"))?;
    let options = Options { background: false, ..Options::default() };
    let engine = Engine::open(directory, lower, options, Opening::Restored)?;
    let mut found = Restored::default();
    let base = read_lock(&engine.state).chain(branch)?.base;
    // What a link leads to is no directory that was put there.
    if !engine.lower.is(there.dev(), there.ino()) || engine.is_unfinished(base) {
        found.others.push(Vec::new());
        return Ok(found);
    }
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let Some(then) = engine.remembered(base, &path)? else {
            found.others.push(path);
            continue;
        };
        engine.compare_restored(base, &path, &then, &mut found)?;
        let below = then.names.iter().filter(|(_, _, kind)| *kind == Kind::Directory);
        waiting.extend(below.map(|(name, ..)| join(&path, name)));
    }
    // Nothing was written down yet of what files hold.
    if found.compared == 0 && found.by_name > 0 {
        found.others.push(Vec::new());
    }
    found.others.sort_unstable();
    found.others.dedup();
    if found.others.is_empty() {
        write_format(directory, &engine.lower.identity())?;
    }
    Ok(found)
}

impl Engine {
    /// Adds what is other in a directory than it was when the base was taken: a name that came or went, a file or link that holds something else, and what belongs to
    /// others or is open to others.
    fn compare_restored(&self, base: LineId, path: &[u8], then: &Remembered, found: &mut Restored) -> Result<()> {
        let Some((_, names, _)) = self.look_in(path).filter(|(now, ..)| is_as_open(path, then, now)) else {
            found.others.push(path.to_vec());
            return Ok(());
        };
        let now: BTreeMap<_, _> = names.iter().map(|(name, _, kind)| (name.as_slice(), *kind)).collect();
        let was: BTreeMap<_, _> = then.names.iter().map(|(name, _, kind)| (name.as_slice(), *kind)).collect();
        found.others.extend(now.keys().filter(|name| !was.contains_key(*name)).map(|name| join(path, name)));
        for (name, kind) in was {
            let below = join(path, name);
            if now.get(name) != Some(&kind) {
                found.others.push(below);
            } else if matches!(kind, Kind::File | Kind::Symlink) {
                match self.holds_what_it_held(base, &below, kind, then)? {
                    Some(true) => found.compared += 1,
                    Some(false) => found.others.push(below),
                    None => {
                        found.by_name += 1;
                        found.named.extend((found.named.len() < NAMED).then_some(below));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a file or link is what it was in that directory; none if that is not known. One that cannot be read is not.
    fn holds_what_it_held(&self, base: LineId, path: &[u8], kind: Kind, above: &Remembered) -> Result<Option<bool>> {
        let print = self.fingerprint(base, path)?.filter(|(_, of)| *of == (above.ino, above.birth));
        let Some((print, _)) = print else { return Ok(None) };
        let shows = matches!(self.lower.find(path), Ok(Some(now)) if print.shows_as(&now));
        Ok(Some(
            shows
                && match kind {
                    Kind::Symlink => {
                        matches!(self.lower.target(path), Ok(Some(now)) if hash_of_target(&now) == print.hash)
                    }
                    Kind::File => match self.lower.open_file(path) {
                        Ok(Some(file)) => {
                            matches!(self.hash_of(&file), Ok(Some((now, hash))) if (now.size, hash) == (print.size, print.hash))
                        }
                        _ => false,
                    },
                    _ => false,
                },
        ))
    }
}

/// Whether a directory belongs to whom it did, and is open to whom it was. The top may have been shut to others since the base was taken.
fn is_as_open(path: &[u8], then: &Remembered, now: &Found) -> bool {
    let is_shut = path.is_empty() && now.mode == then.mode & !0o077;
    (then.uid, then.gid) == (now.uid, now.gid) && (then.mode == now.mode || is_shut)
}
