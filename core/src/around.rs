//! The workspace around a directory that is none itself yet. A repository inside of a captured workspace, a submodule say, is one of its own, so that
//! who asks there for snapshots is told of none, although its files are in those of the other.

use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::registry::{Identity, Index};

impl Engine {
    /// The nearest workspace that has snapshots around the one of `path`, as far as that can be told.
    #[must_use]
    pub fn captured_around(&self, path: &Path) -> Option<PathBuf> {
        let root = self.root_of(path).ok()?;
        let (index, _) = Index::load(self.home()).ok()?;
        root.ancestors().skip(1).find_map(|dir| {
            let identity = Identity::of_path(dir)?;
            let record = index.workspaces.iter().find(|record| record.is_at(dir) && record.identity.same(&identity))?;
            let around = self.handle(record.clone(), dir.to_owned());
            around.state().is_ok_and(|state| !state.snapshots.is_empty()).then(|| dir.to_owned())
        })
    }
}
