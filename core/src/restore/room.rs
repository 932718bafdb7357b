//! What a person can do where there is no room for a restore: agents fill disks, and who goes back then needs room for it first.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ah_plugin_api::{Context, Dir, EntryKind, Error, RelPath, Result};
use rustix::io::Errno;

use super::ignores::Ignores;
use crate::home::lacks_room;
use crate::record::SnapshotRecord;
use crate::text;
use crate::walk::Source;
use crate::workspace::Workspace;

/// Smaller files are not what fills a disk.
const LARGE: u64 = 1 << 20;
/// A disk that takes fewer files than this is full, too: as many as a restore that failed may have taken away again.
const FEW_FILES: u64 = 16;
/// So many are told.
const TOLD: usize = 3;
/// So many of the largest are compared with the snapshot.
const ASKED: usize = 50;

impl Workspace {
    /// Adds to the error of a restore that found no room which disk is full, and which files came since that take most.
    pub(super) fn say_what_takes_room(&self, target: &SnapshotRecord, error: Error) -> Error {
        if !lacks_room(&error) {
            return error;
        }
        let quota = Some(Errno::DQUOT.raw_os_error());
        let hint = if error.errno != quota && self.is_the_full_one() {
            let root = text::shell(self.root().as_os_str());
            Some(format!(
                "the workspace's disk is full; free some space there (`df -h {root}`, `df -i {root}`), then repeat"
            ))
        } else {
            error.hint.clone()
        };
        // What was saved of the present state before there was no room any more is needed no more, and may be what takes it.
        let _ = self.reclaim_all();
        self.engine.home().keep_reserve();
        // Whatever becomes of this look, the error at hand is the one to tell.
        let large = self.large_since(target).unwrap_or_default();
        let told: Vec<String> = large
            .iter()
            .map(|(path, size)| {
                format!("{} ({})", text::shell(self.root().join(path.as_path()).as_os_str()), text::size(*size))
            })
            .collect();
        let own = (!told.is_empty()).then(|| {
            format!("delete what nobody needs of what came, or grew, after that snapshot: {}", told.join(", "))
        });
        match own.into_iter().chain(hint).collect::<Vec<_>>() {
            nothing if nothing.is_empty() => error,
            hints => error.with_hint(hints.join("; ")),
        }
    }

    /// Whether it is the workspace's disk that is full, and not that of `AH_HOME`. What did not fit is gone again by now, so it is the one that takes
    /// hardly a file more, and else the one with less room.
    fn is_the_full_one(&self) -> bool {
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        // Whether files are left, and the bytes. Some filesystems have no bound for files, and say that there are none.
        let free = |path: &Path| {
            rustix::fs::statvfs(path).map_or((false, 0), |found| {
                (found.f_files == 0 || found.f_favail >= FEW_FILES, found.f_bavail * found.f_frsize)
            })
        };
        let (root, home) = (self.root(), self.engine.home().path());
        device(root) != device(home) && free(root) < free(home)
    }

    /// The largest files that the snapshot does not have, or that have grown since.
    fn large_since(&self, target: &SnapshotRecord) -> Result<Vec<(RelPath, u64)>> {
        let cx = self.context();
        let served = self.serve(&target.provider)?;
        let (workspace, scratch, policy) = (self.open_dir()?, self.mounts_dir()?, self.policy()?);
        let ignores = Ignores::open(self.open_dir()?, &policy)?;
        let found = largest(&workspace, &ignores, &cx)?;
        let target = self.shelf(&served, &scratch).open(&target.reference, &cx)?;
        let grown = |(path, size): &(RelPath, u64)| match target.entry(path, &cx) {
            Ok(None) => true,
            Ok(Some(then)) => size.saturating_sub(then.size) >= LARGE,
            Err(_) => false,
        };
        Ok(found.into_iter().filter(grown).take(TOLD).collect())
    }
}

/// The largest files of a workspace that no rule leaves out, the largest first.
fn largest(workspace: &Dir, ignores: &Ignores, cx: &Context<'_>) -> Result<Vec<(RelPath, u64)>> {
    let skip = |path: &RelPath, kind, size| ignores.left_out(path, kind, size);
    let tree = Source::Directory { root: workspace, skip: &skip };
    let (mut found, mut folders) = (Vec::new(), vec![RelPath::default()]);
    while let Some(folder) = folders.pop() {
        cx.check_cancelled()?;
        // What cannot be looked into is passed over.
        for entry in tree.children(&folder, cx).unwrap_or_default() {
            let path = folder.join(&entry.name)?;
            match entry.kind {
                EntryKind::Dir => folders.push(path),
                EntryKind::File if entry.size >= LARGE => found.push((path, entry.size)),
                _ => {}
            }
        }
        found.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        found.truncate(ASKED);
    }
    Ok(found)
}
