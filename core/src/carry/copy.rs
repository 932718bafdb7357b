//! Copying trees from one directory to another: by reflink where the filesystem can, else by bytes up to a limit.
//!
//! Kept: kinds, contents, permission bits, exact times, symlinks, hard links within what is copied; root keeps owners. Not kept:
//! extended attributes, special files. Each topmost path is copied whole or not at all; the smallest come first, so that as
//! many as possible do.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ah_plugin_api::{Context, Dir, EntryKind, Error, ErrorKind, OmitReason, RelPath, Result};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::CarryReport;
use crate::restore::at::{self, Found, LastDir, Tree, io};
use crate::restore::on_threads;
use crate::walk::copy_contents;

/// One entry to be copied.
struct Item {
    path: RelPath,
    found: Found,
}

/// Copies each of `tops`, which `to` does not have.
pub(super) fn copy(
    from: &Dir,
    to: &Dir,
    tops: &[RelPath],
    limit: u64,
    own_state: &[RelPath],
    report: &mut CarryReport,
    cx: &Context<'_>,
) -> Result<()> {
    let (source, target) = (Tree::new(from.as_fd())?, Tree::new(to.as_fd())?);
    let branch = at::stat(to.as_fd(), b"").map_err(|e| io("cannot look at the branch", e))?;
    // A branch inside the workspace does not take itself along.
    let skip = |path: &RelPath, found: &Found| {
        own_state.iter().any(|own| path == own)
            || branch.is_some_and(|branch| (branch.dev, branch.ino) == (found.dev, found.ino))
    };
    let mut lists = Vec::new();
    for top in tops {
        cx.check_cancelled()?;
        let (mut items, mut left) = (Vec::new(), Vec::new());
        list(source, top, &skip, &mut items, &mut left);
        for (path, error) in left {
            report.leave(&path, OmitReason::Unreadable, error.to_string());
        }
        let size = bytes(&items);
        lists.push((size, top, items));
    }
    lists.sort_by_key(|(size, ..)| *size);
    let mut shares = None;
    for (size, top, items) in lists {
        if shares.is_none() {
            shares = items
                .iter()
                .find(|item| item.found.kind == EntryKind::File && item.found.size > 0)
                .map(|item| can_share(source, target, &item.path));
        }
        let room = limit.saturating_sub(report.copied);
        if shares != Some(true) && size > room {
            report.leave(
                top,
                OmitReason::TooLarge,
                format!("{size} bytes to copy, {room} left of the limit of {limit}"),
            );
            continue;
        }
        let mut work = Copying {
            source,
            target,
            cx,
            copied: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            left: Mutex::default(),
        };
        match work.all(&items) {
            // Where the branch does not take it, in a directory that nobody may write to, it does without.
            Err(error) if error.kind != ErrorKind::Cancelled && matches!(target.stat(top), Ok(None)) => {
                report.leave(top, OmitReason::Unreadable, error.to_string());
                continue;
            }
            done => done?,
        }
        report.copied += *work.copied.get_mut();
        report.shared += *work.shared.get_mut();
        for (path, error) in work.left.into_inner().unwrap_or_default() {
            report.leave(&path, OmitReason::Unreadable, error.to_string());
        }
        report.carried.push(top.clone());
    }
    report.carried.sort();
    Ok(())
}

/// Everything at and below `path`, directories before what is in them.
fn list(
    source: Tree<'_>,
    path: &RelPath,
    skip: &dyn Fn(&RelPath, &Found) -> bool,
    items: &mut Vec<Item>,
    left: &mut Vec<(RelPath, Errno)>,
) {
    let found = match source.stat(path) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(error) => return left.push((path.clone(), error)),
    };
    if found.kind == EntryKind::Special || found.dev != source.dev() || skip(path, &found) {
        return;
    }
    items.push(Item { path: path.clone(), found });
    if found.kind == EntryKind::Dir {
        match source.listing(path) {
            Ok(dir) => list_below(source, path, &dir, skip, items, left),
            Err(error) => left.push((path.clone(), error)),
        }
    }
}

fn list_below(
    source: Tree<'_>,
    at: &RelPath,
    dir: &OwnedFd,
    skip: &dyn Fn(&RelPath, &Found) -> bool,
    items: &mut Vec<Item>,
    left: &mut Vec<(RelPath, Errno)>,
) {
    let names = match at::names(dir.as_fd()) {
        Ok(names) => names,
        Err(error) => return left.push((at.clone(), error)),
    };
    for name in names {
        let (Ok(path), Ok(Some(found))) = (at.join(&name), at::stat(dir.as_fd(), &name)) else { continue };
        if found.kind == EntryKind::Special || found.dev != source.dev() || skip(&path, &found) {
            continue;
        }
        items.push(Item { path: path.clone(), found });
        if found.kind == EntryKind::Dir {
            match at::open_dir(dir.as_fd(), &name) {
                Ok(below) => list_below(source, &path, &below, skip, items, left),
                Err(error) => left.push((path, error)),
            }
        }
    }
}

/// Bytes to copy; hard links count once.
fn bytes(items: &[Item]) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let files = items.iter().filter(|item| item.found.kind == EntryKind::File);
    files.filter(|item| item.found.nlink < 2 || seen.insert(item.found.ino)).map(|item| item.found.size).sum()
}

/// Whether contents can be shared between the two trees.
fn can_share(source: Tree<'_>, target: Tree<'_>, path: &RelPath) -> bool {
    let try_it = || {
        let from = source.file(path).ok()?;
        let top = target.dir(&RelPath::root()).ok()?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let to = rustix::fs::openat(&top, ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
        rustix::fs::ioctl_ficlone(&to, &from).ok()
    };
    try_it().is_some()
}

struct Copying<'a> {
    source: Tree<'a>,
    target: Tree<'a>,
    cx: &'a Context<'a>,
    copied: AtomicU64,
    shared: AtomicU64,
    left: Mutex<Vec<(RelPath, Errno)>>,
}

impl Copying<'_> {
    fn all(&self, items: &[Item]) -> Result<()> {
        let mut dirs = LastDir::new(self.target);
        let mut links: HashMap<u64, &RelPath> = HashMap::new();
        let (mut files, mut later) = (Vec::new(), Vec::new());
        for item in items {
            match item.found.kind {
                EntryKind::Dir => {
                    let (dir, name) = dirs.parent(&item.path).map_err(|e| fail(&item.path, e))?;
                    rustix::fs::mkdirat(dir, name, Mode::RWXU).map_err(|e| fail(&item.path, e))?;
                }
                EntryKind::File if item.found.nlink > 1 => match links.entry(item.found.ino) {
                    std::collections::hash_map::Entry::Occupied(first) => later.push((item, *first.get())),
                    std::collections::hash_map::Entry::Vacant(slot) => {
                        slot.insert(&item.path);
                        files.push(item);
                    }
                },
                _ => files.push(item),
            }
        }
        let chunks: Vec<&[&Item]> = files.chunks(32).collect();
        let done = AtomicU64::new(0);
        on_threads(crate::restore::lanes(), &chunks, |chunk| {
            self.cx.check_cancelled()?;
            let before = done.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            self.cx.progress("taking ignored files along", before, Some(files.len() as u64));
            let (mut from, mut to) = (LastDir::new(self.source), LastDir::new(self.target));
            chunk.iter().try_for_each(|item| self.one(item, &mut from, &mut to))
        })?;
        for (item, first) in later {
            self.link(item, first)?;
        }
        // The deepest first: a directory's own time is set when nothing in it changes any more.
        for item in items.iter().rev().filter(|item| item.found.kind == EntryKind::Dir) {
            let (dir, name) = dirs.parent(&item.path).map_err(|e| fail(&item.path, e))?;
            self.own(dir, name, &item.found);
            at::set_mtime(dir, name, item.found.mtime).map_err(|e| fail(&item.path, e))?;
            at::chmod(dir, name, item.found.mode, |now| now.kind == EntryKind::Dir).map_err(|e| fail(&item.path, e))?;
        }
        Ok(())
    }

    /// Copies a file or a symlink. One that cannot be read, or is gone by now, is left.
    fn one(&self, item: &Item, from: &mut LastDir<'_>, to: &mut LastDir<'_>) -> Result<()> {
        let (there, name) = to.parent(&item.path).map_err(|e| fail(&item.path, e))?;
        let read = from.parent(&item.path).and_then(|(here, name)| match item.found.kind {
            EntryKind::Symlink => at::read_link(here, name).map(Read::Link),
            _ => at::open_file(here, name).map(Read::File),
        });
        match read {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((item.path.clone(), error));
                Ok(())
            }
            Ok(Read::Link(target)) => {
                rustix::fs::symlinkat(target, there, name).map_err(|e| fail(&item.path, e))?;
                self.own(there, name, &item.found);
                at::set_mtime(there, name, item.found.mtime).map_err(|e| fail(&item.path, e))
            }
            Ok(Read::File(file)) => match self.file(&file, there, name, &item.found) {
                Err(Errno::CANCELED) => self.cx.check_cancelled(),
                done => done.map_err(|e| fail(&item.path, e)),
            },
        }
    }

    fn file(&self, from: &OwnedFd, dir: BorrowedFd<'_>, name: &[u8], found: &Found) -> Result<(), Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        // Not what came to it since its size was counted.
        match copy_contents(from.as_fd(), to.as_fd(), found.size, self.cx)? {
            Some(bytes) => self.copied.fetch_add(bytes, Ordering::Relaxed),
            None => self.shared.fetch_add(found.size, Ordering::Relaxed),
        };
        self.own(dir, name, found);
        // Its contents may be another's than those of the file that was looked at: not a program that runs as its owner.
        rustix::fs::fchmod(&to, Mode::from_raw_mode(found.mode & !0o6000))?;
        rustix::fs::futimens(&to, &at::times(found.mtime))
    }

    fn link(&self, item: &Item, first: &RelPath) -> Result<()> {
        let parent = |path: &RelPath| self.target.dir(&path.parent().unwrap_or_default());
        let linked = parent(first).and_then(|old| {
            let new = parent(&item.path)?;
            let names = (first.file_name().unwrap_or_default(), item.path.file_name().unwrap_or_default());
            rustix::fs::linkat(&old, names.0, &new, names.1, AtFlags::empty())
        });
        match linked {
            // The first one was left, or links cannot be had: then it is a copy.
            Err(Errno::NOENT | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {
                self.one(item, &mut LastDir::new(self.source), &mut LastDir::new(self.target))
            }
            other => other.map_err(|e| fail(&item.path, e)),
        }
    }

    fn own(&self, dir: BorrowedFd<'_>, name: &[u8], found: &Found) {
        if rustix::process::geteuid().is_root() && (found.uid, found.gid) != (0, 0) {
            let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
            // Where owners cannot be kept, contents matter more.
            let _ = rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        }
    }
}

enum Read {
    Link(Vec<u8>),
    File(OwnedFd),
}

fn fail(path: &RelPath, error: Errno) -> Error {
    let failed = io(format!("cannot take {path} along"), error);
    match failed.kind {
        ErrorKind::ResourceExhausted => failed.with_hint("free some space, or take nothing along: `--carry=none`"),
        _ => failed,
    }
}
