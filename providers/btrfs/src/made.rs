//! Clones: writable snapshots in a target folder, and how they are found again.
//!
//! Each has a symlink in the depot's `made` folder, written before it is made. What it "points to" is the record: the target folder's
//! identity, the UUID of the snapshot that the clone grew from, whether it is in the depot, and its name. A subvolume of that name in that
//! folder which grew from that snapshot is the clone; anything else is not ours. A second symlink, written when it was there, tells what was moved
//! away, and may come back, from what was never made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use ah_plugin_api::{
    CloneRequest, Context, Dir, Error, ErrorKind, FileName, LogLevel, Place, Reference, Result, WritableClone,
};
use ah_provider_directory::{failed, look, names, open_beneath, open_up, set_mode};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::depot::{self, Depot, hex, is_here, unique};
use crate::remove::{self, Mounted};
use crate::shelf::Shelf;
use crate::subvolume::{Removal, is_root};
use crate::sys::{self, Uuid};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const PREFIX: &str = "clone-";
/// What the name of the second symlink begins with.
const WHOLE: &str = "whole-";

/// So often a clone is put into the trash that others empty at that moment.
const ATTEMPTS: u32 = 100;

/// What is written down of a clone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Clone {
    /// The target folder.
    target: String,
    /// The snapshot it grew from.
    parent: String,
    /// Whether it is in the depot's `clones`, under its record's name.
    inside: bool,
    /// Its name in the target folder.
    name: Vec<u8>,
}

impl Clone {
    fn encode(&self) -> Vec<u8> {
        let place = if self.inside { "depot" } else { "target" };
        [format!("{}/{}/{place}/", self.target, self.parent).as_bytes(), &self.name].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.splitn(4, |&b| b == b'/');
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let (target, parent, place) = (text()?, text()?, text()?);
        let name = FileName::new(fields.next()?).ok()?.as_bytes().to_vec();
        let inside = match place.as_str() {
            "depot" => true,
            "target" => false,
            _ => return None,
        };
        Some(Self { target, parent, inside, name })
    }
}

/// What tells a target folder from any other.
fn identity(dir: &Dir) -> Result<String> {
    depot::identity(dir).map_err(|errno| failed("cannot look at the target folder", errno))
}

/// The records, opened anew so that they can be locked.
fn records(depot: &Depot) -> Result<OwnedFd> {
    depot.made_folder("made")
}

fn read(made: BorrowedFd<'_>, name: &str) -> Result<Option<Clone>> {
    let is_ours =
        name.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|b| b.is_ascii_hexdigit()));
    if !is_ours {
        return Ok(None);
    }
    match rustix::fs::readlinkat(made, name, Vec::new()) {
        Ok(record) => Ok(Clone::decode(record.as_bytes())),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(failed("cannot read what is known of a clone", errno)),
    }
}

fn forget(made: BorrowedFd<'_>, name: &str) -> Result<()> {
    // What is left of it without the first, nobody asks for, and `reclaim` takes away.
    for name in [name.to_owned(), whole(name)] {
        match rustix::fs::unlinkat(made, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("cannot forget a clone", errno)),
        }
    }
    Ok(())
}

/// The name of what says that a clone was there.
fn whole(name: &str) -> String {
    format!("{WHOLE}{}", name.strip_prefix(PREFIX).unwrap_or(name))
}

fn was_whole(made: BorrowedFd<'_>, name: &str) -> bool {
    look(made, whole(name).as_bytes()).is_ok()
}

/// Writes down that a clone is there. Where that cannot be done now, `reclaim` does it.
fn say_whole(made: BorrowedFd<'_>, name: &str) {
    let _ = rustix::fs::symlinkat(name, made, whole(name));
}

/// Answers [`ah_plugin_api::Provider::clone_snapshot`].
pub(crate) fn make(place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
    cx.check_cancelled()?;
    let (store, target) = (place.store, place.need_target()?);
    let (shelf, shown) = Shelf::find(store, &request.snapshot)?;
    let path = target.path().join(request.name.as_os_str());
    let taken = || Error::new(ErrorKind::AlreadyExists, format!("{} exists already", path.display()));
    let fail = |errno| failed(format!("cannot make the clone {}", path.display()), errno);
    match look(target, request.name.as_bytes()) {
        Ok(_) => return Err(taken()),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(fail(errno)),
    }
    // Whoever removes it without the right to remove a subvolume empties it first: it is not to be copied half empty.
    let held = shelf.hold(&shown.record.id)?;
    let shown = shelf.get(&request.snapshot)?;
    let source = rustix::fs::openat(&shown.root, c".", DIRECTORY, Mode::empty()).map_err(fail)?;
    let parent = sys::info(&source).map_err(fail)?.uuid;
    let inside = !is_here(target, source.as_fd());
    let made = records(shelf.depot())?;
    // Until the clone is there: `reclaim` takes away records of what is not.
    rustix::fs::flock(&made, FlockOperation::LockShared).map_err(fail)?;
    let record =
        Clone { target: identity(target)?, parent: hex(&parent), inside, name: request.name.as_bytes().to_vec() };
    let name = format!("{PREFIX}{}", unique()?);
    rustix::fs::symlinkat(record.encode(), &made, &name).map_err(fail)?;
    let (folder, at, path) = if inside {
        let clones = shelf.depot().made_folder("clones")?;
        (clones, name.as_bytes(), shelf.depot().path().join("clones").join(&name))
    } else {
        let target = rustix::fs::openat(target, c".", DIRECTORY, Mode::empty()).map_err(fail)?;
        (target, request.name.as_bytes(), path.clone())
    };
    if let Err(errno) = sys::snapshot(&source, &folder, at, false) {
        let _ = forget(made.as_fd(), &name);
        return Err(if errno == Errno::EXIST { taken() } else { fail(errno) });
    }
    drop(held);
    let rel = &shown.record.rel;
    let mut workspace = path.clone();
    let alone = rustix::fs::openat(&folder, at, DIRECTORY, Mode::empty())
        .and_then(|top| open_beneath(top.as_fd(), rel.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY))
        .map_err(fail)
        .and_then(|dir| {
            let alone = Dir::from_fd(dir, path.join(rel.as_path()));
            ah_repository::own(&alone, place.workspace, shown.record.repository.as_ref(), cx)
        });
    let mut notes = match alone {
        Ok(notes) => {
            say_whole(made.as_fd(), &name);
            notes
        }
        Err(error) => {
            // Should that fail too, `reclaim` finds it; the error at hand is the one to tell. Also when it was cancelled: nobody else would.
            let quiet = Context::quiet();
            let mounted = Mounted::default();
            let _ = take_away(shelf.depot(), folder.as_fd(), at, &mounted, &quiet)
                .and_then(|()| forget(made.as_fd(), &name));
            return Err(error);
        }
    };
    if let Some(pins) = &shown.record.pins {
        workspace.push(rel.as_path());
        // Without a path, which a helper that shows the clone elsewhere could not pass on.
        notes.push(format!("it is part of a copy of {pins}, as the workspace is only a part of that"));
    }
    if inside {
        notes.push(format!("it is in {}, because the folder asked for is on another filesystem", path.display()));
    }
    Ok(WritableClone { path: workspace, reference: Reference::new(name)?, notes })
}

/// Where a clone is, if what is there is the clone.
fn place(depot: &Depot, target: &Dir, name: &str, record: &Clone) -> Result<Option<(OwnedFd, Vec<u8>)>> {
    let fail = |errno| failed("cannot look for a clone", errno);
    let (folder, name) = if record.inside {
        let Some(clones) = depot.folder("clones")? else { return Ok(None) };
        (clones, name.as_bytes().to_vec())
    } else {
        if record.target != identity(target)? {
            return Err(Error::new(ErrorKind::InvalidArgument, "the clone was made in another target folder"));
        }
        let target = rustix::fs::openat(target, c".", DIRECTORY, Mode::empty()).map_err(fail)?;
        (target, record.name.clone())
    };
    let stat = match look(&folder, &name) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    if !is_root(&stat) {
        return Ok(None);
    }
    let mut opened = None;
    let root = match rustix::fs::openat(&folder, name.as_slice(), DIRECTORY, Mode::empty()) {
        // Whose bits were taken.
        Err(Errno::ACCESS) => {
            opened = Some(open_up(folder.as_fd(), &name, is_root).map_err(fail)?);
            rustix::fs::openat(&folder, name.as_slice(), DIRECTORY, Mode::empty())
        }
        other => other,
    };
    let parent: Uuid = match root.and_then(sys::info) {
        Ok(info) => info.parent_uuid,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    if hex(&parent) == record.parent {
        return Ok(Some((folder, name)));
    }
    // Somebody else's gets them back as they were.
    if let Some((found, mode)) = opened {
        set_mode(&found, mode).map_err(fail)?;
    }
    Ok(None)
}

/// Takes a clone away. What is gone already is success.
///
/// # Errors
/// `Busy` if something is mounted in it.
pub(crate) fn destroy(store: &Dir, target: &Dir, reference: &Reference, cx: &Context<'_>) -> Result<()> {
    let Some(depot) = Depot::find(store)? else { return Ok(()) };
    let Some(made) = depot.folder("made")? else { return Ok(()) };
    let name = reference.as_str();
    let Some(record) = read(made.as_fd(), name)? else { return Ok(()) };
    if let Some((folder, at)) = place(&depot, target, name, &record)? {
        take_away(&depot, folder.as_fd(), &at, &Mounted::default(), cx)?;
    }
    forget(made.as_fd(), name)
}

/// At once where this user can; else it goes into the trash by one rename, and is emptied behind. On disk when this returns: once the caller
/// has forgotten it, nobody would know it any more if a power cut brought it back.
fn take_away(depot: &Depot, folder: BorrowedFd<'_>, name: &[u8], mounted: &Mounted, cx: &Context<'_>) -> Result<()> {
    mounted.refuse_inside(folder, name, cx)?;
    if Removal::on(folder) != Removal::Emptied || !put_aside(depot, folder, name)? {
        remove::subvolume(folder, name, cx)?;
    }
    rustix::fs::syncfs(folder).map_err(|errno| failed("cannot put a removal on disk", errno))
}

/// Whether it is in the trash now, or gone anyway.
fn put_aside(depot: &Depot, folder: BorrowedFd<'_>, name: &[u8]) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        let trash = depot.made_folder("trash")?;
        let unique = unique()?;
        let moved = rustix::fs::mkdirat(&trash, &unique, Mode::RWXU)
            .and_then(|()| rustix::fs::openat(&trash, &unique, DIRECTORY, Mode::empty()))
            .and_then(|bin| {
                // A directory that its owner may not write to cannot be moved by its owner.
                let opened = open_up(folder, name, is_root);
                #[cfg(test)]
                tests::before_it_is_moved(&trash, &unique);
                rustix::fs::renameat(folder, name, &bin, crate::shelf::TREE).inspect_err(|_| {
                    // It stays as it was.
                    let _ = opened.map(|(root, mode)| set_mode(&root, mode));
                })
            });
        if moved.is_ok() {
            return Ok(true);
        }
        let _ = rustix::fs::unlinkat(&trash, &unique, AtFlags::REMOVEDIR);
        match look(folder, name) {
            Err(Errno::NOENT) => return Ok(true),
            // Its place in the trash was taken for a leftover by who clears that up.
            _ if moved == Err(Errno::NOENT) => {}
            // Reached by another mount, say: then where it is.
            _ => break,
        }
    }
    Ok(false)
}

/// Takes away clones with those names in `target` of which their caller never heard, and records of clones that were never made; says what was
/// done.
pub(crate) fn reclaim(
    depot: &Depot,
    target: &Dir,
    forgotten: &[FileName],
    mounted: &Mounted,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let Some(made) = depot.folder("made")? else { return Ok(Vec::new()) };
    let fail = |errno| failed("cannot look for clones", errno);
    let mut actions = Vec::new();
    // Those who make one hold it shared.
    let alone = rustix::fs::flock(&made, FlockOperation::NonBlockingLockExclusive).is_ok();
    let identity = identity(target)?;
    for name in names(made.as_fd()).map_err(fail)? {
        cx.check_cancelled()?;
        let Ok(name) = String::from_utf8(name) else { continue };
        if let Some(rest) = name.strip_prefix(WHOLE)
            && alone
            && matches!(look(&made, format!("{PREFIX}{rest}").as_bytes()), Err(Errno::NOENT))
        {
            let _ = rustix::fs::unlinkat(&made, &name, AtFlags::empty());
        }
        let Some(record) = read(made.as_fd(), &name)?.filter(|record| record.target == identity) else { continue };
        let shown = PathBuf::from(String::from_utf8_lossy(&record.name).into_owned());
        let there = match place(depot, target, &name, &record) {
            Ok(there) => there,
            // What cannot be looked at now keeps nothing else.
            Err(error) => {
                cx.log(LogLevel::Warn, &format!("the clone {} cannot be looked at: {error}", shown.display()));
                continue;
            }
        };
        let is_forgotten = forgotten.iter().any(|forgotten| forgotten.as_bytes() == record.name);
        match there {
            Some((folder, at)) if is_forgotten => {
                take_away(depot, folder.as_fd(), &at, mounted, cx)?;
                forget(made.as_fd(), &name)?;
                actions.push(format!("took away the clone {} that nobody asked for any more", shown.display()));
            }
            // By an earlier version, or by who was killed before that was written.
            Some(_) if alone => say_whole(made.as_fd(), &name),
            // One that was whole was moved away by someone; should it come back, it is still ours.
            None if alone && (is_forgotten || !was_whole(made.as_fd(), &name)) => {
                forget(made.as_fd(), &name)?;
                actions.push(format!("forgot the clone {}, which is not there", shown.display()));
            }
            _ => {}
        }
    }
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static CLEARED: Cell<u32> = const { Cell::new(0) };
    }

    /// Somebody else clears up.
    pub(super) fn before_it_is_moved(trash: &OwnedFd, unique: &str) {
        if let Some(left) = CLEARED.get().checked_sub(1) {
            CLEARED.set(left);
            rustix::fs::unlinkat(trash, unique, AtFlags::REMOVEDIR).unwrap();
        }
    }

    #[test]
    fn a_clone_is_gone_only_when_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["store/depot", "target/clone"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let open = |name: &str| Dir::open(dir.path().join(name)).unwrap();
        let (store, target) = (open("store"), open("target"));
        let depot = Depot::find(&store).unwrap().unwrap();
        CLEARED.set(3);
        assert!(put_aside(&depot, target.as_fd(), b"clone").unwrap());
        assert!(!dir.path().join("target/clone").exists() && CLEARED.get() == 0);
        assert!(put_aside(&depot, target.as_fd(), b"clone").unwrap());
        // The first one is there, and nothing is left of the second.
        assert_eq!(std::fs::read_dir(dir.path().join("store/depot/trash")).unwrap().count(), 1);
    }

    #[test]
    fn records_come_back_and_odd_ones_are_nobodys() {
        let clone =
            Clone { target: "1.2.3".into(), parent: hex(&[9; 16]), inside: false, name: b"caf\xe9 \n".to_vec() };
        assert_eq!(Clone::decode(&clone.encode()), Some(clone.clone()));
        let inside = Clone { inside: true, ..clone };
        assert_eq!(Clone::decode(&inside.encode()), Some(inside));
        for odd in [b"".as_slice(), b"a/b/c", b"a/b/else/n", b"a/b/depot/", b"a/b/depot/..", b"a/b/depot/x/y"] {
            assert_eq!(Clone::decode(odd), None);
        }
    }
}
