//! The rules as they hold inside one directory.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ah_plugin_api::{EntryKind, OmitReason};
use bstr::{BStr, ByteSlice};

use crate::class::Class;
use crate::patterns::{Chain, Patterns};
use crate::repository::GitDir;
use crate::rules::{Repo, Shared, read_gitignore};
use crate::staging::is_staging;

/// What a caller that has listed a directory knows of it; saves looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present {
    /// Whether it may have an entry `.git`.
    pub git: bool,
    /// Whether it may have an entry `.gitignore`.
    pub gitignore: bool,
}

/// The rules as they hold inside one directory. Cheap to clone; independent of the directory once made.
#[derive(Debug, Clone)]
pub struct DirRules {
    shared: Arc<Shared>,
    /// Path in the workspace, with a slash at its end; empty for the root.
    path: Vec<u8>,
    /// Path in the work tree of the repository that has the say here, likewise.
    git_path: Vec<u8>,
    chain: Option<Arc<Chain>>,
    repo: Option<Arc<Repo>>,
    state: State,
}

/// What was decided further up.
#[derive(Debug, Clone)]
enum State {
    /// Nothing: the patterns decide.
    Open,
    /// Everything here is captured although it is ignored.
    Kept,
    /// Everything here is ignored, by this rule.
    Ignored(Arc<str>),
}

impl DirRules {
    pub(crate) fn root(
        shared: Arc<Shared>,
        outer: Option<Arc<Chain>>,
        repo: Option<Arc<Repo>>,
        git_path: Vec<u8>,
        dir: BorrowedFd<'_>,
    ) -> Self {
        let mut this = Self { shared, path: Vec::new(), git_path, chain: outer, repo, state: State::Open };
        this.add_gitignore(dir);
        this
    }

    /// The rules inside the subdirectory `name`, of which `class` was said here and which `dir` has open (`O_PATH` is enough).
    #[must_use]
    pub fn enter(&self, name: &[u8], class: &Class, dir: BorrowedFd<'_>, present: Option<Present>) -> Self {
        let present = present.unwrap_or_else(Present::unknown);
        let extended = |path: &[u8]| [path, name, b"/"].concat();
        let mut below = Self { path: extended(&self.path), git_path: extended(&self.git_path), ..self.clone() };
        match class {
            Class::Kept => below.state = State::Kept,
            Class::Through { rule } => below.state = State::Ignored(rule.as_str().into()),
            // A submodule: what is said of it stops at its door.
            Class::Tracked => below.state = State::Open,
            Class::Captured | Class::Omitted { .. } => {}
        }
        if present.git
            && let Some(git_dir) = GitDir::of(dir)
        {
            below.git_path.clear();
            below.chain = self.shared.global.clone();
            if let Some(bytes) = git_dir.exclude_file() {
                let source = format!("{}.git/info/exclude", below.path.as_bstr());
                below.chain = Chain::push(below.chain.take(), Patterns::parse(&bytes, source), 0);
            }
            below.repo = Some(Arc::new(Repo::new(git_dir)));
        }
        if present.gitignore {
            below.add_gitignore(dir);
        }
        below
    }

    fn add_gitignore(&mut self, dir: BorrowedFd<'_>) {
        if let Some(bytes) = read_gitignore(dir.as_fd()) {
            let source = format!("{}.gitignore", self.path.as_bstr());
            self.chain = Chain::push(self.chain.take(), Patterns::parse(&bytes, source), self.git_path.len());
        }
    }

    /// The directory's path in the workspace, with a slash at its end; empty for the root.
    #[must_use]
    pub fn path(&self) -> &BStr {
        self.path.as_bstr()
    }

    /// What becomes of the entry `name` of this directory. `size` counts for files and symlinks.
    #[must_use]
    pub fn classify(&self, name: &[u8], kind: EntryKind, size: u64) -> Class {
        if name == b".git" {
            return Class::omitted(OmitReason::GitDir, None);
        }
        // The folder in which a restore prepares files, at the top of the workspace.
        if self.path.is_empty() && is_staging(name) {
            return Class::omitted(OmitReason::OwnState, None);
        }
        if self.shared.own_state.iter().any(|own| self.is_path(own.as_bytes(), name)) {
            return Class::omitted(OmitReason::OwnState, None);
        }
        let is_dir = kind == EntryKind::Dir;
        if !self.shared.exclude.is_empty()
            && let Some(hit) = self.shared.exclude.matches([&self.path, name].concat().as_bstr(), is_dir)
        {
            return Class::omitted(OmitReason::Excluded, Some(hit.rule()));
        }
        let class = match &self.state {
            State::Kept if self.is_tracked(name) => Class::Tracked,
            State::Kept => Class::Kept,
            State::Ignored(rule) => self.ignored(name, is_dir, size, || rule.to_string()),
            State::Open if self.chain.is_none() => Class::Captured,
            State::Open => {
                let path = [&self.git_path, name].concat();
                match Chain::ignored_by(self.chain.as_ref(), path.as_bstr(), is_dir) {
                    None => Class::Captured,
                    Some(hit) => self.ignored(name, is_dir, size, || hit.rule()),
                }
            }
        };
        if !class.is_captured() || is_dir {
            return class;
        }
        if !matches!(kind, EntryKind::File | EntryKind::Symlink) {
            return Class::omitted(OmitReason::SpecialFile, None);
        }
        if kind == EntryKind::File && size > self.shared.max_file_size {
            let detail = format!("{size} bytes, the limit is {}", self.shared.max_file_size);
            return Class::Omitted { reason: OmitReason::TooLarge, detail: Some(detail), by_size: true };
        }
        class
    }

    /// What becomes of an entry that an ignore rule matches.
    fn ignored(&self, name: &[u8], is_dir: bool, size: u64, rule: impl Fn() -> String) -> Class {
        let tracked = self.repo.as_ref().map(|repo| repo.tracked()).filter(|tracked| !tracked.is_empty());
        let mut git_path = [&self.git_path, name].concat();
        if tracked.is_some_and(|tracked| tracked.contains(&git_path)) {
            return Class::Tracked;
        }
        let path = [&self.path, name].concat();
        let include = &self.shared.include;
        if !include.is_empty() && include.matches(path.as_bstr(), is_dir).is_some() {
            return Class::Kept;
        }
        if is_dir {
            git_path.push(b'/');
            let through = tracked.is_some_and(|tracked| tracked.has_below(&git_path))
                || include.could_match_below(path.as_bstr());
            if through {
                return Class::Through { rule: rule() };
            }
            return Class::omitted(OmitReason::Ignored, Some(rule()));
        }
        let limit = self.shared.max_ignored_size;
        let in_the_open = matches!(self.state, State::Open);
        if in_the_open && limit > 0 && size <= limit {
            return Class::Kept;
        }
        Class::Omitted { reason: OmitReason::Ignored, detail: Some(rule()), by_size: in_the_open && limit > 0 }
    }

    fn is_tracked(&self, name: &[u8]) -> bool {
        let path = [&self.git_path, name].concat();
        self.repo.as_ref().is_some_and(|repo| repo.tracked().contains(&path))
    }

    fn is_path(&self, whole: &[u8], name: &[u8]) -> bool {
        whole.strip_prefix(self.path.as_slice()).is_some_and(|rest| rest == name)
    }
}
