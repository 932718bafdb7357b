//! What can be wrong with a pack. Two kinds are told apart, because what is damaged may be dropped, and what cannot be read at
//! this moment may not.

use std::fmt;

use rustix::io::Errno;

/// What is wrong with a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Bad {
    /// For a person.
    why: String,
    /// The system's error, if it could not be read; else it is not what was written.
    pub(in crate::store) errno: Option<Errno>,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<String> for Bad {
    fn from(why: String) -> Self {
        Self { why, errno: None }
    }
}

impl From<&str> for Bad {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl From<Errno> for Bad {
    fn from(errno: Errno) -> Self {
        Self { why: std::io::Error::from(errno).to_string(), errno: Some(errno) }
    }
}

impl From<ah_plugin_api::Error> for Bad {
    fn from(error: ah_plugin_api::Error) -> Self {
        let why = error.causes.first().map_or_else(|| error.to_string(), |why| format!("{error}: {why}"));
        Self { why, errno: error.errno.map(Errno::from_raw_os_error) }
    }
}
