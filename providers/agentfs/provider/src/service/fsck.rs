//! Checks the tree of a home that is not served, for a person: what it finds is on stdout.

use std::path::Path;
use std::process::ExitCode;

use ah_agentfs::{Options, Workspace};
use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use ah_provider_directory::look;

use super::convert::shelf_of_converted;
use super::opened::shelves;
use super::{fail, listen, lower};
use crate::home::{self, Shelf, TREE};

/// Checks it; with `repair` mends what can be. Fails unless all is well then. Costs everything there is.
///
/// # Errors
/// `Busy` while a service has the home; `NotFound` if nothing was ever kept there; those of its tree.
pub fn fsck(home: &Path, repair: bool) -> Result<ExitCode> {
    let dir = home::mine(home)?;
    let shelf = Shelf::of(&dir);
    if matches!(shelf, Ok(None | Some(Shelf { home: Some(_), .. }))) {
        let message = format!("{} is no home of AgentFS", home.display());
        return Err(Error::new(ErrorKind::PermissionDenied, message));
    }
    let _alone = listen::alone(&dir)?.ok_or_else(|| {
        Error::new(ErrorKind::Busy, "the service of AgentFS has this home")
            .with_hint("end it, which unmounts its branches: `kill` the process `ah-agentfsd --serve` of this home")
    })?;
    let tree = home.join(TREE);
    let lower = lower::find(&dir, &tree)?;
    if lower.is_none() && look(&dir, TREE.as_bytes()).is_err() {
        return Err(Error::new(ErrorKind::NotFound, "nothing was kept here yet"));
    }
    let mut problems = Shelf::faults(&dir);
    if lower.is_none() {
        problems.push(lower::lost(&dir).message);
    }
    // It need not be there.
    let below = lower.clone().unwrap_or_else(|| home.to_owned());
    let cannot = |e: &ah_agentfs::Error| fail(format!("cannot check the AgentFS tree of {}", below.display()), e);
    let report = Workspace::fsck(&tree, &below, repair).map_err(|e| cannot(&e))?;
    problems.extend(report.problems.iter().map(ToString::to_string));
    let mut is_mended = report.repaired;
    if repair && !problems.is_empty() {
        is_mended &= mend(&dir, shelf, lower.as_deref(), &mut problems)?;
    }
    for problem in &problems {
        println!("{problem}");
    }
    let verdict = match (problems.is_empty(), repair, is_mended) {
        (true, ..) => "all is well",
        (_, false, _) => "nothing was changed; --repair mends what can be mended",
        (_, true, true) => "it was mended",
        (_, true, false) => "not all of it can be mended",
    };
    println!("{} rows read, {} blocks of 4 KiB in use: {verdict}", report.rows, report.blocks);
    let is_well = is_mended && (repair || problems.is_empty());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the home's own files anew, by what the tree says. Gives whether that could be done; why it could not, goes to `problems`.
fn mend(home: &Dir, shelf: Result<Option<Shelf>>, lower: Option<&Path>, problems: &mut Vec<String>) -> Result<bool> {
    let mut all = true;
    match shelf.ok().flatten().map_or_else(|| shelf_by_tree(home), |shelf| Ok(Some(shelf)))? {
        Some(shelf) => shelf.keep(home)?,
        None => {
            let message = "which of the snapshots that the tree holds are the workspace's own is not known any more";
            problems.push(message.to_owned());
            all = false;
        }
    }
    if lower.is_none() {
        problems.extend(lower::lost(home).hint);
        all = false;
    }
    Ok(all)
}

/// The shelf of a home that has lost it: that of the workspace's own branch, or the only one of which the tree holds anything.
fn shelf_by_tree(home: &Dir) -> Result<Option<Shelf>> {
    let options = Options { without_lower: true, background: false, ..Options::default() };
    let tree = Workspace::open(&home.path().join(TREE), home.path(), options)
        .map_err(|e| fail("cannot open the AgentFS tree", &e))?;
    let mut known = shelves(&tree);
    let only = if known.len() == 1 { known.pop_first() } else { None };
    Ok(shelf_of_converted(&tree).or(only).map(|key| Shelf { key, home: None }))
}
