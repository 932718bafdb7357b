//! Taking a made thing away, wholly or as far as a crash let it come.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Dir, Error, ErrorKind, FileName, LogLevel, Reference, Result};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::build::c_name;
use super::holders::{holders_of, mounts_below};
use super::identity::{Identity, MountId, stat};
use super::mounts;
use super::record::{Kind, Record, Records, State, Target};
use super::remove::remove_tree;

/// Takes away the thing of that reference. What is gone already is success.
///
/// # Errors
/// `InvalidArgument` if it is of another kind; `Busy` while it is used; `FailedPrecondition` if the folder it is in cannot be found.
pub(crate) fn take_away(
    store: &Dir,
    target: Option<&Dir>,
    kind: Kind,
    reference: &Reference,
    cx: &Context<'_>,
) -> Result<()> {
    let Some(records) = Records::open_existing(store)? else { return Ok(()) };
    let Some(record) = records.find(reference, cx)? else { return Ok(()) };
    if record.making.kind != kind {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{reference:?} names something of another kind")));
    }
    match record.target(target)? {
        Target::Here(target) => undo(record, target.as_fd(), cx),
        // The whole folder is gone, and the thing with it.
        Target::Gone => record.remove(),
        // It may come back, with the thing in it, which nobody would know of then.
        Target::Elsewhere(path) => {
            let message = format!("the folder that it was made in is not at {} any more", path.display());
            Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(
                "mount its disk or move it back, then repeat; if it is gone for good, remove what is at that path first",
            ))
        }
    }
}

/// Takes away what crashes left of things half made or half removed, and whole ones in the target whose names are `forgotten`. One
/// sentence for each.
///
/// # Errors
/// What cannot be taken away now is logged and left for the next time.
pub(crate) fn reclaim(
    store: &Dir,
    target: Option<&Dir>,
    forgotten: &[FileName],
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let mut actions = Vec::new();
    let Some(records) = Records::open_existing(store)? else { return Ok(actions) };
    records.for_each_free(cx, |record| {
        let is_forgotten = is_forgotten(&record, target, forgotten)?;
        let sentence = match (record.making.kind, record.state) {
            (Kind::View, State::Making) => "removed a half-made view",
            (Kind::View, State::Removing) => "finished removing a view",
            (Kind::Clone, State::Making) => "removed a half-made clone",
            (Kind::Clone, State::Removing) => "finished removing a clone",
            (Kind::View, State::Ready) if is_forgotten => "removed a view that its maker did not live to hear of",
            (Kind::Clone, State::Ready) if is_forgotten => "removed a clone that its maker did not live to hear of",
            (Kind::View, State::Ready) | (Kind::Clone, State::Ready) => {
                "dropped the record of what was not there any more"
            }
        };
        match leftover(record, target, is_forgotten, cx) {
            Ok(true) => actions.push(sentence.to_owned()),
            Ok(false) => {}
            Err(error) if error.kind == ErrorKind::Cancelled => return Err(error),
            Err(error) => cx.log(LogLevel::Warn, &format!("a view or clone could not be reclaimed: {error}")),
        }
        Ok(())
    })?;
    Ok(actions)
}

/// Whether the record is of something in that very target under one of those names.
fn is_forgotten(record: &Record, target: Option<&Dir>, forgotten: &[FileName]) -> Result<bool> {
    let Some(target) = target.filter(|_| forgotten.contains(&record.making.name)) else { return Ok(false) };
    Ok(Identity::of(target)?.is(&record.making.target))
}

/// Whether the record's thing was left by a crash; if so it is gone now.
fn leftover(record: Record, target: Option<&Dir>, is_forgotten: bool, cx: &Context<'_>) -> Result<bool> {
    let Target::Here(target) = record.target(target)? else {
        // A folder that cannot be found may come back, with what is in it.
        return Ok(false);
    };
    let at = find(&record, target.as_fd())?;
    let whole = match (record.making.kind, record.state) {
        // What bears its final name is whole, whether its last line reached the disk or not. So is what was to be removed and was not
        // even renamed: its owner was never told that it is gone, and may have found since that there is work in it.
        (Kind::Clone, _) => at.as_ref().is_some_and(|at| !at.temporary),
        (Kind::View, State::Ready) => at.is_some(),
        (Kind::View, State::Making | State::Removing) => false,
    };
    // A clone that was whole and is not there was moved away by someone; should it come back, it is still ours.
    let moved = record.making.kind == Kind::Clone && record.state == State::Ready && at.is_none();
    if (whole || moved) && !is_forgotten {
        return Ok(false);
    }
    undo(record, target.as_fd(), cx)?;
    Ok(true)
}

struct Found {
    name: CString,
    temporary: bool,
}

/// Under which of its names the thing is in the target.
fn find(record: &Record, target: BorrowedFd<'_>) -> Result<Option<Found>> {
    let names = [(c_name(&record.making.name), false), (record.temporary(), true)];
    for (name, temporary) in names {
        if let (Some(open), Some(identity)) = (open_path(target, &name)?, &record.directory)
            && Identity::of(&open)?.is(identity)
        {
            return Ok(Some(Found { name, temporary }));
        }
    }
    Ok(None)
}

fn undo(mut record: Record, target: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
    let Some(identity) = record.directory else {
        // It died between making the directory and recording which one it is; nothing can be in it.
        return match rustix::fs::unlinkat(target, record.temporary(), rustix::fs::AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => record.remove(),
            Err(e) => Err(failed(&record.temporary(), e)),
        };
    };
    let Some(found) = find(&record, target)? else { return record.remove() };
    let temporary = record.temporary();
    // Under its temporary name too: there it was tried whether a mount can be had.
    unmount(target, &found.name, &identity)?;
    if !found.temporary {
        if let Some(dir) = open_path(target, &found.name)? {
            refuse_if_used(&record, &dir, &found.name)?;
        }
        record.removing()?;
        // At once out of sight, before the long work begins.
        match rustix::fs::renameat_with(target, &found.name, target, &temporary, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(target, &found.name, target, &temporary),
            other => other,
        }
        .map_err(|e| failed(&found.name, e))?;
    }
    remove_tree(target, &temporary, &identity, cx)?;
    record.remove()
}

/// How long something that is in use is waited for. A process that is just being started has, for a moment, every descriptor
/// of the one that starts it.
const PATIENCE: Duration = Duration::from_millis(400);
const PAUSE: Duration = Duration::from_millis(10);

/// Takes off our own mounts on it. A mount of somebody else's on top makes it busy.
fn unmount(target: BorrowedFd<'_>, name: &CStr, identity: &Identity) -> Result<()> {
    let outside = MountId::from_statx(&stat(target).map_err(|e| failed(name, e))?);
    let start = Instant::now();
    loop {
        let Some(top) = open_path(target, name)? else { return Ok(()) };
        let looked = stat(&top).map_err(|e| failed(name, e))?;
        if MountId::from_statx(&looked) == outside {
            return Ok(());
        }
        if !Identity::from_statx(&looked).is(identity) {
            return Err(busy(name, "something else is mounted on it"));
        }
        // An open descriptor would itself keep the mount busy.
        drop(top);
        match mounts::unmount(target, name) {
            Ok(()) => {}
            Err(Errno::BUSY) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(Errno::BUSY) => {
                let holders = open_path(target, name)?.map(holders_of).unwrap_or_default();
                return Err(busy(name, &by(&holders)));
            }
            Err(e) => return Err(failed(name, e)),
        }
    }
}

fn refuse_if_used(record: &Record, dir: &OwnedFd, name: &CStr) -> Result<()> {
    if let Some(mount) = mounts_below(dir).first() {
        return Err(busy(name, &format!("something is mounted at {mount}")));
    }
    // A clone is removed when its owner says so; a view only when nobody looks at it.
    let start = Instant::now();
    let holders = loop {
        let holders = if record.making.kind == Kind::View { holders_of(dir) } else { Vec::new() };
        if holders.is_empty() || start.elapsed() >= PATIENCE {
            break holders;
        }
        std::thread::sleep(PAUSE);
    };
    if holders.is_empty() { Ok(()) } else { Err(busy(name, &by(&holders))) }
}

fn by(holders: &[String]) -> String {
    if holders.is_empty() {
        "a process that cannot be seen from here uses it".to_owned()
    } else {
        format!("used by process {}", holders.join(", "))
    }
}

fn busy(name: &CStr, why: &str) -> Error {
    Error::new(ErrorKind::Busy, format!("{name:?} is busy: {why}")).with_hint("end what uses it, then repeat")
}

/// The directory of that name, by a descriptor that gives no access; none if there is none.
fn open_path(target: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(target, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(failed(name, e)),
    }
}

fn failed(name: &CStr, e: Errno) -> Error {
    Error::from_io(format!("cannot take away {name:?}"), &e.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ah_plugin_api::{Context, Dir, FileName, SnapshotId, Timestamp};

    use super::super::mounts;
    use super::super::record::{Kind, Making, Records};
    use super::{Identity, reclaim};

    #[test]
    fn what_was_killed_while_it_tried_a_mount_goes() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["store", "target"] {
            std::fs::create_dir(temp.path().join(name)).unwrap();
        }
        let open = |name: &str| Dir::open(temp.path().join(name)).unwrap();
        let (store, target) = (open("store"), open("target"));
        let mut record = Records::open(&store)
            .unwrap()
            .create(Making {
                kind: Kind::View,
                snapshot: SnapshotId::new("s").unwrap(),
                name: FileName::new("v").unwrap(),
                target: Identity::of(&target).unwrap(),
                target_path: target.path().as_os_str().as_encoded_bytes().to_vec(),
                created: Timestamp::now(),
            })
            .unwrap();
        let path = target.path().join(record.temporary().to_str().unwrap());
        std::fs::create_dir(&path).unwrap();
        let dir = std::fs::File::open(&path).unwrap();
        record.directory_made(Identity::of(&dir).unwrap()).unwrap();
        if mounts::allowed() {
            mounts::bind(dir.as_fd()).unwrap();
        }
        drop((dir, record));

        let actions = reclaim(&store, Some(&target), &[], &Context::quiet()).unwrap();
        let left = path.exists();
        // So that a failure leaves no mount behind.
        let _ = std::process::Command::new("umount").arg("-l").arg(&path).output();
        assert!(!left);
        assert_eq!(actions, ["removed a half-made view"]);
    }
}
