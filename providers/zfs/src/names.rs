//! Names: of datasets, of what this provider makes, and the escapes for texts that ZFS's properties cannot hold.
//!
//! ```text
//! <dataset>@ah-<key>-<id>          a snapshot; <key> names the store, <id> is the caller's
//! <dataset>@ah-<key>.<unique>      one that was removed but that a clone or a hold still needs
//! <dataset>/ah-<key>-<unique>      a clone
//! ```
//!
//! ZFS allows letters, digits, `-`, `_`, `.`, `:` and blanks in a component, 255 bytes in all, `@` included. An id has no dot, so no id
//! is ever taken for a removed snapshot.

use std::ffi::CString;
use std::fmt;

use ah_plugin_api::{Error, ErrorKind, Reference, Result, SnapshotId};

/// The longest name of a dataset or snapshot, bytes. Source: `ZFS_MAX_DATASET_NAME_LEN`, less the NUL.
pub(crate) const LONGEST: usize = 255;

const PREFIX: &str = "ah-";

/// What names a store within all its datasets' snapshots: 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(String);

impl Key {
    /// A new one, which nobody else has.
    pub(crate) fn random() -> Result<Self> {
        Ok(Self(format!("{:016x}", random()?)))
    }

    /// One that was written down.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        is_hex(text).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_hex(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        let mut failed = Error::new(ErrorKind::Unavailable, "the system gives no random numbers");
        failed.causes.push(error.to_string());
        failed
    })
}

/// The full name of a snapshot.
pub(crate) fn snapshot(dataset: &str, key: &Key, id: &SnapshotId) -> Result<CString> {
    checked(format!("{dataset}@{PREFIX}{key}-{id}"))
}

/// A full name for a snapshot that was removed.
pub(crate) fn removed(dataset: &str, key: &Key) -> Result<CString> {
    checked(format!("{dataset}@{PREFIX}{key}.{:016x}", random()?))
}

/// What the name of a snapshot says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// One of ours, with its id.
    Snapshot(SnapshotId),
    /// One of ours that was removed.
    Removed,
    /// Somebody else's, or another store's.
    Foreign,
}

/// What the full name of a snapshot says, seen from a store.
pub(crate) fn read_snapshot(full: &[u8], key: &Key) -> Named {
    let parse = || {
        let name = std::str::from_utf8(full).ok()?.split_once('@')?.1;
        let rest = name.strip_prefix(PREFIX)?.strip_prefix(key.0.as_str())?;
        match rest.strip_prefix('-') {
            Some(id) => Some(Named::Snapshot(SnapshotId::new(id).ok()?)),
            None => rest.strip_prefix('.').map(|_| Named::Removed),
        }
    };
    parse().unwrap_or(Named::Foreign)
}

/// Whether the full name of a snapshot is one that a store of this provider may have given.
pub(crate) fn is_any_stores(full: &[u8]) -> bool {
    let name = full.iter().position(|&b| b == b'@').map(|at| &full[at + 1..]);
    let key = name.and_then(|name| name.strip_prefix(PREFIX.as_bytes())).and_then(|rest| rest.get(..16));
    key.and_then(|key| std::str::from_utf8(key).ok()).is_some_and(is_hex)
}

/// A reference for a new clone.
pub(crate) fn clone_reference() -> Result<Reference> {
    Reference::new(format!("{:016x}", random()?))
}

/// The name of the clone with that reference; none if it is no reference of ours.
///
/// A clone of a clone lies beside it, not inside: so that either can go first.
pub(crate) fn clone(dataset: &str, key: &Key, reference: &Reference) -> Option<Result<CString>> {
    let reference = Some(reference.as_str()).filter(|text| is_hex(text))?;
    let parent = match dataset.rsplit_once('/') {
        Some((parent, last)) if is_clone(last) => parent,
        _ => dataset,
    };
    Some(checked(format!("{parent}/{PREFIX}{key}-{reference}")))
}

/// Whether the full name of a dataset is one that [`clone`] gives.
pub(crate) fn is_any_clone(dataset: &str) -> bool {
    dataset.rsplit_once('/').is_some_and(|(_, last)| is_clone(last))
}

/// Whether the last component of a dataset's name is one that [`clone`] gives.
fn is_clone(last: &str) -> bool {
    let parts = last.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(key, reference)| is_hex(key) && is_hex(reference))
}

fn checked(name: String) -> Result<CString> {
    if name.len() > LONGEST {
        return Err(Error::new(
            ErrorKind::FailedPrecondition,
            format!("the name {name} would be longer than the {LONGEST} bytes that ZFS allows"),
        )
        .with_hint("rename the dataset to something shorter: zfs rename"));
    }
    CString::new(name).map_err(|_| Error::new(ErrorKind::InvalidArgument, "a dataset's name with a NUL in it"))
}

/// Text for a property: control characters, `%` and what is not UTF-8 as `%` and two hexadecimal digits, the rest as it is. `unescape` reads it.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_ascii_control() || character == '%' {
                text.push_str(&format!("%{:02x}", u32::from(character)));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ah_provider_directory::unescape;

    fn key() -> Key {
        Key::parse("0123456789abcdef").unwrap()
    }

    #[test]
    fn names_are_read_as_they_were_given() {
        let id = SnapshotId::new("0-9-z").unwrap();
        let full = snapshot("tank/home me", &key(), &id).unwrap();
        assert_eq!(full.to_str().unwrap(), "tank/home me@ah-0123456789abcdef-0-9-z");
        assert_eq!(read_snapshot(full.as_bytes(), &key()), Named::Snapshot(id));
        assert_eq!(read_snapshot(removed("tank", &key()).unwrap().as_bytes(), &key()), Named::Removed);
        let other = Key::random().unwrap();
        assert_eq!(read_snapshot(full.as_bytes(), &other), Named::Foreign);
        assert!(is_any_stores(full.as_bytes()));
        for foreign in ["tank@autosnap_2026", "tank@ah-", "tank@ah-xyz-1", "tank@ah-0123456789abcdef", "tank"] {
            assert_eq!(read_snapshot(foreign.as_bytes(), &key()), Named::Foreign, "{foreign}");
        }
        assert!(!is_any_stores(b"tank@ah-2026-01-01-monthly"));
    }

    #[test]
    fn a_clone_of_a_clone_lies_beside_it() {
        let reference = clone_reference().unwrap();
        let first = clone("tank/ws", &key(), &reference).unwrap().unwrap().into_string().unwrap();
        assert!(first.starts_with("tank/ws/ah-0123456789abcdef-"));
        let second = clone(&first, &Key::random().unwrap(), &reference).unwrap().unwrap().into_string().unwrap();
        assert!(second.starts_with("tank/ws/ah-") && !second.starts_with(&first), "{second}");
        assert!(clone("tank", &key(), &Reference::new("../x").unwrap()).is_none());
        assert!(clone("tank", &key(), &Reference::new("0123456789abcdeF").unwrap()).is_none());
    }

    #[test]
    fn names_that_are_too_long_are_refused() {
        let id = SnapshotId::new("x".repeat(64)).unwrap();
        let fits = "p".repeat(LONGEST - 85);
        assert_eq!(snapshot(&fits, &key(), &id).unwrap().as_bytes().len(), LONGEST);
        let error = snapshot(&format!("{fits}p"), &key(), &id).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    }

    #[test]
    fn any_bytes_survive_escaping() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [b"".as_slice(), b"plain", b"100% \n\0", "\u{1f980} \u{e9}".as_bytes(), b"caf\xe9", &all] {
            let text = escape(bytes);
            assert!(!text.bytes().any(|b| b.is_ascii_control()));
            assert_eq!(unescape(text.as_bytes()).unwrap(), bytes);
        }
        assert_eq!(escape("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!((unescape(b"%4"), unescape(b"%zz")), (None, None));
    }
}
