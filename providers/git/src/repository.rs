//! Where the user's repository stands, read without trusting it.
//!
//! Nothing that a repository contains makes this do more than open directories and regular files for reading: a `.git` file
//! may point anywhere, a name may be a FIFO. Not here: keeping its objects (`store::keep`), its ignore rules (`scan`).

use std::os::fd::OwnedFd;

use ah_plugin_api::{Dir, RepositoryState, Result};

/// The user's repository as it was found from a workspace.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The top of the work tree: the directory that has the `.git`.
    pub(crate) top: OwnedFd,
    /// The workspace's path below `top`; empty if it is the top, else without a slash at either end.
    pub(crate) prefix: Vec<u8>,
    /// The git directory (`.git`, or `.git/worktrees/<name>`): HEAD and index are here.
    pub(crate) git_dir: OwnedFd,
    /// The common directory: config, `info/exclude`, refs and objects are here.
    pub(crate) common_dir: OwnedFd,
    /// HEAD: the commit in hex and the branch, where known; and why objects cannot be kept, if so.
    pub(crate) state: RepositoryState,
    /// The objects folders, the repository's own first, then those of alternates.
    pub(crate) objects: Vec<OwnedFd>,
}

impl Repository {
    /// Finds the repository that the workspace is in: its `.git`, else that of the nearest directory above on the same
    /// filesystem. None if there is none.
    pub(crate) fn discover(_workspace: &Dir) -> Result<Option<Self>> {
        Ok(None)
    }

    /// The user's index file, opened for reading, with its size; none if there is none (or it is no regular file).
    pub(crate) fn index(&self) -> Result<Option<(OwnedFd, u64)>> {
        Ok(None)
    }

    /// A regular file of the common directory (`info/exclude`, `config`), whole, at most `limit` bytes; none if there is none.
    pub(crate) fn common_file(&self, _name: &str, _limit: u64) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}
