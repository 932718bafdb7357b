//! Checks the tree of a home that is not served, for a person: what it finds is on stdout.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ah_agentfs::{BranchId, BranchInfo, Report, Workspace};
use ah_plugin_api::{Dir, Error, ErrorKind, Result, text};
use ah_provider_directory::look as look_at;

use super::convert::{converted_of, shelf_of_converted};
use super::opened::shelves;
use super::record::PlaceLabel;
use super::{fail, listen, lower};
use crate::conversion::{Behind, Note, SINCE, beside};
use crate::home::{self, SHELF, Shelf, TREE};
use crate::lost;

/// What is said where the note of a conversion is of no use any more.
const UNDER_WAY: &str = "what was under way of `convert` is not known any more, and is left as it is: look for `.ah-behind-NAME` and `.ah-convert-*` beside the workspace";

/// Why something is left as it is.
const NOT_READ: &str = "what the tree holds could not be read";
const NOT_ALL: &str = "a branch in the workspace's place may be among what the tree lost";

/// So many paths are named.
const AT_A_GLANCE: usize = 3;

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
    if lower.is_none() && look_at(&dir, TREE.as_bytes()).is_err() {
        return Err(Error::new(ErrorKind::NotFound, "nothing was kept here yet"));
    }
    let mut problems = Shelf::faults(&dir);
    if lower.is_none() {
        problems.push(lower::lost(&dir).message);
    }
    // It need not be there.
    let below = lower.clone().unwrap_or_else(|| home.to_owned());
    let cannot = |e: &ah_agentfs::Error| {
        let error = fail(format!("cannot check the AgentFS tree of {}", below.display()), e);
        let aside = lost::put_aside(&dir).filter(|_| e.is_damage());
        match aside {
            Some(aside) => error.with_hint(aside),
            None => error,
        }
    };
    let report = Workspace::fsck(&tree, &below, repair).map_err(|e| cannot(&e))?;
    let written = shelf.ok().flatten();
    let converted = converted_of(report.branches.clone());
    let restored = converted.as_ref().and_then(|(_, label)| other_behind(&dir, &tree, &label.at()));
    problems.extend(restored.as_ref().map(|there| {
        format!("another directory than lay behind the workspace is at {}: it was restored or copied", there.display())
    }));
    let right = right_shelf(&dir, written.clone(), &report);
    if written.is_some() && written != right {
        problems.push(format!(
            "the key in {} is not one under which the tree holds the workspace's own",
            home.join(SHELF).display()
        ));
    }
    problems.extend(report.problems.iter().map(ToString::to_string));
    let note = Note::of(&dir);
    let damaged = [behind_of(&dir, converted.as_ref(), &note), note.map(drop)].map(Result::err);
    problems.extend(damaged.iter().flatten().map(|error| error.message.clone()));
    let (mut is_mended, mut look) = (report.repaired, false);
    if repair && !problems.is_empty() {
        is_mended &= match report.is_read || Shelf::is_sure(&dir) {
            true => mend(&dir, right, &mut problems)?,
            false => not_mended(SHELF, NOT_READ, &mut problems),
        };
        let mut taken = Taken::No;
        if let (Some(there), Some((branch, _))) = (&restored, &converted) {
            taken = take_restored(&dir, &tree, there, branch.id, &mut problems)?;
            is_mended &= taken != Taken::No;
            look |= taken == Taken::ByName;
        }
        // With that it is written down where it is.
        if lower.is_none() && taken == Taken::No {
            is_mended &= mend_lower(&dir, &tree, converted.as_ref(), &mut problems)?;
        }
        let [behind, note] = damaged.map(|error| error.is_some());
        if behind {
            is_mended &= match (report.is_read, converted.is_none() && report.is_cut) {
                (true, false) => mend_behind(&dir, &tree, converted.as_ref(), &mut problems)?,
                (true, true) => not_mended(SINCE, NOT_ALL, &mut problems),
                (false, _) => not_mended(SINCE, NOT_READ, &mut problems),
            };
        }
        if note {
            Note::forget(&dir);
            problems.push(UNDER_WAY.to_owned());
            is_mended = false;
        }
    }
    for problem in &problems {
        println!("{problem}");
    }
    let verdict = match (problems.is_empty(), repair, is_mended) {
        (true, ..) => "all is well",
        (_, false, _) => "nothing was changed; --repair mends what can be mended",
        (_, true, true) if look => "it was mended, but for files that nobody could compare: look at these",
        (_, true, true) => "it was mended",
        (_, true, false) => "not all of it can be mended",
    };
    println!("{} rows read, {} blocks of 4 KiB in use: {verdict}", report.rows, report.blocks);
    let is_well = is_mended && (repair || problems.is_empty());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the home's own files anew, by what is known. Gives whether that could be done; why it could not, goes to `problems`.
fn mend(home: &Dir, shelf: Option<Shelf>, problems: &mut Vec<String>) -> Result<bool> {
    match shelf {
        Some(shelf) => shelf.keep(home).map(|()| true),
        None => {
            let message = "which of the snapshots that the tree holds are the workspace's own is not known any more";
            problems.push(message.to_owned());
            Ok(false)
        }
    }
}

/// What only the tree vouches for stays as it is where that says nothing.
fn not_mended(name: &str, why: &str, problems: &mut Vec<String>) -> bool {
    problems.push(format!("`{name}` is left as it is: {why}"));
    false
}

/// The branch that the tree has in the workspace's place.
type Converted = (BranchInfo, PlaceLabel);

/// The same of where the directory is that was branched: beside the workspace's place, if it is there.
fn mend_lower(home: &Dir, tree: &Path, converted: Option<&Converted>, problems: &mut Vec<String>) -> Result<bool> {
    match converted.and_then(|(_, label)| beside(&label.at())).filter(|lower| !lower::has_left(tree, lower)) {
        Some(lower) => lower::write(home, &lower).map(|()| true),
        None => {
            problems.extend(lower::lost(home).hint);
            Ok(false)
        }
    }
}

/// The directory that is beside a workspace's place and is another than lay behind that, if one is. Not in a copy of a home that is there, nor where the one that lay behind is somewhere
/// that is known. What a link leads to is none.
fn other_behind(home: &Dir, tree: &Path, at: &Path) -> Option<PathBuf> {
    let there = beside(at).filter(|there| lower::is_another(tree, there))?;
    let is_found = lower::find(home, tree).ok()?.is_some_and(|lower| !lower::has_left(tree, &lower));
    let is_in_place = matches!(Workspace::may_be_of(tree, at), Ok(true));
    let path = home::path_of(home).ok()?;
    (!is_found && !is_in_place && home::original(home, &path).is_none()).then_some(there)
}

/// What has become of a directory that was restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    No,
    Yes,
    /// Not all files in it could be compared.
    ByName,
}

/// Has the tree grow from it, if it is the caller's and holds what is known of the one that lay behind.
fn take_restored(home: &Dir, tree: &Path, there: &Path, branch: BranchId, problems: &mut Vec<String>) -> Result<Taken> {
    if !there.symlink_metadata().is_ok_and(|at| at.uid() == rustix::process::geteuid().as_raw()) {
        problems.push(format!("{} is another user's, and is not taken for what lay behind", there.display()));
        return Ok(Taken::No);
    }
    let found = Workspace::take_restored(tree, there, branch)
        .map_err(|e| fail(format!("cannot compare {} with what is known", there.display()), &e))?;
    if found.others.is_empty() {
        lower::write(home, there)?;
        problems.push(format!(
            "{} holds what is known of what lay behind, and is that from now on; of what is read there, snapshots, those to come as well, have only the names: `ah agent fs convert --back`, then `ah agent fs convert`, makes those to come whole",
            there.display()
        ));
        if found.by_name == 0 {
            return Ok(Taken::Yes);
        }
        let number = text::count(found.by_name, "file was", "files were");
        problems.push(format!(
            "{number} compared by name only, as it is not known what they held: {}",
            names(&found.named, found.by_name)
        ));
        return Ok(Taken::ByName);
    }
    let number = text::count(found.others.len() as u64, "path is", "paths are");
    problems.push(format!(
        "{number} not known to be in it as what lay behind had them: {}; it is not taken for that",
        names(&found.others, found.others.len() as u64)
    ));
    Ok(Taken::No)
}

/// The first of so many paths, the root as `.`.
fn names(paths: &[Vec<u8>], total: u64) -> String {
    let named = paths.iter().take(AT_A_GLANCE).map(|path| match path.as_slice() {
        [] => ".".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    });
    let more = if total > AT_A_GLANCE as u64 { " …" } else { "" };
    named.collect::<Vec<_>>().join(", ") + more
}

/// Fails where what is written down of a workspace that lies behind is damaged, or is not what the tree says. While it is put there, it need not be there.
fn behind_of(home: &Dir, converted: Option<&Converted>, note: &Result<Option<Note>>) -> Result<()> {
    let behind = Behind::of(home)?;
    let (Some((branch, label)), Ok(note)) = (converted, note) else { return Ok(()) };
    let (begins, ends) = (note.as_ref().is_some_and(|note| !note.back), note.as_ref().is_some_and(|note| note.back));
    match behind {
        None if begins => Ok(()),
        Some(behind) if behind.is_of(branch.id.0, &label.at(), ends) => Ok(()),
        _ => Err(Behind::damaged(home)),
    }
}

/// Writes anew that the workspace lies behind, if the tree has a branch in its place, and the directory itself is not there: then the service touches neither, too.
/// Else what lay behind was as good as nobody's already.
fn mend_behind(home: &Dir, tree: &Path, converted: Option<&Converted>, problems: &mut Vec<String>) -> Result<bool> {
    match converted.map(|(branch, label)| (branch.id.0, label.at())) {
        Some((_, at)) if matches!(Workspace::may_be_of(tree, &at), Ok(true)) => {
            let at = at.display();
            problems.push(format!(
                "what lay behind {at} is in its place, and a branch is to be there, too: neither is touched"
            ));
            Ok(false)
        }
        Some((branch, at)) => Behind::anew(branch, &at).write(home).map(|()| true),
        None => Behind::forget(home).map(|()| true),
    }
}

/// The right shelf of a home, where that is known. What the tree says of the workspace's own branch counts before what is written down; and where no checksum
/// vouches for that, the tree has to hold something of it, or nothing at all, if it could be read. Where it is lost, it is the only one of which the tree holds anything.
fn right_shelf(home: &Dir, written: Option<Shelf>, report: &Report) -> Option<Shelf> {
    let mut known = shelves(&report.branches, &report.snapshots);
    let own = |key| Shelf { key, home: None };
    if let Some(key) = shelf_of_converted(report.branches.clone()) {
        return Some(own(key));
    }
    match written {
        Some(shelf) if !report.is_read => Some(shelf),
        Some(shelf) => (Shelf::is_sure(home) || known.is_empty() || known.contains(&shelf.key)).then_some(shelf),
        None if known.len() == 1 => known.pop_first().map(own),
        None => None,
    }
}
