//! Telling a directory of ours from any other, also after a reboot or a move.

use std::os::fd::AsFd;

use ah_plugin_api::{Error, Result};
use rustix::fs::{AtFlags, Statx, StatxFlags};
use serde::{Deserialize, Serialize};

/// What stays the same of a directory for as long as it exists, and is never the same for two.
///
/// An inode number alone is used again. A birth time is not, and unlike a device number it survives a reboot, so the device
/// counts only where the filesystem keeps no birth times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    ino: u64,
    dev: (u32, u32),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    born: Option<(i64, u32)>,
}

impl Identity {
    /// Of an open file or directory.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self> {
        stat(fd)
            .map(|stat| Self::from_statx(&stat))
            .map_err(|e| Error::from_io("cannot look at a directory", &e.into()))
    }

    /// From an answer of `statx` that was asked for [`MASK`].
    pub(crate) fn from_statx(stat: &Statx) -> Self {
        let born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        Self {
            ino: stat.stx_ino,
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            born: born.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
        }
    }

    /// Whether both are of one and the same directory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.ino == other.ino
            && match (self.born, other.born) {
                (Some(a), Some(b)) => a == b,
                _ => self.dev == other.dev,
            }
    }
}

/// What `statx` is asked for: enough for an [`Identity`] and to notice that a mount was crossed.
pub(crate) const MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// `statx` of what is open.
pub(crate) fn stat(fd: impl AsFd) -> rustix::io::Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, MASK)
}

/// Device and mount that something was reached by: equal for a directory and one below it unless a mount lies between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountId((u32, u32), u64);

impl MountId {
    /// Of what is open.
    pub(crate) fn of(fd: impl AsFd) -> Result<Self> {
        stat(fd)
            .map(|stat| Self::from_statx(&stat))
            .map_err(|e| Error::from_io("cannot look at a directory", &e.into()))
    }

    /// From an answer of `statx` that was asked for [`MASK`].
    pub(crate) fn from_statx(stat: &Statx) -> Self {
        let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        Self((stat.stx_dev_major, stat.stx_dev_minor), if known { stat.stx_mnt_id } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;

    #[test]
    fn a_directory_made_anew_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::create_dir(&path).unwrap();
        let first = Identity::of(std::fs::File::open(&path).unwrap()).unwrap();
        let again = Identity::of(std::fs::File::open(&path).unwrap()).unwrap();
        assert!(first.is(&again));
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let second = Identity::of(std::fs::File::open(&path).unwrap()).unwrap();
        assert!(!first.is(&second), "{first:?} {second:?}");
    }

    #[test]
    fn without_birth_times_the_device_counts() {
        let a = Identity { ino: 1, dev: (8, 1), born: None };
        assert!(a.is(&Identity { born: Some((1, 1)), ..a }));
        assert!(!a.is(&Identity { dev: (8, 2), ..a }));
        let b = Identity { born: Some((5, 5)), ..a };
        assert!(b.is(&Identity { dev: (9, 9), ..b }));
    }
}
