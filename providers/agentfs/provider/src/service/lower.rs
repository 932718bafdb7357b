//! Where the directory is that was branched.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_agentfs::Workspace;
use ah_plugin_api::{Dir, Error, Result};

use crate::conversion::Behind;
use crate::home;

/// A name in a home.
const LOWER: &str = "lower";

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
        .with_hint("`ah agent fs gc` in the directory that was branched writes down again where that is")
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

/// Whether the directory from which a tree grew is gone, or another is in its place.
pub(super) fn has_left(tree: &Path, lower: &Path) -> bool {
    tree.exists() && (!lower.exists() || matches!(Workspace::may_be_of(tree, lower), Ok(false)))
}
