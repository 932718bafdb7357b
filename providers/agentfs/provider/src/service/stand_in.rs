//! What stands at a branch's place while it is not mounted, after the machine was started anew above all: a directory that an ordinary user writes nothing into
//! by accident, with a file that says what to do. It stays there beneath the mount: whenever that goes, and whoever is killed, the place is known as ours.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ah_plugin_api::NOT_MOUNTED;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};

/// By its first line it is known as ours, whichever version wrote the rest.
const FIRST_LINE: &str = "This is the place of a branch that ah keeps in AgentFS.";
const REST: &str = " It is not mounted at the moment; what it holds is kept elsewhere.

Mount it again: run `ah` in this directory (or, of a branch, `ah agent fs branches` in the workspace that it grew from), then enter it anew.
If a directory .ah-behind-… of the same name lies beside it, that is a part of it: leave it where it is, as it is.
";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The place of a branch that is about to be mounted, without what stands there.
pub(super) struct Place(OwnedFd);

impl Place {
    /// Takes down what stands there. None where somebody else has put something: then all stays.
    pub(super) fn clear(at: &Path) -> Result<Option<Self>> {
        let directory = rustix::fs::open(at, DIRECTORY, Mode::empty())?;
        if stands_alone(&directory)?.is_none() {
            return Ok(None);
        }
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
        if !mode.contains(Mode::WUSR) {
            rustix::fs::fchmod(&directory, Mode::RWXU)?;
        }
        match rustix::fs::unlinkat(&directory, NOT_MOUNTED, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Some(Self(directory)))
    }

    /// One at which a branch is about to be mounted, with what stands there. None where somebody else has put something; `beside`: but for what they put beside
    /// what is ours.
    pub(super) fn ready(at: &Path, beside: bool) -> Result<Option<Self>> {
        let directory = rustix::fs::open(at, DIRECTORY, Mode::empty())?;
        let names = ah_provider_directory::names(directory.as_fd())?;
        let stands = names.iter().any(|name| name == NOT_MOUNTED.as_bytes()) && is_ours(&directory)?;
        let is_free = names.is_empty() || stands && (beside || names.len() == 1);
        if !is_free {
            return Ok(None);
        }
        let place = Self(directory);
        if !stands {
            place.put_up()?;
        }
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&place.0)?.st_mode);
        if !rustix::process::geteuid().is_root() && !mode.contains(Mode::RWXU) {
            // `fusermount3` mounts only where its caller may write.
            rustix::fs::fchmod(&place.0, Mode::RWXU)?;
        }
        Ok(Some(place))
    }

    /// What somebody has put there, also beneath what is mounted.
    pub(super) fn others(&self) -> Result<Vec<Vec<u8>>> {
        // Anew: reading a directory moves a position.
        let directory = rustix::fs::openat(&self.0, c".", DIRECTORY, Mode::empty())?;
        let mut names = ah_provider_directory::names(directory.as_fd())?;
        names.retain(|name| name != NOT_MOUNTED.as_bytes());
        Ok(names)
    }

    /// Brings what somebody has put there to another directory of the same disk. Who has something of it open goes on in that.
    pub(super) fn empty_into(&self, to: BorrowedFd<'_>) -> Result<()> {
        // Only who may write in both can: that of the place is closed to its owner, too.
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&self.0)?.st_mode);
        rustix::fs::fchmod(&self.0, Mode::RWXU)?;
        let moved = self.others().and_then(|names| names.iter().try_for_each(|name| bring(self.0.as_fd(), name, to)));
        rustix::fs::fchmod(&self.0, mode).and(moved)
    }

    /// One that was just made, and is empty.
    pub(super) fn of(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// As [`Place::of`], by its path.
    pub(super) fn hold(at: &Path) -> Result<Self> {
        rustix::fs::open(at, DIRECTORY, Mode::empty()).map(Self)
    }

    /// Puts it up, beneath what is mounted or where nothing could be.
    pub(super) fn put_up(&self) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.0, NOT_MOUNTED, flags, Mode::RUSR) {
            Ok(file) => {
                let text = [FIRST_LINE, REST].concat();
                File::from(file).write_all(text.as_bytes()).map_err(|error| errno(&error))?;
            }
            Err(Errno::EXIST) if is_ours(&self.0)? => {}
            // Somebody else's.
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        rustix::fs::fchmod(&self.0, Mode::RUSR | Mode::XUSR)
    }
}

/// Takes down what stands at a path, if it is ours.
pub(crate) fn clear_place(at: &Path) {
    let _ = Place::clear(at);
}

/// Whether a directory has what stands in for a branch (true) or nothing (false). None where anything else is there, or that cannot be told.
pub(crate) fn stands_in(at: &Path) -> Option<bool> {
    stands_alone(&rustix::fs::open(at, DIRECTORY, Mode::empty()).ok()?).ok()?
}

/// The same of an open one.
fn stands_alone(directory: &OwnedFd) -> Result<Option<bool>> {
    Ok(match ah_provider_directory::names(directory.as_fd())?.as_slice() {
        [] => Some(false),
        [name] if name == NOT_MOUNTED.as_bytes() && is_ours(directory)? => Some(true),
        _ => None,
    })
}

/// Gives an entry the same name in another directory.
fn bring(from: BorrowedFd<'_>, name: &[u8], to: BorrowedFd<'_>) -> Result<()> {
    match rustix::fs::renameat_with(from, name, to, name, RenameFlags::NOREPLACE) {
        // Its directory above is written in it, which needs the right to write there.
        Err(Errno::ACCESS) => {}
        // Somebody has taken it away again.
        Err(Errno::NOENT) => return Ok(()),
        done => return done,
    }
    let directory = rustix::fs::openat(from, name, DIRECTORY, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    rustix::fs::fchmod(&directory, mode | Mode::WUSR)?;
    let moved = rustix::fs::renameat_with(from, name, to, name, RenameFlags::NOREPLACE);
    rustix::fs::fchmod(&directory, mode).and(moved)
}

/// A killed process may not have written all of it.
fn is_ours(directory: &OwnedFd) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, NOT_MOUNTED, flags, Mode::empty())?;
    let mut line = [0; FIRST_LINE.len()];
    let read = rustix::io::read(file.as_fd(), &mut line)?;
    Ok(line.get(..read).is_some_and(|line| FIRST_LINE.as_bytes().starts_with(line)))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_put_up_and_taken_down_and_touches_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("branch");
        std::fs::create_dir(&at).unwrap();
        let names = || std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let mode = || std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&at).unwrap().permissions()) & 0o777;
        for _ in 0..2 {
            let place = Place::clear(&at).unwrap().unwrap();
            assert_eq!((names().len(), mode() & 0o700), (0, 0o700));
            place.put_up().unwrap();
            place.put_up().unwrap();
            assert_eq!((names(), mode()), (vec![NOT_MOUNTED.into()], 0o500));
        }
        Place::clear(&at).unwrap();
        let note = at.join(NOT_MOUNTED);
        // Killed while it was written; written by another version.
        for text in ["This is", "This is the place of a branch that ah keeps in AgentFS. In other words."] {
            std::fs::write(&note, text).unwrap();
            Place::clear(&at).unwrap();
            assert_eq!(names().len(), 0, "{text}");
        }
        // Somebody's own, alone or beside ours.
        std::fs::write(&note, "somebody's own").unwrap();
        assert!(Place::clear(&at).unwrap().is_none());
        assert_eq!(std::fs::read_to_string(&note).unwrap(), "somebody's own");
        std::fs::write(&note, FIRST_LINE).unwrap();
        std::fs::write(at.join("work"), "").unwrap();
        std::fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
        Place::clear(&at).unwrap();
        assert_eq!((names().len(), mode()), (2, 0o500));
    }

    #[test]
    fn what_somebody_put_beside_it_is_brought_away_and_only_where_it_stands() {
        let temp = tempfile::tempdir().unwrap();
        let [at, to] = ["branch", "to"].map(|name| temp.path().join(name));
        std::fs::create_dir_all(at.join("d/e")).unwrap();
        std::fs::create_dir(&to).unwrap();
        let readied = |beside| Place::ready(&at, beside).unwrap();
        assert!(readied(true).is_none(), "a directory of somebody's");
        std::fs::write(at.join(NOT_MOUNTED), "somebody's own").unwrap();
        assert!(readied(true).is_none(), "so is one with a file that is called so");
        std::fs::write(at.join(NOT_MOUNTED), FIRST_LINE).unwrap();
        std::fs::set_permissions(at.join("d"), std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
        assert!(readied(false).is_none());
        let place = readied(true).unwrap();
        place.put_up().unwrap();
        assert_eq!(place.others().unwrap(), [b"d"]);
        place.empty_into(std::fs::File::open(&to).unwrap().as_fd()).unwrap();
        assert_eq!(place.others().unwrap(), Vec::<Vec<u8>>::new());
        assert!(to.join("d/e").exists() && at.join(NOT_MOUNTED).exists());
        let mode = |at: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(at).unwrap().permissions());
        assert_eq!((mode(&at) & 0o777, mode(&to.join("d")) & 0o777), (0o500, 0o555));
        // An empty one is known as ours at once.
        std::fs::remove_file(at.join(NOT_MOUNTED)).unwrap();
        readied(false).unwrap();
        assert!(at.join(NOT_MOUNTED).exists());
    }
}
