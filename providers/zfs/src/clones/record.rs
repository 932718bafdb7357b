//! What is written down of a clone in the store, before it is made and until it is gone.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use ah_plugin_api::{Error, ErrorKind, Reference, Result};
use ah_provider_directory::unescape;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::names::escape;
use crate::store::Store;

const PREFIX: &str = "clone-";

/// A clone, whole or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    /// What the caller knows it by.
    pub(crate) reference: Reference,
    /// How far it is.
    pub(crate) state: State,
}

/// How far a clone is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is there.
    Whole,
    /// It is being made, or was when its maker died.
    Part,
    /// It is being removed.
    Gone,
}

impl State {
    fn suffix(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Part => ".part",
            Self::Gone => ".gone",
        }
    }
}

/// What is known of a clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The dataset's name.
    pub(crate) dataset: String,
    #[serde(rename = "mountpoint")]
    point: String,
    /// What it is known by, whatever its name is: a copy of it that was sent elsewhere has that name too. None before it is made, and
    /// in records of older versions, whose clones are known by nothing but their whole name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guid: Option<u64>,
    /// The guid of its pool's topmost dataset: another pool may have that one's name. None as with `guid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<u64>,
}

impl Record {
    pub(crate) fn new(dataset: &str, point: &std::path::Path) -> Self {
        Self { dataset: dataset.to_owned(), point: escape(point.as_os_str().as_bytes()), guid: None, pool: None }
    }

    /// Where it is mounted.
    pub(crate) fn point(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(unescape(self.point.as_bytes()).unwrap_or_default()))
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "the clone cannot be written down").with_cause(&error)
        })
    }
}

/// A record of a clone that is being made, locked while this process does so.
pub(super) struct Making {
    name: String,
    record: Record,
    lock: OwnedFd,
}

fn name(reference: &Reference, state: State) -> String {
    format!("{PREFIX}{reference}{}", state.suffix())
}

/// Writes down that a clone will be made.
pub(super) fn begin(store: &Store<'_>, reference: &Reference, record: Record) -> Result<Making> {
    let name = name(reference, State::Part);
    let lock = store.write(&name, &record.bytes()?)?;
    // Nobody has the name yet but by listing the store, and then only to look.
    locked(&lock)
        .and_then(|()| store.sync())
        .map_err(|errno| ah_provider_directory::failed("cannot write to the store", errno))?;
    Ok(Making { name, record, lock })
}

fn locked(file: &OwnedFd) -> Result<(), rustix::io::Errno> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

impl Making {
    /// Writes down what the clone and its pool are known by, as soon as there is one.
    pub(super) fn made(&mut self, store: &Store<'_>, (guid, pool): (u64, u64)) -> Result<()> {
        (self.record.guid, self.record.pool) = (Some(guid), Some(pool));
        // In one step, and locked before it has that name: whoever finds it half, finds its maker alive or dead.
        self.lock = store.replace(&self.name, &self.record.bytes()?, locked)?;
        Ok(())
    }

    /// Writes down that the clone is there.
    pub(super) fn done(&self, store: &Store<'_>, reference: &Reference) -> Result<()> {
        store.rename(&self.name, &name(reference, State::Whole))
    }

    /// Takes the record back.
    pub(super) fn undone(&self, store: &Store<'_>) -> Result<()> {
        store.remove(&self.name)
    }
}

/// Writes down that a clone is in another state now. The lock of [`claim`] stays with the record.
pub(super) fn turn(store: &Store<'_>, gone: &mut Gone, state: State) -> Result<()> {
    if gone.state != state {
        store.rename(&name(&gone.reference, gone.state), &name(&gone.reference, state))?;
        gone.state = state;
    }
    Ok(())
}

/// Takes the record of a removed clone away.
pub(super) fn forget(store: &Store<'_>, gone: &Gone) -> Result<()> {
    store.remove(&name(&gone.reference, gone.state))
}

/// What a file says of a clone.
#[derive(Debug)]
pub(crate) enum Written {
    /// All of it.
    Whole(Record),
    /// Its maker was killed while it wrote that there will be one: so there is none.
    CutOff,
    /// It cannot be read, for this reason; so it is not known what it is about.
    Damaged(Error),
}

/// All clones that are written down, in no order.
pub(crate) fn all(store: &Store<'_>) -> Result<Vec<(Gone, Written)>> {
    let mut found = Vec::new();
    for file in store.names()? {
        let Some(rest) = file.strip_prefix(PREFIX) else { continue };
        let (text, state) = match rest.split_once('.') {
            None => (rest, State::Whole),
            Some((text, "part")) => (text, State::Part),
            Some((text, "gone")) => (text, State::Gone),
            Some(_) => continue,
        };
        let Ok(reference) = Reference::new(text) else { continue };
        let written = match store.read(&file) {
            // One that another process has just taken away.
            Ok(None) => continue,
            Ok(Some(bytes)) => match serde_json::from_slice(&bytes) {
                Ok(record) => Written::Whole(record),
                // It is on the disk before anything is made.
                Err(error) if error.is_eof() && state == State::Part => Written::CutOff,
                Err(error) => Written::Damaged(damaged(store, &reference, &file).with_cause(&error)),
            },
            Err(error) => Written::Damaged(error),
        };
        found.push((Gone { reference, state }, written));
    }
    Ok(found)
}

fn damaged(store: &Store<'_>, reference: &Reference, file: &str) -> Error {
    let path = store.path(file);
    Error::new(ErrorKind::DataLoss, format!("the record of the clone {reference}, {}, is damaged", path.display()))
        .with_hint(format!(
            "if its dataset is there (zfs list, its name ends in -{reference}), destroy it by hand; then remove {}",
            path.display()
        ))
}

/// Has nobody else go on with a clone until the answer is dropped, or this process ends in whatever way; none if somebody is making or
/// removing it now, or it is not as it was any more.
pub(super) fn claim(store: &Store<'_>, gone: &Gone) -> Result<Option<OwnedFd>> {
    use rustix::fs::{AtFlags, Mode, OFlags};
    use rustix::io::Errno;
    let name = name(&gone.reference, gone.state);
    let fail = |errno| ah_provider_directory::failed("cannot lock the record of the clone", errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(store.fd(), &name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    }
    // Whoever had the lock before may have renamed it, or taken it away.
    let locked = rustix::fs::fstat(&file).map_err(fail)?;
    let there = rustix::fs::statat(store.fd(), &name, AtFlags::SYMLINK_NOFOLLOW);
    Ok(there.is_ok_and(|there| there.st_ino == locked.st_ino).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ah_plugin_api::Dir;
    use std::path::Path;

    fn only(store: &Store<'_>) -> (Gone, Record) {
        let mut all = all(store).unwrap();
        assert_eq!(all.len(), 1);
        let (gone, written) = all.remove(0);
        let Written::Whole(record) = written else { panic!("{written:?}") };
        (gone, record)
    }

    #[test]
    fn a_record_that_cannot_be_read_is_told_unless_it_was_never_written() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let store = Store::new(&dir);
        let reference = Reference::new("0123456789abcdef").unwrap();
        let record = Record::new("tank/ah-0-0", Path::new("/there")).bytes().unwrap();
        for (suffix, text, is_damage) in [
            ("", &b""[..], true),
            (".gone", &record[..9], true),
            (".part", b"garbage", true),
            (".part", &record[..9], false),
            (".part", b"", false),
        ] {
            let path = temp.path().join(format!("clone-{reference}{suffix}"));
            std::fs::write(&path, text).unwrap();
            let removed = super::super::remove(&store, &reference, &ah_plugin_api::Context::quiet());
            assert_eq!(removed.is_err(), is_damage, "{suffix} {text:?}");
            assert_eq!(path.exists(), is_damage, "{suffix} {text:?}");
            if let Err(error) = removed {
                assert_eq!(error.kind, ErrorKind::DataLoss);
                assert!(error.hint.unwrap().contains(path.to_str().unwrap()));
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn what_is_made_is_written_down_by_what_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let store = Store::new(&dir);
        let reference = Reference::new("0123456789abcdef").unwrap();
        let record = Record::new("tank/ah-0-0", Path::new("/there/\u{e9}\n"));
        let mut making = begin(&store, &reference, record.clone()).unwrap();
        let (gone, read) = only(&store);
        assert_eq!((gone.state, &read), (State::Part, &record));
        assert!(claim(&store, &gone).unwrap().is_none(), "its maker is at it");
        making.made(&store, (7, 100)).unwrap();
        assert_eq!(only(&store).1, Record { guid: Some(7), pool: Some(100), ..record.clone() });
        assert!(claim(&store, &gone).unwrap().is_none(), "still");
        making.done(&store, &reference).unwrap();
        drop(making);
        let (gone, read) = only(&store);
        assert_eq!((gone.state, read.guid, read.point()), (State::Whole, Some(7), record.point()));
        assert!(claim(&store, &gone).unwrap().is_some());
        // As versions before this one wrote it.
        let old: Record = serde_json::from_str(r#"{"dataset":"t/c","mountpoint":"/m"}"#).unwrap();
        assert_eq!((old.dataset.as_str(), old.guid, old.pool), ("t/c", None, None));
    }
}
