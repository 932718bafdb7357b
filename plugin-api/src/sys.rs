//! What programs of ours do without: descriptors of whoever started them, root's rights on files of others, directories that a power cut
//! brings back, and a filesystem's id that does not stay. With [`crate::abi`] the only place of this crate with `unsafe`.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::{AtFlags, Mode, OFlags, StatFs, StatVfs};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

/// In the environment of what works behind its caller, and of what that starts: whoever looks for the commands of `exec` in a branch passes it over.
pub const BEHIND: &str = "AH_BEHIND";

/// Has `command` work behind its caller: it bears [`BEHIND`], and inherits no descriptor but the standard three. It would otherwise hold what that was
/// given by its own caller to hold: the locks by which `exec` says that a command runs in a branch, for instance. Kernels before 5.11 cannot
/// do that; there it inherits what it always did.
pub fn work_behind(command: &mut Command) {
    command.env(BEHIND, "1");
    // SAFETY: what runs between fork and exec is one system call on numbers. It closes nothing, which leaves what the standard library
    // itself holds open until exec.
    unsafe {
        command.pre_exec(|| {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
}

/// Removes an empty directory from `folder`, which may be open with `O_PATH`, and waits until that is on disk: before what is known of it
/// goes, since one that a power cut brought back then, nobody would know. In a folder that may not be read, it is removed all the same.
///
/// # Errors
/// Those of rmdir(2) and fsync(2).
pub fn remove_dir_for_good(folder: impl AsFd, name: impl Arg + Copy) -> Result<(), Errno> {
    rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(&folder, ".", flags, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(()),
        folder => rustix::fs::fsync(folder?),
    }
}

/// What a filesystem is known by, of a subvolume or dataset what that is: the same after each mount. None where it has only the number of the device that it
/// is on by chance (XFS, F2FS, FAT) or of this mount (tmpfs). `kind` and `found` are what is said of one place in it.
#[must_use]
pub fn filesystem_id(kind: &StatFs, found: &StatVfs) -> Option<u64> {
    // As in `linux/magic.h`, and ZFS's own.
    const EXT: u32 = 0xef53;
    const BTRFS: u32 = 0x9123_683e;
    const ZFS: u32 = 0x2fc1_2fc1;
    // The type that the kernel's interface has for these numbers differs from machine to machine; they have 32 bits.
    let has_one = [EXT, BTRFS, ZFS].contains(&(kind.f_type as u32));
    Some(found.f_fsid).filter(|&id| has_one && id != 0)
}

/// Calls `work` with a user's rights on files, on this thread of root's: permissions, the owner of what is made, quotas. `groups`: in which others
/// than `gid` the user is. `None` if these rights cannot be had: then nothing was called.
pub fn as_user<T>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T) -> Option<T> {
    let _acting = Acting::begin(Uid::from_raw(uid), Gid::from_raw(gid), groups)?;
    Some(work())
}

/// Ends when this goes, also by a panic.
struct Acting {
    uid: Uid,
    gid: Gid,
    groups: Vec<rustix::process::Gid>,
    /// What this thread may do as root.
    may: CapabilitySets,
}

impl Acting {
    fn begin(uid: Uid, gid: Gid, theirs: &[u32]) -> Option<Self> {
        // Root's own groups may read what the user may not.
        let groups = rustix::process::getgroups().ok()?;
        let may = capabilities(None).ok()?;
        let theirs: Vec<_> = theirs.iter().map(|group| rustix::process::Gid::from_raw(*group)).collect();
        if groups != theirs {
            set_thread_groups(&theirs).ok()?;
        }
        // Both answer what was before, and nothing else: whether it came about is told by asking again, with what is no id.
        let nobody = u32::MAX;
        let acting = Self { gid: setfsgid(gid), uid: setfsuid(uid), groups, may };
        let came_about = setfsuid(Uid::from_raw(nobody)) == uid && setfsgid(Gid::from_raw(nobody)) == gid;
        // With the user id the kernel takes away what overrides permissions, and leaves what lets root look into other users' processes.
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..may }).ok()?;
        came_about.then_some(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // None of it can fail: all of it was this thread's before.
        let _ = set_capabilities(None, self.may);
        setfsuid(self.uid);
        setfsgid(self.gid);
        let _ = set_thread_groups(&self.groups);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_a_process_was_given_is_not_handed_on() {
        let file = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("test -e /proc/self/fd/{}", file.as_raw_fd())]);
        assert!(shell.status().unwrap().success());
        work_behind(&mut shell);
        assert_eq!(shell.status().unwrap().code(), Some(1));
    }
}
