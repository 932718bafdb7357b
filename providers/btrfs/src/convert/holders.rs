//! Who has something in a directory open. By what the kernel says of each process: its working directory, its root, its descriptors, what
//! it has mapped. Of other users' processes an ordinary user is told nothing.
//!
//! A descriptor of the directory itself holds nobody up: whoever has one finds an empty, removed directory in the end, and the caller has one.
//! Nor does this process's own working directory: whoever asks for it from inside, by `-C`, knows what they do.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};
use ah_provider_directory::{failed, look, path_of};

use super::copy::State;

/// An error if a process has something in `dir` open. `state`: what is in it, to recognise what has lost its name.
pub(super) fn refuse(dir: BorrowedFd<'_>, state: Option<&State>) -> Result<()> {
    let root = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
    let search = Search {
        path: path_of(dir.as_fd()),
        device: (root.stx_dev_major, root.stx_dev_minor),
        inode: root.stx_ino,
        state,
    };
    let processes = std::fs::read_dir("/proc")
        .map_err(|e| Error::from_io("cannot look for processes that have something in the workspace open", &e))?;
    for process in processes.flatten() {
        let name = process.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if let Some(what) = search.held_by(&process.path()) {
            let pid = name.to_string_lossy();
            let command = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let message = format!("the process {pid} ({}) is in the workspace: {what}", command.trim());
            return Err(Error::new(ErrorKind::Busy, message)
                .with_hint(format!("end it, or leave the workspace, then repeat: kill {pid}")));
        }
    }
    Ok(())
}

struct Search<'a> {
    path: PathBuf,
    device: (u32, u32),
    inode: u64,
    state: Option<&'a State>,
}

impl Search<'_> {
    /// What a process has open, for a person.
    fn held_by(&self, process: &Path) -> Option<String> {
        let own = process.file_name().is_some_and(|pid| *pid == *std::process::id().to_string());
        for (link, what) in [("cwd", "it works"), ("root", "it has its root")].into_iter().filter(|_| !own) {
            if let Some(path) = self.inside(&process.join(link), true) {
                return Some(format!("{what} in {}", path.display()));
            }
        }
        for fd in std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if let Some(path) = self.inside(&fd.path(), false) {
                return Some(format!("it has {} open", path.display()));
            }
        }
        self.mapped(process).map(|path| format!("it runs or maps {}", path.display()))
    }

    /// Where such a link leads, if that is in the directory.
    fn inside(&self, link: &Path, directory_too: bool) -> Option<PathBuf> {
        let path = std::fs::read_link(link).ok()?;
        // Not `look`: what is behind such a link is to be seen.
        let stat = rustix::fs::stat(link).ok()?;
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        if device != self.device {
            return None;
        }
        if stat.st_ino == self.inode {
            return directory_too.then_some(path);
        }
        let known = self.state.is_some_and(|state| state.has(stat.st_ino));
        (known || path.starts_with(&self.path)).then_some(path)
    }

    /// A mapped file. The device in that table is the filesystem's and not the subvolume's, so it goes by path and number.
    fn mapped(&self, process: &Path) -> Option<PathBuf> {
        let maps = std::fs::read(process.join("maps")).ok()?;
        maps.split(|&b| b == b'\n').find_map(|line| {
            // address perms offset dev inode path
            let mut fields = line.splitn(6, |&b| b == b' ');
            let inode: u64 = std::str::from_utf8(fields.nth(4)?).ok()?.parse().ok()?;
            let path = fields.next()?.trim_ascii_start();
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
            let inside = path.starts_with(&self.path) && self.state.is_none_or(|state| state.has(inode));
            (inode != 0 && inside).then_some(path)
        })
    }
}
