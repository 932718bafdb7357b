//! What a branch shows of what somebody changes below, where its base is pinned: what was there, as its snapshots do. What is not pinned is shown as it is.
//!
//! A name that is as it was when the base was taken is none of this module's. Of a directory whose names were written down what came later is hidden, unless something that was in it is lost: then
//! who changed it may have put what is needed elsewhere in it (`git gc`, of a large pack), and what came shows. What was closed to this user is as if it were gone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::{LOWER, Remembered};
use crate::error::{Error, Result};
use crate::lock;
use crate::lower::{Found, Listed, join, split};
use crate::rows::key;
use crate::rows::value::{Inode, Origin};
use crate::types::{Ino, ROOT};
use crate::view::pinned::is_lost;
use crate::view::{Named, View};

/// Of so many that are not pinned in a directory it is remembered which they are.
const LOOSE: usize = 32;

/// What was in a directory below and is not pinned.
#[derive(Clone)]
pub(super) struct Loose {
    /// How many pins were found damaged by then: it may be more since.
    forgotten: u64,
    /// One that is lost; as a rule it does not come back.
    lost: Option<usize>,
    /// All of it, if that is little, and no more is being pinned.
    all: Option<Arc<[usize]>>,
}

impl View {
    /// Whether it is a branch that shows what is pinned as it was.
    pub(super) fn is_isolated(&self) -> bool {
        self.keeps && self.at.is_none()
    }

    /// Whether what a branch has of a file below is what it was when the base was taken, and must be read as that.
    pub(super) fn is_then(&self, origin: &Origin) -> bool {
        // One that bears a time to come is so if that is what is kept of it.
        let is_known = || matches!(self.engine.fingerprint(self.chain.base, &origin.path), Ok(Some((then, _))) if then.is_of(origin));
        self.is_isolated() && (origin.ctime <= self.base || is_known())
    }

    /// Whether what is found below is that inode, and nothing was done to it since the base was taken.
    pub(super) fn is_unchanged(&self, ino: Ino, found: Option<&Found>, path: &[u8]) -> Result<bool> {
        let Some(found) = found else { return Ok(false) };
        if self.is_later(found, path)? {
            return Ok(false);
        }
        let reused = ino < LOWER;
        Ok(ino == ROOT || self.engine.number_of(found.device, found.ino, found.btime, reused)? == ino)
    }

    /// What a name in a directory below led to when the base was taken, if it leads to something else now and that is pinned. `None`: it is shown as it is. `Some(None)`: it came later, and is not shown.
    pub(super) fn isolated_name(&self, directory: Ino, below: &[u8], path: &[u8]) -> Result<Option<Option<Named>>> {
        let found = self.engine.lower.find(path);
        let is_closed = found.as_ref().is_err_and(is_lost);
        let found = if is_closed { None } else { found? };
        let there = self.reach(below)?.filter(|there| there.ctime <= self.base);
        // Nothing came, went or was replaced in it, if it is the one.
        let same_place = there.is_some_and(|there| self.is_it(directory, &there, below).unwrap_or(false));
        let is_as_then = found.as_ref().map_or(Ok(true), |found| Ok::<_, Error>(!self.is_later(found, path)?))?;
        if same_place && is_as_then {
            return Ok(None);
        }
        let Some(then) = self.then_of(directory, below)? else { return Ok(None) };
        let Some(&(_, ino, kind)) = then.get(split(path).1) else {
            // Who closed a directory shows nothing of what came into it.
            let came = is_closed || found.is_some() && self.is_whole(below, &then.names)?;
            return Ok(came.then_some(None));
        };
        if is_as_then && found.is_some_and(|found| (found.ino, found.kind, found.device) == (ino, kind, 0)) {
            return Ok(None);
        }
        Ok(self.named_then(directory, below, path)?.filter(Option::is_some))
    }

    /// Whether what is found below was born, or got that name, after the base was taken, as far as that is known.
    pub(super) fn came_later(&self, found: &Found, path: &[u8]) -> Result<bool> {
        if !self.is_later(found, path)? {
            return Ok(false);
        }
        let (above, name) = split(path);
        let then = self.written_down(above)?;
        let is_listed = |then: Arc<Remembered>| then.get(name).is_some_and(|&(_, ino, _)| ino == found.ino);
        Ok(found.btime > self.base || !then.is_none_or(is_listed))
    }

    fn is_it(&self, directory: Ino, there: &Found, below: &[u8]) -> Result<bool> {
        let row = self.seen(&key::inode(directory))?;
        let inode = row.as_deref().map(Inode::decode).transpose()?.flatten();
        match inode.and_then(|inode| inode.origin) {
            Some(origin) => Ok((origin.device, origin.ino, origin.btime) == (there.device, there.ino, there.btime)),
            None => self.is_unchanged(directory, Some(there), below),
        }
    }

    /// The names in a directory below, where some came or went; `None`: they are shown as they are.
    pub(super) fn isolated_names(
        &self,
        directory: Ino,
        below: &[u8],
        listed: &[Listed],
    ) -> Result<Option<Vec<Listed>>> {
        let Some(then) = self.then_of(directory, below)? else { return Ok(None) };
        let now: HashMap<&[u8], &Listed> = listed.iter().map(|one| (one.0.as_slice(), one)).collect();
        let mut names = Vec::with_capacity(then.names.len());
        let mut whole = true;
        for one in &then.names {
            let there = now.get(one.0.as_slice()).copied();
            if there == Some(one) || self.is_pinned(&join(below, &one.0))? {
                names.push(one.clone());
            } else {
                whole = false;
                names.extend(there.cloned());
            }
        }
        if !whole {
            names.extend(listed.iter().filter(|one| then.get(&one.0).is_none()).cloned());
        }
        Ok(Some(names))
    }

    /// Whether everything that was in a directory below is there or pinned. Costs the directory the first time: what is pinned stays so, whatever is done below, and what is not are few as a rule.
    fn is_whole(&self, below: &[u8], then: &[Listed]) -> Result<bool> {
        let forgotten = self.engine.pins.forgotten();
        let known = lock(&self.loose).get(below).filter(|known| known.forgotten == forgotten);
        let is_gone = |nth: usize| {
            let Some((name, ino, kind)) = then.get(nth) else { return Ok(false) };
            let path = join(below, name);
            // What is mounted on it is none of ours.
            let is_it = |found: Found| (found.ino, found.kind) == (*ino, *kind) || found.device != 0;
            Ok::<_, Error>(!self.reach(&path)?.is_some_and(is_it) && !self.is_pinned(&path)?)
        };
        if let Some(Loose { lost, all, .. }) = known {
            if lost.map_or(Ok(false), is_gone)? {
                return Ok(false);
            }
            if let Some(all) = all {
                for &nth in &*all {
                    if is_gone(nth)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
        }
        let listed = match self.engine.lower.list(below) {
            Err(error) if is_lost(&error) => Vec::new(),
            listed => listed?,
        };
        let now: HashMap<&[u8], &Listed> = listed.iter().map(|one| (one.0.as_slice(), one)).collect();
        let mut lost = None;
        for (nth, one) in then.iter().enumerate() {
            if now.get(one.0.as_slice()).copied() != Some(one) && !self.is_pinned(&join(below, &one.0))? {
                lost = Some(nth);
                break;
            }
        }
        let all = if self.engine.is_pinning(self.chain.base) { None } else { self.loose_in(below, then)? };
        lock(&self.loose).put(below, Loose { forgotten, lost, all });
        Ok(lost.is_none())
    }

    /// What was in a directory below and is not pinned; `None`: too much.
    fn loose_in(&self, below: &[u8], then: &[Listed]) -> Result<Option<Arc<[usize]>>> {
        let mut loose = Vec::new();
        for (nth, one) in then.iter().enumerate() {
            if !self.is_pinned(&join(below, &one.0))? {
                loose.push(nth);
                if loose.len() > LOOSE {
                    return Ok(None);
                }
            }
        }
        Ok(Some(loose.into()))
    }
}
