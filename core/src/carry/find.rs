//! The topmost ignored paths that a workspace has and a branch lacks.
//!
//! Cost: one listing for each directory of the workspace that is not ignored.

use std::os::fd::{AsFd, OwnedFd};

use ah_plugin_api::{CapturePolicy, Context, Dir, EntryKind, RelPath, Result};
use ah_rules::{Class, DirRules, Rules};
use rustix::fs::FileType;

use crate::restore::at::{self, Tree, io};

/// Ignored paths of `workspace` that are not in `branch`, the topmost ones, in order; of directories that both have.
pub(super) fn missing(workspace: &Dir, branch: &Dir, policy: &CapturePolicy, cx: &Context<'_>) -> Result<Vec<RelPath>> {
    let mut find = Find {
        workspace: Tree::new(workspace.as_fd())?,
        branch: Tree::new(branch.as_fd())?,
        cx,
        seen: 0,
        missing: Vec::new(),
    };
    let rules = Rules::open(workspace.as_fd(), policy).root(workspace.as_fd());
    let top = find.workspace.listing(&RelPath::root()).map_err(|e| io("cannot list the workspace", e))?;
    find.walk(&RelPath::root(), &top, &rules)?;
    find.missing.sort();
    Ok(find.missing)
}

struct Find<'a> {
    workspace: Tree<'a>,
    branch: Tree<'a>,
    cx: &'a Context<'a>,
    seen: u64,
    missing: Vec<RelPath>,
}

impl Find<'_> {
    fn walk(&mut self, at: &RelPath, dir: &OwnedFd, rules: &DirRules) -> Result<()> {
        self.seen += 1;
        if self.seen.is_multiple_of(256) {
            self.cx.check_cancelled()?;
        }
        let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return Ok(()) };
        for entry in entries {
            let Ok(entry) = entry else { return Ok(()) };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Directory => EntryKind::Dir,
                FileType::RegularFile => EntryKind::File,
                FileType::Symlink => EntryKind::Symlink,
                FileType::Unknown => match at::stat(dir.as_fd(), name) {
                    Ok(Some(found)) => found.kind,
                    _ => continue,
                },
                _ => continue,
            };
            // The size decides only whether an ignored file was captured; whether it is missing is looked at anyway.
            let class = rules.classify(name, kind, 0);
            let path = at.join(name)?;
            match &class {
                Class::Captured | Class::Tracked | Class::Through { .. } if kind == EntryKind::Dir => {
                    // In what came after the branch's snapshot there is no place for anything.
                    if !matches!(self.branch.stat(&path), Ok(Some(there)) if there.kind == EntryKind::Dir) {
                        continue;
                    }
                    let Ok(below) = at::open_dir(dir.as_fd(), name) else { continue };
                    let here = at::stat(below.as_fd(), b"").ok().flatten();
                    if here.is_some_and(|found| found.dev == self.workspace.dev()) {
                        let rules = rules.enter(name, &class, below.as_fd(), None);
                        self.walk(&path, &below, &rules)?;
                    }
                }
                class if class.is_ignored() && !matches!(self.branch.stat(&path), Ok(Some(_))) => {
                    self.missing.push(path);
                }
                // The branch has some of it, an included file say: what is missing below is brought.
                class if class.is_ignored() && kind == EntryKind::Dir => self.below(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything missing below an ignored directory of which the branch has a part.
    fn below(&mut self, dir: &RelPath) -> Result<()> {
        let Ok(names) = self.workspace.names(dir) else { return Ok(()) };
        for name in names {
            let path = dir.join(&name)?;
            match (self.workspace.stat(&path), self.branch.stat(&path)) {
                (Ok(Some(_)), Ok(None)) => self.missing.push(path),
                (Ok(Some(here)), Ok(Some(there))) if here.kind == EntryKind::Dir && there.kind == EntryKind::Dir => {
                    self.below(&path)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
