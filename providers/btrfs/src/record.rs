//! What travels with a snapshot: id, label, times, origin, in extended attributes of the folder that holds it.
//!
//! Attributes and not a file, because the snapshot call commits what is metadata by then, but not a file's contents: so record and
//! snapshot become durable in one commit, at no cost of its own. A long record is cut into pieces, each in an attribute that fits
//! any node size.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use ah_plugin_api::{
    Dir, Durability, Error, ErrorKind, Omission, Reference, RelPath, RepositoryState, Result, Snapshot, SnapshotId,
    SnapshotRequest, Timestamp,
};
use ah_provider_directory::failed;
use ah_repository::Repository;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::subvolume::Subvolume;
use crate::sys::Uuid;

/// The record of a snapshot. New fields are optional; unknown ones are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: SnapshotId,
    pub(crate) created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<String, String>,
    /// From the subvolume's root to the workspace.
    pub(crate) rel: RelPath,
    /// The subvolume that it is a snapshot of.
    #[serde(with = "serde_bytes")]
    pub(crate) origin: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pins: Option<String>,
    /// Where the repository stood whose work tree the workspace is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repository: Option<RepositoryState>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) omitted: Vec<Omission>,
}

/// The first piece; the others have `.1`, `.2` and so on behind it.
const NAME: &str = "user.ah.snapshot";

/// An attribute may be about 3,900 bytes in a node of 4 KiB, the smallest there is.
const PIECE: usize = 3000;

/// Longer than any record; a length beyond it is damage.
pub(crate) const MAX: usize = 16 << 20;

impl Record {
    pub(crate) fn new(
        request: &SnapshotRequest,
        (workspace, source): (&Dir, &Subvolume),
        origin: Uuid,
        omitted: Vec<Omission>,
    ) -> Self {
        Self {
            id: request.id.clone(),
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            rel: source.rel.clone(),
            origin,
            pins: source.pins(),
            repository: Repository::standing(workspace),
            omitted,
        }
    }

    /// Puts it on an open folder.
    pub(crate) fn write(&self, folder: BorrowedFd<'_>) -> Result<()> {
        // Its own length comes first.
        let mut bytes = vec![0; 4];
        ciborium::into_writer(self, &mut bytes)
            .map_err(|e| Error::new(ErrorKind::Internal, "a snapshot's record cannot be encoded").with_cause(&e))?;
        let length = bytes.len() - 4;
        if length > MAX {
            // Nobody could read it again.
            return Err(too_long());
        }
        bytes.splice(..4, u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            rustix::fs::fsetxattr(folder, name(number), piece, XattrFlags::empty())
                .map_err(|errno| failed("cannot write down what the snapshot is", errno))?;
        }
        Ok(())
    }

    /// Takes it off an open folder: what is in there is no snapshot from now on, and goes. It is emptied and not removed, so that only what bears
    /// the sign of that is taken for such a one, and needs no more room than it has.
    pub(crate) fn strike(folder: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::fs::fsetxattr(folder, NAME, b"", XattrFlags::empty())
    }

    /// Whether it was taken off.
    pub(crate) fn is_struck(folder: BorrowedFd<'_>) -> bool {
        // A piece of it would not fit.
        rustix::fs::fgetxattr(folder, NAME, &mut [0; 1]) == Ok(0)
    }

    /// Reads that of the snapshot `id` from its open folder; none if it was taken off.
    ///
    /// # Errors
    /// `DataLoss` if it is damaged or missing.
    pub(crate) fn read(folder: BorrowedFd<'_>, id: &SnapshotId) -> Result<Option<Self>> {
        let damaged = |why: &str| Error::new(ErrorKind::DataLoss, format!("the record of the snapshot {id} {why}"));
        let mut bytes = Vec::new();
        let mut number = 0;
        loop {
            let mut piece = vec![0; PIECE];
            let got = match rustix::fs::fgetxattr(folder, name(number), piece.as_mut_slice()) {
                Ok(0) if number == 0 => return Ok(None),
                Ok(got) => got,
                Err(Errno::NODATA) => return Err(damaged("is missing")),
                Err(Errno::RANGE) => return Err(damaged("is too long")),
                Err(errno) => return Err(failed(format!("cannot read the record of the snapshot {id}"), errno)),
            };
            bytes.extend_from_slice(piece.get(..got).unwrap_or_default());
            let Some(length) = bytes.first_chunk::<4>() else { return Err(damaged("is cut off")) };
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX {
                return Err(damaged("is too long"));
            }
            if bytes.len() >= length + 4 {
                break;
            }
            if got < PIECE {
                return Err(damaged("is cut off"));
            }
            number += 1;
        }
        let record: Self = ciborium::from_reader(bytes.get(4..).unwrap_or_default())
            .map_err(|e| damaged("cannot be read").with_cause(&e))?;
        if record.id == *id { Ok(Some(record)) } else { Err(damaged("is another's")) }
    }

    /// As the contract puts it; `full` with what was omitted.
    pub(crate) fn snapshot(self, full: bool) -> Result<Snapshot> {
        Ok(Snapshot {
            reference: Reference::new(self.id.as_str())?,
            id: self.id,
            created: self.created,
            label: self.label,
            attributes: self.attributes,
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: self.omitted.len() as u64,
            omitted: if full { self.omitted } else { Vec::new() },
            repository: self.repository.clone(),
            pins: self.pins,
            changed_below: None,
        })
    }
}

/// The error of a snapshot of which more would have to be written down than [`MAX`].
pub(crate) fn too_long() -> Error {
    let message = format!("what would have to be written down of the snapshot is more than {} MiB", MAX >> 20);
    Error::new(ErrorKind::ResourceExhausted, message)
        .with_hint("it names every nested subvolume and mount that is left out: `ah agent fs status`")
}

fn name(number: usize) -> String {
    if number == 0 { NAME.to_owned() } else { format!("{NAME}.{number}") }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn record(label: usize) -> Record {
        Record {
            id: SnapshotId::new("a").unwrap(),
            created: Timestamp { secs: -5, nanos: 7 },
            label: Some("\u{e9}".repeat(label)),
            attributes: BTreeMap::from([("k".to_owned(), "v\n\0".to_owned())]),
            rel: RelPath::new(b"caf\xe9/x".to_vec()).unwrap(),
            origin: [7; 16],
            pins: None,
            repository: None,
            omitted: Vec::new(),
        }
    }

    #[test]
    fn comes_back_as_it_was_and_damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let id = SnapshotId::new("a").unwrap();
        if rustix::fs::fsetxattr(&folder, "user.probe", b"x", XattrFlags::empty()).is_err() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none());
            println!("skipped: no extended attributes in the temporary folder");
            return;
        }
        assert_eq!(Record::read(folder.as_fd(), &id).unwrap_err().kind, ErrorKind::DataLoss);
        // Short after long: pieces that are left of the longer one do not count. Not all lengths fit ext4, where tests run.
        for label in [1, 800, 3, 2000, 0] {
            if record(label).write(folder.as_fd()).is_err() {
                continue;
            }
            assert_eq!(Record::read(folder.as_fd(), &id).unwrap(), Some(record(label)));
        }
        // One that nobody could read again is not begun.
        assert_eq!(record(MAX).write(folder.as_fd()).unwrap_err().kind, ErrorKind::ResourceExhausted);
        assert_eq!(Record::read(folder.as_fd(), &id).unwrap(), Some(record(0)));
        let other = SnapshotId::new("b").unwrap();
        assert_eq!(Record::read(folder.as_fd(), &other).unwrap_err().kind, ErrorKind::DataLoss);
        for bad in [b"\0".as_slice(), b"\xff\xff\xff\xff", b"\x09\0\0\0a", b"\x02\0\0\0\xff\xff"] {
            rustix::fs::fsetxattr(&folder, NAME, bad, XattrFlags::empty()).unwrap();
            assert_eq!(Record::read(folder.as_fd(), &id).unwrap_err().kind, ErrorKind::DataLoss);
            assert!(!Record::is_struck(folder.as_fd()));
        }
        Record::strike(folder.as_fd()).unwrap();
        assert!(Record::is_struck(folder.as_fd()) && Record::read(folder.as_fd(), &id).unwrap().is_none());
    }
}
