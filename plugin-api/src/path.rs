//! Paths inside a workspace: bytes, relative, and incapable of leaving it. And those in the kernel's tables.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind};
use crate::text;

/// A path relative to a workspace's root.
///
/// Any bytes but NUL; components separated by one `/`; no component is empty, `.` or `..`; the empty path is the root
/// itself. These rules hold for every value, also for one that came out of a message, so a `RelPath` can never name
/// something outside the workspace (symlinks are the business of whoever opens it).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The workspace's root.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Checks and takes over `bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` if the rules above do not hold.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        let bad = |component: &[u8]| component.is_empty() || component == b"." || component == b"..";
        if bytes.contains(&0) || (!bytes.is_empty() && bytes.split(|&b| b == b'/').any(bad)) {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{shown:?} is not a path inside the workspace"),
            ));
        }
        Ok(Self(bytes))
    }

    /// Whether this is the workspace's root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, without a leading or trailing slash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a path of the standard library.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// This path with `name` below it.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` is not a single valid component.
    pub fn join(&self, name: &[u8]) -> Result<Self, Error> {
        if name.contains(&b'/') || name.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a file name must be one path component"));
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        if !self.0.is_empty() {
            bytes.extend_from_slice(&self.0);
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self::new(bytes)
    }

    /// The path above, `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().rposition(|&b| b == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// The last component, `None` for the root.
    #[must_use]
    pub fn file_name(&self) -> Option<&[u8]> {
        self.0.rsplit(|&b| b == b'/').next().filter(|name| !name.is_empty())
    }

    /// The components, top first.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|name| !name.is_empty())
    }

    /// Whether this path is `ancestor` or lies below it, by components.
    #[must_use]
    pub fn starts_with(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || (self.0.starts_with(&ancestor.0)
                && (self.0.len() == ancestor.0.len() || self.0.get(ancestor.0.len()) == Some(&b'/')))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// For people: as [`text::path`] writes it; the root shows as `.`.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.pad(".") } else { f.pad(&text::path(&self.0)) }
    }
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
        Self::new(bytes).map_err(serde::de::Error::custom)
    }
}

/// One component of a path: a name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Vec<u8>);

impl FileName {
    /// Checks and takes over `bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` if empty, `.`, `..`, or with `/` or NUL in it.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        RelPath::root().join(&bytes)?;
        Ok(Self(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a string of the operating system.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for FileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for FileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
        Self::new(bytes).map_err(serde::de::Error::custom)
    }
}

/// The path in a field of one of the kernel's tables (`/proc/self/mountinfo`, `/proc/swaps`): space, tab, newline and backslash are three octal digits
/// there.
#[must_use]
pub fn proc_path(field: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [first, tail @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (*first, tail) {
            path.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = after;
        } else {
            path.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// An absolute path as bytes, for messages: only shown to people or handed back to the caller that owns it.
pub(crate) mod abs {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::PathBuf;

    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(path.as_os_str().as_bytes(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_the_kernel_writes_it() {
        for (field, path) in
            [(&br"/a\040b\134\011\012"[..], &b"/a b\\\t\n"[..]), (br"/a\9\", br"/a\9\"), (b"/\xff\\400", b"/\xff\\400")]
        {
            assert_eq!(proc_path(field).as_os_str().as_bytes(), path);
        }
    }
}
