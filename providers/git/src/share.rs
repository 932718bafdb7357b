//! Sharing data with the workspace's own files, on filesystems that can (reflinks): a clone then takes no room until it changes.
//!
//! A file of the workspace is a candidate if it has the captured size and time. What was shared is read back and compared
//! with the captured content's id, so a file that was changed behind its time, or is changed at this moment, does no harm.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use ah_plugin_api::{Context, Result};
use gix::ObjectId;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::meta::FileMeta;
use crate::store::hash_file;

/// Smaller files are written: many filesystems keep them beside their attributes, where nothing can be shared.
const LEAST: u64 = 16 << 10;

/// The workspace as a place to share data with.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    workspace: BorrowedFd<'a>,
    /// Cleared by the first refusal of the filesystem: the others would come out the same.
    works: AtomicBool,
}

impl<'a> Share<'a> {
    /// Shares with the files of `workspace`.
    pub(crate) fn new(workspace: &'a impl AsFd) -> Self {
        Self { workspace: workspace.as_fd(), works: AtomicBool::new(true) }
    }

    /// Whether it is worth trying with a file of that size.
    pub(crate) fn is_for(&self, size: u64) -> bool {
        size >= LEAST && self.works.load(Ordering::Relaxed)
    }

    /// Fills the empty file `to` (open for reading and writing) with the content `id`, shared with the workspace's file at `path`.
    /// If that cannot be done, gives false, and `to` is empty.
    pub(crate) fn fill(
        &self,
        to: BorrowedFd<'_>,
        path: &[u8],
        (id, meta): (&ObjectId, &FileMeta),
        cx: &Context<'_>,
    ) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let Ok(from) = rustix::fs::openat2(self.workspace, path, flags, Mode::empty(), resolve) else {
            return Ok(false);
        };
        let Ok(stat) = rustix::fs::fstat(&from) else { return Ok(false) };
        let same = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && u64::try_from(stat.st_size) == Ok(meta.size)
            && (stat.st_mtime, stat.st_mtime_nsec) == (meta.mtime.secs, meta.mtime.nanos.into());
        if !same {
            return Ok(false);
        }
        match rustix::fs::ioctl_ficlone(to, &from) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => {
                self.works.store(false, Ordering::Relaxed);
                return Ok(false);
            }
            Err(_) => return Ok(false),
        }
        let as_captured = content_is(to, id, meta.size, cx)?;
        if !as_captured {
            let emptied = rustix::fs::ftruncate(to, 0);
            emptied.map_err(|e| ah_plugin_api::Error::from_io("cannot empty a file", &e.into()))?;
        }
        Ok(as_captured)
    }
}

/// Whether a file holds exactly the blob `id`.
fn content_is(file: BorrowedFd<'_>, id: &ObjectId, size: u64, cx: &Context<'_>) -> Result<bool> {
    Ok(hash_file(file, size, cx)? == Ok(Some(*id)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ah_plugin_api::Context;
    use gix::objs::Kind;

    use super::content_is;

    #[test]
    fn only_the_very_content_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = b"x".repeat(300_000);
        std::fs::write(file.path(), &text).unwrap();
        let open = std::fs::File::open(file.path()).unwrap();
        let is = |id| content_is(open.as_fd(), &id, text.len() as u64, &Context::quiet()).unwrap();
        assert!(is(crate::store::hash(Kind::Blob, &text)));
        assert!(!is(crate::store::hash(Kind::Blob, &text[1..])));
    }
}
