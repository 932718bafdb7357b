//! Files at paths that others chose, and that others may take: opened without hanging, put where nothing is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

/// Opens a file for reading, through symlinks. A FIFO, a socket, a device or a directory is refused at once, and nothing is read of it.
///
/// # Errors
/// `Unsupported` if it is no regular file; the filesystem's own errors.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Without it, opening a FIFO waits for somebody to write.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits().cast_signed();
    let not_regular = || io::Error::new(io::ErrorKind::Unsupported, "it is not a regular file");
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        // A socket.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Err(not_regular()),
        file => {
            let file = file?;
            if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
        }
    }
}

/// Renames a file to where nothing is, on the same filesystem.
///
/// Where the filesystem cannot do that in one step (NFS, some by FUSE), the name is taken first by an empty file; killed in between, that is what
/// is there.
///
/// # Errors
/// `AlreadyExists` if something is there, which stays as it is; the filesystem's own errors.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => take_and_rename(from, to),
        renamed => Ok(renamed?),
    }
}

fn take_and_rename(from: &Path, to: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    std::fs::rename(from, to).inspect_err(|_| drop(std::fs::remove_file(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_there_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for put in [rename_new, take_and_rename] {
            std::fs::write(&from, "new").unwrap();
            put(&from, &to).unwrap();
            assert_eq!((from.exists(), std::fs::read_to_string(&to).unwrap().as_str()), (false, "new"));
            std::fs::write(&from, "other").unwrap();
            assert_eq!(put(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!((from.exists(), std::fs::read_to_string(&to).unwrap().as_str()), (true, "new"));
            std::fs::remove_file(&from).unwrap();
            std::fs::remove_file(&to).unwrap();
            assert_eq!(put(&from, &to).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(!to.exists());
        }
    }
}
