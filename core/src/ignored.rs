//! What Git ignores, for whoever asks without a workspace; of a workspace's snapshots the capture policy says it.

use std::path::Path;

use ah_plugin_api::{CapturePolicy, Dir, RelPath};

use crate::engine::Engine;
use crate::fsio;
use crate::restore::Ignores;

impl Engine {
    /// Whether `git add -A` in the directory `root` would take `file` along, which is below it: there is a repository, and no rule of its or the user's
    /// ignores the file. No, where that cannot be told.
    #[must_use]
    pub fn git_would_take(&self, root: &Path, file: &RelPath) -> bool {
        let policy = CapturePolicy { global_ignore: self.global_ignore(), ..CapturePolicy::default() };
        let ignores = Dir::open(root).and_then(|top| Ignores::open(top, &policy));
        ignores.is_ok_and(|ignores| ignores.in_repository() && !ignores.ignored(file, false))
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
