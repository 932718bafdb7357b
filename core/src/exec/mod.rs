//! Running a command that sees a branch at the workspace's own path. (H7's.)

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::branch::BranchRecord;
use crate::workspace::Workspace;

/// What is to be run, and how.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The directory to run it in, as seen outside; none: the workspace's root.
    pub cwd: Option<PathBuf>,
    /// Added to the environment of the caller.
    pub env: Vec<(OsString, OsString)>,
}

impl Workspace {
    /// Runs a command in namespaces of its own, in which the branch is at the workspace's path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the kernel does not allow it; `NotFound` if the command is not there.
    pub fn exec(&self, branch: &BranchRecord, options: &ExecOptions) -> Result<ExitStatus> {
        let _ = (branch, options);
        Err(Error::new(ErrorKind::Unsupported, "not written yet"))
    }
}
