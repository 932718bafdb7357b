//! Paths that a restore was asked for by name: that they can be restored, and are somewhere.

use std::path::Path;

use ah_plugin_api::{Capability, Error, ErrorKind, RelPath, Result, Snapshot};

use super::facade::Job;
use super::plan::Plan;
use super::scope::Omissions;
use super::{LeftAlone, copies_out};
use crate::diff::not_of_the_work;
use crate::record::SnapshotRecord;
use crate::text;
use crate::workspace::Workspace;

/// What a snapshot says of a path; none if it is damaged there, or cannot be read as it may be.
pub(super) fn readable<T>(said: Result<T>) -> Result<Option<T>> {
    match said {
        Err(error) if error.is_unreadable() => Ok(None),
        said => said.map(Some),
    }
}

impl Workspace {
    /// What no restore touches is not asked for in vain without a word.
    pub(super) fn reachable(&self, paths: &[RelPath], target: &SnapshotRecord) -> Result<()> {
        let own_state = self.policy()?.own_state;
        let Some(path) = paths.iter().find(|path| not_of_the_work(path, &own_state)) else { return Ok(()) };
        let (repository, id) = (path.components().any(|name| name == b".git"), &target.id);
        let (served, scratch, cx) = (self.serve(&target.provider)?, self.mounts_dir()?, self.context());
        // Who captures everything has captured that, too.
        let holds = || -> Result<bool> {
            let shelf = self.shelf(&served, &scratch);
            Ok(shelf.open(&target.reference, &cx)?.entry(path, &cx)?.is_some())
        };
        let hint = if !served.can(Capability::AppliesPolicy) && holds()? {
            format!(
                "the snapshot holds it: `{}` copies it out",
                copies_out(&self.root, id, path, Path::new("ELSEWHERE"))
            )
        } else if repository && served.can(Capability::AppliesPolicy) {
            format!("`ah agent fs branch {id}` makes a repository with HEAD, branch and index as they were")
        } else {
            "it is not in the snapshot either; name other paths".to_owned()
        };
        let why = if repository { "repositories are left alone" } else { "that is ah's own" };
        let message = format!("restore never touches {path}: {why}");
        Err(Error::new(ErrorKind::InvalidArgument, message).with_hint(hint))
    }

    /// A path that was asked for by name must be somewhere: then, or now. If the snapshot left it out, that is said.
    pub(super) fn known_paths(&self, job: &Job, target: &Snapshot, mut plan: Plan) -> Result<Plan> {
        let omissions = Omissions::of(target);
        for path in job.paths.iter().filter(|_| job.undoes.is_none()) {
            if let Some(omission) = omissions.cover(path)
                && self.is_there(path)
                && !plan.left.iter().any(|left| left.path.starts_with(path))
            {
                let reason = format!("the snapshot left it out ({})", omission.reason);
                plan.left.push(LeftAlone { path: path.clone(), reason });
            }
        }
        let says_nothing =
            plan.is_empty() && plan.left.is_empty() && plan.conflicts.is_empty() && plan.beyond.is_empty();
        for path in job.paths.iter().filter(|path| job.undoes.is_none() && !self.is_there(path)) {
            let (served, scratch) = (self.serve(&job.target.provider)?, self.mounts_dir()?);
            let shelf = self.shelf(&served, &scratch);
            // What lies in a directory that cannot be read is told with that.
            if let Some(None) =
                readable(shelf.open(&job.target.reference, &self.context())?.entry(path, &self.context()))?
            {
                if let Some(omission) = omissions.cover(path) {
                    // What is done with the others is told, and that this one is missing, too.
                    if !says_nothing {
                        continue;
                    }
                    let message = format!("{path} is missing, and not in the snapshot: {}", omission.reason);
                    let hint = self.left_out_hint(path, &target.id);
                    return Err(Error::new(ErrorKind::NotFound, message).with_hint(hint));
                }
                let message = format!("{path} is neither in the snapshot nor in the workspace");
                let link = std::iter::successors(path.parent(), RelPath::parent)
                    .find(|dir| self.root.join(dir.as_path()).is_symlink());
                let whole = text::shell(self.root.join(path.as_path()).as_os_str());
                let hint = match link {
                    Some(link) => format!("{link} is a symlink: name the file where it is"),
                    None => format!("`ah agent fs versions {whole}` shows whether and when it was there"),
                };
                return Err(Error::new(ErrorKind::NotFound, message).with_hint(hint));
            }
        }
        Ok(plan)
    }
}
