//! Names of our own things. Snapshots have the contract's `SnapshotId`.

use std::fmt;

use ah_plugin_api::{Error, ErrorKind, Result, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::settings::IdSource;

/// Declares a string newtype that checks its text on every way in.
macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident, $max:literal, $ok:expr, $what:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and takes over `text`.
            ///
            /// # Errors
            #[doc = concat!("`InvalidArgument` if it is not ", $what, ".")]
            pub fn new(text: impl Into<String>) -> Result<Self> {
                let text = text.into();
                let ok: fn(u8) -> bool = $ok;
                if text.is_empty() || text.len() > $max || text.starts_with(['.', '-']) || !text.bytes().all(ok) {
                    return Err(Error::new(ErrorKind::InvalidArgument, format!(concat!("{:?} is not ", $what), text)));
                }
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(this: $name) -> Self {
                this.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_id! {
    /// The id of a workspace: random, never derived from its path or contents.
    WorkspaceId, 32, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), "a workspace id (1 to 32 of a-z, 0-9)"
}

text_id! {
    /// The name of a session, unique in its workspace. `main` is there without being asked for.
    SessionName, 64, |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
    "a session's name (1 to 64 of A-Z, a-z, 0-9, -, _, ., not starting with . or -)"
}

text_id! {
    /// The id of a lease, and the name of its view below `mounts/`.
    LeaseId, 32, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), "a lease id (1 to 32 of a-z, 0-9)"
}

text_id! {
    /// The id of a branch.
    BranchId, 32, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), "a branch id (1 to 32 of a-z, 0-9)"
}

impl SessionName {
    /// The session that is there without being asked for.
    #[must_use]
    pub fn main() -> Self {
        Self("main".to_owned())
    }
}

/// Twelve letters from `k` to `z` (48 bits): never a time, a number or a commit.
pub(crate) fn letters(ids: &IdSource) -> String {
    let mut bits = ids.next();
    // The high bits are the better mixed ones of a counting source.
    bits ^= bits >> 16;
    (0..12).map(|i| char::from(b'k' + u8::try_from((bits >> (i * 4)) & 15).unwrap_or(0))).collect()
}

/// A fresh snapshot id; the caller checks that it is unused.
pub(crate) fn snapshot_id(ids: &IdSource) -> Result<SnapshotId> {
    SnapshotId::new(letters(ids))
}

/// Whether `text` could be an id of ours, or the beginning of one.
pub(crate) fn looks_like_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 12 && text.bytes().all(|b| (b'k'..=b'z').contains(&b))
}
