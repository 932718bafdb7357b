//! Depots that are not in their stores: the note of where one is, making one, taking it away when it is empty.
//!
//! ```text
//! <store>/elsewhere          the depot that is the store's: key, blank, path of the folder of depots; in a line of its own which folder that is
//! <store>/elsewhere.<key>    the same of one that is in the making or being taken away
//! ```
//!
//! The second comes before the depot and goes after it, so that what a killed process leaves is found ([`clear`]); its maker holds it locked.
//! Whoever puts something into a depot holds that locked, shared ([`hold`]); whoever takes it away, alone. Which depot is the store's is decided
//! by the note's first name; whoever takes that away holds the note locked.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::text::shell;
use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::{failed, look, names, path_of};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::above::{candidates, nowhere};
use crate::depot::{FOLDERS, hex, how_to_bring, open, stands_for_another, unique};
use crate::subvolume::is_root;
use crate::sys;

/// The folder of depots, where they cannot be in their stores.
pub(crate) const ABOVE: &str = ".ah-snapshots";

const NOTE: &str = "elsewhere";

/// Where a depot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// Its name, 128 random bits in hex.
    key: String,
    /// The folder of depots.
    above: PathBuf,
    /// The filesystem that it is on; none in notes of old.
    filesystem: Option<String>,
    /// Which subvolume it is: another may come in its place. None in notes of old, and before it is known.
    subvolume: Option<String>,
}

impl Note {
    /// That of the store's depot.
    pub(crate) fn read(store: &Dir) -> Result<Option<Self>> {
        match open_note(store, NOTE)? {
            // Where they are, nobody knows then.
            Some(file) => Self::parse(&file).map(Some).map_err(|error| match error.kind {
                ErrorKind::DataLoss => error.with_hint(format!("if its snapshots are not needed: {}", forget(store))),
                _ => error,
            }),
            None => Ok(None),
        }
    }

    fn parse(file: &std::fs::File) -> Result<Self> {
        let mut bytes = Vec::new();
        file.take(8192)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::from_io("cannot read where the snapshots are", &e))?;
        let damaged = || Error::new(ErrorKind::DataLoss, "the store's note of where its snapshots are is damaged");
        let is_hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        // From its end: there may be newlines in the path, whose last part is no number. The maker may have been killed over the second line.
        let whole = bytes.strip_suffix(b"\n");
        let lines = whole.unwrap_or(&bytes);
        let last =
            lines.iter().rposition(|byte| *byte == b'\n').and_then(|at| Some((&lines[..at], lines.get(at + 1..)?)));
        let (line, second) = match last {
            Some((line, second)) if is_hex(second) => (line, Some(second)),
            _ => (whole.ok_or_else(damaged)?, None),
        };
        let subvolume = second.filter(|second| whole.is_some() && second.len() == 32);
        let (key, path) = line.split_at_checked(32).ok_or_else(damaged)?;
        let (filesystem, path) = match path.strip_prefix(b"@").map(|rest| rest.split_at_checked(32)) {
            None => (None, path),
            Some(fields) => fields.map(|(filesystem, path)| (Some(filesystem), path)).ok_or_else(damaged)?,
        };
        let path = path.strip_prefix(b" ").filter(|path| path.starts_with(b"/")).ok_or_else(damaged)?;
        if ![Some(key), filesystem, subvolume].into_iter().flatten().all(is_hex) {
            return Err(damaged());
        }
        let text = |hex: &[u8]| String::from_utf8_lossy(hex).into_owned();
        let above = PathBuf::from(OsString::from_vec(path.to_owned()));
        Ok(Self { key: text(key), above, filesystem: filesystem.map(text), subvolume: subvolume.map(text) })
    }

    fn encode(&self) -> Vec<u8> {
        let filesystem = self.filesystem.iter().flat_map(|filesystem| ["@", filesystem]).collect::<String>();
        [self.key.as_bytes(), filesystem.as_bytes(), b" ", self.above.as_os_str().as_bytes(), b"\n"].concat()
    }

    /// Whether there is no depot, for sure: the very folder of depots is there, and it is not in it. A power cut can bring a note back, and
    /// somebody may have taken the depot away. In another folder in that place it never was.
    pub(crate) fn is_void(&self) -> bool {
        let (Some(subvolume), Ok(folder)) = (&self.subvolume, self.folder()) else { return false };
        sys::info(&folder).is_ok_and(|here| hex(&here.uuid) == *subvolume) && self.is_not_in(&folder)
    }

    /// Whether nothing is to be taken away of a depot that is not the store's, and had nothing in it: a folder of depots is there, on its
    /// filesystem, and it is not in it.
    fn is_unmade(&self) -> bool {
        let (Some(filesystem), Ok(folder)) = (&self.filesystem, self.folder()) else { return false };
        sys::filesystem(&folder).is_ok_and(|here| hex(&here) == *filesystem) && self.is_not_in(&folder)
    }

    /// Whether another folder of depots is in the place of the one that it was.
    fn is_replaced(&self) -> bool {
        let (Some(subvolume), Ok(folder)) = (&self.subvolume, self.folder()) else { return false };
        sys::info(&folder).is_ok_and(|here| hex(&here.uuid) != *subvolume)
    }

    fn is_not_in(&self, folder: &Dir) -> bool {
        matches!(look(folder, self.key.as_bytes()), Err(Errno::NOENT))
    }

    /// Whether there is no folder of depots, for sure: what it would be in is there, on its filesystem.
    fn is_gone(&self) -> bool {
        let (Some(filesystem), Some(above)) = (&self.filesystem, self.above.parent()) else { return false };
        Dir::open(above).is_ok_and(|above| {
            sys::filesystem(&above).is_ok_and(|here| hex(&here) == *filesystem)
                && matches!(look(&above, ABOVE.as_bytes()), Err(Errno::NOENT))
        })
    }

    /// Where the depot is.
    pub(crate) fn path(&self) -> PathBuf {
        self.above.join(&self.key)
    }

    /// What it is called while the depot is not the store's.
    fn aside(&self) -> String {
        format!("{NOTE}.{}", self.key)
    }

    /// The folder of depots.
    fn folder(&self) -> Result<Dir> {
        let folder = Dir::open(&self.above)?;
        check_own(folder.as_fd(), &self.above)?;
        Ok(folder)
    }

    /// Opens the depot of `store`.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is not there: on a filesystem that is not mounted, or taken away by somebody else. Of what keeps this process from
    /// looking nothing follows.
    pub(crate) fn open(&self, store: &Dir) -> Result<OwnedFd> {
        let cannot = || format!("the snapshots in {} cannot be reached", self.path().display());
        let opened = self.folder().and_then(|folder| {
            open(folder.as_fd(), &self.key).map_err(|errno| Error::from_io(cannot(), &errno.into()))
        });
        opened.map_err(|error| {
            if is_passing(&error) {
                return error.context(cannot());
            }
            let why = if error.causes.is_empty() { error.message } else { error.causes.join(": ") };
            let message = format!("{}: {why}", cannot());
            // Whether they are only elsewhere, nobody but a person knows; nothing is forgotten by itself.
            let first = if self.is_gone() {
                format!("move {} back to where it was", self.above.display())
            } else if self.is_replaced() {
                format!("{} is another folder by now: put the one back that was there", self.above.display())
            } else if Dir::open(&self.above).is_ok_and(|above| stands_for_another(above.as_fd())) {
                how_to_bring(&self.above)
            } else {
                "mount that filesystem where it was when they were taken".to_owned()
            };
            Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint(format!("{first}; or, if they are lost for good, forget them: {}", forget(store)))
        })
    }
}

/// Whether an error says nothing of what is there: another time there is none.
fn is_passing(error: &Error) -> bool {
    error.kind == ErrorKind::ResourceExhausted || error.errno == Some(Errno::IO.raw_os_error())
}

/// The command that forgets a depot.
fn forget(store: &Dir) -> String {
    format!("rm {}", shell(store.path().join(NOTE).as_os_str()))
}

fn open_note(store: &Dir, name: &str) -> Result<Option<std::fs::File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(store, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("cannot read where the snapshots are", errno)),
    }
}

/// Waits until nobody takes the open depot away, and keeps everybody from it until it is closed. Then it may be gone.
pub(crate) fn hold(depot: BorrowedFd<'_>) -> Result<()> {
    retry_on_intr(|| rustix::fs::flock(depot, FlockOperation::LockShared))
        .map_err(|errno| failed("cannot lock the place for snapshots", errno))
}

/// That a folder of depots is this user's, and closed to all others.
fn check_own(folder: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let stat = look(folder, b"").map_err(|errno| failed("cannot look at the folder of snapshots", errno))?;
    if is_ours(&stat) && stat.stx_mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("{} is not a subvolume that only this user can look into", path.display());
    Err(Error::new(ErrorKind::FailedPrecondition, message))
}

/// Whether it is a subvolume of this user's.
fn is_ours(stat: &rustix::fs::Statx) -> bool {
    stat.stx_uid == rustix::process::geteuid().as_raw() && is_root(stat)
}

/// Closes a folder of depots that was just made to all others: it was made with what the umask leaves, and nothing is in it before this. By then
/// somebody who may write to the directory that it is in can have put something else in its place, which stays as it is.
fn close(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    let is_new = is_ours(&look(folder, b"")?) && names(folder)?.is_empty();
    if is_new { rustix::fs::fchmod(folder, Mode::RWXU) } else { Ok(()) }
}

/// Makes a depot for the store, on the filesystem of the workspace; if somebody else is first, theirs holds. There may be none afterwards: they
/// may have taken it away.
///
/// # Errors
/// `FailedPrecondition` if there is no place for it.
pub(crate) fn make(store: &Dir, workspace: &Dir) -> Result<()> {
    remove_void(store)?;
    let mut trouble = nowhere(workspace);
    for place in candidates(workspace)?.into_iter().rev() {
        match make_in(store, place.as_fd()) {
            Ok(()) => return Ok(()),
            // Somebody else's is there, in a directory that several may write to.
            Err(error) if error.kind == ErrorKind::FailedPrecondition => trouble = error,
            Err(error) => return Err(error),
        }
    }
    Err(trouble)
}

fn make_in(store: &Dir, place: BorrowedFd<'_>) -> Result<()> {
    let fail = |errno| failed("cannot make a place for snapshots", errno);
    let place = open(place, ".").map_err(fail)?;
    let filesystem = sys::filesystem(&place).map(|filesystem| hex(&filesystem)).map_err(fail)?;
    let above = path_of(place.as_fd()).join(ABOVE);
    let note = Note { key: unique()?, above, filesystem: Some(filesystem), subvolume: None };
    let aside = note.aside();
    let file = write(store, &note)?;
    let made = make_noted(store, place.as_fd(), &note, &file);
    // What this does not take away, `clear` does.
    let _ = rustix::fs::unlinkat(store, &aside, AtFlags::empty());
    made
}

fn make_noted(store: &Dir, place: BorrowedFd<'_>, note: &Note, mut file: &std::fs::File) -> Result<()> {
    let fail = |errno| failed("cannot make a place for snapshots", errno);
    let folder = make_depot(place, note)?;
    let which = sys::info(&folder).map(|info| format!("{}\n", hex(&info.uuid)));
    let written = which.map_err(std::io::Error::from).and_then(|which| file.write_all(which.as_bytes()));
    let written = written.and_then(|()| file.sync_all()).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
    // The depot must be on disk before the note of it holds, and the note before the first snapshot.
    let linked = written
        .and_then(|()| rustix::fs::syncfs(&folder))
        .and_then(|()| rustix::fs::linkat(store, note.aside(), store, NOTE, AtFlags::empty()));
    match linked {
        Ok(()) => rustix::fs::fsync(store).map_err(fail),
        Err(errno) => {
            let _ = rustix::fs::unlinkat(&folder, &note.key, AtFlags::REMOVEDIR);
            // Somebody else was first; or cleared up the note in the moment before it was locked: whoever asked asks again.
            if matches!(errno, Errno::EXIST | Errno::NOENT) { Ok(()) } else { Err(fail(errno)) }
        }
    }
}

/// Makes the depot, and the folder of depots if there is none; gives that, open.
fn make_depot(place: BorrowedFd<'_>, note: &Note) -> Result<OwnedFd> {
    let fail = |errno| failed("cannot make a place for snapshots", errno);
    for _ in 0..100 {
        let is_made = match sys::create(place, ABOVE.as_bytes()) {
            Ok(()) => {
                #[cfg(test)]
                tests::after_it_was_made();
                true
            }
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(fail(errno)),
        };
        let folder = match open(place, ABOVE) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => continue,
            // A file, a symlink, or somebody else's.
            Err(errno @ (Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)) => {
                let message = format!("{} is in the way: {}", note.above.display(), std::io::Error::from(errno));
                return Err(Error::new(ErrorKind::FailedPrecondition, message));
            }
            Err(errno) => return Err(fail(errno)),
        };
        if is_made {
            close(folder.as_fd()).map_err(fail)?;
        }
        check_own(folder.as_fd(), &note.above)?;
        match rustix::fs::mkdirat(&folder, &note.key, Mode::RWXU) {
            Ok(()) => return Ok(folder),
            // Taken away with the last depot in it, this moment.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    Err(Error::new(ErrorKind::Busy, "the folder of snapshots is taken away again and again").with_hint("repeat"))
}

/// Writes a note aside, on disk. Locked until it is closed.
fn write(store: &Dir, note: &Note) -> Result<std::fs::File> {
    let fail = |e: &std::io::Error| Error::from_io("cannot write down where the snapshots are", e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(store, note.aside(), flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail(&e.into()))?;
    let mut file = std::fs::File::from(file);
    retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)).map_err(|e| fail(&e.into()))?;
    let written = file.write_all(&note.encode()).and_then(|()| file.sync_all());
    let synced = written.and_then(|()| rustix::fs::fsync(store).map_err(Into::into));
    if let Err(error) = synced {
        let _ = rustix::fs::unlinkat(store, note.aside(), AtFlags::empty());
        return Err(fail(&error));
    }
    Ok(file)
}

/// Takes the store's depot away if it is empty and nobody puts anything into it, and the folder of depots if it was the last: nobody else
/// would.
pub(crate) fn remove_if_empty(store: &Dir, depot: BorrowedFd<'_>, path: &Path) -> bool {
    if !lock_soon(depot) {
        return false;
    }
    let gone = remove_locked(store, depot, path);
    let _ = rustix::fs::flock(depot, FlockOperation::Unlock);
    gone
}

/// Locks it, unless somebody has it for longer than it takes to start a process: until that is another program, it has what the one has that
/// starts it.
fn lock_soon(fd: BorrowedFd<'_>) -> bool {
    lock_within(fd, Duration::from_millis(200))
}

/// Locks it alone, unless somebody has it for longer.
pub(crate) fn lock_within(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        if rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if began.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn remove_locked(store: &Dir, depot: BorrowedFd<'_>, path: &Path) -> bool {
    // Before it was locked, somebody else may have taken it away, and yet somebody else made another one.
    let Ok(Some(file)) = open_note(store, NOTE) else { return false };
    if !lock_soon(file.as_fd()) || !is_noted(store, &file) {
        return false;
    }
    let Ok(note) = Note::parse(&file) else { return false };
    if note.path() != path || !is_emptied(depot) {
        return false;
    }
    let Ok(folder) = note.folder() else { return false };
    let aside = note.aside();
    // No rename: between two names of one file that does nothing, and its maker, or a killed one, may have left the other name there.
    if rustix::fs::linkat(store, NOTE, store, &aside, AtFlags::empty()).is_err()
        || rustix::fs::unlinkat(store, NOTE, AtFlags::empty()).is_err()
    {
        return false;
    }
    // The note goes before the depot on disk, too: else it could be back after a power cut, and the depot not.
    if rustix::fs::fsync(store).is_err() || rustix::fs::unlinkat(&folder, &note.key, AtFlags::REMOVEDIR).is_err() {
        let _ = rustix::fs::renameat_with(store, &aside, store, NOTE, RenameFlags::NOREPLACE);
        return false;
    }
    let _ = rustix::fs::unlinkat(store, &aside, AtFlags::empty());
    drop(folder);
    // An empty subvolume goes as an empty directory does; one that still has depots does not.
    let _ = rustix::fs::rmdir(&note.above);
    true
}

/// Whether that open note is the one of the store's depot. Whoever takes that away holds it locked, so that it stays so, and nobody takes
/// away one that came after it.
fn is_noted(store: &Dir, file: &std::fs::File) -> bool {
    let inode = |stat: rustix::fs::Statx| stat.stx_ino;
    matches!((look(file, b"").map(inode), look(store, NOTE.as_bytes()).map(inode)), (Ok(own), Ok(there)) if own == there)
}

/// Takes a void note away; whether there was one.
fn remove_void(store: &Dir) -> Result<bool> {
    let fail = |errno| failed("cannot forget a place for snapshots that is gone", errno);
    let Some(file) = open_note(store, NOTE)? else { return Ok(false) };
    retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)).map_err(fail)?;
    if !is_noted(store, &file) || !Note::parse(&file)?.is_void() {
        return Ok(false);
    }
    rustix::fs::unlinkat(store, NOTE, AtFlags::empty()).and_then(|()| rustix::fs::fsync(store)).map_err(fail)?;
    Ok(true)
}

/// Whether there is nothing in a depot that somebody may need, or that `reclaim` has yet to remove.
pub(crate) fn is_empty(depot: BorrowedFd<'_>) -> bool {
    FOLDERS.iter().all(|name| match open(depot, name) {
        Ok(folder) => names(folder.as_fd()).is_ok_and(|names| names.is_empty()),
        Err(errno) => errno == Errno::NOENT,
    })
}

/// Takes a depot's empty folders away; whether it has none any more.
pub(crate) fn is_emptied(depot: BorrowedFd<'_>) -> bool {
    FOLDERS
        .iter()
        .all(|name| matches!(rustix::fs::unlinkat(depot, *name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT)))
}

/// Takes away what killed processes left of depots that they made or took away; answers how many.
pub(crate) fn clear(store: &Dir) -> Result<usize> {
    let names = names(store.as_fd()).map_err(|errno| failed("cannot look into the store", errno))?;
    let mut count = usize::from(remove_void(store)?);
    for name in names.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
        if name.strip_prefix(NOTE).is_none_or(|rest| !rest.starts_with('.')) {
            continue;
        }
        let Some(file) = open_note(store, name)? else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        // One that was not written to its end names nothing: there was no depot yet. The store's own one is only called so, too.
        let note = Note::parse(&file).ok().filter(|note| note.aside() == name);
        if note.is_some_and(|note| !is_settled(store, &note)) {
            continue;
        }
        if rustix::fs::unlinkat(store, name, AtFlags::empty()).is_ok() {
            count += 1;
        }
    }
    Ok(count)
}

/// Whether nothing is left of what that note aside is about; takes it away if need be.
fn is_settled(store: &Dir, note: &Note) -> bool {
    // A filesystem that is not there may hold it still; notes of old do not say which it was.
    let of_old = note.filesystem.is_none();
    let folder = match note.folder() {
        Ok(folder) => folder,
        Err(error) => return !is_passing(&error) && (of_old || note.is_gone()),
    };
    let depot = match open(folder.as_fd(), &note.key) {
        Ok(depot) => depot,
        Err(errno) => return of_old && errno == Errno::NOENT || note.is_unmade(),
    };
    if rustix::fs::flock(&depot, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    // Only while it is locked this stays so.
    if matches!(Note::read(store), Ok(Some(own)) if own == *note) {
        return true;
    }
    let gone = is_emptied(depot.as_fd()) && rustix::fs::unlinkat(&folder, &note.key, AtFlags::REMOVEDIR).is_ok();
    if gone {
        let _ = rustix::fs::rmdir(&note.above);
    }
    gone
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    use ah_test_disks::Disk;

    use super::*;

    thread_local! {
        /// What somebody else does as soon as a folder of depots is there.
        static THEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn after_it_was_made() {
        if let Some(then) = THEN.take() {
            then();
        }
    }

    #[test]
    fn what_was_put_in_the_place_of_a_folder_of_depots_is_left_as_it_is() {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let place = std::fs::File::open(disk.at()).unwrap();
        let above = disk.at().join(ABOVE);
        let note = Note { key: "0a".repeat(16), above: above.clone(), filesystem: None, subvolume: None };
        // A plain directory, and somebody else's subvolume.
        for (subvolume, owner) in [(false, 0), (true, ah_test_disks::NOBODY)] {
            let other = disk.at().join("other");
            if subvolume {
                sys::create(&place, b"other").unwrap();
            } else {
                std::fs::create_dir(&other).unwrap();
            }
            std::os::unix::fs::chown(&other, Some(owner), None).unwrap();
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o751)).unwrap();
            let there = above.clone();
            THEN.set(Some(Box::new(move || {
                std::fs::remove_dir(&there).unwrap();
                std::fs::rename(other, there).unwrap();
            })));
            assert_eq!(make_depot(place.as_fd(), &note).unwrap_err().kind, ErrorKind::FailedPrecondition);
            assert!(THEN.take().is_none());
            assert_eq!(std::fs::metadata(&above).unwrap().permissions().mode() & 0o777, 0o751);
            std::fs::remove_dir(&above).unwrap();
        }
        make_depot(place.as_fd(), &note).unwrap();
        assert_eq!(std::fs::metadata(&above).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn notes_come_back_and_those_of_old_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let parsed = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Note::parse(&std::fs::File::open(&path).unwrap())
        };
        let filesystem = Some("1f".repeat(16));
        let note = Note { key: "0a".repeat(16), above: "/a b@c".into(), filesystem, subvolume: None };
        assert_eq!(parsed(&note.encode()).unwrap(), note);
        let which = "2e".repeat(16);
        let more = |text: &str| parsed(&[note.encode(), text.into()].concat()).unwrap().subvolume;
        assert_eq!(more(&format!("{which}\n")), Some(which.clone()));
        assert_eq!((more(&which), more("2e2e\n")), (None, None));
        // Whatever is in the path.
        let odd = Note { above: "/a\n0a\nb/.ah-snapshots".into(), subvolume: Some(which.clone()), ..note.clone() };
        assert_eq!(parsed(&[odd.encode(), format!("{which}\n").into()].concat()).unwrap(), odd);
        for cut in ["", "2e", &which] {
            let odd = Note { subvolume: None, ..odd.clone() };
            assert_eq!(parsed(&[odd.encode(), cut.into()].concat()).unwrap(), odd, "{cut:?}");
        }
        let old = Note { filesystem: None, ..note };
        assert_eq!(old.encode(), format!("{} /a b@c\n", "0a".repeat(16)).as_bytes());
        assert_eq!(parsed(&old.encode()).unwrap(), old);
        for bad in ["", "0a /x\n", &format!("{}@12 /x\n", old.key), &format!("{0}@{0}/x\n", old.key)] {
            assert_eq!(parsed(bad.as_bytes()).unwrap_err().kind, ErrorKind::DataLoss, "{bad:?}");
        }
    }
}
