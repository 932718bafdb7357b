//! Where the objects of a capture go: into the store, or nowhere.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{Context, Result};
use gix::objs::Kind;
use gix::{ObjectId, oid};

use crate::scan::Sink;
use crate::store::{self, Batch, Taken};

impl Sink for Batch<'_> {
    fn object(&self, kind: Kind, data: &[u8], replaces: Option<&oid>) -> Result<ObjectId> {
        Batch::object(self, kind, data, replaces)
    }

    fn blob_from(&self, file: BorrowedFd<'_>, size: u64, replaces: Option<&oid>, cx: &Context<'_>) -> Result<Taken> {
        Batch::blob_from(self, file, size, replaces, cx)
    }
}

/// The objects that a [`Memory`] keeps.
pub(super) type Objects = HashMap<ObjectId, (Kind, Arc<[u8]>)>;

/// Keeps trees and small metadata in memory, and of file contents the ids alone.
#[derive(Debug, Default)]
pub(super) struct Memory {
    objects: Mutex<Objects>,
    /// Whether blobs are metadata by now rather than contents.
    keep_blobs: bool,
}

impl Memory {
    /// From here on, blobs are kept.
    pub(super) fn keep_blobs(&mut self) {
        self.keep_blobs = true;
    }

    pub(super) fn into_objects(self) -> Objects {
        self.objects.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Memory {
    fn object(&self, kind: Kind, data: &[u8], _replaces: Option<&oid>) -> Result<ObjectId> {
        let id = store::hash(kind, data);
        if kind != Kind::Blob || self.keep_blobs {
            self.objects.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (kind, data.into()));
        }
        Ok(id)
    }

    fn blob_from(&self, file: BorrowedFd<'_>, size: u64, _replaces: Option<&oid>, cx: &Context<'_>) -> Result<Taken> {
        store::hash_file(file, size, cx)
    }
}
