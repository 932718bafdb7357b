//! Submodules whose repositories are gone: Git does nothing in the whole work tree then, and a repository that comes back without them is none for it.
//!
//! Known by `.gitmodules` at the top. What is written there with quotes inside of names, and submodules of submodules, are passed over.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

use ah_plugin_api::{Dir, EntryKind, RelPath};
use ah_rules::GitDir;

use super::lacking;
use crate::branch::text_of;
use crate::restore::at::Tree;
use crate::text;

/// One whose `.git` is a file that leads to no repository.
pub(crate) struct Submodule {
    /// Where it is.
    pub(crate) path: RelPath,
    repository: Repository,
}

/// What there is of its repository, below `.git/modules`.
enum Repository {
    Whole(RelPath),
    /// Something that Git takes for none, and does not make another one in.
    Damaged(RelPath),
    Gone,
}

impl Submodule {
    /// Those of a workspace. What cannot be read is taken for whole.
    pub(crate) fn broken(workspace: &Dir) -> Vec<Self> {
        let Ok(tree) = Tree::new(workspace.as_fd()) else { return Vec::new() };
        let listed = RelPath::new(".gitmodules").ok().and_then(|list| text_of(tree, &list)).unwrap_or_default();
        let (mut name, mut broken) = ("", Vec::new());
        for line in listed.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                name = section.strip_prefix("submodule \"").and_then(|it| it.strip_suffix("\"]")).unwrap_or_default();
            }
            let Some(("path", path)) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
                continue;
            };
            let Ok(path) = RelPath::new(path) else { continue };
            if !name.is_empty() && leads_nowhere(tree, &path) {
                let kept = RelPath::new(format!(".git/modules/{name}")).ok();
                let repository = match kept.filter(|kept| is_dir(tree, kept)) {
                    Some(kept) if lacking(tree, &kept).is_none() => Repository::Whole(kept),
                    Some(kept) => Repository::Damaged(kept),
                    None => Repository::Gone,
                };
                broken.push(Self { path, repository });
            }
        }
        broken
    }

    /// For a person.
    pub(crate) fn told(&self) -> String {
        format!(
            "the .git of the submodule {} leads to no repository, and Git does nothing here as long as it is so",
            self.path
        )
    }

    /// How it comes back.
    pub(crate) fn way_back(&self, root: &Path) -> String {
        let top = text::shell(root.as_os_str());
        let place = root.join(self.path.as_path());
        let path = text::shell(place.as_os_str());
        let was = |place: &Path| {
            let mut was = place.as_os_str().to_owned();
            was.push(".was");
            text::shell(&was)
        };
        let (mut moved, mut left) = (String::new(), String::new());
        match &self.repository {
            Repository::Whole(repository) => {
                let mut line =
                    OsString::from(format!("gitdir: {}", "../".repeat(self.path.as_path().components().count())));
                line.push(repository.as_path());
                return format!("`echo {} > {path}/.git` has it lead there again", text::shell(&line));
            }
            Repository::Damaged(repository) => {
                let repository = root.join(repository.as_path());
                moved = format!("mv -T {} {} && ", text::shell(repository.as_os_str()), was(&repository));
                left = format!(", and what is left of its repository in {}", was(&repository));
            }
            Repository::Gone => {}
        }
        let (aside, name) = (was(&place), text::shell(self.path.as_path().as_os_str()));
        format!(
            "`{moved}mv -T {path} {aside} && git -C {top} submodule update --init -- {name}` fetches it anew, and leaves what was in it in {aside}{left}"
        )
    }
}

/// Whether the `.git` of a directory is a file that leads to no repository.
pub(crate) fn leads_nowhere(tree: Tree<'_>, path: &RelPath) -> bool {
    let Ok(git) = path.join(b".git") else { return false };
    matches!(tree.stat(&git), Ok(Some(found)) if found.kind == EntryKind::File)
        && !tree.is_unreadable(&git)
        && tree.dir(path).is_ok_and(|dir| GitDir::of(dir.as_fd()).is_none())
}

fn is_dir(tree: Tree<'_>, path: &RelPath) -> bool {
    matches!(tree.stat(path), Ok(Some(found)) if found.kind == EntryKind::Dir)
}
