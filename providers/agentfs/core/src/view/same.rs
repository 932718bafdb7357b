//! Files below that are another than when the base was taken, or than when they were taken over, and hold the same: known by their fingerprints.

use std::fs::File;
use std::sync::Arc;

use crate::engine::{Fingerprint, Fingerprints};
use crate::error::Result;
use crate::lock;
use crate::lower::{Found, split};
use crate::rows::value::Origin;
use crate::types::Kind;
use crate::view::View;

impl View {
    /// What is written down of the files in a directory below.
    fn fingerprints(&self, below: &[u8]) -> Result<Option<Arc<Fingerprints>>> {
        if let Some((_, prints)) = lock(&self.prints).as_ref().filter(|(path, _)| **path == *below) {
            return Ok(Some(prints.clone()));
        }
        let Some(prints) = self.engine.fingerprints(self.chain.base, below)? else { return Ok(None) };
        *lock(&self.prints) = Some((below.into(), prints.clone()));
        Ok(Some(prints))
    }

    /// What a snapshot shows of what is found below: a file of the same contents is the one that was there.
    pub(super) fn as_then(&self, found: Found, path: &[u8]) -> Result<Found> {
        if self.at.is_none() || found.ctime <= self.base {
            return Ok(found);
        }
        let then = self.same_then(&found, path)?.map(|then| then.as_found(&found));
        Ok(then.unwrap_or(found))
    }

    /// What the file at a path below was when the base was taken, if what is found there now holds the same.
    pub(super) fn same_then(&self, found: &Found, path: &[u8]) -> Result<Option<Fingerprint>> {
        if found.kind != Kind::File || found.device != 0 {
            return Ok(None);
        }
        let (above, name) = split(path);
        let Some(prints) = self.fingerprints(above)? else { return Ok(None) };
        let Some(then) = prints.get(name).filter(|then| then.size == found.size) else { return Ok(None) };
        // Another directory may have been there.
        let is_there = |above: Found| (above.ino, above.btime) == prints.of;
        if !self.engine.lower.find(above)?.is_some_and(is_there) {
            return Ok(None);
        }
        // What cannot be read is not known to be the same.
        let Ok(Some(file)) = self.engine.lower.open_file(path) else { return Ok(None) };
        let same = matches!(self.engine.hash_of(&file), Ok(Some((now, hash))) if now.is_as(found) && hash == then.hash);
        Ok(Some(then.clone()).filter(|_| same))
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
        let (above, name) = split(&origin.path);
        let Some(prints) = self.fingerprints(above)? else { return Ok(None) };
        let Some(then) = prints.get(name).filter(|then| then.is_of(origin)) else { return Ok(None) };
        match self.engine.hash_of(file) {
            Ok(Some((found, hash))) if hash == then.hash => Ok(Some(found)),
            _ => Ok(None),
        }
    }
}
