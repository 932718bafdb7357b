//! A mount namespace for this process, and a bind mount in it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::restore::at::{proc_name, stat};

/// The mode of a folder of one user's.
const PRIVATE: u32 = 0o700;

/// Shows `over` in place of `under`, to this process and its descendants alone. Who is not allowed to is told `way_out`, too.
pub(super) fn put_over(over: &Dir, under: &Dir, way_out: &str) -> Result<()> {
    let refused = |doing: &str, error: Errno| refusal(doing, error, way_out);
    let alone = |flags| enter_namespace(flags).map_err(|e| refused("leave the common namespace", e));
    if rustix::process::geteuid().is_root() {
        match enter_namespace(CloneFlags::CLONE_NEWNS) {
            // Root in name only, as in most containers.
            Err(Errno::EPERM) => alone(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?,
            other => other.map_err(|e| refused("leave the common namespace", e))?,
        }
    } else {
        alone(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    }
    // What others mount and unmount still comes in, so that nothing of theirs is kept busy from here; nothing goes out.
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(|e| refused("make mounts private", e))?;
    // The descriptors still name the mounts of the namespace that was left, so both are opened again, and compared.
    let (source, target) = (again(over)?, again(under)?);
    let (source, target) = (proc_name(source.as_fd()), proc_name(target.as_fd()));
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source.as_str()), target.as_str(), none, flags, none).map_err(|e| refused("show the branch", e))
}

/// Shows an empty folder in place of `folder`, to this process and its descendants alone, once [`put_over`] was called. Where nobody could meet, nothing is done.
pub(super) fn keep_apart(folder: &Path, way_out: &str) -> Result<()> {
    // Whatever comes of it: what is there by then counts.
    let _ = fs::DirBuilder::new().mode(PRIVATE).create(folder);
    let Ok(dir) = Dir::open(folder) else { return Ok(()) };
    // In a folder of everybody's it may be another user's, who could have it covered here.
    let own = rustix::fs::fstat(&dir).is_ok_and(|found| found.st_uid == rustix::process::geteuid().as_raw());
    if !own {
        return Ok(());
    }
    let (none, kind, mode) = (None::<&str>, Some("tmpfs"), format!("mode={PRIVATE:o}"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(none, proc_name(dir.as_fd()).as_str(), kind, flags, Some(mode.as_str()))
        .map_err(|e| refusal(&format!("keep {} apart", folder.display()), e, way_out))
}

/// Unshares, and maps this user to itself where that takes a user namespace.
fn enter_namespace(flags: CloneFlags) -> Result<(), Errno> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut tries = 0;
    loop {
        match unshare(flags) {
            // A thread that was waited for may not be quite gone yet.
            Err(Errno::EINVAL) if tries < 50 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other?,
        }
    }
    if flags.contains(CloneFlags::CLONE_NEWUSER) {
        let write = |name: &str, text: String| {
            fs::write(Path::new("/proc/self").join(name), text)
                .map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
        };
        // Older kernels do not have it, and do not ask for it.
        match write("setgroups", "deny".to_owned()) {
            Err(Errno::ENOENT) | Ok(()) => {}
            Err(error) => return Err(error),
        }
        write("uid_map", format!("{user} {user} 1"))?;
        write("gid_map", format!("{group} {group} 1"))?;
    }
    Ok(())
}

fn again(dir: &Dir) -> Result<Dir> {
    let opened = Dir::open(dir.path())?;
    let identity = |fd: BorrowedFd<'_>| stat(fd, b"").ok().flatten().map(|found| (found.dev, found.ino));
    if identity(opened.as_fd()) == identity(dir.as_fd()) {
        return Ok(opened);
    }
    Err(Error::new(ErrorKind::Conflict, format!("{} was replaced just now", dir.path().display())))
}

/// Why the kernel said no, and what would make it say yes.
fn refusal(doing: &str, error: Errno, way_out: &str) -> Error {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let hint = if setting("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        format!("sudo sysctl kernel.unprivileged_userns_clone=1; {way_out}")
    } else if setting("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        format!("sudo sysctl user.max_user_namespaces=10000; {way_out}")
    } else if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        format!(
            "AppArmor keeps programs without a profile from it: give ah one with `userns,` in /etc/apparmor.d, or \
             sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; {way_out}"
        )
    } else {
        format!(
            "in a container, start it with the capability SYS_ADMIN, or with a seccomp profile that lets unshare and mount through; {way_out}"
        )
    };
    let cause = io::Error::from_raw_os_error(error as i32);
    let mut this =
        Error::from_io(format!("cannot {doing}, which showing the branch at the workspace's path needs"), &cause);
    if matches!(error, Errno::EPERM | Errno::EACCES | Errno::ENOSPC | Errno::EUSERS | Errno::EINVAL | Errno::ENOSYS) {
        this.kind = ErrorKind::FailedPrecondition;
        this = this.with_hint(hint);
    }
    this
}
