//! Checks the tree of a home that is not served, for a person: what it finds is on stdout.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ah_agentfs::Workspace;
use ah_plugin_api::{Error, ErrorKind, Result};

use super::opened::LOWER;
use super::{fail, listen};
use crate::home::{self, TREE};

/// Checks it; with `repair` mends what can be. Fails unless all is well then. Costs everything there is.
///
/// # Errors
/// `Busy` while a service has the home; `NotFound` if nothing was ever kept there; those of its tree.
pub fn fsck(home: &Path, repair: bool) -> Result<ExitCode> {
    let dir = listen::mine(home)?;
    let _alone = listen::alone(&dir)?.ok_or_else(|| {
        Error::new(ErrorKind::Busy, "the service of AgentFS has this home")
            .with_hint("end it, which unmounts its branches: `kill` the process `ah-agentfsd --serve` of this home")
    })?;
    let lower = home::read(&dir, LOWER)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "nothing was kept here yet"))?;
    let lower = PathBuf::from(OsString::from_vec(lower));
    let cannot = |e: &ah_agentfs::Error| fail(format!("cannot check the AgentFS tree of {}", lower.display()), e);
    let report = Workspace::fsck(&home.join(TREE), &lower, repair).map_err(|e| cannot(&e))?;
    for problem in &report.problems {
        println!("{problem}");
    }
    let verdict = match (report.problems.is_empty(), repair, report.repaired) {
        (true, ..) => "all is well",
        (_, false, _) => "nothing was changed; --repair mends what can be mended",
        (_, true, true) => "it was mended",
        (_, true, false) => "not all of it can be mended",
    };
    println!("{} rows read, {} blocks of 4 KiB in use: {verdict}", report.rows, report.blocks);
    Ok(if report.repaired { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
