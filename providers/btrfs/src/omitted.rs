//! What of a workspace a snapshot does not hold: nested subvolumes and mounts. Asked of the kernel, so that the cost does not grow
//! with the tree. And active swap files, which keep a subvolume from being snapshotted at all.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ah_plugin_api::{Dir, Omission, OmitReason, RelPath, Result, proc_path};
use ah_provider_directory::{Mounts, failed, look, open_beneath};
use ah_repository::as_owner;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::record;
use crate::subvolume::Subvolume;
use crate::sys;

/// Everything that a snapshot of `source` will not hold of the workspace, ordered by path, the topmost only.
///
/// A nested subvolume that is further down in a directory which this user may not read is passed over: its name is not to be had. Root passes over what the
/// workspace's owner may not read: who has the helper take a snapshot is told of it.
pub(crate) fn omitted(workspace: &Dir, source: &Subvolume, store: &Dir) -> Result<Vec<Omission>> {
    let found = Mounts::read()?.below(workspace);
    let nested = nested(workspace, source, paths_as_owner)?.map(|path| {
        let path = path?;
        let (reason, detail) = if is_own(workspace, &path, store) {
            (OmitReason::OwnState, "snapshots of its own")
        } else {
            (OmitReason::OtherFilesystem, "a subvolume of its own")
        };
        Ok(Omission { path, reason, detail: Some(detail.to_owned()) })
    });
    gathered(found, nested, record::MAX)
}

/// A subvolume that is nested in the workspace, if this process can see one by all rights that it has.
pub(crate) fn first_nested(workspace: &Dir, source: &Subvolume) -> Result<Option<RelPath>> {
    nested(workspace, source, paths)?.next().transpose()
}

/// So many paths are asked for with the rights of the workspace's owner at a time: to take these on costs more than to ask.
const AT_ONCE: usize = 256;

type Paths = Vec<Result<Vec<u8>, Errno>>;

/// The paths of nested subvolumes, as `ask` gives those of some.
fn nested(
    workspace: &Dir,
    source: &Subvolume,
    ask: fn(&Dir, &[(u64, u64)]) -> Paths,
) -> Result<impl Iterator<Item = Result<RelPath>>> {
    let all = sys::nested(workspace)
        .map_err(|errno| failed(format!("cannot look for what is nested in {}", source.path.display()), errno))?;
    let all: Vec<_> = all.chunks(AT_ONCE).map(<[_]>::to_vec).collect();
    Ok(all.into_iter().flat_map(move |some| ask(workspace, &some)).filter_map(|path| match path {
        Ok(path) => RelPath::new(path).ok().filter(|path| !path.is_root()).map(Ok),
        // Elsewhere in the subvolume, hidden, or taken away just now.
        Err(Errno::ACCESS | Errno::NOENT) => None,
        Err(errno) => Some(Err(failed("cannot look for nested subvolumes", errno))),
    }))
}

/// The paths of some nested subvolumes.
fn paths(workspace: &Dir, some: &[(u64, u64)]) -> Paths {
    some.iter().map(|&one| sys::nested_path(workspace, one)).collect()
}

/// The same, as the workspace's owner may have them.
fn paths_as_owner(workspace: &Dir, some: &[(u64, u64)]) -> Paths {
    as_owner(workspace, || paths(workspace, some)).unwrap_or_else(|| vec![Err(Errno::PERM)])
}

/// The topmost of all that was found and of `more`, unless their texts alone are longer than `most` bytes: then no more are asked for.
fn gathered(
    mut found: Vec<Omission>,
    more: impl Iterator<Item = Result<Omission>>,
    most: usize,
) -> Result<Vec<Omission>> {
    let length = |one: &Omission| one.path.as_bytes().len() + one.detail.as_ref().map_or(0, String::len);
    let mut held: usize = found.iter().map(length).sum();
    for one in more {
        let one = one?;
        held += length(&one);
        found.push(one);
        // Those below others do not count; they are not looked for before there is much of it.
        if held > 2 * most {
            found = topmost(found);
            held = found.iter().map(length).sum();
            if held > most {
                return Err(record::too_long());
            }
        }
    }
    Ok(topmost(found))
}

/// Ordered by path, without what is at or below another one. There may be very many, and what is below one need not stand right behind it:
/// `a`, `a-b`, `a/c`.
fn topmost(mut found: Vec<Omission>) -> Vec<Omission> {
    found.sort_by(|a, b| a.path.cmp(&b.path));
    let mut kept = HashSet::with_capacity(found.len());
    found.retain(|omission| {
        let top = std::iter::successors(Some(omission.path.clone()), RelPath::parent).all(|at| !kept.contains(&at));
        if top {
            kept.insert(omission.path.clone());
        }
        top
    });
    found
}

/// Whether that is a place of ours for snapshots: the depot of this store or another's.
fn is_own(workspace: &Dir, path: &RelPath, store: &Dir) -> bool {
    let name = path.file_name().unwrap_or_default();
    if name == crate::elsewhere::ABOVE.as_bytes() {
        return true;
    }
    if name != b"depot" {
        return false;
    }
    // Those of all stores lie beside each other, in folders of folders of ours.
    let parent = path.parent().unwrap_or_default();
    let Ok(parent) = open_beneath(workspace.as_fd(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY) else {
        return false;
    };
    let same = match (look(&parent, b""), look(store, b"")) {
        (Ok(a), Ok(b)) => {
            (a.stx_ino, a.stx_dev_major, a.stx_dev_minor) == (b.stx_ino, b.stx_dev_major, b.stx_dev_minor)
        }
        _ => false,
    };
    same || look(&parent, b"depot/snapshots").is_ok()
}

/// The swap files in use in a subvolume.
pub(crate) fn swap_files(source: &Subvolume) -> Vec<PathBuf> {
    let table = std::fs::read("/proc/swaps").unwrap_or_default();
    let paths = table.split(|&b| b == b'\n').skip(1).filter_map(|line| {
        let mut fields = line.split(|&b| b == b' ' || b == b'\t').filter(|field| !field.is_empty());
        let path = fields.next()?;
        (fields.next()? == b"file").then(|| proc_path(path))
    });
    let device = (source.stat.stx_dev_major, source.stat.stx_dev_minor);
    // Each subvolume has a device number of its own.
    let here = |path: &PathBuf| {
        look(rustix::fs::CWD, path.as_os_str().as_bytes())
            .is_ok_and(|stat| (stat.stx_dev_major, stat.stx_dev_minor) == device)
    };
    paths.filter(here).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn omissions(paths: impl IntoIterator<Item = String>) -> Vec<Omission> {
        let omission = |path| Omission { path, reason: OmitReason::OtherFilesystem, detail: None };
        paths.into_iter().map(|path| omission(RelPath::new(path).unwrap())).collect()
    }

    #[test]
    fn no_more_is_gathered_than_can_be_written_down() {
        let asked = std::cell::Cell::new(0);
        let from = |all: Vec<Omission>| all.into_iter().map(|one| Ok(one).inspect(|_| asked.set(asked.get() + 1)));
        let all = || omissions((0..1000).map(|n| format!("{n:04}")));
        assert_eq!(gathered(Vec::new(), from(all()), 4000).unwrap().len(), 1000);
        asked.set(0);
        let refused = gathered(Vec::new(), from(all()), 400).unwrap_err();
        assert_eq!((refused.kind, asked.get()), (ah_plugin_api::ErrorKind::ResourceExhausted, 201));
        // What is below another one is not written down.
        let below = omissions((0..1000).map(|n| format!("top/{n:04}")));
        assert_eq!(gathered(omissions(["top".to_owned()]), from(below), 400).unwrap().len(), 1);
    }

    #[test]
    fn the_topmost_are_found_at_once_however_many_there_are() {
        let mixed = ["a/c", "b/d/e", "a-b", "a", "b/d", "b/d", "ab"].map(str::to_owned);
        let paths: Vec<_> = topmost(omissions(mixed)).into_iter().map(|omission| omission.path.to_string()).collect();
        assert_eq!(paths, ["a", "a-b", "ab", "b/d"]);
        // One by one with each other that would be minutes.
        let began = Instant::now();
        assert_eq!(topmost(omissions((0..100_000).map(|n| format!("dir/{n}")))).len(), 100_000);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
