//! Taking branches away, finished or not.

use std::os::unix::ffi::OsStrExt;

use ah_plugin_api::{
    CapturePolicy, DestroyRequest, Dir, Durability, Error, ErrorKind, FileName, ReclaimRequest, Result, Side,
};
use serde::Serialize;

use crate::branch::{BranchFile, BranchRecord, BranchState, destroy_request};
use crate::engine::Engine;
use crate::fsio;
use crate::ids::letters;
use crate::lock::Holder;
use crate::registry::Index;
use crate::timeline::EventBody;
use crate::workspace::{Served, Workspace};

/// A branch that was taken away.
#[derive(Debug, Clone, Serialize)]
pub struct BranchRemoved {
    /// What it was.
    #[serde(flatten)]
    pub branch: BranchRecord,
}

impl Workspace {
    /// Takes a branch away with everything in it, its own snapshots too.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it has changed since its last snapshot and `force` is not given; the provider's.
    pub fn remove_branch(&self, name: &str, force: bool) -> Result<BranchRemoved> {
        let mut file = self.removable(name, force)?;
        let served = self.serve(&file.record.provider)?;
        file.record.state = BranchState::Removing;
        file.maker = Holder::me();
        file.save(self.engine.home())?;
        finish(&self.engine, &file, &served)?;
        let body = EventBody::BranchRemoved { branch: file.record.id.clone(), name: file.record.name.clone() };
        self.append(&self.writing_session(), body, Durability::Durable)?;
        Ok(BranchRemoved { branch: file.record })
    }

    /// Whether [`Workspace::remove_branch`] would begin; for who removes several things, all or none.
    ///
    /// # Errors
    /// As there.
    pub fn may_remove_branch(&self, name: &str, force: bool) -> Result<()> {
        self.removable(name, force).map(|_| ())
    }

    fn removable(&self, name: &str, force: bool) -> Result<BranchFile> {
        let file = self.branch_file(name)?;
        if file.record.state == BranchState::Making && file.maker.alive() {
            return Err(Error::new(ErrorKind::Busy, format!("process {} is making the branch {name}", file.maker.pid)));
        }
        if !force && file.record.state == BranchState::Ready && file.record.path.is_dir() {
            self.refuse_unsaved(&file)?;
        }
        Ok(file)
    }

    fn refuse_unsaved(&self, file: &BranchFile) -> Result<()> {
        let Some(own) = file.record.workspace.as_ref() else { return Ok(()) };
        let Some(own) = self.engine.workspace_by_id(own)? else { return Ok(()) };
        let last = own.state()?.snapshots.pop();
        let (holder, last) = match last {
            Some(last) => (&own, last),
            None => match self.state()?.snapshot(&file.record.snapshot) {
                Some(origin) => (self, origin.clone()),
                // What it grew from is gone, so nothing says what is new in it.
                None => return Err(unsaved(file, "nothing is left to compare it with")),
            },
        };
        let served = holder.serve(&last.provider)?;
        let changes = own.walked_against(&served, Side::Snapshot(last.reference))?;
        match changes.changes.len() {
            0 => Ok(()),
            count => Err(unsaved(file, &format!("{count} path(s) have changed"))),
        }
    }

    /// How this workspace differs from a snapshot that another workspace's store may hold.
    fn walked_against(&self, served: &Served, from: Side) -> Result<ah_plugin_api::Changes> {
        let dir = self.open_dir()?;
        let policy: CapturePolicy = self.policy()?;
        let request = ah_plugin_api::DiffRequest { from, to: Side::Workspace, paths: Vec::new(), times: false, policy };
        self.walked(served, &request, Some(&dir))
    }
}

fn unsaved(file: &BranchFile, what: &str) -> Error {
    let message = format!("the branch {} is not saved: {what} since its last snapshot", file.record.name);
    let path = file.record.path.display();
    Error::new(ErrorKind::FailedPrecondition, message)
        .with_hint(format!("`ah agent fs snapshot -C {path}` saves it; repeat with --force to lose it"))
}

/// Takes away everything that a branch is, and its record last.
pub(crate) fn finish(engine: &Engine, file: &BranchFile, served: &Served) -> Result<()> {
    if let Some(own) = &file.record.workspace
        && let Some(own) = engine.workspace_by_id(own)?
    {
        forget_workspace(engine, &own)?;
    }
    take_away(engine, file, served)?;
    file.forget(engine.home())
}

/// Takes the branch's directory away, also one that was never finished.
pub(crate) fn take_away(engine: &Engine, file: &BranchFile, served: &Served) -> Result<()> {
    let Ok(target) = Dir::open(&file.target) else { return Ok(()) };
    let place = served.place().with_target(&target);
    let cx = ah_plugin_api::Context::new(&*engine.settings().observer);
    if let Some(request) = destroy_request(file) {
        return served.provider.destroy(&place, &request, &cx).map(|_| ());
    }
    // Its maker died before the provider's reference was written down: whole or not, the provider knows it by its name.
    let path = &file.record.path;
    let name = FileName::new(path.file_name().unwrap_or_default().as_bytes())?;
    let request = ReclaimRequest { auto: false, forgotten: vec![name] };
    served.provider.reclaim(&place, &request, &cx)?;
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if file.target == engine.home().join("branches") {
        return fsio::remove_tree(path);
    }
    let message = format!("{} may be what a killed process left of the branch {}", path.display(), file.record.name);
    Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("look at it, and remove it or move it away"))
}

/// Takes away a workspace's state with all its snapshots.
fn forget_workspace(engine: &Engine, workspace: &Workspace) -> Result<()> {
    let leases: Vec<_> =
        crate::seek::all(engine.home())?.into_iter().filter(|lease| lease.workspace == workspace.id).collect();
    if !leases.is_empty() {
        let _lock = engine.lock_leases()?;
        for lease in leases.iter().filter(|lease| lease.is_settled()) {
            engine.give_back(lease)?;
        }
    }
    for snapshot in workspace.state()?.snapshots {
        let served = workspace.serve(&snapshot.provider)?;
        let request = DestroyRequest::Snapshot(snapshot.reference);
        served.provider.destroy(&served.place(), &request, &workspace.context())?;
    }
    let _lock = engine.lock_registry()?;
    let trash = engine.home().join("trash");
    fsio::make_dir(&trash)?;
    let aside = trash.join(format!("workspace-{}-{}", workspace.id, letters(&engine.settings().ids)));
    let folder = workspace.folder();
    match std::fs::rename(&folder, &aside) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fsio::failed("move away", &folder, &e)),
        _ => {}
    }
    Index::refresh(engine.home())?;
    // What cannot be removed now, gc removes.
    let _ = fsio::remove_tree(&aside);
    Ok(())
}
