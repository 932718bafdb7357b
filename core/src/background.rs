//! Work that nobody waits for: making instant snapshots durable, and what restores have put in place; keeping stores in order, and
//! no more in them than the retention policy says. Done by `gc --auto` in a child of its own. What that did not live to do, the next command starts anew.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ah_plugin_api::sys::work_behind;
use ah_plugin_api::{Durability, ProviderName, Reference, Result, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::ids::{BranchId, SessionName};
use crate::lock::Lock;
use crate::prune;
use crate::record::SnapshotRecord;
use crate::settings::Background;
use crate::workspace::Workspace;

/// Durable snapshots need no work of their own; the store is looked after every so many events.
const EVERY: u64 = 32;

/// Starts the background's child if there is something for it to do. Never fails: what is not done now, the next `gc` does.
pub(crate) fn after_snapshot(workspace: &Workspace, record: &SnapshotRecord) {
    let instant = record.durability == Durability::Instant;
    if instant {
        let _ = mark_unsynced(workspace, record);
    }
    if instant || record.seq.is_multiple_of(EVERY) || prune::is_due(workspace) {
        start(workspace);
    }
}

/// As [`after_snapshot`], after a restore with the safety snapshot `record`: there always is something to do.
pub(crate) fn after_restore(workspace: &Workspace, record: &SnapshotRecord) {
    if record.durability == Durability::Instant {
        let _ = mark_unsynced(workspace, record);
    }
    start(workspace);
}

/// As [`after_snapshot`], after snapshots were removed: what their provider put aside is given back behind.
pub(crate) fn after_removal(workspace: &Workspace) {
    start(workspace);
}

/// Starts the background's child if an earlier one left something undone (of restores: `unsettled`) and none is at work.
pub(crate) fn resume(workspace: &Workspace, unsettled: bool) {
    if workspace.engine.settings().background.is_none() {
        return;
    }
    let marked = unsynced_ids(workspace).is_ok_and(|ids| !ids.is_empty());
    let idle = || matches!(Lock::try_take(&workspace.sync_lock(), false), Ok(Some(_)));
    if (marked || unsettled) && idle() {
        start(workspace);
    }
}

/// Starts a worker for the moments that wait. Never fails: if it cannot be started, the next one sees to them.
pub(crate) fn capture(workspace: &Workspace) {
    run(workspace, workspace.engine.settings().capturer.as_ref());
}

fn start(workspace: &Workspace) {
    run(workspace, workspace.engine.settings().background.as_ref());
}

/// Has a branch taken away when the command has ended that this process becomes, if nothing is in it then. The background's process waits
/// for that until this one has become the command, or has ended: it then hears the end of its input.
pub(crate) fn after_command(workspace: &Workspace, branch: &BranchId) {
    let Some(background) = &workspace.engine.settings().background else { return };
    let mut command = command(workspace, background);
    command.arg("--after-command").arg(branch.as_str()).stdin(Stdio::piped());
    if let Ok(mut child) = command.spawn() {
        // Closed by the kernel.
        std::mem::forget(child.stdin.take());
        // It starts another one and ends: a command that waits for its children is to have none of ours.
        let _ = child.wait();
    }
}

fn run(workspace: &Workspace, background: Option<&Background>) {
    let Some(background) = background else { return };
    if let Ok(mut child) = command(workspace, background).spawn() {
        // A caller that lives on must not collect zombies.
        let _ = std::thread::Builder::new().name("ah-background".to_owned()).spawn(move || child.wait());
    }
}

/// A process of the background, not yet started.
fn command(workspace: &Workspace, background: &Background) -> Command {
    let mut command = Command::new(&background.program);
    command.args(&background.args).arg("-C").arg(workspace.root());
    command.env_clear().envs(background.env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own, so that ^C in the terminal does not reach it; and no working directory that keeps a mount busy.
    command.process_group(0).current_dir("/");
    // Nor does it hold the locks of an `exec` that this command is part of.
    work_behind(&mut command);
    command
}

fn unsynced(workspace: &Workspace) -> PathBuf {
    workspace.folder().join("unsynced")
}

/// Where a snapshot is, and on whose timeline it stands, so that the background need not look for it there.
#[derive(Serialize, Deserialize)]
pub(crate) struct Unsynced {
    pub(crate) session: SessionName,
    pub(crate) provider: ProviderName,
    pub(crate) reference: Reference,
}

/// One small file for each, so that two processes need no lock.
fn mark_unsynced(workspace: &Workspace, record: &SnapshotRecord) -> Result<()> {
    let folder = unsynced(workspace);
    fsio::make_dir(&folder)?;
    let SnapshotRecord { session, provider, reference, .. } = record;
    let mark = Unsynced { session: session.clone(), provider: provider.clone(), reference: reference.clone() };
    let bytes = serde_json::to_vec(&mark).unwrap_or_default();
    fsio::replace(&folder.join(record.id.as_str()), &bytes, Durability::Instant)
}

/// What was left of a snapshot that is to be made durable; none if that cannot be read, or an older version left it.
pub(crate) fn unsynced_mark(workspace: &Workspace, id: &SnapshotId) -> Option<Unsynced> {
    let bytes = fsio::read(&unsynced(workspace).join(id.as_str())).ok().flatten()?;
    serde_json::from_slice(&bytes).ok()
}

/// The snapshots that are to be made durable.
pub(crate) fn unsynced_ids(workspace: &Workspace) -> Result<Vec<SnapshotId>> {
    Ok(fsio::names(&unsynced(workspace))?.into_iter().filter_map(|name| SnapshotId::new(name).ok()).collect())
}

/// A snapshot is durable, or gone.
pub(crate) fn forget_unsynced(workspace: &Workspace, id: &SnapshotId) -> Result<()> {
    fsio::remove_file(&unsynced(workspace).join(id.as_str()))
}
