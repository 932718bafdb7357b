//! Where above a workspace a folder of depots can be, for a store that is on another filesystem.
//!
//! Not here: making one, and what says where it is (`elsewhere`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::{failed, look};
use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxAttributes};

/// The highest directory above the workspace, on its mount, that this user may write to; in it, the folder of depots is made, or
/// would be.
pub(crate) fn place_above(workspace: &Dir) -> Result<OwnedFd> {
    candidates(workspace)?.into_iter().next_back().ok_or_else(|| nowhere(workspace))
}

/// The error where there is none.
pub(crate) fn nowhere(workspace: &Dir) -> Error {
    let message = format!(
        "there is no place for snapshots on the filesystem of {}: no directory above it that you may write to",
        workspace.path().display()
    );
    let other = match look(workspace, b"") {
        // For the helper there is none either.
        Ok(stat) if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
            "take a directory in it as the workspace"
        }
        _ => "let the administrator set up `ahd`",
    };
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint(format!("set AH_HOME to a folder of yours on that filesystem, or {other}"))
}

/// So many directories above a workspace are tried, the highest of those that come into question: each is held open.
const MAX_CANDIDATES: usize = 16;

/// The directories above the workspace that come into question, the lowest first.
pub(crate) fn candidates(workspace: &Dir) -> Result<VecDeque<OwnedFd>> {
    let fail = |errno| failed("cannot look at the directories above the workspace", errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = VecDeque::new();
    let mut stat = look(workspace, b"").map_err(fail)?;
    let mut at = rustix::fs::openat(workspace, c".", flags, Mode::empty()).map_err(fail)?;
    loop {
        let up = rustix::fs::openat(&at, c"..", flags, Mode::empty()).map_err(fail)?;
        let above = look(&up, b"").map_err(fail)?;
        let key = |s: &rustix::fs::Statx| (s.stx_ino, s.stx_dev_major, s.stx_dev_minor);
        if key(&above) == key(&stat) || above.stx_mnt_id != stat.stx_mnt_id {
            return Ok(found);
        }
        let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if rustix::fs::accessat(&up, c".", wanted, AtFlags::EACCESS).is_ok() {
            if found.len() == MAX_CANDIDATES {
                found.pop_front();
            }
            found.push_back(up.try_clone().map_err(|e| Error::from_io("cannot look at the directories above", &e))?);
        }
        (at, stat) = (up, above);
    }
}
