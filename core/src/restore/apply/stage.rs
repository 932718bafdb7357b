//! Making files and symlinks ready in the staging folder. Nothing that was there is touched.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use ah_plugin_api::{Entry, EntryKind, Error, ErrorKind, RelPath, Result};
use rustix::fs::{Advice, AtFlags, CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::unread::unread;
use super::{Slotted, Staging, Work, lanes, locked, on_threads};
use crate::crash;
use crate::restore::at::{self, io};
use crate::restore::plan::Step;

impl Work<'_> {
    /// Makes all files and symlinks of the plan.
    pub(super) fn stage(&self, staging: &Staging, slots: &[Option<u64>]) -> Result<()> {
        let offset = self.plan.clear.len() + self.plan.dirs.len();
        let puts: Vec<Slotted<'_>> =
            self.plan.puts.iter().zip(&slots[offset..]).map(|(step, &slot)| Slotted { step, slot }).collect();
        let done = AtomicU64::new(0);
        on_threads(lanes(), &puts, |put| {
            self.cx.check_cancelled()?;
            let count = done.fetch_add(1, Ordering::Relaxed);
            if count.is_multiple_of(256) {
                self.cx.progress("preparing files", count, Some(puts.len() as u64));
            }
            match (put.slot, &put.step.after) {
                (Some(slot), Some(after)) => match self.prepare(staging, put.step, after, slot) {
                    // One file that is lost keeps none of the others from coming back.
                    Err(error) if error.kind == ErrorKind::DataLoss => {
                        self.cannot_read(&put.step.path, &error);
                        Ok(())
                    }
                    prepared => prepared,
                },
                _ => Err(Error::new(ErrorKind::Internal, "a file has no place in the plan")),
            }
        })?;
        // As they are told, whichever thread came first.
        locked(&self.outcome).failed.sort_by(|a, b| a.path.cmp(&b.path));
        self.look_again(staging)
    }

    fn prepare(&self, staging: &Staging, step: &Step, after: &Entry, slot: u64) -> Result<()> {
        let path = &step.path;
        let fail = |e| io(format!("cannot prepare {path}"), e);
        let (dir, name) = staging.slot(slot).ok_or_else(|| fail(Errno::INVAL))?;
        crash::point("restore-stage").map_err(|e| Error::from_io(format!("cannot prepare {path}"), &e))?;
        if after.kind == EntryKind::Symlink {
            let target = self.target.link_target(path, self.cx).map_err(|error| unread(path, error))?;
            rustix::fs::symlinkat(target, dir, name.as_str()).map_err(fail)?;
            let chown = |uid, gid| rustix::fs::chownat(dir, name.as_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            let _ = self.give(path, &self.shown(path), self.owner(step), chown);
            return Ok(());
        }
        if let Some(file) = self.unnamed(path) {
            self.fill(&file, step, after)?;
            let unnamed = at::proc_name(file.as_fd());
            match rustix::fs::linkat(CWD, unnamed.as_str(), dir, name.as_str(), AtFlags::SYMLINK_FOLLOW) {
                // Between projects with quotas of their own, say.
                Err(Errno::XDEV | Errno::PERM | Errno::NOENT | Errno::OPNOTSUPP) => {}
                other => return other.map_err(fail),
            }
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        self.fill(&file, step, after)
    }

    /// Gives a new file its contents, attributes, owner and mode.
    fn fill(&self, file: &OwnedFd, step: &Step, after: &Entry) -> Result<()> {
        let path = &step.path;
        let fail = |e| io(format!("cannot prepare {path}"), e);
        self.target.read(path, file.as_fd(), self.cx).map_err(|error| unread(path, error))?;
        let size = at::stat(file.as_fd(), b"").map_err(fail)?.map_or(0, |found| found.size);
        if size != after.size {
            let message = format!("the snapshot gave {size} bytes of {path}, not {}", after.size);
            return Err(Error::new(ErrorKind::DataLoss, message));
        }
        let shown = self.shown(path);
        let attributes = shown.give_attributes(file.as_fd());
        // Takes set-id bits and capabilities away, so it comes first.
        match self.give(path, &shown, self.owner(step), |uid, gid| rustix::fs::fchown(file, uid, gid)) {
            Ok(()) => {
                let mode = self.allowed_mode(step, after.mode, Some(&shown));
                rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(fail)?;
                let lists = shown.give_lists(file.as_fd());
                if lists.is_err() {
                    // The group's bits are what the list allows at most, and not what it gives them.
                    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & !0o070)).map_err(fail)?;
                }
                if let Err(error) = attributes.and(lists) {
                    self.came_bare(path, format!("its extended attributes could not be set ({error})"));
                }
            }
            // It stays as closed as it was made: its mode was meant for another owner.
            Err(error) => {
                self.came_bare(
                    path,
                    format!("its owner could not be set, so only you can read its contents now ({error})"),
                );
            }
        }
        // Starts writing to disk without waiting for it, so that the rename that follows cannot reach the disk long before the
        // contents do: after a power cut a file is the old or the new one, not an empty one.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
        Ok(())
    }

    /// A new file without a name, where these are to be had.
    ///
    /// It is made in the directory where it will be, so that the filesystem places it there, and it gets that directory's
    /// default ACL and label. ext4 does not like it otherwise: it puts the files of a directory side by side, and looks long
    /// for a free inode where many were given back of late, as by one restore after the other.
    fn unnamed(&self, path: &RelPath) -> Option<OwnedFd> {
        // Its name comes by way of `/proc` later.
        let has_proc = *self.has_proc.get_or_init(|| std::path::Path::new("/proc/self/fd").exists());
        let parent = has_proc.then(|| self.tree.dir(&path.parent().unwrap_or_default()).ok()).flatten()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(&parent, ".", flags, Mode::RUSR | Mode::WUSR).ok()
    }

    /// Whose the new file is where the snapshot does not tell and that is not a matter of course: the owner of the file it replaces; a set-group-id directory
    /// gives its group. One that was missing stays root's if root brings it back, as it may be nobody else's to read.
    pub(super) fn owner(&self, step: &Step) -> (Option<Uid>, Option<Gid>) {
        let (me, my_group) = (rustix::process::geteuid(), rustix::process::getegid());
        let parent = || self.tree.stat(&step.path.parent()?).ok().flatten();
        let (uid, gid) = match step.found {
            Some(old) => (old.uid, old.gid),
            None => match parent() {
                Some(dir) if dir.mode & 0o2000 != 0 => (me.as_raw(), dir.gid),
                _ => return (None, None),
            },
        };
        let uid = (me.is_root() && uid != me.as_raw()).then(|| Uid::from_raw(uid));
        (uid, (gid != my_group.as_raw()).then(|| Gid::from_raw(gid)))
    }
}
