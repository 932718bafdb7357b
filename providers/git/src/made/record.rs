//! The records of what was made: one file each, JSON lines, only ever appended to, held by `flock` while worked on.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Dir, Error, ErrorKind, FileName, Reference, Result, SnapshotId, Timestamp};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::identity::Identity;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A read-only view.
    View,
    /// A writable clone.
    Clone,
}

/// The first line of a record: what shall be made, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Making {
    /// What is made.
    pub(crate) kind: Kind,
    /// From which snapshot.
    pub(crate) snapshot: SnapshotId,
    /// Its final name in the target folder, bytes.
    pub(crate) name: FileName,
    /// The target folder.
    pub(crate) target: Identity,
    /// Where the target folder was, so that `reclaim` finds it again.
    pub(crate) target_path: Vec<u8>,
    /// When.
    pub(crate) created: Timestamp,
}

/// One line of a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The first: what is being made.
    Making(Making),
    /// The directory is there, under its temporary name.
    Directory(Identity),
    /// It is whole, has its final name, and the caller is about to be told.
    Ready,
    /// It is being removed.
    Removing,
}

/// How far a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its maker was at work, and if nobody holds the record, has died.
    Making,
    /// Whole.
    Ready,
    /// Its removal has begun.
    Removing,
}

/// Where the folder is that a thing was made in.
pub(crate) enum Target {
    /// Here it is.
    Here(OwnedFd),
    /// There is nothing at its path any more.
    Gone,
    /// Something else is at its path: it was moved away, or its disk is not mounted.
    Elsewhere(PathBuf),
}

/// The `views/` folder of a store.
pub(crate) struct Records {
    dir: OwnedFd,
}

/// One record, held: nobody else works on the thing as long as this lives.
pub(crate) struct Record {
    dir: OwnedFd,
    file: std::fs::File,
    id: String,
    /// The first line.
    pub(crate) making: Making,
    /// The directory, once it was made.
    pub(crate) directory: Option<Identity>,
    /// How far it is.
    pub(crate) state: State,
}

const FOLDER: &std::ffi::CStr = c"views";
/// How long one who works on a thing is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

impl Drop for Record {
    fn drop(&mut self) {
        // Closing is not enough at once: a child that another thread is just starting has the descriptor too, until it
        // becomes another program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Records {
    /// Opens the folder; makes it if it is not there.
    pub(crate) fn open(store: &Dir) -> Result<Self> {
        match rustix::fs::mkdirat(store, FOLDER, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed("make", e)),
        }
        Self::open_existing(store)?.ok_or_else(|| failed("open", Errno::NOENT))
    }

    /// Opens the folder, if it is there.
    pub(crate) fn open_existing(store: &Dir) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(store, FOLDER, flags, Mode::empty()) {
            Ok(dir) => Ok(Some(Self { dir })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(failed("open", e)),
        }
    }

    /// Writes the first line of a new record, durably, and holds it.
    pub(crate) fn create(&self, making: Making) -> Result<Record> {
        for _ in 0..16 {
            let id = random_id()?;
            let flags =
                OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(&self.dir, &*id, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => std::fs::File::from(file),
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(failed("write", e)),
            };
            rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| failed("lock", e))?;
            // Between those two calls a reclaim may have taken the empty file for garbage.
            if rustix::fs::fstat(&file).map_err(|e| failed("read", e))?.st_nlink == 0 {
                continue;
            }
            let dir = self.dir.try_clone().map_err(|e| Error::from_io("cannot keep a folder open", &e))?;
            let mut record = Record { dir, file, id, making: making.clone(), directory: None, state: State::Making };
            record
                .append(&Line::Making(making))
                .and_then(|()| record.sync())
                .and_then(|()| record.sync_folder())
                .inspect_err(|_| {
                    let _ = rustix::fs::unlinkat(&self.dir, &*record.id, AtFlags::empty());
                })?;
            return Ok(record);
        }
        Err(Error::new(ErrorKind::Internal, "no free name for a record"))
    }

    /// The record of that reference, held; none if there is none (any more), or can be none.
    ///
    /// Waits a second for whoever holds it.
    ///
    /// # Errors
    /// `Busy` after that, `Cancelled`.
    pub(crate) fn find(&self, reference: &Reference, cx: &Context<'_>) -> Result<Option<Record>> {
        let id = reference.as_str();
        if !is_id(id) {
            return Ok(None);
        }
        let start = Instant::now();
        loop {
            match self.hold(id)? {
                Held::Record(record) => return Ok(Some(*record)),
                Held::Gone | Held::Garbage => return Ok(None),
                Held::ByOther if start.elapsed() > PATIENCE => {
                    return Err(Error::new(ErrorKind::Busy, "another process is working on it at this moment")
                        .with_hint("repeat when it has finished"));
                }
                Held::ByOther => cx.check_cancelled()?,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every record that nobody holds, each held while it is visited. Removes what never became a record.
    pub(crate) fn for_each_free(&self, cx: &Context<'_>, mut visit: impl FnMut(Record) -> Result<()>) -> Result<()> {
        let names = rustix::fs::Dir::read_from(&self.dir).map_err(|e| failed("list", e))?;
        for name in names {
            cx.check_cancelled()?;
            let name = name.map_err(|e| failed("list", e))?;
            let Some(id) = name.file_name().to_str().ok().filter(|name| is_id(name)) else { continue };
            match self.hold(id)? {
                Held::Record(record) => visit(*record)?,
                // Unlinked while held, so that its maker notices.
                Held::Garbage => {}
                Held::Gone | Held::ByOther => {}
            }
        }
        Ok(())
    }

    fn hold(&self, id: &str) -> Result<Held> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match rustix::fs::openat(&self.dir, id, flags, Mode::empty()) {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::NOENT) => return Ok(Held::Gone),
            Err(e) => return Err(failed("open", e)),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Held::ByOther),
            Err(e) => return Err(failed("lock", e)),
        }
        if rustix::fs::fstat(&file).map_err(|e| failed("read", e))?.st_nlink == 0 {
            return Ok(Held::Gone);
        }
        let mut text = Vec::new();
        let read = (&file).take(1 << 20).read_to_end(&mut text);
        read.map_err(|e| Error::from_io("cannot read the record of a view or clone", &e))?;
        let Some((making, directory, state)) = parse(&text) else {
            // Nothing is made before the first line is on disk.
            rustix::fs::unlinkat(&self.dir, id, AtFlags::empty()).map_err(|e| failed("remove", e))?;
            return Ok(Held::Garbage);
        };
        let dir = self.dir.try_clone().map_err(|e| Error::from_io("cannot keep a folder open", &e))?;
        // A torn last line would swallow the next one.
        if text.last() != Some(&b'\n') {
            file.write_all(b"\n").map_err(|e| Error::from_io("cannot write the record of a view or clone", &e))?;
        }
        Ok(Held::Record(Box::new(Record { dir, file, id: id.to_owned(), making, directory, state })))
    }
}

enum Held {
    Record(Box<Record>),
    ByOther,
    Gone,
    Garbage,
}

fn parse(text: &[u8]) -> Option<(Making, Option<Identity>, State)> {
    let mut lines = text.split(|&b| b == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let Some(Line::Making(making)) = lines.next() else { return None };
    let (mut directory, mut state) = (None, State::Making);
    for line in lines {
        match line {
            Line::Making(_) => {}
            Line::Directory(identity) => directory = Some(identity),
            Line::Ready => state = State::Ready,
            Line::Removing => state = State::Removing,
        }
    }
    Some((making, directory, state))
}

impl Record {
    /// What the caller gets to name the thing by.
    pub(crate) fn reference(&self) -> Result<Reference> {
        Reference::new(self.id.clone())
    }

    /// The name the directory bears while it is made or removed.
    pub(crate) fn temporary(&self) -> CString {
        // An id has no NUL.
        CString::new(format!(".ah-{}", self.id)).unwrap_or_default()
    }

    /// Records that the directory is there under its temporary name.
    pub(crate) fn directory_made(&mut self, identity: Identity) -> Result<()> {
        self.directory = Some(identity);
        self.append(&Line::Directory(identity))?;
        self.sync()
    }

    /// Records that the thing is whole. Not synced: on many filesystems that would write out all that was just made, and what
    /// bears its final name counts as whole anyway.
    pub(crate) fn ready(&mut self) -> Result<()> {
        self.state = State::Ready;
        self.append(&Line::Ready)
    }

    /// Records that its removal begins.
    pub(crate) fn removing(&mut self) -> Result<()> {
        self.state = State::Removing;
        self.append(&Line::Removing)
    }

    /// Drops the record: the thing is gone.
    pub(crate) fn remove(self) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, &*self.id, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed("remove", e)),
        }
    }

    /// The target folder: the one given if it is the one, else the one at the recorded path if that is the one.
    pub(crate) fn target(&self, given: Option<&Dir>) -> Result<Target> {
        let here = |dir: &Dir| {
            let fd = dir.as_fd().try_clone_to_owned();
            fd.map(Target::Here).map_err(|e| Error::from_io("cannot keep a folder open", &e))
        };
        if let Some(given) = given
            && Identity::of(given)?.is(&self.making.target)
        {
            return here(given);
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&self.making.target_path));
        match Dir::open(path.clone()) {
            Ok(dir) if Identity::of(&dir)?.is(&self.making.target) => here(&dir),
            Ok(_) => Ok(Target::Elsewhere(path)),
            Err(e) if e.kind == ErrorKind::NotFound => Ok(Target::Gone),
            Err(e) if e.kind == ErrorKind::InvalidArgument => Ok(Target::Elsewhere(path)),
            Err(e) => Err(e),
        }
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line)
            .map_err(|e| Error::new(ErrorKind::Internal, "cannot encode a record").with_cause(&e))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| Error::from_io("cannot write the record of a view or clone", &e))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::from_io("cannot write the record of a view or clone", &e))
    }

    fn sync_folder(&self) -> Result<()> {
        rustix::fs::fsync(&self.dir).map_err(|e| failed("sync", e))
    }
}

const ID_LENGTH: usize = 16;

fn random_id() -> Result<String> {
    let mut bytes = [0_u8; ID_LENGTH];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Unavailable, format!("the system gives no random numbers: {e}")))?;
    Ok(bytes.iter().map(|byte| char::from(b'k' + byte % 16)).collect())
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LENGTH && text.bytes().all(|b| (b'k'..=b'z').contains(&b))
}

fn failed(what: &str, e: Errno) -> Error {
    Error::from_io(format!("cannot {what} the records of views and clones"), &e.into())
}

#[cfg(test)]
mod tests {
    use super::{Kind, Making, Records, State, Target};
    use crate::made::Identity;
    use ah_plugin_api::{Context, Dir, ErrorKind, FileName, Reference, SnapshotId, Timestamp};

    fn making(target: &Dir) -> Making {
        Making {
            kind: Kind::View,
            snapshot: SnapshotId::new("s").unwrap(),
            name: FileName::new(b"v\xff".to_vec()).unwrap(),
            target: Identity::of(target).unwrap(),
            target_path: target.path().as_os_str().as_encoded_bytes().to_vec(),
            created: Timestamp::now(),
        }
    }

    #[test]
    fn found_again_with_its_state_and_held_against_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = Dir::open(dir.path()).unwrap();
        assert!(Records::open_existing(&store).unwrap().is_none());
        let records = Records::open(&store).unwrap();
        let made = making(&store);
        let mut record = records.create(made.clone()).unwrap();
        let reference = record.reference().unwrap();
        assert_eq!(records.find(&reference, &Context::quiet()).err().unwrap().kind, ErrorKind::Busy);
        let mut seen = 0;
        records
            .for_each_free(&Context::quiet(), |_| {
                seen += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, 0);
        record.directory_made(Identity::of(&store).unwrap()).unwrap();
        record.ready().unwrap();
        drop(record);
        let found = records.find(&reference, &Context::quiet()).unwrap().unwrap();
        assert_eq!((found.state, &found.making), (State::Ready, &made));
        assert!(found.directory.unwrap().is(&Identity::of(&store).unwrap()));
        assert!(matches!(found.target(None).unwrap(), Target::Here(_)));
        found.remove().unwrap();
        assert!(records.find(&reference, &Context::quiet()).unwrap().is_none());
    }

    #[test]
    fn a_torn_line_is_as_if_it_was_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Dir::open(dir.path()).unwrap();
        let records = Records::open(&store).unwrap();
        let record = records.create(making(&store)).unwrap();
        let (reference, path) =
            (record.reference().unwrap(), dir.path().join("views").join(record.reference().unwrap().as_str()));
        drop(record);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"\"rea");
        std::fs::write(&path, &text).unwrap();
        let mut record = records.find(&reference, &Context::quiet()).unwrap().unwrap();
        assert_eq!(record.state, State::Making);
        record.ready().unwrap();
        drop(record);
        assert_eq!(records.find(&reference, &Context::quiet()).unwrap().unwrap().state, State::Ready);
        std::fs::write(&path, &text[..20]).unwrap();
        assert!(records.find(&reference, &Context::quiet()).unwrap().is_none());
        assert!(!path.exists());
    }

    #[test]
    fn a_reference_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&Dir::open(dir.path()).unwrap()).unwrap();
        for bad in ["../../x", "a", "kkkkkkkkkkkkkkk/", "AAAAAAAAAAAAAAAA"] {
            assert!(records.find(&Reference::new(bad).unwrap(), &Context::quiet()).unwrap().is_none());
        }
    }
}
