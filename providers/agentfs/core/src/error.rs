//! What can go wrong, and the errno that a host answers with.
//!
//! Not here: the kinds of the provider contract; the plugin above maps these to them.

use std::io;

use rustix::io::Errno;

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Each variant has exactly one errno, [`Error::errno`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name, attribute of the tree, branch or snapshot.
    #[error("not found")]
    NotFound,
    /// The name is taken.
    #[error("already exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory holds something.
    #[error("directory not empty")]
    NotEmpty,
    /// The request makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A name of more than 255 bytes, or a link's target of more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// A write through the view of a snapshot.
    #[error("snapshots are immutable")]
    ReadOnly,
    /// The disk is full, or the store's own limit is reached. Nothing was changed but, of a write, blocks that had been written
    /// since the last snapshot and needed no space.
    #[error("no space left")]
    NoSpace,
    /// The kind of thing does not allow this (a hard link to a directory).
    #[error("operation not permitted")]
    NotPermitted,
    /// No extended attribute of this name.
    #[error("no such attribute")]
    NoAttribute,
    /// Beyond the largest file, 2^62 bytes.
    #[error("file too large")]
    FileTooLarge,
    /// An offset behind the last data, where a seek ends.
    #[error("no data there")]
    NoData,
    /// Too many names of one file.
    #[error("too many links")]
    TooManyLinks,
    /// A view, a child or another process holds it.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// An inode number that was forgotten, or never given out.
    #[error("stale inode number")]
    Stale,
    /// This filesystem, or this platform, does not do that.
    #[error("not supported")]
    Unsupported,
    /// What the tree stood for is gone: the file below was changed by somebody else after the base was taken.
    #[error("{what}: {path}")]
    DataLoss {
        /// The path below the lower directory, for display.
        path: String,
        /// What happened to it.
        what: &'static str,
    },
    /// The disk did not keep something that was written to the lower directory's filesystem since the base was taken; what, nobody is told.
    #[error("something that was written below, or beside it, may never reach the disk")]
    LostBelow,
    /// The store itself is damaged; `fsck` says more.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store was written by a newer version.
    #[error("the store has format {found}; this version knows {known}")]
    NewerFormat {
        /// The store's.
        found: u32,
        /// The newest that is known here.
        known: u32,
    },
    /// The lower directory is not the one that the store was made for.
    #[error("the lower directory is not the one that this store was made for")]
    OtherLower,
    /// The system said no where the lower directory itself was to be opened: whatever that is, the store is as it was.
    #[error("{what}")]
    Below {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system said no.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// The number for a host, as on this platform. Exhaustive: a new variant does not compile until it has one.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Invalid(_) => Errno::INVAL,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::ReadOnly => Errno::ROFS,
            Self::NoSpace => Errno::NOSPC,
            Self::NotPermitted => Errno::PERM,
            #[cfg(target_os = "linux")]
            Self::NoAttribute => Errno::NODATA,
            #[cfg(not(target_os = "linux"))]
            Self::NoAttribute => Errno::NOATTR,
            Self::FileTooLarge => Errno::FBIG,
            Self::NoData => Errno::NXIO,
            Self::TooManyLinks => Errno::MLINK,
            Self::Busy(_) => Errno::BUSY,
            Self::Stale => Errno::STALE,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::DataLoss { .. }
            | Self::LostBelow
            | Self::Corrupt(_)
            | Self::NewerFormat { .. }
            | Self::OtherLower => Errno::IO,
            Self::Below { source, .. } | Self::Io { source, .. } => {
                return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            }
        };
        errno.raw_os_error()
    }

    /// Whether the store is damaged, or the disk fails to read or write it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt(_) => true,
            Self::Io { source, .. } => source.raw_os_error() == Some(Errno::IO.raw_os_error()),
            _ => false,
        }
    }

    /// For `map_err`: the system's error with what was being done; a full disk or quota is [`Error::NoSpace`].
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| {
            let source = error.into();
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
                _ => Self::Io { what, source },
            }
        }
    }

    /// A row or record that cannot be read.
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into())
    }
}
