//! A directory shown at another place: mounted there, and taken away again, by descriptors.
//!
//! What is mounted is a copy of the mount that the directory is on, cut down to the directory, nosuid and nodev, made before it is
//! put anywhere; and noexec where its user could not start programs anyway. Where it is put, is a directory made with the user's own rights in a directory of theirs.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use ah_plugin_api::sys::remove_dir_for_good;
use ah_plugin_api::{Error, ErrorKind, FileName, Result};
use nix::mount::{MntFlags, umount2};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use crate::holders;
use crate::mounts::{self, About};
use crate::peer::as_user;
use crate::records::Mark;
use crate::sys::{self, Forbidden};

/// How often, and after which pause, what is in use is tried again: a process that has just been started has open for a moment what the
/// one had that started it.
const PATIENCE: u32 = 10;
const MOMENT: Duration = Duration::from_millis(20);

/// A user, by ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// This run of the machine.
pub(crate) fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
    })
}

/// A mount of `source` that is nowhere yet, and how it will be known. It allows no more than the mount that `target` is on as it is reached from here, which
/// its user can copy files to.
pub(crate) fn copy(source: BorrowedFd<'_>, target: BorrowedFd<'_>, read_only: bool) -> Result<(OwnedFd, Mark)> {
    let failed = |what: &str, e: std::io::Error| Error::from_io(format!("cannot {what}"), &e);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source, c"", flags).map_err(|e| failed("copy a mount", e.into()))?;
    let there = About::of(target).map_err(|e| failed("look at the target folder", e.into()))?;
    let there = mounts::find(there.mount)?;
    // Of a mount that is gone nothing is known.
    let forbidden = Forbidden {
        writing: read_only,
        programs: there.as_ref().is_none_or(|mount| mount.noexec),
        symlinks: there.as_ref().is_some_and(|mount| mount.nosymfollow),
    };
    sys::harden(tree.as_fd(), forbidden).map_err(|e| failed("make a mount safe", e))?;
    let about = About::of(&tree).map_err(|e| failed("look at a mount", e.into()))?;
    let unique = mounts::unique(&tree);
    let mark = Mark { id: about.mount, unique, dev: about.dev, ino: about.ino, boot: boot().to_owned() };
    Ok((tree, mark))
}

/// Makes the directory `name` in `target`, with the rights of its user.
pub(crate) fn make_point(target: BorrowedFd<'_>, name: &FileName, user: Ids) -> Result<OwnedFd> {
    let failed = |e: Errno| Error::from_io(format!("cannot make {name} in the target folder"), &e.into());
    as_user(user.uid, user.gid, || rustix::fs::mkdirat(target, name.as_os_str(), Mode::RWXU)).map_err(failed)?;
    open_point(target, name, user)
}

/// Opens the directory `name` in `target`; it must be the user's, and nothing may be mounted on it.
pub(crate) fn open_point(target: BorrowedFd<'_>, name: &FileName, user: Ids) -> Result<OwnedFd> {
    let failed = |e: Errno| Error::from_io(format!("cannot open {name} in the target folder"), &e.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let point = rustix::fs::openat(target, name.as_os_str(), flags, Mode::empty()).map_err(failed)?;
    let (about, above) = (About::of(&point).map_err(failed)?, About::of(target).map_err(failed)?);
    if about.uid != user.uid || about.mount != above.mount || about.kind != FileType::Directory {
        let message = format!("{name} in the target folder is not what was made there");
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    Ok(point)
}

/// Puts a mount onto a directory.
pub(crate) fn attach(tree: &OwnedFd, point: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", point, c"", flags).map_err(|e| {
        let error = Error::from_io("cannot mount in the target folder", &e.into());
        if e == Errno::INVAL {
            let hint = "the helper ahd must run in the mount namespace of its users";
            return Error { kind: ErrorKind::FailedPrecondition, ..error }.with_hint(hint);
        }
        error
    })
}

/// A mount as it was found.
pub(crate) struct Found {
    /// The directory it is in, and its name there.
    parent: OwnedFd,
    name: FileName,
    /// The mount itself, which is in use as long as this is open.
    mount: OwnedFd,
}

/// Where a mount is. None if it is gone.
///
/// By what the kernel says of it now: its directory may have been renamed, or have been another when it was mounted.
pub(crate) fn find(mark: &Mark) -> Result<Option<Found>> {
    if mark.boot != boot() {
        return Ok(None);
    }
    let mut tries = 1;
    loop {
        let Some(mount) = mounts::find(mark.id)? else { return Ok(None) };
        let name = mount.point.file_name().map(|name| FileName::new(name.as_bytes())).transpose()?;
        let Some((name, above)) = name.zip(mount.point.parent()) else { return Ok(None) };
        if let Ok(parent) = mounts::open_plain(above)
            && let Some(seen) = Seen::at(parent.as_fd(), &name)
            && seen.about.mount == mark.id
        {
            return Ok(seen.is(mark).then_some(Found { parent, name, mount: seen.fd }));
        }
        // It may have gone, or been moved, since the table was read.
        if tries == PATIENCE {
            let point = mount.point.display();
            return Err(Error::new(ErrorKind::Busy, format!("something else is mounted over {point}"))
                .with_hint(format!("umount {point}")));
        }
        tries += 1;
        std::thread::sleep(MOMENT / PATIENCE);
    }
}

/// Whether a mount is what is seen at `name` in `target`.
pub(crate) fn is_at(mark: &Mark, target: BorrowedFd<'_>, name: &FileName) -> bool {
    Seen::at(target, name).is_some_and(|seen| seen.is(mark))
}

/// Whether what a mount shows is what is seen at `name` in `target`, which may be a directory in another mount namespace.
pub(crate) fn is_seen(mark: &Mark, target: BorrowedFd<'_>, name: &FileName) -> bool {
    Seen::at(target, name).is_some_and(|seen| seen.shows(mark))
}

/// What is at some place.
struct Seen {
    fd: OwnedFd,
    about: About,
    unique: Option<u64>,
}

impl Seen {
    fn at(dir: BorrowedFd<'_>, name: &FileName) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name.as_os_str(), flags, Mode::empty()).ok()?;
        Some(Self { about: About::of(&fd).ok()?, unique: mounts::unique(&fd), fd })
    }

    /// Whether it is the directory that a mount shows.
    fn shows(&self, mark: &Mark) -> bool {
        (self.about.dev, self.about.ino) == (mark.dev, mark.ino)
    }

    /// Whether it is that mount, and not another that got its number once it was gone.
    fn is(&self, mark: &Mark) -> bool {
        match mark.unique.zip(self.unique) {
            // Whatever it looks like: a subvolume that was deleted from under its mount is on no device any more.
            Some((mark, seen)) => mark == seen,
            // The other one may show the same directory; that is as much as can be told.
            None => self.about.mount == mark.id && self.shows(mark),
        }
    }
}

/// Takes a mount away, and the directory that it was on. What is gone already is success.
///
/// `target` and `name` are where it was to be, should it not be mounted any more. With `even_in_use` whoever works in it keeps what they
/// have open, as with a directory that is removed.
pub(crate) fn remove(
    mark: &Mark,
    name: &FileName,
    target: Option<BorrowedFd<'_>>,
    user: Ids,
    even_in_use: bool,
) -> Result<()> {
    if let Some(Found { parent, name, mount }) = find(mark)? {
        #[cfg(test)]
        tests::after_it_was_found();
        let open = |fd: &OwnedFd| Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string());
        let path = open(&parent).join(name.as_os_str());
        let mut unmounted = if even_in_use {
            // By what is open: whatever its user has moved there since, it is this one that goes.
            umount2(&open(&mount), MntFlags::MNT_DETACH)
        } else {
            // What is open is in use, so by its name. If another one has come there since, it goes only if nobody uses it.
            drop(mount);
            umount2(&path, MntFlags::UMOUNT_NOFOLLOW)
        };
        for _ in 0..PATIENCE {
            if unmounted != Err(nix::errno::Errno::EBUSY) {
                break;
            }
            std::thread::sleep(MOMENT);
            if !is_at(mark, parent.as_fd(), &name) {
                // Somebody was quicker, or moved it.
                if find(mark)?.is_none() {
                    unmounted = Ok(());
                }
                break;
            }
            unmounted = umount2(&path, MntFlags::UMOUNT_NOFOLLOW);
        }
        match unmounted {
            Ok(()) | Err(nix::errno::Errno::EINVAL) if find(mark)?.is_none() => {}
            Ok(()) | Err(nix::errno::Errno::EINVAL) => {
                let message = "something else was mounted in its place at this moment";
                return Err(Error::new(ErrorKind::Busy, message).with_hint("repeat"));
            }
            Err(nix::errno::Errno::EBUSY) => {
                let place = mounts::path_of(parent.as_fd())?.join(name.as_os_str());
                let who = holders::of(&place, user);
                let mut error = Error::new(ErrorKind::Busy, format!("{} is in use{who}", place.display()));
                error.hint = Some(format!("leave {} (also with other shells), then repeat", place.display()));
                return Err(error);
            }
            Err(e) => return Err(Error::from_io("cannot unmount", &e.into())),
        }
        remove_point(parent.as_fd(), &name, user);
    }
    if let Some(target) = target {
        remove_point(target, name, user);
    }
    Ok(())
}

/// Removes the directory that something was mounted on, if it is an empty one of the user's. Whatever else is there stays. What is known of
/// the mount goes after it.
fn remove_point(target: BorrowedFd<'_>, name: &FileName, user: Ids) {
    as_user(user.uid, user.gid, || {
        let _ = remove_dir_for_good(target, name.as_os_str());
    });
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use nix::mount::{MsFlags, mount};

    use super::*;

    thread_local! {
        /// What somebody else does as soon as a mount was found.
        static THEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn after_it_was_found() {
        if let Some(then) = THEN.take() {
            then();
        }
    }

    /// Takes a folder's mounts away again, however a test ends.
    struct Base(tempfile::TempDir);

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
        }
    }

    #[test]
    fn what_was_moved_into_the_place_of_a_clone_meanwhile_stays() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let base = Base(tempfile::tempdir().unwrap());
        let no = None::<&str>;
        let fresh = |at: &Path| mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), no).unwrap();
        fresh(base.0.path());
        // Of what is shared nothing can be moved.
        mount(no, base.0.path(), no, MsFlags::MS_PRIVATE, no).unwrap();
        let at = |name: &str| base.0.path().canonicalize().unwrap().join(name);
        for name in ["clone", "moved", "other"] {
            fs::create_dir(at(name)).unwrap();
        }
        fresh(&at("clone"));
        fresh(&at("other"));
        let number = |name: &str| About::of(mounts::open_plain(&at(name)).unwrap()).unwrap().mount;
        let other = number("other");
        let mark = {
            let fd = mounts::open_plain(&at("clone")).unwrap();
            let about = About::of(&fd).unwrap();
            let unique = mounts::unique(&fd);
            Mark { id: about.mount, unique, dev: about.dev, ino: about.ino, boot: boot().to_owned() }
        };
        let moves: Vec<(PathBuf, PathBuf)> = vec![(at("clone"), at("moved")), (at("other"), at("clone"))];
        THEN.set(Some(Box::new(move || {
            moves
                .iter()
                .for_each(|(from, to)| mount(Some(from), to, None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap());
        })));
        let name = FileName::new("clone").unwrap();
        remove(&mark, &name, None, Ids { uid: 12345, gid: 12345 }, true).unwrap();
        assert!(THEN.take().is_none());
        assert_eq!(number("clone"), other);
        assert_eq!(mounts::find(mark.id).unwrap(), None);
    }
}
