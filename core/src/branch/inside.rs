//! What lies inside a branch that no comparison with a snapshot tells: repositories below its top, what linked work trees need of them and of the one
//! at the top, the directories behind workspaces that were converted, other subvolumes. It goes with the branch, so it is asked for before.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use ah_plugin_api::{BEHIND, Dir, EntryKind, NOT_MOUNTED, RelPath, Result};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::beneath::{self, Mounts};
use crate::branch::fetch::Missing;
use crate::branch::known::{Known, STASH, is_id};
use crate::branch::linked::{linked, real};
use crate::branch::repository::references;
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
    repositories: Vec<(PathBuf, Missing)>,
    called: &'a str,
}

/// What a branch holds below its top: a few words for each, and what only a repository at a place there has, if the workspace has one at that place.
pub(super) type Told = (Vec<String>, Vec<(PathBuf, Missing)>);

/// What a branch that is `called` so holds below its top that is not in the workspace `here` as well. Reads all directories of the branch, and of files only references. What
/// cannot be read, and what comes or goes meanwhile, is passed over.
pub(super) fn inside(branch: &Dir, called: &str, here: Option<&Dir>) -> Result<Told> {
    let tree = Tree::new(branch.as_fd())?;
    let here = here.map(|here| Tree::new(here.as_fd())).transpose()?;
    let mut inside =
        Inside { branch: tree, top: branch.as_fd(), here, held: Vec::new(), repositories: Vec::new(), called };
    inside.directory(RelPath::root())?;
    inside.held.sort();
    inside.repositories.sort();
    Ok((inside.held, inside.repositories))
}

impl<'a> Inside<'a> {
    fn directory(&mut self, top: RelPath) -> Result<()> {
        let mut todo = vec![top];
        while let Some(path) = todo.pop() {
            let fd = match self.branch.listing(&path) {
                Ok(fd) => fd,
                // A subvolume, which goes with the one around it, or something mounted.
                Err(Errno::XDEV) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    let entered = beneath::open(self.top, path.as_bytes(), flags, Mounts::Enter);
                    if entered.map_or(true, |fd| names(&fd).next().is_some()) {
                        let stays = beneath::open(self.top, path.as_bytes(), flags, Mounts::Stay);
                        let what = if stays.is_ok() { "the subvolume" } else { "what is mounted at" };
                        self.held.push(format!("{what} {path}"));
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
                    self.linked(&below);
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
                self.linked(&path);
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
        let mut known = self.known_here(path);
        for (name, value) in &refs {
            if name.starts_with("refs/remotes/") {
                known.add(value.clone());
            }
        }
        let lacking = known.lacks(refs.values().chain([&head]));
        if !lacking.is_empty() {
            self.held.push(format!("commits or references in {}", place(path)));
            let names = refs.iter().map(|(name, value)| (name.as_str(), value)).chain([("HEAD", &head)]);
            let names =
                names.filter(|(_, value)| lacking.contains(value.as_str())).map(|(name, value)| (name, value.as_str()));
            let mut missing = known.missing(self.called, names);
            if refs.get(STASH).is_some_and(|value| lacking.contains(value.as_str())) {
                missing.stashes = known.stashes_lacked(self.branch, path, &refs);
            }
            self.bring(path, &known, missing);
        }
    }

    /// Notes how what a repository has comes home, if the workspace has one there.
    fn bring(&mut self, path: &RelPath, known: &Known<'_>, missing: Missing) {
        if known.is_there() {
            self.repositories.push((place(path).as_path().to_owned(), missing));
        }
    }

    /// Whether linked work trees outside of the branch need a repository in it, or others of its, there or not, name what it does not name itself.
    fn linked(&mut self, path: &RelPath) {
        let trees = linked(self.branch, path);
        if trees.is_empty() {
            return;
        }
        let Some((head, refs)) = references(self.branch, path) else { return };
        let mut known = self.known_here(path);
        refs.into_values().chain([head]).for_each(|value| known.add(value));
        let top = real(self.top);
        for tree in trees {
            let at = tree.place.display();
            if tree.needs_it && !top.as_ref().is_some_and(|top| tree.place.starts_with(top)) {
                self.held.push(format!("the repository of the linked work tree {at}"));
            }
            if let Some(value) = known.lacks(&tree.named).into_iter().next() {
                let what = if is_id(value) { format!("commit {value}") } else { "perhaps commits".to_owned() };
                self.held.push(format!("{what} of the linked work tree {at}"));
                self.bring(path, &known, known.missing(self.called, [(value, value)]));
            }
        }
    }

    /// What the repository at the same place in the workspace has.
    fn known_here(&self, path: &RelPath) -> Known<'a> {
        self.here.map_or_else(Known::default, |here| Known::at(here, path))
    }

    fn is_here(&self, path: &RelPath) -> bool {
        self.here.is_some_and(|here| matches!(here.stat(path), Ok(Some(_))))
    }
}

/// By what path Git knows the repository in a directory.
fn place(path: &RelPath) -> RelPath {
    path.parent().filter(|_| path.file_name() == Some(b".git")).unwrap_or_else(|| path.clone())
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
