//! Removing subvolumes, by whichever way this process may. The kernel takes away without a word what is mounted in one, and empties what is
//! mounted of it: [`Mounted`] is asked before.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use ah_provider_directory::holders::Tables;
use ah_provider_directory::{Special, failed, look, open_beneath, open_to_remove, remove_contents, remove_entry};
use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::subvolume::{Removal, is_root};
use crate::sys;

/// Subvolumes nested deeper than that are not asked for, but found by walking.
const DEEPEST: u32 = 64;

/// What is mounted is looked up again for what is removed so long after the last time.
const FRESH: Duration = Duration::from_secs(10);

/// What is mounted for whichever process, looked up when it is first asked for: one look for all that is removed in one go, if that takes no longer than
/// [`FRESH`].
#[derive(Debug, Default)]
pub(crate) struct Mounted(RefCell<Option<(Instant, Tables)>>);

impl Mounted {
    /// An error if something of the subvolume `name` in `parent`, or in it, is mounted anywhere.
    ///
    /// # Errors
    /// `Busy`; `Cancelled`.
    pub(crate) fn refuse(&self, parent: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
        self.look(parent, name, true, cx)
    }

    /// As [`Self::refuse`], but for mounts of it: who works in a clone by one (`exec`, say) is asked for before, and may be passed over.
    ///
    /// # Errors
    /// `Busy`; `Cancelled`.
    pub(crate) fn refuse_inside(&self, parent: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
        self.look(parent, name, false, cx)
    }

    fn look(&self, parent: BorrowedFd<'_>, name: &[u8], shown: bool, cx: &Context<'_>) -> Result<()> {
        let mut known = self.0.borrow_mut();
        let fresh = known.take().filter(|(read, tables)| read.elapsed() < FRESH && tables.are_of(parent));
        let (read, tables) = match fresh {
            Some(fresh) => fresh,
            None => (Instant::now(), Tables::read(parent, cx)?),
        };
        let refused = tables.refuse(parent, name, shown);
        *known = Some((read, tables));
        refused
    }
}

/// Removes the subvolume `name` in `parent`, and those nested in it. What is gone already is success.
///
/// By one call where this user may; else what is in it is removed file by file, which is as slow as it sounds.
///
/// # Errors
/// `Busy` if the kernel keeps it: the default subvolume, and what is being sent; `PermissionDenied`; `Cancelled`: calling it again goes on.
pub(crate) fn subvolume(parent: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
    nested(parent, name, 0, cx)
}

fn nested(parent: BorrowedFd<'_>, name: &[u8], depth: u32, cx: &Context<'_>) -> Result<()> {
    cx.check_cancelled()?;
    let shown = String::from_utf8_lossy(name).into_owned();
    let fail = |errno| failed(format!("cannot remove the subvolume {shown}"), errno);
    let kept = || {
        let message = format!(
            "the kernel keeps the subvolume {shown}: it is the default one, is being sent, is immutable, or has a swap file in use"
        );
        Error::new(ErrorKind::Busy, message).with_hint(
            "end what sends it or swaps to it; if it is the default one (btrfs subvolume get-default MOUNTPOINT), and nothing is started from it, make another that; then repeat",
        )
    };
    // Who may remove one by one call is told so of nothing else, and is not to empty it instead.
    let is_kept = |errno| errno == Errno::PERM && Removal::on(parent) != Removal::Emptied;
    let first = match sys::destroy(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) if is_kept(errno) => return Err(kept()),
        // Nested ones; read-only, or not without emptying it.
        Err(errno @ (Errno::NOTEMPTY | Errno::PERM | Errno::ACCESS | Errno::ROFS)) => errno,
        Err(errno) => return Err(fail(errno)),
    };
    let root = open_to_remove(parent, name).map_err(fail)?;
    let stat = look(&root, b"").map_err(fail)?;
    if !is_root(&stat) {
        return Err(Error::new(ErrorKind::FailedPrecondition, format!("{shown} is not a subvolume")));
    }
    if first != Errno::NOTEMPTY {
        let is_own = stat.stx_uid == rustix::process::geteuid().as_raw();
        // Its owner may, unless it is being sent.
        sys::make_writable(&root).map_err(|errno| if is_own && errno == Errno::PERM { kept() } else { fail(errno) })?;
    }
    // A directory that its owner may not write to cannot be removed by its owner either.
    let _ = rustix::fs::fchmod(&root, Mode::RWXU);
    if depth < DEEPEST {
        for one in sys::nested(&root).map_err(fail)? {
            let path = match sys::nested_path(&root, one) {
                Ok(path) => path,
                // What this user may not read, or is too deep to be asked for; emptying it opens it up, and finds it.
                Err(Errno::ACCESS | Errno::NOENT | Errno::NAMETOOLONG) => continue,
                Err(errno) => return Err(fail(errno)),
            };
            let (above, last) = match path.iter().rposition(|&b| b == b'/') {
                Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
                None => (&b""[..], path.as_slice()),
            };
            let above = open_beneath(root.as_fd(), above, OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
            nested(above.as_fd(), last, depth + 1, cx)?;
        }
    }
    // Writable by now, it is not what it was: whoever ends here must have seen to it that nobody takes it for that.
    cx.check_cancelled()?;
    match sys::destroy(parent, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(errno) if is_kept(errno) => return Err(kept()),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(fail(errno)),
    }
    contents(root.as_fd(), cx)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

/// Subvolumes, of which this user may remove some at once.
struct Subvolumes;

impl Special for Subvolumes {
    fn is(&self, stat: &Statx) -> bool {
        is_root(stat)
    }

    fn remove(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        sys::destroy(dir, name)
    }

    fn open_up(&self, opened: &OwnedFd) -> Result<(), Errno> {
        sys::make_writable(opened)
    }
}

/// Removes what is in an open directory. Follows no symlink, and does not leave the mount.
pub(crate) fn contents(dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
    remove_contents(dir, &Subvolumes, cx)
}

/// Removes one entry of a directory, with everything below it.
pub(crate) fn entry(dir: BorrowedFd<'_>, name: &[u8], cx: &Context<'_>) -> Result<()> {
    remove_entry(dir, name, &Subvolumes, cx)
}
