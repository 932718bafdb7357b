//! Which paths are ignored now, for providers whose snapshots hold ignored files without saying so.
//!
//! The rules themselves are `ah-rules`'. Here is only the memory of the directories that were asked about.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{CapturePolicy, Dir, EntryKind, OmitReason, RelPath, Result};
use ah_rules::{Class, DirRules, Present, Rules};

use super::at::Tree;
use crate::workspace::Workspace;

/// Answers for one workspace, as its ignore files are now.
pub(crate) struct Ignores {
    top: Dir,
    rules: Rules,
    known: Mutex<HashMap<RelPath, Inside>>,
}

/// What holds inside a directory.
#[derive(Clone)]
enum Inside {
    /// All of it is ignored.
    Ignored,
    /// Its rules say.
    Rules(Box<DirRules>),
}

impl Ignores {
    /// The rules of the workspace that `top` has open.
    pub(crate) fn open(top: Dir, policy: &CapturePolicy) -> Result<Self> {
        let rules = Rules::open(top.as_fd(), policy);
        Ok(Self { top, rules, known: Mutex::default() })
    }

    /// Whether the index has a file of the repository's that has the workspace in its work tree; none if there is no such repository.
    pub(crate) fn in_index(&self, path: &RelPath) -> Option<bool> {
        let (tracked, prefix) = self.rules.tracked()?;
        Some(tracked.contains(&[prefix, path.as_bytes()].concat()))
    }

    /// Whether a path is ignored, or excluded by configuration.
    pub(crate) fn ignored(&self, path: &RelPath, is_dir: bool) -> bool {
        let Some(name) = path.file_name() else { return false };
        match self.inside(&path.parent().unwrap_or_default()) {
            Inside::Ignored => true,
            Inside::Rules(rules) => {
                let kind = if is_dir { EntryKind::Dir } else { EntryKind::File };
                left_out(&rules.classify(name, kind, 0))
            }
        }
    }

    /// Whether a path is left out of snapshots by a rule: not what is ignored and captured all the same, nor what is only too large.
    pub(crate) fn left_out(&self, path: &RelPath, kind: EntryKind, size: u64) -> bool {
        let Some(name) = path.file_name() else { return false };
        match self.inside(&path.parent().unwrap_or_default()) {
            Inside::Ignored => true,
            Inside::Rules(rules) => {
                let by_rule = [OmitReason::Ignored, OmitReason::Excluded, OmitReason::GitDir, OmitReason::OwnState];
                matches!(rules.classify(name, kind, size), Class::Omitted { reason, .. } if by_rule.contains(&reason))
            }
        }
    }

    fn inside(&self, dir: &RelPath) -> Inside {
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(dir) {
            return known.clone();
        }
        let inside = match (dir.parent(), dir.file_name()) {
            (Some(parent), Some(name)) => match self.inside(&parent) {
                Inside::Ignored => Inside::Ignored,
                Inside::Rules(rules) => self.enter(dir, name, &rules),
            },
            _ => Inside::Rules(Box::new(self.rules.root(self.top.as_fd()))),
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.clone(), inside.clone());
        inside
    }

    fn enter(&self, dir: &RelPath, name: &[u8], rules: &DirRules) -> Inside {
        let class = rules.classify(name, EntryKind::Dir, 0);
        if left_out(&class) && !class.is_captured() {
            return Inside::Ignored;
        }
        let opened = Tree::new(self.top.as_fd()).ok().and_then(|tree| tree.dir(dir).ok());
        Inside::Rules(Box::new(match &opened {
            Some(fd) => rules.enter(name, &class, fd.as_fd(), None),
            // Not there now: nothing in it has a say, what is above has.
            None => rules.enter(name, &class, self.top.as_fd(), Some(Present { git: false, gitignore: false })),
        }))
    }
}

impl Workspace {
    /// Those of these paths that no rule ignores any more.
    pub(super) fn come_out(&self, mut paths: Vec<RelPath>) -> Vec<RelPath> {
        if paths.is_empty() {
            return paths;
        }
        let opened = self.open_dir().and_then(|dir| Ignores::open(dir, &self.policy()?));
        // Nothing is said that is not known.
        let Ok(ignores) = opened else { return Vec::new() };
        let Ok(tree) = Tree::new(ignores.top.as_fd()) else { return Vec::new() };
        let is_out = |path: &RelPath| match tree.stat(path) {
            Ok(Some(found)) => !ignores.ignored(path, found.kind == EntryKind::Dir),
            _ => false,
        };
        paths.retain(is_out);
        paths
    }
}

fn left_out(class: &Class) -> bool {
    class.is_ignored() || matches!(class, Class::Omitted { reason: OmitReason::Excluded, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_and_missing_paths() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tmp.path().join(".git")).unwrap();
        std::fs::write(tmp.path().join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::create_dir_all(tmp.path().join(".git/objects")).unwrap();
        std::fs::create_dir_all(tmp.path().join(".git/refs")).unwrap();
        std::fs::create_dir_all(tmp.path().join("src")).unwrap();
        std::fs::write(tmp.path().join(".gitignore"), "target/\n*.log\n").unwrap();
        std::fs::write(tmp.path().join("src/.gitignore"), "gen\n").unwrap();
        let ignores = Ignores::open(Dir::open(tmp.path()).unwrap(), &CapturePolicy::default()).unwrap();
        let ignored = |text: &str, is_dir| ignores.ignored(&RelPath::new(text).unwrap(), is_dir);
        for (path, is_dir) in
            [("target", true), ("target/debug/x", false), ("a.log", false), ("gone/b.log", false), ("src/gen", false)]
        {
            assert!(ignored(path, is_dir), "{path}");
        }
        for (path, is_dir) in
            [("src", true), ("src/main.rs", false), ("gone/main.rs", false), ("gen", false), ("", true)]
        {
            assert!(!ignored(path, is_dir), "{path}");
        }
    }
}
