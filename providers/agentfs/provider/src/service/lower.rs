//! Where the directory is that was branched, and what is said where another is there.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_agentfs::Workspace;
use ah_plugin_api::{Dir, Error, ErrorKind, Result, text};

use super::Service;
use super::convert::converted;
use crate::conversion::{Behind, beside};
use crate::home::{self, LOWER};

/// The path that is written down.
pub(super) fn read(home: &Dir) -> Result<Option<PathBuf>> {
    let bytes = home::read(home, LOWER)?;
    Ok(bytes.map(|bytes| PathBuf::from(OsString::from_vec(bytes))).filter(|lower| lower.is_absolute()))
}

/// Writes one down.
pub(super) fn write(home: &Dir, lower: &Path) -> Result<()> {
    home::write(home, LOWER, lower.as_os_str().as_bytes(), true).map(drop)
}

/// What is said where none is written down, and there is a tree.
pub(super) fn lost(home: &Dir) -> Error {
    home::damaged(home, LOWER, "is missing or damaged")
        .with_hint("`ah -C . agent fs gc` in the directory that was branched writes down again where that is")
}

/// The path that is written down; or, where the directory is not there, beside the workspace that it lies behind, if it is.
pub(super) fn find(home: &Dir, tree: &Path) -> Result<Option<PathBuf>> {
    let written = read(home)?;
    if written.as_ref().is_some_and(|lower| !has_left(tree, lower)) {
        return Ok(written);
    }
    let behind = Behind::of(home).ok().flatten().and_then(|behind| behind.beside());
    Ok(behind.filter(|lower| tree.exists() && !has_left(tree, lower)).or(written))
}

impl Service {
    /// Where nothing says it but the tree, which is not open: what lies behind a workspace is beside the place of that. Written down then.
    pub(super) fn lower_by_tree(&self) -> Option<PathBuf> {
        let tree = self.closed_tree().ok().filter(|_| self.current().is_none())?;
        let lower = converted(&tree).and_then(|(_, at)| beside(&at))?;
        // On a disk that is full, the next one does.
        let _ = write(&self.home, &lower);
        Some(lower)
    }
}

/// Whether the directory from which a tree grew is gone, or another is in its place.
pub(super) fn has_left(tree: &Path, lower: &Path) -> bool {
    tree.exists() && (!lower.exists() || matches!(Workspace::may_be_of(tree, lower), Ok(false)))
}

/// Whether a directory is there, no link to one, and it is another than the one from which a tree grew.
pub(super) fn is_another(tree: &Path, lower: &Path) -> bool {
    let is_directory = lower.symlink_metadata().is_ok_and(|there| there.is_dir());
    is_directory && matches!(Workspace::may_be_of(tree, lower), Ok(false))
}

/// Where a workspace is behind AgentFS, not mounted, and something else is in its place.
pub(super) fn in_its_place(path: &Path) -> Error {
    let shown = text::shell(path.as_os_str());
    let message = format!(
        "another directory is at {}: the workspace that was mounted there is kept whole, and cannot be mounted over it",
        path.display()
    );
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint(format!("move that directory away, and `ah -C {shown}` mounts the workspace again"))
}

/// The same, where it is not whole any more.
pub(super) fn in_place_of_what_is_lost(path: &Path, behind: &Path) -> Error {
    let shown = text::shell(path.as_os_str());
    let message = format!(
        "another directory is at {}: of the workspace that was mounted there, what was written since `convert` is kept, and what lay behind it is not at {} any more",
        path.display(),
        behind.display()
    );
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
        "if that is elsewhere, bring it back first; `ah -C {shown} agent fs rm --all` writes the workspace off, and leaves the directory alone; move the directory away, and `ah -C {shown}` mounts the workspace again"
    ))
}

/// Where a workspace was behind AgentFS, and is a plain directory again.
pub(super) fn was_behind(path: &Path) -> Error {
    let message = format!("it keeps snapshots or branches of {} from when that was behind AgentFS", path.display());
    Error::new(ErrorKind::FailedPrecondition, message).with_hint(
        "once `ah agent fs rm` has taken them away, and `ah agent fs gc` what they read, new branches grow by it again",
    )
}

/// Where another directory is than the one that was branched.
pub(super) fn other_lower(path: &Path) -> Error {
    let message = format!("branches were grown from another directory than is at {} now", path.display());
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint("what they hold is in `ah agent fs branches`; name another provider for new ones: --provider git")
}
