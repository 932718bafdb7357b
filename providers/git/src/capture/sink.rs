//! Where the objects of a capture go: into the store, or nowhere.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use ah_plugin_api::{Error, Result};
use gix::objs::Kind;
use gix::{ObjectId, oid};
use sha1::{Digest, Sha1};

use crate::scan::Sink;
use crate::store::{self, Batch};

impl Sink for Batch<'_> {
    fn object(&self, kind: Kind, data: &[u8], replaces: Option<&oid>) -> Result<ObjectId> {
        Batch::object(self, kind, data, replaces)
    }

    fn blob_from(&self, file: BorrowedFd<'_>, size: u64, replaces: Option<&oid>) -> Result<Option<ObjectId>> {
        Batch::blob_from(self, file, size, replaces)
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

    fn blob_from(&self, file: BorrowedFd<'_>, size: u64, _replaces: Option<&oid>) -> Result<Option<ObjectId>> {
        let file = File::from(file.try_clone_to_owned().map_err(|error| Error::from_io("cannot read a file", &error))?);
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {size}\0"));
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let count = match file.read_at(&mut buffer, at) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::from_io("cannot read a file", &error)),
            };
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            at += count as u64;
            if at > size {
                return Ok(None);
            }
        }
        Ok((at == size).then(|| ObjectId::from_bytes_or_panic(&hasher.finalize())))
    }
}
