//! The store's folder: what lies where in it, and how it changes in one step.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use ah_plugin_api::{
    Context, Dir, Durability, Error, ErrorKind, FileName, LogLevel, Reference, Result, Snapshot, SnapshotId,
};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::tree::{self, failed};

/// How the store is locked.
pub enum Lock {
    /// Something is being made.
    Shared,
    /// Nothing is being made.
    Exclusive,
}

/// An open store.
pub struct Store {
    root: OwnedFd,
    tmp: OwnedFd,
    snapshots: OwnedFd,
    made: OwnedFd,
}

impl Store {
    /// Opens the store's directories, making them on first use.
    pub fn open(store: &Dir) -> Result<Self> {
        let dir = |name: &[u8]| match tree::open_dir(store.as_fd(), name) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                match rustix::fs::mkdirat(store, name, Mode::RWXU) {
                    // Somebody else may use it for the first time, too.
                    Ok(()) | Err(Errno::EXIST) => tree::open_dir(store.as_fd(), name),
                    Err(errno) => Err(failed("cannot make a directory in the store", errno)),
                }
            }
            other => other,
        };
        let root = tree::open_dir(store.as_fd(), b".")?;
        Ok(Self { root, tmp: dir(b"tmp")?, snapshots: dir(b"snapshots")?, made: dir(b"made")? })
    }

    /// Locks the store until the answer is dropped, or this process ends in whatever way.
    pub fn lock(&self, lock: Lock, cx: &Context<'_>) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, "lock", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| failed("cannot open the store's lock", e))?;
        // `reclaim` does not wait; the others wait for `reclaim`, for ten seconds.
        let (operation, mut tries) = match lock {
            Lock::Exclusive => (FlockOperation::NonBlockingLockExclusive, 1),
            Lock::Shared => (FlockOperation::NonBlockingLockShared, 1000),
        };
        loop {
            tries -= 1;
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) if tries > 0 => std::thread::sleep(Duration::from_millis(10)),
                Err(errno) => return Err(failed("cannot lock the store", errno)),
            }
            cx.check_cancelled()?;
        }
    }

    /// Whether there is a snapshot of that id.
    pub fn has(&self, id: &SnapshotId) -> Result<bool> {
        match rustix::fs::statat(&self.snapshots, id.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("cannot look for a snapshot", errno)),
        }
    }

    /// The directory of a snapshot.
    pub fn snapshot(&self, reference: &Reference) -> Result<OwnedFd> {
        let nothing = || Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}"));
        // A reference comes from outside; one that is no id must not become a path.
        let id = SnapshotId::new(reference.as_str()).map_err(|_| nothing())?;
        tree::open_dir(self.snapshots.as_fd(), id.as_str().as_bytes())
            .map_err(|error| if error.kind == ErrorKind::NotFound { nothing() } else { error })
    }

    /// Runs `fill` on a new directory, then makes that the directory of the snapshot which `fill` gives, in one step.
    pub fn in_tmp(&self, fill: impl FnOnce(BorrowedFd<'_>) -> Result<Snapshot>) -> Result<Snapshot> {
        let name = unique();
        rustix::fs::mkdirat(&self.tmp, &name, Mode::RWXU).map_err(|e| failed("cannot make a snapshot", e))?;
        let filled = tree::open_dir(self.tmp.as_fd(), name.as_bytes()).and_then(|dir| fill(dir.as_fd()));
        let done = filled.and_then(|snapshot| {
            let id = snapshot.id.as_str().as_bytes();
            tree::rename(self.tmp.as_fd(), name.as_bytes(), self.snapshots.as_fd(), id)?;
            if let Err(errno) = rustix::fs::fsync(&self.snapshots) {
                // It is there, but not for sure; the caller hears that it is not.
                self.remove(&snapshot.reference)?;
                return Err(failed("cannot make the snapshot durable", errno));
            }
            Ok(snapshot)
        });
        if done.is_err() {
            // Should that fail too, `reclaim` finds it; the error at hand is the one to tell.
            let _ = tree::remove(self.tmp.as_fd(), name.as_bytes());
        }
        done
    }

    /// Writes what is known of a snapshot, and makes it and its tree as durable as it says.
    pub fn write(&self, dir: BorrowedFd<'_>, snapshot: &Snapshot) -> Result<()> {
        let broken = |e: &std::io::Error| Error::from_io("cannot write what is known of the snapshot", e);
        let bytes = serde_json::to_vec(snapshot).map_err(|e| broken(&e.into()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let new = unique();
        let file = rustix::fs::openat(dir, &new, flags, Mode::RUSR | Mode::WUSR).map_err(|e| broken(&e.into()))?;
        File::from(file).write_all(&bytes).map_err(|e| broken(&e))?;
        if snapshot.durability == Durability::Durable {
            // One call for everything, instead of one for each file.
            rustix::fs::syncfs(dir).map_err(|e| broken(&e.into()))?;
        }
        rustix::fs::renameat(dir, &new, dir, "snapshot.json").map_err(|e| broken(&e.into()))?;
        rustix::fs::fsync(dir).map_err(|e| broken(&e.into()))
    }

    /// What is known of a snapshot.
    pub fn read(&self, reference: &Reference) -> Result<Snapshot> {
        let dir = self.snapshot(reference)?;
        let damaged = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::DataLoss, format!("the snapshot {reference} is damaged: {why}"))
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, "snapshot.json", flags, Mode::empty()).map_err(|e| damaged(&e))?;
        let snapshot: Snapshot =
            serde_json::from_reader(std::io::BufReader::new(File::from(file))).map_err(|e| damaged(&e))?;
        if snapshot.id.as_str() == reference.as_str() { Ok(snapshot) } else { Err(damaged(&"it bears another id")) }
    }

    /// What is known of all snapshots that are not damaged.
    pub fn read_all(&self, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        let mut all = Vec::new();
        for name in tree::names(self.snapshots.as_fd())? {
            let Some(reference) = String::from_utf8(name).ok().and_then(|name| Reference::new(name).ok()) else {
                continue;
            };
            match self.read(&reference) {
                Ok(snapshot) => all.push(snapshot),
                // Somebody destroyed it meanwhile, or it is a file that is none of ours.
                Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidArgument) => {}
                Err(error) => cx.log(LogLevel::Warn, &error.message),
            }
        }
        Ok(all)
    }

    /// Removes a snapshot: from the list in one step, then from the disk.
    pub fn remove(&self, reference: &Reference) -> Result<()> {
        let Ok(id) = SnapshotId::new(reference.as_str()) else { return Ok(()) };
        let name = unique();
        match rustix::fs::renameat(&self.snapshots, id.as_str(), &self.tmp, &name) {
            Ok(()) => tree::remove(self.tmp.as_fd(), name.as_bytes()),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot remove the snapshot", errno)),
        }
    }

    /// Records that `name` is about to be made in a target folder; gives its reference, and what it is called until it is whole.
    pub fn record(&self, kind: &str, name: &FileName) -> Result<(Reference, String)> {
        let reference = Reference::new(format!("{kind}-{}", unique()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.made, reference.as_str(), flags, Mode::RUSR | Mode::WUSR);
        file.map_err(std::io::Error::from)
            .and_then(|file| File::from(file).write_all(name.as_bytes()))
            .map_err(|e| Error::from_io("cannot record what is made", &e))?;
        let half = format!(".ah-minimal-{reference}");
        Ok((reference, half))
    }

    /// Records which directory in the target is the whole one that is about to get its name: what else may bear that name some day is
    /// not ours to remove. A name has no `/`.
    pub fn record_whole(&self, reference: &Reference, target: &Dir, half: &str) -> Result<()> {
        let (device, inode) =
            tree::identity(target.as_fd(), half.as_bytes()).map_err(|e| failed("cannot look at what was made", e))?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.made, reference.as_str(), flags, Mode::empty())
            .map_err(std::io::Error::from)
            .and_then(|file| File::from(file).write_all(format!("/{device}/{inode}").as_bytes()))
            .map_err(|e| Error::from_io("cannot record what was made", &e))
    }

    /// The name of what was made under a reference and is still there, whole, in that target.
    fn whole(&self, target: &Dir, reference: &Reference) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.made, reference.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NAMETOOLONG) => return Ok(None),
            Err(errno) => return Err(failed("cannot read a record", errno)),
        };
        let mut record = Vec::new();
        File::from(file).read_to_end(&mut record).map_err(|e| Error::from_io("cannot read a record", &e))?;
        let mut parts = record.splitn(2, |byte| *byte == b'/');
        let (Some(name), Some(recorded)) = (parts.next(), parts.next()) else { return Ok(None) };
        match tree::identity(target.as_fd(), name) {
            Ok((device, inode)) if recorded == format!("{device}/{inode}").as_bytes() => Ok(Some(name.to_vec())),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("cannot look for what was made", errno)),
        }
    }

    /// Removes what was made under a reference, and its record. Without a record it is gone already, or was never ours.
    pub fn take_away(&self, target: &Dir, reference: &Reference) -> Result<()> {
        if let Some(name) = self.whole(target, reference)? {
            tree::remove(target.as_fd(), &name)?;
        }
        self.forget(reference)
    }

    /// Removes a record.
    pub fn forget(&self, reference: &Reference) -> Result<()> {
        match rustix::fs::unlinkat(&self.made, reference.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(()),
            Err(errno) => Err(failed("cannot remove a record", errno)),
        }
    }

    /// Removes what processes that ended in the middle have left, and what is called as one of `forgotten`. Only with the exclusive lock.
    pub fn clear(&self, target: Option<&Dir>, forgotten: &[FileName], cx: &Context<'_>) -> Result<Vec<String>> {
        let mut actions = Vec::new();
        for name in tree::names(self.tmp.as_fd())? {
            cx.check_cancelled()?;
            tree::remove(self.tmp.as_fd(), &name)?;
            actions.push("removed a snapshot that was half made or half removed".to_owned());
        }
        let Some(target) = target else { return Ok(actions) };
        for name in tree::names(self.made.as_fd())? {
            let Ok(reference) = Reference::new(String::from_utf8_lossy(&name)) else { continue };
            let half = [b".ah-minimal-".as_slice(), &name].concat();
            if tree::must_not_exist(target.as_fd(), &half).is_err() {
                tree::remove(target.as_fd(), &half)?;
                self.forget(&reference)?;
                actions.push("removed a view or a clone that was half made".to_owned());
            } else if !forgotten.is_empty()
                && let Some(whole) = self.whole(target, &reference)?
                && forgotten.iter().any(|name| name.as_bytes() == whole)
            {
                self.take_away(target, &reference)?;
                actions.push("removed a view or a clone that its maker did not live to hear of".to_owned());
            }
        }
        Ok(actions)
    }
}

/// A name that nobody else uses: digits and `-`.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
