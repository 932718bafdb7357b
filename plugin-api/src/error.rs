//! The one error type of the contract.
//!
//! A kind says what the *caller may do*; the message is for people and no code branches on it. Errors of a provider's
//! own are translated to this type at its edge, in one exhaustive `match`.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Shorthand for a result of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

open_enum! {
    /// What the caller may do about an [`Error`].
    ///
    /// The set is open: a kind that this side does not know reads as [`ErrorKind::Unknown`].
    pub enum ErrorKind {
        /// The request itself is wrong; repeating it will not help.
        InvalidArgument = "invalid-argument",
        /// The thing named does not exist.
        NotFound = "not-found",
        /// The thing to be made exists already.
        AlreadyExists = "already-exists",
        /// This user may not do that; another might.
        PermissionDenied = "permission-denied",
        /// The system is not in the state the operation needs; the hint says how to bring it there.
        FailedPrecondition = "failed-precondition",
        /// Somebody else's change got in the way; look again, then repeat.
        Conflict = "conflict",
        /// Something holds the thing; repeat later, or end the holder named in the message.
        Busy = "busy",
        /// This provider, or this version of it, cannot do that; take another way.
        Unsupported = "unsupported",
        /// Out of space, descriptors, quota or the like.
        ResourceExhausted = "resource-exhausted",
        /// The provider cannot be reached or does not answer; another provider may.
        Unavailable = "unavailable",
        /// The caller asked for the operation to stop.
        Cancelled = "cancelled",
        /// Stored data is damaged or gone.
        DataLoss = "data-loss",
        /// A defect in the provider, a panic included.
        Internal = "internal",
    }
}

/// An error of the contract, the same on every side of every boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the caller may do.
    pub kind: ErrorKind,
    /// One sentence for a person, without the causes.
    pub message: String,
    /// What to do next; a command that can be run where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Causes, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// The operating system's error number, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
}

impl Error {
    /// An error of `kind` with a message for a person.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, causes: Vec::new(), errno: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds `error` and everything behind it to the causes.
    #[must_use]
    pub fn with_cause(mut self, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            self.causes.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// An operating system error while doing what `message` says; the kind follows from the error.
    pub fn from_io(message: impl Into<String>, error: &std::io::Error) -> Self {
        let mut this = Self::new(ErrorKind::of_io(error), message);
        this.errno = error.raw_os_error();
        this.causes.push(error.to_string());
        let which = match error.kind() {
            // Of what a disk has room for, files may be what is used up.
            std::io::ErrorKind::StorageFull => "`df -h` shows which disk is full, `df -i` which takes no more files",
            // Which `df` knows nothing of.
            std::io::ErrorKind::QuotaExceeded => {
                "`quota -s`, or on Btrfs `btrfs qgroup show -r DIR`, shows which quota is used up"
            }
            _ => return this,
        };
        let hint = format!(
            "free some space, then repeat: {which}; `ah agent fs prune` removes old snapshots, `ah agent fs rm` branches, and `ah agent fs gc` gives back what was removed before"
        );
        this.with_hint(hint)
    }

    /// Whether the system could not read, for damage or for trouble that passes: it has one word for both.
    #[must_use]
    pub fn is_of_the_disk(&self) -> bool {
        let words = [Errno::IO, Errno::BADMSG, Errno::UCLEAN].map(Errno::raw_os_error);
        self.errno.is_some_and(|errno| words.contains(&errno))
    }

    /// Whether what was to be read is damaged, or could not be read as it may be.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.kind == ErrorKind::DataLoss || self.is_of_the_disk()
    }

    /// Puts what was being done in front; the former message becomes the first cause.
    #[must_use]
    pub fn context(mut self, message: impl Into<String>) -> Self {
        let former = std::mem::replace(&mut self.message, message.into());
        self.causes.insert(0, former);
        self
    }
}

impl ErrorKind {
    /// The kind an operating system error amounts to.
    #[must_use]
    pub fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::NotFound => Self::NotFound,
            Io::AlreadyExists => Self::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => Self::PermissionDenied,
            Io::ResourceBusy | Io::WouldBlock => Self::Busy,
            Io::StorageFull | Io::QuotaExceeded | Io::OutOfMemory => Self::ResourceExhausted,
            Io::Unsupported => Self::Unsupported,
            Io::InvalidInput | Io::InvalidFilename | Io::NotADirectory | Io::IsADirectory => Self::InvalidArgument,
            Io::DirectoryNotEmpty => Self::Conflict,
            Io::InvalidData | Io::UnexpectedEof => Self::DataLoss,
            Io::ConnectionRefused | Io::ConnectionReset | Io::BrokenPipe | Io::TimedOut | Io::NotConnected => {
                Self::Unavailable
            }
            // EMFILE and ENFILE have no kind of their own in std.
            _ if matches!(error.raw_os_error(), Some(23 | 24)) => Self::ResourceExhausted,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_is_looked_at_where_it_is_seen() {
        const ENOSPC: i32 = 28;
        const EDQUOT: i32 = 122;
        const EMFILE: i32 = 24;
        let hint = |errno| {
            let error = Error::from_io("cannot write", &std::io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind, ErrorKind::ResourceExhausted);
            error.hint.unwrap_or_default()
        };
        assert!(hint(ENOSPC).contains("`df -h`") && hint(ENOSPC).contains("`df -i`"));
        assert!(!hint(ENOSPC).contains("quota"));
        assert!(hint(EDQUOT).contains("`quota -s`") && !hint(EDQUOT).contains("df -h"));
        // Neither has to do with any disk.
        assert_eq!(hint(EMFILE), "");
    }
}
