//! Contents of one file in memory, then (from a snapshot) or now (from the workspace): for patches and JSON.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};

use ah_core::beneath::{self, Mounts};
use ah_core::{EntryRecord, RelPath, SnapshotRecord, Workspace, text};
use ah_plugin_api::{Dir, EntryKind, Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;

/// A file's contents, or a symlink's target, in a snapshot.
pub(crate) fn then(workspace: &Workspace, snapshot: &SnapshotRecord, path: &RelPath) -> Result<(EntryRecord, Vec<u8>)> {
    then_at_most(u64::MAX, workspace, snapshot, path)
}

/// The same, unless it has more bytes than that.
pub(crate) fn then_at_most(
    most: u64,
    workspace: &Workspace,
    snapshot: &SnapshotRecord,
    path: &RelPath,
) -> Result<(EntryRecord, Vec<u8>)> {
    let failed = |error: &std::io::Error| Error::from_io(format!("cannot keep {path} in memory"), error);
    let fd = rustix::fs::memfd_create("ah", MemfdFlags::CLOEXEC).map_err(|errno| failed(&errno.into()))?;
    let entry = workspace.cat_from(snapshot, path, fd.as_fd())?;
    let mut file = File::from(fd);
    let size = file.metadata().map_err(|error| failed(&error))?.len();
    if size > most {
        let message = format!("{path} has {size} bytes, more than the {most} that are given as JSON");
        let typed = text::shell(workspace.root().join(path.as_path()).as_os_str());
        return Err(Error::new(ErrorKind::ResourceExhausted, message)
            .with_hint(format!("without `--json`: ah agent fs cat {} {typed}", snapshot.id)));
    }
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(|error| failed(&error))?;
    Ok((entry, bytes))
}

/// A file's contents, or a symlink's target, in the workspace as it is. What was found there a moment ago may have been
/// replaced by anything meanwhile: no symlink is followed, nothing that could block is opened.
pub(crate) fn now(root: &Dir, path: &RelPath, kind: EntryKind) -> Result<Vec<u8>> {
    let failed = |errno: Errno| Error::from_io(format!("cannot read {path}, which changed just now"), &errno.into());
    if kind == EntryKind::Symlink {
        let parent =
            open(root, &path.parent().unwrap_or_default(), OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        let target = rustix::fs::readlinkat(parent, path.file_name().unwrap_or_default(), Vec::new());
        return target.map(std::ffi::CString::into_bytes).map_err(failed);
    }
    let fd = open(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)?;
    let mut file = File::from(fd);
    let read = |error: std::io::Error| Error::from_io(format!("cannot read {path}"), &error);
    if !file.metadata().map_err(read)?.is_file() {
        return Err(
            Error::new(ErrorKind::Conflict, format!("{path} is not a file any more")).with_hint("repeat the command")
        );
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(read)?;
    Ok(bytes)
}

fn open(root: &Dir, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
    let name = if path.is_root() { b"." } else { path.as_bytes() };
    beneath::open(root.as_fd(), name, flags, Mounts::Enter)
}
