//! What Git ignores, for whoever asks without a workspace; of a workspace's snapshots the capture policy says it.

use std::path::Path;

use ah_plugin_api::{CapturePolicy, Dir, RelPath};

use crate::engine::Engine;
use crate::fsio;
use crate::restore::Ignores;

/// Why Git takes a file along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenBy {
    /// The index has it: it is taken whatever is ignored.
    Index,
    /// No rule of the repository's or the user's ignores it: `git add -A` takes it.
    NoRule,
}

impl Engine {
    /// Whether Git takes `file` along in the directory `root`, which it is below, and why. `None` where it does not, where there is no repository, and where
    /// that cannot be told.
    #[must_use]
    pub fn taken_by_git(&self, root: &Path, file: &RelPath) -> Option<TakenBy> {
        let policy = CapturePolicy { global_ignore: self.global_ignore(), ..CapturePolicy::default() };
        let ignores = Dir::open(root).and_then(|top| Ignores::open(top, &policy)).ok()?;
        match ignores.in_index(file) {
            None => None,
            Some(true) => Some(TakenBy::Index),
            Some(false) => (!ignores.ignored(file, false)).then_some(TakenBy::NoRule),
        }
    }

    /// The contents of the user's global ignore files.
    pub(crate) fn global_ignore(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for file in &self.settings().global_ignore {
            // It may be a symlink of the user's, into a dotfiles repository for instance.
            let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
            if let Some(bytes) = fsio::read(&file).ok().flatten() {
                all.extend_from_slice(&bytes);
                all.push(b'\n');
            }
        }
        all
    }
}
