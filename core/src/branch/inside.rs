//! What lies inside a branch that no comparison with a snapshot tells: repositories below its top, the directories behind workspaces that were
//! converted, other subvolumes. It goes with the branch, so it is asked for before.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{BEHIND, Dir, EntryKind, NOT_MOUNTED, RelPath, Result};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::beneath::{self, Mounts};
use crate::branch::repository::{references, text};
use crate::restore::at::Tree;

/// Whether a branch has nothing at a path at which a provider mounts a workspace inside of its origin: no directory, an empty one, or what stands in for
/// that. If so, what lay behind it, where the branch shows that.
pub(super) fn bare(branch: &Dir, path: &RelPath) -> Option<Option<RelPath>> {
    let tree = Tree::new(branch.as_fd()).ok()?;
    if tree.listing(path).is_ok_and(|fd| names(&fd).any(|(name, _)| name != NOT_MOUNTED.as_bytes())) {
        return None;
    }
    let behind = path.parent()?.join(&[BEHIND.as_bytes(), path.file_name()?].concat()).ok()?;
    Some(Some(behind).filter(|behind| tree.listing(behind).is_ok()))
}

/// Looks through a branch.
struct Inside<'a> {
    branch: Tree<'a>,
    top: BorrowedFd<'a>,
    /// The workspace that it grew from; what is the same there is not lost with the branch.
    here: Option<Tree<'a>>,
    held: Vec<String>,
    repositories: Vec<RelPath>,
}

/// What a branch holds below its top that is not in the workspace `here` as well, a few words for each, and which repositories are among it. Reads all
/// directories of the branch, and of files only references. What cannot be read, and what comes or goes meanwhile, is passed over.
pub(super) fn inside(branch: &Dir, here: Option<&Dir>) -> Result<(Vec<String>, Vec<RelPath>)> {
    let tree = Tree::new(branch.as_fd())?;
    let here = here.map(|here| Tree::new(here.as_fd())).transpose()?;
    let mut inside = Inside { branch: tree, top: branch.as_fd(), here, held: Vec::new(), repositories: Vec::new() };
    inside.directory(RelPath::root())?;
    inside.held.sort();
    inside.repositories.sort();
    Ok((inside.held, inside.repositories))
}

impl Inside<'_> {
    fn directory(&mut self, top: RelPath) -> Result<()> {
        let mut todo = vec![top];
        while let Some(path) = todo.pop() {
            let fd = match self.branch.listing(&path) {
                Ok(fd) => fd,
                // A subvolume, which goes with the one around it.
                Err(Errno::XDEV) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    let entered = beneath::open(self.top, path.as_bytes(), flags, Mounts::Enter);
                    if entered.map_or(true, |fd| names(&fd).next().is_some()) {
                        self.held.push(format!("the subvolume {path}"));
                    }
                    continue;
                }
                Err(_) => continue,
            };
            for (name, kind) in names(&fd) {
                let below = path.join(&name)?;
                let kind = match kind {
                    FileType::Unknown => self.branch.stat(&below).ok().flatten().map(|found| found.kind),
                    FileType::Directory => Some(EntryKind::Dir),
                    _ => None,
                };
                if kind != Some(EntryKind::Dir) {
                    continue;
                }
                if name == b".git" {
                    // Of the one at the top, more is known.
                    if !path.is_root() {
                        self.repository(&below);
                    }
                    self.modules(&below)?;
                } else if name.starts_with(BEHIND.as_bytes()) && !self.is_here(&below) {
                    self.held.push(format!("{below}, what is behind a workspace"));
                } else {
                    todo.push(below);
                }
            }
        }
        Ok(())
    }

    /// The repositories of submodules, whose names may have slashes.
    fn modules(&mut self, repository: &RelPath) -> Result<()> {
        let mut todo = vec![repository.join(b"modules")?];
        while let Some(path) = todo.pop() {
            let Ok(fd) = self.branch.listing(&path) else { continue };
            let is_repository = matches!(self.branch.stat(&path.join(b"HEAD")?), Ok(Some(_)));
            if is_repository {
                self.repository(&path);
                todo.push(path.join(b"modules")?);
                continue;
            }
            for (name, kind) in names(&fd) {
                if matches!(kind, FileType::Directory | FileType::Unknown) {
                    todo.push(path.join(&name)?);
                }
            }
        }
        Ok(())
    }

    /// Whether all that a repository's references name is known to the one at the same place in the workspace, or was fetched from elsewhere.
    fn repository(&mut self, path: &RelPath) {
        let Some((head, refs)) = references(self.branch, path) else { return };
        let mut known = BTreeSet::new();
        for (name, value) in &refs {
            if name.starts_with("refs/remotes/") {
                known.insert(value.clone());
            }
        }
        let mut been = String::new();
        if let Some(here) = self.here
            && let Some((head, refs)) = references(here, path)
        {
            known.extend(refs.into_values());
            known.insert(head);
            // Its own may have gone on since.
            let log = path.join(b"logs").and_then(|logs| logs.join(b"HEAD"));
            been = log.ok().and_then(|log| text(here, &log)).unwrap_or_default();
        }
        let is_known = |value: &String| known.contains(value) || !value.is_empty() && been.contains(value.as_str());
        let named = refs.values().chain([&head]).filter(|value| !value.starts_with("ref: "));
        if !named.into_iter().all(is_known) {
            let place = path.parent().filter(|_| path.file_name() == Some(b".git")).unwrap_or_else(|| path.clone());
            self.held.push(format!("commits or references in {place}"));
            self.repositories.push(place);
        }
    }

    fn is_here(&self, path: &RelPath) -> bool {
        self.here.is_some_and(|here| matches!(here.stat(path), Ok(Some(_))))
    }
}

/// The names in a directory and what they are, as far as it tells.
fn names(directory: &OwnedFd) -> impl Iterator<Item = (Vec<u8>, FileType)> {
    rustix::fs::Dir::read_from(directory)
        .into_iter()
        .flatten()
        .map_while(std::result::Result::ok)
        .map(|entry| (entry.file_name().to_bytes().to_vec(), entry.file_type()))
        .filter(|(name, _)| name != b"." && name != b"..")
}
