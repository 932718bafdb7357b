//! Files of configuration: nested JSON, read into flat keys, changed in place.
//!
//! ```json
//! {"provider": "git", "capture": {"exclude": ["*.iso"], "max-file-size": "64MiB"}}
//! ```

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Map, Value};

use crate::attend::has_ended;
use crate::config::ConfigValues;
use crate::config::keys::ConfigKey;
use crate::fsio;

/// No configuration is larger.
pub(super) const MAX: u64 = 1 << 20;

/// Reads a file of ours or the system's; none if it is not there.
pub(super) fn read(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = fsio::read(&real(path))? else { return Ok(None) };
    parse(&bytes).map(Some).map_err(|reason| {
        Error::new(ErrorKind::InvalidArgument, format!("the configuration {} cannot be read: {reason}", path.display()))
            .with_hint(format!("correct {}", path.display()))
    })
}

/// Where a file of the user's own really is: many people keep theirs elsewhere, behind a symlink.
pub(super) fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Reads a project's file, which a stranger may have written: no symlink is followed, nothing but a plain file is opened for good.
pub(super) fn read_project(root: &Path) -> Result<Option<Vec<u8>>> {
    // A workspace whose directory is not there has no file. Of one that lost its mount it is read once that is back.
    let is_away = |error: &Error| error.errno.is_some_and(|errno| has_ended(Errno::from_raw_os_error(errno)));
    let root = match Dir::open(root) {
        Err(error) if error.kind == ErrorKind::NotFound || is_away(&error) => return Ok(None),
        root => root?,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = || -> rustix::io::Result<Option<std::fs::File>> {
        let folder = rustix::fs::openat(root.as_fd(), ".ah", flags | OFlags::DIRECTORY, Mode::empty())?;
        let file = rustix::fs::openat(&folder, "config.json", flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok((plain && stat.st_size.unsigned_abs() <= MAX).then(|| file.into()))
    };
    let file = match open() {
        Ok(Some(file)) => file,
        Ok(None) => return Err(Error::new(ErrorKind::InvalidArgument, "it is not a plain file of up to 1 MiB")),
        Err(e) if e == Errno::NOENT || has_ended(e) => return Ok(None),
        Err(e) => return Err(Error::from_io("it cannot be opened", &e.into())),
    };
    let mut bytes = Vec::new();
    file.take(MAX).read_to_end(&mut bytes).map_err(|e| Error::from_io("it cannot be read", &e))?;
    Ok(Some(bytes))
}

/// Parses a file; the error is a reason for people.
pub(super) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// Nested objects as dotted keys.
pub(super) fn flatten(fields: &Map<String, Value>) -> ConfigValues {
    fn walk(prefix: &str, fields: &Map<String, Value>, flat: &mut ConfigValues) {
        for (name, value) in fields {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                Value::Object(inner) if !ConfigKey::find(&key).is_some_and(ConfigKey::is_object) => {
                    walk(&key, inner, flat);
                }
                _ => drop(flat.insert(key, value.clone())),
            }
        }
    }
    let mut flat = ConfigValues::new();
    walk("", fields, &mut flat);
    flat.remove("version");
    flat
}

/// Sets a key, or takes it away; everything else stays as it is.
pub(super) fn set(fields: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    // It may stand there dotted.
    fields.remove(key);
    match (key.split_once('.'), value) {
        (None, Some(value)) => drop(fields.insert(key.to_owned(), value)),
        (None, None) => {}
        (Some((group, rest)), value) => {
            let group_value = fields.entry(group).or_insert_with(|| Value::Object(Map::new()));
            if !group_value.is_object() {
                *group_value = Value::Object(Map::new());
            }
            if let Value::Object(inner) = group_value {
                set(inner, rest, value);
                if inner.is_empty() {
                    fields.remove(group);
                }
            }
        }
    }
}
