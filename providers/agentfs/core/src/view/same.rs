//! Files and links below that are another than when the base was taken, or than when they were taken over, and hold the same: known by their fingerprints.
//!
//! A file's time of change says when somebody began to write: who is in the middle of a large write, or has it mapped, changes it without moving that. So a file is not known so where it is pinned.

use std::fs::File;

use crate::engine::{Fingerprint, hash_of_target};
use crate::error::Result;
use crate::lower::{Found, split};
use crate::rows::value::Origin;
use crate::types::Kind;
use crate::view::View;

impl View {
    /// What a snapshot shows of what is found below: a file of the same contents, and a link to the same target, is the one that was there.
    pub(super) fn as_then(&self, found: Found, path: &[u8]) -> Result<Found> {
        if self.at.is_none() || !self.is_later(&found, path)? {
            return Ok(found);
        }
        let then = self.same_then(&found, path)?.map(|then| then.as_found(&found));
        Ok(then.unwrap_or(found))
    }

    /// What the file or link at a path below was when the base was taken, if what is found there now holds the same.
    pub(super) fn same_then(&self, found: &Found, path: &[u8]) -> Result<Option<Fingerprint>> {
        if !matches!(found.kind, Kind::File | Kind::Symlink) || found.device != 0 {
            return Ok(None);
        }
        let Some((then, of)) = self.engine.fingerprint(self.chain.base, path)? else { return Ok(None) };
        // Another directory may have been there.
        let is_there = |above: Found| (above.ino, above.btime) == of;
        if then.size != found.size || !self.engine.lower.find(split(path).0)?.is_some_and(is_there) {
            return Ok(None);
        }
        if self.is_kept(found.kind, &then) {
            return Ok(None);
        }
        if found.kind == Kind::Symlink {
            let target = self.engine.lower.target(path).ok().flatten();
            return Ok(Some(then).filter(|then| target.is_some_and(|target| hash_of_target(&target) == then.hash)));
        }
        // What cannot be read is not known to be the same.
        let Ok(Some(file)) = self.engine.lower.open_file(path) else { return Ok(None) };
        let same = matches!(self.engine.hash_of(&file), Ok(Some((now, hash))) if now.is_as(found) && hash == then.hash);
        Ok(Some(then).filter(|_| same))
    }

    /// Whether what had that fingerprint is shown by its pin.
    fn is_kept(&self, kind: Kind, then: &Fingerprint) -> bool {
        self.keeps && self.engine.pins.is_there(kind, &then.hash, then.size)
    }

    /// Where a link points that was found below. In a snapshot it is that one still, or points where the one did that was there when the base was taken.
    pub(super) fn target_of(&self, found: &Found, path: &[u8]) -> Result<Vec<u8>> {
        self.or_then(self.target_below(found, path), || self.target_then(found, path))
    }

    fn target_below(&self, found: &Found, path: &[u8]) -> Result<Vec<u8>> {
        let lower = &self.engine.lower;
        let target = lower.target(path)?.ok_or_else(|| self.changed(path, "removed below"))?;
        let is_it = || Ok(lower.find(path)?.is_some_and(|now| now.is_as(found)));
        let is_as_then = || {
            let then = self.engine.fingerprint(self.chain.base, path)?;
            Ok(then.is_some_and(|(then, _)| then.hash == hash_of_target(&target)))
        };
        let shows_now = self.at.is_none() && (!self.keeps || self.is_later(found, path)?);
        match shows_now || is_it()? || is_as_then()? {
            true => Ok(target),
            false => Err(self.changed(path, "replaced below")),
        }
    }

    /// Whether what is found where the origin was holds what that did.
    pub(super) fn is_same_at(&self, origin: &Origin) -> Result<bool> {
        match self.engine.lower.open_file(&origin.path) {
            Ok(Some(file)) => Ok(self.proven(&file, origin)?.is_some()),
            _ => Ok(false),
        }
    }

    /// What an open file is, if it holds what the origin did.
    pub(super) fn proven(&self, file: &File, origin: &Origin) -> Result<Option<Found>> {
        let found = self.engine.lower.find_open(file)?;
        if found.is(origin) {
            return Ok(Some(found));
        }
        if found.size != origin.size || found.kind != Kind::File {
            return Ok(None);
        }
        let then = self.engine.fingerprint(self.chain.base, &origin.path)?;
        let Some((then, _)) = then.filter(|(then, _)| then.is_of(origin)) else { return Ok(None) };
        if self.is_kept(Kind::File, &then) {
            return Ok(None);
        }
        match self.engine.hash_of(file) {
            Ok(Some((found, hash))) if hash == then.hash => Ok(Some(found)),
            _ => Ok(None),
        }
    }
}
