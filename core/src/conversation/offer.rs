//! What can be used instead of a snapshot that cannot: named in the error's hint, never taken without being asked for.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ah_plugin_api::{EntryKind, Error, ErrorKind, ReadDirRequest, RelPath, Result, SnapshotRef};

use crate::record::SnapshotRecord;
use crate::state::State;
use crate::workspace::Workspace;

/// So many snapshots are looked at, the nearest first.
const LOOKED_AT: usize = 40;

impl Workspace {
    /// Whether what a snapshot holds can be had: its provider serves, knows it, and reads its top.
    pub(crate) fn usable(&self, snapshot: &SnapshotRecord) -> Result<()> {
        let served = self.serve(&snapshot.provider)?;
        let cx = self.context();
        let request = SnapshotRef { snapshot: snapshot.reference.clone() };
        served.provider.stat(&served.place(), &request, &cx)?;
        let request = ReadDirRequest { snapshot: snapshot.reference.clone(), path: RelPath::root() };
        served.provider.read_dir(&served.place(), &request, &cx).map(drop)
    }

    /// Whether a snapshot has a directory at a path below its root.
    pub(crate) fn holds_dir(&self, snapshot: &SnapshotRecord, below: &Path) -> Result<bool> {
        let (served, scratch, cx) = (self.serve(&snapshot.provider)?, self.mounts_dir()?, self.context());
        let source = self.shelf(&served, &scratch).open(&snapshot.reference, &cx)?;
        let entry = source.entry(&RelPath::new(below.as_os_str().as_bytes())?, &cx)?;
        Ok(entry.is_some_and(|entry| entry.kind == EntryKind::Dir))
    }

    /// The error for a snapshot that cannot be used, with the nearest that can be: one before it rather than one after.
    pub(crate) fn offer(
        &self,
        state: &State,
        wanted: &SnapshotRecord,
        error: &Error,
        command: impl Fn(&str) -> String,
    ) -> Error {
        let counts = |snapshot: &&SnapshotRecord| snapshot.counts() && snapshot.session == wanted.session;
        let all = || state.snapshots.iter().filter(counts);
        // `wanted` itself is tried last of those before it: it may be what is left of a moment whose own is gone.
        let before = all().rev().filter(|other| other.seq <= wanted.seq);
        let after = all().filter(|other| other.seq > wanted.seq);
        let nearest = before.chain(after).take(LOOKED_AT).find(|other| self.usable(other).is_ok());
        let failed =
            Error::new(ErrorKind::FailedPrecondition, "the files of that moment cannot be had, so nothing was made");
        let failed = failed.with_cause(error);
        match nearest {
            Some(other) => {
                let when = (self.engine.settings().named_time)(other.time);
                failed.with_hint(format!("{} (the nearest that can be used, of {when})", command(other.id.as_str())))
            }
            None => {
                failed.with_hint("`ah agent fs snapshots` lists what there is; `ah agent fs gc` puts things in order")
            }
        }
    }
}

/// Whether an error of making a branch is about its snapshot, so that another one may do.
pub(crate) fn is_about_the_snapshot(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotFound
            | ErrorKind::DataLoss
            | ErrorKind::Unavailable
            | ErrorKind::Unsupported
            | ErrorKind::Internal
    )
}
