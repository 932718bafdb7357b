//! Times of sources that fit build output from elsewhere.
//!
//! Make and cargo rebuild what is newer than its output. Output that came from the present workspace was built from the present
//! workspace's files, so in the branch a file that is equal to the present one gets the present one's time, and one that
//! differs gets the present moment: then exactly what differs is rebuilt.

use std::os::fd::AsFd;

use ah_plugin_api::{Change, Context, Dir, EntryKind, Result, Timestamp};
use rustix::io::Errno;

use crate::restore::at::{LastDir, Tree, io, set_mtime};
use crate::walk::same_bytes;

/// Sets times in `branch`. `changes` are the differences from what the branch was grown from to the workspace, times included; `now` is the present moment.
pub(super) fn fit(workspace: &Dir, branch: &Dir, changes: &[Change], now: Timestamp, cx: &Context<'_>) -> Result<()> {
    let (here, there) = (Tree::new(workspace.as_fd())?, Tree::new(branch.as_fd())?);
    let mut dirs = LastDir::new(there);
    for (done, change) in changes.iter().enumerate() {
        if done.is_multiple_of(256) {
            cx.check_cancelled()?;
        }
        // What the branch has is `before`; directories' times are nobody's build input.
        let Some(before) = change.before.as_ref().filter(|before| before.kind != EntryKind::Dir) else { continue };
        let equal = match &change.after {
            Some(after) if after.kind == before.kind && after.size == before.size => {
                match (&before.content, &after.content) {
                    (Some(before), Some(after)) => before == after,
                    _ if before.kind == EntryKind::File => here
                        .file(&change.path)
                        .and_then(|present| same_bytes(present.as_fd(), there.file(&change.path)?.as_fd()))
                        .unwrap_or(false),
                    _ => false,
                }
            }
            _ => false,
        };
        let mtime = change.after.as_ref().filter(|_| equal).map_or(now, |after| after.mtime);
        let set = dirs.parent(&change.path).and_then(|(dir, name)| set_mtime(dir, name, mtime));
        match set {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(io(format!("cannot set the time of {}", change.path), error)),
        }
    }
    Ok(())
}
