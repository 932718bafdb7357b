//! Keeping the objects of the user's repository.

use std::os::fd::BorrowedFd;

use ah_plugin_api::{Context, Result};
use gix::{ObjectId, oid};

use super::{Batch, Store};
use crate::repository::Repository;

/// Name of the list of kept objects in a snapshot's tree. The sweep looks for it there.
pub(crate) const KEPT: &str = "kept";

/// What became of the objects of the user's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// They are kept; the blob lists them.
    List(ObjectId),
    /// They are not kept; why, for a person.
    Not(String),
}

/// How the objects folder of a clone was filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Populated {
    /// Files that share their data with the store (hard links, reflinks).
    pub(crate) shared: u64,
    /// Files that had to be copied.
    pub(crate) copied: u64,
}

pub(super) fn keep(_store: &Store, _batch: &Batch<'_>, _repository: &Repository, _cx: &Context<'_>) -> Result<Kept> {
    Ok(Kept::Not("not written yet".into()))
}

pub(super) fn populate(_store: &Store, _kept: &oid, _objects: BorrowedFd<'_>, _cx: &Context<'_>) -> Result<Populated> {
    Ok(Populated::default())
}

pub(super) fn sweep(_store: &Store, _kept: &std::collections::HashSet<ObjectId>, _out: &mut ah_plugin_api::Reclaimed) -> Result<()> {
    Ok(())
}

pub(super) fn sync(_store: &Store) -> Result<()> {
    Ok(())
}
