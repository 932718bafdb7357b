//! What of a workspace a snapshot does not hold: nested subvolumes and mounts. Asked of the kernel, so that the cost does not grow
//! with the tree. And active swap files, which keep a subvolume from being snapshotted at all.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ah_plugin_api::{Context, Dir, Error, ErrorKind, LogLevel, Omission, OmitReason, RelPath, Result, proc_path};
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
pub(crate) fn omitted(workspace: &Dir, source: &Subvolume, store: &Dir, cx: &Context<'_>) -> Result<Vec<Omission>> {
    let found = Mounts::read()?.below(workspace);
    let nested = nested(workspace, source, Rights::Owners, cx)?.map(|path| {
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
pub(crate) fn first_nested(workspace: &Dir, source: &Subvolume, cx: &Context<'_>) -> Result<Option<RelPath>> {
    nested(workspace, source, Rights::Own, cx)?.next().transpose()
}

/// With whose rights it is looked for paths.
#[derive(Clone, Copy)]
enum Rights {
    /// All that this process has.
    Own,
    /// Those of the workspace's owner.
    Owners,
}

impl Rights {
    /// Calls `run` with them; `EPERM` if they cannot be had.
    fn with<T>(self, workspace: &Dir, run: impl FnOnce() -> T) -> Result<T, Errno> {
        match self {
            Self::Own => Ok(run()),
            Self::Owners => as_owner(workspace, run).ok_or(Errno::PERM),
        }
    }
}

/// So many paths are asked for with the rights of the workspace's owner at a time: to take these on costs more than to ask.
const AT_ONCE: usize = 256;

/// The paths of nested subvolumes.
fn nested<'a>(
    workspace: &'a Dir,
    source: &'a Subvolume,
    rights: Rights,
    cx: &'a Context<'_>,
) -> Result<impl Iterator<Item = Result<RelPath>>> {
    let all = sys::nested(workspace)
        .map_err(|errno| failed(format!("cannot look for what is nested in {}", source.path.display()), errno))?;
    let all: Vec<_> = all.chunks(AT_ONCE).map(<[_]>::to_vec).collect();
    let ask = move |some: Vec<_>| {
        let paths = || some.iter().map(|&one| sys::nested_path(workspace, one)).collect();
        let paths: Vec<_> = rights.with(workspace, paths).unwrap_or_else(|errno| vec![Err(errno)]);
        some.into_iter().zip(paths)
    };
    let top = look(workspace, b"").map_err(|errno| failed("cannot look at the workspace", errno))?.stx_ino;
    let mut climb = Climb { workspace, top, rights, outside: HashSet::new(), left: MOST_STEPS };
    let mut told = false;
    let path = move |(one, path): (_, Result<_, Errno>)| {
        cx.check_cancelled()?;
        let path = match path {
            Err(Errno::NAMETOOLONG) => climb.path_of(one, cx)?,
            path => path,
        };
        match path {
            Ok(path) => Ok(RelPath::new(path).ok().filter(|path| !path.is_root())),
            // Elsewhere in the subvolume, hidden, or taken away just now.
            Err(Errno::ACCESS | Errno::NOENT) => Ok(None),
            // What stands for it in a snapshot is known as that without being listed.
            Err(Errno::OVERFLOW) => {
                if !std::mem::replace(&mut told, true) {
                    let source = source.path.display();
                    let message = format!(
                        "subvolumes in {source} are so deep that it was not looked whether they are in the workspace: of those that are, nothing is captured or listed"
                    );
                    cx.log(LogLevel::Warn, &message);
                }
                Ok(None)
            }
            Err(Errno::NAMETOOLONG) => {
                let message = format!(
                    "a subvolume in {} is so deep that the kernel tells its path to nobody but root",
                    source.path.display()
                );
                let error = Error::new(ErrorKind::FailedPrecondition, message);
                Err(error.with_hint("move it further up, then repeat"))
            }
            Err(errno) => Err(failed("cannot look for nested subvolumes", errno)),
        }
    };
    Ok(all.into_iter().flat_map(ask).map(path).filter_map(Result::transpose))
}

/// So many steps up are made in one call to find where subvolumes are that are very deep: anybody who may make directories somewhere in the subvolume can make
/// very many, and very deep ones.
const MOST_STEPS: usize = 1 << 14;

/// Finds the paths of nested subvolumes that are too deep to be asked for at once, in the workspace or elsewhere.
struct Climb<'a> {
    workspace: &'a Dir,
    /// The workspace's inode.
    top: u64,
    rights: Rights,
    /// Directories that are not in the workspace: from there nobody climbs again.
    outside: HashSet<u64>,
    /// So many steps may still be made.
    left: usize,
}

impl Climb<'_> {
    /// As [`sys::nested_path`]; `ENAMETOOLONG` for others than root, `EOVERFLOW` where no more steps may be made.
    ///
    /// # Errors
    /// `Cancelled`.
    fn path_of(&mut self, one: (u64, u64), cx: &Context<'_>) -> Result<Result<Vec<u8>, Errno>> {
        let (mut dir, mut names) = (one.1, Vec::new());
        while dir != self.top {
            if dir == sys::ROOT_INODE || self.outside.contains(&dir) {
                self.outside.extend(names.into_iter().map(|(dir, _)| dir));
                return Ok(Err(Errno::ACCESS));
            }
            cx.check_cancelled()?;
            let Some(left) = self.left.checked_sub(1) else { return Ok(Err(Errno::OVERFLOW)) };
            self.left = left;
            let (above, name) = match sys::name_of(self.workspace, dir) {
                Ok(found) => found,
                Err(Errno::PERM) => return Ok(Err(Errno::NAMETOOLONG)),
                Err(errno) => return Ok(Err(errno)),
            };
            names.push((dir, name));
            dir = above;
        }
        Ok(self.down(one, &names))
    }

    /// The path down to it, as far as one may go who has the rights: as the kernel does, which tells nobody of what they could not have read themselves.
    fn down(&self, one: (u64, u64), names: &[(u64, Vec<u8>)]) -> Result<Vec<u8>, Errno> {
        let down = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let (mut at, mut path) = (open_beneath(self.workspace.as_fd(), b"", flags)?, Vec::new());
            for (inode, name) in names.iter().rev() {
                at = open_beneath(at.as_fd(), name, flags)?;
                if look(&at, b"")?.stx_ino != *inode {
                    return Err(Errno::NOENT);
                }
                path.extend_from_slice(name);
                path.push(b'/');
            }
            path.extend(sys::nested_path(&at, one)?);
            Ok(path)
        };
        self.rights.with(self.workspace, down)?.map_err(|errno| match errno {
            // Something was put there, or mounted over it, since.
            Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Errno::NOENT,
            errno => errno,
        })
    }
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
