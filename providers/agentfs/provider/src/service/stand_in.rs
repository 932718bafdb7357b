//! What stands at a branch's place while it is not mounted, after the machine was started anew above all: a directory that an ordinary user writes nothing into
//! by accident, with a file that says what to do. It is put there behind the mount, and taken away before the next one.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, Result};

const NAME: &str = "NOT-MOUNTED.txt";
const TEXT: &str = "\
This is the place of a branch that ah keeps in AgentFS. It is not mounted at the moment, and nothing of it is lost.

Mount it again: run `ah agent fs branches` in the workspace that it grew from, or any command of ah in this directory, then enter it anew.
";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory itself, at which something is about to be mounted.
pub(super) fn hold(at: &Path) -> Result<OwnedFd> {
    rustix::fs::open(at, DIRECTORY, Mode::empty())
}

/// Puts it there, beneath what is mounted.
pub(super) fn put_up(directory: &OwnedFd) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, NAME, flags, Mode::RUSR) {
        Ok(file) => File::from(file).write_all(TEXT.as_bytes()).map_err(|error| errno(&error))?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    rustix::fs::fchmod(directory, Mode::RUSR | Mode::XUSR)
}

/// Takes it away. What somebody else put there stays.
pub(super) fn take_down(at: &Path) -> Result<()> {
    let directory = hold(at)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode);
    if !mode.contains(Mode::WUSR) {
        rustix::fs::fchmod(&directory, Mode::RWXU)?;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&directory, NAME, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    // A killed process may not have written all of it.
    let mut text = [0; TEXT.len() + 1];
    let read = rustix::io::read(file.as_fd(), &mut text)?;
    match text.get(..read).is_some_and(|text| TEXT.as_bytes().starts_with(text)) {
        true => rustix::fs::unlinkat(&directory, NAME, AtFlags::empty()),
        false => Ok(()),
    }
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
        for _ in 0..2 {
            put_up(&hold(&at).unwrap()).unwrap();
            put_up(&hold(&at).unwrap()).unwrap();
            assert_eq!(names(), [NAME]);
            assert!(std::fs::metadata(&at).unwrap().permissions().readonly());
            take_down(&at).unwrap();
            take_down(&at).unwrap();
            assert_eq!(names(), Vec::<std::ffi::OsString>::new());
        }
        // Killed while it was written.
        std::fs::write(at.join(NAME), &TEXT[..20]).unwrap();
        take_down(&at).unwrap();
        assert_eq!(names(), Vec::<std::ffi::OsString>::new());
        std::fs::write(at.join(NAME), "somebody's own").unwrap();
        take_down(&at).unwrap();
        assert_eq!(names(), [NAME]);
    }
}
