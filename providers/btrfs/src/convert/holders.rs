//! Who has something in a directory open.
//!
//! A descriptor of the directory itself holds nobody up: whoever has one finds an empty, removed directory in the end, and the caller has one.
//! Nor does this process's own working directory: whoever asks for it from inside, by `-C`, knows what they do.

use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Error, ErrorKind, Result};
use ah_provider_directory::{How, Process, Use, failed, look, path_of};

use super::copy::State;

/// An error if a process has something in `dir` open. `state`: what is in it, to recognise what has lost its name.
pub(super) fn refuse(dir: BorrowedFd<'_>, state: Option<&State>) -> Result<()> {
    let root = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
    let path = path_of(dir.as_fd());
    let known = |inode| state.is_some_and(|state| state.has(inode));
    let inside = |used: &Use| {
        if used.how == How::Maps {
            return used.is_below(&path) && (state.is_none() || used.inode.is_some_and(known));
        }
        let Some(stat) = used.stat() else { return false };
        if (stat.stx_dev_major, stat.stx_dev_minor) != (root.stx_dev_major, root.stx_dev_minor) {
            return false;
        }
        if stat.stx_ino == root.stx_ino {
            return matches!(used.how, How::Works | How::Rooted);
        }
        known(stat.stx_ino) || used.is_below(&path)
    };
    for process in Process::all() {
        let own = process.is_own();
        let used = process.uses(|used| !(own && matches!(used.how, How::Works | How::Rooted)) && inside(used));
        if let Some(used) = used {
            let message = format!("the process {process} is in the workspace: {used}");
            return Err(Error::new(ErrorKind::Busy, message)
                .with_hint(format!("end it, or leave the workspace, then repeat: kill {}", process.pid)));
        }
    }
    Ok(())
}
