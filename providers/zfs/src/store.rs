//! The store's folder. What a snapshot is stands with the snapshot; here is only what finds it again.
//!
//! ```text
//! identity            which snapshots are this store's: a key, which is in their names, and the datasets that have some
//! lock                held shared by whoever makes something, exclusively by `reclaim`
//! view-<hash>         a view (`ah_provider_directory::Views`)
//! clone-<reference>   a clone; with `.part` one in the making, with `.gone` one that is being removed;
//!                     locked by whoever does so
//! <name>.new-<pid>    what is to replace <name>, before it is on disk
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ah_plugin_api::{Context, Dir, Error, ErrorKind, Result};
use ah_provider_directory::{Views, failed, names};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::names::Key;

const IDENTITY: &str = "identity";
const LOCK: &str = "lock";

/// What is in the name of a file that will replace another one, before the number of the process.
const UNFINISHED: &str = ".new-";

/// An open store.
pub(crate) struct Store<'a>(&'a Dir);

/// How the store is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Something is being made.
    Shared,
    /// Nothing is being made.
    Exclusive,
}

/// Which snapshots are this store's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// What is in their names.
    pub(crate) key: Key,
    /// The datasets that have some.
    pub(crate) datasets: Vec<Known>,
}

/// A dataset that has snapshots of this store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Its name when it was last seen.
    pub(crate) name: String,
    /// What it is known by after it was renamed.
    pub(crate) guid: u64,
    /// What its filesystem is known by while it is mounted; zero where that was not written down.
    #[serde(default)]
    pub(crate) filesystem: u64,
    /// What its pool is known by, which another one of that name is not; zero where that was not written down.
    #[serde(default)]
    pub(crate) pool: u64,
}

/// Of the form of `identity`.
const VERSION: u32 = 1;

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    key: String,
    datasets: Vec<Known>,
}

impl<'a> Store<'a> {
    pub(crate) fn new(dir: &'a Dir) -> Self {
        Self(dir)
    }

    /// Locks the store until the answer is dropped, or this process ends in whatever way. Needs the right to write there.
    pub(crate) fn lock(&self, lock: Lock, cx: &Context<'_>) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.0, LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed("cannot open the store's lock", errno))?;
        // `reclaim` does not wait; the others wait for `reclaim`, for ten seconds.
        let (operation, tries) = match lock {
            Lock::Exclusive => (FlockOperation::NonBlockingLockExclusive, 1),
            Lock::Shared => (FlockOperation::NonBlockingLockShared, 1000),
        };
        wait_for(file, operation, tries, cx)
    }

    /// Locks the store's views: shared by who shows a snapshot, alone by who looks that none is shown, and destroys it. The folder
    /// itself is what is locked, so that no file has to be made, on a full disk perhaps.
    pub(crate) fn lock_views(&self, alone: bool, cx: &Context<'_>) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(self.0, c".", flags, Mode::empty())
            .map_err(|errno| failed("cannot open the store", errno))?;
        let operation =
            if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        wait_for(folder, operation, 3000, cx)
    }

    /// Which snapshots are this store's; none if it has never had one.
    pub(crate) fn identity(&self) -> Result<Option<Identity>> {
        let Some(bytes) = self.read(IDENTITY)? else { return Ok(None) };
        let shown = || self.path(IDENTITY).display().to_string();
        decode(&bytes).map(Some).map_err(|unread| match unread {
            Unread::Newer => {
                Error::new(ErrorKind::FailedPrecondition, format!("{} was written by a newer version", shown()))
                    .with_hint("use that version of ah; nothing is wrong with the store")
            }
            // Not to be removed: the key in it is all that says which snapshots are this store's.
            Unread::Damaged => Error::new(ErrorKind::DataLoss, format!("{} is damaged", shown())).with_hint(
                "the snapshots are safe, and zfs get -t snapshot -s local org.ah-project:store shows them: put the file back from a backup",
            ),
        })
    }

    /// The identity, made on first use, and with this dataset in it. The guids of it and of its pool are asked for only if the dataset,
    /// whose filesystem has that id, is not known by this name yet.
    pub(crate) fn identity_with(
        &self,
        dataset: &str,
        filesystem: u64,
        guids: impl FnOnce() -> Result<(u64, u64)>,
    ) -> Result<Identity> {
        let is_it = |known: &Known| known.name == dataset && filesystem != 0 && known.filesystem == filesystem;
        if let Some(known) = self.identity()?.filter(|identity| identity.datasets.iter().any(is_it)) {
            return Ok(known);
        }
        let (guid, pool) = guids()?;
        // Whoever else does this at the same time waits here, and finds it done.
        let writing = rustix::fs::openat(
            self.0,
            "identity.lock",
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(|errno| failed("cannot write to the store", errno))?;
        rustix::fs::flock(&writing, FlockOperation::LockExclusive)
            .map_err(|errno| failed("cannot lock the store", errno))?;
        let mut identity = match self.identity()? {
            Some(identity) => identity,
            None => Identity { key: Key::random()?, datasets: Vec::new() },
        };
        let now = Known { name: dataset.to_owned(), guid, filesystem, pool };
        match identity.datasets.iter_mut().find(|known| known.guid == guid) {
            Some(known) => *known = now,
            // Another one that had this name stays known: it may be there, with its snapshots, under another.
            None => identity.datasets.push(now),
        }
        self.replace(IDENTITY, &encode(&identity)?, |_| Ok(()))?;
        Ok(identity)
    }

    /// Has the store know these datasets from now on, and no others. For who holds its lock alone: [`Self::identity_with`] is called with
    /// the lock shared.
    pub(crate) fn know(&self, identity: &Identity, datasets: Vec<Known>) -> Result<()> {
        if datasets != identity.datasets {
            let bytes = encode(&Identity { key: identity.key.clone(), datasets })?;
            self.replace(IDENTITY, &bytes, |_| Ok(()))?;
        }
        Ok(())
    }

    /// The views of this store.
    pub(crate) fn views(&self) -> Result<Views> {
        Views::in_folder(self.0)
    }

    /// The names of all files, in byte order.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let found = names(self.0.as_fd()).map_err(|errno| failed("cannot list the store", errno))?;
        Ok(found.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    /// What [`Self::replace`] had in hand when its process was killed, if nobody is at it: all who call it hold the store's lock.
    pub(crate) fn unfinished(&self) -> Result<Vec<String>> {
        Ok(self.names()?.into_iter().filter(|name| name.contains(UNFINISHED)).collect())
    }

    /// The contents of a small file; none if there is none.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.0, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(format!("cannot open {name} in the store"), errno)),
        };
        let mut bytes = Vec::new();
        use std::io::Read;
        std::fs::File::from(file)
            .take(1 << 20)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::from_io(format!("cannot read {name} in the store"), &error))?;
        Ok(Some(bytes))
    }

    /// Makes a file, or replaces it in one step, with `first` done to it before it has its name; it is on disk when this returns.
    pub(crate) fn replace(
        &self,
        name: &str,
        bytes: &[u8],
        first: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<OwnedFd> {
        let fail = |errno| failed(format!("cannot write {name} in the store"), errno);
        let temporary = format!("{name}{UNFINISHED}{}", std::process::id());
        let written = self.write(&temporary, bytes).and_then(|file| {
            first(&file)
                .and_then(|()| rustix::fs::renameat(self.0, &temporary, self.0, name))
                .and_then(|()| self.sync())
                .map_err(fail)?;
            Ok(file)
        });
        if written.is_err() {
            // What it was to replace is as it was; the error at hand is the one to tell.
            let _ = rustix::fs::unlinkat(self.0, &temporary, AtFlags::empty());
        }
        written
    }

    /// Makes a file that nobody has yet, with its contents on disk; open, so that it can be locked.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<OwnedFd> {
        let fail = |errno| failed(format!("cannot write {name} in the store"), errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.0, name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = rustix::io::write(&file, rest).map_err(fail)?;
            rest = rest.get(n..).unwrap_or_default();
        }
        rustix::fs::fsync(&file).map_err(fail)?;
        Ok(file)
    }

    /// Renames a file; on disk when this returns. Without `RENAME_NOREPLACE`, which ZFS has from 2.2 on only: names here are made of
    /// random numbers, and nobody else writes here.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(self.0, from, self.0, to)
            .and_then(|()| self.sync())
            .map_err(|errno| failed(format!("cannot rename {from} in the store"), errno))
    }

    /// Removes a file. One that is not there is gone already.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(format!("cannot remove {name} from the store"), errno)),
        }
    }

    /// Puts the names on disk.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(self.0)
    }

    /// Where a file of it is, for messages.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Locks a file, trying so often, a hundred times a second.
fn wait_for(file: OwnedFd, operation: FlockOperation, mut tries: u32, cx: &Context<'_>) -> Result<OwnedFd> {
    loop {
        tries -= 1;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if tries > 0 => std::thread::sleep(Duration::from_millis(10)),
            Err(Errno::WOULDBLOCK) => {
                return Err(
                    Error::new(ErrorKind::Busy, "another process is working on this store").with_hint("repeat later")
                );
            }
            Err(errno) => return Err(failed("cannot lock the store", errno)),
        }
        cx.check_cancelled()?;
    }
}

fn encode(identity: &Identity) -> Result<Vec<u8>> {
    let file = File { version: VERSION, key: identity.key.to_string(), datasets: identity.datasets.clone() };
    let mut bytes = serde_json::to_vec(&file).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, "the store's identity cannot be written down").with_cause(&error)
    })?;
    seal(&mut bytes);
    Ok(bytes)
}

/// Adds the checksum.
fn seal(bytes: &mut Vec<u8>) {
    let sum = crc32fast::hash(bytes);
    bytes.extend_from_slice(format!("\n{sum:08x}\n").as_bytes());
}

/// Why an identity cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    /// It is not what was written.
    Damaged,
    /// It is, by a version that writes it in another way.
    Newer,
}

fn decode(bytes: &[u8]) -> Result<Identity, Unread> {
    let json = unsealed(bytes).ok_or(Unread::Damaged)?;
    // What else a newer version has in it is not known; the version is where it always was.
    let Version { version } = serde_json::from_str(json).map_err(|_| Unread::Damaged)?;
    if version > VERSION {
        return Err(Unread::Newer);
    }
    let file: File = serde_json::from_str(json).map_err(|_| Unread::Damaged)?;
    let key = Key::parse(&file.key).filter(|_| version == VERSION).ok_or(Unread::Damaged)?;
    Ok(Identity { key, datasets: file.datasets })
}

/// What is in front of the checksum, if that is right.
fn unsealed(bytes: &[u8]) -> Option<&str> {
    let (json, sum) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
    (u32::from_str_radix(sum, 16) == Ok(crc32fast::hash(json.as_bytes()))).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_made_once_and_knows_renamed_datasets() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let store = Store::new(&dir);
        assert_eq!(store.identity().unwrap(), None);
        let first = store.identity_with("tank/a", 10, || Ok((1, 100))).unwrap();
        let again = store.identity_with("tank/a", 10, || panic!("not needed")).unwrap();
        assert_eq!(first, again);
        let names = |identity: &Identity| {
            let names = identity.datasets.iter().map(|known| format!("{}={}", known.name, known.guid));
            names.collect::<Vec<_>>().join(" ")
        };
        let renamed = store.identity_with("tank/b", 10, || Ok((1, 100))).unwrap();
        assert_eq!((&renamed.key, names(&renamed).as_str()), (&first.key, "tank/b=1"));
        // Another one under the same name: both are known.
        let replaced = store.identity_with("tank/b", 20, || Ok((2, 100))).unwrap();
        assert_eq!(names(&replaced), "tank/b=1 tank/b=2");
        // An id that cannot be had says nothing.
        assert_eq!(store.identity_with("tank/b", 0, || Ok((2, 100))).unwrap().datasets.len(), 2);
        assert_eq!(names(&store.identity_with("tank/d", 20, || Ok((2, 100))).unwrap()), "tank/b=1 tank/d=2");
        // As versions before this one wrote it.
        let old: Known = serde_json::from_str(r#"{"name":"t","guid":7}"#).unwrap();
        assert_eq!((old.guid, old.filesystem, old.pool), (7, 0, 0));
        // One that was destroyed is not kept, nor what it was for.
        let all = store.identity().unwrap().unwrap();
        store.know(&all, all.datasets[1..].to_vec()).unwrap();
        let less = store.identity().unwrap().unwrap();
        assert_eq!((names(&less).as_str(), less.key), ("tank/d=2", first.key));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let identity = Identity {
            key: Key::random().unwrap(),
            datasets: vec![Known { name: "t/\u{e9}".into(), guid: 7, filesystem: 9, pool: 100 }],
        };
        let bytes = encode(&identity).unwrap();
        assert_eq!(decode(&bytes), Ok(identity));
        for i in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 0x15;
            assert_eq!(decode(&damaged), Err(Unread::Damaged), "byte {i}");
            assert_eq!(decode(&bytes[..i]), Err(Unread::Damaged), "cut at {i}");
        }
    }

    #[test]
    fn what_a_newer_version_wrote_is_not_damaged_and_not_to_be_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let told = |json: &str| {
            let mut bytes = json.as_bytes().to_vec();
            seal(&mut bytes);
            std::fs::write(temp.path().join(IDENTITY), bytes).unwrap();
            let error = Store::new(&dir).identity().unwrap_err();
            let hint = error.hint.unwrap();
            assert!(!hint.contains("remove") && !hint.contains("anew"), "{hint}");
            (error.kind, error.message)
        };
        for newer in [r#"{"version":2,"keys":[]}"#, r#"{"version":3,"key":"0123456789abcdef","datasets":[]}"#] {
            let (kind, message) = told(newer);
            assert_eq!(kind, ErrorKind::FailedPrecondition);
            assert!(message.contains("newer version"), "{message}");
        }
        for odd in [r#"{"version":0,"key":"0123456789abcdef","datasets":[]}"#, "{}", r#"{"version":1}"#] {
            assert_eq!(told(odd).0, ErrorKind::DataLoss);
        }
    }
}
