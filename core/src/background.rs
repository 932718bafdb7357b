//! Work that nobody waits for: making instant snapshots durable, and what restores have put in place; keeping stores in order. Done
//! by `gc --auto` in a child of its own. What that did not live to do, the next command starts anew.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ah_plugin_api::{Durability, Result, SnapshotId};

use crate::fsio;
use crate::lock::Lock;
use crate::record::SnapshotRecord;
use crate::workspace::Workspace;

/// Durable snapshots need no work of their own; the store is looked after every so many events.
const EVERY: u64 = 32;

/// Starts the background's child if there is something for it to do. Never fails: what is not done now, the next `gc` does.
pub(crate) fn after_snapshot(workspace: &Workspace, record: &SnapshotRecord) {
    let instant = record.durability == Durability::Instant;
    if instant {
        let _ = mark_unsynced(workspace, &record.id);
    }
    if instant || record.seq.is_multiple_of(EVERY) {
        start(workspace);
    }
}

/// As [`after_snapshot`], after a restore with the safety snapshot `record`: there always is something to do.
pub(crate) fn after_restore(workspace: &Workspace, record: &SnapshotRecord) {
    if record.durability == Durability::Instant {
        let _ = mark_unsynced(workspace, &record.id);
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

fn start(workspace: &Workspace) {
    let Some(background) = &workspace.engine.settings().background else { return };
    let mut command = Command::new(&background.program);
    command.args(&background.args).arg("-C").arg(workspace.root());
    command.env_clear().envs(background.env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own, so that ^C in the terminal does not reach it; and no working directory that keeps a mount busy.
    command.process_group(0).current_dir("/");
    if let Ok(mut child) = command.spawn() {
        // A caller that lives on must not collect zombies.
        let _ = std::thread::Builder::new().name("ah-background".to_owned()).spawn(move || child.wait());
    }
}

fn unsynced(workspace: &Workspace) -> PathBuf {
    workspace.folder().join("unsynced")
}

/// One empty file for each, so that two processes need no lock.
fn mark_unsynced(workspace: &Workspace, id: &SnapshotId) -> Result<()> {
    let folder = unsynced(workspace);
    fsio::make_dir(&folder)?;
    let file = folder.join(id.as_str());
    let made = OpenOptions::new().write(true).create(true).truncate(true).mode(fsio::FILE_MODE).open(&file);
    made.map(drop).map_err(|e| fsio::failed("write", &file, &e))
}

/// The snapshots that are to be made durable.
pub(crate) fn unsynced_ids(workspace: &Workspace) -> Result<Vec<SnapshotId>> {
    Ok(fsio::names(&unsynced(workspace))?.into_iter().filter_map(|name| SnapshotId::new(name).ok()).collect())
}

/// A snapshot is durable, or gone.
pub(crate) fn forget_unsynced(workspace: &Workspace, id: &SnapshotId) -> Result<()> {
    fsio::remove_file(&unsynced(workspace).join(id.as_str()))
}
