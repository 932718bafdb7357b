//! Where a provider may say that it has made a branch.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ah_plugin_api::wire::DEFECT;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, Place, Result};

use crate::branch::{BranchFile, destroy_request};
use crate::fsio;
use crate::registry::Index;
use crate::workspace::{Served, Workspace};

impl Workspace {
    /// Refuses a place that a branch cannot be at, `asked` being the one that was asked for in `target`: what is others' would be worked in as the
    /// branch, and be known as one. Elsewhere it may only be on another filesystem.
    ///
    /// # Errors
    /// `Internal`: the provider's answer is wrong.
    pub(super) fn refuse_others_place(&self, path: &Path, asked: &Path, target: &Dir, served: &Served) -> Result<()> {
        let as_said = |path: &Path| std::iter::once(path.to_owned()).chain(std::fs::canonicalize(path));
        if as_said(asked).any(|asked| path.starts_with(asked)) {
            return Ok(());
        }
        let home = self.engine.home().path();
        let is_apart = || {
            let (there, target) = (rustix::fs::stat(path), rustix::fs::fstat(target.as_fd()));
            matches!((there, target), (Ok(there), Ok(target)) if there.st_dev != target.st_dev)
        };
        let holds_others = |path: &PathBuf| {
            let known = Index::load(self.engine.home())?.0.workspaces.into_iter().map(|known| known.path);
            let mut others = known.chain([home.to_owned()]).chain(self.engine.settings().user_home.clone());
            Ok::<_, Error>(others.any(|other| other.starts_with(path)))
        };
        for path in as_said(path) {
            let in_ours =
                !path.starts_with(served.store.path()) && (path.starts_with(&self.root) || path.starts_with(home));
            if in_ours || !is_apart() || holds_others(&path)? {
                let message = format!(
                    "the provider {} says that it made the branch at {}, where it cannot be",
                    served.name,
                    path.display()
                );
                return Err(Error::new(ErrorKind::Internal, message).with_hint(DEFECT));
            }
        }
        Ok(())
    }
}

/// What is said of a branch that is no directory. Its provider takes away what it knows of; where it cannot, its name for that stays on record. What is left in a folder of
/// ours goes by its name, as what a killed process left, and nobody follows where a symlink leads.
pub(super) fn no_dir(file: &mut BranchFile, path: &Path, at: &Place<'_>, ours: bool, served: &Served) -> Error {
    if let Some(request) = destroy_request(file)
        && served.provider.destroy(at, &request, &Context::quiet()).is_ok()
    {
        file.record.reference = None;
    }
    if ours && fsio::is_no_dir(&file.made_at) {
        let _ = fsio::remove_file(&file.made_at);
    }
    let message = format!(
        "the provider {} says that it made the branch at {}, where no directory is",
        served.name,
        path.display()
    );
    Error::new(ErrorKind::Internal, message).with_hint(DEFECT)
}
